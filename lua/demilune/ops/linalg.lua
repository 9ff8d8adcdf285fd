-- Linear algebra: older names, factorizations made of others.

local core = require "demilune.core"
local caller = require "demilune.caller"
local op, rows = require("demilune.ops.define").family()

op.inner("x, other", "sums of products over the last dims of both; the product where one is 0-dim",
  function(x, other)
    if x:dim() == 0 or other:dim() == 0 then return x * other end
    if x:dim() == 1 and other:dim() == 1 then return core.dot(x, other) end
    return core.tensordot(x, other, {dims_self = {-1}, dims_other = {-1}})
  end)

-- ---- LU, LDL ----

-- The position of the first pivot that is 0, and 0 where none is, for each matrix.
local function first_zero(U)
  local zero = U:diagonal{dim1 = -2, dim2 = -1}:eq(0)
  if zero:size(-1) == 0 then return zero:sum(-1):int() end
  return core.where(zero:any(-1), zero:int():argmax(-1), 0):int()
end

-- Raises where an info is not 0.
local function check_info(name, info)
  local worst = info:numel() > 0 and info:max():item() or 0
  if worst > 0 then caller.raise("%s: a matrix is singular: pivot %d is 0", name, worst) end
end

op.linalg_lu_factor_ex("A; pivot = true, check_errors = false", "lu_factor, and for each matrix "
  .. "0, or "
  .. "the first pivot that is 0; counts from 1", function(A, pivot, check_errors)
  if not pivot then caller.raise("linalg.lu_factor_ex: pivot = false is for CUDA in PyTorch; hint: "
    .. "leave it out") end
  local LU, pivots = core.linalg_lu_factor(A)
  local info = first_zero(LU)
  if check_errors then check_info("linalg.lu_factor_ex", info) end
  return LU, pivots, info
end)
op.linalg_solve_ex("A, B; left = true, check_errors = false", "solve, and for each matrix 0, or "
  .. "the first "
  .. "pivot that is 0 and NaN as solution; counts from 1", function(A, B, left, check_errors)
  local info = first_zero((core.linalg_lu_factor(A:detach())))
  if check_errors then check_info("linalg.solve_ex", info) end
  local bad = info:ne(0)
  local eye = core.eye(A:size(-1), {dtype = A.dtype, device = A.device})
  local X = core.linalg_solve(core.where(bad:unsqueeze(-1):unsqueeze(-1), eye, A), B, {left = left})
  while bad:dim() < X:dim() do bad = bad:unsqueeze(-1) end
  return core.where(bad, 0 / 0, X), info
end)
op.lu("A; pivot = true, get_infos = false", "lu_factor; with get_infos also what lu_factor_ex "
  .. "gives",
  function(A, pivot, get_infos)
    local LU, pivots, info = core.linalg_lu_factor_ex(A, {pivot = pivot})
    if get_infos then return LU, pivots, info end
    return LU, pivots
  end)
