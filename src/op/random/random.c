/* Random tensors; random.h says which words of the generator an element reads.

   A draw is numbered row by row over its tensor. A block of elements first .. first + n - 1
   computes the counters that cover it (base/rng.h), makes numbers of all their words and takes
   the n in the middle: blocks may begin anywhere, so that threads and strides do not matter.
   dropout stores no mask. Its words come from the seed and counter that the forward pass took,
   which are attributes (or a tensor) of op drop; the gradient is drop of gy with the same
   ones, and draws the same words again.

   Philox (J. Salmon et al. 2011) is a function of a seed and a counter without any
   state, so element i has the same number wherever and in whatever order it is
   computed: with one thread or many, on the CPU or on CUDA, in a dense tensor or a
   strided one. */
#include "op/random/random.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/gamma.h"
#include "core/copy.h"
#include "core/iter.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "engine/call.h"
#include "op/pointwise/pointwise.h"
#include "op/shape/create.h"

/* GRAIN: elements that pay for a thread, a multiple of BLOCK, the elements drawn at once. */
enum { GRAIN = 16384, BLOCK = 256 };

/* ---- words ---- */

/* Counters that a block of two words an element may touch, with those that fill up lanes. */
enum { MAX_COUNTERS = BLOCK / 2 + DM_PHILOX_LANES + 1 };

/* The 32-bit words of elements first .. first + n - 1, n <= BLOCK, where one counter
   (4 words) serves per_counter elements. out starts with the counter of the first
   element; *words is the number of words written. */
static void element_words(dm_Generator g, int64_t first, int64_t n, int64_t per_counter,
                          uint32_t *out, int64_t *words) {
  const int64_t from = first / per_counter;
  const int64_t counters = (first + n + per_counter - 1) / per_counter - from;
  dm_loops()->philox_words(g, (uint64_t)from, counters, out);
  *words = 4 * counters;
}

/* ---- words to numbers ---- */

/* Float32 and float64 numbers of words, as many as the words hold. */
typedef void Quad(const uint32_t *w, int64_t n_words, float *v);  /* a word each */
typedef void Pair(const uint32_t *w, int64_t n_words, double *v); /* two words each */

/* Uniform numbers in [0, 1), float32 and float64. */
static void uniform4(const uint32_t *w, int64_t n_words, float *v) {
  for (int64_t i = 0; i < n_words; i++) v[i] = dm_uniform_f32(w[i]);
}
static void uniform2(const uint32_t *w, int64_t n_words, double *v) {
  for (int64_t i = 0; i < n_words / 2; i++) v[i] = dm_uniform_f64(w[2 * i], w[2 * i + 1]);
}

/* Box & Muller take words in pairs: elements 2 i and 2 i + 1 share two words. */
static void normal4(const uint32_t *w, int64_t n_words, float *v) {
  dm_loops()->normal(w, n_words, v);
}
static void normal2(const uint32_t *w, int64_t n_words, double *v) {
  uniform2(w, n_words, v);
  for (int64_t i = 0; i < n_words / 2; i += 2) dm_normal_f64(&v[i], &v[i + 1]);
}

/* Elements first .. first + n - 1 of a draw, n <= BLOCK, in float32 and float64. */
static void draw_f32(dm_Generator g, Quad *quad, int64_t first, int64_t n, float *out) {
  uint32_t w[4 * MAX_COUNTERS];
  float v[4 * MAX_COUNTERS];
  int64_t words;
  element_words(g, first, n, 4, w, &words);
  quad(w, words, v);
  memcpy(out, v + first % 4, sizeof *out * (size_t)n);
}
static void draw_f64(dm_Generator g, Pair *pair, int64_t first, int64_t n, double *out) {
  uint32_t w[4 * MAX_COUNTERS];
  double v[2 * MAX_COUNTERS];
  int64_t words;
  element_words(g, first, n, 2, w, &words);
  pair(w, words, v);
  memcpy(out, v + first % 2, sizeof *out * (size_t)n);
}

