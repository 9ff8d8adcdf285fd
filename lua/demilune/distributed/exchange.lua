-- Parts of any sizes that the ranks of a group give one another. Each tells the others first what
-- it gives and wants, so that all raise where these differ.

local caller = require "demilune.caller"
local dense = require "demilune.distributed.dense"
local world = require "demilune.distributed.world"

local exchange = {}

-- The rows that go to each rank, or come from each: as given, or as many for each.
local function splits_of(name, what, splits, x, n)
  local rows = x.shape[1]
  if not splits then
    if rows % n ~= 0 then
      caller.raise("%s: %s does not divide into %d parts; hint: %s", name, dense.text_of(x), n,
        what)
    end
    splits = {}
    for i = 1, n do splits[i] = rows // n end
    return splits
  end
  local sum = 0
  for i = 1, #splits do
    local size = math.tointeger(splits[i])
    if not size or size < 0 then
      caller.raise("%s: %s[%d] is %s, wanted a number of rows", name, what, i, tostring(splits[i]))
    end
    sum = sum + size
  end
  if #splits ~= n or sum ~= rows then
    caller.raise("%s: %s has %d elements with the sum %d, wanted %d and %d", name, what, #splits,
      sum, n, rows)
  end
  return splits
end

-- What all_to_all_single exchanges: the rows that go to each rank, the rows that come from each,
-- and {name =, key =, row =}. before: of the name, in errors.
function exchange.rows(name, before, output, input, wants, gives, n)
  local full = before .. name
  if input.dtype ~= output.dtype then
    caller.raise("%s: dtypes %s and %s, wanted the same", full, output.dtype, input.dtype)
  elseif input:dim() == 0 or output:dim() == 0 then
    caller.raise("%s: an output %s for %s, wanted one dim or more", full, dense.text_of(output),
      dense.text_of(input))
  end
  local rest, row = table.concat(input.shape, ", ", 2), 1
  if rest ~= table.concat(output.shape, ", ", 2) then
    caller.raise("%s: an output %s for %s, wanted the same dims behind the first", full,
      dense.text_of(output), dense.text_of(input))
  end
  for d = 2, input:dim() do row = row * input.shape[d] end
  return splits_of(full, "input_split_sizes", gives, input, n),
    splits_of(full, "output_split_sizes", wants, output, n),
    {name = name, row = row, key = ("by split sizes, rows {%s} %s"):format(rest, input.dtype)}
end

-- Exchanges parts of two tensors, goes[i] rows for rank i and comes[i] rows from it; job as of
-- exchange.rows. after() makes the result, by default the output.
function exchange.run(group, output, input, goes, comes, job, is_async, after)
  local name = job.name
  local stays = dense.stay(name, group, "exchange", nil, input, output)
  local flat, bring = dense.to_write(name, output, stays)
  return world.run({kind = "exchange", name = name, group = group, stays = stays,
    input = dense.to_read(input, stays), output = flat, key = job.key, row = job.row,
    sizes = table.move(comes, 1, #comes, #goes + 1, {table.unpack(goes)})}, is_async,
    after and function() return after(bring()) end or bring)
end

return exchange
