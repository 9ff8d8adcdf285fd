-- The path of the module whose forward runs, such as "model.layers[3]", for the profiler and
-- amp.report. The engine holds it as a number (core._module_number), which observers of ops get
-- with each op; this file knows the paths of the numbers.

local core = require "demilune.core"
local Module = require "demilune.nn.module"

local paths = {}

-- A module that is called from two others has two paths, and an id for each.
local module_of = setmetatable({}, {__mode = "v"}) -- [id] = module
local ids_of = setmetatable({}, {__mode = "k"})    -- [module] = {[id of the caller] = id}
local names = {}                                   -- [id] = {root, path, class}
local owner_of = setmetatable({}, {__mode = "k"})  -- [parameter] = {id, field}
local n_models, n_observers = 0, 0

-- The name of a module that the module of `outer` calls: its path below that one; or a new
-- root, which is named "model" when it first calls a module of its own.
local function name_of(module, outer)
  local above = module_of[outer]
  local step = above and Module.path_to(above, module)
  if not step then return {path = "", class = module.class} end
  local root = names[outer].root or names[outer]
  if not root.model then
    n_models = n_models + 1
    root.model = n_models == 1 and "model" or "model" .. n_models
  end
  return {root = root, path = names[outer].path .. step, class = module.class}
end

local function add(module, outer)
  local id = #names + 1
  names[id] = name_of(module, outer)
  module_of[id] = module
  ids_of[module] = ids_of[module] or {}
  ids_of[module][outer] = id
  for _, field in ipairs(module._fields) do
    local value = rawget(module, field)
    if core.is_tensor(value) and not owner_of[value] then
      owner_of[value] = {id, tostring(field)}
    end
  end
  return id
end

local function enter(module)
  local outer = core._module_number()
  local known = ids_of[module]
  core._module_number(known and known[outer] or add(module, outer))
  return outer
end

-- Begins to note which module runs. Each call wants one call of stop.
function paths.start()
  n_observers = n_observers + 1
  if n_observers == 1 then Module.observe(enter) end
end

function paths.stop()
  n_observers = n_observers - 1
  if n_observers == 0 then Module.observe(nil) end
end

-- "model.layers[3]", and the class; for 0: "(no module)"; for an id that the engine has
-- forgotten by the time of the backward pass: "(backward)".
function paths.name(id)
  local name = names[id]
  if not name then return id == 0 and "(no module)" or "(backward)", "" end
  return ((name.root or name).model or "") .. name.path, name.class
end

-- "model.layers[3].weight" of a parameter whose module was called, or nil.
function paths.parameter(p)
  local owner = owner_of[p]
  if not owner then return nil end
  local path, class = paths.name(owner[1])
  return (path == "" and class or path) .. "." .. owner[2]
end

return paths
