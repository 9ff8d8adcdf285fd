-- Recurrent networks: RNN, LSTM, GRU, and one step of each: RNNCell, LSTMCell, GRUCell.
-- A layer in one direction is core.rnn_layer; packed sequences take one call of it for each
-- run of steps with the same batch size. An LSTM with a projection (H. Sak et al. 2014) is a
-- composition, step by step.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local fill = require "demilune.nn.fill"
local Module = require "demilune.nn.module"
local packed = require "demilune.nn.packed"

local layers = {}

-- The first state as h, c. It goes by name, {hx = h}, or by position: h; of an
-- LSTM {h, c}.
local function first_state(self, given)
  local hx = given
  if type(given) == "table" and given[1] == nil then hx = self.bind_state(given).hx end
  if hx == nil then return nil end
  local pair = type(hx) == "table"
  local h, c = pair and hx[1] or hx, pair and hx[2] or nil
  if pair ~= self.has_cell or not core.is_tensor(h) or pair and not core.is_tensor(c) then
    caller.raise("%s: hx is a %s, wanted %s", self.class, type(hx),
      self.has_cell and "two tensors, {h, c}" or "a tensor")
  end
  return h, c
end

local function shape_text(shape) return "{" .. table.concat(shape, ", ") .. "}" end

local function check_shape(self, name, t, wanted)
  if t == nil then return end
  local shape = {table.unpack(t.shape)}
  if shape_text(shape) ~= shape_text(wanted) then
    caller.raise("%s: %s has shape %s, wanted %s", self.class, name, shape_text(shape),
      shape_text(wanted))
  end
end

-- x is a tensor of one of two numbers of dims, with input_size features.
local function check_input(self, x, dims, wanted)
  if not core.is_tensor(x) then
    caller.raise("%s: the input is a %s, wanted a tensor", self.class, type(x))
  end
  if x:dim() ~= dims and x:dim() ~= dims - 1 or x:size(-1) ~= self.input_size then
    caller.raise("%s: the input has shape %s, wanted %s, features being %d", self.class,
      shape_text{table.unpack(x.shape)}, wanted, self.input_size)
  end
end

