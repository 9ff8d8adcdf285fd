/* Recurrent networks: one step of each kind of cell (RNNCell, LSTMCell, GRUCell),
   and one layer in one direction over all time steps. T is the number of steps, B
   the batch, F the input's features, H the hidden size.

   A weight has a block of H rows for each gate, in PyTorch's order. With a = W_ih x
   + b_ih + W_hh h + b_hh: LSTM, gates i f g o (Hochreiter & Schmidhuber 1997, with
   the forget gate of Gers et al. 2000): c' = sigmoid(f) c + sigmoid(i) tanh(g), h' =
   sigmoid(o) tanh(c'); GRU, gates r z n (Cho et al. 2014): n = tanh(W_in x + b_in +
   r (W_hn h + b_hn)), h' = (1 - z) n + z h; plain cells: h' = tanh(a) or relu(a).

   A layer computes the input's part of the gates, W_ih x + b_ih, for all T steps in
   one product (T B, F) x (F, gates H). The recurrence is one kernel, rnn_steps,
   where the device has it, and a composition of steps otherwise. The kernel saves
   the gates' values; its backward kernel iterates over the steps in reverse and
   returns the gradients of the gates' sums, from which the gradient of W_hh is one
   product over all steps. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "cpu/loops/loops.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"

/* The values of rnn_layer's attribute `mode`. */
typedef enum Kind {
  TANH = DM_CELL_TANH,
  RELU = DM_CELL_RELU,
  LSTM = DM_CELL_LSTM,
  GRU = DM_CELL_GRU
} Kind;

/* Gates of each kind of cell. */
static const int64_t n_gates[] = {1, 1, 4, 3};

typedef struct Cell {
  Kind kind;
  int64_t hidden;
  dm_Tensor *w_ih, *w_hh, *b_ih,
      *b_hh; /* (gates H, F), (gates H, H); biases (gates H) or NULL */
} Cell;

typedef struct State {
  dm_Tensor *h, *c; /* (B, H) or (H); c: LSTM only */
} State;

/* ---- checks ---- */

/* Input i of the call, or NULL when it is not given. */
static dm_Tensor *input(const dm_Call *c, int i) { return i < c->n_in ? c->in[i] : NULL; }

/* Fails unless input i, if given, has the shape {rows, columns}, or {columns} for
   ndim 1. */
static dm_status check_shape(const dm_Call *c, int i, int ndim, int64_t rows, int64_t columns) {
  const dm_Tensor *t = input(c, i);
  if (!t) return DM_OK;
  const char *name = c->op->signature->tensor[i];
  const bool fits = t->ndim == ndim && t->shape[ndim - 1] == columns;
  if (fits && (ndim == 1 || t->shape[0] == rows)) return DM_OK;
  if (ndim == 1)
    return dm_fail(DM_EARG, "%s: %s has shape %s, wanted {%lld}", c->op->name, name,
                   DM_SHAPE(t), (long long)columns);
  return dm_fail(DM_EARG, "%s: %s has shape %s, wanted {%lld, %lld}", c->op->name, name,
                 DM_SHAPE(t), (long long)rows, (long long)columns);
}

/* Fills *cell from the inputs w_ih, w_hh, b_ih, b_hh, which start at input `at`, and
   checks their shapes. */
static dm_status cell_of(const dm_Call *c, Kind kind, int at, Cell *cell) {
  const dm_Tensor *x = c->in[0], *w = c->in[at + 1];
  const int64_t gates = n_gates[kind];
  DM_TRY(dm_check_float(c, x, "x"));
  if (w->ndim != 2 || w->shape[0] != gates * w->shape[1])
    return dm_fail(DM_EARG, "%s: w_hh has shape %s, wanted {%lld * hidden, hidden}",
                   c->op->name, DM_SHAPE(w), (long long)gates);
  const int64_t hidden = w->shape[1], rows = w->shape[0];
  DM_TRY(check_shape(c, at, 2, rows, x->shape[x->ndim - 1]));
  DM_TRY(check_shape(c, at + 2, 1, 1, rows));
  DM_TRY(check_shape(c, at + 3, 1, 1, rows));
  *cell = (Cell){kind, hidden, c->in[at], c->in[at + 1], input(c, at + 2), input(c, at + 3)};
  return DM_OK;
}

