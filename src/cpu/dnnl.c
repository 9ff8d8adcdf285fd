/* See dnnl.h. This file declares the part of oneDNN's C interface that it calls, instead of
   including oneapi/dnnl/dnnl.h: Debian 12 packages version 2.6 (libdnnl-dev), and the calls
   here exist only in version 3, which is opened at run time where a user has it. A build thus
   needs no oneDNN, and none is linked. The enum values and structs below are copied from
   version 3.0's header; they belong to its ABI, which the major version fixes, so open_library
   refuses every other major version. spec/fake_dnnl.c implements the same functions for the
   checks. */
#include "cpu/dnnl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/variant.h"
#include "cpu/vec.h"

/* ---- of oneDNN's C interface (oneapi/dnnl/dnnl.h), the same throughout version 3 ---- */

enum { MAJOR = 3 };
enum { CPU_ENGINE = 1, IN_ORDER = 1, SEQUENTIAL = 1, OPENMP = 2 };
enum { TYPE_F32 = 3 };
enum { SOURCE = 1, RESULT = 17, WEIGHTS = 33 };

typedef struct Version {
  int major, minor, patch;
  const char *hash;
  unsigned cpu_runtime, gpu_runtime;
} Version;
typedef struct Argument {
  int name;
  void *memory;
} Argument;

/* Each but the first returns 0 when all went well. */
#define FUNCTIONS(F)                                                                           \
  F(const Version *, version, (void))                                                          \
  F(int, engine_create, (void **engine, int kind, size_t index))                               \
  F(int, stream_create, (void **stream, void *engine, unsigned flags))                         \
  F(int, stream_wait, (void *stream))                                                          \
  F(int, stream_destroy, (void *stream))                                                       \
  F(int, memory_desc_create_with_strides,                                                      \
    (void **desc, int n_dim, const int64_t *dims, int type, const int64_t *strides))           \
  F(int, memory_desc_destroy, (void *desc))                                                    \
  F(int, memory_create, (void **memory, const void *desc, void *engine, void *at))             \
  F(int, memory_destroy, (void *memory))                                                       \
  F(int, matmul_primitive_desc_create,                                                         \
    (void **plan, void *engine, const void *a, const void *b, const void *bias, const void *c, \
     const void *attributes))                                                                  \
  F(int, primitive_desc_destroy, (void *plan))                                                 \
  F(int, primitive_create, (void **primitive, const void *plan))                               \
  F(int, primitive_execute, (void *primitive, void *stream, int n, const Argument *list))      \
  F(int, primitive_destroy, (void *primitive))

/* Written once, by open_once. */
static struct {
#define MEMBER(RESULT_TYPE, NAME, PARAMETERS) RESULT_TYPE(*NAME) PARAMETERS;
  FUNCTIONS(MEMBER)
#undef MEMBER
  void (*omp_set_num_threads)(int);
  int (*omp_get_max_threads)(void);
  void *engine;
  bool forced, takes[DM_N_DTYPE];
  char text[32];   /* the version */
  const char *why; /* it is not used */
} lib;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

/* POSIX lets a symbol be a function; ISO C wants the detour. */
static bool find(void *library, const char *name, void *function) {
  void *const p = dlsym(library, name);
  memcpy(function, &p, sizeof p);
  return p != NULL;
}

/* Looks up all functions; false when one is missing. */
static bool find_all(void *library) {
#define FIND(RESULT_TYPE, NAME, PARAMETERS) find(library, "dnnl_" #NAME, &lib.NAME) &&
  return FUNCTIONS(FIND) true;
#undef FIND
}

/* ---- one product ---------------------------------------------------------------- */

/* oneDNN's number of a dtype. */
static int type_of(dm_DType t) {
#define ROW(X, E, S, BITS, NAME, METHOD, RANK, NPY, ST, AT, DIGITS, TINY, MAX, BRIEF, CUBLAS, \
            CUDNN, ONEDNN)                                                                    \
  case DM_##E: return ONEDNN;
  switch (t) {
    DM_LOW_DTYPES(ROW, )
  default: return TYPE_F32;
  }
#undef ROW
}

/* A matrix as oneDNN sees it: its description, and the memory that has it. */
typedef struct Operand {
  void *desc, *memory;
} Operand;

/* Rows or columns lie dense, and do not overlap. */
static bool describe(Operand *o, const dm_Mat *x, int64_t rows, int64_t columns) {
  const int64_t dims[2] = {rows, columns};
  int64_t strides[2] = {x->rs, x->cs};
  if (columns == 1) strides[1] = 1;
  if (rows == 1) strides[0] = strides[1] == 1 ? columns : 1;
  if (!(strides[1] == 1 && strides[0] >= columns) && !(strides[0] == 1 && strides[1] >= rows))
    return false;
  return !lib.memory_desc_create_with_strides(&o->desc, 2, dims, type_of(x->dtype), strides) &&
         !lib.memory_create(&o->memory, o->desc, lib.engine, (void *)(uintptr_t)x->data);
}

/* Frees both halves of an operand; either may be missing after a failure. */
static void forget(Operand *o) {
  if (o->memory) lib.memory_destroy(o->memory);
  if (o->desc) lib.memory_desc_destroy(o->desc);
}

