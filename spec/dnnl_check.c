/* cpu_check's matrix products once more, those of 16 bits through oneDNN: a stand-in for
   it (fake_dnnl.c), and the real one where there is one that takes them here. */
int products_check(int argc, char **argv);
#define main products_check
#include "cpu_check.c"
#undef main

#include <dlfcn.h>

#include "cpu/dnnl.h"

/* ---- its sums alone, for the shapes and the ways to lie of check_gemm ---- */

static bool check_sums(dm_DType t, int64_t m, int64_t n, int64_t k, int layout_a,
                       int layout_b) {
  void *own_a, *own_b;
  const dm_Mat a = make_mat(t, m, k, layout_a, &own_a), b = make_mat(t, k, n, layout_b, &own_b);
  const int64_t ldc = n + below(3), size = (m - 1) * ldc + n;
  float *c = new_array(DM_F32, size);
  bool ok = dm_dnnl_sums(m, n, k, &a, &b, c, ldc);
  const bool dense = layout_a < 2 && layout_b < 2;
  ok = (ok || !dense) && guards_hold(DM_F32, size, c);
  double *const wide_a = widened(&a, m, k), *const wide_b = widened(&b, k, n);
  for (int64_t i = 0; ok && dense && i < m; i++)
    for (int64_t j = 0; j < n; j++)
      ok = ok && fabs(dot(wide_a, i, wide_b, j, k, n) - (double)c[i * ldc + j]) <=
                     0x1p-23 * ((double)k + 16);
  free(wide_a);
  free(wide_b);
  free_array(own_a);
  free_array(own_b);
  free_array(c);
  return ok;
}

static void check_all_sums(void) {
  for (int s = 0; s < DM_COUNT(sizes); s++)
    for (int i = 0; i < 16; i++) {
      const int64_t *const x = sizes[s];
      const dm_DType t = below(2) ? DM_BF16 : DM_F16;
      if (!dm_dnnl_takes(t, x[0], x[1], x[2]) || x[2] == 0) continue;
      char what[96];
      snprintf(what, sizeof what, "oneDNN's sums of %s (%lld,%lld,%lld), %d and %d",
               dm_dtype_name(t), (long long)x[0], (long long)x[1], (long long)x[2], i % 4,
               i / 4);
      check(check_sums(t, x[0], x[1], x[2], i % 4, i / 4), what);
    }
}

/* What goes there of cpu_check's products: float16, bfloat16, and float16 to float32. */
static void check_products(void) {
  static const int kinds[] = {2, 3, 5};
  for (int s = 0; s < DM_COUNT(sizes); s++)
    for (int i = 0; i < DM_COUNT(kinds); i++)
      check_product(sizes[s][0], sizes[s][1], sizes[s][2], kinds[i]);
}

/* ---- libraries, each in a process of its own ---- */

static int count(void *fake, const char *name) {
  int (*f)(void);
  void *const p = dlsym(fake, name);
  memcpy(&f, &p, sizeof f);
  return f();
}

typedef struct Case {
  const char *what, *fault, *setting;
  bool used;
} Case;

/* The stand-in, once loaded, is what the name libdnnl.so.3 stands for. */
static void check_fake(const Case *c) {
  void *fake = dlopen(FAKE_DNNL, RTLD_NOW | RTLD_LOCAL);
  const char *why;
  check(fake != NULL, "the stand-in is opened");
  if (!fake) return;
  check((dm_dnnl_version(&why) != NULL) == c->used && (why == NULL) == c->used, "used or not");
  const int before = count(fake, "fake_dnnl_products");
  if (c->used && !c->fault) check_all_sums();
  if (c->used) check_products();
  else check_product(48, 48, 48, 3);
  check((count(fake, "fake_dnnl_products") > before) == c->used, "products went there or not");
  check(count(fake, "fake_dnnl_live") == 0, "what was made for them is gone");
}

static void check_real(const Case *c) {
  const char *why, *const version = dm_dnnl_version(&why);
  DM_UNUSED(c);
  if (version) printf("oneDNN %s\n", version);
  else printf("not checked: oneDNN: %s\n", why);
  if (!version) return;
  check_all_sums();
  check_products();
}

static void in_child(void (*checks)(const Case *), const Case *c) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    setenv("DEMILUNE_DNNL", c->setting, 1);
    if (c->fault) setenv("FAKE_DNNL", c->fault, 1);
    n_failed = 0;
    checks(c);
    fflush(stdout);
    exit(n_failed != 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  check(child > 0 && status == 0, c->what);
}

/* With an argument: the real one alone (emulated processors take their time). */
int main(int argc, char **argv) {
  DM_UNUSED(argv);
  static const Case cases[] = {{"a stand-in for oneDNN", NULL, "1", true},
                               {"one that fails halfway", "halfway", "1", true},
                               {"one that refuses", "refuses", "1", false},
                               {"one of version 2", "old", "1", false},
                               {"one with threads of its own", "threads", "1", false},
                               {"switched off", NULL, "0", false},
                               {"a file that is not there", NULL, "/nowhere.so", false}};
  for (int i = 0; argc == 1 && i < DM_COUNT(cases); i++) in_child(check_fake, &cases[i]);
  in_child(check_real, &(Case){.what = "oneDNN", .setting = "1"});
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed != 0;
}