/* ---- one step ---- */

static dm_Tensor *x_linear(dm_X *x, dm_Tensor *t, dm_Tensor *w, dm_Tensor *bias) {
  return dm_x(x, DM_OP_linear, NULL, bias ? 3 : 2, t, w, bias);
}

/* Gate k of t (..., gates H): a view (..., H). */
static dm_Tensor *gate(dm_X *x, const Cell *cell, dm_Tensor *t, int k) {
  if (x->st != DM_OK) return NULL;
  const int64_t part[3] = {t->ndim - 1, k * cell->hidden,
                           cell->hidden}; /* dim, start, length */
  return dm_x(x, DM_OP_narrow, part, 1, t);
}

static dm_Tensor *x_sigmoid(dm_X *x, dm_Tensor *t) { return x_unary(x, DM_OP_sigmoid, t); }
static dm_Tensor *x_tanh(dm_X *x, dm_Tensor *t) { return x_unary(x, DM_OP_tanh, t); }

/* One LSTM step from the gates' sums (B, 4 H): c' = f c + i g, h' = o tanh(c'). */
static State lstm_step(dm_X *x, const Cell *cell, dm_Tensor *gates, dm_Tensor *c) {
  dm_Tensor *i = x_sigmoid(x, gate(x, cell, gates, 0));
  dm_Tensor *f = x_sigmoid(x, gate(x, cell, gates, 1));
  dm_Tensor *g = x_tanh(x, gate(x, cell, gates, 2));
  dm_Tensor *o = x_sigmoid(x, gate(x, cell, gates, 3));
  dm_Tensor *next = x_add(x, x_mul(x, f, c), x_mul(x, i, g));
  return (State){x_mul(x, o, x_tanh(x, next)), next};
}

/* One GRU step from the input's and the state's parts of the gates (B, 3 H): n =
   tanh(gx_n + r gh_n), h' = (1 - z) n + z h, computed as n + z (h - n). */
static State gru_step(dm_X *x, const Cell *cell, dm_Tensor *gx, dm_Tensor *gh, dm_Tensor *h) {
  dm_Tensor *r = x_sigmoid(x, x_add(x, gate(x, cell, gx, 0), gate(x, cell, gh, 0)));
  dm_Tensor *z = x_sigmoid(x, x_add(x, gate(x, cell, gx, 1), gate(x, cell, gh, 1)));
  dm_Tensor *inner = x_mul(x, r, gate(x, cell, gh, 2));
  dm_Tensor *n = x_tanh(x, x_add(x, gate(x, cell, gx, 2), inner));
  return (State){x_add(x, n, x_mul(x, z, x_sub(x, h, n))), NULL};
}

/* The state after s. gx is the input's part of the gates, x W_ih^T + b_ih (B, gates
   H). */
static State step(dm_X *x, const Cell *cell, dm_Tensor *gx, State s) {
  dm_Tensor *gh = x_linear(x, s.h, cell->w_hh, cell->b_hh);
  if (cell->kind == GRU) return gru_step(x, cell, gx, gh, s.h);
  dm_Tensor *gates = x_add(x, gx, gh);
  if (cell->kind == LSTM) return lstm_step(x, cell, gates, s.c);
  return (State){x_unary(x, cell->kind == TANH ? DM_OP_tanh : DM_OP_relu, gates), NULL};
}

/* One step of a cell for x (B, F) or (F). */
static dm_status cell_compose(dm_Call *c, dm_X *x, Kind kind) {
  dm_Tensor *t = c->in[0];
  const bool lstm = kind == LSTM;
  Cell cell;
  if (t->ndim != 1 && t->ndim != 2)
    return dm_fail(DM_EARG, "%s: x has shape %s, wanted {batch, features} or {features}",
                   c->op->name, DM_SHAPE(t));
  DM_TRY(cell_of(c, kind, lstm ? 3 : 2, &cell));
  for (int i = 1; i <= 1 + lstm; i++)
    DM_TRY(check_shape(c, i, t->ndim, t->shape[0], cell.hidden));
  dm_Tensor *gx = x_linear(x, t, cell.w_ih, cell.b_ih);
  const State next = step(x, &cell, gx, (State){c->in[1], lstm ? c->in[2] : NULL});
  c->out[0] = next.h;
  if (lstm) c->out[1] = next.c;
  return x->st;
}

