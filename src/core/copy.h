/* Copies of a tensor's elements in another layout. They are below the op table: neither
   autocast nor the tape nor an observer sees them. The ops clone and copy_ use them too. */
#ifndef DM_COPY_H
#define DM_COPY_H

#include <string.h>

#include "core/tensor.h"

/* t itself, one reference more, when it is contiguous; else a contiguous copy on t's device,
   without history. Kernels that want contiguous operands call it. */
dm_status dm_dense_new(dm_Tensor *t, dm_Tensor **out);

/* Copies `in` into `out`, both on the CPU, of one dtype, of any strides; `in` is broadcast.
   The bits of the elements stay as they are. */
void dm_copy_elements(dm_Tensor *out, dm_Tensor *in);

/* Copies n bytes, as memcpy does. The C library copies some KiB and more by one instruction of
   the processor, which on some is ten times slower where `to` is not aligned: dm_copy_long
   takes blocks of 64 bytes instead (dm_loops), and n is at least that. */
void dm_copy_long(char *to, const char *from, int64_t n);
static inline void dm_copy_row(char *to, const char *from, int64_t n) {
  if (n < 2048) memcpy(to, from, (size_t)n);
  else dm_copy_long(to, from, n);
}

/* Transposes n columns of m <= DM_SQUARE neighbouring elements of `size` bytes: element (i, j),
   which is from[j * from_step + i], becomes to[i * to_step + j]. Steps count elements. */
enum { DM_SQUARE = 32 };
void dm_transpose(int size, const char *from, int64_t from_step, int64_t m, int64_t n, char *to,
                  int64_t to_step);

#endif
