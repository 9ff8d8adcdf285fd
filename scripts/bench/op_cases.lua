-- The cases of ops.lua: every op of the table (dm.ops) that PyTorch has, too, as a row that both
-- sides understand, and the names of those left out with the reason.
--
-- A row has its names, which share it, and the inputs, "n:RxC p!:RxC weight@n:C": a letter for the
-- values, after "@" where the op takes the tensor by that name, with "!" where it takes no
-- gradient, and the shape. The letters:
--   n  normal; of integers -9 to 9; of booleans either   p, u, s, o  uniform in (0.1, 2),
--   (0.05, 0.95), (-0.95, 0.95), (1.1, 3)   m  booleans   lK  int64 from the first of K positions
--   c  int64 from 1 to 3   w  float32 in (0, 1)   r, h  rows that are probabilities, logarithms of
--   them   t  sorted rows   g  -1 or 1   d, e  symmetric and lower triangular matrices that can be
--   inverted   z  complex
-- The sizes of a case of n elements: R x C and N, near a square and all; B images of K channels,
-- H x H each, or K signals of L; P volumes of Q channels, D x D x D; K matrices, J x J each. A
-- number may come first: 2C.
-- Options are "key:value" or ":value" (by position), with letters for sizes and T for the dtype.
--
-- Further fields: its, PyTorch's options where they differ; peer, its name for the op ("F.pad");
-- dtypes; layouts; fixed = true without gradients; least, the fewest elements; counts, elements in
-- the columns of 1k, 1M and 16M for ops whose time or output grows faster; form, "list" where the
-- inputs are one list, "at1" where the options by position come after the first input.
local cases = {}

local FLOATS = "float32,bfloat16,float16"
local NUMBERS, ALL = FLOATS .. ",int64", FLOATS .. ",int64,bool"
local LAYOUTS = "contiguous,transposed,broadcast"

local rows = {}
cases.rows = rows

-- Adds a row for each of the names.
local function add(family, names, inputs, row)
  row = row or {}
  for name in names:gmatch "%S+" do
    rows[#rows + 1] = setmetatable({name = name, family = family, inputs = inputs},
      {__index = function(_, key)
        if row[key] ~= nil then return row[key] end
        if key == "dtypes" then return FLOATS end
        if key == "layouts" then return "contiguous" end
        if key == "options" then return "" end
      end})
  end
end

-- ---------------------------------------------------------------------------
-- Elementwise
-- ---------------------------------------------------------------------------
add("unary", "neg abs sign square", "n:RxC", {dtypes = NUMBERS, layouts = LAYOUTS})
add("unary", [[floor ceil round trunc exp expm1 exp2 sin cos tan asinh atan sinh cosh tanh sigmoid
  erf erfc sinc frac deg2rad rad2deg nan_to_num]], "n:RxC", {layouts = LAYOUTS})
add("unary", "log log1p log2 log10 sqrt rsqrt reciprocal", "p:RxC", {layouts = LAYOUTS})
add("unary", "asin acos atanh erfinv", "s:RxC", {layouts = LAYOUTS})
add("unary", "acosh", "o:RxC", {layouts = LAYOUTS})
add("unary", "logit", "u:RxC", {layouts = LAYOUTS})
add("unary", "isnan isinf isfinite signbit", "n!:RxC", {layouts = LAYOUTS})
add("unary", "logical_not", "n!:RxC", {dtypes = ALL, layouts = LAYOUTS})
add("unary", "bitwise_not", "n!:RxC", {dtypes = "int64,bool", layouts = LAYOUTS})

add("special", "lgamma digamma special_ndtri special_entr", "u:RxC")
add("special", "polygamma", "p:RxC", {options = ":1", form = "at0"})
add("special", "i0 special_i0e special_i1 special_i1e special_erfcx special_log_ndtr special_ndtr",
  "n:RxC")
add("special", [[special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
  special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
  special_scaled_modified_bessel_k1 special_airy_ai special_spherical_bessel_j0]], "p!:RxC",
  {dtypes = "float32"})
add("special", "mvlgamma", "o:RxC", {options = "p:2"})

add("activation", [[relu leaky_relu elu silu softplus hardtanh hardsigmoid hardswish mish logsigmoid
  softshrink hardshrink relu6 selu celu softsign tanhshrink gelu]], "n:RxC", {layouts = LAYOUTS})
