/* See gemm_variant.h. */
#include "cpu/gemm_variant.h"

#include "cpu/variant.h"

/* Processors with AVX512-BF16 or AMX use the kernels of AVX512 for all types but bfloat16. */
static const dm_Kernel *kernel_of(dm_Variant v, dm_DType type) {
  switch (v) {
  case DM_NEON: return dm_kernel_neon(type);
  case DM_AVX2: return dm_kernel_avx2(type);
  case DM_AVX512:
  case DM_AVX512BF16:
  case DM_AMX: return dm_kernel_avx512(type);
  default: return dm_kernel_plain(type);
  }
}

const dm_Kernel *dm_kernel(dm_DType type) {
  const dm_Kernel *widest;
#define KERNEL_OF(v) kernel_of(v, type)
  DM_WIDEST(KERNEL_OF, widest);
#undef KERNEL_OF
  return widest;
}

const dm_Kernel *dm_kernel_pairs(void) {
  const dm_Variant v = dm_cpu_variant();
  const dm_Kernel *const tiles = v >= DM_AMX ? dm_kernel_amx() : NULL;
  return tiles ? tiles : v >= DM_AVX512BF16 ? dm_kernel_avx512bf16() : NULL;
}

/* bfloat16 has kernels of pairs where the processor multiplies them; all other types are
   converted to the compute type. */
const dm_Kernel *dm_kernel_for(dm_DType t) {
  const dm_Kernel *const pairs = t == DM_BF16 ? dm_kernel_pairs() : NULL;
  return pairs ? pairs : dm_kernel(dm_compute_dtype(t));
}

dm_DType dm_gathered(const dm_Kernel *kn) { return kn->pairs ? DM_BF16 : kn->type; }
