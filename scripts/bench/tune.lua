-- Looks for the settings in which PyTorch does a step of a case in the least time: eager
-- or compiled, the memory format, the number of threads and the allocator.
--
-- All threads, memory formats and allocators are tried with eager code. The modes of
-- torch.compile are tried with the allocator of the fastest eager code, the default mode in
-- every memory format and with the fastest and the largest number of threads, the other
-- modes in the memory formats that are near the best. Each allocator and each compilation
-- has a process of its own. Each trial is a line on the standard error. Compiled code is
-- kept in TORCHINDUCTOR_CACHE_DIR, a temporary folder unless the environment names one, so
-- that the process which is timed later need not compile again.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local tune = {}

local cache = os.getenv "TORCHINDUCTOR_CACHE_DIR"
local temporary = not cache and assert(lib.output "mktemp -d")

--- Removes the temporary folder.
function tune.close()
  if temporary then os.execute("rm -rf " .. lib.quote(temporary)) end
end

--- A new PyTorch with this allocator, or nil and why not. It compiles in its own process,
--- as helper processes would go on computing while others are timed. -> worker, version
function tune.torch(allocator)
  local python = os.getenv "PYTHON" or "python3"
  local worker = lib.worker("PyTorch", ("env KINETO_LOG_LEVEL=99 "
    .. "TORCHINDUCTOR_COMPILE_THREADS=1 TORCHINDUCTOR_CACHE_DIR=%s %s%s %s"):format(
    lib.quote(cache or temporary), allocator.command, lib.quote(python),
    lib.quote(lib.here .. "/train_peer.py")))
  local about = worker:ask "about"
  if about then return worker, about.version end
  worker:close()
  return nil, "no torch in " .. python
end

--- Begins the case with these settings and warms it up. -> { seconds (of a step), first
--- (seconds of the first step), steps }, or nil and why not
function tune.begin(worker, case, dtype, path, settings, limit)
  local answer, why = worker:ask("begin", path, dtype, settings.threads, settings.layout,
    settings.mode, table.unpack(case))
  if answer then answer, why = worker:ask("warm", limit) end
  if answer then return answer end
  if worker.gone then why = ("ended, or took longer than %d s"):format(limit) end
  return nil, why
end

--- "max-autotune, 2 threads, channels_last, caching"
function tune.words(settings)
  return ("%s, %s %s, %s, %s"):format(settings.mode, settings.threads,
    settings.threads == 1 and "thread" or "threads", settings.layout, settings.allocator.name)
end

-- ---------------------------------------------------------------------------
-- The search
-- ---------------------------------------------------------------------------
local Search = {}
Search.__index = Search

local FINALISTS, NEAR = 4, 1.3

local function is_eager(settings) return settings.mode == "eager" end
local function is_compiled(settings) return settings.mode ~= "eager" end

--- Times a setting: the best of four short blocks, or its slow first step. Trials that
--- fail count as `failed`.
function Search:try(worker, settings)
  local trial, why = tune.begin(worker, self.case, self.dtype, self.path, settings, self.limit)
  if not trial then
    table.insert(self.failed, ("%s: %s"):format(tune.words(settings), why))
    io.stderr:write("  ", self.failed[#self.failed], "\n")
    return
  end
  settings.seconds, settings.first, settings.steps = trial.seconds, trial.first, trial.steps
  self.settle()
  for _ = 1, trial.seconds < 2 and 4 or 0 do
    settings.seconds = math.min(settings.seconds, assert(worker:ask("time", self.block)).seconds)
  end
  if self.case.trains and trial.seconds < 5 then
    self.peak = math.min(self.peak or math.huge, assert(worker:ask "peak").peak)
  end
  table.insert(self.tried, settings)
  io.stderr:write(("  %s: %.4g ms\n"):format(tune.words(settings), settings.seconds * 1e3))
end

--- The fastest of those tried that `fits` says yes to.
function Search:best(fits)
  local best
  for _, settings in ipairs(self.tried) do
    if fits(settings) and not (best and best.seconds <= settings.seconds) then best = settings end
  end
  return best
end

function Search:try_eager(worker, allocator)
  for _, layout in ipairs(self.layouts) do
    for n = self.threads, 1, -1 do
      self:try(worker, { mode = "eager", layout = layout, threads = n, allocator = allocator })
    end
  end
end

--- One mode of torch.compile with settings like these, in a process of its own.
function Search:compile(mode, like, layout, threads)
  local worker <close> = assert(tune.torch(like.allocator))
  self:try(worker, { mode = mode, layout = layout, threads = threads,
    allocator = like.allocator })
end

--- The settings of this mode whose code is near the fastest compiled.
function Search:near(mode)
  local best, list = self:best(is_compiled), {}
  for _, settings in ipairs(self.tried) do
    if settings.mode == mode and settings.seconds <= NEAR * best.seconds then
      list[#list + 1] = settings
    end
  end
  return list
end

--- The first mode in all memory formats, with the threads that suit eager code best, then
--- with all threads; the other modes with the best of these.
function Search:try_modes(modes, like)
  if #modes == 0 then return end
  for _, layout in ipairs(self.layouts) do self:compile(modes[1], like, layout, like.threads) end
  local best = self:best(is_compiled)
  if best and like.threads ~= self.threads then
    self:compile(modes[1], best, best.layout, self.threads)
    best = self:best(is_compiled)
  end
  local others = best and self:near(modes[1]) or { like }
  for i = 2, #modes do
    for _, other in ipairs(others) do
      self:compile(modes[i], other, other.layout, other.threads)
    end
  end
end

--- The fastest settings tried, up to FINALISTS of them that are near the best. Settings
--- that are close change ranks from process to process, above all those that differ in
--- the allocator, so the blocks are timed with each.
function Search:finalists()
  table.sort(self.tried, function(a, b) return a.seconds < b.seconds end)
  local list = {}
  for i, settings in ipairs(self.tried) do
    local is_near = settings.seconds <= NEAR * self.tried[1].seconds
    if i <= FINALISTS and is_near then list[i] = settings end
  end
  return list
end

--- The fastest of all settings tried, of eager and of compiled code, after `seconds` changed.
function Search:rank()
  self.fastest = self:best(function() return true end)
  self.eager = self:best(is_eager)
  self.compiled = self:best(is_compiled)
end

--- `worker`: a PyTorch with the first allocator. `o`: threads, allocators, modes (the list
--- of those to compile in), block (seconds), limit (seconds that a warm-up may take),
--- settle (a function that returns when nothing else computes on the machine).
--- -> a search: finalists(); rank(), which sets fastest, eager and compiled, settings with
--- `seconds`; peak: bytes; failed: lines. Nil and why where no eager code runs.
function tune.search(worker, case, dtype, path, o)
  local self = setmetatable({ case = case, dtype = dtype, path = path, block = o.block,
    settle = o.settle, limit = o.limit, threads = o.threads, layouts = { "contiguous_format" },
    tried = {}, failed = {} }, Search)
  if case.dims == 4 then self.layouts[2] = "channels_last" end
  self:try_eager(worker, o.allocators[1])
  for i = 2, #o.allocators do
    local another <close> = assert(tune.torch(o.allocators[i]))
    self:try_eager(another, o.allocators[i])
  end
  local fastest = self:best(is_eager)
  if not fastest then return nil, self.failed[1] end
  self:try_modes(o.modes, fastest)
  self:rank()
  return self
end

return tune
