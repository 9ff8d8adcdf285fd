#include "dist/work.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

enum { MOST_NAMED = 8 }; /* ranks that a message tells of */

/* The steps. */
enum { AGREE, COMPARE, EXPLAIN, FIRST, SECOND, THIRD, REFUSE, MEET, MET, SIZES, ARRIVED };

void dm_work_ref(dm_Work *w) { atomic_fetch_add(&w->refs, 1); }

void dm_work_unref(dm_Work **w) {
  if (*w && atomic_fetch_sub(&(*w)->refs, 1) == 1) {
    dm_tensor_unref(&(*w)->in);
    dm_tensor_unref(&(*w)->out);
    dm_tensor_unref(&(*w)->a);
    dm_tensor_unref(&(*w)->b);
    dm_free((*w)->headers);
    dm_free((*w)->sizes);
    dm_free((*w)->all_sizes);
    if ((*w)->drop) (*w)->drop(*w);
    dm_free(*w);
  }
  *w = NULL;
}

/* Ends it; its slices are given back, unless the library may still write them. */
static void end(dm_Work *w) {
  w->step = DM_WORK_ENDED;
  if (w->request) return;
  dm_tensor_unref(&w->a);
  dm_tensor_unref(&w->b);
}

/* Ends it with a failure that the other ranks know of, or need not know of. */
static void fail(dm_Work *w, const char *text) {
  snprintf(w->failure, sizeof w->failure, "%s", text);
  w->failed = true;
  end(w);
}

void dm_work_break(dm_Work *w, const char *text) {
  w->is_broken = true;
  fail(w, text);
}

/* The hash of Fowler, Noll and Vo, 64 bits, of a text behind another. */
static uint64_t hash_text(uint64_t h, const char *text) {
  for (; *text; text++) h = (h ^ (uint8_t)*text) * 0x100000001b3u;
  return (h ^ 0xff) * 0x100000001b3u;
}

static bool is_reduction(const dm_Work *w) {
  return w->kind == DM_WORK_ALL_REDUCE || w->kind == DM_WORK_REDUCE ||
         w->kind == DM_WORK_REDUCE_SCATTER;
}

/* Whether it takes one step to all-reduce it. */
static bool is_small(const dm_Work *w) {
  return w->kind == DM_WORK_ALL_REDUCE &&
         dm_tensor_bytes(w->in) * w->group->n <= DM_SMALL_BYTES;
}

/* Bytes of what all slices take together; zeros fill the last ones. */
static int64_t slices_bytes(const dm_Work *w) {
  return w->slice * w->group->n * dm_dtype_size(w->in->dtype);
}

/* So many bytes from the CPU's allocator, which keeps them for the next work. */
static dm_status new_bytes(int64_t n, dm_Tensor **out) {
  return dm_tensor_new(DM_U8, 1, &n, (dm_Device){.type = DM_CPU}, out);
}

void dm_work_prepare(dm_Work *w) {
  w->hash[0] = hash_text(hash_text(0xcbf29ce484222325u, w->header.name), w->header.key);
  w->hash[1] = ~w->hash[0];
  if (!is_reduction(w) || w->in->numel == 0) return;
  w->slice = is_small(w) ? w->in->numel : (w->in->numel + w->group->n - 1) / w->group->n;
}

/* Takes the memory of the slices: not before the work begins, for many may wait. Where the
   tensor is no number of whole slices, a copy of it is. */
static dm_status take_slices(dm_Work *w) {
  const int64_t bytes = slices_bytes(w), given = dm_tensor_bytes(w->in);
  DM_TRY(new_bytes(bytes, &w->b));
  if (is_small(w) || bytes == given) return DM_OK;
  DM_TRY(new_bytes(bytes, &w->a));
  memset((char *)dm_tensor_data(w->a) + given, 0, (size_t)(bytes - given));
  return DM_OK;
}

