-- Programs of collectives and messages, some of them under way at the same time, some of which one
-- rank calls with something else.

local dm = require "demilune"
local PLAIN = require "spec.distributed.operators"
local random = require "spec.mpi.random"
local dist = dm.distributed

local mix = {}

local DTYPES = {"float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "int8",
  "bool"}
local SHAPES = {{}, {0}, {3, 0}, {1}, {7}, {2, 3, 4}, {33, 65}, {41, 503}} -- the last two by slices
local MOST_PENDING = 5

-- All ranks, and some of them.
function mix.groups(world, r)
  local all = {}
  for i = 0, world.n - 1 do all[i + 1] = i end
  local groups = {{ranks = all}}
  for _ = 1, 3 do
    local ranks = r:shuffle{table.unpack(all)}
    for _ = 1, r:int(0, world.n - 1) do ranks[#ranks] = nil end
    table.sort(ranks)
    groups[#groups + 1] = {ranks = ranks, group = dist.new_group(ranks)}
  end
  for _, g in ipairs(groups) do
    for i, rank in ipairs(g.ranks) do
      if rank == world.rank then g.me = i end
    end
  end
  return groups
end

local function equal(got, wanted, what)
  if got.dtype == wanted.dtype and got:equal(wanted) then return end
  error(("%s: got %s, wanted %s"):format(what, tostring(got), tostring(wanted)), 2)
end

-- The tensor of a rank: its sums have to be rounded in 16 bits, and to wrap in 8.
local function made(id, of, dtype, shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local x = ((dm.arange(count):to "float64" + id % 1009) * (of + 1.37) * 3.1):sin() * 90
  if dtype == "bool" then x = x:gt(20 * of) elseif dtype == "uint8" then x = x:abs() end
  return x:reshape(shape):to(dtype)
end

-- A copy; layout: nil, or that of a view whose elements lie apart, in columns, or behind others.
local function laid_out(x, layout)
  if layout == "columns" and x:dim() > 1 then
    return x:transpose(1, -1):contiguous():clone():transpose(1, -1)
  elseif layout == "behind" and x:dim() > 0 then
    return dm.cat({x, x}, 1):narrow(1, x:size(1) + 1, x:size(1))
  elseif layout then
    return dm.stack({x, x}, -1):select(-1, 1)
  end
  return x:clone()
end

local function combined(op, list)
  local dtype = list[1].dtype
  local wide = (dtype == "float16" or dtype == "bfloat16") and "float32" or dtype
  if dtype == "bool" then wide = "int64" end
  local acc = list[1]:to(wide)
  for i = 2, #list do acc = PLAIN[op](acc, list[i]:to(wide)) end
  if op == "avg" then acc = acc / #list end
  return acc:to(dtype)
end

-- What a call is given, the same on all ranks. is_shared: input and output share memory.
local function arguments(world, r, g)
  local a = {id = r:int(0, 1 << 20), dtype = r:pick(DTYPES), shape = r:pick(SHAPES),
    root = r:pick(g.ranks), is_shared = r:chance(0.2),
    async_op = r:chance(0.6), group = g.group, ranks = g.ranks}
  local is_float = a.dtype:find "float" ~= nil
  a.op = r:pick(is_float and {"sum", "avg", "min", "max", "product"}
    or {"sum", "min", "max", "product", "band", "bor"})
  a.layout = r:chance(0.4) and r:pick{"apart", "columns", "behind"} or nil
  a.me, a.rank = g.me, world.rank
  return a
end

-- The tensors of all ranks of the group.
local function of_all(a)
  local list = {}
  for i, rank in ipairs(a.ranks) do list[i] = made(a.id, rank, a.dtype, a.shape) end
  return list
end

local function same_list(got, list, what)
  assert(#got == #list, what)
  for i, x in ipairs(got) do equal(x, list[i], what) end
end

local function opts(a, more)
  local o = {group = a.group, async_op = a.async_op}
  for k, v in pairs(more or {}) do o[k] = v end
  return o
end

-- Each calls a collective -> its result or a handle, and a function that checks the result.
local CALLS = {}

function CALLS.barrier(a) return dist.barrier(opts(a)), function() end end

function CALLS.all_reduce(a)
  local list = of_all(a)
  local x = laid_out(list[a.me], a.layout)
  return dist.all_reduce(x, opts(a, {op = a.op})), function()
    equal(x, combined(a.op, list), "all_reduce " .. a.op)
  end
end

function CALLS.broadcast(a)
  local list = of_all(a)
  local x = laid_out(list[a.me], a.layout)
  return dist.broadcast(x, a.root, opts(a)), function()
    equal(x, made(a.id, a.root, a.dtype, a.shape), "broadcast")
  end
end

function CALLS.reduce(a)
  local list = of_all(a)
  local x = laid_out(list[a.me], a.layout)
  return dist.reduce(x, a.root, opts(a, {op = a.op})), function()
    equal(x, a.rank == a.root and combined(a.op, list) or list[a.me], "reduce " .. a.op)
  end
end

function CALLS.all_gather(a)
  local list = of_all(a)
  return dist.all_gather(laid_out(list[a.me], a.layout), opts(a)), function(got)
    same_list(got, list, "all_gather")
  end
end

function CALLS.all_gather_into_tensor(a)
  local list = of_all(a)
  local out = laid_out(dm.stack(list):zeros_like(), a.layout)
  local x = list[a.me]
  if a.is_shared then x = out:select(1, a.me):copy_(x) end -- in its own part of the output
  return dist.all_gather_into_tensor(out, x, opts(a)), function()
    equal(out, dm.stack(list), "all_gather_into_tensor")
  end
end

-- Part i of a rank is the tensor of the i-th rank behind it.
local function turned(a, list)
  local sent = {}
  for i = 1, #list do sent[i] = list[(a.me + i - 2) % #list + 1] end
  return dm.stack(sent)
end

function CALLS.reduce_scatter_tensor(a)
  local list = of_all(a)
  local sent, given = {}, turned(a, list)
  local out = laid_out(list[a.me]:zeros_like(), a.layout)
  if a.is_shared then out = given:select(1, a.me) end
  for i = 1, #list do sent[i] = list[(i + a.me - 2) % #list + 1] end
  return dist.reduce_scatter_tensor(out, given, opts(a, {op = a.op})), function()
    equal(out, combined(a.op, sent), "reduce_scatter " .. a.op)
  end
end

function CALLS.gather(a)
  local list = of_all(a)
  return dist.gather(laid_out(list[a.me], a.layout), opts(a, {dst = a.root})), function(got)
    assert((got ~= nil) == (a.rank == a.root), "gather")
    if got then same_list(got, list, "gather") end
  end
end

function CALLS.scatter(a)
  local list = of_all(a)
  local out = laid_out(list[a.me]:zeros_like(), a.layout)
  local given = a.rank == a.root and list or nil
  return dist.scatter(out, given, opts(a, {src = a.root})), function()
    equal(out, list[a.me], "scatter")
  end
end

function CALLS.all_to_all_single(a)
  local list = of_all(a)
  local given = turned(a, list)
  local out = a.is_shared and given or given:zeros_like()
  return dist.all_to_all_single(out, given, opts(a)), function()
    equal(out, turned(a, list), "all_to_all_single")
  end
end

-- Rows that rank `from` of the group gives rank `to`: some none.
local function rows_of(a, from, to) return (a.id + 3 * from + 5 * to + from * to) % 4 end

function CALLS.all_to_all_uneven(a)
  local gives, wants, parts, wanted, total, n = {}, {}, {}, {}, 0, #a.ranks
  local rest = {table.unpack(a.shape, 1, math.min(#a.shape, 2))}
  local function part(from, to)
    return made(a.id + from, to, a.dtype, {rows_of(a, from, to), table.unpack(rest)})
  end
  for i = 1, n do
    gives[i], wants[i] = rows_of(a, a.me, i), rows_of(a, i, a.me)
    parts[i], wanted[i] = part(a.me, i), part(i, a.me)
    total = total + wants[i]
  end
  local out = laid_out(dm.zeros({total, table.unpack(rest)}, {dtype = a.dtype}), a.layout)
  return dist.all_to_all_single(out, laid_out(dm.cat(parts), a.layout), wants, gives,
    opts(a)), function() equal(out, dm.cat(wanted), "uneven all_to_all_single") end
end

-- The last rank of the group wants an element more of the first.
local function mismatch_of_sizes(a)
  local n, ones = #a.ranks, {}
  for i = 1, n do ones[i] = 1 end
  local wants = {table.unpack(ones)}
  if a.me == n then wants[1] = 2 end
  local out = made(a.id, a.rank, a.dtype, {a.me == n and n + 1 or n})
  local before = out:clone()
  local ok, why = pcall(function()
    local h = dist.all_to_all_single(out, dm.zeros({n}, {dtype = a.dtype}), wants, ones, opts(a))
    if a.async_op then h:wait() end
  end)
  assert(not ok and why:find(("rank %d gives rank %d 1 elements, which wants 2"):format(a.ranks[1],
    a.ranks[n]), 1, true), why)
  equal(out, before, "the output of an exchange that differs")
end

local function laid_out_all(list, layout)
  local out = {}
  for i, x in ipairs(list) do out[i] = laid_out(x, layout) end
  return out
end

local function zeros_like(list)
  local zeros = {}
  for i, x in ipairs(list) do zeros[i] = x:zeros_like() end
  return zeros
end

function CALLS.all_gather_list(a)
  local list = of_all(a)
  local out = laid_out_all(zeros_like(list), a.layout)
  local x = a.is_shared and out[a.me]:copy_(list[a.me]) or list[a.me]
  return dist.all_gather(out, x, opts(a)), function(got)
    assert(got == out)
    same_list(out, list, "all_gather into a list")
  end
end

function CALLS.reduce_scatter_list(a)
  local list = of_all(a)
  local sent, given = {}, turned(a, list):unbind(1)
  local out = a.is_shared and given[a.me] or laid_out(list[a.me]:zeros_like(), a.layout)
  for i = 1, #list do sent[i] = list[(i + a.me - 2) % #list + 1] end
  return dist.reduce_scatter(out, given, opts(a, {op = a.op})), function()
    equal(out, combined(a.op, sent), "reduce_scatter of a list " .. a.op)
  end
end

function CALLS.all_to_all_lists(a)
  local given, wanted = {}, {}
  for i = 1, #a.ranks do
    given[i] = made(a.id + a.me, i, a.dtype, {rows_of(a, a.me, i), table.unpack(a.shape, 1, 1)})
    wanted[i] = made(a.id + i, a.me, a.dtype, {rows_of(a, i, a.me), table.unpack(a.shape, 1, 1)})
  end
  local out = laid_out_all(zeros_like(wanted), a.layout)
  return dist.all_to_all(out, laid_out_all(given, a.layout), opts(a)), function()
    same_list(out, wanted, "all_to_all")
  end
end

-- Values of Lua's, which are there when the call returns.
function CALLS.objects(a)
  a.shape = {table.unpack(a.shape, 1, 1)} -- so that the stand-in can count the bytes
  local list, length = of_all(a), a.id % 50
  local function value(i) return {("v"):rep(length * i), t = list[i], i % 2 == 0} end
  local function check(got, i)
    assert(#got[1] == length * i and got[2] == (i % 2 == 0), "an object")
    equal(got.t, list[i], "a tensor of an object")
  end
  local o, out, given = {group = a.group}, {}, {}
  for i, got in ipairs(dist.gather_object(value(a.me), a.root, a.group) or {}) do check(got, i) end
  for i = 1, #list do given[i] = value(i) end
  check(dist.scatter_object_list(out, a.rank == a.root and given or nil, a.root, o), a.me)
  local both = dist.broadcast_object_list(a.rank == a.root and given or {}, a.root, o)
  for i = 1, #list do check(both[i], i) end
  return dist.barrier(opts(a)), function() end
end

local NAMES = {}
for name in pairs(CALLS) do NAMES[#NAMES + 1] = name end
table.sort(NAMES)

-- What is under way: {handle =, check =}.
local function finish(pending, own, most)
  while #pending > most do
    local p = table.remove(pending, own:int(1, #pending))
    p.check(p.handle:wait())
  end
end

local function collective(r, a, pending)
  local got, check = CALLS[r:pick(NAMES)](a)
  if a.async_op then pending[#pending + 1] = {handle = got, check = check}
  else check(got) end
end

-- One rank of the group calls something else: all raise, and nothing is written.
local function mismatch(r, a)
  local odd, way = r:pick(a.ranks), r:pick{"shape", "dtype", "op", "name", "root", "sizes"}
  if way == "sizes" then return mismatch_of_sizes(a) end
  local x = made(a.id, a.rank, a.dtype, a.shape)
  local is_odd = a.rank == odd
  if is_odd and way == "shape" then x = x:unsqueeze(1) end
  if is_odd and way == "dtype" then x = x:to(a.dtype == "float32" and "float64" or "float32") end
  local given = x:clone()
  local o = {group = a.group, async_op = a.async_op}
  local ok, why = pcall(function()
    local h
    if way == "root" then
      h = dist.broadcast(given, is_odd and a.ranks[1] or a.ranks[2], o)
    elseif way == "name" and is_odd then
      h = dist.barrier(o)
    else
      o.op = way == "op" and is_odd and "max" or "min"
      h = dist.all_reduce(given, o)
    end
    if a.async_op then h:wait() end
  end)
  assert(not ok, "no error of a call that differs by " .. way)
  local words = ("ranks do not agree: rank %d gives "):format(a.ranks[1])
  assert(tostring(why):find(words, 1, true), why)
  assert(select(2, tostring(why):gsub("rank %d gives", "")) == 2 or odd == a.ranks[1], why)
  equal(given, x, "the tensor of a call that differs")
end

-- A message between two ranks of the group, and what else may be under way.
local function message(r, a, pending)
  local list = r:shuffle{table.unpack(a.ranks)}
  local from, to, fits, tag = list[1], list[2], r:chance(0.8), r:pick{0, 0, 1, 16383}
  local x = made(a.id, from, a.dtype, a.shape)
  if a.rank == from then
    local h = dist.isend(x, to, {group = a.group, tag = tag})
    pending[#pending + 1] = {handle = h, check = function() end}
  elseif a.rank == to then
    local y = laid_out(x:zeros_like(), a.layout)
    if not fits then y = y:unsqueeze(1) end
    local ok, why = pcall(dist.recv, y, from, {group = a.group, tag = tag})
    assert(ok == fits, why)
    if fits then equal(y, x, "recv")
    else assert(why:find(("recv: rank %d sends "):format(from), 1, true), why) end
  end
end

-- Some messages of each rank of the group to one of them, under a tag that no other step has. Those
-- that it asks a rank for come first, all others from any.
local function storm(world, r, a, pending)
  local o, to = {group = a.group, tag = 2 + world.n_step % 16381}, r:pick(a.ranks)
  local counts, asked, handles, seen = {}, {}, {}, {}
  for _, rank in ipairs(a.ranks) do
    counts[rank] = rank == to and 0 or r:int(0, 4)
    for _ = 1, r:int(0, counts[rank]) do asked[#asked + 1] = rank end
  end
  local function sent(rank, i) return made(a.id + i, rank, a.dtype, a.shape) end
  for i = 1, counts[a.rank] do
    local h = dist.isend(sent(a.rank, i), to, o)
    pending[#pending + 1] = {handle = h, check = function() end}
  end
  if a.rank ~= to then return end
  local n = 0
  for _, count in pairs(counts) do n = n + count end
  r:shuffle(asked)
  for i = 1, n do
    local y = laid_out(made(0, 0, a.dtype, a.shape):zeros_like(), a.layout)
    handles[i] = dist.irecv(y, asked[i], o)
  end
  for i, h in ipairs(handles) do
    local y, from = h:wait()
    seen[from] = (seen[from] or 0) + 1
    assert(not asked[i] or asked[i] == from, "a message of another rank")
    equal(y, sent(from, seen[from]), "a message of any rank")
  end
end

local function no_group(world)
  local ok, why = pcall(dist.new_group, {world.rank})
  assert(not ok and why:find("new_group: ranks do not agree: rank 0 gives new_group {0}", 1, true),
    why)
end

-- Some collectives and messages in a row.
function mix.collectives(world, r)
  local pending, own = {}, random(r:bits() ~ world.rank)
  for _ = 1, r:int(3, 14) do
    local g = r:pick(world.groups)
    world.n_step = (world.n_step or 0) + 1
    local a, what, name_seed = arguments(world, r, g), r:int(1, 20), r:bits()
    local s = random(name_seed)
    if what == 1 then
      finish(pending, own, 0)
      no_group(world)
    elseif not g.me then
      finish(pending, own, own:int(0, MOST_PENDING))
    elseif what <= 4 and #g.ranks > 1 then
      mismatch(s, a)
    elseif what == 8 and #g.ranks > 1 then
      storm(world, s, a, pending)
    elseif what <= 7 and #g.ranks > 1 then
      message(s, a, pending)
    else
      collective(s, a, pending)
    end
    finish(pending, own, own:int(0, MOST_PENDING))
  end
  finish(pending, own, 0)
end

return mix
