-- Summaries of a device's memory, for people to read.

local core = require "demilune.core"
local options = require "demilune.options"

local memory = {}

local function bytes(n)
  local unit = 1
  local units = {"B", "KiB", "MiB", "GiB", "TiB"}
  while n >= 10240 and unit < #units do n, unit = n // 1024, unit + 1 end
  return ("%d %s"):format(n, units[unit])
end

local ROWS = {
  {"Allocated memory", "allocated_bytes", bytes},
  {"Active memory", "active_bytes", bytes},
  {"Requested memory", "requested_bytes", bytes},
  {"Reserved memory", "reserved_bytes", bytes},
  {"Allocations", "allocation", tostring},
  {"Segments", "segment", tostring},
}
local POOLS = {{"", ".all."}, {"  from large pool", ".large_pool."},
  {"  from small pool", ".small_pool."}}

local bind = options.signature("memory_summary", "device?: device, abbreviated: boolean = false")

--- memory_summary(device, {abbreviated = }) -> dm.memory_stats as a table of text;
--- abbreviated: without the rows of the two pools.
function memory.summary_of(default, ...)
  local o = bind(...)
  local device = o.device or default
  local stats = core.memory_stats(device)
  local form = "| %-18s | %11s | %11s | %11s | %11s |"
  local lines = {}
  local function add(...) lines[#lines + 1] = form:format(...) end
  add("Metric", "Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed")
  local rule = ("-"):rep(#lines[1])
  for _, row in ipairs(ROWS) do
    lines[#lines + 1] = rule
    for i = 1, o.abbreviated and 1 or #POOLS do
      local name, key = POOLS[i][1], row[2] .. POOLS[i][2]
      add(i == 1 and row[1] or name, row[3](stats[key .. "current"]),
        row[3](stats[key .. "peak"]), row[3](stats[key .. "allocated"]),
        row[3](stats[key .. "freed"]))
    end
  end
  local title = (" demilune memory summary, device %s; out of memory: %d, retries: %d"):format(
    device or "cpu", stats.num_ooms, stats.num_alloc_retries)
  local frame = ("="):rep(#rule)
  return table.concat({frame, title, frame, table.concat(lines, "\n"), frame, ""}, "\n")
end

function memory.memory_summary(...) return memory.summary_of(nil, ...) end

--- mem_get_info(device) -> bytes free, bytes in all. Of the CPU, the default: what the host
--- can give without swapping, and its memory; nil and a message where the system
--- does not tell.
function memory.mem_get_info(device)
  local free, total = core._device_bytes(device)
  if free then return free, total end
  local file <close>, text = io.open "/proc/meminfo"
  if not file then return nil, "mem_get_info: " .. text end
  local kib = {}
  for line in file:lines() do
    local name, n = line:match "^(%w+):%s+(%d+) kB"
    if name then kib[name] = math.tointeger(n) end
  end
  if not (kib.MemAvailable and kib.MemTotal) then
    return nil, "mem_get_info: /proc/meminfo names no MemAvailable or MemTotal"
  end
  return kib.MemAvailable * 1024, kib.MemTotal * 1024
end

return memory
