/* Recurrent networks: one step of each kind of cell, and one layer in one
   direction over all time steps. H is the hidden size, B the batch, F the input's
   features; weights have a block of H rows for each gate, in PyTorch's order:
   i f g o (LSTM: Hochreiter & Schmidhuber 1997, with Gers et al.'s forget gate),
   r z n (GRU: Cho et al. 2014). */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "op/pointwise.h"

typedef enum Kind { TANH, RELU, LSTM, GRU } Kind; /* the words of rnn_layer's mode */

static const int64_t n_gates[] = {1, 1, 4, 3};

typedef struct Cell {
  Kind kind;
  int64_t hidden;
  dm_Tensor *w_ih, *w_hh, *b_ih, *b_hh; /* (gates H, F), (gates H, H), (gates H) or NULL */
} Cell;

typedef struct State {
  dm_Tensor *h, *c; /* (B, H) or (H); c is the LSTM's */
} State;

/* ---- checks ---- */

static dm_Tensor *input(const dm_Call *c, int i) { return i < c->n_in ? c->in[i] : NULL; }

/* Input i, where it is given, has the shape {rows, columns}, or {columns} alone. */
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

/* The cell whose w_ih, w_hh, b_ih, b_hh are the inputs from `at` on. */
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

/* Gate k of (..., gates H). */
static dm_Tensor *gate(dm_X *x, const Cell *cell, dm_Tensor *t, int k) {
  if (x->st != DM_OK) return NULL;
  const int64_t part[3] = {t->ndim - 1, k * cell->hidden,
                           cell->hidden}; /* dim, start, length */
  return dm_x(x, DM_OP_narrow, part, 1, t);
}

static dm_Tensor *x_sigmoid(dm_X *x, dm_Tensor *t) { return x_unary(x, DM_OP_sigmoid, t); }
static dm_Tensor *x_tanh(dm_X *x, dm_Tensor *t) { return x_unary(x, DM_OP_tanh, t); }

/* c' = f c + i g, h' = o tanh(c') */
static State lstm_step(dm_X *x, const Cell *cell, dm_Tensor *gates, dm_Tensor *c) {
  dm_Tensor *i = x_sigmoid(x, gate(x, cell, gates, 0));
  dm_Tensor *f = x_sigmoid(x, gate(x, cell, gates, 1));
  dm_Tensor *g = x_tanh(x, gate(x, cell, gates, 2));
  dm_Tensor *o = x_sigmoid(x, gate(x, cell, gates, 3));
  dm_Tensor *next = x_add(x, x_mul(x, f, c), x_mul(x, i, g));
  return (State){x_mul(x, o, x_tanh(x, next)), next};
}

/* n = tanh(gx_n + r gh_n), h' = (1 - z) n + z h */
static State gru_step(dm_X *x, const Cell *cell, dm_Tensor *gx, dm_Tensor *gh, dm_Tensor *h) {
  dm_Tensor *r = x_sigmoid(x, x_add(x, gate(x, cell, gx, 0), gate(x, cell, gh, 0)));
  dm_Tensor *z = x_sigmoid(x, x_add(x, gate(x, cell, gx, 1), gate(x, cell, gh, 1)));
  dm_Tensor *inner = x_mul(x, r, gate(x, cell, gh, 2));
  dm_Tensor *n = x_tanh(x, x_add(x, gate(x, cell, gx, 2), inner));
  return (State){x_add(x, n, x_mul(x, z, x_sub(x, h, n))), NULL};
}

/* The state after s. gx is the input's share of the gates: x w_ih^T + b_ih. */
static State step(dm_X *x, const Cell *cell, dm_Tensor *gx, State s) {
  dm_Tensor *gh = x_linear(x, s.h, cell->w_hh, cell->b_hh);
  if (cell->kind == GRU) return gru_step(x, cell, gx, gh, s.h);
  dm_Tensor *gates = x_add(x, gx, gh);
  if (cell->kind == LSTM) return lstm_step(x, cell, gates, s.c);
  return (State){x_unary(x, cell->kind == TANH ? DM_OP_tanh : DM_OP_relu, gates), NULL};
}

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

typedef struct LayerAttr {
  int64_t mode, reverse;
} LayerAttr;

enum { LAYER_HX = 5, LAYER_CX = 6 }; /* after x, w_ih, w_hh, b_ih, b_hh */

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

static dm_Tensor *at_time(dm_X *x, dm_Tensor *t, int64_t i) {
  const int64_t where[2] = {0, i}; /* dim, index */
  return dm_x(x, DM_OP_select, where, 1, t);
}

/* hx and cx, or zeros. */
static State first_state(const dm_Call *c, dm_X *x, const Cell *cell, dm_Tensor *gx) {
  State s = {input(c, LAYER_HX), input(c, LAYER_CX)};
  dm_Tensor *zeros = NULL;
  if (!s.h || (cell->kind == LSTM && !s.c))
    zeros = x_zeros_like(x, gate(x, cell, at_time(x, gx, 0), 0));
  if (!s.h) s.h = zeros;
  if (cell->kind == LSTM && !s.c) s.c = zeros;
  return s;
}

/* The input's share of the gates is one product over all time steps. */
dm_status rnn_layer_compose(dm_Call *c, dm_X *x) {
  const LayerAttr *a = DM_ATTR(LayerAttr, c);
  Cell cell;
  DM_TRY(check_layer(c, (Kind)a->mode, &cell));
  const int64_t n = c->in[0]->shape[0], dim = 0;
  dm_Tensor *gx = x_linear(x, c->in[0], cell.w_ih, cell.b_ih), *y = NULL;
  State s = first_state(c, x, &cell, gx);
  dm_Tensor **h = dm_alloc((int64_t)sizeof *h * n); /* of each time step */
  if (!h) return dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
  for (int64_t i = 0; i < n && x->st == DM_OK; i++) {
    const int64_t t = a->reverse ? n - 1 - i : i;
    s = step(x, &cell, at_time(x, gx, t), s);
    h[t] = s.h;
  }
  if (x->st == DM_OK) x->st = dm_call(DM_OP_stack, (int)n, h, &dim, &y);
  dm_free(h);
  c->n_out = cell.kind == LSTM ? 3 : 2;
  c->out[0] = dm_x_own(x, y);
  c->out[1] = s.h;
  c->out[2] = s.c;
  return x->st;
}
