/* Shared by the files that use cuDNN: dnn.c runs graphs, dnn_conv.c has those of convolutions,
   dnn_norm.c those of batch norm, dnn_attention.c those of attention. Included only where
   cudnn.h is found. */
#ifndef DM_KERNELS_DNN_H
#define DM_KERNELS_DNN_H

#include <cudnn.h>

#include "kernels/cuda.h"

typedef cudnnBackendDescriptor_t dm_DnnPart;
typedef struct dm_DnnPlan dm_DnnPlan;

/* ---- the request ---- */

/* The kinds of graphs. Their numbers must not change, as plans on disk are found by them. */
typedef enum dm_DnnKind {
  DM_DNN_CONV_FORWARD,
  DM_DNN_CONV_INPUT,
  DM_DNN_CONV_WEIGHT,
  DM_DNN_NORM_FORWARD,
  DM_DNN_NORM_BACKWARD,
  DM_DNN_ATTENTION_FORWARD,
  DM_DNN_ATTENTION_BACKWARD,
  DM_DNN_CONV_BIAS,
  DM_DNN_NORM_RELU
} dm_DnnKind;

/* A tensor of 4 dims; align is the largest power of two, in bytes, that its address is known
   to be a multiple of. */
typedef struct dm_DnnShape {
  int64_t size[4], step[4], align;
} dm_DnnShape;

/* The key holds all that a plan may depend on: int64_t without padding, compared as bytes.
   device comes first, because it is left out of the hash that other processes see. */
enum { DM_DNN_WORDS = 48 };
typedef struct dm_DnnKey {
  int64_t device, kind, dtype;
  int64_t tf32;               /* a convolution of float32 may round its operands to TF32 */
  int64_t timed;              /* the plan is the fastest of several */
  int64_t word[DM_DNN_WORDS]; /* in the kind's own order, then zeros */
} dm_DnnKey;

dm_DnnKey dm_dnn_key(dm_DnnKind kind, dm_DType dtype, const void *words, size_t n_bytes);
/* The library's version as 10000 major + 100 minor + patch, for build functions. */
size_t dm_dnn_version(void);
/* The `align` of a dm_DnnShape. */
int64_t dm_dnn_alignment(const void *data);

/* ---- graphs ---- */

/* Makes the operations of a graph, whose parts the plan owns; returns how many, or 0 on
   failure. */
enum { DM_DNN_MAX_OPERATION = 32 };
typedef int dm_DnnBuildFn(dm_DnnPlan *p, const dm_DnnKey *key, dm_DnnPart *operations);

/* Runs the key's graph on n tensors' memory, named by `uid`. Returns false if the library is
   missing or refuses; whatever was written then has to be written again. */
enum { DM_DNN_MAX_DATA = 20 };
bool dm_dnn_run(const dm_DnnKey *key, dm_DnnBuildFn *build, int n, const int64_t *uid,
                void *const *data);
/* The same, for a graph that others can stand for: that it was refused is not counted. */
bool dm_dnn_try(const dm_DnnKey *key, dm_DnnBuildFn *build, int n, const int64_t *uid,
                void *const *data);

/* Tells that a later call will probably run this graph, so that a thread may make its plan. */
void dm_dnn_prefetch(const dm_DnnKey *key, dm_DnnBuildFn *build);
/* After a run of the key's graph: true for the first time that this is asked. Then the graphs
   of its gradients are worth dm_dnn_prefetch. */
bool dm_dnn_is_first(const dm_DnnKey *key);

/* Whether the library has a plan for the key's graph, which is made if it must be. */
bool dm_dnn_has(const dm_DnnKey *key, dm_DnnBuildFn *build);
/* Notes a call for which the library was not asked, as it would refuse it or is missing. */
void dm_dnn_refuse(const char *why);

/* ---- parts ----
   A failure gives NULL or false; NULL as an argument is passed on as a failure. */
dm_DnnPart dm_dnn_make(dm_DnnPlan *p, cudnnBackendDescriptorType_t type);
bool dm_dnn_set(dm_DnnPart d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *v);
bool dm_dnn_finish(dm_DnnPart d);
dm_DnnPart dm_dnn_tensor(dm_DnnPlan *p, cudnnDataType_t type, const dm_DnnShape *s,
                         int64_t uid);
/* One float32 that is read from host memory when the plan runs. */
dm_DnnPart dm_dnn_scalar(dm_DnnPlan *p, int64_t uid);
/* A virtual tensor: what one operation passes to others, without memory. */
dm_DnnPart dm_dnn_virtual(dm_DnnPlan *p, cudnnDataType_t type, const dm_DnnShape *s,
                          int64_t uid);
/* The operation y = mode(x, b) in float32; b: NULL for a mode of one operand, has_b false. */
dm_DnnPart dm_dnn_pointwise(dm_DnnPlan *p, cudnnPointwiseMode_t mode, dm_DnnPart x, bool has_b,
                            dm_DnnPart b, dm_DnnPart y);
cudnnDataType_t dm_dnn_type(const dm_DnnKey *key); /* of the key's dtype */

static inline bool dm_dnn_set_number(dm_DnnPart d, cudnnBackendAttributeName_t name,
                                     int64_t v) {
  return dm_dnn_set(d, name, CUDNN_TYPE_INT64, 1, &v);
}
static inline bool dm_dnn_set_part(dm_DnnPart d, cudnnBackendAttributeName_t name,
                                   dm_DnnPart part) {
  return part && dm_dnn_set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}
static inline bool dm_dnn_set_type(dm_DnnPart d, cudnnBackendAttributeName_t name,
                                   cudnnDataType_t v) {
  return dm_dnn_set(d, name, CUDNN_TYPE_DATA_TYPE, 1, &v);
}

#endif
