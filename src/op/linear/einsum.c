/* einsum. The equation is parsed into one term (list of labels) per operand and one
   for the result; operands are then contracted from left to right, two at a time, as
   torch.einsum does without opt_einsum.

   For a pair the labels fall into four roles: batch (in both and needed later), left
   (in the first only), right (in the second only) and inner (in both and not needed
   any more). Labels that are needed by nobody else are summed first. The operands
   are permuted to (batch, left, inner) and (batch, inner, right), seen as batched
   matrices, multiplied, and reshaped to (batch, left, right): one matmul per pair,
   which has its gradient. Without inner labels the pair is an elementwise product.

   Labels are letters; the dims of an ellipsis are labels too, 1 for its last dim, 2
   for the one before it, and so on, so that ellipses of different ranks are aligned
   from the right and broadcast. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "op/pointwise/pointwise.h"

enum { N_LABEL = 128, ELLIPSIS = 127 }; /* ELLIPSIS: its mark in a term before it is expanded */

typedef struct Term { /* one label per dim */
  int n;
  uint8_t label[DM_MAX_DIM];
} Term;

typedef struct Einsum {
  int n;      /* operands */
  Term *term; /* of each operand */
  Term out;
  int64_t size[N_LABEL]; /* of each label; sizes of 1 broadcast */
  int uses[N_LABEL];     /* operands not yet contracted that have the label */
} Einsum;

static bool has(const Term *t, uint8_t label) {
  return t->n > 0 && memchr(t->label, label, (size_t)t->n) != NULL;
}

/* ---- parsing the equation ---- */

/* Parses one term such as "a...b" up to a comma, an arrow or the end; blanks are
   ignored. `all` is the whole equation, for messages. */
static dm_status read_term(const char **s, const char *all, Term *t) {
  t->n = 0;
  for (; **s && **s != ',' && **s != '-'; (*s)++) {
    uint8_t label = (uint8_t) * *s;
    if (label == ' ') continue;
    if (strncmp(*s, "...", 3) == 0) {
      label = ELLIPSIS;
      *s += 2;
    } else if (!((label | 32) >= 'a' && (label | 32) <= 'z')) {
      return dm_fail(DM_EARG,
                     "einsum: '%c' in \"%s\", wanted letters, \"...\", \",\" and \"->\"", **s,
                     all);
    }
    if (label == ELLIPSIS && has(t, ELLIPSIS))
      return dm_fail(DM_EARG, "einsum: two ellipses in one term of \"%s\"", all);
    if (t->n == DM_MAX_DIM)
      return dm_fail(DM_EARG, "einsum: a term of \"%s\" has more than %d labels", all,
                     DM_MAX_DIM);
    t->label[t->n++] = label;
  }
  return DM_OK;
}

/* Replaces the ellipsis mark of a term by the labels n, n - 1, ... 1 of its dims. */
static dm_status spread(Term *t, int n, const char *all) {
  Term r = {0, {0}};
  if (!has(t, ELLIPSIS)) return DM_OK;
  if (t->n - 1 + n > DM_MAX_DIM)
    return dm_fail(DM_EARG, "einsum: a term of \"%s\" has more than %d dims", all, DM_MAX_DIM);
  for (int i = 0; i < t->n; i++) {
    if (t->label[i] != ELLIPSIS) r.label[r.n++] = t->label[i];
    else
      for (int d = n; d > 0; d--) r.label[r.n++] = (uint8_t)d;
  }
  *t = r;
  return DM_OK;
}

/* Expands operand i's ellipsis to the dims it stands for, and records the size of
   every label and in how many operands it occurs. Fails when two sizes other than 1
   differ. */
static dm_status bind_operand(const dm_Call *c, Einsum *e, int i, const char *all) {
  Term *t = &e->term[i];
  const dm_Tensor *x = c->in[i];
  const int n_ellipsis = x->ndim - (t->n - 1);
  const bool fits = has(t, ELLIPSIS) ? n_ellipsis >= 0 : t->n == x->ndim;
  if (!fits)
    return dm_fail(DM_EARG, "einsum: operand %d of shape %s has %d dims, \"%s\" names %d",
                   i + c->base, DM_SHAPE(x), x->ndim, all, t->n - has(t, ELLIPSIS));
  DM_TRY(spread(t, n_ellipsis, all));
  for (int d = 0; d < t->n; d++) {
    int64_t *size = &e->size[t->label[d]];
    const int64_t s = x->shape[d];
    if (*size != 1 && s != 1 && *size != s) {
      const char name[2] = {t->label[d] >= 'A' ? (char)t->label[d] : '.', 0};
      return dm_fail(DM_EARG, "einsum: label %s is %lld in operand %d of shape %s, %lld before",
                     name, (long long)s, i + c->base, DM_SHAPE(x), (long long)*size);
    }
    if (s != 1) *size = s;
    if (memchr(t->label, t->label[d], (size_t)d) == NULL) e->uses[t->label[d]]++;
  }
  return DM_OK;
}

