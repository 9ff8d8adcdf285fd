/* unique and unique_consecutive, over all elements or over the slices along a dim.
   Elements are sorted, the starts of runs of equal elements are marked, and a running
   sum of the marks numbers the runs: the number is the `inverse`, the marked elements
   are the result, and counting the numbers gives `counts`. All steps are ops, so the
   result stays on x's device; only its size is read. */
#include "base/error.h"
#include "op/sort/order.h"
#include "op/reduce/reduce.h"

/* The optional outputs that the caller asks for. */
typedef struct Wants {
  bool inverse, counts;
} Wants;

dm_Tensor *x_run_starts(dm_X *x, dm_Tensor *sorted, int64_t dim) {
  if (x->st != DM_OK) return NULL;
  const int64_t n = sorted->shape[dim];
  if (n == 0) return x_zeros_of(x, sorted, DM_BOOL);
  dm_Tensor *other = dm_x(x, DM_OP_ne, NULL, 2, x_narrow(x, sorted, dim, 1, n - 1),
                          x_narrow(x, sorted, dim, 0, n - 1));
  dm_Tensor *first = x_ones_of(x, x_narrow(x, sorted, dim, 0, 1), DM_BOOL);
  return x_cat(x, first, other, dim);
}

/* The number of the run that each element belongs to, counted from base. */
static dm_Tensor *runs_of(dm_X *x, dm_Tensor *starts, int64_t dim, int base) {
  return x_moved(x, x_cumsum(x, starts, dim), base - 1);
}
/* The elements of t at the starts of runs. */
static dm_Tensor *kept(dm_X *x, dm_Tensor *t, dm_Tensor *starts) {
  return dm_x(x, DM_OP_masked_select, NULL, 2, t, starts);
}
/* Scatters sorted elements t back to the positions `from` that they came from along
   dim. */
static dm_Tensor *put_back(dm_X *x, dm_Tensor *t, dm_Tensor *from, int64_t dim) {
  if (x->st != DM_OK) return NULL;
  return dm_x(x, DM_OP_scatter, &dim, 3, x_zeros_of(x, from, DM_I64), from, t);
}

/* Sets the optional outputs after the values: the inverse, and the number of elements
   in each of the n runs. */
static dm_status give_more(dm_Call *c, dm_X *x, Wants w, dm_Tensor *inverse, dm_Tensor *run,
                           int64_t n) {
  int i = 1;
  c->n_out = 1 + w.inverse + w.counts;
  DM_TRY(x->st);
  if (w.inverse) c->out[i++] = inverse;
  if (w.counts) c->out[i] = x_count(x, x_full(x, n, 0, DM_I64, run), run, 0);
  return x->st;
}

/* ---- elements ---- */

/* Sorted distinct elements of the whole tensor; the inverse has x's shape. */
static dm_status unique_elements(dm_Call *c, dm_X *x, Wants w) {
  dm_Tensor *t = c->in[0], *sorted[2];
  if (!x_sort(x, x_flat(x, t), 0, sorted)) return x->st;
  dm_Tensor *starts = x_run_starts(x, sorted[0], 0);
  dm_Tensor *values = kept(x, sorted[0], starts), *run = NULL, *inverse = NULL;
  if (w.inverse || w.counts) run = runs_of(x, starts, 0, c->base);
  if (w.inverse) inverse = x_reshape(x, put_back(x, run, sorted[1], 0), t->ndim, t->shape);
  c->out[0] = values;
  return give_more(c, x, w, inverse, run, values ? values->numel : 0);
}

/* The same for runs of neighbouring elements in row-major order: nothing is sorted. */
static dm_status consecutive_elements(dm_Call *c, dm_X *x, Wants w) {
  dm_Tensor *t = c->in[0], *flat = x_flat(x, t), *starts = x_run_starts(x, flat, 0);
  dm_Tensor *values = kept(x, flat, starts), *run = NULL, *inverse = NULL;
  if (w.inverse || w.counts) run = runs_of(x, starts, 0, c->base);
  if (w.inverse) inverse = x_reshape(x, run, t->ndim, t->shape);
  c->out[0] = values;
  return give_more(c, x, w, inverse, run, values ? values->numel : 0);
}

/* ---- slices ---- */

/* t (n, m) -> the rank of each element among the distinct elements of its column, from
   0. */
static dm_Tensor *ranks_of(dm_X *x, dm_Tensor *t) {
  dm_Tensor *sorted[2];
  if (x->st != DM_OK || !x_sort(x, t, 0, sorted)) return NULL;
  return put_back(x, runs_of(x, x_run_starts(x, sorted[0], 0), 0, 0), sorted[1], 0);
}

/* Every second column of t, from `first` to `last`. */
static dm_Tensor *every_other(dm_X *x, dm_Tensor *t, int64_t first, int64_t last) {
  return dm_x(x, DM_OP_slice, &(int64_t[4]){1, first, last, 2}, 1, t);
}

