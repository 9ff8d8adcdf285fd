-- Reductions, scans and sorting.
local op = ...

op.kernel "sum" {
  tensors = "x",
  options = {"dim:dims=none", "keepdim:bool=0", "dtype:dtype=none"},
  autocast = {cuda = "fp32_set_opt_dtype"},
  doc = "sum over all dims, or those given",
}

op.kernel "sum_to_size" {
  tensors = "x",
  options = {"size:sizes"},
  autocast = {cuda = "fp32"},
  doc = "sums the dims along which a tensor of that size was repeated",
}

op.kernel "mean" {
  tensors = "x",
  options = {"dim:dims=none", "keepdim:bool=0", "dtype:dtype=none"},
  attr = "dm_SumAttr",
  doc = "arithmetic mean over all dims, or those given",
}

op.kernel "prod" {
  tensors = "x",
  options = {"dim:dims=none", "keepdim:bool=0", "dtype:dtype=none"},
  rule = "sum_rule",
  saves = "I0",
  autocast = {cpu = "fp32", cuda = "fp32_set_opt_dtype"},
  attr = "dm_SumAttr",
  flags = "widen",
  doc = "product over all dims, or those given",
}

op.kernel "var" {
  tensors = "x",
  options = {"dim:dims=none", "correction:num=1", "keepdim:bool=0", "unbiased:bool=1"},
  saves = "I0",
  flags = "widen",
  doc = "variance: squared differences from the mean, summed, by n - correction, or by n where "
    .. "unbiased is false",
}

op.kernel "std" {
  tensors = "x",
  options = {"dim:dims=none", "correction:num=1", "keepdim:bool=0", "unbiased:bool=1"},
  rule = "var_rule",
  cpu = "var_cpu",
  cuda = "var_cuda",
  saves = "I0 O0",
  attr = "dm_VarAttr",
  flags = "widen",
  doc = "standard deviation, the root of the variance",
}

op.composed "var_mean" {
  tensors = "x",
  options = {"dim:dims=none", "correction:num=1", "keepdim:bool=0", "unbiased:bool=1"},
  outputs = 2,
  attr = "dm_VarAttr",
  flags = "widen",
  doc = "var and mean",
}

op.composed "std_mean" {
  tensors = "x",
  options = {"dim:dims=none", "correction:num=1", "keepdim:bool=0", "unbiased:bool=1"},
  outputs = 2,
  attr = "dm_VarAttr",
  flags = "widen",
  doc = "std and mean",
}

op.composed "nansum" {
  tensors = "x",
  options = {"dim:dims=none", "keepdim:bool=0", "dtype:dtype=none"},
  attr = "dm_SumAttr",
  doc = "sum of what is not NaN",
}

op.kernel "sum_numbers" {
  tensors = "x",
  options = {"dim:dims=none", "keepdim:bool=0", "dtype:dtype=none"},
  rule = "sum_rule",
  cuda = false,
  saves = "I0",
  flags = "hidden",
  attr = "dm_SumAttr",
  doc = "nansum of floats on the CPU",
}

op.composed "nanmean" {
  tensors = "x",
  options = {"dim:dims=none", "keepdim:bool=0", "dtype:dtype=none"},
  attr = "dm_SumAttr",
  flags = "widen",
  doc = "mean of what is not NaN",
}

op.kernel "norm" {
  tensors = "x",
  options = {"p:num=2", "dim:dims=none", "keepdim:bool=0", "dtype:dtype=none"},
  saves = "I0 O0",
  autocast = {cuda = "fp32_set_opt_dtype"},
  doc = "(sum of |x|^p)^(1/p); p may be inf, -inf or 0, or a word: fro (2), nuc (the sum of a "
    .. "matrix's singular values)",
}

op.composed "norm_by_name" {
  tensors = "x",
  options = {"p:enum(fro|nuc|inf|-inf)=fro", "dim:dims=none", "keepdim:bool=0", "dtype:dtype=none"},
  flags = "hidden",
  doc = "norm whose p is a word",
}

op.kernel "logsumexp" {
  tensors = "x",
  options = {"dim:dims", "keepdim:bool=0"},
  saves = "I0 O0",
  autocast = {cuda = "fp32"},
  attr = "dm_DimsAttr",
  doc = "log of the sum of exp(x), without overflow",
}

op.kernel "max" {
  tensors = "x",
  options = {"dim:optdim=none", "keepdim:bool=0"},
  outputs = 2,
  saves = "I0 O0 O1",
  attr = "dm_DimAttr",
  doc = "the largest; along a dim also its position",
}

