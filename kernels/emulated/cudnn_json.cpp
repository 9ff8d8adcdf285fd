/* The emulated cuDNN's plans as text, as the library gives them as JSON: all descriptors that a
   plan is made of, each after those that it names. [type,[attribute,value,...],...] is one of
   them; a value that is a descriptor is its number from 0. The last one is the engine's
   configuration. Handles are left out. */
#include <inttypes.h>
#include <stdio.h>

#include "cudnn_internal.h"

enum { MAX_PART = 512 };

static bool is_part(const Rule *r) { return r->type == CUDNN_TYPE_BACKEND_DESCRIPTOR; }

/* ---- writing ---- */

struct Writer {
  char *text;
  int64_t n, capacity;
  int n_part;
  const Descriptor *part[MAX_PART];

  void put(const char *format, int64_t v) {
    char word[32];
    const int64_t length = snprintf(word, sizeof word, format, v);
    if (n + length > capacity) {
      capacity = 2 * (n + length);
      text = (char *)realloc(text, (size_t)capacity);
      if (!text) abort();
    }
    memcpy(text + n, word, (size_t)length);
    n += length;
  }
  int number(const Descriptor *d) {
    for (int i = 0; i < n_part; i++)
      if (part[i] == d) return i;
    for (int i = 0; i < d->n; i++)
      if (is_part(d->attribute[i].rule))
        for (int64_t k = 0; k < d->attribute[i].n; k++)
          number((const Descriptor *)(intptr_t)d->attribute[i].bits[k]);
    if (n_part == MAX_PART) abort();
    put(n_part ? ",\n[%" PRId64 : "\n[%" PRId64, d->type);
    for (int i = 0; i < d->n; i++) attribute(d->attribute[i]);
    put("]", 0);
    part[n_part] = d;
    return n_part++;
  }
  void attribute(const Attribute &a) {
    if (a.rule->type == CUDNN_TYPE_HANDLE) return;
    put(",[%" PRId64, a.rule->name);
    for (int64_t i = 0; i < a.n; i++)
      put(",%" PRId64,
          is_part(a.rule) ? number((const Descriptor *)(intptr_t)a.bits[i]) : a.bits[i]);
    put("]", 0);
  }
};

char *dm_dnn_write_json(const Descriptor *plan, int64_t *n) {
  Writer w = {};
  w.put("{\"plan\":[", 0);
  w.number(part(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
  w.put("]}", 0);
  *n = w.n;
  return w.text;
}

/* ---- reading ---- */

struct Reader {
  const char *at, *end;

  bool take(const char *word) {
    const int64_t n = (int64_t)strlen(word);
    if (end - at < n || memcmp(at, word, (size_t)n) != 0) return false;
    at += n;
    return true;
  }
  bool number(int64_t *out) {
    char word[24];
    int n = 0;
    while (n < 22 && at + n < end && strchr("-0123456789", at[n]) && at[n]) n++;
    memcpy(word, at, (size_t)n);
    word[n] = '\0';
    char *after;
    *out = strtoll(word, &after, 10);
    at += n;
    return n > 0 && *after == '\0';
  }
};

static bool read_attribute(Reader *r, Descriptor *d, Descriptor *const *parts, int n_part) {
  int64_t name, v;
  if (d->n == MAX_ATTRIBUTE || !r->number(&name)) return false;
  Attribute *a = &d->attribute[d->n++];
  a->rule = dm_dnn_rule_of(d->type, (cudnnBackendAttributeName_t)name);
  if (!a->rule) return false;
  while (r->take(",")) {
    if (a->n == a->rule->most || !r->number(&v)) return false;
    if (is_part(a->rule)) {
      if (v < 0 || v >= n_part || (a->rule->part >= 0 && a->rule->part != (int)parts[v]->type))
        return false;
      v = (intptr_t)parts[v];
    }
    a->bits[a->n++] = v;
  }
  return a->n >= a->rule->least && r->take("]");
}

static bool read_part(Reader *r, Descriptor *d, Descriptor *const *parts, int n_part) {
  int64_t type;
  if (!r->take("\n[") || !r->number(&type)) return false;
  d->type = (cudnnBackendDescriptorType_t)type;
  while (r->take(",["))
    if (!read_attribute(r, d, parts, n_part)) return false;
  d->finalized = true;
  return r->take("]");
}

/* The parts of a wrong text stay allocated, as all memory of plans does here. */
Descriptor *dm_dnn_read_json(const char *text, int64_t n) {
  Reader r = {text, text + n};
  Descriptor *parts[MAX_PART];
  int n_part = 0;
  if (!r.take("{\"plan\":[")) return nullptr;
  do {
    if (n_part == MAX_PART) return nullptr;
    Descriptor *d = (Descriptor *)calloc(1, sizeof *d);
    if (!d || !read_part(&r, d, parts, n_part)) return nullptr;
    parts[n_part++] = d;
  } while (r.take(","));
  if (!r.take("]}") || r.at != r.end) return nullptr;
  Descriptor *config = parts[n_part - 1];
  return config->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR &&
                 attribute_of(config, CUDNN_ATTR_ENGINECFG_ENGINE)
             ? config
             : nullptr;
}
