-- Tensors of many dims, up to 16: the same call on x with dims of size 1 in between gives the
-- elements that it gives on x, and names the limit beyond it.

local dm = require "demilune"

local SPREAD = {1, 2, 1, 1, 3, 1, 1, 1, 2, 1, 1, 1, 1, 1, 2, 1} -- of {2, 3, 2, 2}
local AT = {2, 5, 9, 15} -- where its dims are

local x = dm.arange(24):double():view(2, 3, 2, 2)
local wide = x:view(SPREAD)

local function flat(t) return t:reshape(-1):totable() end

-- The same elements, not in the order of memory: the dims reversed and back.
local function strided(t)
  local order = {}
  for d = t:dim(), 1, -1 do order[#order + 1] = d end
  return t:permute(order):contiguous():permute(order)
end

describe("a tensor of 16 dims", function()
  it("is made, shown and indexed", function()
    assert.same(SPREAD, {table.unpack(wide.shape)})
    assert.equal(16, wide:dim())
    assert.matches("float64 tensor {1, 2, 1, 1, 3, 1, 1, 1, 2, 1, 1, 1, 1, 1, 2, 1} cpu",
      tostring(wide:cpu()), 1, true)
    assert.same({2, 2}, {table.unpack(wide[{1, 2, "...", 1}]:squeeze()[3].shape)})
    assert.equal(24, wide[{1, 2, 1, 1, 3, 1, 1, 1, 2, 1, 1, 1, 1, 1, 2, 1}]:item())
    local ids = dm.tensor{2, 1}
    local key = {1, ids, 1, 1, ids, "..."}
    assert.same(flat(x[{ids, ids}]), flat(wide[key]))
    local y = wide:clone()
    y[key] = 0
    assert.equal(8, y:eq(0):sum():item())
    assert.same(flat(x[x:gt(20)]), flat(wide[wide:gt(20)]))
    assert.same({{1, 2, 1, 1, 3, 1, 1, 1, 2, 1, 1, 1, 1, 1, 2, 1}}, wide:eq(24):nonzero():totable())
    local nested = wide:totable()
    assert.equal(24, nested[1][2][1][1][3][1][1][1][2][1][1][1][1][1][2][1])
    assert.is_true(dm.equal(wide, dm.tensor(nested, {dtype = "float64"})))
  end)

  it("computes element by element, contiguous and strided", function()
    for _, t in ipairs{wide, strided(wide)} do
      assert.same(flat(x:exp() * 2), flat(t:exp() * 2))
      assert.same(flat(x + x[1]), flat(t + t:narrow(2, 1, 1)))
      assert.same(flat(dm.where(x:gt(7), x, -x)), flat(dm.where(t:gt(7), t, -t)))
      assert.same(flat(x:half():sqrt():double()), flat(t:half():sqrt():double()))
      assert.same(SPREAD, {table.unpack((t * t).shape)})
    end
    local y = strided(wide):clone()
    y:add_(strided(wide)):clamp_{max = 30}
    assert.same(flat((x * 2):clamp{max = 30}), flat(y))
  end)

  it("is reduced, sorted and joined along each of its dims", function()
    for d = 1, 4 do
      for _, t in ipairs{wide, strided(wide)} do
        for _, op in ipairs{"sum", "mean", "amax", "prod", "cumsum", "softmax", "argmax"} do
          assert.same(flat(x[op](x, d)), flat(t[op](t, AT[d])), op)
        end
        assert.same(flat((x:sort(d, true))), flat((t:sort(AT[d], true))))
        assert.same(flat(x:flip(d)), flat(t:flip(AT[d])))
        assert.same(flat(dm.cat({x, x}, d)), flat(dm.cat({t, t}, AT[d])))
        assert.same(flat(x:index_select(d, dm.tensor{2, 1, 1})),
          flat(t:index_select(AT[d], dm.tensor{2, 1, 1})))
        assert.same(flat(x:gather(d, dm.ones_like(x):long())),
          flat(t:gather(AT[d], dm.ones_like(t):long())))
      end
    end
    assert.same(flat(x:sum{1, 3}), flat(wide:sum{2, 9}))
    assert.equal(x:std():item(), wide:std():item())
  end)

  it("multiplies matrices over its batch dims", function()
    local t = x:view(1, 1, 2, 1, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 2, 2)
    assert.same(flat(x:matmul(x)), flat(t:matmul(t)))
    assert.same(flat(x:matmul(x[1])), flat(t:matmul(t:narrow(3, 1, 1))))
  end)

  it("has gradients", function()
    local function gradient(t, dim)
      local leaf = t:clone():requires_grad_(true);
      (strided(leaf):div(8):mul(leaf):softmax(dim) * leaf):sum():backward()
      return flat(leaf.grad)
    end
    for d = 1, 4 do assert.same(gradient(x, d), gradient(wide, AT[d])) end
    local bias = dm.ones(3, {dtype = "float64"}):view(3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    bias:requires_grad_(true);
    (wide * bias):sum():backward()
    assert.same(flat(x:sum{1, 3, 4}), flat(bias.grad))
  end)

  it("is saved and loaded", function()
    local path = os.tmpname()
    assert(dm.save(path, {wide = wide}))
    local back = dm.load(path).wide
    os.remove(path)
    assert.same(SPREAD, {table.unpack(back.shape)})
    assert.same(flat(x), flat(back))
  end)
end)

describe("a tensor of 17 dims", function()
  it("is refused by name of the limit", function()
    local size = {table.unpack(SPREAD)}
    size[17] = 1
    assert.refuses("17 values given, a tensor has at most 16 dims", function() dm.ones(size) end)
    assert.refuses("more than 16 dims", function() wide:unsqueeze(1) end)
    assert.refuses("another dim, 16 is the most", function() dm.stack{wide, wide} end)
    assert.refuses("16 dims", function() return wide[{dm.newaxis, "..."}] end)
  end)
end)
