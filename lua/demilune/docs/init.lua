-- The meaning of every public name, for dm.help, completion and editors: from the op table, from
-- the signatures, and from the comments of this library's sources.

local core = require "demilune.core"
local late = require "demilune.late"
local options = require "demilune.options"
local source = require "demilune.docs.source"
local texts = require "demilune.docs.texts"

local docs = {}

local MODULES = {"nn", "nn.functional", "nn.utils", "nn.init", "nn.parallel", "optim",
  "optim.lr_scheduler", "optim.swa_utils", "amp", "autograd", "data", "datasets", "transforms",
  "models", "metrics", "text", "cuda", "linalg", "fft", "special", "signal", "distributions",
  "distributions.transforms", "func", "profiler", "vision", "plot", "jupyter", "distributed",
  "distributed.nn"}
docs.modules = MODULES

-- ---- ops ----

-- The meaning of autocast's words for the op.
local POLICY = {
  lower_precision_fp = "inputs become the region's 16-bit dtype",
  fp32 = "inputs become float32",
  fp32_set_opt_dtype = "the result is float32, unless a dtype is given",
  promote = "inputs that differ become float32",
  banned = "refused",
  unlisted = "works on what it is given",
}

local function policy(word) return ("%s (%s)"):format(word, POLICY[word]) end

-- The default of an option as it is written; of a choice among words the row's signature tells it.
local function default_of(row, attr)
  if math.type(attr.default) == "float" then return ("%.14g"):format(attr.default) end
  if attr.default ~= nil then return tostring(attr.default) end
  local word = attr.choices and row.signature:match(attr.name .. ":enum%b()=([%w_-]+)")
  return word and ("'%s'"):format(word)
end

