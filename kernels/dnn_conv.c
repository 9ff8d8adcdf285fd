/* Convolutions by cuDNN: the graphs of the forward pass, with or without its bias, and of both
   gradients. conv.cu runs those that are refused. */
#include "kernels/conv.h"

#if __has_include(<cudnn.h>)

#include "kernels/dnn.h"

typedef dm_DnnPart Part;
typedef dm_DnnPlan Plan;
typedef dm_DnnKey Key;

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

/* A thread may make the plans of the gradients, which will have the layout of x, w and y. */
static void prefetch_backward(const dm_Conv *forward) {
  const bool wants[] = {
      [DM_CONV_INPUT] = forward->wants_gx, [DM_CONV_WEIGHT] = forward->wants_gw};
  for (int kind = DM_CONV_INPUT; kind <= DM_CONV_WEIGHT; kind++) {
    dm_Conv c = *forward;
    c.kind = (dm_ConvKind)kind;
    c.bias = NULL;
    const Key key = conv_key(&c);
    if (wants[kind]) dm_dnn_prefetch(&key, build_conv);
  }
}

static void prefetch_gradients(const Key *key, const dm_Conv *c) {
  if ((c->wants_gx || c->wants_gw) && dm_dnn_is_first(key)) prefetch_backward(c);
}

/* Without cuDNN the caller runs conv.cu. */
bool dm_dnn_conv(const dm_Conv *c) {
  static const int64_t uids[] = {UID_X, UID_W, UID_Y};
  void *const data[] = {c->x.data, c->w.data, c->y.data};
  dm_Conv without = *c;
  without.bias = NULL;
  if (c->dtype == DM_F64) return false;
  const Key key = conv_key(&without);
  const bool done = dm_dnn_run(&key, build_conv, DM_COUNT(uids), uids, data);
  prefetch_gradients(&key, c);
  return done;
}

bool dm_dnn_conv_bias(const dm_Conv *c) {
  static const int64_t uids[] = {UID_X, UID_W, UID_Y, UID_BIAS};
  void *const data[] = {c->x.data, c->w.data, c->y.data, (void *)(uintptr_t)c->bias};
  if (!may_add_bias(c)) return false;
  const Key key = conv_key(c);
  const bool done = dm_dnn_try(&key, build_conv_bias, DM_COUNT(uids), uids, data);
  prefetch_gradients(&key, c);
  return done;
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
