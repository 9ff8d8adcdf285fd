-- Parameters divided among the ranks of a group: each rank owns a share of their elements, and
-- what it has changed there comes to the others by gather().
--
-- The parameters of one call of add() that are of one dtype and device make a segment. By elements
-- it is cut into even parts, in the order of the parameters and of their elements; else each
-- parameter goes as a whole to the rank that owns the least.

local core = require "demilune.core"
local caller = require "demilune.caller"
local collectives = require "demilune.distributed.collectives"
local world = require "demilune.distributed.world"

local MOST = 1 << 22 -- elements of all ranks that are gathered at a time

--- A part of a parameter that this rank owns.
---@class demilune.distributed.Piece
---@field param demilune.Tensor
---@field from integer elements of the parameter before it
---@field n integer its elements
---@field tensor demilune.Tensor the parameter itself where it is all of it, else a view {n}; or
--- where it is apart, a view of the parameter's shape or {n}
---@field is_whole boolean
---@field is_apart boolean
---@field at? integer elements before it in this rank's share of a bucket, where it is apart

local Partition = {}
Partition.__index = Partition

-- The parts of [0, total) for n ranks, as the elements at which they begin and end.
local function cut(total, n)
  local bounds = {}
  for k = 0, n do bounds[k] = total * k // n end
  return bounds
end

-- lists[k] of a segment: {{param, from, n}, ...}, in order, of the rank of index k.
local function by_elements(params, n_rank)
  local total, lists, at, k = 0, {}, 0, 0
  for _, p in ipairs(params) do total = total + p:numel() end
  local bounds = cut(total, n_rank)
  for i = 0, n_rank - 1 do lists[i] = {} end
  for _, p in ipairs(params) do
    local from, size = 0, p:numel()
    if size == 0 then table.insert(lists[0], {param = p, from = 0, n = 0}) end
    while from < size do
      while bounds[k + 1] <= at do k = k + 1 end
      local n = math.min(size - from, bounds[k + 1] - at)
      table.insert(lists[k], {param = p, from = from, n = n})
      from, at = from + n, at + n
    end
  end
  return lists
end

-- The index of the smallest load.
local function least(loads)
  local found = 0
  for k = 1, #loads do
    if loads[k] < loads[found] then found = k end
  end
  return found
end

-- The largest parameters first.
local function by_parameters(params, n_rank, loads)
  local order, owner, lists = {}, {}, {}
  for i, p in ipairs(params) do order[i] = {i = i, n = p:numel()} end
  table.sort(order, function(a, b) return a.n > b.n or a.n == b.n and a.i < b.i end)
  for _, one in ipairs(order) do
    local k = least(loads)
    owner[one.i], loads[k] = k, loads[k] + one.n
  end
  for k = 0, n_rank - 1 do lists[k] = {} end
  for i, p in ipairs(params) do
    table.insert(lists[owner[i]], {param = p, from = 0, n = p:numel()})
  end
  return lists
end

local function view(p, one)
  local flat = p.data:reshape(-1):narrow(1, one.from + 1, one.n)
  return core.keep(one.is_shaped and flat:reshape(p.shape) or flat)
end

