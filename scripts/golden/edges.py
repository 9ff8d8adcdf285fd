"""Ops of special numbers: zeros of both signs, infinities, NaN, the least and the largest numbers, ties
of rounding, kinks. Each element is compared to a few ulp of itself, values as "pointwise" and
gradients as "near" (case.tolerance).

Gradients of 16 bits are float32's, rounded: PyTorch rounds the steps of some formulas, and its loops
of 16 bits treat NaN as its scalar loops do, those of float32 as its vector loops do.
"""
from cases import *  # noqa: F403


def numbers(dtype):
    """special() of cases.py, the largest numbers, and inputs where functions have kinks or poles."""
    i = torch.finfo(dtype)
    more = torch.tensor([i.max, -i.max, 2.0, -2.0, 6.0, -6.0, 20.0, 30.0, -30.0, 0.25, 0.75, -0.75],
                        dtype=f64).to(dtype)
    x = torch.cat([special(dtype), more])
    x[x == i.tiny / 4] = i.tiny / 128  # its reciprocal is infinite, and stays so times 1/32
    return x


def whole(dtype):
    """The ends of an integer dtype and small numbers."""
    if dtype == torch.bool:
        return torch.tensor([False, True, True, False, True])
    i = torch.iinfo(dtype)
    return torch.tensor([0, 1, 2, 3, 5, 7, i.max, i.max - 1, i.min]
                        + ([] if dtype == u8 else [-1, -2, -3, -5]), dtype=dtype)


def few(dtype):
    """Operands of two: every pair of these meets."""
    i = torch.finfo(dtype)
    return torch.tensor([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, -2.5, 3.0, i.max, i.tiny / 128],
                        dtype=f64).to(dtype)


def pairs(v):
    n = len(v)
    return [v.repeat_interleave(n), v.repeat(n)]


SPECIAL = """lgamma digamma i0 special_i0e special_i1 special_i1e special_erfcx special_ndtr
    special_ndtri special_log_ndtr special_entr erfinv logit""".split()
ONE = {  # op: calls by their options
    "clamp": [{"min": -1, "max": 2}, {"min": 0.5}, {"max": 0.5}, {"min": 1, "max": -1}],
    "leaky_relu": [{}, {"negative_slope": -0.5}],
    "elu": [{}, {"alpha": 0.5}],
    "celu": [{}, {"alpha": 0.5}],
    "hardtanh": [{}, {"min_val": 0, "max_val": 6}],
    "softplus": [{}, {"beta": 2, "threshold": 10}],
    "gelu": [{}, {"approximate": "tanh"}],
    "softshrink": [{}, {"lambd": 0}],
    "hardshrink": [{}, {"lambd": 0}],
    "nan_to_num": [{}, {"nan": 1, "posinf": 2, "neginf": -2}],
    "logit": [{}, {"eps": 0.25}],
}
for name in """neg abs sign square floor ceil round trunc frac exp expm1 exp2 log log1p log2 log10
        sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh sigmoid erf erfc relu relu6
        selu silu hardsigmoid hardswish mish logsigmoid softsign tanhshrink sinc deg2rad rad2deg
        isnan isinf isfinite signbit logical_not bitwise_not""".split() + SPECIAL[:-1]:
    ONE[name] = [{}]
TWO = """add sub mul div pow maximum minimum fmod remainder atan2 copysign hypot xlogy logaddexp
    logaddexp2 special_xlog1py nextafter eq ne lt le gt ge logical_and logical_or logical_xor
    bitwise_and bitwise_or bitwise_xor heaviside isclose""".split()

def tiny(x):
    return (x != 0) & (x.abs() <= torch.finfo(x.dtype).tiny)


def top(x):
    return x.abs() == torch.finfo(x.dtype).max


LEFT_OUT = {  # inputs of PyTorch's answers that are no definition
    "gelu": lambda x: x.abs() > 1e4,  # its vector loop gives NaN and infinity above 1e37
    "i0": torch.isinf, "special_i1": torch.isinf,  # NaN
    "special_ndtri": tiny,  # off by 1e-3 where doubled x is subnormal
    "signbit": torch.isnan,  # a NaN's sign changes with a cast
    "fmod": lambda x: tiny(x) | top(x), "remainder": lambda x: tiny(x) | top(x),  # NaN
    "lgamma": lambda x: x.abs() > 1e4,
}
# PyTorch's slope is off by 4e-10; NaN at -inf; and exp(y^2 / 2) multiplies the last bit's error.
NO_SLOPE = ["digamma", "special_log_ndtr", "special_ndtri"]
ONCE = ["tanhshrink"]  # of 16 bits PyTorch rounds the tanh


def taken(op, args):
    """The elements of the operands that are left in."""
    keep = torch.ones_like(args[0], dtype=torch.bool)
    for x in args:
        if op in LEFT_OUT and x.is_floating_point():
            keep &= ~LEFT_OUT[op](x)
        if x.dtype in (f16, bf16):  # PyTorch's loops flush these to 0
            keep &= ~tiny(x)
    return [x[keep] for x in args]


def function(op):
    if op.startswith("special_"):
        return getattr(torch.special, op[8:])
    return getattr(torch, op, None) or getattr(F, op)


def many(args):
    """The operands four times over: every element of the first time is in PyTorch's vector loop."""
    return [x.repeat(4) for x in args]


