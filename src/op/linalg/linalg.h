/* Checks, attributes and steps that the ops of dm.linalg share. Matrices are the
   last two dims of a tensor; the dims before them are a batch. */
#ifndef DM_LINALG_H
#define DM_LINALG_H

#include "engine/op.h"

enum { DM_QR_REDUCED, DM_QR_COMPLETE, DM_QR_R };
enum { DM_LSTSQ_NONE, DM_LSTSQ_GELS, DM_LSTSQ_GELSY, DM_LSTSQ_GELSD, DM_LSTSQ_GELSS };

/* The name that callers know: "linalg.inv" for the op linalg_inv. */
const char *dm_linalg_name(const dm_OpInfo *op, char buf[40]);
#define DM_LINALG(c) dm_linalg_name((c)->op, (char[40]){0})

/* Fails unless t is float32 or float64 and has two dims or more, the last two equal
   if `square`. */
dm_status dm_check_matrix(const dm_Call *c, const char *what, const dm_Tensor *t, bool square);
/* Sets the meta of output i: t's dims without the last `drop`, then rows, and then
   cols; a negative one is left out. */
void dm_out_matrix(dm_Call *c, int i, const dm_Tensor *t, int drop, int64_t rows, int64_t cols,
                   dm_DType dtype);

/* Steps of compositions. */
dm_Tensor *x_turned(dm_X *x, dm_Tensor *t);                  /* matrices transposed */
dm_Tensor *x_wider(dm_X *x, dm_Tensor *t, int64_t dim);      /* with a dim of size 1 */
dm_Tensor *x_eye(dm_X *x, int64_t n, const dm_Tensor *like); /* of like's dtype and device */
dm_Tensor *x_below(dm_X *x, dm_Tensor *t, int64_t diagonal); /* tril */
dm_Tensor *x_above(dm_X *x, dm_Tensor *t, int64_t diagonal); /* triu */
dm_Tensor *x_triangular(dm_X *x, dm_Tensor *a, dm_Tensor *b, bool upper, bool left, bool unit);
/* P t, the rows of t in the order of getrf's pivots; with `back` P^T t. */
dm_Tensor *x_pivoted(dm_X *x, dm_Tensor *t, dm_Tensor *pivots, bool back);

static inline int64_t dm_rows(const dm_Tensor *t) { return t->shape[t->ndim - 2]; }
static inline int64_t dm_columns(const dm_Tensor *t) { return t->shape[t->ndim - 1]; }

#endif
