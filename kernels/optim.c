/* The optimizers' functions (op/optim/optim.h) on CUDA. This file builds tables of tensors;
   each function then is one launch over its table (optim.cu), whatever the number of
   parameters. A table stays in device memory while the same tensors come again (keep.c).

   The host does not know whether a step is skipped because of infinite gradients. Versions are
   raised and random numbers are taken as if it were not. */
#include "kernels/optim.h"

#include <stdatomic.h>

#include "engine/backend.h"
#include "kernels/fill.h"
#include "kernels/graph.h"
#include "kernels/keep.h"
#include "kernels/module.h"
#include "kernels/norm.h"

enum { MOST_THREADS = 256 };

/* ---- the table ---- */

/* A tensor that kernels cannot read directly (strided, or float64 where float32 is computed),
   and its dense copy for the call. */
typedef struct Copy {
  dm_Tensor *own, *dense;
  bool written;
} Copy;

typedef struct Table {
  dm_Item *item;
  dm_Tensor **param; /* a step's parameters, by item */
  Copy *copy;
  int32_t n, n_copy, n_chunk;
  bool turned;     /* a 16-bit form lies channels last */
  int64_t largest; /* elements */
  int64_t noise;   /* counters that stochastic rounding takes */
} Table;

/* Host arrays; the device gets a copy of items and chunks. */
static void table_free(Table *t) {
  dm_free(t->item);
  dm_free(t->param);
  dm_free(t->copy);
}

static dm_status table_open(Table *t, int64_t n, int lanes) {
  memset(t, 0, sizeof *t);
  t->item = dm_alloc_zero((n ? n : 1) * (int64_t)sizeof *t->item);
  t->param = dm_alloc_zero((n ? n : 1) * (int64_t)sizeof *t->param);
  t->copy = dm_alloc((n ? n : 1) * lanes * (int64_t)sizeof *t->copy);
  if (t->item && t->param && t->copy) return DM_OK;
  table_free(t);
  return dm_fail(DM_EMEM, "cuda: out of memory for a list of %lld tensors", (long long)n);
}

/* Copies results back to tensors that are not dense, and frees the table; returns st, or the
   first failure. */
static dm_status table_close(Table *t, dm_status st) {
  for (int32_t i = 0; i < t->n_copy; i++) {
    Copy *c = &t->copy[i];
    if (st == DM_OK && c->written) st = dm_cuda_copy(c->own, c->dense);
    dm_tensor_unref(&c->dense);
  }
  for (int32_t i = 0; i < t->n; i++)
    if (t->param[i]) dm_settle_copy(t->param[i], st);
  table_free(t);
  return st;
}

/* Gives in *data x's elements, dense; as float32 if x is float64 and lane 0 is not. */
static dm_status set_lane(Table *t, dm_Item *item, dm_Tensor *x, bool written, void **data,
                          uint8_t *dtype) {
  const bool narrow = x->dtype == DM_F64 && item->dtype[0] != DM_F64;
  *dtype = narrow ? DM_F32 : x->dtype;
  if (narrow || !dm_tensor_is_contiguous(x)) {
    Copy *c = &t->copy[t->n_copy];
    *c = (Copy){x, NULL, written};
    DM_TRY(dm_tensor_new((dm_DType)*dtype, x->ndim, x->shape, x->device, &c->dense));
    t->n_copy++;
    DM_TRY(dm_cuda_copy(c->dense, x));
    x = c->dense;
  }
  *data = dm_tensor_data(x);
  /* A pack of four elements is one word if the address allows it. */
  const uintptr_t word = 4 * (uintptr_t)dm_dtype_sizes[*dtype];
  item->wide &= (uintptr_t)*data % word == 0;
  if (written) x->storage->version++;
  return DM_OK;
}

/* Adds an item with its lanes, of which any but the first may be NULL. index counts from 1;
   `written` has a bit for each lane that is written. */
static dm_status add(Table *t, int64_t index, int n_lane, dm_Tensor *const *lane,
                     unsigned written, dm_Item **out) {
  dm_Item *item = &t->item[t->n];
  item->numel = lane[0]->numel;
  item->index = (int32_t)index;
  item->wide = true;
  item->dtype[0] = lane[0]->dtype;
  for (int k = 0; k < n_lane; k++)
    if (lane[k])
      DM_TRY(set_lane(t, item, lane[k], written >> k & 1u, &item->lane[k], &item->dtype[k]));
  t->n++;
  t->largest = dm_max_i64(t->largest, item->numel);
  t->n_chunk += (int32_t)((item->numel + DM_CHUNK - 1) / DM_CHUNK);
  if (out) *out = item;
  return DM_OK;
}

