-- Writes the engine's op table from its rows: lua generate.lua OUT family.lua ...
-- The build runs it; plain Lua of any version. The order of the families, and of the rows in
-- each, numbers the ops. A row:
--
--   op.kernel "name" {                 a family's word, see FAMILIES below
--     tensors = "x, weight, bias?",    ? optional; # a host number will do; ... a list
--     options = {"dim:dim=-1", ...},   name:kind=default; without a default it is required.
--                                      Kinds: KINDS below; an enum's words: mode:enum(a|b)=a
--     outputs = 2,                     1 where nothing is said
--     rule = "f", cpu = "f", cuda = "f", compose = "f", gradient = "f",
--                                      functions not called NAME_rule, NAME_cpu, ...; false: none
--     saves = "I0 O1",                 inputs and outputs that the gradient reads; C0: an input
--                                      that only the gradients of the others read
--     autocast = "fp32",               or {cpu = ..., cuda = ...}, in PyTorch's words: CASTS
--     flags = "inplace hidden",        F_INPLACE, F_HIDDEN of engine/op.h, and so on
--     attr = "dm_CumsumAttr",          the options as a C struct, where other rows have it too;
--                                      dm_NameAttr where nothing is said
--     nests = {conv = "dm_ConvAttr"},  members that form a struct of their own in it
--     doc = "...",
--   }
local OUT = assert(arg[1], "usage: generate.lua OUT family.lua ...")
local WIDTH, MAX_TENSORS, MAX_OPTIONS = 100, 8, 12 -- DM_MAX_IN, DM_MAX_ATTR

local KINDS = { -- C type, and the words of dm_AttrKind
  int = {"int64_t %s", "A_INT"}, num = {"double %s", "A_NUM"}, bool = {"int64_t %s", "A_BOOL"},
  dtype = {"int64_t %s", "A_DTYPE", none = -1}, device = {"int64_t %s", "A_DEVICE", none = -1},
  enum = {"int64_t %s", "A_ENUM"}, dim = {"int64_t %s", "A_DIM"}, pos = {"int64_t %s", "A_POS"},
  str = {"const char *%s", "A_STR"},
  optnum = {"dm_OptNum %s", "A_OPTNUM", none = 0}, optdim = {"dm_OptInt %s", "A_OPTDIM", none = 0},
  one = {"int64_t %s", "A_ONE"}, pair = {"int64_t %s[2]", "A_PAIR"},
  triple = {"int64_t %s[3]", "A_TRIPLE"},
  nums = {"dm_Nums %s", "A_NUMS", none = -1},
  dims = {"dm_Ints %s", "A_DIMS", none = -1}, sizes = {"dm_Ints %s", "A_SIZES", none = -1},
}
local CASTS = {
  unlisted = "ASIS", lower_precision_fp = "LOW", fp32 = "F32", fp32_set_opt_dtype = "F32OUT",
  promote = "WIDE", banned = "BAN",
}
-- The functions that a family's rows have by their names (%s) or share, and its flags.
local POINTWISE = "inplace pointwise layout"
local FAMILIES = {
  unary = {rule = "unary_rule", cpu = "unary_cpu", cuda = "unary_cuda", gradient = "unary_grad",
    flags = POINTWISE}, -- NAME_f and DERIVATIVE(NAME) in base/scalar.inc
  binary = {rule = "binary_rule", cpu = "binary_cpu", cuda = "binary_cuda",
    gradient = "%s_grad", flags = POINTWISE}, -- formulas in base/pair.inc
  kernel = {rule = "%s_rule", cpu = "%s_cpu", cuda = "%s_cuda", gradient = "%s_grad", flags = ""},
  view = {rule = "%s_rule", gradient = "%s_grad", flags = "view"},
  composed = {compose = "%s_compose", flags = ""}, -- of other ops
}
local FUNCTIONS = {rule = "NO_RULE", cpu = "NO_KERNEL", cuda = "NO_KERNEL",
  compose = "NO_COMPOSE", gradient = "NO_GRAD"}
