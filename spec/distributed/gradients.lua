-- Collectives with gradients on several ranks, for distributed_spec.lua: `mpirun -n 2 lua5.4
-- spec/distributed/gradients.lua`. Every rank knows the tensors of all, so plain ops are the
-- measure: the gradient is that of the sum of all ranks' losses.

local core = require "demilune.core"
core._test.without_cuda()
local dm = require "demilune"
local dist = dm.distributed

dist.init_process_group{timeout = 60}
local rank, n = dist.get_rank(), dist.get_world_size()
local checks = 0

local function near(a, b, what)
  assert(tostring(a.shape) == tostring(b.shape), what .. ": shapes")
  local apart = a:numel() > 0 and (a - b):abs():amax():item() or 0
  local size = a:numel() > 0 and b:abs():amax():item() or 0
  assert(apart <= 1e-13 * (1 + size), ("%s: %g apart on rank %d"):format(what, apart, rank))
  checks = checks + 1
end

-- Random tensors of each rank, the same on all.
local function drawn(seed, shape_of)
  dm.manual_seed(seed)
  local list = {}
  for r = 1, n do list[r] = dm.randn(shape_of(r), {dtype = "float64"}) end
  return list
end

-- The gradients of y by all tensors, zeros where it does not depend on one.
local function gradients(y, xs)
  local list = table.pack(dm.autograd.grad(y, xs, {create_graph = true, allow_unused = true}))
  for i, x in ipairs(xs) do list[i] = list[i] or x * 0 end
  return list
end

-- sent(x, r) gives what rank r (from 1) gets of its tensor x as a list; plain(xs, r) computes that
-- of all ranks' tensors. Compares values, gradients, and gradients of these.
local function compare(what, shape_of, sent, plain)
  local xs = drawn(3, shape_of)
  local own, all = xs[rank + 1]:clone():requires_grad_(), {}
  for r, x in ipairs(xs) do all[r] = x:clone():requires_grad_() end
  local function loss(list, r)
    local sum = 0
    for i, y in ipairs(list) do
      local w = dm.arange(y:numel(), {dtype = "float64"}):reshape(y.shape) * 0.1 + r * i
      sum = sum + (w * y * y * y):sum()
    end
    return sum
  end
  local got = sent(own, rank + 1)
  local total = 0
  for r = 1, n do
    local list = plain(all, r)
    if r == rank + 1 then
      for i, y in ipairs(list) do near(got[i]:detach(), y:detach(), what) end
      assert(#got == #list, what)
    end
    total = total + loss(list, r)
  end
  local first = dm.autograd.grad(loss(got, rank + 1), own, {create_graph = true})
  local want = gradients(total, all)
  near(first:detach(), want[rank + 1]:detach(), what .. "'s gradient")
  local second = dm.autograd.grad(first:square():sum(), own)
  local squares = 0
  for _, g in ipairs(want) do squares = squares + g:square():sum() end
  near(second, gradients(squares, all)[rank + 1]:detach(), what .. "'s second gradient")
end

local function alike(...)
  local shape = {...}
  return function() return shape end
end
local function sum_of(xs, op)
  local sum = 0
  for _, x in ipairs(xs) do sum = sum + x end
  return op == "avg" and sum / n or sum
end
local nn = dist.nn

for _, op in ipairs{"sum", "avg"} do
  compare("all_reduce " .. op, alike(2, 3), function(x) return {nn.all_reduce(x, op)} end,
    function(xs) return {sum_of(xs, op)} end)
  compare("reduce " .. op, alike(3), function(x) return {nn.reduce(x, n - 1, op)} end,
    function(xs, r) return {r == n and sum_of(xs, op) or sum_of(xs) * 0} end)
  compare("reduce_scatter " .. op, alike(n, 2, 2), function(x)
    local output = dm.zeros(2, 2, {dtype = "float64"})
    local y = nn.reduce_scatter(output, x:unbind(1), op)
    near(output, y:detach(), "reduce_scatter's output")
    return {y}
  end, function(xs, r) return {sum_of(xs, op)[r]} end)
end
compare("broadcast", alike(4), function(x) return {nn.broadcast(x, n - 1)} end,
  function(xs) return {xs[n] * 1} end)
compare("all_gather", alike(2, 2), function(x) return nn.all_gather(x) end,
  function(xs)
    local list = {}
    for i, x in ipairs(xs) do list[i] = x * 1 end
    return list
  end)
compare("gather", alike(3), function(x) return nn.gather(x, n - 1) end, function(xs, r)
  local list = {}
  for i, x in ipairs(xs) do list[i] = r == n and x * 1 or x * 0 end
  return list
end)
compare("scatter", alike(n, 2), function(x) return {nn.scatter(x:unbind(1), n - 1)} end,
  function(xs, r) return {xs[n][r]} end)
compare("all_to_all_single", alike(2 * n, 3), function(x)
  return {nn.all_to_all_single(dm.zeros_like(x), x)}
end, function(xs, r)
  local parts = {}
  for i, x in ipairs(xs) do parts[i] = x:narrow(1, 2 * r - 1, 2) end
  return {dm.cat(parts)}
end)

-- Rank r gives (r + i) % 3 rows to rank i: some none.
local function rows(r, i) return (r + i) % 3 end
local function splits(r, of)
  local list, sum = {}, 0
  for i = 1, n do
    list[i] = of(r, i)
    sum = sum + list[i]
  end
  return list, sum
end
local function goes(r) return splits(r, rows) end
local function comes(r) return splits(r, function(mine, i) return rows(i, mine) end) end
local function piece(x, r, i)
  local first = 1
  for before = 1, i - 1 do first = first + rows(r, before) end
  return x:narrow(1, first, rows(r, i))
end
local function uneven(r) return {select(2, goes(r)), 2} end
compare("all_to_all_single of uneven parts", uneven, function(x, r)
  local from, total = comes(r)
  return {nn.all_to_all_single(dm.zeros(total, 2, {dtype = "float64"}), x, from, (goes(r)))}
end, function(xs, r)
  local parts = {}
  for i, x in ipairs(xs) do parts[i] = piece(x, i, r) end
  return {dm.cat(parts)}
end)
compare("all_to_all", uneven, function(x, r)
  local outputs, inputs = {}, {}
  for i = 1, n do
    outputs[i] = dm.zeros(rows(i, r), 2, {dtype = "float64"})
    inputs[i] = piece(x, r, i)
  end
  return nn.all_to_all(outputs, inputs)
end, function(xs, r)
  local parts = {}
  for i, x in ipairs(xs) do parts[i] = piece(x, i, r) * 1 end
  return parts
end)

if n == 3 and rank > 0 then -- a group without rank 0
  local group = dist.new_group{1, 2}
  local x = dm.tensor({1.0 * rank}, {dtype = "float64"}):requires_grad_()
  local loss = nn.all_reduce(x, {group = group}) * rank
  assert(loss:item() == 3 * rank)
  loss:sum():backward()
  assert(x.grad:item() == 3)
elseif n == 3 then
  dist.new_group{1, 2}
end

dist.destroy_process_group()
print(("rank %d of %d: %d checks of gradients"):format(rank, n, checks))
