/* The loops in 512-bit vectors; random words in those of AVX2. */
#define NAME dm_loops_avx512
#include "cpu/loops/loops_avx2.c"
