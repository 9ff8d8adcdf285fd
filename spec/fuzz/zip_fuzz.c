/* Fuzzes the reader of zip archives: directory, heads, and the bytes of every entry. */
#include "data/zip.h"

#include "base/alloc.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  dm_Zip *zip = NULL;
  if (dm_zip_open(&zip, fuzz_file(0, data, n)) == DM_OK) {
    int64_t n_entries, n_bytes = 0;
    const dm_ZipEntry *e = dm_zip_get_entries(zip, &n_entries);
    for (int64_t i = 0; i < n_entries; i++) n_bytes = dm_max_i64(n_bytes, e[i].n_bytes);
    void *dst = n_bytes < 1 << 24 ? dm_alloc(n_bytes) : NULL;
    for (int64_t i = 0; i < n_entries && dst; i++) (void)dm_zip_read(zip, &e[i], dst);
    dm_free(dst);
  }
  dm_zip_close(&zip);
  fuzz_check_live();
  return 0;
}
