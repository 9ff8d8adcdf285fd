-- Text from a language model: a module of token ids (B, T) that gives scores of the next
-- token (B, T, V).

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

-- The next ids for scores (B, V): drawn by their chances, of the top_k best only; with
-- temperature 0 the best.
local function draw(scores, o)
  if o.temperature == 0 then return scores:argmax(-1):unsqueeze(-1) end
  scores = scores:float() / o.temperature
  local values, best = scores:topk(math.min(o.top_k, scores:size(-1)), -1)
  local chances = core.softmax(values, -1)
  return best:gather(-1, core.multinomial(chances, 1, {generator = o.generator}))
end

-- ids with n more in each row; the model looks at the last `context` of them.
local bind = options.signature("generate", [[ids: tensor, n: integer,
  temperature: number = 1.0, top_k: integer = 50, generator?: generator]])
return function(model, context, ...)
  local o = bind(...)
  local ids, n = o.ids, o.n
  if o.temperature < 0 then
    caller.raise("generate: temperature is %s, wanted a number from 0", tostring(o.temperature))
  end
  if not core.is_tensor(ids) or ids:dim() ~= 2 or ids:size(2) == 0 then
    caller.raise("generate: wanted ids {batch, 1 or more}, got %s",
      core.is_tensor(ids) and tostring(ids.shape) or type(ids))
  end
  local was_training = model.training
  local _ <close> = core.no_grad()
  model:eval()
  for _ = 1, n do
    local _ <close> = core.scope()
    local seen = math.min(ids:size(2), context)
    local scores = model(ids:narrow(2, ids:size(2) - seen + 1, seen)):select(2, seen)
    ids = core.keep(core.cat({ids, draw(scores, o)}, 2))
  end
  model:train(was_training)
  return ids
end
