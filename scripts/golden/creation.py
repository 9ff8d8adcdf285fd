"""Tensors out of sizes, and views."""
from cases import *  # noqa: F403


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
    case("as_strided", r(8), [3, 4], [2, 1], fn=at_offset, flags=["dense"])  # elements that overlap
    case("as_strided", r(2, 4), [4], [0], storage_offset=5, fn=at_offset, flags=["dense"])
    case("as_strided", r(8), [], [], storage_offset=7, fn=at_offset, flags=[*v, "dense"])
    case("as_strided", r(8), [0, 3], [3, 1], flags=["dense"])
