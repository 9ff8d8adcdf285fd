/* An op is one row of src/ops. A row's functions live in src/op (rule, CPU kernel,
   gradient); the linker joins them to the table here. call.h says how an op is called. */
#ifndef DM_OP_H
#define DM_OP_H

#include "base/op_id.h"
#include "core/tensor.h"
#include "engine/state.h"

enum { DM_MAX_IN = 8, DM_MAX_OUT = 4, DM_MAX_ATTR = 12 };

/* Autocast's policies, in PyTorch's words: unlisted, lower_precision_fp, fp32,
   fp32_set_opt_dtype, promote, banned. */
typedef enum dm_Cast { ASIS, LOW, F32, F32OUT, WIDE, BAN } dm_Cast;

/* Which inputs and outputs the gradient reads. C0: input 0, but only for the
   gradient of another input: not kept when no other input wants one. */
enum {
  I0 = 1,
  I1 = 2,
  I2 = 4,
  I3 = 8,
  I4 = 16,
  I5 = 32,
  O0 = 1 << 8,
  O1 = 1 << 9,
  O2 = 1 << 10,
  C0 = 1 << 16,
  C1 = 1 << 17,
  C2 = 1 << 18
};

enum {
  F_INPLACE = 1,   /* has a form with a trailing underscore */
  F_POINTWISE = 2, /* element i of the output needs element i of the inputs only */
  F_ONLY_INPLACE = 4,
  F_VIEW = 8,         /* the rule makes the output, sharing storage */
  F_HIDDEN = 16,      /* serves gradients; not offered to scripts */
  F_CREATE = 32,      /* takes no tensor: dtype, device, requires_grad options */
  F_NO_DOUBLE = 64,   /* its gradient has no gradient */
  F_RANDOM = 128,     /* draws numbers: a call may name a generator */
  F_ANY_DEVICE = 256, /* its kernel serves every device, its rule names the outputs' */
  F_ASIDE = 512,      /* outputs but the first are kept for the gradient: no caller gets them */
  F_PLACED = 1024,    /* its rule names the outputs' device, whose kernel runs */
  F_LAYOUT = 2048, /* its outputs are stored as its inputs are: on the CPU, if it is pointwise,
                      in their order of dims; elsewhere channels last when one of them is */
  F_WHOLE = 4096,  /* autocast, where it does not list the op, leaves its inner calls too */
  F_WIDEN = 8192,  /* 16 bits are widened to float32 for its composition, or its gradient */
  F_CHEAP = 16384, /* the tape may compute a large result again: see remake.h */
  F_READS_LOW = 32768, /* autocast to float32 leaves its inputs: dm_AutocastState.widens */
  F_REGION = 65536,    /* a view of consecutive indices of a dim: see regions.h */
  F_SUMS = 131072      /* its gradient adds up, in float32, what belongs to repeated elements */
};

/* The kind of an option in a row, and its C type in the attribute struct. */
typedef enum dm_AttrKind {
  A_INT,    /* int64_t */
  A_NUM,    /* double */
  A_BOOL,   /* int64_t, 0 or 1 */
  A_DTYPE,  /* int64_t, -1: none given */
  A_DEVICE, /* int64_t: type << 8 | index, -1: none given */
  A_ENUM,   /* int64_t: number of the word in choices */
  A_DIM,    /* int64_t, from 0, or negative from the end: a position */
  A_POS,    /* int64_t, likewise: an index along a dim */
  A_STR,    /* const char *, borrowed for the call */
  A_OPTNUM, /* dm_OptNum */
  A_OPTDIM, /* dm_OptInt; a position */
  A_ONE,    /* int64_t[1], of what the next two hold more: sizes along dims */
  A_PAIR,   /* int64_t[2]; one number gives both */
  A_TRIPLE, /* int64_t[3]; likewise */
  A_NUMS,   /* dm_Nums; n = -1: none given */
  A_DIMS,   /* dm_Ints; positions; n = -1: none given */
  A_SIZES   /* dm_Ints; counts or data; n = -1: none given */
} dm_AttrKind;

