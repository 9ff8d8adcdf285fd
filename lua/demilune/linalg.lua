-- demilune.linalg: linear algebra, by LAPACK (liblapack.so.3, opened by the first call;
-- Debian's libopenblas0-serial has a fast one).
-- Matrices are the last two dims, {..., m, n}; the dims before them count matrices, and
-- messages count these from 1. float32 and float64, on the CPU: those of another device are
-- computed there and go back. Each op linalg_NAME is linalg.NAME; dm.help "linalg.svd" tells
-- its arguments. Differentiable, but for matrix_rank and what belongs to equal singular
-- values or eigenvalues.
--
--   inv solve det slogdet lu_factor lu_solve cholesky solve_triangular
--   qr svd svdvals eigh eigvalsh pinv lstsq matrix_rank cond
--   norm vector_norm matrix_norm matrix_power matrix_exp multi_dot cross vecdot vander
--   lu householder_product tensorinv tensorsolve diagonal inv_ex cholesky_ex

local caller = require "demilune.caller"
local options = require "demilune.options"

local linalg = require "demilune.namespace" "linalg_"

linalg.matrix_exp = require "demilune.core".matrix_exp -- which takes 16 bits, too

local bind_norm = options.signature("linalg.norm", [[input: tensor, ord?: number|'fro'|'nuc',
  dim?: size, keepdim: boolean = false, *, dtype?: dtype]])

--- norm(x, ord, dim, {keepdim = false, dtype = x.dtype}): ord and dim may also be options.
--- Without ord: the 2-norm of all elements, or of those along dim. With ord, which is a
--- number, math.huge or -math.huge, for matrices also "fro" and "nuc": of a vector or a
--- matrix, as dim names one dim or two, or as x has. Raises where x has neither.
function linalg.norm(...)
  local o = bind_norm(...)
  local x, ord, dim = o.input, o.ord, o.dim
  local n = dim == nil and ord ~= nil and x:dim() or type(dim) == "table" and #dim or 1
  if n ~= 1 and n ~= 2 then
    caller.raise("linalg.norm: x has %d dims, wanted one or two where ord is given and dim is not",
      n)
  end
  local norm = n == 2 and ord ~= nil and linalg.matrix_norm or linalg.vector_norm
  return norm(x, {ord = ord, dim = dim, keepdim = o.keepdim, dtype = o.dtype})
end

return linalg
