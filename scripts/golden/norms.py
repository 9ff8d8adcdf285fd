"""Normalisation layers and dropout."""
from cases import *  # noqa: F403


@family("sum")
def norm():
    stats = lambda c, d=f32: (frozen(r(c, dtype=d)), frozen(r(c, dtype=d, lo=0.5)))
    for shape in ((4, 3), (2, 3, 4), (2, 3, 2, 4)):
        for training in (True, False):
            for affine in (True, False):
                aff = {"weight": r(3), "bias": r(3)} if affine else {}
                case("batch_norm", r(*shape), *stats(3), fn=F.batch_norm, after=(1, 2),
                     training=training, **aff)
    for d in (f64, f16, bf16):
        sd = d if d == f64 else f32
        case("batch_norm", r(2, 3, 2, 2, dtype=d), *stats(3, sd), fn=F.batch_norm, after=(1, 2),
             weight=r(3, dtype=sd), bias=r(3, dtype=sd), training=True)
    case("batch_norm", r(4, 2), *stats(2), fn=F.batch_norm, after=(1, 2), training=True,
         momentum=0.3, eps=0.01)
    case("batch_norm", r(1, 2, 3, 3), *stats(2), fn=F.batch_norm, after=(1, 2), training=True,
         momentum=1.0)
    for d in FLOATS:
        case("layer_norm", r(3, 8, dtype=d), [8], fn=F.layer_norm, weight=r(8, dtype=d),
             bias=r(8, dtype=d))
        case("group_norm", r(2, 4, 3, dtype=d), 2, fn=F.group_norm, weight=r(4, dtype=d),
             bias=r(4, dtype=d))
    case("layer_norm", r(3, 8), [8], fn=F.layer_norm)
    case("layer_norm", r(2, 3, 4), [3, 4], fn=F.layer_norm, weight=r(3, 4), bias=r(3, 4))
    case("layer_norm", r(2, 3, 4), [4], fn=F.layer_norm, weight=r(4), eps=0.1)
    case("layer_norm", r(5), [5], fn=F.layer_norm)
    case("layer_norm", r(0, 4), [4], fn=F.layer_norm)
    case("group_norm", r(2, 4, 2, 2), 4, fn=F.group_norm)
    case("group_norm", r(2, 4, 2, 2), 1, fn=F.group_norm, weight=r(4), bias=r(4), eps=0.01)
    case("group_norm", r(3, 6), 2, fn=F.group_norm, weight=r(6), bias=r(6), eps=0.1)
    drop = F.dropout
    case("dropout", r(2, 3), fn=drop, p=0.0)
    case("dropout", r(2, 3), fn=drop, p=1.0)
    case("dropout", r(2, 3), fn=drop, p=0.5, training=False)
    case("dropout", r(0), fn=drop, p=0.5)
    case("dropout", r(), fn=drop, p=0.0)
    both = lambda x, d, n, **k: (x + d, F.layer_norm(x + d, n, **k))
    for d in FLOATS:
        case("add_layer_norm", r(3, 8, dtype=d), r(3, 8, dtype=d), [8], fn=both,
             weight=r(8, dtype=d), bias=r(8, dtype=d))
    case("add_layer_norm", r(2, 3, 4), r(3, 4), [3, 4], fn=both, eps=0.1)


@family("sum")
def layers():
    stats = lambda c: (frozen(r(c)), frozen(r(c, lo=0.5)))
    for d in FLOATS:
        case("rms_norm", r(3, 8, dtype=d), [8], fn=F.rms_norm, weight=r(8, dtype=d))
        case("local_response_norm", r(2, 4, 3, dtype=d), 2, fn=F.local_response_norm, alpha=0.5)
        case("bilinear", r(3, 4, dtype=d), r(3, 2, dtype=d), r(5, 4, 2, dtype=d),
             r(5, dtype=d), fn=F.bilinear)
    for d in (f64, f32, f16):
        sd = d if d == f64 else f32
        case("instance_norm", r(2, 3, 4, dtype=d), fn=F.instance_norm, weight=r(3, dtype=sd),
             bias=r(3, dtype=sd))
    case("rms_norm", r(2, 3, 4), [3, 4], fn=F.rms_norm, weight=r(3, 4), eps=0.25)
    case("rms_norm", torch.full((1, 4), 2.0**-10, dtype=f16), [4], fn=F.rms_norm)
    case("rms_norm", torch.full((1, 4), 2.0**-26, dtype=f64), [4], fn=F.rms_norm)
    for shape in ((2, 3, 4), (2, 3, 2, 2), (1, 3, 2, 1, 3)):
        case("instance_norm", r(*shape), *stats(3), fn=F.instance_norm, after=(1, 2), momentum=0.25)
        case("instance_norm", r(*shape), *stats(3), fn=F.instance_norm, after=(1, 2),
             weight=r(3), bias=r(3), use_input_stats=False)
    case("instance_norm", r(2, 3, 4), fn=F.instance_norm, eps=0.5)
    case("local_response_norm", r(2, 5, 2, 3), 3, fn=F.local_response_norm, beta=0.5, k=2.0)
    case("local_response_norm", r(1, 3, 2, 2, 2), 4, fn=F.local_response_norm)
    case("bilinear", r(2, 3, 4), r(2, 3, 2), r(3, 4, 2), fn=F.bilinear)
    case("bilinear", r(4), r(2), r(3, 4, 2), fn=F.bilinear)
    case("channel_shuffle", r(2, 6, 2, 2), 3, fn=lambda x, g: torch.channel_shuffle(x, g))
    case("channel_shuffle", r(1, 4, 3), 2, fn=lambda x, g: torch.channel_shuffle(x, g))
    shapes = {"dropout1d": (2, 3, 4), "dropout2d": (2, 3, 2, 2), "dropout3d": (1, 2, 2, 2, 2),
              "alpha_dropout": (2, 3), "feature_alpha_dropout": (2, 3, 2)}
    for op, shape in shapes.items():
        for p, training in ((0.5, False), (0.0, True), (1.0, True)):
            case(op, r(*shape), fn=getattr(F, op), p=p, training=training)