-- "conv2d(x, weight, bias?, {stride = 1, ...})"; "x:copy_(source)" of an op without another form.
local function op_signature(row)
  local args, named = {}, {}
  local in_place = row.only_inplace and not require "demilune"[row.name]
  for i, tensor in ipairs(row.tensors) do
    if i > 1 or not in_place then args[#args + 1] = tensor end
  end
  for _, attr in ipairs(row.attrs) do
    local default = default_of(row, attr)
    if attr.required then
      args[#args + 1] = attr.name
    else
      named[#named + 1] = default and ("%s = %s"):format(attr.name, default)
        or ("%s: %s"):format(attr.name, attr.choices or attr.kind)
    end
  end
  if #named > 0 then args[#args + 1] = "{" .. table.concat(named, ", ") .. "}" end
  return (in_place and "x:%s_(%s)" or "%s(%s)"):format(row.name, table.concat(args, ", "))
end

local function of_c_op(row)
  local text = {row.doc}
  if row.cpu == row.cuda then
    text[2] = "autocast: " .. policy(row.cpu)
  else
    text[2] = "autocast on the CPU: " .. policy(row.cpu)
    text[3] = "autocast on CUDA: " .. policy(row.cuda)
  end
  text[#text + 1] = row.differentiable and "has a gradient" or "no gradient"
  return {name = row.name, kind = "op", signature = op_signature(row), text = text}
end

-- An op written in Lua: its signature in the form of the others.
local function of_lua_op(row)
  local tensors, rest = row.signature:match "^([^;]*);? ?(.*)$"
  local args = tensors:gsub("[#?]", "")
  if not row.as_function then args = args:gsub("^%w+,? ?", "") end -- it stands in front
  local required, named = {args ~= "" and args or nil}, {}
  for option in rest:gmatch "[^,]+" do
    option = option:match "^%s*(.-)$"
    local list = option:find "[?=]" and named or required
    list[#list + 1] = option:gsub("[?*]", ""):gsub("%.%.%.", "")
  end
  if #named > 0 then required[#required + 1] = "{" .. table.concat(named, ", ") .. "}" end
  local name = row.fn and row.name or row.name .. "_"
  if not row.as_function then name = "x:" .. name end
  return {name = row.name, kind = "op",
    signature = ("%s(%s)"):format(name, table.concat(required, ", ")),
    text = {row.doc, row.like and "autocast: as " .. row.like or nil}}
end

-- {[name] = entry} of all ops, and {[other name] = name}.
local ops, aliases
local function all_ops()
  if ops then return ops, aliases end
  local own = late.require "demilune.ops"
  ops, aliases = {}, own.aliases
  for _, row in ipairs(core.ops()) do
    if not row.hidden then ops[row.name] = of_c_op(row) end
  end
  for _, row in ipairs(own.rows) do
    if not ops[row.name] then ops[row.name] = of_lua_op(row) end
  end
  return ops, aliases
end

-- ---- functions and methods in C ----

local HERE = debug.getinfo(1, "S").source:match "^@(.*)init%.lua$" or ""

-- "zeros_like(x)" of dm.zeros_like, "x:item()" of Tensor.item.
local function c_signature(name, params)
  local method = name:match "^Tensor%.(.*)$"
  local args = {}
  for i, param in ipairs(params) do
    if not (method and i == 1 and param == "x") then args[#args + 1] = param end
  end
  return ("%s(%s)"):format(method and "x:" .. method or name:gsub("^dm%.", ""),
    table.concat(args, ", "))
end

-- {[name] = entry}, names as "no_grad", "Tensor.item", "amp.cast_count".
local engine
local function all_of_engine()
  if engine then return engine end
  engine = {}
  for name, found in pairs(source.named(HERE .. "engine.lua")) do
    engine[name:gsub("^dm%.", "")] = {name = name, kind = "function", text = found.text,
      signature = c_signature(name, found.params), example = found.example,
      lines = found.lines}
  end
  return engine
end

-- ---- classes, functions, modules ----

local TEXT_WIDTH = 92

-- The text of that name in texts.lua as a list of lines, or nil.
local function short_text(name)
  if not texts[name] then return nil end
  local lines, line = {}, nil
  for word in texts[name]:gmatch "%S+" do
    if line and #line + #word >= TEXT_WIDTH then
      lines[#lines + 1], line = line, nil
    end
    line = line and line .. " " .. word or word
  end
  lines[#lines + 1] = line
  return lines
end

-- Where a function is written; nil for those that these two files make of others.
local function path_of(fn)
  local info = type(fn) == "function" and debug.getinfo(fn, "S")
  local path = info and info.source:match "^@(.*)$"
  if path and not path:find "demilune/options%.lua$" and not path:find "demilune/caller%.lua$" then
    return path, info.linedefined
  end
end

-- The file of a class: that of its init, else of its forward or of any method of its own.
local function file_of(class)
  for _, name in ipairs{"init", "forward", "new", "update"} do
    local path = path_of(rawget(class, name))
    if path then return path end
  end
  for _, value in next, class do
    local path = path_of(value)
    if path and not path:find "nn/module%.lua$" then return path end -- inherited by a copy
  end
end

-- "LeakyReLU" -> "leaky_relu", "LogSoftmax" -> "log_softmax".
local function snake(name)
  return (name:gsub("ReLU", "Relu"):gsub("(%l)(%u)", "%1_%2"):lower())
end

-- A class that its file makes by a row of a table has the documentation of the op that it calls.
local function of_op_called(class)
  local list = options.parameters(class)
  local entry = list and list.op and all_ops()[list.op] or all_ops()[snake(class)]
  return entry and entry.text
end

local SCHEDULES = {"Schedule", "Plateau", "Composite", "SWALR"} -- the classes of their files

-- The names and files of a class and its bases, the class first; of a function, which makes
-- objects, the class of its own name, or that of schedules in its file.
local function family(name, value)
  local list = {}
  if type(value) == "function" then
    local path = path_of(value)
    list[1] = {name:match "[%w_]+$", path}
    for _, class in ipairs(name:find "^optim%.[%w_]+%.%u" and SCHEDULES or {}) do
      list[#list + 1] = {class, path}
    end
  end
  while type(value) == "table" and rawget(value, "class") do
    list[#list + 1] = {rawget(value, "class"), file_of(value)}
    local meta = getmetatable(value)
    value = rawget(value, "super") or meta and rawget(meta, "__index")
  end
  return list
end

-- Methods that a class gives to its base, which calls them.
local BUILT_IN = {init = true, forward = true, extra_repr = true, begin = true, restart = true}

-- The methods that have words, with those of the bases; of modules, those of nn.Module are left
-- to dm.help "nn.Module".
local function methods_of(name, value)
  local list, seen = {}, {}
  for _, class in ipairs(family(name, value)) do
    local short, path = class[1], class[2]
    local skipped = not path or path:find "nn/module%.lua$" and name ~= "nn.Module"
    for _, method in ipairs(skipped and {} or source.methods(path, short)) do
      local own = BUILT_IN[method.name] or method.name == "update" and name:find "^optim%."
      if not own and not seen[method.name] then
        seen[method.name] = true
        list[#list + 1] = method
      end
    end
  end
  return list
end

local WORDS = 64 -- characters of a comment in a line of a list

-- The first line of a comment, with dots where more follows.
local function begun(text)
  local line = text[1]
  if #line > WORDS then line = line:sub(1, WORDS):match "^(.*)%s" or line end
  local whole = line == text[1] and (#text == 1 or line:find "%.$" or text[2]:find "^  ")
  return whole and line or line .. " ..."
end

-- Adds a line for each method to a text.
local function add_methods(text, methods)
  if #methods > 0 then text[#text + 1] = "methods:" end
  for _, method in ipairs(methods) do
    text[#text + 1] = ("  %-28s %s"):format(method.call, begun(method.text))
  end
  return text
end

-- dm's value at "nn.utils.clip_grad_norm_", read part by part.
local function value_at(name)
  local value = require "demilune"
  for part in name:gmatch "[^.]+" do
    if type(value) ~= "table" then return nil end
    local fine, next_value = pcall(function() return value[part] end)
    value = fine and next_value or nil
  end
  return value
end

-- dm's value of a name, or that of the first module which has it.
local function anywhere(name)
  local value = value_at(name)
  for i = 1, value == nil and not name:find "%." and #MODULES or 0 do
    value = value or value_at(MODULES[i] .. "." .. name)
  end
  return value
end

-- "Trainer:fit(train, ...)": the arguments that are bound by name, or as they are written.
local function method_signature(class, short, method)
  local call, long = method.call, short .. ":" .. method.name
  local bound = call:find "%(%.%.%.%)$" and (options.parameters(long) and long
    or options.parameters(method.name) and method.name)
  if bound then call = options.class_text{class = bound}:gsub("^.*" .. method.name, method.name) end
  return class .. ":" .. call
end

-- "DataLoader.iter", "optim.SGD:step": the comment of a method.
local function of_method(name)
  local class, wanted = name:match "^(.*)[.:]([%w_]+)$"
  local value = class and anywhere(class)
  for _, part in ipairs(value and family(class, value) or {}) do
    for _, method in ipairs(part[2] and source.methods(part[2], part[1]) or {}) do
      if method.name == wanted then
        return {name = name, kind = "function", text = method.text,
          signature = method_signature(class, part[1], method)}
      end
    end
  end
end

local function of_class(name, class)
  local short = rawget(class, "class")
  local path = file_of(class)
  local text = path and (source.at_text(path, (':extend "%s"'):format(short))
    or source.at_text(path, ('.extend("%s"'):format(short))
    or source.at_text(path, ("function %s:init("):format(short))
    or source.at_text(path, ('("%s",'):format(short)))
  local forward = path and source.at_text(path, ("function %s:forward("):format(short))
  local lines = short_text(name) or {}
  text = text or of_op_called(short) or not (forward or texts[name]) and path
    and source.head(path)
  for _, part in ipairs{text or {}, forward or {}} do
    table.move(part, 1, #part, #lines + 1, lines)
  end
  add_methods(lines, methods_of(name, class))
  local signature = options.class_text(class):gsub("^class %w+", name)
  return {name = name, kind = "class", signature = signature, text = lines, path = path}
end

-- "grad(f, ...)" by the names that the function's own text gives its arguments.
local function plain_signature(name, fn)
  local info, args = debug.getinfo(fn, "u"), {}
  for i = 1, info.nparams do args[i] = debug.getlocal(fn, i) end
  if info.isvararg then args[#args + 1] = "..." end
  return ("%s(%s)"):format(name, table.concat(args, ", "))
end

-- A signature belongs to the name with its module ("amp.step"), or to the last word alone.
local function of_function(name, fn)
  local path, line = path_of(fn)
  local short = name:match "[%w_]+$"
  local bound = options.parameters(name) and name or options.parameters(short) and short
  local signature = bound and options.class_text{class = bound}:gsub("^class [%w_.]+", name)
    or plain_signature(name, fn)
  local text = short_text(name)
    or path and (source.above(path, line) or source.assigned(path, short)) or {}
  return {name = name, kind = "function", signature = signature,
    text = add_methods(text, methods_of(name, fn)), path = path, line = line}
end

local function is_distribution(value)
  return type(value) == "table" and rawget(value, "parts") and rawget(value, "bind")
end

-- A class of distributions: the comment above its definition.
local function of_distribution(name, class)
  local path = path_of(class.parts.log_prob)
  return {name = name, kind = "class", path = path,
    signature = options.class_text{class = class.name}:gsub("^class [%w_]+", name),
    text = path and source.at_text(path, (".%s = "):format(class.name)) or {}}
end

-- A module: what its file says of itself, and its names.
local function of_module(name, module)
  local path = package.searchpath("demilune." .. name, package.path)
  local names = {}
  for key in pairs(late.names(module)) do
    if type(key) == "string" and key:sub(1, 1) ~= "_" then names[#names + 1] = key end
  end
  table.sort(names)
  local text = short_text(name) or path and source.head(path) or {}
  if #text > 0 then text[#text + 1] = "" end
  local line = " "
  for i, key in ipairs(names) do
    if #line + #key > 76 then
      text[#text + 1], line = line, " "
    end
    line = line .. " " .. key
    if i == #names then text[#text + 1] = line end
  end
  return {name = name, kind = "module", signature = "dm." .. name, text = text, path = path}
end

-- The entry of a value under that name; nil for values that need no words.
local function of_value(name, value)
  if type(value) == "function" then return of_function(name, value) end
  if type(value) ~= "table" then return nil end
  if rawget(value, "class") then return of_class(name, value) end
  if is_distribution(value) then return of_distribution(name, value) end
  return of_module(name, value)
end

-- ---- guides ----

local GUIDES = "guides/"
local MOST_GUIDES = 3 -- of a search

-- The text of a guide of that name, without its marks of Markdown at the head of lines.
local function guide(name)
  if not name:find "^[%w-]+$" then return nil end
  local file = io.open(HERE .. "../" .. GUIDES .. name .. ".md")
  if not file then return nil end
  local text = {}
  for line in file:lines() do text[#text + 1] = line end
  file:close()
  return {name = name, kind = "guide", signature = nil, text = text}
end

-- The names of the guides, in the order of their list.
local function guide_names()
  local names = {}
  for _, line in ipairs(guide("README").text) do
    names[#names + 1] = line:match "%]%(([%w-]+)%.md%)"
  end
  return names
end

-- Words that say nothing of a subject.
local EMPTY = {a = true, an = true, the = true, of = true, ["in"] = true, to = true, ["for"] = true,
  my = true, with = true, how = true, ["do"] = true, i = true}

-- The words of a search, as text is compared with them: without hyphens and plurals' s.
local function plain_text(text) return (text:lower():gsub("[-_]", "")) end
local function words_of(text)
  local list = {}
  for word in plain_text(text):gmatch "%w+" do
    if not EMPTY[word] then list[#list + 1] = #word > 4 and word:gsub("s$", "") or word end
  end
  return list
end

-- How many of the words begin a word of the text, which is plain.
local function hits(text, words)
  local n = 0
  for _, word in ipairs(words) do
    if text:find("%f[%w]" .. word) then n = n + 1 end
  end
  return n
end

-- A line of a guide as a search shows it: without marks of Markdown.
local function shown_line(line) return (line:gsub("%*%*", ""):gsub("`", ""):gsub("^#+ ", "")) end

-- The guides whose text has all the words: {"guide NAME", the line that has most of them, points}
-- each; a guide of that name comes first, then those where they stand closer together.
local function guides_with(words)
  local found = {}
  for _, name in ipairs(guide_names()) do
    local lines = guide(name).text
    if hits(plain_text(table.concat(lines, "\n")), words) == #words then
      local best, most = "", 0
      for _, line in ipairs(lines) do
        local n = hits(plain_text(line), words)
        if n > 0 and line:find "^#" then n = n + 0.5 end -- a heading says what follows
        if n > most then best, most = line, n end
      end
      local named = hits(plain_text(name), words) > 0 and 1 or 0
      found[#found + 1] = {"guide " .. name, shown_line(best), most / #words + named}
    end
  end
  return found
end

-- ---- examples ----

local EXAMPLES = {"ops", "layers", "tools"}

-- {[name] = text} of all files of examples, whose head says how one is written.
local examples
local function example_of(name)
  if not examples then
    examples = {}
    for _, file in ipairs(EXAMPLES) do
      for key, text in pairs(require("demilune.docs.examples." .. file)) do
        examples[key] = text
      end
    end
  end
  local lines = examples[name] and {}
  for line in (examples[name] or ""):gmatch "[^\n]+" do
    lines[#lines + 1] = line:gsub("^    ", "")
  end
  return lines
end

-- ---- finding ----

local function find(name)
  if name == "guides" then return guide "README" end
  local page = name:match "^guide ([%w-]+)$"
  if page then return guide(page) end
  name = name:gsub("^dm%.", ""):gsub("^x:", "")
  local all, other = all_ops()
  local op = name:gsub("^nn%.functional%.", ""):gsub("%.", "_")
  if all[op] or other[op] then return all[op] or all[other[op]] end
  if all[op:gsub("_$", "")] then return all[op:gsub("_$", "")] end -- in place
  local in_c = all_of_engine()
  if in_c[name] or in_c["Tensor." .. name] then return in_c[name] or in_c["Tensor." .. name] end
  local method = of_method(name)
  if method then return method end
  local own = value_at(name)
  if own ~= nil then
    local entry = of_value(name, own)
    if entry then return entry end
  end
  for _, module in ipairs(MODULES) do
    local value = not name:find "%." and value_at(module .. "." .. name)
    if value then return of_value(module .. "." .. name, value) end
  end
  local class, key = name:match "^(.*)[.:]([%w_]+)$"
  local holder = class and value_at(class)
  if type(holder) == "table" and rawget(holder, "class") then
    return of_value(name, holder[key])
  end
  return guide(name)
end

--- The entry of a name: {name =, kind = "op"|"class"|"function"|"module"|"guide", signature =,
--- text = a list of lines, example = another or nil}; nil where there is none. "LSTM" finds
--- nn.LSTM, "linalg.inv" the op linalg_inv, "conv2d" the op, "indexing" the guide; "guide data"
--- that of a name which is a module.
---@param name string
---@return table?
function docs.find(name)
  local entry = find(name)
  if entry then
    entry.example = example_of((entry.name:gsub("^dm%.", ""))) or entry.example
  end
  return entry
end

--- The entry of a value: a class, an object of one, a function of this library, a tensor.
---@param value any
---@return table?
function docs.of(value)
  if type(value) == "userdata" then
    local meta = getmetatable(value)
    local made_by = type(meta) == "table" and meta.__name or meta -- "demilune.Generator"
    return type(made_by) == "string" and docs.find(made_by:match "[^.]*$") or nil
  end
  if type(value) == "table" then
    local class = rawget(value, "class") and value or getmetatable(value)
    local name = type(class) == "table" and rawget(class, "class")
    if is_distribution(name) then value, name = name, nil end -- a distribution has its class
    if is_distribution(value) then return docs.find("distributions." .. value.name) end
    if name then return docs.find(name) or of_class(name, class) end
    local made_by = class and rawget(class, "__name") -- "demilune.GradScaler", made by a function
    if made_by then return docs.find(made_by:match "[^.]*$") end
  end
  for _, module in ipairs{"", table.unpack(MODULES)} do
    local holder = module == "" and require "demilune" or value_at(module)
    for name in pairs(late.names(holder)) do
      if rawequal(rawget(holder, name), value) then
        return docs.find(module == "" and name or module .. "." .. name)
      end
    end
  end
end

-- Whether dm's value of that name is a function or a class of its own, written in Lua, that
-- neither the ops nor the functions in C have. (dm.progress is a table that can be called.)
local function is_own(dm, name)
  local value, known, other = dm[name], all_ops()
  local plain = name:gsub("_$", "")
  local meta = type(value) == "table" and getmetatable(value)
  local makes = type(value) == "table" and (rawget(value, "class") or meta and meta.__call)
  return (type(value) == "function" or makes) and name:sub(1, 1) ~= "_"
    and not rawequal(value, core[name]) and not all_of_engine()[name]
    and not known[plain] and not other[plain]
end

--- Every public name with its module, such as "nn.LSTM" and "conv2d", in order.
---@return string[]
function docs.names()
  local list = {}
  for name in pairs((all_ops())) do list[#list + 1] = name end
  for name in pairs(all_of_engine()) do
    if not name:find "^%l+%." then list[#list + 1] = name end -- others are names of modules
  end
  local dm = require "demilune"
  for name in pairs(late.names(dm)) do
    if type(name) == "string" and is_own(dm, name) then list[#list + 1] = name end
  end
  for _, module in ipairs(MODULES) do
    for name in pairs(late.names(value_at(module))) do
      local op = rawget(all_ops(), name) or rawget(all_ops(), module .. "_" .. name)
      if type(name) == "string" and name:sub(1, 1) ~= "_" and not op then
        list[#list + 1] = module .. "." .. name
      end
    end
  end
  table.sort(list)
  return list
end

-- Sorts entries {name, line, points}, best first, and gives the first ones.
local function best_of(found, most)
  table.sort(found, function(a, b)
    if a[3] ~= b[3] then return a[3] > b[3] end
    return a[1] < b[1]
  end)
  return table.move(found, 1, math.min(most, #found), 1, {})
end

-- The points of an entry whose name or text has all the words; 0 for others.
local function points_of(entry, name, words, whole)
  local text, points = plain_text(table.concat(entry.text, " ")), 0
  name = plain_text(name)
  for _, word in ipairs(words) do
    if name:find(word, 1, true) then points = points + 3
    elseif text:find(word, 1, true) then points = points + 1
    else return 0 end
  end
  local at = text:find(whole, 1, true)
  return points + (at and 3 - math.min(2, at / 100) or 0)
end

--- Guides whose text has all the words, three at most; then the names whose name or text has
--- them, best first: {name, a line} each.
---@param text string
---@param most integer
---@return table[]
function docs.search(text, most)
  local words, whole, found = words_of(text), plain_text(text), {}
  if #words == 0 then return {} end
  local first = best_of(guides_with(words), MOST_GUIDES)
  for _, name in ipairs(docs.names()) do
    local entry = all_ops()[name] or docs.find(name)
    local points = entry and points_of(entry, name, words, whole) or 0
    if points > 0 then found[#found + 1] = {name, entry.text[1] or entry.signature, points} end
  end
  return table.move(best_of(found, most - #first), 1, most, #first + 1, first)
end

return docs
