/* The emulated cuDNN's graphs of many operations: matrix products, convolutions, batch norms,
   reductions, pointwise operations, draws and reshapes, one after another in the order given.
   Every tensor becomes a dense block of floats, rounded to its dtype, so that a graph is tested
   for what it says and not for how an engine would run it.

   Shapes, dtypes and ids are held to what the library's graphs ask for, and the
   only reshape is an exchange of the last two dims. A draw gives the numbers of our own
   generator (base/rng.h) from the offset on, in words, so that dropout equals the CPU's: the
   library's own numbers are others. */
#include <math.h>

#include "cudnn_internal.h"

extern "C" {
#include "base/rng.h"
}

enum { POINTWISE = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR };
enum { MATMUL = CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR };
enum { REDUCTION = CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR };
enum { RESHAPE = CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR };
enum { DRAW = CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR };
enum { CONVOLUTION = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR };
enum { NORM = CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR };
enum { NORM_BACK = CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR };
enum { MAX_VALUE = 4 * MAX_ELEMENT, MAX_IN = 5 };

/* An operation makes y, and of a norm two more, of in[0] and what others are there. */
struct Node {
  int type;
  const Descriptor *how; /* none for a reshape or a norm */
  const Descriptor *in[MAX_IN], *y, *more[2];
};

static const Descriptor *optional(const Descriptor *d, int name) {
  return attribute_of(const_cast<Descriptor *>(d), name) ? part(d, name) : nullptr;
}
static Node node_of(const Descriptor *d) {
  switch ((int)d->type) {
#define PART(NAME) optional(d, CUDNN_ATTR_OPERATION_##NAME)
  case POINTWISE:
    return {POINTWISE,
            PART(POINTWISE_PW_DESCRIPTOR),
            {PART(POINTWISE_XDESC), PART(POINTWISE_BDESC), PART(POINTWISE_TDESC)},
            PART(POINTWISE_YDESC),
            {}};
  case MATMUL:
    return {MATMUL,
            PART(MATMUL_DESC),
            {PART(MATMUL_ADESC), PART(MATMUL_BDESC)},
            PART(MATMUL_CDESC),
            {}};
  case REDUCTION:
    return {
        REDUCTION, PART(REDUCTION_DESC), {PART(REDUCTION_XDESC)}, PART(REDUCTION_YDESC), {}};
  case CONVOLUTION:
    return {CONVOLUTION,
            PART(CONVOLUTION_FORWARD_CONV_DESC),
            {PART(CONVOLUTION_FORWARD_X), PART(CONVOLUTION_FORWARD_W)},
            PART(CONVOLUTION_FORWARD_Y),
            {}};
  case NORM:
    return {NORM,
            nullptr,
            {PART(NORM_FWD_XDESC), PART(NORM_FWD_SCALE_DESC), PART(NORM_FWD_BIAS_DESC),
             PART(NORM_FWD_EPSILON_DESC)},
            PART(NORM_FWD_YDESC),
            {PART(NORM_FWD_MEAN_DESC), PART(NORM_FWD_INV_VARIANCE_DESC)}};
  case NORM_BACK:
    return {NORM_BACK,
            nullptr,
            {PART(NORM_BWD_XDESC), PART(NORM_BWD_SCALE_DESC), PART(NORM_BWD_MEAN_DESC),
             PART(NORM_BWD_INV_VARIANCE_DESC), PART(NORM_BWD_DYDESC)},
            PART(NORM_BWD_DXDESC),
            {PART(NORM_BWD_DSCALE_DESC), PART(NORM_BWD_DBIAS_DESC)}};
  case DRAW:
    return {DRAW, PART(RNG_DESC), {PART(RNG_SEED), PART(RNG_OFFSET_DESC)}, PART(RNG_YDESC), {}};
  default: return {RESHAPE, nullptr, {PART(RESHAPE_XDESC)}, PART(RESHAPE_YDESC), {}};
#undef PART
  }
}

bool dm_dnn_is_node(const Descriptor *d) {
  const int type = (int)d->type;
  return type == POINTWISE || type == MATMUL || type == REDUCTION || type == RESHAPE ||
         type == DRAW;
}

