-- Linear algebra of matrices in the last two dims; on the host, by LAPACK.
local op = ...

op.kernel "linalg_inv" {
  tensors = "A",
  saves = "O0",
  autocast = {cpu = "fp32"},
  flags = "any_device",
  doc = "inverses of square matrices",
}

op.kernel "linalg_det" {
  tensors = "A",
  saves = "I0 O0",
  flags = "any_device",
  doc = "determinants",
}

op.kernel "linalg_slogdet" {
  tensors = "A",
  outputs = 2,
  rule = "linalg_det_rule",
  cpu = "linalg_det_any",
  saves = "I0",
  flags = "any_device",
  doc = "sign and log of the absolute value of determinants",
}

op.composed "logdet" {
  tensors = "A",
  doc = "log of determinants; NaN of negative ones",
}

op.composed "linalg_solve" {
  tensors = "A, B",
  options = {"left:bool=1"},
  autocast = {cpu = "fp32"},
  doc = "X with A X = B, or X A = B where left is false; B holds matrices, or one vector for each "
    .. "matrix of A",
}

op.kernel "solve_matrices" {
  tensors = "A, B",
  saves = "I0 O0",
  flags = "hidden any_device",
  doc = "X with A X = B, of matrices",
}

op.kernel "linalg_lu_factor" {
  tensors = "A",
  options = {"pivot:bool=1"},
  attr = "dm_LuAttr",
  outputs = 2,
  saves = "O0 O1",
  flags = "any_device",
  doc = "P A = L U: L below the diagonal, where it has ones, U above; and LAPACK's pivots, which "
    .. "count from 1",
}

op.kernel "lu_order" {
  tensors = "pivots",
  options = {"n:int", "back:bool=0"},
  gradient = false,
  flags = "hidden any_device",
  doc = "the order of n rows that lu_factor's pivots stand for, or the way back",
}

op.composed "linalg_lu_solve" {
  tensors = "LU, pivots, B",
  options = {"left:bool=1", "adjoint:bool=0"},
  doc = "X with A X = B from lu_factor(A); X A = B where left is false; with the transpose of A: "
    .. "adjoint",
}

op.kernel "linalg_cholesky" {
  tensors = "A",
  options = {"upper:bool=0"},
  rule = "linalg_inv_rule",
  saves = "O0",
  autocast = {cpu = "fp32"},
  flags = "any_device",
  attr = "dm_CholeskyAttr",
  doc = "L with A = L L^T of positive definite matrices, of which the lower triangle is read; "
    .. "upper: U with A = U^T U, by the upper one",
}

op.composed "cholesky_solve" {
  tensors = "B, L",
  options = {"upper:bool=0"},
  autocast = {cpu = "fp32"},
  attr = "dm_CholeskyAttr",
  doc = "X with A X = B from A's Cholesky factor",
}

op.composed "cholesky_inverse" {
  tensors = "L",
  options = {"upper:bool=0"},
  autocast = {cpu = "fp32"},
  attr = "dm_CholeskyAttr",
  doc = "A's inverse from its Cholesky factor",
}

op.kernel "linalg_solve_triangular" {
  tensors = "A, B",
  options = {"upper:bool", "left:bool=1", "unitriangular:bool=0"},
  saves = "I0 O0",
  flags = "any_device",
  attr = "dm_TriangularAttr",
  doc = "X with A X = B, or X A = B where left is false, reading one triangle of A; "
    .. "unitriangular: with ones on its diagonal",
}

op.kernel "linalg_ldl_factor_ex" {
  tensors = "A",
  options = {"hermitian:bool=0"},
  outputs = 3,
  gradient = false,
  flags = "any_device",
  doc = "A = L D L^T of symmetric matrices, of which the lower triangle is read, as LAPACK's sytrf "
    .. "packs it; its pivots; and for each matrix 0, or the first of D that is 0. hermitian "
    .. "changes nothing for real numbers",
}

op.kernel "ldl_solve_matrices" {
  tensors = "LD, B, pivots",
  rule = "solve_matrices_rule",
  gradient = false,
  flags = "hidden any_device",
  doc = "ldl_solve, with pivots for each of the result's matrices",
}

op.composed "linalg_ldl_solve" {
  tensors = "LD, pivots, B",
  options = {"hermitian:bool=0"},
  attr = "dm_LinalgLdlFactorExAttr",
  doc = "X with A X = B from ldl_factor(A)",
}

op.kernel "geqrf" {
  tensors = "A",
  outputs = 2,
  gradient = false,
  autocast = {cpu = "fp32"},
  flags = "any_device",
  doc = "A = Q R as LAPACK leaves it: R in the upper triangle, below it the vectors v of Q's "
    .. "reflectors 1 - tau v v^T without their leading 1; and their tau",
}

