-- Axes: the interval that one shows, its ticks at round numbers, and their labels.
--
-- Ticks of a linear axis are multiples of 1, 2 or 5 x 10^k; those of a logarithmic one are powers
-- of ten, or 1, 2 and 5 times these where the axis has fewer than two.

local scale = {}

local Scale = {}
Scale.__index = Scale

-- Values beyond this leave gaps as infinities do, so that spans and their padding stay finite.
scale.LARGEST = 1e300
-- Values below this do so on a logarithmic axis.
scale.SMALLEST = 1e-300
local LARGEST_LOG = math.log(1e307) -- of the ends of a logarithmic axis with their padding
local SMALLEST_SPAN = 1e-300
-- A span below this share of the values has no ticks that float64 tells apart.
local SMALLEST_SHARE = 1e-13
-- Numbers between these are written without an exponent.
local PLAIN_FROM, PLAIN_TO = 1e-4, 1e6

-- ---- numbers as text ----

-- "1.50e+06" -> "1.50e6"
local function shortened(text)
  return (text:gsub("e([+-])0*(%d+)$", function(sign, digits)
    return "e" .. (sign == "-" and "-" or "") .. digits
  end))
end

--- A number in a few digits, as values in cells and of bars are written: 0.25, 1200, 3.2e-7.
---@param v number
---@param digits? integer significant ones, 4 by default; those before the point are all written
---@return string
function scale.number(v, digits)
  if v ~= v then return "nan" end
  if v == math.huge or v == -math.huge then return v > 0 and "inf" or "-inf" end
  local size = math.abs(v)
  if size < PLAIN_TO and v == math.floor(v) then return ("%d"):format(v) end
  digits = digits or 4
  if size < PLAIN_FROM or size >= PLAIN_TO then
    return shortened((("%." .. digits - 1 .. "e"):format(v):gsub("%.?0*e", "e")))
  end
  if size >= 1 then digits = math.max(digits, math.floor(math.log(size, 10)) + 1) end
  return (("%." .. digits .. "g"):format(v))
end

-- The label of a multiple of a step of 10^k, on an axis whose largest value is given.
local function label(v, k, largest)
  if v == 0 then return "0" end
  if largest < PLAIN_TO and k >= -5 then return ("%." .. math.max(-k, 0) .. "f"):format(v) end
  local digits = math.max(math.floor(math.log(math.abs(v), 10) + 1e-9) - k, 0)
  return shortened(("%." .. digits .. "e"):format(v))
end

-- ---- ticks ----

-- 10^k; both ways exact as far as float64 has it, so that 3 x 10^-1 is 0.3.
local function scaled(v, k)
  if k < 0 then return v / 10.0 ^ -k end
  return v * 10.0 ^ k
end

--- The smallest step m x 10^k, with m of 1, 2 and 5, that goes at most `most` times into a span.
---@param span number above 0
---@param most integer
---@param whole? boolean whether the step is an integer
---@return integer m
---@return integer k
function scale.step(span, most, whole)
  local k = math.floor(math.log(span / most, 10)) - 1
  while true do
    for _, m in ipairs{1, 2, 5} do
      if scaled(m, k) * most >= span * (1 - 1e-9) and not (whole and k < 0) then
        return m, k
      end
    end
    k = k + 1
  end
end

-- Ticks {value, label} from lo to hi, `most` intervals at most.
local function linear_ticks(lo, hi, most, whole)
  local m, k = scale.step(hi - lo, most, whole)
  local step, list = scaled(m, k), {}
  local slack = 1e-9 * (hi - lo) / step
  local largest = math.max(math.abs(lo), math.abs(hi))
  for i = math.ceil(lo / step - slack), math.floor(hi / step + slack) do
    local v = scaled(i * m, k)
    list[#list + 1] = {v, label(v, k, largest)}
  end
  return list
end

local function log_ticks(lo, hi, most)
  local first = math.ceil(math.log(lo, 10) - 1e-9)
  local last = math.floor(math.log(hi, 10) + 1e-9)
  local list = {}
  if last - first >= 1 then
    local stride = math.ceil((last - first) / most)
    for k = first, last do
      if k % stride == 0 then
        list[#list + 1] = {scaled(1, k), scale.number(scaled(1, k))}
      end
    end
    return list
  end
  for k = first - 1, last + 1 do
    for _, m in ipairs{1, 2, 5} do
      local v = scaled(m, k)
      if v >= lo * (1 - 1e-9) and v <= hi * (1 + 1e-9) then
        list[#list + 1] = {v, scale.number(v)}
      end
    end
  end
  return #list >= 2 and list or linear_ticks(lo, hi, most)
end

--- Ticks within the axis, in order: two at least, as far as there are round numbers.
---@param most integer the largest number of intervals, more where they would give no two ticks
---@return table list of {value, label}
function Scale:ticks(most)
  most = math.max(most, 1)
  if self.log then return log_ticks(self.lo, self.hi, most) end
  local list
  for n = most, most + 3 do
    list = linear_ticks(self.lo, self.hi, n, self.whole)
    if #list > 1 then break end
  end
  return list
end

-- ---- positions ----

--- Where a value lies: 0 at the low end, 1 at the high one.
---@param v number finite, and above 0 on a logarithmic axis
---@return number
function Scale:position(v)
  if self.log then return (math.log(v) - self.base) / self.span end
  return (v - self.base) / self.span
end

--- Whether the axis can show a value.
---@param v number
---@return boolean
function Scale:shows(v)
  return v >= (self.log and scale.SMALLEST or -scale.LARGEST) and v <= scale.LARGEST
end

-- lo and hi far enough apart to have ticks between them.
local function widened(lo, hi)
  local largest = math.max(math.abs(lo), math.abs(hi))
  if largest < SMALLEST_SPAN then return -0.5, 0.5 end
  if hi - lo >= math.max(largest * SMALLEST_SHARE, SMALLEST_SPAN) then return lo, hi end
  return lo - largest * 0.05, hi + largest * 0.05
end

--- An axis that shows lo to hi.
---@param lo number|nil nil where there is no value: 0 to 1 then, or 1 to 10
---@param hi number|nil
---@param o table {log: boolean, whole: boolean (ticks at integers alone), pad: number (the share of
---  the span that is added at both ends)}
---@return table
function scale.new(lo, hi, o)
  local self = setmetatable({log = o.log or false, whole = o.whole or false}, Scale)
  local pad = o.pad or 0
  if not lo then lo, hi = o.log and 1 or 0, o.log and 10 or 1 end
  if o.log then
    local low, high = math.log(lo), math.log(hi)
    if high - low < SMALLEST_SHARE then low, high = low - math.log(2), high + math.log(2) end
    local more = (high - low) * pad
    low, high = math.max(low - more, -LARGEST_LOG), math.min(high + more, LARGEST_LOG)
    self.base, self.span = low, high - low
    lo, hi = math.exp(low), math.exp(high)
  else
    lo, hi = widened(lo, hi)
    local more = (hi - lo) * pad
    lo, hi = lo - more, hi + more
    self.base, self.span = lo, hi - lo
  end
  self.lo, self.hi = lo, hi
  return self
end

return scale
