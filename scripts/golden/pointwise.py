"""Pointwise ops of one, two and three operands, comparisons, activations, special functions."""
from cases import *  # noqa: F403


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


@family("exact")
def integers():
    """Shifts, whose counts may leave no bit, and divisors, with the ends of each dtype."""
    for op in ("bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm"):
        for d in INTS:
            case(op, ints(2, 3, dtype=d), ints(3, dtype=d), grad=False, inplace=True)
            if op == "lcm":
                continue
            low, high = torch.iinfo(d).min, torch.iinfo(d).max
            case(op, torch.tensor([high, low, 1, 0, 7, high, 3], dtype=d),
                 torch.tensor([1, 1, 0, 3, 7, 2, 5], dtype=d), grad=False)
            if op == "gcd" or d == u8:
                continue
            bits = torch.iinfo(d).bits
            case(op, torch.tensor([high, low, -5, 5, -5, 5], dtype=d),
                 torch.tensor([bits - 1, bits - 1, bits, bits, -1, -1], dtype=d), grad=False)
        case(op, ints(4, lo=1), torch.tensor(5) if op in ("gcd", "lcm") else 5, grad=False)
        case(op, ints(4, dtype=u8), ints(4, lo=0), grad=False)
        case(op, torch.tensor(6), ints(3, lo=1), grad=False)
    case("gcd", ints(2, 19, lo=-90, hi=90), ints(2, 19, lo=-90, hi=90), grad=False)
    case("lcm", ints(2, 19, lo=-90, hi=90), ints(2, 19, lo=-90, hi=90), grad=False)


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
        in_place = op in ("relu6", "selu", "celu", "sinc", "frac", "nan_to_num", "erfinv")
        for d in FLOATS:
            # PyTorch's slope is float32's 1/6
            case(op, mk(5, d), fn=fn, inplace=in_place, grad=(op, d) != ("hardsigmoid", f64), **opts)
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
