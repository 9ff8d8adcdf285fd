/* The loops in 512-bit vectors, random words in those of AVX2. */
#include "op/loops_avx2.c"