typedef struct dm_OptNum {
  int64_t set;
  double v;
} dm_OptNum;
typedef struct dm_OptInt {
  int64_t set, v;
} dm_OptInt;
typedef struct dm_Ints {
  int64_t n, v[DM_MAX_DIM];
} dm_Ints;

typedef struct dm_Nums { /* one number stands for a list of any length */
  int64_t n;
  double v[3];
} dm_Nums;

/* A struct of each op's options: dm_NameAttr, or what the row calls it. */
#include "attrs.gen.h"

typedef struct dm_AttrSpec {
  const char *name, *choices; /* "none|mean|sum", or "" */
  double def;
  uint16_t offset; /* bytes into the attribute struct */
  uint8_t kind;
  bool required;
} dm_AttrSpec;

typedef struct dm_Signature {
  uint8_t n_tensor, n_required, n_attr;
  bool list;                 /* the only tensor argument is a list */
  bool number_ok[DM_MAX_IN]; /* a host number may stand there */
  const char *tensor[DM_MAX_IN];
  uint16_t attr_bytes;
  uint16_t required; /* bit k: attribute k has no default */
  int8_t dtype_attr; /* index of an attribute called dtype, or -1 */
  const dm_AttrSpec *attr;
} dm_Signature;

struct dm_OpInfo;

/* One call. in, n_in and attr are the caller's; the rule fills out_meta (or,
   for a view, out); then the engine makes the outputs and runs the kernel. */
typedef struct dm_Call {
  const struct dm_OpInfo *op;
  int n_in, n_out;
  dm_Tensor *const *in; /* an optional input may be NULL */
  const void *attr;
  const dm_Tensor *order; /* the outputs are stored in its order of dims; or NULL */
  dm_Meta out_meta[DM_MAX_OUT];
  dm_Tensor *out[DM_MAX_OUT];
  int base;      /* positions count from here, in tensors and in messages */
  bool recorded; /* the tape will keep this call */
  uint32_t save; /* what the row saves; the rule may take outputs out of it */
} dm_Call;

/* Intermediate results of a composition: freed together at its end; after a
   failure every further step does nothing and gives NULL. */
typedef struct dm_X {
  dm_status st;
  int n, capacity;
  dm_Tensor **own; /* local, or a block when that is full */
  dm_Tensor *local[32];
} dm_X;

/* One node's turn in backward. gy[i] may be NULL (no gradient came); the
   function sets gx[i] where need[i], owned by x, of any shape that broadcasts
   from the input's (the tape sums) and of any float dtype (the tape casts). */
typedef struct dm_Grad {
  const struct dm_OpInfo *op;
  const void *attr;
  int n_in, n_out;
  dm_Tensor *const *gy;
  dm_Tensor **gx;
  const bool *need;
  dm_Tensor **in, *const *out; /* saved ones; others NULL */
  dm_Metas metas;              /* of the inputs */
  dm_Tensor *sum; /* what came for input 0 by other ways, to be changed in place; or NULL */
  bool create_graph;
  bool last; /* the pass drops saved tensors and gy after this, and nobody looks at them */
  dm_X *x;
} dm_Grad;

static inline const dm_Meta *dm_in_meta(const dm_Grad *g, int i) {
  return dm_meta(g->metas, i);
}

/* Tells that the gradient reads saved input i no more: a tensor that was computed again is
   freed. */
static inline void dm_done_with(dm_Grad *g, int i) {
  if (g->in[i]) dm_tensor_unref(&g->in[i]);
}

typedef dm_status dm_RuleFn(dm_Call *c);
typedef dm_status dm_KernelFn(dm_Call *c);
typedef dm_status dm_ComposeFn(dm_Call *c, dm_X *x);
typedef void dm_GradFn(dm_Grad *g);

