-- Creation and random numbers.
local op = ...

op.kernel "zeros" {
  options = {"size:sizes", "dtype:dtype=none", "device:device=none"},
  rule = "sized_rule",
  gradient = false,
  flags = "create",
  attr = "dm_SizedAttr",
  doc = "zeros of a size",
}

op.kernel "ones" {
  options = {"size:sizes", "dtype:dtype=none", "device:device=none"},
  rule = "sized_rule",
  gradient = false,
  flags = "create",
  attr = "dm_SizedAttr",
  doc = "ones of a size",
}

op.kernel "empty" {
  options = {"size:sizes", "dtype:dtype=none", "device:device=none"},
  rule = "sized_rule",
  gradient = false,
  flags = "create",
  attr = "dm_SizedAttr",
  doc = "a tensor of a size that holds whatever its memory held",
}

op.kernel "full" {
  options = {"size:sizes", "fill_value:num", "dtype:dtype=none", "device:device=none"},
  gradient = false,
  flags = "create",
  doc = "a tensor of a size, every element the value",
}

op.kernel "arange" {
  options = {
    "first:num", "last:optnum=none", "step:num=1", "dtype:dtype=none", "device:device=none",
  },
  gradient = false,
  flags = "create",
  doc = "the numbers from first to last, which is included, by step; arange(n): n positions",
}

op.kernel "linspace" {
  options = {"start:num", "stop:num", "steps:int", "dtype:dtype=none", "device:device=none"},
  gradient = false,
  flags = "create",
  doc = "steps numbers, evenly spaced, both ends included",
}

op.kernel "eye" {
  options = {"n:int", "m:int=-1", "dtype:dtype=none", "device:device=none"},
  gradient = false,
  flags = "create",
  doc = "ones on the diagonal of n rows and m (or n) columns, zeros elsewhere",
}

op.kernel "zeros_like" {
  tensors = "x",
  options = {"dtype:dtype=none", "device:device=none"},
  rule = "like_rule",
  cpu = "zeros_cpu",
  cuda = "zeros_cuda",
  gradient = false,
  flags = "placed",
  attr = "dm_LikeAttr",
  doc = "zeros in x's shape; its dtype and device where none is given",
}

op.kernel "ones_like" {
  tensors = "x",
  options = {"dtype:dtype=none", "device:device=none"},
  rule = "like_rule",
  cpu = "ones_cpu",
  cuda = "ones_cuda",
  gradient = false,
  flags = "placed",
  attr = "dm_LikeAttr",
  doc = "ones in x's shape; its dtype and device where none is given",
}

op.kernel "empty_like" {
  tensors = "x",
  options = {"dtype:dtype=none", "device:device=none"},
  rule = "like_rule",
  cpu = "empty_cpu",
  cuda = "empty_cuda",
  gradient = false,
  flags = "placed",
  attr = "dm_LikeAttr",
  doc = "an unset tensor in x's shape; its dtype and device where none is given",
}

op.kernel "full_like" {
  tensors = "x",
  options = {"fill_value:num", "dtype:dtype=none", "device:device=none"},
  gradient = false,
  flags = "placed",
  nests = {like = "dm_LikeAttr"},
  doc = "the value in x's shape; its dtype and device where none is given",
}

op.kernel "rand" {
  options = {"size:sizes", "dtype:dtype=none", "device:device=none"},
  rule = "random_rule",
  gradient = false,
  flags = "create random",
  attr = "dm_SizedAttr",
  doc = "uniform numbers in [0, 1)",
}

op.kernel "randn" {
  options = {"size:sizes", "dtype:dtype=none", "device:device=none"},
  rule = "random_rule",
  gradient = false,
  flags = "create random",
  attr = "dm_SizedAttr",
  doc = "normal numbers of mean 0 and variance 1",
}

op.kernel "rand_like" {
  tensors = "x",
  options = {"dtype:dtype=none", "device:device=none"},
  rule = "random_like_rule",
  cpu = "rand_cpu",
  cuda = "rand_cuda",
  gradient = false,
  flags = "placed random",
  attr = "dm_LikeAttr",
  doc = "uniform numbers in [0, 1), in x's shape",
}

