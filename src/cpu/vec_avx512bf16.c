/* The conversions of AVX512, of which rounding to bfloat16 is an instruction of AVX512-BF16. */
#define NAME dm_vec_avx512bf16
#define NEEDS_BF16
#include "cpu/vec_avx512.c"
