/* What the fuzzers of images share: a decoder's answer is looked at as a caller would. */
#ifndef DM_FUZZ_IMAGE_H
#define DM_FUZZ_IMAGE_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Reads every pixel, so that the sanitizers see what was not written or lies outside; a
   failure has a message and leaves no memory behind. */
static void try_decode(const uint8_t *bytes, size_t size, dm_ImageMode mode) {
  const dm_ImageHow how = {.mode = mode, .exif = true};
  const int64_t live = dm_alloc_live();
  dm_Image p = {0};
  const dm_status st = dm_image_decode(&p, &how, bytes, (int64_t)size, "fuzz");
  if (st == DM_OK) {
    uint64_t sum = 0;
    if (p.channels < 1 || p.channels > 4 || p.height < 1 || p.width < 1) abort();
    for (int64_t i = 0; i < p.height * p.width * p.channels; i++) sum += p.data[i];
    if (sum == 1 && getenv("NEVER")) abort(); /* so that the sum is made */
    dm_free(p.data);
  } else if (st != DM_EIO || p.data || strlen(dm_error()) == 0) {
    abort();
  }
  if (dm_alloc_live() != live) abort();
}

#endif
