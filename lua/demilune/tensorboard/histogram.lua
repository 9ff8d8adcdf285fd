-- Histograms as torch.utils.tensorboard makes them: TensorFlow's buckets, whose limits grow by a
-- tenth from 1e-12 to 1e20 on both sides of 0, or limits of one's own.

local core = require "demilune.core"

local histogram = {}

local function tensorflow_limits()
  local up, v = {}, 1e-12
  while v < 1e20 do
    up[#up + 1] = v
    v = v * 1.1
  end
  local limits = {}
  for i = #up, 1, -1 do limits[#limits + 1] = -up[i] end
  limits[#limits + 1] = 0.0
  table.move(up, 1, #up, #limits + 1, limits)
  return limits
end

local default -- the limits, as a list and as a tensor; made when they are first asked for

-- n buckets of equal width, as numpy.histogram makes them.
local function equal_limits(n, low, high)
  if low == high then low, high = low - 0.5, high + 0.5 end
  local limits = {}
  for i = 0, n do limits[i + 1] = low + i * ((high - low) / n) end
  limits[n + 1] = high
  return limits
end

-- How many of x, float64 (N), lie in each bucket: from its lower limit to below its upper one;
-- the last bucket holds its upper limit too, and the rest is not counted.
local function count(x, limits, of_limits)
  local n = #limits - 1
  local at = core.bucketize(x, of_limits, {right = true}) -- 1: below all, n + 2: from the last on
  local found = core.bincount(at, {minlength = n + 2}):totable()
  local counts = table.move(found, 2, n + 1, 1, {})
  counts[n] = counts[n] + x:eq(limits[n + 1]):sum():item()
  return counts
end

-- At most `most` buckets, each of as many neighbours.
local function merged(counts, limits, most)
  local n = #counts
  if not most or n <= most then return counts, limits end
  local group = n // most
  local fewer, ends = {}, {}
  for i = 1, n, group do
    local sum = 0
    for k = i, math.min(i + group - 1, n) do sum = sum + counts[k] end
    fewer[#fewer + 1], ends[#ends + 1] = sum, limits[i]
  end
  ends[#ends + 1] = limits[n + 1]
  return fewer, ends
end

-- The buckets from the first to the last that hold something, and the empty one in front, which
-- tells the lower limit; only upper limits are written.
local function trimmed(counts, limits)
  local first, last = 1, #counts
  while first < #counts and counts[first] == 0 do first = first + 1 end
  while last > first and counts[last] == 0 do last = last - 1 end
  local kept, ends = {first > 1 and counts[first - 1] or 0}, {limits[first]}
  for i = first, last do
    kept[#kept + 1], ends[#ends + 1] = counts[i], limits[i + 1]
  end
  return kept, ends
end

--- A histogram for summary.histogram; nil where no value is finite. Others are not counted.
---@param values table a tensor of any shape, with elements
---@param bins string|integer|number[] "tensorflow", a number of equal buckets, or rising limits
---@param max_bins? integer at most so many, by merging neighbours
---@return table?
function histogram.of(values, bins, max_bins)
  local _ <close> = core.no_grad()
  local x = values:detach():to "cpu":to "float64":flatten()
  local finite = x:isfinite()
  if not finite:all():item() then x = x:masked_select(finite) end
  if x:numel() == 0 then return nil end
  local low, high = x:amin():item(), x:amax():item()
  local limits, of_limits
  if bins == "tensorflow" then
    if not default then
      limits = tensorflow_limits()
      default = {limits, core.tensor(limits, {dtype = "float64", device = "cpu"})}
    end
    limits, of_limits = default[1], default[2]
  else
    limits = type(bins) == "table" and bins or equal_limits(bins, low, high)
    of_limits = core.tensor(limits, {dtype = "float64", device = "cpu"})
  end
  local counts, ends = trimmed(merged(count(x, limits, of_limits), limits, max_bins))
  return {min = low, max = high, num = x:numel(), sum = x:sum():item(),
    sum_squares = x:dot(x):item(), counts = counts, limits = ends}
end

return histogram
