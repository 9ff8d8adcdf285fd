-- demilune.ops.define: what an op written in Lua has in common with a row of src/ops: a
-- signature, by which its arguments are read, a documentation, and the forms op and op_.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"

local define = {}

local is_tensor = core.is_tensor

-- The value of a default in a signature: a number, true, false, or a word.
local function value_of(word)
  if word == "true" or word == "false" then return word == "true" end
  return math.tointeger(word) or tonumber(word) or word
end

-- The slots of a signature: "x, other#, w?, tensors...; dim, n = 1, size..., dtype?". Tensors
-- stand before the semicolon (# a number will do, ... a list of them), options behind it
-- (... numbers or a table of them, * all that follows); ? marks what may be left out.
local function parse(signature)
  local slots, tensors, rest = {n_tensor = 0}, signature:match "^([^;]*);?(.*)$"
  for part, text in ipairs{tensors, rest} do
    for name, marks, default in text:gmatch "([%w_]+)([.#?*]*)%s*=?%s*([^,%s]*)" do
      slots[#slots + 1] = {name = name, tensor = part == 1, list = marks:find("...", 1, true),
        number = marks:find "#", rest = marks:find "*",
        optional = marks:find "?" or default ~= ""}
      if default ~= "" then slots[#slots].default = value_of(default) end
      slots[name] = #slots
    end
    if part == 1 then slots.n_tensor = #slots end
  end
  return slots
end

-- Raises what is wrong with a call, and what the op takes.
local function refuse(name, slots, text, ...)
  local takes = {}
  for i, slot in ipairs(slots) do
    takes[i] = slot.name .. (slot.list and "..." or "")
    if slot.default ~= nil then takes[i] = ("%s = %s"):format(takes[i], tostring(slot.default))
    elseif slot.optional then takes[i] = takes[i] .. "?" end
  end
  caller.raise("%s: %s\n  %s(%s)", name, text:format(...), name, table.concat(takes, ", "))
end

-- A table of options: it has names and no list part.
local function is_options(v)
  return type(v) == "table" and #v == 0 and type(next(v)) == "string"
end

-- Whether v may stand in a tensor slot.
local function fits(slot, v)
  if slot.list then return is_tensor(v) or type(v) == "table" and (#v > 0 or next(v) == nil) end
  return is_tensor(v) or slot.number and (type(v) == "number" or type(v) == "boolean")
end

-- given[i] and what follows it of the same kind, as a list, apart when it was no table; and the
-- argument after these.
local function list_at(given, i, n, belongs)
  if type(given[i]) == "table" then return given[i], i + 1 end
  local list = {apart = true}
  while i <= n and belongs(given[i]) do list[#list + 1], i = given[i], i + 1 end
  return list, i
end

local function is_number(v) return type(v) == "number" end

-- Reads the options table into the slots' values.
local function read_named(name, slots, named, values)
  for key, v in pairs(named) do
    local at = slots[key]
    if type(at) ~= "number" or key == "n_tensor" then
      local near = options.nearest(tostring(key), slots)
      refuse(name, slots, "unknown option '%s'%s", tostring(key),
        near and ("; did you mean '%s'?"):format(near) or "")
    end
    values[at] = v
  end
end

-- The arguments in the order of the slots. Their types decide, as in ops of rows: a tensor fills
-- the next tensor's slot, any other value the next option's.
local function read(name, slots, ...)
  local given, n, values = {...}, select("#", ...), {}
  if n > 0 and is_options(given[n]) then
    read_named(name, slots, given[n], values)
    n = n - 1
  end
  local i, tensor, option = 1, 1, slots.n_tensor + 1
  while i <= n do
    local v, slot = given[i], tensor <= slots.n_tensor and slots[tensor]
    if slot and (fits(slot, v) or v == nil and slot.optional) then
      if slot.list then values[tensor], i = list_at(given, i, n, is_tensor)
      else values[tensor], i = v, i + 1 end
      tensor = tensor + 1
    else
      while values[option] ~= nil do option = option + 1 end
      local gap = slots[option]
      if slot and not slot.optional and not gap then
        refuse(name, slots, "%s: tensor expected, got %s", slot.name, type(v))
      elseif not gap and not (type(v) == "table" and next(v) == nil) then
        refuse(name, slots, "argument %d is one too many", i)
      end
      if gap and gap.list and type(v) ~= "number" and type(v) ~= "table" then
        refuse(name, slots, "%s: number or table of numbers expected, got %s", gap.name, type(v))
      end
      if gap and gap.rest then values[option], i = {table.unpack(given, i, n)}, n + 1
      elseif gap and gap.list then values[option], i = list_at(given, i, n, is_number)
      else values[option], i = v, i + 1 end
      option = option + 1
    end
  end
  for k, slot in ipairs(slots) do
    if values[k] == nil then values[k] = slot.default end
    if values[k] == nil and not slot.optional then
      refuse(name, slots, "%s'%s' is missing", slot.tensor and "tensor " or "", slot.name)
    end
    if slot.tensor and values[k] ~= nil and not fits(slot, values[k]) then
      refuse(name, slots, "%s: tensor expected, got %s", slot.name, type(values[k]))
    end
  end
  return table.unpack(values, 1, #slots)
end

-- Whether a tensor among the arguments, or in a table there, requires grad.
local function any_requires_grad(...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if is_tensor(v) then
      if v.requires_grad then return true end
    elseif type(v) == "table" then
      for _, t in pairs(v) do
        if is_tensor(t) and t.requires_grad then return true end
      end
    end
  end
  return false
end

-- fn on float32 where tensors of one 16-bit dtype are given, and its results in that dtype again,
-- so that they are rounded once.
local function widened(fn)
  local function narrowed(dtype, y, ...)
    if is_tensor(y) and y.dtype == "float32" then y = y:to(dtype) end
    if select("#", ...) == 0 then return y end
    return y, narrowed(dtype, ...)
  end
  return function(...)
    local args, dtype = {...}, nil
    for i = 1, select("#", ...) do
      local t = args[i]
      if is_tensor(t) and t:is_floating_point() and (t:dim() > 0 or not dtype) then
        if dtype and dtype ~= t.dtype or not dtypes.low[t.dtype] then return fn(...) end
        dtype = t.dtype
      end
    end
    if not dtype then return fn(...) end
    for i = 1, select("#", ...) do
      if is_tensor(args[i]) and dtypes.low[args[i].dtype] then args[i] = args[i]:float() end
    end
    return narrowed(dtype, fn(table.unpack(args, 1, select("#", ...))))
  end
end

-- fn under autocast's policy for the row `like`: its tensors are cast as that row's, and it runs
-- with autocast off.
local function with_policy(name, like, fn)
  return function(...)
    local args, tensors = table.pack(...), {n = select("#", ...)}
    for i = 1, args.n do tensors[i] = is_tensor(args[i]) and args[i] or nil end
    if not core.autocast_convert(name, like, tensors) then return fn(...) end
    for i = 1, args.n do args[i] = tensors[i] or args[i] end
    local _ <close> = core.autocast_resume(core.autocast_state(true))
    return fn(table.unpack(args, 1, args.n))
  end
end

--- A family of ops as a table op, to be filled by op.NAME(signature, doc, fn, flags). Flags:
--- inplace: there is op_, too, which writes the result into x; only_inplace: fn itself changes x
--- and is op_; wide: 16-bit tensors are computed in float32 and rounded once; like:ROW: autocast
--- has the policy of that row for it; method, function: only a method of tensors, or only a
--- function of dm; the rest are both when a tensor comes first. Its rows are {name, signature, doc,
--- fn, in_place, method, as_function, like}, in order.
---@return table op, table[] rows
function define.family()
  local rows = {}
  local op = setmetatable({}, {__index = function(_, name)
    return function(signature, doc, fn, flags)
      flags = " " .. (flags or "") .. " "
      local slots = parse(signature)
      if flags:find " wide " then fn = widened(fn) end
      local like = flags:match " like:([%w_]+) "
      if like then fn = with_policy(name, like, fn) end
      local function call(...) return fn(read(name, slots, ...)) end
      local only = flags:find " only_inplace "
      local row = {name = name, signature = signature, doc = doc, fn = not only and call or nil,
        method = slots.n_tensor > 0 and not slots[1].list and not flags:find " function ",
        as_function = not flags:find " method ", like = like}
      if only then
        row.in_place = call
      elseif flags:find " inplace " then
        row.in_place = function(x, ...) -- what the gradient reads must not change with x
          local kept = is_tensor(x) and any_requires_grad(x, ...) and x:clone() or x
          return x:copy_(call(kept, ...))
        end
      end
      rows[#rows + 1] = row
      return call
    end
  end})
  return op, rows
end

return define
