/* Batch norm in training by cuDNN: a graph of one operation, forward or backward, or of a
   forward and relu. The gradient through relu is no graph: cuDNN 9.19 takes one that compares
   relu's result with 0, multiplies gy by that and goes on to batch norm, and reads address 0 in
   it on an H200 for some sizes. Relu's own gradient comes first.

   The library has engines for channels-last tensors above all; it is told the strides and may
   refuse, and then batch_norm.cu runs. It computes in float32 and returns 1 / sqrt(variance +
   eps) rather than the variance. The running statistics are updated by the op that calls this
   one, once nothing can fail any more. */
#include "kernels/norm.h"

#if __has_include(<cudnn.h>)

#include "kernels/dnn.h"

enum {
  UID_X = 1,
  UID_SCALE,
  UID_BIAS,
  UID_EPS,
  UID_MEAN,
  UID_ROOT,
  UID_Y,
  UID_GY,
  UID_GX,
  UID_GSCALE,
  UID_GBIAS,
  UID_NORM /* y before relu */
};

typedef struct NormKey {
  dm_DnnShape x, gy, y; /* y, or gx in the backward */
  int64_t align;        /* bytes, of all vectors (C) */
} NormKey;
_Static_assert(sizeof(NormKey) <= sizeof(int64_t) * DM_DNN_WORDS, "a key does not fit");
_Static_assert(offsetof(NormKey, y) == 2 * sizeof(dm_DnnShape),
               "dnn.c looks for batches there");

/* Describes an image tensor. (N, C) is an image of one position and is described as channels
   last, so that channels count as neighbours. */
static dm_DnnShape shape_of(const dm_BatchNorm *b, const void *data) {
  const int64_t positions = b->height * b->width;
  dm_DnnShape s = {{b->n, b->channels, b->height, b->width}, {0}, dm_dnn_alignment(data)};
  if (b->last || positions == 1) {
    dm_channels_last_strides(s.size, s.step);
  } else {
    s.step[0] = b->channels * positions;
    s.step[1] = positions;
    s.step[2] = b->width;
    s.step[3] = 1;
  }
  return s;
}

/* The vectors share one alignment, that of the least aligned. */
static dm_DnnKey key_of(const dm_BatchNorm *b, dm_DnnKind kind) {
  const void *const vectors[] = {b->weight, b->bias, b->mean, b->root, b->gw, b->gb};
  NormKey k;
  memset(&k, 0, sizeof k);
  k.x = shape_of(b, b->x);
  k.y = shape_of(b, b->y);
  if (b->gy) k.gy = shape_of(b, b->gy);
  uintptr_t bits = 0;
  for (int i = 0; i < DM_COUNT(vectors); i++) bits |= (uintptr_t)vectors[i];
  k.align = dm_dnn_alignment((const void *)bits);
  return dm_dnn_key(kind, b->dtype, &k, sizeof k);
}

/* A vector (C) of float32 as (1, C, 1, 1). */
static dm_DnnPart vector(dm_DnnPlan *p, const NormKey *k, int64_t uid) {
  const int64_t n = k->x.size[1];
  const dm_DnnShape s = {{1, n, 1, 1}, {n, 1, n, n}, k->align};
  return dm_dnn_tensor(p, CUDNN_DATA_FLOAT, &s, uid);
}

static bool set_mode(dm_DnnPart o, cudnnBackendAttributeName_t name) {
  const cudnnBackendNormMode_t mode = CUDNN_BATCH_NORM;
  return dm_dnn_set(o, name, CUDNN_TYPE_NORM_MODE, 1, &mode);
}

/* y = scale (x - mean) / sqrt(variance + eps) + bias, with the batch's statistics as
   results. */
