"""Ops that demilune writes in Lua of other ops, and further special functions."""
from cases import *  # noqa: F403


def each(op, *makers, dtypes=(f32, f64, f16, bf16), **opts):
    for d in dtypes:
        case(op, *(make(d) for make in makers), **opts)


@family("pointwise")
def further_pointwise():
    sp = torch.special
    x = lambda d: r(2, 3, dtype=d)
    wide = lambda d: torch.tensor([0.0, -0.0, 0.5, 1, 1.5, 2, 3, 7.5, 11.5, 12.5, 24.5, 26, 40, -2, -30,
                                   1e-3], dtype=d)
    right = lambda d: wide(d).abs()
    edges = torch.tensor([INF, -INF, NAN, 0.0])
    for op, make in (("asinh", x), ("acosh", lambda d: r(2, 3, dtype=d, lo=1, hi=9)),
                     ("atanh", lambda d: r(2, 3, dtype=d, lo=-0.9, hi=0.9))):
        each(op, make, inplace=True)
        case(op, edges, grad=False)
        case(op, ints(3, lo=0, hi=2), grad=False)
    near = dict(kind="sum", grad=False)  # zeros: errors are of the size of the swings
    bessel = dict(dtypes=(f32,), **near)  # PyTorch's of float64 have errors of 1e-9
    for op in ("bessel_j0", "bessel_j1", "spherical_bessel_j0"):
        each("special_" + op, wide, fn=getattr(sp, op), **bessel)
        case("special_" + op, edges[2:], fn=getattr(sp, op), **near)
    for op in ("bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1",
               "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"):
        each("special_" + op, right, fn=getattr(sp, op), **bessel)
    case("special_airy_ai", torch.tensor([-14.0, -9.5, -8.5, -3.2, -1, 0, 0.4, 1.9, 2.5, 6]),
         fn=sp.airy_ai, **near)
    for op in ("fmax", "fmin"):
        each(op, x, lambda d: r(3, dtype=d))
        case(op, torch.tensor([1.0, NAN, 3.0, NAN, 2.0]), torch.tensor([2.0, 1.0, NAN, NAN, 2.0]))
        case(op, ints(2, 3), ints(3), grad=False)
    for op in ("clamp_min", "clamp_max"):
        each(op, x, lambda d: 0.5, inplace=True)
        case(op, r(2, 3), r(3))
    each("floor_divide", x, lambda d: r(3, dtype=d, lo=0.5), grad=False, inplace=True)
    case("floor_divide", ints(4), ints(4, lo=1), grad=False)
    each("rsub", x, lambda d: r(3, dtype=d), alpha=2)
    case("float_power", r(2, 3, lo=0.5), r(3))
    case("float_power", ints(3, lo=1), 2, grad=False)
    each("ldexp", x, lambda d: r(3, dtype=d))
    each("frexp", x)
    case("frexp", torch.tensor([0.0, -0.0, 1, 2, 1024, 1e-44, -3e38, INF]), grad=False)
    case("frexp", torch.tensor([5e-324, 1e308, -2.0**-1022], dtype=f64), grad=False)
    for d in (3, 1, -1, 0):
        case("round", 37 * r(5), decimals=d, inplace=True)
    case("round", r(4, dtype=f64), decimals=2)
    case("isposinf", edges, grad=False)
    case("isneginf", edges, grad=False)
    for op in ("igamma", "igammac"):
        case(op, torch.tensor([0.5, 1, 3, 10, 50, 200, 2]),
             torch.tensor([0.25, 1, 4, 8, 60, 190, 0]), grad=False, kind="sum")
        case(op, frozen(r(4, lo=0.5)), r(4, lo=0.5), kind="sum")
    case("special_zeta", r(5, dtype=f64, lo=1.5, hi=9), r(5, dtype=f64, lo=0.5, hi=9), fn=sp.zeta,
         grad=False, kind="sum")
    degrees = torch.tensor([0.0, 1, 2, 3, 6, -1], dtype=f64)
    for op in [f"{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"] + [
            "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l",
            "legendre_polynomial_p"]:
        case("special_" + op, r(6, dtype=f64, lo=-2, hi=2), degrees, fn=getattr(sp, op), grad=False,
             kind="sum")
    windows = torch.signal.windows
    for op, opts in (("bartlett", {}), ("blackman", {}), ("cosine", {}), ("exponential", {"tau": 2.5}),
                     ("gaussian", {"std": 1.5}), ("general_cosine", {"a": [0.5, 0.3, 0.2]}),
                     ("general_hamming", {"alpha": 0.6}), ("hamming", {}), ("hann", {}),
                     ("kaiser", {"beta": 6.0}), ("nuttall", {})):
        for n, sym in ((7, True), (6, False), (1, True)):
            case("signal_windows_" + op, n, fn=getattr(windows, op), grad=False, sym=sym, dtype=f64,
                 kind="sum", **opts)


