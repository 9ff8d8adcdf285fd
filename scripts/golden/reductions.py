"""Reductions, sorting, indexing, softmax; what follows from the order of elements."""
from cases import *  # noqa: F403


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
def keys():
    """Keys that hold index tensors: x[key] and x[key] = value, with gradients."""
    s, new, rest = slice, None, ...
    i = lambda *v: torch.tensor(v, dtype=i64)
    two, three, four = i(1, 0), i(2, 0), i(3, -3)
    grid, column = i(2, 0, 1, 3).reshape(2, 2), i(0, 2).reshape(2, 1)
    flag = lambda *v: torch.tensor(v, dtype=torch.bool)
    m2, m3, m4 = flag(0, 1), flag(1, 0, 1), flag(1, 1, 0, 1)
    m23, m34 = flag(1, 0, 1, 0, 0, 1).reshape(2, 3), torch.arange(12).reshape(3, 4) % 5 < 2
    entries = [
        (two, three), (two, three, four), (s(None), three), (s(None), three, four),
        (s(None), s(None), four), (two, s(None), four), (two, s(0, 2), four), (two, 1), (1, three),
        (s(None), three, 2), (s(None), 1, four), (1, s(None), four), (two, 1, four),
        (two, s(None), 2), (s(None), column, four), (column[:1], three), (grid[:, :1] % 2, grid % 3),
        (two, rest), (rest, four), (rest, three, four), (two, rest, four), (rest, 1), (0, rest, 2),
        (rest,), (new,), (s(None), new), (rest, new), (new, rest, new), (new, 1, new, s(1, 3)),
        (two, new), (new, two), (two, new, three), (two, three, new), (s(None), new, three, four),
        (new, two, s(None), four, new), (m2,), (s(None), m3), (rest, m4), (1, m3), (s(None), m34),
        (m23,), (m23, 1), (m23, s(1, 3)), (1, m34), (m23, four[:1]), (two, m3), (m2, s(None), m4),
        (m2, new, three), (s(None), m3, i(0)), (torch.tensor(1),), (s(None), torch.tensor(-1)),
        (torch.tensor(1), s(None), four), (two, torch.tensor(2), four), (two.reshape(1, 2, 1),
        s(None), four), (i(), i()), (i(), 1), (s(None), i()), (m2 & ~m2,), (s(None), m34 & ~m34),
        (m2 & ~m2, i()), (i().reshape(0, 2), three), (torch.tensor(True),), (torch.tensor(False),),
        (torch.tensor(True), 1), (s(0, 2), three.to(i32)), (s(None), s(0, 3, 2), four.to(i32)),
    ]
    for d in [f32, bf16, i64]:
        for key in entries if d == f32 else entries[1:8:2]:
            def put(x, k, v):
                y = x.clone()
                y[k] = v
                return y
            x, text = any_(2, 3, 4, dtype=d), f"{name_of(d)} x[{key_name(key)}]"
            y = x[key]
            case("[]", x, P(key), fn=lambda x, k: x[k], label=text)
            for v in [any_(*y.shape, dtype=d), any_(*y.shape[-1:], dtype=d), any_(1, 1, dtype=d), 2]:
                case("[]=", x, P(key), v, fn=put, label=f"{text} = value")
    x = r(0, 3)
    case("[]", x, P((s(None), flag(1, 0, 1))), fn=lambda x, k: x[k], label="x{0,3}[:, mask]")
    for d in [f32, f16]:  # repeated positions: the gradient adds
        case("[]", r(3, 4, dtype=d), P((i(1, 1, 1, 0), i(2, 2, 2, -1))), fn=lambda x, k: x[k],
             label=f"{name_of(d)} x[i, j] with repeats")


def key_name(key):
    """A key as Python writes it, tensors by dtype and shape."""
    words = {slice: lambda v: ":".join("" if n is None else str(n) for n in (v.start, v.stop)),
             torch.Tensor: lambda v: f"{name_of(v.dtype)}{list(v.shape)}",
             type(...): lambda v: "...", type(None): lambda v: "new", int: str}
    return ", ".join(words[type(v)](v) for v in key)


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