dm_status rnn_tanh_cell_compose(dm_Call *c, dm_X *x) { return cell_compose(c, x, TANH); }
dm_status rnn_relu_cell_compose(dm_Call *c, dm_X *x) { return cell_compose(c, x, RELU); }
dm_status lstm_cell_compose(dm_Call *c, dm_X *x) { return cell_compose(c, x, LSTM); }
dm_status gru_cell_compose(dm_Call *c, dm_X *x) { return cell_compose(c, x, GRU); }

/* ---- one layer ---- */

enum { LAYER_HX = 5, LAYER_CX = 6 }; /* after x, w_ih, w_hh, b_ih, b_hh */

/* x (T, B, F), states (B, H), and one dtype for all inputs. */
static dm_status check_layer(const dm_Call *c, Kind kind, Cell *cell) {
  const dm_Tensor *t = c->in[0];
  if (t->ndim != 3 || t->shape[0] == 0)
    return dm_fail(DM_EARG,
                   "%s: x has shape %s, wanted {time, batch, features}, one time step or more",
                   c->op->name, DM_SHAPE(t));
  DM_TRY(cell_of(c, kind, 1, cell));
  if (kind != LSTM && input(c, LAYER_CX))
    return dm_fail(DM_EARG, "%s: cx is the cell of mode \"lstm\" only", c->op->name);
  DM_TRY(check_shape(c, LAYER_HX, 2, t->shape[1], cell->hidden));
  DM_TRY(check_shape(c, LAYER_CX, 2, t->shape[1], cell->hidden));
  for (int i = 1; i < c->n_in; i++) {
    if (!c->in[i] || c->in[i]->dtype == t->dtype) continue;
    const char *other = dm_dtype_name((dm_DType)c->in[i]->dtype);
    return dm_fail(
        DM_EARG, "%s: x is %s, %s %s: all must have one dtype; hint: x:to(\"%s\") or autocast",
        c->op->name, dm_dtype_name((dm_DType)t->dtype), c->op->signature->tensor[i], other,
        other);
  }
  return DM_OK;
}

/* Step i of t (T, ...). */
static dm_Tensor *at_time(dm_X *x, dm_Tensor *t, int64_t i) {
  const int64_t where[2] = {0, i}; /* dim, index */
  return dm_x(x, DM_OP_select, where, 1, t);
}

/* The initial state: hx and cx, or zeros where they are not given. */
static State first_state(const dm_Call *c, dm_X *x, const Cell *cell, dm_Tensor *gx) {
  State s = {input(c, LAYER_HX), input(c, LAYER_CX)};
  dm_Tensor *zeros = NULL;
  if (!s.h || (cell->kind == LSTM && !s.c))
    zeros = x_zeros_like(x, gate(x, cell, at_time(x, gx, 0), 0));
  if (!s.h) s.h = zeros;
  if (cell->kind == LSTM && !s.c) s.c = zeros;
  return s;
}

/* The recurrence as a composition of T steps; y (T, B, H) is their stack. */
static dm_status steps_composed(dm_Call *c, dm_X *x, const Cell *cell, dm_Tensor *gx) {
  const dm_RnnAttr *a = DM_ATTR(dm_RnnAttr, c);
  const int64_t n = c->in[0]->shape[0], dim = 0;
  dm_Tensor *y = NULL;
  State s = first_state(c, x, cell, gx);
  dm_Tensor **h = dm_alloc((int64_t)sizeof *h * n); /* of each time step */
  if (!h) return dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
  for (int64_t i = 0; i < n && x->st == DM_OK; i++) {
    const int64_t t = a->reverse ? n - 1 - i : i;
    s = step(x, cell, at_time(x, gx, t), s);
    h[t] = s.h;
  }
  if (x->st == DM_OK) x->st = dm_call(DM_OP_stack, (int)n, h, &dim, &y);
  dm_free(h);
  c->out[0] = dm_x_own(x, y);
  c->out[1] = s.h;
  c->out[2] = s.c;
  return x->st;
}

/* The recurrence by the kernel rnn_steps. The last states are copies, so that
   in-place changes to them do not reach y. */
