/* NVIDIA's real cuDNN judges our graphs, without a GPU: cudnn_check GPU.json [N], or
   cudnn_check --available, which prints the reason why it cannot.

   From version 9.8 on cuDNN makes plans for a GPU that a JSON describes ("deviceless"): a
   device property descriptor stands where a handle would. The files kernels/dnn*.c are linked
   as they are; this file stands between them and the library, gives the descriptor where they
   give the handle, and runs nothing. It shows which graphs find an engine and the workspace
   that it wants. It shows neither values nor speed.

   With N it looks at each N-th case only: a case that compiles takes up to a second. VERBOSE=1
   shows every case.

   The plans are kept in a folder of their own while it runs. A second process, with --kept,
   then has to find each of them there: the library takes its own JSON back, in how long is
   printed.

   Engines that are compiled at run time are loaded into the driver; a library that does nothing
   takes its part (no_driver.sh). */
#include <dlfcn.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if __has_include(<cudnn.h>)

#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/dnn.h"
#include "kernels/fill.h"
#include "kernels/graph.h"
#include "kernels/library.h"
#include "kernels/norm.h"
#include "kernels/plans.h"
#include "op/random/random.h"

static int n_passed, n_failed;
static bool is_verbose, is_kept; /* is_kept: plans have to be there */
static char gpu[64];             /* the name of the described one */
static int gpu_major;

/* ---- between our code and the library ---- */

static cudnnBackendDescriptor_t properties; /* of the GPU */
static _Thread_local int64_t workspace;     /* bytes, of the last plan */
static bool was_run;

static __typeof__(&cudnnBackendSetAttribute) set_attribute;
static __typeof__(&cudnnBackendGetAttribute) get_attribute;

static cudnnStatus_t create(cudnnHandle_t *handle) {
  *handle = (cudnnHandle_t)&properties; /* anything but NULL */
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  DM_UNUSED(handle);
  DM_UNUSED(stream);
  return CUDNN_STATUS_SUCCESS;
}

/* Sets the attribute `name` to the GPU's properties. */
static cudnnStatus_t set_properties(cudnnBackendDescriptor_t d,
                                    cudnnBackendAttributeName_t name) {
  return set_attribute(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties);
}

/* The properties stand for the handle of a plan, and go with the graph to heuristics and
   engines; the graph itself needs neither. */
static cudnnStatus_t set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t n, const void *v) {
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) return status;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE)
    return set_properties(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  if (name == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)
    status = set_properties(d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  else if (name == CUDNN_ATTR_ENGINE_OPERATION_GRAPH)
    status = set_properties(d, CUDNN_ATTR_ENGINE_DEVICEPROP);
  return status == CUDNN_STATUS_SUCCESS ? set_attribute(d, name, type, n, v) : status;
}

static cudnnStatus_t get(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t wanted, int64_t *n,
                         void *out) {
  const cudnnStatus_t status = get_attribute(d, name, type, wanted, n, out);
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && status == CUDNN_STATUS_SUCCESS)
    workspace = *(int64_t *)out;
  return status;
}

static cudnnStatus_t run(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                         cudnnBackendDescriptor_t pack) {
  DM_UNUSED(handle);
  DM_UNUSED(plan);
  DM_UNUSED(pack);
  was_run = true;
  return CUDNN_STATUS_SUCCESS;
}

/* The linker gives this to kernels/dnn.c in place of dm_cuda_symbol (--wrap). */
bool __real_dm_cuda_symbol(void *library, const char *name, void *out);
bool __wrap_dm_cuda_symbol(void *library, const char *name, void *out);
bool __wrap_dm_cuda_symbol(void *library, const char *name, void *out) {
  static const struct {
    const char *name;
    void (*ours)(void);
  } own[] = {{"cudnnCreate", (void (*)(void))create},
             {"cudnnSetStream", (void (*)(void))set_stream},
             {"cudnnBackendSetAttribute", (void (*)(void))set},
             {"cudnnBackendGetAttribute", (void (*)(void))get},
             {"cudnnBackendExecute", (void (*)(void))run}};
  for (int i = 0; i < DM_COUNT(own); i++) {
    if (strcmp(own[i].name, name) != 0) continue;
    memcpy(out, &own[i].ours, sizeof own[i].ours);
    return true;
  }
  return __real_dm_cuda_symbol(library, name, out);
}

