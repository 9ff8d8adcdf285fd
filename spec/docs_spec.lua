-- dm.help and the documentation behind it (lua/demilune/docs): every public name has words.
local dm = require "demilune"
local docs = require "demilune.docs"
local examples = require "spec.examples"

-- Runs f and gives what it printed.
local function printed(f)
  local lines, old = {}, print
  rawset(_G, "print", function(...)
    for i = 1, select("#", ...) do lines[#lines + 1] = tostring((select(i, ...))) end
  end)
  local fine, why = pcall(f)
  rawset(_G, "print", old)
  if not fine then error(why, 0) end
  return table.concat(lines, "\n")
end
local function help(what) return printed(function() dm.help(what) end) end

describe("documentation", function()
  it("has an entry with a signature and a text for each public name", function()
    local count, mute = 0, {}
    for _, name in ipairs(docs.names()) do
      count = count + 1
      local entry = docs.find(name)
      if not (entry and entry.signature and entry.text[1] and #entry.text[1] > 1) then
        mute[#mute + 1] = name
      end
    end
    assert.is_true(count > 950, count)
    assert.equal("", table.concat(mute, " "))
  end)

  it("has a line for no name that is gone", function()
    for name in next, require "demilune.docs.texts" do
      local value = dm
      for part in name:gmatch "[^.]+" do value = value[part] end
      assert.is_not_nil(value, name)
    end
  end)

  it("tells ops, in C and in Lua, by any of their names", function()
    assert.matches("^conv2d%(x, weight, bias%?, {stride = 1.*2%-d convolution", help "conv2d")
    assert.matches("autocast: lower_precision_fp", help "conv2d")
    for _, name in ipairs{"linalg.inv", "linalg_inv", "dm.linalg.inv"} do
      assert.matches("inverses of square matrices", help(name))
    end
    assert.matches("^relu%(x%)", help "nn.functional.relu")
    assert.matches("^relu%(x%)", help "relu_")
    assert.matches("^diag_embed%(", help "diag_embed")
  end)

  it("tells classes, with or without their module, and of objects", function()
    local text = help "nn.Linear"
    assert.matches("^nn.Linear%(in_features, out_features, bias = true", text)
    assert.matches("x %(%.%.%., I%) %-> y", text)
    assert.equal(text, help "Linear")
    assert.equal(text, help(dm.nn.Linear))
    assert.equal(text, help(dm.nn.Linear(2, 3)))
    assert.matches("^nn.LSTM%(input_size, hidden_size, num_layers = 1", help "LSTM")
    assert.matches("S. Hochreiter", help "LSTM")
    assert.matches("^nn.MultiheadAttention%(embed_dim, num_heads", help "MultiheadAttention")
    assert.matches("every step_size steps", help "StepLR")
    assert.matches("^optim.AdamW%(params", help "AdamW")
    assert.matches("^amp.GradScaler%(", help(dm.amp.GradScaler{device = "cpu"}))
    assert.matches("max%(x, 0%)", help "ReLU")
  end)

  it("tells functions by the comment above them, with their arguments", function()
    assert.matches("common norm is at most max_norm", help "nn.utils.clip_grad_norm_")
    assert.matches("^save%(path, tree%)", help(dm.save))
    assert.matches("folder +string.*returns +table%? model", help "from_pretrained")
    for line in help("Trainer"):gmatch "[^\n]+" do assert.is_true(#line <= 110, line) end
  end)

  it("tells functions and methods in C", function()
    assert.matches("^no_grad%(fn%?%)", help "no_grad")
    assert.matches("^x:item%(%)", help "Tensor.item")
    assert.matches("^x:item%(%)", help "x:item")
    for name in pairs(require("demilune.docs.source").named "lua/demilune/docs/engine.lua") do
      local kind, short = name:match "^(%w+)%.(.*)$"
      local holder = kind == "Tensor" and require("demilune.core").methods
        or kind == "dm" and dm or dm[kind]
      assert.is_not_nil(holder[short], name)
    end
  end)

  it("lists the methods of a class and of its bases, and tells each", function()
    local text = help "optim.SGD"
    assert.matches("methods:\n +add_param_group%(group%) +Adds a group", text)
    assert.matches("\n +zero_grad%(set_to_none%) +Drops the parameters' gradients", text)
    assert.matches("\n +state_dict%(%) .* %.%.%.\n", text)
    assert.matches("\n +iter%(%) +for i, x, y in loader:iter", help "DataLoader")
    assert.matches("\n +unscale_%(optimizer%).*\n +update%(new_scale%)", help "GradScaler")
    assert.matches("\n +step%(epoch%) +Sets the rates", help "StepLR")
    assert.matches("\n +named_parameters%(", help "nn.Module")
    assert.matches("\n +no_sync%(%.%.%.%) .*\n +join%(", help "DistributedDataParallel")
    assert.matches("\n +predict%(x%)", help "AdaptiveLogSoftmaxWithLoss")
    assert.matches("\n +encode%(text%).*\n +decode%(ids%)", help "text.ByteTokenizer")
    assert.matches("\n +encode%(text%).*\n +decode%(ids%)", help "text.CharTokenizer")
    assert.is_nil(help("nn.Linear"):find("named_parameters", 1, true))
    assert.matches("^optim.SGD:step%(closure, found_inf%)\n  One update", help "optim.SGD.step")
    assert.matches("^Trainer:fit%(%*, train, valid%?, epochs = 1%)", help "Trainer:fit")
    for line in text:gmatch "[^\n]+" do assert.is_true(#line <= 100, line) end
  end)

  it("tells distributions, and what functions without a signature take", function()
    assert.matches("^distributions.Normal%(loc, scale, validate_args%?%)\n +Normal.*standard dev",
      help "distributions.Normal")
    assert.matches("^distributions.Gamma%(concentration, rate", help "Gamma")
    assert.equal(help "distributions.Gamma", help(dm.distributions.Gamma(1, 1)))
    assert.equal(help "distributions.Gamma", help(dm.distributions.Gamma))
    assert.matches("^Generator%(opts%?%)", help(dm.Generator()))
    assert.matches("^cuda.get_device_name%(device%)", help "cuda.get_device_name")
    assert.matches("^autograd.grad%(outputs, inputs", help "autograd.grad")
  end)

  it("knows the modules that load late", function()
    for _, name in ipairs{"text.CharTokenizer", "optim.lr_scheduler.SequentialLR"} do
      assert.is_true(table.concat(docs.names(), " "):find(name, 1, true) ~= nil, name)
    end
  end)

  -- The names whose example does not run, of those for which wanted(name) is true.
  local function problems(wanted)
    local failed = {}
    local _ <close> = dm.device "cpu"
    for _, name in ipairs(docs.names()) do
      local entry = wanted(name) and docs.find(name)
      if entry then failed[#failed + 1] = examples.problem(name, entry.example or {"?"}) end
    end
    return table.concat(failed, "\n")
  end
  local function is_model(name) return name:find "^models%." ~= nil end

  it("has an example for each public name, and each runs", function()
    local count, lacking = 0, {}
    for _, name in ipairs(docs.names()) do
      count = count + 1
      if not docs.find(name).example then lacking[#lacking + 1] = name end
    end
    assert.equal("", table.concat(lacking, " "))
    assert.is_true(count > 1100, count .. " names")
    assert.equal("", problems(function(name) return not is_model(name) end))
  end)

  it("has examples of models, which run #slow", function()
    assert.equal("", problems(is_model))
  end)

  it("has no example of a name that is gone; those of methods run, too", function()
    local listed, failed = {}, {}
    for _, name in ipairs(docs.names()) do listed[name] = true end
    local _ <close> = dm.device "cpu"
    for _, file in ipairs{"ops", "layers", "tools"} do
      for name in pairs(require("demilune.docs.examples." .. file)) do
        local entry = docs.find(name)
        assert.is_not_nil(entry, name)
        if not listed[name] then failed[#failed + 1] = examples.problem(name, entry.example) end
      end
    end
    assert.equal("", table.concat(failed, "\n"))
  end)

  it("tells modules, searches, and says what is near", function()
    assert.matches("^dm.optim\n.*AdamW.*LBFGS", help "optim")
    assert.matches("learning rate:\n.*optim.lr_scheduler", help "learning rate")
    assert.matches("nothing is called 'nn.Liner'; did you mean 'nn.Linear'%?", help "nn.Liner")
    assert.matches("nothing is called 'xyzzy'; dm.help%(%) tells", help "xyzzy")
    assert.matches('dm.help "learning rate"', help())
    assert.matches("^a tensor; methods.* matmul", help(dm.ones(1)))
    assert.matches("no words for a boolean", help(true))
  end)

  it("finds guides by their text, before the names", function()
    for words, guide in pairs{NaN = "nan", overflow = "nan", augmentation = "data",
      ["early stopping"] = "trainer", earlystopping = "none", install = "first%-script",
      ["custom dataset"] = "data", ["custom layer"] = "modules", ["custom init"] = "modules",
      ["load pytorch weights"] = "saving", warmup = "nan", on_step = "trainer",
      ["subset of a data set"] = "data", csv = "data"} do
      local text = help(words)
      if guide == "none" then
        assert.matches("^nothing is called", text)
      else
        assert.matches("^[^\n]+:\n.*  guide " .. guide .. " ", text)
        assert.matches("^[^\n]+:\n  guide ", text)
      end
    end
    assert.matches("LinearLR", help "warm-up")
    assert.matches("data.Subset", help "subset of a data set")
    assert.matches(":plot:\n.*plot.lines", help ":plot")
    assert.matches("^# .*trainer.md", help "guides")
    assert.matches("^nothing is called 'of the'", help "of the")
    assert.matches("^nothing is called 'warmpu'; dm.help%(%) tells", help "warmpu")
  end)

  it("prints the guides", function()
    assert.matches("^# ", help "indexing")
    local names = help():match "a guide: (.*)$"
    local count = 0
    for name in names:gmatch "[%w-]+" do
      count = count + 1
      assert.matches("^# ", help("guide " .. name), name)
    end
    assert.equal(16, count)
    assert.matches("^dm.data\n", help "data")
  end)
end)