/* Lists the chunks of all float64 items, or of all others, from entry `at` on. */
static int32_t add_chunks(Table *t, bool f64, dm_Chunk *chunk, int32_t at) {
  for (int32_t i = 0; i < t->n; i++) {
    if ((t->item[i].dtype[0] == DM_F64) != f64) continue;
    t->item[i].chunk = at;
    for (int64_t k = 0; k * DM_CHUNK < t->item[i].numel; k++)
      chunk[at++] = (dm_Chunk){i, (int32_t)k};
  }
  return at;
}

/* The site of a table: which function asks, and a tensor that comes with each of its calls. */
static uint64_t site_of(uint64_t which, const void *tensor, int64_t n) {
  return dm_site(dm_site(which, (uint64_t)(uintptr_t)tensor), (uint64_t)n);
}

/* Sends items and chunks as one block of bytes, unless the same are there already. */
static dm_status upload(Table *t, uint64_t site, dm_List *out) {
  const int64_t items = t->n * (int64_t)sizeof(dm_Item);
  const int64_t n_bytes = items + t->n_chunk * (int64_t)sizeof(dm_Chunk);
  void *kept;
  char *bytes = dm_alloc(n_bytes ? n_bytes : 1);
  if (!bytes) return dm_fail(DM_EMEM, "cuda: out of memory for a table of %d tensors", t->n);
  /* Items first, then the chunks that refer to them. */
  dm_Chunk *chunk = (dm_Chunk *)(void *)(bytes + items);
  out->n_item = t->n;
  out->turned = t->turned;
  out->threads =
      (int32_t)dm_min_i64(MOST_THREADS, dm_max_i64(1, (t->largest + 127) / 128) * 32);
  out->n_f32 = add_chunks(t, false, chunk, 0);
  out->n_f64 = add_chunks(t, true, chunk, out->n_f32) - out->n_f32;
  memcpy(bytes, t->item, (size_t)items);
  const dm_status st = dm_cuda_keep(site, bytes, n_bytes, &kept);
  dm_free(bytes);
  out->item = kept;
  out->chunk = (const dm_Chunk *)(const void *)((const char *)kept + items);
  return st;
}

/* Runs `launch` on the device's copy of the table, which is locked meanwhile. */
#define WITH_LIST(st, table, site, list, launch)       \
  do {                                                 \
    dm_List list;                                      \
    dm_cuda_keep_begin();                              \
    if (st == DM_OK) st = upload(table, site, &list);  \
    if (st == DM_OK && list.n_item > 0) st = (launch); \
    dm_cuda_keep_end();                                \
  } while (0)

static const float *floats(const dm_Tensor *t) { return t ? dm_tensor_data(t) : NULL; }

/* ---- steps ---- */

/* Whether x, the 16-bit form of an item's lane 0, lies channels last; then notes how. */
static bool is_turned(Table *t, dm_Item *item, const dm_Tensor *x) {
  if (dm_tensor_is_contiguous(x) || !dm_tensor_is_channels_last(x)) return false;
  item->channels = x->shape[1];
  item->plane = x->shape[2] * x->shape[3];
  return t->turned = true;
}

/* Sets where a step's rounded result goes: to the parameter of a float32 master, to the 16-bit
   copy of a float32 weight, which may lie channels last, or, with stochastic rounding, to the
   16-bit weight itself. */
static dm_status add_low_copy(Table *t, dm_Item *item, const dm_StepSlot *s, bool stochastic) {
  dm_Tensor *low = s->master ? s->param : dm_fresh_copy(s->param);
  t->param[item - t->item] = s->param;
  item->master = s->master != NULL;
  if (low && !s->master && is_turned(t, item, low)) {
    item->low_copy = dm_tensor_data(low);
    item->low_copy_dtype = low->dtype;
    low->storage->version++;
    return DM_OK;
  }
  if (low) return set_lane(t, item, low, true, &item->low_copy, &item->low_copy_dtype);
  if (!stochastic || !dm_is_low((dm_DType)s->param->dtype)) return DM_OK;
  item->stochastic = true;
  item->counter = t->noise;
  t->noise += (s->param->numel + 3) / 4;
  return DM_OK;
}