/* ---- the rest of the back end ---- */

dm_status dm_fail(dm_status code, const char *fmt, ...) {
  DM_UNUSED(fmt); /* nothing here forbids what our own kernels would do */
  return code;
}
static dm_ThreadState thread_state;
dm_ThreadState *dm_thread_state(void) { return &thread_state; }
int dm_cuda_device(void) { return 0; }
cudaStream_t dm_cuda_stream(void) { return NULL; }
bool dm_graph_is_capturing(void) { return false; }
void *dm_tensor_data(const dm_Tensor *t) { return t->storage->data; }

static char scratch[16];
dm_status dm_cuda_scratch(int64_t n_bytes, void **out) {
  DM_UNUSED(n_bytes);
  *out = scratch;
  return DM_OK;
}
void dm_cuda_scratch_free(void *p, int64_t n_bytes) {
  DM_UNUSED(p);
  DM_UNUSED(n_bytes);
}

/* Every tensor here has a layout that engines take, and no mask is read. */
dm_status dm_tensor_new(dm_DType dtype, int ndim, const int64_t *shape, dm_Device dev,
                        dm_Tensor **out) {
  DM_UNUSED(dtype);
  DM_UNUSED(ndim);
  DM_UNUSED(shape);
  DM_UNUSED(dev);
  DM_UNUSED(out);
  return DM_EMEM;
}
void dm_tensor_unref(dm_Tensor **t) { DM_UNUSED(t); }
dm_status dm_cuda_copy(dm_Tensor *out, dm_Tensor *in) {
  DM_UNUSED(out);
  DM_UNUSED(in);
  return DM_EMEM;
}
dm_status dm_attention_bias(const dm_Tensor *mask, int64_t heads, const int64_t size[4],
                            const int64_t step[4], float *out) {
  DM_UNUSED(mask);
  DM_UNUSED(heads);
  DM_UNUSED(size);
  DM_UNUSED(step);
  DM_UNUSED(out);
  return DM_OK;
}
dm_status dm_attention_unseen(dm_Tensor *y, dm_Tensor *lse) {
  DM_UNUSED(y);
  DM_UNUSED(lse);
  return DM_OK;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr which, int device) {
  DM_UNUSED(which); /* dnn_attention.c asks for the compute capability */
  DM_UNUSED(device);
  *out = gpu_major;
  return cudaSuccess;
}
/* Nothing is timed: dm.cuda.benchmark is off. */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  DM_UNUSED(out);
  DM_UNUSED(flags);
  return cudaErrorNotSupported;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  DM_UNUSED(event);
  return cudaErrorNotSupported;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  DM_UNUSED(event);
  DM_UNUSED(stream);
  return cudaErrorNotSupported;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  DM_UNUSED(event);
  return cudaErrorNotSupported;
}
cudaError_t cudaEventElapsedTime(float *out, cudaEvent_t from, cudaEvent_t to) {
  DM_UNUSED(out);
  DM_UNUSED(from);
  DM_UNUSED(to);
  return cudaErrorNotSupported;
}
cudaError_t cudaSetDevice(int device) {
  DM_UNUSED(device);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
  DM_UNUSED(device);
  memset(out, 0, sizeof *out);
  snprintf(out->name, sizeof out->name, "%s", gpu);
  out->major = gpu_major;
  return cudaSuccess;
}

/* An address for operand i: no data is read, but its alignment counts. */
static void *address(int i) { return (void *)(uintptr_t)(((uint64_t)i + 1) << 32); }

/* ---- judging ---- */

enum { REFUSED = -1, SUM = -2 };
static const int64_t MB = 1000000;

static const char *name_of(dm_DType t) {
  return t == DM_F16 ? "float16" : t == DM_BF16 ? "bfloat16" : "float32";
}

/* Milliseconds, and how many plans the library was asked for before start(). */
static double began, total, slowest;
static int64_t had_asked;
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}
static int64_t counted(dm_PlanCounter what) {
  dm_PlanCounts counts[DM_MAX_PLAN_LIBRARY];
  dm_plan_counts(counts);
  return counts[DM_CUDNN].n[what];
}
static int64_t asked_plans(void) { return counted(DM_PLAN_ASKED); }

