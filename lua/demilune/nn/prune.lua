-- nn.utils.prune: parameters of which a mask leaves some elements. The parameter `weight` becomes
-- weight_orig, with a buffer weight_mask, and a hook before each forward makes weight of both.
-- Masks come from methods: classes with compute_mask, whose PRUNING_TYPE says what a further one
-- works on: the elements ("unstructured") or the channels ("structured") that are left, or all
-- ("global").

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local prune = {}

local method_of = setmetatable({}, {__mode = "k"}) -- hook -> its method

-- ---- methods ----

local Base = {class = "BasePruningMethod"}
Base.__index = Base
local methods = setmetatable({[Base] = true}, {__mode = "k"}) -- the classes

local function construct(class, ...)
  local self = setmetatable({}, class)
  self:init(...)
  return self
end
setmetatable(Base, {__call = construct})

--- A new method: `local Mine = prune.BasePruningMethod:extend "Mine"`, which has
--- Mine.PRUNING_TYPE, and Mine:compute_mask(t, default_mask) -> mask. Mine:apply(module, name, ...)
--- prunes; what follows the name goes to Mine:init.
---@param name string
function Base:extend(name)
  local class = {class = name, super = self}
  class.__index = class
  methods[class] = true
  return setmetatable(class, {__index = self, __call = construct})
end

function Base.init() end
Base.PRUNING_TYPE = "unstructured"

--- The mask for the tensor t (or for what is left of it), of zeros and ones: default_mask or less.
function Base:compute_mask()
  caller.raise("%s has no compute_mask", self.class)
end

local function check_scores(what, scores, t)
  if tostring(scores.shape) ~= tostring(t.shape) then
    caller.raise("%s: importance_scores is %s, the tensor %s", what, tostring(scores.shape),
      tostring(t.shape))
  end
end

--- t times its mask, computed of importance_scores (t) within default_mask (ones).
function Base:prune(t, default_mask, importance_scores)
  if importance_scores then check_scores("prune", importance_scores, t) end
  return t * self:compute_mask(importance_scores or t, default_mask or core.ones_like(t))
end

-- ---- several methods, one after the other ----