/* ---- a draw over a tensor of any strides ---- */

/* One draw over t[0], and t[1] where the op reads an input. quad and pair: the distribution
   in float32 and float64; run: what becomes of n elements, of which `at` is the first. */
typedef struct Draw {
  dm_Iter it;
  dm_Generator gen;
  Quad *quad;
  Pair *pair;
  double shift, scale; /* value = shift + scale * number */
  uint32_t bits;       /* of a float32 number that are kept */
  dm_DType dtype, in_dtype;
  void (*run)(const struct Draw *d, int64_t at, char *const *ptr, const int64_t *stride,
              int64_t n);
} Draw;

/* The part of a draw that a thread makes. */
typedef struct Range {
  const Draw *draw;
  int64_t at; /* row-major index of the next element */
} Range;

/* A run of the iterator, in blocks. The iterator goes row by row, so that counting elements
   gives their numbers in the draw. */
static void range_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  Range *r = ctx;
  const dm_Iter *it = &r->draw->it;
  for (int64_t at = 0; at < n; at += BLOCK) {
    const int64_t m = dm_min_i64(BLOCK, n - at);
    char *p[2] = {NULL, NULL};
    for (int i = 0; i < it->n_op; i++) p[i] = ptr[i] + at * stride[i] * it->size[i];
    r->draw->run(r->draw, r->at, p, stride, m);
    r->at += m;
  }
}

/* Thread body: elements [begin, end) in row-major order. */
static void draw_range(void *ctx, int64_t begin, int64_t end) {
  const Draw *d = ctx;
  Range r = {d, begin};
  dm_iter_range(&d->it, begin, end, range_run, &r);
}

/* t[1] has t[0]'s shape or broadcasts to it. */
static void draw_all(Draw *d, int n, dm_Tensor *const *t) {
  if (t[0]->numel == 0) return;
  dm_iter_init(&d->it, n, t);
  d->dtype = (dm_DType)t[0]->dtype;
  d->in_dtype = (dm_DType)t[n - 1]->dtype;
  dm_parallel_for(t[0]->numel, GRAIN, draw_range, d);
}

/* shift + scale u in the compute type; 16-bit tensors are rounded once, in the store. */
static void affine_run(const Draw *d, int64_t at, char *const *ptr, const int64_t *stride,
                       int64_t n) {
  if (d->dtype == DM_F64) {
    double v[BLOCK];
    draw_f64(d->gen, d->pair, at, n, v);
    for (int64_t i = 0; i < n; i++) v[i] = d->shift + d->scale * v[i];
    dm_store_f64(d->dtype, ptr[0], stride[0], n, v);
    return;
  }
  float v[BLOCK];
  const float shift = (float)d->shift, scale = (float)d->scale;
  draw_f32(d->gen, d->quad, at, n, v);
  for (int64_t i = 0; i < n; i++) v[i] = shift + scale * dm_uniform_cut(v[i], d->bits);
  dm_store_f32(d->dtype, ptr[0], stride[0], n, v);
}

/* Fills t, a float tensor of any strides; the generator moves on first. */
static dm_status draw_affine(dm_Tensor *t, Quad *quad, Pair *pair, double shift, double scale) {
  Draw d = {.quad = quad, .pair = pair, .shift = shift, .scale = scale, .run = affine_run};
  d.bits = quad == uniform4 ? dm_uniform_bits(t->dtype) : ~0u;
  d.gen = dm_take_counters(t->numel, t->dtype == DM_F64 ? 2 : 4);
  draw_all(&d, 1, &t);
  return DM_OK;
}

/* ---- uniform and normal ---- */

/* Uniform and normal numbers want a float dtype. */
static dm_status check_out_float(const dm_Call *c) {
  const dm_DType t = (dm_DType)c->out_meta[0].dtype;
  if (dm_is_float(t)) return DM_OK;
  return dm_fail(DM_EARG, "%s: dtype %s given, wanted a float one", c->op->name,
                 dm_dtype_name(t));
}

