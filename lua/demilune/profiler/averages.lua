-- Lists of events, alone or summed by name, and their table of text.

local caller = require "demilune.caller"
local options = require "demilune.options"

local averages = {}

-- An array of entries: {key =, count =, cpu_time_total =, self_cpu_time_total =,
-- cpu_time =, device_time_total =, self_device_time_total =, device_time =,
-- cpu_memory_usage =, self_cpu_memory_usage =, device_memory_usage =, flops =, ...},
-- times in microseconds. memory: bytes were recorded.
local List = {__name = "demilune.EventList"}
List.__index = List
averages.List = List

-- ---- numbers as text ----

local function time_text(us)
  if us >= 1e6 then return ("%.3fs"):format(us / 1e6) end
  if us >= 1e3 then return ("%.3fms"):format(us / 1e3) end
  return ("%.3fus"):format(us)
end

local function share_text(part, whole)
  return whole == 0 and "NaN" or ("%.2f%%"):format(part * 100 / whole)
end

local function memory_text(n)
  for _, unit in ipairs{{2^30, "GB"}, {2^20, "MB"}, {2^10, "KB"}} do
    if math.abs(n) >= unit[1] then return ("%.2f %s"):format(n / unit[1], unit[2]) end
  end
  return ("%d B"):format(n)
end

