/* Deflated bytes, as archives hold them: no wrapper around. */
#ifndef DM_DATA_INFLATE_H
#define DM_DATA_INFLATE_H

#include "demilune.h"

/* Fills out with the n_out bytes that n_in bytes stand for. DM_EIO unless these are all of
   them, and no more. */
DM_API dm_status dm_inflate(const void *in, int64_t n_in, void *out, int64_t n_out);
DM_API uint32_t dm_crc32(const void *bytes, int64_t n);

#endif
