/* The lanes of the checksum and how they are joined. Words are read in the host's order, which
   is that of the files: least significant byte first. */
#include "data/checksum.h"

#include <string.h>

#include "base/rng.h"

/* An odd factor with as many ones as zeros (2^64 over the golden ratio). */
static const uint64_t FACTOR = 0x9e3779b97f4a7c15u;

static uint64_t mix(uint64_t lane, uint64_t word) {
  const uint64_t product = (lane ^ word) * FACTOR;
  return product << 29 | product >> 35;
}

dm_Checksum dm_checksum_begin(uint64_t seed) {
  dm_Checksum s = {.n_bytes = 0};
  for (int i = 0; i < DM_CHECKSUM_LANES; i++) s.lane[i] = dm_splitmix64(&seed);
  return s;
}

static void add_block(uint64_t *lane, const uint8_t *block) {
  uint64_t word[DM_CHECKSUM_LANES];
  memcpy(word, block, sizeof word);
  for (int i = 0; i < DM_CHECKSUM_LANES; i++) lane[i] = mix(lane[i], word[i]);
}

/* The last block is filled up with zeros; the count of bytes tells these from data. */
void dm_checksum_add(dm_Checksum *s, const void *bytes, int64_t n) {
  const uint8_t *at = bytes;
  uint64_t lane[DM_CHECKSUM_LANES];
  memcpy(lane, s->lane, sizeof lane);
  s->n_bytes += (uint64_t)n;
  for (; n >= DM_CHECKSUM_BLOCK; n -= DM_CHECKSUM_BLOCK, at += DM_CHECKSUM_BLOCK)
    add_block(lane, at);
  if (n > 0) {
    uint8_t last[DM_CHECKSUM_BLOCK] = {0};
    memcpy(last, at, (size_t)n);
    add_block(lane, last);
  }
  memcpy(s->lane, lane, sizeof lane);
}

uint64_t dm_checksum_end(const dm_Checksum *s) {
  uint64_t sum = s->n_bytes;
  for (int i = 0; i < DM_CHECKSUM_LANES; i++) sum = mix(sum, s->lane[i]);
  return dm_splitmix64(&sum);
}

void dm_running_add(dm_RunningSum *r, const void *bytes, int64_t n) {
  const uint8_t *at = bytes;
  if (r->n_rest > 0) {
    const int64_t k = dm_min_i64(n, DM_CHECKSUM_BLOCK - (int64_t)r->n_rest);
    memcpy(r->rest + r->n_rest, at, (size_t)k);
    r->n_rest += (uint64_t)k;
    at += k;
    n -= k;
    if (r->n_rest < DM_CHECKSUM_BLOCK) return;
    dm_checksum_add(&r->sum, r->rest, DM_CHECKSUM_BLOCK);
  }
  const int64_t whole = n / DM_CHECKSUM_BLOCK * DM_CHECKSUM_BLOCK;
  if (whole > 0) dm_checksum_add(&r->sum, at, whole);
  r->n_rest = (uint64_t)(n - whole);
  if (r->n_rest > 0) memcpy(r->rest, at + whole, (size_t)r->n_rest);
}

uint64_t dm_running_end(const dm_RunningSum *r) {
  dm_Checksum sum = r->sum;
  if (r->n_rest > 0) dm_checksum_add(&sum, r->rest, (int64_t)r->n_rest);
  return dm_checksum_end(&sum);
}
