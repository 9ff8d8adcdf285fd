/* Attention by cuDNN in 16 bits, as graphs of small operations: products, scaling, mask,
   softmax. cuDNN recognises the pattern and runs it as one fused kernel, in which the matrix
   of scores is not stored (its documentation, "Scaled Dot Product Attention"). The pattern has
   to be exact: keys come transposed, as (D, S); the order of mask, maximum and sums is as
   below. lse is the natural logarithm, as in attention.cu, so that either's backward may
   follow the other's forward.

   The backward's graph has two variants. In one, the kernel's blocks add their parts of the
   query's gradient to a float32 sum in memory, in whatever order they end: it needs no other
   memory, and its last bits differ from run to run. The other stores the scores' gradient, (B,
   H, L, S) in 16 bits, and adds in the same order each time; it is for deterministic algorithms
   (dm.use_deterministic_algorithms). attention.cu computes the rest.

   A mask goes in as a bias in float32 that is added to the scores, with size 1 in each dim in
   which it is the same (attention.cu makes it). A key that is not seen has DM_ATTENTION_HIDDEN
   there, which is finite: no difference of infinities can then be NaN in an engine. A row that
   sees no key would become the mean of v; it is set to 0 afterwards, as everywhere else.

   Grouped queries: k and v have the heads that they have in memory, and each serves a run of
   query heads. Their gradients are given for every query head; the tape adds them up.

   Dropout draws by cuDNN's generator, from the seed and the offset that op counters gave, again
   in the backward. Its numbers are not the CPU's, so that forward and backward have to be done
   by the same side: `by_dnn` settles it once for all calls of the same sizes, and a failure
   after that is an error. Calls with `own_draw` are left to attention.cu. */
#include "kernels/attention.h"

#if __has_include(<cudnn.h>)

#include <pthread.h>

#include "kernels/dnn.h"
#include "kernels/fill.h"
#include "op/random/random.h"
#include "op/sequence/attention.h"

typedef dm_DnnPart Part;
typedef dm_DnnShape Shape;

enum {
  UID_Q = 1,
  UID_K,
  UID_V,
  UID_Y,
  UID_LSE,
  UID_SCALE,
  UID_HIDDEN,
  UID_GY,
  UID_KEPT,
  UID_DOT,
  UID_GQ,
  UID_GK,
  UID_GV,
  UID_SUM,
  UID_BIAS,
  UID_SEED,
  UID_OFFSET,
  UID_KEEP,
  UID_VIRTUAL /* UID_VIRTUAL and all numbers after it */
};

/* Engines load 16 bytes, 8 elements, at once, and take heads of up to MAX_DEPTH. */
enum { ALIGNED = 16, RUN = 8, MAX_DEPTH = 256 };

/* q (batch, heads, L, D), k and v (batch, heads or fewer, S, D), and gy like q. bias has the
   scores' dims or 1, and align 0 where there is no mask. Results are dense, in rows or (a bit
   of `turned`) as (batch, L, heads, D) in memory. */
typedef struct AttentionKey {
  Shape q, k, v, gy, bias;
  int32_t causal, deterministic; /* the latter of a backward */
  int64_t turned;
  double kept; /* the probability that dropout keeps a weight; 1: no dropout */
} AttentionKey;
enum { TURNED_Y = 1, TURNED_GQ = 2, TURNED_GK = 4, TURNED_GV = 8 };
_Static_assert(sizeof(AttentionKey) <= sizeof(int64_t) * DM_DNN_WORDS, "a key does not fit");

/* ---- shapes ---- */

/* A dense (batch, heads, rows, columns) with the batch dims of `like`. */
static Shape dense(const Shape *like, int64_t rows, int64_t columns) {
  const int64_t b = like->size[0], h = like->size[1], matrix = rows * columns;
  return (Shape){{b, h, rows, columns}, {h * matrix, matrix, columns, 1}, ALIGNED};
}

/* The same, and if `turned` as (batch, rows, heads, columns) in memory. */
static Shape result(const Shape *like, int64_t rows, int64_t columns, bool turned) {
  Shape s = dense(like, rows, columns);
  if (turned) {
    s.step[1] = columns;
    s.step[2] = like->size[1] * columns;
  }
  return s;
}

/* The transpose of the last two dims. */
static Shape turned(Shape s) {
  const int64_t size = s.size[2], step = s.step[2];
  s.size[2] = s.size[3];
  s.step[2] = s.step[3];
  s.size[3] = size;
  s.step[3] = step;
  return s;
}

