"""torch.linalg."""
from cases import *  # noqa: F403


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


def linalg_derived():
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
    la("lstsq", steady(4, 2), r(4, 3, dtype=f64), driver="gelsd", grad=False)
    la("lstsq", steady(2, 4), r(2, 1, dtype=f64), driver="gelsd", grad=False)
    la("lstsq", rank1, r(2, 2, dtype=f64), driver="gelsd", grad=False)
    la("lstsq", steady(2, 4, 2), r(2, 4, 1, dtype=f64), driver="gelsd", grad=False)
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
    linalg_derived()
    for opts in ({}, {"driver": "gels"}, {"driver": "gelsy"}, {"driver": "gelss"}):
        la("lstsq", steady(2, 4, 2), r(2, 4, 3, dtype=f64), grad=False, **opts)
    la("vander", torch.tensor(2.0, dtype=f64), N=3)
