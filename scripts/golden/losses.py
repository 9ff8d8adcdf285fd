"""Losses."""
from cases import *  # noqa: F403


@family("sum")
def loss():
    label = lambda *s, n=5: torch.randint(0, n, s)
    for op in ("cross_entropy", "nll_loss"):
        fn = getattr(F, op)
        for d in FLOATS:
            case(op, r(4, 5, dtype=d), P(label(4)), fn=fn)
        ignoring = torch.tensor([2, 0, 2, 4])
        for red in ("none", "mean", "sum"):
            case(op, r(4, 5), P(label(4)), fn=fn, reduction=red)
            case(op, r(4, 5), P(label(4)), fn=fn, weight=frozen(r(5, lo=0.25)), reduction=red)
            case(op, r(4, 5), P(ignoring), fn=fn, ignore_index=P(2), reduction=red)
            case(op, r(4, 5), P(ignoring), fn=fn, ignore_index=P(2), weight=frozen(r(5, lo=0.25)),
                 reduction=red)
            case(op, r(2, 3, 2, 2), P(label(2, 2, 2, n=3)), fn=fn, reduction=red)
        case(op, r(4, 5), P(torch.tensor([1, -100, 3, -100])), fn=fn, ignore_index=-100)
        case(op, r(5), P(label()), fn=fn)
        case(op, r(2, 3, 4), P(label(2, 4, n=3)), fn=fn, weight=frozen(r(3, lo=0.25)))
        case(op, r(0, 5), P(label(0)), fn=fn, reduction="sum")
        case(op, r(0, 5), P(label(0)), fn=fn, reduction="none")
        case(op, r(2, 5), P(torch.tensor([2, 2])), fn=fn, ignore_index=P(2))  # nothing left: nan
    for red in ("none", "mean", "sum"):
        case("cross_entropy", r(4, 5), P(label(4)), fn=F.cross_entropy, label_smoothing=0.1,
             reduction=red)
        case("cross_entropy", r(4, 5), P(torch.tensor([2, 0, 2, 4])), fn=F.cross_entropy,
             label_smoothing=0.2, ignore_index=P(2), weight=frozen(r(5, lo=0.25)), reduction=red)
        case("cross_entropy", r(2, 3, 2, 2), P(label(2, 2, 2, n=3)), fn=F.cross_entropy,
             label_smoothing=0.1, weight=frozen(r(3, lo=0.25)), reduction=red)
    case("cross_entropy", torch.tensor([[1000.0, 0.0], [0.0, -1000.0]]), P(torch.tensor([1, 0])),
         fn=F.cross_entropy)
    for op, variants in [
        ("mse_loss", [{}]),
        ("l1_loss", [{}]),
        ("smooth_l1_loss", [{}, {"beta": 0.5}, {"beta": 2.0}]),
    ]:
        fn = getattr(F, op)
        for opts in variants:
            for red in ("none", "mean", "sum"):
                case(op, r(3, 4), r(3, 4), fn=fn, reduction=red, **opts)
            for d in FLOATS:
                case(op, r(6, dtype=d), r(6, dtype=d), fn=fn, **opts)
        case(op, r(), r(), fn=fn)
        case(op, r(0, 2), r(0, 2), fn=fn, reduction="sum")
        case(op, r(0, 2), r(0, 2), fn=fn)
        case(op, torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 4.0]), fn=fn)  # kinks
    case("smooth_l1_loss", r(5), r(5), fn=F.smooth_l1_loss, beta=0.0)
    for reduction in ("none", "mean", "sum"):
        case("huber_loss", r(6), r(6), fn=F.huber_loss, delta=1.5, reduction=reduction)
        case("binary_cross_entropy", r(6, lo=0.05, hi=0.95), frozen(r(6, lo=0.0, hi=1.0)),
             fn=F.binary_cross_entropy, reduction=reduction)
    bce, op = F.binary_cross_entropy_with_logits, "binary_cross_entropy_with_logits"
    y = lambda *s, dtype=f32: frozen(r(*s, dtype=dtype, lo=0, hi=1))
    for red in ("none", "mean", "sum"):
        case(op, r(3, 4), y(3, 4), fn=bce, reduction=red)
        case(op, r(3, 4), y(3, 4), fn=bce, weight=frozen(r(4, lo=0.25)), reduction=red)
        case(op, r(3, 4), y(3, 4), fn=bce, pos_weight=frozen(r(4, lo=0.25)), reduction=red)
        case(op, r(3, 4), y(3, 4), fn=bce, weight=frozen(r(3, 4, lo=0.25)),
             pos_weight=frozen(r(4, lo=0.25)), reduction=red)
    for d in FLOATS:
        case(op, r(6, dtype=d), y(6, dtype=d), fn=bce)
    case(op, r(), y(), fn=bce)
    case(op, r(0), y(0), fn=bce, reduction="sum")
    case(op, torch.tensor([1000.0, -1000.0, 50.0]), frozen(torch.tensor([0.0, 1.0, 1.0])), fn=bce)
    more_losses()
    connectionist()


