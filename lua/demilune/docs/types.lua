-- Definition files for lua-language-server and others, written from what the library knows of
-- itself: an editor completes names and options, and shows their documentation. A file a module;
-- each says by `---@meta NAME` what `require` it stands for, and returns the module.
--
-- What every tensor has is written as assignments, not as ---@field: a table of numbers given for
-- a tensor would otherwise be told to lack those fields.
--
-- A class's constructor is written as a function that returns an object: its call and the call of
-- its objects have different arguments, and one ---@overload cannot tell them apart. Classes that
-- programs extend are tables.

local core = require "demilune.core"
local calls = require "demilune.docs.calls"
local docs = require "demilune.docs"
local dtypes = require "demilune.dtypes"
local folders = require "demilune.folders"
local late = require "demilune.late"
local listing = require "demilune.listing"

local types = {}

-- Types that no module has: what tensors share, and results whose class has no public name.
local COMMON = [[
---@meta _

---@alias demilune.DType DTYPES
---@alias demilune.Device string "cpu", "cuda" or "cuda:0"

---@class demilune.TensorOptions
---@field dtype? demilune.DType
---@field device? demilune.Device
---@field requires_grad? boolean

---@class demilune.Generator a stream of random numbers of its own: dm.Generator()
---@field manual_seed fun(self: demilune.Generator, seed: integer): demilune.Generator
---@field initial_seed fun(self: demilune.Generator): integer
---@field get_state fun(self: demilune.Generator): table
---@field set_state fun(self: demilune.Generator, state: table): demilune.Generator
---@class demilune.Function the result of autograd.Function{...}; calling it applies it
---@overload fun(...: any): any
---@class demilune.Constraint what values a distribution takes
---@field [string] any
---@class demilune.EventList what a profile counted
---@field [string] any
---@class demilune.distributed.Handle a collective or a message that is under way
---@field wait fun(self: demilune.distributed.Handle, timeout?: number): any
---@field is_completed fun(self: demilune.distributed.Handle): boolean
---@class demilune.distributed.Group ranks that communicate among themselves: dist.new_group()
---@field ranks integer[] their numbers in the world, from 0, in rising order
---@class demilune.Measure what profiler.measure took down
---@field [string] any
]]

local TENSOR = [[
---@meta _

--- A tensor: elements of one dtype in a shape, on a device.
---@class demilune.Tensor: userdata
---@field grad demilune.Tensor? after backward(), of a leaf that requires a gradient
---@field grad_fn any? the op that made it; nil of a leaf
---@field [integer] demilune.Tensor|any
---@field [table] demilune.Tensor|any
---@field [demilune.Tensor] demilune.Tensor|any
---@operator add(demilune.Tensor|number): demilune.Tensor
---@operator sub(demilune.Tensor|number): demilune.Tensor
---@operator mul(demilune.Tensor|number): demilune.Tensor
---@operator div(demilune.Tensor|number): demilune.Tensor
---@operator mod(demilune.Tensor|number): demilune.Tensor
---@operator pow(demilune.Tensor|number): demilune.Tensor
---@operator idiv(demilune.Tensor|number): demilune.Tensor
---@operator band(demilune.Tensor|integer): demilune.Tensor
---@operator bor(demilune.Tensor|integer): demilune.Tensor
---@operator bxor(demilune.Tensor|integer): demilune.Tensor
---@operator shl(demilune.Tensor|integer): demilune.Tensor
---@operator shr(demilune.Tensor|integer): demilune.Tensor
---@operator bnot: demilune.Tensor
---@operator unm: demilune.Tensor
---@operator len: integer
local Tensor = {}

--- the size of each dim
---@type integer[]
Tensor.shape = nil
---@type demilune.DType
Tensor.dtype = nil
---@type demilune.Device
Tensor.device = nil
---@type boolean
Tensor.requires_grad = nil
---@type boolean
Tensor.is_leaf = nil
--- the same elements, without history
---@type demilune.Tensor
Tensor.data = nil
--- its dims in reverse
---@type demilune.Tensor
Tensor.T = nil
--- its last two dims exchanged
---@type demilune.Tensor
Tensor.mT = nil
--- bytes of an element
---@type integer
Tensor.itemsize = nil
--- bytes of all elements
---@type integer
Tensor.nbytes = nil
]]

