"""Distances, matrix products and 2-d convolutions."""
from cases import *  # noqa: F403


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
    # equal largest differences, equal rows, differences of 0; many rows and long ones
    mode = "donot_use_mm_for_euclid_dist"
    rows = torch.tensor([[1.0, 3, 0, 2], [1, 1, 2, 2], [0, 0, 0, 0], [1, 3, 0, 2], [-2, 4, 1, 5]])
    for d in (f32, f64):
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 7.5, INF):
            case("cdist", rows.to(d), rows[1:4].to(d), p=p, compute_mode=mode)
            case("pdist", rows.to(d), p=p)
    for p in (2.0, 3.0, INF):
        case("cdist", r(2, 18, 5), r(2, 3, 5), p=p, compute_mode=mode)
        case("pdist", r(9, 34), p=p)
    # NaN and infinity, whose differences have gradients as well
    odd = torch.tensor([[0.0, 1], [INF, 2], [NAN, 4]])
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF):
        case("pdist", odd, p=p, grad=p != INF)
    case("cdist", torch.zeros(2, 0), torch.zeros(3, 0), p=INF, grad=False)


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