add("activation", "gelu", "n:RxC", {options = "approximate:tanh"})
add("activation", "threshold", "n:RxC", {options = ":0.1&:20"})
add("activation", "prelu", "n:RxC n:1")
add("activation", "glu", "n:Rx2C", {options = ":-1"})

add("binary", "add_relu", "n:RxC n:RxC", {layouts = LAYOUTS})
add("binary", "add sub mul maximum minimum", "n:RxC n:RxC", {dtypes = NUMBERS, layouts = LAYOUTS})
add("binary", "div fmod remainder", "n:RxC p:RxC", {dtypes = NUMBERS, layouts = LAYOUTS})
add("binary", "pow xlogy special_xlog1py", "p:RxC p:RxC", {layouts = LAYOUTS})
add("binary", "atan2 copysign hypot logaddexp logaddexp2", "n:RxC n:RxC", {layouts = LAYOUTS})
add("binary", "nextafter", "n!:RxC n!:RxC", {dtypes = "float32,bfloat16", layouts = LAYOUTS})
add("binary", "heaviside", "n!:RxC n!:RxC", {layouts = LAYOUTS})
add("binary", "isclose", "n!:RxC n!:RxC", {dtypes = NUMBERS})
add("binary", "lerp", "n:RxC n:RxC", {options = ":0.3", layouts = LAYOUTS})
add("binary", "addcmul", "n:RxC n:RxC n:RxC", {options = "value:0.5", layouts = LAYOUTS})
add("binary", "addcdiv", "n:RxC n:RxC p:RxC", {options = "value:0.5", layouts = LAYOUTS})
add("binary", "clamp", "n:RxC", {options = ":-0.5&:0.5", layouts = LAYOUTS})
add("binary", "add mul", "n:RxC", {options = ":2", dtypes = NUMBERS})
add("binary", "pow", "n:RxC", {options = ":3"})
add("binary", "div", "n:RxC", {options = ":2"})

add("compare", "eq ne lt le gt ge", "n!:RxC n!:RxC", {dtypes = NUMBERS, layouts = LAYOUTS})
add("compare", "logical_and logical_or logical_xor", "n!:RxC n!:RxC",
  {dtypes = ALL, layouts = LAYOUTS})
add("compare", "bitwise_and bitwise_or bitwise_xor", "n!:RxC n!:RxC",
  {dtypes = "int64,bool", layouts = LAYOUTS})
add("compare", "bitwise_left_shift bitwise_right_shift gcd lcm", "n!:RxC n!:RxC",
  {dtypes = "int64", layouts = LAYOUTS})
add("compare", "where", "m:RxC n:RxC n:RxC", {dtypes = NUMBERS, layouts = LAYOUTS})
add("compare", "isin", "n!:RxC n!:64", {dtypes = "float32,int64"})

-- ---------------------------------------------------------------------------
-- Reductions, scans, orders
-- ---------------------------------------------------------------------------
for _, dim in ipairs{"", ":-1", ":-2"} do
  add("reduce", "sum amax amin", "n:RxC", {options = dim, dtypes = NUMBERS, layouts = LAYOUTS})
  add("reduce", "mean var std nansum nanmean norm", "n:RxC",
    {options = dim == "" and "" or "dim" .. dim, layouts = LAYOUTS})
  add("reduce", "prod", "o:RxC", {options = dim, layouts = LAYOUTS})
  add("reduce", "max min", "n:RxC", {options = dim, dtypes = NUMBERS, layouts = LAYOUTS})
  add("reduce", "argmax argmin", "n!:RxC", {options = dim, dtypes = NUMBERS, layouts = LAYOUTS})
  add("reduce", "any all count_nonzero", "n!:RxC",
    {options = dim, dtypes = "float32,int64,bool", layouts = LAYOUTS})
  if dim ~= "" then
    add("reduce", "logsumexp", "n:RxC", {options = dim, layouts = LAYOUTS})
    add("scan", "cumsum", "n:RxC", {options = dim, dtypes = NUMBERS})
    add("scan", "logcumsumexp", "n:RxC", {options = dim})
    add("scan", "cumprod", "u:RxC", {options = dim})
    add("scan", "cummax cummin", "n:RxC", {options = dim, dtypes = NUMBERS})
    add("order", "sort argsort", "n:RxC", {options = dim, dtypes = NUMBERS, fixed = true})
  end