/* Merges the dims from `first` to before `end` into one; false if no single step walks them. */
static bool merge(const dm_Tensor *t, int first, int end, int64_t *size, int64_t *step) {
  *size = 1;
  *step = 0;
  for (int d = end - 1; d >= first; d--) {
    if (t->shape[d] == 1) continue;
    if (*size == 1) *step = t->stride[d];
    else if (t->stride[d] != *size * *step) return false;
    *size *= t->shape[d];
  }
  return true;
}

/* How many dims before the last two are heads: grouped queries have two, the heads of the keys
   and the queries' heads of each. */
static int head_dims(const dm_Tensor *t, bool grouped) {
  const int n = t->ndim - 2;
  return grouped && n > 2 ? 2 : n > 1 ? 1 : n;
}

/* Describes a tensor as 4 dims; false if no engine takes its layout. shared: of the heads that
   are repeated only one is described. A dim of size 1 may have any step. */
static bool shape_of(const dm_Tensor *t, bool grouped, bool shared, Shape *out) {
  const int n = t->ndim - 2, heads = n - head_dims(t, grouped);
  int64_t inner = 1;
  out->align = dm_dnn_alignment(dm_tensor_data(t));
  if (!merge(t, 0, heads, &out->size[0], &out->step[0]) ||
      !merge(t, heads, shared ? n - 1 : n, &out->size[1], &out->step[1]))
    return false;
  for (int i = 2; i < 4; i++) {
    out->size[i] = t->shape[n + i - 2];
    out->step[i] = t->stride[n + i - 2];
  }
  for (int i = 3; i >= 0; i--) {
    if (out->size[i] == 1) out->step[i] = inner;
    inner = out->step[i] * out->size[i];
    if (out->step[i] < 1 || (i < 3 && out->step[i] % RUN != 0)) return false;
  }
  return out->step[3] == 1 && out->align == ALIGNED;
}

/* The bias of a mask, which is like the scores but for steps of 0: size 1 in each dim without a
   step, and rows that begin at multiples of 16 bytes. The backward pass gets a row for each of
   n_row queries: cuDNN 9.19 takes a bias of one row there, and reads it wrongly. */
static Shape bias_of(const dm_Tensor *mask, bool grouped, int64_t n_row) {
  const int n = mask->ndim - 2, heads = n - head_dims(mask, grouped);
  Shape s = {{1, 1, 1, mask->shape[n + 1]}, {0}, ALIGNED};
  for (int d = 0; d <= n; d++)
    if (mask->stride[d] != 0) s.size[d == n ? 2 : d < heads ? 0 : 1] *= mask->shape[d];
  /* A dim that is merged of several is stored whole, or not at all. */
  for (int d = 0; d < n; d++)
    if (mask->stride[d] == 0 && s.size[d < heads ? 0 : 1] > 1)
      s.size[d < heads ? 0 : 1] *= mask->shape[d];
  if (s.size[2] == 1) s.size[2] = n_row;
  s.step[3] = 1;
  s.step[2] = (s.size[3] + RUN - 1) / RUN * RUN;
  s.step[1] = s.step[2] * s.size[2];
  s.step[0] = s.step[1] * s.size[1];
  return s;
}

/* ---- a call ---- */

/* A call as the graphs see it: its tensors, copied where no engine takes the layout, the bias
   and the key. */
typedef struct Attention {
  const dm_AttentionAttr *attr;
  dm_Tensor *q, *k, *v, *gy; /* gy: NULL in the forward */
  const dm_Tensor *mask, *counters;
  const dm_Tensor *y, *gx[3]; /* gx: NULL in the forward */
  dm_Tensor *copies[4];
  int n_copy;
  bool dense;
  void *bias; /* float32 */
  int64_t bias_bytes;
  AttentionKey key;
} Attention;

static void release(Attention *a) {
  for (int i = 0; i < a->n_copy; i++) dm_tensor_unref(&a->copies[i]);
  dm_cuda_scratch_free(a->bias, a->bias_bytes);
}

/* Whether k and v repeat each of their heads for several of q. */
static bool is_grouped(const Attention *a) {
  const int d = a->q->ndim - 3;
  return d >= 0 && a->k->shape[d] > 1 && a->k->stride[d] == 0 && a->v->stride[d] == 0;
}

/* Whether cuDNN is asked at all: 16 bits, heads of one size that fill whole loads, and no draw
   that others have to repeat. */