/* Sizes, dtype and device of the attributes; a float dtype. */
dm_status random_rule(dm_Call *c) {
  DM_TRY(sized_rule(c));
  return check_out_float(c);
}

/* x's shape, dtype and device unless others are given; a float dtype. */
dm_status random_like_rule(dm_Call *c) {
  DM_TRY(like_rule(c));
  return check_out_float(c);
}

/* Uniform in [0, 1): float32 from 24 bits of a word, float64 from 53 bits of two, 16 bits cut
   from float32's. */
dm_status rand_cpu(dm_Call *c) { return draw_affine(c->out[0], uniform4, uniform2, 0, 1); }
/* Normal with mean 0 and standard deviation 1. */
dm_status randn_cpu(dm_Call *c) { return draw_affine(c->out[0], normal4, normal2, 0, 1); }

/* uniform_: from + (to - from) u, u in [0, 1). */
dm_status uniform_rule(dm_Call *c) {
  const dm_UniformAttr *a = DM_ATTR(dm_UniformAttr, c);
  if (!(a->from <= a->to))
    return dm_fail(DM_EARG, "uniform_: from %g to %g given, wanted from <= to", a->from, a->to);
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return check_out_float(c);
}

/* In 16 bits `to` itself may appear where rounding from + (to - from) u gives it. */
dm_status uniform_cpu(dm_Call *c) {
  const dm_UniformAttr *a = DM_ATTR(dm_UniformAttr, c);
  return draw_affine(c->out[0], uniform4, uniform2, a->from, a->to - a->from);
}

/* normal_: mean + std n, n normal. */
dm_status normal_rule(dm_Call *c) {
  const dm_NormalAttr *a = DM_ATTR(dm_NormalAttr, c);
  if (!(a->std >= 0))
    return dm_fail(DM_EARG, "normal_: std %g given, wanted 0 or more", a->std);
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return check_out_float(c);
}

/* A std of 0 gives the mean everywhere, and still moves the generator on. */
dm_status normal_cpu(dm_Call *c) {
  const dm_NormalAttr *a = DM_ATTR(dm_NormalAttr, c);
  return draw_affine(c->out[0], normal4, normal2, a->mean, a->std);
}

/* ---- integers ---- */

/* True when dtype t can represent v (floats always count as able). */
static bool holds(dm_DType t, int64_t v) {
  if (t == DM_BOOL) return v == 0 || v == 1;
  if (t == DM_U8) return v >= 0 && v <= UINT8_MAX;
  if (!dm_is_int(t) || t == DM_I64) return true;
  const int64_t top = ((int64_t)1 << (8 * dm_dtype_size(t) - 1)) - 1;
  return v >= -top - 1 && v <= top;
}

/* low <= v <= high, and the dtype must hold both ends. */
dm_status randint_rule(dm_Call *c) {
  const dm_RandintAttr *a = DM_ATTR(dm_RandintAttr, c);
  if (a->low > a->high)
    return dm_fail(DM_EARG, "randint: low %lld and high %lld given, wanted low <= high",
                   (long long)a->low, (long long)a->high);
  dm_out_sized(c, a->size, a->dtype, DM_I64, a->device);
  const dm_DType t = (dm_DType)c->out_meta[0].dtype;
  if (!holds(t, a->low) || !holds(t, a->high))
    return dm_fail(DM_EARG, "randint: %s does not hold the numbers from %lld to %lld",
                   dm_dtype_name(t), (long long)a->low, (long long)a->high);
  return DM_OK;
}

/* out: dense; v = low + a number below count, 0 meaning 2^64. */
typedef struct Integers {
  dm_Tensor *out;
  dm_Generator gen;
  int64_t low;
  uint64_t count;
} Integers;

/* Two words are scaled to 0 .. count - 1 by a product of 128 bits (Lemire 2019), without the
   rejection that would make a draw's length unknown: probabilities are off by count / 2^64,
   relatively, at most. */
