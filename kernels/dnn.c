/* cuDNN, where it is found: how a graph becomes a plan and runs. It uses the backend API of
   cuDNN 9 (graphs of operations), without the C++ frontend.

   The steps for a new key (shapes, strides, dtype, alignment): build the operation graph; ask
   the heuristics for engines, in mode B, then A, then FALLBACK, the likely fastest first; take
   the first engine whose numerical notes are acceptable and whose plan can be made within
   MAX_WORKSPACE. Acceptable means: sums in float32, no TF32 for float32 unless that is allowed,
   and the same bits in every run. With dm.cuda.benchmark the first MAX_TRIAL of such engines
   run on the call's own tensors, and the fastest is taken.

   Plans are kept for the process. They are also written to disk (plan_files.h) as the JSON that
   the library makes of them, compiled kernels included: the next process loads it in a few
   milliseconds where compiling takes up to seconds. A graph's fingerprint, a hash of all that
   its descriptors were given, tells whether a file is of this very graph. The engine's number
   and its settings are kept in another file, for plans that the library gives no JSON of. Plans
   that later calls will want are made by other threads meanwhile (dnn_prefetch.h).

   Graphs that the library refuses are remembered, and left to our own kernels: float64, and
   every graph without such an engine. */
#include "kernels/cuda.h"

#if __has_include(<cudnn.h>)

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/dnn.h"
#include "kernels/dnn_prefetch.h"
#include "kernels/graph.h"
#include "kernels/library.h"
#include "kernels/plan_files.h"
#include "kernels/plans.h"

enum { MAX_DEVICE = 64, ALIGNED = 16 /* bytes of alignment that engines may rely on */ };
static const int64_t MAX_WORKSPACE = INT64_C(1) << 30; /* bytes */

typedef dm_DnnPart Part;
typedef dm_DnnPlan Plan;
typedef dm_DnnKey Key;

/* ---- the library ---- */

#define ENTRIES(X)                 \
  X(cudnnGetVersion)               \
  X(cudnnGetLastErrorString)       \
  X(cudnnCreate)                   \
  X(cudnnSetStream)                \
  X(cudnnBackendCreateDescriptor)  \
  X(cudnnBackendDestroyDescriptor) \
  X(cudnnBackendSetAttribute)      \
  X(cudnnBackendGetAttribute)      \
  X(cudnnBackendFinalize)          \
  X(cudnnBackendExecute)

DM_LIBRARY(dnn, ENTRIES, "libcudnn.so.9", "libcudnn.so")

/* `lock` guards it, as it guards everything below. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum { UNTRIED, OPEN, MISSING } state;
static cudnnHandle_t handles[MAX_DEVICE];

size_t dm_dnn_version(void) { return dnn.cudnnGetVersion(); }

static bool is_good(cudnnStatus_t s) { return s == CUDNN_STATUS_SUCCESS; }

static void set_missing(dm_PlanState how, const char *why) {
  state = MISSING;
  dm_plan_state(DM_CUDNN, how, why);
}

/* cuDNN compiles the kernels of attention and batch norm by NVRTC, which it opens by name. It
   is looked for where the other libraries are, and stays open, so that it is found. */
static void open_compiler(void) {
  static const char *const names[] = {
      CUDART_VERSION / 1000 < 13 ? "libnvrtc.so.12" : "libnvrtc.so.13", NULL};
  char why[DM_PLAN_TEXT] = "";
  if (!DM_LIBRARY_OPEN(names, why, sizeof why))
    dm_plan_warn("nvrtc", why, "cuDNN may refuse attention and batch norm");
}

/* Opens the library when it is first needed: one of 9.0 or newer. */
static void open_library(void) {
  enum { OLDEST = 90000 };
  char why[DM_PLAN_TEXT] = "";
  if (dm_cuda_is_off("DEMILUNE_CUDNN")) {
    set_missing(DM_PLAN_OFF, "DEMILUNE_CUDNN=0");
  } else if (!dnn_open(why, sizeof why)) {
    set_missing(DM_PLAN_MISSING, why);
  } else if (dnn.cudnnGetVersion() < OLDEST) {
    snprintf(why, sizeof why, "it is version %zu, wanted 9.0 or newer", dnn.cudnnGetVersion());
    set_missing(DM_PLAN_MISSING, why);
  } else {
    state = OPEN;
    dm_plan_state(DM_CUDNN, DM_PLAN_OPEN, "");
    open_compiler();
  }
}

