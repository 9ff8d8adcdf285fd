/* The loops for any processor, and which ones run here. */
#include "cpu/loops/loops.h"

#include "cpu/variant.h"

#define PHILOX_WORDS dm_philox_words
#define LOOPS const dm_Loops dm_loops_plain
#include "cpu/loops/loops.inc"

/* The loops of a variant; NULL where it is not built. */
static const dm_Loops *loops_of(dm_Variant v) {
  switch (v) {
  case DM_AVX2: return dm_loops_avx2();
  case DM_AVX512:
  case DM_AVX512BF16:
  case DM_AMX: return dm_loops_avx512();
  case DM_NEON: return NULL; /* every 64-bit ARM has it: the plain ones are made of it */
  default: return &dm_loops_plain;
  }
}

const dm_Loops *dm_loops(void) {
  const dm_Loops *widest;
  DM_WIDEST(loops_of, widest);
  return widest;
}

const char *dm_loops_name(void) {
  const dm_Loops *l = dm_loops();
  if (l == &dm_loops_plain) return "plain";
  return l == dm_loops_avx2() ? "avx2" : "avx512";
}
