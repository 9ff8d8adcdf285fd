-- nn.utils.prune: PyTorch's masks (spec/golden/pruning), names, training, copies, and messages.

local dm = require "demilune"
local case = require "spec.case"
local load_family = require("spec.golden").load
local nn = dm.nn
local prune = nn.utils.prune

local function names(model)
  local list = {}
  for name in pairs(model:state_dict()) do list[#list + 1] = name end
  return list
end

describe("prune has PyTorch's masks:", function()
  for i, c in ipairs(load_family("pruning").cases) do
    it(("%d %s"):format(i, c.name or ""), function()
      local weight = case.build(dm, c.weight)
      local layer = weight:dim() == 2 and nn.Linear(5, 4) or nn.Conv1d(2, 3, 2)
      layer.weight.data:copy_(weight)
      for k, step in ipairs(c.steps) do
        local given = {}
        for name, v in pairs(step[2]) do
          given[name] = type(v) == "table" and case.build(dm, v) or v
        end
        prune[step[1]](layer, "weight", given)
        assert.same(c.masks[k].d, case.values(layer.weight_mask))
      end
      assert.same(c.names, names(layer))
      assert.is_true(dm.equal(case.build(dm, c.pruned), layer.weight:detach()))
      prune.remove(layer, "weight")
      assert.same({"bias", "weight"}, names(layer))
      assert.is_true(dm.equal(case.build(dm, c.pruned), layer.weight:detach()))
      assert.is_false(prune.is_pruned(layer))
    end)
  end
end)

describe("a pruned module", function()
  it("trains what is left, in the same parameter", function()
    local layer = nn.Linear(6, 4)
    local weight = layer.weight
    assert.is_true(rawequal(layer, prune.l1_unstructured(layer, "weight", 0.5)))
    assert.is_true(rawequal(weight, layer.weight_orig))
    assert.is_true(prune.is_pruned(nn.Sequential{layer}))
    local mask = layer.weight_mask
    assert.equal(12, mask:sum():item())
    layer(dm.ones(1, 6)):sum():backward()
    assert.is_true(dm.equal(mask, weight.grad))
    weight.data:fill_(1)
    layer(dm.ones(1, 6))
    assert.is_true(dm.equal(mask, layer.weight))
    prune.remove(layer, "weight")
    assert.is_true(rawequal(weight, layer.weight))
    assert.is_true(dm.equal(mask, weight))
  end)

  it("is copied, converted and loaded with its masks", function()
    local layer = prune.random_unstructured(nn.Linear(6, 4), "weight", {amount = 5})
    local other, x = layer:copy(), dm.randn(2, 6)
    prune.l1_unstructured(other, "weight", {amount = 3})
    assert.equal(19, layer.weight_mask:sum():item())
    assert.equal(16, other.weight_mask:sum():item())
    other:load_state_dict(layer:state_dict())
    assert.is_true(dm.equal(layer(x), other(x)))
    assert.equal("float64", layer:double()(x:double()).dtype)
    assert.is_true(prune.is_pruned(other))
  end)

  it("loses channels at random", function()
    local conv = prune.random_structured(nn.Conv2d(3, 4, 2), "weight", {amount = 2, dim = 1})
    local left = conv.weight_mask:sum{dim = {2, 3, 4}}
    assert.equal(2, left:eq(12):sum():item())
    assert.equal(2, left:eq(0):sum():item())
    prune.random_structured(conv, "weight", 0.5, 1)
    assert.equal(12, conv.weight_mask:sum():item())
  end)

  it("takes its method by name behind the parameters, as PyTorch's guide writes it", function()
    local a = nn.Linear(2, 2, {bias = false})
    a.weight.data:copy_(dm.tensor{{1, -2}, {3, 4}})
    prune.global_unstructured({{a, "weight"}}, {pruning_method = prune.L1Unstructured,
      amount = 0.5})
    assert.same({{0, 0}, {3, 4}}, a.weight:totable())
  end)

  it("shares an amount with others", function()
    local a, b = nn.Linear(4, 4), nn.Linear(4, 2)
    a.weight.data:copy_(dm.arange(1, 16):reshape(4, 4))
    b.weight.data:copy_(dm.arange(101, 108):reshape(2, 4))
    prune.global_unstructured({{a, "weight"}, {b, "weight"}}, prune.L1Unstructured,
      {amount = 0.25})
    assert.equal(10, a.weight_mask:sum():item())
    assert.equal(8, b.weight_mask:sum():item())
    prune.global_unstructured{parameters = {{a, "weight"}, {b, "weight"}},
      pruning_method = prune.L1Unstructured, amount = 2,
      importance_scores = {dm.full({4, 4}, 1000), false}}
    assert.equal(10, a.weight_mask:sum():item())
    assert.equal(6, b.weight_mask:sum():item())
    assert.refuses("wanted a method of 'unstructured'", function()
      prune.global_unstructured({{a, "weight"}}, prune.LnStructured, {amount = 1})
    end)
    assert.refuses("element 1 of parameters", function()
      prune.global_unstructured({a}, prune.L1Unstructured, {amount = 1})
    end)
  end)

  it("takes methods of one's own", function()
    local Second = prune.BasePruningMethod:extend "Second"
    Second.PRUNING_TYPE = "unstructured"
    function Second:init(step) self.step = step end
    function Second:compute_mask(_, default_mask)
      local mask = default_mask:clone()
      local flat = mask:reshape(-1)
      for i = self.step, flat:numel(), self.step do flat[i] = 0 end
      return mask
    end
    local layer = nn.Linear(4, 2)
    assert.equal("Second", Second:apply(layer, "weight", 2).class)
    assert.same({1, 0, 1, 0, 1, 0, 1, 0}, layer.weight_mask:reshape(-1):totable())
    Second:apply(layer, "weight", 2)
    assert.same({1, 0, 0, 0, 1, 0, 0, 0}, layer.weight_mask:reshape(-1):totable())
    assert.same({1, 0, 1}, Second(2):prune(dm.ones(3)):totable())
    local None = prune.BasePruningMethod:extend "None"
    assert.refuses("None has no compute_mask", function() None:apply(layer, "bias") end)
    assert.same({"bias", "weight_orig", "weight_mask"}, names(layer))
  end)

  it("says what it cannot prune", function()
    local layer = nn.Linear(3, 2)
    assert.refuses("Linear has no parameter 'wait'", function() prune.identity(layer, "wait") end)
    assert.refuses("amount is 1.5", function() prune.l1_unstructured(layer, "weight", 1.5) end)
    assert.refuses("amount is %-1", function() prune.l1_unstructured(layer, "weight", -1) end)
    assert.refuses("amount is 7, more than the 6", function()
      prune.l1_unstructured(layer, "weight", 7)
    end)
    assert.refuses("wanted 2 or more dims", function()
      prune.ln_structured(layer, "bias", 1, 2, 1)
    end)
    assert.refuses("dim is 3", function() prune.random_structured(layer, "weight", 1, 3) end)
    assert.refuses("mask is {3}", function()
      prune.custom_from_mask(layer, "weight", dm.ones(3))
    end)
    assert.refuses("importance_scores is {3}", function()
      prune.l1_unstructured(layer, "weight", 1, dm.ones(3))
    end)
    assert.refuses("'weight' of Linear is not pruned", function() prune.remove(layer, "weight") end)
    assert.same({"weight", "bias"}, names(layer))
  end)
end)
