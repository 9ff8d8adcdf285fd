/* Products with one matrix B (k,n) that is packed once and multiplied many times, as the
   weights of a recurrent layer are at each of its steps. */
#ifndef DM_GEMM_PACKED_H
#define DM_GEMM_PACKED_H

#include "cpu/gemm_kernel.h"

typedef struct dm_PackedB {
  const dm_Kernel *kn;
  dm_DType dtype; /* of A's elements, and of B's before they were packed */
  int64_t k, n;
  int64_t kc; /* depth of a block, whose strips lie one behind the other */
  char *at;   /* the caller's memory, of dm_packed_bytes */
} dm_PackedB;

/* Packs nothing yet; `at` is the caller's to set. */
dm_PackedB dm_packed_plan(dm_DType dtype, int64_t k, int64_t n);
int64_t dm_packed_bytes(const dm_PackedB *b);
/* Element (p,j) of B is src[p*ks + j*ls]. */
void dm_packed_fill(const dm_PackedB *b, const void *src, int64_t ls, int64_t ks);

/* Memory that a product of m rows wants for A's panels. */
int64_t dm_packed_panel_bytes(const dm_PackedB *b, int64_t m);
/* c (m,n) = [c +] a b, for dense rows a (m,k) and c of the kernel's sums, `c_rs` apart. 16 bits
   are multiplied as dm_gemm does, and the sums are left in float32. Parallel inside; the result
   does not depend on the thread count, nor a row on the others. */
void dm_packed_multiply(const dm_PackedB *b, int64_t m, const void *a, bool add, void *c,
                        int64_t c_rs, void *panels);

#endif
