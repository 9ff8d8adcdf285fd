-- layer_norm, rms_norm and group_norm on the CPU, whose rows are worked on a vector at a time: rows
-- of every length in each dtype, with their gradients, against float64.
local dm = require "demilune"
local F = dm.nn.functional

local LENGTHS = {3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 47, 48, 63, 64, 65, 100, 129, 1000,
  4097}
-- What rounds once: a result, and a gradient of several terms.
local ROUNDING = {float32 = 2 ^ -21, bfloat16 = 2 ^ -8, float16 = 2 ^ -11}
local ROWS = 5
local EPS = 1e-2 -- so large that differences of almost equal numbers are not all rounding

local FORMS = {
  layer_norm = function(x, n, w, b)
    return F.layer_norm(x, {n}, {weight = w, bias = b, eps = EPS})
  end,
  ["layer_norm without weights"] = function(x, n) return F.layer_norm(x, {n}, {eps = EPS}) end,
  rms_norm = function(x, n, w) return F.rms_norm(x, {n}, {weight = w, eps = EPS}) end,
  -- two groups of one channel, n elements each
  group_norm = function(x, _, w, b)
    local v = dm.stack{x, x * 2}:transpose(1, 2)
    return F.group_norm(v, 2, {weight = w:narrow(1, 1, 2), bias = b:narrow(1, 1, 2), eps = EPS})
  end,
}

-- `n` is the number of terms of an element, each of about 1.
local function near(want, got, allowed, what, n)
  local size = math.max(math.sqrt(n), want:abs():max():item())
  local off = (want - got:double()):abs():max():item() / size
  assert.is_true(off <= allowed, ("%s: off by %g"):format(what, off))
end

describe("norms of rows", function()
  for dtype, rounding in pairs(ROUNDING) do
    for name, form in pairs(FORMS) do
      it(("are near float64's: %s in %s"):format(name, dtype), function()
        local _ <close> = dm.device "cpu"
        for _, n in ipairs(LENGTHS) do
          local given = {}
          for i, shape in ipairs{{ROWS, n}, {n}, {n}} do
            given[i] = dm.randn(shape, {dtype = "float64"}):to(dtype)
          end
          local sides = {}
          for side, to in ipairs{dtype, "float64"} do
            local leaves = {}
            for i, t in ipairs(given) do leaves[i] = t:to(to):clone():requires_grad_() end
            local y = form(leaves[1], n, leaves[2], leaves[3])
            local upstream = sides[1] and sides[1].upstream or
              dm.randn(y.shape, {dtype = "float64"}):to(dtype)
            y:backward(upstream:to(to))
            sides[side] = {y = y:detach(), upstream = upstream, leaves = leaves}
          end
          local ours, exact = sides[1], sides[2]
          near(exact.y, ours.y, 4 * rounding, ("y of %d"):format(n), 1)
          for i, leaf in ipairs(exact.leaves) do
            if leaf.grad then
              local what = ("gradient %d of %d"):format(i, n)
              local terms = exact.y:numel() / leaf.grad:count_nonzero():item()
              near(leaf.grad, ours.leaves[i].grad, 16 * rounding, what, terms)
            end
          end
        end
      end)
    end
  end

  -- rounding to bfloat16 adds half of the last bit to a float32, where the bits of this NaN carry
  it("give NaN where a weight of float32 is a NaN of many bits", function()
    local _ <close> = dm.device "cpu"
    local w, b = dm.ones{40}, dm.zeros{40}
    w:view "int32":select(1, 3):fill_(0x7fffffff)
    b:view "int32":select(1, 5):fill_(0x7fffffff)
    local y = F.layer_norm(dm.randn(2, 40):bfloat16(), {40}, {weight = w, bias = b})
    assert.equal("bfloat16", y.dtype)
    assert.same({2, 2}, {y:select(2, 3):isnan():sum():item(), y:select(2, 5):isnan():sum():item()})
    assert.equal(4, y:isnan():sum():item())
  end)
end)
