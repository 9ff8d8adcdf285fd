-- Recurrent networks give PyTorch's results, gradients, parameter names and initial values, for
-- each layout, packed sequences, and dropout between layers.

local dm = require "demilune"
local warnings_of = require "spec.warnings"
local case = require "spec.case"
local nn, rnn = dm.nn, dm.nn.utils.rnn

local function fails(text, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok, "wanted an error: " .. text)
  assert.matches(text, message, 1, true)
  assert.matches("^spec/rnn_spec.lua:%d+: ", message)
end

local function shape(t) return {table.unpack(t.shape)} end

-- Equal but for the rounding of sums in another order, of values of size 1.
local function is_near(a, b)
  assert.same(shape(a), shape(b))
  return (a - b):abs():max():item() < 1e-5
end

local function uniform(...)
  return (dm.rand(...) * 2 - 1):to "float64":detach():requires_grad_()
end

-- ---- PyTorch's results: spec/golden/recurrent.lua ----

-- The leaf of a literal, and the literal of its gradient.
local function leaf(literal)
  return case.build(dm, literal):requires_grad_(), {t = literal.t, s = literal.s, d = literal.g}
end

-- Results and gradients are sums of a few terms of size 1, through 8 steps at most.
local SCALE = {m = 4, n = 64, grad = true, e = 0}

-- With lengths the input is packed, and the first result padded again.
local function run(c, net, x, given)
  if not c.lengths then return net(x, given) end
  local first = c.opts.batch_first
  local y, hidden = net(rnn.pack_padded_sequence(x, c.lengths, {batch_first = first,
    enforce_sorted = c.enforce_sorted}), given)
  return (rnn.pad_packed_sequence(y, {batch_first = first, padding_value = -1})), hidden
end

