"""Recurrent networks, attention, transformer layers."""
from cases import *  # noqa: F403


# One layer of torch's own networks; rnn_layer's reverse is its second direction.
def one_layer(x, w_ih, w_hh, mode, b_ih=None, b_hh=None, hx=None, cx=None, reverse=False):
    flat = [w for w in (w_ih, w_hh, b_ih, b_hh) if w is not None]
    zeros = torch.zeros(x.shape[1], w_hh.shape[1], dtype=x.dtype)
    h, c = [(zeros if s is None else s)[None] for s in (hx, cx)]
    fn = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu, "lstm": torch.lstm,
          "gru": torch.gru}[mode]
    y, *last = fn(x.flip(0) if reverse else x, (h, c) if mode == "lstm" else h, flat,
                  len(flat) == 4, 1, 0.0, False, False, False)
    return [y.flip(0) if reverse else y] + [s[0] for s in last]


def network(cls, x_shape, states, lengths=None, enforce_sorted=True, **opts):
    """A module with weights of our own: results and all gradients in one backward.
    With lengths x is packed, and the first result padded again."""
    net = getattr(torch.nn, cls)(3, 2, dtype=f64, **opts)
    for p in net.parameters():
        p.data = r(*p.shape, dtype=f64, lo=-1, hi=1)
    x = leaves(r(*x_shape, dtype=f64, lo=-2, hi=2))
    hx = [leaves(r(*s, dtype=f64, lo=-1, hi=1)) for s in states]
    given = [] if not hx else [tuple(hx) if len(hx) == 2 else hx[0]]
    if lengths:
        first = opts.get("batch_first", False)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, first, enforce_sorted)
        y, last = net(packed, *given)
        out = (torch.nn.utils.rnn.pad_packed_sequence(y, first, -1.0)[0], last)
    else:
        out = net(x, *given)
    out = [out] if isinstance(out, torch.Tensor) else [out[0], *(
        out[1:] if isinstance(out[1], torch.Tensor) else out[1])]
    gouts = [like(y) for y in out]
    torch.autograd.backward(out, gouts)
    state = ",".join(f'{k}={tensor(p, p.grad)}' for k, p in net.named_parameters())
    words = " ".join(f"{k}={v}" for k, v in opts.items())
    how = []
    if lengths:
        words += f" packed {lengths}"
        how = [f"lengths={lua(lengths)}", f"enforce_sorted={lua(enforce_sorted)}"]
    emit([f'class="{cls}"', f"opts={lua(opts)}", *how, "state={" + state + "}",
          f"x={tensor(x, x.grad)}", "hx={" + ",".join(tensor(h, h.grad) for h in hx) + "}",
          "out={" + ",".join(tensor(y) for y in out) + "}",
          "gout={" + ",".join(values(g) for g in gouts) + "}"],
         f"{cls} {words} {list(x_shape)}" + (" with a state" if hx else ""))


@family("sum")
def rnn():
    m = lambda *s, dtype=f64: r(*s, dtype=dtype, lo=-1, hi=1)
    for d in (f64, f32):
        for op, g in (("rnn_tanh_cell", 1), ("rnn_relu_cell", 1), ("gru_cell", 3)):
            w = lambda: [m(2 * g, 3, dtype=d), m(2 * g, 2, dtype=d)]
            case(op, m(4, 3, dtype=d), m(4, 2, dtype=d), *w(), b_ih=m(2 * g, dtype=d),
                 b_hh=m(2 * g, dtype=d))
            case(op, m(1, 3, dtype=d), m(1, 2, dtype=d), *w())
        lstm = lambda x, h, c, *w, **b: torch.lstm_cell(x, (h, c), *w, **b)
        w = lambda: [m(8, 3, dtype=d), m(8, 2, dtype=d)]
        case("lstm_cell", m(4, 3, dtype=d), m(4, 2, dtype=d), m(4, 2, dtype=d), *w(), fn=lstm,
             b_ih=m(8, dtype=d), b_hh=m(8, dtype=d))
        case("lstm_cell", m(1, 3, dtype=d), m(1, 2, dtype=d), m(1, 2, dtype=d), *w(), fn=lstm)
        for mode, g in (("tanh", 1), ("relu", 1), ("lstm", 4), ("gru", 3)):
            w = lambda: [m(2 * g, 3, dtype=d), m(2 * g, 2, dtype=d)]
            cell = {"cx": m(2, 2, dtype=d)} if mode == "lstm" else {}
            case("rnn_layer", m(3, 2, 3, dtype=d), *w(), mode, fn=one_layer)
            case("rnn_layer", m(4, 2, 3, dtype=d), *w(), mode, fn=one_layer, reverse=True,
                 b_ih=m(2 * g, dtype=d), b_hh=m(2 * g, dtype=d), hx=m(2, 2, dtype=d), **cell)