op.kernel "randn_like" {
  tensors = "x",
  options = {"dtype:dtype=none", "device:device=none"},
  rule = "random_like_rule",
  cpu = "randn_cpu",
  cuda = "randn_cuda",
  gradient = false,
  flags = "placed random",
  attr = "dm_LikeAttr",
  doc = "normal numbers of mean 0 and variance 1, in x's shape",
}

op.kernel "randint" {
  options = {"low:int", "high:int", "size:sizes", "dtype:dtype=none", "device:device=none"},
  gradient = false,
  flags = "create random",
  doc = "whole numbers from low (1 when only high is given) to high, both included, as "
    .. "math.random's",
}

op.kernel "randperm" {
  options = {"n:int", "dtype:dtype=none", "device:device=none"},
  gradient = false,
  flags = "create random",
  doc = "n positions in random order",
}

op.kernel "bernoulli" {
  tensors = "x",
  options = {"p:optnum=none"},
  gradient = "fill_grad",
  flags = "inplace pointwise random",
  doc = "1 with probability p (or each element of x as its own), else 0",
}

op.kernel "multinomial" {
  tensors = "x",
  options = {"num_samples:int", "replacement:bool=0"},
  gradient = false,
  flags = "random",
  doc = "positions drawn by the weights in the rows of x",
}

op.kernel "standard_gamma" {
  tensors = "x",
  saves = "I0 O0",
  flags = "random no_double",
  doc = "numbers of the gamma distribution of rate 1, each of its own shape x; the gradient is "
    .. "that of the number at a fixed value of the cumulative distribution",
}

op.kernel "uniform" {
  tensors = "x",
  options = {"from:num=0", "to:num=1"},
  gradient = "fill_grad",
  flags = "inplace only_inplace pointwise random",
  doc = "fills x with uniform numbers in [from, to)",
}

op.kernel "normal" {
  tensors = "x",
  options = {"mean:num=0", "std:num=1"},
  gradient = "fill_grad",
  flags = "inplace only_inplace pointwise random",
  doc = "x:normal_() fills x with normal numbers; dm.normal(mean, std, size) makes a tensor of "
    .. "them, and so does a tensor as mean or std",
}

op.composed "dropout" {
  tensors = "x",
  options = {"p:num=0.5", "training:bool=1"},
  doc = "sets elements to 0 with probability p and scales the others by 1 / (1 - p); x itself "
    .. "when not training",
}

op.composed "dropout1d" {
  tensors = "x",
  options = {"p:num=0.5", "training:bool=1"},
  attr = "dm_DropoutAttr",
  doc = "dropout of whole channels of (N,C,L) or (C,L)",
}

op.composed "dropout2d" {
  tensors = "x",
  options = {"p:num=0.5", "training:bool=1"},
  attr = "dm_DropoutAttr",
  doc = "dropout of whole channels of (N,C,H,W) or (N,C,L); Tompson et al. 2015",
}

op.composed "dropout3d" {
  tensors = "x",
  options = {"p:num=0.5", "training:bool=1"},
  attr = "dm_DropoutAttr",
  doc = "dropout of whole channels of (N,C,D,H,W) or (C,D,H,W)",
}

op.composed "alpha_dropout" {
  tensors = "x",
  options = {"p:num=0.5", "training:bool=0"},
  attr = "dm_DropoutAttr",
  doc = "elements become selu's limit with probability p, then scaled and shifted back to mean 0 "
    .. "and variance 1; Klambauer et al. 2017",
}

op.composed "feature_alpha_dropout" {
  tensors = "x",
  options = {"p:num=0.5", "training:bool=0"},
  attr = "dm_DropoutAttr",
  doc = "alpha_dropout of whole channels of (N,C,...)",
}

op.kernel "drop" {
  tensors = "x, counters?",
  options = {"p:num", "seed:int", "offset:int"},
  saves = "I1",
  flags = "hidden layout cheap",
  doc = "dropout with a mask given by seed and offset; by those that op counters gave, where given",
}

op.kernel "counters" {
  options = {"n:int", "device:device=none"},
  gradient = false,
  flags = "hidden create random",
  doc = "the generator's seed, its offset and four times that; it moves on by n words",
}