-- ---- lines ----

local function add(out, text, ...)
  out[#out + 1] = select("#", ...) > 0 and text:format(...) or text
end

local function add_text(out, text)
  for _, line in ipairs(text or {}) do
    add(out, (("--- " .. line):gsub("%s+$", "")))
  end
end

-- An example as a block of code in the hover text.
local function add_example(out, lines)
  if not lines or #lines == 0 then return end
  add(out, "---```lua")
  for _, line in ipairs(lines) do add(out, "---" .. line) end
  add(out, "---```")
end

local function spaced(text) return text ~= "" and " " .. text or "" end

-- The options of a call as a class, written once in this file of options; its name, or nil.
local function options_class(files, name, call)
  if not call.named then return nil end
  local class = name .. ".Options"
  if not files.known[class] then
    files.known[class] = true
    local out = files.options
    add(out, "\n---@class %s", class)
    for _, field in ipairs(call.named) do
      add(out, "---@field %s? %s%s", field.name, field.type, spaced(field.text))
    end
  end
  return class
end

-- ---- functions ----

local function listed(params, last)
  local words = {}
  for i = 1, last do
    local p = params[i]
    words[i] = ("%s%s: %s"):format(p.name, p.optional and p.name ~= "..." and "?" or "", p.type)
  end
  return words
end

-- Options that are words of Lua: by position they have another name.
local KEYWORDS = {["end"] = true, ["repeat"] = true}

-- Calls in which the table of options stands before all required parameters are given; and the
-- call with all parameters, `whole`, where no function says it.
local function add_overloads(out, call, class, result, whole)
  if whole then
    add(out, "---@overload fun(%s): %s", table.concat(listed(whole, #whole), ", "), result)
  end
  local required = 0
  for i, p in ipairs(call.params) do
    if not p.optional and p.name ~= "..." then required = i end
  end
  for given = 0, class and not call.mixed and required - 1 or -1 do
    local words = listed(call.params, given)
    words[#words + 1] = "options: " .. class
    add(out, "---@overload fun(%s): %s", table.concat(words, ", "), result)
  end
  if call.mixed then add(out, "---@overload fun(...: any): %s", result) end
end

-- Parameters as they stand in the function, the table of options behind them.
local function with_table(call, class)
  local params, open = {}, true
  for i, p in ipairs(call.params) do
    local kind = p.type
    if class and p.optional and p.name ~= "..." then kind = kind .. "|" .. class end
    params[i] = {name = p.name, optional = p.optional, type = kind, text = p.text}
    open = open and p.name ~= "..."
  end
  if class and not open and #params == 1 then params[1].type = "any|" .. class end
  if class and open then
    params[#params + 1] = {name = "options", optional = true, type = class, text = "by name"}
  end
  return params
end

-- A function with its documentation. head: "function nn.Linear".
local function add_function(files, out, head, call, told)
  if KEYWORDS[head:match "[%w_]+$"] then return end -- no Lua can call it by that name
  local class = options_class(files, told.options, call)
  local params, names, results = with_table(call, class), {}, {}
  add(out, "")
  add_text(out, told.text)
  add_example(out, told.example)
  for i, p in ipairs(params) do
    names[i] = KEYWORDS[p.name] and p.name .. "_" or p.name
    add(out, "---@param %s%s %s%s", names[i], p.optional and p.name ~= "..." and "?" or "", p.type,
      spaced(p.text))
  end
  for i, r in ipairs(call.returns or {}) do
    results[i] = r.type
    add(out, "---@return %s%s", r.type, r.text ~= "" and " # " .. r.text or "")
  end
  if #results == 0 then add(out, "---@return any") end
  add_overloads(out, call, class, #results > 0 and table.concat(results, ", ") or "any")
  add(out, "%s(%s) end", head, table.concat(names, ", "))
end

-- A call without its first parameter, which self is.
local function as_method(call)
  local own = setmetatable({params = table.move(call.params, 2, #call.params, 1, {})},
    {__index = call})
  return own
end

-- ---- values ----

local function callable(value)
  local meta = getmetatable(value)
  return type(meta) == "table" and meta.__call ~= nil
end

local function field_of(value, key)
  local fine, found = pcall(function() return value[key] end)
  return fine and found or nil
end

local function is_class(value)
  return rawget(value, "class") ~= nil or rawget(value, "__index") ~= nil
    or callable(value) and rawget(value, "parameters") ~= nil
end

-- Classes that programs extend, as tables with this function `extend`.
local EXTENDED = {["nn.Module"] = true, ["data.Dataset"] = true, ["data.IterableDataset"] = true,
  ["optim.Optimizer"] = true, ["data.Sampler"] = true}

-- The class that a class's objects are also of.
local function parent_of(name, value)
  if EXTENDED[name] then return nil end
  if field_of(value, "forward") and field_of(value, "named_parameters") then
    return "demilune.nn.Module"
  elseif field_of(value, "add_param_group") then
    return "demilune.optim.Optimizer"
  elseif name:find "^distributions%." then
    return "demilune.Distribution"
  end
end

-- The results of functions that make objects of a class without a public name; each class is
-- described from one such object.
local MAKERS = {
  {"^amp%.GradScaler$", "demilune.amp.GradScaler", function(dm)
    return dm.amp.GradScaler{device = "cpu"}
  end},
  {"^optim%.lr_scheduler%.", "demilune.optim.LRScheduler", function(dm)
    local optimizer = dm.optim.SGD({dm.zeros(1, {requires_grad = true})}, {lr = 1})
    return dm.optim.lr_scheduler.StepLR(optimizer, 1)
  end},
  {"^metrics%.", "demilune.metrics.Metric", function(dm) return dm.metrics.Accuracy() end},
  {"^plot%.", "demilune.plot.Figure", function(dm) return dm.plot.lines{1, 2} end},
  {"^models%.", "demilune.nn.Module"},
}

local function made_by(name)
  for _, maker in ipairs(MAKERS) do
    if name:find(maker[1]) then return maker[2] end
  end
end

-- Functions of classes that objects are not asked for. `forward` is each class's own: a declared
-- one would fix its arguments and results.
local NO_METHOD = {init = true, extend = true, new = true, forward = true}

-- The functions of a class, its own and those that it inherits.
local function methods_of(class)
  local found, inherited = {}, class
  while type(inherited) == "table" do
    for key, value in next, inherited do
      if type(key) == "string" and type(value) == "function" and not key:find "^_"
        and not NO_METHOD[key] then
        found[key] = found[key] or value
      end
    end
    local meta = getmetatable(inherited)
    local next_one = type(meta) == "table" and rawget(meta, "__index")
    inherited = next_one ~= inherited and next_one or nil
  end
  return found
end

-- Where a function in Lua is written.
local function source_of(fn)
  local info = debug.getinfo(fn, "S")
  return {path = info.source:match "^@(.*)$", line = info.linedefined}
end

-- Adds methods to the class of the local variable Class.
local function add_methods(files, out, class, methods, but)
  for _, key in ipairs(listing.names(methods)) do
    if not (but and but[key] == methods[key]) then
      local call = calls.of_function(methods[key], source_of(methods[key]), nil, true)
      add_function(files, out, "function Class:" .. key, call, {text = call.text,
        options = class .. "." .. key})
    end
  end
end

-- A class and its methods; `more` are lines of ---@field.
local function add_class(files, out, class, parent, methods, more, but)
  add(out, "\ndo\n---@class %s%s", class, parent and ": " .. parent or "")
  for _, line in ipairs(more or {}) do add(out, line) end
  add(out, "local Class = {}")
  add_methods(files, out, class, methods, but)
  add(out, "end")
end

-- Every module has besides methods: parameters, modules in it, and a call.
local MODULE_FIELDS = {"---@field [integer] demilune.nn.Module", "---@field [string] any",
  "---@overload fun(...: any): any"}

-- Fields of objects of other classes.
local FIELDS = {
  ["nn.Module"] = {"---@field training boolean", table.unpack(MODULE_FIELDS)},
  ["optim.Optimizer"] = {"---@field param_groups table[]", "---@field state table"},
  ["data.DataLoader"] = {"---@field n_samples integer of the data set, or of the sampler's part"},
}

-- A class as a table, which makes an object where it is called and has `extend`.
local function add_extended(files, out, variable, class, parent, call, told)
  add(out, "")
  add_text(out, told.text)
  add(out, "---@class %s.Class%s", class, parent and ": " .. parent or "")
  add(out, "---@field super any\n---@field class string\n---@field [string] any")
  local options = options_class(files, told.options, call)
  add_overloads(out, call, options, class, with_table(call, options))
  add(out, "%s = {}", variable)
  add(out, "\n--- A class of this kind, to which the program adds methods; calling it makes an")
  add(out, "--- object, for which it calls init.\n---@param name string")
  add(out, "---@return %s.Class", class)
  add(out, "function %s:extend(name) end", variable)
end

local add_module

-- One public name of a module; holder is the variable of the module.
local function add_value(files, out, holder, name, value)
  local short, entry = name:match "[%w_]+$", docs.find(name)
  local class, told = "demilune." .. name, {options = "demilune." .. name}
  told.text, told.example = entry and entry.text, entry and entry.example
  local head = ("function %s.%s"):format(holder, short)
  local op = entry and entry.kind == "op" and type(value) == "function" and calls.of_op(entry.name)
  if op then
    told.options = "demilune." .. entry.name
    add_function(files, out, head, op, told)
  elseif type(value) == "function" then
    local vararg = debug.getinfo(value, "u")
    local call = calls.of_function(value, entry or {}, vararg.nparams == 0 and short, false)
    if made_by(name) then call.returns = {{type = made_by(name), text = ""}} end
    told.text = call.text and #call.text > 0 and call.text or told.text
    add_function(files, out, head, call, told)
  elseif type(value) == "table" and (is_class(value) or EXTENDED[name]) then
    local module = field_of(field_of(require "demilune", "nn"), "Module")
    local parent = parent_of(name, value)
    local more = FIELDS[name] or parent == "demilune.nn.Module"
      and MODULE_FIELDS or nil
    add_class(files, out, class, parent, methods_of(value), more,
      parent == "demilune.nn.Module" and methods_of(module)
        or parent == "demilune.optim.Optimizer" and methods_of(require "demilune".optim.Optimizer))
    local call = calls.of_class(value)
    if EXTENDED[name] or parent == "demilune.nn.Module" then
      return add_extended(files, out, holder .. "." .. short, class, EXTENDED[name] and class,
        call, told)
    end
    call.returns = {{type = class, text = ""}}
    add_function(files, out, head, call, told)
  elseif type(value) == "table" and callable(value) then
    add(out, "\n---@class %s\n---@overload fun(...: any): ...\n%s.%s = {}", class, holder, short)
    for _, key in ipairs(listing.names(methods_of(value))) do
      local call = calls.of_function(value[key], source_of(value[key]), key, false)
      add_function(files, out, ("function %s.%s.%s"):format(holder, short, key), call,
        {text = call.text, options = class .. "." .. key})
    end
  elseif name:find "^distributions%.constraints%." then
    add(out, "\n---@type demilune.Constraint\n%s.%s = {}", holder, short)
  elseif type(value) == "table" then
    add(out, "\n---@type %s\n%s.%s = {}", class, holder, short)
    add_module(files, name, value)
  else
    add(out, "")
    add_text(out, told.text)
    add(out, "---@type %s\n%s.%s = nil", type(value), holder, short)
  end
end

-- Names that hold the library's own tables.
local OWN = {methods = true, region_methods = true}

-- The file of a module, with those of the modules in it.
function add_module(files, name, module)
  local holder = name == "" and "dm" or name:match "[%w_]+$"
  local full = name == "" and "demilune" or "demilune." .. name
  local out = {("---@meta %s\n"):format(full)}
  files[#files + 1] = {(name == "" and "demilune" or name) .. ".lua", out}
  local path = name ~= "" and package.searchpath(full, package.path)
  local source = require "demilune.docs.source"
  add_text(out, path and source.head(path))
  add(out, "---@class %s\nlocal %s = {}", full, holder)
  for _, key in ipairs(listing.names(late.names(module))) do
    if key:sub(1, 1) ~= "_" and not OWN[key] then
      add_value(files, out, holder, name == "" and key or name .. "." .. key, module[key])
    end
  end
  add(out, "\nreturn %s", holder)
end

-- ---- tensors, and classes without a name ----

local function add_tensor(files)
  local out = {TENSOR}
  files[#files + 1] = {"tensor.lua", out}
  local methods = {} -- some of them come when they are first read
  for name in pairs(core.methods) do methods[name] = true end
  for _, name in ipairs(docs.names()) do
    local method = name:match "^Tensor%.(.*)$"
    if method then methods[method] = true end
  end
  for _, name in ipairs(listing.names(methods)) do
    local entry = name:sub(1, 1) ~= "_"
      and (docs.find("x:" .. name) or docs.find("Tensor." .. name))
    local op = entry and entry.kind == "op" and calls.of_op(entry.name)
    if entry then
      local call = op and as_method(op)
        or calls.of_function(core.methods[name], entry, nil, true)
      local text = call.text and #call.text > 0 and call.text or entry.text
      if op and name:find "_$" and op and entry.name ~= name then
        text = {("%s in place: it changes the tensor and returns it."):format(entry.name),
          table.unpack(text)}
      end
      add_function(files, out, "function Tensor:" .. name, call, {text = text,
        example = entry.example, options = "demilune." .. entry.name:gsub("^dm%.", "")})
    end
  end
end

-- The methods of a distribution, which finds them by a function.
local function distribution_methods(dm)
  local normal, found = dm.distributions.Normal(0, 1), {}
  for _, name in ipairs{"sample", "rsample", "log_prob", "cdf", "icdf", "entropy", "expand",
    "enumerate_support"} do
    found[name] = field_of(normal, name)
  end
  return found
end

local function add_unnamed(files, dm)
  local words = {}
  for _, row in ipairs(dtypes.rows) do
    words[#words + 1] = ('"%s"'):format(row.name)
    local other = row.method and row.method ~= row.name and row.method
    if other then words[#words + 1] = ('"%s"'):format(other) end
  end
  local out = {(COMMON:gsub("DTYPES", table.concat(words, "|")))}
  files[#files + 1] = {"common.lua", out}
  for _, maker in ipairs(MAKERS) do
    if maker[3] then
      add_class(files, out, maker[2], nil, methods_of(getmetatable(maker[3](dm)).__index),
        {"---@field [string] any"})
    end
  end
  add_class(files, out, "demilune.Distribution", nil, distribution_methods(dm),
    {"---@field [string] any"})
end

-- ---- files ----

--- The definition files: a list of {name, text}.
---@return string[][]
function types.files()
  local dm = require "demilune"
  late.require "demilune.ops" -- the methods that are written in Lua
  local files = {known = {}, options = {"---@meta _"}}
  add_unnamed(files, dm)
  add_tensor(files)
  add_module(files, "", dm)
  files[#files + 1] = {"options.lua", files.options}
  local list = {}
  for i, file in ipairs(files) do list[i] = {file[1], table.concat(file[2], "\n") .. "\n"} end
  return list
end

--- The folder of definition files beside the library, which an installed one has; nil elsewhere.
---@return string? folder
function types.installed()
  local here = debug.getinfo(1, "S").source:match "^@(.*)docs/types%.lua$"
  local file = here and io.open(here .. "types/demilune.lua")
  if not file then return nil end
  file:close()
  return here .. "types"
end

--- Writes the definition files into a folder, which is made where it is not there.
---
---     assert(require("demilune.docs.types").write "types")
---@param folder string
---@return integer? count of files; nil where one could not be written
---@return string? why
function types.write(folder)
  if not folders.make(folder) then return nil, ("cannot make '%s'"):format(folder) end
  local list = types.files()
  for _, file in ipairs(list) do
    local fine, why = folders.write(folder .. "/" .. file[1], file[2])
    if not fine then return nil, why end
  end
  return #list
end

return types