/* Takes n counters of the generator; *out, on the device, holds the generator before them. */
static dm_status draw(int64_t n, dm_Generator **out) {
  void *memory;
  if (n == 0) return DM_OK;
  DM_TRY(dm_cuda_scratch(sizeof **out, &memory));
  *out = memory;
  return dm_cuda_take_counters(n, 1, *out);
}

/* Adds a parameter with gradient, buffers, counter and numbers. */
static dm_status add_slot(Table *t, const dm_Step *step, int64_t i, const dm_StepSlot *s) {
  dm_Tensor *lane[DM_LANES] = {s->master ? s->master : s->param, s->grad};
  dm_Item *item;
  for (int k = 0; k < DM_MAX_BUFFERS; k++) lane[2 + k] = s->buffer[k];
  DM_TRY(add(t, i + 1, DM_LANES, lane, ~2u, &item));
  item->first = s->first;
  if (s->step) item->step = dm_tensor_data(s->step);
  for (int k = 0; k < DM_MAX_NUMBERS; k++)
    if (s->number[k]) item->number[k] = dm_tensor_data(s->number[k]);
  return add_low_copy(t, item, s, step->stochastic);
}

/* One optimizer step over n parameters; those without a gradient are skipped. */
static dm_status cuda_step(const dm_Step *s, int64_t n, const dm_StepSlot *slots) {
  Table t;
  DM_TRY(table_open(&t, n, DM_LANES + 1));
  dm_status st = DM_OK;
  for (int64_t i = 0; i < n && st == DM_OK; i++)
    if (slots[i].grad) st = add_slot(&t, s, i, &slots[i]);
  dm_Generator *g = NULL;
  if (st == DM_OK) st = draw(t.noise, &g);
  const uint64_t site = site_of(dm_site(1, (uint64_t)s->method), slots->param, n);
  WITH_LIST(st, &t, site, list, dm_step_launch(&list, dm_site(site, 1), s, g));
  dm_cuda_scratch_free(g, sizeof *g);
  return table_close(&t, st);
}

/* ---- 16 bits to float32 ---- */

/* Adds a tensor and its 16-bit form, which may lie channels last: it is read where it lies. */
static dm_status add_widened(Table *t, int64_t index, dm_Tensor *out, dm_Tensor *in) {
  const bool last = is_turned(t, &t->item[t->n], in);
  dm_Tensor *const lane[2] = {out, last ? NULL : in};
  dm_Item *item;
  DM_TRY(add(t, index, 2, lane, 0, &item));
  if (!last) return DM_OK;
  item->lane[1] = dm_tensor_data(in);
  item->dtype[1] = in->dtype;
  return DM_OK;
}

dm_status dm_cuda_widen_all(const void *site, int64_t n, dm_Tensor *const *out,
                            dm_Tensor *const *in) {
  Table t;
  DM_TRY(table_open(&t, n, 2));
  dm_status st = DM_OK;
  for (int64_t i = 0; i < n && st == DM_OK; i++) st = add_widened(&t, i + 1, out[i], in[i]);
  WITH_LIST(st, &t, site_of(8, site, n), list, dm_widen_launch(&list));
  return table_close(&t, st);
}

/* ---- gradient scaling ---- */

/* GradScaler.unscale_ over n gradients. */
static dm_status cuda_amp_unscale(int64_t n, dm_Tensor *const *grads, const dm_Tensor *scale,
                                  dm_Tensor *found_inf, dm_Tensor *where) {
  Table t;
  DM_TRY(table_open(&t, n, 1));
  dm_status st = DM_OK;
  for (int64_t i = 0; i < n && st == DM_OK; i++)
    if (grads[i]) st = add(&t, i + 1, 1, &grads[i], 1u, NULL);
  const uint64_t site = site_of(3, found_inf, n);
  WITH_LIST(st, &t, site, list,
            dm_unscale_launch(&list, dm_site(site, 1), floats(scale), dm_tensor_data(found_inf),
                              dm_tensor_data(where)));
  st = table_close(&t, st);
  /* Gradients are no longer scaled. */
  for (int64_t i = 0; i < n && st == DM_OK; i++)
    if (grads[i]) grads[i]->flags &= (uint8_t)~DM_T_SCALED;
  found_inf->storage->version++;
  where->storage->version++;
  return st;
}

