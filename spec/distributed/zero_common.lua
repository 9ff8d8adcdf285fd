-- What the programs of optim.ZeroRedundancyOptimizer share: comparisons bit by bit, parameters,
-- a model, and the run of all checks.

local core = require "demilune.core"
local dm = require "demilune"
local nn, dist = dm.nn, dm.distributed

local common = {checks = 0}

-- Raises unless ok. ...: what string.format takes.
local function check(ok, what, ...)
  common.checks = common.checks + 1
  if ok then return end
  error(("rank %d of %d: "):format(common.rank, common.n) .. what:format(...), 2)
end
common.check = check

local function bytes_of(x) return core._to_bytes(x:detach():to "cpu") end

-- Raises unless both trees have the same values, those of tensors bit by bit.
function common.same(a, b, at)
  if dm.is_tensor(a) then
    check(dm.is_tensor(b) and a.dtype == b.dtype and tostring(a.shape) == tostring(b.shape),
      "%s: other tensors", at)
    check(bytes_of(a) == bytes_of(b), "%s: %s for %s", at, tostring(b), tostring(a))
  elseif type(a) == "table" then
    check(type(b) == "table", "%s is a %s", at, type(b))
    for key in next, a do common.same(a[key], b[key], at .. "." .. tostring(key)) end
    for key in next, b do check(a[key] ~= nil, "%s.%s is too many", at, tostring(key)) end
  else
    check(a == b, "%s: %s for %s", at, tostring(b), tostring(a))
  end
end

-- {"a", "b"} of {b = , a = }: all ranks go through it in one order.
function common.sorted(t)
  local names = {}
  for name in pairs(t) do names[#names + 1] = name end
  table.sort(names)
  return names
end

function common.with(more, o)
  for key, value in pairs(o) do
    if more[key] == nil then more[key] = value end
  end
  return more
end

-- ---- parameters ----

-- Sizes that no number of ranks divides, among them one element, none, and a tensor without dims.
common.SHAPES = {{5, 3}, {7}, {}, {0}, {2, 3, 3}, {1}, {67}, {4, 4}}
common.MATRICES = {{5, 3}, {7, 2}, {4, 4}, {1, 9}}

-- Options of the classes that try what their defaults leave out.
common.OPTIONS = {SGD = {momentum = 0.9, nesterov = true, weight_decay = 0.1},
  Adam = {amsgrad = true, weight_decay = 0.1}, RMSprop = {momentum = 0.9, centered = true},
  ASGD = {t0 = 2, weight_decay = 0.1}, Adagrad = {lr_decay = 0.1}, Lion = {weight_decay = 0.1}}

function common.parameters(shapes, dtype)
  local list = {}
  for i, shape in ipairs(shapes) do
    list[i] = dm.randn(shape):to(dtype)
    list[i].requires_grad = true
  end
  return list
end

function common.copies(list)
  local out = {}
  for i, p in ipairs(list) do
    out[i] = p:detach():clone()
    out[i].requires_grad = true
  end
  return out
end

-- Two groups that differ in their rate.
function common.groups_of(list)
  local first, second = {}, {}
  for i, p in ipairs(list) do table.insert(i % 3 == 0 and second or first, p) end
  return {{params = first}, {params = second, lr = 0.5}}
end

-- The state that rank 0 gets; nil on the others.
function common.saved_of(zero)
  zero:consolidate_state_dict(0)
  if common.rank == 0 then return zero:state_dict() end
end

-- ---- a training ----

function common.net()
  dm.manual_seed(7)
  return nn.Sequential{nn.Linear(6, 11), nn.ReLU(), nn.LayerNorm(11), nn.Linear(11, 5), nn.ReLU(),
    nn.Linear(5, 3)}
end

-- Weight decay for the matrices only.
function common.decayed(model)
  local matrices, others = {}, {}
  for _, p in ipairs(model:parameters()) do
    table.insert(p:dim() > 1 and matrices or others, p)
  end
  return {{params = matrices}, {params = others, weight_decay = 0.0}}
end

-- Bytes of the state that this rank keeps.
function common.state_bytes(optimizer)
  local bytes = 0
  for _, state in pairs(optimizer.state) do
    for _, value in pairs(state) do bytes = bytes + value:numel() * value:element_size() end
  end
  return bytes
end

function common.refuses(text, f)
  local ok, why = pcall(f)
  check(not ok and tostring(why):find(text, 1, true), "wanted '%s', got %s", text, tostring(why))
end

-- ---- the run ----

-- Runs all checks in the order of their names -> how many values were compared.
function common.run(checks)
  common.rank, common.n, common.checks = dist.get_rank(), dist.get_world_size(), 0
  for _, name in ipairs(common.sorted(checks)) do checks[name]() end
  return common.checks
end

-- The program: `mpirun -n 3 lua5.4 spec/distributed/NAME.lua`. prepare: nil, or gives a function
-- that is called when the process group has ended.
function common.main(run, prepare)
  dist.init_process_group{timeout = 30}
  local rank, n, count = dist.get_rank(), dist.get_world_size(), run()
  local after = prepare and prepare()
  dist.destroy_process_group()
  if after and n > 1 then after() end
  io.write(("rank %d of %d: %d checks\n"):format(rank, n, count))
end

return common
