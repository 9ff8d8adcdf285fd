-- Functions of one operand, elementwise.
local op = ...

op.unary "neg" {
  tensors = "x",
  gradient = "neg_grad",
  doc = "-x",
}

op.unary "abs" {
  tensors = "x",
  saves = "I0",
  doc = "absolute value, |x|",
}

op.unary "sign" {
  tensors = "x",
  doc = "-1, 0 or 1 by the sign of x",
}

op.unary "square" {
  tensors = "x",
  saves = "I0",
  autocast = {cuda = "fp32"},
  flags = "cheap",
  doc = "x * x",
}

op.unary "floor" {
  tensors = "x",
  doc = "largest integer not above x",
}

op.unary "ceil" {
  tensors = "x",
  doc = "smallest integer not below x",
}

op.unary "round" {
  tensors = "x",
  options = {"decimals:int=0"},
  doc = "nearest integer, ties to even; of x 10^decimals, which is then divided by that again",
}

op.unary "trunc" {
  tensors = "x",
  doc = "x without its fraction",
}

op.unary "frac" {
  tensors = "x",
  rule = "frac_rule",
  gradient = "clone_grad",
  doc = "x's fraction, with its sign",
}

op.unary "exp" {
  tensors = "x",
  saves = "O0",
  autocast = {cuda = "fp32"},
  doc = "e to the x",
}

op.unary "expm1" {
  tensors = "x",
  saves = "O0",
  autocast = {cuda = "fp32"},
  doc = "e to the x, minus 1, exact near 0",
}

op.unary "exp2" {
  tensors = "x",
  saves = "O0",
  doc = "2 to the x",
}

op.unary "log" {
  tensors = "x",
  saves = "I0",
  autocast = {cuda = "fp32"},
  doc = "natural logarithm",
}

op.unary "log1p" {
  tensors = "x",
  saves = "I0",
  autocast = {cuda = "fp32"},
  doc = "log(1 + x), exact near 0",
}

op.unary "log2" {
  tensors = "x",
  saves = "I0",
  autocast = {cuda = "fp32"},
  doc = "logarithm to base 2",
}

op.unary "log10" {
  tensors = "x",
  saves = "I0",
  autocast = {cuda = "fp32"},
  doc = "logarithm to base 10",
}

op.unary "sqrt" {
  tensors = "x",
  saves = "O0",
  doc = "square root",
}

op.unary "rsqrt" {
  tensors = "x",
  saves = "O0",
  autocast = {cuda = "fp32"},
  doc = "1 / sqrt(x)",
}

op.unary "reciprocal" {
  tensors = "x",
  saves = "O0",
  autocast = {cuda = "fp32"},
  doc = "1 / x",
}

op.unary "sin" {
  tensors = "x",
  saves = "I0",
  doc = "sine, radians",
}

op.unary "cos" {
  tensors = "x",
  saves = "I0",
  doc = "cosine, radians",
}

op.unary "tan" {
  tensors = "x",
  saves = "O0",
  autocast = {cuda = "fp32"},
  doc = "tangent, radians",
}

op.unary "asin" {
  tensors = "x",
  saves = "I0",
  autocast = {cuda = "fp32"},
  doc = "inverse sine, radians",
}

op.unary "acos" {
  tensors = "x",
  saves = "I0",
  autocast = {cuda = "fp32"},
  doc = "inverse cosine, radians",
}

op.unary "atan" {
  tensors = "x",
  saves = "I0",
  doc = "inverse tangent, radians",
}

op.unary "sinh" {
  tensors = "x",
  saves = "I0",
  autocast = {cuda = "fp32"},
  doc = "hyperbolic sine",
}

op.unary "cosh" {
  tensors = "x",
  saves = "I0",
  autocast = {cuda = "fp32"},
  doc = "hyperbolic cosine",
}

op.unary "asinh" {
  tensors = "x",
  saves = "I0",
  doc = "inverse hyperbolic sine",
}