def edge(op, args, **opts):
    """As case(), with its own gradients."""
    fn, args = function(op), taken(op, args)
    label, n = describe(op, args, opts), len(args[0])
    wide = many([x.float() if x.dtype in (f16, bf16) else x for x in args])
    y = fn(*(wide if op in ONCE else many(args)), **opts)[:n]
    y = y.to(args[0].dtype) if op in ONCE and args[0].is_floating_point() else y
    fields = []
    if y.is_floating_point() and wide[0].is_floating_point() and op not in NO_SLOPE:
        wide = [x.clone().requires_grad_() for x in wide]
        z = fn(*wide, **opts)
        if z.requires_grad:
            g = r(n, dtype=y.dtype, lo=-1, hi=1)
            grads = torch.autograd.grad(z, wide, g.to(z.dtype).repeat(4))
            args = [x.clone().requires_grad_() for x in args]
            for x, gx in zip(args, grads):
                x.grad = gx[:n].to(x.dtype)
            fields.append("gout={" + values(g) + "}")
    kind = "near" if op in SPECIAL + ["gelu", "logaddexp2"] else "pointwise"
    emit([f'op="{op}"', f"args={lua_args(args, opts)}", f"out={{{tensor(y)}}}", *fields,
          f'kind="{kind}"'], label)


def each(dtypes, make):
    """make(dtype) for every dtype that PyTorch takes."""
    for d in dtypes:
        try:
            make(d)
        except (NotImplementedError, RuntimeError):
            pass


@family("pointwise")
def edges_one():
    for op, calls in ONE.items():
        floats = [d for d in FLOATS if (op, d) != ("hardsigmoid", f64)]  # a float32 constant of 1/6
        for opts in calls:
            each(floats, lambda d: edge(op, [numbers(d)], **opts))
            if op != "softsign":  # 1 + |x| overflows
                each([i64, i32, u8, torch.bool], lambda d: edge(op, [whole(d)], **opts))


@family("pointwise")
def edges_two():
    for op in TWO:
        each(FLOATS, lambda d: edge(op, pairs(few(d))))
        each([i64, i32, u8, torch.bool], lambda d: edge(op, pairs(whole(d))))


def rows(dtype):
    """Rows that hold NaN, infinities and zeros."""
    return torch.tensor([[1, 2, 0.5], [0, 0, 3], [NAN, 1, 2], [INF, 1, 2], [-INF, 1, 2], [2, 2, 1],
                         [0, -0.0, 0], [3, 0, 2]], dtype=dtype)


@family("near")
def edges_rows():
    for d in (f32, f64):
        for op in """sum mean prod amax amin max min logsumexp nansum nanmean norm cumsum cumprod
                softmax log_softmax""".split():
            # PyTorch's gradients of products take NaN as they take 0
            case(op, rows(d)[[0, 1, 6, 7]] if op in ("prod", "cumprod") else rows(d), dim=P(1))
        for op in "amax amin max min".split():
            case(op, torch.tensor([1.0, NAN, 3.0, NAN], dtype=d))
            case(op, torch.tensor([3.0, 1.0, 3.0, 1.0], dtype=d))
        for p in (0.0, 1.0, INF):
            case("norm", rows(d)[:2], p=p, dim=P(1))
        case("var", torch.tensor([[1.0], [INF]], dtype=d), dim=P(1))
        chance = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5, 1e-20, 0.25], dtype=d)
        target = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.25, 0.5, 1.0], dtype=d)
        if d == f32:  # float64's divisor is at least 1e-12 of float32
            case("binary_cross_entropy", chance, frozen(target), reduction="none")
            case("binary_cross_entropy", chance, frozen(target), frozen(target + 1),
                 reduction="sum")
        case("binary_cross_entropy_with_logits",
             torch.tensor([INF, -INF, 100.0, -100.0, 0.0, NAN, 1e30], dtype=d), frozen(target),
             fn=F.binary_cross_entropy_with_logits, reduction="none")
        case("kl_div", torch.tensor([-1.0, -2.0, -0.5], dtype=d),
             frozen(torch.tensor([0.0, 1.0, 0.5], dtype=d)), fn=F.kl_div, reduction="none")
        long = torch.cat([torch.full((60,), 0.1), torch.full((90,), 10.0)]).to(d)
        case("cumprod", long, dim=P(0), grad=False)  # parts of it overflow in float32
        case("cumprod", torch.tensor([2.0, 0.0, 3.0, 0.0, 4.0], dtype=d), dim=P(0))
        case("index_fill", r(4, 2, dtype=d), P(0), P(torch.tensor([1, 3, 1])),
             torch.tensor(2.0, dtype=d))
        for sides in ((2, -1), (-1, 3), (-1, -1)):
            case("pad", r(1, 2, 4, dtype=d), sides, fn=F.pad, mode="circular")
        case("pad", r(1, 2, 3, 4, dtype=d), (-2, 2, 1, -1), fn=F.pad, mode="circular")
    for d in (f16, bf16):  # compared in the 16-bit dtype
        for op in "eq ne lt le gt ge".split():
            x = torch.tensor([0.1, 0.3, 2048, 2049], dtype=d)
            case(op, x, 0.1, grad=False)
            case(op, x, torch.tensor(0.1), grad=False)
            case(op, x, torch.tensor([0, 0, 2049, 2047]), grad=False)
