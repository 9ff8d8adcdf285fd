/* Conversions on 64-bit ARM. Its instructions make signalling NaNs quiet where
   base/half.h keeps their bits; such blocks go one by one. */
#include "cpu/vec_table.h"

#ifdef __aarch64__
#include "base/half.h"

#include <arm_neon.h>

static void f16_to_f32(const uint16_t *src, int64_t n, float *dst) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(src + i));
    const float32x4_t low = vcvt_f32_f16(vget_low_f16(h)), high = vcvt_high_f32_f16(h);
    const uint32x4_t numbers = vandq_u32(vceqq_f32(low, low), vceqq_f32(high, high));
    if (DM_LIKELY(vminvq_u32(numbers))) {
      vst1q_f32(dst + i, low);
      vst1q_f32(dst + i + 4, high);
    } else {
      for (int j = 0; j < 8; j++) dst[i + j] = dm_f16_to_f32(src[i + j]);
    }
  }
  for (; i < n; i++) dst[i] = dm_f16_to_f32(src[i]);
}

static void f32_to_f16(const float *src, int64_t n, uint16_t *dst) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(src + i));
    vst1q_u16(dst + i, vreinterpretq_u16_f16(vcvt_high_f16_f32(low, vld1q_f32(src + i + 4))));
  }
  for (; i < n; i++) dst[i] = dm_f32_to_f16(src[i]);
}

static void bf16_to_f32(const uint16_t *src, int64_t n, float *dst) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint16x8_t h = vld1q_u16(src + i);
    vst1q_f32(dst + i, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)));
    vst1q_f32(dst + i + 4, vreinterpretq_f32_u32(vshll_high_n_u16(h, 16)));
  }
  for (; i < n; i++) dst[i] = dm_bf16_to_f32(src[i]);
}

static inline uint16x4_t round_bf16(float32x4_t v) {
  const uint32x4_t u = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
}

static void f32_to_bf16(const float *src, int64_t n, uint16_t *dst) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) vst1_u16(dst + i, round_bf16(vld1q_f32(src + i)));
  for (; i < n; i++) dst[i] = dm_f32_to_bf16(src[i]);
}

DM_LOW_DTYPES(DM_VEC_ROWS, )
DM_VEC_BOOLS
static const dm_VecTable neon = {DM_LOW_DTYPES(DM_VEC_ENTRY, ) DM_VEC_BOOL_ENTRIES};

const dm_VecTable *dm_vec_neon(void) { return &neon; }
#else
const dm_VecTable *dm_vec_neon(void) { return NULL; }
#endif