/* Whether w, a message that comes, is still to ask for data that may be of the same rank as
   that of `later`: data comes in the order of the descriptions, which MPI gives to those that
   asked first. */
static bool data_blocks(const dm_Work *w, const dm_Work *later) {
  const bool has_asked = w->step == THIRD || w->step == REFUSE || w->step == DM_WORK_ENDED;
  return later->step == ARRIVED && !has_asked && (w->peer < 0 || w->peer == later->peer);
}

/* Only messages pass one another: of a group the collectives keep their order, of two ranks the
   messages in one direction with one tag. A link keeps the order of what is queued. */
bool dm_work_blocks(const dm_Work *w, const dm_Work *later) {
  if (w->agree != later->agree || atomic_load(&w->queued)) return false;
  if (!dm_work_is_message(w)) return !dm_work_is_message(later);
  if (w->kind != later->kind || w->tag != later->tag) return false;
  return w->kind == DM_WORK_SEND ? w->peer == later->peer : data_blocks(w, later);
}

/* Bytes that this rank sends by such a transfer. */
static int64_t sent_by(const dm_Work *w, dm_Transfer transfer, int64_t n_bytes, int peer) {
  const dm_Group *g = w->agree;
  switch (transfer) {
  case DM_TRANSFER_BROADCAST:
  case DM_TRANSFER_SCATTER: return g->me == peer ? n_bytes * (g->n - 1) : 0;
  case DM_TRANSFER_GATHER: return g->me == peer ? 0 : n_bytes;
  case DM_TRANSFER_SEND: return n_bytes;
  case DM_TRANSFER_RECEIVE: return 0;
  case DM_TRANSFER_MIN: return g->n > 1 ? n_bytes : 0;
  default: return n_bytes * (g->n - 1);
  }
}

void dm_work_post(dm_Work *w, const dm_Transport *t, int next, dm_Transfer transfer,
                  const void *in, void *out, int64_t n_bytes) {
  const int tag = 2 * w->tag + (w->step == AGREE ? 0 : 1); /* a description, or data */
  w->step = next;
  w->n_moving = n_bytes;
  w->n_sent += sent_by(w, transfer, n_bytes, w->peer);
  w->request = t->post(w->agree->comm, transfer, in, out, n_bytes, w->peer, tag);
  if (!w->request) dm_work_break(w, t->text());
}

/* The data of a tensor; NULL of none. */
static void *data_of(const dm_Tensor *t) { return t ? dm_tensor_data(t) : NULL; }

/* ---- the agreement ---- */

/* "rank 0 gives all_reduce(sum) {10} float32 (train.lua:31), rank 1 ..." of those that differ
   from the first. */
static void explain(dm_Work *w) {
  char text[DM_FAILURE_TEXT];
  int n = snprintf(text, sizeof text, "ranks do not agree"), named = 0;
  for (int i = 0; i < w->agree->n && n < (int)sizeof text; i++) {
    const dm_Header *h = &w->headers[i], *first = &w->headers[0];
    const bool same = strcmp(h->name, first->name) == 0 && strcmp(h->key, first->key) == 0;
    if ((i > 0 && same) || named == MOST_NAMED) continue;
    n += snprintf(text + n, sizeof text - (size_t)n, "%s rank %d gives %s%s%s (%s)",
                  named++ ? "," : ":", w->agree->ranks[i], h->name, *h->key ? " " : "", h->key,
                  h->line);
  }
  fail(w, text);
}

/* Two hashes differ where the least is not the largest, whose complement is the other least. */
static void compare(dm_Work *w, const dm_Transport *t) {
  if (w->is_shown ? dm_near_agrees(w->agree->near) : w->least[0] == ~w->least[1]) {
    w->step = FIRST;
    return;
  }
  w->headers = dm_alloc(w->agree->n * (int64_t)sizeof *w->headers);
  if (!w->headers) {
    dm_work_break(w, "ranks do not agree, and there is no memory to say why");
    return;
  }
  dm_work_post(w, t, EXPLAIN, DM_TRANSFER_ALL_GATHER, &w->header, w->headers, sizeof w->header);
}

