-- demilune.help: dm.help("conv2d") answers from the op table, or from the ops written in Lua.

local core = require "demilune.core"
local options = require "demilune.options"

local help = {}

local function signature(row)
  local args = {}
  for _, tensor in ipairs(row.tensors) do args[#args + 1] = tensor end
  local named = {}
  for _, attr in ipairs(row.attrs) do
    local kind = attr.choices or attr.kind
    if attr.required then
      args[#args + 1] = attr.name
    elseif attr.default ~= nil then
      named[#named + 1] = ("%s = %s"):format(attr.name, tostring(attr.default))
    else
      named[#named + 1] = ("%s: %s"):format(attr.name, kind)
    end
  end
  if #named > 0 then args[#args + 1] = "{" .. table.concat(named, ", ") .. "}" end
  return ("%s(%s)"):format(row.name, table.concat(args, ", "))
end

-- The meaning of autocast's words for the op.
local POLICY = {
  lower_precision_fp = "inputs become the region's 16-bit dtype",
  fp32 = "inputs become float32",
  fp32_set_opt_dtype = "the result is float32, unless a dtype is given",
  promote = "inputs that differ become float32",
  banned = "refused",
  unlisted = "works on what it is given",
}

local function policy(word) return ("%s (%s)"):format(word, POLICY[word]) end

local function text_of(row)
  local lines = {signature(row), "  " .. row.doc}
  if row.cpu == row.cuda then
    lines[#lines + 1] = "  autocast: " .. policy(row.cpu)
  else
    lines[#lines + 1] = "  autocast on the CPU: " .. policy(row.cpu)
    lines[#lines + 1] = "  autocast on CUDA: " .. policy(row.cuda)
  end
  lines[#lines + 1] = row.differentiable and "  has a gradient" or "  no gradient"
  return table.concat(lines, "\n")
end

-- Of an op written in Lua: an op of its signature's form.
local function text_of_own(row)
  local tensors, rest = row.signature:match "^([^;]*);? ?(.*)$"
  local args = tensors:gsub("[#?]", "")
  if not row.as_function then args = args:gsub("^%w+,? ?", "") end -- it stands in front
  local required, named = {args ~= "" and args or nil}, {}
  for option in rest:gmatch "[^,]+" do
    option = option:match "^%s*(.-)$"
    local list = option:find "[?=]" and named or required
    list[#list + 1] = option:gsub("[?*]", ""):gsub("%.%.%.", "")
  end
  if #named > 0 then required[#required + 1] = "{" .. table.concat(named, ", ") .. "}" end
  local name = row.fn and row.name or row.name .. "_"
  if not row.as_function then name = "x:" .. name end
  local like = row.like and "\n  autocast: as " .. row.like or ""
  return ("%s(%s)\n  %s%s"):format(name, table.concat(required, ", "), row.doc, like)
end

--- Prints what an op does ("linalg.inv" or "linalg_inv", or another name of it); without a name,
--- the names of all.
function help.help(name)
  local rows, names, ops = {}, {}, require "demilune.ops"
  for _, row in ipairs(core.ops()) do
    if not row.hidden then
      rows[row.name] = row
      names[#names + 1] = row.name
    end
  end
  for _, row in ipairs(ops.rows) do
    if not rows[row.name] then
      rows[row.name] = row
      names[#names + 1] = row.name
    end
  end
  table.sort(names)
  if type(name) == "string" then name = name:gsub("%.", "_") end
  local text
  if name == nil then
    text = table.concat(names, " ")
  elseif rows[name] or rows[ops.aliases[name]] then
    local row = rows[name] or rows[ops.aliases[name]]
    text = row.attrs and text_of(row) or text_of_own(row)
  else
    local near = options.nearest(name, rows)
    text = ("no op '%s'%s"):format(name, near and ("; did you mean '%s'?"):format(near) or "")
  end
  print(text)
end

return help
