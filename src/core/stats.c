/* Statistics of floats, element by element on one thread: see stats.h. */
#include "core/stats.h"

#include <math.h>

#include "base/half.h"
#include "core/iter.h"

/* An element is finite unless it has all bits of TOP, which follows the largest number: of the
   IEEE formats that is the infinity, all bits of the exponent. */
#define FINITE_RUN(NAME, TYPE, TOP)                                                 \
  static void NAME(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) { \
    const TYPE *x = (const TYPE *)(const void *)ptr[0], top = TOP;                  \
    const int64_t s = stride[0];                                                    \
    int bad = 0;                                                                    \
    if (s == 1)                                                                     \
      for (int64_t i = 0; i < n; i++) bad |= (x[i] & top) == top;                   \
    else                                                                            \
      for (int64_t i = 0; i < n; i++) bad |= (x[i * s] & top) == top;               \
    *(bool *)ctx |= bad != 0;                                                       \
  }
#define ROW(X, E, S, BITS, NAME, METHOD, RANK, NPY, ST, AT, DIGITS, TINY, MAX, ...) \
  FINITE_RUN(S##_run, BITS, (BITS)(dm_f32_to_##S((float)MAX) + 1))
DM_LOW_DTYPES(ROW, )
#undef ROW
FINITE_RUN(f32_run, uint32_t, 0x7f800000u)
FINITE_RUN(f64_run, uint64_t, 0x7ff0000000000000u)

/* *out = t on the host; false: t has no floats, or no copy could be made. */
static bool fetch(const dm_Tensor *t, dm_Tensor **out) {
  return dm_is_float((dm_DType)t->dtype) && t->numel > 0 && dm_tensor_on_host(t, out) == DM_OK;
}

/* Reads the bits, so that no conversion is made and no NaN can raise a flag; the loop
   over dense elements has no branch and vectorizes. */
bool dm_all_finite(const dm_Tensor *t) {
#define ROW(X, E, S, ...) [DM_##E] = S##_run,
  static dm_RunFn *const runs[DM_N_DTYPE] = {DM_FLOAT_DTYPES(ROW, )};
#undef ROW
  bool bad = false;
  dm_Iter it;
  dm_Tensor *only;
  if (!fetch(t, &only)) return true;
  dm_iter_init(&it, 1, &only);
  dm_iter_range(&it, 0, it.numel, runs[t->dtype], &bad);
  dm_tensor_unref(&only);
  return !bad;
}

/* floor(log2 x) of a finite x above 0, clamped to the exponents of float32. */
static int exponent_of(double x) {
  uint64_t u;
  memcpy(&u, &x, 8);
  const int e = (int)(u >> 52) - 1023;
  return e < DM_EXP_MIN ? DM_EXP_MIN : e > DM_EXP_MAX ? DM_EXP_MAX : e;
}

/* Counts what float16 makes of x: 0 up to half of its smallest subnormal 2^-24, a
   subnormal below 2^-14, infinity from 65520 on, the middle of 65504 and what would
   follow. */
static void fit(dm_HalfFit *f, double x) {
  f->lost += x <= 0x1p-25; /* 2^-25 is a tie: to even, which is 0 */
  f->subnormal += x > 0x1p-25 && x < 0x1p-14;
  f->overflow += x >= 65520.0;
}

/* A traversal: the statistics so far, and the factors that x is multiplied by. */
typedef struct Count {
  dm_FloatStats *c;
  double factor, scale;
  dm_DType dtype;
} Count;

/* One float of any dtype, exactly. */
static double element(dm_DType dtype, const char *p) {
  float f;
  double d;
#define ROW(X, E, S, BITS, ...)        \
  case DM_##E: {                       \
    BITS h;                            \
    memcpy(&h, p, sizeof h);           \
    return (double)dm_##S##_to_f32(h); \
  }
  switch (dtype) {
    DM_LOW_DTYPES(ROW, )
  case DM_F32: memcpy(&f, p, 4); return (double)f;
  default: memcpy(&d, p, 8); return d;
  }
#undef ROW
}

/* A run of n elements. The order of cases matters: a comparison with NaN is false. */
static void count_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  const Count *k = ctx;
  dm_FloatStats *c = k->c;
  const int64_t step = stride[0] * dm_dtype_size(k->dtype);
  for (int64_t i = 0; i < n; i++) {
    const double x = fabs(element(k->dtype, ptr[0] + i * step) * k->factor);
    if (isnan(x)) {
      c->nan++;
    } else if (isinf(x)) {
      c->inf++;
    } else if (x == 0) {
      c->zero++;
    } else {
      if (x > c->largest) c->largest = x;
      c->exponent[exponent_of(x) - DM_EXP_MIN]++;
      fit(&c->plain, x);
      fit(&c->scaled, x * k->scale);
    }
  }
  c->n += n;
}

void dm_float_stats(const dm_Tensor *t, double factor, double scale, dm_FloatStats *c) {
  dm_Tensor *only;
  if (!fetch(t, &only)) return;
  Count k = {c, factor, scale, (dm_DType)t->dtype};
  dm_Iter it;
  dm_iter_init(&it, 1, &only);
  dm_iter_range(&it, 0, it.numel, count_run, &k);
  dm_tensor_unref(&only);
}