/* The result of an equation without an arrow: the ellipsis dims, then the letters
   that occur exactly once, sorted (capitals first). */
static dm_status implied_output(Einsum *e, int n_ellipsis, const char *all) {
  e->out.n = 0;
  for (int d = n_ellipsis; d > 0; d--) e->out.label[e->out.n++] = (uint8_t)d;
  for (int l = 'A'; l <= 'z'; l++) {
    int count = 0;
    for (int i = 0; i < e->n; i++)
      for (int d = 0; d < e->term[i].n; d++) count += e->term[i].label[d] == l;
    if (count != 1) continue;
    if (e->out.n == DM_MAX_DIM)
      return dm_fail(DM_EARG, "einsum: the result of \"%s\" has more than %d dims", all,
                     DM_MAX_DIM);
    e->out.label[e->out.n++] = (uint8_t)l;
  }
  return DM_OK;
}

/* Checks the term after the arrow: its labels occur in an operand, and once in the
   term. */
static dm_status given_output(Einsum *e, int n_ellipsis, const char *all) {
  DM_TRY(spread(&e->out, n_ellipsis, all));
  for (int d = 0; d < e->out.n; d++) {
    const uint8_t l = e->out.label[d];
    if (l < 'A') continue;
    if (e->uses[l] == 0)
      return dm_fail(DM_EARG, "einsum: label %c of the result is in no operand of \"%s\"", l,
                     all);
    if (memchr(e->out.label, l, (size_t)d))
      return dm_fail(DM_EARG, "einsum: label %c is twice in the result of \"%s\"", l, all);
  }
  return DM_OK;
}

/* Parses the equation `all` into e and binds it to the operands of the call. */
static dm_status parse(const dm_Call *c, Einsum *e, const char *all) {
  const char *s = all;
  for (int i = 0; i < N_LABEL; i++) e->size[i] = 1;
  for (int i = 0; i < e->n; i++) {
    DM_TRY(read_term(&s, all, &e->term[i]));
    if (i + 1 < e->n && *s++ != ',')
      return dm_fail(DM_EARG, "einsum: \"%s\" names %d operands, %d given", all, i + 1, e->n);
  }
  if (*s == ',')
    return dm_fail(DM_EARG, "einsum: \"%s\" names more than the %d operands given", all, e->n);
  int n_ellipsis = 0;
  for (int i = 0; i < e->n; i++) {
    const int n = has(&e->term[i], ELLIPSIS) ? c->in[i]->ndim - (e->term[i].n - 1) : 0;
    if (n > n_ellipsis) n_ellipsis = n;
    DM_TRY(bind_operand(c, e, i, all));
  }
  if (*s == 0) return implied_output(e, n_ellipsis, all);
  if (strncmp(s, "->", 2) != 0)
    return dm_fail(DM_EARG, "einsum: a lone '-' in \"%s\", wanted \"->\"", all);
  s += 2;
  DM_TRY(read_term(&s, all, &e->out));
  if (*s) return dm_fail(DM_EARG, "einsum: \"%s\" goes on after its result", all);
  return given_output(e, n_ellipsis, all);
}

/* ---- contraction ---- */

/* t, whose dims are labelled by `from`, permuted to the order of `to`. */
static dm_Tensor *permuted(dm_X *x, dm_Tensor *t, const Term *from, const Term *to) {
  dm_Ints dims = {to->n, {0}};
  bool moves = false;
  for (int d = 0; d < to->n; d++) {
    const uint8_t *p = memchr(from->label, to->label[d], (size_t)from->n);
    dims.v[d] = p - from->label;
    moves |= dims.v[d] != d;
  }
  return moves ? dm_x(x, DM_OP_permute, &dims, 1, t) : t;
}

/* Takes the diagonal of every label that a term repeats ("ii"): the two dims of size
   n move to the front, become one dim of n^2, and every (n + 1)-th element of it
   stays. */
