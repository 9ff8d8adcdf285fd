/* einsum: operands are contracted from left to right, two at a time, each pair
   as one (batched) matmul of permuted views. Labels are letters; the dims of an
   ellipsis are labels too, 1 for its last dim, 2 for the one before, and so on,
   so that ellipses of different ranks line up from the right. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "op/pointwise/pointwise.h"

enum { N_LABEL = 128, ELLIPSIS = 127 }; /* ELLIPSIS: in a term as written */

typedef struct Term { /* one label a dim */
  int n;
  uint8_t label[DM_MAX_DIM];
} Term;

typedef struct Einsum {
  int n;      /* operands */
  Term *term; /* of each operand */
  Term out;
  int64_t size[N_LABEL]; /* of each label; a 1 gives way */
  int uses[N_LABEL];     /* operands still to come that have the label */
} Einsum;

static bool has(const Term *t, uint8_t label) {
  return t->n > 0 && memchr(t->label, label, (size_t)t->n) != NULL;
}

/* ---- reading the equation ---- */

/* Reads "a...b" up to a comma, an arrow or the end; blanks mean nothing. */
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

/* Puts n ellipsis dims where the mark stands. */
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

/* Spreads operand i's ellipsis over its dims and notes the sizes. */
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

/* Without an arrow: the ellipsis, then the letters that occur once, sorted. */
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

/* ---- contracting ---- */

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

/* Repeated labels: the two dims go in front, become one, and every (n + 1)th
   element of it stays. */
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

/* Sums over the labels that `gone` holds. */
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
  Term batch, left, right, inner; /* both and kept, one and kept, both and not kept */
} Roles;

static bool keeps(const Einsum *e, uint8_t label) {
  return e->uses[label] > 0 || has(&e->out, label);
}

static int64_t dim_of(const dm_Tensor *t, const Term *term, uint8_t label) {
  const uint8_t *p = memchr(term->label, label, (size_t)term->n);
  return t->shape[p - term->label];
}

/* Sorts the labels of a and b. What is needed no more and shared by none, or
   is 1 in one of them, goes into `gone`: it can be summed beforehand. */
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

/* t, with dims in the order of term, as batch dims followed by those of
   `first` as one and of `second` as one. */
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

/* (batch, left, inner) x (batch, inner, right) -> (batch, left, right). */
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

/* (batch, left) x (batch, right), nothing to sum: an elementwise product. */
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

/* a and b as one operand, whose labels go into *ta. */
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
