-- nn.utils.parametrize and parametrizations: PyTorch's values (spec/golden/parametrizations),
-- chains, inverses, names in state dicts, dtypes, autocast, caching, and error messages.

local dm = require "demilune"
local case = require "spec.case"
local load_family = require("spec.golden").load
local nn = dm.nn
local P, forms = nn.utils.parametrize, nn.utils.parametrizations

local function names(model)
  local list = {}
  for name in pairs(model:state_dict()) do list[#list + 1] = name end
  return list
end

local function close(want, got, tolerance)
  assert.same({table.unpack(want.shape)}, {table.unpack(got.shape)})
  local off = (want - got):abs():max():item()
  assert.is_true(off <= (tolerance or 1e-6), off)
end

local LAYERS = {
  Linear = function(x, w) return nn.Linear(x:size(2), w:size(1), {dtype = "float64"}) end,
  ConvTranspose1d = function() return nn.ConvTranspose1d(2, 3, 2, {dtype = "float64"}) end,
}

describe("parametrizations have PyTorch's values:", function()
  for _, c in ipairs(load_family("parametrizations").cases) do
    it(c.name or c.f, function()
      local x, state = case.build(dm, c.x), {}
      for name, t in pairs(c.state) do state[name] = case.build(dm, t) end
      local function check(key, t)
        local want = c.out[key]
        assert.same(want.s, {table.unpack(t.shape)}, key)
        for i, v in ipairs(case.values(t)) do
          assert.is_true(math.abs(v - want.d[i]) <= 1e-12,
            ("%s: element %d is %.17g, wanted %.17g"):format(key, i, v, want.d[i]))
        end
      end
      local layer = LAYERS[c.layer](x, {size = function() return #c.out.removed.d // x:size(2) end})
      forms[c.f](layer, c.given)
      assert.same(c.layer, P.type_before_parametrizations(layer).class)
      layer:load_state_dict(state)
      local y = layer(x)
      check("y", y)
      y:mul(case.build(dm, c.cotangent)):sum():backward()
      for name, p in layer:named_parameters() do check("grad " .. name, p.grad) end
      for name, t in pairs(layer:state_dict()) do check("after " .. name, t) end
      P.remove_parametrizations(layer:eval(), "weight")
      check("removed", layer.weight)
      assert.same({"bias", "weight"}, names(layer))
      assert.is_false(P.is_parametrized(layer))
    end)
  end
end)

-- Symmetric matrices, of their upper triangles.
local Symmetric = nn.Module:extend "Symmetric"
function Symmetric.forward(_, x) return x:triu() + x:triu(1):t() end
function Symmetric.right_inverse(_, a) return a:triu() end

-- exp, which has an inverse.
local Exp = nn.Module:extend "Exp"
function Exp.forward(_, x) return x:exp() end
function Exp.right_inverse(_, y) return y:log() end

-- A sum of two tensors that are stored.
local Pair = nn.Module:extend "Pair"
function Pair.forward(_, a, b) return a + b end
function Pair.right_inverse(_, y) return y / 2, y / 2 end

describe("a parametrization", function()
  local register, remove = P.register_parametrization, P.remove_parametrizations

  it("computes the tensor of what is stored, which stays the optimizer's", function()
    local layer = nn.Linear(3, 3)
    local weight = layer.weight
    local sgd = dm.optim.SGD(layer:parameters(), {lr = 0.1})
    assert.is_true(rawequal(layer, register(layer, "weight", Symmetric())))
    assert.equal("ParametrizedLinear", layer.class)
    assert.is_true(P.is_parametrized(layer) and P.is_parametrized(layer, "weight"))
    assert.is_false(P.is_parametrized(layer, "bias"))
    assert.is_true(rawequal(weight, layer.parametrizations.weight.original))
    assert.is_true(dm.equal(layer.weight, layer.weight:t()))
    local before = layer.weight:detach()
    layer(dm.randn(4, 3)):pow(2):sum():backward()
    sgd:step()
    assert.is_false(dm.equal(before, layer.weight))
    assert.is_true(dm.equal(layer.weight, layer.weight:t()))
    local value = layer.weight:detach()
    remove(layer, "weight")
    assert.is_true(rawequal(weight, layer.weight))
    assert.is_true(dm.equal(value, weight))
    assert.equal("Linear", layer.class)
    assert.is_nil(layer.parametrizations)
  end)

  it("leaves what is stored where that is asked for", function()
    local layer = register(nn.Linear(2, 2), "weight", Symmetric())
    local stored = layer.parametrizations.weight.original:detach():clone()
    remove(layer, "weight", {leave_parametrized = false})
    assert.is_true(dm.equal(stored, layer.weight))
  end)

  it("follows others, and inverts the chain on assignment", function()
    local layer = nn.Linear(2, 2)
    register(layer, "weight", Symmetric())
    register(layer, "weight", Exp())
    register(layer, "bias", Exp(), {unsafe = true})
    assert.same({"parametrizations.weight.original", "parametrizations.bias.original"},
      names(layer))
    local stored = layer.parametrizations.weight.original
    layer.weight = dm.tensor{{1.0, 2.0}, {2.0, 4.0}}
    close(dm.tensor{{1.0, 2.0}, {2.0, 4.0}}, layer.weight)
    close(dm.tensor{{0.0, math.log(2)}, {0.0, math.log(4)}}, stored)
    assert.is_true(rawequal(stored, layer.parametrizations.weight.original))
    remove(layer, "weight")
    assert.equal("ParametrizedLinear", layer.class)
    remove(layer, "bias")
    assert.equal("Linear", layer.class)
  end)

  it("may store several tensors, and be of a buffer", function()
    local layer = nn.Linear(2, 2)
    local weight = layer.weight.data:clone()
    register(layer, "weight", Pair())
    assert.same({"bias", "parametrizations.weight.original0", "parametrizations.weight.original1"},
      names(layer))
    close(weight, layer.weight)
    layer.weight = weight * 3
    close(weight * 1.5, layer.parametrizations.weight.original1)
    assert.refuses("stored as 2 tensors", function()
      remove(layer, "weight", {leave_parametrized = false})
    end)
    remove(layer, "weight")
    assert.is_true(layer.weight.is_parameter and layer.weight.requires_grad)
    close(weight * 3, layer.weight)
    local norm = register(nn.BatchNorm1d(2), "running_var", Exp())
    assert.equal(2, #norm:parameters())
    close(dm.ones(2), norm.running_var)
    close(dm.zeros(2), norm.parametrizations.running_var.original)
    remove(norm, "running_var")
    assert.equal(2, #norm:parameters())
    assert.is_not_nil(norm:state_dict().running_var)
  end)

  it("is copied, converted, saved and loaded with the module", function()
    local model = nn.Sequential{nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)}
    forms.weight_norm(model[1])
    forms.spectral_norm(model[3])
    model:eval()
    local x = dm.randn(2, 3)
    local y, other = model(x), model:copy()
    model[1].parametrizations.weight.original0.data:zero_()
    close(y, other(x))
    assert.is_false(dm.equal(y, model(x)))
    model:load_state_dict(other:state_dict())
    close(y, model(x))
    assert.equal("float64", model:double()[1].weight.dtype)
    close(y, model(x:double()):float(), 1e-5)
    assert.equal("Identity", nn.Identity().class)
  end)

  it("weight_norm comes before other parametrizations", function()
    local layer = forms.spectral_norm(nn.Linear(2, 3))
    assert.error_matches(function() forms.weight_norm(layer) end,
      "hint: register the other after weight_norm")
    layer(dm.ones(1, 2)) -- the module is as it was
    forms.spectral_norm(forms.weight_norm(nn.Linear(2, 3)))(dm.ones(1, 2))
  end)

  it("weight_norm takes -1 for all dims, and -2 for the first of two, as PyTorch does", function()
    local w = dm.tensor({{1.0, 2}, {3, 4}, {5, 6}}, {dtype = "float64"})
    local rows = {{2.23606797749979}, {5.0}, {7.810249675906654}}
    for dim, want in pairs{[-1] = 9.539392014169456, [-2] = rows, all = 9.539392014169456} do
      local function layer()
        local made = nn.Linear(2, 3, {dtype = "float64"})
        made.weight.data:copy_(w)
        return made
      end
      want = dm.tensor(want, {dtype = "float64"})
      local newer = forms.weight_norm(layer(), {dim = dim})
      for _, g in ipairs{nn.utils.weight_norm(layer(), {dim = dim}).weight_g,
        newer.parametrizations.weight.original0} do
        assert.same({table.unpack(want.shape)}, {table.unpack(g.shape)})
        assert.is_true((g - want):abs():max():item() < 1e-14)
      end
      assert.is_true((newer.weight - w):abs():max():item() < 1e-14)
    end
    assert.error_matches(function() forms.weight_norm(nn.Linear(2, 3), {dim = -3}) end,
      "dim is %-3")
  end)

  it("reads what the older weight_norm saved", function()
    local older, newer = nn.utils.weight_norm(nn.Linear(3, 2)), forms.weight_norm(nn.Linear(3, 2))
    local x = dm.randn(2, 3)
    newer:load_state_dict(older:state_dict())
    close(older(x), newer(x))
    local outer = nn.Sequential{forms.weight_norm(nn.Linear(3, 2))}
    outer:load_state_dict(nn.Sequential{older}:state_dict())
    close(older(x), outer(x))
  end)

  it("trains under autocast", function()
    local layer = forms.weight_norm(nn.Linear(8, 4))
    local x = dm.randn(2, 8)
    local y
    dm.amp.autocast(x.device:match "^%a+", {dtype = "bfloat16"}, function() y = layer(x) end)
    assert.equal("bfloat16", y.dtype)
    close(layer(x), y:float(), 0.05)
    y:float():sum():backward()
    for _, p in layer:named_parameters() do assert.equal("float32", p.grad.dtype) end
  end)

  it("is computed once within cached", function()
    local calls, layer = 0, nn.Linear(2, 2)
    local Counted = nn.Module:extend "Counted"
    function Counted.forward(_, x) calls = calls + 1 return x * 2 end
    register(layer, "weight", Counted(), {unsafe = true})
    calls = 0
    do
      local _ <close> = P.cached()
      local weight = layer.weight
      assert.is_true(rawequal(weight, layer.weight))
      P.cached(function() return layer.weight end)
      assert.equal(1, calls)
      assert.equal(1, (P.cached(function() return calls end)))
    end
    assert.is_not_nil(layer.weight)
    assert.equal(2, calls)
    pcall(P.cached, function() error "x" end)
    assert.is_false(rawequal(layer.weight, layer.weight))
  end)

  it("is refused where it cannot be", function()
    local layer = nn.Linear(2, 3)
    assert.refuses("Linear has no parameter or buffer 'wait'", function()
      register(layer, "wait", Exp())
    end)
    local Flat = nn.Module:extend "Flat"
    function Flat.forward(_, x) return x:reshape(-1) end
    assert.refuses("is float32 {6}, wanted float32 {3, 2} as before; hint: unsafe = true",
      function() register(layer, "weight", Flat()) end)
    assert.equal("Linear", layer.class)
    register(layer, "weight", Flat(), {unsafe = true})
    assert.same({6}, {table.unpack(layer.weight.shape)})
    assert.refuses("Flat has no right_inverse", function() layer.weight = dm.zeros(6) end)
    assert.refuses("is given a nil", function() layer.weight = nil end)
    assert.refuses("has no parametrization of 'bias'", function() remove(layer, "bias") end)
    assert.refuses("wanted 2 or more dims", function() forms.orthogonal(layer, "bias") end)
    assert.refuses("n_power_iterations is 0", function()
      forms.spectral_norm(layer, {n_power_iterations = 0})
    end)
    local exp = forms.orthogonal(nn.Linear(2, 2), {use_trivialization = false})
    assert.refuses("has no right_inverse", function() exp.weight = dm.eye(2) end)
  end)

  it("makes weights orthogonal, and keeps those that are", function()
    dm.manual_seed(3)
    local q = nn.init.orthogonal_(dm.empty(4, 4))
    for _, map in ipairs{"matrix_exp", "cayley", "householder"} do
      local layer = nn.Linear(4, 4)
      layer.weight.data:copy_(q)
      forms.orthogonal(layer, {orthogonal_map = map})
      close(q, layer.weight, 1e-5)
      layer.parametrizations.weight.original.data:add_(dm.randn(4, 4):tril(-1))
      close(dm.eye(4), layer.weight:matmul(layer.weight:t()), 1e-5)
    end
    local tall = forms.orthogonal(nn.Linear(3, 5), {use_trivialization = false})
    close(dm.eye(3), tall.weight:t():matmul(tall.weight), 1e-5)
    local value = nn.init.orthogonal_(dm.empty(5, 3))
    tall.weight = value
    close(value, tall.weight, 1e-5)
  end)
end)
