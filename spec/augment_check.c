/* Checks src/data/augment.h: any list of transforms on any image ends in a result or a
   refusal, reads and writes only what is its own, and stands memory that runs out, in
   this thread and in a loader's. Numbers are spec/transforms_spec.lua's matter. Meant to
   run under the sanitizers too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "data/augment.h"
#include "data/loader.h"

static int n_passed, n_failed;

static void check_at(bool ok, const char *what, int line) {
  n_passed += ok;
  n_failed += !ok;
  if (!ok) printf("augment_check.c:%d: %s (last error: %s)\n", line, what, dm_error());
}
#define CHECK(cond) check_at((cond), #cond, __LINE__)

static uint64_t seed = 1;
static int64_t below(int64_t n) { return (int64_t)(dm_splitmix64(&seed) % (uint64_t)n); }

/* A range within low and high; now and then one that is none. */
static void any_range(double r[2], double low, double high) {
  const double a = low + (high - low) * (double)below(9) / 8,
               b = low + (high - low) * (double)below(9) / 8;
  r[0] = a < b || below(20) == 0 ? a : b;
  r[1] = a < b ? b : a;
}

static dm_Transform any_transform(void) {
  static const float numbers[8] = {0, 100, 255, 3, 7.5f, 1, 2, 9};
  static const float deviations[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  dm_Transform s = {.kind = (dm_TransformKind)below(DM_TRANSFORM_N_KINDS),
                    .p = (double)below(5) / 4,
                    .height = below(40),
                    .width = below(40),
                    .max_size = below(4) ? 0 : below(60),
                    .pad_mode = (dm_PadMode)below(4),
                    .pad_if_needed = below(2),
                    .filter = (dm_Filter)below(3),
                    .channels = below(2) ? 3 : 1,
                    .adjust = (dm_Adjust)below(DM_ADJUST_N),
                    .much = (double)below(9) / 8,
                    .count = (int)below(4),
                    .magnitude = (int)below(31),
                    .bins = 31,
                    .noise = below(2),
                    .values = numbers,
                    .deviations = deviations,
                    .n_values = (int)(below(3) ? below(2) : 3)};
  for (int i = 0; i < 4; i++) s.pad[i] = below(3) ? 0 : below(30);
  any_range(s.area, 0, 1);
  any_range(s.ratio, 0.1, 5);
  any_range(s.degrees, -400, 400);
  any_range(s.zoom, 0.01, 3);
  any_range(s.shear, -80, 80);
  any_range(s.shear + 2, -80, 80);
  s.move[0] = s.move[1] = (double)below(3) / 2;
  for (int i = 0; i < DM_TRANSFORM_N_JITTER; i++)
    any_range(s.jitter[i], i == 3 ? -0.5 : 0, i == 3 ? 0.5 : 2);
  return s;
}

/* An image in bytes of its own, so that a read outside of them is seen: planes, pixels, or
   upside down and mirrored. */
static dm_Image any_image(void) {
  const int64_t c = below(3) ? 3 : 1 + below(4), h = 1 + below(30), w = 1 + below(30);
  uint8_t *bytes = malloc((size_t)(c * h * w));
  if (!bytes) abort();
  for (int64_t i = 0; i < c * h * w; i++) bytes[i] = (uint8_t)dm_splitmix64(&seed);
  dm_Image p = dm_image_dense(bytes, c, h, w);
  if (below(2)) p.c_step = 1, p.h_step = w * c, p.w_step = c;
  return p;
}

static void check_any_list(void) {
  int n_made = 0, n_applied = 0, n_wrong = 0;
  const int64_t live = dm_alloc_live();
  for (int turn = 0; turn < 20000; turn++) {
    dm_Transform transforms[5];
    const int n = (int)below(DM_COUNT(transforms) + 1);
    for (int i = 0; i < n; i++) transforms[i] = any_transform();
    dm_Augment *a = NULL;
    const dm_status st = dm_augment_new(&a, transforms, n);
    if (st != DM_OK) {
      n_wrong += st != DM_EARG || a != NULL || !*dm_error();
      continue;
    }
    n_made++;
    const dm_Image p = any_image();
    int64_t shape[3] = {p.channels, p.height, p.width};
    if (dm_augment_shape(a, shape) == DM_OK) {
      const int64_t n_out = shape[0] * shape[1] * shape[2];
      const size_t bytes = (size_t)(n_out * dm_dtype_size(dm_augment_dtype(a)));
      void *out = malloc(bytes), *again = malloc(bytes);
      if (!out || !again) abort();
      memset(out, 1, bytes), memset(again, 2, bytes);
      n_wrong += dm_augment_apply(a, &p, (uint64_t)turn, out) != DM_OK;
      n_wrong += dm_augment_apply(a, &p, (uint64_t)turn, again) != DM_OK;
      n_wrong += memcmp(out, again, bytes) != 0; /* all of it written, and alike */
      free(out);
      free(again);
      n_applied++;
    } else {
      n_wrong += dm_augment_apply(a, &p, 0, NULL) != DM_EARG;
    }
    free(p.data);
    dm_augment_free(&a);
  }
  CHECK(n_wrong == 0);
  CHECK(n_made > 1000 && n_applied > 500);
  CHECK(dm_alloc_live() == live);
}

/* ---- transforms that are refused ---- */

/* A list with this one transform is refused with this message. */
static void check_refused(dm_Transform t, const char *message, int line) {
  dm_Augment *a = NULL;
  const dm_status st = dm_augment_new(&a, &t, 1);
  check_at(st == DM_EARG && !a && strstr(dm_error(), message), message, line);
  dm_augment_free(&a);
}
#define REFUSED(message, ...) check_refused((dm_Transform){__VA_ARGS__}, message, __LINE__)

static void check_refusals(void) {
  static const float zero[] = {0};
  REFUSED("no kind has the number 99", .kind = (dm_TransformKind)99);
  REFUSED("numbers for 1 to 64 channels", .kind = DM_TRANSFORM_PAD, .n_values = 65);
  REFUSED("no such padding_mode", .kind = DM_TRANSFORM_PAD, .pad_mode = (dm_PadMode)9);
  REFUSED("no such interpolation", .kind = DM_TRANSFORM_RESIZE, .height = 4,
          .filter = (dm_Filter)9);
  REFUSED("p is a probability", .kind = DM_TRANSFORM_RANDOM_GREY, .p = 2);
  REFUSED("no such adjustment", .kind = DM_TRANSFORM_ADJUST, .p = 1, .adjust = DM_ADJUST_N);
  REFUSED("factors are ranges", .kind = DM_TRANSFORM_JITTER, .jitter = {{2, 1}});
  REFUSED("shear's within -89 to 89", .kind = DM_TRANSFORM_AFFINE, .p = 1,
          .shear = {-90, 90, 0, 0}, .zoom = {1, 1});
  REFUSED("translate is two parts", .kind = DM_TRANSFORM_AFFINE, .p = 1, .zoom = {1, 1},
          .move = {2, 0});
  REFUSED("magnitude 0 to num_magnitude_bins - 1", .kind = DM_TRANSFORM_RAND, .count = 1,
          .magnitude = 31, .bins = 31);
  const dm_Transform by_zero[] = {
      {.kind = DM_TRANSFORM_TO_FLOAT},
      {.kind = DM_TRANSFORM_NORMALIZE, .values = zero, .deviations = zero, .n_values = 1}};
  dm_Augment *a = NULL;
  CHECK(dm_augment_new(&a, by_zero, 2) == DM_EARG && strstr(dm_error(), "std is not 0"));
  CHECK(dm_augment_new(&a, by_zero, -1) == DM_EARG && strstr(dm_error(), "-1 of them"));
}

/* ---- memory that runs out ---- */

static const float mean[] = {0.5f, 0.25f, 0.75f}, std[] = {1, 2, 3};
static const dm_Transform all[] = {
    {.kind = DM_TRANSFORM_PAD, .pad = {1, 2, 3, 4}, .pad_mode = DM_PAD_REFLECT},
    {.kind = DM_TRANSFORM_RESIZED_CROP,
     .height = 9,
     .width = 11,
     .area = {0.2, 0.9},
     .ratio = {0.5, 2},
     .filter = DM_FILTER_BILINEAR},
    {.kind = DM_TRANSFORM_RESIZE, .height = 7, .filter = DM_FILTER_NEAREST},
    {.kind = DM_TRANSFORM_ADJUST, .p = 1, .adjust = DM_ADJUST_SHARPNESS, .much = 2},
    {.kind = DM_TRANSFORM_RANDOM_GREY, .p = 1},
    {.kind = DM_TRANSFORM_AFFINE, .p = 1, .degrees = {9, 9}, .zoom = {1, 1}},
    {.kind = DM_TRANSFORM_RAND, .count = 4, .magnitude = 9, .bins = 31},
    {.kind = DM_TRANSFORM_TO_FLOAT},
    {.kind = DM_TRANSFORM_NORMALIZE, .values = mean, .deviations = std, .n_values = 3},
    {.kind = DM_TRANSFORM_ERASE, .p = 1, .area = {0.1, 0.1}, .ratio = {1, 1}, .noise = true}};

enum { C = 3, H = 12, W = 15, N = 12, OUT = C * 7 * 8 };
static uint8_t pixels[N * C * H * W];

static dm_status make_and_apply(void) {
  float out[OUT];
  const dm_Image p = dm_image_dense(pixels, C, H, W);
  dm_Augment *a = NULL;
  DM_TRY(dm_augment_new(&a, all, DM_COUNT(all)));
  const dm_status st = dm_augment_apply(a, &p, 1, out);
  dm_augment_free(&a);
  return st;
}

static void check_memory_walk(void) {
  const int64_t live = dm_alloc_live();
  int n = 0;
  for (dm_status st = DM_EMEM; st != DM_OK && n < 1000; n++) {
    dm_alloc_fail_at(n + 1, false);
    st = make_and_apply();
    dm_alloc_fail_at(0, false);
    CHECK(st == DM_OK || st == DM_EMEM);
    CHECK(dm_alloc_live() == live);
  }
  CHECK(n > 12 && n < 1000);
}

/* What the loader makes, batch by batch; while `short_at` of them, memory is short. */
static void run_epoch(const dm_Augment *a, int workers, int short_at, float *x) {
  const dm_LoaderColumn col = {
      .data = pixels, .dtype = DM_U8, .row_numel = C * H * W, .augment = a, .shape = {C, H, W}};
  const dm_LoaderSpec spec = {
      .columns = &col, .n_columns = 1, .n_samples = N, .batch_size = 4, .num_workers = workers};
  int64_t order[N], n_rows = 0;
  dm_LoaderBuffer b;
  dm_LoaderState state = DM_LOADER_BATCH;
  dm_Loader *l = NULL;
  for (int i = 0; i < N; i++) order[i] = i;
  CHECK(dm_loader_new(&l, &spec) == DM_OK);
  CHECK(dm_loader_epoch(l, 1, order, N) == DM_OK);
  for (int i = 0; i < 3; i++) {
    if (i == short_at) {
      /* workers may have been quicker: then nothing fails but the memory of batches to come */
      dm_alloc_fail_at(1, true);
      const dm_status st = dm_loader_next(l, &b, &n_rows, &state);
      dm_alloc_fail_at(0, false);
      if (st == DM_OK) goto made;
      CHECK(st == DM_EMEM && strstr(dm_error(), "out of memory") != NULL);
    }
    CHECK(dm_loader_next(l, &b, &n_rows, &state) == DM_OK);
  made:
    CHECK(state == DM_LOADER_BATCH && n_rows == 4);
    memcpy(x + i * 4 * OUT, b.data, 4 * OUT * sizeof *x);
    dm_free(b.data);
  }
  dm_loader_free(&l);
}

static void check_loader(void) {
  static float first[N * OUT], x[N * OUT];
  const int64_t live = dm_alloc_live();
  dm_Augment *a = NULL;
  CHECK(dm_augment_new(&a, all, DM_COUNT(all)) == DM_OK);
  run_epoch(a, 0, -1, first);
  for (int workers = 0; workers < 3; workers++)
    for (int at = -1; at < 3; at++) {
      memset(x, 0, sizeof x);
      run_epoch(a, workers, at, x);
      CHECK(memcmp(first, x, sizeof x) == 0);
    }
  dm_augment_free(&a);
  CHECK(dm_alloc_live() == live);
}

int main(void) {
  for (int i = 0; i < DM_COUNT(pixels); i++) pixels[i] = (uint8_t)dm_splitmix64(&seed);
  check_any_list();
  check_refusals();
  check_memory_walk();
  check_loader();
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed != 0;
}
