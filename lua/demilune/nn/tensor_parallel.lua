-- Layers whose weights are divided among the ranks of a group, each of which computes a part of the
-- outputs, or of the sum that an output is.
-- M. Shoeybi et al. 2019, Megatron-LM: training multi-billion parameter language models using model
-- parallelism.
--
-- A layer is made of the plain one's arguments and has its names. Its state_dict is the plain
-- layer's too: the parts are brought together on state_dict, and cut on load_state_dict. The ranks
-- of the group get the same inputs and draw the same random numbers.

local core = require "demilune.core"
local autograd = require "demilune.autograd"
local caller = require "demilune.caller"
local options = require "demilune.options"
local check_alike = require "demilune.distributed.alike"
local collectives = require "demilune.distributed.collectives"
local divided = require "demilune.distributed.divided"
local world = require "demilune.distributed.world"
local linear = require "demilune.nn.linear"
local Module = require "demilune.nn.module"

local parallel = {}

-- ---- parts of a tensor ----

-- This rank's part of t, which is cut along a dim.
local function part_of(name, t, dim, group)
  local size = t:size(dim) // #group.ranks
  return t:narrow(dim, group.index_of[world.rank(name)] * size + 1, size):clone()
end

-- The parts of all ranks, one after the other along a dim.
local function whole_of(t, dim, group) return core.cat(collectives.all_gather(t, group), dim) end

-- ---- functions that send, with their gradients ----

local add_up, hand_out, bring_together, divide

-- x, the same on all ranks -> x. The gradient is the sum over the ranks.
hand_out = autograd.Function{
  name = "tensor_parallel.hand_out",
  forward = function(ctx, x, group)
    ctx.group = group
    return x
  end,
  backward = function(ctx, gy) return add_up(gy, ctx.group) end,
}

-- x -> the sum over the ranks; the ranks' gradients of it are the same.
add_up = autograd.Function{
  name = "tensor_parallel.add_up",
  forward = function(ctx, x, group)
    ctx.group = group
    return collectives.all_reduce(x:clone(), "sum", group)
  end,
  backward = function(ctx, gy) return hand_out(gy, ctx.group) end,
}

-- x (..., I / n) -> (..., I) of all ranks.
bring_together = autograd.Function{
  name = "tensor_parallel.bring_together",
  forward = function(ctx, x, group)
    ctx.group = group
    return whole_of(x, -1, group)
  end,
  backward = function(ctx, gy) return divide(gy, ctx.group) end,
}

-- x (..., I), the same on all ranks -> this rank's (..., I / n).
divide = autograd.Function{
  name = "tensor_parallel.divide",
  forward = function(ctx, x, group)
    ctx.group = group
    return part_of("tensor_parallel", x, -1, group)
  end,
  backward = function(ctx, gy) return bring_together(gy, ctx.group) end,
}

-- ---- construction ----