typedef struct dm_OpInfo {
  const char *name, *sig, *doc;
  int n_out;
  dm_RuleFn *rule;
  dm_KernelFn *kernel; /* the CPU's; other devices register theirs */
  dm_ComposeFn *compose;
  dm_GradFn *grad;
  uint32_t save, flags;
  uint8_t cast[DM_N_DEVICE_TYPE];
  const dm_Signature *signature; /* sig, parsed by the generator */
} dm_OpInfo;

#ifdef DM_BACK_END
extern const dm_OpInfo *dm_ops;
#else
extern const dm_OpInfo dm_ops[DM_N_OP];
#endif

/* One type a column: a typo in a row is a link error, a function of another
   type a compile error. */
#define OP(NAME, N_OUT, SIG, RULE, CPU_FN, CUDA_FN, COMPOSE, GRAD, ...) \
  dm_RuleFn RULE;                                                       \
  dm_KernelFn CPU_FN, CUDA_FN;                                          \
  dm_ComposeFn COMPOSE;                                                 \
  dm_GradFn GRAD;
#include "ops.gen.def"
#undef OP

/* A device as an attribute holds it; none given: the thread state's default. */
static inline int64_t dm_device_code(dm_Device d) { return d.type << 8 | d.index; }
static inline dm_Device dm_device_of(int64_t code) {
  return code < 0 ? dm_thread_state()->device
                  : (dm_Device){(uint8_t)(code >> 8), (uint8_t)code};
}

/* How many outputs a caller gets at most. */
static inline int dm_op_results(const dm_OpInfo *op) {
  return op->flags & F_ASIDE ? 1 : op->n_out;
}
static inline dm_OpId dm_op_id(const dm_OpInfo *op) { return (dm_OpId)(op - dm_ops); }
/* Fills attr (signature's attr_bytes) with the defaults. */
void dm_op_defaults(const dm_OpInfo *op, void *attr);

enum { DM_ATTR_BYTES = 512 };

/* For rules. */
static inline void dm_out_like(dm_Call *c, int i, const dm_Tensor *t, dm_DType dtype) {
  dm_meta_set(&c->out_meta[i], t);
  c->out_meta[i].dtype = (uint8_t)dtype;
}
/* Fails unless input i, called `name` in the message, has ndim dims. */
dm_status dm_check_ndim(const dm_Call *c, int i, const char *name, int ndim);
/* dim (may be negative) of t as 0..ndim-1; a 0-dim tensor counts as one dim. */
dm_status dm_check_dim(const dm_Call *c, const dm_Tensor *t, int64_t dim, int *out);
/* Refuses a number that an integer dtype does not hold, by the name of the call; of a tensor
   only one that stands for a number of the caller's. */
dm_status dm_check_holds(const char *what, dm_DType to, double v);
dm_status dm_check_holds_number(const char *what, dm_DType to, const dm_Tensor *t);
/* Fails unless t is of a float dtype / an integer dtype. */
dm_status dm_check_float(const dm_Call *c, const dm_Tensor *t, const char *what);

/* The attribute struct of a call. The builds under a sanitizer check that the op's own struct
   begins with members of TYPE's types, and that a call has no more tensors than the op's row,
   and abort where it is not so. */
#ifdef DM_CHECK_ATTR
void dm_check_count(const dm_OpInfo *op, int n_in);
const void *dm_checked_attr(const dm_OpInfo *op, const void *attr, const char *layout);
#define DM_ATTR(TYPE, CALL) \
  ((const TYPE *)dm_checked_attr((CALL)->op, (CALL)->attr, DM_LAYOUT_##TYPE))
#else
#define DM_ATTR(TYPE, CALL) ((const TYPE *)(CALL)->attr)
static inline void dm_check_count(const dm_OpInfo *op, int n_in) {
  DM_UNUSED(op), DM_UNUSED(n_in);
}
#endif

#endif
