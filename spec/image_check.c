/* Checks src/data on images: memory that runs out at every request, Exif of random bytes,
   rows of a column by several threads, folders. Run in the repository's root, as its files are
   those of spec/golden/images. Meant to run under the sanitizers too. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "data/exif.h"
#include "data/folder.h"
#include "data/loader.h"
#include "data/images.h"

static int n_passed, n_failed;

static void check_at(bool ok, const char *what, int line) {
  if (ok) {
    n_passed++;
    return;
  }
  n_failed++;
  printf("image_check.c:%d: %s (last error: %s)\n", line, what, dm_error());
}
#define CHECK(cond) check_at((cond), #cond, __LINE__)

#define FOLDER "spec/golden/images/"
static const char *const files[] = {FOLDER "baseline.jpg",     FOLDER "progressive.jpg",
                                    FOLDER "gray.jpg",         FOLDER "cmyk.jpg",
                                    FOLDER "orientation3.jpg", FOLDER "rgb.png",
                                    FOLDER "transparent.png",  FOLDER "rgb16.png"};
enum { N_FILES = DM_COUNT(files) };

static const dm_ImageHow upright = {.mode = DM_IMAGE_RGB, .exif = true};

/* A build without one of the libraries has nothing to check here. */
static bool can_decode(void) {
  dm_Image p;
  for (int i = 0; i < N_FILES; i++) {
    const dm_status st = dm_image_read(&p, &upright, files[i]);
    if (st == DM_OK) dm_free(p.data);
    else if (strstr(dm_error(), "this build knows no")) return false;
    else CHECK(st == DM_OK);
  }
  return true;
}

/* ---- memory that runs out: each request fails once ---- */

static dm_status use_files(void) {
  for (int i = 0; i < N_FILES; i++) {
    dm_Image p;
    DM_TRY(dm_image_read(&p, &upright, files[i]));
    dm_free(p.data);
  }
  return DM_OK;
}

static dm_status use_folder(void) {
  dm_Folder f;
  const dm_status st = dm_folder_read(&f, "check", FOLDER);
  dm_folder_free(&f);
  return st;
}

/* An epoch of the files, two a batch; *sum is the same for every number of workers. */
static dm_status run_loader(int workers, double *sum) {
  const dm_Transform transforms[] = {
      {.kind = DM_TRANSFORM_CROP, .height = 8, .width = 8, .pad = {2, 2, 2, 2}},
      {.kind = DM_TRANSFORM_HFLIP, .p = 0.5},
      {.kind = DM_TRANSFORM_TO_FLOAT}};
  const int64_t order[N_FILES] = {5, 2, 7, 0, 1, 3, 4, 6};
  dm_Augment *augment = NULL;
  dm_Images *images = NULL;
  dm_Loader *loader = NULL;
  dm_ImageRows rows;
  dm_LoaderBuffer b;
  dm_LoaderState state = DM_LOADER_BATCH;
  int64_t n_rows;
  dm_status st;
  *sum = 0;
  DM_GO(dm_augment_new(&augment, transforms, DM_COUNT(transforms)));
  DM_GO(dm_images_new(&images, files, N_FILES, &upright));
  DM_GO(dm_images_rows(&rows, images, augment));
  const int64_t n = rows.shape[0] * rows.shape[1] * rows.shape[2];
  const dm_LoaderColumn column = {
      .dtype = DM_F32, .row_numel = n, .read = dm_images_row, .source = &rows};
  const dm_LoaderSpec spec = {.columns = &column,
                              .n_columns = 1,
                              .n_samples = N_FILES,
                              .batch_size = 2,
                              .num_workers = workers,
                              .seed = 3};
  DM_GO(dm_loader_new(&loader, &spec));
  DM_GO(dm_loader_epoch(loader, 1, order, N_FILES));
  for (double position = 1; state == DM_LOADER_BATCH;) {
    DM_GO(dm_loader_next(loader, &b, &n_rows, &state));
    if (state != DM_LOADER_BATCH) break;
    const float *x = b.data;
    for (int64_t i = 0; i < n_rows * n; i++) *sum += (double)x[i] * position++;
    dm_free(b.data);
  }
done:
  dm_loader_free(&loader);
  dm_images_free(&images);
  dm_augment_free(&augment);
  return st;
}

