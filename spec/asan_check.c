/* Checks that AddressSanitizer sees the ends of tensors: their memory is cut from segments and
   from the blocks of their handles. A child process touches one byte too many, or a tensor that
   was freed, and the sanitizer must end it. Other builds have nothing to check: they only count
   a child that keeps to its bytes. Prints "N passed, N failed". */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "core/tensor.h"

static int n_passed, n_failed;

enum { SEEN = 66 }; /* the exit status of a child that the sanitizer ends */

/* Given to the sanitizer when the program starts. */
DM_API const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "exitcode=66:detect_leaks=0"; }

/* The acts of a child on a tensor of n floats. */
typedef enum Act { INSIDE, AFTER, BYTE_AFTER, BEFORE, FREED, N_ACT } Act;
static const char *const act_names[N_ACT] = {"inside", "one float after the end",
                                             "one byte after the end", "one float before",
                                             "after it was freed"};

/* Does it, beside a tensor of the same size on each side. */
static void touch(Act act, int64_t n) {
  dm_Tensor *t[3];
  for (int i = 0; i < 3; i++)
    if (dm_tensor_new(DM_F32, 1, &n, (dm_Device){DM_CPU, 0}, &t[i]) != DM_OK) exit(1);
  volatile float *x = dm_tensor_data(t[1]);
  x[0] = x[n - 1] = 1;
  if (act == AFTER) x[n] = 1;
  if (act == BYTE_AFTER) ((volatile char *)(x + n))[0] = 1;
  if (act == BEFORE) x[-1] = 1;
  if (act == FREED) {
    dm_tensor_unref(&t[1]);
    x[0] = 1;
  }
  exit(0);
}

/* The exit status of a child that does it in silence. */
static int status_of(Act act, int64_t n) {
  fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    if (!freopen("/dev/null", "w", stderr)) exit(1);
    touch(act, n);
  }
  int status = -1;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

int main(void) {
  /* beside the handle; the most that fits there; a block of its size class to the last byte,
     and not; the largest of a segment; mapped ones, to the last byte and not */
  static const int64_t sizes[] = {1, 3, 48, 49, 128, 130, 200, 57344, 65536, 65537, 1 << 20};
  for (int k = 0; k < DM_COUNT(sizes); k++) {
    for (Act act = INSIDE; act < (DM_ASAN ? N_ACT : AFTER); act++) {
      const int got = status_of(act, sizes[k]);
      const bool ok = got == (act == INSIDE ? 0 : SEEN);
      if (!ok)
        printf("asan_check.c: %lld floats, %s: exit status %d\n", (long long)sizes[k],
               act_names[act], got);
      if (ok) n_passed++;
      else n_failed++;
    }
  }
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed > 0;
}