end
add("reduce", "var_mean std_mean linalg_vector_norm", "n:RxC", {options = "dim:-1"})
add("reduce", "sum_to_size", "n:RxC", {options = ":1,C,", its = ":1&:C"})
add("reduce", "diff", "n:RxC", {dtypes = NUMBERS, least = 4})
add("reduce", "trapezoid", "n:RxC", {least = 4})
add("reduce", "dist", "n:RxC n:RxC")
add("reduce", "renorm", "n:RxC", {options = "p:2&dim:-2&maxnorm:1"})
add("order", "sort", "n:N", {fixed = true})
add("order", "topk", "n:RxC", {options = ":5", least = 64, dtypes = NUMBERS})
add("order", "median nanmedian", "n:RxC", {options = ":-1"})
add("order", "mode", "n:RxC", {options = ":-1", dtypes = "float32,int64", fixed = true})
add("order", "kthvalue", "n:RxC", {options = ":2&:-1", least = 64})
add("order", "quantile nanquantile", "n:RxC", {options = ":0.3&dim:-1", dtypes = "float32"})
add("order", "unique unique_consecutive", "n!:RxC", {dtypes = "float32,int64"})
add("order", "bincount", "l1000:N", {dtypes = "int64"})
add("order", "histc", "n!:N", {options = "bins:100&min:-3&max:3", dtypes = "float32"})
add("order", "bucketize", "n!:RxC t!:64", {dtypes = "float32"})
add("order", "searchsorted", "t!:64 n!:RxC", {dtypes = "float32"})

-- ---------------------------------------------------------------------------
-- Shapes and positions
-- ---------------------------------------------------------------------------
add("shape", "clone", "n:RxC", {dtypes = ALL, layouts = LAYOUTS})
add("shape", "contiguous", "n:RxC", {dtypes = "float32,bfloat16", layouts = "transposed,broadcast"})
add("shape", "to", "n!:RxC", {options = ":float32",
  dtypes = "bfloat16,float16,int64"})
add("shape", "to", "n!:RxC", {options = ":bfloat16", dtypes = "float32,int64"})
add("shape", "to", "n!:RxC", {options = ":int64", dtypes = "float32,bool"})
add("view", "t fliplr flipud", "n:RxC", {dtypes = "float32"})
add("view", "view reshape", "n:RxC", {options = ":N,", dtypes = "float32"})
add("view", "transpose", "n:RxC", {options = ":-1&:-2", dtypes = "float32"})
add("view", "permute", "n:RxC", {options = ":-1,-2", dtypes = "float32"})
add("view", "movedim", "n:RxC", {options = ":-1&:-2", dtypes = "float32"})
add("view", "squeeze", "n:1xN", {dtypes = "float32"})
add("view", "unsqueeze", "n:RxC", {options = ":-1", dtypes = "float32"})
add("view", "expand", "n:1xN", {options = ":2,N", dtypes = "float32"})
add("view", "narrow", "n:RxC", {options = ":-1&:1&:1", its = ":-1&:0&:1", dtypes = "float32"})
add("view", "select", "n:RxC", {options = ":-1&:1", its = ":-1&:0", dtypes = "float32"})
add("view", "diagonal flatten", "n:RxC", {dtypes = "float32"})
add("view", "linalg_diagonal", "n:RxC", {dtypes = "float32"})
add("view", "unflatten", "n:RxC", {options = ":-1&:1,C", dtypes = "float32"})
add("view", "as_strided", "n:RxC", {options = ":R,C&:C,1", dtypes = "float32"})
add("shape", "as_strided_scatter", "n:RxC n:RxC", {options = ":R,C&:C,1", dtypes = "float32"})
for _, dim in ipairs{":-1", ":-2"} do
  add("shape", "cat stack", "n:RxC n:RxC", {options = dim, form = "list", dtypes = NUMBERS,
    layouts = "contiguous,transposed"})
  add("shape", "flip", "n:RxC", {options = dim .. ",", dtypes = NUMBERS,
    layouts = "contiguous,transposed"})
  add("shape", "gather", "n:RxC lR:RxC", {options = dim, form = "at1",
    dtypes = "float32,bfloat16,int64"})
  add("shape", "take_along_dim", "n:RxC lR:RxC", {options = dim, dtypes = "float32"})
  add("shape", "index_select", "n:RxC lR:R", {options = dim, form = "at1",
    dtypes = "float32,bfloat16,int64"})
  add("shape", "scatter scatter_add", "n:RxC lR:RxC n:RxC", {options = dim, form = "at1",
    dtypes = "float32,bfloat16,int64"})
  add("shape", "scatter_reduce", "n:RxC lR:RxC n:RxC", {options = dim .. "&reduce:amax",
    form = "at1", dtypes = "float32", fixed = true})
  add("shape", "index_add index_copy", "n:RxR lR:R n:RxR", {options = dim, form = "at1",
    dtypes = "float32"})
  add("shape", "index_fill", "n:RxC lR:R", {options = dim .. "&value:0.5", form = "at1",
    dtypes = "float32"})