@family("sum")
def recurrent():
    for cls in ("RNN", "LSTM", "GRU"):
        n = 2 if cls == "LSTM" else 1
        network(cls, (4, 2, 3), [])
        network(cls, (2, 4, 3), [(2, 2, 2)] * n, num_layers=2, bias=False, batch_first=True)
        network(cls, (4, 2, 3), [(4, 2, 2)] * n, num_layers=2, bidirectional=True)
        network(cls, (4, 3), [(2, 2)] * n, bidirectional=True)
        network(cls + "Cell", (2, 3), [])
        network(cls + "Cell", (3,), [(2,)] * n, bias=False)
        network(cls, (3, 4, 3), [], lengths=[3, 3, 2, 1])
        network(cls, (4, 3, 3), [(2, 4, 2)] * n, lengths=[3, 2, 1, 3], enforce_sorted=False,
                batch_first=True, bidirectional=True)
        network(cls, (5, 3, 3), [(4, 3, 2)] * n, lengths=[2, 5, 5], enforce_sorted=False,
                num_layers=2, bidirectional=True, bias=False)
    network("RNN", (4, 2, 3), [(1, 2, 2)], nonlinearity="relu")
    network("RNNCell", (2, 3), [(2, 2)], nonlinearity="relu")
    network("LSTM", (4, 2, 3), [], proj_size=1)
    network("LSTM", (2, 4, 3), [(4, 2, 1), (4, 2, 2)], num_layers=2, bidirectional=True,
            batch_first=True, proj_size=1)
    network("LSTM", (3, 3, 3), [(2, 3, 1), (2, 3, 2)], lengths=[3, 1, 2], enforce_sorted=False,
            bidirectional=True, bias=False, proj_size=1)


@family("sum")
def attention():
    op, m = "scaled_dot_product_attention", lambda *s, dtype=f32: r(*s, dtype=dtype, lo=-1, hi=1)
    mask = lambda *s: torch.rand(s) < 0.6
    for d in FLOATS:
        qkv = lambda: [m(2, 3, 4, dtype=d), m(2, 5, 4, dtype=d), m(2, 5, 3, dtype=d)]
        case(op, *qkv())
        case(op, *qkv(), is_causal=True)
        case(op, *qkv(), attn_mask=mask(3, 5), scale=0.75)
        case(op, *qkv(), attn_mask=frozen(m(2, 1, 5, dtype=d)))
    qkv = lambda n, s, *b: [m(*b, n, 4), m(*b, s, 4), m(*b, s, 4)]
    case(op, *qkv(5, 3, 1, 2), is_causal=True)
    case(op, *qkv(3, 5), is_causal=True)
    case(op, *qkv(3, 4, 2, 2), attn_mask=mask(2, 1, 1, 4))
    case(op, *qkv(3, 4, 2, 2), attn_mask=m(2, 1, 3, 4))  # the mask wants a gradient
    blind = torch.tensor([[True, False, True], [False] * 3])
    case(op, *qkv(2, 3, 2), attn_mask=blind)
    case(op, *qkv(2, 3, 2), attn_mask=frozen(torch.where(blind, 0.5, -INF)))
    case(op, m(2, 4, 3, 4), m(2, 2, 5, 4), m(2, 2, 5, 4), enable_gqa=True)
    case(op, m(1, 6, 3, 4), m(1, 2, 3, 4), m(1, 2, 3, 4), enable_gqa=True, is_causal=True)
    case(op, m(2, 4, 3, 4), m(2, 2, 5, 4), m(2, 2, 5, 4), enable_gqa=True,
         attn_mask=mask(4, 3, 5))
    case(op, m(2, 2, 3, 4), m(2, 1, 5, 4), m(1, 2, 5, 4))
    case(op, *qkv(3, 0, 2), grad=False)
    case(op, *qkv(0, 3, 2), grad=False)
    case(op, 40 * m(2, 3, 4), 40 * m(2, 5, 4), m(2, 5, 4))


