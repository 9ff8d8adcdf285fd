/* Steps of a mutator that knows its format. Random bytes rarely make a file that a reader
   takes, so its deep code is rarely reached: such a mutator changes what a file means and
   then puts lengths and offsets right again, most of the time. */
#ifndef DM_FUZZ_MUTATE_H
#define DM_FUZZ_MUTATE_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

/* libFuzzer's own mutator, and the one that it calls instead where a fuzzer has one. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t capacity);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t capacity, unsigned seed);

/* A number from 0 to n - 1; the state goes on. */
uint32_t fuzz_random(uint64_t *state, uint32_t n);

/* One of the texts, at random. */
const char *fuzz_word(uint64_t *state, const char *const *words, size_t n_words);

/* Changes one value of the tree: removes, copies, moves, renames or replaces it. Names and
   strings come from the words. */
void fuzz_mutate_json(cJSON *root, uint64_t *state, const char *const *words, size_t n_words);

/* The JSON that these bytes begin with; an empty object where they begin with none. */
cJSON *fuzz_parse_object(const uint8_t *text, size_t n);

/* Adds a number to an object, in place of one that has the name. */
void fuzz_set_number(cJSON *object, const char *name, double value);

#endif
