#!/usr/bin/env python3
"""Writes spec/golden/*.lua: what PyTorch answers, as plain Lua data.

Run by hand when a definition is added: python3 scripts/golden.py [family ...]
The specs read only the files, so PyTorch is needed by nobody else.

One case per line: the op, its arguments as Lua passes them (required ones in
PyTorch's order, optional ones in a trailing table), and the results. A tensor
is {t=dtype, s=shape, d=values row by row, g=gradient values}; `gout` holds the
cotangents, so g is a vector-Jacobian product. Positions (dims, indices,
labels, argmax results) are written counting from 1; P() marks them below.
Inputs are odd multiples of 1/32: exact in every float dtype, short to write,
and never on a kink unless a case puts them there.
"""

import os
import sys
import warnings
import zlib

import numpy as np
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
warnings.simplefilter("ignore")  # degenerate cases are meant
OUT_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "spec", "golden")

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
            return tensor(v.value, shift=1)
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
         **opts):
    """One call: runs it, its backward with a random cotangent, and writes both.

    pos: outputs that hold positions. inplace: op_ must answer the same.
    after: arguments whose contents the call changes, to be checked.
    kind: the case's own, where it is not its family's.
    """
    args = list(args)
    label = describe(op, args, opts)
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


# ---- creation, views --------------------------------------------------------

@family("exact")
def create():
    for d in ALL:
        case("zeros", [2, 3], dtype=d)
        case("ones", [3], dtype=d)
        case("full", [2, 2], 1 if d == torch.bool else 3, dtype=d)
        case("eye", 3, dtype=d)
        case("zeros_like", any_(2, 3, dtype=d), grad=False)
        case("ones_like", any_(3, 2, dtype=d), grad=False)
        case("full_like", any_(2, dtype=d), 1, grad=False)
    case("zeros_like", r(2, 3), grad=False, dtype=i32)
    case("ones_like", r(2, 0), grad=False)
    case("full", [2, 3], 2.5)
    case("full", [2, 3], 7)
    case("full", [], -1.5)
    case("full", [0, 2], 1.5)
    case("zeros", [])
    case("zeros", [0])
    case("ones", [2, 0, 3])
    case("eye", 2, 4)
    case("eye", 4, 2)
    case("eye", 0)
    # arange ends at its last argument, as a numeric for does
    for args, items in [((5,), [1, 2, 3, 4, 5]), ((2, 6), [2, 3, 4, 5, 6]),
                        ((1, 7, 2), [1, 3, 5, 7]), ((1, 8, 3), [1, 4, 7]),
                        ((5, 1, -2), [5, 3, 1]), ((-2, 2), [-2, -1, 0, 1, 2]),
                        ((0.0, 1.0, 0.25), [0.0, 0.25, 0.5, 0.75, 1.0]),
                        ((1.0, 2.0, 0.75), [1.0, 1.75]), ((1, 1), [1])]:
        case("arange", *args, fn=lambda *a, items=items: torch.tensor(items))
    for d in [f32, f64, i32, i16, u8]:
        case("arange", 1, 4, fn=lambda *a, dtype: torch.tensor([1, 2, 3, 4], dtype=dtype), dtype=d)
    for a in [(0, 1, 5), (-2, 2, 9), (3, 3, 2), (1, 0, 3), (0, 1, 1), (0, 1, 0), (0.1, 0.7, 7)]:
        case("linspace", *a, kind="pointwise")
        case("linspace", *a, kind="pointwise", dtype=f64)
    case("tensor", 2.5)
    case("tensor", [1.5, -2.0, 3.25])
    case("tensor", [[1, 2, 3], [4, 5, 6]], dtype=f32)
    case("tensor", [1, 2, 3])
    case("tensor", 7)
    case("tensor", [[True, False], [False, True]])
    case("tensor", [0, 1, 2], dtype=torch.bool)
    case("tensor", [1, 2, 300], dtype=bf16)


def method(name):
    return lambda x, *a, **k: getattr(x, name)(*a, **k)


def closed_slice(x, dim, start, stop, step=1):
    """From start to stop, both included, as in Lua."""
    n = x.shape[dim]
    stop = stop + n if stop < 0 else stop
    return x.movedim(dim, 0)[start:stop + 1:step].movedim(0, dim)


def at_offset(x, size, stride, storage_offset=None):
    return torch.as_strided(x, size, stride, storage_offset)


@family("exact")
def view():
    v = ["view"]
    x = lambda d=f32: any_(2, 3, 4, dtype=d)
    for d in FLOATS + [i64, torch.bool]:
        case("view", x(d), 6, 4, fn=method("view"), flags=["dense"] + v)
        case("reshape", x(d), [4, -1])
        case("transpose", x(d), P(0), P(2), flags=v)
        case("cat", [any_(2, 3, dtype=d), any_(1, 3, dtype=d)])
        case("flip", x(d), P([0, 2]))
    case("view", x(), -1, fn=method("view"), flags=["dense"] + v)
    case("view", r(), 1, 1, fn=method("view"), flags=v)
    case("view", r(0, 3), 3, 0, fn=method("view"), flags=["dense"])
    case("reshape", x(), [24])
    case("reshape", r(1), [])
    case("reshape", r(0, 3), [0])
    case("transpose", x(), P(-1), P(-2), flags=v)
    case("transpose", r(0, 3), P(0), P(1))
    case("transpose", r(), P(-1), P(-1), flags=v)
    case("t", r(3, 4), flags=v)
    case("t", r(3), flags=v)
    case("t", r(), flags=v)
    case("permute", x(), P([2, 0, 1]), flags=v)
    case("permute", x(), P([-1, 1, -3]), flags=v)
    case("permute", r(), P([]), flags=v)
    case("squeeze", r(1, 3, 1), flags=v)
    case("squeeze", r(1, 3, 1), P(0), flags=v)
    case("squeeze", r(1, 3, 1), P(-1), flags=v)
    case("squeeze", r(2, 3), P(0), flags=v)
    case("squeeze", r(1, 3, 1), P([0, 2]), flags=v)
    case("squeeze", r(), flags=v)
    for dim in (0, 1, 2, -1, -3):
        case("unsqueeze", r(2, 3), P(dim), flags=v)
    case("unsqueeze", r(), P(0), flags=v)
    case("unsqueeze", r(0), P(0))
    case("expand", r(3, 1), 3, 4, fn=method("expand"))
    case("expand", r(3, 1), 2, -1, 4, fn=method("expand"))
    case("expand", r(), 2, 2, fn=method("expand"))
    case("expand", r(1, 3), 0, 3, fn=method("expand"))
    case("narrow", x(), P(1), P(1), 2, flags=v)
    case("narrow", x(), P(-1), P(0), 3, flags=v)
    case("narrow", x(), P(2), P(-2), 2, flags=v)
    case("narrow", x(), P(0), P(1), 0)
    case("select", x(), P(0), P(1), flags=v)
    case("select", x(), P(2), P(-1), flags=v)
    case("select", r(3), P(0), P(2), flags=v)
    case("flatten", x())
    case("flatten", x(), start_dim=P(1))
    case("flatten", x(), start_dim=P(0), end_dim=P(1))
    case("flatten", x(), start_dim=P(-2))
    case("flatten", r())
    case("contiguous", x(), fn=method("contiguous"))
    case("movedim", x(), P(0), P(2), flags=v)
    case("movedim", x(), P([0, 1]), P([2, 0]), flags=v)
    case("movedim", x(), P(-1), P(0), flags=v)
    case("cat", [r(2, 3), r(2, 1)], dim=P(1))
    case("cat", [r(2, 3), r(2, 1)], dim=P(-1))
    case("cat", [r(2), r(0), r(3)])
    case("cat", [r(2, 3, dtype=f16), r(2, 3)])
    case("cat", [ints(2), r(2)])
    case("cat", [r(1, 2), r(3, 2), r(2, 2)])
    case("stack", [r(2, 3), r(2, 3)])
    case("stack", [r(2, 3), r(2, 3)], dim=P(1))
    case("stack", [r(2, 3), r(2, 3)], dim=P(-1))
    case("stack", [r(), r(), r()])
    case("stack", [r(0), r(0)])
    case("split", r(5, 2), 2, flags=v)
    case("split", r(2, 6), [1, 2, 3], dim=P(1), flags=v)
    case("split", r(2, 6), 4, dim=P(-1), flags=v)
    case("chunk", r(5, 2), 3, flags=v)
    case("chunk", r(2, 6), 2, dim=P(1), flags=v)
    case("chunk", r(2, 5), 4, dim=P(-1), flags=v)
    case("tile", r(2, 3), [2, 2])
    case("tile", r(3), [2, 1, 2])
    case("tile", r(2, 3), [2])
    case("tile", r(2), [0])
    case("repeat", r(2, 3), 2, 1, fn=method("repeat"))
    case("repeat", r(3), 2, 1, 2, fn=method("repeat"))
    case("flip", r(3), P([0]))
    case("flip", r(2, 3), P([-1]))
    case("flip", r(0, 3), P([1]))
    for offset in (0, 1, -1):
        case("diagonal", r(3, 4), offset=offset, flags=v)
    case("clone", x())
    case("detach", x(), grad=False, flags=v)
    case("slice", x(), P(2), P(0), P(2), fn=closed_slice, flags=v)
    case("slice", x(), P(2), P(0), P(-1), fn=closed_slice, step=2, flags=v)
    case("slice", x(), P(-1), P(-3), P(-2), fn=closed_slice, flags=v)
    case("slice", x(), P(0), P(1), P(1), fn=closed_slice, step=5, flags=v)
    case("slice", r(3), P(0), P(2), P(1), fn=closed_slice)
    case("as_strided", r(8), [2, 3], [3, 1], flags=[*v, "dense"])
    case("as_strided", r(8), [2, 3], [1, 2], storage_offset=1, fn=at_offset, flags=[*v, "dense"])
    case("as_strided", r(8), [3, 4], [2, 1], fn=at_offset, flags=["dense"])  # places that overlap
    case("as_strided", r(2, 4), [4], [0], storage_offset=5, fn=at_offset, flags=["dense"])
    case("as_strided", r(8), [], [], storage_offset=7, fn=at_offset, flags=[*v, "dense"])
    case("as_strided", r(8), [0, 3], [3, 1], flags=["dense"])


# ---- pointwise --------------------------------------------------------------

def pointwise(op, make, int_too=True, spec=special, bound=None, **opts):
    """The usual shapes and dtypes of a function of one tensor."""
    case(op, make(2, 3), inplace=True, **opts)
    case(op, make(), inplace=True, **opts)
    case(op, make(0, 3), inplace=True, **opts)
    case(op, make(2, 17, dtype=f32), **opts)
    sweep([f64, f16, bf16], lambda d: case(op, make(5, dtype=d), inplace=True, **opts))
    if int_too:
        sweep([i64, i32, u8, torch.bool],
              lambda d: case(op, ints(4, dtype=d, lo=bound if bound is not None else -5, hi=6),
                             grad=False, inplace=True, **opts))
    if spec:
        sweep(FLOATS, lambda d: case(op, spec(d), grad=False, **opts))


UNARY = {  # op: (lo, hi) of its ordinary inputs
    "neg": (-4, 4),
    "abs": (-4, 4),
    "sign": (-4, 4),
    "exp": (-4, 4),
    "expm1": (-4, 4),
    "log": (0.125, 4),
    "log1p": (-0.875, 4),
    "log2": (0.125, 4),
    "log10": (0.125, 4),
    "sqrt": (0.125, 4),
    "rsqrt": (0.125, 4),
    "reciprocal": (0.125, 4),
    "sin": (-4, 4),
    "cos": (-4, 4),
    "tan": (-1.25, 1.25),
    "tanh": (-3, 3),
    "sigmoid": (-4, 4),
    "erf": (-2, 2),
    "square": (-4, 4),
    "asin": (-0.875, 0.875),
    "acos": (-0.875, 0.875),
    "atan": (-4, 4),
    "sinh": (-3, 3),
    "cosh": (-3, 3),
    "floor": (-4, 4),
    "ceil": (-4, 4),
    "round": (-4, 4),
    "trunc": (-4, 4),
}


@family("pointwise")
def unary():
    for op, (lo, hi) in UNARY.items():
        pointwise(op, lambda *s, dtype=f32: r(*s, dtype=dtype, lo=lo, hi=hi),
                  bound=1 if lo > -1 else None, spec=normal if op == "erf" else special)
    for op in ("exp", "sigmoid", "tanh", "expm1"):  # saturation
        for d in FLOATS:
            case(op, torch.tensor([-1000.0, -80, -50, -20, 20, 50, 88, 100, 1000], dtype=d),
                 grad=False)
    for op in ("neg", "abs", "sqrt", "exp"):  # gradients at the edge
        case(op, torch.tensor([0.0, 1.0, 4.0]))
    for d in FLOATS:
        case("round", torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 3.5], dtype=d), grad=False)
    clamp_cases()


def clamp_cases():
    mk = lambda *s, dtype=f32: r(*s, dtype=dtype)
    pointwise("clamp", mk, min=-1.5, max=2.0)
    pointwise("clamp", mk, int_too=False, min=-1.5)
    pointwise("clamp", mk, int_too=False, max=0.5)
    case("clamp", torch.tensor([-1.0, 0.0, 1.0, 2.0]), min=-1.0, max=2.0)  # on the bounds
    case("clamp", r(3), min=2.0, max=-2.0)  # the upper bound wins
    case("clamp", ints(5), min=-2, max=3, grad=False)
    case("clamp", r(2, 3), min=r(3, lo=-4, hi=-1), max=r(2, 1, lo=0, hi=4))


def shapes_of_two(op, make, inplace=True, **opts):
    for a, b in [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 3)), ((2, 3), ()),
                 ((), ()), ((0, 3), (3,)), ((2, 1, 3), (4, 1)), ((2, 19), (2, 19))]:
        case(op, make(*a), make(*b), inplace=inplace, **opts)
    for d in FLOATS[1:]:
        case(op, make(2, 3, dtype=d), make(2, 3, dtype=d), inplace=inplace, **opts)
        case(op, make(3, dtype=d), make(2, 1, dtype=d), **opts)


@family("pointwise")
def binary():
    mk = lambda *s, dtype=f32: r(*s, dtype=dtype)
    pos = lambda *s, dtype=f32: r(*s, dtype=dtype, lo=0.25)
    for op in ("add", "sub", "mul"):
        shapes_of_two(op, mk)
    for op in ("maximum", "minimum"):
        shapes_of_two(op, mk, inplace=False)
    for op in ("div", "fmod", "remainder"):
        shapes_of_two(op, mk)
    for mode in ("floor", "trunc"):
        shapes_of_two("div", mk, rounding_mode=mode)
    shapes_of_two("pow", pos)
    shapes_of_two("atan2", mk)
    for op in ("add", "sub"):
        case(op, r(2, 3), r(3), alpha=2)
        case(op, r(2, 3), r(3), alpha=-0.5, inplace=True, kind="sum")
        case(op, ints(3), ints(3), alpha=3, grad=False)
    for op in ("add", "sub", "mul", "div", "pow", "fmod", "remainder"):
        for n in (2, 2.5, -1.5) if op != "pow" else (2, 0.5, 3, -1, 0, 1, 2.5, -2):
            for d in FLOATS:
                case(op, pos(4, dtype=d), n, inplace=True)
            case(op, ints(4, lo=1), abs(n), grad=False)
        for d in INTS:
            case(op, ints(6, dtype=d, lo=1 if op == "pow" else -9), ints(6, dtype=d, lo=1, hi=5),
                 grad=False, inplace=True)
        case(op, ints(3, lo=1), r(3, lo=1))
        case(op, r(3, dtype=f16, lo=1), r(3, lo=1))
        case(op, r(3, dtype=f16, lo=1), r(3, dtype=bf16, lo=1))
        case(op, r(3, dtype=bf16, lo=1), r(dtype=f32, lo=1))
        case(op, r(3, dtype=f64, lo=1), r(3, lo=1))
    for op in ("maximum", "minimum"):
        case(op, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.5, 2.0]))  # a tie
        case(op, ints(5), ints(5), grad=False)
        case(op, ints(5, dtype=torch.bool), ints(5, dtype=torch.bool), grad=False)
    case("pow", 2.5, r(2, 3))
    case("pow", 2, r(2, 3))
    case("pow", torch.tensor([-2.0, -1.5, 0.0, 0.0, 2.0]), 3)
    case("pow", torch.tensor([-2.0, -1.5, 3.0]), 2)
    case("pow", torch.tensor([0.0, 0.0, 2.0]), torch.tensor([0.0, 2.0, 0.0]))
    edge = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 2.5])
    for op in ("add", "mul", "div", "pow", "fmod", "remainder", "maximum", "minimum", "sub"):
        a, b = edge.reshape(-1, 1).expand(8, 8).contiguous(), edge.expand(8, 8).contiguous()
        case(op, a, b, grad=False)
    case("div", edge[:, None].contiguous(), torch.tensor([3.0, -3.0]), rounding_mode="floor",
         grad=False)
    case("div", ints(4, dtype=i64), ints(4, lo=1), rounding_mode="floor", grad=False)
    case("div", torch.tensor([-7, 7, -7, 7]), torch.tensor([2, -2, -2, 2]), rounding_mode="trunc",
         grad=False)
    case("remainder", torch.tensor([-7, 7, -7, 7]), torch.tensor([2, -2, -2, 2]), grad=False)
    case("fmod", torch.tensor([-7, 7, -7, 7]), torch.tensor([2, -2, -2, 2]), grad=False)
    case("add", torch.tensor([250, 3], dtype=u8), torch.tensor([10, 4], dtype=u8), grad=False)
    case("mul", torch.tensor([100, -100], dtype=i8), torch.tensor([2, 3], dtype=i8), grad=False)
    case("add", ints(4, dtype=torch.bool), ints(4, dtype=torch.bool), grad=False)
    case("mul", ints(4, dtype=torch.bool), ints(4, dtype=torch.bool), grad=False)
    operators()
    ternary()
    filling()
    more_pairs()


def operators():
    """Lua's operators, a number on either side."""
    import operator as o
    for sign, fn in [("+", o.add), ("-", o.sub), ("*", o.mul), ("/", o.truediv),
                     ("//", o.floordiv), ("%", o.mod), ("^", o.pow)]:
        smooth = sign not in ("//", "%")
        case(sign, r(2, 3, lo=0.25), r(3, lo=0.25), fn=fn, grad=smooth)
        case(sign, r(3, lo=0.25), 2, fn=fn, grad=smooth)
        case(sign, 2.5, r(3, lo=0.25), fn=fn, grad=smooth)
        case(sign, ints(3, lo=1), 2, fn=fn, grad=False)
        case(sign, 7, ints(3, lo=1), fn=fn, grad=False)
    case("unm", r(2, 3), fn=o.neg)


