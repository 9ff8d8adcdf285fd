/* Sums of 16-bit products by oneDNN, opened when it runs, on processors with tiles for them
   (AMX), which want code made for each shape: oneDNN makes it. Where there is AVX512-BF16
   alone, gemm_avx512bf16.c is faster: 1.1 to 2 times oneDNN 3.2 on a Zen 5. */
#ifndef DM_DNNL_H
#define DM_DNNL_H

#include "cpu/matrix.h"

/* Whether dm_dnnl_sums is to be tried for products of type t this large. The first
   16-bit ones open libdnnl.so.3 (or .so); only version 3 is taken, as version 2 has
   another interface. DEMILUNE_DNNL=0 leaves it out, =1 tries it on any processor and
   for any size, and =/path/to/it names another file. */
bool dm_dnnl_takes(dm_DType t, int64_t m, int64_t n, int64_t k);

/* c (m,n), its rows ldc apart, = a (m,k) b (k,n), summed in float32, on this thread alone;
   a and b are of one 16-bit type. Bfloat16 below 2^-126 counts as 0, as the instructions
   have it. False: refused, and c may hold anything. */
bool dm_dnnl_sums(int64_t m, int64_t n, int64_t k, const dm_Mat *a, const dm_Mat *b, float *c,
                  int64_t ldc);

/* The version in use, or NULL and why there is none; opens the library. */
const char *dm_dnnl_version(const char **why);

#endif