static dm_status steps_fused(dm_Call *c, dm_X *x, const Cell *cell, dm_Tensor *gx) {
  const dm_RnnAttr *a = DM_ATTR(dm_RnnAttr, c);
  dm_Tensor *in[5] = {gx, cell->w_hh, cell->b_hh, input(c, LAYER_HX), input(c, LAYER_CX)};
  dm_Tensor *out[2] = {NULL};
  const int64_t last = a->reverse ? 0 : c->in[0]->shape[0] - 1;
  if (!x_call(x, DM_OP_rnn_steps, a, 5, in, out)) return x->st;
  c->out[0] = out[0];
  c->out[1] = x_unary(x, DM_OP_clone, at_time(x, out[0], last));
  if (cell->kind == LSTM)
    c->out[2] = x_unary(x, DM_OP_clone, gate(x, cell, at_time(x, out[1], last), 4));
  return x->st;
}

/* The layer: one product for the input's part of the gates, then the recurrence. */
dm_status rnn_layer_compose(dm_Call *c, dm_X *x) {
  const dm_RnnAttr *a = DM_ATTR(dm_RnnAttr, c);
  Cell cell;
  DM_TRY(check_layer(c, (Kind)a->mode, &cell));
  dm_Tensor *gx = x_linear(x, c->in[0], cell.w_ih, cell.b_ih);
  if (x->st != DM_OK) return x->st;
  c->n_out = cell.kind == LSTM ? 3 : 2;
  return dm_op_has_kernel(DM_OP_rnn_steps, gx->device) ? steps_fused(c, x, &cell, gx)
                                                       : steps_composed(c, x, &cell, gx);
}

/* ---- all steps in one kernel ---- */

/* Numbers per hidden unit that a step saves besides its state, see cpu/loops/rnn.inc: LSTM i f
   g o c, GRU r z u n. */
static int64_t memory_of(int64_t mode) { return mode == LSTM ? 5 : mode == GRU ? 4 : 0; }

/* in: gx (T, B, gates H), w_hh, b_hh, hx, cx; out: y (T, B, H) and the saved values
   (T, B, memory H). */
dm_status rnn_steps_rule(dm_Call *c) {
  const dm_RnnAttr *a = DM_ATTR(dm_RnnAttr, c);
  const int64_t hidden = c->in[1]->shape[1];
  for (int i = 0; i < 2; i++) dm_out_like(c, i, c->in[0], (dm_DType)c->in[0]->dtype);
  c->out_meta[0].shape[2] = hidden;
  c->out_meta[1].shape[2] = memory_of(a->mode) * hidden;
  if (memory_of(a->mode) == 0) c->n_out = 1;
  return DM_OK;
}

/* in: gy, the saved values' gradient, y, the saved values, w_hh, hx, cx; out: the
   gradients of gx (T, B, gates H), of hx (B, H), and of cx (B, H) for the LSTM or,
   for the GRU, of the state's part of the gates (T, B, 3 H). */
dm_status rnn_steps_backward_rule(dm_Call *c) {
  const dm_RnnAttr *a = DM_ATTR(dm_RnnAttr, c);
  const dm_Tensor *y = c->in[2];
  const int64_t all = n_gates[a->mode] * y->shape[2];
  for (int i = 0; i < 3; i++) dm_out_like(c, i, y, (dm_DType)y->dtype);
  c->out_meta[0].shape[2] = all;
  c->out_meta[2].shape[2] = all;
  for (int i = 1; i < (a->mode == GRU ? 2 : 3); i++) {
    c->out_meta[i].ndim = 2;
    c->out_meta[i].shape[0] = y->shape[1];
    c->out_meta[i].shape[1] = y->shape[2];
  }
  if (a->mode != GRU && a->mode != LSTM) c->n_out = 2;
  return DM_OK;
}

/* Describes the recurrence from y (T, B, H). */
static dm_RnnJob job_of(const dm_RnnAttr *a, const dm_Tensor *y) {
  const int64_t hidden = y->shape[2], memory = memory_of(a->mode);
  return (dm_RnnJob){.kind = (int)a->mode,
                     .reverse = a->reverse != 0,
                     .dtype = (dm_DType)y->dtype,
                     .steps = y->shape[0],
                     .batch = y->shape[1],
                     .hidden = hidden,
                     .gates = n_gates[a->mode],
                     .width = (memory ? memory : 1) * hidden};
}

