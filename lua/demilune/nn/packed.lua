-- nn.utils.rnn: sequences of several lengths as one tensor, padded or packed.
-- Packed, the first steps of all sequences come first, longest sequence first, then
-- all second steps, and so on: no step of a network works on padding.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"

local packed = {}

-- data (all steps, ...); batch_sizes: how many sequences have a first step, a second,
-- ... (int64, on the CPU); sorted_indices: which sequence is the longest, the next,
-- ...; unsorted_indices: where the first sequence went, the second, ...; both nil when
-- they were in that order already.
local PackedSequence = {}
PackedSequence.__index = PackedSequence
packed.PackedSequence = PackedSequence

local function make(data, batch_sizes, sorted, unsorted)
  return setmetatable({data = data, batch_sizes = batch_sizes, sorted_indices = sorted,
    unsorted_indices = unsorted}, PackedSequence)
end

--- Whether v is a PackedSequence.
function packed.is_packed(v) return getmetatable(v) == PackedSequence end
options.kind("packed", packed.is_packed, "a PackedSequence")

--- The same sequences with other data, of as many steps.
function PackedSequence:with_data(data)
  return make(data, self.batch_sizes, self.sorted_indices, self.unsorted_indices)
end

-- As a tensor's: data of another dtype, or elsewhere; itself where nothing changes.
local CONVERSIONS = {"to", "cpu", "cuda"}
for _, row in ipairs(dtypes.rows) do CONVERSIONS[#CONVERSIONS + 1] = row.method end
for _, name in ipairs(CONVERSIONS) do
  PackedSequence[name] = function(self, ...)
    local data = self.data[name](self.data, ...)
    if rawequal(data, self.data) then return self end
    return self:with_data(data)
  end
end

function PackedSequence:__tostring()
  return ("PackedSequence(data = {%s} %s, batch_sizes = {%s})"):format(
    table.concat(self.data.shape, ", "), self.data.dtype,
    table.concat(self.batch_sizes:totable(), ", "))
end

-- ---- orders and positions ----

local function index(list) return core.tensor(list, {dtype = "int64"}) end

local function check_tensor(name, v)
  if core.is_tensor(v) then return v end
  caller.raise("%s: got a %s, wanted a tensor", name, type(v))
end

-- The lengths as an array; each from least to most.
local function lengths_of(name, lengths, least, most)
  local list = core.is_tensor(lengths) and lengths:totable() or lengths
  if type(list) ~= "table" or #list == 0 then
    caller.raise("%s: lengths is a %s, wanted an array of numbers", name, type(list))
  end
  for i, length in ipairs(list) do
    if math.type(length) ~= "integer" or length < least or length > most then
      caller.raise("%s: length %d is %s, wanted an integer from %d to %d", name, i,
        tostring(length), least, most)
    end
  end
  return list
end

-- Positions of the lengths, longest first; equal ones stay in order.
local function longest_first(lengths)
  local order = {}
  for i = 1, #lengths do order[i] = i end
  table.sort(order, function(a, b)
    if lengths[a] ~= lengths[b] then return lengths[a] > lengths[b] end
    return a < b
  end)
  return order
end

local function inverse(order)
  local back = {}
  for i, at in ipairs(order) do back[at] = i end
  return back
end

-- The number of sequences that reach step 1, 2, ...
local function batch_sizes_of(lengths, order)
  local sizes, n = {}, #order
  for step = 1, lengths[order[1]] do
    while lengths[order[n]] < step do n = n - 1 end
    sizes[step] = n
  end
  return sizes
end

-- The index of each packed row in a padded tensor whose first two dims are flattened.
local function rows_of(sizes, order, steps, batch_first)
  local rows = {}
  for step, n in ipairs(sizes) do
    for i = 1, n do
      local b = order and order[i] or i
      rows[#rows + 1] = batch_first and (b - 1) * steps + step or (step - 1) * sizes[1] + b
    end
  end
  return index(rows)
end

-- {steps, batch, ...}, or with batch_first {batch, steps, ...}.
local function padded_shape(steps, batch, batch_first, shape, from)
  local out = batch_first and {batch, steps} or {steps, batch}
  return table.move(shape, from, #shape, 3, out)
end

-- (rows, ...) as rows `at` of a tensor of that padded shape, full of the value.
local function spread(rows, at, shape, value)
  local flat = table.move(shape, 3, #shape, 2, {shape[1] * shape[2]})
  local out = core.full(flat, value, {dtype = rows.dtype, device = rows.device})
  return out:index_copy(1, at:to(rows.device), rows):reshape(shape)
end

-- ---- packing ----

local bind_pack = options.signature("pack_padded_sequence", [[input: tensor,
  lengths: tensor|list, batch_first: boolean = false, enforce_sorted: boolean = true]])

--- x (steps, batch, ...), or with batch_first (batch, steps, ...); lengths: an array or
--- an integer tensor -> PackedSequence. Without enforce_sorted the lengths may come in
--- any order; with it a shorter one before a longer raises.
function packed.pack_padded_sequence(...)
  local name, o = "pack_padded_sequence", bind_pack(...)
  local x, lengths = o.input, o.lengths
  if x:dim() < 2 then
    caller.raise("%s: the input has %d dims, wanted time, batch and features", name, x:dim())
  end
  local steps, batch = x:size(o.batch_first and 2 or 1), x:size(o.batch_first and 1 or 2)
  lengths = lengths_of(name, lengths, 1, steps)
  if #lengths ~= batch then
    caller.raise("%s: there are %d lengths, the batch is %d", name, #lengths, batch)
  end
  local order = longest_first(lengths)
  for i, at in ipairs(order) do
    if o.enforce_sorted and i ~= at then
      caller.raise("%s: the lengths do not fall; hint: enforce_sorted = false sorts them", name)
    end
  end
  local sizes = batch_sizes_of(lengths, order)
  local rows = rows_of(sizes, order, steps, o.batch_first):to(x.device)
  local data = x:flatten(1, 2):index_select(1, rows)
  if o.enforce_sorted then return make(data, index(sizes)) end
  return make(data, index(sizes), index(order):to(x.device),
    index(inverse(order)):to(x.device))
end

local function check_packed(name, v)
  if packed.is_packed(v) then return v end
  caller.raise("%s: got a %s, wanted a PackedSequence", name,
    core.is_tensor(v) and "tensor" or type(v))
end

-- The length of each sequence, as an array.
local function packed_lengths(sizes, order)
  local lengths = {}
  for i = 1, sizes[1] do lengths[i] = 0 end
  for _, n in ipairs(sizes) do
    for i = 1, n do
      local b = order and order[i] or i
      lengths[b] = lengths[b] + 1
    end
  end
  return lengths
end

local bind_pad_packed = options.signature("pad_packed_sequence", [[sequence: packed,
  batch_first: boolean = false, padding_value: number = 0.0, total_length?: integer]])

--- PackedSequence -> x (steps, batch, ...), or with batch_first (batch, steps, ...), and
--- the lengths (int64), in the order of before packing. Steps past a sequence's end
--- hold padding_value; total_length: at least so many steps.
function packed.pad_packed_sequence(...)
  local name, o = "pad_packed_sequence", bind_pad_packed(...)
  local sequence = o.sequence
  local sizes = sequence.batch_sizes:totable()
  local steps = o.total_length or #sizes
  if steps < #sizes then
    caller.raise("%s: total_length is %s, the longest sequence has %d steps", name,
      tostring(steps), #sizes)
  end
  local order = sequence.sorted_indices and sequence.sorted_indices:totable()
  local data = sequence.data
  local shape = padded_shape(steps, sizes[1], o.batch_first, {table.unpack(data.shape)}, 2)
  local rows = rows_of(sizes, order, steps, o.batch_first)
  return spread(data, rows, shape, o.padding_value), index(packed_lengths(sizes, order))
end

-- ---- lists of tensors ----

-- Checks an array of tensors (length, ...) that differ in length only -> the lengths.
local function list_lengths(name, list)
  if type(list) ~= "table" or not core.is_tensor(list[1]) then
    caller.raise("%s: got a %s, wanted an array of tensors", name, type(list))
  end
  local lengths, rest = {}, nil
  for i, t in ipairs(list) do
    local shape = {table.unpack(check_tensor(name, t).shape)}
    lengths[i] = table.remove(shape, 1)
    local text = table.concat(shape, ", ")
    rest = rest or text
    if not lengths[i] or text ~= rest then
      caller.raise("%s: sequence %d has shape {%s}, the first {%s}; all but the length must be "
        .. "equal", name, i, table.concat(t.shape, ", "), table.concat(list[1].shape, ", "))
    end
  end
  return lengths
end

local bind_pad = options.signature("pad_sequence", [[sequences: list,
  batch_first: boolean = false, padding_value: number = 0.0,
  padding_side: 'right'|'left' = 'right']])

--- An array of tensors (length, ...) -> (longest, batch, ...), or with batch_first
--- (batch, longest, ...), shorter ones followed (padding_side = "left": preceded) by
--- padding_value.
function packed.pad_sequence(...)
  local name, o = "pad_sequence", bind_pad(...)
  local sequences = o.sequences
  local lengths = list_lengths(name, sequences)
  local steps, rows = math.max(table.unpack(lengths)), {}
  for b, length in ipairs(lengths) do
    local before = o.padding_side == "left" and steps - length or 0
    for step = before + 1, before + length do
      rows[#rows + 1] = o.batch_first and (b - 1) * steps + step or (step - 1) * #lengths + b
    end
  end
  local shape = padded_shape(steps, #lengths, o.batch_first,
    {table.unpack(sequences[1].shape)}, 2)
  return spread(core.cat(sequences), index(rows), shape, o.padding_value)
end

local bind_pack_list = options.signature("pack_sequence",
  "sequences: list, enforce_sorted: boolean = true")

--- An array of tensors (length, ...) -> PackedSequence. enforce_sorted: as
--- pack_padded_sequence's.
function packed.pack_sequence(...)
  local o = bind_pack_list(...)
  local lengths = list_lengths("pack_sequence", o.sequences)
  return packed.pack_padded_sequence(packed.pad_sequence(o.sequences), lengths,
    {enforce_sorted = o.enforce_sorted})
end

local bind_unpad = options.signature("unpad_sequence", [[padded_sequences: tensor,
  lengths: tensor|list, batch_first: boolean = false]])

--- The inverse of pad_sequence: an array of views.
function packed.unpad_sequence(...)
  local name, o = "unpad_sequence", bind_unpad(...)
  local padded, lengths = o.padded_sequences, o.lengths
  local batch_dim, step_dim = o.batch_first and 1 or 2, o.batch_first and 2 or 1
  local list = {}
  lengths = lengths_of(name, lengths, 0, padded:size(step_dim))
  for b, length in ipairs(lengths) do
    list[b] = padded:select(batch_dim, b):narrow(1, 1, length)
  end
  return list
end

--- The inverse of pack_sequence: an array of tensors.
function packed.unpack_sequence(sequence)
  local padded, lengths = packed.pad_packed_sequence(check_packed("unpack_sequence", sequence))
  return packed.unpad_sequence(padded, lengths)
end

return packed
