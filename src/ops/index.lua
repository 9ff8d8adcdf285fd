-- Joining and indexing.
local op = ...

op.kernel "cat" {
  tensors = "tensors...",
  options = {"dim:dim=0"},
  autocast = {cpu = "promote"},
  flags = "layout",
  attr = "dm_JoinAttr",
  doc = "the tensors one after another along a dim",
}

op.kernel "stack" {
  tensors = "tensors...",
  options = {"dim:dim=0"},
  autocast = {cpu = "promote"},
  attr = "dm_JoinAttr",
  doc = "tensors of one shape along a new dim",
}

op.composed "hstack" {
  tensors = "tensors...",
  doc = "the tensors one after another along columns, dim 2, or along the only dim",
}

op.composed "vstack" {
  tensors = "tensors...",
  doc = "the tensors below one another, along dim 1; vectors are rows",
}

op.composed "dstack" {
  tensors = "tensors...",
  doc = "the tensors behind one another, along dim 3",
}

op.composed "column_stack" {
  tensors = "tensors...",
  doc = "the tensors side by side, along dim 2; vectors are columns",
}

op.composed "block_diag" {
  tensors = "tensors...",
  doc = "a matrix with the tensors along its diagonal, zeros elsewhere; vectors are rows",
}

op.composed "tile" {
  tensors = "x",
  options = {"dims:sizes"},
  doc = "x repeated along each dim, a dense copy",
}

op.composed "repeat_interleave" {
  tensors = "x",
  options = {"repeats:int", "dim:optdim=none"},
  doc = "every slice along dim (or every element) repeats times in a row; repeats may be a tensor "
    .. "with a number for each",
}

op.composed "repeat_interleave_each" {
  tensors = "x, repeats",
  options = {"dim:optdim=none", "output_size:int=-1"},
  flags = "hidden",
  doc = "repeat_interleave with a number of its own for each slice",
}

op.kernel "flip" {
  tensors = "x",
  options = {"dims:dims"},
  doc = "x with the order along dims turned round",
}

op.composed "fliplr" {
  tensors = "x",
  doc = "x with the order of its columns (dim 2) turned round",
}

op.composed "flipud" {
  tensors = "x",
  doc = "x with the order of its rows (dim 1) turned round",
}

op.composed "rot90" {
  tensors = "x",
  options = {"k:int=1", "dims:dims=none"},
  doc = "x turned k times by 90 degrees, from the first of two dims towards the second; the first "
    .. "two where none are given",
}

op.kernel "roll" {
  tensors = "x",
  options = {"shifts:sizes", "dims:dims=none"},
  doc = "x shifted along dims, what leaves one end enters at the other",
}

op.kernel "gather" {
  tensors = "x, index",
  options = {"dim:dim"},
  saves = "I1",
  attr = "dm_AlongAttr",
  doc = "elements of x at the positions that index holds along dim, in index's shape: for dim 1, "
    .. "y[i][j] is x[index[i][j]][j]",
}

op.kernel "scatter" {
  tensors = "x, index, src#",
  options = {"dim:dim"},
  saves = "I1",
  flags = "inplace",
  attr = "dm_AlongAttr",
  doc = "x with src (or a number) written at the positions that index holds along dim; reduce = "
    .. "\"add\", \"multiply\": put together with what is there",
}

op.composed "scatter_with" {
  tensors = "x, index, src#",
  options = {"dim:dim", "reduce:enum(add|multiply)"},
  flags = "inplace hidden",
  doc = "scatter{reduce = }: src added to or multiplied with what is there",
}

op.kernel "scatter_add" {
  tensors = "x, index, src",
  options = {"dim:dim"},
  saves = "I1",
  autocast = {cuda = "promote"},
  flags = "inplace",
  attr = "dm_AlongAttr",
  doc = "x with src added at the positions that index holds along dim: for dim 1, src[i][j] to "
    .. "x[index[i][j]][j]",
}

op.composed "scatter_reduce" {
  tensors = "x, index, src",
  options = {"dim:dim", "reduce:enum(sum|prod|mean|amax|amin)", "include_self:bool=1"},
  flags = "inplace widen",
  doc = "x with src reduced into the positions that index holds along dim, what was there among it "
    .. "or, without include_self, forgotten",
}

op.kernel "scatter_reduce_self" {
  tensors = "x, index, src",
  options = {"dim:dim", "reduce:enum(prod|amax|amin)"},
  saves = "I0 I1 I2 O0",
  flags = "hidden",
  doc = "x with src multiplied to, or the larger or smaller of both kept at, the positions that "
    .. "index holds along dim",
}

op.kernel "index_select" {
  tensors = "x, index",
  options = {"dim:dim"},
  saves = "I1",
  attr = "dm_AlongAttr",
  doc = "the slices of x at positions along dim",
}

