-- Tables whose values are in files that are loaded when one of their names is first read, so that
-- a program pays, at its start and in each of the collector's cycles, for what it uses. pairs
-- gives every name, loaded or not, and so does tostring.

local late = {}

local MANY = 200 -- names of a table that is not printed whole

local NAMES = setmetatable({}, {__mode = "k"}) -- the table -> names(), a set of those it can load

-- ---- loading ----

local owned = {} -- the modules of this library that belong together: name -> what its file returned

--- Notes the modules of this library that are loaded now.
function late.remember()
  for name, value in pairs(package.loaded) do
    if owned[name] == nil and name:find "^demilune%f[.%z]" then owned[name] = value end
  end
end

--- require, of a file of this library, which gets those modules that this one got. Where a program
--- has emptied package.loaded since, as busted does between files, its own requires would load them
--- a second time, and a module of one copy is none to the other.
---@param file string
---@return any
function late.require(file)
  local others = {}
  for name, value in pairs(owned) do
    local now = package.loaded[name]
    if now ~= value then others[name], package.loaded[name] = now or false, value end
  end
  local fine, result = pcall(require, file)
  late.remember()
  for name, value in pairs(others) do package.loaded[name] = value or nil end
  if not fine then error(result, 0) end
  return result
end

-- The names of a table, in lines of up to 76 characters.
local function text_of(t)
  local list = {}
  for name in pairs(late.names(t)) do
    if type(name) == "string" then list[#list + 1] = name end
  end
  table.sort(list)
  if #list > MANY then return ("{%d names; hint: dm.help()}"):format(#list) end
  local lines, line = {}, " "
  for _, name in ipairs(list) do
    if #line + 1 + #name > 76 then
      lines[#lines + 1], line = line, " "
    end
    line = line .. " " .. name
  end
  lines[#lines + 1] = line
  return "{\n" .. table.concat(lines, "\n") .. "\n}"
end

--- Lets the table t load what it lacks. load(t, name) gives the value of a name, which it may keep
--- in t, or nil; names() gives the set {[name] = true} of the names that it knows.
---@param t table
---@param load function
---@param names function
---@return table t
function late.computed(t, load, names)
  NAMES[t] = names
  local function every(self)
    for name in pairs(names()) do
      if rawget(self, name) == nil then load(self, name) end
    end
    return next, self, nil
  end
  return setmetatable(t, {__index = load, __pairs = every, __tostring = text_of})
end

--- Adds names to the table t. files: {[name] = file}, where the file returns a table that holds
--- the value under that name, or {[name] = f}, where f(name) gives the value. whole:
--- {[name] = file}, where what the file returns is the value.
---@param t table
---@param files table<string, string|function>
---@param whole? table<string, string>
---@return table t
function late.extend(t, files, whole)
  whole = whole or {}
  local function load(self, name)
    local file, value = files[name], nil
    if type(file) == "function" then
      value = file(name)
    elseif file then
      value = late.require(file)[name]
    elseif whole[name] then
      value = late.require(whole[name])
    end
    if value ~= nil then rawset(self, name, value) end
    return value
  end
  return late.computed(t, load, function()
    local set = {}
    for name in pairs(files) do set[name] = true end
    for name in pairs(whole) do set[name] = true end
    return set
  end)
end

--- The names that a table has, loaded or not, as a set {[name] = true}; it loads nothing.
---@param t table
---@return table<string, boolean>
function late.names(t)
  local set = NAMES[t] and NAMES[t]() or {}
  for name in next, t do set[name] = true end
  return set
end

return late