op.unary "acosh" {
  tensors = "x",
  saves = "I0",
  doc = "inverse hyperbolic cosine",
}

op.unary "atanh" {
  tensors = "x",
  saves = "I0",
  doc = "inverse hyperbolic tangent",
}

op.unary "tanh" {
  tensors = "x",
  saves = "O0",
  doc = "hyperbolic tangent",
}

op.unary "sigmoid" {
  tensors = "x",
  saves = "O0",
  doc = "1 / (1 + exp(-x))",
}

op.unary "erf" {
  tensors = "x",
  saves = "I0",
  doc = "error function, 2 / sqrt(pi) times the integral of e^(-t^2) for t from 0 to x",
}

op.unary "erfc" {
  tensors = "x",
  saves = "I0",
  doc = "1 - erf(x), without its underflow",
}

op.unary "erfinv" {
  tensors = "x",
  saves = "O0",
  autocast = {cuda = "fp32"},
  doc = "inverse of erf",
}

op.unary "lgamma" {
  tensors = "x",
  saves = "I0",
  doc = "log of the absolute value of the gamma function",
}

op.unary "digamma" {
  tensors = "x",
  saves = "I0",
  doc = "derivative of lgamma, the log of the gamma function",
}

op.unary "polygamma" {
  tensors = "x",
  options = {"n:int"},
  saves = "I0",
  doc = "n-th derivative of digamma",
}

op.unary "i0" {
  tensors = "x",
  saves = "I0",
  doc = "modified Bessel function of the first kind, of order 0",
}

op.unary "special_i0e" {
  tensors = "x",
  saves = "I0",
  doc = "exp(-|x|) i0(x), which does not overflow",
}

op.unary "special_i1" {
  tensors = "x",
  saves = "I0",
  doc = "modified Bessel function of the first kind, of order 1",
}

op.unary "special_i1e" {
  tensors = "x",
  saves = "I0",
  doc = "exp(-|x|) i1(x), which does not overflow",
}

op.unary "special_bessel_j0" {
  tensors = "x",
  saves = "I0",
  doc = "Bessel function of the first kind, of order 0",
}

op.unary "special_bessel_j1" {
  tensors = "x",
  saves = "I0",
  doc = "Bessel function of the first kind, of order 1",
}

op.unary "special_bessel_y0" {
  tensors = "x",
  saves = "I0",
  doc = "Bessel function of the second kind, of order 0",
}

op.unary "special_bessel_y1" {
  tensors = "x",
  saves = "I0",
  doc = "Bessel function of the second kind, of order 1",
}

op.unary "special_modified_bessel_k0" {
  tensors = "x",
  saves = "I0",
  doc = "modified Bessel function of the second kind, of order 0",
}

op.unary "special_modified_bessel_k1" {
  tensors = "x",
  saves = "I0",
  doc = "modified Bessel function of the second kind, of order 1",
}

op.unary "special_scaled_modified_bessel_k0" {
  tensors = "x",
  saves = "I0",
  doc = "exp(x) times modified_bessel_k0, which does not underflow",
}

op.unary "special_scaled_modified_bessel_k1" {
  tensors = "x",
  saves = "I0",
  doc = "exp(x) times modified_bessel_k1, which does not underflow",
}

op.unary "special_airy_ai" {
  tensors = "x",
  saves = "I0",
  doc = "Airy function Ai, the solution of y'' = x y that falls to 0 for large x",
}

op.unary "airy_slope" {
  tensors = "x",
  saves = "I0",
  flags = "hidden",
  doc = "the derivative of Ai",
}

op.unary "special_erfcx" {
  tensors = "x",
  saves = "I0",
  doc = "exp(x^2) erfc(x), which does not underflow",
}

op.unary "special_ndtr" {
  tensors = "x",
  saves = "I0",
  doc = "the normal distribution's integral up to x",
}

op.unary "special_ndtri" {
  tensors = "x",
  saves = "O0",
  doc = "inverse of ndtr",
}

