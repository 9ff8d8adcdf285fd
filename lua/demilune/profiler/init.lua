-- demilune.profiler: where the time and the memory go.
--
-- A profile sees every op that its Lua state calls while it records, whichever
-- coroutine calls it. What a coroutine does while it is resumed within a range
-- lies within that range.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local averages = require "demilune.profiler.averages"

local profiler = {}

profiler.measure = require "demilune.profiler.measure"
profiler.ProfilerActivity = {CPU = "cpu", CUDA = "cuda"}

local function check_function(what, fn)
  local meta = getmetatable(fn)
  if type(fn) ~= "function" and not (type(meta) == "table" and meta.__call) then
    caller.raise("%s: wanted a function, got %s", what, type(fn))
  end
end

local function inside(scope, fn, ...)
  local _ <close> = scope
  return fn(...)
end

-- ---- profile ----

local Profile = {__name = "demilune.profile"}
Profile.__index = Profile

--- Records from now on, again after a stop().
function Profile:start()
  self.recording = true
  core.profile_start(self.recorder)
  return self
end

--- Waits for the devices whose times are read. Raises where memory ran out and recording
--- ended early; what was recorded until then is kept.
function Profile:stop()
  self.recording = false
  core.profile_stop(self.recorder)
end

function Profile:__close(err)
  if err == nil then return self:stop() end
  pcall(self.stop, self) -- the error under way is the one to tell
end

--- fn with this profile recording at each of its calls, one after the other; the
--- profile itself stops.
function Profile:wrap(fn)
  check_function("profile:wrap", fn)
  self:stop()
  return function(...)
    if self.recording then return fn(...) end
    return inside(self:start(), fn, ...)
  end
end