def module(cls, args, inputs, call=(), masks=(), **opts):
    """A module of torch.nn with weights of our own, its inputs, results and gradients.

    call: options of the call; masks: those that are tensors, by name.
    """
    call, masks = dict(call), dict(masks)
    net = getattr(torch.nn, cls)(*args, **opts)
    if "Layer" in cls or cls == "Transformer":
        net.eval()
    for name, p in net.named_parameters():
        p.data = r(*p.shape, lo=-1, hi=1) + (1 if "norm" in name and p.dim() == 1 else 0)
    xs = [leaves(r(*s, lo=-2, hi=2)) for s in inputs]
    given = xs * 3 if cls == "MultiheadAttention" and len(xs) == 1 else xs
    out = net(*given, **call, **masks)
    outs = [y for y in out if y is not None] if isinstance(out, tuple) else [out]
    gouts = [like(y) for y in outs]
    torch.autograd.backward(outs, gouts)
    state = ",".join(f'["{k}"]={tensor(p, p.grad)}' for k, p in net.named_parameters())
    words = " ".join(f"{k}={v}" for k, v in dict(opts, **call).items())
    emit([f'class="{cls}"', f"args={lua(list(args))}", f"opts={lua(opts)}",
          f"call={lua(call)}", f"masks={lua(masks)}", "state={" + state + "}",
          "inputs={" + ",".join(tensor(x, x.grad) for x in xs) + "}",
          "out={" + ",".join(tensor(y) for y in outs) + "}",
          "gout={" + ",".join(values(g) for g in gouts) + "}"],
         f"{cls} {words} {' '.join(masks)} {[list(s) for s in inputs]}")


@family("sum")
def transformer():
    causal = torch.nn.Transformer.generate_square_subsequent_mask
    late = torch.tensor([[False, False, True], [False, True, True]])
    mha, two = ("MultiheadAttention", (4, 2)), [(3, 2, 4)]
    module(*mha, two)
    module(*mha, two, batch_first=True, bias=False)
    module(*mha, two, {"need_weights": False})
    module(*mha, [(3, 4)], {"average_attn_weights": False})
    module(*mha, [(2, 2, 4), (3, 2, 4), (3, 2, 4)])
    module(*mha, [(2, 2, 4), (3, 2, 3), (3, 2, 2)], kdim=3, vdim=2)
    module(*mha, two, {}, {"key_padding_mask": late, "attn_mask": causal(3)})
    module(*mha, two, {"need_weights": False}, {"key_padding_mask": late})
    module(*mha, two, {"need_weights": False, "is_causal": True}, {"attn_mask": causal(3)})
    module(*mha, two, {"need_weights": False}, {"attn_mask": ints(4, 3, 3, dtype=torch.bool)})
    module(*mha, [(3, 2, 4), (3, 2, 4), (3, 2, 4)], {}, {"attn_mask": r(3, 3)})
    both = {"key_padding_mask": late, "attn_mask": causal(3)}
    module(*mha, two, {}, both, add_bias_kv=True)
    module(*mha, two, {"need_weights": False}, both, add_zero_attn=True, add_bias_kv=True)
    module(*mha, [(2, 2, 4), (3, 2, 3), (3, 2, 2)], kdim=3, vdim=2, add_zero_attn=True)
    small = dict(dim_feedforward=5, dropout=0.1)
    one = ("TransformerEncoderLayer", (4, 2))
    module(*one, two, **small)
    module(*one, two, {}, {"src_mask": causal(3), "src_key_padding_mask": late.float() * -9},
           norm_first=True, activation="gelu", **small)
    module(*one, [(2, 3, 4)], batch_first=True, bias=False, layer_norm_eps=0.25, **small)
    one = ("TransformerDecoderLayer", (4, 2))
    module(*one, [(3, 2, 4), (2, 2, 4)], **small)
    module(*one, [(3, 2, 4), (3, 2, 4)], {"tgt_is_causal": True},
           {"tgt_mask": causal(3), "memory_key_padding_mask": late}, norm_first=True, **small)
    module("Transformer", (), [(2, 2, 4), (3, 2, 4)], {}, {"tgt_mask": causal(3)}, d_model=4,
           nhead=2, num_encoder_layers=2, num_decoder_layers=1, **small)
