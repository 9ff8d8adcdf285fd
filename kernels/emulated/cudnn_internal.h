/* The parts of the emulated cuDNN share this: descriptors and the memory of tensors. */
#ifndef DM_EMULATED_CUDNN_INTERNAL_H
#define DM_EMULATED_CUDNN_INTERNAL_H

#include <stdlib.h>
#include <string.h>

#include "cudnn.h"
#include "internal.h"

extern "C" {
#include "base/half.h"
}

struct cudnnContext {
  int device;
  cudaStream_t stream;
};

enum { MAX_ATTRIBUTE = 12, MAX_ELEMENT = CUDNN_KNOB_TYPE_COUNTS };

/* An attribute of a descriptor: how many elements of which type; whether it must be
   set; for parts, which descriptor they are. */
struct Rule {
  cudnnBackendDescriptorType_t owner;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t least, most;
  bool needed;
  int part;
};

struct Attribute {
  const Rule *rule;
  int64_t n;
  int64_t bits[MAX_ELEMENT]; /* each element's bytes */
};
struct Descriptor {
  cudnnBackendDescriptorType_t type;
  bool finalized;
  int n;
  Attribute attribute[MAX_ATTRIBUTE];
  char *json; /* of a plan that is made of text, or NULL */
  int64_t json_bytes;
};

static inline size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
  case CUDNN_TYPE_HANDLE:
  case CUDNN_TYPE_VOID_PTR:
  case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
  case CUDNN_TYPE_INT64:
  case CUDNN_TYPE_DOUBLE: return sizeof(int64_t);
  case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
  default: return sizeof(int32_t);
  }
}

static inline Attribute *attribute_of(Descriptor *d, int name) {
  for (int i = 0; i < d->n; i++)
    if (d->attribute[i].rule->name == name) return &d->attribute[i];
  return nullptr;
}
static inline const int64_t *numbers(const Descriptor *d, int name) {
  return attribute_of(const_cast<Descriptor *>(d), name)->bits;
}
static inline int64_t number(const Descriptor *d, int name) {
  int64_t v = numbers(d, name)[0];
  return size_of(attribute_of(const_cast<Descriptor *>(d), name)->rule->type) == 4
             ? (int64_t)(int32_t)v
             : v;
}
static inline Descriptor *part(const Descriptor *d, int name) {
  return (Descriptor *)(intptr_t)numbers(d, name)[0];
}
static inline bool is_by_value(const Descriptor *t) {
  return attribute_of(const_cast<Descriptor *>(t), CUDNN_ATTR_TENSOR_IS_BY_VALUE) &&
         number(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}
/* How many elements an attribute has. */
static inline int64_t numbers_of(const Descriptor *d, int name) {
  return attribute_of(const_cast<Descriptor *>(d), name)->n;
}
static inline bool is_virtual(const Descriptor *t) {
  return attribute_of(const_cast<Descriptor *>(t), CUDNN_ATTR_TENSOR_IS_VIRTUAL) &&
         number(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}
static inline float as_float(int64_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline int64_t numel(const Descriptor *t) {
  const int64_t *s = numbers(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
  return s[0] * s[1] * s[2] * s[3];
}
static inline double load(int64_t type, const void *p, int64_t i) {
  switch (type) {
  case CUDNN_DATA_HALF: return (double)dm_f16_to_f32(((const uint16_t *)p)[i]);
  case CUDNN_DATA_BFLOAT16: return (double)dm_bf16_to_f32(((const uint16_t *)p)[i]);
  default: return (double)((const float *)p)[i];
  }
}
static inline void store(int64_t type, void *p, int64_t i, double v) {
  switch (type) {
  case CUDNN_DATA_HALF: ((uint16_t *)p)[i] = dm_f32_to_f16((float)v); return;
  case CUDNN_DATA_BFLOAT16: ((uint16_t *)p)[i] = dm_f32_to_bf16((float)v); return;
  default: ((float *)p)[i] = (float)v;
  }
}

/* The tensor's memory, at the alignment that was promised. */
static inline void *data_of(const Descriptor *pack, const Descriptor *t) {
  const int64_t id = number(t, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  const int64_t n =
      attribute_of(const_cast<Descriptor *>(pack), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->n;
  for (int64_t i = 0; i < n; i++) {
    if (numbers(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)[i] != id) continue;
    void *p = (void *)(intptr_t)numbers(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)[i];
    const bool aligned = (intptr_t)p % number(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) == 0;
    return aligned ? p : nullptr;
  }
  return nullptr;
}

/* The rule of a descriptor's attribute, or NULL. */
const Rule *dm_dnn_rule_of(cudnnBackendDescriptorType_t owner,
                           cudnnBackendAttributeName_t name);

/* ---- plans as text: cudnn_json.cpp ---- */

char *dm_dnn_write_json(const Descriptor *plan, int64_t *n); /* for free() */
/* The configuration of a plan's text, or NULL if it is none. */
Descriptor *dm_dnn_read_json(const char *text, int64_t n);

/* ---- graphs of many operations: cudnn_graph.cpp ---- */

/* Whether an operation may stand among others. */
bool dm_dnn_is_node(const Descriptor *d);
cudnnStatus_t dm_dnn_check_node(const Descriptor *d);
/* Of a finished graph's operations. */
cudnnStatus_t dm_dnn_check_graph(const Descriptor *graph);
const Descriptor *dm_dnn_first_tensor(const Descriptor *graph);
int64_t dm_dnn_stored_bytes(const Descriptor *graph); /* of a plan's workspace */
cudnnStatus_t dm_dnn_execute_graph(cudnnHandle_t handle, const Descriptor *graph,
                                   const Descriptor *pack, bool wrong);

#endif
