/* border_pad: reflect, replicate and circular padding of all dims in one pass, on the CPU.
   Other devices compose it of index_select, in unfold.c.

   Neighbouring dims without borders are taken together, so that the last dim is a row. A row of
   the output is the middle of a row of x, copied, between the ends, element by element. The
   gradient of an element of x is the sum of those of its copies in the order of the output, and
   depends neither on the number of planes nor on that of threads. Both are linear, and each is
   the other's gradient. */
#include <string.h>

#include "core/copy.h"
#include "cpu/threads.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/spatial/border.h"

enum { GRAIN = 32768 }; /* elements that are worth a thread */

/* One call. `each` moves row r of the padded tensor from or to row x_row of x. */
typedef struct Job {
  void (*each)(const struct Job *j, int64_t r, int64_t x_row);
  const char *from;
  char *to;
  int64_t size;                  /* bytes per element */
  int n_dim;                     /* at least 2: the planes, which have no border, come first */
  dm_Border dim[DM_MAX_DIM + 1]; /* the last one is that of the rows */
  int64_t rows, out_rows;        /* of a plane */
  int64_t middle, end, first;    /* of a padded row: [middle, end) is x's row from `first` on */
} Job;

/* The dims of x padded by `pad`. */
static Job job_of(int ndim, const int64_t *shape, const dm_Ints *pad, dm_PadMode mode) {
  Job j = {.n_dim = 1, .rows = 1, .out_rows = 1};
  bool plain = true;
  j.dim[0] = dm_border_of(mode, 1, 0, 0);
  for (int d = 0; d < ndim; d++) {
    const int64_t before = dm_pad_of(pad, ndim, d, 0), behind = dm_pad_of(pad, ndim, d, 1);
    const bool bare = before == 0 && behind == 0;
    dm_Border *last = &j.dim[j.n_dim - 1];
    if (bare && plain && (d < ndim - 1 || j.n_dim > 1))
      *last = dm_border_of(mode, last->n * shape[d], 0, 0);
    else j.dim[j.n_dim++] = dm_border_of(mode, shape[d], before, behind);
    plain = bare;
  }
  for (int d = 1; d < j.n_dim - 1; d++) {
    j.rows *= j.dim[d].n;
    j.out_rows *= j.dim[d].out;
  }
  const dm_Border *row = &j.dim[j.n_dim - 1];
  j.middle = dm_min_i64(dm_max_i64(row->before, 0), row->out);
  j.end = dm_max_i64(j.middle, dm_min_i64(row->before + row->n, row->out));
  j.first = j.middle - row->before;
  return j;
}

/* Where in x the rows of one index of the dims before the last two begin, given their number in
   the output. */
static int64_t block_of(const Job *j, int64_t block) {
  int64_t at = 0, step = j->dim[j->n_dim - 2].n;
  for (int d = j->n_dim - 3; d >= 0; d--) {
    at += dm_border_source(&j->dim[d], block % j->dim[d].out) * step;
    step *= j->dim[d].n;
    block /= j->dim[d].out;
  }
  return at;
}

/* Copies row r of the output, of elements of so many bits. */
#define COPY(BITS)                                                                        \
  static void copy_##BITS(const Job *j, int64_t r, int64_t x_row) {                       \
    const dm_Border *row = &j->dim[j->n_dim - 1];                                         \
    const uint##BITS##_t *from = (const uint##BITS##_t *)(const void *)j->from;           \
    uint##BITS##_t *to = (uint##BITS##_t *)(void *)j->to;                                 \
    const int64_t n = (j->end - j->middle) * (BITS / 8);                                  \
    from += x_row * row->n, to += r * row->out;                                           \
    for (int64_t o = 0; o < j->middle; o++) to[o] = from[dm_border_source(row, o)];       \
    if (n > 0) dm_copy_row((char *)(to + j->middle), (const char *)(from + j->first), n); \
    for (int64_t o = j->end; o < row->out; o++) to[o] = from[dm_border_source(row, o)];   \
  }
COPY(8)
COPY(16)
COPY(32)
COPY(64)
#undef COPY

/* Adds row r of gy to a row of the gradient, in the order of the row. */
#define ADD(NAME, TYPE)                                                                  \
  static void add_##NAME(const Job *j, int64_t r, int64_t x_row) {                       \
    const dm_Border *row = &j->dim[j->n_dim - 1];                                        \
    const TYPE *DM_RESTRICT from = (const TYPE *)(const void *)j->from + r * row->out;   \
    TYPE *DM_RESTRICT to = (TYPE *)(void *)j->to + x_row * row->n;                       \
    for (int64_t o = 0; o < j->middle; o++) to[dm_border_source(row, o)] += from[o];     \
    for (int64_t o = j->middle; o < j->end; o++) to[o - row->before] += from[o];         \
    for (int64_t o = j->end; o < row->out; o++) to[dm_border_source(row, o)] += from[o]; \
  }
