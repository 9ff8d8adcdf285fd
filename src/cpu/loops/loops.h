/* The inner loops of the ops that vector units speed up, as a table of functions. loops.inc
   has them once, in plain C and GCC's vectors, and is compiled three times: for any processor
   (loops.c), for AVX2 (loops_avx2.c) and for AVX512 (loops_avx512.c). dm_loops() is the widest
   table that the processor runs.

   All tables give the same bits, except where functions of cpu/vmath.h come in: those fuse
   multiply-adds where the processor can. A kernel of src/op walks the tensors, converts dtypes
   and shares work among threads; a loop here gets a job, a struct of plain pointers and sizes,
   and a range of it. */
#ifndef DM_LOOPS_H
#define DM_LOOPS_H

#include <stdatomic.h>

#include "base/along.h"
#include "base/distance.h"
#include "base/pair.h"
#include "base/rng.h"
#include "base/step.h"
#include "base/triple.h"
#include "cpu/loops/block.h"
#include "cpu/loops/fft_pass.h"
#include "cpu/loops/reduce.h"
#include "cpu/threads.h"

/* ---- the jobs ---- */

/* softmax: slices of x (in backward of the forward's result) to y. log_sums: each slice's
   logarithm of the sum of exponentials, to y (slices); of slices that lie side by side. */
typedef struct dm_SliceJob {
  dm_Along at;
  dm_DType from, to;
  const char *x, *gy;
  char *y;
  bool log, log_sums;
  atomic_bool failed; /* out of memory */
} dm_SliceJob;

/* Slices worked on at once as columns, where dm_side_by_side says so: they are not contiguous
   and enough to fill vectors. A range begins at a multiple of them. */
enum { DM_COLUMNS = 128, DM_LEAST_COLUMNS = 16 };
static inline bool dm_side_by_side(const dm_Along *a) {
  return a->inner > 1 && dm_along_slices(a) >= DM_LEAST_COLUMNS;
}

/* layer_norm, group_norm, rms_norm: n_rows rows of len elements; row i belongs to group
   i % groups, and each weight holds for `inner` neighbouring elements. */
typedef struct dm_RowJob {
  int64_t n_rows, len, groups, inner, n_affine;
  double eps;
  bool about_zero; /* rms_norm: 0 stands for the mean */
  dm_DType dtype, gy_dtype;
  const char *x, *gy;
  char *y;            /* the output, or gx */
  const void *w, *b;  /* in the compute type; both or none */
  double *gw, *gb;    /* (units, n_affine) */
  int64_t rows_per;   /* rows of a unit */
  atomic_bool failed; /* out of memory */
} dm_RowJob;

/* batch_norm: x (N,C,inner) by channel, n_run runs of `run` elements; or vectors x (N,C), one
   run whose elements lie n_channel apart. */
typedef struct dm_ChannelJob {
  int64_t n_channel, n_run, run, run_step, channel_step;
  double eps;
  bool training, relu;
  double top;   /* of relu: the most that it gives; backward: a norm from it on is cut */
  double floor; /* backward of relu: a norm up to it is 0 once it is rounded to x's dtype */
  dm_DType dtype, gy_dtype;
  const char *x, *gy;
  char *y; /* the output, or gx */
  const void *w, *b;
  void *mean, *var, *invstd, *gw, *gb;
  /* vectors: rows of a part, and two sums of each part and channel, (parts, 2, C) */
  int64_t rows_per;
  double *parts;
} dm_ChannelJob;

/* cross_entropy: row i of x starts at element i / inner * c * inner + i % inner. */
typedef struct dm_CrossJob {
  dm_LossRows r;
  dm_DType dtype;
  const char *x;
  char *out;            /* the gradient; NULL: losses are wanted */
  const int64_t *label; /* -1: ignored */
  const double *weight; /* of each class; NULL: all 1 */
  double weight_sum, smoothing;
  double *row;        /* each row's loss, or its upstream gradient */
  atomic_bool failed; /* out of memory */
} dm_CrossJob;

/* Updates of n elements of the lanes x (weight, gradient, buffers), as optim.c says. */
typedef void dm_UpdateFn(void *const *x, int64_t n, const void *how);

/* An optimizer's READY and, for `run`, its ELEMENT (base/methods.inc). how: the constants
   of the method and type, of at most DM_CONSTANT_BYTES. */
enum { DM_CONSTANT_BYTES = 128 };
typedef struct dm_MethodLoops {
  void (*ready)(const double *options, double t, bool first, double *number, void *how);
  dm_UpdateFn *run;
} dm_MethodLoops;

