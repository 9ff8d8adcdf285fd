-- Functions of two operands, elementwise and broadcast.
local op = ...

op.binary "add" {
  tensors = "x#, other#",
  options = {"alpha:num=1"},
  attr = "dm_AlphaAttr",
  doc = "x + alpha * other",
}

op.binary "add_relu" {
  tensors = "x#, other#",
  saves = "O0",
  doc = "relu of x + other, in one pass: the end of a residual block",
}

op.binary "sub" {
  tensors = "x#, other#",
  options = {"alpha:num=1"},
  attr = "dm_AlphaAttr",
  doc = "x - alpha * other",
}

op.binary "mul" {
  tensors = "x#, other#",
  saves = "C0 C1",
  flags = "cheap sums",
  doc = "x * other",
}

op.binary "div" {
  tensors = "x#, other#",
  options = {"rounding_mode:enum(none|trunc|floor)=none"},
  saves = "C0 I1",
  flags = "sums",
  doc = "x / other; a float, or rounded by rounding_mode",
}

op.binary "pow" {
  tensors = "x#, exponent#",
  rule = "pow_rule",
  saves = "I0 I1 O0",
  autocast = {cuda = "fp32"},
  doc = "x to the exponent",
}

op.binary "maximum" {
  tensors = "x, other#",
  saves = "I0 I1",
  doc = "the larger one; NaN if either is",
}

op.binary "minimum" {
  tensors = "x, other#",
  saves = "I0 I1",
  doc = "the smaller one; NaN if either is",
}

op.binary "fmod" {
  tensors = "x, other#",
  saves = "I0 I1",
  flags = "inplace pointwise layout sums",
  doc = "remainder with the sign of x",
}

op.binary "remainder" {
  tensors = "x#, other#",
  saves = "I0 I1",
  flags = "inplace pointwise layout",
  doc = "remainder with the sign of other, as Lua's %",
}

op.binary "atan2" {
  tensors = "x, other#",
  saves = "I0 I1",
  autocast = {cuda = "promote"},
  flags = "sums",
  doc = "angle of the point (other, x), radians",
}

op.binary "copysign" {
  tensors = "x, other#",
  saves = "I0 O0",
  doc = "|x| with the sign of other",
}

op.binary "hypot" {
  tensors = "x, other",
  saves = "I0 I1",
  flags = "sums",
  doc = "sqrt(x^2 + other^2), without overflow",
}

op.binary "xlogy" {
  tensors = "x#, other#",
  saves = "I0 I1",
  flags = "sums",
  doc = "x * log(other), 0 where x is 0",
}

op.binary "logaddexp" {
  tensors = "x, other",
  saves = "I0 I1",
  flags = "sums",
  doc = "log(exp(x) + exp(other)), without overflow",
}

op.binary "logaddexp2" {
  tensors = "x, other",
  gradient = "logaddexp_grad",
  saves = "I0 I1",
  flags = "sums",
  doc = "log2(2^x + 2^other), without overflow",
}

op.binary "special_xlog1py" {
  tensors = "x#, other#",
  saves = "I0 I1",
  flags = "sums",
  doc = "x * log(1 + other), 0 where x is 0",
}

op.binary "nextafter" {
  tensors = "x, other",
  saves = "I0 I1",
  doc = "the number of x's dtype next to x on the way to other",
}

op.binary "eq" {
  tensors = "x#, other#",
  gradient = false,
  doc = "x == other, elementwise",
}

op.binary "ne" {
  tensors = "x#, other#",
  gradient = false,
  doc = "x ~= other, elementwise",
}

op.binary "lt" {
  tensors = "x#, other#",
  gradient = false,
  doc = "x < other",
}

op.binary "le" {
  tensors = "x#, other#",
  gradient = false,
  doc = "x <= other",
}

op.binary "gt" {
  tensors = "x#, other#",
  gradient = false,
  doc = "x > other",
}

op.binary "ge" {
  tensors = "x#, other#",
  gradient = false,
  doc = "x >= other",
}

op.binary "logical_and" {
  tensors = "x, other#",
  gradient = false,
  doc = "both are not 0",
}

op.binary "logical_or" {
  tensors = "x, other#",
  gradient = false,
  doc = "one of them is not 0",
}

op.binary "logical_xor" {
  tensors = "x, other#",
  gradient = false,
  doc = "just one of them is not 0",
}

op.binary "bitwise_and" {
  tensors = "x#, other#",
  gradient = false,
  doc = "the bits that both have; integers or bool",
}

op.binary "bitwise_or" {
  tensors = "x#, other#",
  gradient = false,
  doc = "the bits that one of them has; integers or bool",
}

op.binary "bitwise_xor" {
  tensors = "x#, other#",
  gradient = false,
  doc = "the bits that just one of them has; integers or bool",
}

op.binary "bitwise_left_shift" {
  tensors = "x#, other#",
  gradient = false,
  doc = "x's bits moved up by other, x * 2^other without the bits that leave; integers; 0 where "
    .. "other is negative",
}

op.binary "bitwise_right_shift" {
  tensors = "x#, other#",
  gradient = false,
  doc = "x's bits moved down by other, floor(x / 2^other); integers; 0, or -1 of a negative x, "
    .. "where other is negative",
}

op.binary "gcd" {
  tensors = "x#, other#",
  gradient = false,
  doc = "the greatest common divisor of two integers, 0 or more",
}

op.binary "lcm" {
  tensors = "x#, other#",
  gradient = false,
  doc = "the least common multiple of two integers, 0 or more",
}

op.composed "heaviside" {
  tensors = "x, values#",
  flags = "inplace",
  doc = "0 where x is negative, 1 where it is positive, values where it is 0",
}

op.composed "isclose" {
  tensors = "x, other",
  options = {"rtol:num=1e-5", "atol:num=1e-8", "equal_nan:bool=0"},
  doc = "|x - other| <= atol + rtol |other|",
}

op.binary "gamma_f64_slope" {
  tensors = "x, other",
  gradient = false,
  flags = "hidden",
  doc = "the derivative in its shape x of a number that standard_gamma gave; computed in float64",
}