op.unary "special_log_ndtr" {
  tensors = "x",
  saves = "I0",
  doc = "log of ndtr(x), without its underflow",
}

op.unary "special_entr" {
  tensors = "x",
  saves = "I0",
  doc = "-x log(x), 0 at 0 and -inf left of it",
}

op.unary "relu" {
  tensors = "x",
  saves = "O0",
  flags = "cheap",
  doc = "max(x, 0)",
}

op.unary "leaky_relu" {
  tensors = "x",
  options = {"negative_slope:num=0.01"},
  saves = "I0",
  flags = "cheap",
  doc = "x above 0, negative_slope * x below",
}

op.unary "elu" {
  tensors = "x",
  options = {"alpha:num=1"},
  saves = "I0",
  flags = "cheap",
  doc = "x above 0, alpha * (exp(x) - 1) below; Clevert et al. 2015",
}

op.unary "celu" {
  tensors = "x",
  options = {"alpha:num=1"},
  rule = "celu_rule",
  saves = "I0",
  doc = "x above 0, alpha * (exp(x / alpha) - 1) below; Barron 2017",
}

op.unary "softsign" {
  tensors = "x",
  saves = "I0",
  doc = "x / (1 + |x|)",
}

op.unary "threshold" {
  tensors = "x",
  options = {"threshold:num", "value:num"},
  saves = "I0",
  doc = "x above the threshold, else the value",
}

op.unary "gelu" {
  tensors = "x",
  options = {"approximate:enum(none|tanh)=none"},
  saves = "I0",
  flags = "cheap",
  doc = "x Phi(x); Hendrycks & Gimpel 2016",
}

op.unary "silu" {
  tensors = "x",
  saves = "I0",
  flags = "cheap",
  doc = "x * sigmoid(x)",
}

op.unary "softplus" {
  tensors = "x",
  options = {"beta:num=1", "threshold:num=20"},
  saves = "I0",
  autocast = {cuda = "fp32"},
  flags = "cheap",
  doc = "log(1 + exp(beta x)) / beta; x itself where beta x > threshold",
}

op.unary "hardtanh" {
  tensors = "x",
  options = {"min_val:num=-1", "max_val:num=1"},
  rule = "hardtanh_rule",
  saves = "I0",
  flags = "cheap",
  doc = "x held between min_val and max_val",
}

op.unary "hardsigmoid" {
  tensors = "x",
  saves = "I0",
  flags = "cheap",
  doc = "x / 6 + 1/2 held between 0 and 1",
}

op.unary "hardswish" {
  tensors = "x",
  saves = "I0",
  flags = "cheap",
  doc = "x * hardsigmoid(x); Howard et al. 2019",
}

op.unary "mish" {
  tensors = "x",
  saves = "I0",
  flags = "cheap",
  doc = "x * tanh(softplus(x)); Misra 2019",
}

op.unary "logsigmoid" {
  tensors = "x",
  saves = "I0",
  flags = "cheap",
  doc = "logarithm of sigmoid(x), without its underflow",
}

op.unary "softshrink" {
  tensors = "x",
  options = {"lambd:num=0.5"},
  saves = "I0",
  attr = "dm_ShrinkAttr",
  doc = "x moved towards 0 by lambd, 0 where it is nearer",
}

op.unary "hardshrink" {
  tensors = "x",
  options = {"lambd:num=0.5"},
  saves = "I0",
  attr = "dm_ShrinkAttr",
  doc = "x, 0 where it lies within lambd of 0",
}

op.unary "sinc" {
  tensors = "x",
  saves = "I0",
  doc = "sin(pi x) / (pi x), 1 at 0",
}

op.unary "logit" {
  tensors = "x",
  options = {"eps:num=-1"},
  saves = "I0",
  doc = "log(x / (1 - x)), sigmoid's inverse; eps: of x held between eps and 1 - eps, where it is "
    .. "not negative",
}

op.kernel "unary_backward" {
  tensors = "gy, saved",
  options = {"op:int", "p:num", "q:num"},
  gradient = false,
  flags = "hidden pointwise layout",
  doc = "gy times the derivative of the unary op",
}