/* Whether the ranks may combine it where it lies. */
static bool may_be_near(const dm_Work *w) {
  return is_reduction(w) && !w->by_link && w->in->numel > 0 && !is_small(w);
}

/* Whether a copy of it is shown in its stead: of a small sum or broadcast. */
static bool is_copied(const dm_Work *w) {
  if (w->by_link || !w->in || w->in->numel == 0) return false;
  return w->kind == DM_WORK_BROADCAST ? dm_tensor_bytes(w->in) <= DM_SMALL_BYTES : is_small(w);
}

/* Where the others find what this rank gives; 0: it comes by messages, or it gives nothing. */
static uint64_t shown(const dm_Work *w) {
  if (is_copied(w) && (is_small(w) || w->peer == w->group->me))
    return dm_near_copy(w->agree->near, data_of(w->in), dm_tensor_bytes(w->in));
  return may_be_near(w) ? dm_near_shows(data_of(w->in)) : 0;
}

/* The agreement of ranks that can read one another's memory. */
static void agree_near(dm_Work *w, const dm_Transport *t) {
  dm_Near *near = w->agree->near;
  near->word = (dm_NearWord){.hash = w->hash[0], .at = shown(w)};
  w->is_shown = true;
  dm_work_post(w, t, COMPARE, DM_TRANSFER_ALL_GATHER, &near->word, near->words,
               sizeof near->word);
}

static void agree(dm_Work *w, const dm_Transport *t) {
  if (w->kind == DM_WORK_SEND) {
    dm_work_post(w, t, FIRST, DM_TRANSFER_SEND, &w->header, NULL, sizeof w->header);
  } else if (w->kind == DM_WORK_RECEIVE) {
    dm_work_post(w, t, COMPARE, DM_TRANSFER_RECEIVE, NULL, &w->other, sizeof w->other);
  } else if (w->agree->near && w->agree->near->works) {
    agree_near(w, t);
  } else if (w->agree->n > 1) {
    dm_work_post(w, t, COMPARE, DM_TRANSFER_MIN, w->hash, w->least, sizeof w->hash);
  } else {
    w->step = FIRST;
  }
}

/* Whose message it is, has come; its data may have to wait for that of others. */
static void arrive(dm_Work *w) {
  w->peer = (int)w->other.from;
  w->step = ARRIVED;
}

/* A message of another kind is received and dropped, so that the next one is read as one. */
static void compare_message(dm_Work *w, const dm_Transport *t) {
  if (strcmp(w->header.key, w->other.key) == 0) {
    w->step = FIRST;
    return;
  }
  if (new_bytes(w->other.n_bytes, &w->a) != DM_OK) {
    dm_work_break(w, "out of memory for a message that does not fit");
    return;
  }
  dm_work_post(w, t, REFUSE, DM_TRANSFER_RECEIVE, NULL, data_of(w->a), w->other.n_bytes);
}

static void refuse(dm_Work *w) {
  char text[DM_FAILURE_TEXT];
  snprintf(text, sizeof text, "rank %d sends %s (%s), wanted %s", w->agree->ranks[w->peer],
           w->other.key, w->other.line, w->header.key);
  fail(w, text);
}

/* ---- the data ---- */

/* Gives the ranks of the group this one's card, at their first reduction that is not small. */
static void meet(dm_Work *w, const dm_Transport *t) {
  dm_Near *near = dm_near_new(w->group->n, w->group->me);
  w->group->near = near;
  if (!near) dm_work_break(w, "out of memory for a reduction");
  else
    dm_work_post(w, t, MEET, DM_TRANSFER_ALL_GATHER, &near->card, near->cards,
                 sizeof near->card);
}

/* Ends it because a rank's memory cannot be reached, errno says why: mostly its process has
   been killed, and this rank noticed before the launcher ended them all. */