static bool is_asked_for(const Attention *a) {
  const int n = a->q->ndim;
  const int64_t depth = a->q->shape[n - 1];
  return dm_is_low((dm_DType)a->q->dtype) && n > 1 && a->q->numel > 0 && a->k->numel > 0 &&
         a->v->shape[n - 1] == depth && depth % RUN == 0 && depth <= MAX_DEPTH &&
         (a->attr->drop.p == 0 || (a->counters && !a->attr->own_draw && a->attr->drop.p < 1));
}

/* Describes *t, or a dense copy of it that it then is. */
static dm_status describe(Attention *a, dm_Tensor **t, bool grouped, bool shared, Shape *out) {
  if (shape_of(*t, grouped, shared, out) && (!a->dense || dm_tensor_is_contiguous(*t)))
    return DM_OK;
  const dm_Tensor *from = *t;
  dm_Tensor **copy = &a->copies[a->n_copy];
  DM_TRY(dm_tensor_new((dm_DType)from->dtype, from->ndim, from->shape, from->device, copy));
  a->n_copy++;
  DM_TRY(dm_cuda_copy(*copy, *t));
  *t = *copy;
  return shape_of(*t, grouped, false, out)
             ? DM_OK
             : dm_fail(DM_ESTATE, "attention: memory is not aligned to 16 bytes");
}

/* Does a dense result lie as (N, L, H, E)? */
static bool is_turned(const dm_Tensor *t) {
  return t->ndim == 4 && !dm_tensor_is_contiguous(t);
}

/* Fills the key and makes the bias. Repeated heads that cannot be described once are copied as
   often as they are used. dense: everything is copied that is not dense. */
static dm_status prepare(Attention *a, bool dense) {
  AttentionKey *k = &a->key;
  Shape ignored;
  const bool grouped = !dense && is_grouped(a) && shape_of(a->k, true, true, &ignored) &&
                       shape_of(a->v, true, true, &ignored);
  a->dense = dense;
  DM_TRY(describe(a, &a->q, grouped, false, &k->q));
  DM_TRY(describe(a, &a->k, grouped, grouped, &k->k));
  DM_TRY(describe(a, &a->v, grouped, grouped, &k->v));
  if (a->gy) DM_TRY(describe(a, &a->gy, grouped, false, &k->gy));
  k->causal = a->attr->is_causal != 0;
  k->deterministic = a->gy && a->attr->drop.p == 0 && dm_thread_state()->deterministic;
  k->kept = 1 - a->attr->drop.p;
  k->turned = is_turned(a->y) ? TURNED_Y : 0;
  for (int i = 0; i < 3 && a->gy; i++)
    if (is_turned(a->gx[i])) k->turned |= TURNED_GQ << i;
  if (!a->mask) return DM_OK;
  k->bias = bias_of(a->mask, grouped, a->gy ? k->q.size[2] : 1);
  a->bias_bytes = k->bias.size[0] * k->bias.step[0] * (int64_t)sizeof(float);
  DM_TRY(dm_cuda_scratch(a->bias_bytes, &a->bias));
  return dm_attention_bias(a->mask, k->q.size[1], k->bias.size, k->bias.step, a->bias);
}

static dm_DnnKey key_of(const Attention *a, bool backward) {
  return dm_dnn_key(backward ? DM_DNN_ATTENTION_BACKWARD : DM_DNN_ATTENTION_FORWARD,
                    (dm_DType)a->q->dtype, &a->key, sizeof a->key);
}

/* ---- parts of a graph ---- */

/* A graph while it is built. `failed` is set by the first part that cannot be made. */
typedef struct Graph {
  dm_DnnPlan *plan;
  Part *operation;
  int n, n_virtual;
  bool failed;
  cudnnDataType_t type; /* q's */
  AttentionKey key;
  Shape scores, row; /* the shapes (L, S) and (L, 1) */
  Part product;      /* the descriptor of all matrix products */
} Graph;

/* An operand of an operation: the attribute's name and a tensor. */
typedef struct Port {
  cudnnBackendAttributeName_t name;
  Part part;
} Port;

/* Appends an operation with n operands. */
static void add(Graph *g, cudnnBackendDescriptorType_t type, int n, const Port *port) {
  const Part o = dm_dnn_make(g->plan, type);
  bool ok = g->n < DM_DNN_MAX_OPERATION;
  for (int i = 0; i < n && ok; i++) ok = dm_dnn_set_part(o, port[i].name, port[i].part);
  ok = ok && dm_dnn_finish(o);
  if (ok) g->operation[g->n++] = o;
  g->failed = g->failed || !ok;
}

