-- Arguments by position and by name: each class, function and op takes PyTorch's names in
-- PyTorch's order, and says what it takes when it is given anything else.
-- golden/signatures.lua has PyTorch's names; the lists here have each deliberate difference.
local dm = require "demilune"
local case = require "spec.case"
local golden = dofile "spec/golden/signatures.lua"
local samples = require "spec.samples"

-- ---- public names ----

-- The parameters {{name =, required =, by_name =}, ...} that fn names when it is given an
-- unknown option; or nil, and what it says instead.
local function parameters_of(fn)
  local ok, text = pcall(fn, {no_such_option = true})
  local list = tostring(text):match "\n  [%w_.:]+%((.*)%)$"
  if ok or not list or not text:find("no_such_option", 1, true) then
    return nil, ok and "no error" or text
  end
  local found, by_name = {}, false
  for part in list:gsub("%b{}", ""):gmatch "[^,]+" do
    part = part:match "^%s*(.-)%s*$"
    if part == "*" then
      by_name = true
    else
      found[#found + 1] = {name = part:match "^[%w_]+", by_name = by_name,
        required = not part:find "[=?]"}
    end
  end
  return found
end

local function is_callable(v)
  local meta = getmetatable(v)
  return type(v) == "function" or type(v) == "table" and meta ~= nil and meta.__call ~= nil
end

local MODULES = {
  nn = dm.nn, ["nn.init"] = dm.nn.init, ["nn.utils"] = dm.nn.utils,
  ["nn.utils.rnn"] = dm.nn.utils.rnn, ["nn.utils.parametrize"] = dm.nn.utils.parametrize,
  ["nn.utils.parametrizations"] = dm.nn.utils.parametrizations,
  ["nn.utils.prune"] = dm.nn.utils.prune, optim = dm.optim, ["F"] = dm.nn.functional,
  ["optim.lr_scheduler"] = dm.optim.lr_scheduler, ["optim.swa_utils"] = dm.optim.swa_utils,
  amp = dm.amp, autograd = dm.autograd, data = dm.data, datasets = dm.datasets,
  transforms = dm.transforms, ["transforms.functional"] = dm.transforms.functional,
  models = dm.models, metrics = dm.metrics, text = dm.text, profiler = dm.profiler,
  linalg = dm.linalg, fft = dm.fft, distributions = dm.distributions, func = dm.func,
  ["distributions.transforms"] = dm.distributions.transforms,
  distributed = dm.distributed, ["distributed.nn"] = dm.distributed.nn,
}
-- Names that their modules load when they are asked for.
local LATE = {
  optim = "LBFGS Muon Adafactor LAMB ZeroRedundancyOptimizer",
  ["optim.lr_scheduler"] = "ReduceLROnPlateau SequentialLR ChainedScheduler",
  amp = "autocast GradScaler step custom_fwd custom_bwd register report memory initialize "
    .. "scale_loss loss_scalers",
  data = "read_csv TokenFile ChainDataset",
  transforms = "Pad RandAugment MixUp",
  models = "resnet18 vgg16 gpt2 bert vit_b_16 lenet unet lstm_lm mobilenet_v2 efficientnet_b0",
  text = "Windows read_tokens",
}
local FUNCTIONS = "Trainer save load save_pretrained from_pretrained tril_indices triu_indices "
  .. "logspace make_grid save_image read_image decode_image memory_summary progress "
  .. "set_printoptions"

