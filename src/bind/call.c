/* dm_op_closure: the one C function behind all ops. Each op is a closure of it; the third
   upvalue tells which one. It reads the Lua arguments by the row's signature, calls the
   engine, and pushes the results. PyTorch generates a parser for each op instead.

   Arguments. Their types decide: in order, a tensor fills the next tensor slot, any other
   value the next attribute; a number fills a tensor slot whose signature allows it. So
   gather(x, dim, index) and layer_norm(x, {5}, w, b) need no rules of their own. The first
   argument of an op that wants a tensor is one, or a number that may stand for one, except in
   polygamma(n, x). A last argument that is a table with names holds options. Positions (dims,
   indices) become counts from 0.

   Memory. The handles of the outputs are pushed before the call, so that a failure of Lua's
   allocator finds nothing to lose. A call for which the engine has no memory is tried once
   more after a full collection, with the generator and the checkpoint as they were. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "bind/bind.h"

/* The closure's third upvalue is a light userdata: 2 * op id, plus 1 for the in-place form. */
enum { UP_FORM = 3, LOCAL_IN = 16 };

/* A call under way. The Lua stack has the arguments 1 .. top, then the outputs' handles. The
   attributes' values are in `attr` with the layout of the op's own struct
   (dm_AttrSpec.offset), so that the engine gets them without a copy. `attr_given` has a bit
   for each one that an argument has set, by position or by name. */
typedef struct Args {
  lua_State *L;
  const dm_OpInfo *op;
  const dm_Signature *g;
  dm_Tensor *in[DM_MAX_IN];
  dm_Tensor *temp[DM_MAX_IN]; /* owned: number arguments as tensors; freed after the call */
  int id, n_tensor, n_temp, next_attr;
  int top;
  bool inplace;
  Handle *handle[DM_MAX_OUT]; /* of the outputs */
  uint32_t attr_given;
  int requires_grad;
  dm_Generator *generator; /* the call's own, or NULL */
  _Alignas(8) char attr[DM_ATTR_BYTES];
} Args;

/* Frees the tensors that number arguments became. Each path that raises calls it first,
   because longjmp skips this frame and nothing else owns them. */
static int free_temps(Args *a) {
  for (int i = 0; i < a->n_temp; i++) dm_tensor_unref(&a->temp[i]);
  a->n_temp = 0;
  return 0;
}

/* The text "\n  sum(x, dim?, keepdim = false, dtype?)", pushed on the stack. */
static const char *takes(Args *a) {
  lua_State *L = a->L;
  luaL_Buffer text;
  luaL_buffinit(L, &text);
  luaL_addstring(&text, "\n  ");
  luaL_addstring(&text, a->op->name);
  luaL_addchar(&text, '(');
  for (int k = 0; k < a->g->n_tensor + a->g->n_attr; k++) {
    const dm_AttrSpec *s = k < a->g->n_tensor ? NULL : &a->g->attr[k - a->g->n_tensor];
    if (k) luaL_addstring(&text, ", ");
    luaL_addstring(&text, s ? s->name : a->g->tensor[k]);
    if (s ? s->required : k < a->g->n_required) continue;
    if (s && dm_push_default(L, s)) {
      const bool quoted = lua_type(L, -1) == LUA_TSTRING;
      lua_pushfstring(L, quoted ? " = '%s'" : " = %s", luaL_tolstring(L, -1, NULL));
      lua_insert(L, -3);
      lua_pop(L, 2);
      luaL_addvalue(&text);
    } else {
      luaL_addchar(&text, '?');
    }
  }
  luaL_addchar(&text, ')');
  luaL_pushresult(&text);
  return lua_tostring(L, -1);
}

/* Whether the call is within a module's forward. */
static bool is_within_module(lua_State *L) {
  dm_push_caller(L, "inside");
  const bool within = lua_pcall(L, 0, 1, 0) == LUA_OK && lua_rawlen(L, -1) > 0;
  lua_pop(L, 1);
  return within;
}

/* The hint for a number where a layer's or a loss's input was wanted, as `for x, y in loader`
   gives: the first value of a loader is the number of the batch. */
static const char *batch_hint(const Args *a, const char *name) {
  if (a->g->n_tensor == 0 || name != a->g->tensor[0] || lua_type(a->L, 1) != LUA_TNUMBER)
    return "";
  bool is_layer = false;
  for (int k = 1; k < a->g->n_tensor; k++)
    is_layer |= !strcmp(a->g->tensor[k], "weight") || !strcmp(a->g->tensor[k], "target");
  if (!is_layer && !is_within_module(a->L)) return "";
  return "; hint: a DataLoader gives i, x, y: `for i, x, y in loader`";
}

