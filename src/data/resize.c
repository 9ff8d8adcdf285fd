/* Resizes images as Pillow does (its Resample.c): a separable filter, first along one axis,
   then along the other. An output pixel is a weighted mean of the input pixels under the
   filter, which is centred on it and, when the image becomes smaller, stretched to the width of
   an output pixel (antialias). Weights and sums are integers with 22 bits below the point, and
   each pass rounds to 8 bits. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/image.h"

/* Weights have 22 bits below the point: 8 of a sample, 2 for what a bicubic filter
   overshoots, and they fit 32. */
enum { FRACTION_BITS = 32 - 8 - 2 };

/* The bilinear filter, of reach 1. */
static double triangle(double x) {
  x = fabs(x);
  return x < 1 ? 1 - x : 0;
}

/* R. Keys, "Cubic convolution interpolation", 1981, with a = -1/2. */
static double cubic(double x) {
  const double a = -0.5;
  x = fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

/* The weights of one axis: output i is the sum of weights[i * width + k] * input[first[i] +
   k] over k < n[i]. Outputs at an edge have fewer inputs than `width`. */
typedef struct Taps {
  int64_t width; /* the most that an output takes */
  int64_t *first, *n;
  int32_t *weights;
  double *row;
  void *block; /* all of it */
} Taps;

typedef struct Kernel {
  double (*shape)(double);
  double scale, stretch, reach; /* input pixels an output pixel; of the filter */
} Kernel;

/* The filter for n_in -> n_out. Enlarging keeps its width; reducing stretches it by the
   scale. */
static Kernel kernel_of(dm_Filter filter, int64_t n_out, int64_t n_in) {
  const double scale = (double)n_in / (double)n_out, stretch = fmax(scale, 1);
  if (filter == DM_FILTER_BICUBIC) return (Kernel){cubic, scale, stretch, 2 * stretch};
  return (Kernel){triangle, scale, stretch, stretch};
}

/* Computes the weights of output i in double: row[k] belongs to input *first + k; returns
   their number. They are divided by their sum, so that a plane of one value keeps it, also at
   the edges where the filter is cut. */
static int64_t weigh(const Kernel *kernel, int64_t i, int64_t n_in, double *row,
                     int64_t *first) {
  const double center = ((double)i + 0.5) * kernel->scale;
  *first = dm_max_i64((int64_t)(center - kernel->reach + 0.5), 0);
  const int64_t n = dm_min_i64((int64_t)(center + kernel->reach + 0.5), n_in) - *first;
  double sum = 0;
  for (int64_t k = 0; k < n; k++) {
    row[k] = kernel->shape(((double)(k + *first) - center + 0.5) / kernel->stretch);
    sum += row[k];
  }
  for (int64_t k = 0; k < n; k++) row[k] /= sum;
  return n;
}

/* The same weights as a full matrix, which is multiplied with tensors of other dtypes. */
void dm_resize_weights(double *weights, int64_t n_out, int64_t n_in, dm_Filter filter) {
  const Kernel kernel = kernel_of(filter, n_out, n_in);
  memset(weights, 0, (size_t)(n_out * n_in) * sizeof *weights);
  for (int64_t i = 0; i < n_out; i++) {
    double *row = weights + i * n_in;
    int64_t first = 0;
    const int64_t n = weigh(&kernel, i, n_in, row, &first);
    memmove(row + first, row, (size_t)n * sizeof *row);
    memset(row, 0, (size_t)dm_min_i64(first, n) * sizeof *row);
  }
}

static dm_status taps_new(Taps *t, int64_t n_out, int64_t n_in, dm_Filter filter) {
  const Kernel kernel = kernel_of(filter, n_out, n_in);
  t->width = 2 * (int64_t)ceil(kernel.reach) + 1;
  t->block = dm_alloc(8 * t->width + n_out * (16 + 4 * t->width));
  if (!t->block)
    return dm_fail(DM_EMEM, "resize: out of memory for a filter of %lld x %lld weights",
                   (long long)n_out, (long long)t->width);
  t->row = t->block;
  t->first = (int64_t *)(t->row + t->width);
  t->n = t->first + n_out;
  t->weights = (int32_t *)(t->n + n_out);
  for (int64_t i = 0; i < n_out; i++) {
    t->n[i] = weigh(&kernel, i, n_in, t->row, &t->first[i]);
    for (int64_t k = 0; k < t->n[i]; k++) {
      const double w = t->row[k] * (1 << FRACTION_BITS);
      t->weights[i * t->width + k] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
    }
  }
  return DM_OK;
}

/* The sum without its fraction bits, cut to 0 .. 255. Sums begin with HALF, which rounds
   them. */
static uint8_t rounded(int32_t sum) {
  const int32_t v = sum >> FRACTION_BITS;
  return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

enum { HALF = 1 << (FRACTION_BITS - 1), LANES = 64 };

/* The pass along rows: each output pixel sums its inputs of the same row. dst has src's
   height. */
static void resize_columns(const dm_Image *dst, const dm_Image *src, const Taps *t) {
  for (int64_t c = 0; c < dst->channels; c++)
    for (int64_t y = 0; y < dst->height; y++) {
      const uint8_t *from = src->data + c * src->c_step + y * src->h_step;
      uint8_t *to = dst->data + c * dst->c_step + y * dst->h_step;
      for (int64_t x = 0; x < dst->width; x++) {
        const uint8_t *s = from + t->first[x] * src->w_step;
        const int32_t *w = t->weights + x * t->width;
        int32_t sum = HALF;
        for (int64_t k = 0; k < t->n[x]; k++) sum += s[k * src->w_step] * w[k];
        to[x * dst->w_step] = rounded(sum);
      }
    }
}

/* The pass along columns: each output row is a weighted sum of input rows, LANES columns at a
   time, so that the sums stay in registers. dst has src's width. */
static void resize_rows(const dm_Image *dst, const dm_Image *src, const Taps *t) {
  int32_t sum[LANES];
  for (int64_t c = 0; c < dst->channels; c++)
    for (int64_t y = 0; y < dst->height; y++) {
      const uint8_t *from = src->data + c * src->c_step + t->first[y] * src->h_step;
      uint8_t *to = dst->data + c * dst->c_step + y * dst->h_step;
      const int32_t *w = t->weights + y * t->width;
      for (int64_t at = 0; at < dst->width; at += LANES) {
        const int64_t n = dm_min_i64(LANES, dst->width - at);
        for (int64_t x = 0; x < n; x++) sum[x] = HALF;
        for (int64_t k = 0; k < t->n[y]; k++) {
          const uint8_t *s = from + k * src->h_step + at * src->w_step;
          if (src->w_step == 1)
            for (int64_t x = 0; x < n; x++) sum[x] += s[x] * w[k];
          else
            for (int64_t x = 0; x < n; x++) sum[x] += s[x * src->w_step] * w[k];
        }
        for (int64_t x = 0; x < n; x++) to[(at + x) * dst->w_step] = rounded(sum[x]);
      }
    }
}

/* Each output takes the input under its centre. The centres are accumulated by addition, as
   Pillow does, so that a tie falls to the same side. */
void dm_resize_nearest(int64_t *at, int64_t n_out, int64_t n_in) {
  const double step = (double)n_in / (double)n_out;
  double middle = step * 0.5;
  for (int64_t i = 0; i < n_out; i++, middle += step)
    at[i] = dm_min_i64((int64_t)middle, n_in - 1);
}

/* Nearest: both axes' source positions once, then one copy a pixel. */
static dm_status resize_nearest(const dm_Image *dst, const dm_Image *src) {
  int64_t *column = dm_alloc((dst->width + dst->height) * (int64_t)sizeof *column);
  if (!column) return dm_fail(DM_EMEM, "resize: out of memory");
  int64_t *const row_at = column + dst->width;
  dm_resize_nearest(column, dst->width, src->width);
  dm_resize_nearest(row_at, dst->height, src->height);
  for (int64_t x = 0; x < dst->width; x++) column[x] *= src->w_step;
  for (int64_t y = 0; y < dst->height; y++) {
    const int64_t row = row_at[y] * src->h_step;
    for (int64_t c = 0; c < dst->channels; c++) {
      const uint8_t *from = src->data + c * src->c_step + row;
      uint8_t *to = dst->data + c * dst->c_step + y * dst->h_step;
      for (int64_t x = 0; x < dst->width; x++) to[x * dst->w_step] = from[column[x]];
    }
  }
  dm_free(column);
  return DM_OK;
}

/* Whether the height is changed before the width, as Pillow 13 decides: when it falls by more
   than twice what the width does. */
static bool rows_first(const dm_Image *dst, const dm_Image *src) {
  return dst->height < src->height && src->height - dst->height > 2 * (src->width - dst->width);
}

dm_status dm_image_resize(const dm_Image *dst, const dm_Image *src, dm_Filter filter) {
  if (filter == DM_FILTER_NEAREST) return resize_nearest(dst, src);
  dm_status st = DM_OK;
  const bool wider = dst->width != src->width, higher = dst->height != src->height;
  const bool down_first = rows_first(dst, src);
  Taps across = {0}, down = {0};
  uint8_t *bytes = NULL;
  dm_Image between;
  DM_GO(taps_new(&across, dst->width, src->width, filter));
  DM_GO(taps_new(&down, dst->height, src->height, filter));
  if (!wider) {
    resize_rows(dst, src, &down);
  } else if (!higher) {
    resize_columns(dst, src, &across);
  } else {
    between = dm_image_dense(NULL, src->channels, down_first ? dst->height : src->height,
                             down_first ? src->width : dst->width);
    bytes = between.data = dm_alloc(between.channels * between.c_step);
    if (!bytes) {
      st = dm_fail(DM_EMEM, "resize: out of memory for an image of %lld x %lld",
                   (long long)between.height, (long long)between.width);
      goto done;
    }
    if (down_first) resize_rows(&between, src, &down);
    else resize_columns(&between, src, &across);
    if (down_first) resize_columns(dst, &between, &across);
    else resize_rows(dst, &between, &down);
  }
done:
  dm_free(bytes);
  dm_free(across.block);
  dm_free(down.block);
  return st;
}