-- What has no list of named parameters, and why.
local FREE = {
  ["nn.Sequential"] = "modules, any number", ["nn.ModuleList"] = "modules, any number",
  ["nn.isinstance"] = "the value may be anything, a table too",
  ["nn.Identity"] = "takes and drops anything, as PyTorch's does",
  ["nn.Module"] = "the base class", ["nn.ModuleDict"] = "the table has names of its own",
  ["nn.ParameterDict"] = "the table has names of its own",
  ["nn.utils.checkpoint"] = "hands arguments of any kind on to its function",
  ["nn.utils.parametrize.ParametrizationList"] = "made by register_parametrization",
  ["nn.utils.prune.BasePruningMethod"] = "the base class",
  ["nn.utils.prune.PruningContainer"] = "a list of methods",
  ["nn.utils.prune.Identity"] = "a method of pruning without arguments",
  ["optim.Optimizer"] = "the base class",
  ["distributions.register_kl"] = "two classes and a function, where PyTorch decorates one",
  ["distributed.all_gather_object"] = "the value may be anything, a table too",
  ["distributed.gather_object"] = "the value may be anything, a table too",
  ["distributed.broadcast_object"] = "the value may be anything, a table too",
  ["func.functional_call"] = "hands arguments on to its module",
  ["func.vjp"] = "hands arguments on to its function",
  ["data.TensorDataset"] = "tensors, any number",
  ["data.StackDataset"] = "data sets, any number, or a table that names them",
  ["data.Dataset"] = "the base class", ["data.Sampler"] = "the base class",
  ["data.IterableDataset"] = "the base class",
  ["profiler.record_function"] = "hands arguments on to its function",
  ["profiler.measure"] = "hands arguments on to its function",
  ["F.upsample"] = "another name of the op interpolate",
  ["transforms.functional.resize"] = "an image, and the arguments of Resize",
  ["transforms.functional.pad"] = "an image, and the arguments of Pad",
  ["transforms.functional.center_crop"] = "an image, and the arguments of CenterCrop",
  ["transforms.functional.rgb_to_grayscale"] = "an image, and the arguments of Grayscale",
  ["transforms.functional.rotate"] = "an image, an angle, and the options of RandomRotation",
}

-- What is one argument, or none, so that a table of options would be no shorter.
local ONE = {}
for name in ([[nn.init.fans nn.utils.rnn.is_packed nn.utils.rnn.PackedSequence
  nn.utils.rnn.unpack_sequence nn.utils.rnn.invert_permutation optim.lr_scheduler.get_last_lr
  amp.is_autocast_available amp.is_autocast_enabled amp.set_autocast_enabled
  amp.get_autocast_dtype amp.set_autocast_dtype amp.is_autocast_cache_enabled
  amp.set_autocast_cache_enabled amp.clear_autocast_cache amp.cast_count amp.op_table
  autograd.is_function data.is_file autograd.is_anomaly_enabled distributions.is_distribution
  distributions.transforms.is_transform autograd.is_anomaly_check_nan_enabled
  data.default_collate data.read_npy data.write_npy data.read_npz data.write_npz
  transforms.declare transforms.is_callable text.ByteTokenizer text.CharTokenizer
  text.GPT2Tokenizer distributed.device distributed.get_node_local_rank
  distributed.is_available distributed.is_initialized distributed.stats]]):gmatch "%S+" do
  ONE[name] = true
end

-- A value that is of no kind.
local NO_KIND = coroutine.create(print)

-- Arguments that are looked at behind others, or may be anything.
local ANYTHING = {}
for name in ([[amp.initialize/cast_model_type amp.initialize/loss_scale
  amp.initialize/max_loss_scale amp.initialize/min_loss_scale amp.initialize/num_losses
  amp.initialize/opt_level amp.autocast/rules amp.register/policy autograd.gradcheck/inputs
  autograd.gradgradcheck/inputs data.read_csv/... nn.utils.checkpoint_sequential/input
  progress/file save/tree distributed.save/tree text.write_tokens/ids]]):gmatch "%S+" do
  ANYTHING[name] = true
end

-- {["nn.Linear"] = class, ...}; ops, in C and in Lua, are looked at below.
local function all()
  local found, in_lua = {}, require("demilune.ops").rows
  for prefix, module in pairs(MODULES) do
    for name in (LATE[prefix] or ""):gmatch "%S+" do
      found[("%s.%s"):format(prefix, name)] = module[name]
    end
    for name, value in pairs(module) do
      local full = ("%s.%s"):format(prefix, name)
      local is_op = rawequal(value, dm[name]) or rawequal(value, dm[prefix .. "_" .. name])
        or in_lua[name] or in_lua[("%s_%s"):format(prefix, name)]
      if is_callable(value) and not is_op and not FREE[full] and not ONE[full] then
        found[full] = value
      end
    end
  end
  for name in FUNCTIONS:gmatch "%S+" do found[name] = dm[name] end
  return found
