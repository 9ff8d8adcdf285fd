-- Layers whose weights are divided, on several ranks, for tensor_parallel_spec.lua: `mpirun -n 2
-- lua5.4 spec/distributed/tensor.lua`. The plain layers are the measure. On four ranks a small GPT
-- is trained on a grid, two ranks to a model and two models to a batch.

local dm = require "demilune"
local nn, optim, dist = dm.nn, dm.optim, dm.distributed
local parallel, F = nn.parallel, nn.functional

dist.init_process_group{timeout = 60}
local rank, n = dist.get_rank(), dist.get_world_size()
local F64 = {dtype = "float64"}

local function near(a, b, tolerance, what)
  assert(tostring(a.shape) == tostring(b.shape) and a.dtype == b.dtype, ("%s: %s %s, wanted %s %s")
    :format(what, tostring(a.shape), a.dtype, tostring(b.shape), b.dtype))
  local distance = (a:detach() - b:detach()):abs():amax():item()
  assert(distance <= tolerance, ("%s: %g apart on rank %d"):format(what, distance, rank))
end

local function same(a, b, what) assert(a:equal(b), what .. " on rank " .. rank) end

local function fails(text, f, ...)
  local ok, why = pcall(f, ...)
  assert(not ok and tostring(why):find(text, 1, true), tostring(why))
  assert(why:find "^spec/distributed/tensor.lua:%d+: ", why)
end

-- This rank's part of the whole, which is cut along a dim among n ranks.
local function part(whole, dim, index, count)
  local size = whole:size(dim) // count
  return whole:narrow(dim, index * size + 1, size)
end

-- What make() gives after one seed.
local function seeded(make, ...)
  dm.manual_seed(7)
  return make(...)
end

-- Raises unless the divided layer has the plain one's weights and gradients. dims: those cut.
local function check_parts(plain, layer, dims, tolerance, what)
  for name, p in plain:named_parameters() do
    local own, dim = layer[name], dims[name]
    same(own, dim and part(p, dim, rank, n) or p, what .. name)
    local g = dim and part(p.grad, dim, rank, n) or p.grad
    near(own.grad, g, tolerance, what .. "gradient of " .. name)
  end
end

-- ---- layers by themselves ----

local IN, OUT = 12, 24

local function check_linear(class, dims, dtype, tolerance, input_shape, bias)
  local o = {dtype = dtype, bias = bias}
  local plain, layer = seeded(nn.Linear, IN, OUT, o), seeded(class, IN, OUT, o)
  local state = dm.get_rng_state()
  seeded(nn.Linear, IN, OUT, o)
  assert(dm.get_rng_state().offset == state.offset, "as many random numbers as the plain layer")
  dm.manual_seed(8)
  local x = dm.randn(input_shape, {dtype = dtype})
  local x_plain, x_own = x:clone():requires_grad_(), x:clone():requires_grad_()
  local y, y_own = plain(x_plain), layer(x_own)
  near(y_own, y, tolerance, class.class)
  local g = dm.randn(y.shape, {dtype = dtype})
  y:backward(g)
  y_own:backward(g)
  near(x_own.grad, x_plain.grad, tolerance, class.class .. ": gradient of x")
  check_parts(plain, layer, dims, tolerance, class.class .. ": ")
end

for _, shape in ipairs{{5, IN}, {2, 3, IN}, {IN}} do
  for _, bias in ipairs{true, false} do
    check_linear(parallel.ColumnParallelLinear, {weight = 1, bias = 1}, "float64", 1e-12, shape,
      bias)
    check_linear(parallel.RowParallelLinear, {weight = 2}, "float64", 1e-12, shape, bias)
  end
end
for _, row in ipairs{{"float32", 1e-5}, {"bfloat16", 0.06}} do -- in one order on all ranks
  local dtype, tolerance = table.unpack(row)
  check_linear(parallel.ColumnParallelLinear, {weight = 1, bias = 1}, dtype, tolerance, {5, IN})
  check_linear(parallel.RowParallelLinear, {weight = 2}, dtype, tolerance, {5, IN})