/* Raises an error about argument `name`; frees the call's tensors first. */
static int bad(Args *a, const char *name, int i, const char *wanted) {
  free_temps(a);
  const char *got =
      lua_type(a->L, i) == LUA_TSTRING ? lua_tostring(a->L, i) : luaL_typename(a->L, i);
  return dm_raise_text(a->L, "%s: %s: %s expected, got %s%s%s", a->op->name, name, wanted, got,
                       batch_hint(a, name), takes(a));
}

/* The integer at i; raises for any other value, also for a string that looks like a
   number. */
static int64_t to_int(Args *a, const char *name, int i) {
  int ok;
  const lua_Integer v = lua_tointegerx(a->L, i, &ok);
  if (!ok || lua_type(a->L, i) != LUA_TNUMBER) bad(a, name, i, "integer");
  return v;
}

/* A position in Lua counts from 1, the engine counts from 0; a negative one counts from the
   end in both. Raises for 0. */
static int64_t to_position(Args *a, const char *name, int i) {
  const int64_t v = to_int(a, name, i);
  if (v == 0) {
    free_temps(a);
    dm_raise_text(a->L, "%s: %s is 0: positions count from 1 (or from the end: -1)",
                  a->op->name, name);
  }
  return v > 0 ? v - 1 : v;
}

/* The number at i; a boolean counts as 0 or 1. Raises for any other value. */
static double to_num(Args *a, const char *name, int i) {
  if (lua_type(a->L, i) == LUA_TBOOLEAN) return lua_toboolean(a->L, i);
  if (lua_type(a->L, i) != LUA_TNUMBER) bad(a, name, i, "number");
  return lua_tonumber(a->L, i);
}

/* The index of the word at i among the choices "a|b|c" of an enum. A number counts as its
   text: ord = 2, or math.huge for "inf". Raises with the list of choices. */
static int64_t to_choice(Args *a, const dm_AttrSpec *s, int i) {
  const char *word = lua_type(a->L, i) == LUA_TSTRING ? dm_word(a->L, i) : NULL;
  char number[32];
  if (lua_type(a->L, i) == LUA_TNUMBER) {
    snprintf(number, sizeof number, "%.14g", (double)lua_tonumber(a->L, i));
    word = number;
  }
  const size_t n = word ? strlen(word) : 0;
  int64_t k = 0;
  for (const char *p = s->choices; word && *p; k++) {
    const char *end = strchr(p, '|');
    const size_t len = end ? (size_t)(end - p) : strlen(p);
    if (len == n && memcmp(p, word, n) == 0) return k;
    p += len + (end != NULL);
  }
  /* mse_loss(x, 1): the number stands where a tensor is missing */
  if (!word || lua_type(a->L, i) == LUA_TNUMBER)
    if (i <= a->top && a->n_tensor < a->g->n_required)
      bad(a, a->g->tensor[a->n_tensor], i, "tensor");
  free_temps(a);
  dm_raise_text(a->L, "%s: %s: '%s' is none of %s", a->op->name, s->name,
                word ? word : luaL_typename(a->L, i), s->choices);
  return 0;
}

/* Reads a list from a table at i, or from the numbers at i .. last. Returns how many arguments
   it used. */
static int to_list(Args *a, const dm_AttrSpec *s, int i, int last, dm_Ints *out) {
  lua_State *L = a->L;
  const bool table = lua_istable(L, i);
  const int64_t n = table ? (int64_t)lua_rawlen(L, i) : last - i + 1;
  if (n > DM_MAX_DIM) {
    free_temps(a);
    dm_raise_text(L, "%s: %s: %d values given, a tensor has at most %d dims", a->op->name,
                  s->name, (int)n, DM_MAX_DIM);
  }
  out->n = n;
  for (int k = 0; k < n; k++) {
    int at = i + k;
    if (table) {
      lua_rawgeti(L, i, k + 1);
      at = lua_gettop(L);
    }
    out->v[k] = s->kind == A_DIMS ? to_position(a, s->name, at) : to_int(a, s->name, at);
    if (table) lua_pop(L, 1);
  }
  return table ? 1 : (int)n;
}

/* Reads the 1, 2 or 3 numbers of the kind from a table, or one number for all of them, which
   may be in a table too. "same" becomes -1, which convolutions interpret, and "valid" 0. */
static void to_tuple(Args *a, const dm_AttrSpec *s, int i, int64_t *v) {
  lua_State *L = a->L;
  const int n = s->kind - A_ONE + 1;
  const char *word = lua_type(L, i) == LUA_TSTRING ? dm_word(L, i) : "";
  if (strcmp(word, "same") == 0 || strcmp(word, "valid") == 0) {
    for (int k = 0; k < n; k++) v[k] = word[0] == 's' ? -1 : 0;
  } else if (!lua_istable(L, i)) {
    v[0] = to_int(a, s->name, i);
    for (int k = 1; k < n; k++) v[k] = v[0];
  } else {
    static const char *const wanted[] = {"number or a table of one", "number or a table of two",
                                         "number or a table of three"};
    const size_t given = lua_rawlen(L, i);
    if (given != (size_t)n && given != 1) bad(a, s->name, i, wanted[n - 1]);
    for (int k = 0; k < n; k++) {
      lua_rawgeti(L, i, given == 1 ? 1 : k + 1);
      v[k] = to_int(a, s->name, lua_gettop(L));
      lua_pop(L, 1);
    }
  }
  /* -1 stands for "same", and only for it */
  if (*word == 0 && strcmp(s->name, "padding") == 0)
    for (int k = 0; k < n; k++)
      if (v[k] < 0) bad(a, s->name, i, "0 or more");
}

