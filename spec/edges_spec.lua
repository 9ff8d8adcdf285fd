-- Definition at the edges: pointwise ops of zeros of both signs, infinities, NaN, the least and the
-- largest numbers and the kinks give PyTorch's values and gradients (scripts/golden/edges.py), each
-- element within a few ulp of itself. An element has the same result alone as in a row: loops of
-- vectors and their ends agree.

local dm = require "demilune"
local case = require "spec.case"
local load_family = require("spec.golden").load

-- A step of PyTorch's formula overflows at the largest number: x * 6 / 6 of hardswish, 2 x of
-- erfcx's gradient. Here hardswish is that number, and the gradient near 0, its limit.
local OVERFLOWS = {hardswish = true, special_erfcx = true}

-- The wanted elements, but for infinite ones where the op overflows and ours are finite.
local function wanted(c, got, want)
  if not OVERFLOWS[c.op] then return want end
  local out = {}
  for i, v in ipairs(case.values(got)) do
    out[i] = math.abs(want[i]) == math.huge and math.abs(v) < math.huge and v or want[i]
  end
  return out
end

-- Backward from the output by the case's cotangent.
local function check_gradients(c, y, made)
  y:backward{gradient = case.build(dm, {t = c.out[1].t, s = c.out[1].s, d = c.gout[1]})}
  for i, pair in ipairs(made) do
    local l, got = pair.literal, pair.tensor.grad
    if l.g then
      case.check(got, {t = l.t, s = l.s, d = wanted(c, got:detach(), l.g)}, "near", {},
        "gradient " .. i)
    end
  end
end

local function run(c, strided)
  local made = {}
  local args = case.decode(dm, c.args, {strided = strided, grad = true}, made)
  local y = case.call(dm, c.op, args)[1]
  local out = c.out[1]
  case.check(y, {t = out.t, s = out.s, d = wanted(c, y:detach(), out.d)}, c.kind, {})
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

describe("at the largest number", function()
  it("no step of hardswish or of erfcx's gradient overflows", function()
    for _, dtype in ipairs{"float32", "float64", "bfloat16"} do
      local most = dm.finfo(dtype).max
      local x = dm.tensor({most}, {dtype = dtype, requires_grad = true})
      assert.equal(most, dm.nn.functional.hardswish(x):item())
      if dtype ~= "bfloat16" then
        dm.special.erfcx(x):backward()
        assert.is_true(math.abs(x.grad:item()) < 1e-6)
      end
    end
  end)
end)