/* The device's handle; NULL where the library is missing, too old, or switched off. */
static cudnnHandle_t handle_of(int device) {
  if (state == UNTRIED) open_library();
  if (state == MISSING || device >= MAX_DEVICE) return NULL;
  if (!handles[device] && !is_good(dnn.cudnnCreate(&handles[device]))) {
    handles[device] = NULL;
    set_missing(DM_PLAN_MISSING, "cudnnCreate failed: it does not serve this GPU or driver");
  }
  return handles[device];
}

/* ---- the request ---- */

/* The largest power of two up to ALIGNED that divides the address. */
int64_t dm_dnn_alignment(const void *data) {
  const uintptr_t bits = (uintptr_t)data | ALIGNED;
  return (int64_t)(bits & (~bits + 1));
}

/* Makes a key: the device, the kind of graph, the dtype, and the kind's own words. */
Key dm_dnn_key(dm_DnnKind kind, dm_DType dtype, const void *words, size_t n_bytes) {
  Key k;
  memset(&k, 0, sizeof k);
  k.device = dm_cuda_device();
  k.kind = (int64_t)kind;
  k.dtype = (int64_t)dtype;
  const bool convolves = kind <= DM_DNN_CONV_WEIGHT || kind == DM_DNN_CONV_BIAS;
  k.tf32 = convolves && dtype == DM_F32 && dm_thread_state()->tf32_conv;
  k.timed = dm_thread_state()->benchmark;
  memcpy(k.word, words, n_bytes);
  return k;
}

/* ---- descriptors ---- */

enum { MAX_KNOB = CUDNN_KNOB_TYPE_COUNTS, MAX_PART = 128 + MAX_KNOB };

/* A plan owns its parts, which are descriptors of the library: operations, tensors, the engine
   and its settings. */
struct dm_DnnPlan {
  Key key;
  dm_DnnBuildFn *build;
  bool used, refused;
  bool followed; /* a recorded call ran it, and the plans of its gradients were asked for */
  bool captured; /* a graph of CUDA launches it: its parts live as long as the process */
  int n_part;
  Part part[MAX_PART];
  Part graph, run;
  int64_t fingerprint;      /* of the graph */
  int64_t workspace;        /* bytes */
  char words[DM_PLAN_TEXT]; /* the library's, on why it refused */
};

/* Destroys all parts but the first n_kept. */
static void free_parts(Plan *p, int n_kept) {
  while (p->n_part > n_kept) dnn.cudnnBackendDestroyDescriptor(p->part[--p->n_part]);
}

/* Makes a descriptor that the plan owns; NULL on failure. */
Part dm_dnn_make(Plan *p, cudnnBackendDescriptorType_t type) {
  Part part = NULL;
  if (p->n_part == MAX_PART || !is_good(dnn.cudnnBackendCreateDescriptor(type, &part)))
    return NULL;
  return p->part[p->n_part++] = part;
}

/* The graph that this thread builds, and its fingerprint so far. */
static _Thread_local const Plan *building;
static _Thread_local uint64_t fingerprint;

static void mix(int64_t v) {
  fingerprint = dm_key_hash(&(int64_t[]){(int64_t)fingerprint, v}, 16);
}

/* Adds an attribute to the fingerprint: of descriptors their numbers, of others the bytes. */
static void mix_attribute(Part d, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t n, const void *v) {
  const bool is_part = type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
  const int64_t each = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_DOUBLE ? 8
                       : type == CUDNN_TYPE_BOOLEAN                          ? 1
                                                                             : 4;
  if (type == CUDNN_TYPE_HANDLE) return;
  mix((int64_t)name);
  mix(n);
  for (int64_t i = -1; i < n; i++) {
    int64_t word = 0;
    const Part *part = i < 0 ? &d : (const Part *)v + i;
    if (i < 0 || is_part)
      while (word < building->n_part && building->part[word] != *part) word++;
    else memcpy(&word, (const char *)v + i * each, (size_t)each);
    mix(word);
  }
}

bool dm_dnn_set(Part d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t n, const void *v) {
  if (building && d) mix_attribute(d, name, type, n, v);
  return d && is_good(dnn.cudnnBackendSetAttribute(d, name, type, n, v));
}
/* wanted: how many values `out` holds; *n: how many there are. */
static bool get(Part d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t wanted, int64_t *n, void *out) {
  return d && is_good(dnn.cudnnBackendGetAttribute(d, name, type, wanted, n, out));
}
bool dm_dnn_finish(Part d) { return d && is_good(dnn.cudnnBackendFinalize(d)); }

/* ---- tensors, and the graph ---- */

cudnnDataType_t dm_dnn_type(const Key *k) {
#define ROW(X, E, S, BITS, NAME, METHOD, RANK, NPY, ST, AT, DIGITS, TINY, MAX, BRIEF, CUBLAS, \
            CUDNN, ...)                                                                       \
  case DM_##E: return CUDNN;
  switch ((dm_DType)k->dtype) {
    DM_LOW_DTYPES(ROW, )
  default: return CUDNN_DATA_FLOAT;
  }
