/* The count of what a graph keeps: see kept.h. The nodes behind the root are collected, each
   once, and walked in the order of their creation. */
#include "engine/kept.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/tape.h"

/* A set of addresses: open addressing, at most half full. */
typedef struct Set {
  const void **at;
  int64_t n, capacity;
} Set;

static const void **slot_of(const Set *s, const void *p) {
  uint64_t i = ((uint64_t)(uintptr_t)p * 0x9E3779B97F4A7C15u) >> 20;
  for (;; i++) {
    const void **e = &s->at[i & (uint64_t)(s->capacity - 1)];
    if (!*e || *e == p) return e;
  }
}

static dm_status set_grow(Set *s) {
  Set next = {NULL, s->n, s->capacity ? 4 * s->capacity : 256};
  next.at = dm_alloc_zero((int64_t)sizeof *next.at * next.capacity);
  if (!next.at) return dm_fail(DM_EMEM, "saved_memory: out of memory");
  for (int64_t i = 0; i < s->capacity; i++)
    if (s->at[i]) *slot_of(&next, s->at[i]) = s->at[i];
  dm_free(s->at);
  *s = next;
  return DM_OK;
}

/* *is_new: p was not in the set; it is now. */
static dm_status set_add(Set *s, const void *p, bool *is_new) {
  if (2 * s->n >= s->capacity) DM_TRY(set_grow(s));
  const void **e = slot_of(s, p);
  *is_new = !*e;
  s->n += *is_new;
  *e = p;
  return DM_OK;
}

typedef struct Count {
  Set nodes, storages;
  const dm_Node **list; /* the nodes */
  int64_t n, capacity;  /* of list */
  dm_KeptRow *rows;
  int n_rows, most_rows;
} Count;

static dm_status add_node(Count *c, const dm_Node *n) {
  bool is_new = false;
  if (!n) return DM_OK;
  DM_TRY(set_add(&c->nodes, n, &is_new));
  if (!is_new) return DM_OK;
  if (c->n == c->capacity) {
    const int64_t capacity = c->capacity ? 2 * c->capacity : 256;
    const dm_Node **list = dm_alloc((int64_t)sizeof *list * capacity);
    if (!list) return dm_fail(DM_EMEM, "saved_memory: out of memory");
    if (c->n) memcpy(list, c->list, sizeof *list * (size_t)c->n);
    dm_free(c->list);
    c->list = list;
    c->capacity = capacity;
  }
  c->list[c->n++] = n;
  return DM_OK;
}

static int by_age(const void *a, const void *b) {
  const dm_Node *x = *(const dm_Node *const *)a, *y = *(const dm_Node *const *)b;
  return x->seq < y->seq ? -1 : x->seq > y->seq;
}

/* The name of an operand: an input's in the row's signature, or "result". */
static void name_operand(const dm_Node *n, const dm_Saved *s, char *to, size_t size) {
  const dm_Signature *g = n->op ? n->op->signature : NULL;
  const char *name =
      g && !g->list && s->from >= 0 && s->from < DM_MAX_IN ? g->tensor[s->from] : NULL;
  if (name) snprintf(to, size, "%s", name);
  else if (s->out >= 0) snprintf(to, size, "result%s", s->out > 0 ? ", aside" : "");
  else if (s->from >= 0) snprintf(to, size, "input");
  else snprintf(to, size, "saved");
}

/* The row of this operand, op and dtype; NULL when there is no space for one more. */
static dm_KeptRow *row_of(Count *c, const dm_Node *n, const dm_Saved *s, dm_DType dtype) {
  dm_KeptRow row = {.dtype = dtype};
  snprintf(row.op, sizeof row.op, "%s", dm_node_name(n));
  name_operand(n, s, row.operand, sizeof row.operand);
  for (int i = 0; i < c->n_rows && i < c->most_rows; i++) {
    dm_KeptRow *r = &c->rows[i];
    if (r->dtype == dtype && !strcmp(r->op, row.op) && !strcmp(r->operand, row.operand))
      return r;
  }
  if (c->n_rows++ >= c->most_rows) return NULL;
  c->rows[c->n_rows - 1] = row;
  return &c->rows[c->n_rows - 1];
}

static bool is_leaf(const dm_Node *n, const dm_Saved *s) {
  return s->from >= 0 && s->from < n->n_in && n->in[s->from].leaf;
}

static dm_status count(Count *c, const dm_Node *n, const dm_Saved *s) {
  if (!s->t && !s->remade && !s->replay) return DM_OK;
  const int at = s->out >= 0 ? n->n_in + s->out : s->from;
  const dm_Meta *m = at >= 0 ? dm_meta(n->metas, at) : NULL;
  const dm_DType dtype = (dm_DType)(s->t ? s->t->dtype : m ? m->dtype : DM_F32);
  dm_KeptRow *row = row_of(c, n, s, dtype);
  if (!row) return DM_OK;
  if (s->replay) {
    row->n_checkpoint++;
  } else if (s->remade) {
    row->n_again++;
    row->bytes_again += dm_numel(m->ndim, m->shape) * dm_dtype_size(dtype);
  } else {
    bool is_new = false;
    row->n++;
    DM_TRY(set_add(&c->storages, s->t->storage, &is_new));
    if (is_new && !is_leaf(n, s)) row->bytes += s->t->storage->n_bytes;
  }
  return DM_OK;
}

dm_status dm_kept(dm_Tensor *root, int capacity, dm_KeptRow *rows, int *n) {
  Count c = {.rows = rows, .most_rows = capacity};
  dm_status st = DM_OK;
  if (root->base) DM_GO(dm_refresh_view(root));
  DM_GO(add_node(&c, root->node));
  for (int64_t i = 0; i < c.n; i++) /* the list grows meanwhile */
    for (int k = 0; k < c.list[i]->n_in; k++) DM_GO(add_node(&c, c.list[i]->in[k].node));
  if (c.n) qsort(c.list, (size_t)c.n, sizeof *c.list, by_age);
  for (int64_t i = 0; i < c.n; i++) {
    const dm_Node *node = c.list[i];
    for (int k = 0; k < node->n_saved; k++) DM_GO(count(&c, node, &node->saved_in[k]));
    for (int k = 0; node->saved_out && k < node->n_out; k++)
      DM_GO(count(&c, node, &node->saved_out[k]));
  }
  *n = c.n_rows;
done:
  dm_free(c.nodes.at);
  dm_free(c.storages.at);
  dm_free(c.list);
  return st;
}
