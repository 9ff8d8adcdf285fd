/* A stand-in for oneDNN 3: the functions that src/cpu/dnnl.c calls, written as plain loops.
   FAKE_DNNL names a fault: "old" (version 2), "threads" (another runtime), "refuses"
   (no 16-bit products), "halfway" (all but the smallest fail after writing). */
#include <stdlib.h>
#include <string.h>

#include "base/half.h"

typedef struct Desc {
  int64_t dims[2], strides[2];
  int type;
} Desc;
typedef struct Memory {
  Desc desc;
  void *at;
} Memory;
typedef struct Plan {
  Desc a, b, c;
} Plan;
typedef struct Argument {
  int name;
  void *memory;
} Argument;
static const struct {
  int major, minor, patch;
  const char *hash;
  unsigned cpu_runtime, gpu_runtime;
} versions[] = {{3, 99, 1, "", 2, 0}, {2, 6, 3, "", 2, 0}, {3, 99, 1, "", 4, 0}};

static bool faulty(const char *fault) {
  const char *wish = getenv("FAKE_DNNL");
  return wish && strcmp(wish, fault) == 0;
}
const void *dnnl_version(void) {
  return &versions[faulty("old") ? 1 : faulty("threads") ? 2 : 0];
}

/* OpenMP's setting, a thread's own. */
static _Thread_local int threads = 5;
void omp_set_num_threads(int n) { threads = n; }
int omp_get_max_threads(void) { return threads; }

/* Counts of objects that were made and not destroyed, and of products. */
static _Atomic int live, products;
int fake_dnnl_live(void) { return live; }
int fake_dnnl_products(void) { return products; }

static int make(void **out, const void *from, size_t size) {
  live++;
  *out = malloc(size);
  if (*out && from) memcpy(*out, from, size);
  return *out ? 0 : 1;
}
static int destroy(void *p) {
  live--;
  free(p);
  return 0;
}

int dnnl_engine_create(void **engine, int kind, size_t index) {
  static char one;
  *engine = &one;
  return kind == 1 && index == 0 ? 0 : 2;
}
int dnnl_stream_create(void **stream, void *engine, unsigned flags) {
  return engine && flags == 1 ? make(stream, NULL, 1) : 2;
}
int dnnl_stream_wait(void *stream) { return stream ? 0 : 2; }
int dnnl_stream_destroy(void *stream) { return destroy(stream); }

int dnnl_memory_desc_create_with_strides(void **desc, int n_dim, const int64_t *dims, int type,
                                         const int64_t *strides) {
  Desc d = {{dims[0], dims[1]}, {strides[0], strides[1]}, type};
  return n_dim == 2 && type >= 1 && type <= 3 ? make(desc, &d, sizeof d) : 2;
}
int dnnl_memory_desc_destroy(void *desc) { return destroy(desc); }
int dnnl_memory_create(void **memory, const Desc *desc, void *engine, void *at) {
  Memory m = {*desc, at};
  return engine ? make(memory, &m, sizeof m) : 2;
}
int dnnl_memory_destroy(void *memory) { return destroy(memory); }

int dnnl_matmul_primitive_desc_create(void **plan, void *engine, const Desc *a, const Desc *b,
                                      const Desc *bias, const Desc *c, const void *attributes) {
  Plan p = {*a, *b, *c};
  if (!engine || bias || attributes || a->type != b->type || c->type != 3 ||
      a->dims[0] != c->dims[0] || b->dims[1] != c->dims[1] || a->dims[1] != b->dims[0])
    return 2;
  return faulty("refuses") ? 3 : make(plan, &p, sizeof p);
}
int dnnl_primitive_desc_destroy(void *plan) { return destroy(plan); }
int dnnl_primitive_create(void **primitive, const Plan *plan) {
  return make(primitive, plan, sizeof *plan);
}
int dnnl_primitive_destroy(void *primitive) { return destroy(primitive); }

static double get(const Memory *x, int64_t i, int64_t j) {
  const uint16_t h = ((const uint16_t *)x->at)[i * x->desc.strides[0] + j * x->desc.strides[1]];
  return (double)(x->desc.type == 1 ? dm_f16_to_f32(h) : dm_bf16_to_f32(h));
}

int dnnl_primitive_execute(void *primitive, void *stream, int n, const Argument *list) {
  const Plan *p = primitive;
  if (!stream || n != 3 || threads != 1) return 2;
  if (list[0].name != 1 || list[1].name != 33 || list[2].name != 17) return 2;
  const Memory *a = list[0].memory, *b = list[1].memory, *c = list[2].memory;
  const bool fails = faulty("halfway") && p->c.dims[0] * p->c.dims[1] > 256;
  for (int64_t i = 0; i < p->c.dims[0]; i++)
    for (int64_t j = 0; j < p->c.dims[1]; j++) {
      double sum = 0;
      for (int64_t k = 0; k < p->a.dims[1] && !fails; k++) sum += get(a, i, k) * get(b, k, j);
      ((float *)c->at)[i * p->c.strides[0] + j * p->c.strides[1]] = fails ? -1 : (float)sum;
    }
  products++;
  return fails ? 5 : 0;
}