#undef ROW
}

/* A tensor descriptor of 4 dims, not finalised yet. uid names its memory when the plan
   runs. */
static Part tensor_begun(Plan *p, cudnnDataType_t type, const dm_DnnShape *s, int64_t uid) {
  const Part t = dm_dnn_make(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const bool ok = dm_dnn_set_type(t, CUDNN_ATTR_TENSOR_DATA_TYPE, type) &&
                  dm_dnn_set(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, s->size) &&
                  dm_dnn_set(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s->step) &&
                  dm_dnn_set_number(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, uid) &&
                  dm_dnn_set_number(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, s->align);
  return ok ? t : NULL;
}

Part dm_dnn_tensor(Plan *p, cudnnDataType_t type, const dm_DnnShape *s, int64_t uid) {
  const Part t = tensor_begun(p, type, s, uid);
  return dm_dnn_finish(t) ? t : NULL;
}

/* A tensor whose boolean attribute `trait` is set. */
static Part tensor_with(Plan *p, cudnnBackendAttributeName_t trait, cudnnDataType_t type,
                        const dm_DnnShape *s, int64_t uid) {
  const bool yes = true;
  const Part t = tensor_begun(p, type, s, uid);
  return dm_dnn_set(t, trait, CUDNN_TYPE_BOOLEAN, 1, &yes) && dm_dnn_finish(t) ? t : NULL;
}

Part dm_dnn_scalar(Plan *p, int64_t uid) {
  static const dm_DnnShape one = {{1, 1, 1, 1}, {1, 1, 1, 1}, sizeof(float)};
  return tensor_with(p, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_DATA_FLOAT, &one, uid);
}

Part dm_dnn_virtual(Plan *p, cudnnDataType_t type, const dm_DnnShape *s, int64_t uid) {
  return tensor_with(p, CUDNN_ATTR_TENSOR_IS_VIRTUAL, type, s, uid);
}

Part dm_dnn_pointwise(Plan *p, cudnnPointwiseMode_t mode, Part x, bool has_b, Part b, Part y) {
  const Part how = dm_dnn_make(p, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  const cudnnNanPropagation_t keep = CUDNN_PROPAGATE_NAN;
  const bool known =
      dm_dnn_set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode) &&
      dm_dnn_set_type(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT) &&
      (mode != CUDNN_POINTWISE_RELU_FWD || dm_dnn_set(how, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION,
                                                      CUDNN_TYPE_NAN_PROPOGATION, 1, &keep)) &&
      dm_dnn_finish(how);
  const Part o = known ? dm_dnn_make(p, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) : NULL;
  const bool ok = dm_dnn_set_part(o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how) &&
                  dm_dnn_set_part(o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x) &&
                  (!has_b || dm_dnn_set_part(o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b)) &&
                  dm_dnn_set_part(o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y) &&
                  dm_dnn_finish(o);
  return ok ? o : NULL;
}

/* Builds the operation graph of the key. */
static bool make_graph(Plan *p, cudnnHandle_t handle) {
  Part operations[DM_DNN_MAX_OPERATION];
  building = p;
  fingerprint = 1;
  const int n = p->build(p, &p->key, operations);
  p->graph = n > 0 ? dm_dnn_make(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) : NULL;
  const bool ok =
      dm_dnn_set(p->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle) &&
      dm_dnn_set(p->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n,
                 operations) &&
      dm_dnn_finish(p->graph);
  building = NULL;
  p->fingerprint = (int64_t)fingerprint;
  return ok;
}

/* ---- engines ---- */

/* Whether an engine's numerical notes are acceptable; see the head of this file. */
static bool is_wanted(const Plan *p, Part engine) {
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
  int64_t n = 0;
  if (!get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
           CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes))
    return false;
  for (int64_t i = 0; i < n && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) {
    if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
        notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
        notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)
      return false;
    if (notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && p->key.dtype == DM_F32 && !p->key.tf32)
      return false;
  }
  return true;
}

/* The engine of a finalised configuration. */
static Part engine_of(Plan *p, Part config) {
  Part engine = dm_dnn_make(p, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  int64_t n = 0;
  return engine && get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                       &n, &engine)
             ? engine
             : NULL;
}

/* Makes the execution plan of a configuration; false if the engine is not wanted, cannot run
   the graph, or needs too large a workspace. The configuration is asked for that first, for a
   plan may take a second to compile. */
