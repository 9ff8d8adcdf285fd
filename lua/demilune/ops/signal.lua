-- Windows: M points; a symmetric one ends as it begins, and without sym the end is left out, as
-- the next period's beginning.

local core = require "demilune.core"
local caller = require "demilune.caller"
local op, rows = require("demilune.ops.define").family()

local FORM = "; M, %ssym = true, dtype?, device?, requires_grad = false"

-- op(M, its own options, ...): of(k, n, ...) gives the window from k = 0 .. M - 1, as float64, and
-- the n points of a period.
local function window(name, own, doc, of, check)
  local n_own = select(2, own:gsub(",", ""))
  op["signal_windows_" .. name](FORM:format(own), doc .. "; sym: without it the end is left out, "
    .. "as the next "
    .. "period's beginning", function(M, ...)
    local args = {...}
    local sym, dtype, device, grad = table.unpack(args, n_own + 1, n_own + 4)
    if math.type(M) ~= "integer" or M < 0 then
      caller.raise("signal.windows.%s: M is %s, wanted an integer of 0 or more", name, tostring(M))
    end
    if dtype and dtype ~= "float32" and dtype ~= "float64" then
      caller.raise("signal.windows.%s: dtype is %s, wanted float32 or float64", name, dtype)
    end
    if check then check(sym, table.unpack(args, 1, n_own)) end
    local k = core.arange(0, M - 1, {dtype = "float64", device = device})
    if M == 0 then k = core.empty(0, {dtype = "float64", device = device}) end
    local w = M == 1 and core.ones_like(k) or of(k, sym and M - 1 or M, table.unpack(args, 1,
      n_own))
    w = w:to(dtype or core.get_default_dtype())
    return grad and w:requires_grad_() or w
  end)
end

-- A check that a number is as wanted.
local function wanted(name, what, v, good, text)
  if not good then
    caller.raise("signal.windows.%s: %s is %s, wanted %s", name, what, tostring(v), text)
  end
end

-- The sum of the alternating terms a_j cos(2 pi j k / n).
local function cosines(k, n, a)
  local w = core.zeros_like(k)
  for j, factor in ipairs(a) do
    w = w + core.cos(k * (2 * math.pi * (j - 1) / n)) * (j % 2 == 1 and factor or -factor)
  end
  return w
end
window("general_cosine", "a, ", "a sum of cosines with the factors a, alternating", cosines,
  function(_, a) wanted("general_cosine", "a", "no list of "
    .. "numbers", type(a) == "table" and #a > 0, "some") end)
window("general_hamming", "alpha = 0.54, ", "alpha - (1 - alpha) cos over a turn",
  function(k, n, alpha) return cosines(k, n, {alpha, 1 - alpha}) end)
for name, a in pairs{hamming = {0.54, 0.46}, hann = {0.5, 0.5}, blackman = {0.42, 0.5, 0.08},
  nuttall = {0.3635819, 0.4891775, 0.1365995, 0.0106411}} do
  window(name, "", "the sum of cosines with factors " .. table.concat(a, ", "),
    function(k, n) return cosines(k, n, a) end)
end
window("bartlett", "", "a triangle, 0 at its "
  .. "ends", function(k, n) return 1 - (k * (2 / n) - 1):abs() end)
window("cosine", "", "half a sine, of points in the middle of its steps", function(k, n)
  return ((k + 0.5) * (math.pi / (n + 1))):sin()
end)
window("exponential", "center?, tau = 1, ", "exp(-|k - center| / tau); center, given without sym "
  .. "only, is the "
  .. "middle", function(k, n, center, tau) return (-(k - (center or n / 2)):abs() / tau):exp() end,
  function(sym, center, tau)
    wanted("exponential", "center", center, not (sym and center), "none with sym")
    wanted("exponential", "tau", tau, tau > 0, "more than 0")
  end)
window("gaussian", "std = 1, ", "exp(-t^2 / 2), t from the middle by std", function(k, n, std)
  return (((k - n / 2) / std):square() * -0.5):exp()
end, function(_, std) wanted("gaussian", "std", std, std > 0, "more than 0") end)
window("kaiser", "beta = 12, ", "i0(beta sqrt(1 - t^2)) / i0(beta) for t from -1 to "
  .. "1", function(k, n, beta)
  local t = k * (2 / n) - 1
  return core.i0((1 - t * t):clamp{min = 0}:sqrt() * beta) / core.i0(core.tensor(beta + 0.0,
    {dtype = "float64", device = k.device}))
end, function(_, beta) wanted("kaiser", "beta", beta, beta >= 0, "0 or more") end)

return rows
