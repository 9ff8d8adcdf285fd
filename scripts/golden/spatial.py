"""Pooling, convolutions of 1 and 3 dims, padding, unfold, interpolate."""
from cases import *  # noqa: F403


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