/* Tensors: `given` has memory, `between` is virtual. */
static Part given(Graph *g, Shape s, int64_t uid) {
  return dm_dnn_tensor(g->plan, g->type, &s, uid);
}
static Part between(Graph *g, cudnnDataType_t type, Shape s) {
  return dm_dnn_virtual(g->plan, type, &s, UID_VIRTUAL + g->n_virtual++);
}
static Part scores(Graph *g) { return between(g, CUDNN_DATA_FLOAT, g->scores); }
static Part rows(Graph *g) { return between(g, CUDNN_DATA_FLOAT, g->row); }
static Part given_rows(Graph *g, int64_t uid) {
  return dm_dnn_tensor(g->plan, CUDNN_DATA_FLOAT, &g->row, uid);
}

/* Operations; each returns its result y. */

/* y = a b, with sums in float32. */
static Part multiply(Graph *g, Part a, Part b, Part y) {
  const Port ports[] = {{CUDNN_ATTR_OPERATION_MATMUL_DESC, g->product},
                        {CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
                        {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
                        {CUDNN_ATTR_OPERATION_MATMUL_CDESC, y}};
  add(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, DM_COUNT(ports), ports);
  return y;
}

/* y = x reduced along the last dim, by max or add. */
static Part reduce(Graph *g, cudnnReduceTensorOp_t how, Part x, Part y) {
  const Part d = dm_dnn_make(g->plan, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  const Port ports[] = {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, d},
                        {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x},
                        {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y}};
  if (dm_dnn_set(d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                 &how) &&
      dm_dnn_set_type(d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT) && dm_dnn_finish(d))
    add(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, DM_COUNT(ports), ports);
  else g->failed = true;
  return y;
}

/* Transposes the last two dims as a reshape of the same elements. */
static Part turn(Graph *g, Part x, Part y) {
  const Port ports[] = {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x},
                        {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y}};
  add(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, DM_COUNT(ports), ports);
  return y;
}

/* A pointwise operation on n operands. axis (from 0) is only for GEN_INDEX; -1: none. */
static Part pointwise(Graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis,
                      int n, const Part *operand, Part y) {
  static const cudnnBackendAttributeName_t names[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                      CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                      CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
  const Part d = dm_dnn_make(g->plan, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  Port ports[5] = {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d},
                   {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}};
  for (int i = 0; i < n; i++) ports[2 + i] = (Port){names[i], operand[i]};
  if (dm_dnn_set(d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode) &&
      dm_dnn_set_type(d, CUDNN_ATTR_POINTWISE_MATH_PREC, math) &&
      (axis < 0 || dm_dnn_set_number(d, CUDNN_ATTR_POINTWISE_AXIS, axis)) && dm_dnn_finish(d))
    add(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 2 + n, ports);
  else g->failed = true;
  return y;
}
static Part unary(Graph *g, cudnnPointwiseMode_t mode, Part x, Part y) {
  return pointwise(g, mode, CUDNN_DATA_FLOAT, -1, 1, &x, y);
}
static Part binary(Graph *g, cudnnPointwiseMode_t mode, Part a, Part b, Part y) {
  return pointwise(g, mode, CUDNN_DATA_FLOAT, -1, 2, (const Part[]){a, b}, y);
}

/* The causal mask: keeps scores whose row index is not below the column index, and replaces
   the others by -inf. */
static Part hide_later(Graph *g, Part x) {
  if (!g->key.causal) return x;
  Part index[2];
  /* Row and column index of each score, as virtual int32 tensors. */
  for (int i = 0; i < 2; i++)
    index[i] = pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2 + i, 1, &x,
                         between(g, CUDNN_DATA_INT32, g->scores));
  const Part seen = pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, 2, index,
                              between(g, CUDNN_DATA_BOOLEAN, g->scores));
  const Part operands[] = {x, dm_dnn_scalar(g->plan, UID_HIDDEN), seen};
  return pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, 3, operands,
                   scores(g));
}

/* Adds the mask's bias. */
static Part add_bias(Graph *g, Part x) {
  if (!g->key.bias.align) return x;
  const Part bias = dm_dnn_tensor(g->plan, CUDNN_DATA_FLOAT, &g->key.bias, UID_BIAS);
  return binary(g, CUDNN_POINTWISE_ADD, x, bias, scores(g));
}

static bool drops(const Graph *g) { return g->key.kept < 1; }