static bool make_run(Plan *p, cudnnHandle_t handle, Part config, Part engine) {
  int64_t n = 0, foreseen = 0;
  if (!engine || !is_wanted(p, engine)) return false;
  if (get(config, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &foreseen) &&
      foreseen > MAX_WORKSPACE)
    return false;
  p->run = dm_dnn_make(p, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  return dm_dnn_set(p->run, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle) &&
         dm_dnn_set_part(p->run, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config) &&
         dm_dnn_finish(p->run) &&
         get(p->run, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
             &p->workspace) &&
         p->workspace <= MAX_WORKSPACE;
}

/* A choice is what is written to disk: an engine's number, and its settings (knobs) as type
   and value. */
typedef struct Choice {
  int64_t engine, n_knob;
  int64_t type[MAX_KNOB], value[MAX_KNOB];
} Choice;

/* Reads the choice from a configuration that the heuristics gave. */
static bool choice_of(Plan *p, Part config, Part engine, Choice *out) {
  const int n_kept = p->n_part;
  Part knobs[MAX_KNOB];
  int64_t n = 0;
  bool ok = get(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &out->engine);
  /* The library fills descriptors that the caller has made. */
  for (int i = 0; ok && i < MAX_KNOB; i++)
    ok = (knobs[i] = dm_dnn_make(p, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR)) != NULL;
  ok = ok && get(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                 MAX_KNOB, &out->n_knob, knobs);
  ok = ok && out->n_knob >= 0 && out->n_knob <= MAX_KNOB;
  for (int64_t i = 0; ok && i < out->n_knob; i++) {
    cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
    ok = get(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &n, &type) &&
         get(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &n,
             &out->value[i]);
    out->type[i] = (int64_t)type;
  }
  free_parts(p, n_kept);
  return ok;
}

/* Makes the plan of a choice read from disk. */
static bool make_chosen(Plan *p, cudnnHandle_t handle, const Choice *c) {
  const Part engine = dm_dnn_make(p, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (!dm_dnn_set_part(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, p->graph) ||
      !dm_dnn_set_number(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, c->engine) ||
      !dm_dnn_finish(engine))
    return false;
  Part knobs[MAX_KNOB];
  for (int64_t i = 0; i < c->n_knob; i++) {
    const cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)c->type[i];
    knobs[i] = dm_dnn_make(p, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    if (!dm_dnn_set(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                    &type) ||
        !dm_dnn_set_number(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, c->value[i]) ||
        !dm_dnn_finish(knobs[i]))
      return false;
  }
  const Part config = dm_dnn_make(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  return dm_dnn_set_part(config, CUDNN_ATTR_ENGINECFG_ENGINE, engine) &&
         (c->n_knob == 0 || dm_dnn_set(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, c->n_knob, knobs)) &&
         dm_dnn_finish(config) && make_run(p, handle, config, engine);
}

/* ---- plans on disk ----
   Whole plans have a file each, in a folder for each version of the library and model of GPU.
   Choices have one file of the same name, with a line for each key: its hash, the engine, the
   number of settings, each as type and value, and a full stop that tells a whole line from a
   torn one. Lines are appended, each by one write, so that processes may share the file. */

enum { LINE_BYTES = 2048, FOLDER_BYTES = 320 };

static bool keeps_plans(void) { return !dm_cuda_is_off("DEMILUNE_PLAN_CACHE"); }

/* The folder's name within the cache: the library's version, the GPU's name, its compute
   capability and its number of multiprocessors. */
static bool folder_of(int64_t device, char *out) {
  struct cudaDeviceProp gpu;
  if (!keeps_plans() || cudaGetDeviceProperties(&gpu, (int)device) != cudaSuccess) return false;
  for (char *c = gpu.name; *c; c++)
    if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", *c)) *c = '-';
  snprintf(out, FOLDER_BYTES, "cudnn-%zu-%.200s-%d.%d-%d", dnn.cudnnGetVersion(), gpu.name,
           gpu.major, gpu.minor, gpu.multiProcessorCount);
  return true;
}

/* The hash of a key without the device's ordinal, which differs between processes. */
static uint64_t name_of(const Key *k) {
  return dm_key_hash(&k->kind, sizeof *k - offsetof(Key, kind));
}

/* The identity that the file of a plan has to have. */
typedef struct Stamp {
  Key key; /* of device 0 */
  int64_t fingerprint;
} Stamp;

static dm_PlanFile file_of(const Plan *p, const char *folder, Stamp *stamp) {
  *stamp = (Stamp){p->key, p->fingerprint};
  stamp->key.device = 0;
  return (dm_PlanFile){folder, name_of(&p->key), stamp, sizeof *stamp};
}

/* Makes the plan from its file, which is removed if the library does not take it. */
static bool load_run(Plan *p, cudnnHandle_t handle) {
  char folder[FOLDER_BYTES];
  Stamp stamp;
  int64_t n = 0;
  if (!folder_of(p->key.device, folder)) return false;
  const dm_PlanFile file = file_of(p, folder, &stamp);
  char *text = dm_plan_read(&file, &n);
  if (!text) return false;
  const int n_kept = p->n_part;
  p->run = dm_dnn_make(p, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  const bool ok =
      dm_dnn_set(p->run, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle) &&
      dm_dnn_set(p->run, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n,
                 text) &&
      dm_dnn_finish(p->run) &&
      get(p->run, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
          &p->workspace) &&
      p->workspace >= 0 && p->workspace <= MAX_WORKSPACE;
  free(text);
  if (ok) return true;
  free_parts(p, n_kept);
  dm_plan_remove(&file);
  return false;
}

/* Writes the plan's file. */
static void keep_run(const Plan *p) {
  char folder[FOLDER_BYTES];
  Stamp stamp;
  int64_t n = 0;
  if (!folder_of(p->key.device, folder) ||
      !get(p->run, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &n,
           NULL) ||
      n <= 0 || n > DM_PLAN_FILE_BYTES)
    return;
  const dm_PlanFile file = file_of(p, folder, &stamp);
  const int64_t capacity = n;
  char *text = malloc((size_t)capacity);
  if (text &&
      get(p->run, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, capacity, &n,
          text) &&
      n <= capacity)
    dm_plan_write(&file, text, n);
  free(text);
}

/* The path of the choices' file. */
static bool choices_of(int64_t device, char *out, bool make_it) {
  char folder[FOLDER_BYTES];
  if (!folder_of(device, folder) || !dm_plan_cache(out, make_it)) return false;
  const size_t n = strlen(out);
  const int length = snprintf(out + n, DM_PATH_BYTES - n, "/%s.plans", folder);
  return length > 0 && (size_t)length < DM_PATH_BYTES - n;
}

/* Reads one line; false if it belongs to another key or is torn. */
static bool parse(const char *line, uint64_t name, Choice *out) {
  uint64_t found;
  int at = 0, n = 0;
  if (sscanf(line, "%" SCNx64 " %" SCNd64 " %" SCNd64 "%n", &found, &out->engine, &out->n_knob,
             &at) != 3 ||
      found != name || out->n_knob < 0 || out->n_knob > MAX_KNOB)
    return false;
  for (int64_t i = 0; i < out->n_knob; i++, at += n)
    if (sscanf(line + at, " %" SCNd64 " %" SCNd64 "%n", &out->type[i], &out->value[i], &n) != 2)
      return false;
  return strcmp(line + at, " .\n") == 0;
}

/* Reads the choice of a key. The last line counts: an older one may not have worked any
   more. */
static bool recall(const Key *k, Choice *out) {
  char path[DM_PATH_BYTES], line[LINE_BYTES];
  FILE *file = choices_of(k->device, path, false) ? fopen(path, "r") : NULL;
  bool found = false;
  Choice choice = {.n_knob = 0};
  while (file && fgets(line, sizeof line, file)) {
    if (!parse(line, name_of(k), &choice)) continue;
    *out = choice;
    found = true;
  }
  if (file) fclose(file);
  return found;
}

/* Appends the choice. Errors are ignored: the file only saves time. */
static void remember(const Key *k, const Choice *c) {
  char path[DM_PATH_BYTES], line[LINE_BYTES];
  size_t n = (size_t)snprintf(line, sizeof line, "%016" PRIx64 " %" PRId64 " %" PRId64,
                              name_of(k), c->engine, c->n_knob);
  for (int64_t i = 0; i < c->n_knob && n < sizeof line; i++)
    n += (size_t)snprintf(line + n, sizeof line - n, " %" PRId64 " %" PRId64, c->type[i],
                          c->value[i]);
  if (n + sizeof " .\n" > sizeof line || !choices_of(k->device, path, true)) return;
  memcpy(line + n, " .\n", sizeof " .\n");
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return;
  const ssize_t written = write(file, line, n + 3);
  DM_UNUSED(written);
  close(file);
}

/* ---- running ---- */

/* The memory of a graph's tensors, by uid. */
typedef struct Memory {
  int n;
  const int64_t *uid;
  void *const *data;
} Memory;

/* Runs a plan on the current stream. */
static bool execute(const Memory *m, const Plan *p, cudnnHandle_t handle, void *workspace) {
  Part pack = NULL;
  if (!is_good(dnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack)))
    return false;
  const bool ok =
      dm_dnn_set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, m->n, m->uid) &&
      dm_dnn_set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, m->n,
                 m->data) &&
      dm_dnn_set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace) &&
      dm_dnn_finish(pack) && is_good(dnn.cudnnSetStream(handle, dm_cuda_stream())) &&
      is_good(dnn.cudnnBackendExecute(handle, p->run, pack));
  dnn.cudnnBackendDestroyDescriptor(pack);
  return ok;
}