/* One that stands alone elsewhere. */
static bool is_begun(const Descriptor *d) {
  const int type = (int)d->type;
  return type == CONVOLUTION || type == NORM || type == NORM_BACK;
}

static int64_t type_of(const Descriptor *t) { return number(t, CUDNN_ATTR_TENSOR_DATA_TYPE); }
static int64_t id_of(const Descriptor *t) { return number(t, CUDNN_ATTR_TENSOR_UNIQUE_ID); }
static const int64_t *sizes(const Descriptor *t) {
  return numbers(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
}
static const int64_t *steps(const Descriptor *t) {
  return numbers(t, CUDNN_ATTR_TENSOR_STRIDES);
}

/* ---- checks ---- */

/* b may have fewer heads, each of which serves several of a's. */
static bool is_product(const Node &n) {
  const int64_t *a = sizes(n.in[0]), *b = sizes(n.in[1]), *c = sizes(n.y);
  return a[0] == b[0] && a[0] == c[0] && a[1] % b[1] == 0 && a[1] == c[1] && a[2] == c[2] &&
         a[3] == b[2] && b[3] == c[3] && type_of(n.in[0]) == type_of(n.in[1]) &&
         number(n.how, CUDNN_ATTR_MATMUL_COMP_TYPE) == CUDNN_DATA_FLOAT;
}

/* Along no dim, or all of it. */
static bool broadcasts(const Descriptor *from, const Descriptor *to) {
  for (int d = 0; d < 4; d++)
    if (sizes(from)[d] != 1 && sizes(from)[d] != sizes(to)[d]) return false;
  return true;
}

static bool is_reduction(const Node &n) {
  const int64_t how = number(n.how, CUDNN_ATTR_REDUCTION_OPERATOR);
  return broadcasts(n.y, n.in[0]) && type_of(n.y) == CUDNN_DATA_FLOAT &&
         (how == CUDNN_REDUCE_TENSOR_ADD || how == CUDNN_REDUCE_TENSOR_MAX) &&
         number(n.how, CUDNN_ATTR_REDUCTION_COMP_TYPE) == CUDNN_DATA_FLOAT;
}

static bool is_turned(const Node &n) {
  static const int from[] = {0, 1, 3, 2};
  for (int d = 0; d < 4; d++)
    if (sizes(n.y)[d] != sizes(n.in[0])[from[d]] || steps(n.y)[d] != steps(n.in[0])[from[d]])
      return false;
  return is_virtual(n.y);
}

static bool is_number(const Descriptor *t) {
  return numel(t) == 1 && type_of(t) == CUDNN_DATA_INT64 && !is_virtual(t) && !is_by_value(t);
}
static double kept_by(const Node &n) {
  double p;
  memcpy(&p, numbers(n.how, CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY), sizeof p);
  return p;
}
static bool is_draw(const Node &n) {
  return is_number(n.in[0]) && is_number(n.in[1]) && is_virtual(n.y) &&
         type_of(n.y) == CUDNN_DATA_FLOAT && kept_by(n) > 0 && kept_by(n) < 1 &&
         number(n.how, CUDNN_ATTR_RNG_DISTRIBUTION) == CUDNN_RNG_DISTRIBUTION_BERNOULLI;
}

static bool is_pointwise(const Node &n) {
  int n_in = 0;
  for (; n_in < 3 && n.in[n_in]; n_in++)
    if (!broadcasts(n.in[n_in], n.y)) return false;
  const int64_t mode = number(n.how, CUDNN_ATTR_POINTWISE_MODE), type = type_of(n.y);
  const int64_t math = number(n.how, CUDNN_ATTR_POINTWISE_MATH_PREC);
  const bool counts = type != CUDNN_DATA_BOOLEAN && type != CUDNN_DATA_INT32;
  switch (mode) {
  case CUDNN_POINTWISE_IDENTITY:
  case CUDNN_POINTWISE_EXP:
  case CUDNN_POINTWISE_RELU_FWD:
  case CUDNN_POINTWISE_LOG: return n_in == 1 && counts && math == CUDNN_DATA_FLOAT;
  case CUDNN_POINTWISE_ADD:
  case CUDNN_POINTWISE_SUB:
  case CUDNN_POINTWISE_MUL:
  case CUDNN_POINTWISE_DIV: return n_in == 2 && counts && math == CUDNN_DATA_FLOAT;
  case CUDNN_POINTWISE_GEN_INDEX: {
    const Attribute *axis =
        attribute_of(const_cast<Descriptor *>(n.how), CUDNN_ATTR_POINTWISE_AXIS);
    return n_in == 1 && axis && axis->bits[0] >= 0 && axis->bits[0] < 4 &&
           type == CUDNN_DATA_INT32;
  }
  case CUDNN_POINTWISE_CMP_GE:
    return n_in == 2 && type == CUDNN_DATA_BOOLEAN && math == CUDNN_DATA_BOOLEAN &&
           type_of(n.in[0]) == type_of(n.in[1]);
  case CUDNN_POINTWISE_BINARY_SELECT:
    return n_in == 3 && type_of(n.in[2]) == CUDNN_DATA_BOOLEAN && counts;
  default: return false;
  }
}

cudnnStatus_t dm_dnn_check_node(const Descriptor *d) {
  const Node n = node_of(d);
  const bool ok = n.type == MATMUL      ? is_product(n)
                  : n.type == REDUCTION ? is_reduction(n)
                  : n.type == RESHAPE   ? is_turned(n)
                  : n.type == DRAW      ? is_draw(n)
                                        : is_pointwise(n);
  return ok ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

struct Graph {
  int64_t n;
  const int64_t *bits;

  explicit Graph(const Descriptor *d) {
    const Attribute *a =
        attribute_of(const_cast<Descriptor *>(d), CUDNN_ATTR_OPERATIONGRAPH_OPS);
    n = a->n;
    bits = a->bits;
  }
  const Descriptor *operation(int64_t i) const { return (const Descriptor *)(intptr_t)bits[i]; }
  Node node(int64_t i) const { return node_of(operation(i)); }
};

/* f(tensor, number of its operation, whether it is the result) until it gives false. */
template <class F> static bool all_tensors(const Graph &g, const F &f) {
  for (int64_t i = 0; i < g.n; i++) {
    const Node n = g.node(i);
    for (const Descriptor *t : n.in)
      if (t && !f(t, i, false)) return false;
    if (!f(n.y, i, true)) return false;
    for (const Descriptor *t : n.more)
      if (t && !f(t, i, true)) return false;
  }
  return true;
}

/* An id belongs to one tensor. One without memory is made once, before it is used; what
   is passed by value never is. */
cudnnStatus_t dm_dnn_check_graph(const Descriptor *d) {
  const Graph g(d);
  if (g.n == 1 && !dm_dnn_is_node(g.operation(0))) return CUDNN_STATUS_SUCCESS;
  for (int64_t i = 0; i < g.n; i++)
    if (!dm_dnn_is_node(g.operation(i)) && !is_begun(g.operation(i)))
      return CUDNN_STATUS_NOT_SUPPORTED;
  const bool ok = all_tensors(g, [&](const Descriptor *t, int64_t user, bool made) {
    int64_t maker = g.n;
    int n_maker = 0;
    const bool own_id = all_tensors(g, [&](const Descriptor *other, int64_t i, bool is_made) {
      if (other == t && is_made) {
        n_maker++;
        maker = i;
      }
      return other == t || id_of(other) != id_of(t);
    });
    if (!own_id || n_maker > 1 || (made && is_by_value(t))) return false;
    return made || maker < user || (n_maker == 0 && !is_virtual(t));
  });
  return ok ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

/* Of the first operation that is no draw. */
const Descriptor *dm_dnn_first_tensor(const Descriptor *d) {
  const Graph g(d);
  int64_t i = 0;
  while (i + 1 < g.n && g.node(i).type == DRAW) i++;
  return g.node(i).in[0];
}

/* An engine of attention keeps the matrix of scores out of memory, but where the query's
   gradient is a product of it without a float32 sum between: then it stores them in 16 bits. */
int64_t dm_dnn_stored_bytes(const Descriptor *d) {
  const Graph g(d);
  int64_t bytes = 0;
  for (int64_t i = 0; i < g.n; i++) {
    const Node n = g.node(i);
    const bool stores = n.type == MATMUL && !is_virtual(n.y) && is_virtual(n.in[0]) &&
                        type_of(n.in[0]) == CUDNN_DATA_FLOAT &&
                        type_of(n.y) != CUDNN_DATA_FLOAT;
    if (stores) bytes += 2 * numel(n.in[0]);
  }
  return bytes;
}

/* ---- running ---- */

/* f(indices, position in the dense block) of each element. */
template <class F> static void each(const Descriptor *t, const F &f) {
  const int64_t *s = sizes(t);
  int64_t i[4], n = 0;
  for (i[0] = 0; i[0] < s[0]; i[0]++)
    for (i[1] = 0; i[1] < s[1]; i[1]++)
      for (i[2] = 0; i[2] < s[2]; i[2]++)
        for (i[3] = 0; i[3] < s[3]; i[3]++) f(i, n++);
}

/* A tensor's elements, dense. */
struct Value {
  const Descriptor *t;
  const int64_t *size, *step;
  float *v;

  int64_t offset(const int64_t *i) const {
    return i[0] * step[0] + i[1] * step[1] + i[2] * step[2] + i[3] * step[3];
  }
  float &at(int64_t a, int64_t b, int64_t c, int64_t d) const {
    const int64_t i[4] = {a, b, c, d};
    int64_t n = 0;
    for (int k = 0; k < 4; k++) n = n * size[k] + (size[k] == 1 ? 0 : i[k]);
    return v[n];
  }
  float &at(const int64_t *i) const { return at(i[0], i[1], i[2], i[3]); }
};

/* A tensor's memory; of one by value, the number itself. */
struct Bound {
  const Descriptor *t;
  void *data;
  float value;
};

/* A graph and its tensors' memory; the pack that named it may be gone when this runs. */
struct Run {
  Graph g;
  Bound bound[MAX_VALUE];
  int n_bound;
  bool wrong;
  int n_value;
  Value value[MAX_VALUE];
};

static void *memory_of(Run *r, const Descriptor *t) {
  for (int i = 0; i < r->n_bound; i++)
    if (r->bound[i].t == t) return is_by_value(t) ? &r->bound[i].value : r->bound[i].data;
  abort();
}

static const Value &value_new(Run *r, const Descriptor *t) {
  if (r->n_value == MAX_VALUE) abort();
  Value *x = &r->value[r->n_value++];
  *x = {t, sizes(t), steps(t), (float *)calloc((size_t)numel(t), sizeof(float))};
  if (!x->v) abort();
  return *x;
}

/* Made before, or of the caller's memory. */
static const Value &value_of(Run *r, const Descriptor *t) {
  for (int i = 0; i < r->n_value; i++)
    if (r->value[i].t == t) return r->value[i];
  const Value &x = value_new(r, t);
  const void *data = memory_of(r, t);
  each(t, [&](const int64_t *i, int64_t n) {
    x.v[n] = (float)load(type_of(t), data, x.offset(i));
  });
  return x;
}

static float rounded(int64_t type, float v) {
  alignas(float) char bytes[sizeof(float)];
  store(type, bytes, 0, (double)v);
  return (float)load(type, bytes, 0);
}

static void multiply(const Value &a, const Value &b, const Value &y) {
  const int64_t each_serves = a.size[1] / b.size[1];
  each(y.t, [&](const int64_t *i, int64_t n) {
    double sum = 0;
    for (int64_t k = 0; k < a.size[3]; k++)
      sum +=
          (double)a.at(i[0], i[1], i[2], k) * (double)b.at(i[0], i[1] / each_serves, k, i[3]);
    y.v[n] = (float)sum;
  });
}

/* y = conv(x, w), sums in double. */
static void convolve(const Descriptor *how, const Value &x, const Value &w, const Value &y) {
  const int64_t *stride = numbers(how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  const int64_t *dilation = numbers(how, CUDNN_ATTR_CONVOLUTION_DILATIONS);
  const int64_t *pad = numbers(how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  const int64_t channels = w.size[1], per_group = y.size[1] / (x.size[1] / channels);
  each(y.t, [&](const int64_t *i, int64_t n) {
    const int64_t first = i[1] / per_group * channels;
    double sum = 0;
    for (int64_t c = 0; c < channels; c++)
      for (int64_t r = 0; r < w.size[2]; r++)
        for (int64_t s = 0; s < w.size[3]; s++) {
          const int64_t row = i[2] * stride[0] - pad[0] + r * dilation[0];
          const int64_t column = i[3] * stride[1] - pad[1] + s * dilation[1];
          if (row < 0 || row >= x.size[2] || column < 0 || column >= x.size[3]) continue;
          sum += (double)x.at(i[0], first + c, row, column) * (double)w.at(i[1], c, r, s);
        }
    y.v[n] = (float)sum;
  });
}

/* f(position in the dense block) of each element of channel c. */
template <class F> static void each_of(const Value &x, int64_t c, const F &f) {
  const int64_t plane = x.size[2] * x.size[3];
  for (int64_t n = 0; n < x.size[0]; n++)
    for (int64_t i = 0; i < plane; i++) f((n * x.size[1] + c) * plane + i);
}

/* Mean and 1 / sqrt(variance + eps) of each channel, and y. */
static void normalize(const Value *const *in, const Value &y, const Value &mean,
                      const Value &root) {
  const Value &x = *in[0];
  const double n = (double)(numel(x.t) / x.size[1]);
  for (int64_t c = 0; c < x.size[1]; c++) {
    double sum = 0, squares = 0;
    each_of(x, c, [&](int64_t at) { sum += (double)x.v[at]; });
    each_of(x, c, [&](int64_t at) {
      const double d = (double)x.v[at] - sum / n;
      squares += d * d;
    });
    const double by = 1 / sqrt(squares / n + (double)in[3]->v[0]);
    each_of(x, c, [&](int64_t at) {
      const double v = ((double)x.v[at] - sum / n) * by;
      y.v[at] = (float)(v * (double)in[1]->v[c] + (double)in[2]->v[c]);
    });
    mean.v[c] = (float)(sum / n);
    root.v[c] = (float)by;
  }
}

/* The gradients of x, scale and bias. */
static void normalize_back(const Value *const *in, const Value &gx, const Value &gscale,
                           const Value &gbias) {
  const Value &x = *in[0], &gy = *in[4];
  const double n = (double)(numel(x.t) / x.size[1]);
  for (int64_t c = 0; c < x.size[1]; c++) {
    const double mean = (double)in[2]->v[c], root = (double)in[3]->v[c];
    double gw = 0, gb = 0;
    each_of(x, c, [&](int64_t at) {
      gw += (double)gy.v[at] * ((double)x.v[at] - mean) * root;
      gb += (double)gy.v[at];
    });
    each_of(x, c, [&](int64_t at) {
      const double hat = ((double)x.v[at] - mean) * root;
      const double v = (double)gy.v[at] - gb / n - hat * gw / n;
      gx.v[at] = (float)(v * root * (double)in[1]->v[c]);
    });
    gscale.v[c] = (float)gw;
    gbias.v[c] = (float)gb;
  }
}

static void reduce(bool adds, const Value &x, const Value &y) {
  each(y.t, [&](const int64_t *, int64_t n) { y.v[n] = adds ? 0 : -INFINITY; });
  each(x.t, [&](const int64_t *i, int64_t n) {
    float &sum = y.at(i);
    sum = adds ? sum + x.v[n] : x.v[n] > sum || isnan(x.v[n]) ? x.v[n] : sum;
  });
}

static float point(int64_t mode, float x, float b, float t, int64_t index) {
  switch (mode) {
  case CUDNN_POINTWISE_RELU_FWD: return x < 0 ? 0 : x; /* NaN stays, which the graph asks for */
  case CUDNN_POINTWISE_ADD: return x + b;
  case CUDNN_POINTWISE_SUB: return x - b;
  case CUDNN_POINTWISE_MUL: return x * b;
  case CUDNN_POINTWISE_DIV: return x / b;
  case CUDNN_POINTWISE_IDENTITY: return x;
  case CUDNN_POINTWISE_EXP: return expf(x);
  case CUDNN_POINTWISE_LOG: return logf(x);
  case CUDNN_POINTWISE_CMP_GE: return x >= b;
  case CUDNN_POINTWISE_GEN_INDEX: return (float)index;
  default: return t != 0 ? x : b;
  }
}

static void draw(Run *r, const Node &n, const Value &y) {
  const uint64_t seed = *(const uint64_t *)memory_of(r, n.in[0]);
  const uint64_t first = *(const uint64_t *)memory_of(r, n.in[1]);
  const float p = (float)(1 - kept_by(n));
  each(y.t, [&](const int64_t *, int64_t i) {
    const uint64_t word = first + (uint64_t)i;
    y.v[i] = dm_uniform_f32(dm_philox(seed, word / 4).v[word % 4]) >= p;
  });
}

/* Rounds a result to its dtype, and writes it where it has memory. */
static void keep(Run *r, const Value &y) {
  const int64_t type = type_of(y.t);
  void *data = is_virtual(y.t) ? nullptr : memory_of(r, y.t);
  each(y.t, [&](const int64_t *i, int64_t n) {
    y.v[n] = rounded(type, y.v[n]);
    if (data) store(type, data, y.offset(i), r->wrong ? (double)y.v[n] + 1 : (double)y.v[n]);
  });
}

static void evaluate(Run *r, const Node &node) {
  const Value *in[MAX_IN] = {}, *more[2] = {};
  for (int i = 0; i < MAX_IN && node.type != DRAW; i++)
    if (node.in[i]) in[i] = &value_of(r, node.in[i]);
  const Value &y = value_new(r, node.y);
  for (int i = 0; i < 2; i++)
    if (node.more[i]) more[i] = &value_new(r, node.more[i]);
  if (node.type == NORM) {
    normalize(in, y, *more[0], *more[1]);
  } else if (node.type == NORM_BACK) {
    normalize_back(in, y, *more[0], *more[1]);
  } else if (node.type == DRAW) {
    draw(r, node, y);
  } else if (node.type == CONVOLUTION) {
    convolve(node.how, *in[0], *in[1], y);
  } else if (node.type == MATMUL) {
    multiply(*in[0], *in[1], y);
  } else if (node.type == REDUCTION) {
    reduce(number(node.how, CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_ADD, *in[0],
           y);
  } else if (node.type == RESHAPE) {
    each(y.t, [&](const int64_t *i, int64_t n) { y.v[n] = in[0]->at(i[0], i[1], i[3], i[2]); });
  } else {
    const int64_t mode = number(node.how, CUDNN_ATTR_POINTWISE_MODE);
    const bool is_index = mode == CUDNN_POINTWISE_GEN_INDEX;
    const int64_t axis = is_index ? number(node.how, CUDNN_ATTR_POINTWISE_AXIS) : 0;
    each(y.t, [&](const int64_t *i, int64_t n) {
      y.v[n] = point(mode, in[0]->at(i), in[1] ? in[1]->at(i) : 0, in[2] ? in[2]->at(i) : 0,
                     i[axis]);
    });
  }
  keep(r, y);
  for (const Value *v : more)
    if (v) keep(r, *v);
}

static void run(void *arg) {
  Run *r = (Run *)arg;
  for (int64_t i = 0; i < r->g.n; i++) evaluate(r, r->g.node(i));
  for (int i = 0; i < r->n_value; i++) free(r->value[i].v);
}

cudnnStatus_t dm_dnn_execute_graph(cudnnHandle_t handle, const Descriptor *graph,
                                   const Descriptor *pack, bool wrong) {
  Run r = {Graph(graph), {}, 0, wrong, 0, {}};
  const int64_t *workspace = numbers(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  uint64_t given = dm_emulated_hash(0, workspace, sizeof *workspace);
  const bool ok = all_tensors(r.g, [&](const Descriptor *t, int64_t, bool) {
    const void *data = data_of(pack, t);
    if (is_virtual(t)) return data == nullptr;
    if (!data || r.n_bound == MAX_VALUE) return false;
    Bound *bound = &r.bound[r.n_bound++];
    *bound = {t, const_cast<void *>(data), 0};
    if (is_by_value(t)) {
      memcpy(&bound->value, data, sizeof bound->value);
      given = dm_emulated_hash(given, data, sizeof(float));
    } else {
      given = dm_emulated_hash(given, &data, sizeof data);
      dm_emulated_check_pointer("cudnnBackendExecute", data);
    }
    return true;
  });
  if (!ok) return CUDNN_STATUS_BAD_PARAM;
  const cudaError_t e =
      dm_emulated_run("cudnnBackendExecuteGraph", handle->stream, given, run, &r, sizeof r);
  return e == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}
