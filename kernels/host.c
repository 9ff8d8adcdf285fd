/* The engine's functions as cuda.so sees them: each calls through the table that dm_backend
   was given. They have the engine's names, so that the headers of src/ work here unchanged and
   the library needs no symbol of the module that opened it. */
#include "kernels/host.h"

#include "base/half.h"
#include "kernels/cuda.h"

static const dm_Engine *engine;
const dm_OpInfo *dm_ops;

/* The module calls it before any other function of the library. The table lies in the module,
   which calls again where it was unloaded and loaded anew. */
void dm_host_open(const dm_Engine *e) {
  engine = e;
  dm_ops = e->ops;
}

/* One definition per row of engine/backend.def. */
#define FN(RESULT, NAME, PARAMETERS, ARGUMENTS) \
  RESULT NAME PARAMETERS { return engine->NAME ARGUMENTS; }
#include "engine/backend.def"
#undef FN

/* Variadic, so it is not in the list. */
dm_status dm_fail(dm_status code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  dm_vfail(code, fmt, ap);
  va_end(ap);
  return code;
}

const uint8_t dm_dtype_sizes[DM_N_DTYPE] = DM_DTYPE_SIZES;

/* The value of a number in host memory, as float64 or int64. */
double dm_host_f64(const dm_Tensor *t) {
  const void *p = dm_tensor_data(t);
  switch ((dm_DType)t->dtype) {
  case DM_F64: return *(const double *)p;
  case DM_F32: return (double)*(const float *)p;
#define ROW(X, E, S, BITS, ...) \
  case DM_##E: return (double)dm_##S##_to_f32(*(const BITS *)p);
    DM_LOW_DTYPES(ROW, )
#undef ROW
  default: return (double)dm_host_i64(t);
  }
}

/* Floats are cut towards zero. */
int64_t dm_host_i64(const dm_Tensor *t) {
  const void *p = dm_tensor_data(t);
  switch ((dm_DType)t->dtype) {
  case DM_BOOL:
  case DM_U8: return *(const uint8_t *)p;
  case DM_I8: return *(const int8_t *)p;
  case DM_I16: return *(const int16_t *)p;
  case DM_I32: return *(const int32_t *)p;
  case DM_I64: return *(const int64_t *)p;
  default: return (int64_t)dm_host_f64(t);
  }
}