op.kernel "index_add" {
  tensors = "x, index, source",
  options = {"dim:dim", "alpha:num=1"},
  saves = "I1",
  flags = "inplace",
  doc = "x with alpha times the slices of source added at positions along dim",
}

op.kernel "index_copy" {
  tensors = "x, index, source",
  options = {"dim:dim"},
  saves = "I1",
  autocast = {cpu = "promote"},
  flags = "inplace",
  attr = "dm_AlongAttr",
  doc = "x with the slices of source written at positions along dim",
}

op.kernel "index_get" {
  tensors = "x, index",
  options = {"dim:dim"},
  saves = "I1",
  flags = "hidden",
  attr = "dm_AlongAttr",
  doc = "x[index]: dim replaced by the dims of index; negative positions count from the end",
}

op.kernel "index_put" {
  tensors = "x, index, source#",
  options = {"dim:dim", "accumulate:bool=0"},
  saves = "I1",
  autocast = {cuda = "promote"},
  flags = "inplace hidden",
  doc = "x[index] = source, or += where it accumulates",
}

op.kernel "index_check" {
  tensors = "index",
  options = {"n:int"},
  gradient = false,
  flags = "hidden",
  doc = "positions from 0 for an index into n elements; negative ones count from the end",
}

op.composed "index_many" {
  tensors = "tensors...",
  options = {"dims:dims"},
  flags = "hidden",
  doc = "x and one index (or mask) for each of the dims: x[index, index, ...]",
}

op.composed "index_put_many" {
  tensors = "tensors...",
  options = {"dims:dims", "accumulate:bool=0"},
  autocast = {cuda = "promote"},
  flags = "hidden",
  doc = "x, values and one index (or mask) for each of the dims: x[index, index, ...] = values, "
    .. "or += where it accumulates",
}

op.kernel "embedding" {
  tensors = "x, weight",
  options = {"padding_idx:optdim=none"},
  saves = "I0",
  doc = "the rows of weight (n, d) at the positions in x, (...) giving (..., d); the one at "
    .. "padding_idx gets no gradient",
}

op.kernel "embedding_backward" {
  tensors = "gy, index",
  options = {"n:int", "padding_idx:optdim=none"},
  saves = "I1",
  flags = "hidden",
  doc = "n rows, gy's added up by the positions in index",
}

op.kernel "one_hot" {
  tensors = "index",
  options = {"num_classes:int=-1"},
  gradient = false,
  doc = "1 at each position that index holds in a new last dim, 0 elsewhere; that has num_classes "
    .. "elements, as many as the largest position where none are given",
}

op.kernel "masked_fill" {
  tensors = "x, mask, value#",
  saves = "I1",
  flags = "inplace pointwise layout",
  doc = "x with the value where the mask holds",
}

op.kernel "masked_select" {
  tensors = "x, mask",
  saves = "I1",
  doc = "the elements of x where the mask holds, as a vector",
}

op.kernel "masked_put" {
  tensors = "x, mask, source#",
  saves = "I1",
  flags = "inplace hidden",
  doc = "x[mask] = source, element by element in order",
}

op.kernel "tril" {
  tensors = "x",
  options = {"diagonal:int=0"},
  rule = "triangle_rule",
  flags = "inplace",
  attr = "dm_TriangleAttr",
  doc = "matrices with 0 above a diagonal",
}

op.kernel "triu" {
  tensors = "x",
  options = {"diagonal:int=0"},
  rule = "triangle_rule",
  flags = "inplace",
  attr = "dm_TriangleAttr",
  doc = "matrices with 0 below a diagonal",
}

op.composed "diag" {
  tensors = "x",
  options = {"diagonal:int=0"},
  doc = "a vector as the diagonal of a matrix; a matrix's diagonal as a vector",
}

op.composed "diagflat" {
  tensors = "x",
  options = {"offset:int=0"},
  doc = "all elements as the diagonal of a matrix",
}

op.composed "diag_embed" {
  tensors = "x",
  options = {"offset:int=0", "dim1:dim=-2", "dim2:dim=-1"},
  doc = "the last dim as a diagonal of the result's dims dim1 and dim2",
}

op.composed "take_along_dim" {
  tensors = "x, indices",
  options = {"dim:optdim=none"},
  doc = "gather, with the other dims broadcast; without dim from the flat x",
}

op.composed "take" {
  tensors = "x, index",
  doc = "elements of the flat x at the positions that index holds; in its shape",
}

op.composed "index_fill" {
  tensors = "x, index, value#",
  options = {"dim:dim"},
  flags = "inplace",
  doc = "x with a number at positions along dim",
}

op.composed "isin" {
  tensors = "elements, test_elements",
  options = {"invert:bool=0"},
  doc = "true where an element is among the test elements; invert: is not",
}

op.composed "masked_scatter" {
  tensors = "x, mask, source",
  flags = "inplace",
  doc = "x with the next element of source wherever the mask holds",
}
