/* cuDNN, where it is found: how a graph becomes a plan and runs, and the graphs of
   convolutions. It uses the backend API of cuDNN 9 (graphs of operations), without the C++
   frontend.

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
   and its settings are kept in another file, for plans that the library gives no JSON of.

   Graphs that the library refuses are remembered, and left to our own kernels: float64, and
   every graph without such an engine. */
#include "kernels/conv.h"

#if __has_include(<cudnn.h>)

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/dnn.h"
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

/* The library's own words about its last failure; cut to one line. */
static void tell_refusal(void) {
  char words[DM_PLAN_TEXT] = "";
  dnn.cudnnGetLastErrorString(words, sizeof words);
  words[strcspn(words, "\n")] = '\0';
  dm_plan_refuse(DM_CUDNN, words);
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
  bool used, refused;
  bool captured; /* a graph of CUDA launches it: its parts live as long as the process */
  int n_part;
  Part part[MAX_PART];
  Part graph, run;
  int64_t fingerprint; /* of the graph */
  int64_t workspace;   /* bytes */
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

/* The graph that is being built, and its fingerprint so far; `lock` guards them. */
static const Plan *building;
static uint64_t fingerprint;

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
static bool make_graph(Plan *p, cudnnHandle_t handle, dm_DnnBuildFn *build) {
  Part operations[DM_DNN_MAX_OPERATION];
  building = p;
  fingerprint = 1;
  const int n = build(p, &p->key, operations);
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

/* Makes a plan: from disk if its choice still works, else by the heuristics. */
static bool plan_make(Plan *p, cudnnHandle_t handle, dm_DnnBuildFn *build, const Memory *m) {
  static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_A,
                                                 CUDNN_HEUR_MODE_FALLBACK};
  const bool ok = make_graph(p, handle, build);
  const int n_kept = p->n_part;
  /* An earlier process may have chosen already. */
  if (ok && (load_run(p, handle) || chosen(p, handle))) {
    dm_plan_count(DM_CUDNN, DM_PLAN_DISK);
    return true;
  }
  dm_plan_count(DM_CUDNN, DM_PLAN_ASKED);
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

/* Drops the plan but remembers that the library refused. */
static void plan_refuse(Plan *p) {
  plan_drop(p);
  p->refused = true;
}

/* Finds or makes the plan of a key. m: the call's memory, on which plans may be timed, or NULL.
 */
static Plan *plan_of(const Key *key, cudnnHandle_t handle, dm_DnnBuildFn *build,
                     const Memory *m) {
  Plan *row = plans[dm_key_hash(key, sizeof *key) % ROWS];
  for (int i = 0; i < PER_ROW; i++) {
    if (!row[i].used || memcmp(&row[i].key, key, sizeof *key) != 0) continue;
    dm_plan_count(DM_CUDNN, DM_PLAN_MEMORY);
    return &row[i];
  }
  /* The row's oldest plan makes way. */
  plan_drop(&row[PER_ROW - 1]);
  memmove(row + 1, row, (PER_ROW - 1) * sizeof *row);
  memset(row, 0, sizeof *row);
  row->key = *key;
  row->used = true;
  if (!plan_make(row, handle, build, m)) plan_refuse(row);
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
  if (tell && p && !done) tell_refusal();
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

/* ---- convolutions ---- */

enum { UID_X = 1, UID_W, UID_Y, UID_BIAS, UID_SUM };

/* A convolution's key: the tensors (x, w, y, and the bias of a graph that has one), and what
   the descriptor needs. */
typedef struct ConvKey {
  dm_DnnShape x, w, y, bias;
  int64_t stride[2], before[2], behind[2], dilation[2];
} ConvKey;
_Static_assert(sizeof(ConvKey) <= sizeof(int64_t) * DM_DNN_WORDS, "a key does not fit");

static dm_DnnShape shape_of(const dm_ConvOperand *o, int64_t a, int64_t b, int64_t c,
                            int64_t d) {
  dm_DnnShape s = {{a, b, c, d}, {0}, dm_dnn_alignment(o->data)};
  memcpy(s.step, o->step, sizeof s.step);
  return s;
}

/* Lists sizes, steps and paddings. */
static Key conv_key(const dm_Conv *c) {
  static const dm_DnnKind kinds[] = {[DM_CONV_FORWARD] = DM_DNN_CONV_FORWARD,
                                     [DM_CONV_INPUT] = DM_DNN_CONV_INPUT,
                                     [DM_CONV_WEIGHT] = DM_DNN_CONV_WEIGHT};
  const dm_ConvDims *d = &c->d;
  ConvKey k;
  memset(&k, 0, sizeof k);
  k.x = shape_of(&c->x, d->n, d->c, d->h, d->w);
  k.w = shape_of(&c->w, d->o, d->c / d->groups, d->r, d->s);
  k.y = shape_of(&c->y, d->n, d->o, d->p, d->q);
  const int64_t in[2] = {d->h, d->w}, kernel[2] = {d->r, d->s}, out[2] = {d->p, d->q};
  for (int i = 0; i < 2; i++) {
    k.stride[i] = d->stride[i];
    k.dilation[i] = d->dil[i];
    k.before[i] = d->pad[i];
    /* Padding "same" may need one more element behind than before; its stride is 1 then. */
    k.behind[i] = d->stride[i] == 1 ? out[i] - in[i] - d->pad[i] + d->dil[i] * (kernel[i] - 1)
                                    : d->pad[i];
  }
  if (!c->bias) return dm_dnn_key(kinds[c->kind], c->dtype, &k, sizeof k);
  k.bias = (dm_DnnShape){{1, d->o, 1, 1}, {d->o, 1, d->o, d->o}, dm_dnn_alignment(c->bias)};
  return dm_dnn_key(DM_DNN_CONV_BIAS, c->dtype, &k, sizeof k);
}

/* A convolution's descriptor: cross-correlation, as in every deep-learning library, with sums
   in float32. */
static Part make_convolution(Plan *p, const ConvKey *k) {
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const Part c = dm_dnn_make(p, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const bool ok =
      dm_dnn_set_type(c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT) &&
      dm_dnn_set(c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode) &&
      dm_dnn_set_number(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2) &&
      dm_dnn_set(c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, k->before) &&
      dm_dnn_set(c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, k->behind) &&
      dm_dnn_set(c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, k->stride) &&
      dm_dnn_set(c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, k->dilation) &&
      dm_dnn_finish(c);
  return ok ? c : NULL;
}

/* The attribute names of the three kinds of convolution. The number of groups is not given:
   the library derives it from the weight's channels. */
typedef struct Names {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t conv, x, w, y, alpha, beta;
} Names;

static const Names names_of[] = {
    [DM_DNN_CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [DM_DNN_CONV_INPUT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                           CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [DM_DNN_CONV_WEIGHT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

/* y = conv(x, w), or one of its gradients, to be written to y. */
static bool convolution(Plan *p, const Key *key, const ConvKey *k, const Names *names, Part y,
                        Part *operation) {
  const cudnnDataType_t type = dm_dnn_type(key);
  const float one = 1, zero = 0;
  const Part o = *operation = dm_dnn_make(p, names->type);
  return dm_dnn_set_part(o, names->conv, make_convolution(p, k)) &&
         dm_dnn_set_part(o, names->x, dm_dnn_tensor(p, type, &k->x, UID_X)) &&
         dm_dnn_set_part(o, names->w, dm_dnn_tensor(p, type, &k->w, UID_W)) &&
         dm_dnn_set_part(o, names->y, y) &&
         dm_dnn_set(o, names->alpha, CUDNN_TYPE_FLOAT, 1, &one) &&
         dm_dnn_set(o, names->beta, CUDNN_TYPE_FLOAT, 1, &zero) && dm_dnn_finish(o);
}

static int build_conv(Plan *p, const Key *key, Part *operation) {
  ConvKey k;
  memcpy(&k, key->word, sizeof k);
  const Part y = dm_dnn_tensor(p, dm_dnn_type(key), &k.y, UID_Y);
  return convolution(p, key, &k, &names_of[key->kind], y, operation);
}

/* y = conv(x, w) + bias. The sums stay in float32 until the bias is there, as in conv.cu and on
   the CPU, so that y is rounded once. */
static int build_conv_bias(Plan *p, const Key *key, Part *operation) {
  ConvKey k;
  memcpy(&k, key->word, sizeof k);
  const cudnnDataType_t type = dm_dnn_type(key);
  const Part sum = dm_dnn_virtual(p, CUDNN_DATA_FLOAT, &k.y, UID_SUM);
  if (!convolution(p, key, &k, &names_of[DM_DNN_CONV_FORWARD], sum, operation)) return 0;
  operation[1] = dm_dnn_pointwise(p, CUDNN_POINTWISE_ADD, sum, true,
                                  dm_dnn_tensor(p, type, &k.bias, UID_BIAS),
                                  dm_dnn_tensor(p, type, &k.y, UID_Y));
  return operation[1] ? 2 : 0;
}

/* Engines add a bias where they use tensor cores. */
static bool may_add_bias(const dm_Conv *c) {
  return c->bias && c->bias_step == 1 &&
         (dm_is_low(c->dtype) || (c->dtype == DM_F32 && dm_thread_state()->tf32_conv));
}

/* Without cuDNN the caller runs conv.cu. */
bool dm_dnn_conv(const dm_Conv *c) {
  static const int64_t uids[] = {UID_X, UID_W, UID_Y};
  void *const data[] = {c->x.data, c->w.data, c->y.data};
  dm_Conv without = *c;
  without.bias = NULL;
  if (c->dtype == DM_F64) return false;
  const Key key = conv_key(&without);
  return dm_dnn_run(&key, build_conv, DM_COUNT(uids), uids, data);
}

bool dm_dnn_conv_bias(const dm_Conv *c) {
  static const int64_t uids[] = {UID_X, UID_W, UID_Y, UID_BIAS};
  void *const data[] = {c->x.data, c->w.data, c->y.data, (void *)(uintptr_t)c->bias};
  if (!may_add_bias(c)) return false;
  const Key key = conv_key(c);
  return dm_dnn_try(&key, build_conv_bias, DM_COUNT(uids), uids, data);
}

#else /* built without the library's header */

#include "kernels/plans.h"

bool dm_dnn_conv(const dm_Conv *c) {
  if (c->dtype != DM_F64) dm_plan_miss(DM_CUDNN);
  return false;
}
bool dm_dnn_conv_bias(const dm_Conv *c) {
  DM_UNUSED(c);
  return false;
}

#endif