op.composed "linalg_polar" {
  tensors = "A",
  outputs = 2,
  doc = "A = U H with orthonormal columns U, the nearest such matrix, and a symmetric H whose "
    .. "eigenvalues are at least 0; A has no fewer rows than columns",
}

op.composed "linalg_matrix_sqrth" {
  tensors = "A",
  doc = "the symmetric X with X X = A, of positive definite matrices, of which the lower triangle "
    .. "is read",
}

op.kernel "linalg_qr" {
  tensors = "A",
  options = {"mode:enum(reduced|complete|r)=reduced"},
  outputs = 2,
  saves = "O0 O1",
  autocast = {cpu = "fp32"},
  flags = "any_device",
  doc = "A = Q R with orthogonal Q (m, min(m, n)) and upper triangular R; complete: Q (m, m); r: "
    .. "R alone, and an empty Q",
}

op.kernel "linalg_svd" {
  tensors = "A",
  options = {"full_matrices:bool=1"},
  outputs = 3,
  saves = "O0 O1 O2",
  autocast = {cpu = "fp32"},
  flags = "any_device",
  doc = "U, S and Vh with A = U diag(S) Vh, S falling; full_matrices: U (m, m) and Vh (n, n), "
    .. "else min(m, n) columns and rows",
}

op.kernel "linalg_svdvals" {
  tensors = "A",
  saves = "I0",
  autocast = {cpu = "fp32"},
  flags = "any_device",
  doc = "singular values, falling",
}

op.kernel "linalg_eigh" {
  tensors = "A",
  options = {"UPLO:enum(L|U)=L"},
  outputs = 2,
  saves = "O0 O1",
  autocast = {cpu = "fp32"},
  flags = "any_device",
  attr = "dm_UploAttr",
  doc = "eigenvalues of symmetric matrices, rising, and eigenvectors in columns; UPLO: which "
    .. "triangle is read",
}

op.kernel "linalg_eigvalsh" {
  tensors = "A",
  options = {"UPLO:enum(L|U)=L"},
  rule = "linalg_eigh_rule",
  saves = "I0",
  autocast = {cpu = "fp32"},
  flags = "any_device",
  attr = "dm_UploAttr",
  doc = "eigenvalues of symmetric matrices, rising",
}

op.composed "pinverse" {
  tensors = "A, atol#?, rtol#?",
  options = {"hermitian:bool=0"},
  autocast = {cpu = "fp32"},
  attr = "dm_RankAttr",
  doc = "pseudoinverses: singular values not above max(atol, rtol * the largest) count as 0; rtol "
    .. "is max(m, n) eps where neither is given; both may be tensors with a number for each matrix",
}

op.kernel "pinv_matrices" {
  tensors = "A, atol, rtol",
  saves = "I0 O0",
  flags = "hidden any_device",
  doc = "pinverse with both tolerances",
}

op.composed "linalg_pinv" {
  tensors = "A, atol#?, rtol#?",
  options = {"hermitian:bool=0"},
  attr = "dm_RankAttr",
  doc = "pseudoinverses, as pinverse gives them; under autocast in the dtype of products",
}

op.kernel "lstsq_matrices" {
  tensors = "A, B",
  options = {"rcond:num", "driver:int"},
  outputs = 3,
  saves = "I0 I1",
  flags = "hidden any_device",
  doc = "lstsq of matrices: X, A's rank and its singular values, of which those up to rcond times "
    .. "the largest count as 0; the driver is one of DM_LSTSQ_...",
}

op.composed "linalg_lstsq" {
  tensors = "A, B",
  options = {"rcond:optnum=none", "driver:enum(none|gels|gelsy|gelsd|gelss)=none"},
  outputs = 4,
  autocast = {cpu = "fp32"},
  doc = "X that makes |A X - B| least, the shortest one; and of what the driver (gelsy where none "
    .. "is given) gives, empty tensors for the others: the squared remainders where A has more "
    .. "rows than columns, all independent (not gelsy); A's rank (not gels); its singular values "
    .. "(gelsd, gelss)",
}

op.composed "linalg_matrix_rank" {
  tensors = "A, atol#?, rtol#?",
  options = {"hermitian:bool=0"},
  autocast = {cpu = "fp32"},
  attr = "dm_RankAttr",
  doc = "how many singular values are above max(atol, rtol * the largest), as pinverse has these",
}

op.composed "linalg_cond" {
  tensors = "A",
  options = {"p:enum(none|fro|nuc|1|-1|2|-2|inf|-inf)=none"},
  autocast = {cpu = "fp32"},
  doc = "norm of A times norm of its inverse; by singular values where no p is given",
}