def more_losses():
    shares = lambda *s, dtype=f32: frozen(r(*s, dtype=dtype).float().softmax(1).to(dtype))
    signs = lambda *s: frozen(2.0 * torch.randint(0, 2, s) - 1)
    counts = lambda *s: frozen(torch.randint(0, 5, s).float())
    many = torch.tensor([[2, 0, -1, 1], [3, -1, 0, 0], [-1, 0, 1, 2]])
    for op, make, variants in [
            ("cross_entropy", lambda: [r(4, 5), shares(4, 5)],
             [{}, {"label_smoothing": 0.25}, {"weight": frozen(r(5, lo=0.25))}]),
            ("kl_div", lambda: [r(3, 4), frozen(r(3, 4, lo=0, hi=1))], [{}, {"log_target": True}]),
            ("poisson_nll_loss", lambda: [r(3, 4, hi=2), counts(3, 4)], [{}, {"full": True}]),
            ("poisson_nll_loss", lambda: [r(3, 4, lo=0.25), counts(3, 4)],
             [{"log_input": False, "eps": 0.5}]),
            ("gaussian_nll_loss", lambda: [r(3, 4), r(3, 4), r(3, 4, lo=0.25)],
             [{}, {"full": True, "eps": 0.5}]),
            ("soft_margin_loss", lambda: [r(3, 4), signs(3, 4)], [{}]),
            ("multilabel_soft_margin_loss", lambda: [r(3, 4), frozen((signs(3, 4) + 1) / 2)],
             [{}, {"weight": frozen(r(4, lo=0.25))}]),
            ("multi_margin_loss", lambda: [r(4, 5), P(torch.randint(0, 5, (4,)))],
             [{}, {"p": 2, "margin": 0.5}, {"weight": frozen(r(5, lo=0.25))}]),
            ("multilabel_margin_loss", lambda: [r(3, 4), P(many)], [{}]),
            ("hinge_embedding_loss", lambda: [r(3, 4), signs(3, 4)], [{}, {"margin": 2.0}]),
            ("margin_ranking_loss", lambda: [r(6), r(6), signs(6)], [{}, {"margin": 0.5}]),
            ("cosine_embedding_loss", lambda: [r(4, 3), r(4, 3), signs(4)], [{}, {"margin": 0.5}]),
            ("triplet_margin_loss", lambda: [r(4, 3), r(4, 3), r(4, 3)],
             [{}, {"margin": 4.0, "p": 1, "swap": True}])]:
        for opts in variants:
            for red in ("none", "mean", "sum") if not opts else ("mean",):
                case(op, *make(), fn=getattr(F, op), reduction=red, **opts)
    case("cross_entropy", r(2, 3, 2), shares(2, 3, 2), fn=F.cross_entropy)
    case("cross_entropy", r(3), frozen(torch.tensor([0.25, 0.5, 0.25])), fn=F.cross_entropy)
    case("kl_div", r(3, 4), frozen(r(3, 4, lo=0, hi=1)), fn=F.kl_div, reduction="batchmean")
    case("kl_div", r(4), frozen(torch.tensor([0.0, 1.0, -1.0, 0.5])), fn=F.kl_div)
    case("gaussian_nll_loss", r(3, 4), r(3, 4), r(3, 1, lo=0.25), fn=F.gaussian_nll_loss)
    case("gaussian_nll_loss", r(3, 4), r(3, 4), r(3, lo=0.25), fn=F.gaussian_nll_loss)
    case("gaussian_nll_loss", r(3), r(3), 0.5, fn=F.gaussian_nll_loss)
    case("multi_margin_loss", r(5), P(torch.tensor(2)), fn=F.multi_margin_loss)
    case("multilabel_margin_loss", r(4), P(many[0]), fn=F.multilabel_margin_loss)
    case("soft_margin_loss", r(3, dtype=f64), signs(3), fn=F.soft_margin_loss)


def connectionist():
    """PyTorch's gradient is the one in what log_softmax was made of; so is x here."""
    two, three = torch.tensor([4, 2]), torch.tensor([3, 1])
    padded, row = torch.tensor([[1, 2, 2], [3, 1, 1]]), torch.tensor([1, 2, 2, 3])
    def loss(lp, *args, **opts):
        return F.ctc_loss(lp.log_softmax(-1), *args, **opts)
    for d in (f32, f64):
        for red in ("none", "mean", "sum"):
            case("ctc_of_logits", r(5, 2, 4, dtype=d), P(padded), torch.tensor([5, 3]), three,
                 fn=loss, reduction=red)
        case("ctc_of_logits", r(5, 2, 4, dtype=d), P(row), torch.tensor([5, 3]), three, fn=loss)
    case("ctc_of_logits", r(5, 2, 4), P(padded - 1), torch.tensor([5, 4]), torch.tensor([2, 0]),
         fn=loss, blank=P(3))
    case("ctc_of_logits", r(5, 2, 4), P(padded), two, three, fn=loss, reduction="none",
         zero_infinity=True)  # four times are one too few for 1 2 2
    case("ctc_of_logits", r(5, 2, 4), P(padded), torch.tensor([3, 3]), three, fn=loss,
         reduction="none", grad=False)
    case("ctc_of_logits", r(5, 4), P(torch.tensor([1, 2])), torch.tensor(5), torch.tensor(2),
         fn=loss)