ADD(f32, float)
ADD(f64, double)
#undef ADD

/* Calls j->each with the rows [begin, end) of the padded tensor and their rows in x. */
static void walk(const Job *j, int64_t begin, int64_t end) {
  const dm_Border *column = &j->dim[j->n_dim - 2];
  for (int64_t r = begin; r < end;) {
    const int64_t block = block_of(j, r / column->out);
    for (int64_t o = r % column->out; o < column->out && r < end; o++, r++)
      j->each(j, r, block + dm_border_source(column, o));
  }
}

/* Thread bodies: rows of the output, and planes of the gradient. */
static void copy_rows(void *ctx, int64_t begin, int64_t end) { walk(ctx, begin, end); }
static void add_planes(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  const int64_t bytes = j->rows * j->dim[j->n_dim - 1].n * j->size;
  memset(j->to + begin * bytes, 0, (size_t)((end - begin) * bytes));
  walk(j, begin * j->out_rows, end * j->out_rows);
}

/* ---- border_pad ---- */

/* pad as checked by op pad: two numbers a dim, the last dim first, that the mode can fill. */
dm_status border_pad_rule(dm_Call *c) {
  const dm_Ints *pad = &DM_ATTR(dm_BorderPadAttr, c)->pad;
  const dm_Tensor *x = c->in[0];
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  for (int d = 0; d < x->ndim; d++)
    c->out_meta[0].shape[d] += dm_pad_of(pad, x->ndim, d, 0) + dm_pad_of(pad, x->ndim, d, 1);
  return DM_OK;
}
dm_status border_pad_cpu(dm_Call *c) {
  const dm_BorderPadAttr *a = DM_ATTR(dm_BorderPadAttr, c);
  dm_Tensor *dense, *y = c->out[0];
  if (y->numel == 0) return DM_OK;
  DM_TRY(dm_dense_new(c->in[0], &dense));
  Job j = job_of(dense->ndim, dense->shape, &a->pad, (dm_PadMode)a->mode);
  const int64_t out = j.dim[j.n_dim - 1].out;
  j.size = dm_dtype_size((dm_DType)y->dtype);
  j.each = j.size == 1 ? copy_8 : j.size == 2 ? copy_16 : j.size == 4 ? copy_32 : copy_64;
  j.from = dm_tensor_data(dense), j.to = dm_tensor_data(y);
  dm_parallel_for(y->numel / out, dm_max_i64(1, GRAIN / out), copy_rows, &j);
  dm_tensor_unref(&dense);
  return DM_OK;
}
void border_pad_grad(dm_Grad *g) {
  const dm_Meta *m = dm_in_meta(g, 0);
  dm_BorderPadSizedAttr a = {*DM_ATTR(dm_BorderPadAttr, g), {m->ndim, {0}}};
  for (int d = 0; d < m->ndim; d++) a.size.v[d] = m->shape[d];
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_border_pad_backward, &a, 1, g->gy[0]);
}

/* out: of that size. */
dm_status border_pad_backward_rule(dm_Call *c) {
  const dm_Ints *size = &DM_ATTR(dm_BorderPadSizedAttr, c)->size;
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  for (int d = 0; d < c->in[0]->ndim; d++) c->out_meta[0].shape[d] = size->v[d];
  return DM_OK;
}

/* 16 bits are summed in float32 and rounded once. */
dm_status border_pad_backward_cpu(dm_Call *c) {
  const dm_BorderPadSizedAttr *a = DM_ATTR(dm_BorderPadSizedAttr, c);
  dm_Tensor *gy = c->in[0], *gx = c->out[0], *rows = NULL, *sums = NULL;
  const dm_DType wide = dm_compute_dtype((dm_DType)gx->dtype);
  dm_status st = DM_OK;
  if (gx->numel == 0) return DM_OK;
  if (wide == gx->dtype) sums = dm_tensor_ref(gx);
  else DM_GO(dm_tensor_new(wide, gx->ndim, gx->shape, gx->device, &sums));
  DM_GO(dm_dense_as_new(gy, wide, gy->ndim, gy->shape, &rows));
  Job j = job_of(gx->ndim, gx->shape, &a->border.pad, (dm_PadMode)a->border.mode);
  j.size = dm_dtype_size(wide);
  j.each = wide == DM_F64 ? add_f64 : add_f32;
  j.from = dm_tensor_data(rows), j.to = dm_tensor_data(sums);
  dm_parallel_for(j.dim[0].n, dm_max_i64(1, GRAIN * j.dim[0].n / (gx->numel + gy->numel)),
                  add_planes, &j);
  DM_GO(dm_sums_store(gx, sums));
done:
  dm_tensor_unref(&rows);
  dm_tensor_unref(&sums);
  return st;
}
void border_pad_backward_grad(dm_Grad *g) {
  const dm_BorderPadAttr *a = &DM_ATTR(dm_BorderPadSizedAttr, g)->border;
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_border_pad, a, 1, g->gy[0]);
}