/* Counts a case: `taken` says what became of it; most: bytes of workspace, or REFUSED. */
static void judge(const char *what, bool taken, int64_t most) {
  const double took = now() - began;
  const bool found = !is_kept || asked_plans() == had_asked;
  const bool ok = most == REFUSED ? !taken : taken && was_run && workspace <= most && found;
  if (most != REFUSED) {
    total += took;
    if (took > slowest) slowest = took;
  }
  *(ok ? &n_passed : &n_failed) += 1;
  if (ok && !is_verbose) return;
  printf("%s: %s: %s", ok ? "ok" : "FAILED", gpu, what);
  if (taken) printf(": workspace %" PRId64 " bytes, %.0f ms", workspace, took);
  else printf(": refused");
  if (!found) printf(", not from a file");
  if (!ok && most == REFUSED) printf(", wanted a refusal");
  else if (!ok) printf(", wanted at most %" PRId64, most);
  printf("\n");
}

static void start(void) {
  was_run = false;
  workspace = 0;
  had_asked = asked_plans();
  began = now();
}

/* ---- convolutions ---- */

typedef struct ConvCase {
  dm_DType dtype;
  bool rows;
  int n, c, h, w, o, r, s, stride, pad, groups;
  int most; /* MB, of each of the three */
} ConvCase;

static const ConvCase conv_cases[] = {
    /* ResNet-18, CIFAR's stem */
    {DM_F16, false, 128, 3, 32, 32, 64, 3, 3, 1, 1, 1, 60},
    {DM_F16, false, 128, 64, 32, 32, 64, 3, 3, 1, 1, 1, 60},
    {DM_BF16, false, 128, 64, 32, 32, 128, 3, 3, 2, 1, 1, 60},
    {DM_F16, false, 128, 64, 32, 32, 128, 1, 1, 2, 0, 1, 60},
    {DM_F16, false, 128, 512, 4, 4, 512, 3, 3, 1, 1, 1, 60},
    {DM_F32, false, 128, 64, 32, 32, 64, 3, 3, 1, 1, 1, 150},
    {DM_F32, true, 128, 64, 32, 32, 64, 3, 3, 1, 1, 1, 150},
    /* torchvision's stem; a ragged batch */
    {DM_F16, false, 128, 3, 64, 64, 64, 7, 7, 2, 3, 1, 60},
    {DM_F16, false, 80, 64, 16, 16, 64, 3, 3, 1, 1, 1, 60},
    /* the quantised sine; a U-Net's first and last */
    {DM_F16, false, 1, 2, 512, 512, 256, 1, 1, 1, 0, 1, 60},
    {DM_F16, false, 1, 256, 512, 512, 256, 1, 1, 1, 0, 1, 60},
    {DM_F16, false, 1, 256, 512, 512, 1, 1, 1, 1, 0, 1, 60},
    {DM_BF16, false, 8, 3, 128, 128, 32, 3, 3, 1, 1, 1, 60},
    {DM_BF16, false, 8, 32, 128, 128, 2, 1, 1, 1, 0, 1, 60},
    /* patches of ViT; LeNet; MobileNet and ResNeXt; conv1d */
    {DM_F16, false, 64, 3, 224, 224, 384, 16, 16, 16, 0, 1, 60},
    {DM_F16, false, 64, 1, 28, 28, 6, 5, 5, 1, 2, 1, 60},
    {DM_F16, false, 64, 6, 14, 14, 16, 5, 5, 1, 0, 1, 60},
    {DM_F16, false, 32, 64, 56, 56, 64, 3, 3, 1, 1, 64, 60},
    {DM_F16, false, 32, 128, 28, 28, 128, 3, 3, 1, 1, 32, 60},
    {DM_F16, true, 32, 64, 1, 1000, 128, 1, 3, 1, 0, 1, 60},
};

/* The steps of a dense (a, b, c, d), in rows or channels last. */
static void dense_steps(bool rows, const int64_t size[4], int64_t step[4]) {
  if (!rows) {
    dm_channels_last_strides(size, step);
    return;
  }
  step[3] = 1;
  for (int i = 2; i >= 0; i--) step[i] = step[i + 1] * size[i + 1];
}

