-- Softmax and norms.
local op = ...

op.kernel "softmax" {
  tensors = "x",
  options = {"dim:dim", "dtype:dtype=none"},
  saves = "O0",
  autocast = {cuda = "fp32_set_opt_dtype"},
  doc = "exp(x) over its sum along a dim",
}

op.kernel "log_softmax" {
  tensors = "x",
  options = {"dim:dim", "dtype:dtype=none"},
  rule = "softmax_rule",
  cpu = "softmax_cpu",
  cuda = "softmax_cuda",
  saves = "O0",
  autocast = {cuda = "fp32_set_opt_dtype"},
  attr = "dm_SoftmaxAttr",
  doc = "logarithm of softmax, without its underflow",
}

op.composed "softmin" {
  tensors = "x",
  options = {"dim:dim", "dtype:dtype=none"},
  attr = "dm_SoftmaxAttr",
  autocast = {cuda = "fp32_set_opt_dtype"},
  doc = "softmax of -x along a dim",
}

op.composed "gumbel_softmax" {
  tensors = "x",
  options = {"tau:num=1", "hard:bool=0", "dim:dim=-1"},
  flags = "random",
  autocast = {cuda = "fp32"},
  doc = "softmax of (x + Gumbel noise) / tau; hard: 1 at its largest, 0 elsewhere, with softmax's "
    .. "gradient; Jang et al. 2016",
}

op.kernel "softmax_backward" {
  tensors = "gy, y",
  options = {"dim:dim", "log:bool"},
  gradient = false,
  flags = "hidden",
  doc = "gradient of softmax and log_softmax from their result",
}

op.kernel "layer_norm" {
  tensors = "x, weight?, bias?",
  options = {"normalized_shape:sizes", "eps:num=1e-5"},
  saves = "I0 I1 I2",
  autocast = {cuda = "fp32"},
  flags = "cheap",
  doc = "(x - mean) / sqrt(var + eps) over the last dims, times weight plus bias; Ba et al. 2016",
}

op.kernel "group_norm" {
  tensors = "x, weight?, bias?",
  options = {"num_groups:int", "eps:num=1e-5"},
  saves = "I0 I1 I2",
  autocast = {cuda = "fp32"},
  flags = "cheap",
  doc = "(x - mean) / sqrt(var + eps) over num_groups groups of the channels of (N,C,...), times "
    .. "weight (C) plus bias; Wu & He 2018",
}

op.composed "add_layer_norm" {
  tensors = "x, delta, weight?, bias?",
  options = {"normalized_shape:sizes", "eps:num=1e-5"},
  outputs = 2,
  doc = "two tensors: x + delta, and layer_norm of that sum, which autocast gives in the region's "
    .. "16 bits, rounded once as a cast would; a GPU does both by one kernel where x is float32",
}

op.kernel "add_norm" {
  tensors = "x, delta?, weight?, bias?",
  options = {"normalized_shape:sizes", "eps:num", "dtype:dtype"},
  outputs = 2,
  cpu = false,
  saves = "I2 I3 O0",
  flags = "hidden cheap",
  doc = "add_layer_norm of float32, with the norm in that dtype; without delta x is the sum, which "
    .. "is not given again",
}

op.kernel "add_norm_backward" {
  tensors = "gsum?, gy, sum, weight?",
  options = {"len:int", "eps:num", "low:bool"},
  outputs = 4,
  cpu = false,
  gradient = false,
  flags = "hidden",
  doc = "add_norm's gradients: x, where low is set delta in gy's dtype, weight, bias",
}

op.kernel "row_norm_backward" {
  tensors = "gy, x, weight?",
  options = {"outer:int", "groups:int", "inner:int", "eps:num"},
  outputs = 3,
  gradient = false,
  flags = "hidden",
  doc = "gradients of layer_norm and group_norm: x, weight, bias",
}

op.kernel "rms_rows" {
  tensors = "x, weight?",
  options = {"normalized_shape:sizes", "eps:num"},
  cuda = false,
  saves = "I0 I1",
  flags = "hidden cheap",
  doc = "rms_norm on the CPU",
}