-- A scale that leaves the smallest count at 1 or more: its factor and its name.
local function flops_scale(entries)
  local least = math.huge
  for _, e in ipairs(entries) do
    if e.flops > 0 then least = math.min(least, e.flops) end
  end
  if least == math.huge then return nil end
  local names = {"", "K", "M", "G", "T", "P"}
  local step = math.max(0, math.min(math.log(least, 10) // 3, #names - 1))
  return 10.0 ^ (-3 * step), names[math.tointeger(step) + 1]
end

-- ---- order ----

local DEVICES = {"cpu", "device"}
local SORT_KEYS = {count = true, flops = true}
for _, device in ipairs(DEVICES) do
  SORT_KEYS[device .. "_time"] = true
  for _, name in ipairs{"_time_total", "_memory_usage"} do
    SORT_KEYS[device .. name] = true
    SORT_KEYS["self_" .. device .. name] = true
  end
end

-- Entries by falling value of the key; those that are equal keep their order.
local function sorted(entries, sort_by)
  if sort_by == nil then return entries end
  local key = tostring(sort_by):gsub("cuda", "device"):gsub("xpu", "device")
  if not SORT_KEYS[key] then
    local near = options.nearest(key, SORT_KEYS)
    caller.raise("table: unknown sort key '%s'%s", tostring(sort_by),
      near and ("; did you mean '%s'?"):format(near) or "")
  end
  local order, out = {}, {}
  for i = 1, #entries do order[i] = i end
  table.sort(order, function(a, b)
    local x, y = entries[a][key], entries[b][key]
    if x == y then return a < b end
    return x > y
  end)
  for i, k in ipairs(order) do out[i] = entries[k] end
  return out
end

-- ---- the table ----

local WIDTH = 12

local function widest(entries, most, length_of)
  local width = 0
  for _, e in ipairs(entries) do width = math.max(width, length_of(e)) end
  return math.min(width + 4, most)
end

local function shorten(name, most)
  if #name < most - 3 then return name end
  return name:sub(1, most - 3) .. "..."
end

-- The end of a path tells more than its beginning.
local function shorten_path(path, most)
  if #path <= most then return path end
  return "..." .. path:sub(-most + 3)
end

local function longest_line(e)
  local n = 0
  for _, line in ipairs(e.stack or {}) do n = math.max(n, #line) end
  return n
end

local function any(entries, test)
  for _, e in ipairs(entries) do
    if test(e) then return true end
  end
  return false
end

-- The columns of the table: {title =, width =, text = function(entry)}.
local function columns_of(entries, memory, total, device_total, o)
  local columns = {}
  local function add(title, text, width, left)
    columns[#columns + 1] = {title = title, text = text, width = width or WIDTH, left = left}
  end
  local name_width = widest(entries, o.max_name_column_width, function(e) return #e.key end)
  add("Name", function(e) return shorten(e.key, o.max_name_column_width) end, name_width)
  add("Self CPU %", function(e) return share_text(e.self_cpu_time_total, total) end)
  add("Self CPU", function(e) return time_text(e.self_cpu_time_total) end)
  add("CPU total %", function(e) return share_text(e.cpu_time_total, total) end)
  add("CPU total", function(e) return time_text(e.cpu_time_total) end)
  add("CPU time avg", function(e) return time_text(e.cpu_time) end)
  if device_total > 0 then
    add("Self CUDA", function(e) return time_text(e.self_device_time_total) end)
    add("Self CUDA %", function(e) return share_text(e.self_device_time_total, device_total) end)
    add("CUDA total", function(e) return time_text(e.device_time_total) end)
    add("CUDA time avg", function(e) return time_text(e.device_time) end, 13)
  end
  if memory then
    add("CPU Mem", function(e) return memory_text(e.cpu_memory_usage) end)
    add("Self CPU Mem", function(e) return memory_text(e.self_cpu_memory_usage) end)
    if any(entries, function(e) return e.self_device_memory_usage ~= 0 end) then
      add("CUDA Mem", function(e) return memory_text(e.device_memory_usage) end)
      add("Self CUDA Mem", function(e) return memory_text(e.self_device_memory_usage) end, 13)
    end
  end
  add("# of Calls", function(e) return tostring(e.count) end)
  if any(entries, function(e) return e.input_shapes end) then
    local width = widest(entries, o.max_shapes_column_width, function(e)
      return #(e.input_shapes or "")
    end)
    add("Input Shapes", function(e) return (e.input_shapes or ""):sub(1, width) end, width)
  end
  if any(entries, function(e) return e.stack and #e.stack > 0 end) then
    local width = widest(entries, o.max_src_column_width, longest_line)
    add("Source Location", function(e, line)
      return shorten_path((e.stack or {})[line] or "", width)
    end, width, true)
  end
  local scale, unit = flops_scale(entries)
  if scale then
    add(("Total %sFLOPs"):format(unit), function(e)
      return e.flops > 0 and ("%.3f"):format(e.flops * scale) or "--"
    end)
  end
  return columns
end

local function row_of(columns, text_of)
  local cells = {}
  for i, column in ipairs(columns) do
    local text = text_of(column)
    local space = (" "):rep(column.width - #text)
    cells[i] = column.left and text .. space or space .. text
  end
  return (table.concat(cells, "  "):gsub("%s+$", ""))
end

-- An entry's row, and one for each further line of its stack.
local function add_entry(lines, columns, e)
  lines[#lines + 1] = row_of(columns, function(column) return column.text(e, 1) end)
  local n = e.stack and #e.stack or 0
  for k = 2, n do
    lines[#lines + 1] = row_of(columns, function(column)
      return column.left and column.text(e, k) or ""
    end)
  end
  if n > 0 then lines[#lines + 1] = "" end
end

local bind_table = options.signature("table", [[sort_by?: string, row_limit: integer = 100,
  max_src_column_width: integer = 75, max_name_column_width: integer = 55,
  max_shapes_column_width: integer = 80, header?: string, top_level_events_only: boolean = false]])

--- list:table{sort_by =, row_limit = 100, header =, max_name_column_width = 55,
--- top_level_events_only = false, ...} -> text; "" where there are no events.
--- sort_by: "self_cpu_time_total", "cpu_time_total", "cpu_time", "count",
--- "cuda_time_total", "cpu_memory_usage", "cuda_memory_usage", "flops", ..., largest
--- first. row_limit -1: all rows. Raises on an unknown key.
function List:table(...)
  local o = bind_table(...)
  local entries = sorted(self, o.sort_by)
  if #entries == 0 then return "" end
  local total, device_total = 0, 0
  for _, e in ipairs(entries) do
    total = total + e.self_cpu_time_total
    device_total = device_total + e.self_device_time_total
  end
  local columns = columns_of(entries, self.memory, total, device_total, o)
  local rules, length = {}, -2
  for i, column in ipairs(columns) do
    rules[i] = ("-"):rep(column.width)
    length = length + column.width + 2
  end
  local rule, lines = table.concat(rules, "  "), {}
  local function frame(text)
    lines[#lines + 1] = ("="):rep(length)
    lines[#lines + 1] = text
  end
  if o.header then frame(o.header) end
  if o.top_level_events_only then frame "Only events that lie within no other" end
  lines[#lines + 1] = rule
  lines[#lines + 1] = row_of(columns, function(column) return column.title end)
  lines[#lines + 1] = rule
  local shown = 0
  for _, e in ipairs(entries) do
    if shown == o.row_limit then break end
    if e.top_level or not o.top_level_events_only then
      shown = shown + 1
      add_entry(lines, columns, e)
    end
  end
  lines[#lines + 1] = rule
  lines[#lines + 1] = "Self CPU time total: " .. time_text(total)
  if device_total > 0 then
    lines[#lines + 1] = "Self CUDA time total: " .. time_text(device_total)
  end
  return table.concat(lines, "\n") .. "\n"
end

function List:__tostring() return self:table() end

-- ---- entries ----

--- An entry of the table, empty: the counts and times of one op or module.
function averages.entry(key)
  return {
    key = key, count = 0, flops = 0, cpu_time = 0, cpu_time_total = 0, self_cpu_time_total = 0,
    cpu_memory_usage = 0, self_cpu_memory_usage = 0, device_time = 0, device_time_total = 0,
    self_device_time_total = 0, device_memory_usage = 0, self_device_memory_usage = 0,
  }
end

local SUMS = {"cpu_time_total", "self_cpu_time_total", "cpu_memory_usage",
  "self_cpu_memory_usage", "device_time_total", "self_device_time_total",
  "device_memory_usage", "self_device_memory_usage", "flops"}

--- Adds one event's numbers.
function averages.add(entry, event)
  entry.count = entry.count + 1
  for _, name in ipairs(SUMS) do entry[name] = entry[name] + event[name] end
  entry.cpu_time = entry.cpu_time_total / entry.count
  entry.device_time = entry.device_time_total / entry.count
  entry.top_level = entry.top_level or event.top_level
end

return averages