op.kernel "isnan" {
  tensors = "x",
  rule = "predicate_rule",
  cpu = "predicate_cpu",
  gradient = false,
  flags = "pointwise layout",
  doc = "true where x is NaN",
}

op.kernel "isinf" {
  tensors = "x",
  rule = "predicate_rule",
  cpu = "predicate_cpu",
  gradient = false,
  flags = "pointwise layout",
  doc = "true where x is infinite",
}

op.kernel "isfinite" {
  tensors = "x",
  rule = "predicate_rule",
  cpu = "predicate_cpu",
  gradient = false,
  flags = "pointwise layout",
  doc = "true where x is neither NaN nor infinite",
}

op.kernel "signbit" {
  tensors = "x",
  rule = "predicate_rule",
  cpu = "predicate_cpu",
  gradient = false,
  flags = "pointwise layout",
  doc = "true where x has a minus sign, -0 among them",
}

op.kernel "logical_not" {
  tensors = "x",
  rule = "predicate_rule",
  cpu = "predicate_cpu",
  gradient = false,
  flags = "pointwise layout inplace",
  doc = "true where x is 0",
}

op.composed "bitwise_not" {
  tensors = "x",
  flags = "inplace",
  doc = "every bit of an integer turned over; of a bool: not",
}

op.composed "deg2rad" {
  tensors = "x",
  flags = "inplace",
  doc = "degrees as radians",
}

op.composed "rad2deg" {
  tensors = "x",
  flags = "inplace",
  doc = "radians as degrees",
}

op.composed "special_spherical_bessel_j0" {
  tensors = "x",
  flags = "widen",
  doc = "sin(x) / x, 1 at 0",
}

op.composed "mvlgamma" {
  tensors = "x",
  options = {"p:int"},
  flags = "inplace widen",
  doc = "log of the multivariate gamma function of p dims",
}

op.composed "nan_to_num" {
  tensors = "x",
  options = {"nan:num=0", "posinf:optnum=none", "neginf:optnum=none"},
  flags = "inplace",
  doc = "x with numbers for NaN and the infinities; for those the dtype's largest and least where "
    .. "none are given",
}

op.composed "relu6" {
  tensors = "x",
  flags = "inplace",
  doc = "x held between 0 and 6",
}

op.unary "selu" {
  tensors = "x",
  saves = "I0",
  flags = "cheap",
  doc = "elu scaled so that mean and variance settle at 0 and 1; Klambauer et al. 2017",
}

op.unary "tanhshrink" {
  tensors = "x",
  saves = "I0",
  flags = "cheap",
  doc = "x - tanh(x)",
}

op.binary "prelu_term" {
  tensors = "x, weight",
  saves = "I0 I1",
  flags = "hidden pointwise layout",
  doc = "prelu with weights that broadcast over x",
}

op.composed "prelu" {
  tensors = "x, weight",
  autocast = "lower_precision_fp",
  doc = "x above 0, weight * x below, with one weight or one for each channel (dim 2); He et al. "
    .. "2015",
}

op.binary "glu_term" {
  tensors = "x, gate",
  saves = "I0 I1",
  flags = "hidden pointwise layout",
  doc = "x times the sigmoid of the gate",
}

op.kernel "glu_halves" {
  tensors = "x",
  options = {"dim:int"},
  saves = "I0",
  cuda = false,
  flags = "hidden layout",
  doc = "glu_term of the halves of x along a dim",
}

op.kernel "glu_halves_backward" {
  tensors = "gy, x",
  options = {"dim:int"},
  gradient = false,
  cuda = false,
  flags = "hidden layout",
  attr = "dm_GluHalvesAttr",
  doc = "gradient of glu_halves",
}

op.composed "glu" {
  tensors = "x",
  options = {"dim:dim=-1"},
  doc = "the first half of x along a dim times the sigmoid of the other half; Dauphin et al. 2016",
}