end
local empty = seeded(parallel.ColumnParallelLinear, IN, OUT)(dm.ones(0, IN))
assert(tostring(empty.shape) == "{0, 24}", "no samples")

for _, padding_idx in ipairs{false, 1, 5} do
  local o = {padding_idx = padding_idx or nil, dtype = "float64"}
  local plain, layer = seeded(nn.Embedding, 12, 4, o),
    seeded(parallel.VocabParallelEmbedding, 12, 4, o)
  for _, shape in ipairs{{9}, {3, 4}} do
    plain:zero_grad()
    layer:zero_grad()
    local ids = dm.randint(12, shape)
    local y, y_own = plain(ids), layer(ids)
    same(y_own, y, "VocabParallelEmbedding")
    local g = dm.randn(y.shape, F64)
    y:backward(g)
    y_own:backward(g)
    check_parts(plain, layer, {weight = 1}, 1e-12, "VocabParallelEmbedding: ")
  end
end

-- ---- together: one message forward and one backward ----

local Mlp = nn.Module:extend "Mlp"
function Mlp:init(is_divided, group)
  if is_divided then
    self.up = parallel.ColumnParallelLinear(IN, 24, {gather_output = false, process_group = group})
    self.down = parallel.RowParallelLinear(24, IN, {input_is_parallel = true,
      process_group = group})
  else
    self.up = nn.Linear(IN, 24)
    self.down = nn.Linear(24, IN)
  end
  self.dropout = nn.Dropout(0.5)
end
function Mlp:forward(x) return self.dropout(self.down(F.gelu(self.up(x)))) end

local plain, mlp = seeded(Mlp), seeded(Mlp, true)
dm.manual_seed(3)
local x = dm.randn(5, IN, {requires_grad = true})
local rng = dm.get_rng_state()
local y = plain(x)
dm.set_rng_state(rng)
local calls = dist.stats().calls
local y_own = mlp(x)
assert(dist.stats().calls == calls + (n > 1 and 1 or 0), "a forward takes one message")
near(y_own, y, 1e-5, "dropout of what is not divided")
y_own:sum():backward()
assert(dist.stats().calls == calls + (n > 1 and 2 or 0), "a backward takes one message")

-- ---- second derivatives ----

do
  local a, b = seeded(Mlp):to "float64":eval(), seeded(Mlp, true):to "float64":eval()
  local function curvature(model)
    local v = dm.ones(2, IN, {dtype = "float64", requires_grad = true})
    local g = dm.autograd.grad(model(v):square():sum(), v, {create_graph = true})[1]
    g:square():sum():backward()
    return v.grad, model.up.weight.grad
  end
  local v, w = curvature(a)
  local v_own, w_own = curvature(b)
  near(v_own, v, 1e-10, "second derivative")
  near(w_own, part(w, 1, rank, n), 1e-10, "second derivative of a weight")
end

-- ---- autocast, and the scaler ----

for _, dtype in ipairs{"bfloat16", "float16"} do
  local region <close> = dm.amp.autocast{device_type = "cpu", dtype = dtype}
  plain:eval()
  mlp:eval()
  near(mlp(x), plain(x), 0.05, "autocast")
  plain:train()
  mlp:train()
  assert(region)
end

do
  local model = seeded(Mlp, true):eval()
  local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
  local scaler = dm.amp.GradScaler{device = "cpu", init_scale = 1024}
  local before = model.down.bias:detach():clone()
  for step = 1, 2 do
    optimizer:zero_grad()
    scaler:scale(model(x):square():mean()):backward()
    if step == 1 and rank == n - 1 then model.up.weight.grad[1]:fill_(math.huge) end
    scaler:step(optimizer)
    assert(scaler:skipped(optimizer) == (step == 1), "all ranks skip, or none")
    scaler:update()
    assert(model.down.bias:equal(before) == (step == 1))
  end
  assert(scaler:get_scale() == 512)
end

-- ---- clipping ----