/* Its plans and the code it makes for them are kept by oneDNN itself. */
static bool multiply(const Operand *a, const Operand *b, const Operand *c) {
  const Argument list[] = {{SOURCE, a->memory}, {WEIGHTS, b->memory}, {RESULT, c->memory}};
  void *plan = NULL, *primitive = NULL, *stream = NULL;
  const bool ok = !lib.matmul_primitive_desc_create(&plan, lib.engine, a->desc, b->desc, NULL,
                                                    c->desc, NULL) &&
                  !lib.primitive_create(&primitive, plan) &&
                  !lib.stream_create(&stream, lib.engine, IN_ORDER) &&
                  !lib.primitive_execute(primitive, stream, DM_COUNT(list), list) &&
                  !lib.stream_wait(stream);
  if (stream) lib.stream_destroy(stream);
  if (primitive) lib.primitive_destroy(primitive);
  if (plan) lib.primitive_desc_destroy(plan);
  return ok;
}

/* The engine's pool is the only one: OpenMP gets one thread for the call. */
bool dm_dnnl_sums(int64_t m, int64_t n, int64_t k, const dm_Mat *a, const dm_Mat *b, float *c,
                  int64_t ldc) {
  const dm_Mat to = {c, DM_F32, ldc, 1};
  Operand x[3] = {{0}};
  const int threads = lib.omp_get_max_threads ? lib.omp_get_max_threads() : 1;
  if (threads != 1) lib.omp_set_num_threads(1);
  const bool ok = describe(&x[0], a, m, k) && describe(&x[1], b, k, n) &&
                  describe(&x[2], &to, m, n) && multiply(&x[0], &x[1], &x[2]);
  for (int i = 0; i < DM_COUNT(x); i++) forget(&x[i]);
  if (threads != 1) lib.omp_set_num_threads(threads);
  return ok;
}

/* ---- the library ----------------------------------------------------------------- */

/* Whether oneDNN multiplies matrices of t on this processor, found by a product of matrices of
   ones. */
static bool multiplies(dm_DType t) {
  enum { N = 16 };
  uint32_t ones[N * N]; /* as wide as the widest low float, or wider */
  float sums[N * N];
  for (int i = 0; i < N * N; i++) sums[i] = 1;
  dm_store_f32(t, ones, 1, N * N, sums);
  const dm_Mat x = {ones, t, N, 1};
  return dm_dnnl_sums(N, N, N, &x, &x, sums, N) && sums[0] == N && sums[N * N - 1] == N;
}

/* Of the types that are taken it keeps those that pass; false: none does. */
static bool keep_types(bool (*passes)(dm_DType)) {
  bool some = false;
  for (int t = 0; t < DM_N_DTYPE; t++) {
    lib.takes[t] = lib.takes[t] && passes((dm_DType)t);
    some |= lib.takes[t];
  }
  return some;
}

/* NULL, or why it cannot be used. Other runtimes would have threads of their own. */
static const char *open_library(const char *own) {
  void *library = dlopen(own ? own : "libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (!library && !own) library = dlopen("libdnnl.so", RTLD_NOW | RTLD_LOCAL);
  if (!library) return "libdnnl.so.3 was not found; hint: DEMILUNE_DNNL=/path/to/it";
  if (!find(library, "dnnl_version", &lib.version) || lib.version()->major != MAJOR ||
      !find_all(library))
    return "libdnnl is not of version 3";
  const Version *const v = lib.version();
  if (v->cpu_runtime != SEQUENTIAL &&
      (v->cpu_runtime != OPENMP ||
       !find(library, "omp_set_num_threads", &lib.omp_set_num_threads) ||
       !find(library, "omp_get_max_threads", &lib.omp_get_max_threads)))
    return "libdnnl is built for neither OpenMP nor one thread";
  if (lib.engine_create(&lib.engine, CPU_ENGINE, 0)) return "libdnnl does not start";
  if (!keep_types(multiplies)) return "libdnnl multiplies no 16-bit matrices here";
  snprintf(lib.text, sizeof lib.text, "%d.%d.%d", v->major, v->minor, v->patch);
  return NULL;
}

/* The environment and the processor are asked before the library is opened. Returns NULL, or
   the reason why oneDNN is not used. */
static const char *try_library(void) {
  const char *const wish = getenv("DEMILUNE_DNNL");
  if (wish && strcmp(wish, "0") == 0) return "DEMILUNE_DNNL=0 leaves it out";
  lib.forced = wish && strcmp(wish, "1") == 0;
  for (int t = 0; t < DM_N_DTYPE; t++) lib.takes[t] = dm_is_low((dm_DType)t);
  if (!lib.forced && !keep_types(dm_cpu_has_tiles))
    return "this processor has no tiles of 16-bit numbers (AMX)";
  return open_library(wish && *wish && !lib.forced ? wish : NULL);
}

static void open_once(void) { lib.why = try_library(); }

/* Whether a product goes to oneDNN: 16 bits, usable, and large enough to pay for its plan. */
bool dm_dnnl_takes(dm_DType t, int64_t m, int64_t n, int64_t k) {
  static const int64_t worth = 1 << 21; /* multiply-adds that pay for a plan: an estimate */
  if (!dm_is_low(t)) return false;
  pthread_once(&opened, open_once);
  return !lib.why && lib.takes[t] && (lib.forced || m * n * k >= worth);
}

const char *dm_dnnl_version(const char **why) {
  pthread_once(&opened, open_once);
  *why = lib.why;
  return lib.why ? NULL : lib.text;
}