static dm_Tensor *diagonals(dm_X *x, dm_Tensor *t, Term *term) {
  for (int i = 0; i < term->n; i++) {
    for (int j = i + 1; j < term->n && x->st == DM_OK; j++) {
      if (term->label[j] != term->label[i]) continue;
      const int64_t n = t->shape[i];
      if (t->shape[j] != n) {
        x->st = dm_fail(DM_EARG, "einsum: label %c takes a diagonal of %lld by %lld",
                        term->label[i], (long long)n, (long long)t->shape[j]);
        return NULL;
      }
      dm_Ints order = {2, {i, j}};
      Term rest = {1, {term->label[i]}};
      int64_t shape[DM_MAX_DIM] = {n * n};
      for (int d = 0; d < term->n; d++) {
        if (d == i || d == j) continue;
        order.v[order.n++] = d;
        shape[rest.n] = t->shape[d];
        rest.label[rest.n++] = term->label[d];
      }
      t = x_reshape(x, dm_x(x, DM_OP_permute, &order, 1, t), rest.n, shape);
      const int64_t every[4] = {0, 0, n * n - 1, n + 1}; /* dim, start, stop, step */
      if (n > 0) t = dm_x(x, DM_OP_slice, every, 1, t);
      *term = rest;
      return diagonals(x, t, term);
    }
  }
  return t;
}

/* Sums t over the labels in `gone` and removes them from its term. */
static dm_Tensor *summed(dm_X *x, dm_Tensor *t, Term *term, const Term *gone) {
  dm_Ints dims = {0, {0}};
  Term kept = {0, {0}};
  for (int d = 0; d < term->n; d++) {
    if (has(gone, term->label[d])) dims.v[dims.n++] = d;
    else kept.label[kept.n++] = term->label[d];
  }
  *term = kept;
  return dims.n ? x_sum(x, t, dims, false) : t;
}

static void append(Term *t, const Term *more) {
  for (int i = 0; i < more->n; i++) t->label[t->n++] = more->label[i];
}

/* The roles of labels in one contraction. */
typedef struct Roles {
  Term batch, left, right,
      inner; /* in both and kept; in one and kept (two lists); in both and summed */
} Roles;

/* True when a later operand or the result needs the label. */
static bool keeps(const Einsum *e, uint8_t label) {
  return e->uses[label] > 0 || has(&e->out, label);
}

static int64_t dim_of(const dm_Tensor *t, const Term *term, uint8_t label) {
  const uint8_t *p = memchr(term->label, label, (size_t)term->n);
  return t->shape[p - term->label];
}

/* Assigns the labels of a and b to their roles. Labels that nobody needs any more
   and that only one operand has, or that have size 1 in one of them, go into gone_a
   and gone_b: they are summed before the product. */
static void sort_labels(const Einsum *e, const dm_Tensor *a, const Term *ta, const dm_Tensor *b,
                        const Term *tb, Roles *r, Term *gone_a, Term *gone_b) {
  for (int d = 0; d < ta->n; d++) {
    const uint8_t l = ta->label[d];
    const bool shared = has(tb, l), kept = keeps(e, l);
    if (kept) {
      Term *to = shared ? &r->batch : &r->left;
      to->label[to->n++] = l;
    } else if (shared && dim_of(b, tb, l) == a->shape[d]) {
      r->inner.label[r->inner.n++] = l;
    } else {
      gone_a->label[gone_a->n++] = l;
      if (shared) gone_b->label[gone_b->n++] = l;
    }
  }
  for (int d = 0; d < tb->n; d++) {
    const uint8_t l = tb->label[d];
    if (has(ta, l)) continue;
    Term *to = keeps(e, l) ? &r->right : gone_b;
    to->label[to->n++] = l;
  }
}

/* t, whose dims are in the order batch, first, second, as (batch..., m, k): the
   n_first dims become one dim and the remaining ones another. */
static dm_Tensor *as_matrices(dm_X *x, dm_Tensor *t, int n_batch, int n_first) {
  int64_t shape[DM_MAX_DIM];
  if (x->st != DM_OK) return NULL;
  if (n_batch + 2 > DM_MAX_DIM) {
    x->st = dm_fail(DM_EARG, "einsum: a product over %d batch dims, at most %d", n_batch,
                    DM_MAX_DIM - 2);
    return NULL;
  }
  for (int d = 0; d < n_batch; d++) shape[d] = t->shape[d];
  shape[n_batch] = dm_numel(n_first, t->shape + n_batch);
  shape[n_batch + 1] = dm_numel(t->ndim - n_batch - n_first, t->shape + n_batch + n_first);
  return x_reshape(x, t, n_batch + 2, shape);
}

/* (batch..., left..., inner...) x (batch..., inner..., right...) -> (batch...,
   left..., right...), by one batched matmul that sums over the inner dims. */