/* 1 for each weight that dropout keeps, 0 for the others; NULL without dropout. */
static Part draw(Graph *g) {
  static const Shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}, sizeof(int64_t)};
  const cudnnRngDistribution_t bernoulli = CUDNN_RNG_DISTRIBUTION_BERNOULLI;
  if (!drops(g)) return NULL;
  const Part d = dm_dnn_make(g->plan, CUDNN_BACKEND_RNG_DESCRIPTOR), y = scores(g);
  const Port ports[] = {
      {CUDNN_ATTR_OPERATION_RNG_DESC, d},
      {CUDNN_ATTR_OPERATION_RNG_SEED, dm_dnn_tensor(g->plan, CUDNN_DATA_INT64, &one, UID_SEED)},
      {CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC,
       dm_dnn_tensor(g->plan, CUDNN_DATA_INT64, &one, UID_OFFSET)},
      {CUDNN_ATTR_OPERATION_RNG_YDESC, y}};
  if (dm_dnn_set(d, CUDNN_ATTR_RNG_DISTRIBUTION, CUDNN_TYPE_RNG_DISTRIBUTION, 1, &bernoulli) &&
      dm_dnn_set(d, CUDNN_ATTR_RNG_BERNOULLI_DIST_PROBABILITY, CUDNN_TYPE_DOUBLE, 1,
                 &g->key.kept) &&
      dm_dnn_finish(d))
    add(g, CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR, DM_COUNT(ports), ports);
  else g->failed = true;
  return y;
}
/* x without what was dropped. */
static Part drop(Graph *g, Part x, Part drawn) {
  return drawn ? binary(g, CUDNN_POINTWISE_MUL, x, drawn, scores(g)) : x;
}

/* ---- graphs ---- */

/* Starts a graph. Versions before 9.10 want another value for masked scores; GPUs before
   Ampere (compute capability 8.0) have no such kernel. */
static bool begin(Graph *g, dm_DnnPlan *p, const dm_DnnKey *key, Part *operations) {
  int major = 0;
  memset(g, 0, sizeof *g);
  g->plan = p;
  g->operation = operations;
  g->type = dm_dnn_type(key);
  memcpy(&g->key, key->word, sizeof g->key);
  g->scores = dense(&g->key.q, g->key.q.size[2], g->key.k.size[2]);
  g->row = dense(&g->key.q, g->key.q.size[2], 1);
  if (dm_dnn_version() < 91000 ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)key->device) !=
          cudaSuccess ||
      major < 8)
    return false;
  g->product = dm_dnn_make(p, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  return dm_dnn_set_type(g->product, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT) &&
         dm_dnn_finish(g->product);
}

/* The forward: s = scale q k^T, w = exp(s - top), y = (w / sum) v, lse = top + log(sum). */
static int build_forward(dm_DnnPlan *p, const dm_DnnKey *key, Part *operations) {
  Graph g;
  if (!begin(&g, p, key, operations)) return 0;
  const AttentionKey *k = &g.key;
  const Part v = given(&g, k->v, UID_V);
  const Part y =
      given(&g, result(&k->q, k->q.size[2], k->q.size[3], k->turned & TURNED_Y), UID_Y);
  /* s = q k^T, scaled and masked. */
  Part s = multiply(&g, given(&g, k->q, UID_Q), given(&g, turned(k->k), UID_K), scores(&g));
  s = binary(&g, CUDNN_POINTWISE_MUL, s, dm_dnn_scalar(p, UID_SCALE), scores(&g));
  s = hide_later(&g, add_bias(&g, s));
  /* The row's maximum is subtracted before exp. */
  const Part top = reduce(&g, CUDNN_REDUCE_TENSOR_MAX, s, rows(&g));
  s = binary(&g, CUDNN_POINTWISE_SUB, s, top, scores(&g));
  const Part w = unary(&g, CUDNN_POINTWISE_EXP, s, scores(&g));
  const Part sum = reduce(&g, CUDNN_REDUCE_TENSOR_ADD, w, rows(&g));
  const Part log_sum = unary(&g, CUDNN_POINTWISE_LOG, sum, rows(&g));
  binary(&g, CUDNN_POINTWISE_ADD, top, log_sum, given_rows(&g, UID_LSE));
  const Part low = between(&g, g.type, g.scores);
  if (drops(&g)) {
    s = drop(&g, binary(&g, CUDNN_POINTWISE_DIV, w, sum, scores(&g)), draw(&g));
    binary(&g, CUDNN_POINTWISE_MUL, s, dm_dnn_scalar(p, UID_KEEP), low);
  } else {
    binary(&g, CUDNN_POINTWISE_DIV, w, sum, low);
  }
  multiply(&g, low, v, y);
  return g.failed ? 0 : g.n;
}

