/* Losses. cross_entropy and nll_loss are kernels over the class dim (dim 2 of
   x, or dim 1 of a single sample); the elementwise losses are composed.

   With w_c the class weights (1 without), t the target, e the smoothing, C the
   number of classes and l_c = log softmax(x)_c:
     loss = -(1 - e) w_t l_t - (e / C) sum_c w_c l_c
   `mean` divides the sum by that of w_t. Ignored targets count for nothing. */
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/along.h"
#include "op/dense.h"
#include "op/pointwise.h"
#include "op/reduce.h"
#include "op/rowmath.h"

typedef enum Reduction { NONE, MEAN, SUM } Reduction; /* order of the rows' words */

/* cross_entropy's; nll_loss's ends before the smoothing. */
typedef struct ClassAttr {
  dm_OptNum ignore_index;
  int64_t reduction;
  double smoothing;
} ClassAttr;
typedef struct NllAttr {
  dm_OptNum ignore_index;
  int64_t reduction;
} NllAttr;
typedef struct NllBackAttr {
  NllAttr loss;
  dm_Ints shape;
} NllBackAttr;

/* One position is one target: a line of x of n classes. */
typedef struct Job {
  dm_Along at;
  int64_t n_pos;
  dm_DType dtype, gy_dtype; /* of x and of the gradient in x */
  const char *x, *gy;       /* x NULL: nll_loss's gradient needs none */
  char *gx;
  int64_t *target; /* from 0; -1: ignored */
  double *weight;  /* (n), or NULL */
  double *loss;    /* (n_pos) */
  double smoothing, weight_sum, total; /* total: what `mean` divides by */
  bool nll, mean, each;                /* each: gy has one element a position */
  atomic_bool failed;                  /* out of memory */
} Job;

static int class_dim(int ndim) { return ndim == 1 ? 0 : 1; }

/* ---- shapes and targets ---- */

/* target: x's shape without the class dim; weight: one number a class. */
static dm_status check_classes(const dm_Call *c, const dm_Tensor *x, const dm_Tensor *target,
                               const dm_Tensor *weight) {
  const char *name = c->op->name;
  DM_TRY(dm_check_float(c, x, "x"));
  if (x->ndim == 0) return dm_fail(DM_EARG, "%s: x is 0-dim, wanted (batch, classes)", name);
  if (!dm_is_int((dm_DType)target->dtype))
    return dm_fail(DM_EARG, "%s: target is %s, wanted int64 class labels", name,
                   dm_dtype_name((dm_DType)target->dtype));
  const int dim = class_dim(x->ndim);
  bool ok = target->ndim == x->ndim - 1;
  for (int d = 0; ok && d < target->ndim; d++) ok = target->shape[d] == x->shape[d < dim ? d : d + 1];
  if (!ok)
    return dm_fail(DM_EARG, "%s: target is %s, wanted the shape of x %s without dim %d (the classes)",
                   name, DM_SHAPE(target), DM_SHAPE(x), dim + c->base);
  if (weight && (weight->ndim != 1 || weight->shape[0] != x->shape[dim]))
    return dm_fail(DM_EARG, "%s: weight is %s, wanted one number for each of %lld classes", name,
                   DM_SHAPE(weight), (long long)x->shape[dim]);
  return DM_OK;
}

static void loss_meta(dm_Call *c, const dm_Tensor *x, const dm_Tensor *target, int64_t reduction) {
  dm_out_like(c, 0, target, (dm_DType)x->dtype);
  if (reduction != NONE) c->out_meta[0].ndim = 0;
}

static dm_status bad_label(const dm_Call *c, int64_t label, int64_t i, int64_t n) {
  return dm_fail(DM_EARG, "%s: label %lld at position %lld is out of range %d to %lld%s", c->op->name,
                 (long long)label, (long long)(i + c->base), c->base, (long long)(n - 1 + c->base),
                 label == 0 && c->base == 1 ? "; hint: labels count from 1" : "");
}

/* Targets from 0 in j->target, class weights in j->weight, what `mean`
   divides by in j->total. */