static void check_conv(const ConvCase *t) {
  static const char *const kinds[] = {"forward", "input's gradient", "weight's gradient"};
  const bool flat = t->h == 1;
  for (int kind = 0; kind < 3; kind++) {
    dm_Conv v = {.kind = (dm_ConvKind)kind, .dtype = t->dtype};
    dm_ConvDims *d = &v.d;
    d->n = t->n, d->c = t->c, d->h = t->h, d->w = t->w, d->o = t->o, d->r = t->r, d->s = t->s;
    d->groups = t->groups;
    d->pad[0] = flat ? 0 : t->pad;
    d->pad[1] = t->pad;
    for (int i = 0; i < 2; i++) {
      d->stride[i] = t->stride;
      d->dil[i] = 1;
    }
    d->p = (d->h + 2 * d->pad[0] - d->r) / t->stride + 1;
    d->q = (d->w + 2 * d->pad[1] - d->s) / t->stride + 1;
    v.x.data = address(0);
    v.w.data = address(1);
    v.y.data = address(2);
    dense_steps(t->rows, (const int64_t[]){d->n, d->c, d->h, d->w}, v.x.step);
    dense_steps(t->rows, (const int64_t[]){d->o, d->c / d->groups, d->r, d->s}, v.w.step);
    dense_steps(t->rows, (const int64_t[]){d->n, d->o, d->p, d->q}, v.y.step);
    char what[160];
    snprintf(what, sizeof what, "conv %s %s {%d, %d, %d, %d} to %d by %dx%d, stride %d, %s",
             kinds[kind], name_of(t->dtype), t->n, t->c, t->h, t->w, t->o, t->r, t->s,
             t->stride, t->rows ? "rows" : "channels last");
    start();
    judge(what, dm_dnn_conv(&v), t->most * MB);
    if (kind > 0 || t->dtype == DM_F32) continue;
    v.bias = address(3);
    v.bias_step = 1;
    strcat(what, ", bias");
    start();
    judge(what, dm_dnn_conv_bias(&v), t->most * MB);
  }
}

/* ---- batch norm ---- */

typedef struct NormCase {
  dm_DType dtype;
  bool rows;
  int n, c, h, w, most; /* MB */
} NormCase;

static const NormCase norm_cases[] = {
    {DM_F16, false, 128, 64, 32, 32, 1},
    {DM_BF16, false, 128, 64, 32, 32, 1},
    {DM_F16, false, 128, 512, 4, 4, 1},
    {DM_F32, false, 128, 64, 32, 32, 1},
    {DM_F16, true, 128, 64, 32, 32, 60},
    {DM_F16, false, 1, 256, 512, 512, 1},
    {DM_F16, false, 128, 256, 1, 1, 1},
    {DM_F16, false, 32, 24, 17, 17, 1},
    /* channels have to fill loads of 16 bytes: our own kernels take these */
    {DM_F16, false, 32, 12, 17, 17, REFUSED},
};

static dm_BatchNorm norm_of(const NormCase *t, bool backward) {
  dm_BatchNorm b = {.dtype = t->dtype, .n = t->n, .channels = t->c, .height = t->h};
  b.width = t->w;
  b.last = !t->rows;
  b.eps = 1e-5;
  b.x = address(0), b.weight = address(1), b.mean = address(3), b.root = address(4);
  b.y = address(5);
  if (backward) b.gy = address(6), b.gw = address(7), b.gb = address(8);
  else b.bias = address(2);
  return b;
}

static void check_norm(const NormCase *t) {
  for (int backward = 0; backward < 2; backward++) {
    const dm_BatchNorm b = norm_of(t, backward);
    char what[120];
    snprintf(what, sizeof what, "batch norm %s %s {%d, %d, %d, %d}, %s",
             backward ? "backward" : "forward", name_of(t->dtype), t->n, t->c, t->h, t->w,
             t->rows ? "rows" : "channels last");
    start();
    judge(what, backward ? dm_dnn_batch_norm_backward(&b) : dm_dnn_batch_norm(&b),
          t->most == REFUSED ? REFUSED : t->most * MB);
    if (backward) continue;
    strcat(what, ", relu");
    start();
    judge(what, dm_dnn_batch_norm_relu(&b), t->most == REFUSED ? REFUSED : t->most * MB);
  }
}

/* The batch norms of a training step of a ResNet-18 for CIFAR: threads make the plans of the
   gradients during the forward pass, and those of another number of images all at once. */