/* Makes the given inputs contiguous and sets data[i] to their elements; missing ones
   stay NULL. */
static dm_status dense_inputs(const dm_Call *c, dm_Tensor **own, const char **data) {
  for (int i = 0; i < c->n_in; i++) {
    if (!c->in[i]) continue;
    DM_TRY(dm_dense_new(c->in[i], &own[i]));
    data[i] = dm_tensor_data(own[i]);
  }
  return DM_OK;
}

static const dm_RealLoops *loops_of(const dm_RnnJob *j) {
  return j->dtype == DM_F64 ? &dm_loops()->f64 : &dm_loops()->f32;
}

dm_status rnn_steps_cpu(dm_Call *c) {
  dm_Tensor *own[5] = {NULL};
  const char *in[5] = {NULL};
  dm_RnnJob j = job_of(DM_ATTR(dm_RnnAttr, c), c->out[0]);
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_GO(dense_inputs(c, own, in));
  j.x = in[0];
  j.w = in[1];
  j.bias = in[2];
  j.h0 = in[3];
  j.c0 = in[4];
  j.y = dm_tensor_data(c->out[0]);
  j.memory = c->n_out > 1 ? dm_tensor_data(c->out[1]) : NULL;
  st = loops_of(&j)->rnn_forward(&j);
done:
  for (int i = 0; i < 5; i++) dm_tensor_unref(&own[i]);
  return st;
}

dm_status rnn_steps_backward_cpu(dm_Call *c) {
  dm_Tensor *own[7] = {NULL};
  const char *in[7] = {NULL};
  const dm_RnnAttr *a = DM_ATTR(dm_RnnAttr, c);
  dm_RnnJob j = job_of(a, c->in[2]);
  dm_status st = DM_OK;
  if (c->in[2]->numel == 0) return DM_OK;
  DM_GO(dense_inputs(c, own, in));
  j.gy = in[0];
  j.gm = in[1];
  j.y = (char *)(uintptr_t)in[2]; /* the kernel only reads it */
  j.memory = (char *)(uintptr_t)in[3];
  j.w = in[4];
  j.h0 = in[5];
  j.c0 = in[6];
  j.gx = dm_tensor_data(c->out[0]);
  j.gh0 = dm_tensor_data(c->out[1]);
  if (a->mode == LSTM) j.gc0 = dm_tensor_data(c->out[2]);
  if (a->mode == GRU) j.gz = dm_tensor_data(c->out[2]);
  st = loops_of(&j)->rnn_backward(&j);
done:
  for (int i = 0; i < 7; i++) dm_tensor_unref(&own[i]);
  return st;
}

/* ---- the gradient as a composition: for create_graph ---- */

/* The state of the backward recurrence: gh and gc are the gradients of the state
   (NULL: 0), on entry after a step and on exit before it; gx and gz are the
   gradients of the input's and the state's part of the gates' sums. */
typedef struct Back {
  dm_Tensor *gh, *gc, *gx, *gz;
} Back;

static dm_Tensor *plus(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return !a ? b : !b ? a : x_add(x, a, b);
}
/* g times the derivative of the function whose value is s: s (1 - s) for the
   sigmoid, 1 - s^2 for tanh. */
static dm_Tensor *through_sigmoid(dm_X *x, dm_Tensor *g, dm_Tensor *s) {
  return x_mul(x, g, x_sub(x, s, x_mul(x, s, s)));
}
static dm_Tensor *through_tanh(dm_X *x, dm_Tensor *g, dm_Tensor *s) {
  return x_sub(x, g, x_mul(x, g, x_mul(x, s, s)));
}
/* Concatenates n gates along the last dim. */
static dm_Tensor *side_by_side(dm_X *x, int n, dm_Tensor *a, dm_Tensor *b, dm_Tensor *c,
                               dm_Tensor *d) {
  const int64_t dim = -1;
  return dm_x(x, DM_OP_cat, &dim, n, a, b, c, d);
}

/* One LSTM step backward. m: the step's saved values i f g o c, gm their own
   gradient or NULL, before: the cell state c before the step. gc = gc' + gh o (1 -
   tanh(c)^2), then each gate's gradient through its function; f gc goes to the step
   before. */