/* One layer of a recurrent network in one direction; everything dense, of one dtype.
   y (steps, batch, hidden); memory (steps, batch, width), a row as rnn.inc says, or
   for plain cells y itself. */
enum { DM_CELL_TANH, DM_CELL_RELU, DM_CELL_LSTM, DM_CELL_GRU };
typedef struct dm_RnnJob {
  int kind;
  bool reverse;
  dm_DType dtype;
  int64_t steps, batch, hidden, gates, width;
  const char *x;             /* the input's share: (steps, batch, gates hidden) */
  const char *w, *bias;      /* (gates hidden, hidden), (gates hidden) or NULL */
  const char *h0, *c0;       /* (batch, hidden), or NULL: zeros */
  char *y, *memory;          /* results; backward reads them */
  const char *gy, *gm;       /* backward: their gradients, or NULL */
  char *gx, *gz, *gh0, *gc0; /* of x; the state's share (GRU), h0, c0 (LSTM) */
} dm_RnnJob;

enum {
  DM_DISTANCE_ROWS = 4,  /* worked on at once */
  DM_DISTANCE_UNIT = 16, /* of a unit of the gradient, a multiple of that */
  DM_NEAR_TERMS = 32     /* added in the type itself, before float64 */
};

/* Distances of all pairs of rows of two sides of `batch` images, contiguous, with rows of len
   numbers: forward into y, backward the gradient of row_side into y. */
typedef struct dm_DistanceJob {
  dm_DistanceKind kind;
  bool triangle; /* both sides are one: the pairs i < j alone, one behind the other */
  double p;
  int64_t batch, n_row, n_lane, len;
  const void *row_side, *lane_side; /* (batch, n_row, len), (batch, n_lane, len) */
  int64_t y_batch, y_row, y_lane;   /* steps of the distances, and of gy */
  const void *gy, *distance;        /* backward */
  void *y;
  atomic_bool failed; /* out of memory */
} dm_DistanceJob;

/* ---- the table ---- */

/* For float and for double. */
typedef struct dm_RealLoops {
  dm_RangeFn *slices;                                             /* dm_SliceJob */
  dm_RangeFn *rows_forward, *rows_backward;                       /* dm_RowJob */
  dm_RangeFn *channels_train, *channels_eval, *channels_backward; /* dm_ChannelJob */
  /* The same of vectors; of parts, of rows, of parts, of rows. */
  dm_RangeFn *vectors_moments, *vectors_forward, *vectors_sums, *vectors_backward;
  dm_RangeFn *cross_rows;                             /* dm_CrossJob */
  dm_RangeFn *distances, *distances_back;             /* dm_DistanceJob */
  int64_t distance_lanes;                             /* rows of a unit of distances */
  void (*attend)(void *scores, int64_t n, void *lse); /* these three: attention.inc */
  void (*attend_again)(void *scores, int64_t n, const void *lse);
  void (*attend_back)(const void *weights, void *gradients, int64_t n, double scale);
  const dm_MethodLoops *methods; /* by dm_Method */
  double (*dot)(dm_DType t, const void *x, dm_DType u, const void *y,
                int64_t n);   /* of a block */
  dm_UpdateFn *scale, *clamp; /* how: a double */
  dm_status (*rnn_forward)(const dm_RnnJob *j);
  dm_status (*rnn_backward)(const dm_RnnJob *j);
} dm_RealLoops;

enum { DM_TAP_LANES = 32, DM_BLOCK_CHANNELS = 16, DM_COPY_BLOCK = 64, DM_FEW_KEYS = 64 };
/* Of an element's bytes, 1 to 8. */
static inline int dm_move_of(int64_t size) {
  return size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
}