static void check_step(int n_image) {
  static const int channels[] = {64, 128, 256, 512}, sides[] = {32, 16, 8, 4};
  const int64_t before = counted(DM_PLAN_PREFETCHED);
  bool ok = true;
  start();
  for (int i = 0; i < 8; i++) {
    const int k = i < 4 ? i : 7 - i;
    const NormCase t = {DM_F16, false, n_image, channels[k], sides[k], sides[k], 1};
    dm_BatchNorm b = norm_of(&t, i >= 4);
    b.recorded = i < 4;
    if (i < 4) ok &= dm_dnn_batch_norm_relu(&b) && dm_dnn_batch_norm(&b);
    else ok &= dm_dnn_batch_norm_backward(&b);
  }
  const double took = now() - began;
  const int made = (int)(counted(DM_PLAN_PREFETCHED) - before);
  const bool alone = sysconf(_SC_NPROCESSORS_ONLN) < 2;
  if (is_kept) ok &= asked_plans() == had_asked;
  else ok &= made > 0 || alone || getenv("DEMILUNE_PLAN_PREFETCH");
  total += took;
  *(ok ? &n_passed : &n_failed) += 1;
  if (!ok || !is_kept)
    printf("%s: %s: batch norms of a ResNet-18 and %d images: %.0f ms, %d of 12 plans "
           "prefetched\n",
           ok ? "ok" : "FAILED", gpu, n_image, took, made);
}

/* ---- attention ---- */

/* How q, k and v lie: (B, H, L, D); views of a product (B, L, 3 H D), as GPT-2's; (B, L, H D).
 */
typedef enum Layout { HEADS, PACKED, TOKENS } Layout;

/* A mask's dims that have a size: none; keys (B, 1, 1, S), as padding has; (L, S), as a causal
   one or a table; (B, 1, L, S); all; (1, H, L, S), as position biases have. */
typedef enum Mask { NO_MASK, KEYS, TABLE, BATCHES, ALL, HEADED } Mask;

typedef struct AttentionCase {
  dm_DType dtype;
  bool causal;
  int b, h, l, s, d;
  Layout layout;
  bool deterministic;
  int most; /* MB, of the backward; SUM: a float32 for each element of q, as some GPUs want for
               the sum of its gradient besides ours */
  Mask mask;
  double drop; /* the probability */
  int groups;  /* heads of q that share one of k and v */
} AttentionCase;

