-- Attention and recurrent networks.
local op = ...

op.composed "scaled_dot_product_attention" {
  tensors = "query, key, value, attn_mask?",
  options = {"dropout_p:num=0", "is_causal:bool=0", "scale:optnum=none", "enable_gqa:bool=0"},
  autocast = "lower_precision_fp",
  attr = "dm_SdpaAttr",
  doc = "softmax(scale query key^T + attn_mask) value, scale being 1 / sqrt(E): (..., L, E), (..., "
    .. "S, E) and (..., S, V) give (..., L, V); a bool mask is true where a key is seen; "
    .. "is_causal: positions see none after them; enable_gqa: heads (dim -3) of key and value "
    .. "serve several of query; Vaswani et al. 2017",
}

-- p is 0 without dropout; the elements of the draw are those of (batch, L, S). On devices other
-- than the CPU the generator's state is a tensor, counters; own_draw: dropout's numbers have to be
-- the CPU's there too.
op.kernel "attention" {
  tensors = "query, key, value, mask?, counters?",
  options = {"is_causal:bool", "scale:num", "own_draw:bool", "p:num", "seed:int", "offset:int"},
  outputs = 2,
  saves = "I0 I1 I2 I3 I4 O0 O1",
  flags = "hidden",
  nests = {drop = "dm_DropAttr"},
  doc = "scaled_dot_product_attention of one batch shape, and the logarithm of each row's sum of "
    .. "exponentials",
}

op.kernel "attention_backward" {
  tensors = "gy, query, key, value, y?, lse, mask?, counters?",
  options = {"is_causal:bool", "scale:num", "own_draw:bool", "p:num", "seed:int", "offset:int"},
  outputs = 3,
  gradient = false,
  flags = "hidden",
  attr = "dm_AttentionAttr",
  nests = {drop = "dm_DropAttr"},
  doc = "attention's gradients: query, key, value",
}

-- Recurrent networks.

op.composed "rnn_tanh_cell" {
  tensors = "x, hx, w_ih, w_hh, b_ih?, b_hh?",
  autocast = {cuda = "lower_precision_fp"},
  doc = "tanh(x w_ih^T + b_ih + hx w_hh^T + b_hh): x (N, I), hx (N, H), w_ih (H, I) and w_hh (H, "
    .. "H) give the next state (N, H); Elman 1990",
}

op.composed "rnn_relu_cell" {
  tensors = "x, hx, w_ih, w_hh, b_ih?, b_hh?",
  autocast = {cuda = "lower_precision_fp"},
  doc = "rnn_tanh_cell with relu instead of tanh",
}

op.composed "lstm_cell" {
  tensors = "x, hx, cx, w_ih, w_hh, b_ih?, b_hh?",
  outputs = 2,
  autocast = {cuda = "lower_precision_fp"},
  doc = "one step of an LSTM: x (N, I), hx and cx (N, H), w_ih (4 H, I) and w_hh (4 H, H) give the "
    .. "next hidden state and cell (N, H); Hochreiter & Schmidhuber 1997",
}

op.composed "gru_cell" {
  tensors = "x, hx, w_ih, w_hh, b_ih?, b_hh?",
  autocast = {cuda = "lower_precision_fp"},
  doc = "one step of a gated recurrent unit: x (N, I), hx (N, H), w_ih (3 H, I) and w_hh (3 H, H) "
    .. "give the next state (N, H); Cho et al. 2014",
}

op.composed "rnn_layer" {
  tensors = "x, w_ih, w_hh, b_ih?, b_hh?, hx?, cx?",
  options = {"mode:enum(tanh|relu|lstm|gru)", "reverse:bool=0"},
  outputs = 3,
  autocast = "lower_precision_fp",
  attr = "dm_RnnAttr",
  doc = "one layer of cells over x (time, batch, I), in one direction: all hidden states (time, "
    .. "batch, H), the last one, and an LSTM's last cell; w_ih is (g H, I), w_hh (g H, H), with "
    .. "g = 1, of a GRU 3, of an LSTM 4",
}

op.kernel "rnn_steps" {
  tensors = "x, w_hh, b_hh?, hx?, cx?",
  options = {"mode:enum(tanh|relu|lstm|gru)", "reverse:bool=0"},
  outputs = 2,
  saves = "I1 I3 I4 O0 O1",
  flags = "hidden",
  attr = "dm_RnnAttr",
  doc = "all steps of a recurrent layer from the input's share of the gates: hidden states, and "
    .. "what gates and cells were",
}

op.kernel "rnn_steps_backward" {
  tensors = "gy?, gm?, y, memory?, w_hh, hx?, cx?",
  options = {"mode:enum(tanh|relu|lstm|gru)", "reverse:bool=0"},
  outputs = 3,
  gradient = false,
  flags = "hidden",
  attr = "dm_RnnAttr",
  doc = "rnn_steps' gradients: x, hx, and cx (LSTM) or the state's share of the gates (GRU)",
}
