/* A tensor as text: its values in columns, a corner of a large one, and a last line with
   dtype, shape and device. The text is made in two passes over the values shown: the first
   measures the widest, the second prints. A large tensor on a device is not copied to the
   host; its elements are fetched one by one. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "bind/bind.h"
#include "cpu/vec.h"

/* Unless dm.set_printoptions says otherwise, at most MAX_ROWS rows, as many columns as fit into
   a line, and MAX_PLANES planes of each further dim are shown, and a tensor of up to FEW
   elements whole. Tensors of more than MAX_READ elements are neither copied to the host nor
   searched for NaN. MAX_CELL bytes hold each number, of up to MAX_DIGITS digits behind the
   point. Where output is no terminal a line has USUAL_LINE characters. */
enum { MAX_ROWS = 6, FEW = 10, MAX_PLANES = 4, MAX_READ = 1 << 20 };
enum { MAX_CELL = 400, MAX_DIGITS = 40, USUAL_LINE = 80, LEAST_LINE = 20 };

/* The state of one tostring: the text so far, the width of a cell, and how numbers are
   written. */
typedef struct Printer {
  luaL_Buffer *b;
  const dm_Tensor *t;
  const PrintOptions *options;
  int line;   /* characters of a line */
  int width;  /* of a cell */
  int cols;   /* cells of a row, by default */
  bool whole; /* all values are integers, and written so */
} Printer;

/* The characters of a line of the terminal that standard output is. */
static int terminal_line(void) {
  struct winsize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return USUAL_LINE;
  return size.ws_col < LEAST_LINE ? LEAST_LINE : size.ws_col;
}

/* The element at offset off of a large tensor on another device; NaN when that
   cannot give it. */
static double fetched(const dm_Tensor *t, int64_t off) {
  dm_Tensor one = *t;
  char element[8];
  double v = (double)NAN;
  one.offset += off;
  if (dm_tensor_read(&one, dm_dtype_size((dm_DType)t->dtype), element) == DM_OK)
    dm_load_f64((dm_DType)t->dtype, element, 1, 1, &v);
  return v;
}

/* The element at the index as a double; on a device it is fetched alone. */
static double value_at(const dm_Tensor *t, const int64_t *index) {
  int64_t off = 0;
  double v;
  for (int d = 0; d < t->ndim; d++) off += index[d] * t->stride[d];
  if (t->device.type != DM_CPU) return fetched(t, off);
  dm_load_f64((dm_DType)t->dtype,
              (const char *)dm_tensor_data(t) + off * dm_dtype_size((dm_DType)t->dtype), 1, 1,
              &v);
  return v;
}

/* Writes v to buf with the digits that the dtype carries and no more; returns the length. */
static int format(const Printer *p, double v, char *buf, size_t size) {
  if (p->t->dtype == DM_BOOL) return snprintf(buf, size, "%s", v != 0 ? "true" : "false");
  if (isnan(v)) return snprintf(buf, size, "nan");
  if (isinf(v)) return snprintf(buf, size, v > 0 ? "inf" : "-inf");
  if (!dm_is_float((dm_DType)p->t->dtype)) return snprintf(buf, size, "%.0f", v);
  if (p->whole) return snprintf(buf, size, "%.0f.", v);
  const PrintOptions *o = p->options;
  const int digits = o->precision >= 0                  ? o->precision
                     : dm_is_low((dm_DType)p->t->dtype) ? 3
                                                        : 4;
  const double a = fabs(v);
  const bool far = a != 0 && (a < 1e-4 || a >= 1e5);
  if (o->sci_mode == 1 || (far && o->sci_mode < 0))
    return snprintf(buf, size, "%.*e", digits, v);
  return snprintf(buf, size, "%.*f", a >= 1000 && o->precision < 0 ? 1 : digits, v);
}

/* How many values of a dim are shown, where `usual` are by default. */
static int most_shown(const Printer *p, int usual) {
  const PrintOptions *o = p->options;
  if (p->t->numel <= (o->threshold >= 0 ? o->threshold : FEW)) return INT_MAX - 1;
  return o->edgeitems >= 0 ? 2 * o->edgeitems : usual;
}

/* The number of cells printed for n values, one of them "..." when n > max. */
static int n_shown(int64_t n, int max) { return n <= max ? (int)n : max + 1; }
/* The k-th index shown of n, of which at most `max` are; -1: dots. */
static int64_t pick(int64_t n, int max, int k) {
  const int head = max / 2;
  if (n <= max) return k;
  if (k < head) return k;
  if (k == head) return -1;
  return n - (max + 1 - k);
}