end
add("shape", "hstack vstack dstack column_stack", "n:RxC n:RxC",
  {form = "list", dtypes = "float32"})
add("shape", "block_diag", "n:RxC n:RxC", {dtypes = "float32"})
add("shape", "tile", "n:RxC", {options = ":2,2", counts = {1 << 10, 1 << 18, 1 << 22}})
add("shape", "rot90", "n:RxC", {dtypes = "float32"})
add("shape", "roll", "n:RxC", {options = ":3&:-1", dtypes = NUMBERS})
add("shape", "roll", "n:RxC", {options = ":3&:-2", dtypes = "float32"})
add("shape", "repeat_interleave", "n:RxC", {options = ":2&:-1",
  counts = {1 << 10, 1 << 19, 1 << 23}})
add("shape", "take", "n:RxC lN:RxC", {dtypes = "float32"})
add("shape", "embedding", "lR:R n:RxC", {peer = "F.embedding"})
add("shape", "one_hot", "l64:N", {options = ":64", dtypes = "int64",
  counts = {1 << 10, 1 << 16, 1 << 18}})
add("shape", "masked_fill", "n:RxC m:RxC", {options = ":0.5", layouts = LAYOUTS})
add("shape", "masked_select", "n:RxC m:RxC", {dtypes = NUMBERS})
add("shape", "masked_scatter", "n:RxC m:RxC n:RxC", {dtypes = "float32"})
add("shape", "nonzero", "m:RxC", {dtypes = "bool"})
add("shape", "nonzero", "n!:RxC", {dtypes = "float32,int64"})
add("shape", "tril triu", "n:RxC", {dtypes = NUMBERS, layouts = "contiguous,transposed"})
add("shape", "diag", "n:RxC", {dtypes = "float32"})
add("shape", "diagflat diag_embed", "n:R", {dtypes = "float32"})

-- ---------------------------------------------------------------------------
-- Creation and random numbers
-- ---------------------------------------------------------------------------
add("create", "zeros ones empty", "", {options = ":R,C&dtype:T", dtypes = NUMBERS})
add("create", "full", "", {options = ":R,C&:3&dtype:T", dtypes = NUMBERS})
add("create", "arange", "", {options = ":1&:N&dtype:T", dtypes = "float32,int64", least = 2})
add("create", "linspace", "", {options = ":0&:1&:N", dtypes = "float32", least = 2})
add("create", "eye", "", {options = ":R", dtypes = "float32"})
add("create", "zeros_like ones_like empty_like", "n!:RxC", {dtypes = NUMBERS})
add("create", "full_like", "n!:RxC", {options = ":3", dtypes = NUMBERS})
add("create", [[hann_window hamming_window blackman_window bartlett_window kaiser_window]], "",
  {options = ":N", dtypes = "float32"})
add("random", "rand randn", "", {options = ":R,C&dtype:T"})
add("random", "rand_like randn_like", "n!:RxC")
add("random", "randint", "", {options = ":0&:100&:R,C", dtypes = "int64"})
add("random", "randperm", "", {options = ":N", dtypes = "int64"})
add("random", "bernoulli", "u!:RxC")
add("random", "multinomial", "p!:RxC", {options = ":1", dtypes = "float32"})
add("random", "dropout", "n:RxC", {options = ":0.1", peer = "F.dropout"})
add("random", "alpha_dropout feature_alpha_dropout", "n:RxC", {options = ":0.1&:true"})
add("random", "dropout1d", "n:BxKxL", {options = ":0.1"})
add("random", "dropout2d", "n:BxKxHxH", {options = ":0.1"})
add("random", "dropout3d", "n:PxQxDxDxD", {options = ":0.1"})
add("random", "gumbel_softmax", "n:RxC", {options = "dim:-1"})