/* ---- choosing ---- */

enum { MAX_CONFIG = 128, MAX_TRIAL = 8, MAX_RUN = 3 };

/* Milliseconds of MAX_RUN runs of the plan after one that is not timed; a negative number if it
   fails. The results are written again by the call that asked for the plan. */
static float time_of(const Plan *p, cudnnHandle_t handle, const Memory *m) {
  void *workspace = NULL;
  cudaEvent_t from = NULL, to = NULL;
  float time = -1;
  if (p->workspace > 0 && dm_cuda_scratch(p->workspace, &workspace) != DM_OK) return time;
  bool ok = cudaEventCreateWithFlags(&from, cudaEventDefault) == cudaSuccess &&
            cudaEventCreateWithFlags(&to, cudaEventDefault) == cudaSuccess &&
            execute(m, p, handle, workspace) &&
            cudaEventRecord(from, dm_cuda_stream()) == cudaSuccess;
  for (int i = 0; i < MAX_RUN && ok; i++) ok = execute(m, p, handle, workspace);
  ok = ok && cudaEventRecord(to, dm_cuda_stream()) == cudaSuccess &&
       cudaEventSynchronize(to) == cudaSuccess;
  if (!ok || cudaEventElapsedTime(&time, from, to) != cudaSuccess) time = -1;
  if (from) cudaEventDestroy(from);
  if (to) cudaEventDestroy(to);
  dm_cuda_scratch_free(workspace, p->workspace);
  return time;
}