def more_pairs():
    for op in ("hypot", "logaddexp", "logaddexp2"):
        for d in FLOATS:
            case(op, r(2, 3, dtype=d), r(3, dtype=d), inplace=op == "hypot", kind="sum")
        case(op, torch.tensor([1e30, INF, -INF, INF, NAN, -300.0]),
             torch.tensor([1e30, INF, -INF, -INF, 1.0, 300.0]), grad=False)
    for d in FLOATS:
        case("copysign", r(2, 3, dtype=d), r(3, dtype=d), inplace=True)
        case("xlogy", r(2, 3, dtype=d), r(3, dtype=d, lo=0.25), inplace=True, kind="sum")
    case("copysign", torch.tensor([0.0, -0.0, 1.0, -2.0]), torch.tensor([-0.0, 1.0, -INF, 0.0]))
    case("copysign", ints(4), -1)
    case("xlogy", torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0]), torch.tensor([0.0, NAN, -1, 0, INF]))
    case("xlogy", ints(3), 2)
    case("xlogy", 2.5, r(3, lo=0.25))
    for op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        for d in [torch.bool] + INTS:
            case(op, ints(2, 3, dtype=d), ints(3, dtype=d), grad=False, inplace=True)
        case(op, ints(4), 5, grad=False)
        case(op, ints(4, dtype=u8), ints(4), grad=False)


def filling():
    """What changes its operand only; the spec calls it on a clone."""
    copy = lambda x, source: x.clone().copy_(source)
    for d in FLOATS:
        case("copy_", r(2, 3, dtype=d), r(2, 3), fn=copy)
    case("copy_", r(2, 3), r(3), fn=copy)
    case("copy_", r(2, 3), ints(2, 1), fn=copy)
    case("copy_", ints(3), r(3), fn=copy, grad=False)
    case("fill_", r(2, 3), 1.5, fn=lambda x, v: x.clone().fill_(v))
    case("fill_", ints(2, 3), 3, fn=lambda x, v: x.clone().fill_(v), grad=False)
    case("zero_", r(2, 3), fn=lambda x: x.clone().zero_())


def ternary():
    for d in FLOATS:
        case("lerp", r(2, 3, dtype=d), r(2, 3, dtype=d), 0.25, inplace=True, kind="sum")
        case("lerp", r(2, 3, dtype=d), r(2, 3, dtype=d), r(3, dtype=d, lo=0, hi=1), inplace=True,
             kind="sum")
        for op in ("addcmul", "addcdiv"):
            case(op, r(2, 3, dtype=d), r(2, 3, dtype=d), r(2, 3, dtype=d, lo=1), inplace=True,
                 kind="sum")
            case(op, r(2, 3, dtype=d), r(2, 1, dtype=d), r(3, dtype=d, lo=1), value=-0.5,
                 kind="sum")
        case("where", ints(2, 3, dtype=torch.bool), r(2, 3, dtype=d), r(2, 3, dtype=d))
    case("lerp", r(), r(), 0.75, kind="sum")
    case("lerp", r(0), r(0), 0.75)
    case("addcmul", r(0, 3), r(3), r(1))
    case("addcdiv", r(), r(), r(lo=1), kind="sum")
    case("where", ints(3, dtype=torch.bool), r(2, 3), r(2, 1))
    case("where", ints(2, 3, dtype=torch.bool), r(2, 3), 1.5)
    case("where", ints(2, 3, dtype=torch.bool), 0.5, r(3))
    case("where", torch.tensor(True), r(3), r(3))
    case("where", ints(0, dtype=torch.bool), r(0), r(0))
    case("where", ints(3, dtype=torch.bool), ints(3), r(3))
    case("where", torch.tensor([True, False]), torch.tensor([1.0, NAN]), torch.tensor([INF, 2.0]))


@family("exact")
def compare():
    edge = [0.0, -0.0, INF, -INF, NAN, 1.0]
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        for d in ALL:
            a = ints(8, dtype=d, lo=0, hi=3) if not d.is_floating_point else \
                ints(8, lo=-2, hi=3).to(d)
            case(op, a, ints(8, dtype=i64, lo=0, hi=3).to(d), grad=False)
        for a, b in [((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2,)), ((), ()), ((0, 3), (3,))]:
            case(op, ints(*a, lo=0, hi=3).to(f32), ints(*b, lo=0, hi=3).to(f32), grad=False)
        case(op, ints(6, lo=0, hi=3).to(f32), 1, grad=False)
        case(op, ints(6, lo=0, hi=3), 1.5, grad=False)
        case(op, ints(6, lo=0, hi=3), ints(6, lo=0, hi=3).to(f16), grad=False)
        case(op, torch.tensor(edge).repeat_interleave(6), torch.tensor(edge).repeat(6), grad=False)
    for op in ("logical_and", "logical_or", "logical_xor"):
        for d in ALL:
            case(op, ints(8, lo=0, hi=2).to(d), ints(8, lo=0, hi=2).to(d), grad=False)
        case(op, ints(2, 3, dtype=torch.bool), ints(3, lo=0, hi=2).to(f32), grad=False)
        case(op, torch.tensor(edge), torch.tensor(edge).flip(0), grad=False)
        case(op, ints(0, dtype=torch.bool), ints(0, dtype=torch.bool), grad=False)
        case(op, torch.tensor(True), ints(2, dtype=torch.bool), grad=False)
    for d in ALL:
        case("logical_not", ints(6, lo=0, hi=2).to(d), grad=False)
    case("logical_not", torch.tensor(edge), grad=False)
    for op in ("isnan", "isinf", "isfinite"):
        for d in FLOATS:
            case(op, special(d), grad=False)
        case(op, ints(3), grad=False)
        case(op, r(0), grad=False)
        case(op, torch.tensor(NAN), grad=False)
    edges = torch.tensor(edge)
    for opts in ({}, {"equal_nan": True}, {"rtol": 0.5, "atol": 0.25}):
        case("isclose", edges.repeat_interleave(6), edges.repeat(6), grad=False, **opts)
        case("isclose", torch.tensor([1.0, 100.0, 0.0]), torch.tensor([1.00001, 100.01, 1e-9]),
             grad=False, **opts)
        case("isclose", ints(6), ints(6), grad=False, **opts)
        case("isclose", torch.tensor([True, False]), torch.tensor([True, True]), grad=False, **opts)


@family("activation")
def activation():
    mk = lambda *s, dtype=f32: r(*s, dtype=dtype)
    for op, variants in [("relu", [{}]), ("leaky_relu", [{}, {"negative_slope": 0.2}]),
                         ("elu", [{}, {"alpha": 0.5}]), ("gelu", [{}, {"approximate": "none"},
                                                                  {"approximate": "tanh"}]),
                         ("silu", [{}]), ("softplus", [{}, {"beta": 2.0, "threshold": 3.0}]),
                         ("hardtanh", [{}, {"min_val": -0.5, "max_val": 2.0}])]:
        for opts in variants:
            fn = getattr(F, op)
            case(op, mk(2, 3), fn=fn, inplace=op in ("relu", "leaky_relu", "elu", "hardtanh"),
                 **opts)
            case(op, mk(), fn=fn, **opts)
            case(op, mk(0, 3), fn=fn, **opts)
            case(op, mk(2, 17), fn=fn, **opts)
            for d in (f64, f16, bf16):
                case(op, mk(7, dtype=d), fn=fn, **opts)
            for d in FLOATS:
                case(op, special(d), fn=fn, grad=False, **opts)
            case(op, torch.tensor([-100.0, -30, -15, 15, 25, 40, 100]), fn=fn, **opts)
    case("relu", torch.tensor([-1.0, 0.0, 1.0]), fn=F.relu)
    case("relu", ints(5), fn=F.relu, grad=False)
    case("leaky_relu", torch.tensor([-1.0, 0.0, 1.0]), fn=F.leaky_relu)
    case("elu", torch.tensor([-1.0, 0.0, 1.0]), fn=F.elu)
    case("hardtanh", torch.tensor([-1.0, 0.0, 1.0]), fn=F.hardtanh)
    more_activations()


def more_activations():
    unit = lambda n, d: r(n, dtype=d, lo=-0.9, hi=0.9)
    for op, opts, fn, *domain in [
            ("hardsigmoid", {}, F.hardsigmoid), ("hardswish", {}, F.hardswish),
            ("mish", {}, F.mish), ("logsigmoid", {}, F.logsigmoid), ("erfinv", {}, None, unit),
            ("relu6", {}, F.relu6), ("selu", {}, F.selu), ("celu", {}, F.celu),
            ("celu", {"alpha": 2.0}, F.celu), ("softsign", {}, F.softsign),
            ("tanhshrink", {}, F.tanhshrink), ("softshrink", {}, F.softshrink),
            ("softshrink", {"lambd": 1.0}, F.softshrink), ("hardshrink", {}, F.hardshrink),
            ("hardshrink", {"lambd": 1.0}, F.hardshrink), ("sinc", {}, None),
            ("frac", {}, None), ("nan_to_num", {}, None),
            ("nan_to_num", {"nan": 1.0, "posinf": 2.0, "neginf": -3.0}, None)]:
        mk = domain[0] if domain else lambda n, d: r(n, dtype=d)
        place = op in ("relu6", "selu", "celu", "sinc", "frac", "nan_to_num", "erfinv")
        for d in FLOATS:
            # PyTorch's slope is float32's 1/6
            case(op, mk(5, d), fn=fn, inplace=place, grad=(op, d) != ("hardsigmoid", f64), **opts)
        case(op, special(f32), fn=fn, grad=False, **opts)
        case(op, torch.tensor([-100.0, -30, -15, 15, 25, 40, 100]), fn=fn, **opts)
        case(op, torch.tensor([-6.0, -3, -1, -0.5, 0, 0.5, 1, 3, 6]), fn=fn, **opts)
    case("erfinv", torch.tensor([1e-30, -1e-8, 0.4999, 0.5001, -0.99, 0.999999, 1, -1, 1.5]))
    case("erfinv", torch.tensor([1e-300, -1e-8, 0.4999, 0.5001, -0.99, 1 - 1e-13], dtype=f64))
    for d in FLOATS:
        case("threshold", r(9, dtype=d), 0.5, -2.0, fn=F.threshold, inplace=True)
        case("prelu", r(2, 3, 2, dtype=d), r(3, dtype=d), fn=F.prelu)
        case("glu", r(2, 4, dtype=d), fn=F.glu)
        case("signbit", torch.tensor([0.0, -0.0, INF, -INF, 2, -2], dtype=d), kind="exact")
    case("signbit", ints(4), grad=False, kind="exact")
    case("prelu", r(2, 3), r(1), fn=F.prelu)
    case("prelu", r(), r(1), fn=F.prelu)
    case("glu", r(4, 3), fn=F.glu, dim=P(0))
    case("threshold", ints(5), 2, 7, fn=F.threshold, grad=False)
    case("nan_to_num", ints(5), grad=False)
    for d in [torch.bool, u8, i8, i64]:
        case("bitwise_not", ints(6, dtype=d), grad=False, inplace=True, kind="exact")


@family("pointwise")
def special_():
    sp = torch.special
    right = lambda n, d: r(n, dtype=d, lo=0.25, hi=6)
    unit = lambda n, d: r(n, dtype=d, lo=0.05, hi=0.95)
    any_sign = lambda n, d: r(n, dtype=d)
    for op, fn, mk in [
            ("lgamma", None, right), ("digamma", None, right), ("i0", None, any_sign),
            ("special_i0e", sp.i0e, any_sign), ("special_i1", sp.i1, any_sign),
            ("special_i1e", sp.i1e, any_sign), ("special_erfcx", sp.erfcx, any_sign),
            ("special_ndtr", sp.ndtr, unit), ("special_ndtri", sp.ndtri, unit),
            ("special_log_ndtr", sp.log_ndtr, any_sign), ("special_entr", sp.entr, right),
            ("logit", None, unit)]:
        small = not op.startswith("special_") or op in ("special_entr", "special_ndtr")
        for d in (FLOATS if op != "logit" else (f32, f64, bf16)) if small else (f32, f64):
            # PyTorch's trigamma, digamma's slope, has float32's digits
            case(op, mk(6, d), fn=fn, inplace=op in ("lgamma", "digamma", "i0", "logit"),
                 grad=(op, d) != ("digamma", f64))
        for d in (f32, f64):
            far = torch.tensor([-30.0, -8.5, -1.25, 1e-4, 9, 11.75, 12.5, 29.5, 60], dtype=d)
            if op not in ("special_ndtri", "logit", "special_entr", "special_erfcx", "digamma",
                          "special_ndtr"):  # which loses its left tail there
                case(op, far, fn=fn, grad=False)
            case(op, torch.tensor([0.0, -0.0, NAN], dtype=d), fn=fn, grad=False)
        case(op, ints(4, lo=1, hi=5), fn=fn, grad=False)
    case("digamma", torch.tensor([-8.5, -1.25, 1e-4, 9, 30, INF, -INF, -2], dtype=f64), grad=False)
    case("lgamma", torch.tensor([1.0, 2.0, INF, -INF, -3.0, 1e30]), grad=False)
    case("special_erfcx", torch.tensor([-5.0, 0.01, 7.9, 8.1, 30, 1e10, INF, -INF]), fn=sp.erfcx,
         grad=False)
    case("special_ndtri", torch.tensor([0.0, 1.0, -0.5, 1.5, 1e-30, 0.5]), fn=sp.ndtri, grad=False)
    case("special_entr", torch.tensor([-1.0, 1.0, INF, -INF]), fn=sp.entr, grad=False)
    case("logit", torch.tensor([-1.0, 0.0, 0.05, 0.5, 1.0, 2.0]), grad=False)
    case("logit", torch.tensor([-1.0, 0.0, 0.05, 0.5, 0.8, 2.0]), eps=0.125)
    for n in (0, 1, 2, 3, 7):
        case("polygamma", n, right(6, f32), fn=torch.polygamma, kind="sum")
        if n > 1:
            case("polygamma", n, right(6, f64), fn=torch.polygamma, kind="sum")
        case("polygamma", n, torch.tensor([-2.5, -0.25, 0.0, 40.5]), fn=torch.polygamma,
             grad=False, kind="sum")
    for d in (f32, f64):
        case("mvlgamma", r(5, dtype=d, lo=2, hi=6), p=4, inplace=True)
        case("special_xlog1py", r(2, 3, dtype=d, lo=-2, hi=2), r(3, dtype=d, lo=-0.9, hi=2),
             fn=sp.xlog1py)
        case("special_xlog1py", torch.tensor([0.0, 0.0, 1, NAN, 0], dtype=d),
             torch.tensor([-1.0, -2, -1, 1, NAN], dtype=d), fn=sp.xlog1py, grad=False)
    case("special_xlog1py", r(3), 2.5, fn=sp.xlog1py)
    for d in (f32, f64, bf16):
        case("nextafter", torch.tensor([0.0, -0.0, 0.0, 1, 1, -1, 2, INF, -INF, NAN, 1], dtype=d),
             torch.tensor([1.0, -1, 0, 2, 0, 0, 2, 0, 0, 1, NAN], dtype=d), grad=False,
             inplace=True, kind="exact")


# ---- reductions, order, indexing --------------------------------------------

DIMS = [(0,), (-1,), (1,)]


@family("sum")
def reduce():
    x = lambda d=f32: r(2, 3, 4, dtype=d, lo=-2, hi=2)
    for op in ("sum", "mean", "amax", "amin", "var", "std", "logsumexp", "prod"):
        # tied maxima share their gradient, so ties are welcome in amax and amin
        many = op not in ("prod",)
        if op != "logsumexp":
            for d in FLOATS:
                case(op, x(d))
            case(op, r(40))
        for dim in DIMS:
            case(op, x(), P(dim[0]))
            case(op, x(), P(dim[0]), keepdim=True)
        if many:
            for dims in ([0, 2], [-1, 0], [0, 1, 2]):
                case(op, x(), P(dims))
            case(op, x(), P([0, 2]), keepdim=True)
        for d in FLOATS[1:]:
            case(op, x(d), P(1))
        if op not in ("amax", "amin"):
            case(op, r(0, 3), P(0))
        case(op, r(0, 3), P(1))
        if op not in ("var", "std"):
            case(op, r(), P(0))
    for op in ("var", "std"):
        for c in (0, 1, 2):
            case(op, x(), correction=c)
            case(op, x(), P(1), correction=c)
        case(op, x(), P([0, 1]), correction=0, keepdim=True)
    for op in ("sum", "mean", "prod"):
        case(op, r())
        case(op, r(0))
        case(op, x(f16), dtype=f32)
        case(op, x(), P(1), dtype=f64)
    for op in ("sum", "prod"):
        for d in INTS + [torch.bool]:
            case(op, ints(4, dtype=d, lo=1, hi=5), grad=False)
            case(op, ints(2, 3, dtype=d, lo=1, hi=5), P(0), grad=False)
    case("mean", ints(6), grad=False, dtype=f32)
    case("prod", torch.tensor([2.0, 0.0, 3.0]))
    case("prod", torch.tensor([[2.0, 0.0, 3.0], [0.0, 0.0, 1.0], [1.0, 2.0, 3.0]]), P(1))
    for d in (f16, bf16):  # 16-bit sums accumulate in float32
        case("sum", torch.ones(4096, dtype=d), grad=False)
        case("mean", torch.ones(3000, dtype=d), grad=False)
    case("logsumexp", torch.tensor([[1000.0, 1000.0], [-1000.0, -1001.0]]), P(1))
    case("logsumexp", torch.tensor([[-INF, -INF], [INF, 1.0], [-INF, 2.0]]), P(1), grad=False)
    for op in ("max", "min"):
        for d in FLOATS:
            case(op, distinct(2, 3, dtype=d))
            case(op, distinct(2, 5, dtype=d), P(1), pos=(1,))
        case(op, torch.tensor([1.0, 3.0, 3.0, 1.0]))  # a tie
        case(op, distinct(2, 3, 4), P(0), pos=(1,))
        case(op, distinct(2, 3, 4), P(-2), keepdim=True, pos=(1,))
        case(op, r(), P(0), pos=(1,))
        case(op, torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 1.0]]), P(1), pos=(1,))
        case(op, torch.tensor([1.0, NAN, 3.0]), grad=False)
        case(op, torch.tensor([1.0, NAN, 3.0, NAN]), P(0), pos=(1,), grad=False)
        case(op, torch.tensor([INF, -INF, 3.0]), P(0), pos=(1,), grad=False)
        case(op, r(0, 3), P(1), pos=(1,), grad=False)
        case(op, distinct(2, 3), distinct(3))
        for d in INTS + [torch.bool]:
            case(op, ints(6, dtype=d), grad=False)
    for op in ("argmax", "argmin"):
        for d in FLOATS + [i64, i32, u8]:
            t = distinct(3, 4, dtype=d) if d.is_floating_point else \
                (torch.randperm(12) + 1).to(d).reshape(3, 4)
            case(op, t, pos=(0,), grad=False)
            case(op, t, P(1), pos=(0,), grad=False)
        case(op, distinct(2, 3, 4), P(-1), keepdim=True, pos=(0,), grad=False)
        case(op, torch.tensor([1.0, NAN, 3.0]), pos=(0,), grad=False)
        case(op, r(), pos=(0,), grad=False)
        case(op, r(0, 3), P(1), pos=(0,), grad=False)
    for op in ("any", "all"):
        for d in ALL:
            case(op, ints(2, 3, lo=0, hi=2).to(d), grad=False)
        case(op, ints(2, 3, 2, dtype=torch.bool), P(1), grad=False)
        case(op, ints(2, 3, 2, dtype=torch.bool), P(-1), keepdim=True, grad=False)
        case(op, ints(0, 3, dtype=torch.bool), grad=False)
        case(op, ints(0, 3, dtype=torch.bool), P(0), grad=False)
        case(op, torch.tensor([0.0, NAN]), grad=False)
        case(op, torch.tensor(False), grad=False)
    for p in (2, 1, 0.5, 3, INF, -INF, 0):
        case("norm", x(), p=p)
        case("norm", x(), p=p, dim=P(1))
        case("norm", x(), p=p, dim=P([0, 2]), keepdim=True)
    for d in FLOATS:
        case("norm", x(d))
        case("norm", x(d), p=2, dim=P(-1))
    case("norm", r())
    case("norm", r(0))
    case("norm", torch.zeros(3))
    for d in FLOATS:
        case("cumsum", x(d), P(1))
    case("cumsum", x(), P(0))
    case("cumsum", x(), P(-1))
    case("cumsum", r(), P(0))
    case("cumsum", r(0, 3), P(0))
    case("cumsum", ints(5, dtype=i32), P(0), grad=False)
    case("cumsum", ints(5, dtype=torch.bool), P(0), grad=False)
    case("cumsum", x(f16), P(1), dtype=f32)


