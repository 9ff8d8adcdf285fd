-- The graph of a model for TensorBoard: the ops that one forward calls, by the module that calls
-- them, and which results each takes.
--
-- A hook of Lua's debug library sees every call of a function in C and what it returns. A call
-- of an op becomes a node; tensors are followed by identity, so that its inputs are the nodes
-- that gave them, parameters and buffers of the model, or constants. An op that is made of
-- others in C is one node. Hooks of the modules tell which of them runs.

local core = require "demilune.core"
local in_evaluation = require "demilune.nn.evaluation"
local caller = require "demilune.caller"
local proto = require "demilune.tensorboard.proto"

local int, text, message = proto.int, proto.text, proto.message
local is_tensor = core.is_tensor

local graph = {}

-- ---- names ----

-- Operators of tensors by their events.
local OPERATORS = {__add = "add", __sub = "sub", __mul = "mul", __div = "div", __mod = "remainder",
  __pow = "pow", __unm = "neg", __index = "index"}

-- The functions in C that may give tensors of others: ops, and methods of tensors; and their names.
local function op_names()
  local names, rows = {}, {}
  for _, row in ipairs(core.ops()) do rows[row.name], rows[row.name .. "_"] = true, true end
  for name, f in next, core.methods do names[f] = name end
  for name, f in next, core do
    if rows[name] or rawget(core.methods, name) then names[f] = name end
  end
  for event, name in pairs(OPERATORS) do
    names[debug.getmetatable(core.ones(1))[event]] = name
  end
  return names
end

-- The path of each module as scopes: "Net/Sequential[layers]/Linear[2]".
local function scopes_of(model)
  local scopes = {}
  for path, module in model:named_modules() do
    if path == "" then
      scopes[module] = module.class
    elseif not scopes[module] then
      local parent, name = path:match "^(.*)%.([^.]+)$"
      local above = scopes[model:get_submodule(parent or "")] or model.class
      scopes[module] = ("%s/%s[%s]"):format(above, module.class, name or path)
    end
  end
  return scopes
end

-- ---- tracing ----