/* Reads one to three numbers from a table, or one number. */
static void to_nums(Args *a, const dm_AttrSpec *s, int i, dm_Nums *out) {
  lua_State *L = a->L;
  const bool table = lua_istable(L, i);
  out->n = table ? (int64_t)lua_rawlen(L, i) : 1;
  if (out->n < 1 || out->n > DM_COUNT(out->v))
    bad(a, s->name, i, "number or a table of up to three");
  for (int k = 0; k < out->n; k++) {
    if (table) lua_rawgeti(L, i, k + 1);
    out->v[k] = to_num(a, s->name, table ? lua_gettop(L) : i);
    if (table) lua_pop(L, 1);
  }
}

/* Whether the attribute is a list of any length, which may swallow several arguments. */
static bool is_list(const dm_AttrSpec *s) { return s->kind == A_DIMS || s->kind == A_SIZES; }

/* Whether the attribute holds a number for each dim of a plane or volume, or one for all. */
static bool is_tuple(const dm_AttrSpec *s) {
  return s->kind == A_ONE || s->kind == A_PAIR || s->kind == A_TRIPLE;
}

/* The last argument of a list that begins at i: it takes all numbers that follow, unless
   another list, a tuple or a required attribute comes after it in the signature: the 1 of
   max_pool2d(x, 3, 2, 1) is its padding. */
static int list_end(const Args *a, const dm_AttrSpec *s, int i, int last) {
  const int k = (int)(s - a->g->attr);
  for (int j = k + 1; j < a->g->n_attr; j++)
    if (a->g->attr[j].required || is_list(&a->g->attr[j]) || is_tuple(&a->g->attr[j])) return i;
  int end = i;
  while (end < last && lua_type(a->L, end + 1) == LUA_TNUMBER) end++;
  return end;
}

/* Whether the attribute is one number. */
static bool is_number(const dm_AttrSpec *s) {
  return s->kind == A_INT || s->kind == A_NUM || s->kind == A_DIM || s->kind == A_POS ||
         s->kind == A_OPTNUM || s->kind == A_OPTDIM;
}

/* Puts the number that a 0-dim tensor at i holds in its place, for an attribute of one number.
   One that requires a gradient stays, and is refused: its gradient would be lost. */
static void read_number(Args *a, const dm_AttrSpec *s, int i) {
  const dm_Tensor *t = is_number(s) ? dm_to_tensor(a->L, i) : NULL;
  if (!t || t->ndim > 0 || dm_tensor_requires_grad(t)) return;
  dm_push_item(a->L, t);
  lua_replace(a->L, i);
}

/* Reads the value at i (up to `last` for a list) into the attribute; returns how many arguments
   it used. */
static int read_attr(Args *a, const dm_AttrSpec *s, int i, int last) {
  lua_State *L = a->L;
  void *p = a->attr + s->offset;
  if (DM_UNLIKELY(lua_type(L, i) == LUA_TUSERDATA)) read_number(a, s, i);
  a->attr_given |= 1u << (s - a->g->attr);
  switch ((dm_AttrKind)s->kind) {
  case A_INT: *(int64_t *)p = to_int(a, s->name, i); break;
  case A_NUM: *(double *)p = to_num(a, s->name, i); break;
  case A_BOOL:
    if (lua_type(L, i) != LUA_TBOOLEAN) bad(a, s->name, i, "true or false");
    *(int64_t *)p = lua_toboolean(L, i);
    break;
  case A_DTYPE:
    if (lua_type(L, i) != LUA_TSTRING) bad(a, s->name, i, "dtype");
    if (dm_dtype_find(dm_word(L, i)) == DM_NO_DTYPE) free_temps(a);
    *(int64_t *)p = dm_check_dtype(L, i);
    break;
  case A_DEVICE:
    if (lua_type(L, i) != LUA_TSTRING) bad(a, s->name, i, "device");
    free_temps(a);
    *(int64_t *)p = dm_device_code(dm_check_device(L, i));
    break;
  case A_ENUM: *(int64_t *)p = to_choice(a, s, i); break;
  case A_DIM:
  case A_POS: *(int64_t *)p = to_position(a, s->name, i); break;
  case A_STR:
    if (lua_type(L, i) != LUA_TSTRING) bad(a, s->name, i, "string");
    *(const char **)p = dm_word(L, i);
    break;
  case A_OPTNUM: *(dm_OptNum *)p = (dm_OptNum){1, to_num(a, s->name, i)}; break;
  case A_OPTDIM: *(dm_OptInt *)p = (dm_OptInt){1, to_position(a, s->name, i)}; break;
  case A_ONE:
  case A_PAIR:
  case A_TRIPLE: to_tuple(a, s, i, p); break;
  case A_NUMS: to_nums(a, s, i, p); break;
  case A_DIMS:
  case A_SIZES: {
    if (!lua_istable(L, i) && lua_type(L, i) != LUA_TNUMBER)
      bad(a, s->name, i, "number or table of numbers");
    return to_list(a, s, i, list_end(a, s, i, last), p);
  }
  }
  return 1;
}