/* Widens p->width to the values shown of one row; `last` is its dim, -1 for a 0-dim
   tensor. */
static void measure_row(Printer *p, int64_t *index, int last) {
  char buf[MAX_CELL];
  const int64_t n = last < 0 ? 1 : p->t->shape[last];
  const int max = most_shown(p, p->cols), cols = n_shown(n, max);
  for (int k = 0; k < cols; k++) {
    const int64_t i = pick(n, max, k);
    if (i < 0) continue;
    if (last >= 0) index[last] = i;
    const int w = format(p, value_at(p->t, index), buf, sizeof buf);
    if (w > p->width) p->width = w;
  }
}

static const char DOTS[] = "  ...";

/* Sets how many cells of a row of n are shown: all, or those that fit beside the dots. */
static void fit_columns(Printer *p, int64_t n) {
  const int cell = p->width + 2, dots = sizeof DOTS - 1;
  if (n * cell > p->line) p->cols = (int)dm_max_i64(2, (p->line - dots) / cell);
}

/* Adds the cells of a row, right-aligned to p->width, and a newline, also before each cell that
   would not fit. */
static void print_row(Printer *p, int64_t *index, int last) {
  char buf[MAX_CELL + 2], cell[MAX_CELL];
  const int64_t n = p->t->shape[last];
  const int max = most_shown(p, p->cols), cols = n_shown(n, max);
  int used = 0;
  for (int k = 0; k < cols; k++) {
    const int64_t i = pick(n, max, k);
    const int size = i < 0 ? (int)strlen(DOTS) : p->width + 2;
    if (k > 0 && used + size > p->line) {
      luaL_addchar(p->b, '\n');
      used = 0;
    }
    used += size;
    if (i < 0) {
      luaL_addstring(p->b, DOTS);
      continue;
    }
    index[last] = i;
    format(p, value_at(p->t, index), cell, sizeof cell);
    snprintf(buf, sizeof buf, "  %*s", p->width, cell);
    luaL_addstring(p->b, buf);
  }
  luaL_addchar(p->b, '\n');
}

/* Measures or prints each row that is shown, below dim d of the index. A plane of a tensor
   with 3 dims or more gets a heading with its index. */
static void each_row(Printer *p, int64_t *index, int d, bool print) {
  const int last = p->t->ndim - 1;
  if (d >= last) {
    if (print) print_row(p, index, last);
    else measure_row(p, index, last);
    return;
  }
  const bool rows = d == last - 1;
  const int max = most_shown(p, rows ? MAX_ROWS : MAX_PLANES);
  const int n = n_shown(p->t->shape[d], max);
  for (int k = 0; k < n; k++) {
    index[d] = pick(p->t->shape[d], max, k);
    if (index[d] < 0) {
      if (print) luaL_addstring(p->b, "  ...\n");
      continue;
    }
    if (print && !rows && d == last - 2) {
      char buf[128];
      int at = snprintf(buf, sizeof buf, "[");
      for (int j = 0; j <= d; j++)
        at += snprintf(buf + at, sizeof buf - (size_t)at, "%lld, ", (long long)index[j] + 1);
      snprintf(buf + at, sizeof buf - (size_t)at, "{}, {}]\n");
      luaL_addstring(p->b, buf);
    }
    each_row(p, index, d + 1, print);
  }
}

/* Whether the values are whole and small, judged by the first 1000 elements only. */
static bool all_whole(const dm_Tensor *t) {
  int64_t index[DM_MAX_DIM] = {0};
  const int64_t n = dm_min_i64(t->numel, 1000);
  for (int64_t k = 0; k < n; k++) {
    const double v = value_at(t, index);
    if (isfinite(v) && (v != floor(v) || fabs(v) >= 1e5)) return false;
    for (int d = t->ndim - 1; d >= 0 && ++index[d] == t->shape[d]; d--) index[d] = 0;
  }
  return true;
}

