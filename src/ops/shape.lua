-- Copies, conversion and views.
local op = ...

op.kernel "cast" {
  tensors = "x",
  options = {"dtype:dtype"},
  flags = "hidden pointwise layout cheap",
  doc = "x in another dtype, rounded to nearest even",
}

op.kernel "clone" {
  tensors = "x",
  cpu = "cast_cpu",
  cuda = "cast_cuda",
  flags = "pointwise layout cheap",
  doc = "a copy, in x's order of dims where x is dense",
}

op.kernel "contiguous_copy" {
  tensors = "x",
  rule = "clone_rule",
  cpu = "cast_cpu",
  cuda = "cast_cuda",
  gradient = "clone_grad",
  flags = "hidden pointwise cheap",
  doc = "a contiguous copy",
}

op.kernel "copy" {
  tensors = "x, source#",
  options = {"non_blocking:bool=0"},
  flags = "inplace only_inplace pointwise",
  doc = "copies source into x, broadcast and converted",
}

op.kernel "fill" {
  tensors = "x",
  options = {"value:num"},
  flags = "inplace only_inplace pointwise",
  doc = "sets every element to value",
}

op.kernel "zero" {
  tensors = "x",
  rule = "fill_rule",
  gradient = "fill_grad",
  flags = "inplace only_inplace pointwise",
  doc = "sets every element to 0",
}

op.kernel "to_device" {
  tensors = "x",
  options = {"device:device", "non_blocking:bool=0"},
  flags = "hidden any_device",
  doc = "a dense copy on another device",
}

op.composed "to" {
  tensors = "x",
  options = {"dtype:dtype", "device:device", "non_blocking:bool=0"},
  flags = "hidden",
  doc = "x in another dtype, on another device",
}

op.composed "contiguous" {
  tensors = "x",
  doc = "x itself when its elements lie densely in row-major order, else a copy",
}

-- Views: the same elements, other shape; they share storage.

op.view "view" {
  tensors = "x",
  options = {"size:sizes"},
  attr = "dm_SizeAttr",
  doc = "x in another shape without a copy; one size may be -1. Given a dtype instead of sizes, "
    .. "the bytes of x as elements of that dtype, without a gradient",
}

op.composed "reshape" {
  tensors = "x",
  options = {"shape:sizes"},
  attr = "dm_ShapeAttr",
  doc = "x in another shape, a view where that can be; one size may be -1",
}

op.view "transpose" {
  tensors = "x",
  options = {"dim0:dim", "dim1:dim"},
  doc = "swaps two dims",
}

op.view "t" {
  tensors = "x",
  doc = "the transpose of a matrix; a vector stays",
}

op.view "permute" {
  tensors = "x",
  options = {"dims:dims"},
  doc = "reorders the dims: dim i of the result is dim dims[i] of x",
}

op.view "movedim" {
  tensors = "x",
  options = {"source:dims", "destination:dims"},
  doc = "moves dims from source to destination",
}

op.view "squeeze" {
  tensors = "x",
  options = {"dim:dims=none"},
  gradient = "view_grad",
  doc = "drops dims of size 1; all, or those given",
}

op.view "unsqueeze" {
  tensors = "x",
  options = {"dim:dim"},
  gradient = "view_grad",
  doc = "puts in a dim of size 1",
}

op.view "expand" {
  tensors = "x",
  options = {"size:sizes"},
  attr = "dm_SizeAttr",
  doc = "repeats dims of size 1 without a copy; -1 keeps a size",
}

op.view "narrow" {
  tensors = "x",
  options = {"dim:dim", "start:pos", "length:int"},
  gradient = "as_region_grad",
  flags = "region",
  doc = "length elements from start on, along a dim",
}

op.view "select" {
  tensors = "x",
  options = {"dim:dim", "index:pos"},
  gradient = "as_region_grad",
  flags = "region",
  doc = "one index along a dim, which goes",
}

op.view "slice" {
  tensors = "x",
  options = {"dim:dim", "start:pos", "stop:pos", "step:int=1"},
  gradient = "as_region_grad",
  doc = "from start to stop, both included, along a dim",
}

op.view "diagonal" {
  tensors = "x",
  options = {"offset:int=0", "dim1:dim=0", "dim2:dim=1"},
  gradient = "as_region_grad",
  doc = "the diagonals of dims dim1 and dim2, in a last dim",
}

op.composed "as_strided" {
  tensors = "x",
  options = {"size:sizes", "stride:sizes", "storage_offset:int=-1"},
  doc = "any window on the storage; storage_offset in elements, -1: where x begins",
}

op.view "strided_window" {
  tensors = "x",
  options = {"size:sizes", "stride:sizes", "storage_offset:int=0"},
  flags = "view hidden",
  attr = "dm_AsStridedAttr",
  doc = "as_strided with an offset from x's first element; x is contiguous where it has a gradient",
}

op.composed "flatten" {
  tensors = "x",
  options = {"start_dim:dim=0", "end_dim:dim=-1"},
  doc = "the dims from start_dim to end_dim as one",
}

op.composed "unflatten" {
  tensors = "x",
  options = {"dim:dim", "sizes:sizes"},
  doc = "one dim as several; one of their sizes may be -1",
}

op.kernel "as_strided_scatter" {
  tensors = "x, src#",
  options = {"size:sizes", "stride:sizes", "storage_offset:int=0"},
  flags = "any_device",
  attr = "dm_AsStridedAttr",
  doc = "x with a window replaced by source",
}