-- ---------------------------------------------------------------------------
-- Softmax, norms, losses, distances
-- ---------------------------------------------------------------------------
for _, dim in ipairs{":-1", ":-2"} do
  add("norm", "softmax log_softmax", "n:RxC", {options = dim, layouts = LAYOUTS})
end
add("norm", "softmin", "n:RxC", {options = "dim:-1"})
add("norm", "layer_norm", "n:RxC weight@n:C bias@n:C", {options = ":C,", peer = "F.layer_norm"})
add("norm", "add_layer_norm", "n:RxC n:RxC weight@n:C bias@n:C", {options = ":C,"})
add("norm", "rms_norm", "n:RxC weight@n:C", {options = ":C,", peer = "F.rms_norm"})
add("norm", "group_norm", "n:BxKxHxH weight@n:K bias@n:K", {options = ":K", peer = "F.group_norm",
  least = 1024})
add("norm", "local_response_norm", "n:BxKxHxH", {options = ":3"})
add("norm", "batch_norm", "n:BxKxHxH n!:K p!:K weight@n:K bias@n:K",
  {options = "training:true", peer = "F.batch_norm", least = 1024})
add("norm", "batch_norm", "n:RxC n!:C p!:C weight@n:C bias@n:C",
  {options = "training:false", peer = "F.batch_norm"})
add("norm", "instance_norm", "n:BxKxHxH", {peer = "F.instance_norm", least = 1024})

add("loss", "cross_entropy", "n:RxC lC:R", {layouts = "contiguous,transposed"})
add("loss", "cross_entropy", "n:RxC r!:RxC")
add("loss", "nll_loss", "h:RxC lC:R", {peer = "F.nll_loss"})
add("loss", "mse_loss l1_loss smooth_l1_loss huber_loss", "n:RxC n!:RxC",
  {layouts = "contiguous,transposed"})
add("loss", "binary_cross_entropy", "u:RxC u!:RxC")
add("loss", "binary_cross_entropy_with_logits", "n:RxC u!:RxC",
  {peer = "F.binary_cross_entropy_with_logits"})
add("loss", "soft_margin_loss", "n:RxC g!:RxC")
add("loss", "multilabel_soft_margin_loss", "n:RxC u!:RxC")
add("loss", "kl_div", "h:RxC r!:RxC", {options = "reduction:batchmean", peer = "F.kl_div"})
add("loss", "poisson_nll_loss", "n:RxC p!:RxC", {peer = "F.poisson_nll_loss"})
add("loss", "gaussian_nll_loss", "n:RxC n!:RxC p:RxC")
add("loss", "hinge_embedding_loss", "n:RxC g!:RxC", {peer = "F.hinge_embedding_loss"})
add("loss", "margin_ranking_loss", "n:N n:N g!:N", {peer = "F.margin_ranking_loss"})
add("loss", "cosine_embedding_loss", "n:RxC n:RxC g!:R", {peer = "F.cosine_embedding_loss"})
add("loss", "triplet_margin_loss", "n:RxC n:RxC n:RxC", {peer = "F.triplet_margin_loss"})
add("loss", "multi_margin_loss", "n:RxC lC:R", {dtypes = "float32"})
add("loss", "multilabel_margin_loss", "n:RxC lC:RxC", {dtypes = "float32",
  counts = {1 << 10, 1 << 20, 1 << 20}}) -- PyTorch sums C x C pairs a row

add("distance", "cosine_similarity", "n:RxC n:RxC", {options = "dim:-1"})
add("distance", "pairwise_distance", "n:RxC n:RxC", {peer = "F.pairwise_distance"})
add("distance", "cdist", "n:RxC n:RxC", {dtypes = "float32",
  counts = {1 << 10, 1 << 16, 1 << 20}})
add("distance", "pdist", "n:RxC", {dtypes = "float32", least = 64, peer = "F.pdist",
  counts = {1 << 10, 1 << 14, 1 << 16}})

