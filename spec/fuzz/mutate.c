/* Random changes of a tree of JSON. */
#include "mutate.h"

#include <stdlib.h>

uint32_t fuzz_random(uint64_t *state, uint32_t n) {
  *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
  uint64_t x = *state;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (uint32_t)((x ^ x >> 31) >> 32) % n;
}

const char *fuzz_word(uint64_t *state, const char *const *words, size_t n_words) {
  return words[fuzz_random(state, (uint32_t)n_words)];
}

static int is_container(const cJSON *v) { return cJSON_IsObject(v) || cJSON_IsArray(v); }

/* A member of a container, or NULL of an empty one. */
static cJSON *choose_child(cJSON *v, uint64_t *state) {
  const int n = cJSON_GetArraySize(v);
  return n ? cJSON_GetArrayItem(v, (int)fuzz_random(state, (uint32_t)n)) : NULL;
}

/* The root, or a list or object below it. */
static cJSON *choose_container(cJSON *v, uint64_t *state) {
  for (;;) {
    cJSON *below = choose_child(v, state);
    if (!is_container(below) || fuzz_random(state, 3) == 0) return v;
    v = below;
  }
}

static void add(cJSON *container, const char *name, cJSON *v) {
  if (cJSON_IsObject(container)) cJSON_AddItemToObject(container, name, v);
  else cJSON_AddItemToArray(container, v);
}

/* A number at an edge, or a neighbour of the one that was there. */
static double choose_number(double old, uint64_t *state) {
  static const double edges[] = {0,     1,          2,      3,     8,  9,  255,
                                 65536, 2147483648, 0x1p53, 1e300, -1, 0.5};
  switch (fuzz_random(state, 4)) {
  case 0: return old + 1;
  case 1: return old - 1;
  default: return edges[fuzz_random(state, sizeof edges / sizeof *edges)];
  }
}

/* Replaces a child by another value under the same name. */
static void replace(cJSON *container, cJSON *child, uint64_t *state, const char *word) {
  cJSON *v;
  switch (fuzz_random(state, 8)) {
  case 0: v = cJSON_CreateNull(); break;
  case 1: v = cJSON_CreateArray(); break;
  case 2: v = cJSON_CreateObject(); break;
  default:
    v = cJSON_IsNumber(child) ? cJSON_CreateNumber(choose_number(child->valuedouble, state))
                              : cJSON_CreateString(word);
  }
  v->string = child->string;
  child->string = NULL;
  cJSON_ReplaceItemViaPointer(container, child, v);
}

void fuzz_mutate_json(cJSON *root, uint64_t *state, const char *const *words, size_t n_words) {
  cJSON *container = choose_container(root, state);
  cJSON *child = choose_child(container, state);
  const char *word = fuzz_word(state, words, n_words);
  if (!child) {
    add(container, word, cJSON_CreateNumber(choose_number(0, state)));
    return;
  }
  switch (fuzz_random(state, 6)) {
  case 0: cJSON_Delete(cJSON_DetachItemViaPointer(container, child)); break;
  case 1: /* the same name twice is a fault of many formats */
    if (child->string && fuzz_random(state, 4) == 0) word = child->string;
    add(container, word, cJSON_Duplicate(child, 1));
    break;
  case 2:
    cJSON_DetachItemViaPointer(container, child);
    cJSON_InsertItemInArray(container, 0, child);
    break;
  case 3:
    cJSON_DetachItemViaPointer(container, child);
    add(container, word, child);
    break;
  default: replace(container, child, state, word);
  }
}

cJSON *fuzz_parse_object(const uint8_t *text, size_t n) {
  cJSON *root = cJSON_ParseWithLength((const char *)text, n);
  if (cJSON_IsObject(root)) return root;
  cJSON_Delete(root);
  return cJSON_CreateObject();
}

void fuzz_set_number(cJSON *object, const char *name, double value) {
  cJSON_DeleteItemFromObjectCaseSensitive(object, name);
  cJSON_AddNumberToObject(object, name, value);
}
