-- demilune.cuda: NVIDIA's GPUs. Devices count from 0, as in "cuda:0"; a function
-- that takes a device takes its name or its number, cuda:0 by default.
--
-- The back end (cuda.so) is opened when a CUDA device is first asked for.

local core = require "demilune.core"
local options = require "demilune.options"

local cuda = {}

--- is_available() -> true; or false and the reason: built without CUDA, no driver,
--- no GPU.
function cuda.is_available()
  local n, why = core.cuda_count()
  if n > 0 then return true end
  return false, why
end

--- The number of devices; 0 where CUDA is not available.
function cuda.device_count() return (core.cuda_count()) end

-- get_device_properties(device) -> {name, total_memory, free_memory (bytes), major,
-- minor (compute capability), multi_processor_count}
cuda.get_device_properties = core.cuda_info

--- The name of a GPU, such as "NVIDIA H100".
function cuda.get_device_name(device) return core.cuda_info(device).name end

--- get_device_capability(device) -> major, minor
function cuda.get_device_capability(device)
  local info = core.cuda_info(device)
  return info.major, info.minor
end

--- plans() -> {cublaslt = counts, cudnn = counts, nccl = counts}, of this process: how NVIDIA's
--- libraries came by the plans that products, convolutions and batch norms run by. Each call is
--- one of asked (the library was asked, which takes milliseconds), memory (kept from an
--- earlier call) and disk (cuDNN's choice, kept by an earlier process); refused tells how
--- many of them the library did not take, so that our own, slower kernels did them. prefetched
--- is how many of those asked another thread had made: a forward pass lets threads compile the
--- plans of its gradients while it goes on.
--- state is "untried", "open", "off" or "missing"; reason says why it is off or missing, and
--- refusal why it refused a call, in its own words. A library that is missing or switched off
--- counts nothing, nor does nccl, which makes no plans. With DEMILUNE_NO_FALLBACK=1 a call that
--- our own kernels would do for such a library raises instead. Raises without CUDA.
function cuda.plans() return core.cuda_plans() end

local bind_tf32 = options.signature("allow_tf32", "*, matmul?: boolean, conv?: boolean")

--- allow_tf32{matmul = , conv = } -> {matmul = boolean, conv = boolean}: sets whether products and
--- convolutions of float32 may round their operands to TF32 (10 bits after the point instead of
--- 23), which tensor cores multiply several times as fast; sums stay in float32. One that is not
--- given stays as it is. Both are off at first, so that float32 is float32. PyTorch begins with
--- matmul off and conv on (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32).
---@param matmul? boolean matrix products, by cuBLASLt
---@param conv? boolean convolutions, by cuDNN
---@return table settings as they are now
function cuda.allow_tf32(...)
  local o = bind_tf32(...)
  return {matmul = core.cuda_switch("matmul", o.matmul), conv = core.cuda_switch("conv", o.conv)}
end

local bind_benchmark = options.signature("benchmark", "on?: boolean")

--- benchmark(on) -> boolean: sets whether cuDNN's plans are chosen by their time, and tells. Where
--- it is on, the first call of each new size runs up to eight of the library's proposals on its own
--- tensors and waits for them; the fastest is kept, on disk too. Off at first, as
--- torch.backends.cudnn.benchmark; it pays where sizes repeat.
---@param on? boolean nil only asks
---@return boolean on as it is now
function cuda.benchmark(...)
  return core.cuda_switch("benchmark", bind_benchmark(...).on)
end

-- For tests: how often the emulated device has done something ("launch", "copy",
-- "sync", "malloc", "switch"; see kernels/emulated/cuda_runtime.h); nil of a real one.
cuda._count = core.cuda_count_of
-- For tests: the name of the i-th launch of the emulated device ("work" counts them), a hash of its
-- arguments, and the bytes that it read and wrote, which DEMILUNE_EMULATED_TRAFFIC=1 counts.
cuda._work = core.cuda_work_of

-- ---- streams and events ----

-- Stream(device) -> a queue of work that runs next to the default one. s:synchronize() waits
-- for what it has, s:query() tells whether it has done all.
-- s:wait_event(e), s:wait_stream(other): its later work waits; s:record_event(e).
-- current_stream(device), default_stream(device).
-- stream(s): a scope in which s is its device's current stream;
--   do local _ <close> = dm.cuda.stream(s) ... end, or dm.cuda.stream(s, function, ...).
cuda.Stream = core.cuda_stream
cuda.current_stream = core.cuda_current_stream
cuda.default_stream = core.cuda_default_stream
cuda.stream = core.cuda_in_stream

--- Event{device = , enable_timing = } -> a mark in a stream. e:record(stream), e:wait(stream),
--- e:synchronize(), e:query(), from:elapsed_time(to) in milliseconds (both timed).
local bind_event = options.signature("Event",
  "enable_timing: boolean = false, *, device: device = 'cuda'")
function cuda.Event(...)
  local o = bind_event(...)
  return core.cuda_event(o.device, o.enable_timing)
end

--- Waits for all work of the device; raises what went wrong in it.
function cuda.synchronize(device) core.synchronize(device or "cuda") end

--- A function that is run by one launch of the GPU: see demilune.cuda_graph.
function cuda.graph(...) return require("demilune.cuda_graph").new(...) end

-- ---- memory: the functions of dm.memory_*, of cuda:0 by default ----

local MEMORY = {"memory_allocated", "max_memory_allocated", "memory_reserved",
  "max_memory_reserved", "memory_stats", "reset_peak_memory_stats",
  "reset_accumulated_memory_stats", "empty_cache"}
for _, name in ipairs(MEMORY) do
  cuda[name] = function(device) return core[name](device or "cuda") end
end

--- memory_summary(device, {abbreviated = }) -> text
function cuda.memory_summary(...)
  return require("demilune.memory").summary_of("cuda", ...)
end

--- mem_get_info(device) -> bytes free, bytes in all
function cuda.mem_get_info(device)
  local info = core.cuda_info(device)
  return info.free_memory, info.total_memory
end

-- One generator serves every device: the same numbers everywhere.
cuda.manual_seed, cuda.manual_seed_all = core.manual_seed, core.manual_seed

-- dm.cuda.amp is dm.amp: regions there find their device themselves.
return setmetatable(cuda, {
  __index = function(_, name)
    if name == "amp" then return require "demilune.amp" end
  end,
})