static const AttentionCase attention_cases[] = {
    /* GPT-2 at several lengths; ViT-S and ViT-B; BERT; wide heads; odd lengths */
    {DM_BF16, true, 16, 12, 1024, 1024, 64, PACKED, false, SUM, NO_MASK, 0, 1},
    {DM_F16, true, 16, 12, 1024, 1024, 64, HEADS, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, true, 16, 12, 2048, 2048, 64, PACKED, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, true, 4, 12, 4096, 4096, 64, PACKED, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, true, 1, 8, 8192, 8192, 64, PACKED, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, true, 64, 6, 256, 256, 64, PACKED, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, false, 256, 6, 197, 197, 64, PACKED, false, SUM, NO_MASK, 0, 1},
    {DM_F16, false, 16, 12, 512, 512, 64, TOKENS, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, false, 4, 8, 128, 256, 64, HEADS, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, true, 4, 16, 2048, 2048, 128, PACKED, false, SUM, NO_MASK, 0, 1},
    {DM_F16, false, 2, 4, 100, 100, 40, HEADS, false, SUM, NO_MASK, 0, 1},
    {DM_F16, false, 2, 4, 128, 128, 72, HEADS, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, true, 16, 12, 1000, 1000, 64, PACKED, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, false, 1, 12, 7, 7, 64, PACKED, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, true, 2, 12, 1, 1024, 64, HEADS, false, SUM, NO_MASK, 0, 1},
    {DM_BF16, true, 2, 8, 1024, 1024, 256, PACKED, false, SUM, NO_MASK, 0, 1},
    /* in a fixed order the scores' gradients lie in memory, 2 B H L S bytes */
    {DM_BF16, true, 16, 12, 1024, 1024, 64, PACKED, true, 403, NO_MASK, 0, 1},
    {DM_BF16, true, 16, 12, 2048, 2048, 64, PACKED, true, REFUSED, NO_MASK, 0, 1},
    /* masks: BERT's padding, tables, ViT's odd lengths, one for each head */
    {DM_F16, false, 16, 12, 512, 512, 64, TOKENS, false, SUM, KEYS, 0, 1},
    {DM_BF16, false, 16, 12, 512, 512, 64, TOKENS, false, SUM, KEYS, 0, 1},
    {DM_BF16, false, 16, 12, 1024, 1024, 64, PACKED, false, SUM, TABLE, 0, 1},
    {DM_BF16, false, 16, 12, 197, 197, 64, PACKED, false, SUM, BATCHES, 0, 1},
    {DM_F16, false, 4, 8, 100, 133, 64, HEADS, false, SUM, ALL, 0, 1},
    {DM_BF16, false, 64, 3, 49, 49, 32, PACKED, false, SUM, HEADED, 0, 1},
    {DM_BF16, false, 2, 8, 1, 1000, 128, HEADS, false, SUM, KEYS, 0, 1},
    {DM_BF16, false, 4, 12, 512, 512, 64, TOKENS, true, 30, KEYS, 0, 1},
    {DM_BF16, false, 2, 4, 128, 128, 256, HEADS, false, SUM, ALL, 0, 1},
    /* dropout, with and without masks */
    {DM_BF16, true, 16, 12, 1024, 1024, 64, PACKED, false, SUM, NO_MASK, 0.1, 1},
    {DM_F16, false, 256, 6, 197, 197, 64, PACKED, false, SUM, NO_MASK, 0.1, 1},
    {DM_BF16, false, 16, 12, 512, 512, 64, TOKENS, false, SUM, KEYS, 0.1, 1},
    {DM_F16, false, 4, 8, 100, 133, 64, HEADS, false, SUM, ALL, 0.5, 1},
    /* grouped queries, as Llama's and Mistral's; one head for all */
    {DM_BF16, true, 4, 32, 2048, 2048, 128, TOKENS, false, SUM, NO_MASK, 0, 4},
    {DM_F16, true, 2, 8, 1000, 1000, 64, HEADS, false, SUM, NO_MASK, 0, 8},
    {DM_BF16, false, 2, 8, 100, 133, 64, HEADS, false, SUM, ALL, 0, 2},
    {DM_BF16, true, 2, 8, 256, 256, 64, HEADS, false, SUM, NO_MASK, 0.1, 4},
    {DM_BF16, true, 2, 8, 256, 256, 64, HEADS, true, 3, NO_MASK, 0, 4},
};

static dm_Storage storages[16];
static dm_Tensor tensors[16];

/* Tensor i, of 4 dims. */
static dm_Tensor *tensor(int i, dm_DType dtype, const int64_t size[4], Layout layout) {
  dm_Tensor *t = &tensors[i];
  const int64_t h = size[1], d = size[3], columns = (layout == PACKED ? 3 : 1) * h * d;
  memset(t, 0, sizeof *t);
  storages[i].data = address(i);
  t->storage = &storages[i];
  t->dtype = (uint8_t)dtype;
  t->ndim = 4;
  memcpy(t->shape, size, 4 * sizeof *size);
  t->numel = size[0] * h * size[2] * d;
  dense_steps(true, size, t->stride);
  if (layout == HEADS) return t;
  t->stride[2] = columns;
  t->stride[1] = d;
  t->stride[0] = size[2] * columns;
  return t;
}

/* Cuts the heads of a tensor into (heads / groups, groups). repeated: it has heads / groups in
   memory, and each is read `groups` times. */
static dm_Tensor *grouped(dm_Tensor *t, int64_t groups, bool repeated) {
  if (groups < 2) return t;
  for (int d = 4; d > 2; d--) {
    t->shape[d] = t->shape[d - 1];
    t->stride[d] = t->stride[d - 1];
  }
  t->ndim = 5;
  t->shape[2] = groups;
  t->stride[2] = repeated ? 0 : t->stride[1];
  if (repeated) t->numel *= groups;
  else {
    t->stride[1] *= groups;
    t->shape[1] /= groups;
  }
  return t;
}