-- ---------------------------------------------------------------------------
-- Products and linear algebra
-- ---------------------------------------------------------------------------
local PRODUCTS = {1 << 10, 1 << 16, 1 << 20}
add("linear", "mm matmul", "n:RxC n:CxR", {counts = PRODUCTS, layouts = "contiguous,transposed"})
add("linear", "bmm", "n:KxJxJ n:KxJxJ", {counts = {1 << 10, 1 << 16, 1 << 20}})
add("linear", "mv", "n:RxC n:C", {layouts = "contiguous,transposed"})
add("linear", "dot vdot", "n:N n:N")
add("linear", "addmm", "n:RxR n:RxC n:CxR", {counts = PRODUCTS})
add("linear", "baddbmm", "n:KxJxJ n:KxJxJ n:KxJxJ", {counts = PRODUCTS})
add("linear", "addbmm", "n:JxJ n:KxJxJ n:KxJxJ", {counts = PRODUCTS})
add("linear", "addmv", "n:R n:RxC n:C")
add("linear", "addr", "n:RxC n:R n:C")
add("linear", "linear", "n:RxC n:CxC n:C", {counts = PRODUCTS, peer = "F.linear"})
add("linear", "linear", "n:1xC n:CxC n:C", {peer = "F.linear"})
add("linear", "linear", "n:C n:CxC n:C", {peer = "F.linear"})
add("linear", "trace", "n:RxC", {dtypes = "float32"})
add("linear", "outer", "n:R n:C")
add("linear", "kron", "n:RxC n:4x4", {dtypes = "float32", counts = {1 << 10, 1 << 16, 1 << 20}})
add("linear", "tensordot", "n:RxC n:CxR", {options = ":1", counts = PRODUCTS, dtypes = "float32"})
add("linear", "bilinear", "n:Rx16 n:Rx16 n:16x16x16", {peer = "F.bilinear", dtypes = "float32"})
add("linear", "linalg_multi_dot", "n:RxC n:CxR n:RxC", {form = "list", counts = PRODUCTS,
  dtypes = "float32"})
add("linear", "linalg_vecdot", "n:RxC n:RxC", {dtypes = "float32"})
add("linear", "linalg_cross cross", "n:Nx3 n:Nx3", {options = "dim:-1", dtypes = "float32",
  counts = {1 << 10, 1 << 18, 1 << 22}})

local MATRICES = {1 << 8, 1 << 12, 1 << 16}
local LINALG = {dtypes = "float32", counts = MATRICES}
add("linalg", [[linalg_inv linalg_det linalg_slogdet logdet linalg_lu_factor linalg_lu linalg_qr
  linalg_cholesky linalg_eigh linalg_eigvalsh linalg_svdvals linalg_matrix_exp matrix_exp
  linalg_inv_ex linalg_cholesky_ex linalg_pinv pinverse linalg_cond linalg_matrix_norm]],
  "d:RxR", LINALG)
add("linalg", "linalg_svd", "d:RxR", {options = ":false", dtypes = "float32", counts = MATRICES})
add("linalg", "linalg_matrix_rank linalg_ldl_factor_ex geqrf", "d!:RxR", LINALG)
add("linalg", "linalg_solve linalg_lstsq", "d:RxR n:Rx4", LINALG)
add("linalg", "linalg_solve_triangular", "e:RxR n:Rx4",
  {options = "upper:false", dtypes = "float32", counts = MATRICES})
add("linalg", "cholesky_solve", "n:Rx4 e:RxR", LINALG)
add("linalg", "cholesky_inverse", "e:RxR", LINALG)
add("linalg", "linalg_matrix_power", "d:RxR", {options = ":3", dtypes = "float32",
  counts = MATRICES})
add("linalg", "linalg_vander", "u:R", {dtypes = "float32", counts = MATRICES, least = 64})
add("linalg", "vander", "u!:R", LINALG)

-- ---------------------------------------------------------------------------
-- Fourier transforms
-- ---------------------------------------------------------------------------
add("fft", "fft_rfft fft_ihfft fft_rfft2 fft_ihfft2 fft_rfftn fft_ihfftn", "n:RxC",
  {dtypes = "float32"})
add("fft", [[fft_fft fft_ifft fft_irfft fft_hfft fft_fft2 fft_ifft2 fft_irfft2 fft_hfft2 fft_fftn
  fft_ifftn fft_irfftn fft_hfftn]], "z:RxC", {dtypes = "float32", least = 64})

-- ---------------------------------------------------------------------------
-- Attention, cells, convolutions, pools, images
-- ---------------------------------------------------------------------------
add("attention", "scaled_dot_product_attention", "n:Bx4xLx16 n:Bx4xLx16 n:Bx4xLx16",
  {counts = {1 << 10, 1 << 13, 1 << 15}, dtypes = "float32,bfloat16"})
