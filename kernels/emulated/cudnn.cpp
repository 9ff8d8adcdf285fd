/* cuDNN's entry points by plain loops over the tensors' memory, for a build without
   a GPU. Descriptors are held to what the library asks of them: attributes that the
   descriptor has, of the right type and number, none set after it was finalized,
   none missing when it is, parts finalized before they go into another. A convolution's
   tensors must lie densely in one order.

   Two engines are offered, the first one with numerical notes: of float32 it multiplies in
   TF32, of 16 bits it gives a wrong result, for it must not be taken. Each heuristic,
   each engine that was named by its number, each convolution, batch norm and graph of
   several operations (cudnn_graph.cpp) is counted.

   DEMILUNE_EMULATED_CUDNN_REFUSES=NAME makes one entry point fail. */
#include <math.h>
#include <stdio.h>

#include "cudnn_internal.h"

/* ---- attributes of descriptors -------------------------------------------------- */

/* Attributes by the names of their descriptors, some of which the library shortens. */
#define CUDNN_BACKEND_OPERATION_CONVOLUTION_BWD_DATA_DESCRIPTOR \
  CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
#define CUDNN_BACKEND_OPERATION_CONVOLUTION_BWD_FILTER_DESCRIPTOR \
  CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR
#define CUDNN_BACKEND_OPERATION_NORM_FWD_DESCRIPTOR \
  CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR
#define CUDNN_BACKEND_OPERATION_NORM_BWD_DESCRIPTOR \
  CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR

enum { FORWARD = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR };
enum { INPUT = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR };
enum { WEIGHT = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR };

/* clang-format off */
#define RULE(OWNER, NAME, TYPE, LEAST, MOST, WANTED, PART) \
  {CUDNN_BACKEND_##OWNER##_DESCRIPTOR, CUDNN_ATTR_##OWNER##_##NAME, CUDNN_TYPE_##TYPE, \
   LEAST, MOST, WANTED, PART},
