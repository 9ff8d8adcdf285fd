-- The text of an amp.report: tables of at most 100 columns, a step's share each.

local dtypes = require "demilune.dtypes"

local page = {}

local WIDTH = 100

-- "1.2 MB"
function page.bytes(n)
  if n < 999.5 then return ("%.0f B"):format(n) end
  if n < 999.5e3 then return ("%.1f kB"):format(n / 1e3) end
  if n < 999.5e6 then return ("%.1f MB"):format(n / 1e6) end
  return ("%.1f GB"):format(n / 1e9)
end

local function number(n)
  if n == 0 then return "-" end
  return n == math.floor(n) and ("%d"):format(n) or ("%.2g"):format(n)
end

local function percent(share)
  if share > 0 and share < 0.0005 then return "<0.1 %" end
  return ("%.1f %%"):format(100 * share)
end

-- Rows of cells to lines, and the columns' widths. left[i]: column i to the left.
local function align(rows, left)
  local widths, lines = {}, {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, #cell) end
  end
  for r, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local blank = (" "):rep(widths[i] - #cell)
      cells[i] = left[i] and cell .. blank or blank .. cell
    end
    lines[r] = table.concat(cells, "  "):gsub("%s+$", "")
  end
  return lines, widths
end

local function name_of(row, width)
  local name = row.path == "" and row.class or row.path .. " " .. row.class
  name = name:gsub("%s+$", "")
  return #name <= width and name or ".." .. name:sub(#name - width + 3)
end

-- ---- modules ----

-- The dtypes that ops ran in, in one cell: "2 bf16 1 fp32"
local function dtypes_cell(counts, steps)
  local parts = {}
  for _, dtype in ipairs(dtypes.floats) do
    local count = counts[dtype.name]
    if count then
      parts[#parts + 1] = number(count / steps) .. " " .. dtype.brief
    end
  end
  return #parts > 0 and table.concat(parts, " ") or "-"
end

local function bytes_cell(n) return n > 0 and page.bytes(n) or "-" end

local function module_cells(row, steps, width)
  local c, rest = row.casts, -row.saved -- what is not kept in 16 bits: indices of maxima, too
  for _, bytes in pairs(row.kept) do rest = rest + bytes end
  return {name_of(row, width), dtypes_cell(row.forward, steps), dtypes_cell(row.backward, steps),
    number(c.weights / steps), number(c.inputs / steps),
    bytes_cell((c.weight_bytes + c.input_bytes) / steps), bytes_cell(row.saved / steps),
    bytes_cell(rest / steps)}
end

local HEAD = {"module", "forward", "backward", "weights", "inputs", "written", "16 bit", "other"}

-- Names get what the numbers leave of the line.
local function module_lines(s, width)
  local rows, steps = {HEAD}, math.max(1, s.steps)
  for _, row in ipairs(s.modules) do rows[#rows + 1] = module_cells(row, steps, width) end
  rows[#rows + 1] = module_cells(s.total, steps, width)
  local lines, w = align(rows, {true})
  if #lines[1] > WIDTH and width > 16 then
    return module_lines(s, math.max(16, WIDTH - (#lines[1] - w[1])))
  end
  return lines, w
end

local function modules(s, out)
  local lines, w = module_lines(s, 60)
  out[#out + 1] = ("%-" .. w[1] .. "s  %" .. w[2] + w[3] + 2 .. "s  %" .. w[4] + w[5] + w[6] + 4
    .. "s  %" .. w[7] + w[8] + 2 .. "s"):format("per step", "ops that ran in",
    "casts by autocast", "kept for bwd")
  local rule = ("-"):rep(#lines[1])
  for i, line in ipairs(lines) do
    out[#out + 1] = line
    if i == 1 or i == #lines - 1 then out[#out + 1] = rule end
  end
end

local MOST = 12 -- float32 ops that are listed

local function float32_ops(s, out)
  local n = #s.float32_ops
  if n == 0 then return end
  local ops = table.move(s.float32_ops, 1, n, 1, {})
  table.sort(ops, function(a, b)
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    return a.path .. a.op .. a.reason < b.path .. b.op .. b.reason
  end)
  local rows = {}
  for i = 1, math.min(n, MOST) do
    local op = ops[i]
    rows[i] = {"  " .. name_of(op, 34), op.op, bytes_cell(op.bytes / math.max(1, s.steps)),
      op.reason}
  end
  out[#out + 1] = "\nfloat32 inside the region, by bytes of results"
  local lines = align(rows, {true, true, false, true})
  table.move(lines, 1, #lines, #out + 1, out)
  if n > MOST then out[#out + 1] = ("  and %d more: report.float32_ops"):format(n - MOST) end
end

-- ---- gradients ----

-- Exponents from, to (exclusive), and what float16 makes of such numbers.
local BANDS = {{-1000, -25, "0"}, {-25, -14, "subnormal: digits are lost"}, {-14, -8, ""},
  {-8, -2, ""}, {-2, 16, ""}, {16, 1000, "inf"}}

local function band_name(band)
  if band[1] == -1000 then return ("below 2^%d"):format(band[2]) end
  if band[2] == 1000 then return ("from 2^%d"):format(band[1]) end
  return ("2^%d .. 2^%d"):format(band[1], band[2])
end

local function fit_text(fit)
  return ("%s become 0, %s lose digits, %s become inf"):format(percent(fit.underflow_share),
    percent(fit.subnormal_share), percent(fit.overflow_share))
end

-- The number of values in each band, as bars.
local function bands(t, out)
  for _, band in ipairs(t.nonzero > 0 and BANDS or {}) do
    local n = 0
    for e, k in pairs(t.exponents) do
      if e >= band[1] and e < band[2] then n = n + k end
    end
    local share = n / t.nonzero
    out[#out + 1] = (("  %-16s %7s  %-40s  %s"):format(band_name(band), percent(share),
      ("#"):rep(math.floor(40 * share + 0.5)), band[3]):gsub("%s+$", ""))
  end
end

local function most_underflow(g)
  local worst
  for _, row in ipairs(g.parameters) do
    local share = row.float16.underflow_share
    if share > 0 and (not worst or share > worst.float16.underflow_share) then worst = row end
  end
  return worst
end

local function gradients(s, out)
  local g = s.gradients
  if not g then return end
  local t, worst = g.total, most_underflow(g)
  out[#out + 1] = ("\ngradients of %d parameters in %d steps, unscaled: %s exact zeros, %d inf, "
    .. "%d NaN"):format(#g.parameters, g.steps, percent(t.zero / math.max(1, t.n)), t.inf, t.nan)
  bands(t, out)
  out[#out + 1] = "  in float16 as they are: " .. fit_text(t.float16)
  if t.scaled and g.scale then
    out[#out + 1] = ("  at the scaler's scale (%g now): %s"):format(g.scale, fit_text(t.scaled))
  end
  if g.best_scale and t.nan == 0 then -- no scale mends a NaN
    out[#out + 1] = ("  largest %.3g: a scale of 2^%d fits"):format(t.largest,
      math.floor(math.log(g.best_scale, 2) + 0.5))
  end
  if g.scaler then out[#out + 1] = ("  steps skipped: %d of %d"):format(g.skipped, g.steps) end
  if worst then
    out[#out + 1] = ("  most underflow: %s, %s"):format(worst.name,
      percent(worst.float16.underflow_share))
  end
end

-- ---- inf and NaN ----

-- Which inputs were not finite, or how large they were.
local function inputs_text(f)
  local bad = {}
  for i, ok in ipairs(f.inputs_finite) do
    if not ok then bad[#bad + 1] = tostring(i) end
  end
  if #bad > 0 then return "not finite: input " .. table.concat(bad, ", ") end
  return ("its inputs are finite, up to %.3g"):format(f.largest)
end

local function fault_text(f)
  local what = f.autocast and "autocast's cast" or f.within
  if f.within ~= f.op then what = ("%s (its %s)"):format(f.within, f.op) end
  local name = name_of(f, 50)
  return {("first %s in %s: step %d, %s%s, %s %s"):format(f.value, f.phase, f.step, what,
    name ~= "" and " in " .. name or "", f.dtype, f.shape),
    ("  %s%s"):format(f.where ~= "" and f.where .. ": " or "", inputs_text(f))}
end

local function faults(s, out)
  for _, phase in ipairs{"forward_fault", "backward_fault"} do
    if s[phase] then
      local text = fault_text(s[phase])
      out[#out + 1] = "\n" .. text[1]
      out[#out + 1] = text[2]
    end
  end
end

-- Breaks a long line, at a space of its second half if there is one.
local function wrap(line)
  local lines = {}
  while #line > WIDTH do
    local cut = line:sub(WIDTH // 2, WIDTH):match "^.*() "
    cut = cut and cut + WIDTH // 2 - 1 or WIDTH
    lines[#lines + 1] = line:sub(1, cut):gsub("%s+$", "")
    line = "  " .. line:sub(cut + 1)
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

-- s: see `all` in report.lua.
function page.report(s)
  local regions = {}
  for dtype in pairs(s.regions) do regions[#regions + 1] = dtype end
  table.sort(regions)
  local out = {("amp.report: %d step%s, autocast %s\n"):format(s.steps,
    s.steps == 1 and "" or "s", #regions > 0 and table.concat(regions, " and ") or "off")}
  if s.ran then modules(s, out) end
  float32_ops(s, out)
  gradients(s, out)
  faults(s, out)
  if s.missed > 0 then
    out[#out + 1] = ("\nnot counted for want of memory: %d"):format(s.missed)
  end
  out[#out + 1] = "\nsuggestion: " .. s.suggestion
  for i, line in ipairs(out) do out[i] = wrap(line) end
  return table.concat(out, "\n")
end

-- m: what amp.memory gives.
function page.memory(m)
  local rows = {{"dtype", "parameters", "buffers", "gradients", "state", "total"}}
  local names = {}
  for dtype in pairs(m) do
    if dtype ~= "total" then names[#names + 1] = dtype end
  end
  table.sort(names)
  names[#names + 1] = "total"
  for _, dtype in ipairs(names) do
    local row = m[dtype] or {parameters = 0, buffers = 0, gradients = 0, state = 0, total = 0}
    rows[#rows + 1] = {dtype, bytes_cell(row.parameters), bytes_cell(row.buffers),
      bytes_cell(row.gradients), bytes_cell(row.state), bytes_cell(row.total)}
  end
  return table.concat((align(rows, {true})), "\n")
end

return page
