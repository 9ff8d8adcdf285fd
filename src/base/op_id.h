/* The number of each op: its row in src/ops. It lies below the engine, because tables of
   formulas (cpu/loops/loops.h) have an entry for each number too. */
#ifndef DM_OP_ID_H
#define DM_OP_ID_H

typedef enum dm_OpId {
#define OP(NAME, ...) DM_OP_##NAME,
#include "ops.gen.def"
#undef OP
  DM_N_OP
} dm_OpId;

#endif