/* A mask of the case, like the scores with steps of 0. */
static dm_Tensor *mask_of(const AttentionCase *t, int64_t groups) {
  static const bool has[][4] = {{0, 0, 0, 0}, {1, 0, 0, 1}, {0, 0, 1, 1},
                                {1, 0, 1, 1}, {1, 1, 1, 1}, {0, 1, 1, 1}};
  const int64_t size[4] = {t->b, t->h, t->l, t->s};
  dm_Tensor *m = tensor(9, DM_BOOL, size, HEADS);
  for (int d = 0; d < 4; d++)
    if (!has[t->mask][d]) m->stride[d] = 0;
  return grouped(m, groups, false);
}

static void check_attention(const AttentionCase *t) {
  const int64_t groups = t->groups;
  const int64_t q[4] = {t->b, t->h, t->l, t->d}, k[4] = {t->b, t->h / groups, t->s, t->d};
  const int64_t gk[4] = {t->b, t->h, t->s, t->d}, lse[4] = {t->b, t->h, t->l, 1},
                three[1] = {3};
  const dm_AttentionAttr attr = {
      .is_causal = t->causal, .scale = 0.125, .drop = {.p = t->drop}};
  thread_state.deterministic = t->deterministic;
  /* results follow their operands' order of dims */
  const Layout laid = t->layout == HEADS || groups > 1 ? HEADS : TOKENS;
  dm_Tensor *counters = tensor(10, DM_I64, lse, HEADS);
  counters->ndim = 1;
  memcpy(counters->shape, three, sizeof three);
  dm_Tensor *in[5] = {grouped(tensor(0, t->dtype, q, t->layout), groups, false),
                      grouped(tensor(1, t->dtype, k, t->layout), groups, true),
                      grouped(tensor(2, t->dtype, k, t->layout), groups, true),
                      t->mask ? mask_of(t, groups) : NULL, counters};
  const int n_more = t->drop != 0 ? 2 : t->mask ? 1 : 0;
  dm_Call forward = {.attr = &attr, .in = in, .n_in = 3 + n_more, .n_out = 2};
  forward.out[0] = grouped(tensor(3, t->dtype, q, laid), groups, false);
  forward.out[1] = tensor(4, DM_F32, lse, HEADS);
  char what[200];
  snprintf(
      what, sizeof what,
      "attention %s%s q {%d, %d, %d, %d}, %d keys, layout %d, mask %d, dropout %g, groups %d",
      name_of(t->dtype), t->causal ? " causal" : "", t->b, t->h, t->l, t->d, t->s,
      (int)t->layout, (int)t->mask, t->drop, (int)groups);
  start();
  bool done;
  dm_dnn_attention(&forward, &done);
  /* Of odd lengths some GPUs' engines store what was drawn: a byte for each weight. */
  const int64_t drawn = t->drop != 0 ? (int64_t)t->b * t->h * (t->l + 8) * (t->s + 64) : 0;
  judge(what, done, drawn + MB);

  dm_Tensor *back_in[] = {
      grouped(tensor(5, t->dtype, q, t->layout == HEADS ? HEADS : TOKENS), groups, false),
      in[0],
      in[1],
      in[2],
      forward.out[0],
      forward.out[1],
      in[3],
      in[4]};
  dm_Call backward = {.attr = &attr, .in = back_in, .n_in = 6 + n_more, .n_out = 3};
  backward.out[0] = grouped(tensor(6, t->dtype, q, laid), groups, false);
  backward.out[1] = grouped(tensor(7, t->dtype, gk, laid), groups, false);
  backward.out[2] = grouped(tensor(8, t->dtype, gk, laid), groups, false);
  const size_t n = strlen(what);
  snprintf(what + n, sizeof what - n, ", gradients%s",
           t->deterministic ? ", deterministic" : "");
  start();
  const int64_t rows = (t->l + 7) / 8 * 8; /* an A100's engine pads them */
  const int64_t sum = (int64_t)sizeof(float) * (in[0]->numel / t->l) * rows;
  dm_dnn_attention_backward(&backward, &done);
  judge(what, done,
        t->most == REFUSED ? REFUSED
        : t->most == SUM   ? sum + drawn + MB
                           : t->most * MB);
}

/* ---- the program ---- */

