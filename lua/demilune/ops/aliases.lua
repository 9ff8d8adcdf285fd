-- Other names of ops: {name = op}. An op's in-place form gets them too.
local ALIASES = [[
  abs: absolute
  acos: arccos
  acosh: arccosh
  asin: arcsin
  asinh: arcsinh
  atan: arctan
  atan2: arctan2
  atanh: arctanh
  cat: concat concatenate
  clamp: clip
  div: divide true_divide
  flatten: ravel
  gt: greater
  ge: greater_equal
  igamma: special_gammainc
  igammac: special_gammaincc
  le: less_equal
  linalg_det: det
  linalg_householder_product: orgqr
  linalg_inv: inverse
  linalg_matrix_power: matrix_power
  linalg_slogdet: slogdet
  lt: less
  matmul: linalg_matmul
  movedim: moveaxis
  mul: multiply
  ne: not_equal
  neg: negative
  nonzero: argwhere
  outer: ger
  sign: sgn
  sub: subtract
  tile: repeat
  totable: tolist
  transpose: swapaxes swapdims
  trapezoid: trapz
  trunc: fix
  vstack: row_stack
]]
local aliases = {}
for op, names in ALIASES:gmatch "([%w_]+): ([^\n]+)" do
  for name in names:gmatch "%S+" do aliases[name] = op end
end
return aliases
