-- demilune.distributed.nn: collectives with gradients (torch.distributed.nn.functional's names). A
-- backward pass sends, too: all ranks of the group call backward, or none does. The gradient of a
-- rank's tensor is that of the sum of all ranks' losses.

local core = require "demilune.core"
local autograd = require "demilune.autograd"
local caller = require "demilune.caller"
local options = require "demilune.options"
local collectives = require "demilune.distributed.collectives"
local world = require "demilune.distributed.world"

local nn = {}

local GROUP, OPS = "group?: group", "op: 'sum'|'avg' = 'sum'"

local function signature(name, ...)
  return options.signature("distributed.nn." .. name, table.concat({...}, ", "))
end

-- ---- functions of a dense tensor ----

local add_up, from_one, to_one, gather_all, scatter_sum, trade, gather_one, scatter_one

-- The sum or the mean over the ranks, on all of them.
add_up = autograd.Function{
  name = "distributed.nn.all_reduce",
  forward = function(ctx, x, op, group)
    ctx.op, ctx.group = op, group
    return collectives.all_reduce(x:clone(), op, group)
  end,
  backward = function(ctx, gy) return add_up(gy, ctx.op, ctx.group) end,
}

-- The tensor of rank src, on all.
from_one = autograd.Function{
  name = "distributed.nn.broadcast",
  forward = function(ctx, x, src, group)
    ctx.src, ctx.group = src, group
    return collectives.broadcast(x:clone(), src, group)
  end,
  backward = function(ctx, gy) return to_one(gy, ctx.src, "sum", ctx.group) end,
}

-- The sum or the mean over the ranks on rank dst, zeros on the others.
to_one = autograd.Function{
  name = "distributed.nn.reduce",
  forward = function(ctx, x, dst, op, group)
    ctx.dst, ctx.op, ctx.group = dst, op, group
    local y = collectives.reduce(x:clone(), dst, op, group)
    return world.rank "reduce" == dst and y or y:zero_()
  end,
  backward = function(ctx, gy)
    local gx = from_one(gy, ctx.dst, ctx.group)
    return ctx.op == "avg" and gx / #ctx.group.ranks or gx
  end,
}

-- (d1, ...) of each rank -> (n, d1, ...).
gather_all = autograd.Function{
  name = "distributed.nn.all_gather",
  forward = function(ctx, x, group)
    ctx.group = group
    local y = core.empty({#group.ranks, table.unpack(x.shape)}, {dtype = x.dtype,
      device = x.device})
    return collectives.all_gather_into_tensor(y, x, group)
  end,
  backward = function(ctx, gy) return scatter_sum(gy, "sum", ctx.group) end,
}

-- (n, d1, ...) -> this rank's part (d1, ...) of the sum or the mean over the ranks.
scatter_sum = autograd.Function{
  name = "distributed.nn.reduce_scatter",
  forward = function(ctx, x, op, group)
    ctx.op, ctx.group = op, group
    local y = core.empty({table.unpack(x.shape, 2)}, {dtype = x.dtype, device = x.device})
    return collectives.reduce_scatter_tensor(y, x, op, group)
  end,
  backward = function(ctx, gy)
    local gx = gather_all(gy, ctx.group)
    return ctx.op == "avg" and gx / #ctx.group.ranks or gx
  end,
}

-- (n, m), a row for each rank -> the rows that they give for this one.
trade = autograd.Function{
  name = "distributed.nn.all_to_all",
  forward = function(ctx, x, group)
    ctx.group = group
    return collectives.all_to_all_single(core.empty_like(x), x, group)
  end,
  backward = function(ctx, gy) return trade(gy, ctx.group) end,
}

-- (d1, ...) of each rank -> (n, d1, ...) on rank dst, zeros on the others.
gather_one = autograd.Function{
  name = "distributed.nn.gather",
  forward = function(ctx, x, dst, group)
    ctx.dst, ctx.group = dst, group
    local list = collectives.gather(x, dst, group)
    if list then return core.stack(list) end
    return core.zeros({#group.ranks, table.unpack(x.shape)}, {dtype = x.dtype, device = x.device})
  end,
  backward = function(ctx, gy) return scatter_one(gy, ctx.dst, ctx.group) end,
}

-- (n, d1, ...), of which that of rank src counts -> this rank's part.
scatter_one = autograd.Function{
  name = "distributed.nn.scatter",
  forward = function(ctx, x, src, group)
    ctx.src, ctx.group = src, group
    local y = core.empty({table.unpack(x.shape, 2)}, {dtype = x.dtype, device = x.device})
    local list = world.rank "scatter" == src and x:unbind(1) or nil
    return collectives.scatter(y, list, src, group)
  end,
  backward = function(ctx, gy) return gather_one(gy, ctx.src, ctx.group) end,
}

-- ---- checks ----

-- Raises unless it is a list of n tensors.
local function check_list(name, what, list, n)
  if #list ~= n then
    caller.raise("distributed.nn.%s: %s has %d elements, wanted %d, a tensor for each rank", name,
      what, #list, n)
  end
  for i, t in ipairs(list) do
    if not core.is_tensor(t) then
      caller.raise("distributed.nn.%s: element %d of %s is a %s, wanted a tensor", name, i, what,
        type(t))
    end
  end
end

-- Writes y into the tensor that a caller gave for it, and returns y, which has the history.
local function written(name, output, y)
  if output.dtype ~= y.dtype or tostring(output.shape) ~= tostring(y.shape) then
    caller.raise("distributed.nn.%s: an output %s %s for %s %s", name, tostring(output.shape),
      output.dtype, tostring(y.shape), y.dtype)
  end
  output:detach():copy_(y:detach())
  return y
end

-- ---- the public functions ----

local bind_all_reduce = signature("all_reduce", "tensor: tensor", OPS, GROUP)

--- The sum or the mean of the ranks' tensors, a new tensor on each of them.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param op? string "sum" (default) or "avg", which have gradients
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor sum
function nn.all_reduce(...)
  local o = bind_all_reduce(...)
  return add_up(o.tensor, o.op, world.group("all_reduce", o.group))
end

local bind_broadcast = signature("broadcast", "tensor: tensor", "src: integer", GROUP)

--- The tensor of rank src, a new tensor on each rank. Its gradient is the sum of the ranks'; those
--- of the other ranks' tensors are zeros.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param src integer a rank of the world, from 0
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor
function nn.broadcast(...)
  local o = bind_broadcast(...)
  return from_one(o.tensor, o.src, world.group("broadcast", o.group))
end

local bind_reduce = signature("reduce", "tensor: tensor", "dst: integer", OPS, GROUP)

--- The sum or the mean of the ranks' tensors on rank dst, and zeros on the others, which call
--- backward through them as well.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param dst integer a rank of the world, from 0
---@param op? string "sum" (default) or "avg"
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor
function nn.reduce(...)
  local o = bind_reduce(...)
  return to_one(o.tensor, o.dst, o.op, world.group("reduce", o.group))
end

local bind_all_gather = signature("all_gather", "tensor: tensor", GROUP)

--- The tensors of all ranks, on each of them.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor[] list in the order of the ranks
function nn.all_gather(...)
  local o = bind_all_gather(...)
  return gather_all(o.tensor, world.group("all_gather", o.group)):unbind(1)
end

local bind_gather = signature("gather", "tensor: tensor", "dst: integer = 0", GROUP)

--- The tensors of all ranks on rank dst, and as many zeros on the others, which call backward
--- through them as well.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param dst? integer a rank of the world, from 0; 0 by default
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor[] list in the order of the ranks
function nn.gather(...)
  local o = bind_gather(...)
  return gather_one(o.tensor, o.dst, world.group("gather", o.group)):unbind(1)
end

local bind_scatter = signature("scatter", "tensors: list", "src: integer = 0", GROUP)

--- This rank's tensor of the list on rank src.
---@param tensors demilune.Tensor[] a tensor for each rank, of one shape and dtype on all ranks;
--- those of src count
---@param src? integer a rank of the world, from 0; 0 by default
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor
function nn.scatter(...)
  local o = bind_scatter(...)
  local group = world.group("scatter", o.group)
  check_list("scatter", "tensors", o.tensors, #group.ranks)
  return scatter_one(core.stack(o.tensors), o.src, group)
end

local bind_reduce_scatter = signature("reduce_scatter", "output: tensor", "input_list: list", OPS,
  GROUP)

--- Of the sum or the mean of the ranks' lists, this rank's element.
---@param output demilune.Tensor written, too; the result has the history
---@param input_list demilune.Tensor[] one like the output for each rank
---@param op? string "sum" (default) or "avg"
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor
function nn.reduce_scatter(...)
  local o, name = bind_reduce_scatter(...), "reduce_scatter"
  local group = world.group(name, o.group)
  check_list(name, "input_list", o.input_list, #group.ranks)
  return written(name, o.output, scatter_sum(core.stack(o.input_list), o.op, group))
end

-- How many elements the longest part of all ranks has. They tell each other what they give and
-- want, and all of them raise where it differs.
local function longest_part(name, gives, wants, group)
  local both = table.move(wants, 1, #wants, #gives + 1, {table.unpack(gives)})
  local n, longest, told = #gives, 0, collectives.all_gather(core.tensor(both), group)
  for i, list in ipairs(told) do told[i] = list:totable() end
  for i, of in ipairs(told) do
    for k = 1, n do
      longest = math.max(longest, of[k])
      if of[k] ~= told[k][n + i] then
        caller.raise("distributed.nn.%s: rank %d gives rank %d %d elements, which wants %d", name,
          group.ranks[i], group.ranks[k], of[k], told[k][n + i])
      end
    end
  end
  return longest
end

-- Trades flat tensors of any lengths, parts[i] for rank i; sizes[i] elements come from rank i. They
-- travel as rows as long as the longest.
local function trade_parts(name, parts, sizes, group)
  local gives, rows = {}, {}
  for i, part in ipairs(parts) do gives[i] = part:numel() end
  local longest = longest_part(name, gives, sizes, group)
  for i, part in ipairs(parts) do
    local rest = core.zeros({longest - gives[i]}, {dtype = part.dtype, device = part.device})
    rows[i] = core.cat{part, rest}
  end
  local out = trade(core.stack(rows), group):unbind(1)
  for i, size in ipairs(sizes) do out[i] = out[i]:narrow(1, 1, size) end
  return out
end

local bind_all_to_all = signature("all_to_all", "output_tensor_list: list",
  "input_tensor_list: list", GROUP)

--- Gives element i of the list to the i-th rank, and returns what the ranks give this one. The
--- tensors may be of different sizes.
---@param output_tensor_list demilune.Tensor[] as large as what comes from each rank; written, too:
--- the results have the history
---@param input_tensor_list demilune.Tensor[] for each rank one, of one dtype
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor[] list in the order of the ranks
function nn.all_to_all(...)
  local o, name = bind_all_to_all(...), "all_to_all"
  local group = world.group(name, o.group)
  check_list(name, "output_tensor_list", o.output_tensor_list, #group.ranks)
  check_list(name, "input_tensor_list", o.input_tensor_list, #group.ranks)
  local parts, sizes = {}, {}
  for i, x in ipairs(o.input_tensor_list) do
    parts[i], sizes[i] = x:reshape(-1), o.output_tensor_list[i]:numel()
  end
  local list = trade_parts(name, parts, sizes, group)
  for i, output in ipairs(o.output_tensor_list) do
    list[i] = written(name, output, list[i]:reshape(output.shape))
  end
  return list
end

-- The rows that go to each rank: as given, or as many to each.
local function checked_splits(name, what, splits, rows, n)
  if not splits then
    if rows % n ~= 0 then
      caller.raise("distributed.nn.%s: %d rows do not divide into %d parts; hint: %s", name, rows,
        n, what)
    end
    splits = {}
    for i = 1, n do splits[i] = rows // n end
    return splits
  end
  local sum = 0
  for i = 1, n do
    local rows_of_i = math.type(splits[i]) == "integer" and splits[i] >= 0 and splits[i]
    sum = sum + (rows_of_i or caller.raise("distributed.nn.%s: %s[%d] is %s, wanted a number of "
      .. "rows", name, what, i, tostring(splits[i])))
  end
  if sum ~= rows or #splits ~= n then
    caller.raise("distributed.nn.%s: %s has %d elements with the sum %d, wanted %d and %d", name,
      what, #splits, sum, n, rows)
  end
  return splits
end

local bind_single = signature("all_to_all_single", "output: tensor", "input: tensor",
  "output_split_sizes?: list", "input_split_sizes?: list", GROUP)

--- Cuts the input's first dim into a part for each rank, and puts the parts that come from the
--- ranks one after the other.
---@param output demilune.Tensor (rows that come, ...); written, too: the result has the history
---@param input demilune.Tensor (rows that go, ...)
---@param output_split_sizes? integer[] rows from each rank; as many from each by default
---@param input_split_sizes? integer[] rows to each rank; as many to each by default
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor
function nn.all_to_all_single(...)
  local o, name = bind_single(...), "all_to_all_single"
  local group, input, output = world.group(name, o.group), o.input, o.output
  if input:dim() == 0 or output:dim() ~= input:dim() then
    caller.raise("distributed.nn.%s: an output %s for %s, wanted as many dims, one or more", name,
      tostring(output.shape), tostring(input.shape))
  end
  local n, width = #group.ranks, 1
  for d = 2, input:dim() do width = width * input.shape[d] end
  local goes = checked_splits(name, "input_split_sizes", o.input_split_sizes, input.shape[1], n)
  local comes = checked_splits(name, "output_split_sizes", o.output_split_sizes, output.shape[1], n)
  local parts, sizes, first = {}, {}, 1
  for i = 1, n do
    parts[i], sizes[i] = input:narrow(1, first, goes[i]):reshape(-1), comes[i] * width
    first = first + goes[i]
  end
  local list = trade_parts(name, parts, sizes, group)
  return written(name, output, core.cat(list):reshape(output.shape))
end

return nn