-- The tensors among some values, those in tables too: elements in their order, then names in
-- theirs.
local function tensors_of(values, out)
  local names = {}
  for key in next, values do
    if type(key) == "string" and key ~= "n" then names[#names + 1] = key end
  end
  table.sort(names)
  for i = 1, values.n or #values do table.insert(names, i, i) end
  for _, key in ipairs(names) do
    local v = values[key]
    if is_tensor(v) then
      out[#out + 1] = v
    elseif type(v) == "table" and getmetatable(v) == nil then
      tensors_of(v, out)
    end
  end
  return out
end

local Trace = {}
Trace.__index = Trace

local function new_trace(model)
  local self = setmetatable({nodes = {}, used = {}, node_of = {}, leaves = {}, stack = {},
    scopes = scopes_of(model)}, Trace)
  for path, module in model:named_modules() do
    local fields = {}
    for name, value in next, module do
      if type(name) == "string" and is_tensor(value) then fields[name] = value end
    end
    for name, p in pairs(fields) do
      self.leaves[p] = self.leaves[p] or {scope = self.scopes[module], name = name,
        path = path == "" and name or path .. "." .. name}
    end
  end
  return self
end

-- A node of a name that no other has. x: the tensor that it gives.
function Trace:add(scope, name, op, inputs, x)
  local full = scope .. "/" .. name
  local count = (self.used[full] or 0) + 1
  self.used[full] = count
  local node = {name = count == 1 and full or ("%s_%d"):format(full, count - 1), op = op,
    inputs = inputs, shape = {table.unpack(x.shape)}, dtype = x.dtype}
  self.nodes[#self.nodes + 1] = node
  return node
end

-- The node that gave a tensor; a tensor from outside becomes a parameter or a constant.
function Trace:source(x, scope)
  local node = self.node_of[x]
  if node then return node.name end
  local leaf = self.leaves[x]
  if leaf then
    node = self:add(leaf.scope, leaf.name, x.is_parameter and "Parameter" or "Buffer", {}, x)
  else
    node = self:add(scope, "constant", "Constant", {}, x)
  end
  self.node_of[x] = node
  return node.name
end

-- The names of the nodes that gave the tensors among some values.
function Trace:sources(values, scope)
  local names = tensors_of(values, {})
  for i, x in ipairs(names) do names[i] = self:source(x, scope) end
  return names
end

function Trace:scope() return self.stack[#self.stack] or self.root end

-- Notes that an op took `args` and gave `results`. What gives one of its arguments back, and
-- changes nothing in place, is no node.
function Trace:note(name, args, results)
  local scope, inputs = self:scope(), nil
  if name == "index" and type(args[2]) == "string" then name = args[2] end -- x.T
  local given = {}
  for i = 1, name:sub(-1) ~= "_" and args.n or 0 do
    if is_tensor(args[i]) then given[args[i]] = true end
  end
  for _, y in ipairs(tensors_of(results, {})) do
    if not given[y] then
      inputs = inputs or self:sources(args, scope)
      self.node_of[y] = self:add(scope, name, name, inputs, y)
    end
  end
end

-- The values at these positions of the function that a hook was called for.
local function locals_of(first, count)
  local values = {n = count}
  for i = 1, count do
    local _, v = debug.getlocal(3, first + i - 1)
    values[i] = v
  end
  return values
end

-- The hook. Ops call no op in Lua, so that one call is open at a time.
function Trace:hook()
  local names, open, args = op_names(), nil, nil
  return function(event)
    local info = debug.getinfo(2, "fr")
    local name = names[info.func]
    if not name then return end
    if event ~= "return" then
      open, args = info.func, locals_of(info.ftransfer, info.ntransfer)
    elseif open == info.func then
      open = nil
      self:note(name, args, locals_of(info.ftransfer, info.ntransfer))
    end
  end
end

-- ---- the forward ----

-- Hooks that keep the stack of the modules that run; a module with hooks fuses nothing.
local function follow_modules(self, model)
  local handles = {}
  for _, module in model:named_modules() do
    handles[#handles + 1] = module:register_forward_pre_hook(function(m)
      self.stack[#self.stack + 1] = self.scopes[m] or self.root
    end)
    handles[#handles + 1] = module:register_forward_hook(function()
      self.stack[#self.stack] = nil
    end)
  end
  return handles
end

local function traced_forward(self, model, inputs)
  local hook, mask, count = debug.gethook()
  local results
  in_evaluation(model, function()
    debug.sethook(self:hook(), "cr")
    local done = table.pack(pcall(model, table.unpack(inputs, 1, inputs.n)))
    debug.sethook(hook, mask, count)
    if not done[1] then error(done[2], 0) end
    results = table.move(done, 2, done.n, 1, {n = done.n - 1})
  end)
  return results
end

--- The nodes of one forward, in the order of the calls.
---@param model table a module
---@param given table a tensor, or a list of the inputs
---@return table[] nodes {name =, op =, inputs = names, shape =, dtype =}
function graph.trace(model, given)
  local inputs = type(given) == "table" and getmetatable(given) == nil and {table.unpack(given)}
    or {given}
  inputs.n = #inputs
  if #tensors_of(inputs, {}) == 0 then
    caller.raise("add_graph: input_to_model is a %s, wanted a tensor or a list of inputs",
      type(given))
  end
  local self = new_trace(model)
  self.root = model.class
  for _, x in ipairs(tensors_of(inputs, {})) do
    if not self.node_of[x] then self.node_of[x] = self:add("input", "x", "IO Node", {}, x) end
  end
  local handles = follow_modules(self, model)
  local ok, results = pcall(traced_forward, self, model, inputs)
  for _, handle in ipairs(handles) do handle.remove() end
  if not ok then error(results, 0) end
  for _, y in ipairs(tensors_of(results, {})) do
    self:add("output", "y", "IO Node", {self:source(y, self.root)}, y)
  end
  return self.nodes
end

-- ---- bytes ----

local function shape_of(dims)
  local parts = {}
  for i, size in ipairs(dims) do parts[i] = message(2, int(1, size)) end
  return table.concat(parts)
end

-- An entry of the map of attributes.
local function attribute(name, value) return message(5, message(1, name) .. message(2, value)) end

local function node_bytes(node)
  local parts = {text(1, node.name), text(2, node.op)}
  for _, name in ipairs(node.inputs) do parts[#parts + 1] = message(3, name) end
  parts[#parts + 1] = attribute("_output_shapes", message(1, message(7, shape_of(node.shape))))
  parts[#parts + 1] = attribute("dtype", message(2, node.dtype))
  return table.concat(parts)
end

--- A GraphDef of the nodes.
---@param nodes table[]
---@return string
function graph.bytes(nodes)
  local parts = {}
  for i, node in ipairs(nodes) do parts[i] = message(1, node_bytes(node)) end
  parts[#parts + 1] = message(4, int(1, 22)) -- the version of the format that PyTorch names
  return table.concat(parts)
end

--- The field of an event with the metadata of the run, which TensorBoard looks for: one device.
---@return string
function graph.run_metadata()
  local device = message(1, text(1, "/device:CPU:0"))
  return message(8, text(1, "step1") .. text(2, message(1, device)))
end

--- A line a node: its name, op, shape and inputs.
---@param nodes table[]
---@return string
function graph.text(nodes)
  local lines = {}
  for i, node in ipairs(nodes) do
    lines[i] = ("%s: %s {%s} %s(%s)"):format(node.name, node.op, table.concat(node.shape, ", "),
      node.dtype, table.concat(node.inputs, ", "))
  end
  return table.concat(lines, "\n")
end

return graph