@family("exact")
def sort():
    for d in FLOATS:
        case("sort", distinct(3, 5, dtype=d), pos=(1,))
        case("topk", distinct(3, 5, dtype=d), 2, pos=(1,))
    for d in INTS:
        case("sort", (torch.randperm(8) - (0 if d == u8 else 4)).to(d), pos=(1,), grad=False)
    case("sort", distinct(3, 5), descending=True, pos=(1,))
    case("sort", distinct(3, 4, 2), dim=P(1), pos=(1,))
    case("sort", distinct(3, 4, 2), dim=P(0), descending=True, pos=(1,))
    case("sort", distinct(3, 4), dim=P(-2), pos=(1,))
    case("sort", torch.tensor([2.0, 1.0, 2.0, 1.0, 2.0]), stable=True, pos=(1,), grad=False)
    case("sort", torch.tensor([2.0, 1.0, 2.0, 1.0]), stable=True, descending=True, pos=(1,),
         grad=False)
    case("sort", torch.tensor([NAN, 1.0, INF, -INF]), stable=True, pos=(1,), grad=False)
    case("sort", r(), pos=(1,))
    case("sort", r(0, 3), pos=(1,))
    case("sort", r(0), pos=(1,))
    case("sort", torch.randperm(40).to(f32), pos=(1,), grad=False)
    case("topk", distinct(3, 5), 3, dim=P(0), pos=(1,))
    case("topk", distinct(3, 5), 2, largest=False, pos=(1,))
    case("topk", distinct(3, 5), 5, pos=(1,))
    case("topk", distinct(3, 5), 0, pos=(1,), grad=False)
    case("topk", torch.tensor([NAN, 1.0, 5.0, 3.0]), 2, pos=(1,), grad=False)
    case("topk", r(), 1, pos=(1,))
    case("topk", (torch.randperm(9) - 4), 4, pos=(1,), grad=False)
    edges = torch.tensor([-0.21875, 0.0, 0.21875, 0.34375])
    for d in FLOATS:
        for right in (False, True):
            case("bucketize", distinct(3, 4, dtype=d), edges.to(d), right=right, pos=(0,),
                 grad=False)
    for d in INTS:
        case("bucketize", torch.arange(8).to(d), torch.tensor([2, 3, 3, 6]).to(d), pos=(0,),
             grad=False)
        case("bucketize", torch.arange(8).to(d), torch.tensor([2, 3, 3, 6]).to(d), right=True,
             pos=(0,), grad=False)
    special = torch.tensor([NAN, INF, -INF, -0.0, 0.0])
    case("bucketize", special, edges, pos=(0,), grad=False)
    case("bucketize", special, edges, right=True, pos=(0,), grad=False)
    case("bucketize", special, edges, out_int32=True, pos=(0,), grad=False)
    case("bucketize", torch.tensor(0.25), edges, pos=(0,), grad=False)
    case("bucketize", distinct(2, 3), torch.zeros(0), pos=(0,), grad=False)
    case("bucketize", torch.zeros(0, 2), edges, pos=(0,), grad=False)


@family("sum")
def index():
    for d in ALL:
        case("nonzero", ints(3, 4, lo=0, hi=2).to(d), pos=(0,), grad=False)
    case("nonzero", torch.zeros(3), pos=(0,), grad=False)
    case("nonzero", torch.tensor(2.0), pos=(0,), grad=False)
    case("nonzero", torch.tensor([0.0, -0.0, NAN]), pos=(0,), grad=False)
    case("nonzero", r(0, 3), pos=(0,), grad=False)
    ix = lambda *s, n: torch.randint(0, n, s)
    for d in FLOATS + [i64, torch.bool]:
        case("gather", any_(3, 4, dtype=d), P(1), P(ix(3, 2, n=4)))
        case("index_select", any_(3, 4, dtype=d), P(0), P(torch.tensor([2, 0, 2])))
        case("masked_fill", any_(3, 4, dtype=d), ints(3, 4, dtype=torch.bool), 1, inplace=True)
    case("gather", r(3, 4), P(0), P(ix(2, 3, n=3)))
    case("gather", r(2, 3, 4), P(-1), P(ix(2, 3, 2, n=4)))
    case("gather", r(3), P(0), P(ix(0, n=3)))
    case("gather", r(), P(0), P(torch.tensor(0)))
    rows = torch.stack([torch.randperm(4)[:3] for _ in range(2)])
    for d in FLOATS + [i64]:
        case("scatter", any_(3, 4, dtype=d), P(1), P(rows), any_(2, 3, dtype=d), inplace=True)
        case("scatter_add", any_(3, 4, dtype=d), P(1), P(ix(2, 3, n=4)), any_(2, 3, dtype=d),
             inplace=True)
    case("scatter", r(3, 4), P(1), P(rows), 1.5, inplace=True)
    case("scatter", r(3, 4), P(0), P(torch.tensor([[2, 0, 1, 1]])), r(1, 4))
    case("scatter", r(3), P(0), P(ix(0, n=3)), r(0))
    case("scatter_add", r(3, 4), P(0), P(ix(5, 4, n=3)), r(5, 4), inplace=True)
    case("scatter_add", r(3), P(-1), P(torch.tensor([1, 1, 1, 0])), r(4), inplace=True)
    case("index_select", r(3, 4), P(1), P(torch.tensor([3, 3, 1, 0])))
    case("index_select", r(3, 4), P(-1), P(torch.tensor([], dtype=i64)))
    case("index_select", r(3, 4), P(0), P(torch.tensor([1], dtype=i32)))
    case("masked_fill", r(2, 3), torch.tensor([True, False, True]), -2.5, inplace=True)
    case("masked_fill", r(2, 3), ints(2, 3, dtype=torch.bool), torch.tensor(1.5))
    case("masked_fill", r(), torch.tensor(True), 1.0)
    case("masked_fill", r(2, 3), ints(2, 3, dtype=torch.bool), -INF, grad=False)
    case("masked_fill", r(0, 3), ints(0, 3, dtype=torch.bool), 1.0)
    case("masked_select", r(2, 3), ints(2, 3, dtype=torch.bool))
    case("index_add", r(3, 4), P(0), P(torch.tensor([2, 0, 2])), r(3, 4))
    case("index_copy", r(4, 3), P(0), P(torch.tensor([3, 0])), r(2, 3))
    case("tril", r(3, 4))
    case("tril", r(3, 4), -1)
    case("triu", r(4, 3))
    case("triu", r(4, 3), 1)
    case("roll", r(2, 3), 1, P(1))
    case("roll", r(2, 3), [1, -1], P([0, 1]))
    case("repeat_interleave", r(2, 3), 2, P(1))
    case("one_hot", P(torch.tensor([0, 2, 1])), 4, fn=F.one_hot)
    for d in FLOATS:
        case("embedding", P(torch.tensor([[0, 2], [4, 2]])), r(5, 3, dtype=d), fn=F.embedding)
    case("embedding", P(torch.tensor([1, 2, 1])), r(4, 2), fn=F.embedding, padding_idx=P(1))
    case("embedding", P(torch.tensor([1, 3, 0])), r(4, 2), fn=F.embedding, padding_idx=P(-1))
    case("embedding", P(torch.tensor(2)), r(4, 2), fn=F.embedding)
    case("embedding", P(torch.tensor([], dtype=i64)), r(4, 2), fn=F.embedding)
    brackets()


class Key:
    """An index as Lua writes it, and as PyTorch takes it."""

    def __init__(self, text, key):
        self.text, self.key = text, key


def brackets():
    """x[key] and x[key] = value: ranges are inclusive and count from 1."""
    s = slice
    keys = [
        ("2", 1),
        ("-1", -1),
        ("{1,3}", (0, 2)),
        ("{{},{2,3},-1}", (s(None), s(1, 3), -1)),
        ("{{},{}}", (s(None), s(None))),
        ("{{1,1}}", s(0, 1)),
        ("{2,{1,3,2}}", (1, s(0, 3, 2))),
        ("{{},{},{1,4,3}}", (s(None), s(None), s(0, 4, 3))),
        ("{{},{-2,-1}}", (s(None), s(-2, None))),
        ("{{},{},2}", (s(None), s(None), 1)),
        ("{1,2,3}", (0, 1, 2)),
        ("{{},{2,-1}}", (s(None), s(1, None))),
    ]
    for text, key in keys:
        x = r(2, 3, 4).requires_grad_()
        y = x[key]
        g = like(y)
        y.backward(g)
        emit(['op="[]"', f"args={{{lua(x)},{text}}}", f"out={{{tensor(y)}}}",
              f"gout={{{values(g)}}}", "view=true"], f"index x[{text}]")
        for v, label in [(1.5, "number"), (like(y), "tensor"), (like(y).reshape(-1)[0], "0-dim")]:
            x, orig = r(2, 3, 4), None
            orig = x.clone()
            x[key] = v
            emit(['op="[]="', f"args={{{tensor(orig)},{text},{lua(v)}}}", f"out={{{tensor(x)}}}"],
                 f"index x[{text}] = {label}")
    row, mask = torch.tensor([1, 0, 1]), torch.tensor([[True, False, True], [False, True, True]])
    for text, key in [
        (tensor(row, shift=1), row),
        (tensor(mask), mask),
        (tensor(mask[0, :2]), mask[0, :2]),
    ]:
        x = r(2, 3, 4).requires_grad_()
        y = x[key]
        g = like(y)
        y.backward(g)
        what = "rows" if key is row else f"mask{list(key.shape)}"
        emit(['op="[]"', f"args={{{lua(x)},{text}}}", f"out={{{tensor(y)}}}",
              f"gout={{{values(g)}}}"], f"index x[{what}]")
    x = r(2, 3)
    y = x.clone()
    y[mask] = -1.5
    emit(['op="[]="', f"args={{{tensor(x)},{tensor(mask)},-1.5}}", f"out={{{tensor(y)}}}"],
         "index x[mask] = number")
    y, v = x.clone(), r(4)
    y[mask] = v
    emit(['op="[]="', f"args={{{tensor(x)},{tensor(mask)},{tensor(v)}}}", f"out={{{tensor(y)}}}"],
         "index x[mask] = tensor")


@family("sum")
def softmax():
    for op in ("softmax", "log_softmax"):
        for d in FLOATS:
            case(op, r(3, 5, dtype=d), P(-1))
            case(op, r(2, 4, 3, dtype=d), P(1))
        case(op, r(3, 5), P(0))
        case(op, r(2, 3, 4), P(2))
        case(op, r(2, 37), P(1))
        case(op, r(6), P(0))
        case(op, r(), P(0))
        case(op, r(0, 3), P(0))
        case(op, r(0, 3), P(1))
        case(op, torch.tensor([[1000.0, 999.0, -1000.0], [88.5, 0.0, -104.0]]), P(1))
        case(op, torch.tensor([[-INF, 1.0, 2.0], [INF, 1.0, 2.0], [-INF, -INF, -INF],
                               [NAN, 1.0, 2.0]]), P(1), grad=False)
        case(op, r(2, 3, dtype=f16), P(1), dtype=f32)
        case(op, r(2, 3, dtype=bf16), P(1), dtype=f32)
    case("softmin", r(3, 4), P(1), fn=F.softmin)
    case("softmin", r(3, 4, dtype=f16), P(0), fn=F.softmin, dtype=f32)


# ---- products, convolution, normalisation -----------------------------------

# linear's: of its result before that is rounded
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda y: F.gelu(y, approximate="tanh")}
wide = lambda t: f64 if t.dtype == f64 else f32


@family("sum")
def distance():
    for d in FLOATS:
        case("cosine_similarity", r(3, 4, dtype=d), r(3, 4, dtype=d), fn=F.cosine_similarity)
        case("pairwise_distance", r(3, 4, dtype=d), r(3, 4, dtype=d), fn=F.pairwise_distance)
        case("trace", r(3, 4, dtype=d))
    case("cosine_similarity", r(2, 3, 4), r(3, 1), fn=F.cosine_similarity, dim=P(-1), eps=0.5)
    case("cosine_similarity", r(2, 3, 4), r(2, 3, 4), fn=F.cosine_similarity, dim=P(0))
    case("pairwise_distance", r(3, 4), r(4), fn=F.pairwise_distance, p=1, keepdim=True)
    case("pairwise_distance", r(4), r(4), fn=F.pairwise_distance, p=INF)
    for d in (f32, f64):
        case("cdist", r(3, 4, dtype=d), r(2, 4, dtype=d))
    for p in (0.0, 1.0, 3.0, INF):
        case("cdist", r(2, 3, 4), r(2, 4), p=p)
    case("cdist", r(26, 3), r(2, 3))
    case("cdist", r(0, 3), r(2, 3))
    case("trace", ints(3, 3), grad=False)


@family("sum")
def kin():
    """Ops that are others with their operands turned."""
    row = torch.tensor([[3.0, 1.0, 2.0, 1.0], [NAN, 1.5, INF, 0.0]])
    for d in FLOATS:
        case("exp2", r(2, 3, dtype=d))
        case("erfc", r(2, 3, dtype=d))
        case("deg2rad", 32 * r(3, dtype=d))
        case("rad2deg", r(3, dtype=d))
        case("vdot", r(4, dtype=d), r(4, dtype=d))
        case("dist", r(2, 3, dtype=d), r(3, dtype=d))
        case("take", r(2, 3, dtype=d), P(torch.tensor([[0, 5], [5, 2]])))
        case("argsort", distinct(3, 4, dtype=d), pos=(0,), grad=False)
        case("isin", row.to(d), torch.tensor([1.0, 2, 7], dtype=d), grad=False)
        case("index_fill", r(3, 4, dtype=d), P(1), P(torch.tensor([2, 0])), 1.5, inplace=True)
    for d in (f32, f64, bf16):
        case("addmv", r(2, dtype=d), r(2, 3, dtype=d), r(3, dtype=d), inplace=True)
        case("addbmm", r(2, 4, dtype=d), r(3, 2, 5, dtype=d), r(3, 5, 4, dtype=d), inplace=True)
        case("addr", r(2, 3, dtype=d), r(2, dtype=d), r(3, dtype=d), inplace=True)
    for x in (-80.0, -9.0, -2.0, 0.0, 1e-3, 3.0, 5.0, 9.0, 12.0, INF, NAN):
        case("erfc", torch.tensor([x]), grad=False)
        case("exp2", torch.tensor([x]), grad=False)
    case("addmv", torch.tensor(NAN), r(2, 3), r(3), beta=0, alpha=2, grad=False)
    case("addmv", r(1), r(2, 3), r(3), beta=0.5, alpha=2)
    case("addr", r(3), r(2), r(3), beta=0.5, alpha=2)
    case("addbmm", r(1, 4), r(3, 2, 5), r(3, 5, 4), beta=0.5, alpha=-1)
    case("addbmm", r(2, 4), r(0, 2, 5), r(0, 5, 4), grad=False)
    for p in (0.0, 1.0, 3.0, INF):
        case("dist", r(2, 3), r(2, 3), p=p, grad=p > 0)  # PyTorch's own fails at 0
        case("pdist", r(4, 3), p=p)
    case("pdist", r(4, 3, dtype=f64))
    case("pdist", r(1, 3), grad=False)
    case("renorm", r(3, 4), 2, P(0), 3.0, inplace=True)
    case("renorm", r(3, 4, 2), 1, P(1), 5.0)
    case("renorm", r(3, 4), INF, P(1), 2.0, grad=False)
    case("isin", ints(3, 4), ints(5), invert=True, grad=False)
    case("isin", ints(3), ints(0), grad=False)
    case("take", r(3), P(torch.tensor(2)))
    case("unflatten", r(2, 6), P(1), [2, -1], fn=torch.unflatten)
    case("unflatten", r(2, 6, 2), P(-2), [3, 2], fn=torch.unflatten)
    case("argsort", distinct(3, 4), P(0), descending=True, pos=(0,), grad=False)
    case("index_fill", ints(3, 4), P(0), P(torch.tensor([1])), 7, grad=False)
    for d in (f32, f64):
        case("adaptive_max_pool3d", distinct(2, 3, 4, 5, dtype=d), [2, 2, 3],
             fn=F.adaptive_max_pool3d)
    case("adaptive_max_pool3d", distinct(1, 2, 3, 4, 4), 2, return_indices=True, pos=(1,),
         fn=F.adaptive_max_pool3d)
    more_functions()
    quantiles()