static Back lstm_step_back(dm_X *x, const Cell *cell, Back b, dm_Tensor *m, dm_Tensor *gm,
                           dm_Tensor *before) {
  dm_Tensor *v[5], *g[5] = {NULL};
  for (int k = 0; k < 5; k++) v[k] = gate(x, cell, m, k);
  for (int k = 0; gm && k < 5; k++) g[k] = gate(x, cell, gm, k);
  dm_Tensor *t = x_tanh(x, v[4]);
  dm_Tensor *gc = plus(x, b.gc, through_tanh(x, x_mul(x, b.gh, v[3]), t));
  gc = plus(x, gc, g[4]);
  dm_Tensor *gi = through_sigmoid(x, plus(x, x_mul(x, gc, v[2]), g[0]), v[0]);
  dm_Tensor *gf = through_sigmoid(x, plus(x, x_mul(x, gc, before), g[1]), v[1]);
  dm_Tensor *gg = through_tanh(x, plus(x, x_mul(x, gc, v[0]), g[2]), v[2]);
  dm_Tensor *go = through_sigmoid(x, plus(x, x_mul(x, b.gh, t), g[3]), v[3]);
  b.gc = x_mul(x, gc, v[1]);
  b.gx = b.gz = side_by_side(x, 4, gi, gf, gg, go);
  b.gh = NULL;
  return b;
}

/* One GRU step backward. m: r z u n with u = W_hn h + b_hn; before: the state h
   before the step. gz = gh (h - n), and with s = gh (1 - z) (1 - n^2): gr = s u, gu
   = s r; z gh goes to the step before. */
static Back gru_step_back(dm_X *x, const Cell *cell, Back b, dm_Tensor *m, dm_Tensor *gm,
                          dm_Tensor *before) {
  dm_Tensor *v[4], *g[4] = {NULL};
  for (int k = 0; k < 4; k++) v[k] = gate(x, cell, m, k);
  for (int k = 0; gm && k < 4; k++) g[k] = gate(x, cell, gm, k);
  dm_Tensor *gn = plus(x, x_sub(x, b.gh, x_mul(x, b.gh, v[1])), g[3]);
  dm_Tensor *s = through_tanh(x, gn, v[3]);
  dm_Tensor *gr = through_sigmoid(x, plus(x, x_mul(x, s, v[2]), g[0]), v[0]);
  dm_Tensor *gz = plus(x, x_mul(x, b.gh, x_sub(x, before, v[3])), g[1]);
  gz = through_sigmoid(x, gz, v[1]);
  b.gx = side_by_side(x, 3, gr, gz, s, NULL);
  b.gz = side_by_side(x, 3, gr, gz, plus(x, x_mul(x, s, v[0]), g[2]), NULL);
  b.gh = x_mul(x, b.gh, v[1]);
  return b;
}

/* One step backward of a plain cell whose result was h. */
static Back plain_step_back(dm_X *x, const Cell *cell, Back b, dm_Tensor *h) {
  b.gx = b.gz =
      cell->kind == TANH
          ? through_tanh(x, b.gh, h)
          : x_mul(x, b.gh, x_like(x, dm_x(x, DM_OP_gt, NULL, 2, h, dm_x_number(x, 0)), h));
  b.gh = NULL;
  return b;
}

/* The backward recurrence over all steps. out: the gradients of gx, hx, cx and of
   the state's part of the gates, as the kernel gives them. In every step gh += gz
   W_hh. */