static void integers_range(void *ctx, int64_t begin, int64_t end) {
  const Integers *r = ctx;
  const dm_DType t = (dm_DType)r->out->dtype;
  uint32_t w[4 * MAX_COUNTERS];
  int64_t v[BLOCK], words;
  for (int64_t at = begin; at < end; at += BLOCK) {
    const int64_t n = dm_min_i64(BLOCK, end - at);
    element_words(r->gen, at, n, 2, w, &words); /* `at` is even because BLOCK and GRAIN are */
    for (int64_t i = 0; i < n; i++) {
      const uint64_t u = (uint64_t)w[2 * i] << 32 | w[2 * i + 1];
      v[i] = (int64_t)((uint64_t)r->low + (r->count ? dm_scale_u64(u, r->count) : u));
    }
    dm_store_i64(t, (char *)dm_tensor_data(r->out) + at * dm_dtype_size(t), 1, n, v);
  }
}

/* The count is computed unsigned: high - low may exceed the largest int64. */
dm_status randint_cpu(dm_Call *c) {
  const dm_RandintAttr *a = DM_ATTR(dm_RandintAttr, c);
  dm_Tensor *t = c->out[0];
  Integers r = {t, dm_take_counters(t->numel, 2), a->low,
                (uint64_t)a->high - (uint64_t)a->low + 1};
  if (t->numel > 0) dm_parallel_for(t->numel, GRAIN, integers_range, &r);
  return DM_OK;
}

/* The numbers base .. base + n - 1 in any order; Lua's base is 1. */
dm_status randperm_rule(dm_Call *c) {
  const dm_RandpermAttr *a = DM_ATTR(dm_RandpermAttr, c);
  if (a->n < 0)
    return dm_fail(DM_EARG, "randperm: %lld given, wanted 0 or more", (long long)a->n);
  dm_out_sized(c, (dm_Ints){1, {a->n}}, a->dtype, DM_I64, a->device);
  if (a->n > 0 && !holds((dm_DType)c->out_meta[0].dtype, a->n - 1 + c->base))
    return dm_fail(DM_EARG, "randperm: %s does not hold the numbers up to %lld",
                   dm_dtype_name((dm_DType)c->out_meta[0].dtype),
                   (long long)a->n - 1 + c->base);
  return DM_OK;
}

/* The shuffle of Fisher & Yates in Durstenfeld's order: for i from n - 1 down to 1 element i is
   exchanged with one of 0 .. i. It is sequential, and waits for memory: the elements of a block
   of draws are prefetched. */
dm_status randperm_cpu(dm_Call *c) {
  dm_Tensor *t = c->out[0];
  const int64_t n = t->numel;
  uint32_t w[4 * MAX_COUNTERS];
  int64_t other[BLOCK], words;
  if (n == 0) return DM_OK;
  int64_t *v = dm_alloc(n * (int64_t)sizeof *v);
  if (!v) return dm_fail(DM_EMEM, "randperm: out of memory");
  const dm_Generator g = dm_take_counters(n, 2);
  for (int64_t i = 0; i < n; i++) v[i] = i + c->base;
  for (int64_t from = (n - 1) / BLOCK * BLOCK, m; from >= 0; from -= BLOCK) {
    m = dm_min_i64(BLOCK, n - from);
    element_words(g, from, m, 2, w, &words);
    for (int64_t k = m - 1; k >= 0; k--) {
      const uint64_t u = (uint64_t)w[2 * k] << 32 | w[2 * k + 1];
      other[k] = (int64_t)dm_scale_u64(u, (uint64_t)(from + k) + 1);
      __builtin_prefetch(&v[other[k]], 1);
    }
    for (int64_t k = m - 1; k >= 0; k--) {
      const int64_t was = v[from + k];
      v[from + k] = v[other[k]];
      v[other[k]] = was;
    }
  }
  dm_store_i64((dm_DType)t->dtype, dm_tensor_data(t), 1, n, v);
  dm_free(v);
  return DM_OK;
}

/* ---- bernoulli ---- */

