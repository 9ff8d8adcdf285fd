/* The unit of a pointwise kernel: a block of elements, small enough for the first-level
   cache, in the compute type (float32, float64 or int64). */
#ifndef DM_BLOCK_H
#define DM_BLOCK_H

#include "base/base.h"

enum { DM_BLOCK = 512, DM_POINT_GRAIN = 32768, DM_POINT_IN = 4 };

/* n elements; in[i] and out are dense arrays of the compute type. */
typedef void dm_BlockF32(const float *const *in, float *out, int64_t n, const double *param);
typedef void dm_BlockF64(const double *const *in, double *out, int64_t n, const double *param);
typedef void dm_BlockI64(const int64_t *const *in, int64_t *out, int64_t n,
                         const double *param);

typedef void dm_BlockB16(const uint16_t *const *in, uint16_t *out, int64_t n,
                         const double *param);
/* A brief formula of n elements, a multiple of DM_BRIEF_STEP, of one dtype: float32, float16 or
   bfloat16. `out` may be one of the operands. An operand that is one number is in `number`,
   where a NaN is NAN; both arrays have three entries. */
enum { DM_BRIEF_STEP = 32 };
typedef void dm_BlockBrief(const char *const *in, const float *number, char *out, int64_t n,
                           const double *param);
enum { DM_BRIEF_F32, DM_BRIEF_F16, DM_BRIEF_BF16, DM_N_BRIEF };
/* Which operands are one number: none, the last one, the first of two and the last two of
   three, or the first of three. */
enum { DM_DENSE, DM_NUMBER_LAST, DM_NUMBER_OTHER, DM_NUMBER_FIRST, DM_N_FORM };
typedef struct dm_Brief {
  dm_BlockBrief *loop[DM_N_FORM][DM_N_BRIEF]; /* NULL: none */
} dm_Brief;

typedef struct dm_Pointwise {
  dm_BlockF32 *f32;
  dm_BlockF64 *f64;
  dm_BlockI64 *i64; /* integers and bool; NULL: not for them */
  dm_BlockB16 *b16; /* the bits of 16-bit floats, whose sign is the first; NULL: as float32 */
  /* Loops that widen and round in registers, and read a number once; NULL: blocks are widened
     before the loop, and numbers repeated. */
  const dm_Brief *brief;
} dm_Pointwise;

/* A function of two bools a and b as a polynomial modulo 2, which each of them is (I. Zhegalkin
   1927): none + left a + right b + both a b, of numbers that are 0 or 1. */
typedef struct dm_Truth {
  uint8_t none, left, right, both;
} dm_Truth;

#endif
