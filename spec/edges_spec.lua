-- Definition at the edges: pointwise ops of zeros of both signs, infinities, NaN, the least and the
-- largest numbers and the kinks give PyTorch's values and gradients (scripts/golden/edges.py), each
-- element within a few ulp of itself. An element has the same result alone as in a row: loops of
-- vectors and their ends agree.

local dm = require "demilune"
local case = require "spec.case"
local load_family = require("spec.golden").load

-- Backward from the output by the case's cotangent.
local function check_gradients(c, y, made)
  y:backward{gradient = case.build(dm, {t = c.out[1].t, s = c.out[1].s, d = c.gout[1]})}
  for i, pair in ipairs(made) do
    local l = pair.literal
    if l.g then
      case.check(pair.tensor.grad, {t = l.t, s = l.s, d = l.g}, "near", {}, "gradient " .. i)
    end
  end
end

local function run(c, strided)
  local made = {}
  local args = case.decode(dm, c.args, {strided = strided, grad = true}, made)
  local y = case.call(dm, c.op, args)[1]
  case.check(y, c.out[1], c.kind, {})
  if c.gout then check_gradients(c, y, made) end
end

local function alone(c)
  local made = {}
  local args = case.decode(dm, c.args, {}, made)
  local row = case.values(case.call(dm, c.op, args)[1])
  for i, want in ipairs(row) do
    local one = {}
    for k, v in ipairs(args) do one[k] = dm.is_tensor(v) and v:narrow(1, i, 1):clone() or v end
    local got = case.values(case.call(dm, c.op, one)[1])[1]
    if got ~= want and (got == got or want == want) then
      error(("element %d is %.17g alone, %.17g in a row"):format(i, got, want), 0)
    end
  end
end

describe("golden edges_rows", function()
  local family = load_family "edges_rows"
  for _, c in ipairs(family.cases) do
    c.kind = family.kind
    it(c.name, function() run(c, false) end)
    it(c.name .. ", strided", function() run(c, true) end)
  end
end)

for _, name in ipairs{"edges_one", "edges_two"} do
  describe("golden " .. name, function()
    for _, c in ipairs(load_family(name).cases) do
      it(c.name, function() run(c, false) end)
      it(c.name .. ", strided", function() run(c, true) end)
      it(c.name .. ", each alone", function() alone(c) end)
    end
  end)
end