local function check_network(c)
  local opts = {dtype = "float64"}
  for key, value in pairs(c.opts) do opts[key] = value end
  local net, state, wants, hx = nn[c.class](3, 2, opts), {}, {}, {}
  for name, literal in pairs(c.state) do state[name] = case.build(dm, literal) end
  net:load_state_dict(state)
  local x, x_grad = leaf(c.x)
  for i, literal in ipairs(c.hx) do
    local h, grad = leaf(literal)
    hx[i], wants[h] = h, grad
  end
  local out = table.pack(run(c, net, x, {hx = #hx == 2 and hx or hx[1]}))
  if type(out[2]) == "table" then out = table.pack(out[1], table.unpack(out[2])) end
  assert.equal(#c.out, out.n)
  local total = 0
  for i, literal in ipairs(c.out) do
    case.check(out[i], literal, "sum", SCALE, "result " .. i)
    total = total + (out[i] * case.build(dm, {t = literal.t, s = literal.s, d = c.gout[i]})):sum()
  end
  total:backward()
  case.check(x.grad, x_grad, "sum", SCALE, "the input's gradient")
  for h, want in pairs(wants) do case.check(h.grad, want, "sum", SCALE, "hx's gradient") end
  for name, p in net:named_parameters() do
    local l = c.state[name]
    case.check(p.grad, {t = l.t, s = l.s, d = l.g}, "sum", SCALE, name .. "'s gradient")
  end
end

describe("golden", function()
  for _, c in ipairs(require("spec.golden").load "recurrent".cases) do
    it(c.name, function() check_network(c) end)
  end
end)

-- ---- the rest ----

local KINDS = {"RNN", "LSTM", "GRU"}

-- h, or an LSTM's {h, c}, as a list.
local function states(hidden) return type(hidden) == "table" and hidden or {hidden} end

describe("a recurrent network", function()
  it("has PyTorch's parameters, in its order", function()
    local names = {}
    for name, p in nn.GRU(3, 5, {num_layers = 2, bidirectional = true}):named_parameters() do
      names[#names + 1] = name .. " " .. table.concat(shape(p), "x")
    end
    assert.same({
      "weight_ih_l0 15x3", "weight_hh_l0 15x5", "bias_ih_l0 15", "bias_hh_l0 15",
      "weight_ih_l0_reverse 15x3", "weight_hh_l0_reverse 15x5", "bias_ih_l0_reverse 15",
      "bias_hh_l0_reverse 15",
      "weight_ih_l1 15x10", "weight_hh_l1 15x5", "bias_ih_l1 15", "bias_hh_l1 15",
      "weight_ih_l1_reverse 15x10", "weight_hh_l1_reverse 15x5", "bias_ih_l1_reverse 15",
      "bias_hh_l1_reverse 15",
    }, names)
    assert.equal(2, #nn.LSTM(3, 5, {bias = false}):parameters())
    local cell = nn.LSTMCell(3, 5):state_dict()
    for name, want in pairs{weight_ih = {20, 3}, weight_hh = {20, 5}, bias_ih = {20},
      bias_hh = {20}} do
      assert.same(want, shape(cell[name]))
    end
  end)

  it("starts uniform within 1 / sqrt(hidden)", function()
    dm.manual_seed(1)
    for _, p in ipairs(nn.LSTM(8, 64):parameters()) do
      assert.is_true(p:abs():max():item() <= 1 / 8)
      assert.is_true(p:abs():max():item() > 0.9 / 8)
      assert.is_true(math.abs(p:mean():item()) < 0.02)
    end
  end)

  it("passes gradcheck, in both directions and two layers", function()
    for _, class in ipairs(KINDS) do
      dm.manual_seed(2)
      local net = nn[class](3, 2, {num_layers = 2, bidirectional = true, dtype = "float64"})
      local h, c = uniform(4, 2, 2), class == "LSTM" and uniform(4, 2, 2) or nil
      local inputs = {uniform(3, 2, 3), h, c}
      if not c then inputs[3] = net.weight_hh_l0 end
      assert.is_true(dm.autograd.gradcheck(function(x)
        return (net(x, c and {h, c} or h))
      end, inputs))
    end
  end)

  it("starts from zeros, and goes on from the state it gave", function()
    for _, class in ipairs(KINDS) do
      local net, x = nn[class](3, 4), dm.randn(5, 2, 3)
      local y, want, more = net(x)
      local zeros, pair = dm.zeros(1, 2, 4), type(want) == "table"
      assert.equal(class == "LSTM", pair)
      assert.is_nil(more)
      assert.same(y:totable(), (net(x, {hx = pair and {zeros, zeros} or zeros})):totable())
      local first, hidden = net(x:narrow(1, 1, 2))
      local second
      second, hidden = net(x:narrow(1, 3, 3), hidden)
      assert.is_true(is_near(dm.cat{first, second}, y))
      for i, h in ipairs(states(hidden)) do assert.is_true(is_near(h, states(want)[i])) end
    end
  end)

  it("is its cell, step by step", function()
    for _, class in ipairs(KINDS) do
      local net, cell = nn[class](3, 4), nn[class .. "Cell"](3, 4)
      local state = {}
      for name, t in pairs(net:state_dict()) do state[name:gsub("_l0$", "")] = t end
      cell:load_state_dict(state)
      local x, h, c = dm.randn(5, 2, 3), nil, nil
      local y = net(x)
      for t = 1, 5 do
        h, c = cell(x[t], c and {h, c} or h)
        assert.is_true(is_near(h, y[t]))
      end
    end
  end)

  it("takes batches first, and no batch", function()
    for _, class in ipairs(KINDS) do
      local plain, first = nn[class](3, 4), nn[class](3, 4, {batch_first = true})
      first:load_state_dict(plain:state_dict())
      local x = dm.randn(5, 2, 3)
      local y, h = plain(x)
      local z, k = first(x:transpose(1, 2))
      assert.same({2, 5, 4}, shape(z))
      assert.is_true(is_near(z:transpose(1, 2), y))
      for i, last in ipairs(states(k)) do assert.is_true(is_near(last, states(h)[i])) end
      local one, last = plain(x:select(2, 1))
      assert.same({5, 4}, shape(one))
      for _, t in ipairs(states(last)) do assert.same({1, 4}, shape(t)) end
      assert.is_true(is_near(one, y:select(2, 1)))
    end
  end)

  it("drops out between layers, in training only", function()
    local net = nn.GRU(3, 16, {num_layers = 2, dropout = 0.5})
    local x = dm.randn(4, 2, 3)
    local _, a = net(x)
    local _, b = net(x)
    assert.same(a[1]:totable(), b[1]:totable()) -- the first layer's
    assert.not_same(a[2]:totable(), b[2]:totable())
    net:eval()
    assert.same((net(x)):totable(), (net(x)):totable())
    local warned = warnings_of(function() nn.GRU(3, 4, {dropout = 0.5}) end)
    assert.equal(1, #warned)
    assert.matches("GRU: dropout works between layers", warned[1], 1, true)
  end)

  it("learns to tell the sign that came first", function()
    dm.manual_seed(4)
    local net, head = nn.LSTM(1, 8), nn.Linear(8, 1)
    local params = net:parameters()
    table.move(head:parameters(), 1, 2, #params + 1, params)
    local optimizer = dm.optim.Adam(params, {lr = 0.05})
    local x = dm.randn(6, 32, 1)
    local target = (x[1]:gt(0)):to "float32"
    local loss
    for _ = 1, 60 do
      optimizer:zero_grad()
      local y = net(x)
      loss = dm.binary_cross_entropy_with_logits(head(y[6]), target)
      loss:backward()
      optimizer:step()
    end
    assert.is_true(loss:item() < 0.1)
  end)

  it("refuses what does not fit, and says what would", function()
    local net, cell, x = nn.LSTM(3, 4, {num_layers = 2}), nn.GRUCell(3, 4), dm.randn(5, 2, 3)
    local h = dm.zeros(2, 2, 4)
    fails("LSTM: the input has shape {5, 2, 7}, wanted {time, batch, features} or "
      .. "{time, features}, features being 3", function() net(dm.zeros(5, 2, 7)) end)
    fails("LSTM: the input has shape {3}", function() net(dm.zeros(3)) end)
    fails("LSTM: the input is a number, wanted a tensor", function() net(3) end)
    fails("LSTM: hx is a userdata, wanted two tensors, {h, c}", function() net(x, h) end)
    fails("LSTM: hx is a table, wanted two tensors, {h, c}", function() net(x, {hx = {h}}) end)
    fails("LSTM: h has shape {1, 2, 4}, wanted {2, 2, 4}", function()
      net(x, {dm.zeros(1, 2, 4), h})
    end)
    fails("LSTM: c has shape {2, 3, 4}, wanted {2, 2, 4}", function()
      net(x, {h, dm.zeros(2, 3, 4)})
    end)
    fails("one time step or more", function() net(dm.zeros(0, 2, 3)) end)
    fails("LSTM: unknown option 'h0'", function() net(x, {h0 = h}) end)
    fails("GRUCell: hx is a table, wanted a tensor", function() cell(x[1], {h, h}) end)
    fails("GRUCell: h has shape {2, 5}, wanted {2, 4}", function() cell(x[1], dm.zeros(2, 5)) end)
    fails("GRUCell: the input has shape {5, 2, 3}", function() cell(x) end)
    fails("RNN: nonlinearity is 'gelu', wanted 'tanh' or 'relu'", function()
      nn.RNN(3, 4, {nonlinearity = "gelu"})
    end)
    fails("GRU: unknown option 'nonlinearity'", function()
      nn.GRU(3, 4, {nonlinearity = "relu"})
    end)
    fails("LSTM: proj_size is 4, wanted less than hidden_size (4), or 0 for none", function()
      nn.LSTM(3, 4, {proj_size = 4})
    end)
    fails("GRU: unknown option 'proj_size'", function() nn.GRU(3, 4, {proj_size = 2}) end)
    local projected = nn.LSTM(3, 4, {proj_size = 2})
    fails("LSTM: h has shape {1, 2, 4}, wanted {1, 2, 2}", function()
      projected(x, {dm.zeros(1, 2, 4), dm.zeros(1, 2, 4)})
    end)
    fails("LSTM: num_layers is 0", function() nn.LSTM(3, 4, {num_layers = 0}) end)
    fails("RNN: dropout is 2, wanted a number from 0 to 1", function()
      nn.RNN(3, 4, {num_layers = 2, dropout = 2})
    end)
  end)
end)

-- ---- packed sequences ----

describe("packed sequences", function()
  -- sequence b's step t is {10 b + t, -(10 b + t)}
  local function padded(lengths, steps)
    local rows = {}
    for t = 1, steps do
      rows[t] = {}
      for b, length in ipairs(lengths) do
        local v = t <= length and 10 * b + t or 0
        rows[t][b] = {v, -v}
      end
    end
    return dm.tensor(rows, {dtype = "float32"})
  end
  local function firsts(data) return data:select(-1, 1):totable() end

  it("hold all first steps, then all second ones, the longest first", function()
    local p = rnn.pack_padded_sequence(padded({3, 2, 1, 3}, 3), {3, 2, 1, 3},
      {enforce_sorted = false})
    assert.same({11, 41, 21, 31, 12, 42, 22, 13, 43}, firsts(p.data))
    assert.same({4, 3, 2}, p.batch_sizes:totable())
    assert.same({1, 4, 2, 3}, p.sorted_indices:totable())
    assert.same({1, 3, 4, 2}, p.unsorted_indices:totable())
    assert.equal("PackedSequence(data = {9, 2} float32, batch_sizes = {4, 3, 2})", tostring(p))
    local q = rnn.pack_padded_sequence(padded({3, 3, 2, 1}, 3):transpose(1, 2),
      dm.tensor({3, 3, 2, 1}, {dtype = "int64"}), {batch_first = true})
    assert.same({11, 21, 31, 41, 12, 22, 32, 13, 23}, firsts(q.data))
    assert.is_nil(q.sorted_indices)
    assert.is_nil(q.unsorted_indices)
  end)

  it("are padded again, with what one likes", function()
    local x = padded({3, 2, 1, 3}, 3)
    local p = rnn.pack_padded_sequence(x, {3, 2, 1, 3}, {enforce_sorted = false})
    local y, lengths = rnn.pad_packed_sequence(p)
    assert.same(x:totable(), y:totable())
    assert.same({3, 2, 1, 3}, lengths:totable())
    local z = rnn.pad_packed_sequence(p, {batch_first = true, padding_value = -1,
      total_length = 4})
    assert.same({4, 4, 2}, shape(z))
    assert.same({21, 22, -1, -1}, firsts(z[2]))
  end)

  it("come from lists and go back to lists", function()
    local list = {dm.tensor{1, 2}, dm.tensor{3, 4, 5}, dm.tensor{6}}
    assert.same({{1, 3, 6}, {2, 4, 0}, {0, 5, 0}}, rnn.pad_sequence(list):totable())
    assert.same({{9, 1, 2}, {3, 4, 5}, {9, 9, 6}}, rnn.pad_sequence(list,
      {batch_first = true, padding_value = 9, padding_side = "left"}):totable())
    local p = rnn.pack_sequence(list, {enforce_sorted = false})
    assert.same({3, 1, 6, 4, 2, 5}, p.data:totable())
    for i, t in ipairs(rnn.unpack_sequence(p)) do assert.same(list[i]:totable(), t:totable()) end
    local ids = {dm.tensor({1, 2}, {dtype = "int64"}), dm.tensor({3}, {dtype = "int64"})}
    local x = rnn.pad_sequence(ids, {padding_value = 7})
    assert.equal("int64", x.dtype)
    assert.same({{1, 3}, {2, 7}}, x:totable())
    assert.same({{1, 2}, {3}}, {rnn.unpad_sequence(x, {2, 1})[1]:totable(),
      rnn.unpad_sequence(x, {2, 1})[2]:totable()})
    local none = rnn.pad_sequence{dm.ones(2, 3), dm.ones(0, 3)} -- a sequence may be empty
    assert.equal("{0, 3}", tostring(rnn.unpad_sequence(none, {2, 0})[2].shape))
  end)

  it("change dtype as tensors do", function()
    local p = rnn.pack_sequence{dm.tensor{1.0, 2.0}, dm.tensor{3.0}}
    assert.equal("float16", p:half().data.dtype)
    assert.equal("float64", p:to("float64").data.dtype)
    assert.is_true(rawequal(p, p:to "float32"))
    assert.same({2, 1}, p:half().batch_sizes:totable())
  end)

  it("give a network what each sequence gives alone", function()
    for _, class in ipairs(KINDS) do
      for _, two in ipairs{false, true} do
        local net = nn[class](3, 4, {num_layers = 2, bidirectional = two})
        local list = {dm.randn(2, 3), dm.randn(4, 3), dm.randn(1, 3), dm.randn(4, 3)}
        local y, hidden = net(rnn.pack_sequence(list, {enforce_sorted = false}))
        local ys = rnn.unpack_sequence(y)
        for i, x in ipairs(list) do
          local y1, hidden1 = net(x)
          assert.is_true(is_near(ys[i], y1))
          for k, h in ipairs(states(hidden1)) do
            assert.is_true(is_near(states(hidden)[k]:select(2, i), h))
          end
        end
      end
    end
  end)

  it("refuse what does not fit, and say what would", function()
    local x = dm.zeros(3, 2, 5)
    local p = rnn.pack_padded_sequence(x, {3, 2})
    fails("pack_padded_sequence: the lengths do not fall; hint: enforce_sorted = false",
      function() rnn.pack_padded_sequence(x, {2, 3}) end)
    fails("pack_padded_sequence: there are 3 lengths, the batch is 2", function()
      rnn.pack_padded_sequence(x, {3, 2, 1})
    end)
    fails("pack_padded_sequence: length 2 is 0, wanted an integer from 1 to 3", function()
      rnn.pack_padded_sequence(x, {3, 0})
    end)
    fails("pack_padded_sequence: length 1 is 4, wanted an integer from 1 to 3", function()
      rnn.pack_padded_sequence(x, {4, 1})
    end)
    fails("pack_padded_sequence: unknown option 'batch_fist'; did you mean 'batch_first'",
      function() rnn.pack_padded_sequence(x, {3, 2}, {batch_fist = true}) end)
    fails("pack_padded_sequence: the input has 1 dims", function()
      rnn.pack_padded_sequence(x[1][1], {3})
    end)
    fails("pack_padded_sequence: lengths is 3, wanted a tensor or a list", function()
      rnn.pack_padded_sequence(x, 3)
    end)
    fails("pad_packed_sequence: sequence is a tensor, wanted a PackedSequence", function()
      rnn.pad_packed_sequence(x)
    end)
    fails("pad_packed_sequence: total_length is 2, the longest sequence has 3 steps", function()
      rnn.pad_packed_sequence(p, {total_length = 2})
    end)
    fails("pad_sequence: sequence 2 has shape {2, 4}, the first {3, 5}", function()
      rnn.pad_sequence{dm.zeros(3, 5), dm.zeros(2, 4)}
    end)
    fails("pad_sequence: got a table, wanted an array of tensors", function()
      rnn.pad_sequence{}
    end)
    fails("pad_sequence: padding_side is 'top'", function()
      rnn.pad_sequence({dm.zeros(3)}, {padding_side = "top"})
    end)
    fails("GRU: the packed input has shape {5, 5}, wanted {steps, features}, features being 3",
      function() nn.GRU(3, 4)(p) end)
    fails("GRU: h has shape {1, 3, 4}, wanted {1, 2, 4}", function()
      nn.GRU(5, 4)(p, dm.zeros(1, 3, 4))
    end)
    fails("GRUCell: the input is a table, wanted a tensor", function() nn.GRUCell(5, 4)(p) end)
  end)
end)

describe("the ops of recurrent networks", function()
  local function weights(rows) return dm.zeros(rows, 3), dm.zeros(rows, 4) end

  it("refuse what does not fit", function()
    local x, h = dm.zeros(2, 3), dm.zeros(2, 4)
    local w_ih, w_hh = weights(16)
    fails("gru_cell: w_hh has shape {16, 4}, wanted {3 * hidden, hidden}", function()
      dm.gru_cell(x, h, w_ih, w_hh)
    end)
    fails("lstm_cell: w_ih has shape {12, 3}, wanted {16, 3}", function()
      dm.lstm_cell(x, h, h, weights(12), w_hh)
    end)
    fails("lstm_cell: cx has shape {1, 4}, wanted {2, 4}", function()
      dm.lstm_cell(x, h, dm.zeros(1, 4), w_ih, w_hh)
    end)
    fails("lstm_cell: b_hh has shape {4}, wanted {16}", function()
      dm.lstm_cell(x, h, h, w_ih, w_hh, {b_hh = dm.zeros(4)})
    end)
    fails("rnn_tanh_cell: x is int64, wanted a float dtype", function()
      dm.rnn_tanh_cell(x:long(), h, weights(4))
    end)
    fails('rnn_layer: cx is the cell of mode "lstm" only', function()
      dm.rnn_layer(dm.zeros(5, 2, 3), dm.zeros(12, 3), dm.zeros(12, 4), "gru", {cx = h})
    end)
    fails("rnn_layer: hx has shape {2, 3}, wanted {2, 4}", function()
      dm.rnn_layer(dm.zeros(5, 2, 3), dm.zeros(12, 3), dm.zeros(12, 4), "gru", {hx = x})
    end)
    fails("rnn_layer: x is float32, hx float64: all must have one dtype", function()
      dm.rnn_layer(dm.zeros(5, 2, 3), dm.zeros(12, 3), dm.zeros(12, 4), "gru",
        {hx = h:double()})
    end)
  end)
end)
