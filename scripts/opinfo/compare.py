"""Whether two results are the same, as far as their dtype tells."""
import torch

RTOL = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def flat(v):
    """All leaves of a result in order: tensors, numbers, booleans, strings."""
    if isinstance(v, (list, tuple)):
        return [x for part in v for x in flat(part)]
    if isinstance(v, torch.Tensor) and v.is_complex():
        return [torch.view_as_real(v.resolve_conj())]
    return [v]


def errors(x, exact):
    """The largest distance of x from exact, over elements that are finite in both."""
    d = (x.double() - exact.double()).abs()
    d = d[torch.isfinite(d)]
    return d.max().item() if d.numel() else 0.0


def close(x, want, loose):
    """Whether the floats agree: NaN and infinities at the same places, the others within a
    part of their size and of the largest one."""
    x, want = x.double(), want.double()
    finite = torch.isfinite(want)
    if not torch.equal(torch.isfinite(x), finite):
        return False
    if not torch.equal(x[~finite].nan_to_num(nan=7.0), want[~finite].nan_to_num(nan=7.0)):
        return False
    x, want = x[finite], want[finite]
    if not want.numel():
        return True
    size = max(1.0, want.abs().max().item())
    return bool(((x - want).abs() <= loose * (want.abs() + size)).all())


def differs(ours, want, exact, shift=False, loose=1, values=True):
    """None, or in a few words how our result differs from PyTorch's. exact(): the result in
    float64, asked for where they differ: ours may be as far from it as 4 times PyTorch's, and
    need not share PyTorch's own distance from it.
    shift: it holds positions. values: false where only shape and dtype count."""
    if isinstance(want, torch.Tensor) != isinstance(ours, torch.Tensor):
        return f"gives {kind(ours)}, wanted {kind(want)}"
    if not isinstance(want, torch.Tensor):
        if isinstance(want, float) and isinstance(ours, (int, float)):
            same = not values or want == ours or want != want and ours != ours \
                or abs(want - ours) <= 1e-5 * loose * max(1, abs(want))
        else:
            same = str(want) == str(ours) or want == ours or not values
        return None if same else "another value"
    if ours.shape != want.shape:
        return f"shape {list(ours.shape)}, wanted {list(want.shape)}"
    if ours.dtype != want.dtype:
        return f"dtype {kind(ours)}, wanted {kind(want)}"
    if not values:
        return None
    ours, want = ours.detach(), want.detach()
    if shift:
        want = torch.where(want >= 0, want + 1, want)
    if not want.is_floating_point():
        return None if torch.equal(ours, want) else "other values"
    rtol = loose * RTOL[want.dtype]
    if close(ours, want, rtol):
        return None
    true = exact()
    if true is not None and true.shape == want.shape and close(ours, true.to(want.dtype), rtol):
        return None  # where PyTorch's intermediate results overflow in 16 bits, say
    if true is not None and torch.equal(torch.isfinite(ours), torch.isfinite(want)) \
            and true.shape == want.shape:
        size = max(1.0, want[torch.isfinite(want)].abs().max().item())
        if errors(ours, true) <= 4 * errors(want, true) + rtol * size:
            return None
    if torch.isnan(ours).any() and not torch.isnan(want).any():
        return "NaN where there is none"
    if torch.isnan(want).any() and not torch.isnan(ours).any():
        return "no NaN where there is one"
    return "other values"


def kind(v):
    return str(v.dtype).replace("torch.", "") if isinstance(v, torch.Tensor) else type(v).__name__
