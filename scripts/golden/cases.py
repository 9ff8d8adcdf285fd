"""What every family of golden values is made with: literals, inputs, and case().

A case is one line: the op, its arguments as Lua passes them (required ones in
PyTorch's order, optional ones in a trailing table), and the results. A tensor
is {t=dtype, s=shape, d=values row by row, g=gradient values}; `gout` holds the
cotangents, so g is a vector-Jacobian product. Positions (dims, indices,
labels, argmax results) are written counting from 1; P() marks them.
Inputs are odd multiples of 1/32: exact in every float dtype, short to write,
and never on a kink unless a case puts them there.
"""

import warnings

import numpy as np
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
warnings.simplefilter("ignore")  # degenerate cases are meant

f64, f32, f16, bf16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
i64, i32, i16, i8, u8 = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8
FLOATS, INTS = [f32, f64, f16, bf16], [i64, i32, i16, i8, u8]
ALL = [torch.bool, u8, i8, i16, i32, i64, f16, bf16, f32, f64]
INF, NAN = float("inf"), float("nan")


# ---- Lua literals -----------------------------------------------------------

class P:
    """A position or several: counts from 0 for PyTorch, from 1 in the file."""

    def __init__(self, value):
        self.value = value


def name_of(dtype):
    return str(dtype).replace("torch.", "")


def number(v, dtype=f64):
    """Shortest literal that reads back as the same value of the dtype."""
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, int):
        return str(v) if v > -2**63 else "math.mininteger"
    if v != v:
        return "0/0"
    if v in (INF, -INF):
        return "1/0" if v > 0 else "-1/0"
    if v == 0:
        return "-0.0" if np.signbit(v) else "0"
    text = repr(v) if dtype == f64 else str(np.float32(v))
    return text[:-2] if text.endswith(".0") else text


def values(t, exact=False):
    """The elements of t; bool as 1 and 0, so that data is numbers only."""
    t = t.detach()
    if t.dtype == torch.bool:
        t = t.to(u8)
    dtype = f64 if exact and t.dtype != f32 else t.dtype
    return "{" + ",".join(number(v, dtype) for v in t.flatten().tolist()) + "}"


def tensor(t, grad=None, shift=0, exact=False):
    shape = ",".join(str(n) for n in t.shape)
    if shift:
        t = torch.where(t >= 0, t + shift, t)
    data = values(t, exact)
    g = "" if grad is None else ",g=" + values(grad)
    return f'{{t="{name_of(t.dtype)}",s={{{shape}}},d={data}{g}}}'


def lua(v, scalar=f64):
    """Any argument as a Lua literal."""
    if isinstance(v, P):
        if isinstance(v.value, torch.Tensor):
            return tensor(v.value, shift=v.value.dtype != torch.bool)
        if isinstance(v.value, slice):  # of a key; Lua's include the last position
            ends = (v.value.start or 0, (v.value.stop or 0) - 1, v.value.step or 1)
            return "{}" if v.value == slice(None) else lua((P(ends[0]), P(ends[1]), ends[2]))
        if v.value is None or v.value is Ellipsis:
            return '"newaxis"' if v.value is None else '"..."'
        if isinstance(v.value, (list, tuple)):
            return "{" + ",".join(lua(P(x)) for x in v.value) + "}"
        return str(v.value + 1 if v.value >= 0 else v.value)
    if isinstance(v, torch.Tensor):
        return tensor(v, v.grad if v.requires_grad else None)
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, torch.dtype):
        return f'"{name_of(v)}"'
    if isinstance(v, str):
        return '"' + v.replace('"', '\\"') + '"'
    if isinstance(v, float):
        text = number(v)
        return text if any(c in text for c in "./en") else text + ".0"
    if isinstance(v, int):
        return number(v)
    if isinstance(v, dict):
        return "{" + ",".join(f"{k}={lua(x)}" for k, x in v.items()) + "}"
    return "{" + ",".join(lua(x) for x in v) + "}"


def plain(v):
    """The argument as PyTorch takes it."""
    if isinstance(v, P):
        return v.value
    if isinstance(v, (list, tuple)):
        return type(v)(plain(x) for x in v)
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items()}
    return v


def leaves(v):
    """Own copies of the tensors; floating ones want a gradient."""
    if isinstance(v, torch.Tensor):
        c = v.detach().clone()
        return c.requires_grad_(v.is_floating_point() and not hasattr(v, "no_grad"))
    if isinstance(v, (list, tuple)):
        return type(v)(leaves(x) for x in v)
    if isinstance(v, dict):
        return {k: leaves(x) for k, x in v.items()}
    return v


def tensors(v):
    if isinstance(v, torch.Tensor):
        return [v]
    if isinstance(v, dict):
        v = list(v.values())
    return [t for x in v for t in tensors(x)] if isinstance(v, (list, tuple)) else []


# ---- families ---------------------------------------------------------------

FAMILIES = []


def family(kind):
    """kind says how far results may stray (spec/golden_spec.lua: tolerance)."""
    def add(fn):
        FAMILIES.append((fn.__name__.rstrip("_"), kind, fn))
        return fn
    return add


LINES, NAMES = [], {}