static dm_status read_targets(Job *j, const dm_Call *c, dm_Tensor *target, dm_Tensor *weight,
                              dm_OptNum ignore) {
  dm_Tensor *dense = NULL;
  dm_status st = DM_OK;
  const int64_t n = j->at.n;
  j->n_pos = target->numel;
  j->target = dm_alloc(dm_max_i64(1, j->n_pos) * (int64_t)sizeof *j->target);
  if (weight) j->weight = dm_alloc(dm_max_i64(1, n) * (int64_t)sizeof *j->weight);
  if (!j->target || (weight && !j->weight)) return dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
  if (weight) {
    DM_GO(dm_dense_new(weight, &dense));
    dm_load_f64((dm_DType)dense->dtype, dm_tensor_data(dense), 1, n, j->weight);
    dm_tensor_unref(&dense);
  }
  j->weight_sum = 0;
  for (int64_t k = 0; k < n; k++) j->weight_sum += j->weight ? j->weight[k] : 1;
  DM_GO(dm_dense_new(target, &dense));
  dm_load_i64((dm_DType)dense->dtype, dm_tensor_data(dense), 1, j->n_pos, j->target);
  for (int64_t i = 0; i < j->n_pos; i++) {
    const int64_t label = j->target[i];
    if (ignore.set && label == (int64_t)ignore.v) {
      j->target[i] = -1;
      continue;
    }
    const int64_t t = j->target[i] = label - c->base;
    if (t < 0 || t >= n) {
      st = bad_label(c, label, i, n);
      goto done;
    }
    j->total += j->weight ? j->weight[t] : 1;
  }
done:
  dm_tensor_unref(&dense);
  return st;
}
static void close_job(Job *j) {
  dm_free(j->target);
  dm_free(j->weight);
  dm_free(j->loss);
}

/* ---- the loops ---- */

#define LINES(SUFFIX, TYPE)                                                                   \
  static const TYPE *line_##SUFFIX(const Job *j, int64_t i, TYPE *room) {                     \
    const char *p = j->x + dm_along_at(&j->at, i) * dm_dtype_size(j->dtype);                  \
    if (j->at.inner == 1 && j->dtype == dm_compute_dtype(j->dtype))                           \
      return (const TYPE *)(const void *)p;                                                   \
    dm_load_##SUFFIX(j->dtype, p, j->at.inner, j->at.n, room);                                \
    return room;                                                                              \
  }                                                                                           \
  static double loss_of_##SUFFIX(const Job *j, const TYPE *x, int64_t t, TYPE *work) {        \
    const int64_t n = j->at.n;                                                                \
    const double w = j->weight ? j->weight[t] : 1, xt = (double)x[t];                         \
    if (j->nll) return -w * xt;                                                               \
    const TYPE top = dm_row_max_##SUFFIX(x, n);                                               \
    const double lse = (double)top + log(dm_row_exp_##SUFFIX(x, top, n, work));               \
    if (j->smoothing == 0) return w * (lse - xt);                                             \
    double all = 0;                                                                           \
    for (int64_t k = 0; k < n; k++)                                                           \
      all += (j->weight ? j->weight[k] : 1) * (lse - (double)x[k]);                           \
    return (1 - j->smoothing) * w * (lse - xt) + j->smoothing / (double)n * all;              \
  }                                                                                           \
  static void forward_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                       \
    Job *j = ctx;                                                                             \
    TYPE *room = dm_alloc(2 * j->at.n * (int64_t)sizeof *room);                               \
    if (!room) {                                                                              \
      atomic_store(&j->failed, true);                                                         \
      return;                                                                                 \
    }                                                                                         \
    for (int64_t i = begin; i < end; i++) {                                                   \
      j->loss[i] = 0;                                                                         \
      if (j->target[i] >= 0)                                                                  \
        j->loss[i] = loss_of_##SUFFIX(j, line_##SUFFIX(j, i, room), j->target[i],             \
                                      room + j->at.n);                                        \
    }                                                                                         \
    dm_free(room);                                                                            \
  }                                                                                           \
  /* The gradient of one line, gx, for g = d / d loss. */                                     \
  static void slope_##SUFFIX(const Job *j, int64_t i, double g, TYPE *room, TYPE *gx) {       \
    const int64_t n = j->at.n, t = j->target[i];                                              \
    if (t < 0 || j->nll) memset(gx, 0, sizeof *gx * (size_t)n);                               \
    if (t < 0) return;                                                                        \
    const double w = g * (j->weight ? j->weight[t] : 1), even = g * j->smoothing / (double)n; \
    if (!j->nll) {                                                                            \
      const TYPE *x = line_##SUFFIX(j, i, room);                                              \
      const double sum = dm_row_exp_##SUFFIX(x, dm_row_max_##SUFFIX(x, n), n, gx);            \
      const double mass = (1 - j->smoothing) * w + even * j->weight_sum;                      \
      const TYPE scale = (TYPE)(mass / sum), flat = (TYPE)even;                               \
      if (j->weight && even != 0)                                                             \
        for (int64_t k = 0; k < n; k++) gx[k] = gx[k] * scale - (TYPE)(even * j->weight[k]);  \
      else                                                                                    \
        for (int64_t k = 0; k < n; k++) gx[k] = gx[k] * scale - flat;                         \
    }                                                                                         \
    gx[t] -= (TYPE)((1 - j->smoothing) * w);                                                  \
  }                                                                                           \
  static void backward_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                      \
    Job *j = ctx;                                                                             \
    const int64_t n = j->at.n, size = dm_dtype_size(j->dtype);                                \
    TYPE *room = dm_alloc(2 * n * (int64_t)sizeof *room);                                     \
    if (!room) {                                                                              \
      atomic_store(&j->failed, true);                                                         \
      return;                                                                                 \
    }                                                                                         \
    const bool direct = j->at.inner == 1 && j->dtype == dm_compute_dtype(j->dtype);           \
    for (int64_t i = begin; i < end; i++) {                                                   \
      double g;                                                                               \
      dm_load_f64(j->gy_dtype, j->gy + (j->each ? i : 0) * dm_dtype_size(j->gy_dtype), 1, 1, &g); \
      char *to = j->gx + dm_along_at(&j->at, i) * size;                                       \
      TYPE *gx = direct ? (TYPE *)(void *)to : room + n;                                      \
      slope_##SUFFIX(j, i, j->mean ? g / j->total : g, room, gx);                             \
      if (!direct) dm_store_##SUFFIX(j->dtype, to, j->at.inner, n, gx);                       \
    }                                                                                         \
    dm_free(room);                                                                            \
  }
