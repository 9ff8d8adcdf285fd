#include "dist/bucket.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "dist/link.h"
#include "dist/stop.h"
#include "engine/tape.h"

/* Parts of a bucket begin at multiples of this, for the sake of vectors. */
enum { ALIGN_BYTES = 64, TRAILER_HEAD = 2 };
enum { MAX_SUM = 32 }; /* of a tree over shards: as many as their number has bits */

typedef struct Param {
  dm_Tensor *leaf;          /* owned */
  dm_GradHome home;         /* its memory may be missing where the bucket is shared out */
  char name[DM_PARAM_TEXT]; /* its end, where it is long */
  uint64_t came; /* the number of the node at which its gradient was complete; 0: at the end */
  int64_t share; /* as dm_reducer_share has it */
  int64_t at, n; /* elements before it in the bucket; of its own */
  bool used;     /* this rank had a gradient when the bucket was handed over */
} Param;

/* A number of parameters, in the order of the reducer's, of one dtype and device. */
typedef struct Bucket {
  int first, n;      /* in order[] */
  int64_t share;     /* of all its parameters; 0: each rank gets all of it */
  dm_DType dtype;    /* of flat */
  dm_Device device;  /* of flat */
  int64_t n_element; /* of flat */
  /* owned: (n_element); where the bucket is shared out, only from the first gradient until it
     has travelled */
  dm_Tensor *flat;
  dm_Tensor *part; /* owned: this rank's share of the average, until the script takes it */
  /* owned: (numel) each, 16 bits as float32; the sums of a tree over shards that are still to
     be added, the first one of the most shards */
  dm_Tensor *sums[MAX_SUM];
  dm_Tensor *wire; /* owned, while it travels: flat, or what is sent in its place */
  dm_Work *work;   /* owned, until it is settled; or NULL */
  uint64_t until;  /* complete once a pass is behind this number; 0: at the end */
} Bucket;

struct dm_Reducer {
  dm_GradHomes homes;          /* the first member: its address is the reducer's */
  bool has_homes, has_buckets; /* has_buckets: memory was enough for all of them */
  bool closed, paused, sends, open;
  bool abandoned;    /* messages of a pass that failed may still write the buckets */
  int group, n_rank; /* the index of the group, which may end before */
  int shards, own;   /* of the whole batch, of this rank; 0: none */
  int run, n_sum;    /* shards that are added in a row; sums of a bucket */
  int shard;         /* of this rank, from 0, whose passes are run; -1: none is */
  dm_DType wire;
  int64_t first_bytes, bytes, n_pass;
  uint64_t layout; /* a hash, which has to agree */
  char where[DM_LINE_TEXT];
  int n_param, n_bucket, next, n_early;
  Param *params;
  int *order; /* (n_param) the parameters, bucket by bucket */
  int *bucket_of;
  Bucket *buckets;    /* (n_param + 1) */
  int trailer_bucket; /* the last one */
  int64_t trailer_at; /* its first element there */
  float *trailer;     /* (TRAILER_HEAD + n_param): as it came */
};

/* Of this thread, as backward passes are. */
static _Thread_local int n_paused, n_open;
static _Thread_local char line[DM_LINE_TEXT]; /* of the backward pass */

static dm_Reducer *reducer_of(dm_GradHomes *h) { return (dm_Reducer *)(void *)h; }

/* ---- the layout ---- */