-- weight_ih (gates H, inputs), weight_hh (gates H, h's width), their biases, and with
-- a projection weight_hr (P, H), by names with the suffix.
local function make_parameters(self, suffix, inputs, o)
  local how = {dtype = o.dtype, device = o.device}
  local hidden, rows = self.hidden_size, self.gates * self.hidden_size
  local projected = (o.proj_size or 0) > 0
  local function make(name, ...)
    self[name .. suffix] = core.parameter(core.empty(...))
  end
  make("weight_ih", rows, inputs, how)
  make("weight_hh", rows, projected and o.proj_size or hidden, how)
  if o.bias then
    make("bias_ih", rows, how)
    make("bias_hh", rows, how)
  end
  if projected then make("weight_hr", o.proj_size, hidden, how) end
end

-- PyTorch's: all uniform within 1 / sqrt(hidden size).
local function reset_parameters(self)
  local bound = self.hidden_size > 0 and 1 / math.sqrt(self.hidden_size) or 0
  for _, p in self:named_parameters() do fill(p, "uniform_", -bound, bound) end
end

-- ---- one step ----

--- x (B, F) or (F), h and c (B, H) or (H), zeros when not given
--- -> h; an LSTM's cell: h, c.
local Cell = Module:extend "Cell"
Cell.reset_parameters = reset_parameters

local SIZES = "input_size: integer, hidden_size: integer, "
local WORDS = "nonlinearity: 'tanh'|'relu' = 'tanh', "
local HOW = "device?: device, dtype?: dtype"

function Cell:init(...)
  local o = self.bind(...)
  self.input_size, self.hidden_size = o.input_size, o.hidden_size
  if o.nonlinearity then self.step = core[("rnn_%s_cell"):format(o.nonlinearity)] end
  make_parameters(self, "", o.input_size, o)
  self:reset_parameters()
end

function Cell:forward(x, given)
  local h, c = first_state(self, given)
  check_input(self, x, 2, "{batch, features} or {features}")
  local wanted = {self.hidden_size}
  if x:dim() == 2 then wanted = {x:size(1), self.hidden_size} end
  check_shape(self, "h", h, wanted)
  check_shape(self, "c", c, wanted)
  h = h or core.zeros(wanted, {dtype = x.dtype, device = x.device})
  local weights = {self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh}
  if self.has_cell then return self.step(x, h, c or h, table.unpack(weights)) end
  return self.step(x, h, table.unpack(weights))
end

function Cell:extra_repr() return ("%d -> %d"):format(self.input_size, self.hidden_size) end

local function cell(name, fields)
  local class = Cell:extend(name)
  class.bind_state = options.call_signature(name, "hx?: tensor|list")
  class.bind = options.signature(name, SIZES .. "bias: boolean = true, "
    .. (fields.step and "" or WORDS) .. HOW)
  for key, value in pairs(fields) do class[key] = value end
  layers[name] = class
end
cell("RNNCell", {gates = 1, has_cell = false}) -- its step is its nonlinearity's
cell("LSTMCell", {gates = 4, has_cell = true, step = core.lstm_cell})
cell("GRUCell", {gates = 3, has_cell = false, step = core.gru_cell})

-- ---- all time steps ----

--- x (T, B, F), with batch_first (B, T, F), or (T, F) without a batch; h and c
--- (layers directions, B, H), or without B; zeros when not given
--- -> y (T, B, directions H), laid out as x, of the last layer; h; an LSTM: {h, c}, so that
--- `y, hidden = rnn(x, hidden)` goes on with each of them. With proj_size P, y and h are P wide.
--- For a PackedSequence x, y is one too; h and c are those of each sequence's last step, in
--- the order before packing.
local Recurrent = Module:extend "Recurrent"
Recurrent.reset_parameters = reset_parameters

local LAYERS = [[bias: boolean = true, batch_first: boolean = false, dropout: number = 0,
  bidirectional: boolean = false, ]]

-- PyTorch's: weight_ih_l0, weight_ih_l0_reverse, ...; layers count from 0.
local function suffix_of(layer, direction)
  return ("_l%d%s"):format(layer - 1, direction == 2 and "_reverse" or "")
end

function Recurrent:init(...)
  local o = self.bind(...)
  local input_size, hidden_size = o.input_size, o.hidden_size
  for _, name in ipairs{"input_size", "hidden_size", "num_layers"} do
    if o[name] < 1 then
      caller.raise("%s: %s is %d, wanted 1 or more", self.class, name, o[name])
    end
  end
  if not (o.dropout >= 0 and o.dropout <= 1) then
    caller.raise("%s: dropout is %s, wanted a number from 0 to 1", self.class,
      tostring(o.dropout))
  end
  if o.dropout > 0 and o.num_layers == 1 then
    caller.warn("%s: dropout works between layers, and there is only one", self.class)
  end
  local proj_size = o.proj_size or 0
  if proj_size < 0 or proj_size >= hidden_size and proj_size > 0 then
    caller.raise("%s: proj_size is %d, wanted less than hidden_size (%d), or 0 for none",
      self.class, proj_size, hidden_size)
  end
  self.mode = self.mode or o.nonlinearity
  self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, o.num_layers
  self.batch_first, self.dropout, self.bidirectional = o.batch_first, o.dropout, o.bidirectional
  self.directions = o.bidirectional and 2 or 1
  self.proj_size, self.width = proj_size, proj_size > 0 and proj_size or hidden_size
  for layer = 1, o.num_layers do
    local inputs = layer == 1 and input_size or self.directions * self.width
    for direction = 1, self.directions do
      make_parameters(self, suffix_of(layer, direction), inputs, o)
    end
  end
  self:reset_parameters()
end

-- An LSTM's layer whose h is hr (P, H) times what its gates let out.
local function run_projected(x, weights, o)
  local gx = core.linear(x, weights.ih, o.b_ih)
  local how, batch, steps = {dtype = gx.dtype, device = gx.device}, x:size(2), x:size(1)
  local h = o.hx and o.hx:to(gx.dtype) or core.zeros(batch, weights.hr:size(1), how)
  local c = o.cx and o.cx:to(gx.dtype) or core.zeros(batch, weights.hr:size(2), how)
  local first, last, by, ys = 1, steps, 1, {}
  if o.reverse then first, last, by = last, first, -1 end
  for t = first, last, by do
    local gates = gx[t] + core.linear(h, weights.hh, o.b_hh)
    local i, f, g, out = table.unpack(gates:chunk(4, {dim = 2}))
    c = f:sigmoid() * c + i:sigmoid() * g:tanh()
    h = core.linear(out:sigmoid() * c:tanh(), weights.hr)
    ys[t] = h
  end
  return core.stack(ys), h, c
end

-- One layer in one direction over all of x (T, B, F) -> y, last h and c.
local function run_batch(_, x, weights, mode, o)
  if weights.hr then return run_projected(x, weights, o) end
  return core.rnn_layer(x, weights.ih, weights.hh, mode, o)
end

-- Rows from..to of the first state, or zeros like the running one's.
local function fresh_rows(first, running, from, to)
  if first then return first:narrow(1, from, to - from + 1) end
  return core.zeros(to - from + 1, running:size(2), {dtype = running.dtype,
    device = running.device})
end

-- Forwards the batch shrinks: the states of those that end are put aside.
local function shrink(state, n, ended)
  if state and n < state:size(1) then
    ended[#ended + 1] = state:narrow(1, n + 1, state:size(1) - n)
    return state:narrow(1, 1, n)
  end
  return state
end

-- And are put back behind the longest ones': the last that ended come first.
local function with_ended(state, ended)
  if #ended == 0 then return state end
  local all = {state}
  for i = #ended, 1, -1 do all[#all + 1] = ended[i] end
  return core.cat(all)
end

-- Backwards it grows by sequences whose end is reached.
local function grow(state, n, first)
  if not state then return first and first:narrow(1, 1, n) end
  if n == state:size(1) then return state end
  return core.cat{state, fresh_rows(first, state, state:size(1) + 1, n)}
end

-- One layer in one direction over the rows x (N, F) of packed sequences -> y (N, H),
-- last h and c (B, H). runs: see runs_of.
local function run_packed(runs, x, weights, mode, o)
  local h0, c0, lstm = o.hx, o.cx, mode == "lstm"
  local ys, h, c = {}, nil, nil
  local h_ended, c_ended = {}, {}
  local first, last, by = 1, #runs, 1
  if o.reverse then first, last, by = last, first, -1 end
  for i = first, last, by do
    local s = runs[i]
    if o.reverse or i == 1 then
      h, c = grow(h, s.batch, h0), lstm and grow(c, s.batch, c0) or nil
    else
      h, c = shrink(h, s.batch, h_ended), shrink(c, s.batch, c_ended)
    end
    local part = x:narrow(1, s.from, s.steps * s.batch):reshape(s.steps, s.batch, -1)
    local y
    o.hx, o.cx = h, c
    y, h, c = run_batch(nil, part, weights, mode, o)
    ys[i] = y:flatten(1, 2)
  end
  return core.cat(ys), with_ended(h, h_ended), c and with_ended(c, c_ended)
end

-- Runs of steps with as many sequences: {{from = row, steps =, batch =}, ...}.
local function runs_of(sizes)
  local list, row = {}, 1
  for i, n in ipairs(sizes) do
    if n ~= sizes[i - 1] then list[#list + 1] = {from = row, steps = 0, batch = n} end
    list[#list].steps = list[#list].steps + 1
    row = row + n
  end
  return list
end

-- x (T, B, F), or (N, F) with runs; h and c (layers directions, B, H) or nil
-- -> y, last h and c, alike.
local function run_layers(self, x, h, c, runs)
  local run, features = runs and run_packed or run_batch, x:dim()
  local hs, cs = {}, {}
  for layer = 1, self.num_layers do
    local ys = {}
    for direction = 1, self.directions do
      local i, suffix = #hs + 1, suffix_of(layer, direction)
      local weights = {ih = self["weight_ih" .. suffix], hh = self["weight_hh" .. suffix],
        hr = self.proj_size > 0 and self["weight_hr" .. suffix] or nil}
      ys[direction], hs[i], cs[i] = run(runs, x, weights, self.mode,
        {b_ih = self["bias_ih" .. suffix], b_hh = self["bias_hh" .. suffix], hx = h and h[i],
          cx = c and c[i], reverse = direction == 2})
    end
    x = #ys == 1 and ys[1] or core.cat(ys, {dim = features})
    if layer < self.num_layers and self.dropout > 0 then
      x = core.dropout(x, {p = self.dropout, training = self.training})
    end
  end
  return x, core.stack(hs), self.has_cell and core.stack(cs) or nil
end

local function check_states(self, h, c, batch)
  local function check(name, state, width)
    check_shape(self, name, state, batch and {self.num_layers * self.directions, batch, width}
      or {self.num_layers * self.directions, width})
  end
  check("h", h, self.width)
  check("c", c, self.hidden_size)
end

-- States in the order of an index of sequences, or as they are.
local function in_order(order, h, c)
  if not order then return h, c end
  return h and h:index_select(2, order), c and c:index_select(2, order)
end

local function forward_packed(self, sequence, h, c)
  local x, sizes = sequence.data, sequence.batch_sizes:totable()
  if x:dim() ~= 2 or x:size(2) ~= self.input_size then
    caller.raise("%s: the packed input has shape %s, wanted {steps, features}, features being %d",
      self.class, shape_text{table.unpack(x.shape)}, self.input_size)
  end
  check_states(self, h, c, sizes[1])
  h, c = in_order(sequence.sorted_indices, h, c)
  local y
  y, h, c = run_layers(self, x, h, c, runs_of(sizes))
  h, c = in_order(sequence.unsorted_indices, h, c)
  return sequence:with_data(y), h, c
end

local function forward_batch(self, x, h, c)
  check_input(self, x, 3, self.batch_first and "{batch, time, features} or {time, features}"
    or "{time, batch, features} or {time, features}")
  local batched = x:dim() == 3
  local swapped = batched and self.batch_first
  check_states(self, h, c, batched and x:size(swapped and 1 or 2))
  if swapped then x = x:transpose(1, 2) end
  if not batched then
    x, h, c = x:unsqueeze(2), h and h:unsqueeze(2), c and c:unsqueeze(2)
  end
  local y
  y, h, c = run_layers(self, x, h, c)
  if swapped then y = y:transpose(1, 2) end
  if not batched then y, h, c = y:squeeze(2), h:squeeze(2), c and c:squeeze(2) end
  return y, h, c
end

function Recurrent:forward(x, given)
  local h, c = first_state(self, given)
  local y
  if packed.is_packed(x) then y, h, c = forward_packed(self, x, h, c)
  else y, h, c = forward_batch(self, x, h, c) end
  return y, c and {h, c} or h
end

function Recurrent:extra_repr()
  return ("%d -> %d, num_layers = %d%s"):format(self.input_size, self.hidden_size,
    self.num_layers, self.bidirectional and ", bidirectional" or "")
end

local function recurrent(name, fields)
  local class = Recurrent:extend(name)
  class.bind_state = options.call_signature(name, "hx?: tensor|list")
  class.bind = options.signature(name, SIZES .. "num_layers: integer = 1, "
    .. (fields.mode and "" or WORDS) .. LAYERS .. (fields.rest or "") .. HOW)
  for key, value in pairs(fields) do class[key] = value end
  layers[name] = class
end
recurrent("RNN", {gates = 1, has_cell = false}) -- its mode is its nonlinearity
recurrent("LSTM", {gates = 4, has_cell = true, mode = "lstm",
  rest = "proj_size: integer = 0, "})
recurrent("GRU", {gates = 3, has_cell = false, mode = "gru", rest = "*, "})

return layers