def quantiles():
    holes = torch.tensor([[1.5, NAN, -2.0, 0.5], [NAN, NAN, NAN, NAN], [3.0, 1.0, 2.0, 5.0]])
    for d in (f32, f64):
        for op in ("quantile", "nanquantile"):
            case(op, distinct(3, 4, dtype=d), 0.3)
            case(op, distinct(3, 4, dtype=d), 0.6, dim=P(1), keepdim=True)
            case(op, distinct(3, 4, dtype=d), torch.tensor([0.0, 0.25, 1.0], dtype=d), dim=P(0))
    for way in ("linear", "lower", "higher", "midpoint", "nearest"):
        case("quantile", distinct(2, 5), torch.tensor([0.1, 0.5, 0.9]), dim=P(-1),
             interpolation=way)
        case("nanquantile", holes, 0.4, dim=P(1), interpolation=way, grad=False)
        case("quantile", holes, 0.4, dim=P(1), interpolation=way, grad=False)
    case("quantile", distinct(2, 3), torch.tensor([0.5]), keepdim=True)
    case("nanmedian", holes)
    for d in FLOATS:
        case("nanmedian", holes[::2].to(d), P(1), pos=(1,))
    row = torch.tensor([[1.0, 3.0, 3.0, 2.0, NAN, 5.0], [-1.0, INF, 0.0, INF, -INF, 4.0]])
    for op in ("cummax", "cummin"):
        for d in FLOATS:
            case(op, row.to(d), P(1), pos=(1,), grad=False)
            case(op, distinct(3, 4, dtype=d), P(0), pos=(1,))
        case(op, ints(2, 7, lo=-2, hi=3), P(1), pos=(1,), grad=False)
        case(op, r(), P(0), pos=(1,), grad=False)
        case(op, r(0, 3), P(1), pos=(1,), grad=False)
    for x in (ints(12, lo=0, hi=2), r(0), torch.tensor([[1.0, 1, 2], [2, 2, 1]])):
        case("unique_consecutive", x, return_inverse=True, return_counts=True, pos=(1,),
             grad=False)
    case("unique_consecutive", ints(9, lo=0, hi=2, dtype=torch.uint8), grad=False)


def more_functions():
    for p in (1.0, 2.0, 3.0):
        case("normalize", r(2, 3, 2), fn=F.normalize, p=p)
        case("lp_pool1d", r(2, 7, lo=0.5), p, 3, fn=F.lp_pool1d, stride=2)
        case("lp_pool2d", r(1, 2, 5, 4, lo=0.5), p, [2, 3], fn=F.lp_pool2d)
    case("normalize", torch.zeros(2, 3), fn=F.normalize, grad=False)
    case("normalize", r(2, 3), fn=F.normalize, dim=P(0), eps=5.0)
    case("lp_pool2d", r(2, 5, 5, lo=0.5), 2.0, 2, fn=F.lp_pool2d, ceil_mode=True)
    case("rrelu", r(2, 3), fn=F.rrelu, lower=0.25, upper=0.5)
    for reduction in ("none", "mean", "sum"):
        case("triplet_margin_with_distance_loss", r(3, 4), r(3, 4), r(3, 4), margin=2.0,
             fn=F.triplet_margin_with_distance_loss, swap=reduction == "sum", reduction=reduction)
    case("tril_indices", 4, 3, fn=torch.tril_indices, offset=-1, grad=False, pos=(0,))
    case("triu_indices", 2, 4, fn=torch.triu_indices, grad=False, pos=(0,))
    case("logspace", -1.0, 2.0, 4, fn=torch.logspace, grad=False)
    case("logspace", 0.0, 4.0, 5, fn=torch.logspace, base=2.0, grad=False)


