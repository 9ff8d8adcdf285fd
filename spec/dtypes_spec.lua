-- The table of element types against what tensors of each type do.
local dm = require "demilune"
local dtypes = require "demilune.dtypes"

-- x rounded to the dtype
local function rounded(x, dtype) return dm.tensor(x, {dtype = "float64"}):to(dtype):item() end

describe("the dtype table", function()
  it("has sizes, names and methods as tensors have them", function()
    assert.is_true(#dtypes.rows >= 10)
    for _, row in ipairs(dtypes.rows) do
      local t = dm.zeros(1, {dtype = row.name})
      assert.equal(row.size, t:element_size(), row.name)
      assert.equal(row.name, dm[row.name])
      assert.equal(row.kind == "float", t:is_floating_point(), row.name)
      if row.method then
        local from = dm.zeros(1, {dtype = "int8"})
        assert.equal(row.name, from[row.method](from).dtype)
      end
    end
  end)

  it("has the gap after 1, the smallest normal and the largest number of each float", function()
    for _, row in ipairs(dtypes.floats) do
      assert.equal(1 + row.eps, rounded(1 + row.eps, row.name), row.name)
      assert.equal(1, rounded(1 + row.eps / 2, row.name), row.name)
      assert.equal(row.max, rounded(row.max, row.name), row.name)
      -- From the smallest normal number on gaps are in proportion; below it they are no smaller.
      local above = row.tiny * (1 + row.eps)
      assert.equal(above, rounded(above, row.name), row.name)
      if row.name ~= "float64" then -- the type that rounds to the others
        assert.equal(math.huge, rounded(row.max * (1 + row.eps), row.name), row.name)
        local below = row.tiny * (1 - row.eps / 2)
        assert.equal(row.tiny, rounded(below, row.name), row.name)
      end
    end
  end)

  it("go by the name of their method too", function()
    for _, row in ipairs(dtypes.rows) do
      assert.equal(row.name, dm.zeros(1, {dtype = row.method}).dtype)
      assert.equal(row.name, dm.zeros(1):to(row.method).dtype)
    end
    assert.refuses("unknown dtype longer", function() dm.zeros(1, {dtype = "longer"}) end)
  end)

  it("says which floats are low, and which of them do not reach as far as float32", function()
    for _, row in ipairs(dtypes.floats) do
      assert.equal(row.size < 4, row.low, row.name)
      assert.equal(row.max < 2^127, row.narrow, row.name)
    end
  end)

  it("promotes to the higher rank, and two types of one rank to the next one", function()
    local function promoted(a, b)
      return (dm.zeros(1, {dtype = a}) + dm.zeros(1, {dtype = b})).dtype
    end
    for low in pairs(dtypes.low) do
      for other in pairs(dtypes.low) do
        assert.equal(low == other and low or "float32", promoted(low, other))
      end
      assert.equal(low, promoted("int64", low))
      assert.equal("float32", promoted(low, "float32"))
    end
    assert.equal("int16", promoted("uint8", "int8"))
    assert.equal("uint8", promoted("uint8", "bool"))
    assert.equal("float64", promoted("bfloat16", "float64"))
    assert.equal("int32", promoted("int16", "int32"))
  end)
end)

describe("fill_ and zero_", function()
  it("write what full does, however the elements lie", function()
    local function lies(dtype)
      local function zeros(...) return dm.zeros({...}, {dtype = dtype}) end
      return {zeros(3, 5), zeros(5, 3):t(), zeros(6, 5):narrow(1, 2, 3),
        zeros(3, 9):narrow(2, 2, 5), zeros(0, 3), dm.zeros({}, {dtype = dtype})}
    end
    for _, dtype in ipairs{"float32", "float64", "bfloat16", "float16", "int64", "int32", "int16",
                           "int8", "uint8", "bool"} do
      for _, value in ipairs{1, 2.75, 0.5} do
        for _, x in ipairs(lies(dtype)) do
          assert.is_true(x:fill_(value):equal(dm.full(x.shape, value, {dtype = dtype})))
          assert.is_true(x:zero_():equal(dm.zeros(x.shape, {dtype = dtype})))
        end
      end
    end
    local rows = dm.zeros(4, 6)
    rows:narrow(2, 2, 3):fill_(1)
    assert.equal(12, rows:sum():item())
  end)
end)
