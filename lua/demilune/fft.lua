-- demilune.fft: Fourier transforms, of float32 and float64, of any length; computed on the
-- CPU: tensors of other devices are copied there and back.
-- There is no complex dtype: complex numbers are pairs {real, imaginary} in a last dim of 2,
-- which neither dim nor s counts, so that dim -1 is the one before it; dm.complex(real, imag)
-- makes them. Each op fft_NAME is fft.NAME; dm.help "fft.rfft" tells its arguments.
--
--   fft ifft fft2 ifft2 fftn ifftn       complex to complex
--   rfft rfft2 rfftn                     real to the first half of the complex points
--   irfft irfft2 irfftn                  and back
--   hfft hfft2 hfftn ihfft ihfft2 ihfftn the same the other way round: real points transformed
--   fftfreq rfftfreq fftshift ifftshift
-- dm.stft and dm.istft transform one window after another; dm.hann_window and others of that
-- name make windows.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local fft = require "demilune.namespace" "fft_"

-- n, and k = first .. last as floats, over n times the distance d of the points.
local function frequencies(name, o, last)
  local n = o.n
  if n < 1 then
    caller.raise("fft.%s: n is %s, wanted an integer of 1 or more", name, tostring(n))
  end
  if o.d == 0 then
    caller.raise("fft.%s: d is %s, wanted a number that is not 0", name, tostring(o.d))
  end
  local k = core.arange(0, last(n), {dtype = o.dtype or "float32", device = o.device})
  return k, n * o.d
end

local FREQUENCIES = "n: integer, d: number = 1, *, dtype?: dtype, device?: device"
local bind_fftfreq = options.signature("fft.fftfreq", FREQUENCIES)
local bind_rfftfreq = options.signature("fft.rfftfreq", FREQUENCIES)

--- fftfreq(n, {d = 1, dtype = "float32", device =}) -> the frequencies of fft's n points, for
--- samples d apart: 0, 1, ... up to n / 2, then the negative ones, by n d.
function fft.fftfreq(...)
  local o = bind_fftfreq(...)
  local k, by = frequencies("fftfreq", o, function(points) return points - 1 end)
  local half = o.n // 2
  return ((k + half) % o.n - half) / by
end

--- rfftfreq(n, {d = 1, dtype = "float32", device =}) -> those of rfft's n // 2 + 1 points.
function fft.rfftfreq(...)
  local k, by = frequencies("rfftfreq", bind_rfftfreq(...), function(points) return points // 2 end)
  return k / by
end

local SHIFT = "input: tensor, dim?: size, *, complex: boolean = false"
local bind_shift = options.signature("fft.fftshift", SHIFT)
local bind_back = options.signature("fft.ifftshift", SHIFT)

-- x rolled along dims by half their size; all dims, of complex numbers all but the last.
local function shift(name, o, amount)
  local x, dim = o.input, o.dim
  local rank = x:dim() - (o.complex and 1 or 0)
  local asked, dims, shifts = type(dim) == "table" and dim or {dim}, {}, {}
  if dim == nil then
    for d = 1, rank do asked[d] = d end
  end
  for i, d in ipairs(asked) do
    if math.type(d) ~= "integer" or d == 0 or d > rank or d < -rank then
      caller.raise("fft.%s: dim %s is out of range: x has %d dims", name, tostring(d), rank)
    end
    dims[i] = d < 0 and d + rank + 1 or d
    shifts[i] = amount(x.shape[dims[i]])
  end
  return #dims > 0 and x:roll(shifts, dims) or x
end

--- fftshift(x, dim, {complex = false}): frequency 0 in the middle of dim, a number or a list
--- (all dims where none is given). complex: x holds pairs in a last dim of 2, which stays.
function fft.fftshift(...)
  return shift("fftshift", bind_shift(...), function(n) return n // 2 end)
end

--- ifftshift(x, dim, {complex = false}): the inverse of fftshift.
function fft.ifftshift(...)
  return shift("ifftshift", bind_back(...), function(n) return -(n // 2) end)
end

return fft