@family("sum")
def matmul():
    m = lambda *s, dtype=f32: r(*s, dtype=dtype, lo=-2, hi=2)
    for d in FLOATS + [i64, i32]:
        g = dict(grad=d.is_floating_point)
        mi = lambda *s: m(*s, dtype=d) if d.is_floating_point else ints(*s, dtype=d)
        case("matmul", mi(3, 4), mi(4, 2), **g)
        case("mm", mi(3, 4), mi(4, 5), **g)
        case("bmm", mi(2, 3, 4), mi(2, 4, 2), **g)
        case("mv", mi(3, 4), mi(4), **g)
        case("dot", mi(7), mi(7), **g)
        case("addmm", mi(3, 2), mi(3, 4), mi(4, 2), **g)
        case("baddbmm", mi(2, 3, 2), mi(2, 3, 4), mi(2, 4, 2), **g)
        case("outer", mi(3), mi(4), **g)
        if d.is_floating_point:
            case("linear", mi(3, 4), mi(5, 4), mi(5), fn=F.linear)
            case("linear", mi(3, 4), mi(5, 4), fn=F.linear)
            case("einsum", "ij,jk->ik", mi(2, 3), mi(3, 4))
    for a, b in [((4,), (4,)), ((4,), (4, 3)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)),
                 ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)),
                 ((0, 4), (4, 3)), ((3, 0), (0, 2)), ((2, 0, 3), (2, 3, 4)), ((1, 1), (1, 1)),
                 ((17, 33), (33, 9)), ((0,), (0,))]:
        case("matmul", m(*a), m(*b))
    case("mm", m(2, 70), m(70, 3))
    case("mm", m(0, 3), m(3, 2))
    case("mm", m(2, 0), m(0, 2))
    case("bmm", m(0, 2, 3), m(0, 3, 2))
    case("mv", m(3, 0), m(0))
    case("dot", m(0), m(0))
    for bias in ((3, 2), (2,), (3, 1), ()):
        case("addmm", m(*bias), m(3, 4), m(4, 2), beta=0.5, alpha=2.0)
    case("addmm", torch.full((2, 2), NAN), m(2, 3), m(3, 2), beta=0, grad=False)
    for bias in ((2, 3, 2), (3, 2), (2,), (2, 1, 2)):
        case("baddbmm", m(*bias), m(2, 3, 4), m(2, 4, 2), beta=-1.5, alpha=0.5)
    case("linear", m(4), m(3, 4), m(3), fn=F.linear)
    case("linear", m(2, 3, 4), m(5, 4), m(5), fn=F.linear)
    case("linear", m(0, 4), m(3, 4), m(3), fn=F.linear)
    case("outer", m(0), m(3))
    for eq, shapes in [
        ("ij->ji", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii->", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("ij->j", [(2, 3)]),
        ("i,i->", [(4,), (4,)]),
        ("i,j->ij", [(2,), (3,)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 2)]),
        ("bij,bjk", [(2, 3, 4), (2, 4, 2)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (4, 2)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("ij,kj,k->i", [(2, 3), (4, 3), (4,)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("ijk,j->ki", [(2, 3, 4), (3,)]),
        ("ba,b->a", [(3, 2), (3,)]),
    ]:
        case("einsum", eq, *[m(*s) for s in shapes])
    for d in FLOATS:
        for name, f in ACTIVATIONS.items():
            fused = lambda *t, activation, f=f: f(F.linear(*(v.to(wide(t[0])) for v in t))).to(t[0].dtype)
            case("linear", m(3, 4, dtype=d), m(8, 4, dtype=d), m(8, dtype=d), fn=fused, activation=name)
            case("linear", m(2, 3, 4, dtype=d), m(5, 4, dtype=d), fn=fused, activation=name)


@family("sum")
def conv():
    m = lambda *s, dtype=f32: r(*s, dtype=dtype, lo=-2, hi=2)
    for d in FLOATS:
        case("conv2d", m(2, 2, 5, 5, dtype=d), m(3, 2, 3, 3, dtype=d), m(3, dtype=d), fn=F.conv2d)
        case("conv2d", m(1, 2, 4, 5, dtype=d), m(2, 2, 3, 2, dtype=d), fn=F.conv2d, padding=1)
    for x, w, opts in [
        ((1, 1, 4, 4), (1, 1, 1, 1), {}),
        ((1, 3, 4, 4), (2, 3, 1, 1), {}),
        ((1, 2, 6, 5), (2, 2, 3, 3), {"stride": 2}),
        ((1, 2, 6, 5), (2, 2, 3, 3), {"stride": [2, 1]}),
        ((1, 2, 4, 5), (2, 2, 3, 3), {"padding": [1, 2]}),
        ((1, 2, 5, 5), (2, 2, 3, 3), {"padding": 2, "stride": 2}),
        ((1, 1, 6, 7), (2, 1, 3, 3), {"dilation": 2}),
        ((1, 1, 6, 7), (2, 1, 2, 3), {"dilation": [3, 2], "padding": 1}),
        ((1, 4, 4, 4), (4, 2, 3, 3), {"groups": 2, "padding": 1}),
        ((2, 3, 4, 4), (3, 1, 3, 3), {"groups": 3}),
        ((1, 3, 4, 4), (6, 1, 2, 2), {"groups": 3, "stride": 2}),
        ((1, 2, 3, 4), (3, 2, 3, 4), {}),
        ((2, 5, 4), (3, 2, 3, 3), {}),
        ((0, 2, 4, 4), (3, 2, 3, 3), {}),
    ]:
        if x == (2, 5, 4):
            case("conv2d", m(2, 5, 4), m(*w), m(w[0]), fn=F.conv2d)
            continue
        case("conv2d", m(*x), m(*w), m(w[0]), fn=F.conv2d, **opts)
        case("conv2d", m(*x), m(*w), fn=F.conv2d, **opts)
    case("conv2d", m(1, 2, 4, 4), m(2, 2, 3, 3), fn=F.conv2d, bias=m(2), padding=1)
    case("conv2d", m(1, 2, 5, 4), m(2, 2, 3, 2), fn=F.conv2d, padding="same")
    case("conv2d", m(1, 2, 5, 4), m(2, 2, 3, 2), fn=F.conv2d, padding="valid")


@family("sum")
def pool():
    for d in FLOATS:
        case("max_pool2d", distinct(1, 2, 4, 4, dtype=d), 2, fn=F.max_pool2d)
        case("avg_pool2d", r(1, 2, 4, 4, dtype=d), 2, fn=F.avg_pool2d)
        case("adaptive_avg_pool2d", r(1, 2, 5, 4, dtype=d), [2, 3], fn=F.adaptive_avg_pool2d)
    indices = lambda x, k, return_indices, **o: F.max_pool2d(x, k, return_indices=True, **o)
    for opts in (
        {},
        {"stride": 1},
        {"stride": [2, 1]},
        {"padding": 1},
        {"padding": 1, "stride": 1},
        {"dilation": 2},
        {"ceil_mode": True},
        {"stride": 2, "ceil_mode": True, "padding": 1},
    ):
        for k in (3, [2, 3]):
            case("max_pool2d", distinct(1, 2, 6, 7), k, fn=F.max_pool2d, **opts)
            case("max_pool2d", distinct(1, 1, 6, 7), k, fn=indices, pos=(1,), return_indices=True,
                 **opts)
            if "dilation" not in opts:
                case("avg_pool2d", r(1, 2, 6, 7), k, fn=F.avg_pool2d, **opts)
    case("max_pool2d", distinct(2, 4, 4), 2, fn=F.max_pool2d)
    case("max_pool2d", r(0, 2, 4, 4), 2, fn=F.max_pool2d)
    case("max_pool2d", torch.tensor([[[1.0, 1, 1, 0], [1, 1, 0, 0]]]), 2, fn=indices, pos=(1,),
         return_indices=True)
    case("max_pool2d", torch.tensor([[[1.0, NAN, -INF, -INF], [1, 1, -INF, -INF]]]), 2, fn=indices,
         pos=(1,), grad=False, return_indices=True)
    case("avg_pool2d", r(1, 1, 5, 5), 3, fn=F.avg_pool2d, padding=1, count_include_pad=False)
    case("avg_pool2d", r(1, 1, 5, 5), 3, fn=F.avg_pool2d, padding=1, count_include_pad=False,
         ceil_mode=True, stride=2)
    case("avg_pool2d", r(1, 1, 5, 5), 2, fn=F.avg_pool2d, divisor_override=3)
    case("avg_pool2d", r(2, 4, 4), 2, fn=F.avg_pool2d)
    case("avg_pool2d", r(0, 2, 4, 4), 2, fn=F.avg_pool2d)
    for size in (1, 2, 3, 7, [1, 4]):
        case("adaptive_avg_pool2d", r(1, 2, 5, 6), size, fn=F.adaptive_avg_pool2d)
    case("adaptive_avg_pool2d", r(2, 5, 6), 2, fn=F.adaptive_avg_pool2d)
    case("adaptive_avg_pool2d", r(0, 2, 5, 6), 2, fn=F.adaptive_avg_pool2d)


@family("sum")
def nd():
    """Lines, spaces, borders, columns and other sizes."""
    m = lambda *s, dtype=f32: r(*s, dtype=dtype, lo=-2, hi=2)
    for d in FLOATS:
        case("conv1d", m(2, 4, 7, dtype=d), m(4, 2, 3, dtype=d), m(4, dtype=d), fn=F.conv1d,
             stride=2, padding=1, groups=2)
        case("conv3d", m(1, 2, 3, 4, 3, dtype=d), m(2, 2, 2, 2, 2, dtype=d), m(2, dtype=d),
             fn=F.conv3d, padding=1)
        case("conv_transpose1d", m(1, 2, 4, dtype=d), m(2, 3, 3, dtype=d), m(3, dtype=d),
             fn=F.conv_transpose1d, stride=2, padding=1, output_padding=1)
        case("conv_transpose2d", m(1, 2, 3, 2, dtype=d), m(2, 2, 3, 2, dtype=d), m(2, dtype=d),
             fn=F.conv_transpose2d, stride=2)
        case("max_pool1d", distinct(1, 2, 7, dtype=d), 3, fn=F.max_pool1d, stride=2, padding=1)
        case("max_pool3d", distinct(1, 1, 4, 4, 4, dtype=d), 2, fn=F.max_pool3d)
        case("avg_pool1d", r(1, 2, 7, dtype=d), 3, fn=F.avg_pool1d, stride=2, padding=1)
        if d in (f32, f64):
            case("avg_pool3d", r(1, 2, 4, 3, 4, dtype=d), 2, fn=F.avg_pool3d, padding=1)
        case("adaptive_avg_pool1d", r(1, 2, 7, dtype=d), 3, fn=F.adaptive_avg_pool1d)
        case("adaptive_avg_pool3d", r(1, 2, 3, 5, 4, dtype=d), [2, 3, 4], fn=F.adaptive_avg_pool3d)
        case("adaptive_max_pool1d", distinct(1, 2, 7, dtype=d), 3, fn=F.adaptive_max_pool1d)
        case("adaptive_max_pool2d", distinct(1, 1, 5, 7, dtype=d), [2, 3], fn=F.adaptive_max_pool2d)
        case("pad", r(2, 3, dtype=d), [1, 2], fn=F.pad, value=0.5)
        case("unfold", r(1, 2, 4, 5, dtype=d), [2, 3], fn=F.unfold)
        case("fold", r(1, 8, 6, dtype=d), [3, 4], 2, fn=F.fold)
        case("interpolate", r(1, 1, 3, 4, dtype=d), fn=F.interpolate, size=[5, 7], mode="bilinear")
    lines = lambda x, w, b=None, **o: F.conv1d(x, w, b, **o)
    for opts in ({}, {"stride": 3}, {"padding": 2}, {"dilation": 2}, {"padding": "same"}):
        case("conv1d", m(2, 2, 8), m(3, 2, 3), m(3), fn=lines, **opts)
    case("conv1d", m(2, 8), m(3, 2, 4), fn=lines, padding="same")
    for opts in ({"stride": 2}, {"stride": [1, 2, 1], "padding": [0, 1, 2]},
                 {"dilation": [2, 1, 1], "padding": [2, 0, 0]}, {"padding": "same"}):
        case("conv3d", m(1, 2, 4, 3, 4), m(2, 2, 2, 3, 2), m(2), fn=F.conv3d, **opts)
    case("conv3d", m(4, 3, 3, 3), m(4, 2, 3, 2, 1), fn=F.conv3d, groups=2)
    for opts in ({}, {"stride": 3, "output_padding": 2}, {"dilation": 2}, {"padding": 1}):
        case("conv_transpose1d", m(2, 2, 4), m(2, 2, 3), fn=F.conv_transpose1d, **opts)
        case("conv_transpose2d", m(1, 2, 3, 3), m(2, 1, 3, 2), m(1), fn=F.conv_transpose2d, **opts)
    case("conv_transpose2d", m(4, 3, 3), m(4, 2, 2, 3), m(4), fn=F.conv_transpose2d, groups=2,
         stride=[2, 1], output_padding=[1, 0])
    for n, data, k in ((1, distinct(2, 9), 3), (1, distinct(1, 2, 9), 2),
                       (3, distinct(1, 1, 4, 4, 3), [2, 3, 2]), (3, distinct(1, 5, 3, 4), 3)):
        for opts in ({}, {"stride": 2, "ceil_mode": True}, {"stride": 1, "padding": 1},
                     {"dilation": 2 if n == 1 else [2, 1, 1]}):
            largest = getattr(F, f"max_pool{n}d")
            case(f"max_pool{n}d", data.clone(), k, fn=largest, **opts)
            case(f"max_pool{n}d", data.clone(), k, pos=(1,), return_indices=True,
                 fn=lambda x, k, **o: largest(x, k, **o), **opts)
    for opts in ({"stride": 2, "padding": 1, "count_include_pad": False},
                 {"stride": 2, "ceil_mode": True}):
        case("avg_pool1d", r(1, 2, 8), 3, fn=F.avg_pool1d, **opts)
        case("avg_pool3d", r(1, 4, 5, 4), 3, fn=F.avg_pool3d, **opts)
    case("avg_pool3d", r(1, 1, 4, 4, 4), [1, 2, 3], fn=F.avg_pool3d, divisor_override=5)
    for size in (1, 4, 9):
        case("adaptive_avg_pool1d", r(2, 7), size, fn=F.adaptive_avg_pool1d)
        case("adaptive_max_pool1d", distinct(2, 7), size, pos=(1,), return_indices=True,
             fn=F.adaptive_max_pool1d)
    case("adaptive_max_pool2d", distinct(2, 5, 6), [3, 7], pos=(1,), return_indices=True,
         fn=F.adaptive_max_pool2d)
    case("adaptive_avg_pool3d", r(2, 3, 4, 5), 2, fn=F.adaptive_avg_pool3d)
    for opts in ({}, {"value": -2.0}, {"mode": "reflect"}, {"mode": "replicate"},
                 {"mode": "circular"}):
        case("pad", r(1, 2, 3, 4), [2, 1, 1, 2], fn=F.pad, **opts)
    case("pad", r(1, 3, 5), [-1, 2], fn=F.pad)
    case("pad", r(1, 3, 5), [-1, -2, 1, -1], fn=F.pad, value=1.5)
    case("pad", r(1, 3, 5), [-1, 2], fn=F.pad, mode="replicate")
    case("pad", ints(0, 5, 2, 3), [1, 0, 0, 1], fn=F.pad, value=7, grad=False)
    for opts in ({"stride": 2}, {"padding": [1, 0]}, {"dilation": [1, 2]}):
        case("unfold", r(2, 2, 5, 6), [2, 3], fn=F.unfold, **opts)
    case("unfold", r(2, 4, 4), 3, fn=F.unfold)
    case("fold", r(1, 12, 4), [5, 6], [2, 3], fn=F.fold, stride=2)
    case("fold", r(8, 20), [4, 3], 2, fn=F.fold, padding=1)
    case("pixel_shuffle", r(2, 8, 2, 3), 2, fn=F.pixel_shuffle)
    case("pixel_unshuffle", r(2, 4, 6), 2, fn=F.pixel_unshuffle)
    line, plane, space = r(1, 1, 5), r(1, 1, 3, 4), r(1, 1, 2, 3, 2)
    for mode, x in (("nearest", line), ("linear", line), ("nearest-exact", plane),
                    ("nearest", plane), ("bilinear", plane), ("bicubic", plane),
                    ("area", plane), ("nearest", space), ("trilinear", space), ("area", space),
                    ("area", line)):
        more = [{}] if mode.startswith("nearest") or mode == "area" else [{}, {"align_corners": True}]
        for opts in more:
            sizes = ([7], [3], [1]) if x is line else ([7, 3], [2, 6]) if x is plane else ([3, 4, 3],)
            for size in sizes:
                case("interpolate", x.clone(), fn=F.interpolate, size=size, mode=mode, **opts)
            if mode != "area":
                case("interpolate", x.clone(), fn=F.interpolate, scale_factor=1.7, mode=mode, **opts)
    ways_back()


def ways_back():
    for d in FLOATS:
        case("conv_transpose3d", r(1, 2, 2, 3, 2, dtype=d, lo=-2, hi=2),
             r(2, 3, 2, 2, 3, dtype=d, lo=-2, hi=2), r(3, dtype=d, lo=-2, hi=2),
             fn=F.conv_transpose3d)
    case("conv_transpose3d", r(2, 4, 3, 2, 3), r(4, 2, 3, 2, 2), r(4), fn=F.conv_transpose3d,
         stride=[2, 1, 2], padding=[1, 0, 1], output_padding=[1, 0, 1], groups=2)
    case("conv_transpose3d", r(2, 2, 3, 2), r(2, 1, 2, 2, 2), fn=F.conv_transpose3d,
         dilation=[3, 1, 2], output_padding=[2, 0, 0])
    for dims, shape in ((1, (2, 6)), (2, (2, 2, 4, 6)), (3, (1, 2, 4, 4, 4))):
        pool, op = getattr(F, f"max_pool{dims}d"), f"max_unpool{dims}d"
        for d in (f64, f32, f16):
            y, at = pool(distinct(*shape, dtype=f32), 2, return_indices=True)
            case(op, y.to(d), P(at), 2, fn=getattr(F, op))
    y, at = F.max_pool2d(distinct(2, 5, 5), 2, return_indices=True)
    case("max_unpool2d", y, P(at), 2, fn=F.max_unpool2d, output_size=[5, 5])
    case("max_unpool2d", r(1, 1, 3, 4), P(torch.randperm(35)[:12].reshape(1, 1, 3, 4)), 3,
         fn=F.max_unpool2d, stride=2, padding=1)


@family("sum")
def norm():
    stats = lambda c, d=f32: (frozen(r(c, dtype=d)), frozen(r(c, dtype=d, lo=0.5)))
    for shape in ((4, 3), (2, 3, 4), (2, 3, 2, 4)):
        for training in (True, False):
            for affine in (True, False):
                aff = {"weight": r(3), "bias": r(3)} if affine else {}
                case("batch_norm", r(*shape), *stats(3), fn=F.batch_norm, after=(1, 2),
                     training=training, **aff)
    for d in (f64, f16, bf16):
        sd = d if d == f64 else f32
        case("batch_norm", r(2, 3, 2, 2, dtype=d), *stats(3, sd), fn=F.batch_norm, after=(1, 2),
             weight=r(3, dtype=sd), bias=r(3, dtype=sd), training=True)
    case("batch_norm", r(4, 2), *stats(2), fn=F.batch_norm, after=(1, 2), training=True,
         momentum=0.3, eps=0.01)
    case("batch_norm", r(1, 2, 3, 3), *stats(2), fn=F.batch_norm, after=(1, 2), training=True,
         momentum=1.0)
    for d in FLOATS:
        case("layer_norm", r(3, 8, dtype=d), [8], fn=F.layer_norm, weight=r(8, dtype=d),
             bias=r(8, dtype=d))
        case("group_norm", r(2, 4, 3, dtype=d), 2, fn=F.group_norm, weight=r(4, dtype=d),
             bias=r(4, dtype=d))
    case("layer_norm", r(3, 8), [8], fn=F.layer_norm)
    case("layer_norm", r(2, 3, 4), [3, 4], fn=F.layer_norm, weight=r(3, 4), bias=r(3, 4))
    case("layer_norm", r(2, 3, 4), [4], fn=F.layer_norm, weight=r(4), eps=0.1)
    case("layer_norm", r(5), [5], fn=F.layer_norm)
    case("layer_norm", r(0, 4), [4], fn=F.layer_norm)
    case("group_norm", r(2, 4, 2, 2), 4, fn=F.group_norm)
    case("group_norm", r(2, 4, 2, 2), 1, fn=F.group_norm, weight=r(4), bias=r(4), eps=0.01)
    case("group_norm", r(3, 6), 2, fn=F.group_norm, weight=r(6), bias=r(6), eps=0.1)
    drop = F.dropout
    case("dropout", r(2, 3), fn=drop, p=0.0)
    case("dropout", r(2, 3), fn=drop, p=1.0)
    case("dropout", r(2, 3), fn=drop, p=0.5, training=False)
    case("dropout", r(0), fn=drop, p=0.5)
    case("dropout", r(), fn=drop, p=0.0)


@family("sum")
def layers():
    stats = lambda c: (frozen(r(c)), frozen(r(c, lo=0.5)))
    for d in FLOATS:
        case("rms_norm", r(3, 8, dtype=d), [8], fn=F.rms_norm, weight=r(8, dtype=d))
        case("local_response_norm", r(2, 4, 3, dtype=d), 2, fn=F.local_response_norm, alpha=0.5)
        case("bilinear", r(3, 4, dtype=d), r(3, 2, dtype=d), r(5, 4, 2, dtype=d),
             r(5, dtype=d), fn=F.bilinear)
    for d in (f64, f32, f16):
        sd = d if d == f64 else f32
        case("instance_norm", r(2, 3, 4, dtype=d), fn=F.instance_norm, weight=r(3, dtype=sd),
             bias=r(3, dtype=sd))
    case("rms_norm", r(2, 3, 4), [3, 4], fn=F.rms_norm, weight=r(3, 4), eps=0.25)
    case("rms_norm", torch.full((1, 4), 2.0**-10, dtype=f16), [4], fn=F.rms_norm)
    case("rms_norm", torch.full((1, 4), 2.0**-26, dtype=f64), [4], fn=F.rms_norm)
    for shape in ((2, 3, 4), (2, 3, 2, 2), (1, 3, 2, 1, 3)):
        case("instance_norm", r(*shape), *stats(3), fn=F.instance_norm, after=(1, 2), momentum=0.25)
        case("instance_norm", r(*shape), *stats(3), fn=F.instance_norm, after=(1, 2),
             weight=r(3), bias=r(3), use_input_stats=False)
    case("instance_norm", r(2, 3, 4), fn=F.instance_norm, eps=0.5)
    case("local_response_norm", r(2, 5, 2, 3), 3, fn=F.local_response_norm, beta=0.5, k=2.0)
    case("local_response_norm", r(1, 3, 2, 2, 2), 4, fn=F.local_response_norm)
    case("bilinear", r(2, 3, 4), r(2, 3, 2), r(3, 4, 2), fn=F.bilinear)
    case("bilinear", r(4), r(2), r(3, 4, 2), fn=F.bilinear)
    case("channel_shuffle", r(2, 6, 2, 2), 3, fn=lambda x, g: torch.channel_shuffle(x, g))
    case("channel_shuffle", r(1, 4, 3), 2, fn=lambda x, g: torch.channel_shuffle(x, g))
    places = {"dropout1d": (2, 3, 4), "dropout2d": (2, 3, 2, 2), "dropout3d": (1, 2, 2, 2, 2),
              "alpha_dropout": (2, 3), "feature_alpha_dropout": (2, 3, 2)}
    for op, shape in places.items():
        for p, training in ((0.5, False), (0.0, True), (1.0, True)):
            case(op, r(*shape), fn=getattr(F, op), p=p, training=training)


@family("sum")
def loss():
    label = lambda *s, n=5: torch.randint(0, n, s)
    for op in ("cross_entropy", "nll_loss"):
        fn = getattr(F, op)
        for d in FLOATS:
            case(op, r(4, 5, dtype=d), P(label(4)), fn=fn)
        ignoring = torch.tensor([2, 0, 2, 4])
        for red in ("none", "mean", "sum"):
            case(op, r(4, 5), P(label(4)), fn=fn, reduction=red)
            case(op, r(4, 5), P(label(4)), fn=fn, weight=frozen(r(5, lo=0.25)), reduction=red)
            case(op, r(4, 5), P(ignoring), fn=fn, ignore_index=P(2), reduction=red)
            case(op, r(4, 5), P(ignoring), fn=fn, ignore_index=P(2), weight=frozen(r(5, lo=0.25)),
                 reduction=red)
            case(op, r(2, 3, 2, 2), P(label(2, 2, 2, n=3)), fn=fn, reduction=red)
        case(op, r(4, 5), P(torch.tensor([1, -100, 3, -100])), fn=fn, ignore_index=-100)
        case(op, r(5), P(label()), fn=fn)
        case(op, r(2, 3, 4), P(label(2, 4, n=3)), fn=fn, weight=frozen(r(3, lo=0.25)))
        case(op, r(0, 5), P(label(0)), fn=fn, reduction="sum")
        case(op, r(0, 5), P(label(0)), fn=fn, reduction="none")
        case(op, r(2, 5), P(torch.tensor([2, 2])), fn=fn, ignore_index=P(2))  # nothing left: nan
    for red in ("none", "mean", "sum"):
        case("cross_entropy", r(4, 5), P(label(4)), fn=F.cross_entropy, label_smoothing=0.1,
             reduction=red)
        case("cross_entropy", r(4, 5), P(torch.tensor([2, 0, 2, 4])), fn=F.cross_entropy,
             label_smoothing=0.2, ignore_index=P(2), weight=frozen(r(5, lo=0.25)), reduction=red)
        case("cross_entropy", r(2, 3, 2, 2), P(label(2, 2, 2, n=3)), fn=F.cross_entropy,
             label_smoothing=0.1, weight=frozen(r(3, lo=0.25)), reduction=red)
    case("cross_entropy", torch.tensor([[1000.0, 0.0], [0.0, -1000.0]]), P(torch.tensor([1, 0])),
         fn=F.cross_entropy)
    for op, variants in [
        ("mse_loss", [{}]),
        ("l1_loss", [{}]),
        ("smooth_l1_loss", [{}, {"beta": 0.5}, {"beta": 2.0}]),
    ]:
        fn = getattr(F, op)
        for opts in variants:
            for red in ("none", "mean", "sum"):
                case(op, r(3, 4), r(3, 4), fn=fn, reduction=red, **opts)
            for d in FLOATS:
                case(op, r(6, dtype=d), r(6, dtype=d), fn=fn, **opts)
        case(op, r(), r(), fn=fn)
        case(op, r(0, 2), r(0, 2), fn=fn, reduction="sum")
        case(op, r(0, 2), r(0, 2), fn=fn)
        case(op, torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 4.0]), fn=fn)  # kinks
    case("smooth_l1_loss", r(5), r(5), fn=F.smooth_l1_loss, beta=0.0)
    for reduction in ("none", "mean", "sum"):
        case("huber_loss", r(6), r(6), fn=F.huber_loss, delta=1.5, reduction=reduction)
        case("binary_cross_entropy", r(6, lo=0.05, hi=0.95), frozen(r(6, lo=0.0, hi=1.0)),
             fn=F.binary_cross_entropy, reduction=reduction)
    bce, op = F.binary_cross_entropy_with_logits, "binary_cross_entropy_with_logits"
    y = lambda *s, dtype=f32: frozen(r(*s, dtype=dtype, lo=0, hi=1))
    for red in ("none", "mean", "sum"):
        case(op, r(3, 4), y(3, 4), fn=bce, reduction=red)
        case(op, r(3, 4), y(3, 4), fn=bce, weight=frozen(r(4, lo=0.25)), reduction=red)
        case(op, r(3, 4), y(3, 4), fn=bce, pos_weight=frozen(r(4, lo=0.25)), reduction=red)
        case(op, r(3, 4), y(3, 4), fn=bce, weight=frozen(r(3, 4, lo=0.25)),
             pos_weight=frozen(r(4, lo=0.25)), reduction=red)
    for d in FLOATS:
        case(op, r(6, dtype=d), y(6, dtype=d), fn=bce)
    case(op, r(), y(), fn=bce)
    case(op, r(0), y(0), fn=bce, reduction="sum")
    case(op, torch.tensor([1000.0, -1000.0, 50.0]), frozen(torch.tensor([0.0, 1.0, 1.0])), fn=bce)
    more_losses()
    connectionist()


def more_losses():
    shares = lambda *s, dtype=f32: frozen(r(*s, dtype=dtype).float().softmax(1).to(dtype))
    signs = lambda *s: frozen(2.0 * torch.randint(0, 2, s) - 1)
    counts = lambda *s: frozen(torch.randint(0, 5, s).float())
    many = torch.tensor([[2, 0, -1, 1], [3, -1, 0, 0], [-1, 0, 1, 2]])
    for op, make, variants in [
            ("cross_entropy", lambda: [r(4, 5), shares(4, 5)],
             [{}, {"label_smoothing": 0.25}, {"weight": frozen(r(5, lo=0.25))}]),
            ("kl_div", lambda: [r(3, 4), frozen(r(3, 4, lo=0, hi=1))], [{}, {"log_target": True}]),
            ("poisson_nll_loss", lambda: [r(3, 4, hi=2), counts(3, 4)], [{}, {"full": True}]),
            ("poisson_nll_loss", lambda: [r(3, 4, lo=0.25), counts(3, 4)],
             [{"log_input": False, "eps": 0.5}]),
            ("gaussian_nll_loss", lambda: [r(3, 4), r(3, 4), r(3, 4, lo=0.25)],
             [{}, {"full": True, "eps": 0.5}]),
            ("soft_margin_loss", lambda: [r(3, 4), signs(3, 4)], [{}]),
            ("multilabel_soft_margin_loss", lambda: [r(3, 4), frozen((signs(3, 4) + 1) / 2)],
             [{}, {"weight": frozen(r(4, lo=0.25))}]),
            ("multi_margin_loss", lambda: [r(4, 5), P(torch.randint(0, 5, (4,)))],
             [{}, {"p": 2, "margin": 0.5}, {"weight": frozen(r(5, lo=0.25))}]),
            ("multilabel_margin_loss", lambda: [r(3, 4), P(many)], [{}]),
            ("hinge_embedding_loss", lambda: [r(3, 4), signs(3, 4)], [{}, {"margin": 2.0}]),
            ("margin_ranking_loss", lambda: [r(6), r(6), signs(6)], [{}, {"margin": 0.5}]),
            ("cosine_embedding_loss", lambda: [r(4, 3), r(4, 3), signs(4)], [{}, {"margin": 0.5}]),
            ("triplet_margin_loss", lambda: [r(4, 3), r(4, 3), r(4, 3)],
             [{}, {"margin": 4.0, "p": 1, "swap": True}])]:
        for opts in variants:
            for red in ("none", "mean", "sum") if not opts else ("mean",):
                case(op, *make(), fn=getattr(F, op), reduction=red, **opts)
    case("cross_entropy", r(2, 3, 2), shares(2, 3, 2), fn=F.cross_entropy)
    case("cross_entropy", r(3), frozen(torch.tensor([0.25, 0.5, 0.25])), fn=F.cross_entropy)
    case("kl_div", r(3, 4), frozen(r(3, 4, lo=0, hi=1)), fn=F.kl_div, reduction="batchmean")
    case("kl_div", r(4), frozen(torch.tensor([0.0, 1.0, -1.0, 0.5])), fn=F.kl_div)
    case("gaussian_nll_loss", r(3, 4), r(3, 4), r(3, 1, lo=0.25), fn=F.gaussian_nll_loss)
    case("gaussian_nll_loss", r(3, 4), r(3, 4), r(3, lo=0.25), fn=F.gaussian_nll_loss)
    case("gaussian_nll_loss", r(3), r(3), 0.5, fn=F.gaussian_nll_loss)
    case("multi_margin_loss", r(5), P(torch.tensor(2)), fn=F.multi_margin_loss)
    case("multilabel_margin_loss", r(4), P(many[0]), fn=F.multilabel_margin_loss)
    case("soft_margin_loss", r(3, dtype=f64), signs(3), fn=F.soft_margin_loss)


def connectionist():
    """PyTorch's gradient is the one in what log_softmax was made of; so is x here."""
    two, three = torch.tensor([4, 2]), torch.tensor([3, 1])
    padded, row = torch.tensor([[1, 2, 2], [3, 1, 1]]), torch.tensor([1, 2, 2, 3])
    def loss(lp, *args, **opts):
        return F.ctc_loss(lp.log_softmax(-1), *args, **opts)
    for d in (f32, f64):
        for red in ("none", "mean", "sum"):
            case("ctc_of_logits", r(5, 2, 4, dtype=d), P(padded), torch.tensor([5, 3]), three,
                 fn=loss, reduction=red)
        case("ctc_of_logits", r(5, 2, 4, dtype=d), P(row), torch.tensor([5, 3]), three, fn=loss)
    case("ctc_of_logits", r(5, 2, 4), P(padded - 1), torch.tensor([5, 4]), torch.tensor([2, 0]),
         fn=loss, blank=P(3))
    case("ctc_of_logits", r(5, 2, 4), P(padded), two, three, fn=loss, reduction="none",
         zero_infinity=True)  # four times are one too few for 1 2 2
    case("ctc_of_logits", r(5, 2, 4), P(padded), torch.tensor([3, 3]), three, fn=loss,
         reduction="none", grad=False)
    case("ctc_of_logits", r(5, 4), P(torch.tensor([1, 2])), torch.tensor(5), torch.tensor(2),
         fn=loss)


# ---- recurrent networks ------------------------------------------------------

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


# ---- training ---------------------------------------------------------------

STEPS = 8


class Lion(torch.optim.Optimizer):
    """X. Chen et al. 2023, algorithm 2, in plain words; PyTorch has none."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, foreach=None):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = b1 * m + (1 - b1) * p.grad
                p.sub_(lr * (torch.sign(c) + group["weight_decay"] * p))
                m.copy_(b2 * m + (1 - b2) * p.grad)


class LAMB(torch.optim.Optimizer):
    """Y. You et al. 2019, algorithm 2, with phi(z) = z, in plain words; PyTorch has none."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01,
                 foreach=None):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                s = self.state[p]
                s["t"] = s.get("t", 0) + 1
                s["m"] = b1 * s.get("m", torch.zeros_like(p)) + (1 - b1) * p.grad
                s["v"] = b2 * s.get("v", torch.zeros_like(p)) + (1 - b2) * p.grad ** 2
                m, v = s["m"] / (1 - b1 ** s["t"]), s["v"] / (1 - b2 ** s["t"])
                r = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
                a, b = p.norm(), r.norm()
                trust = a / b if a > 0 and b > 0 else 1.0
                p.sub_(group["lr"] * trust * r)


OWN = {"Lion": Lion, "LAMB": LAMB}


def trajectory(cls, groups_opts, shapes=((2, 3), (3,)), **opts):
    """Two parameters; gradients given per step, values noted after each."""
    params = [r(*shape) for shape in shapes]
    start = [p.clone() for p in params]
    leaf = [p.clone().requires_grad_() for p in params]
    groups = [dict(params=[p], **o) for p, o in zip(leaf, groups_opts)] if groups_opts else leaf
    if cls != "Muon":
        opts["foreach"] = False
    optimizer = (OWN.get(cls) or getattr(torch.optim, cls))(groups, **opts)
    opts.pop("foreach", None)
    grads, seen = [], []
    for step in range(STEPS):
        g = [like(p) for p in params]
        if step == 4:
            g[0] = torch.zeros_like(g[0])
        for p, x in zip(leaf, g):
            p.grad = x.clone()
        optimizer.step()
        grads.append("{" + ",".join(values(x) for x in g) + "}")
        seen.append("{" + ",".join(values(p) for p in leaf) + "}")
    fields = [f'class="{cls}"', f"opts={lua(opts)}",
              "params={" + ",".join(tensor(p) for p in start) + "}"]
    if groups_opts:
        fields.append(f"groups={lua(groups_opts)}")
    words = " ".join(f"{k}={v}" for k, v in opts.items()) + (" two groups" if groups_opts else "")
    emit(fields + ["grads={" + ",".join(grads) + "}", "out={" + ",".join(seen) + "}"],
         f"{cls} {words}")


@family("train")
def optim():
    for wd in (0.0, 0.1):
        for momentum in (0.0, 0.9):
            for dampening in (0.0, 0.1) if momentum else (0.0,):
                for nesterov in (False, True) if momentum and not dampening else (False,):
                    trajectory("SGD", None, lr=0.1, momentum=momentum, dampening=dampening,
                               weight_decay=wd, nesterov=nesterov)
    trajectory("SGD", [{"lr": 0.2}, {"weight_decay": 0.05}], lr=0.1, momentum=0.5)
    for cls in ("Adam", "AdamW"):
        for wd in (0.0, 0.1):
            for amsgrad in (False, True):
                for betas in ((0.9, 0.999), (0.5, 0.9)):
                    trajectory(cls, None, lr=0.01, betas=betas, eps=1e-8 if wd else 1e-3,
                               weight_decay=wd, amsgrad=amsgrad)
        trajectory(cls, [{"lr": 0.02}, {"betas": (0.8, 0.99)}], lr=0.01)
        trajectory(cls, None)
    trajectory("SGD", None)
    more = {
        "RMSprop": [{}, {"momentum": 0.9}, {"centered": True}, {"alpha": 0.5, "eps": 1e-3}],
        "Adagrad": [{}, {"lr_decay": 0.1}, {"initial_accumulator_value": 0.5, "eps": 1e-3}],
        "Adadelta": [{}, {"rho": 0.5, "eps": 1e-3}],
        "Adamax": [{}, {"betas": (0.5, 0.9), "eps": 1e-3}],
        "NAdam": [{}, {"momentum_decay": 0.1}, {"decoupled_weight_decay": True}],
        "RAdam": [{}, {"betas": (0.5, 0.6)}, {"decoupled_weight_decay": True}],
        "Lion": [{}, {"betas": (0.5, 0.75)}],
        "LAMB": [{}, {"betas": (0.5, 0.9), "eps": 1e-3}],
    }
    for cls, settings in more.items():
        for opts in settings:
            trajectory(cls, None, lr=0.05, **opts)
            trajectory(cls, None, lr=0.05, weight_decay=0.125, **opts)
        if cls not in OWN:
            trajectory(cls, None, lr=0.05, maximize=True)
            trajectory(cls, None)
    for opts in ({}, {"nesterov": False}, {"adjust_lr_fn": "match_rms_adamw"}):
        trajectory("Muon", None, ((2, 3), (3, 2)), lr=0.05, **opts)
    for opts in ({}, {"etas": (0.25, 1.5), "step_sizes": (0.02, 0.1)}, {"maximize": True}):
        trajectory("Rprop", None, lr=0.05, **opts)
    for opts in ({}, {"lambd": 0.1, "alpha": 0.5, "t0": 2.0}, {"weight_decay": 0.125}):
        trajectory("ASGD", None, lr=0.05, **opts)
    for opts in ({}, {"beta2_decay": -0.5, "d": 1.5}, {"weight_decay": 0.125}):
        trajectory("Adafactor", None, lr=0.05, **opts)
        trajectory("Adafactor", None, ((2, 3), (2, 2, 2)), lr=0.05, **opts)


@family("exact")
def sched():
    def rates(cls, args, opts, steps=30, cfg=None, lr=0.5, extra=None, lam=None):
        p = torch.zeros(1, requires_grad=True)
        cfg = cfg or ("SGD", {"momentum": 0.9})
        optimizer = getattr(torch.optim, cfg[0])([p], lr=lr, **cfg[1])
        real = [eval("lambda n: " + lam)] if lam else args
        s = getattr(torch.optim.lr_scheduler, cls)(optimizer, *real, **opts)
        out, second = [], []
        for _ in range(steps):
            g = optimizer.param_groups[0]
            out.append(g["lr"])
            if extra:
                second.append(g["betas"][0] if extra == "betas" else g[extra])
            optimizer.step()
            s.step()
        fields = [
            f'class="{cls}"',
            f"args={lua(args)}",
            f"opts={lua(opts)}",
            f'optimizer="{cfg[0]}"',
            f"config={lua(dict(cfg[1], lr=lr))}",
        ]
        if lam:
            fields.append(f'lambda="{lam.replace("**", "^")}"')
        fields.append("rates={" + ",".join(number(v) for v in out) + "}")
        if extra:
            fields.append(f"{extra}={{" + ",".join(number(v) for v in second) + "}")
        emit(
            fields,
            " ".join(
                [cls, lam or ""] + [str(a) for a in args] + [f"{k}={v}" for k, v in opts.items()]
            ),
        )
    def begun(*groups):
        return torch.optim.SGD([dict(params=[torch.zeros(1)], lr=lr) for lr in groups], lr=0.5)

    def noted(optimizer, step, steps):
        """The first group's rates before each step."""
        out = []
        for i in range(steps):
            out.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            step(i)
        return "rates={" + ",".join(number(v) for v in out) + "}"

    def plateau(metrics, **opts):
        optimizer = begun(0.5)
        s = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **opts)
        out = noted(optimizer, lambda i: s.step(metrics[i]), len(metrics))
        emit(['class="ReduceLROnPlateau"', f"opts={lua(opts)}", f"metrics={lua(metrics)}", out],
             f"ReduceLROnPlateau {opts}")

    def several(cls, parts, milestones=None, steps=16):
        optimizer = begun(0.5)
        made = [getattr(torch.optim.lr_scheduler, c)(optimizer, *args, **opts)
                for c, args, opts in parts]
        rest = [milestones] if milestones else []
        make = getattr(torch.optim.lr_scheduler, cls)
        s = make(optimizer, made, *rest) if milestones else make(made)
        names = ",".join(f'{{"{c}",{lua(args)},{lua(opts)}}}' for c, args, opts in parts)
        emit([f'class="{cls}"', "parts={" + names + "}", f"milestones={lua(milestones or [])}",
              noted(optimizer, lambda _: s.step(), steps)],
             f"{cls} {' '.join(c for c, _, _ in parts)} {milestones or ''}")

    def annealed(**opts):
        optimizer = begun(0.5)
        other = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        s = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, **opts)
        out = noted(optimizer, lambda i: (other if i < 3 else s).step(), 16)
        emit(['class="SWALR"', f"opts={lua(opts)}", out], f"SWALR {opts}")

    falling = [5.0, 4.0, 4.0, 3.99, 3.5, 3.6, 3.7, 3.4, 3.4, 3.4, 3.39, 3.4, 3.4, 3.4, 3.4, 3.4]
    plateau(falling, patience=1)
    plateau(falling, patience=0, cooldown=2, factor=0.5)
    plateau(falling, patience=1, threshold=0.2, threshold_mode="abs", min_lr=0.01)
    plateau([-v for v in falling], patience=2, mode="max", threshold=0.01)
    warm = ("LinearLR", [], {"start_factor": 0.25, "total_iters": 4})
    several("SequentialLR", [warm, ("CosineAnnealingLR", [10], {})], [4])
    several("SequentialLR", [warm, ("StepLR", [2], {"gamma": 0.5}),
                             ("ExponentialLR", [0.9], {})], [4, 9])
    several("ChainedScheduler", [("StepLR", [3], {"gamma": 0.5}), ("ExponentialLR", [0.9], {})])
    annealed(anneal_epochs=5)
    annealed(anneal_epochs=4, anneal_strategy="linear")
    annealed(anneal_epochs=0)
    for step_size in (1, 3, 7):
        rates("StepLR", [step_size], {})
        rates("StepLR", [step_size], {"gamma": 0.5})
    for t in (1, 10, 7):
        rates("CosineAnnealingLR", [t], {})
        rates("CosineAnnealingLR", [t], {"eta_min": 0.05})
    for opts in ({}, {"factor": 0.5, "total_iters": 9}):
        rates("ConstantLR", [], opts)
    for opts in ({}, {"start_factor": 0.5, "end_factor": 0.25, "total_iters": 9}):
        rates("LinearLR", [], opts)
    for opts in ({}, {"total_iters": 20, "power": 2.0}):
        rates("PolynomialLR", [], opts)
    for gamma in (0.9, 0.5):
        rates("ExponentialLR", [gamma], {})
    for opts in ({}, {"T_mult": 2}, {"T_mult": 3, "eta_min": 0.05}):
        rates("CosineAnnealingWarmRestarts", [4], opts)
    rates("MultiplicativeLR", [], {}, lam="1 - 1 / (n + 3)")
    for lam in ("0.95 ** n", "1 / (1 + n)", "min(1, (n + 1) / 10)"):
        rates("LambdaLR", [], {}, lam=lam.replace("min", "min"))
    for opts in (
        {"total_steps": 30},
        {"total_steps": 31, "pct_start": 0.2},
        {"epochs": 3, "steps_per_epoch": 10},
        {"total_steps": 30, "anneal_strategy": "linear"},
        {"total_steps": 30, "three_phase": True},
        {"total_steps": 30, "div_factor": 10.0, "final_div_factor": 100.0},
        {"total_steps": 30, "base_momentum": 0.8, "max_momentum": 0.99},
    ):
        rates("OneCycleLR", [0.8], opts, steps=30, extra="momentum")
    rates("OneCycleLR", [0.8], {"total_steps": 30, "cycle_momentum": False}, extra="momentum")
    for opts in ({"step_size_up": 4}, {"step_size_up": 4, "step_size_down": 7},
                 {"step_size_up": 5, "mode": "triangular2"},
                 {"step_size_up": 5, "mode": "exp_range", "gamma": 0.9, "max_momentum": 0.95}):
        rates("CyclicLR", [0.1, 0.5], opts, extra="momentum")
    rates("CyclicLR", [0.1, 0.5], {"step_size_up": 4}, cfg=("Adam", {}), extra="betas")
    rates(
        "OneCycleLR",
        [0.8],
        {"total_steps": 20},
        steps=20,
        cfg=("Adam", {"betas": (0.9, 0.99)}),
        extra="betas",
    )