static int64_t aligned(int64_t bytes) {
  return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* Bytes of a parameter's part. What is shared out lies without gaps, so that the ranks' shares
   are equal. */
static int64_t part_bytes(const Param *p) {
  const int64_t bytes = dm_tensor_bytes(p->leaf);
  return p->share ? bytes : aligned(bytes);
}

/* The rank that gets all of a bucket that is shared out; n: each gets an n-th of it. */
static int owner_of(const dm_Reducer *r, const Bucket *b) {
  return (int)((b->share - 1) % (r->n_rank + 1));
}

/* Whether each rank gets an n-th of the bucket's elements. */
static bool is_cut(const dm_Reducer *r, const Bucket *b) {
  return b->share > 0 && owner_of(r, b) == r->n_rank;
}

static void drop_bucket(Bucket *b) {
  dm_tensor_unref(&b->flat);
  dm_tensor_unref(&b->part);
  for (int i = 0; i < MAX_SUM; i++) dm_tensor_unref(&b->sums[i]);
  dm_tensor_unref(&b->wire);
  dm_work_unref(&b->work);
}

static bool goes_together(const Param *a, const Param *b) {
  return a->share == b->share && a->leaf->dtype == b->leaf->dtype &&
         dm_device_eq(a->leaf->device, b->leaf->device);
}

/* Puts the parameters into buckets: one of each dtype, device and share is open at a time, and
   a bucket comes next in the order when it is full. Buckets that are shared out depend on
   nothing but their own parameters. */
static void assign(dm_Reducer *r, const int64_t *order) {
  int n_placed = 0;
  for (int i = 0; i < r->n_param; i++) r->bucket_of[i] = -1;
  r->n_bucket = 0;
  for (int i = 0; i < r->n_param; i++) {
    if (r->bucket_of[order[i]] >= 0) continue;
    /* the bucket that parameter order[i] opens takes what comes behind it, until it is full */
    const Param *one = &r->params[order[i]];
    const int64_t cap = r->n_bucket == 0 && !one->share ? r->first_bytes : r->bytes;
    Bucket *b = &r->buckets[r->n_bucket];
    *b = (Bucket){.first = n_placed, .share = one->share};
    int64_t bytes = 0;
    for (int k = i; k < r->n_param && bytes < cap; k++) {
      const int param = (int)order[k];
      if (r->bucket_of[param] >= 0 || !goes_together(one, &r->params[param])) continue;
      bytes += part_bytes(&r->params[param]);
      r->bucket_of[param] = r->n_bucket;
      r->order[n_placed++] = param;
      b->n++;
    }
    r->n_bucket++;
  }
}

static int64_t trailer_floats(const dm_Reducer *r) { return TRAILER_HEAD + r->n_param; }

/* Whether the trailer can stand behind the gradients of the last bucket. */
static bool takes_trailer(const dm_Reducer *r, const dm_Tensor *leaf) {
  return leaf->dtype == DM_F32 && leaf->device.type == DM_CPU && r->wire == DM_NO_DTYPE;
}

/* Makes a dense tensor all zeros. */
static dm_status clear(dm_Tensor *t) {
  if (t->device.type == DM_CPU) {
    if (t->numel > 0) memset(dm_tensor_data(t), 0, (size_t)dm_tensor_bytes(t));
    return DM_OK;
  }
  const int64_t same[2] = {DM_NO_DTYPE, -1};
  dm_Tensor *in[2] = {t, NULL};
  DM_TRY(dm_call(DM_OP_zeros_like, 1, in, same, &in[1]));
  const dm_status st = dm_call_inplace(DM_OP_copy, 2, in, NULL);
  dm_tensor_unref(&in[1]);
  return st;
}

/* Takes the bucket's memory, all zeros. */
static dm_status take_flat(Bucket *b) {
  DM_TRY(dm_tensor_new(b->dtype, 1, &b->n_element, b->device, &b->flat));
  return clear(b->flat);
}

/* Counts the bucket's elements, with `more` bytes at the end, and takes its memory, unless it
   is shared out: then the first gradient of a pass does. */
static dm_status fill_bucket(dm_Reducer *r, Bucket *b, int64_t more) {
  const dm_Tensor *one = b->n ? r->params[r->order[b->first]].leaf : NULL;
  b->dtype = one ? (dm_DType)one->dtype : DM_F32;
  b->device = one ? one->device : (dm_Device){.type = DM_CPU};
  int64_t bytes = more;
  for (int i = 0; i < b->n; i++) bytes += part_bytes(&r->params[r->order[b->first + i]]);
  b->n_element = bytes / dm_dtype_size(b->dtype);
  if (is_cut(r, b)) b->n_element = (b->n_element + r->n_rank - 1) / r->n_rank * r->n_rank;
  const dm_DType sum = dm_is_low(b->dtype) ? DM_F32 : b->dtype;
  for (int i = 0; i < r->n_sum; i++)
    DM_TRY(dm_tensor_new(sum, 1, &b->n_element, b->device, &b->sums[i]));
  return b->share ? DM_OK : take_flat(b);
}

/* A view of the part of a bucket that begins at an element, in the leaf's shape. */
static dm_status view_part(dm_Tensor *flat, const dm_Tensor *leaf, int64_t at,
                           dm_Tensor **out) {
  int64_t stride[DM_MAX_DIM];
  dm_contiguous_strides(leaf->ndim, leaf->shape, stride);
  DM_TRY(dm_tensor_view(flat, leaf->ndim, leaf->shape, stride, at, out));
  dm_tensor_unref(&(*out)->base);
  return DM_OK;
}

static uint64_t mixed(uint64_t h, uint64_t x) { return (h ^ x) * 0x100000001b3u; }

/* Gives the parameters of a bucket their parts. */
static dm_status assign_parts(dm_Reducer *r, const Bucket *b) {
  int64_t at = 0;
  for (int i = 0; i < b->n; i++) {
    Param *p = &r->params[r->order[b->first + i]];
    dm_Tensor *part = NULL;
    if (b->flat) DM_TRY(view_part(b->flat, p->leaf, at, &part));
    dm_tensor_unref(&p->home.at);
    p->home.at = part;
    p->at = at;
    p->n = p->leaf->numel;
    at += part_bytes(p) / dm_dtype_size((dm_DType)p->leaf->dtype);
    r->layout = mixed(mixed(r->layout, (uint64_t)r->order[b->first + i]), p->leaf->dtype);
    r->layout = mixed(mixed(r->layout, (uint64_t)p->leaf->numel), (uint64_t)p->share);
  }
  return DM_OK;
}

/* Gives the gradient of a parameter whose bucket is shared out memory, before the first one of
   a pass is written. */
static dm_status supply(dm_GradHomes *h, dm_GradHome *home) {
  dm_Reducer *r = reducer_of(h);
  const Param *p = (const Param *)(const void *)((char *)home - offsetof(Param, home));
  Bucket *b = &r->buckets[r->bucket_of[p - r->params]];
  const dm_Tensor *leaf = p->leaf;
  if (leaf->dtype != b->dtype || !dm_device_eq(leaf->device, b->device) || leaf->numel != p->n)
    return dm_fail(
        DM_ESTATE,
        "backward: the data of parameter '%s' were exchanged for %s %s, which do not "
        "fit the memory for its gradient; hint: model:to(...) before "
        "DistributedDataParallel",
        p->name, DM_SHAPE(leaf), dm_dtype_name((dm_DType)leaf->dtype));
  if (!b->flat) DM_TRY(take_flat(b));
  return view_part(b->flat, leaf, p->at, &home->at);
}

/* Makes the buckets that assign() has planned, and the position of the trailer. */
static dm_status make_buckets(dm_Reducer *r) {
  const Bucket *end = r->n_bucket ? &r->buckets[r->n_bucket - 1] : NULL;
  const int64_t more = aligned(trailer_floats(r) * (int64_t)sizeof(float));
  const bool together =
      end && !end->share && takes_trailer(r, r->params[r->order[end->first + end->n - 1]].leaf);
  if (!together) r->buckets[r->n_bucket++] = (Bucket){.first = r->n_param};
  r->trailer_bucket = r->n_bucket - 1;
  r->layout = mixed((uint64_t)r->n_bucket, (uint64_t)r->shards);
  for (int i = 0; i < r->n_bucket; i++) {
    Bucket *b = &r->buckets[i];
    DM_TRY(fill_bucket(r, b, i == r->trailer_bucket ? more : 0));
    DM_TRY(assign_parts(r, b));
  }
  r->trailer_at = (r->buckets[r->trailer_bucket].n_element * (int64_t)sizeof(float) - more) /
                  (int64_t)sizeof(float);
  return DM_OK;
}

dm_status dm_reducer_arrange(dm_Reducer *r, const int64_t *order) {
  r->has_buckets = false;
  for (int i = 0; i < r->n_bucket; i++) drop_bucket(&r->buckets[i]);
  assign(r, order);
  DM_TRY(make_buckets(r));
  r->has_buckets = true;
  r->abandoned = false;
  return DM_OK;
}

/* Makes the buckets in the order that is known, at first that of registration, backwards. */
static dm_status arrange_anew(dm_Reducer *r) {
  int64_t *order = dm_alloc((int64_t)sizeof *order * (r->n_param + 1));
  if (!order) return dm_fail(DM_EMEM, "DistributedDataParallel: out of memory");
  for (int i = 0; i < r->n_param; i++) order[i] = r->order[i];
  const dm_status st = dm_reducer_arrange(r, order);
  dm_free(order);
  return st;
}

/* One rank has the mean already, unless it has to be rounded: then its gradients need no homes,
   and cost nothing. */
static bool needs_homes(const dm_Reducer *r) {
  return r->n_rank > 1 || r->wire != DM_NO_DTYPE || r->shards > 0;
}

/* Makes the buckets for the dtype that travels, and gives the homes where they are needed. The
   trailer is float32, so that the last bucket may have to be another one. */
static dm_status settle_in(dm_Reducer *r) {
  if (!r->has_homes && !needs_homes(r)) return DM_OK;
  DM_TRY(arrange_anew(r));
  for (int i = 0; i < r->n_param && !r->has_homes; i++)
    dm_home_give(r->params[i].leaf, &r->params[i].home, dm_next_seq());
  r->has_homes = true;
  return DM_OK;
}

/* ---- sending ---- */

/* "0.weight .. 2.bias": the first parameter of a bucket and the last one. */
static void name_params(const dm_Reducer *r, const Bucket *b, char *text, size_t size) {
  *text = 0;
  if (b->n == 0) return;
  const char *first = r->params[r->order[b->first]].name,
             *last = r->params[r->order[b->first + b->n - 1]].name;
  snprintf(text, size, b->n > 1 ? ": %s .. %s" : ": %s", first, last);
}

/* "bucket 2 of 5: 0.weight .. 2.bias, pass 7, layout 1a2b": a rank that means another one is
   named. */
static void describe(const dm_Reducer *r, const Bucket *b, dm_Header *h) {
  char params[2 * DM_PARAM_TEXT + 8];
  name_params(r, b, params, sizeof params);
  snprintf(h->name, sizeof h->name, "DistributedDataParallel");
  snprintf(h->key, sizeof h->key,
           "bucket %d of %d%s, %lld %s%s, pass %lld, %d parameters, layout %08x",
           (int)(b - r->buckets) + 1, r->n_bucket, params, (long long)b->n_element,
           dm_dtype_name((dm_DType)b->wire->dtype),
           b->wire->device.type == DM_CPU ? "" : " on cuda", (long long)r->n_pass, r->n_param,
           (unsigned)(r->layout ^ r->layout >> 32));
  snprintf(h->line, sizeof h->line, "%s", *line ? line : r->where);
  h->n_bytes = dm_tensor_bytes(b->wire);
}

/* What becomes of a bucket: the average goes to all ranks, to one of them, or each gets an n-th
   of it. */
static dm_WorkKind kind_of(const dm_Reducer *r, const Bucket *b) {
  if (!b->share) return DM_WORK_ALL_REDUCE;
  return is_cut(r, b) ? DM_WORK_REDUCE_SCATTER : DM_WORK_REDUCE;
}

/* Whether it travels from its device, over the link of the ranks. Sums of shards have an order
   that no library promises. */
static bool goes_by_link(const dm_Reducer *r, const Bucket *b) {
  return b->device.type != DM_CPU && r->shards == 0 && b->flat &&
         dm_link_takes(dm_world_group(r->group), kind_of(r, b), DM_RANK_AVG, b->flat);
}

/* Sets what travels: the bucket itself, the sum of its shards, or a copy in another dtype or on
   the CPU. */
static dm_status make_wire(const dm_Reducer *r, Bucket *b) {
  dm_Tensor *from = r->shards > 0 ? b->sums[0] : b->flat;
  const dm_Device device = goes_by_link(r, b) ? b->device : (dm_Device){.type = DM_CPU};
  const bool narrow = r->wire != DM_NO_DTYPE && b->n > 0 && !dm_is_low(from->dtype);
  const dm_DType dtype = narrow ? r->wire : (dm_DType)from->dtype;
  if (!narrow && dm_device_eq(from->device, device)) {
    b->wire = dm_tensor_ref(from);
    return DM_OK;
  }
  DM_TRY(dm_tensor_new(dtype, 1, &from->numel, device, &b->wire));
  dm_Tensor *in[2] = {b->wire, from};
  return dm_call_inplace(DM_OP_copy, 2, in, NULL);
}

/* Sets up the work that averages the bucket. */
static dm_status plan_work(const dm_Reducer *r, const Bucket *b, dm_Work *w) {
  w->op = r->shards > 0 ? DM_RANK_TREE : DM_RANK_AVG;
  w->in = dm_tensor_ref(b->wire);
  w->kind = kind_of(r, b);
  if (w->kind == DM_WORK_REDUCE) w->peer = owner_of(r, b);
  if (b->wire->device.type != DM_CPU) DM_TRY(dm_link_mark(w));
  if (w->kind != DM_WORK_REDUCE_SCATTER) return DM_OK;
  const int64_t n = b->n_element / r->n_rank;
  return dm_tensor_new((dm_DType)b->wire->dtype, 1, &n, b->wire->device, &w->out);
}

/* After a bucket that is shared out was handed over: its gradients are no longer the
   parameters'. */
static void leave_flat(dm_Reducer *r, Bucket *b) {
  for (int i = 0; i < b->n; i++) {
    Param *p = &r->params[r->order[b->first + i]];
    dm_tensor_unref(&p->leaf->grad);
    dm_tensor_unref(&p->home.at);
  }
  dm_tensor_unref(&b->flat);
}

static dm_status send(dm_Reducer *r, Bucket *b) {
  if (r->shards > 0 && r->n_rank == 1) return make_wire(r, b);
  dm_Group *group = dm_world_is_open() ? dm_world_group(r->group) : NULL;
  if (!group) return dm_fail(DM_ESTATE, "DistributedDataParallel: the process group has ended");
  DM_TRY(make_wire(r, b));
  b->work = dm_work_new();
  if (!b->work) return dm_fail(DM_EMEM, "DistributedDataParallel: out of memory");
  dm_Work *w = b->work;
  w->group = w->agree = group;
  DM_TRY(plan_work(r, b, w));
  describe(r, b, &w->header);
  DM_TRY(dm_world_post(w));
  b->wire->storage->version++;
  if (b->share) leave_flat(r, b);
  return DM_OK;
}

/* Gives the memory of buckets back that are shared out and have travelled, while the pass goes
   on. What this rank gets of them stays. */
static void release_sent(dm_Reducer *r) {
  for (int i = 0; i < r->next; i++) {
    Bucket *b = &r->buckets[i];
    dm_Work *w = b->work;
    if (!b->share || !w || !atomic_load(&w->done) || w->failed) continue;
    dm_tensor_unref(&w->in);
    if (w->kind == DM_WORK_REDUCE_SCATTER || w->peer != w->group->me) dm_tensor_unref(&b->wire);
  }
}

/* Lets a pass that is faster than the messages wait, so that the memory of few buckets that are
   shared out is taken at a time; not for long, for a pass cannot be interrupted here. */
static void wait_for_sent(const dm_Reducer *r) {
  enum { MOST_SENT = 2, WAIT_MS = 1000 };
  int n_sent = 0;
  for (int i = r->next - 1; i >= 0; i--) {
    const dm_Work *w = r->buckets[i].work;
    if (!r->buckets[i].share || !w || atomic_load(&w->done)) continue;
    if (++n_sent < MOST_SENT) continue;
    dm_world_wait_done(w, WAIT_MS);
    return;
  }
}

/* A gradient that this rank has is brought to its part; in the others' part are zeros. */
static dm_status complete(Param *p, bool has_data) {
  p->home.sent = true;
  p->used = has_data && p->leaf->grad;
  if (!p->home.at) DM_TRY(supply(p->home.homes, &p->home));
  if (p->used) return dm_home_bring(p->leaf, &p->home);
  return clear(p->home.at);
}

/* Writes what this rank says in the trailer. */
static void write_trailer(const dm_Reducer *r, bool has_data) {
  float *t = (float *)dm_tensor_data(r->buckets[r->trailer_bucket].flat) + r->trailer_at;
  t[0] = has_data;
  t[1] = dm_stop_asked() != 0;
  for (int i = 0; i < r->n_param; i++) t[TRAILER_HEAD + i] = r->params[i].used;
}

/* Hands the next bucket over. */
static dm_status send_next(dm_Reducer *r, bool has_data) {
  Bucket *b = &r->buckets[r->next];
  for (int i = 0; i < b->n; i++) DM_TRY(complete(&r->params[r->order[b->first + i]], has_data));
  if (r->next == r->trailer_bucket) write_trailer(r, has_data);
  if (b->share) wait_for_sent(r);
  release_sent(r);
  r->next++;
  return send(r, b);
}

/* ---- a pass ---- */

/* Fails where the buckets cannot be written: their memory is missing, or still travels. */
static dm_status prepare(dm_Reducer *r) {
  if (r->abandoned && !r->open) DM_TRY(arrange_anew(r));
  if (!r->has_buckets)
    return dm_fail(DM_ESTATE, "DistributedDataParallel: there was no memory for its buckets");
  if (!r->open) return DM_OK;
  return dm_fail(
      DM_ESTATE,
      "DistributedDataParallel: the gradients of the last backward pass are still on "
      "their way: it was ended by an error");
}

/* A bucket is complete when the last of its parameters is. */
static void find_ends(dm_Reducer *r) {
  for (int i = 0; i < r->n_param; i++) {
    Param *p = &r->params[i];
    p->came = p->home.oldest;
    Bucket *b = &r->buckets[r->bucket_of[i]];
    if (p->came < b->until) b->until = p->came;
  }
}

static dm_status begin(dm_GradHomes *h) {
  dm_Reducer *r = reducer_of(h);
  h->until = 0;
  if (r->shards > 0 && r->shard < 0)
    return dm_fail(DM_ESTATE,
                   "DistributedDataParallel: a backward pass outside of each_shard, and the "
                   "model has %d shards; hint: ddp:each_shard(function(x, y) ... end, x, y)",
                   r->shards);
  r->sends = needs_homes(r) && r->shards == 0 && !r->paused && n_paused == 0 && !r->closed;
  for (int i = 0; i < r->n_param; i++) r->params[i].home.sent = false;
  DM_TRY(prepare(r));
  if (!r->sends) return DM_OK;
  r->n_pass++;
  r->next = r->n_early = 0;
  for (int i = 0; i < r->n_bucket; i++) r->buckets[i].until = r->buckets[i].n ? UINT64_MAX : 0;
  find_ends(r);
  h->until = r->buckets[0].until;
  r->open = true;
  n_open++;
  return DM_OK;
}

static dm_status passed(dm_GradHomes *h, uint64_t next) {
  dm_Reducer *r = reducer_of(h);
  h->until = 0;
  if (r->closed) return DM_OK;
  while (r->next < r->n_bucket && r->buckets[r->next].until > next) {
    DM_TRY(send_next(r, true));
    r->n_early++;
  }
  h->until = r->next < r->n_bucket ? r->buckets[r->next].until : 0;
  return DM_OK;
}

/* Forgets what the pass has sent. After a failure some of it may still be under way: the memory
   is left to it. */
static void give_up(dm_Reducer *r) {
  for (int i = 0; i < r->n_bucket; i++) {
    const dm_Work *w = r->buckets[i].work;
    r->abandoned |= w && !atomic_load(&w->done) && !atomic_load(&w->queued);
    dm_work_unref(&r->buckets[i].work);
    dm_tensor_unref(&r->buckets[i].wire);
  }
  if (r->open) n_open--;
  r->open = false;
}

static dm_status end(dm_GradHomes *h, bool well) {
  dm_Reducer *r = reducer_of(h);
  if (!r->sends || r->closed) return DM_OK;
  dm_status st = DM_OK;
  while (well && r->next < r->n_bucket && st == DM_OK) st = send_next(r, true);
  if (!well || st != DM_OK) give_up(r);
  return st;
}

dm_status dm_reducer_shadow(dm_Reducer *r) {
  DM_TRY(prepare(r));
  r->n_pass++;
  r->next = 0;
  r->open = true;
  n_open++;
  dm_status st = DM_OK;
  while (r->next < r->n_bucket && st == DM_OK) st = send_next(r, false);
  if (st != DM_OK) give_up(r);
  return st;
}

/* ---- shards ---- */

/* The number of shards that are added in a row: what is left of them when they are halved. */
static int odd_part(int shards) {
  while (shards > 0 && shards % 2 == 0) shards /= 2;
  return shards;
}

bool dm_shards_fit(int shards, int n_rank) {
  return shards == 0 || (shards % n_rank == 0 && (n_rank & (n_rank - 1)) == 0);
}

/* The number of bits that are set. */
static int bits_of(int n) {
  int bits = 0;
  for (; n > 0; n &= n - 1) bits++;
  return bits;
}

/* Of each bucket as many sums are kept as subtrees of this rank's shards can wait for their
   other half at a time, and the one that grows. */
static void plan_shards(dm_Reducer *r, int shards) {
  r->shards = shards;
  r->shard = -1;
  r->own = shards / r->n_rank;
  r->run = odd_part(shards);
  for (int n = shards > 0 ? r->own / r->run : 0; n > 0; n /= 2) r->n_sum++;
}

static dm_status combine(int op, dm_Tensor *to, dm_Tensor *from) {
  dm_Tensor *in[2] = {to, from};
  return dm_call_inplace(op, 2, in, NULL);
}

/* Adds what the passes of a shard have left in a bucket to its sums: as the carries of a binary
   counter do, for which two sums of equally many shards become one. */
static dm_status add_shard(const dm_Reducer *r, Bucket *b) {
  int group = r->shard / r->run, at = bits_of(group);
  const bool begins = r->shard % r->run == 0, ends = (r->shard + 1) % r->run == 0;
  DM_TRY(combine(begins ? DM_OP_copy : DM_OP_add, b->sums[at], b->flat));
  for (; ends && group & 1; group >>= 1, at--)
    DM_TRY(combine(DM_OP_add, b->sums[at - 1], b->sums[at]));
  return DM_OK;
}

/* Hands over the sums of this rank's shards. */
static dm_status send_sums(dm_Reducer *r) {
  dm_status st = DM_OK;
  r->n_pass++;
  r->n_early = 0;
  r->open = true;
  n_open++;
  for (int i = 0; i < r->n_bucket && st == DM_OK; i++) st = send(r, &r->buckets[i]);
  if (st != DM_OK) give_up(r);
  return st;
}

void dm_reducer_shards(dm_Reducer *r, bool on) { r->shard = on && r->shards > 0 ? 0 : -1; }
bool dm_reducer_has_shards(const dm_Reducer *r) { return r->shards > 0; }
bool dm_reducer_in_shard(const dm_Reducer *r) { return r->shard >= 0 && r->shard < r->own; }

dm_status dm_reducer_end_shard(dm_Reducer *r) {
  DM_TRY(prepare(r));
  for (int i = 0; i < r->n_param; i++) DM_TRY(complete(&r->params[i], true));
  write_trailer(r, true);
  for (int i = 0; i < r->n_bucket; i++) DM_TRY(add_shard(r, &r->buckets[i]));
  for (int i = 0; i < r->n_param; i++) dm_tensor_unref(&r->params[i].leaf->grad);
  return ++r->shard == r->own ? send_sums(r) : DM_OK;
}

bool dm_reducer_is_open(const dm_Reducer *r) { return r->open; }
bool dm_reducers_are_open(void) { return n_open > 0; }

int dm_reducer_wait(const dm_Reducer *r, int ms, const char **why) {
  for (int i = 0; i < r->n_bucket; i++) {
    const dm_Work *w = r->buckets[i].work;
    if (!w) continue;
    if (!dm_world_wait(w, ms)) return 0;
    if (!atomic_load(&w->done) || !w->failed) continue;
    *why = w->failure;
    return -1;
  }
  return 1;
}

/* *= factor */
static dm_status scale(dm_Tensor *t, double factor) {
  dm_Tensor *by = NULL;
  DM_TRY(dm_tensor_number(false, factor, 0, &by));
  dm_Tensor *in[2] = {t, by};
  const dm_status st = dm_call_inplace(DM_OP_mul, 2, in, NULL);
  dm_tensor_unref(&by);
  return st;
}

/* Keeps `from` as what this rank gets of a bucket, in the bucket's dtype and on its device. */
static dm_status keep_part(Bucket *b, dm_Tensor *from) {
  if (from->dtype == b->dtype && dm_device_eq(from->device, b->device)) {
    b->part = dm_tensor_ref(from);
    return DM_OK;
  }
  DM_TRY(dm_tensor_new(b->dtype, 1, &from->numel, b->device, &b->part));
  dm_Tensor *in[2] = {b->part, from};
  return dm_call_inplace(DM_OP_copy, 2, in, NULL);
}

/* Takes what this rank gets of a bucket that is shared out. The communication thread may hold
   the work for a moment longer, but not the memory. */
static dm_status unpack_part(const dm_Reducer *r, Bucket *b) {
  dm_Work *w = b->work;
  dm_Tensor *from = is_cut(r, b) ? w->out : w->peer == w->group->me ? b->wire : NULL;
  dm_tensor_unref(&b->part);
  const dm_status st = from ? keep_part(b, from) : DM_OK;
  dm_tensor_unref(&w->in);
  dm_tensor_unref(&w->out);
  return st;
}

/* Brings what has travelled back into the bucket; a sum of shards as their mean. */
static dm_status unpack(const dm_Reducer *r, Bucket *b) {
  if (b->work) DM_TRY(dm_link_follow(b->work));
  if (b->share) return unpack_part(r, b);
  if (b->wire == b->flat) return DM_OK;
  if (r->shards > 1) DM_TRY(scale(b->wire, 1.0 / r->shards));
  dm_Tensor *in[2] = {b->flat, b->wire};
  return dm_call_inplace(DM_OP_copy, 2, in, NULL);
}

/* Gives a parameter that some rank has used its gradient. */
static dm_status hand_out(const dm_Reducer *r, const Param *p, float used) {
  if (!(used > 0) || p->leaf->grad || p->share) return DM_OK;
  DM_TRY(dm_home_show(p->leaf, &p->home));
  if (r->homes.scaled) p->leaf->grad->flags |= DM_T_SCALED;
  return DM_OK;
}

dm_status dm_reducer_settle(dm_Reducer *r, bool by_active, double *active) {
  const char *why;
  dm_status st = DM_OK;
  *active = 1;
  if (dm_reducer_wait(r, 0, &why) != 1) {
    give_up(r);
    return DM_OK;
  }
  for (int i = 0; i < r->n_bucket; i++) DM_GO(unpack(r, &r->buckets[i]));
  memcpy(r->trailer,
         (float *)dm_tensor_data(r->buckets[r->trailer_bucket].flat) + r->trailer_at,
         sizeof *r->trailer * (size_t)trailer_floats(r));
  if (r->group == 0) dm_stop_exchanged(r->trailer[1] > 0);
  *active = round((double)r->trailer[0] * r->n_rank) / r->n_rank; /* the shares are float32 */
  const bool scales = by_active && *active > 0 && *active < 1;
  for (int i = 0; i < r->n_bucket && scales; i++) {
    const Bucket *b = &r->buckets[i];
    dm_Tensor *mean = b->share ? b->part : b->flat;
    if (mean) DM_GO(scale(mean, 1 / *active));
  }
  for (int i = 0; i < r->n_param; i++)
    DM_GO(hand_out(r, &r->params[i], r->trailer[TRAILER_HEAD + i]));
done:
  give_up(r);
  return st;
}

/* ---- gradients that are shared out ---- */

dm_status dm_reducer_share(dm_Reducer *r, const int64_t *share) {
  for (int i = 0; i < r->n_param; i++) r->params[i].share = share[i];
  return arrange_anew(r);
}

dm_Span dm_reducer_span(const dm_Reducer *r, int param) {
  const Bucket *b = &r->buckets[r->bucket_of[param]];
  return (dm_Span){.bucket = r->bucket_of[param],
                   .at = r->params[param].at,
                   .slice = is_cut(r, b) ? b->n_element / r->n_rank : b->n_element};
}

bool dm_reducer_used(const dm_Reducer *r, int param) {
  return r->trailer[TRAILER_HEAD + param] > 0;
}

dm_status dm_reducer_take(const dm_Reducer *r, int bucket, int64_t at, dm_Tensor *to) {
  const Bucket *b = &r->buckets[bucket];
  dm_Tensor *mean = NULL;
  if (!b->part || to->dtype != b->dtype)
    return dm_fail(DM_ESTATE, "DistributedDataParallel: no average of %s to take",
                   dm_dtype_name((dm_DType)to->dtype));
  DM_TRY(view_part(b->part, to, at, &mean));
  if (to->grad) {
    dm_Tensor *in[2] = {to->grad, mean};
    const dm_status st = dm_call_inplace(DM_OP_add, 2, in, NULL);
    dm_tensor_unref(&mean);
    DM_TRY(st);
  } else {
    to->grad = mean;
  }
  if (r->homes.scaled) to->grad->flags |= DM_T_SCALED;
  return DM_OK;
}

void dm_reducer_taken(dm_Reducer *r) {
  for (int i = 0; i < r->n_bucket; i++) dm_tensor_unref(&r->buckets[i].part);
}

/* ---- begin and end ---- */

static void drop(dm_GradHomes *h) {
  dm_Reducer *r = reducer_of(h);
  for (int i = 0; i < r->n_bucket; i++) drop_bucket(&r->buckets[i]);
  for (int i = 0; i < r->n_param; i++) {
    dm_tensor_unref(&r->params[i].home.at);
    dm_tensor_unref(&r->params[i].leaf);
  }
  dm_free(r->params);
  dm_free(r->order);
  dm_free(r->bucket_of);
  dm_free(r->buckets);
  dm_free(r->trailer);
  dm_free(r);
}

void dm_reducer_close(dm_Reducer **rp) {
  dm_Reducer *r = *rp;
  *rp = NULL;
  if (!r) return;
  for (int i = 0; i < r->n_param; i++) {
    dm_Tensor *leaf = r->params[i].leaf;
    if (leaf && leaf->grad_home == &r->params[i].home) dm_home_take(leaf);
  }
  r->closed = true;
  give_up(r);
  dm_homes_unref(&r->homes);
}

/* Takes the arrays of a reducer for n parameters. */
static bool allocate(dm_Reducer *r, int n) {
  r->params = dm_alloc_zero((int64_t)sizeof *r->params * (n + 1));
  r->order = dm_alloc_zero((int64_t)sizeof *r->order * (n + 1));
  r->bucket_of = dm_alloc_zero((int64_t)sizeof *r->bucket_of * (n + 1));
  r->buckets = dm_alloc_zero((int64_t)sizeof *r->buckets * (n + 1));
  r->trailer = dm_alloc_zero((int64_t)sizeof *r->trailer * (n + TRAILER_HEAD));
  return r->params && r->order && r->bucket_of && r->buckets && r->trailer;
}

static void name_param(Param *p, const char *name) {
  const size_t n = strlen(name);
  snprintf(p->name, sizeof p->name, "%s",
           n < sizeof p->name ? name : name + n + 1 - sizeof p->name);
}

dm_status dm_reducer_new(int n, dm_Tensor *const *params, const dm_ReducerOptions *o,
                         dm_Reducer **out) {
  dm_Reducer *r = dm_alloc_zero(sizeof *r);
  if (!r) return dm_fail(DM_EMEM, "DistributedDataParallel: out of memory");
  r->homes = (dm_GradHomes){
      .refs = 1, .begin = begin, .passed = passed, .end = end, .supply = supply, .drop = drop};
  r->group = o->group->index;
  r->n_rank = o->group->n;
  r->wire = DM_NO_DTYPE;
  plan_shards(r, o->shards);
  r->first_bytes = o->first_bytes;
  r->bytes = o->bytes;
  snprintf(r->where, sizeof r->where, "%s", o->where);
  dm_status st = DM_OK;
  if (!allocate(r, n)) st = dm_fail(DM_EMEM, "DistributedDataParallel: out of memory");
  for (int i = 0; i < n && st == DM_OK; i++) {
    r->params[i].leaf = dm_tensor_ref(params[i]);
    r->params[i].home.homes = &r->homes;
    name_param(&r->params[i], o->names[i]);
    r->order[i] = n - 1 - i;
    r->n_param++;
  }
  if (st == DM_OK) st = settle_in(r);
  if (st != DM_OK) {
    dm_reducer_close(&r);
    return st;
  }
  *out = r;
  return DM_OK;
}

dm_status dm_reducer_set_wire(dm_Reducer *r, dm_DType wire) {
  r->wire = wire;
  return settle_in(r);
}

void dm_reducer_pause(dm_Reducer *r, bool paused) { r->paused = paused; }
void dm_reducers_pause(int more) { n_paused += more; }
void dm_reducers_at(const char *where) { snprintf(line, sizeof line, "%s", where); }

void dm_reducer_order(const dm_Reducer *r, int64_t *order) {
  /* by falling number of the node at which each was complete; by insertion, for it is done once
   */
  for (int i = 0; i < r->n_param; i++) {
    const int param = r->n_param - 1 - i;
    int k = i;
    for (; k > 0 && r->params[order[k - 1]].came < r->params[param].came; k--)
      order[k] = order[k - 1];
    order[k] = param;
  }
}

int dm_reducer_params(const dm_Reducer *r) { return r->n_param; }
int dm_reducer_buckets(const dm_Reducer *r) { return r->n_bucket; }
int64_t dm_reducer_passes(const dm_Reducer *r) { return r->n_pass; }
int dm_reducer_early(const dm_Reducer *r) { return r->n_early; }
