/* The loops in 256-bit vectors. */
#include "op/loops.h"

#ifdef __AVX2__
#define LOOPS static const dm_Loops avx2
#include "op/loops.inc"

const dm_Loops *dm_loops_avx2(void) { return &avx2; }
#else
const dm_Loops *dm_loops_avx2(void) { return NULL; }
#endif
