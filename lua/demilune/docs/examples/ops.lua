-- Examples of ops, for dm.help and the
-- reference. Each is a few lines of Lua in which dm, nn, optim, amp, data and F are there. A line
-- `expression  --> value` shows a value: a number, a string, a boolean, nil, a table, or the
-- elements of a tensor as nested tables. docs_spec runs the lines, and compares the values.
return {
  abs = [[
    dm.abs(dm.tensor{-3, 0, 2})  --> {3, 0, 2}]],
  acos = [[
    dm.acos(dm.tensor{1, 0, -1})  --> {0, math.pi / 2, math.pi}]],
  acosh = [[
    dm.acosh(dm.cosh(dm.tensor{1.0, 2.0}))  --> {1, 2}]],
  adaptive_avg_pool1d = [[
    local x = dm.arange(6):float():view(1, 1, 6)
    F.adaptive_avg_pool1d(x, 2)  --> {{{2, 5}}}]],
  adaptive_avg_pool2d = [[
    local x = dm.rand(8, 512, 7, 9)
    F.adaptive_avg_pool2d(x, 1).shape  --> {8, 512, 1, 1}
    F.adaptive_avg_pool2d(dm.ones(1, 1, 5, 7), {2, 3}).shape  --> {1, 1, 2, 3}]],
  adaptive_avg_pool3d = [[
    F.adaptive_avg_pool3d(dm.ones(2, 4, 8, 9, 9), {4, 3, 3}).shape  --> {2, 4, 4, 3, 3}]],
  adaptive_max_pool1d = [[
    local x = dm.tensor{{{1.0, 5.0, 2.0, 8.0, 3.0, 4.0}}}
    F.adaptive_max_pool1d(x, 2)  --> {{{5, 8}}}
    local y, where = F.adaptive_max_pool1d(x, 2, {return_indices = true})
    where  --> {{{2, 4}}}]],
  adaptive_max_pool2d = [[
    local x = dm.arange(16):float():view(1, 1, 4, 4)
    F.adaptive_max_pool2d(x, 2)  --> {{{{6, 8}, {14, 16}}}}]],
  adaptive_max_pool3d = [[
    local y = F.adaptive_max_pool3d(dm.rand(2, 4, 8, 9, 9), 3)
    y.shape  --> {2, 4, 3, 3, 3}]],
  add = [[
    dm.add(dm.tensor{1, 2, 3}, 10)  --> {11, 12, 13}
    dm.tensor{1, 2} + dm.tensor{5, 6}  --> {6, 8}
    dm.add(dm.tensor{1, 2}, dm.tensor{5, 6}, {alpha = 2})  --> {11, 14}]],
  add_layer_norm = [[
    local x, delta = dm.tensor{{1.0, 3.0}}, dm.tensor{{0.0, 2.0}}
    local sum, y = F.add_layer_norm(x, delta, {2})
    sum  --> {{1, 5}}
    y  --> {{-1, 1}}]],
  add_relu = [[
    dm.add_relu(dm.tensor{1.0, -2.0, 3.0}, dm.tensor{1.0, 1.0, -4.0})  --> {2, 0, 0}]],
  addbmm = [[
    local a, b = dm.ones(10, 2, 3), dm.ones(10, 3, 2)
    dm.addbmm(dm.zeros(2, 2), a, b)  --> {{30, 30}, {30, 30}}]],
  addcdiv = [[
    dm.addcdiv(dm.zeros(2), dm.tensor{6, 8}, dm.tensor{3, 2}, {value = 0.5})  --> {1, 2}]],
  addcmul = [[
    dm.addcmul(dm.ones(2), dm.tensor{1, 2}, dm.tensor{3, 4}, {value = 10})  --> {31, 81}]],
  addmm = [[
    local x, w, bias = dm.ones(2, 3), dm.ones(3, 2), dm.tensor{10.0, 20.0}
    dm.addmm(bias, x, w)  --> {{13, 23}, {13, 23}}]],
  addmv = [[
    dm.addmv(dm.ones(2), dm.tensor{{1.0, 2.0}, {3.0, 4.0}}, dm.ones(2))  --> {4, 8}]],
  addr = [[
    dm.addr(dm.zeros(2, 2), dm.tensor{1.0, 2.0}, dm.tensor{3.0, 4.0})  --> {{3, 4}, {6, 8}}]],
  adjoint = [[
    dm.adjoint(dm.tensor{{1, 2}, {3, 4}})  --> {{1, 3}, {2, 4}}
    dm.adjoint(dm.ones(5, 2, 3)).shape  --> {5, 3, 2}]],
  affine_grid = [[
    local turn = dm.tensor{{{0.0, -1.0, 0.0}, {1.0, 0.0, 0.0}}}  -- by 90 degrees
    local grid = F.affine_grid(turn, {1, 1, 2, 2})
    F.grid_sample(dm.tensor{{{{1.0, 2.0}, {3.0, 4.0}}}}, grid)  --> {{{{2, 4}, {1, 3}}}}]],
  all = [[
    dm.all(dm.tensor{1, 2, 0})  --> false
    dm.all(dm.tensor{{1, 1}, {1, 0}}, 2)  --> {true, false}]],
  alpha_dropout = [[
    local x = dm.randn(1000)
    F.alpha_dropout(x, 0.2, {training = true}).shape  --> {1000}
    F.alpha_dropout(x, 0.2):equal(x)  --> true]],
  amax = [[
    dm.amax(dm.tensor{{1, 5}, {7, 2}}, 2)  --> {5, 7}
    dm.amax(dm.tensor{{1, 5}, {7, 2}}, {1, 2})  --> 7]],
  amin = [[
    dm.amin(dm.tensor{{1, 5}, {7, 2}}, 2, {keepdim = true})  --> {{1}, {2}}]],
  aminmax = [[
    local low, high = dm.aminmax(dm.tensor{3, 1, 2})
    low  --> 1
    high  --> 3]],
  any = [[
    dm.any(dm.tensor{0, 0, 2})  --> true
    dm.any(dm.tensor{{0, 0}, {0, 3}}, 2)  --> {false, true}]],
  arange = [[
    dm.arange(4)  --> {1, 2, 3, 4}
    dm.arange(0, 3)  --> {0, 1, 2, 3}
    dm.arange(0, 1, 0.25)  --> {0, 0.25, 0.5, 0.75, 1}]],
  argmax = [[
    dm.argmax(dm.tensor{2, 9, 5})  --> 2
    dm.argmax(dm.tensor{{2, 9, 5}, {7, 1, 3}}, 2)  --> {2, 1}]],
  argmin = [[
    dm.argmin(dm.tensor{2, 9, 5})  --> 1
    dm.argmin(dm.tensor{{2, 9, 5}, {7, 1, 3}}, 2)  --> {1, 2}]],
  argsort = [[
    local x = dm.tensor{30, 10, 20}
    dm.argsort(x)  --> {2, 3, 1}
    x[dm.argsort(x, {descending = true})]  --> {30, 20, 10}]],
  as_strided = [[
    local x = dm.arange(6)
    dm.as_strided(x, {4, 3}, {1, 1})  --> {{1, 2, 3}, {2, 3, 4}, {3, 4, 5}, {4, 5, 6}}]],
  as_strided_scatter = [[
    local x = dm.zeros(3, 3)
    dm.as_strided_scatter(x, dm.ones(3), {3}, {4})  --> {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}]],
  asin = [[
    dm.asin(dm.tensor{0, 1, -1})  --> {0, math.pi / 2, -math.pi / 2}]],
  asinh = [[
    dm.asinh(dm.sinh(dm.tensor{-1.0, 2.0}))  --> {-1, 2}]],
  atan = [[
    dm.atan(dm.tensor{0, 1, -1})  --> {0, math.pi / 4, -math.pi / 4}]],
  atan2 = [[
    local y, x = dm.tensor{1.0, 1.0, -1.0}, dm.tensor{1.0, -1.0, -1.0}
    dm.atan2(y, x):rad2deg()  --> {45, 135, -135}]],
  atanh = [[
    dm.atanh(dm.tanh(dm.tensor{-1.0, 0.5}))  --> {-1, 0.5}]],
  atleast_1d = [[
    dm.atleast_1d(dm.tensor(5)).shape  --> {1}]],
  atleast_2d = [[
    dm.atleast_2d(dm.tensor{1, 2, 3})  --> {{1, 2, 3}}]],
  atleast_3d = [[
    dm.atleast_3d(dm.tensor{1, 2, 3}).shape  --> {1, 3, 1}
    dm.atleast_3d(dm.ones(2, 4)).shape  --> {2, 4, 1}]],
  avg_pool1d = [[
    local x = dm.tensor{{{1.0, 3.0, 5.0, 7.0}}}
    F.avg_pool1d(x, 2)  --> {{{2, 6}}}
    F.avg_pool1d(x, 2, {stride = 1})  --> {{{2, 4, 6}}}]],
  avg_pool2d = [[
    local x = dm.arange(16):float():view(1, 1, 4, 4)
    F.avg_pool2d(x, 2)  --> {{{{3.5, 5.5}, {11.5, 13.5}}}}
    F.avg_pool2d(x, 3, {stride = 2, padding = 1}).shape  --> {1, 1, 2, 2}]],
  avg_pool3d = [[
    F.avg_pool3d(dm.ones(2, 3, 8, 8, 8), 2).shape  --> {2, 3, 4, 4, 4}]],
  baddbmm = [[
    local x, a, b = dm.ones(10, 2, 4), dm.rand(10, 2, 3), dm.rand(10, 3, 4)
    dm.baddbmm(x, a, b, {beta = 0.5}).shape  --> {10, 2, 4}]],
  bartlett_window = [[
    dm.bartlett_window(4)  --> {0, 0.5, 1, 0.5}
    dm.bartlett_window(5, {periodic = false})  --> {0, 0.5, 1, 0.5, 0}]],
  batch_norm = [[
    local x = dm.tensor{{1.0, 10.0}, {3.0, 30.0}}  -- 2 samples of 2 channels
    F.batch_norm(x, nil, nil, {training = true})  --> {{-1, -1}, {1, 1}}
    F.batch_norm(x, nil, nil, {training = true, activation = "relu"})  --> {{0, 0}, {1, 1}}
    F.batch_norm(x, dm.tensor{1.0, 10.0}, dm.tensor{4.0, 100.0})  --> {{0, 0}, {1, 2}}]],
  bernoulli = [[
    dm.bernoulli(dm.tensor{0.0, 1.0, 1.0})  --> {0, 1, 1}
    dm.bernoulli(dm.full({3, 2}, 0.5)).shape  --> {3, 2}]],
  bilinear = [[
    local a, b = dm.rand(8, 3), dm.rand(8, 4)
    F.bilinear(a, b, dm.rand(5, 3, 4)).shape  --> {8, 5}]],
  binary_cross_entropy = [[
    local p, target = dm.tensor{0.9, 0.2}, dm.tensor{1.0, 0.0}
    F.binary_cross_entropy(p, target)  --> 0.1643
    F.binary_cross_entropy(p, target, {reduction = "none"})  --> {0.1054, 0.2231}]],
  binary_cross_entropy_with_logits = [[
    local logits, target = dm.tensor{2.0, -1.0}, dm.tensor{1.0, 0.0}
    F.binary_cross_entropy_with_logits(logits, target)  --> 0.2201
    local weight = dm.tensor{3.0}  -- of the positives
    F.binary_cross_entropy_with_logits(logits, target, {pos_weight = weight})  --> 0.347]],
  bincount = [[
    dm.bincount(dm.tensor{1, 3, 3, 2, 3})  --> {1, 1, 3}
    dm.bincount(dm.tensor{1, 2, 2}, dm.tensor{0.5, 1.0, 2.0})  --> {0.5, 3}
    dm.bincount(dm.tensor{2}, {minlength = 4})  --> {0, 1, 0, 0}]],
  bitwise_and = [[
    dm.bitwise_and(dm.tensor{6, 5}, 3)  --> {2, 1}]],
  bitwise_left_shift = [[
    dm.bitwise_left_shift(dm.tensor{1, -3}, 2)  --> {4, -12}
    dm.tensor{1, -3} << 2  --> {4, -12}]],
  bitwise_not = [[
    dm.bitwise_not(dm.tensor{0, 5})  --> {-1, -6}
    dm.bitwise_not(dm.tensor{true, false})  --> {false, true}]],
  bitwise_or = [[
    dm.bitwise_or(dm.tensor{4, 5}, 3)  --> {7, 7}]],
  bitwise_right_shift = [[
    dm.bitwise_right_shift(dm.tensor{5, -5}, 1)  --> {2, -3}
    dm.tensor{5, -5} >> 1  --> {2, -3}]],
  bitwise_xor = [[
    dm.bitwise_xor(dm.tensor{6, 5}, 3)  --> {5, 6}]],
  blackman_window = [[
    dm.blackman_window(4)  --> {0, 0.34, 1, 0.34}]],
  block_diag = [[
    local a, b = dm.tensor{{1, 2}, {3, 4}}, dm.tensor{{5}}
    dm.block_diag(a, b)  --> {{1, 2, 0}, {3, 4, 0}, {0, 0, 5}}]],
  bmm = [[
    dm.bmm(dm.rand(8, 2, 3), dm.rand(8, 3, 4)).shape  --> {8, 2, 4}]],
  broadcast_shapes = [[
    dm.broadcast_shapes({5, 1, 4}, {3, 1})  --> {5, 3, 4}]],
  broadcast_tensors = [[
    local rows, columns = dm.tensor{{1}, {2}}, dm.tensor{10, 20, 30}
    local list = dm.broadcast_tensors(rows, columns)
    list[1]  --> {{1, 1, 1}, {2, 2, 2}}]],
  broadcast_to = [[
    dm.broadcast_to(dm.tensor{1, 2}, {3, 2})  --> {{1, 2}, {1, 2}, {1, 2}}]],
  bucketize = [[
    local grades = dm.tensor{50, 70, 90}
    dm.bucketize(dm.tensor{30, 50, 95}, grades)  --> {1, 1, 4}
    dm.bucketize(dm.tensor{30, 50, 95}, grades, {right = true})  --> {1, 2, 4}]],
  cartesian_prod = [[
    local a, b = dm.tensor{1, 2}, dm.tensor{8, 9}
    dm.cartesian_prod(a, b)  --> {{1, 8}, {1, 9}, {2, 8}, {2, 9}}]],
  can_cast = [[
    dm.can_cast("int64", "float32")  --> true
    dm.can_cast("float32", "int64")  --> false]],
  cat = [[
    local a, b = dm.tensor{{1, 2}}, dm.tensor{{3, 4}}
    dm.cat(a, b)  --> {{1, 2}, {3, 4}}
    dm.cat({a, b}, {dim = 2})  --> {{1, 2, 3, 4}}]],
  cauchy = [[
    local x = dm.empty(3):cauchy_{median = 10, sigma = 0.5}
    x.shape  --> {3}]],
  cdist = [[
    local a, b = dm.tensor{{0.0, 0.0}, {3.0, 0.0}}, dm.tensor{{3.0, 4.0}}
    dm.cdist(a, b)  --> {{5}, {4}}
    dm.cdist(a, b, {p = 1})  --> {{7}, {4}}]],
  ceil = [[
    dm.ceil(dm.tensor{1.2, -1.2, 3.0})  --> {2, -1, 3}]],
  celu = [[
    F.celu(dm.tensor{-1.0, 0.0, 2.0})  --> {-0.6321, 0, 2}]],
  channel_shuffle = [[
    local x = dm.tensor{{{1}, {2}, {3}, {4}}}  -- (1, 4, 1): two groups of two channels
    F.channel_shuffle(x, 2)  --> {{{1}, {3}, {2}, {4}}}]],
  cholesky_inverse = [[
    local A = dm.tensor{{4.0, 0.0}, {0.0, 2.0}}
    dm.cholesky_inverse(dm.linalg.cholesky(A))  --> {{0.25, 0}, {0, 0.5}}]],
  cholesky_solve = [[
    local A, B = dm.tensor{{4.0, 2.0}, {2.0, 3.0}}, dm.tensor{{8.0}, {8.0}}
    dm.cholesky_solve(B, dm.linalg.cholesky(A))  --> {{1}, {2}}]],
  clamp = [[
    dm.clamp(dm.tensor{-5, 0.5, 7}, 0, 1)  --> {0, 0.5, 1}
    dm.clamp(dm.tensor{-5, 0.5, 7}, {min = 0})  --> {0, 0.5, 7}]],
  clamp_max = [[
    dm.clamp_max(dm.tensor{1, 5, 9}, 6)  --> {1, 5, 6}]],
  clamp_min = [[
    dm.clamp_min(dm.tensor{1, 5, 9}, 4)  --> {4, 5, 9}]],
  clone = [[
    local x = dm.zeros(2)
    local y = x:clone():add_(1)
    x  --> {0, 0}]],
  column_stack = [[
    dm.column_stack(dm.tensor{1, 2, 3}, dm.tensor{7, 8, 9})  --> {{1, 7}, {2, 8}, {3, 9}}]],
  combinations = [[
    dm.combinations(dm.tensor{1, 2, 3})  --> {{1, 2}, {1, 3}, {2, 3}}]],
  complex = [[
    local z = dm.complex(dm.tensor{1.0, 2.0}, dm.tensor{0.0, -1.0})  -- 1 and 2 - i
    z  --> {{1, 0}, {2, -1}}]],
  constant_pad_nd = [[
    dm.constant_pad_nd(dm.tensor{1, 2}, {1, 2}, 7)  --> {7, 1, 2, 7, 7}]],
  contiguous = [[
    local x = dm.rand(2, 3):t()
    x:is_contiguous()  --> false
    x:contiguous():view(6).shape  --> {6}]],
  conv1d = [[
    local x, difference = dm.tensor{{{1.0, 4.0, 9.0, 16.0}}}, dm.tensor{{{-1.0, 1.0}}}
    F.conv1d(x, difference)  --> {{{3, 5, 7}}}
    F.conv1d(x, difference, {padding = "same"}).shape  --> {1, 1, 4}]],
  conv2d = [[
    local images, filters = dm.rand(8, 3, 32, 32), dm.rand(16, 3, 3, 3)
    F.conv2d(images, filters).shape  --> {8, 16, 30, 30}
    F.conv2d(images, filters, {padding = 1, stride = 2}).shape  --> {8, 16, 16, 16}]],
  conv3d = [[
    local video, filters = dm.rand(1, 3, 8, 16, 16), dm.rand(4, 3, 3, 3, 3)
    F.conv3d(video, filters, {padding = 1}).shape  --> {1, 4, 8, 16, 16}]],
  conv_transpose1d = [[
    local x, w = dm.tensor{{{1.0, 2.0}}}, dm.tensor{{{1.0, 10.0}}}
    F.conv_transpose1d(x, w, {stride = 2})  --> {{{1, 10, 2, 20}}}]],
  conv_transpose2d = [[
    local x, w = dm.rand(1, 16, 8, 8), dm.rand(16, 8, 2, 2)
    F.conv_transpose2d(x, w, {stride = 2}).shape  --> {1, 8, 16, 16}]],
  conv_transpose3d = [[
    local x, w = dm.rand(1, 4, 5, 5, 5), dm.rand(4, 2, 2, 2, 2)
    F.conv_transpose3d(x, w, {stride = 2}).shape  --> {1, 2, 10, 10, 10}]],
  copy = [[
    local x = dm.zeros(2, 2)
    x:copy_(dm.tensor{1, 2})  --> {{1, 2}, {1, 2}}]],
  copysign = [[
    dm.copysign(dm.tensor{1.0, 2.0}, dm.tensor{-5.0, 5.0})  --> {-1, 2}]],
  corrcoef = [[
    local x = dm.tensor{{1.0, 2.0, 3.0}, {6.0, 4.0, 2.0}}  -- 2 variables, 3 observations
    dm.corrcoef(x)  --> {{1, -1}, {-1, 1}}]],
  cos = [[
    dm.cos(dm.tensor{0, math.pi})  --> {1, -1}]],
  cosh = [[
    dm.cosh(dm.tensor{0.0, 1.0})  --> {1, 1.543}]],
  cosine_embedding_loss = [[
    local a, b = dm.tensor{{1.0, 0.0}, {1.0, 0.0}}, dm.tensor{{0.0, 1.0}, {2.0, 0.0}}
    F.cosine_embedding_loss(a, b, dm.tensor{1, -1}, {reduction = "none"})  --> {1, 1}]],
  cosine_similarity = [[
    local a, b = dm.tensor{{1.0, 0.0}, {1.0, 1.0}}, dm.tensor{{0.0, 2.0}, {3.0, 3.0}}
    F.cosine_similarity(a, b)  --> {0, 1}]],
  count_nonzero = [[
    dm.count_nonzero(dm.tensor{{0, 3}, {4, 5}})  --> 3
    dm.count_nonzero(dm.tensor{{0, 3}, {4, 5}}, 1)  --> {1, 2}]],
  cov = [[
    local x = dm.tensor{{1.0, 2.0, 3.0}, {6.0, 4.0, 2.0}}  -- 2 variables, 3 observations
    dm.cov(x)  --> {{1, -2}, {-2, 4}}]],
  cross = [[
    dm.cross(dm.tensor{1, 0, 0}, dm.tensor{0, 1, 0})  --> {0, 0, 1}]],
  cross_entropy = [[
    local logits, target = dm.tensor{{2.0, 0.0, 0.0}, {0.0, 0.0, 5.0}}, dm.tensor{1, 3}
    F.cross_entropy(logits, target)  --> 0.1265
    F.cross_entropy(logits, target, {reduction = "none"})  --> {0.2395, 0.01339}
    F.cross_entropy(logits, target, {label_smoothing = 0.1})  --> 0.3598]],
  ctc_loss = [[
    local log_probs = dm.randn(50, 2, 20):log_softmax(3)  -- class 1: the blank
    local labels = dm.randint(2, 20, {2, 10})
    F.ctc_loss(log_probs, labels, dm.tensor{50, 50}, dm.tensor{10, 7}).shape  --> {}]],
  cummax = [[
    local values, where = dm.cummax(dm.tensor{1, 5, 2, 5, 7}, 1)
    values  --> {1, 5, 5, 5, 7}
    where  --> {1, 2, 2, 4, 5}]],
  cummin = [[
    local values, where = dm.cummin(dm.tensor{5, 3, 4, 1}, 1)
    values  --> {5, 3, 3, 1}
    where  --> {1, 2, 2, 4}]],
  cumprod = [[
    dm.cumprod(dm.tensor{1, 2, 3, 4}, 1)  --> {1, 2, 6, 24}]],
  cumsum = [[
    dm.cumsum(dm.tensor{1, 2, 3}, 1)  --> {1, 3, 6}
    dm.cumsum(dm.tensor{{1, 2}, {3, 4}}, 2)  --> {{1, 3}, {3, 7}}]],
  cumulative_trapezoid = [[
    dm.cumulative_trapezoid(dm.tensor{1.0, 2.0, 3.0})  --> {1.5, 4}]],
  deg2rad = [[
    dm.deg2rad(dm.tensor{0, 90, 180})  --> {0, math.pi / 2, math.pi}]],
  diag = [[
    dm.diag(dm.tensor{1, 2})  --> {{1, 0}, {0, 2}}
    dm.diag(dm.tensor{{1, 2}, {3, 4}})  --> {1, 4}]],
  diag_embed = [[
    dm.diag_embed(dm.tensor{1, 2})  --> {{1, 0}, {0, 2}}
    dm.diag_embed(dm.ones(5, 3)).shape  --> {5, 3, 3}]],
  diagflat = [[
    dm.diagflat(dm.tensor{{1, 2}}, {offset = 1})  --> {{0, 1, 0}, {0, 0, 2}, {0, 0, 0}}]],
  diagonal = [[
    local x = dm.tensor{{1, 2, 3}, {4, 5, 6}}
    dm.diagonal(x)  --> {1, 5}
    dm.diagonal(x, {offset = 1})  --> {2, 6}]],
  diagonal_scatter = [[
    dm.diagonal_scatter(dm.zeros(2, 2), dm.tensor{7.0, 8.0})  --> {{7, 0}, {0, 8}}]],
  diff = [[
    dm.diff(dm.tensor{1, 4, 9, 16})  --> {3, 5, 7}
    dm.diff(dm.tensor{1, 4, 9, 16}, {n = 2})  --> {2, 2}]],
  digamma = [[
    dm.digamma(dm.tensor{1.0, 2.0})  --> {-0.5772, 0.4228}]],
  dist = [[
    dm.dist(dm.tensor{1.0, 1.0}, dm.tensor{4.0, 5.0})  --> 5]],
  div = [[
    dm.div(dm.tensor{7, -7}, 2)  --> {3.5, -3.5}
    dm.div(dm.tensor{7, -7}, 2, {rounding_mode = "floor"})  --> {3, -4}
    dm.tensor{6.0, 8.0} / dm.tensor{2.0, 4.0}  --> {3, 2}]],
  dot = [[
    dm.dot(dm.tensor{1, 2, 3}, dm.tensor{4, 5, 6})  --> 32]],
  dropout = [[
    local y = F.dropout(dm.ones(1000), 0.5)  -- elements are 0 or 2
    y:unique()  --> {0, 2}
    F.dropout(dm.ones(3), 0.5, {training = false})  --> {1, 1, 1}]],
  dropout1d = [[
    local y = F.dropout1d(dm.ones(1, 1000, 4), 0.5)
    y:sum(3):unique()  --> {0, 8}]],
  dropout2d = [[
    local y = F.dropout2d(dm.ones(1, 1000, 2, 2), 0.5)  -- channels are all 0 or all 2
    y:sum({3, 4}):unique()  --> {0, 8}]],
  dropout3d = [[
    local y = F.dropout3d(dm.ones(1, 500, 2, 2, 2), 0.5)
    y:sum({3, 4, 5}):unique()  --> {0, 16}]],
  dstack = [[
    dm.dstack(dm.tensor{1, 2}, dm.tensor{8, 9})  --> {{{1, 8}, {2, 9}}}]],
  einsum = [[
    local a, b = dm.tensor{{1, 2}, {3, 4}}, dm.tensor{{1, 0}, {0, 2}}
    dm.einsum("ij,jk->ik", a, b)  --> {{1, 4}, {3, 8}}
    dm.einsum("ii", a)  --> 5
    dm.einsum("bqd,bkd->bqk", dm.rand(2, 5, 8), dm.rand(2, 6, 8)).shape  --> {2, 5, 6}]],
  elu = [[
    F.elu(dm.tensor{-1.0, 0.0, 2.0})  --> {-0.6321, 0, 2}]],
  embedding = [[
    local weight = dm.tensor{{0.0, 0.0}, {1.0, 2.0}, {3.0, 4.0}}  -- 3 words of 2 numbers
    F.embedding(dm.tensor{3, 2, 3}, weight)  --> {{3, 4}, {1, 2}, {3, 4}}]],
  empty = [[
    dm.empty(2, 3).shape  --> {2, 3}
    dm.empty(4, {dtype = "int64"}).dtype  --> "int64"]],
  empty_like = [[
    dm.empty_like(dm.ones(2, 3)).shape  --> {2, 3}]],
  eq = [[
    dm.eq(dm.tensor{1, 2, 3}, dm.tensor{1, 0, 3})  --> {true, false, true}
    dm.tensor{1, 2, 3}:eq(2)  --> {false, true, false}]],
  erf = [[
    dm.erf(dm.tensor{0.0, 1.0})  --> {0, 0.8427}]],
  erfc = [[
    dm.erfc(dm.tensor{0.0, 1.0})  --> {1, 0.1573}]],
  erfinv = [[
    dm.erfinv(dm.erf(dm.tensor{-0.5, 1.0}))  --> {-0.5, 1}]],
  exp = [[
    dm.exp(dm.tensor{0, 1})  --> {1, 2.718}]],
  exp2 = [[
    dm.exp2(dm.tensor{0, 1, 10})  --> {1, 2, 1024}]],
  expand = [[
    dm.tensor{{1}, {2}}:expand(2, 3)  --> {{1, 1, 1}, {2, 2, 2}}
    dm.ones(3, 1):expand(-1, 4).shape  --> {3, 4}]],
  expand_as = [[
    dm.tensor{{1}, {2}}:expand_as(dm.ones(2, 2))  --> {{1, 1}, {2, 2}}]],
  expm1 = [[
    dm.expm1(dm.tensor{0.0, 1.0})  --> {0, 1.718}
    dm.expm1(dm.tensor{1e-10}):item() > 0  --> true]],
  exponential = [[
    local waits = dm.empty(1000):exponential_(0.5)  -- 2 on average
    waits:min():item() >= 0  --> true]],
  eye = [[
    dm.eye(2)  --> {{1, 0}, {0, 1}}
    dm.eye(2, 3)  --> {{1, 0, 0}, {0, 1, 0}}]],
  feature_alpha_dropout = [[
    local x = dm.randn(4, 8, 5, 5)
    F.feature_alpha_dropout(x, 0.2, {training = true}).shape  --> {4, 8, 5, 5}]],
  fft_fft = [[
    local x = dm.complex(dm.tensor{1.0, 0.0, -1.0, 0.0}, dm.zeros(4))
    dm.fft.fft(x)  --> {{0, 0}, {2, 0}, {0, 0}, {2, 0}}]],
  fft_fft2 = [[
    dm.fft.fft2(dm.rand(8, 8, 2)).shape  --> {8, 8, 2}]],
  fft_fftn = [[
    dm.fft.fftn(dm.rand(4, 6, 8, 2)).shape  --> {4, 6, 8, 2}]],
  fft_hfft = [[
    local half = dm.tensor{{1.0, 0.0}, {0.0, 0.0}, {0.0, 0.0}}
    dm.fft.hfft(half)  --> {1, 1, 1, 1}]],
  fft_hfft2 = [[
    dm.fft.hfft2(dm.rand(8, 5, 2)).shape  --> {8, 8}]],
  fft_hfftn = [[
    dm.fft.hfftn(dm.rand(4, 8, 5, 2)).shape  --> {4, 8, 8}]],
  fft_ifft = [[
    local spectrum = dm.tensor{{4.0, 0.0}, {0.0, 0.0}, {0.0, 0.0}, {0.0, 0.0}}
    dm.fft.ifft(spectrum)  --> {{1, 0}, {1, 0}, {1, 0}, {1, 0}}]],
  fft_ifft2 = [[
    local x = dm.rand(8, 8, 2)
    dm.fft.ifft2(dm.fft.fft2(x)):allclose(x, {atol = 1e-5})  --> true]],
  fft_ifftn = [[
    local x = dm.rand(4, 4, 4, 2)
    dm.fft.ifftn(dm.fft.fftn(x)):allclose(x, {atol = 1e-5})  --> true]],
  fft_ihfft = [[
    dm.fft.ihfft(dm.tensor{1.0, 1.0, 1.0, 1.0})  --> {{1, 0}, {0, 0}, {0, 0}}]],
  fft_ihfft2 = [[
    dm.fft.ihfft2(dm.rand(8, 8)).shape  --> {8, 5, 2}]],
  fft_ihfftn = [[
    dm.fft.ihfftn(dm.rand(4, 8, 8)).shape  --> {4, 8, 5, 2}]],
  fft_irfft = [[
    local x = dm.tensor{1.0, 2.0, 3.0, 4.0}
    dm.fft.irfft(dm.fft.rfft(x))  --> {1, 2, 3, 4}
    dm.fft.irfft(dm.fft.rfft(dm.ones(5)), {n = 5}).shape  --> {5}]],
  fft_irfft2 = [[
    local image = dm.rand(8, 8)
    dm.fft.irfft2(dm.fft.rfft2(image)):allclose(image, {atol = 1e-5})  --> true]],
  fft_irfftn = [[
    dm.fft.irfftn(dm.fft.rfftn(dm.rand(4, 6, 8))).shape  --> {4, 6, 8}]],
  fft_rfft = [[
    dm.fft.rfft(dm.tensor{1.0, 0.0, -1.0, 0.0})  --> {{0, 0}, {2, 0}, {0, 0}}
    dm.fft.rfft(dm.rand(8, 400)).shape  --> {8, 201, 2}]],
  fft_rfft2 = [[
    dm.fft.rfft2(dm.rand(3, 16, 16)).shape  --> {3, 16, 9, 2}]],
  fft_rfftn = [[
    dm.fft.rfftn(dm.rand(4, 6, 8)).shape  --> {4, 6, 5, 2}]],
  fill = [[
    dm.empty(3):fill_(7)  --> {7, 7, 7}]],
  fill_diagonal = [[
    dm.zeros(3, 2):fill_diagonal_(5)  --> {{5, 0}, {0, 5}, {0, 0}}]],
  finfo = [[
    dm.finfo("float64").bits  --> 64
    dm.finfo("float32").eps == 2 ^ -23  --> true]],
  flatten = [[
    dm.flatten(dm.tensor{{1, 2}, {3, 4}})  --> {1, 2, 3, 4}
    dm.flatten(dm.ones(8, 3, 4, 4), {start_dim = 2}).shape  --> {8, 48}]],
  flip = [[
    dm.flip(dm.tensor{{1, 2}, {3, 4}}, {2})  --> {{2, 1}, {4, 3}}
    dm.flip(dm.tensor{{1, 2}, {3, 4}}, {1, 2})  --> {{4, 3}, {2, 1}}]],
  fliplr = [[
    dm.fliplr(dm.tensor{{1, 2}, {3, 4}})  --> {{2, 1}, {4, 3}}]],
  flipud = [[
    dm.flipud(dm.tensor{{1, 2}, {3, 4}})  --> {{3, 4}, {1, 2}}]],
  float_power = [[
    local y = dm.float_power(dm.tensor{2, 3}, 2)
    y  --> {4, 9}
    y.dtype  --> "float64"]],
  floor = [[
    dm.floor(dm.tensor{1.7, -1.2, 3.0})  --> {1, -2, 3}]],
  floor_divide = [[
    dm.floor_divide(dm.tensor{7, -7}, 2)  --> {3, -4}]],
  fmax = [[
    dm.fmax(dm.tensor{1.0, 0 / 0}, dm.tensor{3.0, 2.0})  --> {3, 2}]],
  fmin = [[
    dm.fmin(dm.tensor{1.0, 0 / 0}, dm.tensor{3.0, 2.0})  --> {1, 2}]],
  fmod = [[
    dm.fmod(dm.tensor{7, -7}, 3)  --> {1, -1}
    dm.remainder(dm.tensor{7, -7}, 3)  --> {1, 2}]],
  fold = [[
    local x = dm.ones(1, 1, 4, 4)
    local columns = F.unfold(x, 2, {stride = 2})
    F.fold(columns, {4, 4}, 2, {stride = 2}):equal(x)  --> true]],
  frac = [[
    dm.frac(dm.tensor{1.5, -2.25, 3.0})  --> {0.5, -0.25, 0}]],
  fractional_max_pool2d = [[
    F.fractional_max_pool2d(dm.rand(1, 3, 12, 12), 2, {7, 9}).shape  --> {1, 3, 7, 9}]],
  fractional_max_pool3d = [[
    F.fractional_max_pool3d(dm.rand(1, 3, 9, 9, 9), 2, {5, 5, 5}).shape  --> {1, 3, 5, 5, 5}]],
  frexp = [[
    local m, e = dm.frexp(dm.tensor{1.0, 6.0, 0.25})
    m  --> {0.5, 0.75, 0.5}
    e  --> {1, 3, -1}]],
  full = [[
    dm.full({2, 3}, 7)  --> {{7, 7, 7}, {7, 7, 7}}]],
  full_like = [[
    dm.full_like(dm.tensor{1, 2, 3}, 9)  --> {9, 9, 9}]],
  gather = [[
    local x, columns = dm.tensor{{10, 20, 30}, {40, 50, 60}}, dm.tensor{{3}, {1}}
    dm.gather(x, 2, columns)  --> {{30}, {40}}]],
  gaussian_nll_loss = [[
    local mean, target, var = dm.tensor{0.0, 0.0}, dm.tensor{1.0, 2.0}, dm.ones(2)
    F.gaussian_nll_loss(mean, target, var)  --> 1.25]],
  ge = [[
    dm.ge(dm.tensor{1, 2, 3}, 2)  --> {false, true, true}]],
  gcd = [[
    dm.gcd(dm.tensor{12, -18}, 8)  --> {4, 2}]],
  gelu = [[
    F.gelu(dm.tensor{-1.0, 0.0, 1.0})  --> {-0.1587, 0, 0.8413}
    F.gelu(dm.tensor{-1.0, 0.0, 1.0}, {approximate = "tanh"})  --> {-0.1588, 0, 0.8412}]],
  geometric = [[
    local throws = dm.empty(1000):geometric_(1 / 6)  -- of a die, up to the first six
    throws:min():item() >= 1  --> true]],
  geqrf = [[
    local a, tau = dm.geqrf(dm.rand(4, 3))
    a.shape  --> {4, 3}
    tau.shape  --> {3}]],
  glu = [[
    F.glu(dm.tensor{6.0, 8.0, 0.0, 0.0})  --> {3, 4}
    F.glu(dm.ones(2, 10)).shape  --> {2, 5}]],
  gradient = [[
    local squares = dm.tensor{1.0, 4.0, 9.0, 16.0}
    dm.gradient(squares)[1]  --> {3, 4, 6, 7}]],
  grid_sample = [[
    local x = dm.tensor{{{{1.0, 2.0}, {3.0, 4.0}}}}
    local grid = dm.tensor{{{{-1.0, -1.0}, {0.0, 0.0}, {1.0, -1.0}}}}  -- 3 points: x, y
    F.grid_sample(x, grid, {align_corners = true})  --> {{{{1, 2.5, 2}}}}]],
  group_norm = [[
    local x = dm.tensor{{1.0, 3.0, 10.0, 30.0}}  -- one sample, 4 channels
    F.group_norm(x, 2)  --> {{-1, 1, -1, 1}}]],
  gru_cell = [[
    local x, h = dm.rand(8, 4), dm.zeros(8, 5)
    dm.gru_cell(x, h, dm.rand(15, 4), dm.rand(15, 5)).shape  --> {8, 5}]],
  gt = [[
    dm.gt(dm.tensor{1, 2, 3}, 2)  --> {false, false, true}]],
  gumbel_softmax = [[
    local logits = dm.tensor{{1.0, 2.0, 3.0}}
    F.gumbel_softmax(logits, {hard = true}):sum(2)  --> {1}]],
  hamming_window = [[
    dm.hamming_window(4)  --> {0.08, 0.54, 1, 0.54}]],
  hann_window = [[
    dm.hann_window(4)  --> {0, 0.5, 1, 0.5}
    dm.hann_window(5, {periodic = false})  --> {0, 0.5, 1, 0.5, 0}]],
  hardshrink = [[
    F.hardshrink(dm.tensor{-1.0, 0.3, 2.0})  --> {-1, 0, 2}]],
  hardsigmoid = [[
    F.hardsigmoid(dm.tensor{-4.0, 0.0, 1.5, 4.0})  --> {0, 0.5, 0.75, 1}]],
  hardswish = [[
    F.hardswish(dm.tensor{-4.0, 0.0, 3.0, 4.0})  --> {0, 0, 3, 4}]],
  hardtanh = [[
    F.hardtanh(dm.tensor{-4.0, 0.5, 4.0})  --> {-1, 0.5, 1}]],
  heaviside = [[
    dm.heaviside(dm.tensor{-2.0, 0.0, 3.0}, dm.tensor{0.5})  --> {0, 0.5, 1}]],
  hinge_embedding_loss = [[
    local x, target = dm.tensor{0.5, 0.25}, dm.tensor{1, -1}
    F.hinge_embedding_loss(x, target, {reduction = "none"})  --> {0.5, 0.75}]],
  histc = [[
    dm.histc(dm.tensor{1.0, 2.0, 2.5, 3.9}, {bins = 4, min = 0, max = 4})  --> {0, 1, 2, 1}]],
  histogram = [[
    local counts, edges = dm.histogram(dm.tensor{1.0, 2.0, 2.5, 4.0}, 2, {range = {0, 4}})
    counts  --> {1, 3}
    edges  --> {0, 2, 4}]],
  histogramdd = [[
    local points = dm.tensor{{0.0, 1.0}, {2.0, 3.0}, {2.0, 2.5}}
    local counts, edges = dm.histogramdd(points, {2, 2}, {range = {0, 4, 0, 4}})
    counts  --> {{1, 0}, {0, 2}}]],
  hstack = [[
    dm.hstack(dm.tensor{1, 2}, dm.tensor{3})  --> {1, 2, 3}
    dm.hstack(dm.tensor{{1}, {2}}, dm.tensor{{8}, {9}})  --> {{1, 8}, {2, 9}}]],
  huber_loss = [[
    local x, target = dm.tensor{0.0, 0.0}, dm.tensor{1.0, 5.0}
    F.huber_loss(x, target, {reduction = "none"})  --> {0.5, 4.5}]],
  hypot = [[
    dm.hypot(dm.tensor{3.0, 5.0}, dm.tensor{4.0, 12.0})  --> {5, 13}]],
  i0 = [[
    dm.i0(dm.tensor{0.0, 1.0})  --> {1, 1.266}]],
  igamma = [[
    dm.igamma(dm.tensor{1.0}, dm.tensor{2.0})  --> {0.8647}]],
  igammac = [[
    dm.igammac(dm.tensor{1.0}, dm.tensor{2.0})  --> {0.1353}]],
  iinfo = [[
    dm.iinfo("int8").max  --> 127
    dm.iinfo("uint8").min  --> 0]],
  index_add = [[
    local x, rows = dm.zeros(3, 2), dm.tensor{1, 3, 1}
    x:index_add(1, rows, dm.ones(3, 2))  --> {{2, 2}, {0, 0}, {1, 1}}]],
  index_copy = [[
    local x, rows = dm.zeros(3, 2), dm.tensor{{1.0, 2.0}, {3.0, 4.0}}
    x:index_copy(1, dm.tensor{3, 1}, rows)  --> {{3, 4}, {0, 0}, {1, 2}}]],
  index_fill = [[
    dm.zeros(2, 3):index_fill(2, dm.tensor{1, 3}, 9)  --> {{9, 0, 9}, {9, 0, 9}}]],
  index_reduce = [[
    local x, source = dm.tensor{1.0, 1.0}, dm.tensor{5.0, 2.0, 3.0}
    x:index_reduce(1, dm.tensor{1, 2, 2}, source, "amax")  --> {5, 3}]],
  index_select = [[
    local x = dm.tensor{{1, 2}, {3, 4}, {5, 6}}
    dm.index_select(x, 1, dm.tensor{3, 1})  --> {{5, 6}, {1, 2}}]],
  inner = [[
    dm.inner(dm.tensor{1, 2, 3}, dm.tensor{1, 1, 1})  --> 6
    dm.inner(dm.ones(2, 5), dm.ones(3, 5)).shape  --> {2, 3}]],
  instance_norm = [[
    local x = dm.tensor{{{1.0, 3.0}, {10.0, 30.0}}}  -- one sample, 2 channels of 2 points
    F.instance_norm(x)  --> {{{-1, 1}, {-1, 1}}}]],
  interpolate = [[
    local x = dm.tensor{{{1.0, 3.0}}}  -- (N, C, L)
    F.interpolate(x, {scale_factor = 2})  --> {{{1, 1, 3, 3}}}
    F.interpolate(x, {size = 3, mode = "linear", align_corners = true})  --> {{{1, 2, 3}}}
    F.interpolate(dm.rand(1, 3, 8, 8), {size = {16, 20}}).shape  --> {1, 3, 16, 20}]],
  is_complex = [[
    dm.is_complex(dm.ones(2))  --> false]],
  is_floating_point = [[
    dm.is_floating_point(dm.tensor{1.5})  --> true
    dm.is_floating_point(dm.tensor{1})  --> false]],
  is_nonzero = [[
    dm.is_nonzero(dm.tensor{0.5})  --> true]],
  isclose = [[
    dm.isclose(dm.tensor{1.0, 2.0}, dm.tensor{1.0000001, 2.1})  --> {true, false}]],
  isfinite = [[
    dm.isfinite(dm.tensor{1.0, math.huge, 0 / 0})  --> {true, false, false}]],
  isin = [[
    dm.isin(dm.tensor{1, 2, 3, 4}, dm.tensor{2, 4})  --> {false, true, false, true}]],
  isinf = [[
    dm.isinf(dm.tensor{1.0, math.huge, -math.huge})  --> {false, true, true}]],
  isnan = [[
    dm.isnan(dm.tensor{1.0, 0 / 0, math.huge})  --> {false, true, false}]],
  isneginf = [[
    dm.isneginf(dm.tensor{1.0, math.huge, -math.huge})  --> {false, false, true}]],
  isreal = [[
    dm.isreal(dm.tensor{1.0, 2.0})  --> {true, true}]],
  isposinf = [[
    dm.isposinf(dm.tensor{1.0, math.huge, -math.huge})  --> {false, true, false}]],
  istft = [[
    local x, window = dm.rand(1, 800), dm.hann_window(200)
    local spectrum = dm.stft(x, 200, {window = window})
    local back = dm.istft(spectrum, 200, {window = window, length = 800})
    back:allclose(x, {atol = 1e-5})  --> true]],
  kaiser_window = [[
    dm.kaiser_window(5, {periodic = false, beta = 0})  --> {1, 1, 1, 1, 1}
    dm.kaiser_window(8).shape  --> {8}]],
  kl_div = [[
    local log_q, p = dm.tensor{{0.25, 0.75}}:log(), dm.tensor{{0.5, 0.5}}
    F.kl_div(log_q, p, {reduction = "batchmean"})  --> 0.1438]],
  kron = [[
    dm.kron(dm.tensor{1, 10}, dm.tensor{1, 2, 3})  --> {1, 2, 3, 10, 20, 30}]],
  kthvalue = [[
    local value, where = dm.kthvalue(dm.tensor{40, 10, 30, 20}, 2)
    value  --> 20
    where  --> 4]],
  l1_loss = [[
    local x, target = dm.tensor{1.0, 5.0}, dm.tensor{2.0, 2.0}
    F.l1_loss(x, target)  --> 2
    F.l1_loss(x, target, {reduction = "sum"})  --> 4]],
  layer_norm = [[
    local x = dm.tensor{{1.0, 3.0}, {10.0, 30.0}}
    F.layer_norm(x, {2})  --> {{-1, 1}, {-1, 1}}
    F.layer_norm(dm.rand(8, 16, 32), {32}, {weight = dm.ones(32)}).shape  --> {8, 16, 32}]],
  lcm = [[
    dm.lcm(dm.tensor{4, -6}, 10)  --> {20, 30}]],
  ldexp = [[
    dm.ldexp(dm.tensor{1.0, 3.0}, dm.tensor{3, 2})  --> {8, 12}]],
  le = [[
    dm.le(dm.tensor{1, 2, 3}, 2)  --> {true, true, false}]],
  leaky_relu = [[
    F.leaky_relu(dm.tensor{-10.0, 0.0, 2.0}, 0.1)  --> {-1, 0, 2}]],
  lerp = [[
    dm.lerp(dm.tensor{0.0, 10.0}, dm.tensor{4.0, 20.0}, 0.5)  --> {2, 15}]],
  lgamma = [[
    dm.lgamma(dm.tensor{1.0, 5.0})  --> {0, 3.178}
    dm.lgamma(dm.tensor{5.0}):exp()  --> {24}]],
  linalg_cholesky = [[
    local A = dm.tensor{{4.0, 2.0}, {2.0, 10.0}}
    local L = dm.linalg.cholesky(A)
    L  --> {{2, 0}, {1, 3}}
    L:mm(L:t())  --> {{4, 2}, {2, 10}}]],
  linalg_cholesky_ex = [[
    local L, info = dm.linalg.cholesky_ex(dm.tensor{{1.0, 0.0}, {0.0, -1.0}})
    info  --> 2]],
  linalg_cond = [[
    dm.linalg.cond(dm.tensor{{4.0, 0.0}, {0.0, 0.5}})  --> 8]],
  linalg_cross = [[
    dm.linalg.cross(dm.tensor{1.0, 0.0, 0.0}, dm.tensor{0.0, 1.0, 0.0})  --> {0, 0, 1}]],
  linalg_det = [[
    dm.linalg.det(dm.tensor{{1.0, 2.0}, {3.0, 4.0}})  --> -2
    dm.linalg.det(dm.rand(8, 3, 3)).shape  --> {8}]],
  linalg_diagonal = [[
    dm.linalg.diagonal(dm.tensor{{1, 2}, {3, 4}})  --> {1, 4}
    dm.linalg.diagonal(dm.ones(8, 3, 3)).shape  --> {8, 3}]],
  linalg_eigh = [[
    local A = dm.tensor{{2.0, 1.0}, {1.0, 2.0}}
    local values, vectors = dm.linalg.eigh(A)
    values  --> {1, 3}
    (vectors * values):mm(vectors:t())  --> {{2, 1}, {1, 2}}]],
  linalg_eigvalsh = [[
    dm.linalg.eigvalsh(dm.tensor{{2.0, 1.0}, {1.0, 2.0}})  --> {1, 3}]],
  linalg_householder_product = [[
    local A = dm.rand(4, 3)
    local Q = dm.linalg.householder_product(dm.geqrf(A))
    Q:t():mm(Q):allclose(dm.eye(3), {atol = 1e-5})  --> true]],
  linalg_inv = [[
    local A = dm.tensor{{2.0, 1.0}, {1.0, 1.0}}
    dm.linalg.inv(A)  --> {{1, -1}, {-1, 2}}]],
  linalg_inv_ex = [[
    local inverse, info = dm.linalg.inv_ex(dm.tensor{{1.0, 2.0}, {2.0, 4.0}})
    info  --> 2]],
  linalg_ldl_factor = [[
    local A, B = dm.tensor{{2.0, 1.0}, {1.0, -3.0}}, dm.tensor{{4.0}, {-5.0}}
    local LD, pivots = dm.linalg.ldl_factor(A)
    dm.linalg.ldl_solve(LD, pivots, B)  --> {{1}, {2}}]],
  linalg_ldl_factor_ex = [[
    local LD, pivots, info = dm.linalg.ldl_factor_ex(dm.zeros(2, 2))
    info  --> 1]],
  linalg_ldl_solve = [[
    local LD, pivots = dm.linalg.ldl_factor(dm.tensor{{2.0, 0.0}, {0.0, -4.0}})
    dm.linalg.ldl_solve(LD, pivots, dm.tensor{{2.0}, {8.0}})  --> {{1}, {-2}}]],
  linalg_lstsq = [[
    local A = dm.tensor{{1.0, 1.0}, {2.0, 1.0}, {3.0, 1.0}}  -- the line through 3 points
    local B = dm.tensor{{3.0}, {5.0}, {7.0}}
    dm.linalg.lstsq(A, B)  --> {{2}, {1}}]],
  linalg_lu = [[
    local P, L, U = dm.linalg.lu(dm.tensor{{0.0, 2.0}, {4.0, 6.0}})
    U  --> {{4, 6}, {0, 2}}
    P:mm(L):mm(U)  --> {{0, 2}, {4, 6}}]],
  linalg_lu_factor = [[
    local LU, pivots = dm.linalg.lu_factor(dm.tensor{{2.0, 1.0}, {4.0, 4.0}})
    dm.linalg.lu_solve(LU, pivots, dm.tensor{{4.0}, {12.0}})  --> {{1}, {2}}]],
  linalg_lu_factor_ex = [[
    local LU, pivots, info = dm.linalg.lu_factor_ex(dm.tensor{{1.0, 2.0}, {2.0, 4.0}})
    info  --> 2]],
  linalg_lu_solve = [[
    local LU, pivots = dm.linalg.lu_factor(dm.tensor{{2.0, 0.0}, {0.0, 4.0}})
    dm.linalg.lu_solve(LU, pivots, dm.tensor{{2.0}, {8.0}})  --> {{1}, {2}}]],
  linalg_matrix_exp = [[
    dm.linalg.matrix_exp(dm.zeros(2, 2))  --> {{1, 0}, {0, 1}}
    dm.linalg.matrix_exp(dm.tensor{{0.0, 1.0}, {0.0, 0.0}})  --> {{1, 1}, {0, 1}}]],
  linalg_matrix_norm = [[
    local A = dm.tensor{{3.0, 0.0}, {0.0, 4.0}}
    dm.linalg.matrix_norm(A)  --> 5
    dm.linalg.matrix_norm(A, "nuc")  --> 7
    dm.linalg.matrix_norm(A, 2)  --> 4]],
  linalg_matrix_power = [[
    dm.linalg.matrix_power(dm.tensor{{1.0, 1.0}, {1.0, 0.0}}, 5)  --> {{8, 5}, {5, 3}}]],
  linalg_matrix_rank = [[
    dm.linalg.matrix_rank(dm.tensor{{1.0, 2.0}, {2.0, 4.0}})  --> 1]],
  linalg_matrix_sqrth = [[
    dm.linalg.matrix_sqrth(dm.tensor{{5.0, 4.0}, {4.0, 5.0}})  --> {{2, 1}, {1, 2}}]],
  linalg_multi_dot = [[
    local a, b, c = dm.rand(10, 100), dm.rand(100, 5), dm.rand(5, 50)
    dm.linalg.multi_dot({a, b, c}).shape  --> {10, 50}]],
  linalg_pinv = [[
    local A = dm.tensor{{2.0, 0.0}, {0.0, 4.0}, {0.0, 0.0}}
    dm.linalg.pinv(A)  --> {{0.5, 0, 0}, {0, 0.25, 0}}]],
  linalg_polar = [[
    local U, H = dm.linalg.polar(dm.tensor{{0.0, -2.0}, {3.0, 0.0}})
    U  --> {{0, -1}, {1, 0}}
    H  --> {{3, 0}, {0, 2}}]],
  linalg_qr = [[
    local A = dm.rand(4, 3)
    local Q, R = dm.linalg.qr(A)
    Q:t():mm(Q):allclose(dm.eye(3), {atol = 1e-5})  --> true
    Q:mm(R):allclose(A, {atol = 1e-5})  --> true]],
  linalg_slogdet = [[
    local sign, log = dm.linalg.slogdet(dm.tensor{{1.0, 2.0}, {3.0, 4.0}})
    sign  --> -1
    log:exp()  --> 2]],
  linalg_solve = [[
    local A, B = dm.tensor{{2.0, 1.0}, {1.0, 3.0}}, dm.tensor{4.0, 7.0}
    dm.linalg.solve(A, B)  --> {1, 2}]],
  linalg_solve_ex = [[
    local X, info = dm.linalg.solve_ex(dm.zeros(2, 2), dm.ones(2))
    info  --> 1]],
  linalg_solve_triangular = [[
    local A, B = dm.tensor{{2.0, 1.0}, {0.0, 4.0}}, dm.tensor{{4.0}, {8.0}}
    dm.linalg.solve_triangular(A, B, {upper = true})  --> {{1}, {2}}]],
  linalg_svd = [[
    local A = dm.rand(4, 3)
    local U, S, Vh = dm.linalg.svd(A, {full_matrices = false})
    S.shape  --> {3}
    (U * S):mm(Vh):allclose(A, {atol = 1e-5})  --> true]],
  linalg_svdvals = [[
    dm.linalg.svdvals(dm.tensor{{0.0, 3.0}, {5.0, 0.0}})  --> {5, 3}]],
  linalg_tensorinv = [[
    dm.linalg.tensorinv(dm.eye(6):view(2, 3, 6)).shape  --> {6, 2, 3}]],
  linalg_tensorsolve = [[
    local A, B = dm.eye(6):view(2, 3, 6), dm.ones(2, 3)
    dm.linalg.tensorsolve(A, B)  --> {1, 1, 1, 1, 1, 1}]],
  linalg_vander = [[
    dm.linalg.vander(dm.tensor{2.0, 3.0}, {N = 4})  --> {{1, 2, 4, 8}, {1, 3, 9, 27}}]],
  linalg_vecdot = [[
    local a, b = dm.tensor{{1.0, 2.0}, {3.0, 4.0}}, dm.tensor{{1.0, 1.0}, {0.0, 2.0}}
    dm.linalg.vecdot(a, b)  --> {3, 8}]],
  linalg_vector_norm = [[
    local x = dm.tensor{{3.0, 4.0}, {6.0, 8.0}}
    dm.linalg.vector_norm(x, {dim = 2})  --> {5, 10}
    dm.linalg.vector_norm(x, math.huge)  --> 8]],
  linear = [[
    local x, weight = dm.tensor{{1.0, 2.0}}, dm.tensor{{1.0, 1.0}, {0.0, 10.0}, {2.0, 0.0}}
    F.linear(x, weight)  --> {{3, 20, 2}}
    F.linear(x, weight, dm.tensor{1.0, 1.0, 1.0})  --> {{4, 21, 3}}]],
  linear_cross_entropy = [[
    local hidden, weight = dm.rand(8, 16), dm.rand(1000, 16)  -- 1000 classes
    local target = dm.randint(1000, {8})
    F.linear_cross_entropy(hidden, weight, target).shape  --> {}]],
  linspace = [[
    dm.linspace(0, 1, 5)  --> {0, 0.25, 0.5, 0.75, 1}]],
  local_response_norm = [[
    local x = dm.ones(1, 3, 1, 1)
    F.local_response_norm(x, 3, {alpha = 3, beta = 1}):view(-1)  --> {0.3333, 0.25, 0.3333}]],
  log = [[
    dm.log(dm.tensor{1.0, math.exp(1)})  --> {0, 1}]],
  log10 = [[
    dm.log10(dm.tensor{1, 10, 1000})  --> {0, 1, 3}]],
  log1p = [[
    dm.log1p(dm.tensor{0.0, 1.0})  --> {0, 0.6931}
    dm.log1p(dm.tensor{1e-10}):item() > 0  --> true]],
  log2 = [[
    dm.log2(dm.tensor{1, 2, 1024})  --> {0, 1, 10}]],
  log_normal = [[
    local x = dm.empty(1000):log_normal_(0, 1)
    x:min():item() > 0  --> true]],
  log_softmax = [[
    F.log_softmax(dm.tensor{0.0, 0.0}, 1):exp()  --> {0.5, 0.5}
    F.log_softmax(dm.tensor{{0.0, 1000.0}}, 2)  --> {{-1000, 0}}]],
  logaddexp = [[
    dm.logaddexp(dm.tensor{1.0}:log(), dm.tensor{3.0}:log()):exp()  --> {4}
    dm.logaddexp(dm.tensor{1000.0}, dm.tensor{0.0})  --> {1000}]],
  logaddexp2 = [[
    dm.logaddexp2(dm.tensor{0.0, 3.0}, dm.tensor{0.0, 3.0})  --> {1, 4}]],
  logcumsumexp = [[
    dm.logcumsumexp(dm.tensor{1.0, 2.0, 3.0}:log(), 1):exp()  --> {1, 3, 6}]],
  logdet = [[
    dm.logdet(dm.tensor{{2.0, 0.0}, {0.0, 3.0}}):exp()  --> 6]],
  logical_and = [[
    dm.logical_and(dm.tensor{true, true}, dm.tensor{true, false})  --> {true, false}
    dm.logical_and(dm.tensor{0, 1, 2}, dm.tensor{3, 0, 4})  --> {false, false, true}]],
  logical_not = [[
    dm.logical_not(dm.tensor{true, false})  --> {false, true}]],
  logical_or = [[
    dm.logical_or(dm.tensor{true, false}, dm.tensor{false, false})  --> {true, false}]],
  logical_xor = [[
    dm.logical_xor(dm.tensor{true, false}, dm.tensor{true, true})  --> {false, true}]],
  logit = [[
    dm.logit(dm.tensor{0.5, 0.25}):sigmoid()  --> {0.5, 0.25}
    dm.logit(dm.tensor{0.0, 1.0})  --> {-math.huge, math.huge}]],
  logsigmoid = [[
    F.logsigmoid(dm.tensor{0.0, -1000.0})  --> {-0.6931, -1000}]],
  logsumexp = [[
    dm.logsumexp(dm.tensor{{1.0, 2.0, 3.0}}:log(), 2):exp()  --> {6}
    dm.logsumexp(dm.tensor{1000.0, 0.0}, 1)  --> 1000]],
  lstm_cell = [[
    local x, h, c = dm.rand(8, 4), dm.zeros(8, 5), dm.zeros(8, 5)
    local h2, c2 = dm.lstm_cell(x, h, c, dm.rand(20, 4), dm.rand(20, 5))
    h2.shape  --> {8, 5}]],
  lt = [[
    dm.lt(dm.tensor{1, 2, 3}, 2)  --> {true, false, false}]],
  lu = [[
    local LU, pivots = dm.lu(dm.tensor{{0.0, 2.0}, {4.0, 6.0}})
    pivots  --> {2, 2}
    LU  --> {{4, 6}, {0, 2}}]],
  lu_solve = [[
    local LU, pivots = dm.linalg.lu_factor(dm.tensor{{2.0, 0.0}, {0.0, 4.0}})
    dm.lu_solve(dm.tensor{{2.0}, {8.0}}, LU, pivots)  --> {{1}, {2}}]],
  lu_unpack = [[
    local LU, pivots = dm.linalg.lu_factor(dm.tensor{{0.0, 2.0}, {4.0, 6.0}})
    local P, L, U = dm.lu_unpack(LU, pivots)
    P:mm(L):mm(U)  --> {{0, 2}, {4, 6}}]],
  margin_ranking_loss = [[
    local a, b = dm.tensor{3.0, 1.0}, dm.tensor{1.0, 3.0}
    F.margin_ranking_loss(a, b, dm.tensor{1, 1}, {reduction = "none"})  --> {0, 2}]],
  masked_fill = [[
    local x = dm.tensor{1, 2, 3}
    x:masked_fill(x:gt(1), 0)  --> {1, 0, 0}]],
  masked_scatter = [[
    local x, mask = dm.zeros(4), dm.tensor{false, true, false, true}
    x:masked_scatter(mask, dm.tensor{7.0, 8.0})  --> {0, 7, 0, 8}]],
  masked_select = [[
    local x = dm.tensor{{1, 5}, {7, 2}}
    x:masked_select(x:gt(3))  --> {5, 7}]],
  matmul = [[
    local a = dm.tensor{{1, 2}, {3, 4}}
    a:matmul(a)  --> {{7, 10}, {15, 22}}
    a:matmul(dm.tensor{1, 1})  --> {3, 7}
    dm.matmul(dm.rand(8, 4, 2, 3), dm.rand(3, 5)).shape  --> {8, 4, 2, 5}]],
  matrix_exp = [[
    dm.matrix_exp(dm.tensor{{0.0, 1.0}, {0.0, 0.0}})  --> {{1, 1}, {0, 1}}]],
  max = [[
    dm.max(dm.tensor{2, 9, 5})  --> 9
    local values, where = dm.max(dm.tensor{{2, 9, 5}, {7, 1, 3}}, 2)
    values  --> {9, 7}
    where  --> {2, 1}]],
  max_pool1d = [[
    local x = dm.tensor{{{1.0, 5.0, 2.0, 8.0}}}
    F.max_pool1d(x, 2)  --> {{{5, 8}}}
    F.max_pool1d(x, 2, {stride = 1})  --> {{{5, 5, 8}}}]],
  max_pool2d = [[
    local x = dm.arange(16):float():view(1, 1, 4, 4)
    F.max_pool2d(x, 2)  --> {{{{6, 8}, {14, 16}}}}
    F.max_pool2d(x, 3, {stride = 2, padding = 1}).shape  --> {1, 1, 2, 2}]],
  max_pool3d = [[
    F.max_pool3d(dm.rand(2, 3, 8, 8, 8), 2).shape  --> {2, 3, 4, 4, 4}]],
  max_unpool1d = [[
    local x = dm.tensor{{{1.0, 5.0, 2.0, 8.0}}}
    local y, where = F.max_pool1d(x, 2, {return_indices = true})
    F.max_unpool1d(y, where, 2)  --> {{{0, 5, 0, 8}}}]],
  max_unpool2d = [[
    local x = dm.rand(1, 3, 8, 8)
    local y, where = F.max_pool2d(x, 2, {return_indices = true})
    F.max_unpool2d(y, where, 2).shape  --> {1, 3, 8, 8}]],
  max_unpool3d = [[
    local x = dm.rand(1, 3, 4, 4, 4)
    local y, where = F.max_pool3d(x, 2, {return_indices = true})
    F.max_unpool3d(y, where, 2).shape  --> {1, 3, 4, 4, 4}]],
  maximum = [[
    dm.maximum(dm.tensor{1, 5, 3}, dm.tensor{4, 2, 3})  --> {4, 5, 3}]],
  mean = [[
    local x = dm.tensor{{1.0, 2.0}, {3.0, 6.0}}
    x:mean()  --> 3
    x:mean(1)  --> {2, 4}
    x:mean(2, {keepdim = true})  --> {{1.5}, {4.5}}]],
  median = [[
    dm.median(dm.tensor{7, 1, 5})  --> 5
    local values, where = dm.median(dm.tensor{{7, 1, 5}}, 2)
    where  --> {3}]],
  min = [[
    dm.min(dm.tensor{2, 9, 5})  --> 2
    local values, where = dm.min(dm.tensor{{2, 9, 5}, {7, 1, 3}}, 2)
    values  --> {2, 1}
    where  --> {1, 2}]],
  minimum = [[
    dm.minimum(dm.tensor{1, 5, 3}, dm.tensor{4, 2, 3})  --> {1, 2, 3}]],
  mish = [[
    F.mish(dm.tensor{-1.0, 0.0, 2.0})  --> {-0.3034, 0, 1.944}]],
  mm = [[
    dm.mm(dm.tensor{{1, 2}, {3, 4}}, dm.tensor{{5}, {6}})  --> {{17}, {39}}]],
  mode = [[
    local value, where = dm.mode(dm.tensor{3, 1, 3, 2})
    value  --> 3
    where  --> 3]],
  movedim = [[
    dm.movedim(dm.ones(8, 32, 32, 3), 4, 2).shape  --> {8, 3, 32, 32}]],
  mse_loss = [[
    local x, target = dm.tensor{1.0, 5.0}, dm.tensor{2.0, 2.0}
    F.mse_loss(x, target)  --> 5
    F.mse_loss(x, target, {reduction = "none"})  --> {1, 9}]],
  msort = [[
    dm.msort(dm.tensor{{3, 10}, {1, 20}, {2, 5}})  --> {{1, 5}, {2, 10}, {3, 20}}]],
  mul = [[
    dm.mul(dm.tensor{1, 2, 3}, 10)  --> {10, 20, 30}
    dm.tensor{{1}, {2}} * dm.tensor{3, 4}  --> {{3, 4}, {6, 8}}]],
  multi_margin_loss = [[
    local scores = dm.tensor{{3.0, 2.5, 0.0, 1.0}}
    F.multi_margin_loss(scores, dm.tensor{1})  --> 0.125]],
  multilabel_margin_loss = [[
    local scores, labels = dm.tensor{{3.0, 0.5, 1.0, 0.0}}, dm.tensor{{1, 3, -1, -1}}
    F.multilabel_margin_loss(scores, labels)  --> 0.125]],
  multilabel_soft_margin_loss = [[
    local logits, labels = dm.tensor{{2.0, -1.0, 0.0}}, dm.tensor{{1.0, 0.0, 1.0}}
    F.multilabel_soft_margin_loss(logits, labels)  --> 0.3778]],
  multinomial = [[
    dm.multinomial(dm.tensor{0.0, 1.0, 0.0}, 4, {replacement = true})  --> {2, 2, 2, 2}
    dm.multinomial(dm.tensor{0.2, 0.3, 0.5}, 3):sort()  --> {1, 2, 3}]],
  mv = [[
    dm.mv(dm.tensor{{1, 2}, {3, 4}}, dm.tensor{1, 10})  --> {21, 43}]],
  mvlgamma = [[
    dm.mvlgamma(dm.tensor{3.0}, 1):exp()  --> {2}
    dm.mvlgamma(dm.tensor{3.0}, 2)  --> {1.55}]],
  nan_to_num = [[
    dm.nan_to_num(dm.tensor{1.0, 0 / 0})  --> {1, 0}
    dm.nan_to_num(dm.tensor{0 / 0, math.huge}, {nan = -1, posinf = 9})  --> {-1, 9}]],
  nanmean = [[
    dm.nanmean(dm.tensor{1.0, 0 / 0, 3.0})  --> 2]],
  nanmedian = [[
    dm.nanmedian(dm.tensor{1.0, 0 / 0, 3.0, 2.0})  --> 2]],
  nanquantile = [[
    dm.nanquantile(dm.tensor{1.0, 0 / 0, 3.0}, 0.5)  --> 2]],
  nansum = [[
    dm.nansum(dm.tensor{1.0, 0 / 0, 3.0})  --> 4]],
  narrow = [[
    dm.narrow(dm.tensor{10, 20, 30, 40}, 1, 2, 3)  --> {20, 30, 40}]],
  ne = [[
    dm.ne(dm.tensor{1, 2, 3}, 2)  --> {true, false, true}]],
  neg = [[
    dm.neg(dm.tensor{1, -2})  --> {-1, 2}
    -dm.tensor{1, -2}  --> {-1, 2}]],
  new_empty = [[
    dm.ones(2, {dtype = "float64"}):new_empty(3, 4).dtype  --> "float64"]],
  new_full = [[
    dm.tensor{1, 2}:new_full({2, 2}, 7)  --> {{7, 7}, {7, 7}}]],
  new_ones = [[
    local x = dm.ones(2, {dtype = "float64"})
    x:new_ones(3).dtype  --> "float64"]],
  new_tensor = [[
    local x = dm.ones(2, {dtype = "float64"})
    x:new_tensor({1, 2}).dtype  --> "float64"]],
  new_zeros = [[
    local x = dm.rand(8, 16)
    x:new_zeros(x:size(1))  --> {0, 0, 0, 0, 0, 0, 0, 0}]],
  nextafter = [[
    dm.nextafter(dm.tensor{1.0}, dm.tensor{2.0}) - 1  --> {2 ^ -23}]],
  nll_loss = [[
    local log_probs = dm.tensor{{0.5, 0.5}, {0.25, 0.75}}:log()
    F.nll_loss(log_probs, dm.tensor{1, 2}, {reduction = "none"}):exp()  --> {2, 4 / 3}]],
  nonzero = [[
    dm.nonzero(dm.tensor{0, 7, 0, 9})  --> {{2}, {4}}
    dm.nonzero(dm.tensor{{1, 0}, {0, 1}})  --> {{1, 1}, {2, 2}}]],
  nonzero_static = [[
    dm.nonzero_static(dm.tensor{0, 7, 0, 9}, {size = 3})  --> {{2}, {4}, {-1}}]],
  norm = [[
    local x = dm.tensor{{3.0, 4.0}, {6.0, 8.0}}
    dm.norm(dm.tensor{3.0, 4.0})  --> 5
    dm.norm(x, {dim = 2})  --> {5, 10}
    dm.norm(x, 1, {dim = 2})  --> {7, 14}]],
  normal = [[
    dm.normal(10, 0.5, {3, 2}).shape  --> {3, 2}
    dm.empty(4):normal_(10, 0.5).shape  --> {4}]],
  one_hot = [[
    F.one_hot(dm.tensor{1, 3})  --> {{1, 0, 0}, {0, 0, 1}}
    F.one_hot(dm.tensor{1, 2}, 4)  --> {{1, 0, 0, 0}, {0, 1, 0, 0}}]],
  ones = [[
    dm.ones(2, 3)  --> {{1, 1, 1}, {1, 1, 1}}
    dm.ones(2, {dtype = "int64"}).dtype  --> "int64"]],
  ones_like = [[
    dm.ones_like(dm.tensor{5, 6, 7})  --> {1, 1, 1}]],
  ormqr = [[
    local A, y = dm.rand(4, 3), dm.rand(4, 1)
    local a, tau = dm.geqrf(A)
    dm.ormqr(a, tau, y).shape  --> {4, 1}]],
  outer = [[
    dm.outer(dm.tensor{1, 2}, dm.tensor{3, 4, 5})  --> {{3, 4, 5}, {6, 8, 10}}]],
  pad = [[
    F.pad(dm.tensor{1, 2, 3}, {2, 1})  --> {0, 0, 1, 2, 3, 0}
    F.pad(dm.rand(1, 3, 8, 8), {1, 1, 2, 2}).shape  --> {1, 3, 12, 10}
    F.pad(dm.tensor{{1.0, 2.0, 3.0}}, {2, 0}, {mode = "reflect"})  --> {{3, 2, 1, 2, 3}}]],
  pairwise_distance = [[
    local a, b = dm.tensor{{0.0, 0.0}, {1.0, 1.0}}, dm.tensor{{3.0, 4.0}, {1.0, 3.0}}
    F.pairwise_distance(a, b)  --> {5, 2}]],
  pca_lowrank = [[
    local U, S, V = dm.pca_lowrank(dm.rand(100, 8), {q = 2})  -- 100 samples
    V.shape  --> {8, 2}]],
  pdist = [[
    local points = dm.tensor{{0.0, 0.0}, {3.0, 4.0}, {3.0, 0.0}}
    F.pdist(points)  --> {5, 3, 4}]],
  permute = [[
    dm.permute(dm.ones(8, 32, 40, 3), {1, 4, 2, 3}).shape  --> {8, 3, 32, 40}]],
  pinverse = [[
    local A = dm.tensor{{2.0, 0.0}, {0.0, 4.0}, {0.0, 0.0}}
    dm.pinverse(A)  --> {{0.5, 0, 0}, {0, 0.25, 0}}]],
  pixel_shuffle = [[
    local x = dm.tensor{{{1}}, {{2}}, {{3}}, {{4}}}  -- 4 channels of one pixel
    F.pixel_shuffle(x, 2)  --> {{{1, 2}, {3, 4}}}]],
  pixel_unshuffle = [[
    F.pixel_unshuffle(dm.rand(1, 3, 8, 8), 2).shape  --> {1, 12, 4, 4}]],
  poisson = [[
    local counts = dm.poisson(dm.full({1000}, 4.0))  -- 4 on average
    counts:min():item() >= 0  --> true]],
  poisson_nll_loss = [[
    local log_rate, counts = dm.tensor{0.0, 0.0}, dm.tensor{1.0, 2.0}
    F.poisson_nll_loss(log_rate, counts)  --> 1]],
  polygamma = [[
    dm.polygamma(1, dm.tensor{1.0})  --> {math.pi ^ 2 / 6}]],
  positive = [[
    dm.positive(dm.tensor{1, -2})  --> {1, -2}]],
  pow = [[
    dm.pow(dm.tensor{1, 2, 3}, 2)  --> {1, 4, 9}
    dm.pow(2, dm.tensor{1, 2, 3})  --> {2, 4, 8}
    dm.tensor{1.0, 4.0} ^ 0.5  --> {1, 2}]],
  prelu = [[
    local x, slopes = dm.tensor{{-4.0, -4.0}, {2.0, 3.0}}, dm.tensor{0.5, 0.25}
    F.prelu(x, slopes)  --> {{-2, -1}, {2, 3}}]],
  promote_types = [[
    dm.promote_types("int64", "float32")  --> "float32"
    dm.promote_types("uint8", "int8")  --> "int16"]],
  prod = [[
    dm.prod(dm.tensor{2, 3, 4})  --> 24
    dm.prod(dm.tensor{{1, 2}, {3, 4}}, 2)  --> {2, 12}]],
  put = [[
    dm.zeros(2, 2):put_(dm.tensor{1, 4}, dm.tensor{7.0, 8.0})  --> {{7, 0}, {0, 8}}]],
  quantile = [[
    local x = dm.tensor{10.0, 20.0, 30.0, 40.0}
    dm.quantile(x, 0.5)  --> 25
    dm.quantile(x, dm.tensor{0.0, 1.0})  --> {10, 40}]],
  rad2deg = [[
    dm.rad2deg(dm.tensor{0, math.pi / 2, math.pi})  --> {0, 90, 180}]],
  rand = [[
    local x = dm.rand(2, 3)
    x.shape  --> {2, 3}
    x:max():item() < 1  --> true]],
  rand_like = [[
    dm.rand_like(dm.zeros(2, 3)).shape  --> {2, 3}]],
  randint = [[
    dm.randint(6, {10}).shape  --> {10}
    dm.randint(3, 3, {2})  --> {3, 3}
    local dice = dm.randint(1, 6, {1000})  -- 1 to 6, both included
    dice:max():item() <= 6  --> true]],
  randint_like = [[
    dm.randint_like(dm.zeros(2, 3), 1, 6).shape  --> {2, 3}]],
  randn = [[
    dm.manual_seed(1)
    dm.randn(2, 3).shape  --> {2, 3}]],
  randn_like = [[
    local x = dm.tensor{1.0, 2.0, 3.0}
    local noisy = x + 0.1 * dm.randn_like(x)
    noisy.shape  --> {3}]],
  random = [[
    dm.empty(4):random_(1, 1)  --> {1, 1, 1, 1}
    local dice = dm.empty(1000):random_(1, 6)
    dice:max():item() <= 6  --> true]],
  randperm = [[
    local order = dm.randperm(4)
    order:sort()  --> {1, 2, 3, 4}
    dm.rand(4, 2)[order].shape  --> {4, 2}]],
  reciprocal = [[
    dm.reciprocal(dm.tensor{2.0, 4.0})  --> {0.5, 0.25}]],
  relu = [[
    dm.relu(dm.tensor{-1, 0, 2})  --> {0, 0, 2}]],
  relu6 = [[
    F.relu6(dm.tensor{-1.0, 3.0, 9.0})  --> {0, 3, 6}]],
  remainder = [[
    dm.remainder(dm.tensor{7, -7}, 3)  --> {1, 2}]],
  renorm = [[
    local x = dm.tensor{{3.0, 4.0}, {0.3, 0.4}}
    dm.renorm(x, {p = 2, dim = 1, maxnorm = 1})  --> {{0.6, 0.8}, {0.3, 0.4}}]],
  repeat_interleave = [[
    dm.repeat_interleave(dm.tensor{1, 2}, 3)  --> {1, 1, 1, 2, 2, 2}
    dm.repeat_interleave(dm.tensor{1, 2}, dm.tensor{1, 3})  --> {1, 2, 2, 2}]],
  reshape = [[
    dm.reshape(dm.arange(6), {2, 3})  --> {{1, 2, 3}, {4, 5, 6}}
    dm.arange(6):reshape(3, -1).shape  --> {3, 2}]],
  reshape_as = [[
    dm.arange(4):reshape_as(dm.ones(2, 2))  --> {{1, 2}, {3, 4}}]],
  resize = [[
    local x = dm.tensor{1, 2, 3, 4}
    x:resize_(2)  --> {1, 2}]],
  resize_as = [[
    dm.tensor{1, 2, 3, 4}:resize_as_(dm.ones(2, 2))  --> {{1, 2}, {3, 4}}]],
  result_type = [[
    dm.result_type(dm.tensor{1, 2}, 2.5)  --> "float32"
    dm.result_type(dm.ones(2), dm.ones({}, {dtype = "float64"}))  --> "float32"]],
  rms_norm = [[
    local x = dm.tensor{{1.0, -1.0}, {5.0, 5.0}}
    F.rms_norm(x, {2})  --> {{1, -1}, {1, 1}}]],
  rnn_layer = [[
    local x = dm.rand(7, 2, 4)  -- time, batch, features
    local states, last = dm.rnn_layer(x, dm.rand(5, 4), dm.rand(5, 5), {mode = "tanh"})
    states.shape  --> {7, 2, 5}]],
  rnn_relu_cell = [[
    local x, h = dm.ones(1, 2), dm.zeros(1, 3)
    dm.rnn_relu_cell(x, h, dm.ones(3, 2), dm.ones(3, 3))  --> {{2, 2, 2}}]],
  rnn_tanh_cell = [[
    local x, h = dm.rand(8, 4), dm.zeros(8, 5)
    dm.rnn_tanh_cell(x, h, dm.rand(5, 4), dm.rand(5, 5)).shape  --> {8, 5}]],
  roll = [[
    dm.roll(dm.tensor{1, 2, 3, 4}, 1)  --> {4, 1, 2, 3}
    dm.roll(dm.tensor{{1, 2}, {3, 4}}, 1, 1)  --> {{3, 4}, {1, 2}}]],
  rot90 = [[
    dm.rot90(dm.tensor{{1, 2}, {3, 4}})  --> {{2, 4}, {1, 3}}]],
  round = [[
    dm.round(dm.tensor{0.5, 1.5, 2.7})  --> {0, 2, 3}
    dm.round(dm.tensor{3.14159}, {decimals = 2})  --> {3.14}]],
  rrelu = [[
    F.rrelu(dm.tensor{-1.0, 2.0}, 0.25, 0.75)  --> {-0.5, 2}]],
  rsqrt = [[
    dm.rsqrt(dm.tensor{4.0, 16.0})  --> {0.5, 0.25}]],
  rsub = [[
    dm.rsub(dm.tensor{1, 2}, 10)  --> {9, 8}
    10 - dm.tensor{1, 2}  --> {9, 8}]],
  scalar_tensor = [[
    dm.scalar_tensor(5).shape  --> {}]],
  scaled_dot_product_attention = [[
    local q, k, v = dm.rand(2, 4, 6, 8), dm.rand(2, 4, 6, 8), dm.rand(2, 4, 6, 8)
    F.scaled_dot_product_attention(q, k, v).shape  --> {2, 4, 6, 8}
    local y = F.scaled_dot_product_attention(q, k, v, {is_causal = true})
    y[{{}, {}, 1}]:allclose(v[{{}, {}, 1}])  --> true]],
  scatter = [[
    local columns = dm.tensor{{3}, {1}}
    dm.zeros(2, 3):scatter(2, columns, 1)  --> {{0, 0, 1}, {1, 0, 0}}]],
  scatter_add = [[
    local groups, values = dm.tensor{1, 2, 1}, dm.tensor{10.0, 20.0, 30.0}
    dm.zeros(2):scatter_add(1, groups, values)  --> {40, 20}]],
  scatter_reduce = [[
    local x, groups, values = dm.zeros(2), dm.tensor{1, 2, 1}, dm.tensor{10.0, 20.0, 30.0}
    x:scatter_reduce(1, groups, values, "amax")  --> {30, 20}
    x:scatter_reduce(1, groups, values, "mean", {include_self = false})  --> {20, 20}]],
  searchsorted = [[
    local sorted = dm.tensor{10, 20, 30}
    dm.searchsorted(sorted, dm.tensor{5, 20, 99})  --> {1, 2, 4}
    dm.searchsorted(sorted, dm.tensor{5, 20, 99}, {right = true})  --> {1, 3, 4}]],
  segment_reduce = [[
    local x = dm.tensor{1.0, 2.0, 3.0, 4.0, 5.0}
    dm.segment_reduce(x, "sum", {lengths = dm.tensor{2, 3}})  --> {3, 12}]],
  select = [[
    local x = dm.tensor{{1, 2, 3}, {4, 5, 6}}
    x:select(1, 2)  --> {4, 5, 6}
    x:select(2, -1)  --> {3, 6}]],
  select_scatter = [[
    dm.select_scatter(dm.zeros(2, 3), dm.ones(3), 1, 2)  --> {{0, 0, 0}, {1, 1, 1}}]],
  selu = [[
    F.selu(dm.tensor{-1.0, 0.0, 1.0})  --> {-1.111, 0, 1.051}]],
  sigmoid = [[
    dm.sigmoid(dm.tensor{-1.0, 0.0, 1.0})  --> {0.2689, 0.5, 0.7311}]],
  sign = [[
    dm.sign(dm.tensor{-5, 0, 3})  --> {-1, 0, 1}]],
  signal_windows_bartlett = [[
    dm.signal.windows.bartlett(5)  --> {0, 0.5, 1, 0.5, 0}
    dm.signal.windows.bartlett(4, {sym = false})  --> {0, 0.5, 1, 0.5}]],
  signal_windows_blackman = [[
    dm.signal.windows.blackman(5)  --> {0, 0.34, 1, 0.34, 0}]],
  signal_windows_cosine = [[
    dm.signal.windows.cosine(3)  --> {0.5, 1, 0.5}]],
  signal_windows_exponential = [[
    dm.signal.windows.exponential(5, {tau = 2})  --> {0.3679, 0.6065, 1, 0.6065, 0.3679}]],
  signal_windows_gaussian = [[
    dm.signal.windows.gaussian(5, {std = 2})  --> {0.6065, 0.8825, 1, 0.8825, 0.6065}]],
  signal_windows_general_cosine = [[
    dm.signal.windows.general_cosine(5, {0.5, 0.5})  --> {0, 0.5, 1, 0.5, 0}]],
  signal_windows_general_hamming = [[
    dm.signal.windows.general_hamming(5, {alpha = 0.75})  --> {0.5, 0.75, 1, 0.75, 0.5}]],
  signal_windows_hamming = [[
    dm.signal.windows.hamming(5)  --> {0.08, 0.54, 1, 0.54, 0.08}]],
  signal_windows_hann = [[
    dm.signal.windows.hann(5)  --> {0, 0.5, 1, 0.5, 0}
    dm.signal.windows.hann(4, {sym = false})  --> {0, 0.5, 1, 0.5}]],
  signal_windows_kaiser = [[
    dm.signal.windows.kaiser(5, {beta = 2})  --> {0.4387, 0.8348, 1, 0.8348, 0.4387}]],
  signal_windows_nuttall = [[
    dm.signal.windows.nuttall(5)  --> {0.0003628, 0.227, 1, 0.227, 0.0003628}]],
  signbit = [[
    dm.signbit(dm.tensor{-1.0, 0.0, -0.0, 2.0})  --> {true, false, true, false}]],
  silu = [[
    F.silu(dm.tensor{-1.0, 0.0, 1.0})  --> {-0.2689, 0, 0.7311}]],
  sin = [[
    dm.sin(dm.tensor{0, math.pi / 2})  --> {0, 1}]],
  sinc = [[
    dm.sinc(dm.tensor{0.0, 0.5, 1.0})  --> {1, 2 / math.pi, 0}]],
  sinh = [[
    dm.sinh(dm.tensor{0.0, 1.0})  --> {0, 1.175}]],
  slice = [[
    local x = dm.tensor{10, 20, 30, 40, 50}
    dm.slice(x, 1, 2, 4)  --> {20, 30, 40}
    dm.slice(x, 1, 1, 5, {step = 2})  --> {10, 30, 50}
    x[{{2, 4}}]  --> {20, 30, 40}]],
  slice_scatter = [[
    local x = dm.zeros(5)
    dm.slice_scatter(x, dm.ones(2), {start = 2, stop = 3})  --> {0, 1, 1, 0, 0}]],
  smooth_l1_loss = [[
    local x, target = dm.tensor{0.0, 0.0}, dm.tensor{1.0, 5.0}
    F.smooth_l1_loss(x, target, {reduction = "none"})  --> {0.5, 4.5}]],
  soft_margin_loss = [[
    local x, target = dm.tensor{0.0, 2.0}, dm.tensor{1.0, -1.0}
    F.soft_margin_loss(x, target, {reduction = "none"})  --> {0.6931, 2.127}]],
  softmax = [[
    F.softmax(dm.tensor{1.0, 1.0, 1.0, 1.0}, 1)  --> {0.25, 0.25, 0.25, 0.25}
    dm.tensor{{1.0, 3.0}, {4.0, 1.0}}:log():softmax(2)  --> {{0.25, 0.75}, {0.8, 0.2}}]],
  softmin = [[
    F.softmin(dm.tensor{1.0, 3.0}:log(), 1)  --> {0.75, 0.25}]],
  softplus = [[
    F.softplus(dm.tensor{-1.0, 0.0, 100.0})  --> {0.3133, 0.6931, 100}]],
  softshrink = [[
    F.softshrink(dm.tensor{-2.0, 0.25, 2.0})  --> {-1.5, 0, 1.5}]],
  softsign = [[
    F.softsign(dm.tensor{-1.0, 0.0, 3.0})  --> {-0.5, 0, 0.75}]],
  sort = [[
    local values, order = dm.sort(dm.tensor{30, 10, 20})
    values  --> {10, 20, 30}
    order  --> {2, 3, 1}
    dm.sort(dm.tensor{30, 10, 20}, {descending = true})  --> {30, 20, 10}]],
  special_airy_ai = [[
    dm.special.airy_ai(dm.tensor{0.0, 1.0})  --> {0.355, 0.1353}]],
  special_bessel_j0 = [[
    dm.special.bessel_j0(dm.tensor{0.0, 1.0})  --> {1, 0.7652}]],
  special_bessel_j1 = [[
    dm.special.bessel_j1(dm.tensor{0.0, 1.0})  --> {0, 0.4401}]],
  special_bessel_y0 = [[
    dm.special.bessel_y0(dm.tensor{1.0, 2.0})  --> {0.08826, 0.5104}]],
  special_bessel_y1 = [[
    dm.special.bessel_y1(dm.tensor{1.0, 2.0})  --> {-0.7812, -0.107}]],
  special_chebyshev_polynomial_t = [[
    local x = dm.tensor{0.5, 2.0}  -- the polynomial 2 x^2 - 1
    dm.special.chebyshev_polynomial_t(x, 2)  --> {-0.5, 7}]],
  special_chebyshev_polynomial_u = [[
    local x = dm.tensor{0.5, 2.0}  -- the polynomial 4 x^2 - 1
    dm.special.chebyshev_polynomial_u(x, 2)  --> {0, 15}]],
  special_chebyshev_polynomial_v = [[
    local x = dm.tensor{0.5, 2.0}  -- the polynomial 2 x - 1
    dm.special.chebyshev_polynomial_v(x, 1)  --> {0, 3}]],
  special_chebyshev_polynomial_w = [[
    local x = dm.tensor{0.5, 2.0}  -- the polynomial 2 x + 1
    dm.special.chebyshev_polynomial_w(x, 1)  --> {2, 5}]],
  special_entr = [[
    local p = dm.tensor{0.5, 0.5}  -- a coin, whose entropy is log 2
    dm.special.entr(p):sum()  --> math.log(2)]],
  special_erfcx = [[
    dm.special.erfcx(dm.tensor{0.0, 100.0})  --> {1, 0.005642}]],
  special_hermite_polynomial_h = [[
    local x = dm.tensor{1.0, 2.0}  -- the polynomial 4 x^2 - 2
    dm.special.hermite_polynomial_h(x, 2)  --> {2, 14}]],
  special_hermite_polynomial_he = [[
    local x = dm.tensor{1.0, 2.0}  -- the polynomial x^2 - 1
    dm.special.hermite_polynomial_he(x, 2)  --> {0, 3}]],
  special_i0e = [[
    dm.special.i0e(dm.tensor{0.0, 1000.0})  --> {1, 0.01262}]],
  special_i1 = [[
    dm.special.i1(dm.tensor{0.0, 1.0})  --> {0, 0.5652}]],
  special_i1e = [[
    dm.special.i1e(dm.tensor{0.0, 1000.0})  --> {0, 0.01261}]],
  special_laguerre_polynomial_l = [[
    local x = dm.tensor{0.0, 2.0}  -- the polynomial x^2 / 2 - 2 x + 1
    dm.special.laguerre_polynomial_l(x, 2)  --> {1, -1}]],
  special_legendre_polynomial_p = [[
    local x = dm.tensor{1.0, 2.0}  -- the polynomial (3 x^2 - 1) / 2
    dm.special.legendre_polynomial_p(x, 2)  --> {1, 5.5}]],
  special_log_ndtr = [[
    dm.special.log_ndtr(dm.tensor{0.0, -10.0})  --> {-0.6931, -53.23}]],
  special_modified_bessel_k0 = [[
    dm.special.modified_bessel_k0(dm.tensor{1.0, 2.0})  --> {0.421, 0.1139}]],
  special_modified_bessel_k1 = [[
    dm.special.modified_bessel_k1(dm.tensor{1.0, 2.0})  --> {0.6019, 0.1399}]],
  special_ndtr = [[
    dm.special.ndtr(dm.tensor{0.0, 1.96})  --> {0.5, 0.975}]],
  special_ndtri = [[
    dm.special.ndtri(dm.tensor{0.5, 0.975})  --> {0, 1.96}]],
  special_scaled_modified_bessel_k0 = [[
    dm.special.scaled_modified_bessel_k0(dm.tensor{1.0, 1000.0})  --> {1.144, 0.03963}]],
  special_scaled_modified_bessel_k1 = [[
    dm.special.scaled_modified_bessel_k1(dm.tensor{1.0, 1000.0})  --> {1.636, 0.03965}]],
  special_shifted_chebyshev_polynomial_t = [[
    local x = dm.tensor{0.5, 1.0}  -- the polynomial 2 x - 1
    dm.special.shifted_chebyshev_polynomial_t(x, 1)  --> {0, 1}]],
  special_shifted_chebyshev_polynomial_u = [[
    local x = dm.tensor{0.5, 1.0}  -- the polynomial 4 x - 2
    dm.special.shifted_chebyshev_polynomial_u(x, 1)  --> {0, 2}]],
  special_shifted_chebyshev_polynomial_v = [[
    local x = dm.tensor{0.5, 1.0}  -- the polynomial 4 x - 3
    dm.special.shifted_chebyshev_polynomial_v(x, 1)  --> {-1, 1}]],
  special_shifted_chebyshev_polynomial_w = [[
    local x = dm.tensor{0.5, 1.0}  -- the polynomial 4 x - 1
    dm.special.shifted_chebyshev_polynomial_w(x, 1)  --> {1, 3}]],
  special_spherical_bessel_j0 = [[
    dm.special.spherical_bessel_j0(dm.tensor{0.0, math.pi / 2})  --> {1, 2 / math.pi}]],
  special_xlog1py = [[
    dm.special.xlog1py(dm.tensor{0.0, 2.0}, dm.tensor{-1.0, 1.0})  --> {0, 2 * math.log(2)}]],
  special_zeta = [[
    dm.special.zeta(dm.tensor{2.0}, dm.tensor{1.0})  --> {math.pi ^ 2 / 6}]],
  split_with_sizes = [[
    local list = dm.arange(5):split_with_sizes({2, 3})
    list[1]  --> {1, 2}
    list[2]  --> {3, 4, 5}]],
  sqrt = [[
    dm.sqrt(dm.tensor{4, 9})  --> {2, 3}]],
  square = [[
    dm.square(dm.tensor{-3, 4})  --> {9, 16}]],
  squeeze = [[
    dm.squeeze(dm.ones(1, 3, 1)).shape  --> {3}
    dm.squeeze(dm.ones(1, 3, 1), 1).shape  --> {3, 1}]],
  stack = [[
    local a, b = dm.tensor{1, 2}, dm.tensor{3, 4}
    dm.stack(a, b)  --> {{1, 2}, {3, 4}}
    dm.stack({a, b}, {dim = 2})  --> {{1, 3}, {2, 4}}]],
  standard_gamma = [[
    local x = dm.standard_gamma(dm.full({1000}, 2.0))  -- 2 on average
    x:min():item() > 0  --> true]],
  std = [[
    dm.std(dm.tensor{1.0, 2.0, 3.0})  --> 1
    dm.std(dm.tensor{1.0, 3.0}, {correction = 0})  --> 1]],
  std_mean = [[
    local std, mean = dm.std_mean(dm.tensor{1.0, 2.0, 3.0})
    std  --> 1
    mean  --> 2]],
  stft = [[
    local x, window = dm.rand(1, 16000), dm.hann_window(400)
    dm.stft(x, 400, {hop_length = 160, window = window}).shape  --> {1, 201, 101, 2}]],
  sub = [[
    dm.sub(dm.tensor{5, 6}, dm.tensor{1, 2})  --> {4, 4}
    dm.sub(dm.tensor{5, 6}, dm.tensor{1, 2}, {alpha = 2})  --> {3, 2}
    dm.tensor{5, 6} - 1  --> {4, 5}]],
  sum = [[
    local x = dm.tensor{{1, 2}, {3, 4}}
    x:sum()  --> 10
    x:sum(1)  --> {4, 6}
    x:sum(2, {keepdim = true})  --> {{3}, {7}}]],
  sum_to_size = [[
    dm.sum_to_size(dm.tensor{{1, 2}, {3, 4}}, {1, 2})  --> {{4, 6}}]],
  svd = [[
    local A = dm.rand(4, 3)
    local U, S, V = dm.svd(A)
    (U * S):mm(V:t()):allclose(A, {atol = 1e-5})  --> true]],
  svd_lowrank = [[
    local A = dm.rand(100, 3):mm(dm.rand(3, 50))  -- of rank 3
    local U, S, V = dm.svd_lowrank(A, {q = 3})
    (U * S):mm(V:t()):allclose(A, {atol = 1e-3})  --> true]],
  t = [[
    dm.t(dm.tensor{{1, 2, 3}, {4, 5, 6}})  --> {{1, 4}, {2, 5}, {3, 6}}]],
  take = [[
    dm.take(dm.tensor{{10, 20}, {30, 40}}, dm.tensor{4, 1})  --> {40, 10}]],
  take_along_dim = [[
    local x = dm.tensor{{30, 10, 20}, {60, 50, 40}}
    dm.take_along_dim(x, x:argsort(2), 2)  --> {{10, 20, 30}, {40, 50, 60}}]],
  tan = [[
    dm.tan(dm.tensor{0, math.pi / 4})  --> {0, 1}]],
  tanh = [[
    dm.tanh(dm.tensor{-1.0, 0.0, 1.0})  --> {-0.7616, 0, 0.7616}]],
  tanhshrink = [[
    F.tanhshrink(dm.tensor{-1.0, 0.0, 1.0})  --> {-0.2384, 0, 0.2384}]],
  tensordot = [[
    dm.tensordot(dm.rand(3, 4, 5), dm.rand(4, 5, 6), 2).shape  --> {3, 6}
    dm.tensordot(dm.rand(3, 4), dm.rand(5, 3), {{1}, {2}}).shape  --> {4, 5}]],
  threshold = [[
    F.threshold(dm.tensor{0.5, 1.5, 2.5}, 1, -9)  --> {-9, 1.5, 2.5}]],
  tile = [[
    dm.tile(dm.tensor{1, 2}, {3})  --> {1, 2, 1, 2, 1, 2}
    dm.tensor{{1, 2}}:tile(2, 2)  --> {{1, 2, 1, 2}, {1, 2, 1, 2}}]],
  topk = [[
    local values, where = dm.topk(dm.tensor{30, 10, 50, 20}, 2)
    values  --> {50, 30}
    where  --> {3, 1}
    dm.topk(dm.tensor{30, 10, 50, 20}, 2, {largest = false})  --> {10, 20}]],
  trace = [[
    dm.trace(dm.tensor{{1, 2}, {3, 4}})  --> 5]],
  transpose = [[
    dm.transpose(dm.tensor{{1, 2}, {3, 4}}, 1, 2)  --> {{1, 3}, {2, 4}}
    dm.ones(2, 3, 4):transpose(1, -1).shape  --> {4, 3, 2}]],
  trapezoid = [[
    dm.trapezoid(dm.tensor{1.0, 2.0, 3.0})  --> 4
    dm.trapezoid(dm.tensor{1.0, 2.0, 3.0}, {dx = 0.5})  --> 2]],
  triangular_solve = [[
    local A, B = dm.tensor{{2.0, 1.0}, {0.0, 4.0}}, dm.tensor{{4.0}, {8.0}}
    dm.triangular_solve(B, A)  --> {{1}, {2}}]],
  tril = [[
    dm.tril(dm.ones(3, 3))  --> {{1, 0, 0}, {1, 1, 0}, {1, 1, 1}}
    dm.tril(dm.ones(2, 2), -1)  --> {{0, 0}, {1, 0}}]],
  triplet_margin_loss = [[
    local anchor, near, far = dm.zeros(1, 2), dm.tensor{{0.0, 1.0}}, dm.tensor{{3.0, 4.0}}
    F.triplet_margin_loss(anchor, near, far)  --> 0
    F.triplet_margin_loss(anchor, far, near)  --> 5]],
  triu = [[
    dm.triu(dm.ones(3, 3))  --> {{1, 1, 1}, {0, 1, 1}, {0, 0, 1}}
    dm.triu(dm.ones(2, 2), 1)  --> {{0, 1}, {0, 0}}]],
  trunc = [[
    dm.trunc(dm.tensor{1.7, -1.7, 3.0})  --> {1, -1, 3}]],
  unflatten = [[
    dm.unflatten(dm.arange(6), 1, {2, 3})  --> {{1, 2, 3}, {4, 5, 6}}
    dm.ones(8, 12):unflatten(2, {3, -1}).shape  --> {8, 3, 4}]],
  unfold = [[
    F.unfold(dm.rand(8, 3, 10, 10), 3).shape  --> {8, 27, 64}
    F.unfold(dm.tensor{{{{1.0, 2.0}, {3.0, 4.0}}}}, 2)  --> {{{1}, {2}, {3}, {4}}}
    dm.arange(4):unfold(1, 2, 1)  --> {{1, 2}, {2, 3}, {3, 4}}]],
  uniform = [[
    local x = dm.empty(1000):uniform_(-1, 1)
    x:abs():max():item() <= 1  --> true]],
  unique = [[
    dm.unique(dm.tensor{3, 1, 3, 2})  --> {1, 2, 3}
    local values, counts = dm.unique(dm.tensor{3, 1, 3, 2}, {return_counts = true})
    counts  --> {1, 1, 2}]],
  unique_consecutive = [[
    dm.unique_consecutive(dm.tensor{1, 1, 2, 2, 2, 1})  --> {1, 2, 1}]],
  unravel_index = [[
    local x = dm.tensor{{1.0, 7.0, 2.0}, {5.0, 9.0, 3.0}}
    local row, column = table.unpack(dm.unravel_index(x:argmax(), x.shape))
    row  --> 2
    column  --> 2]],
  unsqueeze = [[
    dm.unsqueeze(dm.tensor{1, 2, 3}, 1)  --> {{1, 2, 3}}
    dm.unsqueeze(dm.tensor{1, 2, 3}, -1)  --> {{1}, {2}, {3}}]],
  vander = [[
    dm.vander(dm.tensor{1, 2, 3})  --> {{1, 1, 1}, {4, 2, 1}, {9, 3, 1}}
    dm.vander(dm.tensor{2, 3}, {increasing = true})  --> {{1, 2}, {1, 3}}]],
  var = [[
    dm.var(dm.tensor{1.0, 2.0, 3.0})  --> 1
    dm.var(dm.tensor{1.0, 3.0}, {unbiased = false})  --> 1
    dm.var(dm.tensor{{1.0, 3.0}, {0.0, 4.0}}, 2)  --> {2, 8}]],
  var_mean = [[
    local var, mean = dm.var_mean(dm.tensor{{1.0, 3.0}, {0.0, 4.0}}, 2)
    var  --> {2, 8}
    mean  --> {2, 2}]],
  vdot = [[
    dm.vdot(dm.tensor{1, 2, 3}, dm.tensor{4, 5, 6})  --> 32]],
  view = [[
    dm.arange(6):view(2, 3)  --> {{1, 2, 3}, {4, 5, 6}}
    dm.rand(8, 3, 4):view(8, -1).shape  --> {8, 12}
    dm.tensor{1.0, -0.0}:view("int32")  --> {1065353216, -2147483648}]],
  view_as = [[
    dm.arange(4):view_as(dm.ones(2, 2))  --> {{1, 2}, {3, 4}}]],
  vstack = [[
    dm.vstack(dm.tensor{1, 2}, dm.tensor{3, 4})  --> {{1, 2}, {3, 4}}]],
  where = [[
    local x = dm.tensor{-1, 2, -3}
    dm.where(x:gt(0), x, 0)  --> {0, 2, 0}]],
  xlogy = [[
    dm.xlogy(dm.tensor{0.0, 2.0}, dm.tensor{0.0, 1.0})  --> {0, 0}]],
  zero = [[
    dm.ones(3):zero_()  --> {0, 0, 0}]],
  zeros = [[
    dm.zeros(2, 3)  --> {{0, 0, 0}, {0, 0, 0}}
    dm.zeros(2, {dtype = "int64"}).dtype  --> "int64"]],
  zeros_like = [[
    dm.zeros_like(dm.tensor{5, 6, 7})  --> {0, 0, 0}]],
}