static void break_near(dm_Work *w, const dm_Group *group, int index) {
  char text[DM_FAILURE_TEXT];
  const int rank = group->ranks[index];
  if (errno == ESRCH)
    snprintf(text, sizeof text, "rank %d is gone: its process has ended in the middle of it",
             rank);
  else
    snprintf(text, sizeof text, "the memory of rank %d cannot be reached: %s", rank,
             errno ? strerror(errno) : "less of it than its tensor");
  dm_work_break(w, text);
}

/* Combines this rank's slice where it lies, and waits until all have done so. */
static void reduce_near(dm_Work *w, const dm_Transport *t) {
  const int64_t slice = w->slice * dm_dtype_size(w->in->dtype);
  const bool scatters = w->kind == DM_WORK_REDUCE_SCATTER;
  const dm_NearSum sum = {.op = w->op,
                          .dtype = w->in->dtype,
                          .n = w->in->numel,
                          .slice = w->slice,
                          .in = data_of(w->in),
                          .out = scatters ? data_of(w->out) : NULL,
                          .to = w->kind == DM_WORK_REDUCE ? w->peer : -1};
  const int failed = dm_near_reduce(w->group->near, &sum);
  if (failed >= 0) {
    break_near(w, w->group, failed);
    return;
  }
  w->n_direct = sent_by(w, DM_TRANSFER_ALL_TO_ALL, slice, 0);
  if (w->kind == DM_WORK_REDUCE) w->n_direct += sent_by(w, DM_TRANSFER_GATHER, slice, w->peer);
  else if (!scatters) w->n_direct += sent_by(w, DM_TRANSFER_ALL_GATHER, slice, 0);
  w->n_sent += w->n_direct;
  dm_work_post(w, t, THIRD, DM_TRANSFER_MIN, w->hash, w->least, sizeof w->hash);
  w->n_moving = slice; /* the others may take as long to begin */
}

/* Takes what the ranks have shown copies of. */
static void take_copies(dm_Work *w) {
  const dm_Near *near = w->agree->near;
  const int64_t bytes = dm_tensor_bytes(w->in);
  const bool sums = is_small(w), gives = sums || w->group->me == w->peer;
  int failed = -1;
  if (sums)
    failed = dm_near_reduce_copies(near, w->op, w->in->dtype, w->in->numel, data_of(w->in));
  else if (!gives) failed = dm_near_read_copy(near, w->peer, data_of(w->in), bytes);
  w->n_direct = gives ? bytes * (w->group->n - 1) : 0;
  w->n_sent += w->n_direct;
  if (failed < 0) end(w);
  else break_near(w, w->agree, failed);
}

/* The first step of a reduction. */
static void reduce_first(dm_Work *w, const dm_Transport *t) {
  const int64_t bytes = dm_tensor_bytes(w->in), size = dm_dtype_size(w->in->dtype);
  if (w->in->numel == 0) {
    end(w);
  } else if (may_be_near(w) && !w->group->near && w->group->n > 1) {
    meet(w, t);
  } else if (w->is_shown && dm_near_all_show(w->group->near)) {
    reduce_near(w, t);
  } else if (take_slices(w) != DM_OK) {
    dm_work_break(w, "out of memory for the slices of a reduction");
  } else if (is_small(w)) {
    dm_work_post(w, t, SECOND, DM_TRANSFER_ALL_GATHER, data_of(w->in), data_of(w->b), bytes);
  } else {
    if (w->a) memcpy(data_of(w->a), data_of(w->in), (size_t)bytes);
    dm_work_post(w, t, SECOND, DM_TRANSFER_ALL_TO_ALL, data_of(w->a ? w->a : w->in),
                 data_of(w->b), w->slice * size);
  }
}

/* Combines this rank's slice, and gathers it with those of the others: into the tensor itself,
   where it is a number of whole slices. */