/* Whether a->temp owns a reference to t. */
static bool is_held(const Args *a, const dm_Tensor *t) {
  for (int i = 0; i < a->n_temp; i++)
    if (a->temp[i] == t) return true;
  return false;
}

/* Lets a->temp own a reference to each tensor read so far. An op has at most DM_MAX_IN, so
   they fit. */
static void hold_borrowed(Args *a) {
  for (int k = 0; k < a->g->n_tensor; k++)
    if (a->in[k] && !is_held(a, a->in[k])) a->temp[a->n_temp++] = dm_tensor_ref(a->in[k]);
}

/* The number or boolean at i as a 0-dim tensor, for a slot such as the second of add. a->temp
   owns it until free_temps. */
static dm_Tensor *number_tensor(Args *a, int i) {
  dm_Tensor *t = NULL;
  const bool is_bool = lua_type(a->L, i) == LUA_TBOOLEAN;
  const bool is_int = is_bool || lua_isinteger(a->L, i);
  const int64_t v = is_bool ? lua_toboolean(a->L, i) : lua_tointeger(a->L, i);
  const double number = lua_tonumber(a->L, i);
  dm_status st = dm_tensor_number(is_int, number, v, &t);
  if (DM_UNLIKELY(st == DM_EMEM)) {
    hold_borrowed(a);
    dm_reclaim_memory(a->L, state_of(a->L));
    st = dm_tensor_number(is_int, number, v, &t);
  }
  if (st != DM_OK) {
    free_temps(a);
    dm_raise(a->L);
  }
  if (is_bool) {
    t->dtype = DM_BOOL;
    *(uint8_t *)dm_tensor_data(t) = (uint8_t)v;
  }
  return a->temp[a->n_temp++] = t;
}

/* The tensor at i, borrowed, or NULL when the value is no tensor; raises on a freed one. */
static dm_Tensor *read_tensor(Args *a, int i) {
  const Handle *b = dm_handle(a->L, i);
  if (b && !b->t) {
    free_temps(a);
    dm_check_tensor(a->L, i);
  }
  return b ? b->t : NULL;
}

/* Raises about an option that the op does not have, with the nearest name of its tensors and
   attributes. */
static int unknown_option(Args *a, const char *key) {
  const char *names[DM_MAX_IN + DM_MAX_ATTR + 1];
  int n = 0;
  for (int k = 0; k < a->g->n_tensor; k++) names[n++] = a->g->tensor[k];
  for (int k = 0; k < a->g->n_attr; k++) names[n++] = a->g->attr[k].name;
  if (a->op->flags & F_RANDOM) names[n++] = "generator";
  const char *near = dm_nearest(key, n, names);
  free_temps(a);
  if (near)
    return dm_raise_text(a->L, "%s: unknown option '%s'; did you mean '%s'?%s", a->op->name,
                         key, near, takes(a));
  return dm_raise_text(a->L, "%s: unknown option '%s'%s", a->op->name, key, takes(a));
}

/* Reads the value on top as option `key`: an attribute, a tensor given by name (weight = w),
   requires_grad of an op that creates, or generator of one that draws. */
static void read_named(Args *a, const char *key) {
  lua_State *L = a->L;
  const int i = lua_gettop(L);
  for (int k = 0; k < a->g->n_attr; k++) {
    if (strcmp(a->g->attr[k].name, key) != 0) continue;
    read_attr(a, &a->g->attr[k], i, i);
    return;
  }
  /* The first operand is PyTorch's input, where the row calls it x. */
  const bool is_input = strcmp(key, "input") == 0;
  for (int k = 0; k < a->g->n_tensor; k++) {
    const char *name = a->g->tensor[k];
    if (strcmp(name, key) != 0 && !(is_input && k == 0 && strcmp(name, "x") == 0)) continue;
    if (a->g->list) return; /* call_list reads it */
    a->in[k] = read_tensor(a, i);
    if (!a->in[k] && a->g->number_ok[k] && lua_type(L, i) == LUA_TNUMBER)
      a->in[k] = number_tensor(a, i);
    if (!a->in[k]) bad(a, key, i, "tensor");
    if (k >= a->n_tensor) a->n_tensor = k + 1;
    return;
  }
  if ((a->op->flags & F_CREATE) && strcmp(key, "requires_grad") == 0) {
    if (lua_type(L, i) != LUA_TBOOLEAN) bad(a, key, i, "true or false");
    a->requires_grad = lua_toboolean(L, i);
  } else if ((a->op->flags & F_RANDOM) && strcmp(key, "generator") == 0) {
    a->generator = dm_to_generator(L, i);
    if (!a->generator) bad(a, key, i, "dm.Generator()");
  } else {
    unknown_option(a, key);
  }
}

