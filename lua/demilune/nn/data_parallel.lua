-- DataParallel: one process that computes a batch on several GPUs.
--
-- The batch is cut into a chunk a GPU. The parameters travel to the other GPUs by copies that
-- gradients go back through, so that they add up on the first one. One Lua thread queues the work
-- on all of them: autocast, one GradScaler outside and hooks are as with one GPU.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local functional_call = require("demilune.func").functional_call
local Module = require "demilune.nn.module"

local NAME = "DataParallel"

--- A module whose calls are shared by several GPUs of this process. A process a GPU
--- (DistributedDataParallel) is faster, and goes on to several machines.
local DataParallel = Module:extend(NAME)

local bind = options.signature(NAME,
  "module: module, device_ids?: list, output_device?: integer|string, dim: integer = 1")

-- "cuda:1" for 1, "cuda:1" and "cuda"; raises for what is no GPU of this machine.
local function checked_device(value)
  local text = math.type(value) == "integer" and "cuda:" .. value or tostring(value)
  if text == "cuda" then text = "cuda:0" end
  local index = math.tointeger(tonumber(text:match "^cuda:(%d+)$" or ""))
  if index and index < core.cuda_count() then return text end
  caller.raise("%s: device %s, wanted one of the %d GPUs here; hint: 0, or 'cuda:0', is the first",
    NAME, tostring(value), core.cuda_count())
end

-- The devices, each once; none on a machine without a GPU.
local function checked_devices(ids)
  local list, seen = {}, {}
  if not ids then
    ids = {}
    for i = 1, core.cuda_count() do ids[i] = i - 1 end
  end
  for i, id in ipairs(ids) do
    list[i] = checked_device(id)
    if seen[list[i]] then caller.raise("%s: %s is given twice", NAME, list[i]) end
    seen[list[i]] = true
  end
  return list
end

-- Raises where a tensor of the module is not on the first device.
local function check_home(module, device)
  for _, walk in ipairs{"named_parameters", "named_buffers"} do
    for name, t in module[walk](module) do
      if t.device ~= device then
        caller.raise("%s: '%s' is on %s, wanted %s, the first of device_ids; hint: module:to '%s'",
          NAME, name, t.device, device, device)
      end
    end
  end
end

--- DataParallel(module, device_ids, output_device, dim): the module's calls on these GPUs. Without
--- a GPU, and with one alone, it calls the module. Buffers that the module changes are kept of the
--- first GPU.
---@param module table its parameters and buffers on the first of the GPUs
---@param device_ids? (integer|string)[] GPUs, from 0; all by default
---@param output_device? integer|string that gets the results; the first GPU by default
---@param dim? integer of the inputs that is cut, and of the results; 1 by default
---```lua
---local model = nn.DataParallel(nn.Linear(4, 2))
---local y = model(dm.randn(6, 4))                  -- {6, 2}
---```
function DataParallel:init(...)
  local o = bind(...)
  local devices = checked_devices(o.device_ids)
  local output = o.output_device and checked_device(o.output_device) or devices[1]
  if #devices > 0 then check_home(o.module, devices[1]) end
  if #devices > 1 then
    caller.warn_once(NAME, "%s: a process a GPU is faster; hint: scripts/run -n %d, or mpirun, and "
      .. "nn.parallel.DistributedDataParallel", NAME, #devices)
  end
  self.module = o.module
  for name, value in pairs{device_ids = devices, output_device = output, dim = o.dim} do
    rawset(self, name, value)
  end
end

-- How long the tensors of the arguments are in that dim; nil where there are none. Raises where
-- they differ.
local function length_of(value, dim, length)
  if core.is_tensor(value) then
    if value:dim() < dim then
      caller.raise("%s: an input is %s, wanted %d dims, of which the last is cut; hint: dim", NAME,
        tostring(value.shape), dim)
    end
    local own = value:size(dim)
    if length and own ~= length then
      caller.raise("%s: inputs have %d and %d elements in dim %d, wanted the same", NAME,
        math.min(length, own), math.max(length, own), dim)
    end
    return own
  elseif type(value) == "table" and getmetatable(value) == nil then
    for _, v in pairs(value) do length = length_of(v, dim, length) end
  end
  return length
end

-- The part of a value from element `first` on, on a device: of tensors, and of those in tables.
local function part(value, dim, first, n, device)
  if core.is_tensor(value) then return value:narrow(dim, first, n):to(device) end
  if type(value) ~= "table" or getmetatable(value) ~= nil then return value end
  local out = {}
  for key, v in pairs(value) do out[key] = part(v, dim, first, n, device) end
  return out
end

-- The module's tensors on another device, as functional_call takes them.
local function replica(module, device)
  local tensors = {}
  for name, p in module:named_parameters() do tensors[name] = p:to(device) end
  for name, b in module:named_buffers() do tensors[name] = b:detach():to(device) end
  return tensors
end

-- The module's call on a device.
local function call_on(device, module, is_home, args)
  if is_home then return module(table.unpack(args, 1, args.n)) end
  -- a table alone would be read as the list of the arguments
  if args.n == 1 and type(args[1]) == "table" then args = {{args[1]}, n = 1} end
  return functional_call(module, replica(module, device), table.unpack(args, 1, args.n))
end

-- The results of all GPUs as one.
local function gathered(results, dim, device)
  local first = results[1]
  if core.is_tensor(first) then
    local list = {}
    for i, y in ipairs(results) do
      list[i] = (y:dim() == 0 and y:unsqueeze(1) or y):to(device) -- a loss: a vector of them
    end
    return core.cat(list, first:dim() == 0 and 1 or dim)
  elseif type(first) == "table" and getmetatable(first) == nil then
    local out = {}
    for key in pairs(first) do
      local parts = {}
      for i, y in ipairs(results) do parts[i] = y[key] end
      out[key] = gathered(parts, dim, device)
    end
    return out
  end
  return first
end

function DataParallel:forward(...)
  local devices, dim, args = self.device_ids, self.dim, table.pack(...)
  local length
  for i = 1, args.n do length = length_of(args[i], dim, length) end
  if #devices < 2 or not length or length < 2 then return self.module(...) end
  local chunk = -(-length // #devices)
  local results, n_result = {}, 0
  for i = 1, -(-length // chunk) do
    local first, mine = (i - 1) * chunk + 1, {n = args.n}
    local n = math.min(chunk, length - first + 1)
    for k = 1, args.n do mine[k] = part(args[k], dim, first, n, devices[i]) end
    local y = table.pack(call_on(devices[i], self.module, i == 1, mine))
    n_result = y.n
    for r = 1, y.n do
      results[r] = results[r] or {}
      results[r][i] = y[r]
    end
  end
  for r = 1, n_result do results[r] = gathered(results[r], dim, self.output_device) end
  return table.unpack(results, 1, n_result)
end

return {DataParallel = DataParallel}