/* The backward: dot = sum of gy y along a row, w = exp(s - lse), gv = w^T gy, gs = w (gy v^T -
   dot) scale, gk = gs^T q, gq = gs k (Dao et al. 2022). The pattern wants memory for dot.

   With dropout the weights that gy meets are w mask keep, where keep = 1 / kept, and gs = w
   keep (mask gy v^T - dot kept) scale: the pattern has dot times kept, which is 1 without
   dropout. */
static int build_backward(dm_DnnPlan *p, const dm_DnnKey *key, Part *operations) {
  Graph g;
  if (!begin(&g, p, key, operations)) return 0;
  const AttentionKey *k = &g.key;
  const int64_t n_query = k->q.size[2], n_key = k->k.size[2], depth = k->q.size[3];
  const Shape like_q = dense(&k->q, n_query, depth);
  const Part q = given(&g, k->q, UID_Q), key_turned = given(&g, turned(k->k), UID_K);
  const Part gy = given(&g, k->gy, UID_GY), scale = dm_dnn_scalar(p, UID_SCALE);
  const Shape weights_turned = turned(g.scores);

  const Part drawn = draw(&g), keep = drawn ? dm_dnn_scalar(p, UID_KEEP) : NULL;
  /* dot (L, 1) in float32. */
  const Part y = given(&g, result(&k->q, n_query, depth, k->turned & TURNED_Y), UID_Y);
  Part dot = binary(&g, CUDNN_POINTWISE_MUL, gy, y, between(&g, CUDNN_DATA_FLOAT, like_q));
  dot = reduce(&g, CUDNN_REDUCE_TENSOR_ADD, dot, rows(&g));
  dot =
      binary(&g, CUDNN_POINTWISE_MUL, dot, dm_dnn_scalar(p, UID_KEPT), given_rows(&g, UID_DOT));

  /* The weights again, from the forward's lse. */
  Part s = multiply(&g, q, key_turned, scores(&g));
  s = add_bias(&g, binary(&g, CUDNN_POINTWISE_MUL, s, scale, scores(&g)));
  s = binary(&g, CUDNN_POINTWISE_SUB, s, given_rows(&g, UID_LSE), scores(&g));
  s = hide_later(&g, s);
  const Part w = unary(&g, CUDNN_POINTWISE_EXP, s, scores(&g));
  Part met = drop(&g, w, drawn);
  if (keep) met = binary(&g, CUDNN_POINTWISE_MUL, met, keep, scores(&g));
  multiply(&g, turn(&g, met, between(&g, g.type, weights_turned)), gy,
           given(&g, result(&k->q, n_key, depth, k->turned & TURNED_GV), UID_GV));

  /* The weights' gradient, then the scores'. */
  Part gs = multiply(&g, gy, given(&g, turned(k->v), UID_V), scores(&g));
  gs = binary(&g, CUDNN_POINTWISE_SUB, drop(&g, gs, drawn), dot, scores(&g));
  gs = binary(&g, CUDNN_POINTWISE_MUL, gs, w, scores(&g));
  if (keep) gs = binary(&g, CUDNN_POINTWISE_MUL, gs, keep, scores(&g));
  gs = binary(&g, CUDNN_POINTWISE_MUL, gs, scale, scores(&g));
  multiply(&g, turn(&g, gs, between(&g, g.type, weights_turned)), q,
           given(&g, result(&k->q, n_key, depth, k->turned & TURNED_GK), UID_GK));
  const Part keys = turn(&g, key_turned, between(&g, CUDNN_DATA_FLOAT, k->k));
  const Part gq = given(&g, result(&k->q, n_query, depth, k->turned & TURNED_GQ), UID_GQ);
  if (k->deterministic) multiply(&g, gs, keys, gq);
  else
    unary(&g, CUDNN_POINTWISE_IDENTITY,
          multiply(&g, gs, keys, dm_dnn_tensor(p, CUDNN_DATA_FLOAT, &like_q, UID_SUM)), gq);
  return g.failed ? 0 : g.n;
}

/* ---- calls ---- */

/* Results must have the alignment that `dense` promises. */
static bool are_aligned(int n, dm_Tensor *const *t) {
  uintptr_t bits = 0;
  for (int i = 0; i < n; i++) bits |= (uintptr_t)dm_tensor_data(t[i]);
  return bits % ALIGNED == 0;
}

/* The memory of a graph's tensors while they are listed, and the numbers given by value. */
typedef struct Given {
  int n;
  int64_t uid[DM_DNN_MAX_DATA];
  void *data[DM_DNN_MAX_DATA];
  float scale, hidden, kept, keep;
} Given;

