-- Helpers that compare one call on the CPU and on CUDA.
local assert = require "luassert"
local busted = require "busted"
local dm = require "demilune"
local folder = require "spec.folder"

local both = {}

both.floats = {"float16", "bfloat16", "float32", "float64"}
both.dtypes = {"bool", "uint8", "int8", "int16", "int32", "int64", table.unpack(both.floats)}

-- Is there no CUDA device? For `if both.missing() then return end` before a file's
-- first test. One pending test says so, for all files that ask.
function both.missing()
  if dm.cuda.is_available() then return false end
  if not DEMILUNE_TOLD.cuda then
    busted.describe("spec/cuda", function() busted.pending "wants DEMILUNE_DEVICE=cuda" end)
  end
  DEMILUNE_TOLD.cuda = true
  return true
end

-- A test of counts that only the emulation keeps: launches, calls of libraries, waits.
function both.it_counts(name, f)
  busted.it(name, function()
    if not dm.cuda.is_available() or not dm.cuda._count "launch" then
      return busted.pending "only the emulation counts"
    end
    f()
  end)
end

-- Runs a Lua program in a new process with these environment variables: -> the number of launches
-- or calls, by the name of the kernel or of the library's function, 0 for any other name. The
-- caller makes the folder, in which the process also keeps its plans. No plans are prefetched, as
-- some of those are never used.
function both.counts(environment, program)
  local list = folder.path "counts"
  os.remove(list)
  local script = folder.write("program.lua", 'local dm = require "demilune"\n' .. program)
  local text, status = folder.run(("LUA_PATH='%s' LUA_CPATH='%s' XDG_CACHE_HOME=%s " ..
    "DEMILUNE_PLAN_PREFETCH=0 DEMILUNE_EMULATED_COVERAGE=%s %s lua5.4 %s"):format(package.path,
    package.cpath, folder.path "cache", list, environment, script))
  assert.equal(0, status, text)
  local n = setmetatable({}, {__index = function() return 0 end})
  for line in io.lines(list) do
    local name, count = line:match "^([%w_]+).- (%d+)$"
    n[name] = n[name] + tonumber(count)
  end
  return n
end

-- f's results where tensors without a device are made on `device`.
function both.on(device, f)
  local _ <close> = dm.device(device)
  return f(device)
end

-- The elements of t as one string that shows every bit of them, NaNs alike.
function both.bits(t)
  local words = {t.dtype, table.concat(t.shape, "x")}
  for _, v in ipairs(t:cpu():flatten():totable()) do
    words[#words + 1] = math.type(v) == "float" and (v ~= v and "nan" or ("%a"):format(v))
      or tostring(v)
  end
  return table.concat(words, " ")
end

-- Elements of t as numbers, row by row.
local function numbers(t) return t:cpu():double():flatten():totable() end

-- Elements may differ by `tolerance`, relative to the larger of 1 and the element.
local function near(what, want, got, tolerance)
  assert.equal(want.dtype, got.dtype, what)
  assert.same(want.shape, got.shape, what)
  local a, b = numbers(want), numbers(got)
  for i, v in ipairs(a) do
    local alike = v == b[i] or v ~= v and b[i] ~= b[i]
      or math.abs(v - b[i]) <= tolerance * math.max(1, math.abs(v))
    assert(alike, ("%s: element %d is %.9g, wanted %.9g"):format(what, i, b[i], v))
  end
end

-- Whether kernels give the host's bits: the emulation runs the host's functions. A GPU contracts
-- a product and a sum into one operation, and its float64 functions (log, sin, pow) differ in the
-- last bits.
function both.exact() return not dm.cuda.is_available() or dm.cuda._count "launch" ~= nil end

-- f(device) gives a tensor; the same one on both devices, in float64 on a GPU to the last bits.
function both.agree(what, f)
  local want, got = both.on("cpu", f), both.on("cuda", f)
  assert(got.device:find "^cuda", what .. ": not made on cuda")
  if got.dtype == "float64" and not both.exact() then return near(what, want, got, 1e-14) end
  assert.equal(both.bits(want), both.bits(got), what)
end

-- Two tensors of one device: every bit where kernels are exact, else within a tolerance relative to
-- the largest element.
function both.alike(want, got, what, tolerance)
  if both.exact() then return assert.equal(both.bits(want), both.bits(got), what) end
  assert.equal(want.dtype, got.dtype, what)
  if want:numel() == 0 then return end
  local most = math.max(1, want:double():nan_to_num():abs():max():item())
  near(what, want, got, tolerance * most)
end

-- As agree, for results that devices add up in orders of their own.
function both.near(what, f, tolerance)
  local want, got = both.on("cpu", f), both.on("cuda", f)
  assert(got.device:find "^cuda", what .. ": not made on cuda")
  near(what, want, got, tolerance)
end

return both