-- The channels along dim of which the mask leaves anything: positions.
local function channels_left(mask, dim)
  local others = {}
  for d = 1, mask:dim() do
    if d ~= dim then others[#others + 1] = d end
  end
  return mask:sum(others):ne(0):nonzero():reshape(-1)
end

-- The mask after one more method, which sees what `mask` leaves.
local function combined(method, t, mask)
  local kind = method.PRUNING_TYPE
  if kind == "global" then return method:compute_mask(t, mask) end
  if kind == "unstructured" then
    local left = mask:eq(1)
    return mask:masked_scatter(left,
      method:compute_mask(t:masked_select(left), mask:masked_select(left)))
  end
  if kind ~= "structured" then
    caller.raise("%s.PRUNING_TYPE is %s, wanted 'unstructured', 'structured' or 'global'",
      method.class, tostring(kind))
  end
  local dim = method.dim < 0 and mask:dim() + 1 + method.dim or method.dim
  local left = channels_left(mask, dim)
  return mask:index_copy(dim, left,
    method:compute_mask(t:index_select(dim, left), mask:index_select(dim, left)))
end

--- Methods of one tensor, in the order in which they came: PruningContainer{first, second}.
local Container = Base:extend "PruningContainer"

function Container:init(list)
  for i, method in ipairs(list or {}) do self[i] = method end
end

function Container:compute_mask(t, default_mask)
  return combined(self[#self], t, default_mask)
end

-- The hook of a module that makes the tensor of that name, and its method.
local function hook_of(module, name)
  for _, hook in ipairs(rawget(module, "_pre_hooks") or {}) do
    local method = method_of[hook]
    if method and method.tensor_name == name then return hook, method end
  end
end

-- The masked tensor, as the hook makes it.
local function masked(module, name)
  local orig = module[name .. "_orig"]
  return module[name .. "_mask"]:to(orig.dtype) * orig
end

-- The hooks hold no module, so that a copy of one has hooks of its own tensors.
local function install(module, name, method)
  local function hook(m) rawset(m, name, masked(m, name)) end
  method_of[hook] = method
  module:register_forward_pre_hook(hook)
  hook(module)
end

-- Prunes a module's tensor by a method, of the tensor's own values or of scores.
local function apply(module, name, method, scores)
  local hook, old = hook_of(module, name)
  local t = rawget(module, name)
  if not core.is_tensor(t) or not (hook or t.is_parameter) then
    caller.raise("%s: %s has no parameter '%s'", method.class, module.class, name)
  end
  if scores then check_scores(method.class, scores, t) end
  if old then
    local list = getmetatable(old) == Container and {table.unpack(old)} or {old}
    list[#list + 1] = method
    method = Container(list)
  end
  method.tensor_name = name
  local mask
  do
    local _ <close> = core.no_grad()
    local before = old and module[name .. "_mask"]:clone() or core.ones_like(t.data)
    mask = method:compute_mask((scores or t):detach(), before)
      :to{dtype = t.dtype, copy = true}
  end
  if hook then
    module:_drop_pre_hook(hook)
  else
    module:_drop_field(name)
    module[name .. "_orig"] = t
  end
  module:register_buffer(name .. "_mask", core.keep(mask))
  install(module, name, method)
  return module
end

local bind_apply = options.signature("apply", "module: module, name: string")

--- Prunes the module's parameter `name` by a method that is made of the further arguments.
--- Returns the method.
function Base:apply(module, name, ...)
  local o = bind_apply(module, name)
  local method = self(...)
  apply(o.module, o.name, method)
  return method
end

-- ---- amounts ----

-- How many of n an amount is: a count (an integer), or a fraction, a half rounded to even.
local function count_of(amount, n)
  if math.type(amount) == "integer" then
    if amount > n then
      caller.raise("prune: amount is %d, more than the %d that there are to prune", amount, n)
    end
    return amount
  end
  local whole = math.floor(amount * n)
  local rest = amount * n - whole
  return (rest > 0.5 or rest == 0.5 and whole % 2 == 1) and whole + 1 or whole
end

local function check_amount(what, amount)
  if amount < 0 or amount ~= amount or math.type(amount) == "float" and amount > 1 then
    caller.raise("%s: amount is %s, wanted a fraction of 0.0 to 1.0 or a count", what,
      tostring(amount))
  end
  return amount
end

-- The channels of t along dim that a method of structure keeps, and their number.
local function kept_channels(method, t)
  local dim, rank = method.dim, t:dim()
  if rank < 2 then
    caller.raise("%s: the tensor is %s, wanted 2 or more dims", method.class, tostring(t.shape))
  end
  dim = dim < 0 and rank + 1 + dim or dim
  if dim < 1 or dim > rank then
    caller.raise("%s: dim is %d, the tensor %s", method.class, method.dim, tostring(t.shape))
  end
  local n = t:size(dim)
  return dim, n, n - count_of(method.amount, n)
end

-- default_mask where the channel is one of those with the k largest scores.
local function keep_largest(default_mask, dim, scores, k)
  local _, kept = scores:topk(k)
  return core.zeros_like(default_mask):index_fill(dim, kept, 1) * default_mask
end

-- default_mask without the k elements of the smallest scores.
local function drop_smallest(default_mask, scores, k)
  if k == 0 then return default_mask end
  local _, dropped = scores:reshape(-1):topk(k, {largest = false})
  local flat = default_mask:reshape(-1):index_fill(1, dropped, 0)
  return flat:reshape(table.unpack(default_mask.shape))
end

-- ---- the methods there are ----

-- name: of the class, `short` of its function; init: the class's arguments, behind module and
-- name in the function's; scored: whether the function takes importance_scores.
local function method(name, short, arguments, scored)
  local Method = Base:extend(name)
  local comma = arguments == "" and "" or ", "
  local bind_init = options.signature(name, arguments)
  local bind = options.signature(short, "module: module, name: string" .. comma .. arguments
    .. (scored and ", importance_scores?: tensor" or ""))
  function Method:init(...)
    for key, value in pairs(bind_init(...)) do self[key] = value end
    if self.amount then check_amount(short, self.amount) end
  end
  prune[short] = function(...)
    local o = bind(...)
    local module, field, scores = o.module, o.name, o.importance_scores
    o.module, o.name, o.importance_scores = nil, nil, nil
    return apply(module, field, next(o) and Method(o) or Method(), scores)
  end
  prune[name] = Method
  return Method
end

--- Nothing is pruned, but the names change.
local Identity = method("Identity", "identity", "")
function Identity.compute_mask(_, _, default_mask) return default_mask end

--- Elements at random.
local RandomUnstructured = method("RandomUnstructured", "random_unstructured", "amount: number")
function RandomUnstructured:compute_mask(t, default_mask)
  return drop_smallest(default_mask, core.rand_like(t), count_of(self.amount, t:numel()))
end

--- The elements nearest to 0.
local L1 = method("L1Unstructured", "l1_unstructured", "amount: number", true)
function L1:compute_mask(t, default_mask)
  return drop_smallest(default_mask, t:abs(), count_of(self.amount, t:numel()))
end

--- Channels along dim at random.
local RandomStructured = method("RandomStructured", "random_structured",
  "amount: number, dim: integer = -1")
RandomStructured.PRUNING_TYPE = "structured"
function RandomStructured:compute_mask(t, default_mask)
  local dim, n, k = kept_channels(self, t)
  return keep_largest(default_mask, dim, core.rand(n, {device = t.device}), k)
end

-- The norm of order n of each channel along dim.
local function channel_norms(t, n, dim)
  local others = {}
  for d = 1, t:dim() do
    if d ~= dim then others[#others + 1] = d end
  end
  if n == "nuc" then
    if #others ~= 2 then
      caller.raise("ln_structured: the norm 'nuc' of %s wants 3 dims", tostring(t.shape))
    end
    return core.linalg_matrix_norm(t, {ord = n, dim = others})
  end
  return core.linalg_vector_norm(t, {ord = n == "fro" and 2 or n, dim = others})
end

--- Channels along dim of the smallest norms of order n.
local LnStructured = method("LnStructured", "ln_structured",
  "amount: number, n: number|'fro'|'nuc', dim: integer = -1", true)
LnStructured.PRUNING_TYPE = "structured"
function LnStructured:compute_mask(t, default_mask)
  local dim, _, k = kept_channels(self, t)
  return keep_largest(default_mask, dim, channel_norms(t, self.n, dim), k)
end

--- Where a mask is 0.
local CustomFromMask = method("CustomFromMask", "custom_from_mask", "mask: tensor")
CustomFromMask.PRUNING_TYPE = "global"
function CustomFromMask:compute_mask(_, default_mask)
  local mask = self.mask
  if tostring(mask.shape) ~= tostring(default_mask.shape) then
    caller.raise("custom_from_mask: mask is %s, the tensor %s", tostring(mask.shape),
      tostring(default_mask.shape))
  end
  return default_mask * mask:to(default_mask.dtype)
end

-- ---- many tensors, and the way back ----

-- {{module, name, tensor, mask, scores}, ...}
local function entries_of(parameters, scores)
  local entries = {}
  for i, pair in ipairs(parameters) do
    local module, name = table.unpack(type(pair) == "table" and pair or {})
    local t = Module.is_module(module) and type(name) == "string" and module[name]
    if not core.is_tensor(t) then
      caller.raise("global_unstructured: element %d of parameters is not {module, name} of a "
        .. "tensor", i)
    end
    local own = scores and scores[i]
    if own then check_scores("global_unstructured", own, t) end
    local mask = rawget(module, name .. "_mask")
    entries[i] = {module = module, name = name, t = t, scores = own or t,
      mask = mask or core.ones_like(t)}
  end
  return entries
end

-- any table that is a class, so that a table of options is told from one
options.kind("pruning_method", function(v)
  return type(v) == "table" and rawget(v, "class") ~= nil
end, "a class such as prune.L1Unstructured")
local bind_global = options.signature("global_unstructured", [[parameters: list,
  pruning_method: pruning_method, importance_scores?: list, *, amount?: number]])

--- Prunes tensors as if they were one: parameters is a list of {module, name}, pruning_method a
--- class such as prune.L1Unstructured, importance_scores a list of tensors, false where there
--- is none.
function prune.global_unstructured(...)
  local o = bind_global(...)
  local class = o.pruning_method
  if not methods[class] or class.PRUNING_TYPE ~= "unstructured" then
    caller.raise("global_unstructured: pruning_method is %s of PRUNING_TYPE %s, wanted a method of "
      .. "'unstructured'", tostring(class.class), tostring(class.PRUNING_TYPE))
  end
  local entries = entries_of(o.parameters, o.importance_scores)
  local scores, masks = {}, {}
  for i, entry in ipairs(entries) do
    scores[i], masks[i] = entry.scores:detach():reshape(-1), entry.mask:reshape(-1)
  end
  if #entries == 0 then return end
  local mask, from = combined(class(o.amount), core.cat(scores), core.cat(masks)), 1
  for _, entry in ipairs(entries) do
    local n = entry.t:numel()
    prune.custom_from_mask(entry.module, entry.name,
      mask:narrow(1, from, n):reshape(table.unpack(entry.t.shape)))
    from = from + n
  end
end

local bind_remove = options.signature("remove", "module: module, name: string")

--- Makes the pruned values the parameter's own: no mask is left. Returns the module.
function prune.remove(...)
  local o = bind_remove(...)
  local module, name = o.module, o.name
  local hook = hook_of(module, name)
  if not hook then
    caller.raise("remove: '%s' of %s is not pruned", name, module.class)
  end
  local orig = module[name .. "_orig"]
  orig.data = core.keep(masked(module, name):detach())
  module:_drop_pre_hook(hook)
  for _, ending in ipairs{"", "_orig", "_mask"} do module:_drop_field(name .. ending) end
  module[name] = orig
  return module
end

local bind_is = options.signature("is_pruned", "module: module")

--- Whether a tensor of this module or of one below is pruned.
function prune.is_pruned(...)
  for _, module in bind_is(...).module:named_modules() do
    for _, hook in ipairs(rawget(module, "_pre_hooks") or {}) do
      if method_of[hook] then return true end
    end
  end
  return false
end

prune.BasePruningMethod, prune.PruningContainer = Base, Container
return prune
