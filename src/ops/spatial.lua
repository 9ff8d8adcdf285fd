-- Convolution, pooling and what else reads windows of planes.
local op = ...

op.kernel "conv2d" {
  tensors = "x, weight, bias?",
  options = {"stride:pair=1", "padding:pair=0", "dilation:pair=1", "groups:int=1"},
  saves = "I0 I1",
  autocast = "lower_precision_fp",
  attr = "dm_ConvAttr",
  doc = "2-d convolution: (N,C,H,W) and (O,C/groups,R,S) give (N,O,P,Q); padding is a size, a list "
    .. "of two, 'same' or 'valid'",
}

op.kernel "conv2d_dx" {
  tensors = "gy, weight, bias?",
  options = {"stride:pair", "padding:pair", "dilation:pair", "groups:int", "size:pair"},
  saves = "I0 I1",
  flags = "hidden",
  attr = "dm_ConvSizedAttr",
  nests = {conv = "dm_ConvAttr"},
  doc = "conv2d's gradient for x of that size, and a bias a channel",
}

op.kernel "conv2d_dw" {
  tensors = "gy, x",
  options = {"stride:pair", "padding:pair", "dilation:pair", "groups:int", "size:pair"},
  saves = "I0 I1",
  flags = "hidden",
  attr = "dm_ConvSizedAttr",
  nests = {conv = "dm_ConvAttr"},
  doc = "conv2d's gradient for a weight of that size",
}

op.composed "conv1d" {
  tensors = "x, weight, bias?",
  options = {"stride:one=1", "padding:one=0", "dilation:one=1", "groups:int=1"},
  autocast = "lower_precision_fp",
  doc = "1-d convolution: (N,C,L) and (O,C/groups,K) give (N,O,Q); padding is a size, 'same' or "
    .. "'valid'",
}

op.composed "conv3d" {
  tensors = "x, weight, bias?",
  options = {"stride:triple=1", "padding:triple=0", "dilation:triple=1", "groups:int=1"},
  autocast = "lower_precision_fp",
  doc = "3-d convolution: (N,C,D,H,W) and (O,C/groups,T,R,S) give (N,O,E,P,Q); padding is a size, "
    .. "a list of three, 'same' or 'valid'",
}

op.composed "conv_transpose1d" {
  tensors = "x, weight, bias?",
  options = {
    "stride:one=1", "padding:one=0", "output_padding:one=0", "groups:int=1", "dilation:one=1",
  },
  autocast = "lower_precision_fp",
  doc = "the gradient of conv1d for its input: (N,C,L) and (C,O/groups,K) give (N,O,Q)",
}

op.composed "conv_transpose2d" {
  tensors = "x, weight, bias?",
  options = {
    "stride:pair=1", "padding:pair=0", "output_padding:pair=0", "groups:int=1", "dilation:pair=1",
  },
  autocast = "lower_precision_fp",
  doc = "the gradient of conv2d for its input: (N,C,H,W) and (C,O/groups,R,S) give (N,O,P,Q)",
}

op.composed "conv_transpose3d" {
  tensors = "x, weight, bias?",
  options = {
    "stride:triple=1", "padding:triple=0", "output_padding:triple=0", "groups:int=1",
    "dilation:triple=1",
  },
  autocast = "lower_precision_fp",
  flags = "widen",
  doc = "the gradient of conv3d for its input: (N,C,D,H,W) and (C,O/groups,T,R,S) give (N,O,E,P,Q)",
}

op.composed "max_pool1d" {
  tensors = "x",
  options = {
    "kernel_size:one", "stride:sizes=none", "padding:one=0", "dilation:one=1", "ceil_mode:bool=0",
    "return_indices:bool=0",
  },
  outputs = 2,
  doc = "largest value of each window of a signal; with return_indices also its position; the "
    .. "stride is kernel_size where none is given",
}

op.composed "max_pool3d" {
  tensors = "x",
  options = {
    "kernel_size:triple", "stride:sizes=none", "padding:triple=0", "dilation:triple=1",
    "ceil_mode:bool=0", "return_indices:bool=0",
  },
  outputs = 2,
  autocast = {cpu = "fp32"},
  doc = "largest value of each window of a volume; with return_indices also its position in the "
    .. "flat volume; the stride is kernel_size where none is given",
}