/* A walk over x that leaves a bad value in d->shift, which is 0 where all are probabilities. */
static void check_probability(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  Draw *d = ctx; /* shift receives a value that is no probability */
  for (int64_t at = 0; at < n; at += BLOCK) {
    double p[BLOCK];
    const int64_t m = dm_min_i64(BLOCK, n - at);
    dm_load_f64(d->in_dtype, ptr[0] + at * stride[0] * d->it.size[0], stride[0], m, p);
    for (int64_t i = 0; i < m; i++)
      if (!(p[i] >= 0 && p[i] <= 1)) d->shift = p[i];
  }
}

/* p given: x says shape and dtype only; else x holds the probabilities. */
dm_status bernoulli_rule(dm_Call *c) {
  const dm_OptNum p = DM_ATTR(dm_BernoulliAttr, c)->p;
  if (!p.set) DM_TRY(dm_check_float(c, c->in[0], "x, the probabilities,"));
  if (p.set && !(p.v >= 0 && p.v <= 1))
    return dm_fail(DM_EARG, "bernoulli: p = %g given, wanted 0 to 1", p.v);
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* 1 where a uniform number is below p (one number, or each element's own), else 0. */
static void bernoulli_run(const Draw *d, int64_t at, char *const *ptr, const int64_t *stride,
                          int64_t n) {
  float u[BLOCK], p[BLOCK];
  draw_f32(d->gen, uniform4, at, n, u);
  if (d->it.n_op == 2) dm_load_f32(d->in_dtype, ptr[1], stride[1], n, p);
  for (int64_t i = 0; i < n; i++)
    u[i] = u[i] < (d->it.n_op == 2 ? p[i] : (float)d->scale) ? 1 : 0;
  dm_store_f32(d->dtype, ptr[0], stride[0], n, u);
}

/* The probabilities are checked before the generator moves on, so that a call that
   fails changes nothing. */
dm_status bernoulli_cpu(dm_Call *c) {
  const dm_OptNum p = DM_ATTR(dm_BernoulliAttr, c)->p;
  dm_Tensor *x = c->in[0], *t[2] = {c->out[0], x};
  Draw d = {.scale = p.v, .run = bernoulli_run};
  if (!p.set && x->numel > 0) {
    dm_iter_init(&d.it, 1, &x);
    d.in_dtype = (dm_DType)x->dtype;
    dm_iter_range(&d.it, 0, x->numel, check_probability, &d);
    if (d.shift != 0)
      return dm_fail(DM_EARG, "bernoulli: x holds %g, wanted probabilities", d.shift);
  }
  d.gen = dm_take_counters(x->numel, 4);
  draw_all(&d, p.set ? 1 : 2, t);
  return DM_OK;
}

/* ---- gamma ---- */

/* The shapes' own shape and dtype. */
dm_status standard_gamma_rule(dm_Call *c) {
  DM_TRY(dm_check_float(c, c->in[0], "x, the shapes,"));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* A counter an element, for its attempts; in float64, rounded once. */
static void gamma_run(const Draw *d, int64_t at, char *const *ptr, const int64_t *stride,
                      int64_t n) {
  double v[BLOCK];
  dm_load_f64(d->in_dtype, ptr[1], stride[1], n, v);
  for (int64_t i = 0; i < n; i++) v[i] = dm_gamma_draw(d->gen, at + i, v[i]);
  dm_store_f64(d->dtype, ptr[0], stride[0], n, v);
}
dm_status standard_gamma_cpu(dm_Call *c) {
  dm_Tensor *t[2] = {c->out[0], c->in[0]};
  Draw d = {.run = gamma_run, .gen = dm_take_counters(t[0]->numel, 1)};
  draw_all(&d, 2, t);
  return DM_OK;
}

/* gx = gy dy/dx */
void standard_gamma_grad(dm_Grad *g) {
  dm_Tensor *slope = dm_x(g->x, DM_OP_gamma_f64_slope, NULL, 2, g->in[0], g->out[0]);
  g->gx[0] = x_mul(g->x, g->gy[0], slope);
}

/* ---- dropout ---- */

/* The uniform numbers of elements first .. first + n - 1, for kernels that drop while
   they compute (attention). */
void dm_drop_draw(const dm_DropAttr *a, int64_t first, int64_t n, float *out) {
  const dm_Generator g = {(uint64_t)a->seed, (uint64_t)a->offset};
  for (int64_t at = 0; at < n; at += BLOCK)
    draw_f32(g, uniform4, first + at, dm_min_i64(BLOCK, n - at), out + at);
}

/* On the CPU the seed and counter become attributes. On a device they are a tensor
   that op counters fills there, so that a captured graph of kernels draws new numbers
   each time it is replayed. */
dm_Tensor *dm_x_drop_draw(dm_X *x, double p, int64_t n, dm_Device device, dm_DropAttr *out) {
  *out = (dm_DropAttr){.p = p};
  if (device.type == DM_CPU) {
    const dm_Generator g = dm_take_counters(n, 4);
    out->seed = (int64_t)g.seed;
    out->offset = (int64_t)g.offset;
    return NULL;
  }
  const dm_CountersAttr draws = {n, dm_device_code(device)};
  return dm_x(x, DM_OP_counters, &draws, 0);
}

/* Dropout as the op drop, whose attributes are seed and offset: no mask is stored,
   the gradient draws it again. */
dm_Tensor *dm_x_dropout(dm_X *x, double p, dm_Tensor *t) {
  dm_DropAttr drop;
  dm_Tensor *counters = dm_x_drop_draw(x, p, t->numel, t->device, &drop);
  return dm_x(x, DM_OP_drop, &drop, counters ? 2 : 1, t, counters);
}

/* Three int64 on the device of the draw. */
dm_status counters_rule(dm_Call *c) {
  dm_out_sized(c, (dm_Ints){1, {3}}, DM_I64, DM_I64, DM_ATTR(dm_CountersAttr, c)->device);
  return DM_OK;
}
/* The seed, the counter, and the number of words before it, and the generator moves on: dropout
   of a device. cuDNN's generator takes the third. */
dm_status counters_cpu(dm_Call *c) {
  const dm_Generator g = dm_take_counters(DM_ATTR(dm_CountersAttr, c)->n, 4);
  const uint64_t out[3] = {g.seed, g.offset, 4 * g.offset};
  memcpy(dm_tensor_data(c->out[0]), out, sizeof out);
  return DM_OK;
}

/* x itself outside training or for p = 0. */
dm_status dropout_compose(dm_Call *c, dm_X *x) {
  const dm_DropoutAttr *a = DM_ATTR(dm_DropoutAttr, c);
  dm_Tensor *t = c->in[0];
  if (!(a->p >= 0 && a->p <= 1))
    return dm_fail(DM_EARG, "dropout: p = %g given, wanted 0 to 1", a->p);
  c->out[0] = t;
  if (!a->training || a->p == 0) return DM_OK;
  DM_TRY(dm_check_float(c, t, "x"));
  c->out[0] = dm_x_dropout(x, a->p, t);
  return x->st;
}

/* x's shape and dtype. */
dm_status drop_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* y = 0 where u < p, else x / (1 - p). Dense float32 is read and written without a copy. */
static void drop_run(const Draw *d, int64_t at, char *const *ptr, const int64_t *stride,
                     int64_t n) {
  if (d->dtype == DM_F64) {
    float u[BLOCK];
    double v[BLOCK];
    const float p = (float)d->shift;
    draw_f32(d->gen, uniform4, at, n, u);
    dm_load_f64(d->in_dtype, ptr[1], stride[1], n, v);
    for (int64_t i = 0; i < n; i++) v[i] = u[i] < p ? 0 : v[i] * d->scale;
    dm_store_f64(d->dtype, ptr[0], stride[0], n, v);
    return;
  }
  uint32_t w[4 * MAX_COUNTERS];
  int64_t words;
  float buffer[BLOCK];
  const bool here = d->in_dtype == DM_F32 && stride[1] == 1;
  const bool there = d->dtype == DM_F32 && stride[0] == 1;
  const float *x = here ? (const float *)(const void *)ptr[1] : buffer;
  float *y = there ? (float *)(void *)ptr[0] : buffer;
  element_words(d->gen, at, n, 4, w, &words);
  if (!here) dm_load_f32(d->in_dtype, ptr[1], stride[1], n, buffer);
  dm_loops()->drop(w + at % 4, x, n, (float)d->shift, (float)d->scale, y);
  if (!there) dm_store_f32(d->dtype, ptr[0], stride[0], n, buffer);
}

/* Input 1, where given, is the seed and counter as a tensor of the device. */
dm_status drop_cpu(dm_Call *c) {
  const dm_DropAttr *a = DM_ATTR(dm_DropAttr, c);
  dm_Tensor *t[2] = {c->out[0], c->in[0]};
  Draw d = {.gen = {(uint64_t)a->seed, (uint64_t)a->offset}, .run = drop_run};
  const dm_Tensor *counters = c->n_in > 1 ? c->in[1] : NULL;
  if (counters) memcpy(&d.gen, dm_tensor_data(counters), sizeof d.gen);
  d.shift = a->p;
  d.scale = dm_drop_scale(a->p);
  draw_all(&d, 2, t);
  return DM_OK;
}

/* The same mask and scale for gy. */
void drop_grad(dm_Grad *g) {
  dm_Tensor *counters = g->n_in > 1 ? g->in[1] : NULL;
  g->gx[0] = dm_x(g->x, DM_OP_drop, g->attr, counters ? 2 : 1, g->gy[0], counters);
}

/* ---- multinomial ---- */

/* Weights (n) or (rows, n), not normalized, to int64 (k) or (rows, k). */
dm_status multinomial_rule(dm_Call *c) {
  const dm_MultinomialAttr *a = DM_ATTR(dm_MultinomialAttr, c);
  const dm_Tensor *x = c->in[0];
  DM_TRY(dm_check_float(c, x, "x"));
  if (x->ndim < 1 || x->ndim > 2)
    return dm_fail(DM_EARG, "multinomial: x has shape %s, wanted weights {n} or {rows, n}",
                   DM_SHAPE(x));
  const int64_t n = x->shape[x->ndim - 1], k = a->num_samples;
  if (k < 1 || (!a->replacement && k > n))
    return dm_fail(DM_EARG,
                   "multinomial: %lld samples of %lld without replacement; wanted 1 "
                   "or more, and with replacement when more than there are",
                   (long long)k, (long long)n);
  dm_out_like(c, 0, x, DM_I64);
  c->out_meta[0].shape[x->ndim - 1] = k;
  return DM_OK;
}

/* Fails unless the n weights are finite, not negative and not all 0; *positive is
   the number above 0. */
static dm_status check_weights(const double *w, int64_t n, int64_t *positive) {
  double sum = 0;
  *positive = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!(w[i] >= 0) || isinf(w[i]))
      return dm_fail(DM_EARG, "multinomial: x holds %g, wanted finite weights of 0 or more",
                     w[i]);
    sum += w[i];
    *positive += w[i] > 0;
  }
  if (!(sum > 0) || isinf(sum))
    return dm_fail(DM_EARG, "multinomial: the weights sum to %g, wanted more than 0", sum);
  return DM_OK;
}

/* k draws with replacement: a uniform number times the sum of all weights falls into one
   weight's part of the running sums, which overwrite w. */
static void sample_again(double *w, int64_t n, int64_t k, dm_Generator g, int64_t first,
                         int64_t base, int64_t *out) {
  int64_t last = 0; /* the last index with a positive weight */
  for (int64_t i = 0; i < n; i++)
    if (w[i] > 0) last = i;
  for (int64_t i = 1; i < n; i++) w[i] += w[i - 1];
  for (int64_t s = 0; s < k; s++) {
    out[s] = dm_find_sum(w, last, dm_draw_f64(g, first + s) * w[n - 1]) + base;
  }
}

/* Item i and when it arrives. */
typedef struct Racer {
  double time;
  int64_t i;
} Racer;

/* By time, then by number: qsort is not stable. */
static int earlier(const void *a, const void *b) {
  const Racer *x = a, *y = b;
  if (x->time != y->time) return x->time < y->time ? -1 : 1;
  return (x->i > y->i) - (x->i < y->i);
}

/* Weights become times. */
typedef struct Race {
  double *w;
  dm_Generator g;
  int64_t first;
} Race;
static void run_race(void *ctx, int64_t begin, int64_t end) {
  const Race *r = ctx;
  for (int64_t i = begin; i < end; i++)
    r->w[i] = dm_race_time(r->w[i], dm_draw_f64(r->g, r->first + i));
}

/* The k first of n times, in order, by inserting those that beat the last one so far. */
static void first_few(const double *time, int64_t n, int64_t k, Racer *racers) {
  int64_t have = 0;
  for (int64_t i = 0; i < n; i++) {
    if (have == k && time[i] >= racers[k - 1].time) continue;
    int64_t at = have < k ? have++ : k - 1;
    for (; at > 0 && racers[at - 1].time > time[i]; at--) racers[at] = racers[at - 1];
    racers[at] = (Racer){time[i], i};
  }
}

/* k draws without replacement: the first to arrive in an exponential race, see dm_race_time. w
   holds the times then. */
static void sample_once(double *w, int64_t n, int64_t k, dm_Generator g, int64_t first,
                        int64_t base, Racer *racers, int64_t *out) {
  enum { GRAIN = 1024, FEW = 64 };
  dm_parallel_for(n, GRAIN, run_race, &(Race){w, g, first});
  if (k <= FEW) {
    first_few(w, n, k, racers);
  } else {
    for (int64_t i = 0; i < n; i++) racers[i] = (Racer){w[i], i};
    qsort(racers, (size_t)n, sizeof *racers, earlier);
  }
  for (int64_t s = 0; s < k; s++) out[s] = racers[s].i + base;
}

/* Rows one after another, in float64; row r uses elements r draws .. of one draw. */
dm_status multinomial_cpu(dm_Call *c) {
  const dm_MultinomialAttr *a = DM_ATTR(dm_MultinomialAttr, c);
  dm_Tensor *x = NULL;
  const int64_t n = c->in[0]->shape[c->in[0]->ndim - 1], k = a->num_samples;
  const int64_t rows = c->in[0]->ndim == 2 ? c->in[0]->shape[0] : 1;
  if (rows == 0) return DM_OK;
  double *w = dm_alloc(n * (int64_t)sizeof *w);
  Racer *racers = a->replacement ? NULL : dm_alloc(n * (int64_t)sizeof *racers);
  dm_status st = DM_OK;
  if (!w || (!racers && !a->replacement)) {
    st = dm_fail(DM_EMEM, "multinomial: out of memory");
    goto done;
  }
  DM_GO(dm_dense_new(c->in[0], &x));
  const int64_t draws = a->replacement ? k : n;
  const dm_Generator g = dm_take_counters(rows * draws, 2);
  const dm_DType t = (dm_DType)x->dtype;
  for (int64_t r = 0; r < rows; r++) {
    int64_t positive, *out = (int64_t *)dm_tensor_data(c->out[0]) + r * k;
    dm_load_f64(t, (const char *)dm_tensor_data(x) + r * n * dm_dtype_size(t), 1, n, w);
    DM_GO(check_weights(w, n, &positive));
    if (!a->replacement && k > positive) {
      st = dm_fail(DM_EARG,
                   "multinomial: %lld samples without replacement of %lld weights "
                   "above 0",
                   (long long)k, (long long)positive);
      goto done;
    }
    if (a->replacement) sample_again(w, n, k, g, r * draws, c->base, out);
    else sample_once(w, n, k, g, r * draws, c->base, racers, out);
  }
done:
  dm_tensor_unref(&x);
  dm_free(racers);
  dm_free(w);
  return st;
}
