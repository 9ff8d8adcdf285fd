/* The loops for any processor, and which ones run here. */
#include "op/loops.h"

#include "cpu/vec_table.h"

#define PHILOX_WORDS dm_philox_words
#define LOOPS const dm_Loops dm_loops_plain
#include "op/loops.inc"

const dm_Loops *dm_loops(void) {
  const dm_Loops *const fast = dm_loops_avx2();
  return fast && dm_cpu_has_avx2() ? fast : &dm_loops_plain;
}
