/* A 64-bit checksum of bytes, which finds damage and not forgery: eight lanes of 64 bits take
   words in turn, each by xor, an odd factor and a rotation. All three are one to one, so that
   damage within one word, a flipped bit above all, always changes the sum; other damage stays
   unseen once in 2^64. Eight independent lanes keep the multiplier busy, for speed. */
#ifndef DM_CHECKSUM_H
#define DM_CHECKSUM_H

#include "base/base.h"

enum { DM_CHECKSUM_LANES = 8, DM_CHECKSUM_BLOCK = 64 /* bytes */ };

typedef struct dm_Checksum {
  uint64_t lane[DM_CHECKSUM_LANES], n_bytes;
} dm_Checksum;

dm_Checksum dm_checksum_begin(uint64_t seed);
/* Takes n bytes more; n is a multiple of DM_CHECKSUM_BLOCK in all calls but the last. */
void dm_checksum_add(dm_Checksum *s, const void *bytes, int64_t n);
uint64_t dm_checksum_end(const dm_Checksum *s);

/* The same of bytes that come in parts of any size. It holds no pointers, so that another
   process can go on with it. */
typedef struct dm_RunningSum {
  dm_Checksum sum;
  uint64_t n_rest; /* bytes that do not fill a block yet */
  uint8_t rest[DM_CHECKSUM_BLOCK];
} dm_RunningSum;

void dm_running_add(dm_RunningSum *r, const void *bytes, int64_t n);
uint64_t dm_running_end(const dm_RunningSum *r);

#endif