-- {tensor =} of n elements of a parameter, or all of it in its shape, which follows the parameter's
-- data.
local function add_view(self, p, from, n, is_shaped)
  local views, one = self.views[p], {from = from, n = n, is_shaped = is_shaped}
  one.tensor = view(p, one)
  views[#views + 1] = one
  return one
end

-- What a list has within the elements [from, from + n) of its own count: {{view =, at =, n =}}.
local function spans_within(self, list, from, n)
  local spans, at = {}, 0
  for _, item in ipairs(list) do
    local first, last = math.max(at, from), math.min(at + item.n, from + n)
    if first < last then
      spans[#spans + 1] = {at = first - from, n = last - first,
        view = add_view(self, item.param, item.from + first - at, last - first)}
    end
    at = at + item.n
  end
  return spans
end

-- The messages by which a segment is gathered, each of n elements from each rank.
local function add_rounds(self, lists, dtype)
  local most = 0
  for k = 0, self.n - 1 do
    local n = 0
    for _, item in ipairs(lists[k]) do n = n + item.n end
    most = math.max(most, n)
  end
  local step = math.max(1, MOST // self.n)
  for from = 0, most - 1, step do
    local round = {n = math.min(step, most - from), dtype = dtype}
    for k = 0, self.n - 1 do round[k] = spans_within(self, lists[k], from, round.n) end
    self.rounds[#self.rounds + 1] = round
  end
end

-- Notes who owns what of the segment, and the pieces of this rank by parameter in `own`.
local function note_owners(self, lists, own, is_apart)
  for k = 0, self.n - 1 do
    for _, item in ipairs(lists[k]) do
      local p = item.param
      local owners = self.owners[p]
      owners[#owners + 1] = {index = k, from = item.from, n = item.n}
      if k == self.me then
        local is_whole = item.n == p:numel()
        own[p] = {param = p, from = item.from, n = item.n, is_whole = is_whole, tensor = p,
          is_apart = is_apart, at = item.at}
        if is_apart or not is_whole then
          local added = add_view(self, p, item.from, item.n, is_whole)
          own[p].tensor, added.piece = added.tensor, own[p]
        end
      end
    end
  end
end

--- Raises for a parameter of a group whose elements do not lie in their order.
function Partition:check(params)
  for i, p in ipairs(params) do
    if not p:is_contiguous() then
      caller.raise("%s: parameter %d of the group is not contiguous; hint: p.data = "
        .. "p.data:contiguous()", self.name, i)
    end
  end
end

--- Plans how more parameters are divided, in the same way on all ranks.
---@param params demilune.Tensor[]
---@param is_by_element boolean
---@return table[] segments {{dtype =, [k] = {{param =, from =, n =}, ...} of the rank of index k},
--- ...}
function Partition:plan(params, is_by_element)
  local lists, order, segments = {}, {}, {}
  for _, p in ipairs(params) do
    local key = ("%s %s %s"):format(p.dtype, p.device, p.requires_grad)
    if not lists[key] then
      lists[key], order[#order + 1] = {}, key
    end
    table.insert(lists[key], p)
  end
  for i, key in ipairs(order) do
    local list = lists[key]
    segments[i] = is_by_element and by_elements(list, self.n)
      or by_parameters(list, self.n, self.loads)
    segments[i].dtype = list[1].dtype
  end
  return segments
end

--- Divides more parameters as it is planned.
---@param params demilune.Tensor[]
---@param segments table[]
---@param is_apart boolean whether no piece may be a parameter itself, as its gradient is another
---@return demilune.distributed.Piece[] pieces of this rank, in the order of the parameters
function Partition:add(params, segments, is_apart)
  local own, pieces = {}, {}
  for _, p in ipairs(params) do
    self.views[p], self.pointers[p], self.owners[p] = {}, p:data_ptr(), {}
  end
  for _, lists in ipairs(segments) do
    note_owners(self, lists, own, is_apart)
    add_rounds(self, lists, lists.dtype)
  end
  for _, p in ipairs(params) do
    self.params[#self.params + 1] = p
    pieces[#pieces + 1] = own[p]
  end
  return pieces
end

-- Makes the views of a parameter anew. moved(old, new) hears of those that are pieces.
local function follow(self, p, moved)
  for _, one in ipairs(self.views[p]) do
    local old = one.tensor
    one.tensor = view(p, one)
    if one.piece then
      one.piece.tensor = one.tensor
      moved(old, one.tensor)
    end
  end
  self.pointers[p] = p:data_ptr()
end

--- Lets the pieces follow parameters whose data were exchanged; raises where the data are of
--- another size.
---@param moved fun(old: demilune.Tensor, new: demilune.Tensor) hears of each piece's tensor
function Partition:follow(moved)
  for i, p in ipairs(self.params) do
    if p:data_ptr() ~= self.pointers[p] then
      local n = 0
      for _, owner in ipairs(self.owners[p]) do n = n + owner.n end
      if p:numel() ~= n or not p:is_contiguous() then
        caller.raise("%s: the data of parameter %d were exchanged for %s, wanted %d contiguous "
          .. "elements", self.name, i, tostring(p.shape), n)
      end
      follow(self, p, moved)
    end
  end
end

-- Memory for every second round, by dtype: n elements of this rank, and those of all.
local function buffers_of(self, used, i, round)
  local key = round.dtype .. i % 2
  used[key] = used[key] or {n = 0}
  local pair = used[key]
  if pair.n < round.n then
    local like = {dtype = round.dtype, device = "cpu"}
    pair.n, pair.own = round.n, core.empty(round.n, like)
    pair.all = core.empty(self.n * round.n, like)
  end
  return pair.own:narrow(1, 1, round.n), pair.all:narrow(1, 1, self.n * round.n)
end

-- Starts to gather a round.
local function send(self, round, own, all)
  for _, span in ipairs(round[self.me]) do
    own:narrow(1, span.at + 1, span.n):copy_(span.view.tensor)
  end
  return {round = round, all = all, handle = collectives.all_gather_into_tensor(all, own,
    {group = self.group, async_op = true})}
end

-- Waits for it, and gives the others' values to the parameters.
local function receive(self, sent)
  sent.handle:wait()
  for k = 0, self.n - 1 do
    local first = k * sent.round.n + 1
    for _, span in ipairs(k ~= self.me and sent.round[k] or {}) do
      span.view.tensor:copy_(sent.all:narrow(1, first + span.at, span.n))
    end
  end
end

--- Gives the values of each rank's share to all ranks. A message is under way while the values of
--- the one before it are copied.
function Partition:gather()
  local _ <close>, used = core.scope(), {}
  local _ <close> = core.no_grad()
  local before
  for i, round in ipairs(self.rounds) do
    local sent = send(self, round, buffers_of(self, used, i, round))
    if before then receive(self, before) end
    before = sent
  end
  if before then receive(self, before) end
end

local partition = {}

--- An empty one. name: the first word of its messages.
function partition.new(name, group)
  local self = {name = name, group = group, n = #group.ranks, loads = {}, rounds = {}, params = {},
    me = group.index_of[world.rank(name)], views = {}, pointers = {}, owners = {}}
  for k = 0, self.n - 1 do self.loads[k] = 0 end
  return setmetatable(self, Partition)
end

return partition