op.kernel "min" {
  tensors = "x",
  options = {"dim:optdim=none", "keepdim:bool=0"},
  outputs = 2,
  rule = "max_rule",
  cpu = "max_cpu",
  cuda = "max_cuda",
  gradient = "max_grad",
  saves = "I0 O0 O1",
  attr = "dm_DimAttr",
  doc = "the smallest; along a dim also its position",
}

op.kernel "amax" {
  tensors = "x",
  options = {"dim:dims=none", "keepdim:bool=0"},
  saves = "I0 O0",
  attr = "dm_DimsAttr",
  doc = "the largest, over all dims or those given; equals share the gradient",
}

op.kernel "amin" {
  tensors = "x",
  options = {"dim:dims=none", "keepdim:bool=0"},
  rule = "amax_rule",
  cpu = "amax_cpu",
  cuda = "amax_cuda",
  gradient = "amax_grad",
  saves = "I0 O0",
  attr = "dm_DimsAttr",
  doc = "the smallest, over all dims or those given; equals share the gradient",
}

op.kernel "argmax" {
  tensors = "x",
  options = {"dim:optdim=none", "keepdim:bool=0"},
  gradient = false,
  attr = "dm_DimAttr",
  doc = "position of the largest; without dim in the flat x",
}

op.kernel "argmin" {
  tensors = "x",
  options = {"dim:optdim=none", "keepdim:bool=0"},
  rule = "argmax_rule",
  cpu = "argmax_cpu",
  cuda = "argmax_cuda",
  gradient = false,
  attr = "dm_DimAttr",
  doc = "position of the smallest; without dim in the flat x",
}

op.kernel "any" {
  tensors = "x",
  options = {"dim:dims=none", "keepdim:bool=0"},
  gradient = false,
  attr = "dm_DimsAttr",
  doc = "true where some element is not 0, over all dims or those given",
}

op.kernel "all" {
  tensors = "x",
  options = {"dim:dims=none", "keepdim:bool=0"},
  rule = "any_rule",
  cpu = "any_cpu",
  cuda = "any_cuda",
  gradient = false,
  attr = "dm_DimsAttr",
  doc = "true where no element is 0, over all dims or those given",
}

op.kernel "cumsum" {
  tensors = "x",
  options = {"dim:dim", "dtype:dtype=none"},
  autocast = {cuda = "fp32_set_opt_dtype"},
  flags = "inplace",
  doc = "running sum along a dim",
}

op.kernel "cumsum_back" {
  tensors = "x",
  options = {"dim:dim", "dtype:dtype=none"},
  rule = "cumsum_rule",
  cpu = "cumsum_cpu",
  cuda = "cumsum_cuda",
  flags = "hidden",
  attr = "dm_CumsumAttr",
  doc = "running sum along a dim, from its end",
}

op.kernel "running_product" {
  tensors = "x",
  options = {"dim:dim", "dtype:dtype=none"},
  rule = "cumsum_rule",
  saves = "I0",
  flags = "hidden",
  attr = "dm_CumsumAttr",
  doc = "running product along a dim, element by element",
}

op.kernel "running_product_back" {
  tensors = "x, gy",
  options = {"dim:dim", "dtype:dtype=none"},
  rule = "cumsum_rule",
  gradient = false,
  flags = "hidden",
  attr = "dm_CumsumAttr",
  doc = "gradient of running_product",
}

op.composed "cumprod" {
  tensors = "x",
  options = {"dim:dim", "dtype:dtype=none"},
  autocast = {cuda = "fp32_set_opt_dtype"},
  flags = "inplace",
  attr = "dm_CumsumAttr",
  doc = "running product along a dim",
}

op.composed "logcumsumexp" {
  tensors = "x",
  options = {"dim:dim"},
  attr = "dm_ScanAttr",
  doc = "log of the running sum of exp(x), without overflow",
}

op.composed "cummax" {
  tensors = "x",
  options = {"dim:dim"},
  outputs = 2,
  attr = "dm_ScanAttr",
  doc = "the largest so far along a dim, and where it stands last",
}

op.composed "cummin" {
  tensors = "x",
  options = {"dim:dim"},
  outputs = 2,
  attr = "dm_ScanAttr",
  doc = "the smallest so far along a dim, and where it stands last",
}

op.kernel "running_extreme" {
  tensors = "x",
  options = {"dim:dim", "least:bool=0"},
  outputs = 2,
  cuda = false,
  saves = "O1",
  flags = "hidden",
  doc = "cummax or cummin on the CPU",
}

op.kernel "sort" {
  tensors = "x",
  options = {"dim:dim=-1", "descending:bool=0", "stable:bool=0"},
  outputs = 2,
  saves = "O1",
  doc = "x in order along a dim, and where each came from; NaN last",
}