static void reduce_second(dm_Work *w, const dm_Transport *t) {
  const dm_DType dtype = w->in->dtype;
  const bool ends = is_small(w) || w->kind == DM_WORK_REDUCE_SCATTER;
  void *to = data_of(is_small(w) ? w->in : ends ? w->out : w->a ? w->a : w->b);
  const dm_RankParts parts = {dtype, dm_dtype_size(dtype), w->slice, data_of(w->b), -1, NULL};
  dm_rank_reduce(w->op, w->group->n, &parts, to);
  if (ends) end(w);
  else
    dm_work_post(w, t, THIRD,
                 w->kind == DM_WORK_REDUCE ? DM_TRANSFER_GATHER : DM_TRANSFER_ALL_GATHER, to,
                 data_of(w->a ? w->b : w->in), w->slice * dm_dtype_size(dtype));
}

static void reduce_third(dm_Work *w) {
  if (w->a && (w->kind != DM_WORK_REDUCE || w->group->me == w->peer))
    memcpy(data_of(w->in), data_of(w->b), (size_t)dm_tensor_bytes(w->in));
  end(w);
}

static void met(dm_Work *w, const dm_Transport *t) {
  dm_Near *near = w->group->near;
  dm_near_meet(near);
  dm_work_post(w, t, MET, DM_TRANSFER_MIN, near->found, near->all, sizeof near->found);
}

static void split(dm_Work *w, const dm_Transport *t) {
  bool failed;
  w->group->comm = t->split(w->agree->comm, w->group->me >= 0, &failed);
  if (failed) dm_work_break(w, t->text());
  else w->step = DM_WORK_LINKING;
}

/* Posts what moves the data of all but reductions. */
static void move(dm_Work *w, const dm_Transport *t, dm_Transfer transfer, int64_t n_bytes) {
  const bool into_in = transfer == DM_TRANSFER_BROADCAST || transfer == DM_TRANSFER_RECEIVE;
  if (n_bytes == 0 && !dm_work_is_message(w)) end(w);
  else
    dm_work_post(w, t, THIRD, transfer, into_in ? NULL : data_of(w->in),
                 data_of(into_in ? w->in : w->out), n_bytes);
}

/* Tells the other ranks how much this one gives to each, and wants of each. */
static void tell_sizes(dm_Work *w, const dm_Transport *t) {
  const int64_t bytes = 2 * w->group->n * (int64_t)sizeof *w->sizes;
  w->all_sizes = dm_alloc(w->group->n * bytes);
  if (!w->all_sizes) dm_work_break(w, "out of memory for the sizes of all ranks' parts");
  else dm_work_post(w, t, SIZES, DM_TRANSFER_ALL_GATHER, w->sizes, w->all_sizes, bytes);
}

/* Fails on all ranks where one has more rows than MPI counts. */
static bool are_countable(dm_Work *w) {
  const int n = w->group->n;
  char text[DM_FAILURE_TEXT];
  for (int side = 0; side < 2 * n; side++) {
    int64_t rows = 0;
    for (int k = 0; k < n; k++) rows += w->all_sizes[n * side + k];
    if (rows <= INT32_MAX) continue;
    snprintf(text, sizeof text, "rank %d has %lld rows to exchange, of at most %d",
             w->group->ranks[side / 2], (long long)rows, INT32_MAX);
    fail(w, text);
    return false;
  }
  return true;
}

/* Whether all ranks want what they get; else all of them fail. *total: rows of all ranks. */
static bool sizes_agree(dm_Work *w, int64_t *total) {
  const int n = w->group->n;
  char text[DM_FAILURE_TEXT];
  *total = 0;
  if (!are_countable(w)) return false;
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < n; k++) {
      const int64_t gives = w->all_sizes[2 * n * i + k],
                    wants = w->all_sizes[2 * n * k + n + i];
      *total += gives;
      if (gives == wants) continue;
      snprintf(text, sizeof text, "rank %d gives rank %d %lld elements, which wants %lld",
               w->group->ranks[i], w->group->ranks[k], (long long)(gives * w->row),
               (long long)(wants * w->row));
      fail(w, text);
      return false;
    }
  }
  return true;
}