LINES(f32, float)
LINES(f64, double)
#undef LINES

static dm_status run(dm_Call *c, Job *j, dm_RangeFn *f32, dm_RangeFn *f64) {
  atomic_init(&j->failed, false);
  if (j->at.n > 0)
    dm_parallel_for(j->n_pos, dm_max_i64(1, DM_POINT_GRAIN / 4 / j->at.n),
                    j->dtype == DM_F64 ? f64 : f32, j);
  return atomic_load(&j->failed) ? dm_fail(DM_EMEM, "%s: out of memory", c->op->name) : DM_OK;
}

/* in: x, target, weight. */
static dm_status class_loss(dm_Call *c, const NllAttr *a, double smoothing, bool nll) {
  dm_Tensor *x = NULL, *out = c->out[0];
  const dm_DType to = (dm_DType)out->dtype;
  Job j = {.nll = nll, .smoothing = smoothing};
  dm_status st = DM_OK;
  DM_GO(dm_dense_new(c->in[0], &x));
  j.at = dm_along(x, class_dim(x->ndim));
  j.dtype = (dm_DType)x->dtype;
  j.x = dm_tensor_data(x);
  DM_GO(read_targets(&j, c, c->in[1], c->in[2], a->ignore_index));
  j.loss = dm_alloc(dm_max_i64(1, j.n_pos) * (int64_t)sizeof *j.loss);
  if (!j.loss) {
    st = dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
    goto done;
  }
  DM_GO(run(c, &j, forward_f32, forward_f64));
  if (a->reduction == NONE) {
    dm_store_f64(to, dm_tensor_data(out), 1, j.n_pos, j.loss);
  } else {
    double sum = 0;
    for (int64_t i = 0; i < j.n_pos; i++) sum += j.loss[i];
    if (a->reduction == MEAN) sum /= j.total;
    dm_store_f64(to, dm_tensor_data(out), 1, 1, &sum);
  }
done:
  close_job(&j);
  dm_tensor_unref(&x);
  return st;
}