op.kernel "rms_rows_backward" {
  tensors = "gy, x, weight?",
  options = {"outer:int", "eps:num"},
  outputs = 2,
  cuda = false,
  gradient = false,
  flags = "hidden",
  doc = "rms_rows' gradients: x, weight",
}

op.composed "rms_norm" {
  tensors = "x, weight?",
  options = {"normalized_shape:sizes", "eps:optnum=none"},
  autocast = {cuda = "fp32"},
  doc = "x / sqrt(mean of x^2 + eps) over the last dims, times weight; eps is the compute type's "
    .. "where none is given; Zhang & Sennrich 2019",
}

op.composed "local_response_norm" {
  tensors = "x",
  options = {"size:int", "alpha:num=1e-4", "beta:num=0.75", "k:num=1"},
  flags = "widen",
  autocast = "fp32",
  doc = "x / (k + alpha * mean of x^2 over size neighbouring channels)^beta; Krizhevsky et al. "
    .. "2012",
}

op.composed "batch_norm" {
  tensors = "x, running_mean?, running_var?, weight?, bias?, num_batches_tracked?",
  options = {
    "training:bool=0", "momentum:num=0.1", "eps:num=1e-5",
    "activation:enum(none|relu|relu6)=none",
  },
  doc = "(x - mean) / sqrt(var + eps) by channel of (N,C,...), times weight (C) plus bias; mean "
    .. "and var are those of the batch when training, which then move the running ones by "
    .. "momentum and add 1 to num_batches_tracked (one int64), else the running ones; Ioffe & "
    .. "Szegedy 2015; or relu or relu6 of that",
}

op.composed "instance_norm" {
  tensors = "x, running_mean?, running_var?, weight?, bias?",
  options = {"use_input_stats:bool=1", "momentum:num=0.1", "eps:num=1e-5"},
  doc = "batch_norm of each sample alone; Ulyanov et al. 2016",
}

op.kernel "batch_norm_train" {
  tensors = "x, weight?, bias?",
  options = {"eps:num"},
  outputs = 3,
  saves = "I0 I1 I2 O1 O2",
  flags = "hidden layout cheap",
  attr = "dm_EpsAttr",
  doc = "batch_norm by the batch's own mean and variance, which it gives too: the variance on the "
    .. "CPU, elsewhere 1 / sqrt(variance + eps)",
}

op.kernel "batch_norm_relu" {
  tensors = "x, weight?, bias?",
  options = {"eps:num", "top:num"},
  outputs = 3,
  saves = "I0 I1 I2 O0 O1 O2",
  flags = "hidden layout cheap",
  doc = "relu of batch_norm_train, at most top, which is infinite but on the CPU; the CPU does not "
    .. "save it",
}

op.kernel "batch_norm_eval" {
  tensors = "x, weight?, bias?, mean, var",
  options = {"eps:num"},
  saves = "I0 I1 I2 I3 I4",
  flags = "hidden layout cheap",
  attr = "dm_EpsAttr",
  doc = "batch_norm by the given mean and variance",
}

op.kernel "batch_norm_relu_eval" {
  tensors = "x, weight?, bias?, mean, var",
  options = {"eps:num", "top:num"},
  rule = "batch_norm_eval_rule",
  cuda = false,
  gradient = false,
  flags = "hidden layout",
  attr = "dm_BatchNormReluAttr",
  doc = "relu of batch_norm_eval, at most top, which computes a batch_norm_relu again on the CPU",
}

op.kernel "batch_norm_backward" {
  tensors = "gy, x, weight?, mean, invstd",
  options = {"training:bool"},
  outputs = 3,
  gradient = false,
  flags = "hidden layout",
  doc = "gradients of batch_norm: x, weight, bias",
}

op.kernel "batch_norm_relu_backward" {
  tensors = "gy, x, weight?, mean, invstd, bias?",
  options = {"training:bool", "top:num"},
  rule = "batch_norm_backward_rule",
  cuda = false,
  outputs = 3,
  gradient = false,
  flags = "hidden layout",
  doc = "the same of batch_norm_relu, whose sign is worked out again from x",
}