op.composed "max_unpool3d" {
  tensors = "x, indices",
  options = {
    "kernel_size:triple", "stride:sizes=none", "padding:triple=0", "output_size:sizes=none",
  },
  autocast = {cpu = "fp32"},
  doc = "zeros with each element of x at its position in the flat volume, as max_pool3d names them",
}

op.composed "max_unpool2d" {
  tensors = "x, indices",
  options = {"kernel_size:pair", "stride:sizes=none", "padding:pair=0", "output_size:sizes=none"},
  autocast = {cpu = "fp32"},
  doc = "zeros with each element of x at its position in the flat plane, as max_pool2d names them",
}

op.composed "max_unpool1d" {
  tensors = "x, indices",
  options = {"kernel_size:one", "stride:sizes=none", "padding:one=0", "output_size:sizes=none"},
  doc = "zeros with each element of x at its position in the flat signal, as max_pool1d names them",
}

op.composed "avg_pool1d" {
  tensors = "x",
  options = {
    "kernel_size:one", "stride:sizes=none", "padding:one=0", "ceil_mode:bool=0",
    "count_include_pad:bool=1",
  },
  doc = "mean of each window of a signal; the stride is kernel_size where none is given",
}

op.composed "avg_pool3d" {
  tensors = "x",
  options = {
    "kernel_size:triple", "stride:sizes=none", "padding:triple=0", "ceil_mode:bool=0",
    "count_include_pad:bool=1", "divisor_override:optnum=none",
  },
  autocast = {cpu = "fp32"},
  doc = "mean of each window of a volume; the stride is kernel_size where none is given",
}

op.composed "adaptive_avg_pool1d" {
  tensors = "x",
  options = {"output_size:one"},
  doc = "means of so many windows that cover the signal",
}

op.composed "adaptive_avg_pool3d" {
  tensors = "x",
  options = {"output_size:triple"},
  autocast = {cpu = "fp32"},
  doc = "means of a grid of that many windows that cover the volume",
}

op.composed "adaptive_max_pool1d" {
  tensors = "x",
  options = {"output_size:one", "return_indices:bool=0"},
  outputs = 2,
  doc = "largest values of so many windows that cover the signal; with return_indices also their "
    .. "positions",
}

op.composed "adaptive_max_pool2d" {
  tensors = "x",
  options = {"output_size:pair", "return_indices:bool=0"},
  outputs = 2,
  doc = "largest values of a grid of that many windows that cover the plane; with return_indices "
    .. "also their positions in the flat plane",
}

op.composed "adaptive_max_pool3d" {
  tensors = "x",
  options = {"output_size:triple", "return_indices:bool=0"},
  outputs = 2,
  autocast = {cpu = "fp32"},
  doc = "largest values of a grid of that many windows that cover the volume; with return_indices "
    .. "also their positions in the flat volume",
}

op.composed "pad" {
  tensors = "x",
  options = {"pad:sizes", "mode:enum(constant|reflect|replicate|circular)=constant", "value:num=0"},
  doc = "x with so many elements before and behind the last dim, then the one before it, ...; "
    .. "fewer where negative",
}

op.composed "reflection_pad" {
  tensors = "x",
  options = {"pad:sizes"},
  autocast = {cpu = "fp32"},
  flags = "hidden",
  attr = "dm_PadsAttr",
  doc = "pad in that mode",
}

op.composed "replication_pad" {
  tensors = "x",
  options = {"pad:sizes"},
  autocast = {cpu = "fp32"},
  flags = "hidden",
  attr = "dm_PadsAttr",
  doc = "pad in that mode",
}

op.kernel "border_pad" {
  tensors = "x",
  options = {"pad:sizes", "mode:enum(constant|reflect|replicate|circular)"},
  cuda = false,
  flags = "hidden",
  doc = "pad in a mode but constant on the CPU",
}

op.kernel "border_pad_backward" {
  tensors = "gy",
  options = {"pad:sizes", "mode:enum(constant|reflect|replicate|circular)", "size:sizes"},
  cuda = false,
  flags = "hidden",
  attr = "dm_BorderPadSizedAttr",
  nests = {border = "dm_BorderPadAttr"},
  doc = "border_pad's gradient for x of that size",
}