@family("train")
def clip():
    def clipped(grads, max_norm, **opts):
        ps = [torch.zeros(len(g), requires_grad=True) for g in grads]
        for p, g in zip(ps, grads):
            p.grad = torch.tensor(g)
        norm = torch.nn.utils.clip_grad_norm_(ps, max_norm, **opts)
        before = "{" + ",".join(lua([float(v) for v in g]) for g in grads) + "}"
        after = "{" + ",".join(values(p.grad) for p in ps) + "}"
        emit(
            [
                'op="clip_grad_norm_"',
                f"grads={before}",
                f"args={{{lua(max_norm)}" + (f",{lua(opts)}" if opts else "") + "}",
                f"norm={number(norm.item(), f32)}",
                f"out={after}",
            ],
            f"clip_grad_norm_ {grads} {max_norm} {opts or ''}",
        )
    clipped([[3.0, 4.0]], 1.0)
    clipped([[3.0], [4.0]], 1.0)
    clipped([[0.6, 0.8]], 1.0)
    clipped([[0.3, 0.4]], 1.0)
    clipped([[3.0, -4.0], [1.0]], 2.0, norm_type=INF)
    clipped([[3.0, -4.0]], 1.0, norm_type=1.0)
    clipped([[1.0, 4.0]], 1.0, norm_type=0.5)
    clipped([[3.0, 4.0]], 0.0)
    clipped([[INF, 1.0]], 1.0)
    clipped([[NAN, 1.0]], 1.0)
    clipped([[1e20, 1e20]], 1.0)
    clipped([[0.0, 0.0]], 1.0)
    g = [-3.0, -2.0, 0.0, 2.6, INF, -INF, NAN]
    p = torch.zeros(len(g), requires_grad=True)
    p.grad = torch.tensor(g)
    torch.nn.utils.clip_grad_value_([p], 2.5)
    emit(
         ['op="clip_grad_value_"', f"grads={{{lua(g)}}}", "args={2.5}", f"out={{{values(p.grad)}}}"],
         "clip_grad_value_ 2.5")


@family("exact")
def amp_scaler():
    """Scale and growth counter after runs of clean and overflowing updates."""
    def history(events, **opts):
        scaler = torch.amp.GradScaler("cpu", **opts)
        p = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([p], lr=0.0)
        out = []
        for inf, n in events:
            for _ in range(n):
                scaler.scale(torch.zeros(()))
                p.grad = torch.tensor([INF if inf else 1.0])
                scaler.step(optimizer)
                scaler.update()
            state = scaler.state_dict()
            out.append(
                f"{{inf={lua(inf)},n={n},scale={number(state['scale'])},tracker={state['_growth_tracker']}}}"
            )
        emit([f"opts={lua(opts)}", "runs={" + ",".join(out) + "}"], f"GradScaler {opts}")
    bad, good = True, False
    history([(bad, 1), (bad, 1), (good, 1999), (good, 1), (good, 1)])
    history(
        [(good, 1), (good, 1), (bad, 1)],
        init_scale=4.0,
        growth_factor=2.0,
        backoff_factor=0.25,
        growth_interval=2,
    )
    history([(good, 1), (good, 1), (good, 2)], init_scale=3.0, growth_factor=4.0, growth_interval=2)
    history([(good, 1), (good, 3)], growth_factor=1.5, growth_interval=1)
    history([(bad, 1), (bad, 1), (bad, 3)], backoff_factor=0.1)
    history([(good, 1), (good, 1)], init_scale=2.0**127, growth_interval=1)
    history([(good, 1)], init_scale=1.7e38, growth_interval=1)
    history([(bad, 8), (bad, 8)])
    history(
        [(good, 1), (bad, 1), (good, 2), (bad, 2), (good, 5)], init_scale=128.0, growth_interval=1
    )

    def unscaled(scale, grads, dtype):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        p = torch.zeros(len(grads), dtype=dtype, requires_grad=True)
        optimizer = torch.optim.SGD([p], lr=0.0)
        scaler.scale(torch.zeros(()))
        p.grad = torch.tensor(grads, dtype=dtype)
        before = tensor(p.grad, exact=True)
        scaler.unscale_(optimizer)
        emit(
            [
                f"opts={lua({'init_scale': scale})}",
                f"grad={before}",
                f"unscaled={tensor(p.grad, exact=True)}",
            ],
            f"unscale_ {name_of(dtype)} by {scale}",
        )
    for d in (f32, bf16, f64):
        for scale in (65536.0, 3.0, 98304.0, 1.0, 6553.60009765625):
            unscaled(scale, [1.0, -2.5, 0.1, 1e-8, 3e30, 0.0, -0.0, 65536.0, 1e-38], d)


# ---- dtypes -----------------------------------------------------------------

@family("exact")
def promote():
    """Result dtype of every pair; a number is a Lua integer or float."""
    ops = {"add": torch.add, "mul": torch.mul, "div": torch.div, "lt": torch.lt, "pow": torch.pow}
    kinds = {"nd": lambda d: torch.ones(2, dtype=d), "0d": lambda d: torch.ones((), dtype=d)}
    lefts = [(f"{name_of(d)}/{k}", mk(d)) for d in ALL for k, mk in kinds.items()]
    rights = lefts + [("integer", 2), ("float", 2.5)]
    for op, fn in ops.items():
        for ln, a in lefts:
            row = []
            for rn, b in rights:
                try:
                    row.append(f'["{rn}"]="{name_of(fn(a, b).dtype)}"')
                except (RuntimeError, NotImplementedError):
                    pass  # PyTorch has no kernel: nothing to hold us to
            emit([f'op="{op}"', f'left="{ln}"', "out={" + ",".join(row) + "}"], f"{op} {ln}")