/* Counts NaN and inf; both are 0 for tensors above MAX_READ elements, which are not read. */
static void count_odd(const dm_Tensor *t, int64_t *n_nan, int64_t *n_inf) {
  *n_nan = *n_inf = 0;
  if (!dm_is_float((dm_DType)t->dtype) || t->numel > MAX_READ) return;
  int64_t index[DM_MAX_DIM] = {0};
  for (int64_t k = 0; k < t->numel; k++) {
    const double v = value_at(t, index);
    *n_nan += isnan(v);
    *n_inf += isinf(v) != 0;
    for (int d = t->ndim - 1; d >= 0 && ++index[d] == t->shape[d]; d--) index[d] = 0;
  }
}

/* tostring(x) -> text; it also serves freed tensors, so that an error message can show
   them. */
int dm_tensor_tostring(lua_State *L) {
  const Handle *handle = dm_handle(L, 1);
  if (!handle || !handle->t) {
    lua_pushstring(L, handle && handle->by_scope ? "[tensor released by its scope]"
                                                 : "[freed tensor]");
    return 1;
  }
  State *S = dm_enter(L);
  Handle *hold = dm_push_own(L, S), *host = dm_push_own(L, S);
  dm_Tensor *x = hold->t = dm_tensor_ref(dm_check_tensor(L, 1)), *t = x;
  if (t->device.type != DM_CPU && t->numel <= MAX_READ) {
    DM_CHECK(L, dm_tensor_on_host(t, &host->t));
    t = host->t;
  }
  luaL_Buffer b;
  char buf[MAX_CELL], name[16];
  int64_t index[DM_MAX_DIM] = {0}, n_nan, n_inf;
  luaL_buffinit(L, &b);
  const PrintOptions *options = &state_of(L)->print;
  Printer p = {.b = &b,
               .t = t,
               .options = options,
               .line = options->linewidth >= 0 ? options->linewidth : terminal_line(),
               .whole = options->sci_mode != 1 && all_whole(t)};
  p.cols = (int)dm_max_i64(2, p.line / 3); /* no more fit, for a cell has 3 characters */
  if (t->ndim == 0) {
    format(&p, value_at(t, index), buf, sizeof buf);
    luaL_addstring(&b, buf);
    luaL_addstring(&b, "  ");
  } else if (t->numel > 0) {
    each_row(&p, index, 0, false);
    fit_columns(&p, t->shape[t->ndim - 1]);
    each_row(&p, index, 0, true);
  }
  count_odd(t, &n_nan, &n_inf);
  int at = snprintf(buf, sizeof buf, "[%s tensor %s %s", dm_dtype_name((dm_DType)t->dtype),
                    DM_SHAPE(t), dm_device_name(x->device, name));
  if (dm_tensor_requires_grad(x))
    at += snprintf(buf + at, sizeof buf - (size_t)at, ", requires grad");
  if (x->node)
    at += snprintf(buf + at, sizeof buf - (size_t)at, ", from %.40s", dm_node_name(x->node));
  if (n_nan) at += snprintf(buf + at, sizeof buf - (size_t)at, ", %lld nan", (long long)n_nan);
  if (n_inf) at += snprintf(buf + at, sizeof buf - (size_t)at, ", %lld inf", (long long)n_inf);
  snprintf(buf + at, sizeof buf - (size_t)at, "]");
  luaL_addstring(&b, buf);
  luaL_pushresult(&b);
  dm_handle_release(hold);
  dm_handle_release(host);
  return 1;
}

/* The count at i of the stack, at most max; -1 for nil. */
static int64_t count_at(lua_State *L, int i, int64_t max) {
  if (lua_isnil(L, i)) return -1;
  const double v = lua_tonumber(L, i);
  return v >= (double)max ? max : (int64_t)v;
}

/* _set_printoptions(precision, threshold, edgeitems, linewidth, sci_mode): of all tensors that
   are printed from now on; nil stands for this file's own choice. */
static int set_printoptions(lua_State *L) {
  lua_settop(L, 5);
  PrintOptions *o = &state_of(L)->print;
  o->precision = (int)count_at(L, 1, MAX_DIGITS);
  o->threshold = count_at(L, 2, INT64_MAX);
  o->edgeitems = (int)count_at(L, 3, INT_MAX / 4);
  o->linewidth = (int)count_at(L, 4, INT_MAX / 4);
  o->sci_mode = lua_isnil(L, 5) ? -1 : lua_toboolean(L, 5);
  return 0;
}

/* Names with an underscore are for demilune's own Lua files. */
const luaL_Reg dm_print_functions[] = {{"_set_printoptions", set_printoptions}, {NULL, NULL}};