op.composed "unfold" {
  tensors = "x",
  options = {"kernel_size:pair", "dilation:pair=1", "padding:pair=0", "stride:pair=1"},
  doc = "windows of (N,C,H,W) as columns: (N, C times the kernel's size, windows); the method "
    .. "x:unfold(dim, size, step) gives windows along a dim in a new last dim",
}

op.composed "fold" {
  tensors = "x",
  options = {
    "output_size:pair", "kernel_size:pair", "dilation:pair=1", "padding:pair=0", "stride:pair=1",
  },
  nests = {columns = "dm_UnfoldAttr"},
  doc = "sums columns as unfold gives them where they stood in (N,C,H,W) of that size",
}

op.composed "pixel_shuffle" {
  tensors = "x",
  options = {"upscale_factor:int"},
  doc = "(..., C r^2, H, W) as (..., C, H r, W r); Shi et al. 2016",
}

op.composed "pixel_unshuffle" {
  tensors = "x",
  options = {"downscale_factor:int"},
  doc = "(..., C, H r, W r) as (..., C r^2, H, W)",
}

op.composed "channel_shuffle" {
  tensors = "x",
  options = {"groups:int"},
  doc = "(N, g k, ...) with the channels of g groups taken in turn; Zhang et al. 2017",
}

op.composed "interpolate" {
  tensors = "x",
  options = {
    "size:sizes=none", "scale_factor:nums=none",
    "mode:enum(nearest|linear|bilinear|bicubic|trilinear|area|nearest-exact)=nearest",
    "align_corners:bool=0", "recompute_scale_factor:bool=0", "antialias:bool=0",
  },
  autocast = {cuda = "fp32"},
  doc = "(N,C,...) with planes of another size; scale_factor: of all dims, or a list; "
    .. "recompute_scale_factor: positions by the sizes, not by it; antialias: by a filter as wide "
    .. "as the elements of a smaller plane (bilinear, bicubic)",
}

op.kernel "resize" {
  tensors = "x",
  options = {"size:sizes", "scale:nums", "cubic:bool", "align_corners:bool"},
  cuda = false,
  flags = "hidden",
  doc = "interpolate by linear or cubic weights on the CPU: the last dim, the last two, or of the "
    .. "last three the first",
}

op.kernel "resize_backward" {
  tensors = "gy",
  options = {"size:sizes", "scale:nums", "cubic:bool", "align_corners:bool", "of:sizes"},
  cuda = false,
  flags = "hidden",
  attr = "dm_ResizeBackwardAttr",
  nests = {resize = "dm_ResizeAttr"},
  doc = "resize's gradient for x whose last dims are of those sizes",
}

op.composed "fractional_max_pool2d" {
  tensors = "x, _random_samples?",
  options = {"kernel_size:pair", "output_size:pair", "return_indices:bool=0"},
  outputs = 2,
  autocast = {cpu = "fp32"},
  flags = "random",
  doc = "largest values of output_size windows that overlap at random, by _random_samples (N,C,2) "
    .. "in [0, 1) or drawn ones; with return_indices also their positions in the flat plane; "
    .. "Graham 2014",
}

op.composed "grid_sample" {
  tensors = "x, grid",
  options = {
    "mode:enum(bilinear|nearest|bicubic)=bilinear",
    "padding_mode:enum(zeros|border|reflection)=zeros", "align_corners:bool=0",
  },
  autocast = {cpu = "fp32", cuda = "promote"},
  doc = "x (N,C,H,W) or (N,C,D,H,W) read at the points of a grid (N,...,2 or 3): x and y (and z), "
    .. "-1 to 1 from edge to edge, or from the outer elements' centres where corners are aligned; "
    .. "Jaderberg et al. 2015",
}

op.kernel "sample_planes" {
  tensors = "x, px, py",
  options = {"zeros:bool=1"},
  cuda = false,
  saves = "I0 I1 I2",
  flags = "hidden",
  doc = "bilinear samples (N,C,P) of x (N,C,H,W) on the CPU at positions (N,P) counted from 0; "
    .. "outside lie zeros, or the border",
}

