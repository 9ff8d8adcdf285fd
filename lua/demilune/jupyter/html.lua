-- Tensors, modules and lists of records as HTML for a notebook: a line of facts, and values in a
-- table; layers as a tree that unfolds. Colours come from the notebook's theme, but for NaN and
-- infinities, which stand out.

local core = require "demilune.core"
local listing = require "demilune.listing"
local Module = require "demilune.nn.module"

local html = {}

local ROWS, COLUMNS = 8, 10  -- of a table that is shown whole; larger ones lose their middle
local COUNTED = 1 << 24      -- elements of a tensor whose values are counted
local RECORDS = 60           -- rows of a list of records
local BAD = ' style="color:#d62728"'

local ESCAPES = {["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;"}

local function escaped(text) return (tostring(text):gsub('[&<>"]', ESCAPES)) end

-- ---- tensors ----

local function cell(v)
  if v == nil then return "<td>&#8230;</td>" end
  if math.type(v) ~= "float" then return "<td>" .. escaped(v) .. "</td>" end
  local bad = v ~= v or v == math.huge or v == -math.huge
  local text = v ~= v and "nan" or ("%.5g"):format(v)
  return ("<td%s>%s</td>"):format(bad and BAD or "", text)
end

-- The positions of n that are shown, 0 for those that are left out.
local function positions(n, most)
  local list = {}
  if n <= most then
    for i = 1, n do list[i] = i end
    return list
  end
  local half = most // 2
  for i = 1, half do list[i] = i end
  list[half + 1] = 0
  for i = n - half + 1, n do list[#list + 1] = i end
  return list
end

-- A table of a matrix (rows, columns) of the CPU; its rows have no positions where it is a vector.
local function matrix(x, is_vector)
  local rows, columns = positions(x:size(1), ROWS), positions(x:size(2), COLUMNS)
  local lines = {"<table><tr>", not is_vector and "<td></td>" or nil}
  for _, c in ipairs(columns) do
    lines[#lines + 1] = ("<th>%s</th>"):format(c == 0 and "&#8230;" or c)
  end
  lines[#lines + 1] = "</tr>"
  for _, r in ipairs(rows) do
    lines[#lines + 1] = is_vector and "<tr>"
      or ("<tr><th>%s</th>"):format(r == 0 and "&#8230;" or r)
    local row = r > 0 and x[r]
    for _, c in ipairs(columns) do
      lines[#lines + 1] = cell(r > 0 and c > 0 and row[c]:item() or nil)
    end
    lines[#lines + 1] = "</tr>"
  end
  lines[#lines + 1] = "</table>"
  return table.concat(lines)
end

-- The number of values, lowest, highest and mean of those that are finite, and how many are not.
local function statistics(x)
  local facts = {}
  if x:numel() == 0 or x:numel() > COUNTED or x.dtype == "bool" then return facts end
  local y = x:to("cpu"):double()
  local finite = y:masked_select(y:isfinite())
  if finite:numel() > 0 and x:numel() > 1 then
    facts[1] = ("%.5g to %.5g, mean %.5g"):format(finite:amin():item(), finite:amax():item(),
      finite:mean():item())
  end
  local nans, all = y:isnan():sum():item(), x:numel() - finite:numel()
  for _, one in ipairs{{"NaN", nans}, {"Inf", all - nans}} do
    if one[2] > 0 then
      facts[#facts + 1] = ("<b%s>%s %s</b>"):format(BAD, listing.with_commas(one[2]), one[1])
    end
  end
  return facts
end

local function facts_of(x)
  local facts = {("<b>%s</b> %s"):format(x.dtype, escaped(x.shape)), x.device}
  if x.requires_grad then facts[#facts + 1] = "requires grad" end
  for _, fact in ipairs(statistics(x:detach())) do facts[#facts + 1] = fact end
  return table.concat(facts, " &middot; ")
end

-- The values of a tensor of one dim or more: a vector as one row; of more than two dims the first
-- matrix, under its index.
local function values_of(x)
  local index, x_cpu = {}, x:detach()
  if x_cpu.ndim == 1 then x_cpu = x_cpu:unsqueeze(1) end
  while x_cpu.ndim > 2 do
    x_cpu = x_cpu[1]
    index[#index + 1] = "1"
  end
  local label = #index > 0 and ("<div>x[{%s}] of %s such matrices:</div>"):format(
    table.concat(index, ", "), listing.with_commas(x:numel() // math.max(x_cpu:numel(), 1))) or ""
  return label .. matrix(x_cpu:to "cpu", x.ndim == 1)
end

-- A tensor: facts, then its values.
local function of_tensor(x)
  local _ <close> = core.no_grad()
  local _ <close> = core.scope()
  if x.ndim == 0 then return ("<div>%s: %s</div>"):format(facts_of(x), escaped(x:item())) end
  local values = x:numel() > 0 and values_of(x) or ""
  return ("<div><div>%s</div>%s</div>"):format(facts_of(x), values)
end

-- ---- modules ----

local function count_of(module)
  local n = 0
  for _, p in ipairs(module:parameters()) do n = n + p:numel() end
  return n
end

-- The line of a module: its name within its parent, its class, and its parameters.
local function line_of(module, name)
  local n = count_of(module)
  local count = n > 0 and " &middot; " .. listing.with_commas(n) or ""
  local text = ("<code>%s</code>%s"):format(escaped(module:describe()), count)
  if name ~= "" then return escaped(name) .. ": " .. text end
  return n > 0 and text .. " parameters" or text
end

-- Appends a module and those below it; `open` has the modules around it.
local function add_module(out, module, name, open)
  local children = {}
  for child_name, child in module:named_children() do
    local position = child_name:find "^%d+$" and ("[%d]"):format(child_name + 1)
    children[#children + 1] = {position or child_name, child}
  end
  if #children == 0 or open[module] then
    out[#out + 1] = ('<div style="margin-left:1.1em">%s</div>'):format(line_of(module, name))
    return
  end
  out[#out + 1] = ("<details%s><summary>%s</summary><div style=\"margin-left:1.2em\">"):format(
    next(open) == nil and " open" or "", line_of(module, name))
  open[module] = true
  for _, pair in ipairs(children) do add_module(out, pair[2], pair[1], open) end
  open[module] = nil
  out[#out + 1] = "</div></details>"
end

-- A module as a tree: its children show, theirs unfold.
local function of_module(module)
  local out = {}
  add_module(out, module, "", {})
  return ("<div>%s</div>"):format(table.concat(out))
end

-- ---- lists of records ----

local function is_plain(v) return type(v) ~= "table" and type(v) ~= "userdata" end

-- The names of the fields of a list of records, such as the history of a Trainer: the epoch, then
-- texts, then numbers; nil where a value is no such list.
local function fields_of(list)
  local rank, names = {}, {}
  if #list == 0 or next(list, #list) ~= nil then return nil end
  for _, record in ipairs(list) do
    if type(record) ~= "table" or #record > 0 or next(record) == nil then return nil end
    for name, v in next, record do
      if type(name) ~= "string" or not is_plain(v) then return nil end
      if not rank[name] then
        names[#names + 1] = name
        rank[name] = name == "epoch" and 1 or type(v) == "string" and 2 or 3
      end
    end
  end
  table.sort(names, function(a, b)
    if rank[a] ~= rank[b] then return rank[a] < rank[b] end
    return a < b
  end)
  return names
end

local function of_records(list)
  local names = fields_of(list)
  if not names then return nil end
  local out = {"<table><tr>"}
  for _, name in ipairs(names) do out[#out + 1] = ("<th>%s</th>"):format(escaped(name)) end
  out[#out + 1] = "</tr>"
  for i = 1, math.min(#list, RECORDS) do
    out[#out + 1] = "<tr>"
    for _, name in ipairs(names) do
      local v = list[i][name]
      out[#out + 1] = v == nil and "<td></td>" or cell(v)
    end
    out[#out + 1] = "</tr>"
  end
  out[#out + 1] = "</table>"
  if #list > RECORDS then
    out[#out + 1] = ("<div>%s more</div>"):format(listing.with_commas(#list - RECORDS))
  end
  return table.concat(out)
end

--- The HTML of a value; nil where its text tells all.
---@param value any
---@return string?
function html.of(value)
  if core.is_tensor(value) then return of_tensor(value) end
  if Module.is_module(value) then return of_module(value) end
  if type(value) == "table" then return of_records(value) end
end

return html
