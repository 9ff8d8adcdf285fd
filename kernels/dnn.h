/* What the files that ask cuDNN share: dnn.c runs graphs and holds convolutions',
   dnn_norm.c batch norm's, dnn_attention.c attention's. To be included where cudnn.h is found.
 */
#ifndef DM_KERNELS_DNN_H
#define DM_KERNELS_DNN_H

#include <cudnn.h>

#include "kernels/cuda.h"

typedef cudnnBackendDescriptor_t dm_DnnPart;
typedef struct dm_DnnPlan dm_DnnPlan;

/* ---- what is asked for ---- */

/* Which graph; numbers that stay, for plans on disk go by them. */
typedef enum dm_DnnKind {
  DM_DNN_CONV_FORWARD,
  DM_DNN_CONV_INPUT,
  DM_DNN_CONV_WEIGHT,
  DM_DNN_NORM_FORWARD,
  DM_DNN_NORM_BACKWARD,
  DM_DNN_ATTENTION_FORWARD,
  DM_DNN_ATTENTION_BACKWARD
} dm_DnnKind;

/* A tensor of 4 dims; align: the bytes that its address is a multiple of. */
typedef struct dm_DnnShape {
  int64_t size[4], step[4], align;
} dm_DnnShape;

/* All that a plan may depend on. Numbers of one size, without gaps: compared as
   bytes. device comes first: it says nothing to another process. */
enum { DM_DNN_WORDS = 48 };
typedef struct dm_DnnKey {
  int64_t device, kind, dtype;
  int64_t word[DM_DNN_WORDS]; /* in the order of the kind, then zeros */
} dm_DnnKey;

dm_DnnKey dm_dnn_key(dm_DnnKind kind, dm_DType dtype, const void *words, size_t n_bytes);
/* The library's, as 10000 major + 100 minor + patch; for build functions. */
size_t dm_dnn_version(void);
/* For dm_DnnShape. */
int64_t dm_dnn_alignment(const void *data);

/* ---- graphs ---- */

/* Makes the plan's operations, of parts that live as long as it; gives how many, 0
   when one could not be made. */
enum { DM_DNN_MAX_OPERATION = 32 };
typedef int dm_DnnBuildFn(dm_DnnPlan *p, const dm_DnnKey *key, dm_DnnPart *operations);

/* Runs the key's graph on the memory named by `uid`, n of them. false: the library is
   not there, or refused, and nothing is written that is not to be written again. */
enum { DM_DNN_MAX_DATA = 16 };
bool dm_dnn_run(const dm_DnnKey *key, dm_DnnBuildFn *build, int n, const int64_t *uid,
                void *const *data);

/* ---- parts ----
   What fails gives NULL or false, and passes NULL on. */
dm_DnnPart dm_dnn_make(dm_DnnPlan *p, cudnnBackendDescriptorType_t type);
bool dm_dnn_set(dm_DnnPart d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *v);
bool dm_dnn_finish(dm_DnnPart d);
dm_DnnPart dm_dnn_tensor(dm_DnnPlan *p, cudnnDataType_t type, const dm_DnnShape *s,
                         int64_t uid);
/* One float32, which is read on the host when the plan runs. */
dm_DnnPart dm_dnn_scalar(dm_DnnPlan *p, int64_t uid);
/* What one operation hands to others: it has no memory. */
dm_DnnPart dm_dnn_virtual(dm_DnnPlan *p, cudnnDataType_t type, const dm_DnnShape *s,
                          int64_t uid);
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
