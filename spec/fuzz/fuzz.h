/* Functions that the fuzzers share. A fuzzer is a program, NAME_fuzz.c with
   LLVMFuzzerTestOneInput: it gives random bytes to a reader as a file. The reader must answer
   with a value or a failure, without a report of the sanitizers and without a leak. The seeds
   are below NAME/ in spec/fuzz/corpus.tar. scripts/test --parts=fuzz unpacks them and runs all
   fuzzers, `python3 scripts/coverage --fuzz` tells which lines of the readers they reach.

     CC=clang cmake -B build/fuzz -G Ninja -DDM_FUZZ=ON
     ninja -C build/fuzz fuzzers
     mkdir build/fuzz/seeds && tar -xf spec/fuzz/corpus.tar -C build/fuzz/seeds
     build/fuzz/spec/NAME_fuzz -max_total_time=60 -detect_leaks=0 build/fuzz/seeds/NAME */
#ifndef DM_FUZZ_H
#define DM_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The path of a file with these bytes, in memory; `slot` 0, 1 or 2 is which of three. It is
   good until the next call for that slot. */
const char *fuzz_file(int slot, const void *bytes, size_t n);

/* Ends the program, as a crash does, unless the engine holds as much memory as at the
   first call. */
void fuzz_check_live(void);

/* Calls the function that the chunk of Lua gives with these strings. The chunk is run
   once, below the repository's lua/. An error that it raises, but for the end of memory,
   ends the program: what is wrong with a file is an answer. */
void fuzz_lua(const char *chunk, int n_args, const char *const *args);

#endif