#define VALUES(OWNER, NAME, TYPE, N) RULE(OWNER, NAME, TYPE, N, N, true, -1)
#define OPTION(OWNER, NAME, TYPE) RULE(OWNER, NAME, TYPE, 1, 1, false, -1)
#define PARTS(OWNER, NAME, KIND, MOST, WANTED) \
  RULE(OWNER, NAME, BACKEND_DESCRIPTOR, 1, MOST, WANTED, CUDNN_BACKEND_##KIND##_DESCRIPTOR)
#define PART(OWNER, NAME, KIND) PARTS(OWNER, NAME, KIND, 1, true)
static const Rule rules[] = {
  VALUES(TENSOR, DATA_TYPE, DATA_TYPE, 1)
  VALUES(TENSOR, DIMENSIONS, INT64, 4)
  VALUES(TENSOR, STRIDES, INT64, 4)
  VALUES(TENSOR, UNIQUE_ID, INT64, 1)
  VALUES(TENSOR, BYTE_ALIGNMENT, INT64, 1)
  OPTION(TENSOR, IS_BY_VALUE, BOOLEAN)
  OPTION(TENSOR, IS_VIRTUAL, BOOLEAN)
  VALUES(CONVOLUTION, COMP_TYPE, DATA_TYPE, 1)
  VALUES(CONVOLUTION, CONV_MODE, CONVOLUTION_MODE, 1)
  VALUES(CONVOLUTION, SPATIAL_DIMS, INT64, 1)
  VALUES(CONVOLUTION, PRE_PADDINGS, INT64, 2)
  VALUES(CONVOLUTION, POST_PADDINGS, INT64, 2)
  VALUES(CONVOLUTION, FILTER_STRIDES, INT64, 2)
  VALUES(CONVOLUTION, DILATIONS, INT64, 2)
  PART(OPERATION_CONVOLUTION_FORWARD, CONV_DESC, CONVOLUTION)
  PART(OPERATION_CONVOLUTION_FORWARD, X, TENSOR)
  PART(OPERATION_CONVOLUTION_FORWARD, W, TENSOR)
  PART(OPERATION_CONVOLUTION_FORWARD, Y, TENSOR)
  VALUES(OPERATION_CONVOLUTION_FORWARD, ALPHA, FLOAT, 1)
  VALUES(OPERATION_CONVOLUTION_FORWARD, BETA, FLOAT, 1)
  PART(OPERATION_CONVOLUTION_BWD_DATA, CONV_DESC, CONVOLUTION)
  PART(OPERATION_CONVOLUTION_BWD_DATA, DX, TENSOR)
  PART(OPERATION_CONVOLUTION_BWD_DATA, W, TENSOR)
  PART(OPERATION_CONVOLUTION_BWD_DATA, DY, TENSOR)
  VALUES(OPERATION_CONVOLUTION_BWD_DATA, ALPHA, FLOAT, 1)
  VALUES(OPERATION_CONVOLUTION_BWD_DATA, BETA, FLOAT, 1)
  PART(OPERATION_CONVOLUTION_BWD_FILTER, CONV_DESC, CONVOLUTION)
  PART(OPERATION_CONVOLUTION_BWD_FILTER, X, TENSOR)
  PART(OPERATION_CONVOLUTION_BWD_FILTER, DW, TENSOR)
  PART(OPERATION_CONVOLUTION_BWD_FILTER, DY, TENSOR)
  VALUES(OPERATION_CONVOLUTION_BWD_FILTER, ALPHA, FLOAT, 1)
  VALUES(OPERATION_CONVOLUTION_BWD_FILTER, BETA, FLOAT, 1)
  VALUES(OPERATION_NORM_FWD, MODE, NORM_MODE, 1)
  VALUES(OPERATION_NORM_FWD, PHASE, NORM_FWD_PHASE, 1)
  PART(OPERATION_NORM_FWD, XDESC, TENSOR)
  PART(OPERATION_NORM_FWD, MEAN_DESC, TENSOR)
  PART(OPERATION_NORM_FWD, INV_VARIANCE_DESC, TENSOR)
  PART(OPERATION_NORM_FWD, SCALE_DESC, TENSOR)
  PART(OPERATION_NORM_FWD, BIAS_DESC, TENSOR)
  PART(OPERATION_NORM_FWD, EPSILON_DESC, TENSOR)
  PART(OPERATION_NORM_FWD, YDESC, TENSOR)
  VALUES(OPERATION_NORM_BWD, MODE, NORM_MODE, 1)
  PART(OPERATION_NORM_BWD, XDESC, TENSOR)
  PART(OPERATION_NORM_BWD, MEAN_DESC, TENSOR)
  PART(OPERATION_NORM_BWD, INV_VARIANCE_DESC, TENSOR)
  PART(OPERATION_NORM_BWD, DYDESC, TENSOR)
  PART(OPERATION_NORM_BWD, SCALE_DESC, TENSOR)
  PART(OPERATION_NORM_BWD, DSCALE_DESC, TENSOR)
  PART(OPERATION_NORM_BWD, DBIAS_DESC, TENSOR)
  PART(OPERATION_NORM_BWD, DXDESC, TENSOR)
  VALUES(POINTWISE, MODE, POINTWISE_MODE, 1)
  VALUES(POINTWISE, MATH_PREC, DATA_TYPE, 1)
  OPTION(POINTWISE, AXIS, INT64)
  OPTION(POINTWISE, NAN_PROPAGATION, NAN_PROPOGATION)
  PART(OPERATION_POINTWISE, PW_DESCRIPTOR, POINTWISE)
  PART(OPERATION_POINTWISE, XDESC, TENSOR)
  PARTS(OPERATION_POINTWISE, BDESC, TENSOR, 1, false)
  PARTS(OPERATION_POINTWISE, TDESC, TENSOR, 1, false)
  PART(OPERATION_POINTWISE, YDESC, TENSOR)
  VALUES(MATMUL, COMP_TYPE, DATA_TYPE, 1)
  PART(OPERATION_MATMUL, DESC, MATMUL)
  PART(OPERATION_MATMUL, ADESC, TENSOR)
  PART(OPERATION_MATMUL, BDESC, TENSOR)
  PART(OPERATION_MATMUL, CDESC, TENSOR)
  VALUES(REDUCTION, OPERATOR, REDUCTION_OPERATOR_TYPE, 1)
  VALUES(REDUCTION, COMP_TYPE, DATA_TYPE, 1)
  PART(OPERATION_REDUCTION, DESC, REDUCTION)
  PART(OPERATION_REDUCTION, XDESC, TENSOR)
  PART(OPERATION_REDUCTION, YDESC, TENSOR)
  PART(OPERATION_RESHAPE, XDESC, TENSOR)
  PART(OPERATION_RESHAPE, YDESC, TENSOR)
  VALUES(RNG, DISTRIBUTION, RNG_DISTRIBUTION, 1)
  VALUES(RNG, BERNOULLI_DIST_PROBABILITY, DOUBLE, 1)
  PART(OPERATION_RNG, DESC, RNG)
  PART(OPERATION_RNG, SEED, TENSOR)
  PART(OPERATION_RNG, OFFSET_DESC, TENSOR)
  PART(OPERATION_RNG, YDESC, TENSOR)
  VALUES(OPERATIONGRAPH, HANDLE, HANDLE, 1)
  RULE(OPERATIONGRAPH, OPS, BACKEND_DESCRIPTOR, 1, MAX_ELEMENT, true, -1)
  PART(ENGINEHEUR, OPERATION_GRAPH, OPERATIONGRAPH)
  VALUES(ENGINEHEUR, MODE, HEUR_MODE, 1)
  PART(ENGINE, OPERATION_GRAPH, OPERATIONGRAPH)
  VALUES(ENGINE, GLOBAL_INDEX, INT64, 1)
  VALUES(KNOB_CHOICE, KNOB_TYPE, KNOB_TYPE, 1)
  VALUES(KNOB_CHOICE, KNOB_VALUE, INT64, 1)
  PART(ENGINECFG, ENGINE, ENGINE)
  PARTS(ENGINECFG, KNOB_CHOICES, KNOB_CHOICE, CUDNN_KNOB_TYPE_COUNTS, false)
  VALUES(EXECUTION_PLAN, HANDLE, HANDLE, 1)
  PART(EXECUTION_PLAN, ENGINE_CONFIG, ENGINECFG)
  RULE(VARIANT_PACK, UNIQUE_IDS, INT64, 1, MAX_ELEMENT, true, -1)
  RULE(VARIANT_PACK, DATA_POINTERS, VOID_PTR, 1, MAX_ELEMENT, true, -1)
  VALUES(VARIANT_PACK, WORKSPACE, VOID_PTR, 1)
};
#undef RULE
#undef VALUES
#undef OPTION
#undef PARTS
#undef PART
/* clang-format on */

const Rule *dm_dnn_rule_of(cudnnBackendDescriptorType_t owner,
                           cudnnBackendAttributeName_t name) {
  for (const Rule &r : rules)
    if (r.owner == owner && r.name == name) return &r;
  return nullptr;
}
static void put(Descriptor *d, cudnnBackendAttributeName_t name, int64_t v) {
  Attribute *a = &d->attribute[d->n++];
  a->rule = dm_dnn_rule_of(d->type, name);
  a->n = 1;
  a->bits[0] = v;
}

static bool is_refused(const char *name) {
  const char *s = getenv("DEMILUNE_EMULATED_CUDNN_REFUSES");
  return s && strcmp(s, name) == 0;
}
static void count(const char *name) {
  dm_emulated_enter(0);
  dm_emulated_count_launch(name);
  dm_emulated_leave();
}

size_t cudnnGetVersion(void) { return 91900; }

/* A refusal's words, in two lines as the library's may be. */
void cudnnGetLastErrorString(char *message, size_t max_size) {
  snprintf(message, max_size, "the emulation refuses\nfor a test");
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  int device;
  if (is_refused("cudnnCreate") || cudaGetDevice(&device) != cudaSuccess)
    return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = (cudnnHandle_t)calloc(1, sizeof **handle);
  if (!*handle) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
  (*handle)->device = device;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (!handle) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out) {
  Descriptor *d = (Descriptor *)calloc(1, sizeof *d);
  *out = d;
  if (!d) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
  d->type = type;
  return CUDNN_STATUS_SUCCESS;
}
/* Queued work follows the parts of its plan. */
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  if (!d) return CUDNN_STATUS_SUCCESS;
  if (((Descriptor *)d)->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) dm_emulated_settle();
  free(((Descriptor *)d)->json);
  free(d);
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_json(Descriptor *d, cudnnBackendAttributeType_t type, int64_t n,
                              const void *text) {
  if (type != CUDNN_TYPE_CHAR) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
  if (n < 1 || d->finalized) return CUDNN_STATUS_BAD_PARAM;
  free(d->json);
  d->json = (char *)malloc((size_t)n);
  if (!d->json) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
  memcpy(d->json, text, (size_t)n);
  d->json_bytes = n;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n,
                                       const void *elements) {
  Descriptor *d = (Descriptor *)descriptor;
  if (!d || !elements) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
      name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
    return set_json(d, type, n, elements);
  const Rule *rule = dm_dnn_rule_of(d->type, name);
  if (!rule || d->finalized) return CUDNN_STATUS_BAD_PARAM;
  if (rule->type != type) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
  if (n < rule->least || n > rule->most) return CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND;
  Attribute *a = attribute_of(d, name);
  if (!a) a = &d->attribute[d->n++];
  a->rule = rule;
  a->n = n;
  for (int64_t i = 0; i < n; i++) {
    a->bits[i] = 0;
    memcpy(&a->bits[i], (const char *)elements + (size_t)i * size_of(type), size_of(type));
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) continue;
    const Descriptor *p = (const Descriptor *)(intptr_t)a->bits[i];
    if (!p) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (rule->part >= 0 && rule->part != (int)p->type)
      return CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE;
    if (!p->finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  }
  return CUDNN_STATUS_SUCCESS;
}

/* ---- checks of a finished descriptor --------------------------------------------- */

/* A convolution's parts, whichever way it goes. */
struct Operation {
  int type;
  const Descriptor *conv, *x, *w, *y;
  float alpha, beta;
};

static Operation operation_of(const Descriptor *d) {
  const int base = (int)d->type == FORWARD ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA
                   : (int)d->type == INPUT ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA
                                           : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA;
  Operation o = {};
  o.type = (int)d->type;
  o.alpha = as_float(numbers(d, base)[0]);
  o.beta = as_float(numbers(d, base + 1)[0]);
  o.conv = part(d, base + 2);
  o.w = part(d, base + 3);
  o.x = part(d, base + 4);
  o.y = part(d, base + 5);
  return o;
}

static cudnnStatus_t check_tensor(const Descriptor *d) {
  const int64_t *size = numbers(d, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const int64_t *step = numbers(d, CUDNN_ATTR_TENSOR_STRIDES);
  const int64_t align = number(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  for (int i = 0; i < 4; i++)
    if (size[i] < 1 || step[i] < 1) return CUDNN_STATUS_BAD_PARAM;
  return align > 0 && (align & (align - 1)) == 0 ? CUDNN_STATUS_SUCCESS
                                                 : CUDNN_STATUS_BAD_PARAM;
}

/* The orders in which a tensor lies densely: 1: rows, 2: channels last, 3: both at once. */
static int layouts_of(const Descriptor *t) {
  static const int orders[2][4] = {{3, 2, 1, 0}, {1, 3, 2, 0}};
  const int64_t *size = numbers(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const int64_t *step = numbers(t, CUDNN_ATTR_TENSOR_STRIDES);
  int layouts = 3;
  for (int k = 0; k < 2; k++) {
    int64_t dense = 1;
    for (int d : orders[k]) {
      if (size[d] > 1 && step[d] != dense) layouts &= ~(1 << k);
      dense *= size[d];
    }
  }
  return layouts;
}

/* A result has the operands' type; what others of the graph read may be float32. */
static bool is_result_of(const Descriptor *y, int64_t type) {
  const int64_t own = number(y, CUDNN_ATTR_TENSOR_DATA_TYPE);
  return own == type || (is_virtual(y) && own == CUDNN_DATA_FLOAT);
}

static cudnnStatus_t check_operation(const Descriptor *d) {
  const Operation o = operation_of(d);
  const int64_t *x = numbers(o.x, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const int64_t *w = numbers(o.w, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const int64_t *y = numbers(o.y, CUDNN_ATTR_TENSOR_DIMENSIONS);
  if (x[0] != y[0] || w[0] != y[1] || x[1] % w[1] != 0 || y[1] % (x[1] / w[1]) != 0)
    return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
  for (int i = 0; i < 2; i++) {
    const int64_t extent =
        x[2 + i] + numbers(o.conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)[i] +
        numbers(o.conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)[i] -
        numbers(o.conv, CUDNN_ATTR_CONVOLUTION_DILATIONS)[i] * (w[2 + i] - 1);
    if (y[2 + i] !=
        (extent - 1) / numbers(o.conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)[i] + 1)
      return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
  }
  const int64_t type = number(o.x, CUDNN_ATTR_TENSOR_DATA_TYPE);
  const int64_t ids[] = {number(o.x, CUDNN_ATTR_TENSOR_UNIQUE_ID),
                         number(o.w, CUDNN_ATTR_TENSOR_UNIQUE_ID),
                         number(o.y, CUDNN_ATTR_TENSOR_UNIQUE_ID)};
  if (ids[0] == ids[1] || ids[0] == ids[2] || ids[1] == ids[2])
    return CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES;
  const bool known =
      (layouts_of(o.x) & layouts_of(o.w) & layouts_of(o.y)) != 0 &&
      type == number(o.w, CUDNN_ATTR_TENSOR_DATA_TYPE) && is_result_of(o.y, type) &&
      number(o.conv, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT &&
      number(o.conv, CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CROSS_CORRELATION;
  return known ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

/* The tensors of a batch norm: x, then y, or gy and gx; then vectors by channel. */
enum { NORM_FORWARD = CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR };
enum { NORM_BACKWARD = CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR };
static bool is_norm(const Descriptor *d) {
  return (int)d->type == NORM_FORWARD || (int)d->type == NORM_BACKWARD;
}

struct Norm {
  bool forward;
  const Descriptor *x, *y, *gy; /* y: or gx */
  const Descriptor *scale, *bias, *eps, *mean, *root, *gscale, *gbias;
};
static Norm norm_of(const Descriptor *d) {
  Norm n = {};
  n.forward = (int)d->type == NORM_FORWARD;
#define PART(WAY, NAME) part(d, CUDNN_ATTR_OPERATION_NORM_##WAY##_##NAME)
  if (n.forward) {
    n.x = PART(FWD, XDESC);
    n.y = PART(FWD, YDESC);
    n.mean = PART(FWD, MEAN_DESC);
    n.root = PART(FWD, INV_VARIANCE_DESC);
    n.scale = PART(FWD, SCALE_DESC);
    n.bias = PART(FWD, BIAS_DESC);
    n.eps = PART(FWD, EPSILON_DESC);
  } else {
    n.x = PART(BWD, XDESC);
    n.y = PART(BWD, DXDESC);
    n.gy = PART(BWD, DYDESC);
    n.mean = PART(BWD, MEAN_DESC);
    n.root = PART(BWD, INV_VARIANCE_DESC);
    n.scale = PART(BWD, SCALE_DESC);
    n.gscale = PART(BWD, DSCALE_DESC);
    n.gbias = PART(BWD, DBIAS_DESC);
  }
#undef PART
  return n;
}

static bool is_as_large(const Descriptor *t, const Descriptor *x) {
  return memcmp(numbers(t, CUDNN_ATTR_TENSOR_DIMENSIONS),
                numbers(x, CUDNN_ATTR_TENSOR_DIMENSIONS), 4 * sizeof(int64_t)) == 0;
}
/* One like x; a vector of float32 by x's channels. Or there is none. */
static bool is_like(const Descriptor *t, const Descriptor *x) {
  return !t ||
         (number(t, CUDNN_ATTR_TENSOR_DATA_TYPE) == number(x, CUDNN_ATTR_TENSOR_DATA_TYPE) &&
          is_as_large(t, x));
}
static bool is_vector(const Descriptor *t, const Descriptor *x) {
  if (!t) return true;
  const int64_t *s = numbers(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
  return number(t, CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_FLOAT && !is_by_value(t) &&
         s[0] == 1 && s[1] == numbers(x, CUDNN_ATTR_TENSOR_DIMENSIONS)[1] && s[2] == 1 &&
         s[3] == 1 && numbers(t, CUDNN_ATTR_TENSOR_STRIDES)[1] == 1;
}

static cudnnStatus_t check_norm(const Descriptor *d) {
  const Norm n = norm_of(d);
  const Descriptor *const all[] = {n.x,   n.y,    n.gy,   n.scale,  n.bias,
                                   n.eps, n.mean, n.root, n.gscale, n.gbias};
  const bool has_y = is_like(n.y, n.x) || (is_virtual(n.y) && is_as_large(n.y, n.x));
  if (!has_y || !is_like(n.gy, n.x)) return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
  for (int i = 3; i < 10; i++)
    if (i != 5 && !is_vector(all[i], n.x)) return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
  for (int i = 0; i < 10; i++)
    for (int j = 0; j < i; j++)
      if (all[i] && all[j] &&
          number(all[i], CUDNN_ATTR_TENSOR_UNIQUE_ID) ==
              number(all[j], CUDNN_ATTR_TENSOR_UNIQUE_ID))
        return CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES;
  if (!n.forward)
    return number(d, CUDNN_ATTR_OPERATION_NORM_BWD_MODE) == CUDNN_BATCH_NORM
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_NOT_SUPPORTED;
  const bool known = number(d, CUDNN_ATTR_OPERATION_NORM_FWD_MODE) == CUDNN_BATCH_NORM &&
                     is_by_value(n.eps) &&
                     number(d, CUDNN_ATTR_OPERATION_NORM_FWD_PHASE) == CUDNN_NORM_FWD_TRAINING;
  return known ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

enum { FAST_ENGINE = 0, EXACT_ENGINE = 1, N_ENGINE, STAGES = 3, WORKSPACE = 1024 };

static cudnnStatus_t check(const Descriptor *d) {
  switch (d->type) {
  case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return check_tensor(d);
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    return check_operation(d);
  case CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR: return check_norm(d);
  case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR: return dm_dnn_check_node(d);
  case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
    if (is_refused("cudnnGraph") && numbers_of(d, CUDNN_ATTR_OPERATIONGRAPH_OPS) > 1)
      return CUDNN_STATUS_NOT_SUPPORTED;
    return dm_dnn_check_graph(d);
  case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
    count("cudnnHeuristic");
    return is_refused("cudnnHeuristic") ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
  case CUDNN_BACKEND_ENGINE_DESCRIPTOR: {
    const int64_t index = number(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    count("cudnnEngineByNumber");
    return index >= 0 && index < N_ENGINE ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
  }
  case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
    return is_refused("cudnnPlan") ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
  default: return CUDNN_STATUS_SUCCESS;
  }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Descriptor *d = (Descriptor *)descriptor;
  if (!d) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  if (d->json) {
    Descriptor *config = dm_dnn_read_json(d->json, d->json_bytes);
    if (!config) return CUDNN_STATUS_BAD_PARAM;
    if (is_refused("cudnnPlanFromJson")) return CUDNN_STATUS_NOT_SUPPORTED;
    count("cudnnPlanFromJson");
    put(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, (intptr_t)config);
  }
  for (const Rule &r : rules)
    if (r.owner == d->type && r.needed && !attribute_of(d, r.name))
      return CUDNN_STATUS_BAD_PARAM;
  const cudnnStatus_t st = check(d);
  d->finalized = st == CUDNN_STATUS_SUCCESS;
  return st;
}

/* ---- answers --------------------------------------------------------------------- */

/* Both engines live in the heuristic's results as whole descriptors, like the
   library's: a config and what it points at. They are never given back. */
static Descriptor *engine_new(Descriptor *graph, int64_t index) {
  Descriptor *e = (Descriptor *)calloc(1, sizeof *e);
  if (!e) abort();
  e->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
  e->finalized = true;
  put(e, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, (intptr_t)graph);
  put(e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index);
  return e;
}
static Descriptor *knob_new(int64_t type, int64_t value) {
  Descriptor *k = (Descriptor *)calloc(1, sizeof *k);
  if (!k) abort();
  k->type = CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
  k->finalized = true;
  put(k, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, type);
  put(k, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
  return k;
}

/* The caller's empty descriptors become copies. */
static cudnnStatus_t fill(Descriptor *to, const Descriptor *from) {
  if (!to || to->type != from->type || to->finalized)
    return CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE;
  *to = *from;
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_results(const Descriptor *d, int64_t wanted, int64_t *n, void *out) {
  Descriptor *const *const configs = (Descriptor *const *)out;
  Descriptor *graph = part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  *n = N_ENGINE;
  for (int64_t i = 0; i < wanted && i < N_ENGINE; i++) {
    Descriptor config = {};
    config.type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    config.finalized = true;
    put(&config, CUDNN_ATTR_ENGINECFG_ENGINE, (intptr_t)engine_new(graph, i));
    put(&config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
        (intptr_t)knob_new(CUDNN_KNOB_TYPE_STAGES, STAGES));
    const cudnnStatus_t st = fill(configs[i], &config);
    if (st != CUDNN_STATUS_SUCCESS) return st;
  }
  return CUDNN_STATUS_SUCCESS;
}

static bool is_exact(const Descriptor *engine) {
  return number(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == EXACT_ENGINE;
}
static int64_t type_of_graph(const Descriptor *graph) {
  const Descriptor *d = part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  const Descriptor *x = dm_dnn_is_node(d) ? dm_dnn_first_tensor(graph)
                        : is_norm(d)      ? norm_of(d).x
                                          : operation_of(d).x;
  return number(x, CUDNN_ATTR_TENSOR_DATA_TYPE);
}
static bool is_float(const Descriptor *engine) {
  return type_of_graph(part(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH)) == CUDNN_DATA_FLOAT;
}

static const Descriptor *engine_of_plan(const Descriptor *plan) {
  return part(part(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), CUDNN_ATTR_ENGINECFG_ENGINE);
}
/* Bytes, by the library's answers where they matter (spec/cuda/cudnn_check.c). */
static int64_t workspace_of(const Descriptor *engine) {
  const Descriptor *graph = part(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const Descriptor *first = part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  const int64_t stored = dm_dnn_is_node(first) ? dm_dnn_stored_bytes(graph) : 0;
  return stored > (int64_t)WORKSPACE ? stored : (int64_t)WORKSPACE;
}

static cudnnStatus_t get_parts(const Attribute *a, int64_t wanted, int64_t *n, void *out) {
  *n = a ? a->n : 0;
  for (int64_t i = 0; i < wanted && i < *n; i++) {
    const cudnnStatus_t st =
        fill(((Descriptor **)out)[i], (const Descriptor *)(intptr_t)a->bits[i]);
    if (st != CUDNN_STATUS_SUCCESS) return st;
  }
  return CUDNN_STATUS_SUCCESS;
}

template <class V> static cudnnStatus_t tell(V v, int64_t wanted, int64_t *n, void *out) {
  *n = 1;
  if (wanted > 0) memcpy(out, &v, sizeof v);
  return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_json(const Descriptor *d, cudnnBackendAttributeType_t type,
                              int64_t wanted, int64_t *n, void *out) {
  if (type != CUDNN_TYPE_CHAR) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
  if (is_refused("cudnnPlanToJson")) return CUDNN_STATUS_NOT_SUPPORTED;
  char *text = dm_dnn_write_json(d, n);
  if (wanted > 0) memcpy(out, text, (size_t)(wanted < *n ? wanted : *n));
  free(text);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t *n, void *out) {
  Descriptor *d = (Descriptor *)descriptor;
  if (!d || !n || (wanted > 0 && !out)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  if (!d->finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
      name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
    return get_json(d, type, wanted, n, out);
  const struct {
    cudnnBackendDescriptorType_t owner;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
  } told[] = {
      {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_RESULTS,
       CUDNN_TYPE_BACKEND_DESCRIPTOR},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE,
       CUDNN_TYPE_BACKEND_DESCRIPTOR},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
       CUDNN_TYPE_BACKEND_DESCRIPTOR},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE,
       CUDNN_TYPE_INT64},
      {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
       CUDNN_TYPE_NUMERICAL_NOTE},
      {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64},
      {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
       CUDNN_TYPE_KNOB_TYPE},
      {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
       CUDNN_TYPE_INT64},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
       CUDNN_TYPE_INT64}};
  int at = -1;
  for (int i = 0; i < (int)(sizeof told / sizeof *told); i++)
    if (told[i].owner == d->type && told[i].name == name) at = i;
  if (at < 0) return CUDNN_STATUS_BAD_PARAM;
  if (told[at].type != type) return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
  switch (name) {
  case CUDNN_ATTR_ENGINEHEUR_RESULTS: return get_results(d, wanted, n, out);
  case CUDNN_ATTR_ENGINECFG_ENGINE:
  case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
    return get_parts(attribute_of(d, name), wanted, n, out);
  case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
    *n = 0;
    return is_exact(d) ? CUDNN_STATUS_SUCCESS
                       : tell(is_float(d) ? CUDNN_NUMERICAL_NOTE_TENSOR_CORE
                                          : CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
                              wanted, n, out);
  case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    return tell(workspace_of(part(d, CUDNN_ATTR_ENGINECFG_ENGINE)), wanted, n, out);
  case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
    return tell(workspace_of(engine_of_plan(d)), wanted, n, out);
  case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE: return tell((int32_t)number(d, name), wanted, n, out);
  default: return tell(number(d, name), wanted, n, out);
  }
}

/* ---- running --------------------------------------------------------------------- */

struct Run {
  Operation o;
  void *x, *w, *y, *workspace;
  double *sums; /* one for each element of the result */
  bool wrong, tf32;
};

static double operand(const Run *run, int64_t type, const void *p, int64_t i) {
  const double v = load(type, p, i);
  return run->tf32 ? (double)dm_emulated_tf32((float)v) : v;
}

static const Descriptor *result_of(const Operation &o) {
  return o.type == FORWARD ? o.y : o.type == INPUT ? o.x : o.w;
}

/* Each product of x and w belongs to one y; sums go to whichever is the result. */
static void convolve(void *arg) {
  Run *run = (Run *)arg;
  const Operation &o = run->o;
  run->sums = (double *)calloc((size_t)numel(result_of(o)), sizeof(double));
  if (!run->sums) abort();
  const int64_t *xs = numbers(o.x, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const int64_t *ws = numbers(o.w, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const int64_t *ys = numbers(o.y, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const int64_t *xt = numbers(o.x, CUDNN_ATTR_TENSOR_STRIDES);
  const int64_t *wt = numbers(o.w, CUDNN_ATTR_TENSOR_STRIDES);
  const int64_t *yt = numbers(o.y, CUDNN_ATTR_TENSOR_STRIDES);
  const int64_t *stride = numbers(o.conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  const int64_t *dil = numbers(o.conv, CUDNN_ATTR_CONVOLUTION_DILATIONS);
  const int64_t *pad = numbers(o.conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  const int64_t type = number(o.x, CUDNN_ATTR_TENSOR_DATA_TYPE);
  const int64_t per_group = ys[1] / (xs[1] / ws[1]);
  for (int64_t n = 0; n < ys[0]; n++)
    for (int64_t k = 0; k < ys[1]; k++)
      for (int64_t p = 0; p < ys[2]; p++)
        for (int64_t q = 0; q < ys[3]; q++)
          for (int64_t c = 0; c < ws[1]; c++)
            for (int64_t r = 0; r < ws[2]; r++)
              for (int64_t s = 0; s < ws[3]; s++) {
                const int64_t h = p * stride[0] - pad[0] + r * dil[0];
                const int64_t w = q * stride[1] - pad[1] + s * dil[1];
                const int64_t channel = k / per_group * ws[1] + c;
                if (h < 0 || h >= xs[2] || w < 0 || w >= xs[3]) continue;
                const int64_t in_x = n * xt[0] + channel * xt[1] + h * xt[2] + w * xt[3];
                const int64_t in_w = k * wt[0] + c * wt[1] + r * wt[2] + s * wt[3];
                const int64_t in_y = n * yt[0] + k * yt[1] + p * yt[2] + q * yt[3];
                if (o.type == FORWARD)
                  run->sums[((n * ys[1] + k) * ys[2] + p) * ys[3] + q] +=
                      operand(run, type, run->x, in_x) * operand(run, type, run->w, in_w);
                else if (o.type == INPUT)
                  run->sums[((n * xs[1] + channel) * xs[2] + h) * xs[3] + w] +=
                      operand(run, type, run->y, in_y) * operand(run, type, run->w, in_w);
                else
                  run->sums[((k * ws[1] + c) * ws[2] + r) * ws[3] + s] +=
                      operand(run, type, run->y, in_y) * operand(run, type, run->x, in_x);
              }
  const Descriptor *result = result_of(o);
  void *out = o.type == FORWARD ? run->y : o.type == INPUT ? run->x : run->w;
  const int64_t *size = numbers(result, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const int64_t *step = numbers(result, CUDNN_ATTR_TENSOR_STRIDES);
  for (int64_t i = 0; i < numel(result); i++) {
    int64_t rest = i, at = 0;
    for (int d = 3; d >= 0; d--) {
      at += rest % size[d] * step[d];
      rest /= size[d];
    }
    double v = run->sums[i] * (double)o.alpha;
    if (o.beta != 0) v += (double)o.beta * load(type, out, at);
    store(type, out, at, run->wrong ? v + 1 : v);
  }
  memset(run->workspace, 0, WORKSPACE);
  free(run->sums);
}

/* ---- batch norm ---- */

struct NormRun {
  Norm n;
  void *x, *y, *gy, *workspace;
  float *scale, *bias, *mean, *root, *gscale, *gbias;
  double eps;
  bool wrong;
};

/* f(element of x, of y, of gy) for all of channel c. */
template <class F> static void each_of(const Norm &n, int64_t c, const F &f) {
  const int64_t *s = numbers(n.x, CUDNN_ATTR_TENSOR_DIMENSIONS);
  const int64_t *xt = numbers(n.x, CUDNN_ATTR_TENSOR_STRIDES);
  const int64_t *yt = numbers(n.y, CUDNN_ATTR_TENSOR_STRIDES);
  const int64_t *gt = numbers(n.gy ? n.gy : n.y, CUDNN_ATTR_TENSOR_STRIDES);
  for (int64_t i = 0; i < s[0]; i++)
    for (int64_t h = 0; h < s[2]; h++)
      for (int64_t w = 0; w < s[3]; w++)
        f(i * xt[0] + c * xt[1] + h * xt[2] + w * xt[3],
          i * yt[0] + c * yt[1] + h * yt[2] + w * yt[3],
          i * gt[0] + c * gt[1] + h * gt[2] + w * gt[3]);
}

static void norm_forward(const NormRun *r, int64_t type, int64_t c, double count) {
  double sum = 0, squares = 0;
  each_of(r->n, c, [&](int64_t x, int64_t, int64_t) { sum += load(type, r->x, x); });
  const double mean = sum / count;
  each_of(r->n, c, [&](int64_t x, int64_t, int64_t) {
    const double d = load(type, r->x, x) - mean;
    squares += d * d;
  });
  const double root = 1 / sqrt(squares / count + r->eps);
  each_of(r->n, c, [&](int64_t x, int64_t y, int64_t) {
    const double v = (load(type, r->x, x) - mean) * root;
    const double scaled = v * (double)r->scale[c] + (double)r->bias[c];
    store(type, r->y, y, r->wrong ? scaled + 1 : scaled);
  });
  r->mean[c] = (float)mean;
  r->root[c] = (float)root;
}

static void norm_backward(const NormRun *r, int64_t type, int64_t c, double count) {
  const double mean = (double)r->mean[c], root = (double)r->root[c];
  double gw = 0, gb = 0;
  each_of(r->n, c, [&](int64_t x, int64_t, int64_t g) {
    gw += load(type, r->gy, g) * (load(type, r->x, x) - mean) * root;
    gb += load(type, r->gy, g);
  });
  each_of(r->n, c, [&](int64_t x, int64_t y, int64_t g) {
    const double hat = (load(type, r->x, x) - mean) * root;
    const double v = load(type, r->gy, g) - gb / count - hat * gw / count;
    const double scaled = v * root * (double)r->scale[c];
    store(type, r->y, y, r->wrong ? scaled + 1 : scaled);
  });
  r->gscale[c] = (float)gw;
  r->gbias[c] = (float)gb;
}

static void normalize(void *arg) {
  const NormRun *r = (const NormRun *)arg;
  const int64_t type = number(r->n.x, CUDNN_ATTR_TENSOR_DATA_TYPE);
  const int64_t channels = numbers(r->n.x, CUDNN_ATTR_TENSOR_DIMENSIONS)[1];
  const double count = (double)(numel(r->n.x) / channels);
  for (int64_t c = 0; c < channels; c++)
    (r->n.forward ? norm_forward : norm_backward)(r, type, c, count);
  memset(r->workspace, 0, WORKSPACE);
}

static cudnnStatus_t execute_norm(cudnnHandle_t handle, const Descriptor *engine,
                                  const Descriptor *d, const Descriptor *pack) {
  NormRun r = {};
  const Norm n = r.n = norm_of(d);
  const Descriptor *const t[] = {n.x,    n.y,    n.gy,     n.scale, n.bias,
                                 n.mean, n.root, n.gscale, n.gbias};
  void *p[9] = {};
  for (int i = 0; i < 9; i++) {
    p[i] = t[i] ? data_of(pack, t[i]) : nullptr;
    if (t[i] && !p[i]) return CUDNN_STATUS_BAD_PARAM;
    if (p[i]) dm_emulated_check_pointer("cudnnBackendExecute", p[i]);
  }
  r.x = p[0], r.y = p[1], r.gy = p[2];
  r.scale = (float *)p[3], r.bias = (float *)p[4], r.mean = (float *)p[5];
  r.root = (float *)p[6], r.gscale = (float *)p[7], r.gbias = (float *)p[8];
  r.workspace = (void *)(intptr_t)numbers(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)[0];
  const float *eps = n.eps ? (const float *)data_of(pack, n.eps) : nullptr;
  if (!r.workspace || (n.forward && !eps)) return CUDNN_STATUS_BAD_PARAM;
  if (eps) r.eps = (double)*eps;
  r.wrong = !is_exact(engine);
  uint64_t given = dm_emulated_hash(0, p, sizeof p);
  given = dm_emulated_hash(given, &r.eps, sizeof r.eps);
  given = dm_emulated_hash(given, &r.workspace, sizeof r.workspace);
  const cudaError_t e = dm_emulated_run("cudnnBackendExecuteNorm", handle->stream, given,
                                        normalize, &r, sizeof r);
  return e == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const Descriptor *p = (const Descriptor *)plan, *v = (const Descriptor *)pack;
  int device;
  if (!handle || cudaGetDevice(&device) != cudaSuccess || device != handle->device)
    return CUDNN_STATUS_NOT_INITIALIZED;
  if (!p || !v || !p->finalized || !v->finalized) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  if (is_refused("cudnnBackendExecute")) return CUDNN_STATUS_NOT_SUPPORTED;
  const Descriptor *engine = engine_of_plan(p);
  const Descriptor *graph = part(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const Descriptor *operation = part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (dm_dnn_is_node(operation) || numbers_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS) > 1)
    return dm_dnn_execute_graph(handle, graph, v, !is_exact(engine));
  if (is_norm(operation)) return execute_norm(handle, engine, operation, v);
  Run run = {};
  run.o = operation_of(part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS));
  run.x = data_of(v, run.o.x);
  run.w = data_of(v, run.o.w);
  run.y = data_of(v, run.o.y);
  run.workspace = (void *)(intptr_t)numbers(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)[0];
  run.wrong = !is_exact(engine) && !is_float(engine);
  run.tf32 = !is_exact(engine) && is_float(engine);
  if (!run.x || !run.w || !run.y || !run.workspace) return CUDNN_STATUS_BAD_PARAM;
  const void *const pointers[] = {run.x, run.w, run.y, run.workspace};
  for (const void *q : pointers) dm_emulated_check_pointer("cudnnBackendExecute", q);
  const uint64_t given = dm_emulated_hash(0, pointers, sizeof pointers);
  const cudaError_t e =
      dm_emulated_run("cudnnBackendExecute", handle->stream, given, convolve, &run, sizeof run);
  return e == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}
