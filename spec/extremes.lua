-- Gives every attribute of the ops named as arguments extreme numbers, one at a time, in the calls
-- of spec/samples.lua: each call raises an error or gives a result, and so does the backward pass
-- through it. The process takes at most MEMORY more than it has at the start. Under UBSan an
-- overflow ends it. The last line of the output names the call that ran last; at the end it is
-- "N calls". extremes_spec.lua runs it.

local MEMORY = 256 << 20 -- bytes
local EXTREMES = {0, -1, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, 1 << 62, math.maxinteger,
  math.mininteger}

local dm = require "demilune"
local case = require "spec.case"
local samples = require "spec.samples"
dm.set_num_threads(1)

-- What AddressSanitizer has reserved already does not count.
local function limit_memory()
  local file <close> = assert(io.open "/proc/self/status")
  local kib = tonumber(file:read("a"):match "VmSize:%s*(%d+)")
  assert(os.execute(("prlimit --pid $PPID --as=%d"):format(kib * 1024 + MEMORY)))
end

local TEXT = {dtype = true, device = true, string = true, boolean = true, bool = true}
local FLAGS = {grad = true, once = true, random = true, dense = true, pointwise = true,
  plain = true}

-- v with the n-th of its numbers replaced by `by`; then how many numbers it has up to there.
-- Numbers of literals are data of tensors and stay.
local function replaced(v, n, by, seen)
  seen = seen or 0
  if math.type(v) == "integer" then
    seen = seen + 1
    return seen == n and by or v, seen
  end
  if type(v) ~= "table" or case.is_literal(v) then return v, seen end
  local out, keys = {}, {}
  for key in pairs(v) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    if not FLAGS[key] then out[key], seen = replaced(v[key], n, by, seen) end
  end
  return out, seen
end

-- The call with option `name` as `value`, in the table of options at its end.
local function with_option(call, name, value)
  local out = replaced(call, 0)
  local last = out[#out]
  if type(last) ~= "table" or case.is_literal(last) or #last > 0 then
    last = {}
    out[#out + 1] = last
  end
  last[name] = value
  return out
end

local n_calls = 0

-- Runs one call, forward and backward. Whatever it raises is right.
local function try(name, call, what)
  n_calls = n_calls + 1
  io.stdout:write(name, ": ", what, "\n")
  io.stdout:flush()
  pcall(function()
    local outs = case.call(dm, name, case.decode(dm, call, {grad = true}))
    for _, y in ipairs(outs) do
      if type(y) == "userdata" and y.requires_grad then y:sum():backward() end
    end
  end)
end

-- Every extreme for every number and every option of one call.
local function walk(row, name, call)
  local _, n = replaced(call, 0)
  for _, v in ipairs(EXTREMES) do
    for k = 1, n do try(name, (replaced(call, k, v)), ("number %d = %d"):format(k, v)) end
    for _, attr in ipairs(row and row.attrs or {}) do
      if not TEXT[attr.kind:gsub("%?", "")] then
        try(name, with_option(call, attr.name, v), ("%s = %d"):format(attr.name, v))
        try(name, with_option(call, attr.name, {v, v}), ("%s = {%d, %d}"):format(attr.name, v, v))
      end
    end
  end
end

limit_memory()
local rows = {}
for _, row in ipairs(dm.ops()) do rows[row.name] = row end
for _, name in ipairs(arg) do
  for _, call in ipairs(samples[name]) do walk(rows[name], name, call) end
end
print(n_calls .. " calls")
os.exit(true)
