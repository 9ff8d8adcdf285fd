/* What a graph keeps for its backward pass, by op and operand. */
#ifndef DM_KEPT_H
#define DM_KEPT_H

#include "core/tensor.h"

/* The saved tensors of one operand of all nodes of one op, in one dtype. Bytes are counted once
   for each storage, at the oldest node that saved it; those of leaves, which live anyway, not
   at all. */
typedef struct dm_KeptRow {
  char op[48], operand[32]; /* "gelu", "x"; "result" */
  dm_DType dtype;
  int64_t n, bytes;             /* saved tensors, and the bytes of their storages */
  int64_t n_again, bytes_again; /* results that are computed again: remake.h */
  int64_t n_checkpoint;         /* what checkpoints run again */
} dm_KeptRow;

/* The rows of the graph behind root, in the order of the forward pass. Writes at most
   `capacity` of them; *n is how many there are. */
dm_status dm_kept(dm_Tensor *root, int capacity, dm_KeptRow *rows, int *n);

#endif
