/* Ops that run again: see rerun.h. */
#include "engine/rerun.h"

#include "base/error.h"
#include "engine/call.h"
#include "engine/remake.h"

static dm_status rerun(dm_Node *n, int which, dm_Tensor **to);

/* Input i of n, as it was in the forward pass. */
static dm_status get_input(dm_Node *n, int i, dm_Tensor **to) {
  const dm_Edge *e = &n->in[i];
  *to = NULL;
  if (!dm_remake_reads(n, i)) return DM_OK;
  if (n->saved_in && n->saved_in[i].t) return dm_saved_get(&n->saved_in[i], n, to);
  if (!dm_remake_is_saved(n, i) && dm_remake_end_keeps(e))
    return dm_saved_get(&e->node->saved_out[e->out], e->node, to);
  return rerun(e->node, dm_remake_output(e->node), to);
}

/* A sum and its norm, where the sum is kept. */
static dm_status run_norm(dm_Node *n, dm_Tensor **in, dm_Tensor **out) {
  dm_Tensor *all[4] = {NULL, NULL, in[2], in[3]};
  int n_out = 0;
  DM_TRY(dm_saved_get(&n->saved_out[0], n, &all[0]));
  const dm_status st = dm_call_n(DM_OP_add_norm, 4, all, n->attr, out, &n_out);
  dm_tensor_unref(&all[0]);
  return st;
}

/* Runs n's op. Batch norm's moments are kept, so that they need not be summed again. */
static dm_status run(dm_Node *n, dm_Tensor **in, dm_Tensor **out) {
  int n_out = 0;
  if (n->op == &dm_ops[DM_OP_add_norm] && !n->sums_again) return run_norm(n, in, out);
  const bool relu = n->op == &dm_ops[DM_OP_batch_norm_relu];
  if (!relu && n->op != &dm_ops[DM_OP_batch_norm_train])
    return dm_call_n((int)dm_op_id(n->op), n->n_in, in, n->attr, out, &n_out);
  dm_Tensor *all[5] = {in[0], in[1], in[2]};
  dm_status st = DM_OK;
  for (int i = 1; i < 3 && st == DM_OK; i++)
    st = dm_saved_get(&n->saved_out[i], n, &all[2 + i]);
  const int op = relu ? DM_OP_batch_norm_relu_eval : DM_OP_batch_norm_eval;
  if (st == DM_OK) st = dm_call(op, 5, all, n->attr, out);
  dm_tensor_unref(&all[3]);
  dm_tensor_unref(&all[4]);
  return st;
}

/* In the state of a forward pass that records nothing. */
static dm_status run_in_state(dm_Node *n, dm_Tensor **in, dm_Tensor **out) {
  dm_ThreadState *ts = dm_thread_state();
  const bool grad = ts->grad;
  const uint8_t base = ts->base;
  ts->grad = false;
  ts->base = n->base;
  const dm_status st = run(n, in, out);
  ts->grad = grad;
  ts->base = base;
  return st;
}

/* Output `which` of n. A sum that comes with a norm is kept for n's own turn, which is soon. */
static dm_status rerun(dm_Node *n, int which, dm_Tensor **to) {
  dm_Tensor *in[DM_MAX_IN] = {NULL}, *out[DM_MAX_OUT] = {NULL};
  dm_status st = DM_OK;
  *to = NULL;
  if (n->again[which]) {
    *to = dm_tensor_ref(n->again[which]);
    return DM_OK;
  }
  for (int i = 0; i < n->n_in; i++) DM_GO(get_input(n, i, &in[i]));
  DM_GO(run_in_state(n, in, out));
  *to = out[which];
  out[which] = NULL;
  /* views, casts and copies cost less than the memory */
  const bool own = n->sums_again && n->saved_out[0].remade;
  if (atomic_load(&n->n_user) > 1 + own && (n->saved_in || n->saved_out))
    n->again[which] = dm_tensor_ref(*to);
  if (own && which == 1 && !n->again[0]) {
    n->again[0] = out[0];
    out[0] = NULL;
  }
done:
  for (int i = 0; i < DM_MAX_IN; i++) dm_tensor_unref(&in[i]);
  for (int i = 0; i < DM_MAX_OUT; i++) dm_tensor_unref(&out[i]);
  return st;
}

dm_status dm_rerun_for(dm_Node *n, const dm_Saved *s, dm_Tensor **to) {
  dm_Node *maker = dm_remake_maker(n, s);
  return rerun(maker, s->out >= 0 ? s->out : dm_remake_output(maker), to);
}