/* x NULL for nll_loss. */
static dm_status class_slope(dm_Call *c, dm_Tensor *x, dm_Tensor *target, dm_Tensor *weight,
                             const NllAttr *a, double smoothing) {
  dm_Tensor *dense = NULL, *gy = NULL, *out = c->out[0];
  Job j = {.nll = !x, .smoothing = smoothing, .mean = a->reduction == MEAN};
  dm_status st = DM_OK;
  j.at = dm_along(out, class_dim(out->ndim));
  j.dtype = (dm_DType)out->dtype;
  j.gx = dm_tensor_data(out);
  j.each = a->reduction == NONE;
  if (x) {
    DM_GO(dm_dense_new(x, &dense));
    j.x = dm_tensor_data(dense);
  }
  DM_GO(dm_dense_new(c->in[0], &gy));
  j.gy = dm_tensor_data(gy);
  j.gy_dtype = (dm_DType)gy->dtype;
  DM_GO(read_targets(&j, c, target, weight, a->ignore_index));
  DM_GO(run(c, &j, backward_f32, backward_f64));
done:
  close_job(&j);
  dm_tensor_unref(&dense);
  dm_tensor_unref(&gy);
  return st;
}

/* ---- nll_loss: linear in x, so that its gradient's gradient is itself ---- */

dm_status nll_loss_rule(dm_Call *c) {
  DM_TRY(check_classes(c, c->in[0], c->in[1], c->in[2]));
  loss_meta(c, c->in[0], c->in[1], DM_ATTR(NllAttr, c)->reduction);
  return DM_OK;
}
dm_status nll_loss_cpu(dm_Call *c) { return class_loss(c, DM_ATTR(NllAttr, c), 0, true); }

static dm_Tensor *x_nll_back(dm_X *x, dm_Tensor *gy, dm_Tensor *target, dm_Tensor *weight,
                             const NllAttr *a, const dm_Meta *m) {
  NllBackAttr back = {*a, {m->ndim, {0}}};
  memcpy(back.shape.v, m->shape, sizeof m->shape[0] * m->ndim);
  return dm_x(x, DM_OP_nll_loss_backward, &back, 3, gy, target, weight);
}
void nll_loss_grad(dm_Grad *g) {
  g->gx[0] = x_nll_back(g->x, g->gy[0], g->in[1], g->in[2], DM_ATTR(NllAttr, g), &g->in_meta[0]);
}
dm_status nll_loss_backward_rule(dm_Call *c) {
  const dm_Ints *shape = &DM_ATTR(NllBackAttr, c)->shape;
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  c->out_meta[0].ndim = (uint8_t)shape->n;
  for (int64_t d = 0; d < shape->n; d++) c->out_meta[0].shape[d] = shape->v[d];
  return DM_OK;
}
dm_status nll_loss_backward_cpu(dm_Call *c) {
  return class_slope(c, NULL, c->in[1], c->in[2], &DM_ATTR(NllBackAttr, c)->loss, 0);
}
void nll_loss_backward_grad(dm_Grad *g) {
  g->gx[0] = dm_x(g->x, DM_OP_nll_loss, &DM_ATTR(NllBackAttr, g)->loss, 3, g->gy[0], g->in[1],
                  g->in[2]);
}

/* ---- cross_entropy ---- */

static NllAttr nll_part(const ClassAttr *a) { return (NllAttr){a->ignore_index, a->reduction}; }

dm_status cross_entropy_rule(dm_Call *c) {
  const ClassAttr *a = DM_ATTR(ClassAttr, c);
  DM_TRY(check_classes(c, c->in[0], c->in[1], c->in[2]));
  if (!(a->smoothing >= 0 && a->smoothing <= 1))
    return dm_fail(DM_EARG, "cross_entropy: label_smoothing = %g, wanted 0 to 1", a->smoothing);
  loss_meta(c, c->in[0], c->in[1], a->reduction);
  return DM_OK;
}
dm_status cross_entropy_cpu(dm_Call *c) {
  const ClassAttr *a = DM_ATTR(ClassAttr, c);
  const NllAttr nll = nll_part(a);
  return class_loss(c, &nll, a->smoothing, false);
}
/* Under create_graph as that of nll_loss on log_softmax. */
void cross_entropy_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const ClassAttr *a = DM_ATTR(ClassAttr, g);
  const dm_Meta *m = &g->in_meta[0];
  if (!g->create_graph) {
    g->gx[0] = dm_x(x, DM_OP_cross_entropy_backward, a, 4, g->gy[0], g->in[0], g->in[1], g->in[2]);
    return;
  }
  if (a->smoothing != 0) {
    x->st = dm_fail(DM_ESTATE, "backward: cross_entropy with label_smoothing has no second "
                               "derivative (create_graph)");
    return;
  }
  const struct {
    int64_t dim, dtype;
  } soft = {class_dim(m->ndim), DM_NO_DTYPE};
  const dm_Ints dims = {1, {soft.dim}};
  const NllAttr nll = nll_part(a);
  dm_Tensor *p = dm_x(x, DM_OP_softmax, &soft, 1, g->in[0]);
  dm_Tensor *gl = x_nll_back(x, x_like(x, g->gy[0], g->in[0]), g->in[1], g->in[2], &nll, m);
  g->gx[0] = x_sub(x, gl, x_mul(x, p, x_sum(x, gl, dims, true)));
}
dm_status cross_entropy_backward_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[1]->dtype);
  return DM_OK;
}
dm_status cross_entropy_backward_cpu(dm_Call *c) {
  const ClassAttr *a = DM_ATTR(ClassAttr, c);
  const NllAttr nll = nll_part(a);
  return class_slope(c, c->in[1], c->in[2], c->in[3], &nll, a->smoothing);
}