/* The configurations that one heuristic mode gives. */
typedef struct Configs {
  int64_t n;
  Part part[MAX_CONFIG];
} Configs;

static void ask(Plan *p, cudnnBackendHeurMode_t mode, Configs *c) {
  int64_t n = 0, n_made = 0;
  memset(c, 0, sizeof *c);
  const Part heuristic = dm_dnn_make(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  if (!dm_dnn_set_part(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, p->graph) ||
      !dm_dnn_set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode) ||
      !dm_dnn_finish(heuristic) ||
      !get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n,
           NULL))
    return;
  if (n > MAX_CONFIG) n = MAX_CONFIG;
  while (n_made < n && is_good(dnn.cudnnBackendCreateDescriptor(
                           CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &c->part[n_made])))
    n_made++;
  if (n_made > 0 && get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                        n_made, &n, c->part))
    c->n = n < n_made ? n : n_made;
}

/* Makes the plan of configuration i; what it made is freed again if it fails. */
static bool make_config(Plan *p, cudnnHandle_t handle, const Configs *c, int64_t i) {
  const int n_kept = p->n_part;
  if (make_run(p, handle, c->part[i], engine_of(p, c->part[i]))) return true;
  free_parts(p, n_kept);
  return false;
}

/* The number of the fastest configuration, or -1. */
static int64_t fastest(Plan *p, cudnnHandle_t handle, const Configs *c, const Memory *m) {
  const int n_kept = p->n_part;
  int64_t best = -1;
  float least = 0;
  for (int64_t i = 0, n = 0; i < c->n && n < MAX_TRIAL; i++) {
    if (!make_config(p, handle, c, i)) continue;
    const float time = time_of(p, handle, m);
    n++;
    free_parts(p, n_kept);
    if (time < 0 || (best >= 0 && time >= least)) continue;
    best = i;
    least = time;
  }
  return best;
}

/* Asks for engines in one heuristic mode. The first that works becomes the plan, or the fastest
   where m is given; its configuration stays as a part. */
static bool make_best(Plan *p, cudnnHandle_t handle, cudnnBackendHeurMode_t mode,
                      const Memory *m) {
  Configs c;
  ask(p, mode, &c);
  int64_t i = p->key.timed && m ? fastest(p, handle, &c, m) : 0;
  bool ok = false;
  /* In the library's order, but for a timed one. */
  for (; i >= 0 && i < c.n && !ok; i++) {
    ok = make_config(p, handle, &c, i);
    if (!ok) continue;
    Choice choice = {.n_knob = 0};
    if (choice_of(p, c.part[i], engine_of(p, c.part[i]), &choice)) remember(&p->key, &choice);
    p->part[p->n_part++] = c.part[i];
    c.part[i] = NULL;
  }
  /* The plan keeps what it uses; the other configurations go. */
  for (i = 0; i < MAX_CONFIG; i++)
    if (c.part[i]) dnn.cudnnBackendDestroyDescriptor(c.part[i]);
  return ok;
}