static dm_Tensor *product(dm_X *x, dm_Tensor *a, dm_Tensor *b, const Roles *r) {
  const int n_batch = r->batch.n;
  int64_t shape[DM_MAX_DIM];
  int n = n_batch;
  if (x->st != DM_OK) return NULL;
  for (int d = 0; d < r->left.n; d++) shape[n++] = a->shape[n_batch + d];
  for (int d = 0; d < r->right.n; d++) shape[n++] = b->shape[n_batch + r->inner.n + d];
  dm_Tensor *y = x_matmul(x, as_matrices(x, a, n_batch, r->left.n),
                          as_matrices(x, b, n_batch, r->inner.n));
  for (int d = 0; d < n_batch && y; d++) shape[d] = y->shape[d];
  return y ? x_reshape(x, y, n, shape) : NULL;
}

/* (batch..., left...) x (batch..., right...) -> (batch..., left..., right...)
   without inner labels: a broadcast elementwise product. */
static dm_Tensor *spread_product(dm_X *x, dm_Tensor *a, dm_Tensor *b, const Roles *r) {
  int64_t shape[DM_MAX_DIM];
  int n = 0;
  if (x->st != DM_OK) return NULL;
  for (; n < a->ndim; n++) shape[n] = a->shape[n];
  for (int d = 0; d < r->right.n; d++) shape[n++] = 1;
  a = x_reshape(x, a, n, shape);
  n = 0;
  for (; n < r->batch.n; n++) shape[n] = b->shape[n];
  for (int d = 0; d < r->left.n; d++) shape[n++] = 1;
  for (int d = 0; d < r->right.n; d++) shape[n++] = b->shape[r->batch.n + d];
  return x_mul(x, a, x_reshape(x, b, n, shape));
}

/* Contracts a (labels *ta) and b (labels *tb) to one operand, whose labels replace
 *ta. */
static dm_Tensor *contract(dm_X *x, const Einsum *e, dm_Tensor *a, Term *ta, dm_Tensor *b,
                           Term *tb) {
  Roles r = {0};
  Term gone_a = {0, {0}}, gone_b = {0, {0}};
  sort_labels(e, a, ta, b, tb, &r, &gone_a, &gone_b);
  if (r.batch.n + r.left.n + r.right.n > DM_MAX_DIM) {
    x->st =
        dm_fail(DM_EARG, "einsum: an intermediate result has more than %d dims", DM_MAX_DIM);
    return NULL;
  }
  a = summed(x, a, ta, &gone_a);
  b = summed(x, b, tb, &gone_b);
  Term left = r.batch, right = r.batch, both = r.batch;
  append(&left, &r.left);
  append(&left, &r.inner);
  append(&right, &r.inner);
  append(&right, &r.right);
  append(&both, &r.left);
  append(&both, &r.right);
  a = permuted(x, a, ta, &left);
  b = permuted(x, b, tb, &right);
  *ta = both;
  return r.inner.n ? product(x, a, b, &r) : spread_product(x, a, b, &r);
}

/* Contracts all operands from left to right, then sums over what the result does not
   have and permutes to its order. */
static dm_Tensor *reduce_all(dm_Call *c, dm_X *x, Einsum *e) {
  dm_Tensor *t = NULL;
  Term have = {0, {0}}, gone = {0, {0}};
  for (int i = 0; i < e->n; i++) {
    Term *term = &e->term[i];
    dm_Tensor *b = diagonals(x, c->in[i], term);
    for (int d = 0; d < term->n; d++) e->uses[term->label[d]]--;
    if (x->st == DM_OK && i > 0) t = contract(x, e, t, &have, b, term);
    else if (i == 0) t = b, have = *term;
    if (x->st != DM_OK) return NULL;
  }
  for (int d = 0; d < have.n; d++)
    if (!has(&e->out, have.label[d])) gone.label[gone.n++] = have.label[d];
  t = summed(x, t, &have, &gone);
  return permuted(x, t, &have, &e->out);
}

dm_status einsum_compose(dm_Call *c, dm_X *x) {
  const char *equation = *(const char *const *)c->attr;
  if (c->n_in == 0) return dm_fail(DM_EARG, "einsum: no operands, wanted one at least");
  Einsum e = {.n = c->n_in};
  e.term = dm_alloc_zero((int64_t)sizeof *e.term * c->n_in);
  if (!e.term) return dm_fail(DM_EMEM, "einsum: out of memory");
  dm_status st = parse(c, &e, equation);
  if (st == DM_OK) {
    c->out[0] = reduce_all(c, x, &e);
    st = x->st;
  }
  dm_free(e.term);
  return st;
}
