-- Fourier transforms, on the host. Complex numbers lie in a last dim of 2, which dims do not
-- count.
local op = ...

op.composed "complex" {
  tensors = "real, imag",
  doc = "complex numbers: pairs in a new last dim of 2",
}

op.kernel "fft_slices" {
  tensors = "x",
  options = {
    "dim:dim", "inverse:bool", "scale:num", "form:enum(pairs|halves|reals)=pairs", "n:int=-1",
    "twice:bool=0",
  },
  flags = "hidden any_device",
  doc = "scale times the transforms of complex signals along dim (pairs), of n real ones, as the "
    .. "first n / 2 + 1 points (halves), or from these n real ones (reals); twice: points that "
    .. "stand for their conjugates, too, count twice",
}

op.composed "fft_fft" {
  tensors = "x",
  options = {"n:int=-1", "dim:dim=-1", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftAttr",
  doc = "transform of complex signals along dim, cut or filled with zeros to n points: sums of x_j "
    .. "e^(-2 pi i j k / n); complex numbers are pairs in a last dim of 2, which dims do not "
    .. "count; norm: what divides by n (backward: the inverse; ortho: both, by its root); Cooley "
    .. "& Tukey 1965",
}

op.composed "fft_ifft" {
  tensors = "x",
  options = {"n:int=-1", "dim:dim=-1", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftAttr",
  doc = "inverse of fft",
}

op.composed "fft_rfft" {
  tensors = "x",
  options = {"n:int=-1", "dim:dim=-1", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftAttr",
  doc = "the first half, n / 2 + 1 points, of the transform of real signals; complex",
}

op.composed "fft_irfft" {
  tensors = "x",
  options = {"n:int=-1", "dim:dim=-1", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftAttr",
  doc = "inverse of rfft: n real points, 2 (m - 1) from m where none are given",
}

op.composed "fft_fft2" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftsAttr",
  doc = "fft along several dims, the last two dims where none are given",
}

op.composed "fft_ifft2" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftsAttr",
  doc = "inverse of fft2",
}

op.composed "fft_rfft2" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftsAttr",
  doc = "rfft along the last of several dims, fft along the others; the last two dims where none "
    .. "are given",
}

op.composed "fft_irfft2" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftsAttr",
  doc = "inverse of rfft2",
}

op.composed "fft_fftn" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftsAttr",
  doc = "fft along several dims, all dims, or the last ones that s has sizes for, where none are "
    .. "given",
}

op.composed "fft_ifftn" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftsAttr",
  doc = "inverse of fftn",
}

op.composed "fft_rfftn" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftsAttr",
  doc = "rfft along the last of several dims, fft along the others; all dims, or the last ones "
    .. "that s has sizes for, where none are given",
}

op.composed "fft_irfftn" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  autocast = {cpu = "fp32"},
  attr = "dm_FftsAttr",
  doc = "inverse of rfftn",
}

op.composed "fft_hfft" {
  tensors = "x",
  options = {"n:int=-1", "dim:dim=-1", "norm:enum(backward|ortho|forward)=backward"},
  attr = "dm_FftAttr",
  doc = "transform, real, of signals whose second half would be the conjugates of the first: n "
    .. "points, 2 (m - 1) from m where none are given",
}

op.composed "fft_ihfft" {
  tensors = "x",
  options = {"n:int=-1", "dim:dim=-1", "norm:enum(backward|ortho|forward)=backward"},
  attr = "dm_FftAttr",
  doc = "inverse of hfft: the first half, complex, of real signals' inverse transform",
}

op.composed "fft_hfft2" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  attr = "dm_FftsAttr",
  doc = "hfft along the last of several dims, fft along the others; the last two dims where none "
    .. "are given",
}

op.composed "fft_ihfft2" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  attr = "dm_FftsAttr",
  doc = "inverse of hfft2",
}

op.composed "fft_hfftn" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  attr = "dm_FftsAttr",
  doc = "hfft along the last of several dims, fft along the others; all dims, or the last ones "
    .. "that s has sizes for, where none are given",
}

op.composed "fft_ihfftn" {
  tensors = "x",
  options = {"s:sizes=none", "dim:dims=none", "norm:enum(backward|ortho|forward)=backward"},
  attr = "dm_FftsAttr",
  doc = "inverse of hfftn",
}

op.composed "stft" {
  tensors = "x, window?",
  options = {
    "n_fft:int", "hop_length:int=-1", "win_length:int=-1", "center:bool=1",
    "pad_mode:enum(constant|reflect|replicate|circular)=reflect", "normalized:bool=0",
    "onesided:bool=1",
  },
  autocast = {cpu = "fp32"},
  doc = "transforms of stretches of n_fft points, each hop_length (n_fft / 4) after the one "
    .. "before, times a window of win_length (n_fft): (batch, points) gives (batch, n_fft / 2 + "
    .. "1, stretches, 2), all n_fft rows where onesided is false; center: stretches have their "
    .. "middle on points, x is padded",
}

op.composed "istft" {
  tensors = "x, window?",
  options = {
    "n_fft:int", "hop_length:int=-1", "win_length:int=-1", "center:bool=1", "normalized:bool=0",
    "onesided:bool=1", "length:int=-1",
  },
  doc = "inverse of stft: stretches added up and divided by the sum of their squared windows; "
    .. "length: so many points",
}

op.composed "hann_window" {
  options = {"window_length:int", "periodic:bool=1", "dtype:dtype=none", "device:device=none"},
  flags = "create",
  attr = "dm_WindowAttr",
  doc = "a raised cosine, 0 at its ends; periodic: the end is left out, as the next period's "
    .. "beginning",
}

op.composed "hamming_window" {
  options = {
    "window_length:int", "periodic:bool=1", "alpha:num=0.54", "beta:num=0.46", "dtype:dtype=none",
    "device:device=none",
  },
  flags = "create",
  doc = "alpha - beta cos(t) over a turn",
}

op.composed "blackman_window" {
  options = {"window_length:int", "periodic:bool=1", "dtype:dtype=none", "device:device=none"},
  flags = "create",
  attr = "dm_WindowAttr",
  doc = "0.42 - 0.5 cos(t) + 0.08 cos(2 t) over a turn",
}

op.composed "bartlett_window" {
  options = {"window_length:int", "periodic:bool=1", "dtype:dtype=none", "device:device=none"},
  flags = "create",
  attr = "dm_WindowAttr",
  doc = "a triangle, 0 at its ends",
}

op.composed "kaiser_window" {
  options = {
    "window_length:int", "periodic:bool=1", "beta:num=12", "dtype:dtype=none", "device:device=none",
  },
  flags = "create",
  doc = "i0(beta sqrt(1 - t^2)) / i0(beta) for t from -1 to 1",
}