/* Makes the plan of the choice that an earlier process kept, and keeps the plan. */
static bool chosen(Plan *p, cudnnHandle_t handle) {
  Choice choice = {.n_knob = 0};
  if (!recall(&p->key, &choice) || !make_chosen(p, handle, &choice)) return false;
  keep_run(p);
  return true;
}

/* Makes a plan: from disk if its choice still works, else by the heuristics (*asked). */
static bool plan_make(Plan *p, cudnnHandle_t handle, const Memory *m, bool *asked) {
  static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_A,
                                                 CUDNN_HEUR_MODE_FALLBACK};
  const bool ok = make_graph(p, handle);
  const int n_kept = p->n_part;
  /* An earlier process may have chosen already. */
  *asked = false;
  if (ok && (load_run(p, handle) || chosen(p, handle))) return true;
  *asked = true;
  if (!ok) return false;
  for (int i = 0; i < DM_COUNT(modes); i++) {
    free_parts(p, n_kept);
    if (!make_best(p, handle, modes[i], m)) continue;
    keep_run(p);
    return true;
  }
  return false;
}

/* A hash table of plans: a key's row holds up to PER_ROW plans, the newest first, and drops
   the oldest. */
enum { ROWS = 256, PER_ROW = 4 };
static Plan plans[ROWS][PER_ROW];

/* Frees a plan's parts, unless a graph launches them later: those are left to it. */
static void plan_drop(Plan *p) {
  if (!p->captured) free_parts(p, 0);
}

/* Drops the plan but remembers that the library refused, and its words, cut to one line. */
static void plan_refuse(Plan *p) {
  dnn.cudnnGetLastErrorString(p->words, sizeof p->words);
  p->words[strcspn(p->words, "\n")] = '\0';
  plan_drop(p);
  p->refused = true;
}

static Plan *find(const Key *key) {
  Plan *row = plans[dm_key_hash(key, sizeof *key) % ROWS];
  for (int i = 0; i < PER_ROW; i++)
    if (row[i].used && memcmp(&row[i].key, key, sizeof *key) == 0) return &row[i];
  return NULL;
}

/* ---- plans that other threads make ---- */

/* On a thread of dnn_prefetch.c, with handles of its own; without one the call makes the plan.
 */
static bool make_prefetched(const Key *key, dm_DnnBuildFn *build) {
  static _Thread_local cudnnHandle_t *own; /* [MAX_DEVICE] */
  const int64_t d = key->device;
  Plan *const p = calloc(1, sizeof *p);
  bool asked = false;
  if (!own) own = calloc(MAX_DEVICE, sizeof *own);
  if (p && own && cudaSetDevice((int)d) == cudaSuccess &&
      (own[d] || is_good(dnn.cudnnCreate(&own[d])))) {
    p->key = *key;
    p->build = build;
    (void)plan_make(p, own[d], NULL, &asked);
    free_parts(p, 0);
  }
  free(p);
  return asked;
}

/* Plans that are timed need the tensors of their call. */
static void prefetch(const Key *key, dm_DnnBuildFn *build) {
  char folder[FOLDER_BYTES];
  if (key->timed || find(key) || dm_cuda_is_off("DEMILUNE_PLAN_PREFETCH") ||
      !folder_of(key->device, folder))
    return;
  const dm_PlanFile file = {folder, name_of(key), NULL, 0};
  if (!dm_plan_exists(&file)) dm_prefetch_add(key, build, make_prefetched);
}

void dm_dnn_prefetch(const Key *key, dm_DnnBuildFn *build) {
  pthread_mutex_lock(&lock);
  if (state == OPEN) prefetch(key, build);
  pthread_mutex_unlock(&lock);
}

bool dm_dnn_is_first(const Key *key) {
  pthread_mutex_lock(&lock);
  Plan *const p = find(key);
  const bool first = p && !p->refused && !p->followed;
  if (first) p->followed = true;
  pthread_mutex_unlock(&lock);
  return first;
}

/* Whether it is batch norm's forward pass, whose words begin with the shapes of x, gy (zeros)
   and y. */
static bool is_norm(const Plan *p) {
  return p->used && !p->refused &&
         (p->key.kind == DM_DNN_NORM_FORWARD || p->key.kind == DM_DNN_NORM_RELU);
}

/* The key of the same graph for n images. */
static Key with_batch(const Key *k, int64_t n) {
  enum { SHAPE_WORDS = sizeof(dm_DnnShape) / sizeof(int64_t) };
  Key out = *k;
  out.word[0] = out.word[2 * SHAPE_WORDS] = n;
  return out;
}