/* ---- elementwise losses ---- */

static dm_Tensor *x_reduced(dm_X *x, dm_Tensor *loss, int64_t reduction) {
  if (reduction == NONE) return loss;
  return x_unary(x, reduction == MEAN ? DM_OP_mean : DM_OP_sum, loss);
}
static int64_t reduction_of(const dm_Call *c) { return *DM_ATTR(int64_t, c); }

/* smooth_l1_loss's and huber_loss's */
typedef struct BendAttr {
  int64_t reduction;
  double bend;
} BendAttr;

dm_status mse_loss_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *d = x_sub(x, c->in[0], c->in[1]);
  c->out[0] = x_reduced(x, x_unary(x, DM_OP_square, d), reduction_of(c));
  return x->st;
}
dm_status l1_loss_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *d = x_unary(x, DM_OP_abs, x_sub(x, c->in[0], c->in[1]));
  c->out[0] = x_reduced(x, d, reduction_of(c));
  return x->st;
}
/* in_scale d^2 / 2 where d < bend, else out_scale (d - bend / 2) */
static dm_Tensor *x_bent(dm_X *x, dm_Tensor *d, double bend, double in_scale, double out_scale) {
  dm_Tensor *small = dm_x(x, DM_OP_lt, NULL, 2, d, dm_x_number(x, bend));
  dm_Tensor *inner = x_scale(x, x_unary(x, DM_OP_square, d), 0.5 * in_scale);
  return x_where(x, small, inner, x_scale(x, x_shift(x, d, -0.5 * bend), out_scale));
}
dm_status smooth_l1_loss_compose(dm_Call *c, dm_X *x) {
  const BendAttr *a = DM_ATTR(BendAttr, c);
  if (a->bend < 0) return dm_fail(DM_EARG, "smooth_l1_loss: beta = %g, wanted 0 or more", a->bend);
  dm_Tensor *d = x_unary(x, DM_OP_abs, x_sub(x, c->in[0], c->in[1]));
  if (a->bend > 0) d = x_bent(x, d, a->bend, 1 / a->bend, 1);
  c->out[0] = x_reduced(x, d, a->reduction);
  return x->st;
}
dm_status huber_loss_compose(dm_Call *c, dm_X *x) {
  const BendAttr *a = DM_ATTR(BendAttr, c);
  if (!(a->bend > 0)) return dm_fail(DM_EARG, "huber_loss: delta = %g, wanted more than 0", a->bend);
  dm_Tensor *d = x_unary(x, DM_OP_abs, x_sub(x, c->in[0], c->in[1]));
  c->out[0] = x_reduced(x, x_bent(x, d, a->bend, 1, a->bend), a->reduction);
  return x->st;
}

/* ---- binary cross entropy ---- */

static dm_status same_shape(const dm_Call *c) {
  if (dm_same_shape(c->in[0], c->in[1])) return DM_OK;
  return dm_fail(DM_EARG, "%s: target is %s, wanted x's shape %s", c->op->name, DM_SHAPE(c->in[1]),
                 DM_SHAPE(c->in[0]));
}