op.kernel "sample_planes_backward" {
  tensors = "gy, x, px, py",
  options = {"zeros:bool=1"},
  outputs = 3,
  cuda = false,
  gradient = false,
  flags = "hidden",
  attr = "dm_SamplePlanesAttr",
  doc = "gradients of sample_planes in x, px and py",
}

op.composed "affine_grid" {
  tensors = "theta",
  options = {"size:sizes", "align_corners:bool=0"},
  doc = "the grid by which grid_sample makes (N,C,H,W) or (N,C,D,H,W) of that size, moved by the "
    .. "affine maps theta (N,2,3) or (N,3,4)",
}

op.kernel "max_pool2d_coded" {
  tensors = "x",
  options = {
    "kernel_size:pair", "stride:sizes=none", "padding:pair=0", "dilation:pair=1",
    "ceil_mode:bool=0",
  },
  outputs = 2,
  saves = "O1",
  flags = "hidden layout",
  attr = "dm_MaxPoolAttr",
  doc = "largest value of each window, and which element of the window it is",
}

op.kernel "max_pool2d_scatter" {
  tensors = "gy, code",
  options = {
    "kernel_size:pair", "stride:sizes=none", "padding:pair=0", "dilation:pair=1",
    "ceil_mode:bool=0", "size:pair",
  },
  saves = "I1",
  flags = "hidden layout",
  attr = "dm_MaxPoolSizedAttr",
  nests = {max = "dm_MaxPoolAttr"},
  doc = "adds each gy to the element that its code names",
}

op.kernel "max_pool2d_gather" {
  tensors = "x, code",
  options = {
    "kernel_size:pair", "stride:sizes=none", "padding:pair=0", "dilation:pair=1",
    "ceil_mode:bool=0",
  },
  saves = "I1",
  flags = "hidden layout",
  attr = "dm_MaxPoolAttr",
  doc = "the elements that the codes name",
}

op.kernel "max_pool2d_position" {
  tensors = "code",
  options = {
    "kernel_size:pair", "stride:sizes=none", "padding:pair=0", "dilation:pair=1",
    "ceil_mode:bool=0", "size:pair",
  },
  gradient = false,
  flags = "hidden layout",
  attr = "dm_MaxPoolSizedAttr",
  nests = {max = "dm_MaxPoolAttr"},
  doc = "positions in the flat plane that the codes name",
}

op.composed "max_pool2d" {
  tensors = "x",
  options = {
    "kernel_size:pair", "stride:sizes=none", "padding:pair=0", "dilation:pair=1",
    "ceil_mode:bool=0", "return_indices:bool=0",
  },
  outputs = 2,
  nests = {max = "dm_MaxPoolAttr"},
  doc = "largest value of each window of (N,C,H,W); with return_indices also its position in the "
    .. "flat plane; the stride is kernel_size where none is given",
}

op.kernel "avg_pool2d" {
  tensors = "x",
  options = {
    "kernel_size:pair", "stride:sizes=none", "padding:pair=0", "ceil_mode:bool=0",
    "count_include_pad:bool=1", "divisor_override:optnum=none",
  },
  flags = "layout",
  attr = "dm_AvgPoolAttr",
  doc = "mean of each window of (N,C,H,W); the stride is kernel_size where none is given",
}

op.kernel "avg_pool2d_spread" {
  tensors = "gy",
  options = {
    "kernel_size:pair", "stride:sizes=none", "padding:pair=0", "ceil_mode:bool=0",
    "count_include_pad:bool=1", "divisor_override:optnum=none", "size:pair",
  },
  flags = "hidden layout",
  attr = "dm_AvgPoolSizedAttr",
  nests = {avg = "dm_AvgPoolAttr"},
  doc = "avg_pool2d's gradient for x of that size",
}

op.kernel "adaptive_avg_pool2d" {
  tensors = "x",
  options = {"output_size:pair"},
  flags = "layout",
  doc = "means of a grid of that many windows that cover the plane",
}

op.kernel "adaptive_avg_pool2d_spread" {
  tensors = "gy",
  options = {"size:pair"},
  flags = "hidden layout",
  doc = "adaptive_avg_pool2d's gradient for x of that size",
}
