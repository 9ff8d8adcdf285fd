"""Elements read, written and reduced at positions that tensors name."""
from cases import *  # noqa: F403


@family("sum")
def positions():
    """Elements read, written and reduced at positions that tensors name."""
    samplers()
    scatter_reductions()
    lists()
    windows()
    bags()
    cubes()


def cubes():
    for padding in ("zeros", "border", "reflection"):
        case("grid_sample", r(1, 2, 3, 4, 2, dtype=f64),
             r(1, 2, 1, 3, 3, dtype=f64, lo=-1.3, hi=1.3), fn=F.grid_sample, mode="bicubic",
             padding_mode=padding, align_corners=padding == "border")


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


def scatter_reductions():
    at = torch.tensor([[0, 2, 0], [3, 3, 3]])
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
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