/* rows (n, m) -> n integers whose order is the lexicographic order of the rows. Columns
   are replaced by ranks, then pairs of neighbouring columns by left * n + right and
   again by ranks, until one column is left; ranks below n keep the pairs below n^2. */
static dm_Tensor *codes_of(dm_X *x, dm_Tensor *rows) {
  dm_Tensor *code = ranks_of(x, rows);
  while (x->st == DM_OK && code->shape[1] > 1) {
    const int64_t m = code->shape[1], pairs = m / 2;
    dm_Tensor *left = every_other(x, code, 0, 2 * pairs - 1);
    dm_Tensor *right = every_other(x, code, 1, 2 * pairs - 1);
    dm_Tensor *both = x_add(x, x_mul(x, left, x_whole(x, rows->shape[0])), right);
    if (m % 2) both = x_cat(x, both, x_narrow(x, code, 1, m - 1, 1), 1);
    code = ranks_of(x, both);
  }
  return x->st == DM_OK ? x_flat(x, code) : NULL;
}

/* bool (n), true where a row of rows (n, m) differs from the one before it and at the
   first row. */
static dm_Tensor *row_starts(dm_X *x, dm_Tensor *rows) {
  if (x->st != DM_OK) return NULL;
  const int64_t n = rows->shape[0];
  dm_Tensor *other = dm_x(x, DM_OP_ne, NULL, 2, x_narrow(x, rows, 0, 1, n - 1),
                          x_narrow(x, rows, 0, 0, n - 1));
  other = dm_x(x, DM_OP_any, &(dm_DimsAttr){{1, {1}}, false}, 1, other);
  return x_cat(x, x_full(x, 1, 1, DM_BOOL, rows), other, 0);
}

/* base, base + 1, ... base + n - 1 on a device. */
static dm_Tensor *counted(dm_X *x, int64_t n, int base, dm_Device dev) {
  int64_t *at;
  dm_Tensor *t = dm_x_positions(x, n, &at);
  for (int64_t i = 0; t && i < n; i++) at[i] = i + base;
  return dm_x_there(x, t, dev);
}

/* Distinct slices of x along a dim: the slices become rows (n, rest), equal rows are
   found by their codes (sorted) or by comparing neighbours (consecutive), and the first
   slice of each run is selected. */
static dm_status slices(dm_Call *c, dm_X *x, int64_t along, Wants w, bool sorting) {
  dm_Tensor *t = c->in[0], *sorted[2] = {NULL, NULL};
  int dim;
  DM_TRY(dm_check_dim(c, t, along, &dim));
  const int64_t n = t->shape[dim];
  const int64_t rest =
      dm_numel(dim, t->shape) * dm_numel(t->ndim - dim - 1, t->shape + dim + 1);
  if (t->ndim == 0 || rest == 0)
    return dm_fail(DM_EARG, "%s: x has shape %s: there are no slices along a dim to compare",
                   c->op->name, DM_SHAPE(t));
  if (n == 0) {
    dm_Tensor *none = x_full(x, 0, 0, DM_I64, t);
    c->out[0] = x_unary(x, DM_OP_clone, t);
    return give_more(c, x, w, none, none, 0);
  }
  const dm_MovedimAttr front = {{1, {dim}}, {1, {0}}};
  dm_Tensor *rows = x_reshape(x, dm_x(x, DM_OP_movedim, &front, 1, t), 2, (int64_t[]){n, rest});
  dm_Tensor *starts, *first, *run, *inverse;
  if (sorting) {
    dm_Tensor *codes = codes_of(x, rows);
    if (x->st != DM_OK || !x_sort(x, codes, 0, sorted)) return x->st;
    starts = x_run_starts(x, sorted[0], 0);
    first = kept(x, sorted[1], starts);
    run = runs_of(x, starts, 0, c->base);
    inverse = w.inverse ? put_back(x, run, sorted[1], 0) : NULL;
  } else {
    starts = row_starts(x, rows);
    first = kept(x, counted(x, n, c->base, t->device), starts);
    inverse = run = runs_of(x, starts, 0, c->base);
  }
  c->out[0] = dm_x_select(x, t, dim, first);
  return give_more(c, x, w, inverse, run, first ? first->numel : 0);
}

/* torch.unique: the result is always sorted, whatever `sorted` says. */
dm_status unique_compose(dm_Call *c, dm_X *x) {
  const dm_UniqueAttr *a = c->attr;
  const Wants w = {a->return_inverse != 0, a->return_counts != 0};
  return a->dim.set ? slices(c, x, a->dim.v, w, true) : unique_elements(c, x, w);
}

dm_status unique_consecutive_compose(dm_Call *c, dm_X *x) {
  const dm_UniqueConsecutiveAttr *a = c->attr;
  const Wants w = {a->return_inverse != 0, a->return_counts != 0};
  return a->dim.set ? slices(c, x, a->dim.v, w, false) : consecutive_elements(c, x, w);
}