static dm_status use_loader(void) {
  double sum;
  return run_loader(0, &sum);
}
static dm_status use_workers(void) {
  double sum;
  return run_loader(2, &sum);
}

static void check_memory_walk(dm_status (*use)(void), int at_least) {
  const int64_t live = dm_alloc_live();
  int n = 0;
  for (dm_status st = DM_EMEM; st != DM_OK && n < 1000; n++) {
    dm_alloc_fail_at(n + 1, false);
    st = use();
    dm_alloc_fail_at(0, false);
    CHECK(st == DM_OK || st == DM_EMEM);
    CHECK(dm_alloc_live() == live);
  }
  CHECK(n > at_least && n < 1000);
}

/* A request that fails in a worker is made good by a second try of the batch. */
static void check_second_try(void) {
  const int64_t live = dm_alloc_live();
  double want, got;
  CHECK(run_loader(0, &want) == DM_OK && want > 0);
  for (int workers = 1; workers <= 3; workers++)
    CHECK(run_loader(workers, &got) == DM_OK && got == want);
  int good = 0;
  for (int n = 1; n < 100; n++) {
    dm_alloc_fail_at(n, false);
    const dm_status st = run_loader(2, &got);
    dm_alloc_fail_at(0, false);
    CHECK(st == DM_EMEM || (st == DM_OK && got == want));
    good += st == DM_OK && n < 40;
  }
  CHECK(good > 0);
  CHECK(dm_alloc_live() == live);
}

/* ---- Exif ---- */

static void check_exif(void) {
  enum { N = 20000, MOST = 64 };
  static const uint8_t sound[26] = "II*\0\x8\0\0\0\x1\0\x12\x1\x3\0\x1\0\0\0\x6\0\0\0\0\0\0";
  uint64_t rng = 7;
  CHECK(dm_exif_orientation(sound, sizeof sound) == 6);
  CHECK(dm_exif_orientation(sound, 20) == 6 && dm_exif_orientation(sound, 19) == 1);
  int turned = 0;
  for (int i = 0; i < N; i++) {
    const int64_t n = (int64_t)(dm_splitmix64(&rng) % MOST);
    uint8_t *bytes = malloc((size_t)n + 1); /* its end is seen by the sanitizers */
    for (int64_t k = 0; k < n; k++)
      bytes[k] = k < (int64_t)sizeof sound && dm_splitmix64(&rng) % 16
                     ? sound[k]
                     : (uint8_t)dm_splitmix64(&rng);
    const int o = dm_exif_orientation(bytes, n);
    if (o < 1 || o > 8) CHECK(o >= 1 && o <= 8);
    turned += o != 1;
    free(bytes);
  }
  CHECK(turned > 0);
}

static void check_folder(void) {
  dm_Folder f;
  CHECK(dm_folder_read(&f, "check", FOLDER) == DM_OK && f.n > N_FILES);
  for (int64_t i = 1; i < f.n; i++)
    CHECK(strcmp(f.entries[i - 1].name, f.entries[i].name) < 0 && !f.entries[i].is_folder);
  dm_folder_free(&f);
  CHECK(dm_folder_read(&f, "check", "spec") == DM_OK);
  bool golden = false;
  for (int64_t i = 0; i < f.n; i++)
    golden |= strcmp(f.entries[i].name, "golden") == 0 && f.entries[i].is_folder;
  CHECK(golden);
  dm_folder_free(&f);
  CHECK(dm_folder_read(&f, "check", "/no/such") == DM_EIO && f.n == 0);
  CHECK(strstr(dm_error(), "check: cannot open '/no/such'") != NULL);
}

int main(void) {
  check_exif();
  check_folder();
  check_memory_walk(use_folder, N_FILES);
  if (can_decode()) {
    check_memory_walk(use_files, 2 * N_FILES);
    check_memory_walk(use_loader, 2 * N_FILES);
    check_memory_walk(use_workers, 8);
    check_second_try();
  }
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed != 0;
}
