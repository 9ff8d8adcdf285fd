/* Chooses among the code that is compiled for some processors only the widest that this
   processor runs. */
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
  DM_AMX,        /* and tiles of bfloat16 */
  DM_N_VARIANT
} dm_Variant;

/* The widest of this processor, and not wider than the one that the environment
   variable DEMILUNE_CPU names: plain, neon, avx2, avx512, avx512bf16, amx. */
dm_Variant dm_cpu_variant(void);
const char *dm_variant_name(dm_Variant v);

/* out = the widest member of the family get(v) that runs here. get returns NULL for a variant
   that is not built; every family has DM_PLAIN. */
#define DM_WIDEST(get, out)                      \
  do {                                           \
    int v_ = (int)dm_cpu_variant();              \
    while (!((out) = get((dm_Variant)v_))) v_--; \
  } while (0)

#endif