op.lu_solve("B, LU, pivots", "X with A X = B from A's lu_factor", function(B, LU, pivots)
  return core.linalg_lu_solve(LU, pivots, B)
end)
op.lu_unpack("LU, pivots; unpack_data = true, unpack_pivots = true", "P, L and U from what "
  .. "lu_factor gives; "
  .. "empty ones where they are not wanted", function(LU, pivots, unpack_data, unpack_pivots)
  local m, n = LU:size(-2), LU:size(-1)
  local k, none = math.min(m, n), LU:new_empty(0)
  local P, L, U = none, none, none
  if unpack_data then
    L = LU:narrow(-1, 1, k):tril(-1) + core.eye(m, k, {dtype = LU.dtype, device = LU.device})
    U = LU:narrow(-2, 1, k):triu()
  end
  if unpack_pivots then
    local order = {table.unpack(pivots.shape)}
    order[#order] = m
    local rows_of = core.arange(1, m, {dtype = "int64", device = LU.device}):expand(order):clone()
    for i = 1, k do -- exchange i with its pivot
      local other = pivots:narrow(-1, i, 1):long()
      local here, there = rows_of:narrow(-1, i, 1):clone(), rows_of:gather(-1, other)
      rows_of:scatter_(-1, other, here)
      rows_of:narrow(-1, i, 1):copy_(there)
    end
    P = core.one_hot(rows_of, {num_classes = m}):to(LU.dtype).mT
  end
  return P, L, U
end)
op.linalg_ldl_factor("A; hermitian = false", "A = L D L^T of symmetric matrices, of which the "
  .. "lower triangle "
  .. "is read, as LAPACK's sytrf packs it, and its pivots; hermitian changes nothing for real "
  .. "numbers",
  function(A, hermitian)
    local LD, pivots, info = core.linalg_ldl_factor_ex(A, {hermitian = hermitian})
    check_info("linalg.ldl_factor", info)
    return LD, pivots
  end)
op.triangular_solve("B, A; upper = true, transpose = false, unitriangular = false", "X with A X = "
  .. "B (or "
  .. "A^T X = B), reading one triangle of A, and A", function(B, A, upper, transpose, unitriangular)
  local of = transpose and A.mT or A
  local batch = core.broadcast_shapes({table.unpack(A.shape, 1, A:dim() - 2)},
    {table.unpack(B.shape, 1, B:dim() - 2)})
  local function wide(M)
    local shape = {table.unpack(batch)}
    shape[#shape + 1], shape[#shape + 2] = M:size(-2), M:size(-1)
    return M:expand(shape)
  end
  return core.linalg_solve_triangular(wide(of), wide(B), {upper = upper ~= transpose,
    unitriangular = unitriangular}), wide(A):clone()
end, "like:linalg_solve")

-- ---- QR ----

op.ormqr("A, tau, other; left = true, transpose = false", "Q times other (or other times Q), Q or "
  .. "its "
  .. "transpose being the product of the reflectors that geqrf "
  .. "leaves", function(A, tau, C, left, transpose)
  local m, k = A:size(-2), tau:size(-1)
  local v = A:narrow(-1, 1, k):tril(-1) + core.eye(m, k, {dtype = A.dtype, device = A.device})
  local first, last, step = k, 1, -1 -- Q C applies the last reflector first
  if left == transpose then first, last, step = 1, k, 1 end
  for i = first, last, step do
    local column, t = v:narrow(-1, i, 1), tau:narrow(-1, i, 1):unsqueeze(-1)
    if left then C = C - column * t * core.matmul(column.mT, C)
    else C = C - core.matmul(C, column) * t * column.mT end
  end
  return C
end)

-- ---- singular values, eigenvalues ----

op.svd("A; some = true, compute_uv = true", "U, S and V with A = U diag(S) V^T; some: min(m, n) "
  .. "columns of "
  .. "both; without compute_uv U and V are zeros", function(A, some, compute_uv)
  if not compute_uv then
    local batch = {table.unpack(A.shape, 1, A:dim() - 2)}
    local function square(n)
      batch[A:dim() - 1], batch[A:dim()] = n, n
      return A:new_zeros(batch)
    end
    return square(A:size(-2)), core.linalg_svdvals(A), square(A:size(-1))
  end
  local U, S, Vh = core.linalg_svd(A, {full_matrices = not some})
  return U, S, Vh.mT
end, "like:linalg_svd")
-- The range of A found by random vectors and niter rounds; Halko et al. 2009, algorithm 4.4.
local function range_of(A, q, niter)
  local Q = core.matmul(A, core.randn(A:size(-1), q, {dtype = A.dtype, device = A.device}))
  Q = core.linalg_qr(Q)
  for _ = 1, niter do
    Q = core.linalg_qr(core.matmul(A.mT, Q))
    Q = core.linalg_qr(core.matmul(A, Q))
  end
  return Q
end
local function low_rank(A, q, niter)
  if A:size(-2) < A:size(-1) then
    local U, S, V = low_rank(A.mT, q, niter)
    return V, S, U
  end
  local Q = range_of(A, q, niter)
  local U, S, Vh = core.linalg_svd(core.matmul(Q.mT, A), {full_matrices = false})
  return core.matmul(Q, U), S, Vh.mT
end
op.svd_lowrank("A, M?; q = 6, niter = 2", "U, S and V of about the q largest singular values of A "
  .. "- M, by "
  .. "random vectors; Halko et al. 2009", function(A, M, q, niter)
  return low_rank(M and A - M or A, math.min(q, A:size(-2), A:size(-1)), niter)
end)
op.pca_lowrank("A; q?, center = true, niter = 2", "svd_lowrank of the rows of A (6 values where q "
  .. "is not "
  .. "given), less their mean where they are centered", function(A, q, center, niter)
  local most = math.min(A:size(-2), A:size(-1))
  q = q or math.min(6, most)
  if q < 0 or q > most then caller.raise("pca_lowrank: q is %d, wanted 0 to %d", q, most) end
  return low_rank(center and A - A:mean(-2, {keepdim = true}) or A, q, niter)
end)

return rows
