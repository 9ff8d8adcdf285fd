-- Distances.
local op = ...

op.composed "cosine_similarity" {
  tensors = "x1, x2",
  options = {"dim:dim=1", "eps:num=1e-8"},
  autocast = {cuda = "fp32"},
  doc = "x1 x2 / (|x1| |x2|) along a dim, no length below eps",
}

op.kernel "row_products" {
  tensors = "x1, x2",
  outputs = 3,
  saves = "I0 I1",
  cuda = false,
  flags = "hidden",
  doc = "x1 x2, x1 x1 and x2 x2 summed along the last dim",
}

op.kernel "row_products_backward" {
  tensors = "x1, x2, own, by",
  gradient = false,
  cuda = false,
  flags = "hidden",
  doc = "own x1 + by x2, where own and by have one element for each row",
}

op.composed "pairwise_distance" {
  tensors = "x1, x2",
  options = {"p:num=2", "eps:num=1e-6", "keepdim:bool=0"},
  autocast = {cuda = "fp32"},
  doc = "norm of x1 - x2 + eps along the last dim",
}

op.composed "cdist" {
  tensors = "x1, x2",
  options = {
    "p:num=2", "compute_mode:enum(use_mm_for_euclid_dist_if_necessary|use_mm_for_euclid_dist|"
      .. "donot_use_mm_for_euclid_dist)=use_mm_for_euclid_dist_if_necessary",
  },
  autocast = "fp32",
  flags = "widen",
  doc = "norms of the differences of all pairs of rows: (..., P, M) and (..., R, M) give (..., P, "
    .. "R)",
}

op.composed "pdist" {
  tensors = "x",
  options = {"p:num=2"},
  autocast = {cuda = "fp32"},
  attr = "dm_PNormAttr",
  flags = "widen",
  doc = "norms of the differences of all pairs of rows of (N, M), (1, 2) first, then (1, 3), ...: "
    .. "N (N - 1) / 2",
}

op.kernel "distances" {
  tensors = "x1, x2?",
  options = {"p:num"},
  saves = "I0 I1 O0",
  flags = "hidden",
  doc = "cdist of (B, P, M) and (B, R, M); without x2 pdist of (N, M)",
}

op.kernel "distances_backward" {
  tensors = "gy, y, x1, x2?",
  options = {"p:num", "side:int"},
  gradient = false,
  flags = "hidden",
  doc = "gradient of distances in x1 (side 0) or in x2",
}

op.composed "dist" {
  tensors = "x, other",
  options = {"p:num=2"},
  autocast = {cuda = "fp32"},
  attr = "dm_PNormAttr",
  doc = "norm of x - other",
}

op.composed "renorm" {
  tensors = "x",
  options = {"p:num", "dim:dim", "maxnorm:num"},
  autocast = {cuda = "fp32"},
  flags = "inplace widen",
  doc = "x with those slices along dim scaled down whose norm is above maxnorm",
}