static dm_status cuda_amp_note(dm_Tensor *history, const dm_Tensor *found_inf,
                               const dm_Tensor *where, const dm_Tensor *updates) {
  history->storage->version++;
  return dm_note_launch(dm_tensor_data(history), floats(found_inf), dm_tensor_data(where),
                        dm_tensor_data(updates));
}

/* How many updates the scale has stayed at its floor, as last seen by the host: copied without
   waiting. */
typedef struct Held {
  const void *floored;
  uint32_t version; /* of floored, when it was last seen: another tensor may have its address */
  bool pending, is_foreign; /* is_foreign: what is on its way is another tensor's number */
  int32_t *seen;            /* pinned */
  int32_t last;
  cudaEvent_t arrived;
  uint64_t used;
} Held;

enum { N_HELD = 32 };
static Held helds[N_HELD]; /* guarded by dm_cuda_keep_begin */
static uint64_t held_clock;

/* Reads the number if its copy has arrived. */
static void take_news(Held *h) {
  if (dm_graph_is_capturing() || !h->pending || cudaEventQuery(h->arrived) != cudaSuccess) {
    (void)cudaGetLastError();
    return;
  }
  if (!h->is_foreign) h->last = *h->seen;
  h->pending = h->is_foreign = false;
}

/* The record of `floored`, or the least recently used one, cleared. */
static Held *held_of(const dm_Tensor *floored) {
  Held *h = helds;
  const void *p = dm_tensor_data(floored);
  for (int i = 0; i < N_HELD; i++) {
    if (helds[i].floored == p) {
      h = &helds[i];
      break;
    }
    if (helds[i].used < h->used) h = &helds[i];
  }
  take_news(h);
  if (h->floored != p || h->version != floored->storage->version) {
    h->last = 0;
    h->is_foreign = h->pending;
  }
  h->floored = p;
  h->used = ++held_clock;
  return h;
}

/* The pinned number that is to get `floored` as it is after this update; NULL in *seen if one
   is on its way. */
static dm_status ask(Held *h, int32_t **seen) {
  *seen = NULL;
  if (h->pending) return DM_OK;
  if (!h->seen) {
    void *pinned;
    DM_CUDA_TRY(cudaHostAlloc(&pinned, sizeof *h->seen, cudaHostAllocPortable));
    h->seen = pinned;
  }
  if (!h->arrived) DM_CUDA_TRY(cudaEventCreateWithFlags(&h->arrived, cudaEventDisableTiming));
  *seen = h->seen;
  return DM_OK;
}

/* Marks in the stream where the number is there, and takes the answer if it is already. */
static dm_status hear(Held *h, bool asked, int64_t *held) {
  if (asked) DM_CUDA_TRY(cudaEventRecord(h->arrived, dm_cuda_stream()));
  h->pending |= asked;
  take_news(h);
  *held = h->last;
  return DM_OK;
}

/* Updates the scale. The list of checks is kept like a table. *held is the number of
   the last update whose number has arrived, which may be an earlier one. */
static dm_status move_scale(const dm_ScaleUpdate *u, const dm_Checked *each, int64_t *held) {
  void *kept;
  Held *h = held_of(u->floored);
  dm_ScaleWork w = {.scale = dm_tensor_data(u->scale),
                    .tracker = dm_tensor_data(u->growth_tracker),
                    .floored = dm_tensor_data(u->floored),
                    .updates = dm_tensor_data(u->updates),
                    .n = u->n};
  DM_TRY(dm_cuda_keep(site_of(4, u->scale, u->n), each, u->n * (int64_t)sizeof *each, &kept));
  w.each = kept;
  /* The number of a graph's update is asked for after each launch: cuda_amp_held. */
  if (dm_graph_is_capturing()) return dm_scale_launch(&w, &u->how);
  DM_TRY(ask(h, &w.seen));
  DM_TRY(dm_scale_launch(&w, &u->how));
  h->version = ++u->floored->storage->version;
  return hear(h, w.seen != NULL, held);
}

/* Copies `floored` as it is now, unless an answer is on its way. */
static dm_status copy_held(Held *h, int64_t *held) {
  int32_t *seen;
  DM_TRY(ask(h, &seen));
  if (seen)
    DM_CUDA_TRY(cudaMemcpyAsync(seen, h->floored, sizeof *seen, cudaMemcpyDeviceToHost,
                                dm_cuda_stream()));
  return hear(h, seen != NULL, held);
}

