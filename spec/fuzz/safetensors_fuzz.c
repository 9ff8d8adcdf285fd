/* Fuzzes the safetensors reader: header, entries, metadata, and the data of every tensor. */
#include "data/safetensors.h"

#include "base/alloc.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  dm_StFile *f = NULL;
  if (dm_st_open(&f, fuzz_file(0, data, n)) == DM_OK) {
    int64_t n_entries;
    const dm_StEntry *e = dm_st_get_entries(f, &n_entries);
    for (int64_t i = 0; i < n_entries; i++) {
      void *dst = dm_alloc(e[i].n_bytes);
      if (dst && dm_st_read(f, &e[i], dst) != DM_OK) __builtin_trap(); /* they were checked */
      dm_free(dst);
    }
  }
  dm_st_close(&f);
  fuzz_check_live();
  return 0;
}