op.composed "argsort" {
  tensors = "x",
  options = {"dim:dim=-1", "descending:bool=0", "stable:bool=0"},
  attr = "dm_SortAttr",
  doc = "where the elements of x in order along a dim came from; NaN last",
}

op.kernel "topk" {
  tensors = "x",
  options = {"k:int", "dim:dim=-1", "largest:bool=1", "sorted:bool=1"},
  outputs = 2,
  saves = "O1",
  doc = "the k largest (or smallest) along a dim, and their positions",
}

op.kernel "bucketize" {
  tensors = "x, boundaries",
  options = {"right:bool=0", "out_int32:bool=0"},
  gradient = false,
  doc = "position of the first of the rising boundaries that x does not lie above (right: that x "
    .. "lies below); one more than there are when none is",
}

op.composed "searchsorted" {
  tensors = "sorted_sequence, input#, sorter?",
  options = {"right:bool=0", "side:enum(none|left|right)=none", "out_int32:bool=0"},
  doc = "where each value would enter the rising sequence (or its row's), before its equals or "
    .. "(right) behind them",
}

op.composed "median" {
  tensors = "x",
  options = {"dim:optdim=none", "keepdim:bool=0"},
  outputs = 2,
  attr = "dm_DimAttr",
  doc = "the middle one in order, the lower of two; along a dim also its position; NaN where "
    .. "there is one",
}

op.composed "nanmedian" {
  tensors = "x",
  options = {"dim:optdim=none", "keepdim:bool=0"},
  outputs = 2,
  attr = "dm_DimAttr",
  doc = "median of what is not NaN",
}

op.composed "quantile" {
  tensors = "x, q#",
  options = {
    "dim:optdim=none", "keepdim:bool=0",
    "interpolation:enum(linear|lower|higher|midpoint|nearest)=linear",
  },
  autocast = {cpu = "fp32"},
  doc = "the number below which the part q of the elements lies, 0 to 1, between two elements in "
    .. "proportion; several q in one dim give a first dim; NaN where there is one",
}

op.composed "nanquantile" {
  tensors = "x, q#",
  options = {
    "dim:optdim=none", "keepdim:bool=0",
    "interpolation:enum(linear|lower|higher|midpoint|nearest)=linear",
  },
  autocast = {cpu = "fp32"},
  attr = "dm_QuantileAttr",
  doc = "quantile of what is not NaN",
}

op.composed "kthvalue" {
  tensors = "x",
  options = {"k:int", "dim:dim=-1", "keepdim:bool=0"},
  outputs = 2,
  doc = "the k-th smallest along a dim, and its position; NaN last",
}

op.composed "mode" {
  tensors = "x",
  options = {"dim:dim=-1", "keepdim:bool=0"},
  outputs = 2,
  doc = "the most frequent one along a dim, the least of those, and where it stands last",
}

op.composed "unique" {
  tensors = "x",
  options = {"sorted:bool=1", "return_inverse:bool=0", "return_counts:bool=0", "dim:optdim=none"},
  outputs = 3,
  doc = "the different elements in order, or the different slices along a dim; return_inverse: "
    .. "where each of x is among them; return_counts: how many",
}

op.composed "unique_consecutive" {
  tensors = "x",
  options = {"return_inverse:bool=0", "return_counts:bool=0", "dim:optdim=none"},
  outputs = 3,
  doc = "x without elements (or slices along a dim) that equal the one before; return_inverse: "
    .. "where each of x is among the others; return_counts: how often each came",
}

op.composed "bincount" {
  tensors = "x, weights?",
  options = {"minlength:int=0"},
  doc = "how often each position occurs, or the sum of its weights",
}

op.composed "histc" {
  tensors = "x",
  options = {"bins:int=100", "min:num=0", "max:num=0"},
  doc = "how many elements lie in each of equally wide bins from min to max; of x's own range "
    .. "where these are equal",
}

op.kernel "nonzero" {
  tensors = "x",
  options = {"as_tuple:bool=0"},
  gradient = false,
  doc = "the positions of what is not 0, one row (of x's dims) each; as_tuple: in a list of "
    .. "vectors, a dim each",
}

op.composed "count_nonzero" {
  tensors = "x",
  options = {"dim:dims=none"},
  doc = "how many elements are not 0, of all or along dims",
}

op.composed "diff" {
  tensors = "x, prepend?, append?",
  options = {"n:int=1", "dim:dim=-1"},
  doc = "differences of neighbours along a dim, n times over; of bools: whether they differ",
}

op.composed "trapezoid" {
  tensors = "y, x?",
  options = {"dx:num=1", "dim:dim=-1"},
  autocast = {cuda = "fp32"},
  doc = "integral along a dim by the trapezoidal rule, of points dx apart or at x",
}
