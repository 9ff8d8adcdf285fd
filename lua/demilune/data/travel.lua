-- Values on their way from one Lua state to another: bytes, and a list of tensors beside them.
--
-- Numbers, strings, booleans and tables are copied, tables that occur twice once. Tensors are
-- shared, without their history. What a module of package.loaded holds (its functions, its
-- classes) goes by the module's name, and the other state requires it. Other Lua functions go as
-- bytecode with the values of their upvalues, and with those globals of the script that they
-- name. Files, coroutines, and C functions and objects of no module cannot go: the message says
-- where one was found. Fields that a metatable names in __stays are left out: an object can make
-- them again, or does without.

local core = require "demilune.core"
local caller = require "demilune.caller"

local travel = {}

-- ---- names ----

-- {[value] = {module, key, ...}} of the tables and functions of all modules, to a depth of two.
local function index_of_modules()
  local names = {}
  local function note(v, name)
    local kind = type(v)
    if kind ~= "table" and kind ~= "function" or names[v] then return false end
    names[v] = name
    return kind == "table"
  end
  local function note_fields(t, name, depth)
    for key, v in next, t do
      if type(key) == "string" and v ~= _G then
        local path = {table.unpack(name)}
        path[#path + 1] = key
        if note(v, path) and depth > 1 then note_fields(v, path, depth - 1) end
      end
    end
  end
  for key, v in next, _G do -- the functions of a fresh Lua state; its libraries are modules
    if type(key) == "string" and type(v) == "function" and debug.getinfo(v, "S").what == "C" then
      note(v, {"_G", key})
    end
  end
  local modules = {}
  for name in next, package.loaded do
    if type(name) == "string" and name ~= "_G" then modules[#modules + 1] = name end
  end
  table.sort(modules)
  for _, name in ipairs(modules) do note(package.loaded[name], {name}) end
  for _, name in ipairs(modules) do
    local module = package.loaded[name]
    if type(module) == "table" then note_fields(module, {name}, 2) end
  end
  return names
end

-- ---- writing ----

local Writer = {}
Writer.__index = Writer

function Writer:refuse(v, why)
  local kind = type(v)
  local meta = kind == "userdata" and debug.getmetatable(v)
  error({travel = ("%s is a %s%s"):format(table.concat(self.path, "."),
    meta and meta.__name or kind, why and ", " .. why or "")}, 0)
end

function Writer:put(format, ...) self.out[#self.out + 1] = format:pack(...) end

-- Writes what the function needs beside its bytecode: upvalues, one that two functions share
-- as the first one's.
function Writer:upvalues(f, id)
  local path = self.path
  for k = 1, 255 do
    local name, v = debug.getupvalue(f, k)
    if not name then break end
    local shared = self.shared[debug.upvalueid(f, k)]
    if shared then
      self:put("c1 I4 I1", "^", shared[1], shared[2])
    else
      self.shared[debug.upvalueid(f, k)] = {id, k}
      path[#path + 1] = ("%s (a local of %s)"):format(name, debug.getinfo(f, "S").short_src)
      self:put("c1", "=")
      if name == "_ENV" then v = _G end -- of a sandbox, too: the other state has none
      self:value(v)
      path[#path] = nil
    end
  end
  self:put("c1", ".")
end

function Writer:code(f)
  if debug.getinfo(f, "S").what == "C" then self:refuse(f, "written in C, of no module") end
  local dump = string.dump(f)
  self:put("c1 s4", "F", dump)
  for constant, name in next, self.globals do
    if dump:find(constant, 1, true) then self.wanted[name] = true end
  end
  self:upvalues(f, self.ids[f])
end

function Writer:fields(t)
  local path, meta = self.path, debug.getmetatable(t)
  local stays = meta and rawget(meta, "__stays") or {}
  self:put("c1", "{")
  for key, v in next, t do
    if not stays[key] then
      path[#path + 1] = tostring(key)
      self:value(key)
      self:value(v)
      path[#path] = nil
    end
  end
  self:put("c1", "}")
  self:value(meta)
end

-- A table or a function: as one that was written before, by name, or whole.
function Writer:object(v)
  if self.ids[v] then return self:put("c1 I4", "R", self.ids[v]) end
  self.n = self.n + 1
  self.ids[v] = self.n
  if v == _G then return self:put("c1", "G") end
  local name = self.names and self.names[v]
  if name then
    self:put("c1 I1", "M", #name)
    for _, key in ipairs(name) do self:put("s4", key) end
  elseif type(v) == "table" then
    self:fields(v)
  elseif self.names then
    self:code(v)
  else
    self:refuse(v)
  end
end

function Writer:tensor(t)
  if t.requires_grad and not t.is_leaf then
    self:refuse(t, "with a history of gradients; hint: x:detach()")
  elseif t.device ~= "cpu" then
    self:refuse(t, "on " .. t.device .. "; hint: data sets keep theirs on the CPU")
  end
  self.tensors[#self.tensors + 1] = t
  self:put("c1 I1", "T", t.requires_grad and 1 or 0)
end

function Writer:value(v)
  local kind = math.type(v) or type(v)
  if kind == "nil" then self:put("c1", "N")
  elseif kind == "boolean" then self:put("c1", v and "t" or "f")
  elseif kind == "integer" then self:put("c1 j", "i", v)
  elseif kind == "float" then self:put("c1 n", "d", v)
  elseif kind == "string" then self:put("c1 s4", "s", v)
  elseif core.is_tensor(v) then self:tensor(v)
  elseif kind == "table" or kind == "function" then self:object(v)
  else self:refuse(v) end
end

local function new_writer(path, names)
  return setmetatable({out = {}, tensors = {}, ids = {}, n = 0, shared = {}, path = path,
    names = names, globals = {}, wanted = {}}, Writer)
end

-- A string as a constant of Lua 5.4's bytecode: its type, its size with the mark of the last
-- byte, its bytes.
local function constant_of(name)
  return string.char(#name <= 40 and 4 or 20, #name + 1 | 0x80) .. name
end

-- Names of the script's globals, by what bytecode that reads them has among its constants.
local function script_globals(names)
  local globals = {}
  for key, v in next, _G do
    if type(key) == "string" and #key < 127 and v ~= _G and package.loaded[key] ~= v
      and not (names[v] and names[v][1] == "_G") then
      globals[constant_of(key)] = key
    end
  end
  return globals
end

-- Writes the globals that functions name. One that cannot travel is named with the reason,
-- since the name may be only a field's: the other state raises where it is read.
local function write_globals(w)
  local sent = {}
  repeat
    local name
    for one in next, w.wanted do
      if not sent[one] then name = one end
    end
    if name then
      sent[name] = true
      local n_out, n_tensors, before = #w.out, #w.tensors, w.n
      w:put("c1 s4", "g", name)
      w.path = {"the global " .. name}
      local ok, why = pcall(w.value, w, _G[name])
      if not ok then
        if type(why) ~= "table" then error(why, 0) end
        for k = #w.out, n_out + 1, -1 do w.out[k] = nil end
        for k = #w.tensors, n_tensors + 1, -1 do w.tensors[k] = nil end
        for v, id in pairs(w.ids) do
          if id > before then w.ids[v] = nil end
        end
        for id, at in pairs(w.shared) do
          if at[1] > before then w.shared[id] = nil end
        end
        w.n = before
        w:put("c1 s4", "x", name)
        w:value(why.travel .. ", which did not go to the worker")
      end
    end
  until not name
  w:put("c1", ".")
end

local function written(w) return table.concat(w.out), w.tensors end

-- A table as bytes and tensors, with the code that it needs; raises on what cannot travel,
-- naming the position by the fields that lead there.
function travel.pack(v)
  local names = index_of_modules()
  local w = new_writer({}, names)
  w.globals = script_globals(names)
  local ok, why = pcall(function()
    w:value(v)
    write_globals(w)
  end)
  if not ok then
    if type(why) ~= "table" then error(why, 0) end
    caller.raise("DataLoader: num_workers: %s, which cannot go to a worker; hint: open it in "
      .. "get(i), or num_workers = 0", why.travel)
  end
  return written(w)
end

-- Values of a batch or a request, without code: nil and a message where one is a function or
-- something else that cannot travel.
function travel.pack_plain(what, ...)
  local w, values = new_writer{what}, table.pack(...)
  local ok, why = pcall(function()
    w:put("I4", values.n)
    for k = 1, values.n do w:value(values[k]) end
  end)
  if not ok then
    if type(why) ~= "table" then error(why, 0) end
    return nil, why.travel
  end
  return written(w)
end

-- ---- reading ----

local Reader = {}
Reader.__index = Reader

function Reader:get(format)
  local v
  v, self.at = format:unpack(self.bytes, self.at)
  return v
end

function Reader:next_object(v)
  self.n = self.n + 1
  self.objects[self.n] = v
  return v
end

local READ = {
  N = function() return nil end,
  t = function() return true end,
  f = function() return false end,
  i = function(r) return r:get "j" end,
  d = function(r) return r:get "n" end,
  s = function(r) return r:get "s4" end,
  R = function(r) return r.objects[r:get "I4"] end,
  G = function(r) return r:next_object(_G) end,
  T = function(r)
    r.n_tensors = r.n_tensors + 1
    local t = r.tensors[r.n_tensors]
    return r:get "I1" == 1 and t:requires_grad_() or t
  end,
  M = function(r)
    local path = {}
    for k = 1, r:get "I1" do path[k] = r:get "s4" end
    local ok, v = true, _G
    if path[1] ~= "_G" then ok, v = pcall(require, path[1]) end
    for k = 2, ok and #path or 0 do v = v ~= nil and v[path[k]] or nil end
    if not ok or v == nil then
      r.lacking = ("%s is not there%s"):format(table.concat(path, "."),
        ok and "" or ": " .. tostring(v))
    end
    return r:next_object(ok and v or false)
  end,
  F = function(r)
    local f = r:next_object(assert(load(r:get "s4", "=worker", "b")))
    local k = 0
    while true do
      local tag = r:get "c1"
      if tag == "." then return f end
      k = k + 1
      if tag == "^" then
        local from = r.objects[r:get "I4"]
        debug.upvaluejoin(f, k, from, r:get "I1")
      else -- a variable of its own: functions fresh from bytecode may share none
        debug.setupvalue(f, k, r:value())
      end
    end
  end,
  ["{"] = function(r)
    local t = r:next_object{}
    while r.bytes:sub(r.at, r.at) ~= "}" do
      local key = r:value()
      rawset(t, key, r:value())
    end
    r.at = r.at + 1
    return setmetatable(t, r:value())
  end,
}

function Reader:value() return READ[self:get "c1"](self) end

local function new_reader(bytes, tensors)
  return setmetatable({bytes = bytes, at = 1, tensors = tensors, n_tensors = 0, objects = {},
    n = 0}, Reader)
end

-- Globals of the other state become globals here.
local function read_globals(r)
  local absent = {}
  while true do
    local tag = r:get "c1"
    if tag == "." then break end
    local name = r:get "s4"
    r.lacking = nil
    local v = r:value()
    if r.lacking then tag, v = "x", r.lacking end
    if tag == "g" then _G[name] = v else absent[name] = v end
  end
  setmetatable(_G, {__index = function(_, name)
    if absent[name] then error(absent[name], 2) end
  end})
end

-- What travel.pack made.
function travel.unpack(bytes, tensors)
  local r = new_reader(bytes, tensors)
  local v = r:value()
  if r.lacking then error(r.lacking, 0) end
  read_globals(r)
  return v
end

-- What travel.pack_plain made.
function travel.unpack_plain(bytes, tensors)
  local r, values = new_reader(bytes, tensors), {}
  local n = r:get "I4"
  for k = 1, n do values[k] = r:value() end
  return table.unpack(values, 1, n)
end

return travel
