/* The table itself, joined from ops.def and the functions of src/op; and the
   signatures, parsed once from the rows' text.

   A signature reads "x, weight, bias?; stride:pair=1, dim:dim": tensors, then
   attributes. After a tensor's name: ? optional, # a host number will do,
   ... a list. After an attribute: its kind, for an enum its words, and its
   default; without a default it is required. */
#include "engine/op.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define NO_RULE NULL
#define NO_KERNEL NULL
#define NO_COMPOSE NULL
#define NO_GRAD NULL
static dm_Signature signatures[DM_N_OP];

const dm_OpInfo dm_ops[DM_N_OP] = {
#define OP(NAME, N_OUT, SIG, RULE, CPU_FN, CUDA_FN, COMPOSE, GRAD, SAVE, CPU, CUDA, FLAGS, LO, \
           HI, DOC)                                                                            \
  {#NAME, SIG,  DOC,   N_OUT,       RULE, CPU_FN, COMPOSE,                                     \
   GRAD,  SAVE, FLAGS, {CPU, CUDA}, LO,   HI,     &signatures[DM_OP_##NAME]},
#include "engine/rows.inc"
};

static const struct {
  const char *word;
  uint8_t kind, bytes;
} kinds[] = {
    {"int", A_INT, 8},
    {"num", A_NUM, 8},
    {"bool", A_BOOL, 8},
    {"dtype", A_DTYPE, 8},
    {"device", A_DEVICE, 8},
    {"enum", A_ENUM, 8},
    {"dim", A_DIM, 8},
    {"pos", A_POS, 8},
    {"str", A_STR, 8},
    {"optnum", A_OPTNUM, sizeof(dm_OptNum)},
    {"optdim", A_OPTDIM, sizeof(dm_OptInt)},
    {"one", A_ONE, 8},
    {"pair", A_PAIR, 16},
    {"triple", A_TRIPLE, 24},
    {"dims", A_DIMS, sizeof(dm_Ints)},
    {"sizes", A_SIZES, sizeof(dm_Ints)},
};

static bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Copies the word at *s (letters, digits, _) and steps over it and blanks. */
static void take_word(const char **s, char *dst, size_t capacity) {
  size_t n = 0;
  while (**s == ' ') (*s)++;
  while (is_word(**s)) {
    if (n + 1 < capacity) dst[n++] = **s;
    (*s)++;
  }
  dst[n] = 0;
}

static void parse_attr(dm_Signature *g, const char **s) {
  dm_AttrSpec *a = &g->attr[g->n_attr];
  char word[16];
  take_word(s, a->name, sizeof a->name);
  (*s)++; /* : */
  take_word(s, word, sizeof word);
  int k = 0;
  while (strcmp(kinds[k].word, word) != 0) k++;
  a->kind = kinds[k].kind;
  if (**s == '(') {
    const char *end = strchr(*s, ')');
    assert((size_t)(end - *s) <= sizeof a->choices);
    memcpy(a->choices, *s + 1, (size_t)(end - *s - 1));
    *s = end + 1;
  }
  a->required = **s != '=';
  if (a->required) g->required = (uint16_t)(g->required | 1u << g->n_attr);
  const bool none = a->kind == A_DTYPE || a->kind == A_DEVICE;
  a->def = none || a->kind == A_DIMS || a->kind == A_SIZES ? -1 : 0;
  if (!a->required) {
    (*s)++;
    if (a->kind == A_ENUM) {
      char choice[24];
      take_word(s, choice, sizeof choice);
      const char *at = strstr(a->choices, choice);
      for (const char *p = a->choices; p < at; p++) a->def += *p == '|';
    } else if (strncmp(*s, "none", 4) == 0) {
      *s += 4;
    } else {
      char *end;
      a->def = strtod(*s, &end);
      *s = end;
    }
  }
  a->offset = g->attr_bytes;
  g->attr_bytes = (uint16_t)(g->attr_bytes + kinds[k].bytes);
  if (a->kind == A_DTYPE && strcmp(a->name, "dtype") == 0) g->dtype_attr = (int8_t)g->n_attr;
  g->n_attr++;
}

static void parse_signature(const char *s, dm_Signature *g) {
  g->dtype_attr = -1;
  bool attrs = false;
  while (*s) {
    if (*s == ',' || *s == ' ') s++;
    else if (*s == ';') attrs = true, s++;
    else if (attrs) parse_attr(g, &s);
    else {
      take_word(&s, g->tensor[g->n_tensor], sizeof g->tensor[0]);
      bool optional = false;
      for (; *s == '?' || *s == '#' || *s == '.'; s++) {
        if (*s == '?') optional = true;
        if (*s == '#') g->number_ok[g->n_tensor] = true;
        if (*s == '.') g->list = true;
      }
      g->n_tensor++;
      if (!optional) g->n_required = g->n_tensor;
    }
  }
}

__attribute__((constructor)) static void parse_all(void) {
  for (int i = 0; i < DM_N_OP; i++) parse_signature(dm_ops[i].sig, &signatures[i]);
}

void dm_op_defaults(const dm_OpInfo *op, void *attr) {
  const dm_Signature *g = op->signature;
  for (int i = 0; i < g->n_attr; i++) {
    const dm_AttrSpec *a = &g->attr[i];
    void *p = (char *)attr + a->offset;
    switch ((dm_AttrKind)a->kind) {
    case A_NUM: *(double *)p = a->def; break;
    case A_STR: *(const char **)p = ""; break;
    case A_OPTNUM: *(dm_OptNum *)p = (dm_OptNum){0, 0}; break;
    case A_OPTDIM: *(dm_OptInt *)p = (dm_OptInt){0, 0}; break;
    case A_ONE:
    case A_PAIR:
    case A_TRIPLE:
      for (int k = 0; k <= a->kind - A_ONE; k++) ((int64_t *)p)[k] = (int64_t)a->def;
      break;
    case A_DIMS:
    case A_SIZES: *(dm_Ints *)p = (dm_Ints){-1, {0}}; break;
    default: *(int64_t *)p = (int64_t)a->def;
    }
  }
}

/* By name, from a sorted index that is built once. */
static uint16_t by_name[DM_N_OP];
static pthread_once_t sorted = PTHREAD_ONCE_INIT;

static int order_names(const void *a, const void *b) {
  return strcmp(dm_ops[*(const uint16_t *)a].name, dm_ops[*(const uint16_t *)b].name);
}

static void sort_names(void) {
  for (int i = 0; i < DM_N_OP; i++) by_name[i] = (uint16_t)i;
  qsort(by_name, DM_N_OP, sizeof by_name[0], order_names);
}

int dm_op_find(const char *name) {
  pthread_once(&sorted, sort_names);
  int lo = 0, hi = DM_N_OP - 1;
  while (lo <= hi) {
    const int mid = (lo + hi) / 2, c = strcmp(name, dm_ops[by_name[mid]].name);
    if (c == 0) return by_name[mid];
    if (c < 0) hi = mid - 1;
    else lo = mid + 1;
  }
  return -1;
}

dm_status dm_check_ndim(const dm_Call *c, int i, const char *name, int ndim) {
  if (c->in[i]->ndim == ndim) return DM_OK;
  return dm_fail(DM_EARG, "%s: %s has shape %s, wanted %d dim%s", c->op->name, name,
                 DM_SHAPE(c->in[i]), ndim, ndim == 1 ? "" : "s");
}

dm_status dm_check_dim(const dm_Call *c, const dm_Tensor *t, int64_t dim, int *out) {
  const int64_t n = t->ndim > 0 ? t->ndim : 1;
  if (dim < -n || dim >= n) {
    const long long shown = (long long)(dim >= 0 ? dim + c->base : dim);
    return dm_fail(
        DM_EARG,
        "%s: dim %lld is out of range for shape %s (wanted %d to %lld, or -%lld to -1)",
        c->op->name, shown, DM_SHAPE(t), c->base, (long long)(n - 1 + c->base), (long long)n);
  }
  *out = (int)(dim < 0 ? dim + n : dim);
  return DM_OK;
}

dm_status dm_check_float(const dm_Call *c, const dm_Tensor *t, const char *what) {
  if (dm_is_float((dm_DType)t->dtype)) return DM_OK;
  return dm_fail(DM_EARG, "%s: %s is %s, wanted a float dtype; hint: x:to(\"float32\")",
                 c->op->name, what, dm_dtype_name((dm_DType)t->dtype));
}
