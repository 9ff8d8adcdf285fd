-- Functions of three operands, elementwise.
local op = ...

op.kernel "where" {
  tensors = "condition, input#, other#",
  saves = "I0",
  flags = "pointwise layout",
  doc = "input where the condition holds, else other",
}

op.kernel "clamp" {
  tensors = "x",
  options = {"min:optnum=none", "max:optnum=none"},
  saves = "I0",
  flags = "inplace pointwise layout",
  doc = "x held between min and max",
}

op.composed "clamp_tensor" {
  tensors = "x, min#?, max#?",
  flags = "hidden",
  doc = "clamp with tensors as bounds",
}

op.kernel "clamp_backward" {
  tensors = "gy, x",
  options = {"min:optnum=none", "max:optnum=none"},
  saves = "I1",
  flags = "hidden pointwise layout",
  attr = "dm_ClampAttr",
  doc = "gy where x lies between min and max, else 0",
}

op.kernel "nan_to_number" {
  tensors = "x, posinf#, neginf#",
  options = {"nan:num=0", "replaced:bool=1"},
  saves = "I0",
  flags = "hidden pointwise layout",
  doc = "x with numbers for NaN and the infinities, which have a gradient where they are not "
    .. "replaced",
}

op.kernel "lerp" {
  tensors = "x, end, weight#",
  saves = "I0 I1 I2",
  flags = "inplace pointwise layout sums",
  doc = "x + weight * (end - x)",
}

op.kernel "addcmul" {
  tensors = "x, tensor1, tensor2",
  options = {"value:num=1"},
  saves = "I1 I2",
  autocast = {cuda = "promote"},
  flags = "inplace pointwise layout sums",
  attr = "dm_ValueAttr",
  doc = "x + value * t1 * t2",
}

op.kernel "addcdiv" {
  tensors = "x, tensor1, tensor2",
  options = {"value:num=1"},
  saves = "I1 I2",
  autocast = {cuda = "promote"},
  flags = "inplace pointwise layout sums",
  attr = "dm_ValueAttr",
  doc = "x + value * t1 / t2",
}

op.kernel "triple_backward" {
  tensors = "gy, a, b?",
  options = {"formula:int", "p:num", "wide:bool"},
  gradient = false,
  flags = "hidden pointwise layout",
  doc = "gy times a partial derivative of an op of several operands; wide: float32 of 16 bits",
}

op.kernel "triple_backward_sums" {
  tensors = "gy, a, b?",
  options = {"formula:int", "p:num", "size:sizes"},
  gradient = false,
  cuda = false,
  flags = "hidden",
  doc = "triple_backward, in float32, summed to the size of an operand that was broadcast",
}