/* Reads every pair of the options table at i. Keys must be strings. */
static void read_options(Args *a, int i) {
  lua_State *L = a->L;
  lua_pushnil(L);
  while (lua_next(L, i)) {
    if (lua_type(L, -2) != LUA_TSTRING) {
      free_temps(a);
      dm_raise_text(L, "%s: options are named; this table mixes names and positions",
                    a->op->name);
    }
    if (lua_type(L, -1) == LUA_TSTRING || lua_type(L, -1) == LUA_TUSERDATA) {
      lua_pushvalue(L, -1); /* below the key: the table may lose it while the op runs */
      lua_insert(L, -3);
    }
    read_named(a, dm_word(L, -2));
    lua_pop(L, 1);
  }
}

/* Whether the value at i is a table of options: it has names and no list part. */
static bool is_options(lua_State *L, int i) {
  if (!lua_istable(L, i) || lua_rawlen(L, i) > 0) return false;
  lua_pushnil(L);
  const bool any = lua_next(L, i) != 0;
  if (any) lua_pop(L, 2);
  return any;
}

/* Whether {} is at i: it is an empty list where the op wants a list, and no options
   elsewhere. */
static bool is_empty_table(lua_State *L, int i) {
  return lua_istable(L, i) && lua_rawlen(L, i) == 0 && !is_options(L, i);
}

/* The next attribute in the signature's order that no argument has filled, or NULL. */
static const dm_AttrSpec *next_attr(Args *a) {
  while (a->next_attr < a->g->n_attr && (a->attr_given >> a->next_attr & 1)) a->next_attr++;
  return a->next_attr < a->g->n_attr ? &a->g->attr[a->next_attr] : NULL;
}

/* Whether a boolean means the number that follows the optional dims in the signature, as the
   `unbiased` of var(x, false) does, PyTorch's older form. */
static bool skips_dims(const Args *a, const dm_AttrSpec *s) {
  return s->kind == A_DIMS && !s->required && s + 1 < a->g->attr + a->g->n_attr &&
         s[1].kind == A_NUM;
}

/* Whether PyTorch's order has the number before the tensor: polygamma(n, x). */
static bool is_number_first(const Args *a, const dm_AttrSpec *s) {
  return a->g->n_tensor == 1 && s && s->required && is_number(s) && dm_handle(a->L, 2);
}

/* Distributes the arguments first .. last over the slots by the rules at the head of this
   file. nil skips an optional tensor or leaves an attribute at its default. Raises on an
   argument too many and on a value of the wrong type. */
static void read_positional(Args *a, int first, int last) {
  lua_State *L = a->L;
  for (int i = first; i <= last;) {
    const int slot = a->n_tensor;
    const bool wants_tensor = slot < a->g->n_tensor;
    dm_Tensor *t = wants_tensor ? read_tensor(a, i) : NULL;
    if (DM_LIKELY(t != NULL)) {
      a->in[a->n_tensor++] = t;
      i++;
      continue;
    }
    const int type = lua_type(L, i);
    const bool number = type == LUA_TNUMBER || type == LUA_TBOOLEAN;
    if (wants_tensor && number && a->g->number_ok[slot]) t = number_tensor(a, i);
    if (t || (type == LUA_TNIL && slot >= a->g->n_required && wants_tensor)) {
      a->in[a->n_tensor++] = t;
      i++;
      continue;
    }
    if (i == a->top && is_options(L, i)) {
      read_options(a, i);
      return;
    }
    /* A last {} is an empty table of options, unless the next attribute is a list. */
    const dm_AttrSpec *s = next_attr(a);
    if (i == last && is_empty_table(L, i) && !(s && is_list(s))) break; /* no options */
    const bool leads = i == 1 && wants_tensor && !a->g->list && !is_number_first(a, s);
    if (slot < a->g->n_required && (!s || type == LUA_TNIL || type == LUA_TUSERDATA || leads))
      bad(a, a->g->tensor[slot], i, "tensor");
    if (!s) {
      free_temps(a);
      dm_raise_text(L, "%s: argument %d is one too many%s", a->op->name, i, takes(a));
    }
    if (type == LUA_TNIL) {
      a->next_attr++;
      i++;
      continue;
    }
    if (type == LUA_TUSERDATA && !is_number(s)) bad(a, s->name, i, "value");
    if (DM_UNLIKELY(type == LUA_TBOOLEAN && skips_dims(a, s))) s++;
    i += read_attr(a, s, i, last);
  }
}

