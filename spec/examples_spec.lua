-- Runs scripts/examples and scripts/quantised_sine.lua as a user does, and checks the numbers
-- that they print: losses fall, shapes and memory are as stated.

local dm = require "demilune"
local here = require "spec.device"
local launch = require "spec.distributed.launch"

local build = os.getenv "DEMILUNE_BUILD" or "build"

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- The standard output and error of a script of ours, and whether it succeeds.
local function try(script, ...)
  local words = {"LUA_PATH=" .. quote "./lua/?.lua;./lua/?/init.lua;;",
    "LUA_CPATH=" .. quote("./" .. build .. "/lua/?.so;;"), "lua5.4", "scripts/" .. script}
  for _, word in ipairs{...} do words[#words + 1] = quote(word) end
  local pipe <close> = assert(io.popen(table.concat(words, " ") .. " 2>&1"))
  local text = pipe:read "a"
  return text, pipe:close()
end

-- The output of a script that must succeed.
local function run(...)
  local text, good = try(...)
  assert.is_true(good, text)
  return text
end

local function example(name, ...) return run("examples/" .. name .. ".lua", ...) end

-- The numbers after each `key`, in order.
local function numbers(text, key)
  local list = {}
  for word in text:gmatch(key .. "%s*([-%d.e+naif]+)") do
    list[#list + 1] = tonumber(word) or 0 / 0
  end
  return list
end

local function has(text, ...)
  for _, piece in ipairs{...} do
    assert.is_truthy(text:find(piece, 1, true), ("no '%s' in:\n%s"):format(piece, text))
  end
end

-- The losses that a loop prints: falling, to a fraction of the first.
local function learns(text, n)
  local losses = numbers(text, "loss =")
  assert.equal(n, #losses)
  assert.is_true(losses[n] < 0.1 * losses[1], text)
  return losses
end

local function is_there(...)
  local module = dm
  for _, name in ipairs{...} do
    local ok, value = pcall(function() return module[name] end)
    if not ok or value == nil then return false end
    module = value
  end
  return true
end

describe("examples:", function()
  it("dtypes: a product is 16-bit, a sum as its inputs, by the device's default", function()
    has(example "dtypes", "x: float32 {1024, 1}",
      ("Multiplication: %s {1024, 1024}"):format(here.low),
      "Addition: float32 {1024, 1}", "conv2d: " .. here.low, "cross_entropy: float32")
    has(example("dtypes", "--dtype", "float16"), "Multiplication: float16", "Addition: float32")
    local lists = example "dtypes"
    for op, class in pairs(dm.amp.op_table(here.type)) do
      local shown = lists:find(("%s:[^\n]* %s[ \n]"):format(class, op)) ~= nil
      assert.equal(class ~= "unlisted", shown, op)
    end
  end)

  it("plain_loop, amp_loop and bf16_loop learn alike", function()
    local plain = learns(example "plain_loop", 3)
    for _, text in ipairs{example "amp_loop", example("amp_loop", "--dtype", "bfloat16"),
      example "bf16_loop"} do
      for i, loss in ipairs(learns(text, 3)) do
        assert.is_true(math.abs(loss - plain[i]) < 0.02 * plain[1], text)
      end
    end
  end)

  it("amp_loop with --dtype float32 is plain_loop", function()
    assert.equal(example "plain_loop", example("amp_loop", "--dtype", "float32"))
  end)

  it("amp_loop differs from plain_loop by a few lines", function()
    local pipe <close> = io.popen("cd scripts/examples && diff plain_loop.lua amp_loop.lua")
    local added = 0
    for line in pipe:lines() do
      if line:find "^> " and not line:find "^> %-%-" then added = added + 1 end
    end
    assert.is_true(added > 0 and added <= 12, added .. " lines")
  end)

  it("scale: backs off from overflow, skipping; grows after four good steps", function()
    local text = example "scale"
    has(text, "1e-8 in float16: 0; scaled by 1024 and back: 1.00117e-08; by 65536: 9.99717e-09")
    local scale, good, seen = 2 ^ 20, 0, {skipped = 0, grown = 0}
    for printed, what, weights in text:gmatch "scale%s+(%d+), (%a+), (%a+) weights" do
      assert.equal(scale, tonumber(printed))
      assert.equal(what == "skipped" and "same" or "new", weights)
      if what == "skipped" then
        scale, good, seen.skipped = scale / 2, 0, seen.skipped + 1
      else
        good = good + 1
        if good == 4 then scale, good, seen.grown = scale * 2, 0, seen.grown + 1 end
      end
    end
    assert.is_true(seen.skipped > 0 and seen.grown > 0, text)
    has(text, ("16 steps, %d skipped, scale %d\n"):format(seen.skipped, scale // 1 | 0))
  end)

  it("scale: a lower first scale skips nothing", function()
    has(example("scale", "--init_scale", "1024"), "step  1: scale    1024, stepped", " 0 skipped")
  end)

  it("clipping: holds unscaled norms at 1, as in float32", function()
    local half, full = example "clipping", example("clipping", "--dtype", "float32")
    local before, after = numbers(half, "norm"), numbers(half, "to")
    local reference = numbers(full, "norm")
    assert.equal(8, #before)
    assert.is_true(before[1] > 1)
    for i, norm in ipairs(before) do
      assert.is_true(math.abs(after[i] - math.min(norm, 1)) < 1e-3, half)
      assert.is_true(math.abs(norm - reference[i]) < 0.02, half)
    end
  end)

  it("two_optimizers: Adam and SGD train a chain", function()
    learns(example "two_optimizers", 3)
  end)

  it("accumulation: steps once in four batches, like one large batch", function()
    for dtype, tolerance in pairs{float32 = 1e-5, float16 = 5e-3} do
      local text = example("accumulation", "--dtype", dtype)
      learns(text, 8)
      assert.is_true(numbers(text, "differ by")[1] < tolerance, text)
    end
  end)

  it("custom_function: backward runs as forward did; cast_inputs keeps float32", function()
    if not is_there("autograd", "detect_anomaly") then
      return pending "custom backward does not resume autocast in this build"
    end
    has(example "custom_function",
      "MyFunction: forward bfloat16, backward bfloat16, gradients float32 and float32",
      "Float32Function: forward float32, backward float32, gradients float32 and float32",
      "gradcheck: true")
  end)

  it("evaluation: 16-bit outputs, no scaler, the same answers", function()
    for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
      has(example("evaluation", "--dtype", dtype), "outputs " .. dtype, "accuracy 100.00 %")
    end
  end)

  it("profile: a table of ops, casts among them", function()
    if not is_there("profiler", "profile") then return pending "there is no dm.profiler.profile" end
    has(example "profile", "Name", "Self CPU %", "# of Calls", "linear", "cast", "cross_entropy",
      "Self CPU time total:")
  end)

  it("nan_loss: the check sees inf; anomaly detection names op and line", function()
    if not is_there("autograd", "detect_anomaly") then
      return pending "there is no dm.autograd.detect_anomaly"
    end
    local text = example "nan_loss"
    has(text, "float16: the loss is NaN or inf!", "bfloat16: loss = 3.6", "nan_loss.lua:")
    assert.is_truthy(text:lower():find "sqrt", text)
  end)

  it("apex: initialize trains at each level", function()
    if not is_there("amp", "initialize") then return pending "there is no amp.initialize" end
    local dtypes = {O0 = "float32", O1 = "float32", O2 = "float16", O3 = "float16"}
    for level, dtype in pairs(dtypes) do
      local text = example("apex", "--opt_level", level)
      has(text, level .. ": weights " .. dtype)
      learns(text, 3)
    end
  end)
end)

describe("gpt:", function()
  it("learns a text, saves, goes on and writes", function()
    local corpus, saved = os.tmpname(), os.tmpname()
    local file = assert(io.open(corpus, "w"))
    file:write(("the quick brown fox jumps over the lazy dog. "):rep(60)):close()
    local small = {"--data", corpus, "--save", saved, "--layers", "1", "--width", "32", "--heads",
      "2", "--context", "16", "--batch", "8", "--every", "20", "--lr", "1e-2", "--prompt", "the ",
      "--temperature", "0"}
    local function gpt(...)
      local words = table.move(small, 1, #small, 1, {})
      for _, word in ipairs{...} do words[#words + 1] = word end
      return run("gpt.lua", table.unpack(words))
    end
    local losses = numbers(gpt("--steps", "60", "--sample", "0"), "valid loss")
    assert.equal(3, #losses)
    assert.is_true(losses[3] < 0.5 * losses[1])
    local more = gpt("--load", saved, "--steps", "80", "--sample", "5", "--dtype", "bfloat16")
    has(more, "step 80: ", "\nthe ")
    has(gpt("--tokens", "byte", "--steps", "1", "--sample", "3"), "of 256 kinds", "the ")
    losses = numbers(run("lstm.lua", "--data", corpus, "--save", saved, "--layers", "1", "--width",
      "32", "--context", "16", "--every", "20", "--lr", "2e-2", "--steps", "60", "--sample", "0"),
      "valid loss")
    assert.is_true(losses[3] < 0.6 * losses[1])
    local list = {}
    for i = 1, 400 do list[i] = i % 7 + 1 end
    assert(dm.text.write_tokens(corpus, list))
    losses = numbers(run("gpt.lua", "--data", corpus, "--tokens", "file", "--save", saved,
      "--layers", "1", "--width", "16", "--heads", "2", "--context", "8", "--every", "20", "--lr",
      "2e-2", "--steps", "40", "--sample", "0"), "valid loss")
    assert.is_true(losses[2] < losses[1])
    os.remove(corpus)
    os.remove(saved)
  end)

  it("learns on two ranks, goes on, and is asked to end", function()
    if launch.missing or here.type ~= "cpu" then
      return pending(launch.missing or "ranks on the CPU")
    end
    local corpus, saved = os.tmpname(), os.tmpname()
    local file = assert(io.open(corpus, "w"))
    file:write(("the quick brown fox jumps over the lazy dog. "):rep(60)):close()
    local arguments = ("--data %s --save %s --layers 1 --width 32 --heads 2 --context 16 --batch 8 "
      .. "--every 20 --lr 1e-2 --dropout 0.1 --accumulate 2 --prompt 'the ' "):format(corpus, saved)
    local text, code = launch.ranks(2, "../../scripts/gpt", arguments .. "--steps 40 --sample 5")
    assert.equal(0, code, text)
    local losses = numbers(text, "valid loss")
    assert.equal(2, #losses)
    assert.is_true(losses[2] < losses[1])
    has(text, " on cpu in each of 2 processes\n", "\nthe ")
    local command = launch.command(2, ("scripts/gpt.lua %s --load %s --steps 1000000"):format(
      arguments, saved))
    local to_mpirun = "$(cat /proc/$!/task/$!/children)" -- the child of timeout
    text, code = launch.run(("{ %s & sleep 4; kill -USR1 %s; wait $!; }"):format(command,
      to_mpirun))
    assert.equal(0, code, text)
    has(text, "was asked to end: saved " .. saved .. " after step ")
    assert.equal(2, #dm.load(saved).rng)
    os.remove(corpus)
    os.remove(saved)
  end)
end)

-- A folder of 32 made-up images of 28x28 in MNIST's files.
local function image_folder()
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. folder))
  local function write(name, ...)
    local file <close> = assert(io.open(folder .. "/" .. name, "wb"))
    file:write(...)
  end
  for _, kind in ipairs{"train", "t10k"} do
    local bytes, labels = {}, {}
    for i = 0, 32 * 784 - 1 do bytes[i + 1] = string.char((i * 37 + i // 784) % 256) end
    for i = 1, 32 do labels[i] = string.char(i % 10) end
    write(kind .. "-images-idx3-ubyte", (">I4I4I4I4"):pack(0x803, 32, 28, 28), table.concat(bytes))
    write(kind .. "-labels-idx1-ubyte", (">I4I4"):pack(0x801, 32), table.concat(labels))
  end
  return folder
end

describe("fashion_mnist:", function()
  it("trains, saves, and goes on, in every dtype", function()
    local folder = image_folder()
    local saved = folder .. "/fashion.safetensors"
    for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
      local text = run("fashion_mnist.lua", "--data", folder, "--batch", "8", "--epochs", "2",
        "--dtype", dtype, "--save", saved)
      has(text, "seed 1, " .. dtype .. ", batch 8", "test accuracy", "saved " .. saved)
      assert.equal(2, #numbers(text, "train loss"))
    end
    has(run("fashion_mnist.lua", "--data", folder, "--epochs", "2", "--resume", saved),
      "resumed " .. saved .. " after epoch 2")
    if not launch.missing and here.type == "cpu" then
      local text, code = launch.ranks(2, "../../scripts/fashion_mnist",
        ("--data %s --batch 8 --epochs 1 --save %s"):format(folder, saved))
      assert.equal(0, code, text)
      has(text, "batch 8", " threads in each of 2 processes", "test accuracy", "saved " .. saved)
      assert.equal(1, #numbers(text, "train loss"))
    end
    local none = folder .. "/none.safetensors"
    has(run("fashion_mnist.lua", "--data", folder, "--batch", "8", "--epochs", "1", "--resume",
      "auto", "--save", none), "epoch 1: train loss")
    has(run("fashion_mnist.lua", "--data", folder, "--batch", "8", "--epochs", "1", "--resume",
      "auto", "--save", none), "resumed " .. none .. " after epoch 1")
    os.remove(none)
    local text, good = try("fashion_mnist.lua", "--data", folder, "--resume", none)
    assert.is_falsy(good)
    assert.equal(
      ("--resume: load: cannot open '%s': No such file or directory\n"):format(none), text)
    os.execute("rm -rf " .. folder)
  end)

  it("saves the same bytes on any number of processes, in shards", function()
    if launch.missing or here.type ~= "cpu" then
      return pending(launch.missing or "several processes are tested on the CPU")
    end
    local folder = image_folder()
    for _, dtype in ipairs{"bfloat16", "float16"} do
      local texts, files = {}, {}
      for i, n in ipairs{1, 2, 4} do
        local saved = ("%s/%d.safetensors"):format(folder, n)
        local text, code = launch.ranks(n, "../../scripts/fashion_mnist",
          ("--data %s --batch 16 --epochs 2 --shards 4 --dtype %s --save %s"):format(folder, dtype,
            saved))
        assert.equal(0, code, text)
        texts[i] = table.concat(numbers(text, "train loss"), " ") .. " "
          .. table.concat(numbers(text, "test accuracy"), " ")
        local file <close> = assert(io.open(saved, "rb"))
        files[i] = file:read "a"
      end
      assert.is_true(#files[1] > 1e5)
      for i = 2, 3 do
        assert.equal(texts[1], texts[i])
        assert.is_true(files[1] == files[i], dtype)
      end
    end
    local text, good = try("fashion_mnist.lua", "--data", folder, "--batch", "16", "--shards", "3")
    assert.is_falsy(good)
    has(text, "batch_size is 16, the whole batch, wanted a multiple of shards = 3")
    os.execute("rm -rf " .. folder)
  end)
end)

describe("finetune:", function()
  local folder, weights, original
  lazy_setup(function()
    folder = image_folder()
    weights = folder .. "/resnet18.safetensors"
    original = dm.models.resnet18{num_classes = 7}:state_dict()
    assert(dm.save(weights, original))
  end)
  lazy_teardown(function() os.execute("rm -rf " .. folder) end)

  local function finetune(call, file, ...)
    return call("finetune.lua", "--weights", file, "--set", "fashion_mnist", "--data", folder,
      "--side", "32", "--batch", "8", "--epochs", "1", "--limit", "24", "--save",
      folder .. "/tuned.safetensors", ...)
  end

  -- The first parts of the names of changed parameters.
  local function changed()
    local tuned, parts = assert(dm.load(folder .. "/tuned.safetensors")), {}
    for name, t in pairs(tuned) do
      local was = original[name]
      local same = tostring(was.shape) == tostring(t.shape) and dm.equal(was:cpu(), t)
      if not same then parts[name:match "^%w+"] = true end
    end
    assert.same({10, 512}, {table.unpack(tuned["fc.weight"].shape)})
    return parts
  end

  it("trains a new end, and leaves the rest as it was, in every dtype #slow", function()
    for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
      local text = finetune(run, weights, "--dtype", dtype)
      has(text, "5130 numbers learn, 0 more slowly, 11176512 stay",
        "24 images of 10 kinds, " .. dtype, "epoch 1: train loss", "saved ")
      assert.same({fc = true}, changed())
    end
  end)

  it("trains the last layers, more slowly #slow", function()
    has(finetune(run, weights, "--unfreeze", "layer4"), "5130 numbers learn, 8393728 more slowly")
    assert.same({fc = true, layer4 = true}, changed())
  end)

  it("lists all that does not fit", function()
    local state = {}
    for name, t in pairs(original) do state[name] = t end
    state["conv1.weight"], state["bn1.bias"] = dm.zeros(64, 1, 7, 7), nil
    state["layer4.0.bn9.weight"], state["head"] = dm.ones(2), dm.ones(1)
    local other = folder .. "/other.safetensors"
    assert(dm.save(other, state))
    local text, good = finetune(try, other)
    assert.is_nil(good)
    has(text, "finetune.lua: " .. other .. " does not fit resnet18: ",
      "shapes differ: conv1.weight is {64, 1, 7, 7}, wanted {64, 3, 7, 7}",
      "missing: bn1.bias", "unexpected: head, layer4.0.bn9.weight")
    text, good = finetune(try, folder .. "/nowhere")
    assert.is_nil(good)
    has(text, "finetune.lua: ", "No such file")
    has(run("finetune.lua", "--help"), "--weights FILE", "--data DIR", "--unfreeze", "--dtype")
  end)

  it("takes one's own images, a folder a class, or train and val of these #slow", function()
    local image = "spec/golden/images/rgb.png"
    local _, lacking = dm.read_image(image)
    if lacking then return pending(lacking) end
    local own = folder .. "/own"
    for split, n in pairs{all = 5, ["two/train"] = 3, ["two/val"] = 2, ["other/train"] = 1,
      ["other/val"] = 1} do
      for k, class in ipairs{"ants", "bees", split == "other/val" and "wasps" or "cats"} do
        local path = ("%s/%s/%s"):format(own, split, class)
        assert(os.execute("mkdir -p " .. path))
        for i = 1, n do
          assert(os.execute(("cp %s %s/%d-%d.png"):format(image, path, k, i)))
        end
      end
    end
    local function tune(call, name, ...)
      return call("finetune.lua", "--weights", weights, "--data", own .. "/" .. name,
        "--side", "32", "--batch", "8", "--epochs", "1", "--save",
        folder .. "/own.safetensors", ...)
    end
    has(tune(run, "all"), "12 images of 3 kinds", "epoch 1: train loss", "test accuracy",
      "saved ")
    local tuned = assert(dm.load(folder .. "/own.safetensors"))
    assert.same({3, 512}, {table.unpack(tuned["fc.weight"].shape)})
    has(tune(run, "two"), "9 images of 3 kinds", "saved ")
    local text, good = tune(try, "other")
    assert.is_nil(good)
    has(text, "own/other/train' and '", "own/other/val' have folders of other names")
    has(tune(try, "nowhere"), "finetune.lua: ImageFolder: cannot open")
    has(try("finetune.lua", "--weights", weights), "finetune.lua: --data DIR is wanted")
  end)
end)

describe("gan:", function()
  it("trains two networks with two optimizers, in every dtype", function()
    local folder = image_folder()
    for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
      local text = run("gan.lua", "--data", folder, "--batch", "8", "--width", "4", "--noise", "8",
        "--steps", "6", "--every", "3", "--dtype", dtype, "--images", folder .. "/gan.png")
      has(text, "step 3: judge", "step 6: judge", "saved ")
      assert.equal(2, #numbers(text, "maker"))
    end
    local sheet = assert(dm.read_image(folder .. "/gan.png"))
    assert.same({1, 242, 242}, {table.unpack(sheet.shape)})
    os.execute("rm -rf " .. folder)
  end)
end)

describe("segment:", function()
  it("finds things pixel by pixel, in every dtype", function()
    local folder = image_folder()
    for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
      local text = run("segment.lua", "--data", folder, "--images", "8", "--batch", "4", "--side",
        "32", "--width", "4", "--epochs", "2", "--dtype", dtype)
      has(text, "mean overlap of kinds in epoch 2: 0.")
      assert.equal(2, #numbers(text, "train_loss"))
    end
    os.execute("rm -rf " .. folder)
  end)
end)

describe("tabular:", function()
  local function table_of(row)
    local name = os.tmpname()
    local file <close> = assert(io.open(name, "w"))
    file:write "a,b,kind,target\n"
    math.randomseed(3)
    for _ = 1, 400 do
      local b, kind = math.random(), math.random() < 0.5 and "x" or "y"
      file:write(("%s,%g,%s,%s\n"):format(math.random() < 0.1 and "" or math.random(), b, kind,
        row(b, kind)))
    end
    return name
  end

  it("learns a number", function()
    local name = table_of(function(b, kind) return 100 + 10 * b + (kind == "x" and 5 or 0) end)
    local text = run("tabular.lua", "--data", name, "--target", "target", "--epochs", "8",
      "--batch", "8")
    has(text, "400 rows, 4 inputs, one number", "epoch 8: ")
    assert.is_true(numbers(text, "mean absolute error")[1] < 1)
    os.remove(name)
  end)

  it("learns a word", function()
    local name = table_of(function(b, kind) return b > 0.5 and kind == "x" and "yes" or "no" end)
    local text = run("tabular.lua", "--data", name, "--target", "target", "--epochs", "10",
      "--batch", "8", "--dtype", "bfloat16")
    has(text, "2 classes", "recall")
    local seen = numbers(text, "valid_accuracy")
    assert.is_true(seen[#seen] > 0.9, text)
    os.remove(name)
  end)
end)

describe("quantised_sine:", function()
  local sine = assert(loadfile "scripts/quantised_sine.lua")("workload")

  it("the problem is the original's: counts, mean, variance, corners", function()
    local input, target = sine.problem(512, "cpu")
    assert.same({1, 2, 512, 512}, {table.unpack(input.shape)})
    assert.same({1, 1, 512, 512}, {table.unpack(target.shape)})
    for level, count in ipairs{48252, 82314, 82810, 48768} do
      assert.equal(count, (target * 3):round():eq(level - 1):sum():item())
    end
    assert.near(0.50130, target:mean():item(), 5e-6)
    assert.near(0.11002, target:var(nil, {correction = 0}):item(), 5e-6)
    -- channel 1 varies along columns, channel 2 along rows
    assert.equal(1, input[{1, 1, 1, 512}]:item())
    assert.equal(0, input[{1, 1, 512, 1}]:item())
    assert.equal(1, input[{1, 2, 512, 1}]:item())
  end)

  it("the model has 134145 parameters", function()
    local n = 0
    for _, p in ipairs(sine.model(256, "cpu"):parameters()) do n = n + p:numel() end
    assert.equal(134145, n)
  end)

  for _, dtype in ipairs{"bfloat16", "float16"} do
    it("trains in float32 and " .. dtype .. ", compares, and writes the image", function()
      local path = os.tmpname()
      local text = run("quantised_sine.lua", "--size", "32", "--hidden", "16", "--steps", "60",
        "--forwards", "4", "--dtype", dtype, "--output", path)
      has(text, "32 x 32 points", "training", dtype, "inference, 4 passes", "speed-up", "saving")
      local full, half = text:match "loss%s+(%S+)%s+(%S+)"
      local variance = numbers(text, "variance")[1]
      assert.is_true(tonumber(full) < variance, text) -- better than the best constant
      assert.is_true(math.abs(half / full - 1) < 0.15, text)
      local shares = numbers(text, "saving")
      assert.equal(3, #shares)
      for _, share in ipairs(shares) do assert.is_true(share > 30 and share < 55, text) end
      local image, problem = dm.read_image(path)
      os.remove(path)
      if not image and problem:find "libpng" then return has(text, "no image: png:") end
      assert(image, problem)
      assert.same({1, 32 + 8, 3 * 32 + 16}, {table.unpack(image.shape)})
      local _, target = sine.problem(32, "cpu")
      local left = image[{1, {5, 36}, {5, 36}}]:float()
      assert.is_true((left / 255 - target[{1, 1}]):abs():max():item() < 0.003)
      for k = 1, 2 do -- the outputs look like the target: nearer than the best constant is
        local output = image[{1, {5, 36}, {36 * k + 5, 36 * k + 36}}]:float() / 255
        assert.is_true((output - target[{1, 1}]):square():mean():item() < variance)
      end
    end)
  end

  it("peaks: the shares of memory at a small size", function()
    local input, target = sine.problem(64, "cpu")
    local o = {seed = 0, hidden = 64, device = "cpu", steps = 2, forwards = 2}
    -- in activations of one layer, beyond what others hold
    local function peak(what, ...)
      collectgarbage()
      collectgarbage()
      local before = dm.memory_allocated()
      return (sine[what](o, ...).bytes - before) / (64 * 64 * 64 * 4)
    end
    local limit = dm.autograd.get_recompute_bytes()
    dm.autograd.set_recompute_bytes(2^18) -- in bfloat16 as at the usual size
    local full = peak("train", "float32", input, target)
    local half = peak("train", "bfloat16", input, target)
    -- of three pairs one each is saved, and two are under way; the rest are weights and moments
    assert.is_true(full > 5 and full < 5.45, full)
    assert.is_true(half < 0.53 * full, half)
    assert.is_true(peak("infer", "float32", input) < 2.35)
    local kept = peak("infer", "float32", input, true)
    assert.is_true(kept > 6 and kept < 7.35, kept) -- batch norm and relu give one tensor
    dm.autograd.set_recompute_bytes(limit)
  end)
end)

it("the fuzzer of autocast tells how many programs agreed", function()
  local pipe <close> = assert(io.popen("lua5.4 scripts/fuzz_autocast.lua --programs 30 --build "
    .. (os.getenv "DEMILUNE_BUILD" or "build") .. " 2>&1"))
  assert.matches("30 passed, 0 failed\n$", pipe:read "a")
end)

describe("bench/ops", function()
  local cases = dofile "scripts/bench/op_cases.lua"

  it("has every op of the table in a row, or a reason to leave it out", function()
    local known, seen = {}, {}
    for _, op in ipairs(dm.ops()) do known[op.name] = true end
    for _, row in ipairs(cases.rows) do seen[row.name] = true end
    for name in pairs(known) do
      assert.is_true(seen[name] ~= (cases.left_out[name] ~= nil), name)
    end
    for name in pairs(seen) do assert.is_true(known[name], name) end
    for name in pairs(cases.left_out) do assert.is_true(known[name], name) end
  end)

  it("times all of them, without PyTorch, too", function()
    local pipe <close> = assert(io.popen(("env -u PYTHON PATH=/usr/bin:/bin "
      .. "LUA_PATH='./lua/?.lua;./lua/?/init.lua;;' LUA_CPATH='./%s/lua/?.so;;' "
      .. "lua5.4 scripts/bench/ops.lua --tiny 2>&1"):format(build)))
    local text = pipe:read "a"
    has(text, "PyTorch absent", "### Below 0.95: 0 of ")
    local forward = tonumber(text:match "| float32 | 64 +| forward +| %- +| (%d+)")
    assert.is_true(forward > #cases.rows, text)
    for line in text:gmatch "| demilune | [^\n]*" do assert.matches("LAPACK", line) end
  end)
end)

describe("bench/generate", function()
  it("times a token, without PyTorch, too", function()
    local pipe <close> = assert(io.popen(("env -u PYTHON PATH=/usr/bin:/bin "
      .. "LUA_PATH='./lua/?.lua;./lua/?/init.lua;;' LUA_CPATH='./%s/lua/?.so;;' "
      .. "lua5.4 scripts/bench/generate.lua --rounds 1 --layers 1 --width 64 "
      .. "--vocabulary 99 --prompt 8 --tokens 2 2>&1"):format(build)))
    has(pipe:read "a", "PyTorch absent", "| float32, batch 1  |", "| bfloat16, batch 8 |")
  end)
end)

describe("bench/models", function()
  it("takes a step of each", function()
    local _ <close> = dm.device "cpu"
    local n = 0
    for name, case in pairs(dofile "scripts/bench/models.lua") do
      local c = case(2)
      local before = c.criterion(c.model(c.x), c.y)
      before:backward()
      c.optimizer:step()
      assert.is_true(before:isfinite():item(), name)
      assert.is_false(dm.equal(before, c.criterion(c.model(c.x), c.y)), name)
      n = n + 1
    end
    assert.equal(13, n)
  end)
end)

describe("bench/launches", function()
  it("counts a step on the emulated device, and says where it cannot", function()
    local pipe <close> = assert(io.popen(("env -u DEMILUNE_DEVICE OMP_NUM_THREADS=1 "
      .. "LUA_PATH='./lua/?.lua;./lua/?/init.lua;;' LUA_CPATH='./%s/lua/?.so;;' "
      .. "lua5.4 scripts/bench/launches.lua --only mlp --names 2>&1"):format(build)))
    local text = pipe:read "a"
    if text:find("only the emulated device", 1, true) then return end
    local launches, waits = text:match "| mlp, Adam | float16 +| (%d+) +| %d+ +| (%d+) +|"
    assert.equal("0", waits, text)
    local sum = 0 -- of the kernels by name
    for n in text:match "mlp, Adam: ([^\n]*)":gmatch "(%d+) [%w_]+" do sum = sum + n end
    assert.equal(tonumber(launches), math.tointeger(sum))
  end)
end)

describe("bench/scale_model", function()
  -- One bucket that is complete at the end: its sum comes behind a step of 30 ms.
  local function model(more)
    local pipe <close> = assert(io.popen(("env LUA_PATH='./lua/?.lua;./lua/?/init.lua;;' "
      .. "LUA_CPATH='./%s/lua/?.so;;' lua5.4 scripts/bench/scale_model.lua --sizes 1000000 "
      .. "--gpus 1,8,16,32 --inside 0,1 --outside 0,0.125 --jitter 0 --step 30 %s 2>&1")
      :format(build, more)))
    return pipe:read "a"
  end

  it("adds up what a gradient takes within a node and between nodes", function()
    -- 2 x 7 x 125000 / 1e9 = 1.75 ms within; between two nodes 2 x 1/2 x 125000 / 0.125e9 = 1 ms,
    -- between four 1.5 ms
    has(model "", "--sizes: 1.0 MB of gradients (float32) in 1 buckets",
      "| 1    | 30.00     | 100.0 % ", "| 8    | 31.75     | 94.5 % ",
      "| 16   | 32.75     | 91.6 % ", "| 32   | 33.25     | 90.2 % ")
    has(model "--outside 500,0.125", "| 16   | 33.75 ", "| 32   | 35.25     | 85.1 %", "missed")
  end)

  it("hides what comes early behind the backward pass", function()
    -- all but the last of 20 buckets: only that one is left, 20 MiB x 14 / 8 / 100 GB/s
    local sizes = ("20971520,"):rep(20)
    has(model("--bucket 20 --inside 0,100 --gpus 8 --sizes " .. sizes), "in 20 buckets",
      "| 8    | 30.37     | 98.8 % ")
  end)

  it("takes a model's parameters, and names what it does not know", function()
    has(model "--sizes '' --model resnet18 --wire bfloat16", "resnet18: 23.4 MB of gradients")
    has(model "--sizes '' --model resnet", "--model is resnet, wanted one of dm.models")
    has(model "--wire int8 --sizes ''", "--wire is int8, wanted float32, bfloat16 or float16")
    has(model "--inside 3", "--inside is 3, wanted 2 numbers")
  end)
end)

it("prompt_image draws a session at the prompt #slow", function()
  if not os.execute "script -qec true /dev/null >/dev/null 2>&1" then
    return pending "no script(1), or no pseudo-terminals here"
  end
  local image = os.tmpname()
  assert(os.execute("scripts/run scripts/prompt_image.lua " .. image))
  local file <close> = assert(io.open(image))
  os.remove(image)
  has(file:read "a", 'class="typed">&gt; model</text>', "203,530 parameters",
    'class="error">error: add: shapes {2, 3} and {2} do not broadcast')
end)

describe("every program", function()
  it("of scripts/ is run by a spec, or by the suite itself", function()
    local pipe <close> = io.popen("cat $(ls spec/*.lua | grep -v features_spec) "
      .. "scripts/test kernels/CMakeLists.txt")
    local text, listed = pipe:read "a", io.popen "ls scripts/*.lua scripts/examples/*.lua"
    for path in listed:lines() do
      local name = path:match "([^/]+)%.lua$"
      local seen = name == "task" -- which the examples share
      for _, call in ipairs{'"%s.lua"', "scripts/%s.lua", 'example "%s"', 'example("%s"'} do
        seen = seen or text:find(call:format(name), 1, true) ~= nil
      end
      assert.is_true(seen, path)
    end
    listed:close()
  end)
end)
