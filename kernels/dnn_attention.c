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
   (dm.use_deterministic_algorithms). What is refused, attention.cu computes. */
#include "kernels/attention.h"

#if __has_include(<cudnn.h>)

#include "kernels/dnn.h"
#include "op/random/random.h"

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
  UID_ONE,
  UID_DOT,
  UID_GQ,
  UID_GK,
  UID_GV,
  UID_SUM,
  UID_VIRTUAL /* UID_VIRTUAL and all numbers after it */
};

/* Engines load 16 bytes, 8 elements, at once, and take heads of up to MAX_DEPTH. */
enum { ALIGNED = 16, RUN = 8, MAX_DEPTH = 256 };

/* q (batch, heads, L, D), k and v (batch, heads, S, D), and gy like q. Results are dense. */
typedef struct AttentionKey {
  Shape q, k, v, gy;
  int64_t causal, deterministic; /* the latter of a backward */
} AttentionKey;
_Static_assert(sizeof(AttentionKey) <= sizeof(int64_t) * DM_DNN_WORDS, "a key does not fit");

/* ---- shapes ---- */

/* A dense (batch, heads, rows, columns) with the batch dims of `like`. */
static Shape dense(const Shape *like, int64_t rows, int64_t columns) {
  const int64_t b = like->size[0], h = like->size[1], matrix = rows * columns;
  return (Shape){{b, h, rows, columns}, {h * matrix, matrix, columns, 1}, ALIGNED};
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

/* Describes a tensor of 2 to 4 dims as 4 dims; false if no engine takes its layout. A dim of
   size 1 may have any step. */
static bool shape_of(const dm_Tensor *t, Shape *out) {
  int64_t inner = 1;
  if (t->ndim < 2 || t->ndim > 4 || t->numel == 0) return false;
  out->align = dm_dnn_alignment(dm_tensor_data(t));
  for (int i = 3; i >= 0; i--) {
    const int d = t->ndim - 4 + i;
    out->size[i] = d < 0 ? 1 : t->shape[d];
    out->step[i] = out->size[i] == 1 ? inner : t->stride[d];
    inner = out->step[i] * out->size[i];
    if (out->step[i] < 1 || (i < 3 && out->step[i] % RUN != 0)) return false;
  }
  return out->step[3] == 1 && out->align == ALIGNED && out->size[3] % RUN == 0 &&
         out->size[3] <= MAX_DEPTH;
}

/* Builds the key of a call; false for dtypes, masks, dropout or shapes that are not asked for.
   gy is NULL in the forward. */
static bool key_of(const dm_Call *c, dm_Tensor *const *qkv, const dm_Tensor *gy,
                   const dm_Tensor *mask, dm_DnnKey *out) {
  const dm_AttentionAttr *a = DM_ATTR(dm_AttentionAttr, c);
  const dm_DType dtype = (dm_DType)qkv[0]->dtype;
  AttentionKey k;
  memset(&k, 0, sizeof k);
  k.causal = a->is_causal != 0;
  k.deterministic = gy && dm_thread_state()->deterministic;
  if (!dm_is_low(dtype) || mask || a->drop.p != 0 || !shape_of(qkv[0], &k.q) ||
      !shape_of(qkv[1], &k.k) || !shape_of(qkv[2], &k.v) || k.q.size[3] != k.v.size[3] ||
      (gy && !shape_of(gy, &k.gy)))
    return false;
  *out = dm_dnn_key(gy ? DM_DNN_ATTENTION_BACKWARD : DM_DNN_ATTENTION_FORWARD, dtype, &k,
                    sizeof k);
  return true;
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
  const Part y = given(&g, dense(&k->q, k->q.size[2], k->q.size[3]), UID_Y);
  /* s = q k^T, scaled and masked. */
  Part s = multiply(&g, given(&g, k->q, UID_Q), given(&g, turned(k->k), UID_K), scores(&g));
  s = binary(&g, CUDNN_POINTWISE_MUL, s, dm_dnn_scalar(p, UID_SCALE), scores(&g));
  s = hide_later(&g, s);
  /* The row's maximum is subtracted before exp. */
  const Part top = reduce(&g, CUDNN_REDUCE_TENSOR_MAX, s, rows(&g));
  s = binary(&g, CUDNN_POINTWISE_SUB, s, top, scores(&g));
  const Part w = unary(&g, CUDNN_POINTWISE_EXP, s, scores(&g));
  const Part sum = reduce(&g, CUDNN_REDUCE_TENSOR_ADD, w, rows(&g));
  const Part log_sum = unary(&g, CUDNN_POINTWISE_LOG, sum, rows(&g));
  binary(&g, CUDNN_POINTWISE_ADD, top, log_sum, given_rows(&g, UID_LSE));
  multiply(&g, binary(&g, CUDNN_POINTWISE_DIV, w, sum, between(&g, g.type, g.scores)), v, y);
  return g.failed ? 0 : g.n;
}

/* The backward: dot = sum of gy y along a row, w = exp(s - lse), gv = w^T gy, gs = w (gy v^T -
   dot) scale, gk = gs^T q, gq = gs k (Dao et al. 2022). The pattern wants memory for dot, and
   a factor of it that dropout would use; it is 1 here. */
static int build_backward(dm_DnnPlan *p, const dm_DnnKey *key, Part *operations) {
  Graph g;
  if (!begin(&g, p, key, operations)) return 0;
  const AttentionKey *k = &g.key;
  const Shape like_q = dense(&k->q, k->q.size[2], k->q.size[3]);
  const Shape like_k = dense(&k->q, k->k.size[2], k->k.size[3]);
  const Part q = given(&g, k->q, UID_Q), key_turned = given(&g, turned(k->k), UID_K);
  const Part gy = given(&g, k->gy, UID_GY), scale = dm_dnn_scalar(p, UID_SCALE);
  const Shape weights_turned = turned(g.scores);

  /* dot (L, 1) in float32. */
  Part dot = binary(&g, CUDNN_POINTWISE_MUL, gy, given(&g, like_q, UID_Y),
                    between(&g, CUDNN_DATA_FLOAT, like_q));
  dot = reduce(&g, CUDNN_REDUCE_TENSOR_ADD, dot, rows(&g));
  dot =
      binary(&g, CUDNN_POINTWISE_MUL, dot, dm_dnn_scalar(p, UID_ONE), given_rows(&g, UID_DOT));

  /* The weights again, from the forward's lse. */
  Part s = multiply(&g, q, key_turned, scores(&g));
  s = binary(&g, CUDNN_POINTWISE_MUL, s, scale, scores(&g));
  s = binary(&g, CUDNN_POINTWISE_SUB, s, given_rows(&g, UID_LSE), scores(&g));
  s = hide_later(&g, s);
  const Part w = unary(&g, CUDNN_POINTWISE_EXP, s, scores(&g));
  multiply(&g, turn(&g, w, between(&g, g.type, weights_turned)), gy, given(&g, like_k, UID_GV));

  /* The weights' gradient, then the scores'. */
  Part gs = multiply(&g, gy, given(&g, turned(k->v), UID_V), scores(&g));
  gs = binary(&g, CUDNN_POINTWISE_SUB, gs, dot, scores(&g));
  gs = binary(&g, CUDNN_POINTWISE_MUL, gs, w, scores(&g));
  gs = binary(&g, CUDNN_POINTWISE_MUL, gs, scale, scores(&g));
  multiply(&g, turn(&g, gs, between(&g, g.type, weights_turned)), q, given(&g, like_k, UID_GK));
  const Part keys = turn(&g, key_turned, between(&g, CUDNN_DATA_FLOAT, k->k));
  const Part gq = given(&g, like_q, UID_GQ);
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

/* The last uid, UID_HIDDEN, is used by the causal graph only. */
bool dm_dnn_attention(const dm_Call *c) {
  static const int64_t uids[] = {UID_Q, UID_K, UID_V, UID_Y, UID_LSE, UID_SCALE, UID_HIDDEN};
  float scale = (float)DM_ATTR(dm_AttentionAttr, c)->scale, hidden = -INFINITY;
  dm_DnnKey key;
  if (!key_of(c, c->in, NULL, c->n_in > 3 ? c->in[3] : NULL, &key) || !are_aligned(2, c->out))
    return false;
  void *const data[] = {dm_tensor_data(c->in[0]),
                        dm_tensor_data(c->in[1]),
                        dm_tensor_data(c->in[2]),
                        dm_tensor_data(c->out[0]),
                        dm_tensor_data(c->out[1]),
                        &scale,
                        &hidden};
  const bool causal = DM_ATTR(dm_AttentionAttr, c)->is_causal != 0;
  return dm_dnn_run(&key, build_forward, DM_COUNT(uids) - !causal, uids, data);
}

/* The memory of a graph's tensors while they are listed. */
typedef struct Given {
  int n;
  int64_t uid[DM_DNN_MAX_DATA];
  void *data[DM_DNN_MAX_DATA];
} Given;

static void give(Given *m, int64_t uid, void *data) {
  m->uid[m->n] = uid;
  m->data[m->n++] = data;
}

/* in: gy, q, k, v, y, lse; out: gq, gk, gv. Scratch memory holds dot, of lse's shape, behind
   the float32 sum of gq. */
bool dm_dnn_attention_backward(const dm_Call *c) {
  static const int64_t in_uids[] = {UID_GY, UID_Q, UID_K, UID_V, UID_Y, UID_LSE};
  static const int64_t out_uids[] = {UID_GQ, UID_GK, UID_GV};
  const dm_AttentionAttr *a = DM_ATTR(dm_AttentionAttr, c);
  dm_Tensor *const *in = c->in;
  float scale = (float)a->scale, hidden = -INFINITY, one = 1;
  const bool sums = !dm_thread_state()->deterministic;
  dm_DnnKey key;
  void *scratch = NULL;
  const int64_t size = (int64_t)sizeof(float), sum_bytes = sums ? in[1]->numel * size : 0;
  const int64_t scratch_bytes = sum_bytes + in[5]->numel * size;
  if (!key_of(c, in + 1, in[0], c->n_in > 6 ? in[6] : NULL, &key) || !are_aligned(2, in + 4) ||
      !are_aligned(3, c->out) || dm_cuda_scratch(scratch_bytes, &scratch) != DM_OK)
    return false;
  Given m = {.n = 0};
  for (int i = 0; i < DM_COUNT(in_uids); i++) give(&m, in_uids[i], dm_tensor_data(in[i]));
  for (int i = 0; i < DM_COUNT(out_uids); i++) give(&m, out_uids[i], dm_tensor_data(c->out[i]));
  give(&m, UID_DOT, (char *)scratch + sum_bytes);
  give(&m, UID_ONE, &one);
  give(&m, UID_SCALE, &scale);
  if (sums) give(&m, UID_SUM, scratch);
  if (a->is_causal) give(&m, UID_HIDDEN, &hidden);
  const bool done = dm_dnn_run(&key, build_backward, m.n, m.uid, m.data);
  dm_cuda_scratch_free(scratch, scratch_bytes);
  return done;
}

#else /* built without the library's header */

bool dm_dnn_attention(const dm_Call *c) {
  DM_UNUSED(c);
  return false;
}
bool dm_dnn_attention_backward(const dm_Call *c) {
  DM_UNUSED(c);
  return false;
}

#endif
