-- Which module's forward runs, as a number that the observers of ops see
-- (dm_Modes.place), and the names that belong to the numbers.

local core = require "demilune.core"
local Module = require "demilune.nn.module"

local places = {}

local module_at = setmetatable({}, {__mode = "v"}) -- [place] = module
local place_of = setmetatable({}, {__mode = "k"})  -- [module] = {[outer place] = place}
local names = {}                                   -- [place] = {root, path, class}
local owner_of = setmetatable({}, {__mode = "k"})  -- [parameter] = {place, field}
local n_models, n_followers = 0, 0

-- The names of a module in a place: below the module whose forward called it, or
-- a root, which is "model" once one of its own was called.
local function name_of(module, outer)
  local above = module_at[outer]
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
  local place = #names + 1
  names[place] = name_of(module, outer)
  module_at[place] = module
  place_of[module] = place_of[module] or {}
  place_of[module][outer] = place
  for _, field in ipairs(module._fields) do
    local value = rawget(module, field)
    if core.is_tensor(value) and not owner_of[value] then
      owner_of[value] = {place, tostring(field)}
    end
  end
  return place
end

local function enter(module)
  local outer = core._place()
  local known = place_of[module]
  core._place(known and known[outer] or add(module, outer))
  return outer
end

-- Each follow() wants one unfollow().
function places.follow()
  n_followers = n_followers + 1
  if n_followers == 1 then Module.follow(enter) end
end

function places.unfollow()
  n_followers = n_followers - 1
  if n_followers == 0 then Module.follow(nil) end
end

-- "model.layers[3]", and the class; for 0: "(no module)"; for what came too long
-- ago to be known: "(backward)".
function places.name(place)
  local name = names[place]
  if not name then return place == 0 and "(no module)" or "(backward)", "" end
  return ((name.root or name).model or "") .. name.path, name.class
end

-- "model.layers[3].weight" of a parameter whose module was called, or nil.
function places.parameter(p)
  local owner = owner_of[p]
  if not owner then return nil end
  local path, class = places.name(owner[1])
  return (path == "" and class or path) .. "." .. owner[2]
end

return places
