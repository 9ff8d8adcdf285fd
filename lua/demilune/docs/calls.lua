-- How a public name is called, with types in the words of LuaLS: from the op table, from the
-- signatures of options.signature, and from the tags of comments. A call is
--
--   params   a list of {name =, type =, optional = boolean, text =}, in order
--   named    a list of the same: what a last table may give by name; nil where there is none
--   returns  a list of {type =, text =}; nil where no comment tells of it
--   mixed    of ops: tensors may stand behind options, so that no order is the only one

local core = require "demilune.core"
local late = require "demilune.late"
local options = require "demilune.options"
local source = require "demilune.docs.source"

local calls = {}

local TENSOR = "demilune.Tensor"

-- ---- types ----

-- LuaLS's type of a kind of options.signature; a kind that is no word here is `any`.
local OF_KIND = {integer = "integer", number = "number", boolean = "boolean", string = "string",
  ["function"] = "function|table|demilune.Function", tensor = TENSOR, table = "table",
  list = "table", size = "integer|integer[]", numbers = "number[]", device = "demilune.Device",
  dtype = "demilune.DType", parameters = TENSOR .. "|table|function",
  generator = "demilune.Generator", optimizer = "demilune.optim.Optimizer",
  module = "demilune.nn.Module"}

local function of_kinds(kinds)
  local types = {}
  for kind in kinds:gmatch "[^|]+" do
    local word = kind:match "^'(.*)'$"
    types[#types + 1] = word and ('"%s"'):format(word) or OF_KIND[kind] or "any"
  end
  return table.concat(types, "|")
end

-- The type of an op's option, from its kind in the op table.
local OF_OP = {int = "integer", dim = "integer", pos = "integer", number = "number",
  bool = "boolean", str = "string", dtype = "demilune.DType", device = "demilune.Device",
  one = "integer|integer[]", pair = "integer|integer[]", triple = "integer|integer[]",
  dims = "integer|integer[]", sizes = "integer|integer[]", nums = "number|number[]"}

-- Options whose numbers may also stand apart: x:sum(1, 2), dm.zeros(2, 3).
local APART = {dims = true, sizes = true, nums = true}

-- A type at the head of a text, and what follows it. Blanks within brackets, behind a colon, a
-- comma or a bar belong to the type.
local function type_at_head(text)
  local depth, at = 0, 1
  while at <= #text do
    local c = text:sub(at, at)
    if c:find "[%(<{]" then depth = depth + 1
    elseif c:find "[%)>}]" then depth = depth - 1
    elseif c == '"' then at = text:find('"', at + 1, true) or #text
    elseif c == " " and depth == 0 and not text:sub(1, at - 1):find "[:|,]$" then break end
    at = at + 1
  end
  return text:sub(1, at - 1), text:sub(at):match "^%s*#?%s*(.*)$"
end

-- A type as comments write it, in full.
local function in_full(text) return (text:gsub("%f[%w.]Tensor%f[%W]", TENSOR):gsub(",$", "")) end

-- ---- comments ----

--- The tags of a comment's lines: {params = {[name] = {type =, optional =, text =}}, order =
--- names, returns = list, text = the other lines}.
---@param lines string[] as source.above gives them raw
---@return table
function calls.tags(lines)
  local tags = {params = {}, order = {}, returns = {}, text = {}}
  local last, is_example
  for _, line in ipairs(lines) do
    local tag, rest = line:match "^%s*%-%-%-@(%a+)%s+(.*)$"
    if tag == "param" then
      local name, optional, more = rest:match "^([%w_.]+)(%??)%s+(.*)$"
      local kind, text = type_at_head(more)
      last = {name = name, type = in_full(kind), optional = optional == "?", text = text}
      tags.params[name] = last
      tags.order[#tags.order + 1] = name
    elseif tag == "return" then
      local kind, text = type_at_head(rest)
      last = {type = in_full(kind), text = text}
      tags.returns[#tags.returns + 1] = last
    elseif not tag then
      local text = line:match "^%s*%-%-%-?%s?(.*)$"
      if last and text:find "^```" then
        is_example = not is_example -- of which entries tell by themselves
      elseif last and not is_example then
        last.text = last.text .. " " .. text
      elseif not last then
        tags.text[#tags.text + 1] = text
      end
    end
  end
  return tags
end

-- ---- ops ----

local function written(default)
  return default ~= nil and "default " .. options.written(default) or ""
end

-- The type of an operand: of a pointwise op a number may stand for a tensor.
local function operand(row, name)
  return {name = name:gsub("[?.#]", ""), optional = name:find "?" ~= nil,
    type = name:find("...", 1, true) and TENSOR .. "[]"
      or (row.pointwise or name:find "#") and TENSOR .. "|number|boolean" or TENSOR, text = ""}
end

-- Ends a call of an op: options may stand by position, or by name in a table.
local function with_options(call, attrs, apart)
  call.named = #attrs > 0 and attrs or nil
  call.mixed = #attrs > 0 and #call.params > 1
  if apart then -- randint(high, size) and randint(low, high, size)
    local required = 0
    for _, attr in ipairs(attrs) do required = required + (attr.optional and 0 or 1) end
    call.mixed = call.mixed or required > 1
  end
  for _, attr in ipairs(attrs) do
    call.params[#call.params + 1] = {name = attr.name, optional = attr.optional, text = attr.text,
      type = apart and attr.type .. "|integer|number" or attr.type}
  end
  if apart then
    call.params[#call.params + 1] = {name = "...", type = "any", text = ""}
  end
  return call
end

-- A list of so many results of a type.
local function results(count, kind)
  local list = {}
  for i = 1, count do list[i] = {type = kind, text = ""} end
  return list
end

local function of_c_row(row)
  local call, attrs, apart = {params = {}}, {}, false
  for i, name in ipairs(row.tensors) do call.params[i] = operand(row, name) end
  for _, attr in ipairs(row.attrs) do
    local kind = attr.kind:gsub("%?$", "")
    attrs[#attrs + 1] = {name = attr.name, optional = not attr.required,
      type = attr.choices and '"' .. attr.choices:gsub("|", '"|"') .. '"' or OF_OP[kind] or "any",
      text = attr.required and "" or written(attr.default)}
    if row.name == "view" then attrs[#attrs].type = attrs[#attrs].type .. "|demilune.DType" end
    apart = apart or APART[kind]
  end
  if row.creates then
    attrs[#attrs + 1] = {name = "requires_grad", optional = true, type = "boolean", text = ""}
  end
  call.returns = results(math.max(1, row.outputs), TENSOR)
  return with_options(call, attrs, apart)
end

local OF_NAME = {dtype = "demilune.DType", device = "demilune.Device", size = "integer|integer[]",
  generator = "demilune.Generator", requires_grad = "boolean", dim = "integer|integer[]"}

-- Results of ops in Lua that are not one tensor; reference_spec compares with their samples.
local RESULTS = {
  broadcast_shapes = "integer[]", broadcast_tensors = TENSOR .. "[]", gradient = TENSOR .. "[]",
  split_with_sizes = TENSOR .. "[]", unravel_index = TENSOR .. "[]", can_cast = "boolean",
  promote_types = "demilune.DType", result_type = "demilune.DType", finfo = "table",
  iinfo = "table", is_complex = "boolean", is_floating_point = "boolean", is_nonzero = "boolean",
}
local COUNTS = {aminmax = 2, frexp = 2, histogram = 2, histogramdd = 2, linalg_ldl_factor = 2,
  linalg_lu_factor_ex = 3, linalg_solve_ex = 2, lu = 2, lu_unpack = 3, triangular_solve = 2}

-- The type of an option of an op in Lua: by its name, else by its default.
local function of_lua_option(name, default)
  if OF_NAME[name] then return OF_NAME[name] end
  if default == "true" or default == "false" then return "boolean" end
  if tonumber(default) then return "number|table" end
  return default ~= "" and default:find "^%a" and "string" or "any"
end

local function of_lua_row(row)
  local call, attrs, apart = {params = {}}, {}, false
  local tensors, rest = row.signature:match "^([^;]*);?(.*)$"
  for name in tensors:gmatch "[^,%s]+" do call.params[#call.params + 1] = operand(row, name) end
  for name, marks, default in rest:gmatch "([%w_]+)([.#?*]*)%s*=?%s*([^,%s]*)" do
    attrs[#attrs + 1] = {name = name, optional = marks:find "?" ~= nil or default ~= "",
      type = of_lua_option(name, default),
      text = default ~= "" and "default " .. default or ""}
    apart = apart or marks:find("[.*]") ~= nil
  end
  call.returns = results(COUNTS[row.name] or 1, RESULTS[row.name] or TENSOR)
  return with_options(call, attrs, apart)
end

local rows
--- The call of an op, as a function of all its operands; nil where there is no such op.
---@param name string as in the op table
---@return table?
function calls.of_op(name)
  if not rows then
    rows = {}
    for _, row in ipairs(late.require "demilune.ops".rows) do rows[row.name] = {row, of_lua_row} end
    for _, row in ipairs(core.ops()) do
      if not row.hidden then rows[row.name] = {row, of_c_row} end
    end
  end
  local found = rows[name]
  return found and found[2](found[1])
end

-- ---- functions ----

-- The parameters of a signature, with the comment's words for them.
local function of_signature(list, tags)
  local call = {params = {}, named = {}}
  for i, p in ipairs(list) do
    local told = tags.params[p.name]
    local words = {told and told.text, p.default ~= nil and written(p.default) or nil}
    local param = {name = p.name, optional = not p.required, type = of_kinds(p.kinds),
      text = table.concat({words[1] or words[2], words[1] and words[2] or nil}, "; ")}
    call.named[i] = param
    if i <= list.n then call.params[i] = param end
  end
  if #call.named == 0 then call.named = nil end
  if list.n == 0 and call.named then -- what stands in front of them is read by the function itself
    call.params[1] = {name = "...", type = "any", text = ""}
  end
  if list.by_name.fn then -- it may stand behind any of the others
    for _, p in ipairs(call.params) do
      if p.optional and not p.type:find "function" then p.type = p.type .. "|function" end
    end
  end
  return call
end

-- The parameters of a function as its tags, and its source, have them.
local function of_source(fn, tags, first)
  local call, info = {params = {}}, debug.getinfo(fn, "u")
  for i = first, info.nparams do
    local name = debug.getlocal(fn, i)
    call.params[#call.params + 1] = tags.params[name]
      or {name = name, type = "any", optional = true, text = ""}
  end
  if info.isvararg then call.params[#call.params + 1] = {name = "...", type = "any", text = ""} end
  return call
end

-- A call of tags alone, for functions in C.
local function of_tags(tags, skipped)
  local call = {params = {}}
  for _, name in ipairs(tags.order) do
    if name ~= skipped then call.params[#call.params + 1] = tags.params[name] end
  end
  return call
end

--- The call of a function.
---@param fn function
---@param entry table with path and line, as docs.find gives it, or lines, of functions in C
---@param signature? string the name of its options.signature
---@param method? boolean its first parameter is self
---@return table
function calls.of_function(fn, entry, signature, method)
  local raw = entry.lines or entry.path and source.above(entry.path, entry.line, true) or {}
  local tags = calls.tags(raw)
  local list = not entry.lines and signature and options.parameters(signature)
  local call
  if list then call = of_signature(list, tags)
  elseif entry.lines then call = of_tags(tags, method and "x")
  else call = of_source(fn, tags, method and 2 or 1) end
  call.returns = #tags.returns > 0 and tags.returns or nil
  call.text = tags.text
  return call
end

--- The call that makes an object of a class.
---@param class table
---@return table
function calls.of_class(class)
  local list = options.parameters(rawget(class, "class") or "")
  if list then return of_signature(list, {params = {}}) end
  return {params = {{name = "...", type = "any", text = ""}}}
end

return calls