static void steps_back_composed(dm_Grad *g, dm_Tensor **out) {
  dm_X *x = g->x;
  const dm_RnnAttr *a = g->attr;
  dm_Tensor *y = g->out[0], *memory = g->out[1], *hx = g->in[3], *cx = g->in[4];
  dm_Tensor *gm_all = g->n_out > 1 ? g->gy[1] : NULL;
  const Cell cell = {.kind = (Kind)a->mode, .hidden = y->shape[2], .w_hh = g->in[1]};
  const int64_t n = y->shape[0], dim = 0;
  dm_Tensor *zeros = x_zeros_like(x, at_time(x, y, 0)), **list;
  Back b = {.gh = zeros};
  list = dm_alloc(2 * n * (int64_t)sizeof *list);
  if (!list) x->st = dm_fail(DM_EMEM, "rnn_layer: out of memory");
  for (int64_t i = n - 1; i >= 0 && x->st == DM_OK; i--) {
    const int64_t t = a->reverse ? n - 1 - i : i, before = a->reverse ? t + 1 : t - 1;
    dm_Tensor *h = i > 0 ? at_time(x, y, before) : hx ? hx : zeros;
    dm_Tensor *gm = gm_all ? at_time(x, gm_all, t) : NULL;
    if (g->gy[0]) b.gh = x_add(x, b.gh, at_time(x, g->gy[0], t));
    if (cell.kind == LSTM) {
      dm_Tensor *c = i > 0 ? gate(x, &cell, at_time(x, memory, before), 4) : cx ? cx : zeros;
      b = lstm_step_back(x, &cell, b, at_time(x, memory, t), gm, c);
    } else if (cell.kind == GRU) {
      b = gru_step_back(x, &cell, b, at_time(x, memory, t), gm, h);
    } else {
      b = plain_step_back(x, &cell, b, at_time(x, y, t));
    }
    b.gh = plus(x, b.gh, x_matmul(x, b.gz, cell.w_hh));
    list[t] = b.gx;
    list[n + t] = b.gz;
  }
  for (int i = 0; i < 2 && x->st == DM_OK; i++) {
    dm_Tensor *all = NULL;
    x->st = dm_call(DM_OP_stack, (int)n, list + i * n, &dim, &all);
    out[3 * i] = dm_x_own(x, all);
  }
  dm_free(list);
  out[1] = b.gh;
  out[2] = b.gc;
}

/* Steps from .. to - 1 of t (T, B, C) as rows ((to - from) B, C). */
static dm_Tensor *rows_of(dm_X *x, dm_Tensor *t, int64_t from, int64_t to) {
  if (x->st != DM_OK) return NULL;
  const int64_t part[3] = {0, from, to - from};
  const int64_t shape[2] = {(to - from) * t->shape[1], t->shape[2]};
  return x_reshape(x, dm_x(x, DM_OP_narrow, part, 1, t), 2, shape);
}

/* gW_hh = sum over steps of gz_t^T h_(t-1): one product over all steps but the
   first, plus hx's part for the first. */
static dm_Tensor *weight_grad(dm_X *x, const dm_RnnAttr *a, dm_Tensor *gz, dm_Tensor *y,
                              dm_Tensor *hx) {
  const int64_t n = y->shape[0], late = a->reverse ? 0 : 1, early = 1 - late;
  dm_Tensor *later = rows_of(x, gz, late, n - early), *h = rows_of(x, y, early, n - late);
  dm_Tensor *gw = x_matmul(x, x_transpose(x, later, 0, 1), h);
  if (!hx) return gw;
  dm_Tensor *first = at_time(x, gz, a->reverse ? n - 1 : 0);
  return x_add(x, gw, x_matmul(x, x_transpose(x, first, 0, 1), hx));
}

/* The gradients of gx, w_hh, b_hh, hx and cx, from the kernel or the composition. */
void rnn_steps_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_RnnAttr *a = g->attr;
  dm_Tensor *out[4] = {NULL};
  if (g->create_graph) {
    steps_back_composed(g, out);
  } else {
    dm_Tensor *y = g->out[0], *gm = g->n_out > 1 ? g->gy[1] : NULL;
    dm_Tensor *gy = g->gy[0] ? x_like(x, g->gy[0], y) : NULL;
    dm_Tensor *in[7] = {gy,       gm ? x_like(x, gm, y) : NULL,
                        y,        g->n_out > 1 ? g->out[1] : NULL,
                        g->in[1], g->in[3],
                        g->in[4]};
    if (!x_call(x, DM_OP_rnn_steps_backward, a, 7, in, out)) return;
    out[3] = a->mode == GRU ? out[2] : out[0];
  }
  const dm_Ints all_rows = {2, {0, 1}};
  g->gx[0] = out[0];
  if (g->need[1]) g->gx[1] = weight_grad(x, a, out[3], g->out[0], g->in[3]);
  if (g->need[2]) g->gx[2] = x_sum(x, out[3], all_rows, false);
  if (g->need[3]) g->gx[3] = out[1];
  if (g->need[4]) g->gx[4] = out[2];
}