add("attention", "scaled_dot_product_attention", "n:Bx4xLx16 n:Bx4xLx16 n:Bx4xLx16",
  {counts = {1 << 10, 1 << 13, 1 << 15}, dtypes = "float32,bfloat16", options = "is_causal:true"})
add("attention", "rnn_tanh_cell rnn_relu_cell", "n:RxC n:RxC n:CxC n:CxC n:C n:C",
  {counts = PRODUCTS, dtypes = "float32"})
add("attention", "gru_cell", "n:RxC n:RxC n:3CxC n:3CxC n:3C n:3C",
  {counts = PRODUCTS, dtypes = "float32"})

add("conv", "conv1d", "n:BxKxL n:KxKx3 n:K", {options = "padding:1", peer = "F.conv1d"})
add("conv", "conv2d", "n:BxKxHxH n:KxKx3x3 n:K", {options = "padding:1", peer = "F.conv2d"})
add("conv", "conv2d", "n:BxKxHxH n:KxKx1x1 n:K", {peer = "F.conv2d"})
add("conv", "conv2d", "n:BxKxHxH n:Kx1x3x3 n:K", {options = "padding:1&groups:K",
  peer = "F.conv2d"})
add("conv", "conv3d", "n:PxQxDxDxD n:QxQx3x3x3 n:Q", {options = "padding:1", dtypes = "float32"})
add("conv", "conv_transpose1d", "n:BxKxL n:KxKx3 n:K", {dtypes = "float32"})
add("conv", "conv_transpose2d", "n:BxKxHxH n:KxKx2x2 n:K", {options = "stride:2",
  dtypes = "float32"})
add("conv", "conv_transpose3d", "n:PxQxDxDxD n:QxQx2x2x2 n:Q", {dtypes = "float32"})
add("conv", "unfold", "n:BxKxHxH", {options = ":3&padding:1", peer = "F.unfold",
  counts = {1 << 10, 1 << 20, 1 << 21}})
add("conv", "fold", "n:Bx9KxL", {options = ":H,H&:3&padding:1", peer = "F.fold",
  counts = {1 << 10, 1 << 20, 1 << 21}})

add("pool", "max_pool1d avg_pool1d", "n:BxKxL", {options = ":2", least = 64,
  dtypes = "float32,bfloat16"})
add("pool", "max_pool2d avg_pool2d", "n:BxKxHxH", {options = ":2", least = 64})
add("pool", "max_pool2d", "n:BxKxHxH", {options = ":3&stride:2&padding:1", least = 64})
add("pool", "max_pool3d avg_pool3d", "n:PxQxDxDxD", {options = ":2", least = 1024,
  dtypes = "float32"})
add("pool", "adaptive_avg_pool1d adaptive_max_pool1d", "n:BxKxL", {options = ":2", least = 64,
  dtypes = "float32"})
add("pool", "adaptive_avg_pool2d adaptive_max_pool2d", "n:BxKxHxH", {options = ":2", least = 64,
  dtypes = "float32"})
add("pool", "adaptive_avg_pool2d", "n:BxKxHxH", {options = ":1", least = 64})
add("pool", "adaptive_avg_pool3d adaptive_max_pool3d", "n:PxQxDxDxD", {options = ":2",
  least = 1024, dtypes = "float32"})
add("pool", "fractional_max_pool2d", "n:BxKxHxH", {options = ":2&output_size:2,2",
  its = ":2&output_size:2,2", peer = "F.fractional_max_pool2d", least = 1024, dtypes = "float32"})

add("image", "pad", "n:BxKxHxH", {options = ":1,1,1,1", peer = "F.pad"})
add("image", "pad", "n:BxKxHxH", {options = ":1,1,1,1&mode:reflect", peer = "F.pad", least = 64,
  dtypes = "float32"})
add("image", "pad", "n:BxKxHxH", {options = ":1,1,1,1&mode:replicate", peer = "F.pad",
  dtypes = "float32"})
add("image", "pixel_shuffle", "n:Bx4KxHxH", {options = ":2", dtypes = "float32",
  counts = {1 << 10, 1 << 18, 1 << 22}})
add("image", "pixel_unshuffle", "n:BxKxHxH", {options = ":2", dtypes = "float32", least = 64})
add("image", "channel_shuffle", "n:Bx4KxHxH", {options = ":4", dtypes = "float32",
  counts = {1 << 10, 1 << 18, 1 << 22}})