int64_t dm_work_uneven_sent(const dm_Work *w) {
  int64_t rows = 0;
  for (int i = 0; i < w->group->n; i++) rows += i == w->group->me ? 0 : w->sizes[i];
  return rows * w->row * dm_dtype_size(w->in->dtype);
}

/* Exchanges the parts, unless no rank has any. */
static void exchange(dm_Work *w, const dm_Transport *t) {
  int64_t total;
  if (!sizes_agree(w, &total)) return;
  if (total * w->row == 0) {
    end(w);
  } else if (w->by_link) {
    w->step = DM_WORK_LINKING;
  } else {
    const int64_t sent = dm_work_uneven_sent(w);
    w->step = THIRD;
    w->n_moving = sent;
    w->n_sent += sent;
    w->request = t->post_uneven(w->group->comm, data_of(w->in), data_of(w->out), w->sizes,
                                w->group->n, w->row * dm_dtype_size(w->in->dtype));
    if (!w->request) dm_work_break(w, t->text());
  }
}

static void first(dm_Work *w, const dm_Transport *t) {
  const int64_t in = w->in ? dm_tensor_bytes(w->in) : 0,
                out = w->out ? dm_tensor_bytes(w->out) : 0;
  if (w->kind == DM_WORK_EXCHANGE) {
    tell_sizes(w, t);
    return;
  }
  if (w->by_link || w->kind == DM_WORK_CONNECT) {
    w->step = DM_WORK_LINKING;
    return;
  }
  if (w->is_shown && is_copied(w)) {
    take_copies(w);
    return;
  }
  switch (w->kind) {
  case DM_WORK_CONNECT:
  case DM_WORK_EXCHANGE:
  case DM_WORK_BARRIER: end(w); break;
  case DM_WORK_SPLIT: split(w, t); break;
  case DM_WORK_ALL_REDUCE:
  case DM_WORK_REDUCE:
  case DM_WORK_REDUCE_SCATTER: reduce_first(w, t); break;
  case DM_WORK_BROADCAST: move(w, t, DM_TRANSFER_BROADCAST, in); break;
  case DM_WORK_ALL_GATHER: move(w, t, DM_TRANSFER_ALL_GATHER, in); break;
  case DM_WORK_GATHER: move(w, t, DM_TRANSFER_GATHER, in); break;
  case DM_WORK_SCATTER: move(w, t, DM_TRANSFER_SCATTER, out); break;
  case DM_WORK_ALL_TO_ALL: move(w, t, DM_TRANSFER_ALL_TO_ALL, in / w->group->n); break;
  case DM_WORK_SEND: move(w, t, DM_TRANSFER_SEND, in); break;
  case DM_WORK_RECEIVE: move(w, t, DM_TRANSFER_RECEIVE, in); break;
  }
}

bool dm_work_advance(dm_Work *w, const dm_Transport *t) {
  if (w->request) {
    const int state = t->test(&w->request);
    if (state == 0) return false;
    if (state < 0) {
      dm_work_break(w, t->text());
      return true;
    }
  }
  switch (w->step) {
  case AGREE: agree(w, t); break;
  case COMPARE:
    if (w->kind == DM_WORK_RECEIVE) arrive(w);
    else compare(w, t);
    break;
  case ARRIVED: compare_message(w, t); break;
  case EXPLAIN: explain(w); break;
  case FIRST: first(w, t); break;
  case SECOND: reduce_second(w, t); break;
  case THIRD:
    if (is_reduction(w)) reduce_third(w);
    else end(w);
    break;
  case MEET: met(w, t); break;
  case MET:
    w->group->near->works = w->group->near->all[0] == 1;
    w->step = FIRST;
    break;
  case SIZES: exchange(w, t); break;
  case DM_WORK_LINKING: break; /* link.c goes on */
  default: refuse(w); break;
  }
  return true;
}