static bool forward(dm_DnnPlan *p, cudnnDataType_t type, const NormKey *k, dm_DnnPart y,
                    dm_DnnPart *operation) {
  const cudnnBackendNormFwdPhase_t phase = CUDNN_NORM_FWD_TRAINING;
  const dm_DnnPart o = *operation =
      dm_dnn_make(p, CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
#define SET(NAME, PART) dm_dnn_set_part(o, CUDNN_ATTR_OPERATION_NORM_FWD_##NAME, PART)
  return set_mode(o, CUDNN_ATTR_OPERATION_NORM_FWD_MODE) &&
         dm_dnn_set(o, CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE, 1,
                    &phase) &&
         SET(XDESC, dm_dnn_tensor(p, type, &k->x, UID_X)) &&
         SET(MEAN_DESC, vector(p, k, UID_MEAN)) &&
         SET(INV_VARIANCE_DESC, vector(p, k, UID_ROOT)) &&
         SET(SCALE_DESC, vector(p, k, UID_SCALE)) && SET(BIAS_DESC, vector(p, k, UID_BIAS)) &&
         SET(EPSILON_DESC, dm_dnn_scalar(p, UID_EPS)) && SET(YDESC, y) && dm_dnn_finish(o);
#undef SET
}
static int build_forward(dm_DnnPlan *p, const dm_DnnKey *key, dm_DnnPart *operation) {
  NormKey k;
  memcpy(&k, key->word, sizeof k);
  const cudnnDataType_t type = dm_dnn_type(key);
  return forward(p, type, &k, dm_dnn_tensor(p, type, &k.y, UID_Y), operation);
}

/* The same, and y = relu(y). */
static int build_relu(dm_DnnPlan *p, const dm_DnnKey *key, dm_DnnPart *operation) {
  NormKey k;
  memcpy(&k, key->word, sizeof k);
  const cudnnDataType_t type = dm_dnn_type(key);
  const dm_DnnPart norm = dm_dnn_virtual(p, CUDNN_DATA_FLOAT, &k.y, UID_NORM);
  if (!forward(p, type, &k, norm, operation)) return 0;
  operation[1] = dm_dnn_pointwise(p, CUDNN_POINTWISE_RELU_FWD, norm, false, NULL,
                                  dm_dnn_tensor(p, type, &k.y, UID_Y));
  return operation[1] ? 2 : 0;
}

/* gx and the gradients of scale and bias, from the forward's mean and 1 / sqrt(variance +
   eps). */
static bool backward(dm_DnnPlan *p, cudnnDataType_t type, const NormKey *k, dm_DnnPart gy,
                     dm_DnnPart *operation) {
  const dm_DnnPart o = *operation =
      dm_dnn_make(p, CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
#define SET(NAME, PART) dm_dnn_set_part(o, CUDNN_ATTR_OPERATION_NORM_BWD_##NAME, PART)
  return set_mode(o, CUDNN_ATTR_OPERATION_NORM_BWD_MODE) &&
         SET(XDESC, dm_dnn_tensor(p, type, &k->x, UID_X)) &&
         SET(MEAN_DESC, vector(p, k, UID_MEAN)) &&
         SET(INV_VARIANCE_DESC, vector(p, k, UID_ROOT)) && SET(DYDESC, gy) &&
         SET(SCALE_DESC, vector(p, k, UID_SCALE)) &&
         SET(DSCALE_DESC, vector(p, k, UID_GSCALE)) &&
         SET(DBIAS_DESC, vector(p, k, UID_GBIAS)) &&
         SET(DXDESC, dm_dnn_tensor(p, type, &k->y, UID_GX)) && dm_dnn_finish(o);
#undef SET
}
static int build_backward(dm_DnnPlan *p, const dm_DnnKey *key, dm_DnnPart *operation) {
  NormKey k;
  memcpy(&k, key->word, sizeof k);
  const cudnnDataType_t type = dm_dnn_type(key);
  return backward(p, type, &k, dm_dnn_tensor(p, type, &k.gy, UID_GY), operation);
}

/* A thread may make the plan of the gradients, which will have y's layout and memory as well
   aligned as the batch's statistics. */
static void prefetch_backward(const dm_BatchNorm *forward) {
  dm_BatchNorm b = *forward;
  b.bias = NULL;
  b.gy = b.y;
  b.gw = b.gb = b.mean;
  const dm_DnnKey key = key_of(&b, DM_DNN_NORM_BACKWARD);
  dm_dnn_prefetch(&key, build_backward);
}

static bool run_forward(const dm_BatchNorm *b, dm_DnnKind kind, dm_DnnBuildFn *build) {
  static const int64_t uids[] = {UID_X,    UID_SCALE, UID_BIAS, UID_EPS,
                                 UID_MEAN, UID_ROOT,  UID_Y};
  float eps = (float)b->eps;
  void *const data[] = {b->x, b->weight, b->bias, &eps, b->mean, b->root, b->y};
  const dm_DnnKey key = key_of(b, kind);
  const bool done = dm_dnn_run(&key, build, DM_COUNT(uids), uids, data);
  if (b->recorded && dm_dnn_is_first(&key)) prefetch_backward(b);
  return done;
}

bool dm_dnn_batch_norm(const dm_BatchNorm *b) {
  return run_forward(b, DM_DNN_NORM_FORWARD, build_forward);
}

bool dm_dnn_batch_norm_backward(const dm_BatchNorm *b) {
  static const int64_t uids[] = {UID_X,  UID_SCALE,  UID_MEAN,  UID_ROOT,
                                 UID_GY, UID_GSCALE, UID_GBIAS, UID_GX};
  void *const data[] = {b->x, b->weight, b->mean, b->root, b->gy, b->gw, b->gb, b->y};
  const dm_DnnKey key = key_of(b, DM_DNN_NORM_BACKWARD);
  return dm_dnn_run(&key, build_backward, DM_COUNT(uids), uids, data);
}

bool dm_dnn_batch_norm_relu(const dm_BatchNorm *b) {
  return run_forward(b, DM_DNN_NORM_RELU, build_relu);
}

#else /* built without the library's header */

#include "kernels/plans.h"

bool dm_dnn_batch_norm(const dm_BatchNorm *b) {
  DM_UNUSED(b);
  dm_plan_miss(DM_CUDNN);
  return false;
}
bool dm_dnn_batch_norm_backward(const dm_BatchNorm *b) { return dm_dnn_batch_norm(b); }
bool dm_dnn_batch_norm_relu(const dm_BatchNorm *b) {
  DM_UNUSED(b);
  return false;
}

#endif