def emit(fields, label):
    NAMES[label] = NAMES.get(label, 0) + 1
    if NAMES[label] > 1:
        label = f"{label} #{NAMES[label]}"
    LINES.append("{" + ",".join(fields + [f"name={lua(label)}"]) + "},")


def describe(op, args, opts):
    parts = []
    for t in tensors(list(args) + list(opts.values())):
        parts.append(name_of(t.dtype) + "{" + ",".join(map(str, t.shape)) + "}")
    words = [f"{k}={lua(v)}".replace('"', "") for k, v in opts.items() if not tensors(plain(v))]
    return " ".join([op] + parts + words)


def case(op, *args, fn=None, grad=True, pos=(), inplace=False, after=(), flags=(), kind=None,
         label=None, **opts):
    """One call: runs it, its backward with a random cotangent, and writes both.

    pos: outputs that hold positions. inplace: op_ must answer the same.
    after: arguments whose contents the call changes, to be checked.
    kind: the case's own, where it is not its family's. label: its name, where the op and its
    operands do not tell it from others.
    """
    args = list(args)
    label = label or describe(op, args, opts)
    if grad:
        args, opts = leaves(args), leaves(opts)
    fn = fn or getattr(torch, op, None) or getattr(F, op)
    before = {i: args[i].detach().clone() for i in after}
    out = fn(*plain(args), **plain(opts))
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    gouts = [None] * len(outs)
    if grad:
        for i, y in enumerate(outs):
            if y.requires_grad:
                gouts[i] = like(y)
        live = [i for i, g in enumerate(gouts) if g is not None]
        if live:
            torch.autograd.backward([outs[i] for i in live], [gouts[i] for i in live])
        for t in tensors(args) + tensors(opts):
            if t.requires_grad and t.grad is None:
                if live:
                    t.grad = torch.zeros_like(t)
                else:
                    t.requires_grad_(False)
    given = [before.get(i, a) for i, a in enumerate(args)]
    fields = [f'op="{op}"', f"args={lua_args(given, opts)}"]
    fields.append("out={" + ",".join(
        tensor(y, shift=1 if i in pos else 0) for i, y in enumerate(outs)) + "}")
    if any(g is not None for g in gouts):
        fields.append("gout={" + ",".join(
            "false" if g is None else values(g) for g in gouts) + "}")
    if after:
        fields.append("after={" + ",".join(f"[{i + 1}]={tensor(args[i])}" for i in after) + "}")
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if inplace and first is not None and outs[0].shape == first.shape \
            and outs[0].dtype == first.dtype:
        fields.append("inplace=true")
    if kind:
        fields.append(f'kind="{kind}"')
    emit(fields + [f"{f}=true" for f in flags], label)


def lua_args(args, opts):
    parts = [lua(a) for a in args]
    if opts:
        parts.append(lua(opts))
    return "{" + ",".join(parts) + "}"


# Of PyTorch's messages: a dtype that the op does not take.
REFUSALS = ("can only calculate", "not supported", "can't be cast", "ould not infer")


def sweep(dtypes, make):
    """make(dtype) for every dtype that PyTorch supports there."""
    for d in dtypes:
        try:
            make(d)
        except NotImplementedError:  # no kernel for it
            pass
        except RuntimeError as e:
            if not any(word in str(e) for word in REFUSALS):
                raise


# ---- inputs -----------------------------------------------------------------

def r(*shape, dtype=f32, lo=-4.0, hi=4.0):
    """Odd multiples of 1/32 in (lo, hi), at most 8 significant bits."""
    k = torch.randint(int(lo * 16), int(hi * 16), shape)
    return ((2 * k + 1).to(f64) / 32).to(dtype)


def like(y):
    return r(*y.shape, dtype=y.dtype, lo=-2, hi=2)


def ints(*shape, dtype=i64, lo=-9, hi=9):
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    return torch.randint(max(lo, 0) if dtype == u8 else lo, hi, shape).to(dtype)


def distinct(*shape, dtype=f32):
    """No two elements equal: for ops that choose."""
    n = int(np.prod(shape))
    k = torch.randperm(n) - n // 2
    return ((2 * k + 1).to(f64) / 32).to(dtype).reshape(shape)


def any_(*shape, dtype=f32, **kw):
    return r(*shape, dtype=dtype, **kw) if dtype.is_floating_point else ints(*shape, dtype=dtype)


def frozen(t):
    t.no_grad = True
    return t


def special(dtype):
    i = torch.finfo(dtype)
    tiny = {f64: 5e-324, f32: 1.401298464324817e-45, f16: 2**-24, bf16: 2**-133}[dtype]
    return torch.tensor([0.0, -0.0, INF, -INF, NAN, tiny, -tiny, i.tiny / 4, i.tiny, 1.0, -1.0,
                         0.5, -0.5, 1.5, -1.5, 2.5, -2.5, i.eps, 3.0, -3.0, 10.0, -10.0],
                        dtype=f64).to(dtype)


def normal(dtype):
    """special() without what PyTorch itself flushes to zero in bfloat16."""
    x = special(dtype)
    return x[~((x.abs() < 1e-37) & (x != 0))]