/* Raises when a required tensor or attribute is missing. Ops of a list have checked their
   tensors already. */
static void check_complete(Args *a) {
  for (int k = 0; k < a->g->n_required && !a->g->list; k++) {
    if (DM_LIKELY(a->in[k] != NULL)) continue;
    free_temps(a);
    dm_raise_text(a->L, "%s: tensor '%s' is missing%s%s", a->op->name, a->g->tensor[k],
                  a->top == 0 ? "; hint: a method takes a colon, x:name()" : "", takes(a));
  }
  const uint32_t lacking = a->g->required & ~a->attr_given;
  if (DM_LIKELY(!lacking)) return;
  free_temps(a);
  dm_raise_text(a->L, "%s: '%s' is missing%s", a->op->name,
                a->g->attr[__builtin_ctz(lacking)].name, takes(a));
}

/* The argument that is the input t; 0: t was in a table. */
static int argument_of(const Args *a, const dm_Tensor *t) {
  for (int i = 1; i <= a->top; i++)
    if (dm_to_tensor(a->L, i) == t) return i;
  return 0;
}

/* Puts output k into its handle. An op that returns its input returns the same Lua value. */
static void give_result(Args *a, State *S, int k, int n_in, dm_Tensor *const *in,
                        dm_Tensor *out) {
  int same = 0;
  for (int i = 0; i < n_in && !same; i++)
    if (DM_UNLIKELY(in[i] == out)) same = argument_of(a, out);
  if (DM_LIKELY(!same)) {
    dm_handle_fill(a->L, S, a->handle[k], out);
    return;
  }
  lua_pushvalue(a->L, same);
  lua_replace(a->L, a->top + 1 + k);
  dm_tensor_unref(&out);
}

/* Calls the op in the form that was asked for. The in-place form writes into in[0] and has no
   outputs. */
static dm_status call_engine(const Args *a, int n_in, dm_Tensor *const *in, dm_Tensor **out,
                             int *n_out) {
  return a->inplace ? dm_call_inplace(a->id, n_in, in, a->attr)
                    : dm_call_n(a->id, n_in, in, a->attr, out, n_out);
}

/* call_engine with the generator that the call names, if any, in force. */
static dm_status call_drawing(const Args *a, int n_in, dm_Tensor *const *in, dm_Tensor **out,
                              int *n_out) {
  if (DM_LIKELY(!a->generator)) return call_engine(a, n_in, in, out, n_out);
  dm_ThreadState *ts = dm_thread_state();
  dm_Generator *const own = ts->generator;
  ts->generator = a->generator;
  const dm_status st = call_engine(a, n_in, in, out, n_out);
  ts->generator = own;
  return st;
}

/* Calls the engine with the attributes read and returns the number of results on the stack:
   the outputs, or argument 1 for the in-place form. When the memory ends, it restores the
   generator and the checkpoint's record before the second try. */
static int call_and_push(Args *a, State *S, int n_in, dm_Tensor *const *in) {
  lua_State *L = a->L;
  dm_Tensor *out[DM_MAX_OUT] = {NULL};
  int n_out = 0;
  if (a->inplace && (n_in < 1 || dm_to_tensor(L, 1) != in[0])) {
    free_temps(a);
    return dm_raise_text(L, "%s_: argument 1: tensor expected, got %s", a->op->name,
                         luaL_typename(L, 1));
  }
  dm_Generator *const draws = a->generator ? a->generator : &S->generator;
  const dm_Generator before = *draws;
  const int mark = dm_replay_mark();
  /* Anomaly detection calls Lua at each record. */
  bool held = S->current->anomaly.enabled;
  if (DM_UNLIKELY(held)) dm_hold_all(n_in, in);
  dm_status st = call_drawing(a, n_in, in, out, &n_out);
  if (DM_UNLIKELY(st == DM_EMEM)) {
    if (!held) dm_hold_all(n_in, in);
    held = true;
    dm_reclaim_memory(L, S);
    *draws = before;        /* the second try draws the same numbers ... */
    dm_replay_rewind(mark); /* and saves the same tensors */
    st = call_drawing(a, n_in, in, out, &n_out);
  }
  if (DM_UNLIKELY(held)) dm_let_go_all(n_in, in);
  free_temps(a);
  if (DM_UNLIKELY(st != DM_OK)) return dm_raise(L);
  /* requires_grad is an option of ops that create; it fails unless the result is float. */
  if (a->requires_grad && dm_set_requires_grad(out[0], true) != DM_OK) {
    for (int i = 0; i < n_out; i++) dm_tensor_unref(&out[i]);
    return dm_raise(L);
  }
  /* The in-place form returns argument 1 itself, so x:add_(1):mul_(2) makes no handle. */
  if (a->inplace) {
    lua_settop(L, 1);
    return 1;
  }
  for (int i = 0; i < n_out; i++) give_result(a, S, i, n_in, in, out[i]);
  lua_settop(L, a->top + n_out); /* a long list's array is above the handles */
  return n_out;
}