-- "a\nb\nc" -> at most n of the lines, as an array; nil -> nil
local function lines_of(stack, n)
  if not stack then return nil end
  local lines = {}
  for line in stack:gmatch "[^\n]+" do
    if #lines == n then break end
    lines[#lines + 1] = line
  end
  return lines
end

local function count(self) return core.profile_count(self.recorder) end

--- prof:events() -> an array of the events that have ended, by their beginning:
--- {name =, start =, stop = (microseconds), cpu_time_total =, self_cpu_time_total =,
--- cpu_memory_usage =, self_cpu_memory_usage =, device_time_total =,
--- self_device_time_total =, device_memory_usage =, self_device_memory_usage = (all other
--- devices; times once the profile has stopped), flops =, cpu_parent = (an event),
--- input_shapes = "{{2, 3}, {3, 4}}", stack = {"file:line", ...}, thread = (a number
--- for each coroutine), is_op = (or a range of the program)}; has :table{} too.
function Profile:events()
  local list = setmetatable({memory = self.settings.profile_memory}, averages.List)
  local by_number, threads, n_threads = {}, {}, 0
  for i = 1, count(self) do
    local name, start, stop, total, self_total, bytes, self_bytes, flops, parent, thread,
      is_op, shapes, stack, device_bytes, self_device_bytes, device_time, self_device_time =
      core.profile_event(self.recorder, i)
    if name then
      if not threads[thread] then
        n_threads = n_threads + 1
        threads[thread] = n_threads
      end
      local e = averages.entry(name)
      e.name, e.count, e.start, e.stop, e.is_op = name, 1, start, stop, is_op
      e.cpu_time, e.cpu_time_total, e.self_cpu_time_total = total, total, self_total
      e.cpu_memory_usage, e.self_cpu_memory_usage, e.flops = bytes, self_bytes, flops
      e.device_memory_usage, e.self_device_memory_usage = device_bytes, self_device_bytes
      e.device_time, e.device_time_total = device_time, device_time
      e.self_device_time_total = self_device_time
      e.cpu_parent, e.thread = by_number[parent], threads[thread]
      e.top_level = e.cpu_parent == nil
      e.input_shapes, e.stack = shapes, lines_of(stack, math.huge)
      by_number[i], list[#list + 1] = e, e
    end
  end
  return list
end

--- prof:key_averages{group_by_input_shape = false, group_by_stack_n = 0} -> the
--- events summed by name, and by shapes of the inputs and the innermost n lines of
--- the program where asked for and recorded; see averages.lua.
local bind_averages = options.signature("key_averages",
  "group_by_input_shape: boolean = false, group_by_stack_n: integer = 0")
function Profile:key_averages(...)
  local o = bind_averages(...)
  local list = setmetatable({memory = self.settings.profile_memory}, averages.List)
  local groups, ended = {}, {}
  for i = 1, count(self) do
    local name, _, _, total, self_total, bytes, self_bytes, flops, parent, _, _, shapes, stack,
      device_bytes, self_device_bytes, device_time, self_device_time =
      core.profile_event(self.recorder, i)
    if name then
      ended[i] = true
      local lines = o.group_by_stack_n > 0 and lines_of(stack, o.group_by_stack_n) or nil
      shapes = o.group_by_input_shape and shapes or nil
      local key = table.concat({name, shapes or "", lines and table.concat(lines, "\n")}, "\0")
      local entry = groups[key]
      if not entry then
        entry = averages.entry(name)
        entry.input_shapes, entry.stack = shapes, lines
        groups[key], list[#list + 1] = entry, entry
      end
      averages.add(entry, {cpu_time_total = total, self_cpu_time_total = self_total,
        cpu_memory_usage = bytes, self_cpu_memory_usage = self_bytes, flops = flops,
        device_memory_usage = device_bytes, self_device_memory_usage = self_device_bytes,
        device_time_total = device_time, self_device_time_total = self_device_time,
        top_level = not ended[parent]})
    end
  end
  return list
end

-- The spans of work on devices, as events of a second process with a row for each
-- device; both processes by the host's clock.
local function add_device_rows(self, parts)
  local rows, n = {}, 0
  local i, number, device, start, length = 0, nil, nil, nil, nil
  local function next_span()
    i = i + 1
    number, device, start, length = core.profile_span(self.recorder, i)
    return number
  end
  while next_span() do
    if not rows[device] then
      n = n + 1
      rows[device] = n
      parts[#parts + 1] = ('{"ph": "M", "name": "thread_name", "pid": 2, "tid": %d, '
        .. '"args": {"name": "%s"}}'):format(n, device)
    end
    parts[#parts + 1] = ('{"ph": "X", "cat": "kernel", "name": %s, "pid": 2, "tid": %d, '
      .. '"ts": %.3f, "dur": %.3f, "args": {}}'):format(
        core.json_encode((core.profile_event(self.recorder, number))), rows[device], start, length)
  end
  if n > 0 then
    parts[#parts + 1] =
      '{"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "CUDA"}}'
  end
end

--- Writes the events as a trace that chrome://tracing and ui.perfetto.dev open.
--- true; nil and a message where the file cannot be written.
function Profile:export_chrome_trace(path)
  local form = '{"ph": "X", "cat": "%s", "name": %s, "pid": 1, "tid": %d, "ts": %.3f, '
    .. '"dur": %.3f, "args": %s}'
  local parts = {'{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "demilune"}}'}
  for _, e in ipairs(self:events()) do
    local args = {["Input Dims"] = e.input_shapes}
    if self.settings.profile_memory then
      args.Bytes = e.cpu_memory_usage
      if e.device_memory_usage ~= 0 then args["Device Bytes"] = e.device_memory_usage end
    end
    if e.flops > 0 then args.FLOPs = e.flops end
    if e.stack then args["Call stack"] = table.concat(e.stack, ";") end
    parts[#parts + 1] = form:format(e.is_op and "cpu_op" or "user_annotation",
      core.json_encode(e.name), e.thread, e.start, e.cpu_time_total, core.json_encode(args))
  end
  add_device_rows(self, parts)
  return core._write_file("export_chrome_trace", path,
    '{"displayTimeUnit": "ms", "traceEvents": [\n' .. table.concat(parts, ",\n") .. "\n]}\n")
end

function Profile:__tostring()
  return ("profile(%d events, %s)"):format(count(self),
    self.recording and "recording" or "stopped")
end

local bind_profile = options.signature("profile", [[*, activities?: any,
  record_shapes: boolean = false, profile_memory: boolean = false, with_stack: boolean = false,
  with_flops: boolean = false, fn?: function]])

-- Does the profile record at all, and devices' times?
local function recorded(activities)
  if activities == nil then return true, true end
  if type(activities) ~= "table" or #activities == 0 then
    caller.raise("profile: activities is %s, wanted an array of \"cpu\" and \"cuda\"",
      type(activities) == "table" and "empty" or "a " .. type(activities))
  end
  local wanted = {}
  for _, name in ipairs(activities) do
    if name ~= "cpu" and name ~= "cuda" then
      caller.raise("profile: unknown activity '%s', wanted \"cpu\" or \"cuda\"", tostring(name))
    end
    wanted[name] = true
  end
  if wanted.cuda and not require("demilune.cuda").is_available() then
    caller.warn("profile: there is no CUDA device; the activity \"cuda\" is dropped")
    wanted.cuda = nil
  end
  return wanted.cpu or wanted.cuda or false, wanted.cuda or false
end

--- profile{activities = {"cpu", "cuda"}, profile_memory =, record_shapes =, with_stack =,
--- with_flops =} records until it is closed, or stopped by :stop(); :start() goes
--- on. profile(opts, fn) returns what fn(prof) returns; profile(opts):wrap(fn) is
--- fn, recorded at each call. Memory is what was allocated less what was freed;
--- with_stack notes the program's lines (a microsecond or two an event); FLOPs are
--- counted for products and convolutions. "cuda" takes the times of CUDA devices around
--- what each op queues there, and reads them at the stop, which waits. Profiles may lie
--- within each other; one that is forgotten stops when it is collected.
function profiler.profile(...)
  local settings = bind_profile(...)
  local fn = settings.fn
  local records, devices = recorded(settings.activities)
  local prof = setmetatable({settings = settings, recorder = core.profile_new(
    settings.profile_memory, settings.record_shapes, settings.with_flops,
    settings.with_stack, devices)}, Profile)
  if not records then prof.start = function(self) return self end end
  prof:start()
  if fn == nil then return prof end
  return inside(prof, fn, prof)
end

-- ---- record_function ----

local Range = {__name = "demilune.record_function"}
Range.__index = Range

function Range:__close()
  local token = self.token
  self.token = nil
  if token then core.range_end(token) end
end
Range.close = Range.__close

--- fn with an event of this name around each of its calls; this one ends.
function Range:wrap(fn)
  check_function("record_function:wrap", fn)
  self:close()
  return function(...) return inside(core.range_begin(self.name), fn, ...) end
end

--- record_function(name) is an event of that name until it is closed;
--- record_function(name, fn, ...) returns what fn(...) returns inside of it.
function profiler.record_function(name, fn, ...)
  if type(name) ~= "string" then
    caller.raise("record_function: the name is a %s, wanted a string", type(name))
  end
  if fn ~= nil then
    check_function("record_function", fn)
    return inside(core.range_begin(name), fn, ...)
  end
  return setmetatable({name = name, token = core.range_begin(name)}, Range)
end

return profiler
