"""Ops that are a step or two of other ops: exp2, addmv, quantiles, normalize."""
from cases import *  # noqa: F403


@family("sum")
def derived():
    """Ops that are a step or two of other ops."""
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
