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

-- The scores (B, V) of the token after ids (B, T), which follow those of the cache if there is
-- one.
local function next_scores(model, ids, cache)
  if model.next_scores then return model:next_scores(ids, cache) end
  return model(ids):select(2, ids:size(2))
end

-- ids with n more in each row; the model looks at the last `context` of them. A model with a cache
-- reads each token once, as long as it looks at all of them.
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
  local _ <close> = setmetatable({}, {__close = function() model:train(was_training) end})
  model:eval()
  local _ <close> = core.no_grad()
  local longest = ids:size(2) + n - 1 -- the last token is not read
  local cache = model.cache and model:cache(math.max(1, math.min(longest, context)))
  for _ = 1, n do
    local _ <close> = core.scope()
    local length = ids:size(2)
    local read = 0
    if length > context then
      read, cache = length - context, nil
    elseif cache then
      read = cache.length
    end
    local scores = next_scores(model, ids:narrow(2, read + 1, length - read), cache)
    ids = core.keep(core.cat({ids, draw(scores, o)}, 2))
  end
  return ids
end
