/* The table itself, joined from the rows of src/ops and the functions of src/op. */
#include "engine/op.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define NO_RULE NULL
#define NO_KERNEL NULL
#define NO_COMPOSE NULL
#define NO_GRAD NULL

#include "signatures.gen.inc"

const dm_OpInfo dm_ops[DM_N_OP] = {
#define OP(NAME, N_OUT, SIG, RULE, CPU_FN, CUDA_FN, COMPOSE, GRAD, SAVE, CPU, CUDA, FLAGS, \
           DOC)                                                                            \
  {#NAME,   SIG,  DOC,  N_OUT, RULE,        CPU_FN,                                        \
   COMPOSE, GRAD, SAVE, FLAGS, {CPU, CUDA}, &signatures[DM_OP_##NAME]},
#include "ops.gen.def"
#undef OP
};

#ifdef DM_CHECK_ATTR
/* layout: the C types of the members that the caller reads, from the first on. */
const void *dm_checked_attr(const dm_OpInfo *op, const void *attr, const char *layout) {
  const char *own = layouts[dm_op_id(op)];
  if (own && strncmp(own, layout, strlen(layout)) == 0) return attr;
  fprintf(stderr, "%s has the attributes %s and is read as %s\n", op->name, own ? own : "none",
          layout);
  abort();
}
void dm_check_count(const dm_OpInfo *op, int n_in) {
  const dm_Signature *g = op->signature;
  if (g->list || n_in <= g->n_tensor) return;
  fprintf(stderr, "%s has %d tensors and is given %d\n", op->name, (int)g->n_tensor, n_in);
  abort();
}
#endif

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
    case A_NUMS: *(dm_Nums *)p = (dm_Nums){-1, {0}}; break;
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

dm_status dm_check_holds(const char *what, dm_DType to, double v) {
  double bounds[2];
  if (dm_holds(to, v, bounds)) return DM_OK;
  return dm_fail(DM_EARG, "%s: %.10g does not fit into %s (%.0f to %.0f)", what, v,
                 dm_dtype_name(to), bounds[0], bounds[1]);
}
dm_status dm_check_holds_number(const char *what, dm_DType to, const dm_Tensor *t) {
  if (!(t->flags & DM_T_NUMBER) || !dm_is_int(to)) return DM_OK;
  const void *const at = dm_tensor_data(t);
  if (t->dtype == DM_F64) return dm_check_holds(what, to, *(const double *)at);
  if (t->dtype != DM_I64 || to == DM_I64) return DM_OK;
  return dm_check_holds(what, to, (double)*(const int64_t *)at);
}

dm_status dm_check_float(const dm_Call *c, const dm_Tensor *t, const char *what) {
  if (dm_is_float((dm_DType)t->dtype)) return DM_OK;
  return dm_fail(DM_EARG, "%s: %s is %s, wanted a float dtype; hint: x:to(\"float32\")",
                 c->op->name, what, dm_dtype_name((dm_DType)t->dtype));
}