@family("sum")
def further():
    case("atleast_2d", r(3))
    case("atleast_3d", r(2, 3))
    case("broadcast_to", r(3), [2, 3])
    case("broadcast_tensors", r(3), r(2, 1))
    case("cartesian_prod", r(2), r(3))
    case("combinations", r(4), r=3)
    case("combinations", r(3), with_replacement=True)
    case("x:unfold", r(2, 7), P(1), 3, 2, fn=torch.Tensor.unfold)
    case("split_with_sizes", r(5, 2), [2, 3])
    case("select_scatter", r(2, 3), r(3), P(0), P(1))
    case("diagonal_scatter", r(3, 4), r(3), offset=1)
    case("slice_scatter", r(5, 2), r(2, 2), P(0), P(1), 3)
    for reduce in ("prod", "mean", "amax", "amin"):
        for own in (True, False):
            source = distinct(3, 4) + 1 / 64  # equal to no element of x
            case("index_reduce", distinct(3, 4), P(0), P(torch.tensor([2, 0, 2])), source, reduce,
                 include_self=own)
    for reduce in ("add", "multiply"):
        case("scatter", r(3, 4), P(1), P(torch.tensor([[0, 2], [1, 1]])), frozen(r(2, 2)), reduce=reduce,
             grad=False)
        case("scatter", r(3, 4), P(0), P(torch.tensor([[0, 2], [1, 1]])), 1.5, reduce=reduce, grad=False)
    case("put", r(2, 3), P(torch.tensor([1, 5])), r(2))
    case("put", r(2, 3), P(torch.tensor([1, 5, 1])), r(3), accumulate=True)
    case("repeat_interleave", r(3, 2), torch.tensor([2, 0, 3]), dim=P(0))
    case("repeat_interleave", r(2, 2), torch.tensor([1, 2, 0, 1]))
    case("repeat_interleave", r(3), torch.tensor([2]))
    case("msort", distinct(4, 2))
    case("nonzero_static", ints(3, lo=0, hi=2), size=5, fill_value=-1, grad=False, pos=(0,))
    for bins in (4, torch.tensor([-3.0, -1, 0, 2.5])):
        case("histogram", r(20), bins, grad=False)
        case("histogram", r(20), bins, weight=r(20, lo=0), density=True, grad=False)
    case("histogram", r(20), 3, range=(-1.0, 2.0), grad=False)
    for p in ("fro", "nuc"):
        case("norm", r(3, 4), p)
        case("norm", r(2, 3, 4), p, dim=P((0, 2)), keepdim=True)
    case("aminmax", distinct(2, 3), dim=P(1))
    case("aminmax", distinct(2, 3))
    case("cov", r(3, 5))
    case("cov", r(5), correction=0)
    case("cov", r(2, 4), fweights=torch.tensor([1, 2, 1, 3]), aweights=r(4, lo=0.5))
    case("corrcoef", r(3, 5))
    case("gradient", r(4, 5), fn=torch.gradient)
    case("gradient", r(4, 5), fn=torch.gradient, spacing=2.0, dim=P((1,)), edge_order=2)
    case("gradient", r(4, 5), fn=torch.gradient, spacing=[torch.tensor([0.0, 1, 3, 4])], dim=P((0,)),
         edge_order=2)
    case("cumulative_trapezoid", r(2, 4), dx=0.5, dim=P(0))
    case("cumulative_trapezoid", r(2, 3), r(3))
    for reduce in ("sum", "mean", "max", "min", "prod"):
        case("segment_reduce", distinct(6, 2), reduce, fn=torch.segment_reduce,
             lengths=torch.tensor([2, 3, 1]))
    case("inner", r(2, 3), r(4, 3))
    case("sum_to_size", r(2, 3), [1, 3], fn=torch.Tensor.sum_to_size)
    steady = r(4, 4, dtype=f64, lo=-1, hi=1) + 4 * torch.eye(4, dtype=f64)
    positive = steady @ steady.mT
    la = torch.linalg
    case("linalg_lu_factor_ex", steady, fn=la.lu_factor_ex, grad=False)
    case("linalg_solve_ex", steady, r(4, 2, dtype=f64), fn=la.solve_ex)
    LU, pivots = la.lu_factor(steady.flip(0))
    case("lu_solve", r(4, 2, dtype=f64), LU, pivots)
    case("lu_unpack", LU, pivots)
    case("triangular_solve", r(4, 2, dtype=f64), steady, upper=False, transpose=True)
    case("linalg_ldl_factor_ex", positive - 9 * torch.eye(4, dtype=f64), fn=la.ldl_factor_ex, grad=False)
    LD, pivots = la.ldl_factor(positive - 9 * torch.eye(4, dtype=f64))
    case("linalg_ldl_solve", LD, pivots, r(4, 2, dtype=f64), fn=la.ldl_solve, grad=False)
    case("geqrf", r(4, 3, dtype=f64), grad=False)
    a, tau = torch.geqrf(r(4, 3, dtype=f64))
    for left in (True, False):
        for transpose in (True, False):
            case("ormqr", a, tau, r(4, 4, dtype=f64), left, transpose)
    case("linalg_polar", steady[:, :3].contiguous(), fn=la.polar)
    case("linalg_matrix_sqrth", positive, fn=la.matrix_sqrth, grad=False)
    for mode in ("bilinear", "bicubic"):
        case("interpolate", r(1, 2, 7, 9), size=[3, 4], mode=mode, antialias=True, fn=F.interpolate)
        case("interpolate", r(1, 2, 3, 3), scale_factor=[2.0, 1.5], mode=mode, antialias=True,
             fn=F.interpolate)
        case("interpolate", r(1, 2, 4, 5), scale_factor=[1.7, 0.6], mode=mode, fn=F.interpolate)
        case("interpolate", r(1, 2, 4, 5), scale_factor=1.7, mode=mode, recompute_scale_factor=True,
             fn=F.interpolate)
    case("linear_cross_entropy", r(3, 2), r(4, 2), P(torch.tensor([0, 3, 1])), fn=F.linear_cross_entropy,
         linear_bias=r(4))
    case("fractional_max_pool3d", distinct(1, 2, 4, 5, 4), 2, fn=F.fractional_max_pool3d,
         output_size=[2, 3, 2], _random_samples=frozen(torch.rand(1, 2, 3)), return_indices=True,
         pos=(1,))
