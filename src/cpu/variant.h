/* Which of the code compiled for some processors only runs here. */
#ifndef DM_VARIANT_H
#define DM_VARIANT_H

#include "base/dtype.h"

/* From the narrowest vectors to the widest. */
typedef enum dm_Variant {
  DM_PLAIN,      /* any processor */
  DM_NEON,       /* 64-bit ARM */
  DM_AVX2,       /* with FMA and F16C */
  DM_AVX512,     /* F, VL, BW and DQ */
  DM_AVX512BF16, /* and products of bfloat16 */
  DM_N_VARIANT
} dm_Variant;

/* The widest of this processor, and not wider than the one that the environment
   variable DEMILUNE_CPU names: plain, neon, avx2, avx512, avx512bf16. */
dm_Variant dm_cpu_variant(void);
const char *dm_variant_name(dm_Variant v);

/* Whether this processor, used to its width, has tiles that multiply matrices of t and sum
   in float32: AMX-BF16, AMX-FP16. */
bool dm_cpu_has_tiles(dm_DType t);

/* Of a family get(v), which is NULL where a variant is not built or there is none, the
   widest that runs here. Every family has DM_PLAIN. */
#define DM_WIDEST(get, out)                      \
  do {                                           \
    int v_ = (int)dm_cpu_variant();              \
    while (!((out) = get((dm_Variant)v_))) v_--; \
  } while (0)

#endif
