-- demilune.func: functions of functions, as torch.func has them. They take and give plain tensors,
-- tables of tensors ({name = tensor} of parameters, say), and nest: vmap(grad(f)), jacrev(grad(f)).
--
--   functional_call(module, parameters, ...)    a module's call with other parameters
--   grad grad_and_value vjp jvp                 gradients; products with the Jacobian
--   jacrev jacfwd hessian                       whole Jacobians, second derivatives
--   vmap                                        a function of one sample over a batch
--   stack_module_state                          the parameters of several models as one
--
-- argnums and dims count from 1, where PyTorch's count from 0; a list of argnums gives a list of
-- results. The results have a graph where f captures tensors that require a gradient, or is given
-- them: otherwise they are plain. Gradients are taken also under dm.no_grad.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local func = {}

local is_tensor = core.is_tensor

-- ---- arguments ----

local DERIVATIVE = "func: function, argnums: integer|list = 1, has_aux: boolean = false"

-- ---- trees: a tensor, or a table of trees ----

-- The keys of a table: 1, 2, ..., then the others in order.
local function keys_of(t)
  local keys, names = {}, {}
  for i = 1, #t do keys[i] = i end
  for key in pairs(t) do
    if not (math.type(key) == "integer" and key >= 1 and key <= #t) then names[#names + 1] = key end
  end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  return table.move(names, 1, #names, #keys + 1, keys)
end

-- The same tree with fn(tensor) for each tensor; other values stay.
local function map(tree, fn)
  if is_tensor(tree) then return fn(tree) end
  if type(tree) ~= "table" or getmetatable(tree) ~= nil then return tree end
  local out = {}
  for _, key in ipairs(keys_of(tree)) do out[key] = map(tree[key], fn) end
  return out
end

-- Its tensors, in map's order.
local function flatten(tree)
  local list = {}
  map(tree, function(t) list[#list + 1] = t end)
  return list
end

-- The same tree with the tensors of a list, in map's order.
local function rebuild(tree, list)
  local i = 0
  return map(tree, function()
    i = i + 1
    return list[i]
  end)
end

-- ---- one level of differentiation ----

-- A call of f whose chosen arguments are tensors of its own. outputs: what f gave; ys: the tensors
-- of its first result; xs: those of the chosen arguments; keeps: whether results need a graph.
local Level = {}
Level.__index = Level

-- The numbers of the chosen arguments of n, from 1.
local function chosen(what, argnums, n)
  local list = type(argnums) == "table" and argnums or {argnums}
  local out = {}
  for i, k in ipairs(list) do
    if math.type(k) ~= "integer" or k == 0 or k > n or k < -n then
      caller.raise("%s: argnums has %s, wanted 1 to %d (arguments count from 1)", what, tostring(k),
        n)
    end
    out[i] = k < 0 and n + 1 + k or k
  end
  if #out == 0 then caller.raise("%s: argnums is empty, wanted at least one number", what) end
  return out
end

-- A leaf with the tensor's data, or a view of a tensor that is part of a graph already.
local function fresh(what, k, t)
  if not t:is_floating_point() then
    caller.raise("%s: argument %d is %s, wanted floats; hint: x:float()", what, k, t.dtype)
  end
  if t.requires_grad then return t:view(t.shape) end
  return t:detach():requires_grad_()
end

local running -- the level whose f runs; its results may lead to leaves of those inside

-- A leaf that a level made by itself.
local function note(level, leaf)
  while level do
    table.insert(level.known, leaf)
    level = level.around
  end
end

local function enter(level)
  level.around, running = running, level
  return setmetatable({}, {__close = function() running = level.around end})
end

local function run(what, f, argnums, args)
  local outside = core.is_grad_enabled()
  local self = setmetatable({what = what, argnums = chosen(what, argnums, args.n), trees = {},
    xs = {}, known = {}}, Level)
  local _ <close> = core.enable_grad()
  local _ <close> = enter(self)
  local own = table.move(args, 1, args.n, 1, {})
  for i, k in ipairs(self.argnums) do
    own[k] = map(args[k], function(t)
      local x = fresh(what, k, t)
      if x.is_leaf then note(self, x) end
      return x
    end)
    self.trees[i] = own[k]
    local list = flatten(own[k])
    if #list == 0 then
      caller.raise("%s: argument %d has no tensor (it is a %s)", what, k, type(args[k]))
    end
    table.move(list, 1, #list, #self.xs + 1, self.xs)
  end
  self.outputs = table.pack(f(table.unpack(own, 1, args.n)))
  self.ys, self.keeps = flatten(self.outputs[1]), false
  if #self.ys == 0 then
    caller.raise("%s: f gave a %s, wanted a tensor or a table of tensors", what,
      type(self.outputs[1]))
  end
  for _, y in ipairs(self.ys) do
    self.keeps = self.keeps or outside and core.other_leaves(y, self.known)
  end
  return self
end

-- A result for the caller: without a graph, unless it leads to what the caller knows.
function Level:plain(tree)
  if self.keeps then return tree end
  return map(tree, function(t) return t.requires_grad and t:detach() or t end)
end

-- Gradients of tensors by others, zeros where there is none; `seeds` as the tensors are.
local function gradients(ys, xs, seeds, how)
  local roots, weights = {}, {}
  for i, y in ipairs(ys) do
    if y.requires_grad then roots[#roots + 1], weights[#weights + 1] = y, seeds[i] end
  end
  local got = {}
  if #roots > 0 then
    got = {core.autograd_grad(roots, xs, {grad_outputs = weights, allow_unused = true,
      retain_graph = true, create_graph = how})}
  end
  for i, x in ipairs(xs) do got[i] = got[i] or core.zeros_like(x) end
  return got
end

-- f's first result's gradients: one tree for each chosen argument.
function Level:pull(seeds, keeps)
  local got, at, out = gradients(self.ys, self.xs, seeds, keeps), 0, {}
  for i, tree in ipairs(self.trees) do
    local n = #flatten(tree)
    out[i] = rebuild(tree, table.move(got, at + 1, at + n, 1, {}))
    at = at + n
  end
  return out
end

-- A list for a list of argnums, else the one result.
local function as_given(argnums, list)
  if type(argnums) == "table" then return list end
  return list[1]
end

-- f's further results, which has_aux allows.
function Level:aux(has_aux)
  if not has_aux and self.outputs.n > 1 then
    caller.raise("%s: f gave %d results, wanted one; hint: has_aux = true", self.what,
      self.outputs.n)
  end
  local out = {}
  for i = 2, self.outputs.n do out[i - 1] = self:plain(self.outputs[i]) end
  return table.unpack(out, 1, self.outputs.n - 1)
end

local function differentiated(what, o, args)
  local level = run(what, o.func, o.argnums, args)
  local y = level.outputs[1]
  if not is_tensor(y) or y:dim() ~= 0 then
    caller.raise("%s: f gave %s, wanted a tensor of one number, of shape {}; hint: %s", what,
      is_tensor(y) and "shape {" .. table.concat(y.shape, ", ") .. "}" or "a table",
      "y:sum(), or func.jacrev")
  end
  local grads = level:pull({core.ones_like(y)}, level.keeps)
  return level, as_given(o.argnums, grads)
end

local bind_grad = options.signature("func.grad", DERIVATIVE)

--- grad(f, argnums = 1, {has_aux = false}) -> a function of f's arguments that gives the gradient
--- of f's result, a tensor of shape {}. has_aux: f's further results follow.
---@param f function
---@param argnums? integer|integer[] the arguments, from 1; a list gives a list of gradients
---@param has_aux? boolean
---@return function
function func.grad(...)
  local o = bind_grad(...)
  return function(...)
    local level, grads = differentiated("func.grad", o, table.pack(...))
    return grads, level:aux(o.has_aux)
  end
end

local bind_grad_and_value = options.signature("func.grad_and_value", DERIVATIVE)

--- grad_and_value(f, argnums = 1, {has_aux = false}): as grad, with f's result after the gradient.
---@param f function
---@param argnums? integer|integer[]
---@param has_aux? boolean
---@return function
function func.grad_and_value(...)
  local o = bind_grad_and_value(...)
  return function(...)
    local level, grads = differentiated("func.grad_and_value", o, table.pack(...))
    return grads, level:plain(level.outputs[1]), level:aux(o.has_aux)
  end
end

-- The numbers 1 to n.
local function all(n)
  local list = {}
  for i = 1, n do list[i] = i end
  return list
end

-- The tensors of a tree that must be as those of f's result, or of the arguments, are.
local function match(what, tree, like)
  local list = flatten(tree)
  if #list ~= #like then
    caller.raise("%s: %d tensors given, wanted %d", what, #list, #like)
  end
  for i, t in ipairs(list) do
    local got, want = table.concat(t.shape, ", "), table.concat(like[i].shape, ", ")
    if got ~= want or t.dtype ~= like[i].dtype then
      caller.raise("%s: tensor %d is %s of shape {%s}, wanted %s of shape {%s}", what, i, t.dtype,
        got, like[i].dtype, want)
    end
  end
  return list
end

local function any_requires_grad(list)
  for _, t in ipairs(list) do
    if t.requires_grad then return true end
  end
  return false
end

local bind_vjp = options.signature("func.vjp", "func: function")

--- vjp(f, ..., {has_aux = true}?) -> f's result at the arguments, and a function that takes a
--- tensor of the result's shape (a table for a table) and gives its product with the Jacobian,
--- one result an argument of f; then f's further results.
---@param f function
---@param ... any f's arguments
function func.vjp(f, ...)
  bind_vjp(f)
  local args, has_aux = table.pack(...), false
  local last = args[args.n]
  if type(last) == "table" and type(last.has_aux) == "boolean" then
    has_aux, args.n = last.has_aux, args.n - 1
  end
  local level = run("func.vjp", f, all(args.n), args)
  local function pull(cotangent)
    local seeds = match("func.vjp: the cotangent", cotangent, level.ys)
    local keeps = core.is_grad_enabled() and (level.keeps or any_requires_grad(seeds))
    return table.unpack(level:pull(seeds, keeps))
  end
  return level:plain(level.outputs[1]), pull, level:aux(has_aux)
end

-- The gradients are linear in seeds v; their gradient in v is the Jacobian's product with a
-- tangent, without any forward mode. Gives push(tangents) -> one tensor for each of ys.
function Level:pushes()
  local seeds = {}
  local _ <close> = core.enable_grad()
  for i, y in ipairs(self.ys) do
    seeds[i] = core.zeros_like(y):detach():requires_grad_()
    note(self, seeds[i])
  end
  local pulled = gradients(self.ys, self.xs, seeds, true)
  return function(tangents, keeps) return gradients(pulled, seeds, tangents, keeps) end
end

local bind_jvp = options.signature("func.jvp",
  "func: function, primals: list, tangents: list, *, has_aux: boolean = false")

--- jvp(f, primals, tangents, {has_aux = false}) -> f's result at the primals, and the Jacobian's
--- product with the tangents, of the result's shape; then f's further results. By two backward
--- passes: ops without a second derivative raise.
---@param f function
---@param primals table list of f's arguments
---@param tangents table list of as many, of their shapes
---@param has_aux? boolean
function func.jvp(...)
  local o = bind_jvp(...)
  local outside = core.is_grad_enabled()
  local args = table.move(o.primals, 1, #o.primals, 1, {n = #o.primals})
  local level = run("func.jvp", o.func, all(args.n), args)
  local list = match("func.jvp: tangents", o.tangents, level.xs)
  local keeps = level.keeps or outside and any_requires_grad(list)
  local pushed = rebuild(level.outputs[1], level:pushes()(list, keeps))
  if not keeps then pushed = level:plain(pushed) end
  return level:plain(level.outputs[1]), pushed, level:aux(o.has_aux)
end

-- ---- Jacobians ----

-- A tensor like t with a 1 at element i, else zeros; zeros for i = 0.
local function unit(t, i)
  local e = core.zeros_like(t):detach():contiguous()
  if i > 0 then e:view(-1)[i] = 1 end
  return e
end

-- Calls row(k, list) for each element of the tensors: k the number of its tensor, and the list
-- with a 1 there.
local function each_unit(tensors, row)
  local zeros = {}
  for i, t in ipairs(tensors) do zeros[i] = unit(t, 0) end
  for k, t in ipairs(tensors) do
    for i = 1, t:numel() do
      local seeds = table.move(zeros, 1, #zeros, 1, {})
      seeds[k] = unit(t, i)
      row(k, seeds)
    end
  end
end

local function joined(a, b)
  local out = table.move(a, 1, #a, 1, {})
  return table.move(b, 1, #b, #out + 1, out)
end

-- rows[k][j]: the list of slices of tensor k of ys by tensor j of xs. They become tensors of shape
-- y's + x's, in f's result's tree of the arguments' trees.
local function assemble(level, argnums, block)
  local k = 0
  local jacobian = map(level.outputs[1], function(y)
    k = k + 1
    local j, per_argument = 0, {}
    for i, tree in ipairs(level.trees) do
      per_argument[i] = map(tree, function(x)
        j = j + 1
        return block(k, j, y, x)
      end)
    end
    return as_given(argnums, per_argument)
  end)
  return level:plain(jacobian)
end

-- Slices, stacked; an empty list makes an empty tensor of the shape.
local function stacked(slices, dim, shape, like)
  if slices and #slices > 0 then return core.stack(slices, dim):reshape(shape) end
  return core.zeros(shape, {dtype = like.dtype, device = like.device})
end

-- f's transform into a Jacobian: jacobian(level) -> block(k, j, y, x).
local function jacobian_of(what, signature, jacobian)
  local bind = options.signature(what, signature)
  return function(...)
    local o = bind(...)
    return function(...)
      local level = run(what, o.func, o.argnums, table.pack(...))
      return assemble(level, o.argnums, jacobian(level)), level:aux(o.has_aux)
    end
  end
end

local JACREV = "func: function, argnums: integer|list = 1, *, has_aux: boolean = false"

--- jacrev(f, argnums = 1, {has_aux = false}) -> a function of f's arguments that gives the
--- Jacobian, of shape result's + argument's, by a backward pass for each element of the result.
---@param f function
---@param argnums? integer|integer[]
---@param has_aux? boolean
---@return function
func.jacrev = jacobian_of("func.jacrev", JACREV, function(level)
  local rows = {}
  each_unit(level.ys, function(k, seeds)
    rows[k] = rows[k] or {}
    for j, g in ipairs(gradients(level.ys, level.xs, seeds, level.keeps)) do
      rows[k][j] = rows[k][j] or {}
      table.insert(rows[k][j], g)
    end
  end)
  return function(k, j, y, x)
    return stacked(rows[k] and rows[k][j], 1, joined(y.shape, x.shape), y)
  end
end)

--- jacfwd(f, argnums = 1, {has_aux = false}): the same numbers by jvp, a pass for each element of
--- the argument: for results of more elements than the argument has.
---@param f function
---@param argnums? integer|integer[]
---@param has_aux? boolean
---@return function
func.jacfwd = jacobian_of("func.jacfwd", DERIVATIVE, function(level)
  local push, columns = level:pushes(), {}
  each_unit(level.xs, function(j, tangents)
    columns[j] = columns[j] or {}
    for k, column in ipairs(push(tangents, level.keeps)) do
      columns[j][k] = columns[j][k] or {}
      table.insert(columns[j][k], column)
    end
  end)
  return function(k, j, y, x)
    return stacked(columns[j] and columns[j][k], -1, joined(y.shape, x.shape), y)
  end
end)

local bind_hessian = options.signature("func.hessian",
  "func: function, argnums: integer|list = 1")

--- hessian(f, argnums = 1) -> a function of f's arguments that gives the second derivatives, of
--- shape result's + argument's + argument's: jacrev of jacrev.
---@param f function
---@param argnums? integer|integer[]
---@return function
function func.hessian(...)
  local o = bind_hessian(...)
  return func.jacrev(func.jacrev(o.func, o.argnums), o.argnums)
end

-- ---- vmap ----

local bind_vmap = options.signature("func.vmap", [[func: function,
  in_dims: integer|boolean|list = 1, out_dims: integer|list = 1,
  randomness: 'different'|'same' = 'different']])

-- A dim of a tensor, from 1.
local function dim_of(what, dim, rank)
  if math.type(dim) ~= "integer" or dim == 0 or dim > rank or dim < -rank then
    caller.raise("%s is %s, wanted 1 to %d or -1 to -%d%s", what, tostring(dim), rank, rank,
      rank == 0 and ": the tensor has no dims; hint: false shares it" or "")
  end
  return dim < 0 and rank + 1 + dim or dim
end

-- The argument's dims as a function slice(i) of the tree, and the number of slices; dims is a
-- number, false (the same in each slice), or a table as the argument is.
local function slices_of(k, arg, dims, size)
  if dims == false then return function() return arg end, size end
  if is_tensor(arg) then
    local d = dim_of(("func.vmap: in_dims of argument %d"):format(k), dims, arg:dim())
    local n = arg.shape[d]
    if size and n ~= size then
      caller.raise("func.vmap: dim %d of argument %d has size %d, wanted %d as before it", d, k, n,
        size)
    end
    return function(i) return arg:select(d, i) end, n
  end
  if type(arg) ~= "table" or getmetatable(arg) ~= nil then
    caller.raise("func.vmap: argument %d is a %s, wanted a tensor or a table of them; hint: %s", k,
      type(arg), "in_dims = {..., false} shares it")
  end
  local parts = {}
  for _, key in ipairs(keys_of(arg)) do
    local dim = dims
    if type(dims) == "table" then dim = dims[key] end
    parts[key], size = slices_of(k, arg[key], dim, size)
  end
  return function(i)
    local out = {}
    for key, part in pairs(parts) do out[key] = part(i) end
    return out
  end, size
end

-- The results of all slices as one tree.
local function stack_results(r, results, dim)
  local lists, out = {}, {}
  for i, tree in ipairs(results) do lists[i] = flatten(tree) end
  if not lists[1] or #lists[1] == 0 then
    caller.raise("func.vmap: result %d of f is a %s, wanted a tensor or a table of them", r,
      type(results[1]))
  end
  for j, t in ipairs(lists[1]) do
    local d, slices = dim_of(("func.vmap: out_dims of result %d"):format(r), dim, t:dim() + 1), {}
    for i, list in ipairs(lists) do
      if not list[j] or table.concat(list[j].shape, ",") ~= table.concat(t.shape, ",") then
        caller.raise("func.vmap: result %d has another shape in slice %d than in slice 1", r, i)
      end
      slices[i] = list[j]
    end
    out[j] = core.stack(slices, d)
  end
  return rebuild(results[1], out)
end

--- vmap(f, in_dims = 1, out_dims = 1, {randomness = "different"}) -> a function of batches. It runs
--- f for each slice, one after another, and stacks the results: right for whatever f does, with
--- gradients, and not faster than a loop. Nesting takes one dim more each.
---@param f function of one sample
---@param in_dims? integer|false|table the dim of each argument that counts the samples, from 1;
---  false shares the argument; a list has one for each argument, a table in it one for each key
---@param out_dims? integer|table the dim of the results that will count the samples
---@param randomness? "different"|"same" draws of the samples
---@return function
function func.vmap(...)
  local o = bind_vmap(...)
  local f = o.func
  return function(...)
    local args, slices, size = table.pack(...), {}, nil
    if type(o.in_dims) == "table" and #o.in_dims ~= args.n then
      caller.raise("func.vmap: in_dims has %d dims for %d arguments", #o.in_dims, args.n)
    end
    for k = 1, args.n do
      local dims = o.in_dims
      if type(dims) == "table" then dims = dims[k] end
      slices[k], size = slices_of(k, args[k], dims, size)
    end
    if (size or 0) == 0 then
      caller.raise("func.vmap: there is no slice to run f on: %s", size and "the dims have size 0"
        or "in_dims shares all arguments")
    end
    local results, n = {}, nil
    local state = o.randomness == "same" and core.get_rng_state()
    for i = 1, size do
      local own = {}
      for k = 1, args.n do own[k] = slices[k](i) end
      if state then core.set_rng_state(state) end
      local out = table.pack(f(table.unpack(own, 1, args.n)))
      n = n or out.n
      for r = 1, n do
        results[r] = results[r] or {}
        results[r][i] = out[r]
      end
    end
    local out = {}
    for r = 1, n do
      local dim = o.out_dims
      if type(dim) == "table" then dim = dim[r] end
      out[r] = stack_results(r, results[r], dim)
    end
    return table.unpack(out, 1, n)
  end
end

-- ---- modules ----

-- Sets fields back when the call ends, in whatever way.
local Swapped = {}
Swapped.__index = Swapped
function Swapped:__close()
  for i = #self, 1, -1 do rawset(self[i].module, self[i].field, self[i].value) end
end

local function tensors_of(module)
  local named = {}
  for _, walk in ipairs{"named_parameters", "named_buffers"} do
    for name, t in module[walk](module, {remove_duplicate = false}) do named[name] = t end
  end
  return named
end

--- functional_call(module, parameters, ...) -> module(...) with other parameters and buffers; the
--- module's own stay as they are. A parameter that several fields share is replaced in all of them.
---@param module table nn.Module
---@param parameters table {name = tensor} as named_parameters and named_buffers have them, or a
---  list of such tables; those that are not named stay
---@param ... any the module's arguments, or one list of them
function func.functional_call(module, parameters, ...)
  if not Module.is_module(module) then
    caller.raise("func.functional_call: module is a %s, wanted an nn.Module", type(module))
  end
  if type(parameters) ~= "table" then
    caller.raise("func.functional_call: parameters is a %s, wanted {name = tensor}",
      type(parameters))
  end
  local named, other = tensors_of(module), {} -- a tensor may have several names
  for _, set in ipairs(#parameters > 0 and parameters or {parameters}) do
    for name, t in pairs(set) do
      local own = named[name]
      if not own then
        local near = options.nearest(tostring(name), named)
        caller.raise("func.functional_call: %s has no '%s'%s", module:describe(), tostring(name),
          near and ("; did you mean '%s'?"):format(near) or "")
      end
      if not is_tensor(t) then
        caller.raise("func.functional_call: %s is a %s, wanted a tensor", name, type(t))
      end
      if other[own] and not rawequal(other[own], t) then
        caller.raise("func.functional_call: %s is one tensor with another that is given, and gets "
          .. "two values", name)
      end
      other[own] = t
    end
  end
  local swapped <close> = setmetatable({}, Swapped)
  for _, part in module:named_modules() do
    for _, field in ipairs(part._fields) do
      local value = rawget(part, field)
      if is_tensor(value) and other[value] then
        swapped[#swapped + 1] = {module = part, field = field, value = value}
      end
    end
  end
  for _, s in ipairs(swapped) do rawset(s.module, s.field, other[s.value]) end
  local args = ... -- neither call below is a tail call: swapped is closed after it
  local one = select("#", ...) == 1 and type(args) == "table" and getmetatable(args) == nil
  if one and #args > 0 then
    return module(table.unpack(args))
  end
  return module(...)
end

local bind_stack = options.signature("func.stack_module_state", "models: list")

--- stack_module_state(models) -> parameters, buffers: {name = tensor} with a first dim that counts
--- the models, for vmap over functional_call. They are leaves; the models' own stay as they are.
---@param models table list of modules of one class
---@return table parameters
---@return table buffers
function func.stack_module_state(...)
  local models = bind_stack(...).models
  if #models == 0 then
    caller.raise("func.stack_module_state: models is empty, wanted at least one module")
  end
  for i, model in ipairs(models) do
    if not Module.is_module(model) or getmetatable(model) ~= getmetatable(models[1]) then
      caller.raise("func.stack_module_state: item %d is no module of item 1's class", i)
    end
    if model.training ~= models[1].training then
      caller.raise("func.stack_module_state: item %d is in another mode than item 1; hint: %s", i,
        "train() or eval() for all")
    end
  end
  local _ <close> = core.no_grad()
  local function stack(walk)
    local lists, out = {}, {}
    for _, model in ipairs(models) do
      for name, t in model[walk](model) do
        lists[name] = lists[name] or {}
        table.insert(lists[name], t)
      end
    end
    for name, list in pairs(lists) do
      out[name] = core.stack(list, 1):detach()
      if list[1].requires_grad then out[name]:requires_grad_() end
    end
    return out
  end
  return stack "named_parameters", stack "named_buffers"
end

return func
