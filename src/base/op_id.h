/* The number of each op: its row in ops.def. It lies below the engine, because tables of
   formulas (cpu/loops/loops.h) have an entry for each number too. */
#ifndef DM_OP_ID_H
#define DM_OP_ID_H

typedef enum dm_OpId {
#define UNARY(NAME, ...) DM_OP_##NAME,
#define BINARY(NAME, ...) DM_OP_##NAME,
#define KERNEL(NAME, ...) DM_OP_##NAME,
#define VIEW(NAME, ...) DM_OP_##NAME,
#define COMPOSED(NAME, ...) DM_OP_##NAME,
#include "ops.def"
#undef UNARY
#undef BINARY
#undef KERNEL
#undef VIEW
#undef COMPOSED
  DM_N_OP
} dm_OpId;

#endif