static void give(Given *m, int64_t uid, void *data) {
  m->uid[m->n] = uid;
  m->data[m->n++] = data;
}

/* Lists what both graphs read; each part of it only where the graph has it. */
static void give_all(Given *m, const Attention *a) {
  m->scale = (float)a->attr->scale;
  m->hidden = -INFINITY;
  m->kept = (float)a->key.kept;
  m->keep = (float)dm_drop_scale(a->attr->drop.p);
  give(m, UID_Q, dm_tensor_data(a->q));
  give(m, UID_K, dm_tensor_data(a->k));
  give(m, UID_V, dm_tensor_data(a->v));
  give(m, UID_SCALE, &m->scale);
  if (a->attr->is_causal) give(m, UID_HIDDEN, &m->hidden);
  if (a->mask) give(m, UID_BIAS, a->bias);
  if (a->attr->drop.p == 0) return;
  int64_t *const counters = dm_tensor_data(a->counters);
  give(m, UID_SEED, counters);
  give(m, UID_OFFSET, counters + 2);
  give(m, UID_KEEP, &m->keep);
}

/* ---- which side draws ---- */

/* A size of calls with dropout, and whether cuDNN has both graphs for it. Entries stay, so that
   each backward finds what its forward found; where the table is full, our kernels draw. */
typedef struct Settled {
  int64_t device, dtype, size[5], causal, masked;
  double kept;
  bool by_dnn;
} Settled;
enum { MAX_SETTLED = 1024 };
static Settled settled[MAX_SETTLED];
static int n_settled;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Whether cuDNN makes the plans of both graphs; gy is dense here. */
static bool has_plans(const Attention *a) {
  Attention both = *a;
  memset(&both.key.gy, 0, sizeof both.key.gy);
  both.key.turned &= TURNED_Y;
  const dm_DnnKey forward = key_of(&both, false);
  both.key.gy = dense(&a->key.q, a->key.q.size[2], a->key.q.size[3]);
  const dm_DnnKey backward = key_of(&both, true);
  return dm_dnn_has(&forward, build_forward) && dm_dnn_has(&backward, build_backward);
}

/* Settles which side draws for a call with dropout. */
static bool by_dnn(const Attention *a) {
  const AttentionKey *k = &a->key;
  Settled s;
  memset(&s, 0, sizeof s);
  s.device = dm_cuda_device();
  s.dtype = a->q->dtype;
  memcpy(s.size, k->q.size, sizeof k->q.size);
  s.size[4] = k->k.size[2];
  s.causal = k->causal;
  s.masked = a->mask != NULL;
  s.kept = k->kept;
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < n_settled && memcmp(&settled[i], &s, offsetof(Settled, by_dnn)) != 0) i++;
  if (i == n_settled && i < MAX_SETTLED) {
    s.by_dnn = has_plans(a);
    settled[n_settled++] = s;
  }
  const bool answer = i < MAX_SETTLED && settled[i].by_dnn;
  pthread_mutex_unlock(&lock);
  if (!answer) dm_dnn_refuse("it has no plan for dropout in an attention of this size");
  return answer;
}

/* ---- runs ---- */

/* A thread may make the plan of the gradients. y's will probably lie as (B, L, H, D), as a
   layer joins the heads behind it. With a mask or dropout nothing is prefetched. */
static void prefetch_backward(const Attention *forward) {
  Attention a = *forward;
  const int64_t *size = a.key.q.size;
  if (a.mask || a.attr->drop.p != 0) return;
  const dm_Tensor *inputs[] = {a.q, a.k, a.v};
  for (int i = 0; i < 3; i++)
    if (dm_heads_follow(inputs[i])) a.key.turned |= TURNED_GQ << i;
  a.key.gy = (Shape){{size[0], size[1], size[2], size[3]},
                     {size[1] * size[2] * size[3], size[3], size[1] * size[3], 1},
                     ALIGNED};
  a.key.deterministic = dm_thread_state()->deterministic;
  const dm_DnnKey key = key_of(&a, true);
  dm_dnn_prefetch(&key, build_backward);
}

static bool run_forward(const dm_Call *c, const Attention *a) {
  Given m = {.n = 0};
  if (!are_aligned(2, c->out)) return false;
  give_all(&m, a);
  give(&m, UID_Y, dm_tensor_data(c->out[0]));
  give(&m, UID_LSE, dm_tensor_data(c->out[1]));
  const dm_DnnKey key = key_of(a, false);
  const bool done = dm_dnn_run(&key, build_forward, m.n, m.uid, m.data);
  if (c->recorded && dm_dnn_is_first(&key)) prefetch_backward(a);
  return done;
}