end

local function words(text)
  local list = {}
  for word in text:gmatch "%S+" do list[#list + 1] = word end
  return list
end

-- ---- differences from PyTorch ----

-- Names that PyTorch has at a position, and that count as nothing here.
local GONE = {}
for name in ("size_average reduce inplace out layout pin_memory"):gmatch "%S+" do
  GONE[name] = name
end

local DIFFERENT = {
  save = "the path comes first, as in load", load = "the path is a path, and no open file",
  logspace = "end is a word of Lua",
}

describe("each class and function", function()
  local found = all()

  it("names what it takes, when it is given what it does not know", function()
    local mute = {}
    for name, fn in pairs(found) do
      local parameters, text = parameters_of(fn)
      if not parameters then mute[#mute + 1] = ("%s: %s"):format(name, text) end
    end
    table.sort(mute)
    assert.equal("", table.concat(mute, "\n"))
  end)

  it("does so where it is an op written in Lua", function()
    for _, row in ipairs(require("demilune.ops").rows) do
      for form, fn in pairs{[""] = row.fn, _ = row.in_place} do
        local x = dm.ones(1)
        local ok, text = pcall(fn, x, {no_such_option = true})
        assert.is_false(ok, row.name .. form)
        local takes = "%s: unknown option 'no_such_option'\n  %s%%([^)]*%%)$"
        assert.matches(takes:format(row.name, row.name), text)
      end
    end
  end)

  it("names each argument that is of another kind, at the caller's line", function()
    local wrong, n = {}, 0
    for name, fn in pairs(found) do
      for _, p in ipairs(parameters_of(fn) or {}) do
        local full = ("%s/%s"):format(name, p.name or "...")
        local ok, text = pcall(function() return (fn{[p.name or 1] = NO_KIND}) end)
        text = tostring(text)
        local told = not ok and text:find "^%S*signatures_spec.lua:%d+: " ~= nil
          and text:find((": %s is "):format(p.name), 1, true) ~= nil
        n = n + 1
        if told == (ANYTHING[full] or false) then
          wrong[#wrong + 1] = ("%s: %s"):format(full, text:match "[^\n]*")
        end
      end
    end
    table.sort(wrong)
    assert.equal("", table.concat(wrong, "\n"))
    assert.is_true(n > 1000, n .. " arguments")
  end)

  it("has PyTorch's names in PyTorch's order, but for those listed", function()
    local wrong = {}
    for name, fn in pairs(found) do
      local ours, theirs = parameters_of(fn), golden[name]
      if ours and theirs then
        local fits, got = false, {}
        for _, p in ipairs(ours) do
          if not p.by_name then got[#got + 1] = p.name end
        end
        for _, form in ipairs(theirs) do
          local same, list = true, words(form)
          for i, word in ipairs(got) do same = same and list[i] == word end
          fits = fits or same
        end
        if fits ~= (DIFFERENT[name] == nil) then
          wrong[#wrong + 1] = ("%s: %s / %s"):format(name, table.concat(got, " "), theirs[1])
        end
      end
    end
    table.sort(wrong)
    assert.equal("", table.concat(wrong, "\n"))
  end)
end)

-- ---- ops ----

-- Ops whose names differ, and why.
local OTHER = {
  pinverse = "takes the options of linalg.pinv, which it is outside autocast",
  arange = "end is a word of Lua", linspace = "end is a word of Lua",
  unique = "PyTorch's dispatcher knows other names than its page",
  unique_consecutive = "PyTorch's dispatcher knows other names than its page",
  linalg_lstsq = "A, B as its page", linalg_tensorsolve = "A, B, dims as its page",
  cholesky_solve = "B, L as its page", einsum = "the operands may be a list",
  block_diag = "the tensors may be a list", gumbel_softmax = "without the deprecated eps",
  lstm_cell = "h and c are two arguments",
  batch_norm = "num_batches_tracked, which PyTorch's modules count with another op",
  fractional_max_pool2d = "output_ratio is F.fractional_max_pool2d's",
}

-- The names of an op's operands and options, in two lists.
local function names_of(row)
  local tensors, options = {}, {}
  for i, name in ipairs(row.tensors) do tensors[i] = name:match "^[%w_]+" end
  for i, attr in ipairs(row.attrs) do options[i] = attr.name end
  return tensors, options
end

local function forms_of(name)
  local own = name:gsub("^linalg_", "linalg."):gsub("^fft_", "fft."):gsub("^special_", "special.")
  local forms = {}
  for _, key in ipairs{"F." .. name, own, name} do
    for _, form in ipairs(golden[key] or {}) do forms[#forms + 1] = form end
  end
  return forms
end

-- Whether `list` begins with `first`, whose last ones may be left over where `list` ends with *.
local function begins(list, first)
  for i, word in ipairs(first) do
    if list[i] == nil or list[i] == "*" then return true end
    if list[i] ~= word then return false end
  end
  return true
end

-- Operands and options of an op are told apart by their types: each kind has its own order.
local function fits(form, tensors, options)
  local is_tensor, list, rest, seen = {}, words(form), {}, {}
  for i, name in ipairs(tensors) do -- the first may have no name in their lists
    is_tensor[i == 1 and not (" " .. form .. " "):find(" " .. name .. " ", 1, true) and "input"
      or name] = true
  end
  for _, word in ipairs(list) do
    if is_tensor[word] then seen[#seen + 1] = word
    elseif not GONE[word] then rest[#rest + 1] = word end
  end
  for i, name in ipairs(tensors) do
    if seen[i] ~= name and not (i == 1 and seen[i] == "input") then return false end
  end
  return begins(rest, options)
end

describe("each op", function()
  it("has PyTorch's names in PyTorch's order, but for those listed", function()
    local wrong = {}
    for _, row in ipairs(dm.ops()) do
      local forms = forms_of(row.name)
      if not row.hidden and #forms > 0 then
        local ok, tensors, options = false, names_of(row)
        for _, form in ipairs(forms) do ok = ok or fits(form, tensors, options) end
        if ok ~= (OTHER[row.name] == nil) then
          wrong[#wrong + 1] = ("%s: %s; %s / %s"):format(row.name, table.concat(tensors, " "),
            table.concat(options, " "), table.concat(forms, " | "))
        end
      end
    end
    assert.equal("", table.concat(wrong, "\n"))
  end)

  -- The arguments of a sample call as {name = value}, by their types as the binding reads them.
  local function named(row, args)
    local tensors, options = names_of(row)
    local out, i, last = {}, 1, #args
    local tail = args[last]
    if type(tail) == "table" and #tail == 0 and next(tail) ~= nil then
      for key, value in pairs(tail) do out[key] = value end
      last = last - 1
    end
    local is_list = row.tensors[1] and row.tensors[1]:find("...", 1, true)
    local function take(names)
      while names[1] and out[names[1]] ~= nil do table.remove(names, 1) end
      return table.remove(names, 1)
    end
    while i <= last do
      local v, attr, greedy = args[i], nil, true
      local operand = tensors[1] and (dm.is_tensor(v) or is_list and type(v) == "table"
        or type(v) == "number" and row.signature:find(tensors[1] .. "#", 1, true))
      for _, a in ipairs(row.attrs) do -- a list takes all numbers, unless more is wanted behind it
        local lists = a.kind == "sizes" or a.kind == "dims"
        if attr and (lists or a.required) then greedy = false end
        if a.name == options[1] then attr = a end
      end
      if is_list and dm.is_tensor(v) then
        local list = {}
        while dm.is_tensor(args[i]) do list[#list + 1], i = args[i], i + 1 end
        out[take(tensors)] = list
      elseif operand or tensors[1] and not attr then
        out[take(tensors)], i = v, i + 1
      elseif attr and (attr.kind == "sizes" or attr.kind == "dims") and type(v) == "number"
        and greedy then
        local list = {}
        while type(args[i]) == "number" and i <= last do list[#list + 1], i = args[i], i + 1 end
        out[take(options)] = list
      else
        out[take(options)], i = v, i + 1
      end
    end
    return out
  end

  local function called(name, fn, ...)
    dm.manual_seed(7)
    local outs = table.pack(fn(...))
    for i = 1, outs.n do
      outs[i] = dm.is_tensor(outs[i]) and {tostring(outs[i].shape), outs[i].dtype,
        not name:find "^empty" and case.values(outs[i])} or outs[i]
    end
    return outs
  end

  -- An op that changes its operand takes that one by position.
  local function by_name(fn, row, given)
    if not row.only_inplace then return fn, given end
    local first, rest = row.tensors[1]:match "^[%w_]+", {}
    for key, value in pairs(given) do rest[key] = key ~= first and value or nil end
    return function(options) return fn(given[first]:clone(), options) end, rest
  end

  for _, row in ipairs(dm.ops()) do
    local name = row.only_inplace and row.name .. "_" or row.name
    local fn, sample = dm[name], (samples[name] or {})[1]
    if not row.hidden and fn and sample then
      local args = case.decode(dm, sample, {}, {})
      for _, mark in ipairs{"grad", "once", "random", "dense", "pointwise"} do args[mark] = nil end
      local given = named(row, args)

      it(name .. " gives by name what it gives by position", function()
        local call, rest = by_name(fn, row, given)
        local first = row.only_inplace and function(x, ...) return fn(x:clone(), ...) end or fn
        assert.same(called(name, first, table.unpack(args)), called(name, call, rest))
      end)

      it(name .. " refuses what it does not know and what is of another type", function()
        local call, rest = by_name(fn, row, given)
        for key in pairs(rest) do
          local wrong = {}
          for k, v in pairs(rest) do wrong[k] = k == key and print or v end
          local ok, text = pcall(call, wrong)
          assert.is_false(ok, key)
          assert.matches(("%s: %s"):format(row.name, key), text, 1, true)
        end
        rest.no_such_option = 1
        local ok, text = pcall(call, rest)
        assert.is_false(ok)
        assert.matches("unknown option 'no_such_option'", text, 1, true)
        for _, list in ipairs{names_of(row)} do
          for _, word in ipairs(list) do assert.matches(word, text:match "\n.*$", 1, true) end
        end
      end)
    end
  end
end)

describe("a call", function()
  local nn, optim = dm.nn, dm.optim
  local function refuses(text, fn, ...)
    local args = table.pack(...)
    local ok, message = pcall(function() return (fn(table.unpack(args, 1, args.n))) end)
    assert.is_false(ok)
    assert.matches("signatures_spec.lua:%d+: ", message)
    assert.matches(text, message, 1, true)
  end

  it("gives arguments by position, by name or both", function()
    local conv = nn.Conv2d(1, 32, 3, 1)
    assert.same({32, 1, 3, 3}, {table.unpack(conv.weight.shape)})
    assert.same({2, 2}, nn.Conv2d(1, 4, 3, {stride = 2}).stride)
    assert.same({2, 3}, nn.Conv2d{in_channels = 1, out_channels = 4,
      kernel_size = {2, 3}}.kernel_size)
    assert.same({3, 3}, nn.Conv2d(1, 4, {3, 3}).kernel_size)
    assert.is_nil(nn.Linear(3, 4, false).bias)
    assert.equal(4, nn.Linear(3.0, 8 / 2).out_features)
    assert.equal(0.2, nn.LeakyReLU(0.2, true).negative_slope)
    assert.equal(2, #nn.Linear(3, 4, {}):parameters())
    local layer = nn.Linear(2, 2)
    local sgd = optim.SGD(layer:parameters(), 0.1, 0.9)
    assert.same({0.1, 0.9}, {sgd.param_groups[1].lr, sgd.param_groups[1].momentum})
    local schedule = optim.lr_scheduler.MultiStepLR{optimizer = sgd, milestones = {1}}
    sgd:step()
    schedule:step()
    assert.near(0.01, sgd.param_groups[1].lr, 1e-12)
    optim.lr_scheduler.StepLR{optimizer = sgd, step_size = 30}
    assert.equal(8, dm.amp.GradScaler("cpu", 8):get_scale())
    assert.is_true(dm.amp.GradScaler "cpu":is_enabled())
    local set = dm.data.TensorDataset(dm.ones(6, 2))
    assert.equal(3, dm.data.DataLoader(set, 2, false):len())
    assert.equal(2, dm.data.DataLoader{dataset = set, batch_size = 3}:len())
  end)

  it("applies an activation in place where it is told to", function()
    for _, layer in ipairs{nn.ReLU(true), nn.ReLU{inplace = true}, nn.Hardtanh(0, 9, true),
      nn.Threshold(0, 0, true), nn.Sequential{nn.ReLU(true), nn.ReLU(true)}} do
      local x = dm.tensor{-1.0, 2.0}
      assert.is_true(rawequal(x, layer(x)))
      assert.same({0.0, 2.0}, x:totable())
    end
    local x = dm.ones(8)
    assert.is_true(rawequal(x, nn.Dropout(0.5, true)(x)))
    assert.is_true(x:eq(1):logical_not():all():item())
  end)

  it("says what is missing, unknown, given twice, too much or of another type", function()
    refuses("Conv2d: kernel_size is missing, wanted an integer or a table of them\n  "
      .. "Conv2d(in_channels, out_channels, kernel_size, stride = 1", nn.Conv2d, 1, 2)
    refuses("Conv2d: unknown option 'pading'; did you mean 'padding'?", nn.Conv2d, 1, 2, 3,
      {pading = 1})
    refuses("Linear: out_features is given twice", nn.Linear, 1, 2, {out_features = 3})
    refuses("Linear: argument 6, 7, is one too many", nn.Linear, 1, 2, true, nil, nil, 7)
    refuses("Linear: bias is 1, wanted true or false", nn.Linear, 1, 2, 1)
    refuses("Linear: in_features is 2.5, wanted an integer", nn.Linear, 2.5, 2)
    refuses("Conv2d: options are named; this table mixes names and positions", nn.Conv2d, 1, 2,
      3, 1, 0, 1, 1, {true, groups = 1})
    refuses("MultiStepLR: unknown option 'milestone'", optim.lr_scheduler.MultiStepLR,
      optim.SGD{dm.ones(1)}, {milestone = {1}})
    refuses("MultiStepLR: milestones is missing", optim.lr_scheduler.MultiStepLR,
      optim.SGD{dm.ones(1)})
    refuses("load_state_dict: unknown option 'strickt'; did you mean 'strict'",
      nn.Linear.load_state_dict, nn.Linear(1, 1), {}, {strickt = false})
    refuses("Adam: betas is 0.9, wanted a table of numbers", optim.Adam, {dm.ones(1)},
      {betas = 0.9})
  end)

  it("loads a state_dict as far as it goes, by position too", function()
    local keys = nn.Linear(1, 1):load_state_dict({weight = dm.ones(1, 1)}, false)
    assert.same({missing_keys = {"bias"}, unexpected_keys = {}}, keys)
    local layer = nn.Linear(1, 1)
    layer:load_state_dict{state_dict = nn.Linear(1, 1):state_dict(), strict = true}
  end)

  it("of functions that return several views takes their names too", function()
    local x = dm.ones(4, 6)
    for name, argument in pairs{chunk = "chunks", split = "split_size",
      tensor_split = "indices_or_sections"} do
      local parts = dm[name]{input = x, [argument] = 2, dim = 2}
      assert.same({4, name == "split" and 2 or 3}, {table.unpack(parts[1].shape)})
      assert.equal(#parts, #x[name](x, 2, {dim = 2}))
      assert.equal(#parts, #x[name](x, {[argument] = 2, dim = -1}))
      refuses(("%s: unknown option 'dimm'; did you mean 'dim'?\n  %s(input, %s, dim)"):format(name,
        name, argument), dm[name], x, 2, {dimm = 1})
      refuses(name .. ": argument 4 is one too many", dm[name], x, 2, 1, 3)
      refuses(name .. ": dim is a string, wanted an integer", dm[name], x, 2, "1")
      refuses(("%s: %s is a nil, wanted an integer"):format(name, argument), dm[name], x)
      refuses(name .. ": dim is given twice", dm[name], x, 2, 1, {dim = 1})
    end
    refuses("unbind: unknown option 'd'", dm.unbind, x, {d = 1})
    assert.equal(6, #x:unbind{dim = 2})
    refuses("hsplit: unknown option 'dim'", dm.hsplit, x, 2, {dim = 1})
  end)
end)