@family("exact")
def cast():
    tricky = {
        f32: [
            0.0,
            -0.0,
            1.0,
            -1.0,
            INF,
            -INF,
            NAN,
            65504.0,
            65519.996,
            65520.0,
            65536.0,
            2049.0,
            2051.0,
            257.0,
            259.0,
            2**-24,
            2**-25,
            2**-25 * 1.0001,
            6.1e-5,
            1e-8,
            1.001,
            1.0039,
            1.00391,
            3.4e38,
            3.3895314e38,
            1e-45,
            4e-41,
            9.1835e-41,
            1.1754942e-38,
            0.1,
            1 / 3,
            -2.7182817,
            3e-8,
            8.9e-8,
            5.9604645e-8,
        ],
        f64: [
            0.0,
            -0.0,
            1.0,
            INF,
            -INF,
            NAN,
            0.1,
            1 / 3,
            1e308,
            1e39,
            3.4028235677973366e38,
            3.4028235677973362e38,
            1e-46,
            7.006492321624085e-46,
            7.006492321624086e-46,
            2.0**24 + 1,
            65519.999,
            1.00048828125000001,
            1.00048828125 + 2**-40,
            1.00390625 + 2**-40,
            5e-324,
            1e-310,
        ],
        f16: [
            0.0,
            -0.0,
            1.0,
            INF,
            -INF,
            NAN,
            65504.0,
            2**-24,
            2**-14,
            0.1,
            2049.0,
            259.0,
            1.00390625,
            1.01171875,
        ],
        bf16: [
            0.0,
            -0.0,
            1.0,
            INF,
            -INF,
            NAN,
            65536.0,
            3.3895313892515355e38,
            2**-133,
            2**-126,
            0.1,
            1e-8,
            65280.0,
        ],
        i64: [
            0,
            1,
            -1,
            127,
            128,
            255,
            256,
            257,
            259,
            2049,
            2051,
            65504,
            65520,
            2**24 + 1,
            2**31 - 1,
            2**31,
            2**53 + 1,
            2**63 - 1,
            -(2**63),
            -129,
        ],
        i32: [0, 1, -1, 2**31 - 1, -(2**31), 2**24 + 1, 259, 2051, 300],
        i16: [0, 1, -1, 32767, -32768, 257, 2049],
        i8: [0, 1, -1, 127, -128],
        u8: [0, 1, 127, 128, 255],
        torch.bool: [True, False],
    }
    small = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.75, -1.75, 2.5, 100.0, -100.0, 127.0]
    for src, items in tricky.items():
        for dst in ALL:
            x = torch.tensor(items, dtype=src)
            if src.is_floating_point and dst != torch.bool and not dst.is_floating_point:
                # outside the target's range C leaves the result open
                x = torch.tensor([v for v in small if dst != u8 or v > -1], dtype=src)
            emit([f"x={tensor(x, exact=True)}", f"out={tensor(x.to(dst), exact=True)}"],
                 f"{name_of(src)} to {name_of(dst)}")


@family("sum")
def order():
    tied = torch.tensor([[2.0, 1.0, 2.0, 1.0, 3.0], [NAN, 1.0, 1.0, 0.0, 0.0]])
    holes = torch.tensor([[1.5, 0.0, -2.0, 0.5], [NAN, 2.5, 0.0, NAN]])
    for d in FLOATS:
        case("cumprod", r(3, 5, dtype=d, lo=-2, hi=2), P(1))
        case("logcumsumexp", r(3, 5, dtype=d), P(1))
        case("median", distinct(3, 4, dtype=d))
        case("median", distinct(3, 4, dtype=d), P(1), pos=(1,))
        case("kthvalue", distinct(3, 4, dtype=d), 2, pos=(1,))
        case("nansum", holes.to(d), P((1,)))
        case("diag_embed", r(2, 3, dtype=d))
        case("histc", r(3, 7, dtype=d), bins=5, grad=False)
    for d in INTS:
        case("cumprod", ints(2, 4, dtype=d, lo=-3, hi=4), P(0), grad=False)
        case("median", torch.randperm(7).to(d), P(0), pos=(1,), grad=False)
        case("mode", torch.tensor([3, 1, 2, 1, 3]).to(d), pos=(1,), grad=False)
        case("bincount", P(torch.tensor([3, 1, 1, 5], dtype=d)), grad=False)
        case("diag", ints(3, dtype=d), grad=False)
        case("unique", ints(3, 4, dtype=d, lo=-2, hi=3), return_inverse=True, return_counts=True,
             pos=(1,), grad=False)
    case("cumprod", torch.tensor([[2.0, 0.0, 3.0, 0.0], [0.0, 0.0, -1.5, 2.0]]), P(1))
    case("cumprod", r(3, 4, 2, dtype=f16), P(0), dtype=f32)
    for empty in (r(), r(0), r(2, 0)):
        case("cumprod", empty, P(-1))
        case("logcumsumexp", empty, P(-1))
    case("logcumsumexp", torch.tensor([-INF, -INF, 1.0, 90.0, -90.0, INF]), P(0), grad=False)
    case("median", torch.tensor([[2.0, 1.0, 3.0, 5.0], [1.0, NAN, 0.0, NAN]]), P(1), pos=(1,))
    case("median", tied, grad=False)
    case("median", distinct(4, 3), P(0), pos=(1,), keepdim=True)
    case("median", r(), P(0), pos=(1,))
    case("kthvalue", distinct(4, 3), 4, dim=P(0), keepdim=True, pos=(1,))
    case("kthvalue", torch.tensor([NAN, 1.0, INF]), 3, pos=(1,), grad=False)
    case("mode", tied[:1], keepdim=True, pos=(1,))
    case("mode", ints(5, 3, lo=0, hi=3), dim=P(0), pos=(1,), grad=False)
    case("bincount", P(torch.tensor([0, 2, 2])), weights=frozen(r(3)), minlength=5, grad=False)
    case("bincount", P(torch.tensor([0, 2, 2])), weights=ints(3), grad=False)
    case("bincount", torch.zeros(0, dtype=i64), minlength=2, grad=False)
    case("histc", torch.tensor([NAN, 0.0, 1.0, 2.0, 3.0, 2.5]), bins=4, min=0, max=2, grad=False)
    case("histc", torch.full((3,), 2.0), bins=2, grad=False)
    case("histc", r(0), bins=3, grad=False)
    steps = torch.tensor([1.0, 2.0, 2.0, 4.0])
    rows = torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 5.0]])
    asked = torch.tensor([[2.0, 0.0, 9.0, 1.0], [0.0, 5.0, -1.0, NAN]])
    for right in (False, True):
        case("searchsorted", steps, asked, right=right, pos=(0,), grad=False)
        case("searchsorted", rows, asked, right=right, pos=(0,), grad=False)
    case("searchsorted", steps, 2.0, side="right", pos=(0,), grad=False)
    case("searchsorted", rows.flip(1), asked, sorter=P(torch.tensor([[2, 1, 0], [2, 1, 0]])),
         out_int32=True, pos=(0,), grad=False)
    case("unique", torch.tensor([2.0, NAN, 1.0, 2.0, NAN]), grad=False)
    case("unique", torch.tensor([True, False, True]), return_counts=True, grad=False)
    case("unique", r(0, 2), return_inverse=True, return_counts=True, pos=(1,), grad=False)
    for op in ("nansum", "nanmean"):
        case(op, holes)
        case(op, holes, P((1,)), keepdim=True)
    case("nansum", ints(2, 3), grad=False)
    for op in ("var_mean", "std_mean"):
        case(op, r(3, 4))
        case(op, r(3, 4, 2), P((0, 2)), correction=0, keepdim=True)
    for k in (-1, 0, 1, 2, 3):
        case("rot90", r(2, 3), k)
    case("rot90", r(2, 3, 2), 1, dims=P((2, 0)))
    case("fliplr", r(2, 3))
    case("flipud", r(3, 2))
    case("swapaxes", r(2, 3, 4), P(0), P(-1))
    case("swapdims", r(2, 3), P(0), P(1))
    for k in (-2, 0, 1):
        case("diag", r(3), k)
        case("diag", r(3, 4), k)
        case("diagflat", r(2, 2), k)
    case("diag_embed", r(2, 3), offset=-1, dim1=P(0), dim2=P(-1))
    case("diag_embed", r(2, 3), offset=1, dim1=P(2), dim2=P(0))
    case("diag_embed", r(0), offset=2)
    case("take_along_dim", r(2, 4), P(torch.tensor([[3, 0, 1]])), P(1))
    case("take_along_dim", r(1, 4), P(torch.tensor([[3], [0]])), P(1))
    case("take_along_dim", r(2, 3), P(torch.tensor([5, 0])))
    case("masked_scatter", r(2, 3), torch.tensor([True, False, True]), r(5), inplace=True)
    case("masked_scatter", r(3), torch.tensor([[True], [False]]), r(3))
    for d in (f32, f64):
        case("tensordot", r(2, 3, 4, dtype=d), r(3, 4, 2, dtype=d))
    case("tensordot", r(2, 3), r(4), fn=lambda a, b, dims: torch.tensordot(a, b, dims), dims=0)
    case("tensordot", r(2, 3, 4), r(4, 5, 2), dims_self=P((2, 0)), dims_other=P((0, 2)),
         fn=lambda a, b, dims_self, dims_other: torch.tensordot(a, b, (dims_self, dims_other)))


def steady(*shape, dtype=f64):
    """Matrices with a heavy diagonal whose elements differ: far from singular, with singular
    values far from each other."""
    k = min(shape[-2:])
    heavy = torch.zeros(shape[-2:], dtype=dtype)
    heavy[range(k), range(k)] = torch.arange(1, k + 1, dtype=dtype) * 3
    return r(*shape, dtype=dtype, lo=-1, hi=1) + heavy


def symmetric(*shape, dtype=f64):
    return (lambda a: a + a.mT)(steady(*shape, dtype=dtype))


def la(op, *args, **opts):
    fn = getattr(torch.linalg, op)
    case("linalg_" + op, *args, fn=fn, **opts)


def la_abs(op, *args, **opts):
    """Of vectors whose signs are the library's choice: the absolute values."""
    fn = getattr(torch.linalg, op)
    case("abs_of", "linalg_" + op, *args, fn=lambda _, *a, **k: [y.abs() for y in fn(*a, **k)],
         **opts)


def linalg_kin():
    for d in (f32, f64):
        for op in ("linalg_matrix_exp", "matrix_exp"):
            case(op, r(3, 3, dtype=d, lo=-1, hi=1), fn=torch.matrix_exp)
        la("lu", steady(3, 3, dtype=d).flip(0))
        la("householder_product", r(4, 3, dtype=d, lo=-1, hi=1), r(2, dtype=d, lo=-1, hi=1))
    case("matrix_exp", r(2, 2, 2, dtype=f64) * 4, kind="exp")
    case("matrix_exp", torch.tensor([[[0.0, 0], [0, 0]], [[-60, 30], [20, -40]]], dtype=f64),
         kind="exp")
    case("matrix_exp", r(0, 2, 2, dtype=f64), grad=False)
    case("matrix_exp", r(2, 0, 0, dtype=f64), grad=False)
    la("lu", steady(2, 4, 2).flip(-2), grad=False)
    la("lu", steady(2, 4).flip(0), grad=False)
    la("householder_product", r(2, 3, 3, dtype=f64), r(2, 3, dtype=f64), grad=False)
    la("householder_product", r(3, 2, dtype=f64), r(0, dtype=f64), grad=False)
    la("tensorinv", steady(6, 6).reshape(2, 3, 6))
    la("tensorinv", steady(6, 6).reshape(6, 3, 2), ind=1)
    la("tensorsolve", steady(6, 6).reshape(2, 3, 6), r(2, 3, dtype=f64))
    la("tensorsolve", steady(6, 6).reshape(6, 3, 2), r(3, 2, dtype=f64), dims=P([0]))
    for op in ("inv_ex", "cholesky_ex"):
        la(op, symmetric(2, 3, 3))
    x = r(3, 4, 2)
    case("diagonal", x)
    case("diagonal", x, offset=1, dim1=P(1), dim2=P(0))
    case("diagonal", x, offset=-1, dim1=P(-1), dim2=P(0))
    case("diagonal", x, offset=5)
    la("diagonal", x)
    la("diagonal", x, offset=-2, dim1=P(0), dim2=P(1))


@family("sum")
def linalg():
    rank1 = torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=f64)
    for d in (f32, f64):
        for op in ("inv", "det", "slogdet"):
            la(op, steady(3, 3, dtype=d))
        la("cholesky", symmetric(3, 3, dtype=d))
        la("eigvalsh", symmetric(3, 3, dtype=d))
        la("svdvals", steady(3, 4, dtype=d))
        la("pinv", steady(4, 3, dtype=d))
        la("solve", steady(3, 3, dtype=d), r(3, 2, dtype=d))
        la("lu_factor", steady(3, 3, dtype=d).flip(0))
        la_abs("qr", steady(4, 3, dtype=d))
        la_abs("svd", steady(3, 3, dtype=d), full_matrices=False)
        la_abs("eigh", symmetric(3, 3, dtype=d))
    for op in ("inv", "det", "slogdet"):
        la(op, steady(2, 1, 3, 3).flip(-1))
        la(op, r(0, 0, dtype=f64), grad=False)
        la(op, r(2, 0, 0, dtype=f64), grad=False)
        la(op, r(0, 2, 2, dtype=f64), grad=False)
    la("det", rank1, grad=False)
    la("det", torch.zeros(2, 2, dtype=f64), grad=False)
    la("slogdet", rank1, grad=False)
    case("logdet", steady(2, 3, 3))
    case("logdet", -steady(3, 3), grad=False)
    la("solve", steady(2, 3, 3), r(2, 3, dtype=f64))
    la("solve", steady(2, 3, 3), r(3, dtype=f64))
    la("solve", steady(3, 3), r(4, 3, 2, dtype=f64))
    la("solve", steady(2, 1, 3, 3), r(2, 3, 3, dtype=f64), left=False)
    la("solve", r(0, 0, dtype=f64), r(0, 2, dtype=f64), grad=False)
    la("lu_factor", steady(3, 2).flip(0), grad=False)
    la("lu_factor", steady(2, 2, 4), grad=False)
    lu, pivots = torch.linalg.lu_factor(steady(2, 3, 3).flip(-2))
    for opts in ({}, {"adjoint": True}, {"left": False}, {"left": False, "adjoint": True}):
        b = r(2, 3, 2, dtype=f64) if opts.get("left", True) else r(2, 2, 3, dtype=f64)
        la("lu_solve", lu, pivots, b, **opts)
    la("cholesky", symmetric(2, 2, 2), upper=True)
    la("cholesky", r(2, 0, 0, dtype=f64), grad=False)
    factor = torch.linalg.cholesky(symmetric(3, 3))
    # the triangle that is not read has no gradient
    case("cholesky_solve", r(3, 2, dtype=f64), factor,
         fn=lambda b, l: torch.cholesky_solve(b, l.tril()))
    case("cholesky_solve", r(3, 2, dtype=f64), factor.mT.contiguous(), upper=True,
         fn=lambda b, u, upper: torch.cholesky_solve(b, u.triu(), upper))
    case("cholesky_inverse", factor, fn=lambda l: torch.cholesky_inverse(l.tril()))
    for upper in (True, False):
        la("solve_triangular", steady(2, 3, 3), r(3, 2, dtype=f64), upper=upper)
        la("solve_triangular", steady(3, 3), r(2, 2, 3, dtype=f64), upper=upper, left=False,
           unitriangular=True)
    for shape in ((3, 3), (2, 4, 2), (2, 4), (3, 0), (0, 3)):
        for mode in ("reduced", "complete"):
            square = shape[-1] >= shape[-2] or mode == "reduced"
            la_abs("qr", steady(*shape), mode=mode, grad=square and 0 not in shape)
        for full in (False, True):
            la_abs("svd", steady(*shape), full_matrices=full, grad=not full and 0 not in shape)
        la("svdvals", steady(*shape), grad=0 not in shape)
        la("pinv", steady(*shape), grad=0 not in shape)
        la("matrix_rank", steady(*shape), grad=False)
    la("qr", steady(3, 2), mode="r", grad=False)
    la("pinv", torch.cat([rank1, rank1]))
    la("pinv", steady(3, 3), rtol=0.5)
    la("pinv", steady(3, 3), atol=4.0)
    la("matrix_rank", rank1, grad=False)
    la("matrix_rank", steady(2, 3, 3), atol=5.0, grad=False)
    la("matrix_rank", steady(2, 3, 3), rtol=0.5, grad=False)
    la_abs("eigh", symmetric(2, 3, 3), UPLO="U")
    la("eigvalsh", steady(2, 3, 3), UPLO="U", grad=False)
    la_abs("eigh", steady(3, 3), grad=False)
    la("eigvalsh", r(0, 0, dtype=f64), grad=False)
    least = lambda a, b, **k: torch.linalg.lstsq(a, b, driver="gelsd", **k)[:3]
    case("linalg_lstsq", steady(4, 2), r(4, 3, dtype=f64), fn=least, grad=False)
    case("linalg_lstsq", steady(2, 4), r(2, 1, dtype=f64), fn=least, grad=False)
    case("linalg_lstsq", rank1, r(2, 2, dtype=f64), fn=least, grad=False)
    case("linalg_lstsq", steady(2, 4, 2), r(2, 4, 1, dtype=f64), fn=least, grad=False)
    for p in (None, "fro", "nuc", 1, -1, 2, -2, INF, -INF):
        opts = {} if p is None else {"p": p}
        la("cond", steady(2, 3, 3), grad=p in (None, 2, -2), **opts)  # the others' backward fails
        if p is not None:
            la("matrix_norm", steady(2, 3, 4), ord=p)
            la("matrix_norm", steady(3, 2, 4), ord=p, dim=P((2, 0)), keepdim=True)
    la("cond", steady(2, 3))
    la("matrix_norm", r(2, 3), dtype=f64)
    for p in (0.5, 1, 2, 3, INF, -INF, 0):
        la("vector_norm", r(3, 4, dtype=f64), ord=p, grad=p != 0)
        la("vector_norm", r(3, 4), ord=p, dim=P((0,)), keepdim=True, grad=p != 0)
    la("vector_norm", r(2, 3, 2), dim=P((0, 2)), dtype=f64)
    for n in (-3, -1, 0, 1, 2, 5):
        la("matrix_power", steady(2, 2, 2), n, grad=n != 0)
    m = lambda *shape: r(*shape, dtype=f64, lo=-1, hi=1)
    la("multi_dot", [m(2, 5), m(5, 3), m(3, 4), m(4, 2)])
    la("multi_dot", [m(4), m(4, 3), m(3)])
    la("multi_dot", [m(2, 3), m(3)])
    la("cross", m(2, 3), m(2, 3))
    la("cross", m(3, 2), m(3, 1), dim=P(0))
    case("cross", m(2, 3, 4), m(2, 3, 4))
    case("cross", m(2, 3), m(1, 3), dim=P(1))
    la("vecdot", m(2, 3), m(3))
    la("vecdot", m(2, 3, 2), m(2, 3, 2), dim=P(1))
    la("vander", m(2, 3))
    la("vander", torch.tensor([0.0, 2.0, -1.5], dtype=f64), N=5)
    la("vander", ints(3), N=2, grad=False)
    linalg_kin()


def pairs(*shape, dtype=f64):
    return r(*shape, 2, dtype=dtype, lo=-2, hi=2)


def ft(op, x, **opts):
    """Complex operands and results as pairs in a last dim of 2."""
    fn, real = getattr(torch.fft, op), op.startswith(("rfft", "ihfft"))

    def run(t, **k):
        y = fn(t if real else torch.view_as_complex(t), **k)
        return torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
    case("fft_" + op, x, fn=run, **opts)


