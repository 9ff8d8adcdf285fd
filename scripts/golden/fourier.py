"""torch.fft, stft and window functions."""
from cases import *  # noqa: F403


def pairs(*shape, dtype=f64):
    return r(*shape, 2, dtype=dtype, lo=-2, hi=2)


def ft(op, x, **opts):
    """Complex operands and results as pairs in a last dim of 2."""
    fn, real = getattr(torch.fft, op), op.startswith(("rfft", "ihfft"))

    def run(t, **k):
        y = fn(t if real else torch.view_as_complex(t), **k)
        return torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
    case("fft_" + op, x, fn=run, **opts)


def stretches():
    # the window is named in Lua's table too: positional ones are told apart by their types
    real = lambda t, *a, **k: torch.view_as_real(torch.stft(t, *a, return_complex=True, **k))
    back = lambda t, *a, **k: torch.istft(torch.view_as_complex(t), *a, **k)
    for d in (f32, f64):
        case("stft", r(2, 20, dtype=d), n_fft=8, window=r(8, dtype=d, lo=0.25), fn=real)
        case("istft", r(2, 5, 7, 2, dtype=d), n_fft=8, window=r(8, dtype=d, lo=0.25), fn=back)
    for mode in ("constant", "reflect", "replicate", "circular"):
        case("stft", r(11), n_fft=6, hop_length=3, pad_mode=mode, fn=real)
    case("stft", r(2, 13), n_fft=5, hop_length=2, center=False, fn=real)
    case("stft", r(13), n_fft=6, hop_length=4, win_length=3, normalized=True, fn=real)
    case("stft", r(13), n_fft=6, win_length=4, window=r(4), onesided=False, fn=real)
    case("istft", r(6, 5, 2), n_fft=6, hop_length=3, win_length=5, onesided=False, fn=back)
    case("istft", r(4, 5, 2), n_fft=6, hop_length=2, center=False, normalized=True, fn=back)
    for length in (7, 14, 17):
        case("istft", r(3, 3, 4, 2), n_fft=4, hop_length=3, length=length, fn=back)
    for op in ("hann", "hamming", "blackman", "bartlett", "kaiser"):
        for n in (0, 1, 2, 7):
            for periodic in (True, False):
                case(op + "_window", n, periodic, dtype=f64, grad=False)
        case(op + "_window", 6, grad=False)
        case(op + "_window", 6, dtype=bf16, grad=False)
    case("hamming_window", 6, alpha=0.5, beta=0.25, fn=lambda n, alpha, beta:
         torch.hamming_window(n, True, alpha, beta), grad=False)
    case("kaiser_window", 6, beta=5.0, fn=lambda n, beta: torch.kaiser_window(n, True, beta),
         grad=False)


@family("sum")
def fft():
    for d in (f32, f64):
        for n in (1, 2, 3, 4, 8, 12, 17, 31, 37, 60):
            ft("fft", pairs(n, dtype=d))
            ft("rfft", r(n, dtype=d))
    for n in (2, 3, 5, 16, 41, 74):
        ft("ifft", pairs(2, n))
        ft("irfft", pairs(n))
        ft("irfft", pairs(n), n=2 * n - 1)
    for norm in ("backward", "ortho", "forward"):
        for op, x in (("fft", pairs(3, 4)), ("ifft", pairs(3, 4)), ("irfft", pairs(3, 4)),
                      ("rfft", r(3, 4, dtype=f64))):
            ft(op, x, norm=norm)
            ft(op, x, n=3, norm=norm)
            ft(op, x, n=7, dim=P(0), norm=norm)
    for two in ("2", "n"):
        for op, x in (("fft", pairs(2, 3, 4)), ("ifft", pairs(2, 3, 4)), ("irfft", pairs(2, 3, 4)),
                      ("rfft", r(2, 3, 4, dtype=f64))):
            ft(op + two, x)
            ft(op + two, x, s=[2, 5], dim=P((2, 0)), norm="ortho")
            ft(op + two, x, dim=P((0, 1)), norm="forward")
    ft("fftn", pairs(2, 3, 4), s=[2, 2])
    ft("irfft", pairs(1), n=1)
    ft("rfft", ints(5), grad=False)
    ft("fft", pairs(0, 3), grad=False)
    both = lambda a, b: torch.view_as_real(torch.complex(*torch.broadcast_tensors(a, b)))
    case("complex", r(2, 3), r(3), fn=both)
    for norm in ("backward", "ortho", "forward"):
        ft("hfft", pairs(3, 4), norm=norm)
        ft("ihfft", r(3, 4, dtype=f64), norm=norm)
    ft("hfft", pairs(3, 4), n=5, dim=P(0))
    ft("ihfft", r(3, 4), n=7, dim=P(0))
    for two in ("2", "n"):
        for op, x in (("hfft", pairs(2, 3, 4)), ("ihfft", r(2, 3, 4, dtype=f64))):
            ft(op + two, x)
            ft(op + two, x, s=[2, 5], dim=P((2, 0)), norm="ortho")
            ft(op + two, x, dim=P((0, 1)), norm="forward")
    stretches()