/* Makes the property descriptor from the file, and reads the GPU's name and capability. */
static bool describe(void *library, const char *path) {
  __typeof__(&cudnnBackendCreateDescriptor) make;
  __typeof__(&cudnnBackendFinalize) finish;
  static char json[8192];
  FILE *file = fopen(path, "r");
  const size_t n = file ? fread(json, 1, sizeof json - 1, file) : 0;
  if (file) fclose(file);
  json[n] = '\0';
  const char *name = strstr(json, "\"deviceName\""), *version = strstr(json, "\"deviceVer\"");
  if (!name || !version || sscanf(version, "\"deviceVer\": %d", &gpu_major) != 1 ||
      sscanf(name, "\"deviceName\": \"%63[^\"]\"", gpu) != 1)
    return false;
  gpu_major /= 100;
  return __real_dm_cuda_symbol(library, "cudnnBackendCreateDescriptor", &make) &&
         __real_dm_cuda_symbol(library, "cudnnBackendFinalize", &finish) &&
         make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties) == CUDNN_STATUS_SUCCESS &&
         set_attribute(properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                       (int64_t)n, json) == CUDNN_STATUS_SUCCESS &&
         finish(properties) == CUDNN_STATUS_SUCCESS;
}

/* Opens the library; NULL, with the reason printed, where it is missing or too old. */
static void *open_library(void) {
  static const char *const names[] = {"libcudnn.so.9", "libcudnn.so", NULL};
  enum { DEVICELESS = 90800 };
  char why[256];
  __typeof__(&cudnnGetVersion) version;
  void *library = dm_cuda_library(names, why, sizeof why);
  const bool is_whole =
      library && __real_dm_cuda_symbol(library, "cudnnGetVersion", &version) &&
      __real_dm_cuda_symbol(library, "cudnnBackendSetAttribute", &set_attribute) &&
      __real_dm_cuda_symbol(library, "cudnnBackendGetAttribute", &get_attribute);
  if (!library) printf("%s\n", why);
  else if (!is_whole) printf("libcudnn lacks functions of the graph API\n");
  else if (version() < DEVICELESS)
    printf("cuDNN %zu makes no plans without a GPU, which %d does\n", version(), DEVICELESS);
  else return library;
  return NULL;
}

static int remove_file(const char *path, const struct stat *s, int type, struct FTW *f) {
  DM_UNUSED(s);
  DM_UNUSED(type);
  DM_UNUSED(f);
  return remove(path);
}

/* Runs this program again on the plans that it has kept; whether that went well. */
static bool finds_kept(char **argv) {
  fflush(stdout);
  const pid_t child = fork();
  int status = 1;
  if (child == 0) {
    execl("/proc/self/exe", argv[0], argv[1], argv[2] ? argv[2] : "1", "--kept", (char *)NULL);
    _exit(127);
  }
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv) {
  char cache[] = "/tmp/cudnn_check.XXXXXX";
  is_verbose = getenv("VERBOSE") != NULL;
  is_kept = argc > 3 && strcmp(argv[3], "--kept") == 0;
  if (!dlopen(NO_DRIVER, RTLD_NOW | RTLD_GLOBAL)) {
    printf("%s\n0 passed, 1 failed\n", dlerror());
    return 1;
  }
  void *library = open_library();
  if (!library || (argc == 2 && strcmp(argv[1], "--available") == 0)) return !library;
  const int each = argc > 2 ? atoi(argv[2]) : 1;
  if (argc < 2 || each < 1 || !describe(library, argv[1])) {
    printf("usage: cudnn_check GPU.json [N]\n0 passed, 1 failed\n");
    return 1;
  }
  if (!is_kept && (!mkdtemp(cache) || setenv("XDG_CACHE_HOME", cache, 1) != 0)) return 1;
  for (int i = 0; i < DM_COUNT(conv_cases); i += each) check_conv(&conv_cases[i]);
  for (int i = 0; i < DM_COUNT(norm_cases); i += each) check_norm(&norm_cases[i]);
  if (each == 1) check_step(120), check_step(72);
  for (int i = 0; i < DM_COUNT(attention_cases); i += each)
    check_attention(&attention_cases[i]);
  printf("%s%s: %.0f ms, the slowest %.0f ms\n%d passed, %d failed\n", gpu,
         is_kept ? ", plans from files" : "", total, slowest, n_passed, n_failed);
  if (is_kept) return n_failed > 0;
  const bool found = finds_kept(argv);
  nftw(cache, remove_file, 8, FTW_DEPTH | FTW_PHYS);
  return n_failed > 0 || !found;
}

#else

int main(void) {
  printf("cudnn.h is missing\n");
  return 1;
}

#endif