local FLAGS, SAVED, COLUMNS = {}, {}, {}
for flag in ([[inplace pointwise only_inplace view hidden create no_double random any_device
  aside placed layout whole widen cheap
  reads_low region sums]]):gmatch "%S+" do FLAGS[flag] = "F_" .. flag:upper() end
for bit in ("I0 I1 I2 I3 I4 I5 O0 O1 O2 C0 C1 C2"):gmatch "%S+" do SAVED[bit] = bit end
for column in ([[tensors options outputs rule cpu cuda compose gradient saves autocast flags attr
  nests doc]]):gmatch "%S+" do COLUMNS[column] = true end

local rows, by_name, structs, struct_names = {}, {}, {}, {}

local function fail(where, text, ...)
  io.stderr:write(where, ": ", text:format(...), "\n")
  os.exit(1)
end

-- The words of a text as C's `a | b`.
local function bits(row, text, known, what)
  local list = {}
  for word in (text or ""):gmatch "%S+" do
    if not known[word] then fail(row.where, "%s has no '%s'", what, word) end
    list[#list + 1] = known[word]
  end
  return #list > 0 and table.concat(list, " | ") or "0"
end

local function quoted(text) return '"' .. text:gsub('[\\"]', "\\%0") .. '"' end

-- ---- options, tensors ----

local function choice_number(words, choice)
  local k = 0
  for word in words:gmatch "[^|]+" do
    if word == choice then return k end
    k = k + 1
  end
end

local function read_option(row, text)
  local name, kind, words, default = text:match "^([%a_][%w_]*):(%a+)(%b())=(%S+)$"
  if not name then name, kind, words = text:match "^([%a_][%w_]*):(%a+)(%b())$" end
  if not name then name, kind, default = text:match "^([%a_][%w_]*):(%a+)=(%S+)$" end
  if not name then name, kind = text:match "^([%a_][%w_]*):(%a+)$" end
  if not name then fail(row.where, "option '%s' is not name:kind=default", text) end
  local k = KINDS[kind]
  if not k then fail(row.where, "option %s has no kind '%s'", name, kind) end
  if (words ~= nil) ~= (kind == "enum") then
    fail(row.where, "option %s: an enum has words, as in mode:enum(a|b), no other kind has", name)
  end
  local o = {name = name, kind = kind, required = default == nil, def = "0",
    words = words and words:sub(2, -2) or ""}
  if k.none then
    if default and default ~= "none" then fail(row.where, "option %s: wanted =none", name) end
    o.def = tostring(k.none)
  elseif kind == "enum" and default then
    local number = choice_number(o.words, default)
    if not number then fail(row.where, "option %s: '%s' is none of its words", name, default) end
    o.def = tostring(number)
  elseif default then
    if not tonumber(default) then fail(row.where, "option %s: '%s' is no number", name, default) end
    o.def = default
  end
  return o
end

local function read_tensors(row)
  row.names, row.number_ok, row.n_required = {}, {}, 0
  for name, marks in (row.tensors or ""):gmatch "([%w_]+)([^%w_,]*)" do
    row.names[#row.names + 1] = quoted(name)
    row.number_ok[#row.number_ok + 1] = tostring(marks:find "#" ~= nil)
    if marks:find "%.%.%." then row.list = true end
    if not marks:find "?" then row.n_required = #row.names end
    if marks:gsub("%.%.%.", ""):find "[^#? ]" then
      fail(row.where, "tensor %s is marked '%s'", name, marks)
    end
  end
  if #row.names > MAX_TENSORS then fail(row.where, "more than %d tensors", MAX_TENSORS) end
end

-- ---- attribute structs ----

local function declaration(o) return KINDS[o.kind][1]:format(o.name) end

-- The position in `list` from which on it has `part`'s members, or nil.
local function find_members(list, part)
  for first = 0, #list - #part do
    local k = 1
    while part[k] and declaration(list[first + k]) == declaration(part[k]) do k = k + 1 end
    if not part[k] then return first + 1 end
  end
end

-- The members of the row's struct as lines, and each option's path in it.
local function read_struct(row)
  local lines, member, skip = {}, {}, {}
  for name, of in pairs(row.nests or {}) do
    local part = structs[of]
    if not part then fail(row.where, "nests %s, which no row before it has as attr", of) end
    local first = find_members(row.opts, part.opts)
    if not first then fail(row.where, "its options do not hold those of %s", of) end
    skip[first] = {line = ("  %s %s;\n"):format(of, name), last = first + #part.opts - 1}
    for k, path in ipairs(part.member) do member[first + k - 1] = name .. "." .. path end
  end
  local last = 0
  for i, o in ipairs(row.opts) do
    if skip[i] then
      lines[#lines + 1], last = skip[i].line, skip[i].last
    elseif i > last then
      member[i] = o.name
      lines[#lines + 1] = ("  %s;%s\n"):format(declaration(o),
        o.words ~= "" and " /* " .. o.words .. " */" or "")
    end
  end
  return table.concat(lines), member
end

local function read_attr(row)
  row.opts = {}
  for i, text in ipairs(row.options or {}) do row.opts[i] = read_option(row, text) end
  if #row.opts > MAX_OPTIONS then fail(row.where, "more than %d options", MAX_OPTIONS) end
  if #row.opts == 0 then return end
  row.attr = row.attr
    or "dm_" .. ("_" .. row.name):gsub("_(%w)", string.upper) .. "Attr"
  local text, member = read_struct(row)
  local known = structs[row.attr]
  if not known then
    structs[row.attr] = {text = text, row = row, opts = row.opts, member = member}
    struct_names[#struct_names + 1] = row.attr
  elseif known.text ~= text then
    fail(row.where, "its options make another %s than those of %s", row.attr, known.row.name)
  end
  row.member = member
end

-- ---- rows ----

local function read_casts(row)
  local cast = row.autocast or {}
  if type(cast) == "string" then cast = {cpu = cast, cuda = cast} end
  for device in pairs(cast) do
    if device ~= "cpu" and device ~= "cuda" then fail(row.where, "autocast on '%s'", device) end
  end
  row.casts = bits(row, cast.cpu or "unlisted", CASTS, "autocast") .. ", "
    .. bits(row, cast.cuda or "unlisted", CASTS, "autocast")
end

local function read_functions(row)
  local any = (" " .. (row.flags or "") .. " "):find " any_device "
  for column, none in pairs(FUNCTIONS) do
    local convention = row.family[column]
    if any and column == "cpu" then convention = "%s_any" end
    if any and column == "cuda" then convention = nil end
    local given = row[column]
    if given == nil then given = convention and convention:format(row.name) or none end
    if given == false then given = none end
    if type(given) ~= "string" or not given:find "^[%a_][%w_]*$" then
      fail(row.where, "%s is no function's name", column)
    end
    row[column] = given
  end
end

local function add(family, name, row)
  row.name, row.family = name, FAMILIES[family]
  row.where = ("%s: op %s"):format(row.where, name)
  if not name:find "^[%a_][%w_]*$" then fail(row.where, "the name is no name in C") end
  if by_name[name] then fail(row.where, "there is another row of that name") end
  if type(row.doc) ~= "string" or row.doc == "" then fail(row.where, "it has no doc") end
  by_name[name], rows[#rows + 1] = row, row
  read_tensors(row)
  read_attr(row)
  read_casts(row)
  read_functions(row)
  row.saves = bits(row, row.saves, SAVED, "saves")
  row.flags = bits(row, row.family.flags .. " " .. (row.flags or ""), FLAGS, "flags")
  row.unary = family == "unary"
end

local op = {}
for family in pairs(FAMILIES) do
  op[family] = function(name)
    local at = debug.getinfo(2, "Sl")
    local where = ("%s:%d"):format(at.source:sub(2), at.currentline)
    return function(given)
      local row = {where = where}
      for column, value in pairs(given) do
        if not COLUMNS[column] then
          fail(where .. ": op " .. name, "there is no column '%s'", column)
        end
        row[column] = value
      end
      add(family, name, row)
    end
  end
end

for i = 2, #arg do
  local n, name = 0, "?"
  for line in io.lines(arg[i]) do
    n, name = n + 1, line:match '^op%.%l+ "([^"]*)"' or name
    if #line > WIDTH then
      fail(("%s:%d: op %s"):format(arg[i], n, name), "the line is longer than %d", WIDTH)
    end
  end
  assert(loadfile(arg[i]))(op)
end

-- ---- files that the engine includes ----

-- A file that stays as it is when nothing changed, so that nothing is compiled again.
local function write(name, lines)
  local path, text = OUT .. "/" .. name, table.concat(lines, "\n") .. "\n"
  local old = io.open(path)
  local same = old and old:read "*a" == text
  if old then old:close() end
  if same then return end
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

local NOTE = "/* Written by src/ops/generate.lua from the rows of src/ops. */"

local def, unary = {NOTE}, {NOTE}
for _, row in ipairs(rows) do
  row.signature = (row.tensors or "") .. (#row.opts > 0 and "; " or "")
    .. table.concat(row.options or {}, ", ")
  def[#def + 1] = ("OP(%s)"):format(table.concat({row.name, row.outputs or 1,
    quoted(row.signature), row.rule, row.cpu, row.cuda, row.compose, row.gradient, row.saves,
    row.casts, row.flags, quoted(row.doc)}, ", "))
  if row.unary then unary[#unary + 1] = ("UNARY(%s, %s)"):format(row.name, row.saves) end
end
write("ops.gen.def", def)
write("unary.gen.def", unary)

-- The C types of the options in order, a string: how a struct lies in memory.
local function layout(opts)
  local types = {}
  for i, o in ipairs(opts) do types[i] = KINDS[o.kind][1]:gsub(" ?%%s", "") .. ";" end
  return quoted(table.concat(types))
end

local header = {NOTE, "#ifndef DM_ATTRS_GEN_H", "#define DM_ATTRS_GEN_H", ""}
for _, name in ipairs(struct_names) do
  header[#header + 1] = ("typedef struct %s {\n%s} %s;"):format(name, structs[name].text, name)
  header[#header + 1] = ("#define DM_LAYOUT_%s %s"):format(name, layout(structs[name].opts))
end
header[#header + 1] = "\n#endif"
write("attrs.gen.h", header)

local specs, signatures = {NOTE}, {"static const dm_Signature signatures[DM_N_OP] = {"}
for _, row in ipairs(rows) do
  local list, required, dtype = {}, 0, -1
  for i, o in ipairs(row.opts) do
    list[i] = ("    {%s, %s, %s, offsetof(%s, %s), %s, %s},"):format(quoted(o.name),
      quoted(o.words), o.def, row.attr, row.member[i], KINDS[o.kind][2], tostring(o.required))
    if o.required then required = required + 2 ^ (i - 1) end
    if o.kind == "dtype" and o.name == "dtype" then dtype = i - 1 end
  end
  if #list > 0 then
    specs[#specs + 1] = ("static const dm_AttrSpec %s_attrs[] = {\n%s\n};"):format(row.name,
      table.concat(list, "\n"))
  end
  signatures[#signatures + 1] = ("    [DM_OP_%s] = {%d, %d, %d, %s, {%s}, {%s}, %s, %d, %d, %s},")
    :format(row.name, #row.names, row.n_required, #list, tostring(row.list or false),
      #row.names > 0 and table.concat(row.number_ok, ", ") or "false",
      #row.names > 0 and table.concat(row.names, ", ") or "NULL",
      #list > 0 and ("sizeof(%s)"):format(row.attr) or "0", required, dtype,
      #list > 0 and row.name .. "_attrs" or "NULL")
end
signatures[#signatures + 1] = "};"
local layouts = {"#ifdef DM_CHECK_ATTR", "static const char *const layouts[DM_N_OP] = {"}
for _, row in ipairs(rows) do
  if #row.opts > 0 then
    layouts[#layouts + 1] = ("    [DM_OP_%s] = DM_LAYOUT_%s,"):format(row.name, row.attr)
  end
end
layouts[#layouts + 1] = "};\n#endif"
write("signatures.gen.inc", {table.concat(specs, "\n"), table.concat(signatures, "\n"),
  table.concat(layouts, "\n")})
