-- Matrix products.
local op = ...

op.kernel "matmul" {
  tensors = "x, other",
  saves = "C0 C1",
  autocast = "lower_precision_fp",
  doc = "matrix product of the last two dims, batches broadcast; a vector is a row or a column",
}

op.kernel "mm" {
  tensors = "x, mat2",
  cpu = "matmul_cpu",
  cuda = "matmul_cuda",
  gradient = "matmul_grad",
  saves = "C0 C1",
  autocast = "lower_precision_fp",
  doc = "product of two matrices: (n, m) and (m, p) give (n, p)",
}

op.kernel "bmm" {
  tensors = "x, mat2",
  cpu = "matmul_cpu",
  cuda = "matmul_cuda",
  gradient = "matmul_grad",
  saves = "C0 C1",
  autocast = "lower_precision_fp",
  doc = "products of two batches of matrices: (B, n, m) and (B, m, p) give (B, n, p)",
}

op.kernel "mv" {
  tensors = "x, vec",
  cpu = "matmul_cpu",
  cuda = "matmul_cuda",
  gradient = "matmul_grad",
  saves = "C0 C1",
  autocast = {cuda = "lower_precision_fp"},
  doc = "product of a matrix and a vector: (n, m) and (m) give (n)",
}

op.kernel "dot" {
  tensors = "x, tensor",
  cuda = "matmul_cuda",
  gradient = "matmul_grad",
  saves = "C0 C1",
  autocast = {cuda = "promote"},
  doc = "inner product of two vectors",
}

op.composed "vdot" {
  tensors = "x, other",
  autocast = {cuda = "promote"},
  doc = "inner product of two vectors; dot, as there are no complex numbers",
}

op.kernel "addmm" {
  tensors = "x, mat1, mat2",
  options = {"beta:num=1", "alpha:num=1"},
  saves = "I1 I2",
  autocast = "lower_precision_fp",
  flags = "inplace",
  doc = "beta * x + alpha * (mat1 mat2); beta 0 does not read x",
}

op.kernel "baddbmm" {
  tensors = "x, batch1, batch2",
  options = {"beta:num=1", "alpha:num=1"},
  cpu = "addmm_cpu",
  cuda = "addmm_cuda",
  gradient = "addmm_grad",
  saves = "I1 I2",
  autocast = "lower_precision_fp",
  flags = "inplace",
  attr = "dm_AddmmAttr",
  doc = "beta * x + alpha * (batch1 batch2); beta 0 does not read x",
}

op.composed "addbmm" {
  tensors = "x, batch1, batch2",
  options = {"beta:num=1", "alpha:num=1"},
  autocast = "lower_precision_fp",
  flags = "inplace",
  attr = "dm_AddmmAttr",
  doc = "beta * x + alpha * (the sum over the batch of batch1 batch2)",
}

op.composed "addmv" {
  tensors = "x, mat, vec",
  options = {"beta:num=1", "alpha:num=1"},
  autocast = {cuda = "lower_precision_fp"},
  flags = "inplace whole",
  attr = "dm_AddmmAttr",
  doc = "beta * x + alpha * (mat vec)",
}

op.composed "addr" {
  tensors = "x, vec1, vec2",
  options = {"beta:num=1", "alpha:num=1"},
  autocast = {cuda = "lower_precision_fp"},
  flags = "inplace whole",
  attr = "dm_AddmmAttr",
  doc = "beta * x + alpha * (products of all pairs of two vectors' elements)",
}

op.kernel "linear" {
  tensors = "x, weight, bias?",
  options = {"activation:enum(none|relu|gelu|gelu_tanh)=none"},
  outputs = 2,
  saves = "I0 I1 O0 O1",
  autocast = "lower_precision_fp",
  flags = "aside",
  attr = "dm_ActivationAttr",
  doc = "x times the transpose of weight, plus bias: (..., in) and (out, in) give (..., out); of "
    .. "that the activation, before it is rounded",
}

op.composed "linear_vector" {
  tensors = "x, weight, bias?",
  options = {"activation:enum(none|relu|gelu|gelu_tanh)=none"},
  flags = "hidden",
  attr = "dm_ActivationAttr",
  doc = "linear with a vector as weight, of one output that has no dim of its own",
}

op.kernel "linear_backward" {
  tensors = "gy, x, saved?",
  options = {"activation:enum(none|relu|gelu|gelu_tanh)=none"},
  outputs = 3,
  gradient = false,
  flags = "hidden",
  attr = "dm_ActivationAttr",
  doc = "linear's gradients: weight, bias and, where there is an activation, what it got",
}

op.kernel "addmm_backward" {
  tensors = "gy, mat1",
  outputs = 2,
  cpu = false,
  gradient = false,
  flags = "hidden",
  doc = "addmm's gradients of mat2, and of an x that is a row: mat1's transpose times gy, and the "
    .. "sum of gy's rows",
}

op.composed "trace" {
  tensors = "x",
  autocast = {cpu = "fp32"},
  doc = "sum of the diagonal of a matrix",
}

op.composed "outer" {
  tensors = "x, vec2",
  doc = "products of all pairs of two vectors' elements: (n) and (m) give (n, m)",
}

op.composed "kron" {
  tensors = "x, other",
  flags = "widen",
  doc = "Kronecker product: each element of x as a block, times other",
}

op.composed "tensordot" {
  tensors = "a, b",
  options = {"dims:int=2", "dims_self:dims=none", "dims_other:dims=none"},
  autocast = {cuda = "promote"},
  doc = "sums of products over the last dims of a and as many first ones of b, or over those "
    .. "named; dims may be a table of both lists",
}

op.composed "einsum" {
  tensors = "operands...",
  options = {"equation:str"},
  autocast = {cuda = "lower_precision_fp"},
  doc = "sums of products by named dims, as in \"ij,jk->ik\"",
}

op.composed "bilinear" {
  tensors = "input1, input2, weight, bias?",
  autocast = {cuda = "promote"},
  flags = "widen",
  doc = "input1 W_o input2 for each matrix of weight (O,I,J), plus bias",
}