/* Calls an op whose tensors come as one list: cat, stack, einsum. The list is a table of
   tensors, which may be an option too, or several tensors in a row; arguments before and after
   it are attributes. More than LOCAL_IN pointers go into a userdata, which an error leaves to
   the collector. */
static int call_list(Args *a, State *S) {
  lua_State *L = a->L;
  const int top = a->top;
  int first = 1, end = top;
  while (first <= top && !lua_istable(L, first) && !dm_handle(L, first)) first++;
  dm_Tensor *local[LOCAL_IN], **in = local;
  int n;
  if (first > top)
    return bad(a, a->g->tensor[0], top ? 1 : lua_gettop(L) + 1, "table of tensors");
  if (first == top && is_options(L, top)) {
    lua_getfield(L, top, a->g->tensor[0]);
    if (!lua_istable(L, -1)) read_options(a, top); /* names what it does not know */
    if (!lua_istable(L, -1)) return bad(a, a->g->tensor[0], -1, "table of tensors");
    const int list = lua_gettop(L); /* read_options leaves values above it */
    read_positional(a, 1, first - 1);
    read_options(a, top);
    end = first = list;
  }
  if (dm_handle(L, first)) { /* einsum("ij,jk->ik", a, b): tensors side by side */
    n = 0;
    while (first + n <= top && dm_handle(L, first + n)) n++;
  } else {
    n = (int)lua_rawlen(L, first);
  }
  if (n > LOCAL_IN) in = lua_newuserdatauv(L, sizeof *in * (size_t)n, 0);
  const bool table = lua_istable(L, first);
  for (int k = 0; k < n; k++) {
    if (table) lua_rawgeti(L, first, k + 1);
    in[k] = dm_to_tensor(L, table ? -1 : first + k);
    if (!in[k])
      return dm_raise_text(L, "%s: tensor %d: tensor expected, got %s", a->op->name, k + 1,
                           luaL_typename(L, table ? -1 : first + k));
    if (table) lua_pop(L, 1); /* the table keeps it */
  }
  a->n_tensor = a->g->n_tensor;
  if (first > 1 && first <= top) read_positional(a, 1, first - 1);
  read_positional(a, table ? first + 1 : first + n, end);
  check_complete(a);
  return call_and_push(a, S, n, in);
}

/* full({2}, 7) is int64 and full({2}, true) bool, when no dtype is given. */
static void infer_full(Args *a, int top) {
  const dm_AttrSpec *s = &a->g->attr[a->g->dtype_attr];
  int64_t *dtype = (int64_t *)(void *)(a->attr + s->offset);
  const int value = top < 2 ? 0 : 2;
  if (*dtype >= 0 || !value) return;
  if (lua_isinteger(a->L, value)) *dtype = DM_I64;
  else if (lua_isboolean(a->L, value)) *dtype = DM_BOOL;
}

/* The Lua type of option `key` in the table at i; LUA_TNIL when it is absent or there is no
   table. */
static int option_type(lua_State *L, int i, const char *key) {
  const int type = dm_option(L, i, key);
  lua_pop(L, 1);
  return type;
}

/* The id of the op that is meant where PyTorch gives one name to two ops; a tensor argument
   decides: max(x, y) is maximum, and cross_entropy with a float target takes class
   probabilities. */
static int overload(lua_State *L, int id) {
  const int top = lua_gettop(L) > 0 ? lua_gettop(L) : 1;
  switch (id) {
  case DM_OP_max: return dm_handle(L, 2) ? DM_OP_maximum : id;
  case DM_OP_min: return dm_handle(L, 2) ? DM_OP_minimum : id;
  case DM_OP_clamp:
    return dm_handle(L, 2) || dm_handle(L, 3) || option_type(L, 2, "min") == LUA_TUSERDATA ||
                   option_type(L, 2, "max") == LUA_TUSERDATA
               ? DM_OP_clamp_tensor
               : id;
  case DM_OP_cross_entropy: {
    const dm_Tensor *target = dm_to_tensor(L, 2);
    return target && dm_is_float((dm_DType)target->dtype) ? DM_OP_cross_entropy_soft : id;
  }
  case DM_OP_scatter:
    return option_type(L, top, "reduce") != LUA_TNIL ? DM_OP_scatter_with : id;
  case DM_OP_repeat_interleave:
    return dm_handle(L, 2) || option_type(L, top, "repeats") == LUA_TUSERDATA
               ? DM_OP_repeat_interleave_each
               : id;
  case DM_OP_linear: {
    const dm_Tensor *weight = dm_to_tensor(L, 2);
    return weight && weight->ndim == 1 ? DM_OP_linear_vector : id;
  }
  case DM_OP_norm:
    return lua_type(L, 2) == LUA_TSTRING || option_type(L, top, "p") == LUA_TSTRING
               ? DM_OP_norm_by_name
               : id;
  default: return id;
  }
}

