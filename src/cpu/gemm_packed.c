/* See gemm_packed.h. Blocks, panels and strips are those of gemm.c. */
#include "cpu/gemm_packed.h"

#include "cpu/gemm_variant.h"
#include "cpu/threads.h"
#include "cpu/vec.h"

static const int64_t TASK_WORK = 1 << 18; /* multiply-adds worth a task */

dm_PackedB dm_packed_plan(dm_DType dtype, int64_t k, int64_t n) {
  const dm_Kernel *const kn = dm_kernel_for(dtype);
  return (dm_PackedB){kn, dtype, k, n, dm_block_depth(kn, k), NULL};
}

/* How the kernel reads rows of a: in pairs of bfloat16 where they lie, in packed panels, or as
   numbers of its own type, for which 16 bits are widened first. */
typedef enum Way { PAIRS, PACKED, OWN, WIDENED } Way;
static Way way_of(const dm_PackedB *b) {
  if (b->kn->pairs) return b->kn->tiles || b->k % 2 != 0 ? PACKED : PAIRS;
  return b->dtype == b->kn->type ? OWN : WIDENED;
}

/* Items of `lanes` lanes, in panels or strips of `width`, before depth k. */
static int64_t items_before(const dm_PackedB *b, int64_t lanes, int64_t width, int64_t k) {
  const int64_t whole = k / b->kc, rest = k - whole * b->kc;
  const int64_t depth = whole * dm_depth(b->kn, b->kc) + (rest > 0 ? dm_depth(b->kn, rest) : 0);
  return dm_ceil_div(lanes, width) * width * depth;
}

static char *strips_at(const dm_PackedB *b, int64_t k) {
  return b->at + items_before(b, b->n, b->kn->nr, k) * dm_dtype_size(b->kn->type);
}

int64_t dm_packed_bytes(const dm_PackedB *b) {
  return items_before(b, b->n, b->kn->nr, b->k) * dm_dtype_size(b->kn->type);
}

int64_t dm_packed_panel_bytes(const dm_PackedB *b, int64_t m) {
  const Way way = way_of(b);
  const int64_t size = dm_dtype_size(b->kn->type);
  return way == PACKED    ? items_before(b, m, b->kn->mr, b->k) * size
         : way == WIDENED ? m * b->k * size
                          : 0;
}

void dm_packed_fill(const dm_PackedB *b, const void *src, int64_t ls, int64_t ks) {
  const int64_t size = dm_dtype_size(b->dtype);
  for (int64_t k = 0; k < b->k; k += b->kc)
    dm_pack_panels(b->kn, DM_B, b->dtype, (const char *)src + k * ks * size, ls, ks, b->n,
                   dm_min_i64(b->kc, b->k - k), strips_at(b, k));
}

/* One product. */
typedef struct Job {
  const dm_PackedB *b;
  int64_t m, c_rs;
  const char *a; /* rows, or panels */
  char *c;
  bool add;
} Job;

/* a's rows in a block at depth k. */
static dm_Panels panels_at(const Job *j, int64_t k, int64_t depth) {
  const dm_Kernel *const kn = j->b->kn;
  const Way way = way_of(j->b);
  const int64_t size = dm_dtype_size(kn->type), pitch = way == PAIRS ? j->b->k / 2 : j->b->k;
  if (way == PACKED)
    return dm_packed_panels(kn, j->a + items_before(j->b, j->m, kn->mr, k) * size,
                            kn->mr * depth);
  return (dm_Panels){j->a + (way == PAIRS ? k / 2 : k) * size, kn->mr * pitch, pitch, 1};
}

/* Strips [begin, end): columns of c. */
static void run_strips(void *ctx, int64_t begin, int64_t end) {
  const Job *const j = ctx;
  const dm_PackedB *const b = j->b;
  const dm_Kernel *const kn = b->kn;
  const int64_t size = dm_dtype_size(kn->type);
  for (int64_t k = 0; k < b->k; k += b->kc) {
    const int64_t depth = dm_depth(kn, dm_min_i64(b->kc, b->k - k));
    const dm_Panels a = panels_at(j, k, depth);
    for (int64_t s = begin; s < end; s++) {
      const dm_Strip strip = {strips_at(b, k) + s * kn->nr * depth * size, kn->nr};
      const dm_Sums c = {.at = j->c + s * kn->nr * size, .rs = j->c_rs, .add = j->add || k > 0};
      const int width = (int)dm_min_i64(kn->nr, b->n - s * kn->nr);
      dm_tile_column(kn, j->m, width, depth, &a, &strip, &c, NULL);
    }
  }
}

void dm_packed_multiply(const dm_PackedB *b, int64_t m, const void *a, bool add, void *c,
                        int64_t c_rs, void *panels) {
  const dm_Kernel *const kn = b->kn;
  const Way way = way_of(b);
  const Job j = {b, m, c_rs, way == PAIRS || way == OWN ? a : panels, c, add};
  if (way == WIDENED) dm_load_f32(b->dtype, a, 1, m * b->k, panels);
  for (int64_t k = 0; way == PACKED && k < b->k; k += b->kc)
    dm_pack_panels(kn, DM_A, b->dtype, (const char *)a + k * dm_dtype_size(b->dtype), b->k, 1,
                   m, dm_min_i64(b->kc, b->k - k),
                   (char *)panels + items_before(b, m, kn->mr, k) * dm_dtype_size(kn->type));
  const int64_t work = m * kn->nr * b->k; /* of a strip */
  dm_parallel_for(dm_ceil_div(b->n, kn->nr), dm_max_i64(1, TASK_WORK / dm_max_i64(1, work)),
                  run_strips, (void *)(uintptr_t)&j);
}