def stretches():
    # the window is named in Lua's table too: positional ones are told apart by their types
    real = lambda t, *a, **k: torch.view_as_real(torch.stft(t, *a, return_complex=True, **k))
    back = lambda t, *a, **k: torch.istft(torch.view_as_complex(t), *a, **k)
    for d in (f32, f64):
        case("stft", r(2, 20, dtype=d), n_fft=8, window=r(8, dtype=d, lo=0.25), fn=real)
        case("istft", r(2, 5, 7, 2, dtype=d), n_fft=8, window=r(8, dtype=d, lo=0.25), fn=back)
    for mode in ("constant", "reflect", "replicate", "circular"):
        case("stft", r(11), n_fft=6, hop_length=3, pad_mode=mode, fn=real)
    case("stft", r(2, 13), n_fft=5, hop_length=2, center=False, fn=real)
    case("stft", r(13), n_fft=6, hop_length=4, win_length=3, normalized=True, fn=real)
    case("stft", r(13), n_fft=6, win_length=4, window=r(4), onesided=False, fn=real)
    case("istft", r(6, 5, 2), n_fft=6, hop_length=3, win_length=5, onesided=False, fn=back)
    case("istft", r(4, 5, 2), n_fft=6, hop_length=2, center=False, normalized=True, fn=back)
    for length in (7, 14, 17):
        case("istft", r(3, 3, 4, 2), n_fft=4, hop_length=3, length=length, fn=back)
    for op in ("hann", "hamming", "blackman", "bartlett", "kaiser"):
        for n in (0, 1, 2, 7):
            for periodic in (True, False):
                case(op + "_window", n, periodic, dtype=f64, grad=False)
        case(op + "_window", 6, grad=False)
        case(op + "_window", 6, dtype=bf16, grad=False)
    case("hamming_window", 6, alpha=0.5, beta=0.25, fn=lambda n, alpha, beta:
         torch.hamming_window(n, True, alpha, beta), grad=False)
    case("kaiser_window", 6, beta=5.0, fn=lambda n, beta: torch.kaiser_window(n, True, beta),
         grad=False)


@family("sum")
def fft():
    for d in (f32, f64):
        for n in (1, 2, 3, 4, 8, 12, 17, 31, 37, 60):
            ft("fft", pairs(n, dtype=d))
            ft("rfft", r(n, dtype=d))
    for n in (2, 3, 5, 16, 41, 74):
        ft("ifft", pairs(2, n))
        ft("irfft", pairs(n))
        ft("irfft", pairs(n), n=2 * n - 1)
    for norm in ("backward", "ortho", "forward"):
        for op, x in (("fft", pairs(3, 4)), ("ifft", pairs(3, 4)), ("irfft", pairs(3, 4)),
                      ("rfft", r(3, 4, dtype=f64))):
            ft(op, x, norm=norm)
            ft(op, x, n=3, norm=norm)
            ft(op, x, n=7, dim=P(0), norm=norm)
    for two in ("2", "n"):
        for op, x in (("fft", pairs(2, 3, 4)), ("ifft", pairs(2, 3, 4)), ("irfft", pairs(2, 3, 4)),
                      ("rfft", r(2, 3, 4, dtype=f64))):
            ft(op + two, x)
            ft(op + two, x, s=[2, 5], dim=P((2, 0)), norm="ortho")
            ft(op + two, x, dim=P((0, 1)), norm="forward")
    ft("fftn", pairs(2, 3, 4), s=[2, 2])
    ft("irfft", pairs(1), n=1)
    ft("rfft", ints(5), grad=False)
    ft("fft", pairs(0, 3), grad=False)
    both = lambda a, b: torch.view_as_real(torch.complex(*torch.broadcast_tensors(a, b)))
    case("complex", r(2, 3), r(3), fn=both)
    for norm in ("backward", "ortho", "forward"):
        ft("hfft", pairs(3, 4), norm=norm)
        ft("ihfft", r(3, 4, dtype=f64), norm=norm)
    ft("hfft", pairs(3, 4), n=5, dim=P(0))
    ft("ihfft", r(3, 4), n=7, dim=P(0))
    for two in ("2", "n"):
        for op, x in (("hfft", pairs(2, 3, 4)), ("ihfft", r(2, 3, 4, dtype=f64))):
            ft(op + two, x)
            ft(op + two, x, s=[2, 5], dim=P((2, 0)), norm="ortho")
            ft(op + two, x, dim=P((0, 1)), norm="forward")
    stretches()


@family("sum")
def numeric():
    for d in FLOATS + INTS:
        grad = d.is_floating_point
        case("diff", any_(2, 5, dtype=d), grad=grad)
        case("kron", any_(2, 2, dtype=d, **({"lo": -2, "hi": 2} if grad else {})),
             ints(2, dtype=d, lo=0, hi=3), grad=False)
        case("count_nonzero", ints(3, 4, dtype=d, lo=0, hi=2), grad=False)
    for d in (f32, f64):
        case("heaviside", torch.tensor([-1.5, 0.0, -0.0, 2.0, INF, -INF, NAN], dtype=d),
             torch.tensor(0.5, dtype=d), grad=False, inplace=True)
        case("trapezoid", r(2, 5, dtype=d))
    case("diff", torch.tensor([True, True, False]), grad=False)
    case("diff", r(4, 3), n=2, dim=P(0))
    case("diff", r(3), n=5)
    case("diff", r(3), n=0)
    case("diff", r(2, 3), prepend=r(2, 1), append=r(2, 2))
    case("diff", r(0), grad=False)
    case("kron", r(2, 3, dtype=f64), r(3, 2, dtype=f64))
    case("kron", r(2), r(2, 3))
    case("kron", r(), r(2))
    case("count_nonzero", ints(3, 4, lo=0, hi=2), dim=P([0]), grad=False)
    case("count_nonzero", torch.tensor([NAN, 0.0, -0.0, 1.0]), grad=False)
    case("trapezoid", r(3, 4), dx=0.25, dim=P(0))
    case("trapezoid", r(3, 4), r(4))
    case("trapezoid", r(3, 4), r(3), dim=P(0))
    case("trapezoid", r(3, 4), r(3, 4))
    case("trapezoid", r(1))


@family("sum")
def places():
    """Elements read, written and folded at places that tensors name."""
    samplers()
    folds()
    lists()
    windows()
    bags()


def samplers():
    m = lambda *s, dtype=f32: r(*s, dtype=dtype, lo=-1.3, hi=1.3)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            for align in (False, True):
                opts = {"mode": mode, "padding_mode": padding, "align_corners": align}
                for d in (f32, f64):
                    case("grid_sample", r(2, 2, 4, 5, dtype=d), m(2, 3, 2, 2, dtype=d),
                         fn=F.grid_sample, **opts)
                case("grid_sample", r(1, 1, 3, 3), 6 * m(1, 2, 3, 2), fn=F.grid_sample, **opts)
                if mode != "bicubic":
                    case("grid_sample", r(2, 2, 3, 4, 2, dtype=f64), m(2, 2, 1, 3, 3, dtype=f64),
                         fn=F.grid_sample, **opts)
        case("grid_sample", r(1, 2, 1, 1), m(1, 1, 3, 2), fn=F.grid_sample, mode=mode,
             padding_mode="reflection", align_corners=True)
    edges = torch.tensor([[[[-1.0, -1], [1, 1], [0, 0], [-1, 1], [2, -2]]]])
    for padding in ("zeros", "border", "reflection"):
        case("grid_sample", r(1, 2, 3, 3), edges, fn=F.grid_sample, padding_mode=padding,
             align_corners=True)
    case("grid_sample", r(1, 2, 3, 3), torch.tensor([[[[INF, 0.0], [-INF, 1.0]]]]),
         fn=F.grid_sample, padding_mode="border", grad=False)  # PyTorch's backward crashes
    case("grid_sample", r(0, 2, 3, 3), r(0, 2, 2, 2), fn=F.grid_sample, grad=False)
    case("grid_sample", torch.tensor([[[[INF, 1.0], [2.0, 3.0]]]]),
         torch.tensor([[[[0.9, 0.9], [7.0, 7.0]]]]), fn=F.grid_sample, grad=False)
    for d in (f32, f64):
        for align in (False, True):
            case("affine_grid", r(2, 2, 3, dtype=d), [2, 3, 3, 4], fn=F.affine_grid,
                 align_corners=align)
    case("affine_grid", r(2, 3, 4), [2, 1, 2, 1, 3], fn=F.affine_grid)
    case("affine_grid", r(1, 2, 3), [1, 1, 1, 1], fn=F.affine_grid, align_corners=True)


def folds():
    at = torch.tensor([[0, 2, 0], [3, 3, 3]])
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        fold = lambda x, dim, i, s, reduce=reduce, **o: x.scatter_reduce(dim, i, s, reduce, **o)
        one = lambda *a, **o: case("scatter_reduce", *a, fn=lambda x, dim, i, s, how, **k:
                                   x.scatter_reduce(dim, i, s, how, **k), **o)
        for d in FLOATS + [i64, i32, u8]:
            some = distinct if reduce in ("amax", "amin") and d.is_floating_point else any_
            grad = d.is_floating_point
            one(some(2, 4, dtype=d), P(1), P(at), any_(2, 3, dtype=d), reduce, grad=grad,
                inplace=True)
            one(some(2, 4, dtype=d), P(1), P(at), any_(2, 3, dtype=d), reduce,
                include_self=False, grad=grad)
        one(r(4), P(0), P(torch.tensor([1, 1, 3])), r(3), reduce)
        one(r(4, 2), P(0), P(at[:, :2]), r(3, 3), reduce, grad=False)
        one(r(3), P(0), P(torch.tensor([], dtype=i64)), r(0), reduce, grad=False)
    for values in ([2.0, 0, 3], [0.0, 0, 3]):
        for own in ([5.0, 0.0], [5.0, 7.0]):
            case("scatter_reduce", torch.tensor(own), P(0), P(torch.tensor([1, 1, 0])),
                 torch.tensor(values), "prod",
                 fn=lambda x, dim, i, s, how: x.scatter_reduce(dim, i, s, how))
    ties = torch.tensor([2.0, 2, 1, 2])
    case("scatter_reduce", torch.tensor([2.0, 1]), P(0), P(torch.tensor([0, 0, 1, 1])), ties,
         "amax", fn=lambda x, dim, i, s, how: x.scatter_reduce(dim, i, s, how))
    for how in ("amax", "amin"):
        case("scatter_reduce", torch.tensor([NAN, 1, 2]), P(0), P(torch.tensor([0, 1, 1, 2])),
             torch.tensor([1.0, NAN, 3, 1]), how, grad=False,
             fn=lambda x, dim, i, s, how: x.scatter_reduce(dim, i, s, how))
    different()


def different():
    rows = torch.tensor([[1.0, 2, 2], [3, 1, 0], [1, 2, 2], [1, 2, 0], [3, 1, 0]])
    for d in (f32, f16, i64, u8):
        case("unique", rows.to(d), dim=P(0), return_inverse=True, return_counts=True,
             pos=(1,), grad=False)
        case("unique", rows.T.to(d), dim=P(-1), return_counts=True, grad=False)
    for shape, dim in (((6, 1, 2), 0), ((2, 6, 2), 1), ((1, 4), 0), ((7,), 0), ((9, 5), 0)):
        case("unique", ints(*shape, lo=0, hi=2), dim=P(dim), return_inverse=True, pos=(1,),
             grad=False)
        case("unique_consecutive", ints(*shape, lo=0, hi=2), dim=P(dim), return_inverse=True,
             return_counts=True, pos=(1,), grad=False)
    case("unique_consecutive", rows[[0, 2, 2, 1, 4, 0]], dim=P(0), grad=False)


def lists():
    put = lambda x, index, v, accumulate=False: torch.ops.aten.index_put(
        x, [None if isinstance(i, dict) else i for i in index], v, accumulate)
    i, j = torch.tensor([0, 2, 0]), torch.tensor([1, 3, 1])
    for d in FLOATS + [i64, torch.bool]:
        grad = d.is_floating_point
        case("index_put", any_(3, 4, dtype=d), [P(i), P(torch.tensor([1, -1, 0]))],
             any_(3, dtype=d), fn=put, grad=grad, inplace=True)
    for accumulate in (False, True):
        o = {"fn": put, "accumulate": accumulate}
        case("index_put", r(3, 4, 2), [P(i), P(torch.tensor([1, 3, 2]))], r(3, 2), **o)
        case("index_put", r(3, 4, 2), [P(torch.tensor([[0], [2]])), P(torch.tensor([1, 3, 0]))],
             r(2, 3, 1), **o)
        case("index_put", r(2, 3, 4), [{}, P(torch.tensor([0, 2])), P(torch.tensor([1, 3]))],
             r(2, 2), **o)
        case("index_put", r(2, 3, 4), [P(torch.tensor([0, 1])), {}, P(torch.tensor([1, 3]))],
             r(2, 3), **o)
        case("index_put", r(2, 3), [torch.tensor([[True, False, True], [False, True, False]])],
             r(3), **o)
        case("index_put", r(2, 3, 2), [{}, torch.tensor([True, False, True])], r(2, 2, 2), **o)
    case("index_put", r(3, 4), [P(i), P(j)], r(3), fn=put, accumulate=True, inplace=True)
    case("index_put", r(3, 4), [P(torch.tensor([1]))], r(), fn=put)
    stacks()


def stacks():
    many = lambda name: lambda t, **o: getattr(torch, name)(t, **o)
    for name in ("hstack", "vstack", "dstack", "column_stack"):
        for d in (f32, bf16, i64):
            case(name, [any_(2, 3, dtype=d), any_(2, 3, dtype=d)], grad=d.is_floating_point)
        case(name, [r(3), r(3)])
        case(name, [r(), r()])
        case(name, [r(2, 3, 2), r(2, 3, 2)])
        case(name, [r(2, 2), r(2, 2, dtype=f64)])
    case("column_stack", [r(3), r(3, 2)])
    case("hstack", [r(2), r(3)])
    block = lambda t: torch.block_diag(*t)
    for d in (f32, f16, i64):
        case("block_diag", [any_(2, 3, dtype=d), any_(1, 1, dtype=d)], fn=block,
             grad=d.is_floating_point)
    case("block_diag", [r(), r(2), r(3, 1), r(0, 2)], fn=block)
    case("block_diag", [r(2, 2), ints(2, 1)], fn=block)
    for d in (f32, f64, i64):
        case("vander", any_(3, dtype=d), grad=False)  # PyTorch's backward fails
    case("vander", r(3), N=5, increasing=True, grad=False)
    case("vander", r(3), N=0, grad=False)
    for x, n, dim in ((r(7, 2), 3, 0), (r(2, 5), 7, 1), (r(6), 4, 0)):
        case("tensor_split", x, n, P(dim))
    for x, at, dim in ((r(7, 2), [2, 5], 0), (r(2, 5), [1, 4, 9], -1), (r(6), [4, 2], 0),
                       (r(6), [-2], 0)):
        case("tensor_split", x, P(at), P(dim))
    case("hsplit", r(4), 2)
    case("hsplit", r(2, 4), P([1, 3]))
    case("vsplit", r(4, 2), 2)
    case("dsplit", r(2, 1, 4), P([1]))


def windows():
    pool = lambda x, u, k, size, **o: F.fractional_max_pool2d(
        x, k, output_size=size, _random_samples=u, **o)
    op = "fractional_max_pool2d"
    for d in (f32, f64):
        for k, size in ((2, 3), ([2, 3], [4, 2]), (1, 1), (3, [1, 5])):
            u = frozen(torch.rand(2, 3, 2, dtype=f64).mul(64).floor().div(64).to(d))
            case(op, distinct(2, 3, 7, 8, dtype=d), u, k, size, fn=pool, return_indices=True,
                 pos=(1,))
    u = frozen(torch.rand(1, 2, 2).mul(64).floor().div(64))
    case(op, distinct(2, 5, 6), u, 2, [3, 4], fn=pool)
    case(op, torch.tensor([[[1.0, NAN, 2], [3, 3, 0], [1, 3, 3]]]), u[:, :1], 2, 2, fn=pool,
         return_indices=True, pos=(1,), grad=False)


def bags():
    def bag(ids, weight, **o):
        if isinstance(o.get("offsets"), P):
            o["offsets"] = o["offsets"].value
        return F.embedding_bag(ids, weight, **o)
    flat, first = torch.tensor([0, 2, 2, 4, 1, 1, 3]), P(torch.tensor([0, 2, 2, 5]))
    rows = torch.tensor([[0, 2, 2], [4, 1, 1]])
    for mode in ("sum", "mean", "max"):
        for d in (f32, f64) + ((bf16,) if mode == "sum" else ()):
            w = distinct if mode == "max" else r
            case("embedding_bag", P(rows), w(5, 3, dtype=d), fn=bag, mode=mode)
            case("embedding_bag", P(flat), w(5, 3, dtype=d), fn=bag, mode=mode, offsets=first)
        for pad in (2, -4):
            case("embedding_bag", P(rows), w(5, 3), fn=bag, mode=mode, padding_idx=P(pad))
            case("embedding_bag", P(flat), w(5, 3), fn=bag, mode=mode, offsets=first,
                 padding_idx=P(pad))
        case("embedding_bag", P(torch.tensor([[2, 2], [2, 1]])), w(5, 3), fn=bag, mode=mode,
             padding_idx=P(2))
        case("embedding_bag", P(flat), w(5, 3), fn=bag, mode=mode,
             offsets=P(torch.tensor([0, 3, 7])), include_last_offset=True)
    case("embedding_bag", P(flat), r(5, 3), fn=bag, mode="sum", offsets=first,
         per_sample_weights=r(7))
    case("embedding_bag", P(rows), r(5, 3), fn=bag, mode="sum", per_sample_weights=r(2, 3),
         padding_idx=P(1))
    for k, opts in ((2, {}), ([2, 1, 3], {"stride": 1}), (2, {"stride": [1, 2, 1], "ceil_mode": True})):
        case("lp_pool3d", r(1, 2, 3, 4, 5, dtype=f64, lo=0.25), 2.0, k, fn=F.lp_pool3d, **opts)
    case("upsample_nearest", r(1, 1, 2, 3), fn=F.upsample_nearest, size=[3, 5])
    case("upsample_bilinear", r(1, 1, 2, 3), fn=F.upsample_bilinear, scale_factor=2)


# ---- writing ----------------------------------------------------------------

def main():
    wanted, total = sys.argv[1:], 0
    os.makedirs(OUT_DIR, exist_ok=True)
    for name, kind, fn in FAMILIES:
        if wanted and name not in wanted:
            continue
        LINES.clear()
        NAMES.clear()
        torch.manual_seed(zlib.crc32(name.encode()))
        fn()
        path = os.path.join(OUT_DIR, name + ".lua")
        with open(path, "w", encoding="ascii", newline="\n") as f:
            f.write(f"-- What PyTorch {torch.__version__} answers; written by scripts/golden.py.\n")
            f.write("-- luacheck: ignore\n")
            f.write(f'return {{torch="{torch.__version__}",kind="{kind}",cases={{\n')
            f.write("\n".join(LINES) + "\n}}\n")
        total += os.path.getsize(path)
        print(f"{name:12s} {len(LINES):5d} cases {os.path.getsize(path):8d} bytes")
    print(f"{total} bytes, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