/* Inserts low = 1 in front of randint(high, size) and its forms with options, as math.random
   counts. */
static void supply_low(lua_State *L) {
  const int top = lua_gettop(L);
  if (top == 0 || option_type(L, top, "low") != LUA_TNIL) return;
  if (lua_type(L, 1) == LUA_TNUMBER &&
      (lua_type(L, 2) == LUA_TNUMBER || option_type(L, top, "high") != LUA_TNIL))
    return;
  lua_pushinteger(L, 1);
  lua_insert(L, 1);
}

/* Names the two lists of tensordot(a, b, {dims of a, dims of b}), PyTorch's form: the last
   argument becomes a new table {dims_self, dims_other}, with what else it named. */
static void name_dims(lua_State *L) {
  const int top = lua_gettop(L);
  if (top == 0) return;
  const bool named = option_type(L, top, "dims") == LUA_TTABLE;
  if (!named && (top != 3 || !lua_istable(L, top) || lua_rawlen(L, top) == 0)) return;
  if (named) dm_option(L, top, "dims");
  else lua_pushvalue(L, top);
  if (lua_rawlen(L, -1) != 2)
    dm_raise_text(L,
                  "tensordot: dims is a table of %d, wanted a number or {dims of a, dims of b}",
                  (int)lua_rawlen(L, -1));
  lua_newtable(L);
  if (named) lua_pushnil(L);
  while (named && lua_next(L, top)) {
    lua_pushvalue(L, -2);
    lua_insert(L, -2);
    lua_settable(L, top + 2);
  }
  static const char *const names[] = {"dims_self", "dims_other"};
  for (int k = 0; k < 2; k++) {
    lua_rawgeti(L, top + 1, k + 1);
    lua_setfield(L, top + 2, names[k]);
  }
  lua_pushnil(L);
  lua_setfield(L, top + 2, "dims");
  lua_replace(L, top);
  lua_settop(L, top);
}

/* Whether nonzero is asked for a list of vectors, a dim each. */
static bool wants_columns(lua_State *L) {
  const int top = lua_gettop(L);
  if (lua_isboolean(L, 2)) return lua_toboolean(L, 2);
  const bool wanted =
      top > 0 && dm_option(L, top, "as_tuple") == LUA_TBOOLEAN && lua_toboolean(L, -1);
  lua_settop(L, top);
  return wanted;
}

/* Whether view is given a dtype instead of sizes: view(x, "int32") or {dtype = "int32"}. */
static bool wants_dtype(lua_State *L) {
  const int top = lua_gettop(L);
  return lua_type(L, 2) == LUA_TSTRING || (top > 0 && option_type(L, top, "dtype") != LUA_TNIL);
}

/* op(...) -> outputs, or op_(x, ...) -> x. Pushes the handles of the outputs above the
   arguments before it reads anything, for the reason at the head of this file. */
int dm_op_closure(lua_State *L) {
  State *S = dm_enter(L);
  const uintptr_t form = (uintptr_t)lua_touserdata(L, lua_upvalueindex(UP_FORM));
  Args a;
  a.L = L;
  a.id = overload(L, (int)(form / 2));
  a.inplace = form % 2;
  a.op = &dm_ops[a.id];
  a.g = a.op->signature;
  a.n_tensor = a.n_temp = a.next_attr = a.requires_grad = 0;
  a.attr_given = 0;
  a.generator = NULL;
  if (a.g->n_attr) dm_op_defaults(a.op, a.attr);
  switch (a.id) {
  case DM_OP_randint: supply_low(L); break;
  case DM_OP_tensordot: name_dims(L); break;
  case DM_OP_nonzero:
    if (wants_columns(L)) return dm_nonzero_columns(L);
    break;
  case DM_OP_view:
    if (wants_dtype(L)) return dm_view_dtype(L);
    break;
  default: break;
  }
  a.top = lua_gettop(L);
  for (int k = 0; k < dm_op_results(a.op) && !a.inplace; k++)
    a.handle[k] = dm_push_handle(L, S);
  if (a.g->list) return call_list(&a, S);
  for (int k = 0; k < a.g->n_tensor; k++) a.in[k] = NULL;
  read_positional(&a, 1, a.top);
  check_complete(&a);
  if (a.id == DM_OP_full) infer_full(&a, a.top);
  return call_and_push(&a, S, a.g->n_tensor, a.in);
}

/* The two forms of an op share one C function: the light userdata in upvalue 3 tells them
   apart. */
void dm_push_form(lua_State *L, State *S, lua_CFunction f, int id, bool inplace) {
  lua_pushlightuserdata(L, S);
  luaL_getmetatable(L, "demilune.Tensor");
  lua_pushlightuserdata(L, (void *)(2 * (uintptr_t)id + inplace));
  lua_pushcclosure(L, f, 3);
}
