/* Squares of numbers in vector registers whose rows become columns. */
#ifndef DM_TRANSPOSE_H
#define DM_TRANSPOSE_H

/* Elements of a, then of b, by number. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#ifndef PICK /* gcc before 12 */
#define PICK(a, b, ...) __builtin_shuffle(a, b, (__typeof__((a) == (b))){__VA_ARGS__})
#endif
#define LOW_4 0, 4, 1, 5
#define HIGH_4 2, 6, 3, 7
#define LOW_8 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_8 4, 12, 5, 13, 6, 14, 7, 15
#define LOW_16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

/* Rows become columns in log2(COUNT) steps, each of which interleaves the first half of
   the rows with the second. */
#define DEFINE_TRANSPOSE(NAME, VEC, COUNT, LOW, HIGH)                       \
  static inline __attribute__((always_inline)) void NAME(VEC r[COUNT]) {    \
    _Pragma("GCC unroll 4") for (int n = 1; n < COUNT; n *= 2) {            \
      VEC t[COUNT];                                                         \
      _Pragma("GCC unroll 16") for (int i = 0; i < COUNT / 2; i++) {        \
        t[2 * i] = PICK(r[i], r[i + COUNT / 2], LOW);                       \
        t[2 * i + 1] = PICK(r[i], r[i + COUNT / 2], HIGH);                  \
      }                                                                     \
      _Pragma("GCC unroll 16") for (int i = 0; i < COUNT; i++) r[i] = t[i]; \
    }                                                                       \
  }

#endif
