/* See gemm_small.h. A product of a few thousand elements is over before gemm.c has made its
   plan: this file computes it on the stack, in the calling thread, without tiles. Operands of
   16 bits are widened in one run each and the sums are narrowed in one. The register kernel
   runs over the whole depth as in gemm.c, so the bits are the same. Pairs of bfloat16, where
   the processor multiplies them, are left to gemm.c. */
#include "cpu/gemm_small.h"

#include "cpu/gemm_variant.h"
#include "cpu/vec.h"

enum {
  MOST = 2048,     /* elements of each matrix */
  MOST_DEPTH = 256 /* of a strip of B; gemm.c sums greater depths in blocks */
};

/* A float32 matrix: element (i,j) is data[i*rs + j*cs]. */
typedef struct Small {
  const float *data;
  int64_t rs, cs;
} Small;

/* Whether a matrix has at most MOST elements. */
static bool fits(int64_t rows, int64_t columns) {
  return rows > 0 && columns > 0 && rows <= MOST && columns <= MOST && rows * columns <= MOST;
}

/* float64 is left to gemm.c. */
static bool takes(dm_DType t) { return t == DM_F32 || dm_is_low(t); }

/* Whether gemm.c multiplies these operands in pairs, whose products it adds in another
   order. */
static bool in_pairs(const dm_Mat *a, const dm_Mat *b) {
  return a->dtype == b->dtype && dm_kernel_for(a->dtype)->pairs;
}

/* x in float32: where it lies, or in `buffer`. */
static Small widen(const dm_Mat *x, int64_t rows, int64_t columns, float *buffer) {
  if (x->dtype == DM_F32) return (Small){x->data, x->rs, x->cs};
  const bool dense = (x->cs == 1 && x->rs == columns) || (x->rs == 1 && x->cs == rows);
  if (dense) {
    dm_load_f32(x->dtype, x->data, 1, rows * columns, buffer);
    return (Small){buffer, x->rs, x->cs};
  }
  const char *row = x->data;
  for (int64_t i = 0; i < rows; i++, row += x->rs * dm_dtype_size(x->dtype))
    dm_load_f32(x->dtype, row, x->cs, columns, buffer + i * columns);
  return (Small){buffer, columns, 1};
}

/* c = a b + bias, which is of float32, or NULL. */
static void multiply(int64_t m, int64_t n, int64_t k, Small a, Small b, float *c, int64_t ldc,
                     const float *bias) {
  const dm_Kernel *const kn = dm_kernel(DM_F32);
  const dm_Panels panels = {a.data, kn->mr * a.rs, a.rs, a.cs};
  float packed[MOST_DEPTH * DM_MOST_NR];
  for (int64_t j = 0; j < n; j += kn->nr) {
    const int width = (int)dm_min_i64(kn->nr, n - j);
    const float *from = b.data + j * b.cs;
    int64_t rs = b.rs;
    if (b.cs != 1) {
      kn->pack(DM_F32, from, b.cs, b.rs, width, k, kn->nr, packed);
      from = packed;
      rs = kn->nr;
    }
    const dm_Prologue prologue = {bias ? bias + j : NULL, 0, 1};
    const dm_Strip strip = {.at = from, .rs = rs};
    const dm_Sums sums = {.at = c + j, .rs = ldc, .prologue = bias ? &prologue : NULL};
    dm_tile_column(kn, m, width, k, &panels, &strip, &sums, NULL);
  }
}

/* With a buffer for each operand that is not of float32. */
static __attribute__((noinline)) void multiply_wide(int64_t m, int64_t n, int64_t k,
                                                    const dm_Mat *a, const dm_Mat *b, void *c,
                                                    dm_DType c_dtype, int64_t ldc,
                                                    const void *bias, dm_DType bias_dtype) {
  float a_wide[MOST], b_wide[MOST], c_wide[MOST], bias_wide[MOST];
  const bool direct = c_dtype == DM_F32;
  if (bias) dm_load_f32(bias_dtype, bias, 1, n, bias_wide);
  multiply(m, n, k, widen(a, m, k, a_wide), widen(b, k, n, b_wide), direct ? c : c_wide,
           direct ? ldc : n, bias ? bias_wide : NULL);
  const int64_t rows = direct ? 0 : ldc == n ? 1 : m, run = ldc == n ? m * n : n;
  for (int64_t i = 0; i < rows; i++)
    dm_store_f32(c_dtype, (char *)c + i * ldc * dm_dtype_size(c_dtype), 1, run, c_wide + i * n);
}

bool dm_gemm_small(int64_t m, int64_t n, int64_t k, const dm_Mat *a, const dm_Mat *b, void *c,
                   dm_DType c_dtype, int64_t ldc, const void *bias, dm_DType bias_dtype) {
  if (k > MOST_DEPTH || !fits(m, n) || !fits(m, k) || !fits(k, n)) return false;
  if (!takes(a->dtype) || !takes(b->dtype) || !takes(c_dtype) || in_pairs(a, b)) return false;
  if (a->dtype == DM_F32 && b->dtype == DM_F32 && c_dtype == DM_F32 &&
      (!bias || bias_dtype == DM_F32))
    multiply(m, n, k, (Small){a->data, a->rs, a->cs}, (Small){b->data, b->rs, b->cs}, c, ldc,
             bias);
  else multiply_wide(m, n, k, a, b, c, c_dtype, ldc, bias, bias_dtype);
  return true;
}