op.composed "linalg_matrix_norm" {
  tensors = "A",
  options = {
    "ord:enum(fro|nuc|1|-1|2|-2|inf|-inf)=fro", "dim:dims=none", "keepdim:bool=0",
    "dtype:dtype=none",
  },
  autocast = {cuda = "fp32_set_opt_dtype"},
  flags = "widen",
  doc = "norms of matrices in the last two dims or those given: fro, nuc (sum of singular "
    .. "values), 2 (the largest), 1 (largest sum of a column), inf (of a row); -1, -2, -inf: the "
    .. "smallest",
}

op.composed "linalg_vector_norm" {
  tensors = "x",
  options = {"ord:num=2", "dim:dims=none", "keepdim:bool=0", "dtype:dtype=none"},
  autocast = {cuda = "fp32_set_opt_dtype"},
  doc = "(sum of |x|^ord)^(1/ord) over all dims or those given; ord may be inf, -inf or 0",
}

op.composed "linalg_matrix_power" {
  tensors = "A",
  options = {"n:int"},
  flags = "widen",
  doc = "A multiplied with itself n times; of the inverse where n is negative",
}

op.composed "linalg_multi_dot" {
  tensors = "tensors...",
  autocast = {cuda = "lower_precision_fp"},
  doc = "product of two or more matrices in the order that takes least; a vector may stand at "
    .. "either end",
}

op.kernel "cross_rows" {
  tensors = "x, other",
  saves = "I0 I1",
  cuda = false,
  flags = "hidden",
  doc = "cross products of rows of three elements, of one shape",
}

op.composed "linalg_cross" {
  tensors = "x, other",
  options = {"dim:dim=-1"},
  flags = "widen",
  doc = "cross products of vectors of three elements along a dim",
}

op.composed "cross" {
  tensors = "x, other",
  options = {"dim:optdim=none"},
  autocast = {cuda = "promote"},
  flags = "widen",
  doc = "cross products along a dim of three elements, the first such one where none is given",
}

op.composed "linalg_vecdot" {
  tensors = "x, y",
  options = {"dim:dim=-1"},
  autocast = "lower_precision_fp",
  flags = "widen",
  doc = "inner products of vectors along a dim",
}

op.composed "linalg_diagonal" {
  tensors = "A",
  options = {"offset:int=0", "dim1:dim=-2", "dim2:dim=-1"},
  doc = "the diagonals of matrices, a view",
}

op.composed "linalg_tensorinv" {
  tensors = "A",
  options = {"ind:int=2"},
  doc = "the inverse of A as a matrix of its first ind dims and the others, in their shapes",
}

op.composed "linalg_tensorsolve" {
  tensors = "A, B",
  options = {"dims:dims=none"},
  doc = "X with tensordot(A, X, the dims that A has more than B) = B; dims of A go to its end "
    .. "before",
}

op.composed "linalg_lu" {
  tensors = "A",
  options = {"pivot:bool=1"},
  attr = "dm_LuAttr",
  outputs = 3,
  doc = "A = P L U: a permutation, a lower triangle with ones on its diagonal, an upper one",
}

op.composed "linalg_householder_product" {
  tensors = "A, tau",
  doc = "the first columns of the product of reflectors 1 - tau v v^T, as a QR factorization "
    .. "leaves them below A's diagonal",
}

op.kernel "linalg_matrix_exp" {
  tensors = "A",
  rule = "linalg_inv_rule",
  saves = "I0",
  flags = "any_device",
  doc = "exponentials of square matrices",
}

op.composed "matrix_exp" {
  tensors = "A",
  flags = "widen",
  doc = "exponentials of square matrices; of 16 bits they are computed in float32 and rounded once",
}

op.kernel "linalg_inv_ex" {
  tensors = "A",
  outputs = 2,
  cpu = "linalg_inv_any",
  gradient = "linalg_inv_grad",
  saves = "O0",
  flags = "any_device",
  doc = "inverses, and for each matrix 0, or the first pivot that is 0 and NaN as inverse; counts "
    .. "from 1",
}

op.kernel "linalg_cholesky_ex" {
  tensors = "A",
  options = {"upper:bool=0"},
  outputs = 2,
  rule = "linalg_inv_ex_rule",
  cpu = "linalg_cholesky_any",
  gradient = "linalg_cholesky_grad",
  saves = "O0",
  flags = "any_device",
  attr = "dm_CholeskyAttr",
  doc = "Cholesky factors, and for each matrix 0, or the first pivot that is not above 0 and NaN "
    .. "as factor; counts from 1",
}

op.composed "linalg_vander" {
  tensors = "x",
  options = {"N:int=-1"},
  flags = "widen",
  doc = "powers 0 to N - 1 (or as many as x has elements) of each element, in a new last dim",
}

op.composed "vander" {
  tensors = "x",
  options = {"N:int=-1", "increasing:bool=0"},
  flags = "widen",
  doc = "powers N - 1 (as many as x has elements) to 0 of each element of a vector, a row each; "
    .. "increasing: from 0 on",
}
