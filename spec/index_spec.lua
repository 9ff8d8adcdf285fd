-- x[key] and x[key] = value: keys drawn at random against nested loops, gradients against finite
-- differences, error messages, and which results are views. PyTorch's values are in
-- spec/golden/keys.lua.
local dm = require "demilune"
local case = require "spec.case"

local function ids(...) return dm.tensor({...}, {dtype = "int64"}) end
local function rows(t) return t:totable() end

-- ---- the definition: what key chooses from x of that shape, element by element ----

-- The positions in range item {first, last, step} of a dim of size n.
local function range(item, n)
  local first, last, step = item[1] or 1, item[2] or item[1] or n, item[3] or 1
  local out = {}
  for p = first < 0 and first + n + 1 or first, last < 0 and last + n + 1 or last, step do
    out[#out + 1] = p
  end
  return out
end

-- An index tensor's positions along each of its dims (one, but for masks), all of one shape.
local function positions_of(t)
  if t.dtype ~= "bool" then return {{shape = t.shape, at = case.values(t)}} end
  local columns = {}
  for d = 1, t:dim() do columns[d] = {at = {}, shape = {0}} end
  for _, cell in ipairs(t:nonzero():totable()) do
    for d, p in ipairs(cell) do table.insert(columns[d].at, p) end
  end
  for _, column in ipairs(columns) do column.shape = {#column.at} end
  return columns
end

-- Calls visit(cell) for every multi-index of a shape, row by row.
local function each(shape, visit)
  local cell = {}
  local function level(d)
    if d > #shape then return visit(cell) end
    for i = 1, shape[d] do
      cell[d] = i
      level(d + 1)
    end
  end
  level(1)
end

-- The element of a list of that shape at a cell to which it broadcasts.
local function broadcast(list, shape, cell)
  local at = 0
  for d, n in ipairs(shape) do
    at = at * n + (n == 1 and 0 or cell[d + #cell - #shape] - 1)
  end
  return list[at + 1]
end

-- The result's shape and, for each of its elements, the flat position in x.
local function chosen(shape, key)
  local behind = #shape
  for _, item in ipairs(key) do
    if dm.is_tensor(item) and item.dtype == "bool" then behind = behind - item:dim()
    elseif item ~= "..." and item ~= dm.newaxis then behind = behind - 1 end
  end
  local axes, indices, dim, front, apart = {}, {}, 1, nil, false
  local function pass(item)
    axes[#axes + 1] = {dim = dim, at = range(item, shape[dim])}
    dim = dim + 1
  end
  local fixed, last = {}, nil
  for _, item in ipairs(key) do
    if item == "..." then
      for _ = 1, behind do pass{} end
      behind = 0
    elseif item == dm.newaxis then axes[#axes + 1] = {at = {1}}
    elseif type(item) == "number" then
      fixed[dim], dim = item < 0 and item + shape[dim] + 1 or item, dim + 1
    elseif dm.is_tensor(item) then
      apart = apart or last and last ~= #axes
      front, last = front or #axes + 1, #axes
      for _, index in ipairs(positions_of(item)) do
        index.dim, dim = dim, dim + 1
        indices[#indices + 1] = index
      end
    else pass(item) end
  end
  for _ = 1, behind do pass{} end
  local wide = {}
  for _, index in ipairs(indices) do
    local most = math.max(#wide, #index.shape)
    for d = 0, most - 1 do
      local a, b = wide[#wide - d] or 1, index.shape[#index.shape - d] or 1
      index.wide = index.wide or {}
      index.wide[most - d] = a == 1 and b or a
    end
    wide = index.wide
  end
  front = apart and 1 or front or 1
  local out = {}
  for _, axis in ipairs(axes) do out[#out + 1] = #axis.at end
  for d = #wide, 1, -1 do table.insert(out, front, wide[d]) end
  local flat = {}
  each(out, function(at)
    local source, own = {}, {table.unpack(at, front, front + #wide - 1)}
    for d, p in pairs(fixed) do source[d] = p end
    for k, axis in ipairs(axes) do
      if axis.dim then source[axis.dim] = axis.at[at[k < front and k or k + #wide]] end
    end
    for _, index in ipairs(indices) do
      local p = broadcast(index.at, index.shape, own)
      source[index.dim] = p < 0 and p + shape[index.dim] + 1 or p
    end
    local position = 0
    for d, n in ipairs(shape) do position = position * n + source[d] - 1 end
    flat[#flat + 1] = position + 1
  end)
  return out, flat
end

-- Whole numbers from low to high; from low to -1 where low is negative.
local function random_ids(shape, low, high)
  local t = dm.zeros(shape, {dtype = "int64"})
  local flat = t:view(-1)
  for k = 1, #flat do flat[k] = math.random(low, low < 0 and -1 or high) end
  return t
end

-- A key for x of that shape; index tensors broadcast with each other.
local function random_key(shape)
  local key, dim, used = {}, 1, false
  local common = {math.random(0, 3), math.random(3)}
  local function index(n)
    local own = {}
    for d = math.random(2), 2 do own[#own + 1] = math.random(3) == 1 and 1 or common[d] end
    return random_ids(own, math.random(3) == 1 and -n or 1, n)
  end
  while dim <= #shape do
    local n, kind = shape[dim], math.random(12)
    if kind == 1 and not used then
      key[#key + 1], used = "...", true
      dim = dim + math.random(0, #shape - dim + 1)
    elseif kind == 2 then key[#key + 1] = dm.newaxis
    elseif kind == 3 and n > 0 then
      key[#key + 1], dim = math.random(n) - (math.random(2) == 1 and n + 1 or 0), dim + 1
    elseif kind == 4 and n > 0 then
      local first = math.random(n)
      key[#key + 1], dim = {first, math.random(first, n), math.random(2)}, dim + 1
    elseif kind == 5 and #shape == dim + 1 and common[1] > 0 then -- as many as the indices
      local mask = dm.zeros(n * shape[dim + 1], {dtype = "bool"})
      for p = 1, math.min(common[2], #mask) do mask[p] = true end
      if #mask < common[2] then return random_key(shape) end
      key[#key + 1], dim = mask:view(n, -1), dim + 2
    elseif kind >= 6 and kind <= 10 and n > 0 then key[#key + 1], dim = index(n), dim + 1
    elseif kind > 10 or n == 0 then key[#key + 1], dim = {}, dim + 1 end
    if used and math.random(3) == 1 then break end
  end
  return key
end

-- The dims behind "..." must be those that the key was drawn for.
local function fits(shape, key)
  local dim = #shape
  for k = #key, 1, -1 do
    local item = key[k]
    if item == "..." then return true end
    local index = dm.is_tensor(item)
    local n = index and item.dtype == "bool" and item:dim() or item == dm.newaxis and 0 or 1
    dim = dim - n
    if dim < 0 then return false end
    local size = shape[dim + 1]
    if index and item.dtype == "bool" then
      for d = 1, n do if item:size(d) ~= shape[dim + d] then return false end end
    elseif index then
      for _, p in ipairs(case.values(item)) do if math.abs(p) > size then return false end end
    elseif type(item) == "number" and math.abs(item) > size
      or type(item) == "table" and (item[2] or 0) > size then
      return false
    end
  end
  return true
end

local function spell(key)
  local words = {}
  for k, item in ipairs(key) do
    words[k] = dm.is_tensor(item) and item.dtype .. tostring(item.shape)
      or type(item) == "table" and "{" .. table.concat(item, ",") .. "}" or tostring(item)
  end
  return table.concat(words, " ")
end

describe("a key", function()
  it("chooses what nested loops choose, and writes there", function()
    math.randomseed(11)
    local tried, indices = 0, 0
    while tried < 1500 do
      local shape = {}
      for d = 1, math.random(4) do shape[d] = math.random(math.random(9) == 1 and 0 or 1, 4) end
      local key = random_key(shape)
      if fits(shape, key) then
        local text = table.concat(shape, "x") .. " by " .. spell(key)
        local want, flat = chosen(shape, key)
        local n = case.numel(shape)
        local dtype = ({"float32", "bfloat16", "int64"})[math.random(3)]
        local x = (n > 0 and dm.arange(n) or dm.zeros(0)):to(dtype):view(shape)
        if math.random(2) == 1 and #shape > 1 then
          x = x:transpose(1, -1):contiguous():transpose(1, -1)
        end
        local got = x[key]
        assert.same(want, {table.unpack(got.shape)}, text)
        assert.same(flat, case.values(got:long()), text)
        local value = random_ids(want, 100, 200):to(dtype)
        local written = case.values(x:long())
        for k, v in ipairs(case.values(value:long())) do written[flat[k]] = v end
        x[key] = value
        assert.same(written, case.values(x:long()), text)
        tried = tried + 1
        for _, item in ipairs(key) do indices = indices + (dm.is_tensor(item) and 1 or 0) end
      end
    end
    assert.is_true(indices > 1000)
  end)

  it("passes gradients and their gradients", function()
    local m = dm.tensor{true, false, true}
    for i, key in ipairs{{ids(1, -1), {}, ids(2, 2)}, {{}, m, ids(1)}, {1, m}, {"...", ids(4)},
      {ids(2, 1):unsqueeze(2), ids(1, 2, -1), dm.newaxis},
      {ids(2, 1, 2), ids(1, 3, 1)}, {{}, ids(3, 3)}} do
      local x = dm.randn(2, 3, 4, {dtype = "float64", requires_grad = true})
      local v = dm.randn_like(x[key].data):requires_grad_()
      local function put(a, b)
        local y = a * 1
        y[key] = b * b
        return y * y
      end
      local distinct = i < 6 -- of several writes to one cell the last wins
      assert.is_true(dm.autograd.gradcheck(function(a) return a[key] ^ 3 end, {x}))
      if distinct then assert.is_true(dm.autograd.gradcheck(put, {x, v})) end
      assert.is_true(dm.autograd.gradcheck(dm.enable_grad():wrap(function(a, b)
        local z = (a[key] ^ 3 * b):sum()
        if distinct then z = z + put(a, b):sum() end
        return dm.autograd.grad(z, {a, b}, {create_graph = true})
      end), {x, v}))
    end
  end)

  it("adds up 16-bit gradients and rounds once", function()
    local x = dm.zeros(2, 2, {dtype = "bfloat16", requires_grad = true})
    local n = 300
    x[{dm.ones(n, {dtype = "int64"}), dm.full({n}, 2)}]:sum():backward()
    assert.same({{0, 300}, {0, 0}}, rows(x.grad))
  end)

  it("takes whole numbers of any kind, and tensors of one", function()
    local x = dm.arange(12):view(3, 4)
    assert.equal(5, x[4 / 2][1.0]:item())
    assert.equal(5, x[{4 / 2, 1.0}]:item())
    assert.same({6, 7}, rows(x[{2, {8 / 4, 3.0}}]))
    x[6 / 2] = 0
    assert.same({0, 0, 0, 0}, rows(x[3]))
    x[dm.tensor(1)]:fill_(9) -- a view, as for a number
    assert.same({9, 9, 9, 9}, rows(x[1]))
    x[{dm.tensor(-1), dm.tensor(2)}] = 7
    assert.equal(7, x[{3, 2}]:item())
  end)

  it("fills what an index among others means", function()
    local x = dm.zeros(2, 3)
    x[{{}, ids(1, 3)}] = 1
    assert.same({{1, 0, 1}, {1, 0, 1}}, rows(x))
    x[{ids(1, 2), ids(2, -1)}] = dm.tensor{5.0, 6}
    assert.same({{1, 5, 1}, {1, 0, 6}}, rows(x))
    x[{ids(2), 1}] = 7
    assert.same({{1, 5, 1}, {7, 0, 6}}, rows(x))
    x[{2, x[2]:eq(0)}] = 8
    assert.same({{1, 5, 1}, {7, 8, 6}}, rows(x))
    x["..."] = 0
    assert.same({{0, 0, 0}, {0, 0, 0}}, rows(x))
    assert.same({{{0, 0, 0}, {0, 0, 0}}}, rows(x[dm.newaxis]))
    local logp = dm.arange(6):view(2, 3):t()
    assert.same({1, 5, 3}, rows(logp[{dm.arange(3), ids(1, 2, 1)}]))
  end)

  it("writes a number as the dtype of the tensor, whatever the key", function()
    local mask = dm.tensor{true, false}
    for _, key in ipairs{{ids(1), ids(2)}, {mask, ids(2)}, {1, 2}, {1, ids(2)}} do
      local x, b = dm.zeros(2, 2, {dtype = "int64"}), dm.zeros(2, 2, {dtype = "bool"})
      x[key] = 6 / 2
      assert.same({{0, 3}, {0, 0}}, rows(x))
      b[key] = true
      assert.same({{false, true}, {false, false}}, rows(b))
      b[key] = 0.0
      assert.is_false(b:any():item())
    end
    local x = dm.zeros(2, 2, {dtype = "int8"}):index_put({ids(1), ids(2)}, 3.0)
    assert.same({{0, 3}, {0, 0}}, rows(x))
    assert.refuses("index_put: 2.5 cannot be written into int8",
      function() x:index_put({ids(1), ids(2)}, 2.5) end)
  end)

  it("cuts a number in an integer dtype, whatever the key", function()
    local mask = dm.tensor{true, false}
    for _, key in ipairs{1, ids(1), mask, {1, 2}, {ids(1), ids(2)}, {mask, ids(2)}, {1, ids(2)},
        {{1, 2}}} do
      local x, b = dm.zeros(2, 2, {dtype = "int8"}), dm.zeros(2, 2, {dtype = "bool"})
      x[key] = 2.5
      assert.equal(2, x[1][2]:item())
      x[key] = -2.5
      assert.equal(-2, x[1][2]:item())
      b[key] = 0.5
      assert.is_true(b[1][2]:item())
      assert.refuses("300.5 does not fit into int8", function() x[key] = 300.5 end)
    end
  end)

  it("names in its errors what was written, not the steps that it takes", function()
    local x, whole = dm.zeros(2, 3), dm.zeros(2, 3, {dtype = "int8"})
    local function refused(text, fn)
      local ok, message = pcall(fn)
      assert.is_false(ok)
      assert.equal(text, (message:gsub("^[^ ]*:%d+: ", "")))
    end
    refused("index 3 is out of range for dim 1 of shape {2, 3}", function() return x[3] end)
    local function beyond(key)
      refused("index 4 is out of range for dim 2 of shape {2, 3}", function() x[key] = 1 end)
    end
    beyond{{}, {4}}
    beyond{1, 4}
    beyond{dm.newaxis, ids(1), {1, 4}}
    beyond{"...", 4}
    beyond{dm.tensor(true), dm.tensor(1), 4}
    beyond{dm.tensor{true, false}, 4}
    -- elsewhere the kernel tells later
    local function here(i) return dm.tensor({i}, {device = "cpu"}) end
    local y = dm.zeros(2, 3, {device = "cpu"})
    refused("index: the index holds 3 at {1}, wanted 1 to 2", function() return y[here(3)] end)
    refused("index: the index holds 3 at {1}, wanted 1 to 2", function() y[here(3)] = 1 end)
    refused("index: the index holds 4 at {1}, wanted 1 to 3",
      function() return y[{here(1), here(4)}] end)
    refused("index_put: the index holds 4 at {1}, wanted 1 to 3",
      function() y:index_put({here(1), here(4)}, 1) end)
    refused("index: the index is float32, wanted positions as int64 (or another integer dtype)",
      function() return x[dm.tensor{1.5}] end)
    refused("index: shapes {3} and {2} do not broadcast: dim 1 is 3 on the left and 2 on the right",
      function() x[1] = dm.ones(2) end)
    refused('index: float32 cannot be written into int8; hint: x:to("float32")',
      function() whole[ids(1)] = dm.ones(3) end)
    refused('index: float32 cannot be written into int8; hint: x:to("float32")',
      function() whole[whole:eq(0)] = dm.tensor(2.5) end)
  end)

  it("ends ipairs at the last row", function()
    local x, sum = dm.arange(6):view(3, 2), 0
    for i, row in ipairs(x) do sum = sum + i * row:sum():item() end
    assert.equal(3 + 2 * 7 + 3 * 11, sum)
    assert.refuses("out of range", function() return x[4] end)
    assert.refuses("out of range", function() return x[{4}] end)
    for _ in ipairs(dm.zeros(0, 2)) do error "no row" end
  end)

  it("says what it wants and leaves the tensor as it was", function()
    local x = dm.arange(6):view(2, 3)
    local function refused(message, key, value)
      local function read() return x[key] end
      local function write() x[key] = value or 1 end
      if not value then assert.error_matches(read, message, 1, true) end
      assert.error_matches(write, message, 1, true)
      assert.same({{1, 2, 3}, {4, 5, 6}}, rows(x))
    end
    refused("a position is a whole number", 1.5)
    refused("a position is a whole number", {1, 5 / 2})
    refused("a position is a whole number", {{1, 1.5}})
    refused("positions count from 1", 0)
    refused("positions count from 1", {dm.tensor(0)})
    refused("out of range", {3, 1})
    refused("out of range", {{1, 3}})
    refused("out of range", {dm.tensor(3)})
    refused("too many indices for a tensor of shape {2, 3}", {1, 1, 1})
    refused("too many indices for a tensor of shape {2, 3}", {1, 1, "...", 1})
    refused("too many indices for a tensor of shape {2, 3}", {1, ids(1), ids(1)})
    refused("\"...\" may stand once", {"...", "..."})
    refused("'all' is none of \"...\", dm.newaxis", {"all", 1})
    refused("hint: dm.tensor{...} takes a list of positions", {{1, 2, 1, 2}})
    refused("a range holds integers, got string", {{"1"}})
    refused("given a table with the name 'dim'", {dim = 1})
    refused("given a table with the name 'last'", {1, {last = 1}})
    refused("hint: x:eq(y), x:gt(y) make masks", {x == 1})
    refused("tensor expected, got nil", {nil, 1})
    refused("tensor was freed", {(function() local i = ids(1) i:free() return i end)()})
    refused("the index is float32", {ids(1), dm.tensor{1.0}})
    refused("shapes {2} and {3} do not broadcast", {ids(1, 2), ids(1, 2, 3)})
    refused("a mask of shape {3} for dim 1 of shape {2, 3}", dm.tensor{true, false, true})
    refused("a mask of shape {1, 3} for dim 1", x[{{1, 1}}]:eq(1))
    refused("a mask of shape {2} for dim 2 of shape {2, 3}", {ids(1), x[{{}, 1}]:eq(1)})
    refused("values of shape {3} do not broadcast to {2}", {ids(1, 2), ids(2, 3)}, x[1])
    refused("float32 cannot be written into int64", {ids(1), ids(2)}, dm.zeros(1))
    refused("number or tensor expected as the value", 1, "one")
    assert.refuses("a tensor has no 'shap'", function() return x.shap end)
    if x.device == "cpu" then
      refused("the index holds 4 at {2}, wanted 1 to 3", {ids(1, 1), ids(3, 4)})
      refused("the index holds 0 at {1}", {ids(0, 1), ids(3, 1)})
    end
    local leaf = dm.ones(2, 2, {requires_grad = true})
    assert.refuses("a leaf that requires grad", function() leaf[{ids(1), ids(1)}] = 1 end)
    assert.refuses("a view of a leaf", function() leaf[{1, ids(1)}] = 1 end)
    local turned = dm.ones(2, 3):t():requires_grad_() -- a leaf that is a view itself
    assert.refuses("a view of a leaf", function() turned[1] = 1 end)
    assert.is_true(turned.is_leaf and turned:sum():item() == 6)
  end)
end)

-- What each reduction makes of the element x and the source's v.
local REDUCE = {
  add = function(x, v) return x + v end,
  set = function(_, v) return v end,
  prod = function(x, v) return x * v end,
  amax = math.max,
  amin = math.min,
}

-- x with src reduced into it one element after another, as a list.
local function scattered(x, dim, index, src, reduce)
  local out, at, from = case.values(x), case.values(index), case.values(src)
  local function offset(shape, cell, position)
    local sum = 0
    for d = 1, #shape do sum = sum * shape[d] + (d == dim and position or cell[d]) - 1 end
    return sum + 1
  end
  local i = 0
  each(index.shape, function(cell)
    i = i + 1
    local to = offset(x.shape, cell, at[i])
    out[to] = REDUCE[reduce](out[to], from[offset(src.shape, cell, cell[dim])])
  end)
  return out
end

describe("scatter", function()
  -- The op of a reduction's name.
  local function run(x, dim, index, src, reduce)
    if reduce == "set" then return x:scatter(dim, index, src) end
    if reduce == "add" then return x:scatter_add(dim, index, src) end
    return x:scatter_reduce(dim, index, src, reduce)
  end

  -- Few positions are drawn, so that most occur several times. Some tensors are large enough
  -- for several threads, in rows that are short, or long, or cut by a larger source.
  local CASES = {
    {x = {5}, index = {9}, dim = 1}, {x = {4, 3}, index = {6, 3}, dim = 1},
    {x = {4, 3}, index = {2, 5}, dim = 2}, {x = {3, 200}, index = {7, 190}, dim = 1},
    {x = {9, 701}, index = {64, 701}, dim = 1}, {x = {9, 701}, index = {64, 650}, dim = 1},
    {x = {9, 5}, index = {9000, 5}, dim = 1}, {x = {3, 7, 401}, index = {3, 40, 401}, dim = 2},
    {x = {6, 3, 131}, index = {90, 3, 130}, dim = 1}, {x = {99, 7}, index = {99, 400}, dim = 2},
  }
  local DTYPES = {"float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8"}
  local threads = dm.get_num_threads()
  teardown(function() dm.set_num_threads(threads) end)

  for k, c in ipairs(CASES) do
    it("writes in the order of the positions: case " .. k, function()
      dm.manual_seed(k)
      local larger = {}
      for d = 1, #c.index do larger[d] = c.index[d] + d % 2 end
      for reduce in pairs(REDUCE) do
        local dtype = DTYPES[(k + #reduce) % #DTYPES + 1]
        if reduce == "add" then dtype = k % 4 == 0 and "float32" or "int64" end
        -- whole numbers that every dtype holds, as it does their products and those sums
        local most = reduce == "prod" and 1 or 2
        local x = dm.randint(0, most, c.x, {dtype = "float32"}):to(dtype)
        local src = dm.randint(0, most, larger, {dtype = "float32"}):to(dtype)
        local index = dm.randint(1, c.x[c.dim], c.index)
        if reduce == "add" and k % 2 == 1 then -- what the sums round to tells the order
          x, src = dm.randn(c.x, {dtype = "float64"}), dm.randn(larger, {dtype = "float64"})
        end
        local want = scattered(x, c.dim, index, src, reduce)
        -- the same elements in columns instead of rows
        local turned = #c.index > 1 and src:transpose(1, -1):contiguous():transpose(1, -1) or src
        for n = 1, 3 do
          dm.set_num_threads(n)
          assert.same(want, case.values(run(x, c.dim, index, src, reduce)))
          assert.same(want, case.values(run(x, c.dim, index, turned, reduce)))
        end
      end
    end)
  end

  it("keeps NaN in extremes, wherever it comes", function()
    local x, nan = dm.tensor{{1, 2, 0 / 0, 4}}, 0 / 0
    local src, index = dm.tensor{{3, nan, 1, 1}, {2, 5, 9, 6}}, dm.ones(2, 4, {dtype = "int64"})
    assert.equal("3 nan nan 6", (table.concat(case.values(
      x:scatter_reduce(1, index, src, "amax")), " "):gsub("%-?nan", "nan"):gsub("%.0", "")))
    assert.equal("1 nan nan 1", (table.concat(case.values(
      x:scatter_reduce(1, index, src, "amin")), " "):gsub("%-?nan", "nan"):gsub("%.0", "")))
  end)
end)

describe("what PyTorch calls a view", function()
  it("writes to its base", function()
    local views = {
      select = {1, 1}, narrow = {2, 1, 2}, transpose = {1, 2}, permute = {{3, 1, 2}}, diagonal = {},
      view = {-1}, reshape = {-1}, flatten = {}, unsqueeze = {1}, squeeze = {}, movedim = {1, 2},
      swapaxes = {1, 2}, swapdims = {1, 3}, moveaxis = {1, 3}, unflatten = {3, {2, 2}},
      detach = {}, view_as = {dm.zeros(12, 2)}, reshape_as = {dm.zeros(12, 2)}, ravel = {},
      as_strided = {{2}, {1}}, expand = {2, 3, 4}, expand_as = {dm.zeros(2, 3, 4)},
      broadcast_to = {{2, 3, 4}}, contiguous = {}, unbind = {1}, split = {1}, chunk = {2},
      tensor_split = {2}, hsplit = {3}, vsplit = {2}, dsplit = {2},
    }
    local tried = 0
    for name, args in pairs(views) do
      local x = dm.zeros(2, 3, 4)
      if pcall(function() return x[name] end) then
        local y = x[name](x, table.unpack(args))
        y = type(y) == "table" and y[1] or y
        y:fill_(7)
        assert.is_true(x:eq(7):any():item(), name)
        tried = tried + 1
      end
    end
    assert.is_true(tried > 20)
    local x = dm.zeros(2, 3)
    for _, row in pairs(x) do row:fill_(1) end
    for _, row in ipairs(x) do row:add_(1) end
    x.data[{1, 1}] = 5
    assert.same({{5, 2, 2}, {2, 2, 2}}, rows(x))
  end)

  -- the values are PyTorch's
  it("fills the diagonal of all dims, which wraps where that is asked for", function()
    local function at(x)
      local list = {}
      for i, v in ipairs(x:flatten():totable()) do
        if v == 5 then list[#list + 1] = i end
      end
      return list
    end
    assert.same({1, 5, 9, 13, 17, 21}, at(dm.zeros(7, 3):fill_diagonal_(5, true)))
    assert.same({1, 5, 9, 13, 17, 21}, at(dm.zeros(8, 3):fill_diagonal_(5, {wrap = true})))
    assert.same({1, 9, 17}, at(dm.zeros(3, 7):fill_diagonal_(5, true)))
    assert.same({1, 5, 9}, at(dm.zeros(7, 3):fill_diagonal_(5)))
    assert.same({1, 8}, at(dm.zeros(2, 2, 2):fill_diagonal_(5)))
    assert.same({}, at(dm.zeros(0, 3):fill_diagonal_(5)))
    assert.same({}, at(dm.zeros(3, 0):fill_diagonal_(5, true)))
    assert.same({{5, 0}, {0, 5}, {0, 0}}, rows(dm.zeros(2, 3):t():fill_diagonal_(5)))
    local x = dm.ones(3, 2, {requires_grad = true})
    local y = x * 2
    assert.is_true(rawequal(y, y:fill_diagonal_(7)))
    y:sum():backward()
    assert.same({{0, 2}, {2, 0}, {2, 2}}, rows(x.grad))
    assert.refuses("index_spec.lua:%d+: fill_diagonal_: x is {4}, wanted 2 dims or more",
      function() dm.zeros(4):fill_diagonal_(1) end)
    assert.refuses("index_spec.lua:%d+: fill_diagonal_: x is {2, 3, 2}, wanted dims of one size",
      function() dm.zeros(2, 3, 2):fill_diagonal_(1) end)
  end)

  it("refuses numbers that an integer does not hold, wherever they are written", function()
    local mask, first = dm.tensor{true, false, false}, dm.tensor{1}
    local writes = {
      index = function(x, v)
        for _, key in ipairs{1, mask} do
          local ok, message = pcall(function() x[key] = v end)
          assert(not ok and message:find "index: .- does not fit into", message)
        end
        x[first] = v
      end,
      fill_ = function(x, v) x:fill_(v) end,
      full = function(x, v) return dm.full({2}, v, {dtype = x.dtype}) end,
      full_like = function(x, v) return dm.full_like(x, v) end,
      tensor = function(x, v) return dm.tensor({v}, {dtype = x.dtype}) end,
      index_fill = function(x, v) return x:index_fill(1, first, v) end,
      scatter = function(x, v) return x:scatter(1, first, v) end,
    }
    local beyond = {int8 = {300, -129, 127.5, 1/0, 0/0}, uint8 = {256, -256}, int16 = {1 << 15},
                    int32 = {1 << 31, 2.0^31}, int64 = {2.0^63, -1/0}}
    for dtype, values in pairs(beyond) do
      for _, v in ipairs(values) do
        for name, write in pairs(writes) do
          local x = dm.zeros(3, {dtype = dtype})
          local ok, message = pcall(write, x, v)
          assert.is_false(ok)
          assert(message:find(("%s: .- does not fit into %s"):format(name, dtype)), message)
          assert.same({0, 0, 0}, x:totable())
        end
      end
    end
    assert.refuses("where: 300 does not fit into int8 %(%-128 to 127%)", function()
      return dm.where(mask, dm.zeros(3, {dtype = "int8"}), 300)
    end)
    assert.same({-128, 127}, dm.tensor({-128, 127}, {dtype = "int8"}):totable())
    assert.same({255, 255}, dm.full({2}, -1, {dtype = "uint8"}):totable()) -- as in PyTorch
    assert.same({math.mininteger}, dm.tensor({-2.0^63}, {dtype = "int64"}):totable())
    assert.same({true, false}, dm.zeros(2, {dtype = "bool"})
      :masked_fill(dm.tensor{true, false}, 0.5):totable())
  end)
end)

-- The numbers and refusals are PyTorch's.
describe("view of a dtype", function()
  local function ints(n) return dm.arange(0, n - 1, {dtype = "int32"}) end

  it("reads the bytes in elements of the same size, of any strides", function()
    local x = dm.tensor{{1.0, -2.0}, {0.5, 0.0}}
    local bits = x:t():view("int32")
    assert.same({{1065353216, 1056964608}, {-1073741824, 0}}, bits:totable())
    assert.same({1, 2}, bits:stride())
    bits[1][2] = 0
    assert.same({{1.0, -2.0}, {0.0, 0.0}}, x:totable())
    assert.same(1065353216, dm.tensor(1.0):view{dtype = "int32"}:item())
    assert.same({true, false}, dm.tensor({1, 0}, {dtype = "uint8"}):view("bool"):totable())
  end)

  it("scales the last dim for elements of another size", function()
    local x = ints(6):view(2, 3)
    assert.same({{0, 0, 1, 0, 2, 0}, {3, 0, 4, 0, 5, 0}}, x:view("int16"):totable())
    assert.same({2, 12}, x:view("uint8").shape)
    assert.same({0, 12}, dm.zeros(0, 3):view("int8").shape)
    assert.same({2, 0}, dm.zeros(2, 0):view("int8").shape)
    local y = ints(8)
    assert.same({12884901890, 21474836484}, y:narrow(1, 3, 4):view("int64"):totable())
    assert.same({{4294967296}, {21474836484}},
      y:view(2, 4):narrow(2, 1, 2):view("int64"):totable())
    assert.same({3, 4}, y:expand(3, 8):view("int64").shape)
    assert.is_true(y:view("int8"):view("int64"):view("int32"):equal(y))
  end)

  it("refuses what no strides can say, and says what is wrong", function()
    local x = ints(10)
    local function refused(pattern, t, dtype)
      assert.refuses(pattern, function() t:view(dtype) end)
    end
    refused("the last dim of shape {2, 3} is no multiple of 2", ints(6):view(2, 3), "int64")
    refused("the last dim has stride 3, wanted 1", ints(6):view(2, 3):t(), "int16")
    refused("the last dim has stride 0, wanted 1", x:narrow(1, 1, 1):expand(8), "int64")
    refused("stride 5 of shape {2, 2} is no multiple of 2", x:as_strided({2, 2}, {5, 1}), "int64")
    refused("the first element is number 1", x:narrow(1, 2, 6), "int64")
    refused("no dims", dm.tensor(1.0), "float64")
    refused("did you mean 'int32'", x, "int33")
    assert.refuses("too many", function() x:view("int8", 2) end)
  end)

  it("has no gradient, and its changes are seen by saved tensors", function()
    local x = dm.tensor({1.0, 2.0}, {requires_grad = true})
    assert.is_false(x:view("float32").requires_grad)
    assert.is_false(x:half():view("bfloat16").requires_grad)
    local y = x * 2
    local bits = y:view("int32")
    bits:zero_()
    y:sum():backward()
    assert.same({2.0, 2.0}, x.grad:totable())
    y = x:exp()
    y:view("uint8"):zero_()
    assert.refuses("was changed in place", function() y:sum():backward() end)
    -- a base whose history changes has none of its views to correct there
    local base = dm.zeros(4)
    local view = base:view("int16")
    base:add_(x.data:repeat_interleave(2) * x:repeat_interleave(2))
    assert.same({8}, (view + 0).shape)
    assert.is_false(view.requires_grad)
  end)
end)
