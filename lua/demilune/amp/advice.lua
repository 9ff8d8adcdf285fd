-- The suggestion of an amp.report, one line: the first of these rules that applies to its
-- values (see `all` in report.lua).

local page = require "demilune.amp.page"

local advice = {}

-- " in model[3] Linear"; nothing outside all modules.
local function at(row)
  if row.class == "" then return "" end
  return " in " .. (row.path == "" and row.class or row.path .. " " .. row.class)
end

local function is_finite(fault)
  for _, ok in ipairs(fault.inputs_finite) do
    if not ok then return false end
  end
  return true
end

local function is_half_only(s, dtype)
  return s.regions[dtype] and next(s.regions, next(s.regions)) == nil
end

local rules = {}
local function rule(fn) rules[#rules + 1] = fn end

rule(function(s)
  if not s.ran then return "nothing ran: open the report around some training steps" end
end)

-- NaN that came with the data
rule(function(s)
  local f = s.forward_fault
  if f and not is_finite(f) then
    return ("%s%s got numbers that were not finite already: look at the data and the weights")
      :format(f.within, at(f))
  end
end)

-- float16 is too narrow for an activation
rule(function(s)
  local f = s.forward_fault
  if not f or f.dtype ~= "float16" then return nil end
  if f.op == "cast" then
    return ("numbers up to %.3g%s do not fit float16: use bfloat16, or normalize them")
      :format(f.largest, at(f))
  end
  if not s.regions.float16 then
    return ("overflow comes from %s%s: use bfloat16 or float32 there"):format(f.within, at(f))
  end
  return ("overflow comes from %s%s: keep it in float32 with policy = {%s = \"fp32\"}, or use "
    .. "bfloat16"):format(f.within, at(f), f.within)
end)

rule(function(s)
  local f = s.forward_fault
  if f then
    return ("%s%s gave %s in %s, from inputs up to %.3g: not a matter of float16; lower the "
      .. "learning rate, or guard the op"):format(f.within, at(f), f.value, f.dtype, f.largest)
  end
end)

-- The ops whose slope is not finite at a border of where they are defined, and that border.
local BORDERS = {sqrt = "0", rsqrt = "0", log = "0", log2 = "0", log10 = "0", log1p = "-1",
  reciprocal = "0", div = "a divisor of 0", pow = "0", norm = "0", acos = "1 and -1",
  asin = "1 and -1", acosh = "1", atanh = "1 and -1"}

-- A scaler finds its scale by skipping the first steps. Later ones are too many.
local function are_too_many(g) return g.skipped == g.steps or g.skipped_late > 0.2 * g.steps end

-- No scale is low enough for such a slope: the next rule's advice would not help.
rule(function(s)
  local f, g = s.backward_fault, s.gradients
  local border = f and is_finite(f) and BORDERS[f.within]
  if border and g and g.skipped > 0 and are_too_many(g) then
    return ("%d of %d steps were skipped: the slope of %s%s is not finite at %s; guard its input")
      :format(g.skipped, g.steps, f.within, at(f), border)
  end
end)

rule(function(s)
  local g = s.gradients
  if g and are_too_many(g) and g.skipped > 3 then
    local f = s.backward_fault
    return ("%d of %d steps were skipped: the gradients overflow%s%s"):format(g.skipped, g.steps,
      f and ", first that of " .. f.within .. at(f) or "",
      g.best_scale and ("; init_scale = 2^%d fits"):format(math.floor(math.log(g.best_scale, 2)))
      or "; start with a lower init_scale")
  end
end)

rule(function(s)
  local f, g = s.backward_fault, s.gradients
  if not f or g and g.scaler then return nil end
  return ("the gradient of %s%s gave %s in %s: %s"):format(f.within, at(f), f.value, f.dtype,
    f.dtype == "float16" and "use bfloat16, or keep the op in float32"
    or "not a matter of float16; guard the op, or clip the gradients")
end)

rule(function(s)
  local g = s.gradients
  if g and g.scaler and is_half_only(s, "bfloat16") then
    return "bfloat16 needs no scaler: it reaches as far as float32; drop amp.GradScaler"
  end
end)

rule(function(s)
  local g = s.gradients
  if not g or g.scaler or not s.regions.float16 then return nil end
  if g.total.nonzero == 0 then
    return "every gradient underflows to 0 without a scaler: use amp.GradScaler"
  end
  local fit = g.total.float16
  local share = fit.underflow_share + fit.subnormal_share
  if share >= 0.01 then
    return ("%.0f %% of gradients lie below 2^-14, where float16 loses digits or gives 0: use "
      .. "amp.GradScaler"):format(100 * share)
  end
end)

rule(function(s)
  if next(s.regions) == nil then
    return (s.is_checked and "no inf and no NaN; " or "") .. "nothing ran under autocast: open "
      .. "amp.autocast{dtype = \"bfloat16\"} around the model and the loss"
  end
end)

-- Casts write, and what is kept in 16 bits saves: only training keeps anything.
rule(function(s)
  local casts = s.total.casts
  local written = casts.weight_bytes + casts.input_bytes
  if s.steps > 0 and written > s.total.saved then
    return ("casts write %s a step and save %s: the model or the batch is small, float32 may be "
      .. "as fast"):format(page.bytes(written / s.steps), page.bytes(s.total.saved / s.steps))
  end
end)

-- One float32 input keeps what follows in float32.
rule(function(s)
  local worst
  for _, op in ipairs(s.float32_ops) do
    if op.reason:find "^unlisted" and (not worst or op.bytes > worst.bytes) then worst = op end
  end
  local all = 0
  for _, bytes in pairs(s.total.outputs) do all = all + bytes end
  if worst and worst.bytes > 0.25 * all then
    return ("%s%s works in float32 (%s): %.0f %% of all activations; x:to(dtype) before it")
      :format(worst.op, at(worst), worst.reason, 100 * worst.bytes / all)
  end
end)

-- The last rule: whoever looks for the cause of a skipped step wants to hear of it.
rule(function(s)
  local g = s.gradients
  if g and g.skipped > 0 and g.skipped == g.steps then
    return ("%d of %d steps were skipped: a scaler begins so; observe more of them, or set a "
      .. "lower init_scale"):format(g.skipped, g.steps)
  elseif g and g.skipped > 0 then
    return ("nothing to change if the %d steps of %d that were skipped came first"):format(
      g.skipped, g.steps)
  end
end)

function advice.suggest(s)
  for _, fn in ipairs(rules) do
    local text = fn(s)
    if text then return text end
  end
  return "nothing to change"
end

return advice