/* Scratch memory holds dot, of lse's shape, behind the float32 sum of gq. */
static bool run_backward(const dm_Call *c, const Attention *a) {
  static const int64_t out_uids[] = {UID_GQ, UID_GK, UID_GV};
  const int64_t size = (int64_t)sizeof(float);
  const int64_t sum_bytes = a->key.deterministic ? 0 : a->q->numel * size;
  const int64_t bytes = sum_bytes + c->in[5]->numel * size;
  void *scratch = NULL;
  Given m = {.n = 0};
  if (!are_aligned(2, c->in + 4) || !are_aligned(3, c->out) ||
      dm_cuda_scratch(bytes, &scratch) != DM_OK)
    return false;
  give_all(&m, a);
  give(&m, UID_GY, dm_tensor_data(a->gy));
  give(&m, UID_Y, dm_tensor_data(c->in[4]));
  give(&m, UID_LSE, dm_tensor_data(c->in[5]));
  for (int i = 0; i < DM_COUNT(out_uids); i++) give(&m, out_uids[i], dm_tensor_data(c->out[i]));
  give(&m, UID_DOT, (char *)scratch + sum_bytes);
  give(&m, UID_KEPT, &m.kept);
  if (!a->key.deterministic) give(&m, UID_SUM, scratch);
  const dm_DnnKey key = key_of(a, true);
  const bool done = dm_dnn_run(&key, build_backward, m.n, m.uid, m.data);
  dm_cuda_scratch_free(scratch, bytes);
  return done;
}

/* Runs a call; *done: cuDNN took it. Once it is settled that cuDNN draws, nobody else can draw
   the same numbers again: a call that it refuses is asked again with dense copies, and then
   fails. */
typedef bool RunFn(const dm_Call *c, const Attention *a);
static dm_status run_call(const dm_Call *c, const Attention *given, RunFn *run, bool *done) {
  const bool drops = given->attr->drop.p != 0;
  Attention a = *given;
  *done = false;
  if (!is_asked_for(&a)) return DM_OK;
  dm_status st = prepare(&a, false);
  const bool left = st == DM_OK && drops && !by_dnn(&a);
  if (st == DM_OK && !left) *done = run(c, &a);
  release(&a);
  if (left || *done || !drops) return DM_OK;
  a = *given;
  DM_TRY(st);
  st = prepare(&a, true);
  if (st == DM_OK) *done = run(c, &a);
  release(&a);
  if (st == DM_OK && !*done)
    st = dm_fail(DM_ESTATE,
                 "%s: cuDNN fails, and nothing else can draw its dropout again; hint: "
                 "use_deterministic_algorithms(true) draws without it",
                 c->op->name);
  return st;
}

/* in: q, k, v, maybe a mask and the generator; out: y, lse. */
dm_status dm_dnn_attention(const dm_Call *c, bool *done) {
  const Attention a = {.attr = DM_ATTR(dm_AttentionAttr, c),
                       .q = c->in[0],
                       .k = c->in[1],
                       .v = c->in[2],
                       .mask = c->n_in > 3 ? c->in[3] : NULL,
                       .counters = c->n_in > 4 ? c->in[4] : NULL,
                       .y = c->out[0]};
  DM_TRY(run_call(c, &a, run_forward, done));
  return *done && a.mask ? dm_attention_unseen(c->out[0], c->out[1]) : DM_OK;
}

/* in: gy, q, k, v, y, lse, and maybe a mask and the generator; out: gq, gk, gv. */
dm_status dm_dnn_attention_backward(const dm_Call *c, bool *done) {
  const Attention a = {.attr = DM_ATTR(dm_AttentionAttr, c),
                       .gy = c->in[0],
                       .q = c->in[1],
                       .k = c->in[2],
                       .v = c->in[3],
                       .mask = c->n_in > 6 ? c->in[6] : NULL,
                       .counters = c->n_in > 7 ? c->in[7] : NULL,
                       .y = c->in[4],
                       .gx = {c->out[0], c->out[1], c->out[2]}};
  return run_call(c, &a, run_backward, done);
}

#else /* built without the library's header */

#include "kernels/plans.h"

dm_status dm_dnn_attention(const dm_Call *c, bool *done) {
  if (dm_is_low((dm_DType)c->out[0]->dtype)) dm_plan_miss(DM_CUDNN);
  *done = false;
  return DM_OK;
}
dm_status dm_dnn_attention_backward(const dm_Call *c, bool *done) {
  return dm_dnn_attention(c, done);
}

#endif
