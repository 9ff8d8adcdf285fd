/* Bilinear samples of planes on the CPU, the kernels behind grid_sample: x (N, C, H, W) is read
   at the positions px, py (N, P), counted in elements from 0, for a result (N, C, P). Outside x
   lie zeros, or the nearest elements of the border. The sum over the four elements around a
   point has the order of the composition in grid_sample.c, and its bits.

   A block of points has its taps computed once for all planes of the image. The gradient of x
   is added up plane by plane in the order of the points, those of the positions point by point
   in the order of the planes, so that neither depends on the number of threads. */
#include <string.h>

#include "base/error.h"
#include "cpu/threads.h"
#include "op/pointwise/pointwise.h"

enum {
  BLOCK = 128,   /* points whose taps are computed together */
  GROUP = 8,     /* planes that share them in the gradient of x */
  GRAIN = 8192,  /* samples that are worth a thread */
  MOST = 1 << 30 /* elements of an axis in float32, whose positions are int32 */
};

/* One call; pointers to floats or doubles. */
typedef struct Job {
  const void *x, *px, *py, *gy;
  void *y, *gx, *gpx, *gpy;
  int64_t channels, height, width, points;
  int64_t blocks, groups; /* of an image */
  bool zeros;
} Job;

#define real float
#define word uint32_t
#define index int32_t
#define N(name) name##_f32
#include "op/spatial/sample_planes.inc"
#undef real
#undef word
#undef index
#undef N
#define real double
#define word uint64_t
#define index int64_t
#define N(name) name##_f64
#include "op/spatial/sample_planes.inc"
#undef real
#undef word
#undef index
#undef N

static Job job_of(const dm_Call *c, const dm_Tensor *x, const dm_Tensor *px,
                  const dm_Tensor *py) {
  Job j = {.x = dm_tensor_data(x), .px = dm_tensor_data(px), .py = dm_tensor_data(py)};
  j.channels = x->shape[1], j.height = x->shape[2], j.width = x->shape[3];
  j.points = px->shape[1];
  j.blocks = (j.points + BLOCK - 1) / BLOCK;
  j.groups = (j.channels + GROUP - 1) / GROUP;
  j.zeros = DM_ATTR(dm_SamplePlanesAttr, c)->zeros != 0;
  return j;
}

/* x, px and py are contiguous and of one dtype, float32 or float64: grid_sample makes them. */
dm_status sample_planes_rule(dm_Call *c) {
  dm_Meta *m = &c->out_meta[0];
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  m->channels_last = false;
  m->ndim = 3;
  m->shape[2] = c->in[1]->shape[1];
  return DM_OK;
}
static dm_status check_axes(const dm_Tensor *x) {
  if (x->dtype == DM_F64 || (x->shape[2] <= MOST && x->shape[3] <= MOST)) return DM_OK;
  return dm_fail(DM_EARG,
                 "grid_sample: planes of %s in float32, wanted at most %lld elements "
                 "along a dim; hint: x:double()",
                 DM_SHAPE(x), (long long)MOST);
}
dm_status sample_planes_cpu(dm_Call *c) {
  const dm_Tensor *x = c->in[0];
  DM_TRY(check_axes(x));
  Job j = job_of(c, x, c->in[1], c->in[2]);
  j.y = dm_tensor_data(c->out[0]);
  dm_parallel_for(x->shape[0] * j.blocks, dm_max_i64(1, GRAIN / BLOCK / (j.channels + 1)),
                  x->dtype == DM_F64 ? sample_f64 : sample_f32, &j);
  return DM_OK;
}

/* out: like x, px and py. */
dm_status sample_planes_backward_rule(dm_Call *c) {
  for (int i = 0; i < 3; i++) dm_out_like(c, i, c->in[1 + i], (dm_DType)c->in[1]->dtype);
  return DM_OK;
}
dm_status sample_planes_backward_cpu(dm_Call *c) {
  const dm_Tensor *x = c->in[1];
  const bool wide = x->dtype == DM_F64;
  DM_TRY(check_axes(x));
  Job j = job_of(c, x, c->in[2], c->in[3]);
  j.gy = dm_tensor_data(c->in[0]);
  j.gx = dm_tensor_data(c->out[0]);
  j.gpx = dm_tensor_data(c->out[1]);
  j.gpy = dm_tensor_data(c->out[2]);
  if (x->numel > 0) memset(j.gx, 0, (size_t)(x->numel * dm_dtype_size((dm_DType)x->dtype)));
  dm_parallel_for(x->shape[0] * j.groups, dm_max_i64(1, GRAIN / GROUP / (j.points + 1)),
                  wide ? scatter_f64 : scatter_f32, &j);
  dm_parallel_for(x->shape[0] * j.blocks, dm_max_i64(1, GRAIN / BLOCK / (j.channels + 1)),
                  wide ? slopes_f64 : slopes_f32, &j);
  return DM_OK;
}