/* Logarithms are held at -100 or above, so that the loss stays finite. */
#define BCE(SUFFIX, TYPE, LOG, LOG1P)                                                         \
  static TYPE held_##SUFFIX(TYPE v) { return v < -100 ? -100 : v; }                           \
  static void bce_##SUFFIX(const TYPE *const *in, TYPE *out, int64_t n, const double *param) { \
    DM_UNUSED(param);                                                                         \
    for (int64_t i = 0; i < n; i++) {                                                         \
      const TYPE p = in[0][i], t = in[1][i];                                                  \
      out[i] = (t - 1) * held_##SUFFIX(LOG1P(-p)) - t * held_##SUFFIX(LOG(p));                \
    }                                                                                         \
  }
BCE(f32, float, logf, log1pf)
BCE(f64, double, log, log1p)
#undef BCE

dm_status bce_terms_rule(dm_Call *c) {
  DM_TRY(dm_check_float(c, c->in[0], "x"));
  DM_TRY(dm_check_float(c, c->in[1], "target"));
  DM_TRY(same_shape(c));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}
static dm_status check_probabilities(dm_Tensor *x) {
  dm_Tensor *dense = NULL;
  double v[DM_BLOCK];
  DM_TRY(dm_dense_new(x, &dense));
  const dm_DType type = (dm_DType)x->dtype;
  const char *p = dm_tensor_data(dense);
  dm_status st = DM_OK;
  for (int64_t at = 0; at < x->numel && st == DM_OK; at += DM_BLOCK) {
    const int64_t m = dm_min_i64(DM_BLOCK, x->numel - at);
    dm_load_f64(type, p + at * dm_dtype_size(type), 1, m, v);
    for (int64_t i = 0; i < m && st == DM_OK; i++)
      if (!(v[i] >= 0 && v[i] <= 1))
        st = dm_fail(DM_EARG, "binary_cross_entropy: %g is no probability, wanted 0 to 1; hint: "
                              "binary_cross_entropy_with_logits", v[i]);
  }
  dm_tensor_unref(&dense);
  return st;
}
dm_status bce_terms_cpu(dm_Call *c) {
  static const dm_Pointwise fn = {bce_f32, bce_f64, NULL};
  DM_TRY(check_probabilities(c->in[0]));
  return dm_pointwise(c->out[0], 2, c->in, (dm_DType)c->out[0]->dtype, &fn, NULL);
}
/* gy (x - target) / (x (1 - x)), the divisor at least 1e-12 */
void bce_terms_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *p = g->in[0], *t = g->in[1];
  dm_Tensor *q = x_shift(x, x_scale(x, p, -1), 1); /* 1 - p */
  if (g->need[0]) {
    dm_Tensor *by = dm_x(x, DM_OP_maximum, NULL, 2, x_mul(x, p, q), dm_x_number(x, 1e-12));
    g->gx[0] = x_mul(x, g->gy[0], x_div(x, x_sub(x, p, t), by));
  }
  if (g->need[1])
    g->gx[1] = x_mul(x, g->gy[0], x_sub(x, x_unary(x, DM_OP_log, q), x_unary(x, DM_OP_log, p)));
}
dm_status binary_cross_entropy_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *loss = dm_x(x, DM_OP_bce_terms, NULL, 2, c->in[0], c->in[1]);
  if (c->in[2]) loss = x_mul(x, loss, c->in[2]);
  c->out[0] = x_reduced(x, loss, reduction_of(c));
  return x->st;
}

/* (1 - t) x + (1 + (pos_weight - 1) t) log(1 + exp(-x)) */
dm_status bce_with_logits_compose(dm_Call *c, dm_X *x) {
  const struct {
    double beta, threshold;
  } exact = {1, 60}; /* log1p(exp(60)) is 60 in float64 */
  dm_Tensor *v = c->in[0], *t = c->in[1];
  DM_TRY(dm_check_float(c, v, "x"));
  DM_TRY(same_shape(c));
  dm_Tensor *tail = dm_x(x, DM_OP_softplus, &exact, 1, x_scale(x, v, -1));
  if (c->in[3])
    tail = x_mul(x, tail, x_shift(x, x_mul(x, x_shift(x, c->in[3], -1), t), 1));
  dm_Tensor *loss = x_add(x, x_mul(x, x_shift(x, x_scale(x, t, -1), 1), v), tail);
  if (c->in[2]) loss = x_mul(x, loss, c->in[2]);
  c->out[0] = x_reduced(x, loss, reduction_of(c));
  return x->st;
}
