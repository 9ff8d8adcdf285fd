-- Where an overflow of a gradient goes: infinity behind an activation that is flat at x is 0
-- before it, not infinity times 0, so that a scaler skips the steps that PyTorch's skips. The
-- expected letters are those of PyTorch 2.15's CPU: 0, i infinity, - negative infinity, n NaN.
local dm = require "demilune"
local F = dm.nn.functional

local inf, nan = math.huge, 0 / 0
local X = {-4, -3, -2, -1, -.5, 0, .5, 1, 2, 3, 4, 5, inf, -inf}
local OTHER = {1, -3, -2.5, 0, -.5, 0, .75, -1, 2, 4, nan, 1, 2, 3}

local CASES = {
  {"relu", "000000iiiiiii0", dm.relu},
  {"relu6", "000000iiiiii00", F.relu6},
  {"hardtanh", "0000iii0000000", F.hardtanh},
  {"hardshrink", "iiii000iiiiiii", F.hardshrink},
  {"softshrink", "iiii000iiiiiii", F.softshrink},
  {"hardsigmoid", "00iiiiiii00000", F.hardsigmoid},
  {"hardswish", "00-iiiiiiiiii0", F.hardswish},
  {"elu", "iiiiiiiiiiiiin", F.elu},
  {"selu", "iiiiiiiiiiiiin", F.selu},
  {"celu", "iiiiiiiiiiiiin", F.celu},
  {"threshold", "00000000iiiii0", function(x) return F.threshold(x, 1, -7) end},
  {"clamp", "0000iiii000000", function(x) return dm.clamp(x, {min = -1, max = 2}) end},
  {"abs", "-----niiiiiii-", dm.abs},
  {"nan_to_num", "iiiiiiiiiiiinn", dm.nan_to_num},
  {"sinc", "-i-ii0--i-i-nn", dm.sinc},
  {"pow", "00000000000000", function(x) return x:pow(0) end},
  {"xlogy", "nnn-n0-niinnii", function(x, other) return dm.xlogy(x, other) end, true},
  {"lerp", "iiiiiiiiiiiiii", function(x, other) return dm.lerp(x, other, 0.5) end, true},
  {"add_relu", "000000i0iiiii0", function(x, other) return dm.add_relu(x, other) end, true},
  {"binary_cross_entropy_with_logits", "-----niiiiiii-", function(x)
    return F.binary_cross_entropy_with_logits(x, dm.full({14}, 0.5), {reduction = "none"})
  end},
  {"linear with relu", "000000iiiiiii0", function(x)
    return dm.linear(x:view(-1, 1), dm.ones(1, 1), nil, {activation = "relu"})
  end},
}

local function letters(t)
  local all = {}
  for i = 1, #t do
    local v = t[i]:item()
    all[i] = v ~= v and "n" or v == 0 and "0" or v == inf and "i" or v == -inf and "-" or "?"
  end
  return table.concat(all)
end

describe("an infinite gradient", function()
  for _, case in ipairs(CASES) do
    local name, want, f, takes_two = table.unpack(case)
    it("passes or ends at " .. name, function()
      for _, create_graph in ipairs{false, true} do
        local x = dm.tensor(X):requires_grad_()
        local y = takes_two and f(x, dm.tensor(OTHER)) or f(x)
        local gx = dm.autograd.grad(y, x, {grad_outputs = dm.full(y.shape, inf),
          create_graph = create_graph})
        assert.equal(want, letters(gx:detach()), tostring(create_graph))
      end
    end)
  end
end)

describe("embedding_bag of largest values", function()
  it("gives the gradient to the first of equal ones alone, as PyTorch does", function()
    local weight = dm.tensor({{1, 5}, {3, 5}, {3, 2}}):float():requires_grad_()
    local ids = dm.tensor({{1, 2}, {2, 3}}, {dtype = "int64"})
    local y = F.embedding_bag(ids, weight, {mode = "max"})
    y:backward(dm.tensor{{inf, 1}, {2, 3}})
    assert.same({{0, 1}, {inf, 3}, {0, 0}}, weight.grad:totable())
  end)
end)