static dm_status cuda_amp_held(dm_Tensor *floored, int64_t *held) {
  dm_cuda_keep_begin();
  Held *h = held_of(floored);
  h->version = ++floored->storage->version;
  const dm_status st = copy_held(h, held);
  dm_cuda_keep_end();
  return st;
}

static dm_status cuda_amp_update_scale(const dm_ScaleUpdate *u, int64_t *held) {
  dm_Checked *each = dm_alloc_zero((u->n ? u->n : 1) * (int64_t)sizeof *each);
  if (!each) return dm_fail(DM_EMEM, "update: out of memory for %lld steps", (long long)u->n);
  for (int64_t i = 0; i < u->n; i++) {
    each[i].found_inf = dm_tensor_data(u->found_inf[i]);
    if (i >= u->n_note) continue;
    each[i].history = dm_tensor_data(u->history[i]);
    each[i].where = dm_tensor_data(u->where[i]);
  }
  dm_cuda_keep_begin();
  const dm_status st = move_scale(u, each, held);
  dm_cuda_keep_end();
  dm_free(each);
  for (int64_t i = 0; i < u->n_note; i++) u->history[i]->storage->version++;
  u->scale->storage->version++;
  u->growth_tracker->storage->version++;
  u->updates->storage->version++;
  return st;
}

/* ---- norms and clipping ---- */

/* Adds all tensors as items of one lane. */
static dm_status add_all(Table *t, int64_t n, dm_Tensor *const *tensors, unsigned written) {
  dm_status st = DM_OK;
  DM_TRY(table_open(t, n, 1));
  for (int64_t i = 0; i < n && st == DM_OK; i++)
    st = add(t, i + 1, 1, &tensors[i], written, NULL);
  return st == DM_OK ? DM_OK : table_close(t, st);
}

/* The total norm as a 0-dim tensor, float64 if a tensor is. */
static dm_status cuda_total_norm(int64_t n, dm_Tensor *const *tensors, double p,
                                 dm_Tensor **out) {
  Table t;
  dm_DType dtype = DM_F32;
  for (int64_t i = 0; i < n; i++)
    if (tensors[i]->dtype == DM_F64) dtype = DM_F64;
  DM_TRY(add_all(&t, n, tensors, 0));
  dm_status st = dm_tensor_new(dtype, 0, NULL, tensors[0]->device, out);
  const uint64_t site = site_of(5, NULL, n);
  WITH_LIST(st, &t, site, list,
            dm_norm_launch(&list, dm_site(site, 1), p, dtype, dm_tensor_data(*out)));
  st = table_close(&t, st);
  if (st != DM_OK) dm_tensor_unref(out);
  return st;
}

/* Multiplies every tensor by min(1, max_norm / (total_norm + 1e-6)). */
static dm_status cuda_clip_norm(int64_t n, dm_Tensor *const *tensors, double max_norm,
                                const dm_Tensor *total_norm) {
  Table t;
  DM_TRY(add_all(&t, n, tensors, 1u));
  dm_status st = DM_OK;
  WITH_LIST(
      st, &t, site_of(6, NULL, n), list,
      dm_clip_launch(&list, max_norm, (dm_DType)total_norm->dtype, dm_tensor_data(total_norm)));
  return table_close(&t, st);
}

/* Clamps every element to [-limit, limit]. */
static dm_status cuda_clamp_all(int64_t n, dm_Tensor *const *tensors, double limit) {
  Table t;
  DM_TRY(add_all(&t, n, tensors, 1u));
  dm_status st = DM_OK;
  WITH_LIST(st, &t, site_of(7, NULL, n), list, dm_clamp_launch(&list, limit));
  return table_close(&t, st);
}

/* Registers these functions for CUDA tensors. */
void dm_cuda_optim_open(void) {
  static const dm_OptimOps ops = {
      .step = cuda_step,
      .amp_unscale = cuda_amp_unscale,
      .amp_note = cuda_amp_note,
      .amp_update_scale = cuda_amp_update_scale,
      .amp_held = cuda_amp_held,
      .total_norm = cuda_total_norm,
      .clip_norm = cuda_clip_norm,
      .clamp_all = cuda_clamp_all,
      .move_running = dm_cuda_move_running,
  };
  dm_optim_register(DM_CUDA, &ops);
}