/* A norm that is known with another number of images announces a batch of another size, as an
   epoch's last one is: the other norms of such batches are asked for too, as cuDNN compiles
   each anew. (It refuses batch norm with dynamic shapes.) */
static void ask_for_batch(const Key *key) {
  const int64_t n = key->word[0];
  int64_t before = 0;
  for (Plan *p = plans[0]; p < plans[ROWS] && !before; p++) {
    if (!is_norm(p) || p->key.word[0] == n) continue;
    const Key k = with_batch(&p->key, n);
    if (memcmp(&k, key, sizeof k) == 0) before = p->key.word[0];
  }
  for (Plan *p = plans[0]; p < plans[ROWS] && before; p++) {
    if (!is_norm(p) || p->key.word[0] != before) continue;
    const Key k = with_batch(&p->key, n);
    if (memcmp(&k, key, sizeof k) != 0) prefetch(&k, p->build);
  }
}

/* ---- the plan of a key ---- */

/* Finds or makes it. m: the call's memory, on which plans may be timed, or NULL. */
static Plan *plan_of(const Key *key, cudnnHandle_t handle, dm_DnnBuildFn *build,
                     const Memory *m) {
  Plan *const found = find(key), *row = plans[dm_key_hash(key, sizeof *key) % ROWS];
  if (found) {
    dm_plan_count(DM_CUDNN, DM_PLAN_MEMORY);
    return found;
  }
  if (key->kind == DM_DNN_NORM_FORWARD || key->kind == DM_DNN_NORM_RELU) ask_for_batch(key);
  /* The row's oldest plan makes way. */
  plan_drop(&row[PER_ROW - 1]);
  memmove(row + 1, row, (PER_ROW - 1) * sizeof *row);
  memset(row, 0, sizeof *row);
  row->key = *key;
  row->used = true;
  row->build = build;
  bool asked = false;
  const bool prefetched = dm_prefetch_wait(key), ok = plan_make(row, handle, m, &asked);
  if (prefetched && !asked) dm_plan_count(DM_CUDNN, DM_PLAN_PREFETCHED);
  dm_plan_count(DM_CUDNN, asked || prefetched ? DM_PLAN_ASKED : DM_PLAN_DISK);
  if (!ok) plan_refuse(row);
  return row;
}

/* ---- calls ---- */

/* Runs with a workspace. If there is no memory for it, our own kernel runs, which needs
   less. */
static bool run(const Memory *m, Plan *p, cudnnHandle_t handle) {
  void *workspace = NULL;
  if (p->workspace > 0 && dm_cuda_scratch(p->workspace, &workspace) != DM_OK) return false;
  const bool ok = execute(m, p, handle, workspace);
  p->captured |= ok && dm_graph_is_capturing();
  if (!ok) plan_refuse(p);
  dm_cuda_scratch_free(workspace, p->workspace);
  return ok;
}

/* The lock is held while a graph is made and launched. tell: counts a refusal. */
static bool run_or_tell(const Key *key, dm_DnnBuildFn *build, const Memory *m, bool tell) {
  bool done = false;
  pthread_mutex_lock(&lock);
  const cudnnHandle_t handle = handle_of(dm_cuda_device());
  Plan *p = handle ? plan_of(key, handle, build, m) : NULL;
  if (p && !p->refused) done = run(m, p, handle);
  if (tell && p && !done) dm_plan_refuse(DM_CUDNN, p->words);
  else if (tell && !p) dm_plan_miss(DM_CUDNN);
  pthread_mutex_unlock(&lock);
  return done;
}

bool dm_dnn_run(const Key *key, dm_DnnBuildFn *build, int n, const int64_t *uid,
                void *const *data) {
  return run_or_tell(key, build, &(Memory){n, uid, data}, true);
}
bool dm_dnn_try(const Key *key, dm_DnnBuildFn *build, int n, const int64_t *uid,
                void *const *data) {
  return run_or_tell(key, build, &(Memory){n, uid, data}, false);
}

bool dm_dnn_has(const Key *key, dm_DnnBuildFn *build) {
  pthread_mutex_lock(&lock);
  const cudnnHandle_t handle = handle_of(dm_cuda_device());
  const Plan *p = handle ? plan_of(key, handle, build, NULL) : NULL;
  const bool has = p && !p->refused;
  pthread_mutex_unlock(&lock);
  return has;
}

void dm_dnn_refuse(const char *why) {
  pthread_mutex_lock(&lock);
  const bool missing = state == MISSING;
  pthread_mutex_unlock(&lock);
  if (missing) dm_plan_miss(DM_CUDNN);
  else dm_plan_refuse(DM_CUDNN, why);
}

#endif