typedef struct dm_Loops {
  dm_Pointwise unary[DM_N_OP], unary_back[DM_N_OP]; /* ops of the UNARY rows */
  dm_Pointwise pair[DM_N_PAIR], triple[DM_N_TRIPLE];
  dm_RealLoops f32, f64;
  /* Times factor, and how many are then beyond top or NaN. */
  int64_t (*unscale)(float *g, int64_t n, float factor, float top);
  double (*sum_squares)(const float *x, int64_t n);
  /* A function of two bools, which are bytes that are 0 or not. */
  void (*truth)(const uint8_t *const *in, uint8_t *out, int64_t n, const dm_Truth *truth);
  /* Dropout: word i of w as a uniform number below p drops x[i]; else x[i] keep. */
  void (*drop)(const uint32_t *w, const float *x, int64_t n, float p, float keep, float *y);
  void (*philox_words)(dm_Generator g, uint64_t counter, int64_t n, uint32_t *out);
  /* Normal numbers of n words, n even; the same bits in all tables (base/normal.h). */
  void (*normal)(const uint32_t *w, int64_t n, float *v);
  dm_FftLoops fft[2]; /* of float32, and of float64 */
  /* v rounded stochastically; see dm_round_stochastic. */
  void (*round_stochastic)(dm_DType to, const uint32_t *w, int64_t n, float *v);
  dm_ReduceF32 *reduce32[DM_N_REDUCE];
  dm_ReduceF64 *reduce64[DM_N_REDUCE];
  dm_ReduceI64 *reduce_i64[DM_N_REDUCE];     /* NULL: not of integers */
  dm_ReduceColumnsF32 *columns[DM_N_REDUCE]; /* NULL: none */
  dm_ReduceColumnsI64 *columns_i64[DM_N_REDUCE];
  dm_SumRows *sum_rows;
  dm_RowLow *row_low;
  /* y (n) += the pieces x[k] of n elements times w[k]; the sums of gy times x[k]
     join sum (n_tap, DM_TAP_LANES), lane by lane */
  void (*taps)(const float *const *x, const float *w, int64_t n_tap, int64_t n, float *y);
  void (*tap_dots)(const float *const *x, const float *gy, const int32_t *mask, int64_t n_tap,
                   int64_t n, double *sum);
  void (*copy_rows)(const float *from, int64_t from_step, int64_t stride, int64_t rows,
                    int64_t n, float *to, int64_t to_step);
  /* A block holds DM_BLOCK_CHANNELS numbers a position, of which n_channel are wanted.
     to_block: element k < n of channel c, from[c * step + k], goes to to[at[k] + c], and back:
     to[c * step + k] = from[k * DM_BLOCK_CHANNELS + c]. */
  void (*to_block)(const float *from, int64_t step, int n_channel, int64_t n, const int32_t *at,
                   float *to);
  void (*from_block)(const float *from, int64_t n, int n_channel, float *to, int64_t step);
  /* y[i * y_step] = start + the sum over taps k of w[k] * x[i * x_step + at[k]], for i < n, all
     of them vectors of a block; steps and offsets count floats. */
  void (*block_taps)(const float *x, int64_t x_step, const int64_t *at, const float *w,
                     int64_t n_tap, const float *start, int64_t n, float *y, int64_t y_step);
  /* sum[k] += the sum over rows and i < n of g * x[row * x_row + i * x_step + at[k]], where g
     is dense. */
  void (*block_dots)(const float *x, int64_t x_row, int64_t x_step, const int64_t *at,
                     int64_t n_tap, const float *g, int64_t rows, int64_t n, double *sum);
  /* n >= DM_COPY_BLOCK bytes, which do not overlap. */
  void (*copy_long)(char *to, const char *from, int64_t n);
  /* Adds to below[i] how many of n rising edges are less than key[i]; right: less or equal. */
  void (*edges_below)(const uint64_t *edge, int64_t n, bool right, const uint64_t *key,
                      int64_t m, int64_t *below);
  /* How many of n <= DM_FEW_KEYS keys are less than each of them; both arrays have space for
     DM_FEW_KEYS. */
  void (*count_less)(const int32_t *key, int64_t n, int32_t *less);
  /* v[i] = from + (first + i each) by in float64, rounded once to float32 or as it is; few. */
  void (*ramp[2])(double from, double by, int64_t first, int each, int64_t n, void *v);
  /* By dm_move_of: n elements, steps apart, of any sign; and a and b in turns. */
  void (*move[4])(void *to, int64_t to_step, const void *from, int64_t from_step, int64_t n);
  /* By dm_move_of: rows of n elements, any steps apart, one behind the other. */
  void (*spread[4])(void *to, const void *from, int64_t row_step, int64_t rows, int64_t step,
                    int64_t n);
  void (*zip[4])(void *to, const void *a, const void *b, int64_t n);
} dm_Loops;

extern const dm_Loops dm_loops_plain;
/* NULL where they are not built. */
const dm_Loops *dm_loops_avx2(void);
const dm_Loops *dm_loops_avx512(void);
const dm_Loops *dm_loops(void);  /* the widest that runs here */
const char *dm_loops_name(void); /* of their vectors: "plain", "avx2", "avx512" */

#endif