for _, mode in ipairs{"nearest", "bilinear", "bicubic"} do
  add("image", "interpolate", "n:BxKxHxH", {options = "scale_factor:2&mode:" .. mode,
    counts = {1 << 10, 1 << 18, 1 << 22}, dtypes = "float32,bfloat16"})
end
add("image", "grid_sample", "n:BxKxHxH s:BxHxHx2", {peer = "F.grid_sample", dtypes = "float32",
  options = "align_corners:false"})
add("image", "affine_grid", "n:Bx2x3", {options = ":B,1,H,H&align_corners:false",
  dtypes = "float32"})

-- ---------------------------------------------------------------------------
-- The others
-- ---------------------------------------------------------------------------
cases.left_out = {}
for reason, names in pairs{
  ["in place"] = "copy fill zero uniform normal index_put",
  ["a part of other ops"] = [[airy_slope unary_backward triple_backward gamma_f64_slope cast
    to_device drop counters clamp_tensor clamp_backward repeat_interleave_each scatter_with
    scatter_reduce_self index_get index_check index_many index_put_many embedding_backward
    masked_put norm_by_name cumsum_back running_product running_product_back softmax_backward
    row_norm_backward add_norm add_norm_backward batch_norm_train batch_norm_eval
    batch_norm_backward cross_entropy_soft cross_entropy_backward nll_loss_backward row_products
    row_products_backward loss_term reduce_formula triple_backward_sums soft_labels
    soft_labels_backward loss_backward ctc ctc_backward glu_term glu_halves glu_halves_backward
    distances distances_backward linear_vector cross_rows
    linear_backward addmm_backward solve_matrices lu_order ldl_solve_matrices pinv_matrices
    lstsq_matrices fft_slices attention attention_backward rnn_layer rnn_steps
    rnn_steps_backward conv2d_dx conv2d_dw reflection_pad replication_pad max_pool2d_coded
    max_pool2d_scatter max_pool2d_gather max_pool2d_position avg_pool2d_spread
    adaptive_avg_pool2d_spread]],
  ["not in PyTorch"] = "slice linalg_polar linalg_matrix_sqrth complex",
  ["wants another op's results"] = [[max_unpool1d max_unpool2d max_unpool3d linalg_lu_solve
    linalg_ldl_solve linalg_householder_product lstm_cell istft ctc_loss]],
  ["wants shapes of its own"] = "linalg_tensorinv linalg_tensorsolve einsum stft",
  ["random, by another road"] = "standard_gamma",
} do
  for name in names:gmatch "%S+" do cases.left_out[name] = reason end
end

-- ---------------------------------------------------------------------------
-- Sizes
-- ---------------------------------------------------------------------------
local COLUMNS = {[1 << 10] = 1, [1 << 20] = 2, [1 << 24] = 3}

-- The letters' values for n elements, a power of two.
local function sizes(n)
  local e = math.floor(math.log(n, 2) + 0.5)
  local k, d = e // 5, e // 4
  local rest = e - 3 * d
  return {N = n, C = 1 << ((e + 1) // 2), R = 1 << (e // 2), K = 1 << k,
    B = 1 << k + (e - 2 * k) % 2, H = 1 << ((e - 2 * k) // 2), L = 1 << 2 * ((e - 2 * k) // 2),
    D = 1 << d, Q = 1 << ((rest + 1) // 2), P = 1 << (rest // 2), J = 1 << ((e - k) // 2)}
end

-- A text in which letters stand for sizes.
local function written(text, values)
  return (text:gsub("(%d*)(%u)", function(times, letter)
    local value = values[letter]
    return value and ("%d"):format((tonumber(times) or 1) * value) or nil
  end))
end

--- What the workers are told of a row in the column of n elements, for ours and for PyTorch:
--- "1024~n:32x32~:-1"; nil where the row has no such size.
function cases.request(row, n)
  if n < (row.least or 1) then return nil end
  local values = sizes(COLUMNS[n] and row.counts and row.counts[COLUMNS[n]] or n)
  local inputs = row.inputs ~= "" and written(row.inputs, values):gsub("%s+", ";") or "-"
  local function with(options) return ("%d~%s~%s"):format(n, inputs, written(options, values)) end
  return with(row.options), with(row.its or row.options)
end

--- A row as the tables name it, "sum(:-1) n:RxC".
function cases.title(row)
  return row.name .. (row.options ~= "" and "(" .. row.options .. ")" or "")
end

return cases