for _, norm_type in ipairs{2.0, 1.0, 0.0, "inf"} do
  local a, b = seeded(Mlp):to "float64":eval(), seeded(Mlp, true):to "float64":eval()
  local v = dm.full({3, IN}, 0.7, F64)
  a(v):square():sum():backward()
  b(v):square():sum():backward()
  local norm = nn.utils.clip_grad_norm_(a:parameters(), 0.5, {norm_type = norm_type})
  local own = nn.utils.clip_grad_norm_(b:parameters(), 0.5, {norm_type = norm_type})
  near(own, norm, 1e-9, "norm of order " .. norm_type)
  near(b.down.bias.grad, a.down.bias.grad, 1e-10, "clipped")
  near(b.down.weight.grad, part(a.down.weight.grad, 2, rank, n), 1e-10, "clipped")
end

-- ---- states ----

do
  local whole, divided = seeded(Mlp), Mlp(true)
  local loaded = divided:load_state_dict(whole:state_dict())
  assert(#loaded.missing_keys == 0)
  local state, wanted = divided:state_dict(), whole:state_dict()
  for name, t in pairs(wanted) do same(state[name], t, name) end
  local again = divided:copy()
  for name, t in pairs(again:state_dict()) do same(t, wanted[name], name .. " of a copy") end
  Mlp():load_state_dict(state)
  local own = {["up.weight"] = dm.ones(24 // n + 1, IN)}
  fails(("up.weight is {%d, 12}, wanted {24, 12}"):format(24 // n + 1), divided.load_state_dict,
    divided, own, {strict = false})
  if arg[1] then
    assert(dist.save(arg[1], {model = divided, step = 3}))
    local file = assert(dm.load(arg[1]))
    for name, t in pairs(wanted) do same(file.model[name], t, name .. " of the file") end
    local other = Mlp(true)
    assert(dist.load(arg[1], {model = other}))
    for name, t in pairs(other:state_dict()) do same(t, wanted[name], name .. " from the file") end
  end
end

-- ---- errors ----

if n > 1 then
  fails(("ColumnParallelLinear: out_features is %d, which does not divide into %d ranks; hint: %d "
    .. "does"):format(n + 1, n, 2 * n), parallel.ColumnParallelLinear, 4, n + 1)
  fails(("RowParallelLinear: in_features is %d, which does not"):format(n + 1),
    parallel.RowParallelLinear, n + 1, 4)
  fails(("VocabParallelEmbedding: num_embeddings is %d, which"):format(n + 1),
    parallel.VocabParallelEmbedding, n + 1, 4)
  fails(("ColumnParallelLinear: the ranks' layers differ: the layer is 4 -> %d on rank 0, 4 -> %d "
    .. "on rank 1"):format(n, 2 * n), parallel.ColumnParallelLinear, 4, rank == 0 and n or 2 * n)
  dm.manual_seed(rank)
  fails("RowParallelLinear: the ranks' layers differ: its generator is at number 0 of seed 0 on "
    .. "rank 0, at number 0 of seed 1 on rank 1; hint: dm.manual_seed(1) on all",
    parallel.RowParallelLinear, n, 4)
  fails("RowParallelLinear: x is {2, 7}, wanted 12 features in its last dim",
    seeded(parallel.RowParallelLinear, IN, 4), dm.ones(2, 7))
  fails("VocabParallelEmbedding: the ids hold 13, wanted 1 to 12",
    seeded(parallel.VocabParallelEmbedding, 12, 4), dm.tensor{3, 13})
end

-- ---- a GPT on a grid of 2 x 2 ----

local WIDTH, HEADS, KINDS, LENGTH = 12, 4, 10, 5

-- A block of GPT-2; group: nil for plain layers.
local Block = nn.Module:extend "Block"
function Block:init(group)
  local function up(outputs)
    if not group then return nn.Linear(WIDTH, outputs) end
    return parallel.ColumnParallelLinear(WIDTH, outputs, {gather_output = false,
      process_group = group})
  end
  local function down(inputs)
    if not group then return nn.Linear(inputs, WIDTH) end
    return parallel.RowParallelLinear(inputs, WIDTH, {input_is_parallel = true,
      process_group = group})
  end
  self.heads = HEADS // (group and #group.ranks or 1)
  self.norm1 = nn.LayerNorm(WIDTH)
  self.query = up(WIDTH)
  self.key = up(WIDTH)
  self.value = up(WIDTH)
  self.out = down(WIDTH)
  self.norm2 = nn.LayerNorm(WIDTH)
  self.up = up(4 * WIDTH)
  self.down = down(4 * WIDTH)
end
function Block:forward(h)
  local batch, length = h:size(1), h:size(2)
  local function heads(layer, v)
    return layer(v):reshape(batch, length, self.heads, -1):transpose(2, 3)
  end
  local v = self.norm1(h)
  local seen = F.scaled_dot_product_attention(heads(self.query, v), heads(self.key, v),
    heads(self.value, v), {is_causal = true})
  h = h + self.out(seen:transpose(2, 3):reshape(batch, length, -1))
  return h + self.down(F.gelu(self.up(self.norm2(h))))
end

local Gpt = nn.Module:extend "Gpt"
function Gpt:init(group)
  local embedding = group and parallel.VocabParallelEmbedding or nn.Embedding
  self.tokens = embedding(KINDS, WIDTH, {process_group = group})
  self.positions = nn.Embedding(LENGTH, WIDTH)
  self.blocks = nn.Sequential{Block(group), Block(group)}
  self.norm = nn.LayerNorm(WIDTH)
  local head = group and parallel.ColumnParallelLinear or nn.Linear
  self.head = head(WIDTH, KINDS, {bias = false, process_group = group})
  self.head.weight = self.tokens.weight
end
function Gpt:forward(ids)
  local h = self.tokens(ids) + self.positions(dm.arange(1, ids:size(2)))
  return self.head(self.norm(self.blocks(h)))
end

-- Trains for some steps on this share {first, last} of each batch -> the state, and the gradients
-- of the first step.
local function train(model, module, mine, grads_of)
  local optimizer = optim.AdamW(model:parameters(), {lr = 0.01})
  local grads
  for step = 1, 4 do
    dm.manual_seed(50 + step)
    local ids = dm.randint(KINDS, {8, LENGTH + 1})[mine]
    local inputs, wanted = ids:narrow(2, 1, LENGTH), ids:narrow(2, 2, LENGTH)
    optimizer:zero_grad()
    F.cross_entropy(model(inputs):flatten(1, 2), wanted:flatten()):backward()
    grads = grads or grads_of(module)
    nn.utils.clip_grad_norm_(model:parameters(), 1)
    optimizer:step()
  end
  return module:state_dict(), grads
end

local function grads_of(module)
  local grads = {}
  for name, p in module:named_parameters() do grads[name] = p.grad:clone() end
  return grads
end

if n == 4 then
  -- Ranks 0 and 1 have one model, 2 and 3 have another; 0 and 2 have the same parts.
  local tensor = {dist.new_group{0, 1}, dist.new_group{2, 3}}
  local data = {dist.new_group{0, 2}, dist.new_group{1, 3}}
  local row, column = rank // 2 + 1, rank % 2 + 1
  local divided = seeded(Gpt, tensor[row]):to "float64"
  local ddp = parallel.DistributedDataParallel(divided, {process_group = data[column]})
  local state, grads = train(ddp, divided, {{row * 4 - 3, row * 4}}, grads_of)
  local whole = seeded(Gpt):to "float64"
  local wanted, whole_grads = train(whole, whole, {{1, 8}}, grads_of)
  local cut = 0
  for name, g in pairs(whole_grads) do
    local own = grads[name]
    for dim = 1, g:dim() do
      if own:size(dim) ~= g:size(dim) then
        g, cut = part(g, dim, column - 1, 2), cut + 1
      end
    end
    near(own, g, 1e-12, "gradient of " .. name)
  end
  assert(cut == 1 + 2 * 10, cut)
  for name, t in pairs(wanted) do near(state[name], t, 1e-10, name .. " after training") end
end

print(("rank %d of %d: divided layers"):format(rank, n))
dist.destroy_process_group()