-- The group, which divides `size`, as the option `what` is called; all its ranks make a layer of
-- the same sizes from the same random numbers.
local function checked_group(self, group, what, size, sizes)
  local name = self.class
  group = world.group(name, group)
  local n = #group.ranks
  if size % n ~= 0 then
    caller.raise("%s: %s is %d, which does not divide into %d ranks; hint: %d does", name, what,
      size, n, (size // n + 1) * n)
  end
  if n == 1 then return group end
  local rng = core.get_rng_state()
  check_alike(name, "layers", {{"the layer", ("%s -> %s"):format(table.unpack(sizes))},
    {"its generator", ("at number %d of seed %d"):format(rng.offset, rng.seed)}}, group,
    "dm.manual_seed(1) on all of them, before the model is made")
  return group
end

-- What a state_dict of the whole needs to know of a field: see Module.division. Classes have
-- _dims, {field = the dim that is cut}.
local function division(self, field)
  local dim, group = self._dims[field], self._group
  if not dim or #group.ranks == 1 then return nil end
  local shape = self[field].shape
  shape[dim] = shape[dim] * #group.ranks
  return {shape = shape,
    gather = function(t) return whole_of(t, dim, group) end,
    cut = function(t) return part_of(self.class, t, dim, group) end}
end

-- Fills this rank's parts from those of a plain layer.
local function fill_from(self, plain)
  local _ <close> = core.no_grad()
  for name, whole in plain:named_parameters() do
    local cut = self:division(name)
    self[name].data:copy_(cut and cut.cut(whole.data) or whole.data)
  end
end

local function extend(name, dims)
  local class = Module:extend(name)
  class.holds_no_activations, class._dims, class.division = true, dims, division
  parallel[name] = class
  return class
end

-- ---- linear ----

-- The plain layer's values, from the same random numbers.
local function reset_linear(self)
  fill_from(self, linear.Linear(self.in_features, self.out_features, {bias = self.bias ~= nil,
    dtype = self.weight.dtype, device = self.weight.device}))
end

-- Makes weight {out, in} and bias {n_bias} of these sizes.
local function make_linear(self, o, out_features, in_features)
  self.in_features, self.out_features = o.in_features, o.out_features
  local how = {dtype = o.dtype, device = o.device}
  self.weight = core.parameter(core.empty(out_features, in_features, how))
  local n_bias = self._dims.bias and out_features or o.out_features
  if o.bias then self.bias = core.parameter(core.empty(n_bias, how)) end
  self:reset_parameters()
end

local function linear_repr(self)
  return ("%d -> %d%s, %d ranks"):format(self.in_features, self.out_features,
    self.bias and "" or ", bias = false", #self._group.ranks)
end

--- A Linear whose outputs are divided among the ranks of a group: x (..., I), the same on all of
--- them -> y (..., O), or this rank's (..., O / n) with gather_output = false, as a
--- RowParallelLinear takes it. Each rank has O / n rows of the weight. All ranks of the group make
--- it, after the same dm.manual_seed, and call it together; state_dict and load_state_dict, too,
--- which hold the whole weight {O, I} and bias {O}.
local Column = extend("ColumnParallelLinear", {weight = 1, bias = 1})

local bind_column = options.signature("ColumnParallelLinear", [[in_features: integer,
  out_features: integer, bias: boolean = true, gather_output: boolean = true, *,
  process_group?: group, device?: device, dtype?: dtype]], "linear")

--- ColumnParallelLinear(in_features, out_features, {bias =, gather_output =, process_group =,
--- device =, dtype =})
---@param in_features integer
---@param out_features integer a multiple of the number of ranks
---@param bias? boolean true by default
---@param gather_output? boolean give the whole output to all ranks; true by default
---@param process_group? demilune.Group all ranks by default
---```lua
---dm.distributed.init_process_group()
---local layer = nn.parallel.ColumnParallelLinear(4, 6, {gather_output = false})
---layer(dm.ones(2, 4)).shape                         --> {2, 6}
---dm.distributed.destroy_process_group()
---```
function Column:init(...)
  local o = bind_column(...)
  local group = checked_group(self, o.process_group, "out_features", o.out_features,
    {o.in_features, o.out_features})
  rawset(self, "_group", group)
  self.gather_output = o.gather_output
  make_linear(self, o, o.out_features // #group.ranks, o.in_features)
end

Column.reset_parameters, Column.extra_repr = reset_linear, linear_repr

function Column:forward(x)
  local group = self._group
  if #group.ranks == 1 then return core.linear(x, self.weight, self.bias) end
  divided.note(self.weight, group)
  divided.note(self.bias, group)
  local y = core.linear(hand_out(x, group), self.weight, self.bias)
  return self.gather_output and bring_together(y, group) or y
end

--- A Linear whose inputs are divided among the ranks of a group: x (..., I), the same on all of
--- them, or with input_is_parallel = true this rank's (..., I / n), as a ColumnParallelLinear with
--- gather_output = false gives it -> y (..., O), the same on all ranks. Each rank has I / n columns
--- of the weight, and the whole bias. All ranks of the group make it, after the same
--- dm.manual_seed, and call it together; state_dict and load_state_dict, too, which hold the whole
--- weight {O, I}.
local Row = extend("RowParallelLinear", {weight = 2})

local bind_row = options.signature("RowParallelLinear", [[in_features: integer,
  out_features: integer, bias: boolean = true, input_is_parallel: boolean = false, *,
  process_group?: group, device?: device, dtype?: dtype]], "linear")

--- RowParallelLinear(in_features, out_features, {bias =, input_is_parallel =, process_group =,
--- device =, dtype =})
---@param in_features integer a multiple of the number of ranks
---@param out_features integer
---@param bias? boolean true by default
---@param input_is_parallel? boolean whether x is this rank's part already; false by default
---@param process_group? demilune.Group all ranks by default
---```lua
---dm.distributed.init_process_group()
---local layer = nn.parallel.RowParallelLinear(6, 4, {input_is_parallel = true})
---layer(dm.ones(2, 6)).shape                         --> {2, 4}
---dm.distributed.destroy_process_group()
---```
function Row:init(...)
  local o = bind_row(...)
  local group = checked_group(self, o.process_group, "in_features", o.in_features,
    {o.in_features, o.out_features})
  rawset(self, "_group", group)
  self.input_is_parallel = o.input_is_parallel
  make_linear(self, o, o.out_features, o.in_features // #group.ranks)
end

Row.reset_parameters, Row.extra_repr = reset_linear, linear_repr

-- This rank's part of x (..., I).
local function divided_input(self, x)
  if x:dim() == 0 or x:size(-1) ~= self.in_features then
    caller.raise("%s: x is %s, wanted %d features in its last dim", self.class, tostring(x.shape),
      self.in_features)
  end
  return divide(x, self._group)
end

function Row:forward(x)
  local group = self._group
  if #group.ranks == 1 then return core.linear(x, self.weight, self.bias) end
  divided.note(self.weight, group)
  if not self.input_is_parallel then x = divided_input(self, x) end
  local y = add_up(core.linear(x, self.weight), group)
  return self.bias and y + self.bias:to(y.dtype) or y
end

-- ---- embedding ----

--- An Embedding whose rows are divided among the ranks of a group: ids (...), the same on all of
--- them -> rows (..., D), the same on all ranks. Each rank has N / n rows of the weight. All ranks
--- of the group make it, after the same dm.manual_seed, and call it together; state_dict and
--- load_state_dict, too, which hold the whole weight {N, D}.
local Vocab = extend("VocabParallelEmbedding", {weight = 1})

local bind_vocab = options.signature("VocabParallelEmbedding", [[num_embeddings: integer,
  embedding_dim: integer, padding_idx?: integer, *, process_group?: group, device?: device,
  dtype?: dtype]])

--- VocabParallelEmbedding(num_embeddings, embedding_dim, {padding_idx =, process_group =,
--- device =, dtype =})
---@param num_embeddings integer a multiple of the number of ranks
---@param embedding_dim integer
---@param padding_idx? integer the id, from 1, whose row begins as zeros and gets no gradient
---@param process_group? demilune.Group all ranks by default
---```lua
---dm.distributed.init_process_group()
---local rows = nn.parallel.VocabParallelEmbedding(10, 4)
---rows(dm.tensor{1, 10}).shape                       --> {2, 4}
---dm.distributed.destroy_process_group()
---```
function Vocab:init(...)
  local o = bind_vocab(...)
  local n, dim = o.num_embeddings, o.embedding_dim
  local group = checked_group(self, o.process_group, "num_embeddings", n, {n, dim})
  rawset(self, "_group", group)
  self.num_embeddings, self.embedding_dim, self.padding_idx = n, dim, o.padding_idx
  self.weight = core.parameter(core.empty(n // #group.ranks, dim,
    {dtype = o.dtype, device = o.device}))
  self:reset_parameters()
end

function Vocab:reset_parameters()
  fill_from(self, linear.Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx,
    {dtype = self.weight.dtype, device = self.weight.device}))
end

-- Raises for ids that no rank has a row for.
local function check_ids(self, ids)
  if ids:numel() == 0 then return end
  for _, id in ipairs{ids:amin():item(), ids:amax():item()} do
    if id < 1 or id > self.num_embeddings then
      caller.raise("%s: the ids hold %d, wanted 1 to %d", self.class, id, self.num_embeddings)
    end
  end
end

function Vocab:forward(ids)
  local group, weight, padding = self._group, self.weight, self.padding_idx
  if #group.ranks == 1 then return core.embedding(ids, weight, padding) end
  divided.note(weight, group)
  check_ids(self, ids)
  local n = weight:size(1)
  local before = group.index_of[world.rank(self.class)] * n
  local own = ids - before
  local is_elsewhere = own:lt(1):logical_or(own:gt(n))
  local is_padding_here = padding and padding > before and padding <= before + n
  local rows = core.embedding(own:masked_fill(is_elsewhere, 1), weight,
    is_padding_here and padding - before or nil)
  return add_up(rows:masked_fill(is_elsewhere:unsqueeze(-1), 0), group)
end

function Vocab:extra_repr()
  return ("%d, %d%s, %d ranks"):format(self.num_embeddings, self.embedding_dim,
    self.padding_idx and ", padding_idx = " .. self.padding_idx or "", #self._group.ranks)
end

return parallel
