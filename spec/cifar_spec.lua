-- The CIFAR-10 reader gives the bytes of its files, the transforms give torchvision's numbers to
-- the bit, resnet18 gives torchvision's outputs, and scripts/cifar10.lua trains.

local dm = require "demilune"
local data, nn, transforms = dm.data, dm.nn, dm.transforms
local CIFAR10, resnet18 = dm.datasets.CIFAR10, dm.models.resnet18

local folder = require "spec.folder"
local launch = require "spec.distributed.launch"
local path, write, run = folder.path, folder.write, folder.run
setup(folder.make)
teardown(folder.remove)

-- ---- files in the binary version's layout ----

-- A record: the label, then 32 rows each of red, green and blue.
local function record(r, label)
  local rows = {string.char(label)}
  for row = 0, 95 do
    local bytes = {}
    for i = 1, 32 do bytes[i] = (r * 31 + row * 37 + i * 5 + row // 32 * 85) % 256 end
    rows[#rows + 1] = string.char(table.unpack(bytes))
  end
  return table.concat(rows)
end

local function write_file(name, n, first)
  local records = {}
  for r = 1, n do records[r] = record(first + r, (first + r) % 10) end
  return write(name, table.concat(records))
end

-- All six: 12, 13, ..., 16 images of training and 8 of test, in a new folder.
local function write_all(name)
  assert(os.execute("mkdir -p " .. path(name)))
  for i = 1, 5 do write_file(("%s/data_batch_%d.bin"):format(name, i), 11 + i, 100 * i) end
  write_file(name .. "/test_batch.bin", 8, 900)
  return path(name)
end

local function problem_of(...)
  local set, message = CIFAR10(...)
  assert.is_nil(set)
  return message
end

describe("CIFAR10", function()
  it("reads the five files, or the test's, in their order; labels count from 1", function()
    local root = write_all "good"
    local set = assert(CIFAR10(root, {normalize = false}))
    assert.equal(12 + 13 + 14 + 15 + 16, #set)
    assert.same({70, 3, 32, 32}, {table.unpack(set.images.shape)})
    assert.same({"uint8", "int64"}, {set.images.dtype, set.labels.dtype})
    -- the second record of the second file: r = 202, its blue plane's first byte
    local x, y = set:get(14)
    assert.equal(202 % 10 + 1, y:item())
    assert.equal("bird", set.classes[y:item()])
    local byte = (202 * 31 + 64 * 37 + 5 + 170) % 256
    assert.equal(byte, set.images[{14, 3, 1, 1}]:item())
    assert.near(byte / 255, x[{3, 1, 1}]:item(), 1e-7)

    local test = assert(CIFAR10(root, {train = false}))
    assert.equal(8, #test)
    assert.equal(12, #assert(CIFAR10(root, {batches = 1})))
    -- each channel has its own mean and deviation
    local green = test.images[{1, 2, 1, 1}]:item()
    assert.near((green / 255 - 0.4822) / 0.2435, test:get(1)[{2, 1, 1}]:item(), 1e-6)
  end)

  it("looks in cifar-10-batches-bin as well", function()
    write_all "above/cifar-10-batches-bin"
    assert.equal(70, #assert(CIFAR10(path "above")))
  end)

  it("says which files are missing, and where people get them", function()
    local root = write_all "holes"
    os.remove(root .. "/data_batch_2.bin")
    os.remove(root .. "/data_batch_5.bin")
    local message = problem_of(root)
    assert.matches("CIFAR10: no data_batch_2.bin, data_batch_5.bin in " .. root, message, 1, true)
    assert.matches("cifar-10-binary.tar.gz, from https://www.cs.toronto.edu/~kriz/cifar.html",
      message, 1, true)
    assert.equal(12, #assert(CIFAR10(root, {batches = 1})))
    assert.matches("no test_batch.bin in", problem_of(path "nowhere", {train = false}))
  end)

  it("refuses files that are cut short, or have a label above 9", function()
    local root = write_all "bad"
    local file = write("bad/data_batch_3.bin", record(1, 3) .. record(2, 4):sub(1, -2))
    assert.matches(("CIFAR10: '%s' is cut short: 6145 bytes, wanted records of 3073"):format(file),
      problem_of(root), 1, true)
    write("bad/data_batch_3.bin", "")
    assert.matches("cut short: 0 bytes", problem_of(root))
    write("bad/data_batch_3.bin", record(1, 3) .. record(2, 10))
    assert.matches("data_batch_3.bin': a label of 10 in record 2, there are 0 to 9",
      problem_of(root), 1, true)
    os.remove(file)
    assert(os.execute("mkdir " .. file))
    assert.matches("CIFAR10: no data_batch_3.bin in ", problem_of(root))
  end)

  it("refuses options that make no sense, at the caller's line", function()
    local root = write_all "options"
    for _, case in ipairs{
      {{batches = 6}, "CIFAR10: batches is 6, wanted 1 to 5"},
      {{trian = true}, "did you mean 'train'"},
      {{transform = 3}, "transform is 3, wanted a function"},
      {{transform = transforms.ToTensor(), augment = {flip = 1}}, "transform with augment"},
      {{normalize = {{0.5, 0.5}, 0.5}}, "mean has 2 numbers, the images have 3 channels"},
    } do
      local ok, message = pcall(function() CIFAR10(root, case[1]) end)
      assert.is_false(ok)
      assert.matches("cifar_spec.lua:%d+: ", message)
      assert.matches(case[2], message, 1, true)
    end
    assert.has_error(function() dm.datasets.MNIST(root, {batches = 1}) end)
  end)
end)

describe("transforms", function()
  local levels = dm.tensor({0, 1, 77, 128, 200, 255}, {dtype = "uint8"}):reshape(1, 2, 3)

  -- Of PyTorch 2.15: x.float().div(255), then .sub_(mean).div_(std).
  local TO_TENSOR = {0.0, 0x1.010102p-8, 0x1.353536p-2, 0x1.010102p-1, 0x1.919192p-1, 1.0}
  local HALF = {-1.0, -0x1.fbfbfcp-1, -0x1.959594p-2, 0x1.0102p-8, 0x1.232324p-1, 1.0}
  local RED = {-0x1.fd4e26p+0, -0x1.f93da6p+0, -0x1.88af08p-1, 0x1.5e428p-5, 0x1.2f9632p+0,
    0x1.0790e6p+1}

  local function assert_values(expected, x)
    assert.equal("float32", x.dtype)
    assert.same(expected, x:reshape(-1):totable())
  end

  it("ToTensor and Normalize give torchvision's numbers, to the bit", function()
    assert_values(TO_TENSOR, transforms.ToTensor()(levels))
    local half = transforms.Compose{transforms.ToTensor(), transforms.Normalize(0.5, 0.5)}
    assert_values(HALF, half(levels))
    local red = transforms.Compose{transforms.ToTensor(),
      transforms.Normalize({0.4914}, {0.2470})}
    assert_values(RED, red(levels))
    assert.equal("Compose(ToTensor(), Normalize(mean = {0.5}, std = {0.5}))", tostring(half))
  end)

  it("take batches, and functions of one's own", function()
    local batch = dm.stack{levels, levels}
    local double = transforms.Compose{transforms.ToTensor(), function(x) return x * 2 end}
    assert.equal(2.0, double(batch)[{2, 1, 2, 3}]:item())
    local channels = transforms.Normalize({0, 1, 2}, {1, 2, 4})(dm.ones(2, 3, 1, 1))
    assert.same({{{{1.0}}, {{0.0}}, {{-0.25}}}, {{{1.0}}, {{0.0}}, {{-0.25}}}},
      channels:totable())
  end)

  it("refuse what they cannot do", function()
    local function refuses(text, fn, ...)
      local ok, message = pcall(fn, ...)
      assert.is_false(ok)
      assert.matches(text, message, 1, true)
    end
    refuses("hint: ToTensor before it", transforms.Normalize(0.5, 0.5), levels)
    refuses("3 numbers, the images have 1", transforms.Normalize({1, 2, 3}, 1), levels:float())
    refuses("std is 0", transforms.Normalize, 0.5, {1, 0, 1})
    refuses("mean is 'x', wanted a number or a table of numbers", transforms.Normalize, "x", 1)
    refuses("wanted an image {C, H, W}", transforms.ToTensor(), dm.ones(3, 3))
    refuses("a crop of 9 x 9 is larger than the image, 2 x 3", transforms.RandomCrop(9), levels)
    refuses("wanted whole numbers", transforms.RandomCrop, 2.5)
    refuses("p is 2, wanted 0 to 1", transforms.RandomHorizontalFlip, 2)
    refuses("element 1 is a number", transforms.Compose, {1})
  end)

  -- Every crop of x with a border of one `border`, and its mirror image.
  local function crops_of(x, border)
    local wide = dm.full({3, 34, 34}, border)
    wide[{{}, {2, 33}, {2, 33}}] = x
    local list = {}
    for top = 1, 3 do
      for left = 1, 3 do
        local one = wide:narrow(2, top, 32):narrow(3, left, 32)
        list[#list + 1] = one
        list[#list + 1] = one:flip{3}
      end
    end
    return list
  end

  local function index_in(crops, x)
    for i, crop in ipairs(crops) do
      if dm.equal(crop:cpu(), x:cpu()) then return i end
    end
  end

  local crop, flip = transforms.RandomCrop(32, {padding = 1}), transforms.RandomHorizontalFlip()
  local to_tensor, normalize = transforms.ToTensor(), transforms.Normalize(0.25, 0.5)

  it("RandomCrop and RandomHorizontalFlip: all crops and no others, by Lua and by threads",
    function()
      local root = write_all "crops"
      local plain = assert(CIFAR10(root, {transform = transforms.Compose{to_tensor, normalize}}))
      local transform = transforms.Compose{crop, flip, transforms.Compose{to_tensor, normalize}}
      local set = assert(CIFAR10(root, {transform = transform}))
      dm.manual_seed(3)
      local seen = {threads = {}, lua = {}}
      local function note(by, i, x)
        local at = index_in(crops_of(plain:get(i), -0.5), x)
        assert.is_truthy(at, by .. " made an image that is no crop")
        seen[by][at] = true
      end
      local loader = data.DataLoader(set, {batch_size = 70, num_workers = 2, seed = 1})
      for _ = 1, 2 do
        for _, x in loader:iter() do
          for i = 1, 70 do note("threads", i, x[i]) end
        end
        for i = 1, 70 do note("lua", i, (set:get(i))) end
      end
      assert.same({18, 18}, {#seen.threads, #seen.lua})
    end)

  it("the loader's threads do known transforms, with the numbers of get(i)", function()
    local set = assert(CIFAR10(write_all "known",
      {transform = transforms.Compose{to_tensor, transforms.Normalize(0.5, 0.5)}}))
    for _, x, y in data.DataLoader(set, {batch_size = 70, num_workers = 2}):iter() do
      for i = 1, #set do
        local one, label = set:get(i)
        assert.is_true(dm.equal(one, x[i]))
        assert.equal(label:item(), y[i]:item())
      end
    end
    local subset = data.Subset(set, {70, 1})
    for _, x in data.DataLoader(subset, {batch_size = 2, num_workers = 1}):iter() do
      assert.is_true(dm.equal(set:get(70), x[1]))
    end
  end)

  it("other ones, and orders that threads do not do, run in Lua", function()
    local root = write_all "unknown"
    local function plus_one(x) return x + 1 end
    for steps, is_random in pairs{
      [{to_tensor, plus_one}] = false, [{to_tensor, to_tensor}] = false,
      [{to_tensor, normalize, crop}] = true, [{to_tensor, crop, plus_one}] = true,
    } do
      local transform = transforms.Compose(steps)
      local set = assert(CIFAR10(root, {transform = transform}))
      local _, x = data.DataLoader(set, {seed = 1}):iter()()
      if not is_random then assert.is_true(dm.equal(transform(set.images[1]), x[1])) end
      local _, y = data.DataLoader(set, {seed = 1, num_workers = 1}):iter()()
      assert.is_true(dm.equal(x, y))
    end
  end)
end)

describe("resnet18", function()
  local function count(model)
    local n = 0
    for _, p in model:named_parameters() do n = n + p:numel() end
    return n
  end

  -- As scripts/golden/resnet.py makes them.
  local function formula(shape, size)
    local n = 1
    for _, d in ipairs(shape) do n = n * d end
    local i = dm.arange(0, n - 1)
    return ((i * i + i * 7919):remainder(1021):float() / 1021 - 0.5)
      :reshape(table.unpack(shape)) * size
  end

  local function filled(opts)
    local model = resnet18(opts)
    local _ <close> = dm.no_grad()
    for _, p in model:named_parameters() do
      p:copy_(formula(p.shape, 0.125) + (p:dim() == 1 and 1 or 0))
    end
    return model
  end

  it("has torchvision's names, shapes and numbers of parameters", function()
    local model = resnet18()
    assert.equal(11689512, count(model))
    assert.equal(11181642, count(resnet18{num_classes = 10}))
    assert.equal(11173962, count(resnet18{num_classes = 10, small_stem = true}))
    local expected = {["conv1.weight"] = {64, 3, 7, 7}, ["fc.weight"] = {1000, 512},
      ["fc.bias"] = {1000}}
    local function norm(name, n)
      for _, part in ipairs{"weight", "bias", "running_mean", "running_var"} do
        expected[name .. "." .. part] = {n}
      end
      expected[name .. ".num_batches_tracked"] = {}
    end
    norm("bn1", 64)
    local inputs = 64
    for l, width in ipairs{64, 128, 256, 512} do
      for b = 0, 1 do
        local block = ("layer%d.%d."):format(l, b)
        expected[block .. "conv1.weight"] = {width, inputs, 3, 3}
        expected[block .. "conv2.weight"] = {width, width, 3, 3}
        norm(block .. "bn1", width)
        norm(block .. "bn2", width)
        if inputs ~= width then
          expected[block .. "downsample.0.weight"] = {width, inputs, 1, 1}
          norm(block .. "downsample.1", width)
        end
        inputs = width
      end
    end
    local got = {}
    for name, t in pairs(model:state_dict()) do got[name] = {table.unpack(t.shape)} end
    assert.same(expected, got)
  end)

  it("starts as torchvision's: kaiming by outputs, batch norms 1 and 0", function()
    dm.manual_seed(1)
    local state = resnet18{num_classes = 10}:state_dict()
    for name, fan_out in pairs{["conv1.weight"] = 64 * 49, ["layer4.1.conv2.weight"] = 512 * 9,
      ["layer2.0.downsample.0.weight"] = 128} do
      local std = math.sqrt(2 / fan_out)
      assert.near(1, state[name]:std():item() / std, 0.03)
    end
    assert.is_true(dm.equal(dm.ones(512), state["layer4.1.bn2.weight"]))
    assert.is_true(dm.equal(dm.zeros(512), state["layer4.1.bn2.bias"]))
    assert.is_true(state["fc.weight"]:abs():amax():item() <= 1 / math.sqrt(512))
  end)

  for _, golden in ipairs{
    {small_stem = false, loss = 6.381347, gradient = 109.5365,
      eval = {3.96621, -1.75718, 1.71407, -2.73382, 3.80697, -4.10332, 2.80695, -4.13208,
        5.67845, -2.03351}},
    {small_stem = true, loss = 5.705478, gradient = 5.972696,
      eval = {3.70201, -1.09995, 4.18184, -2.51428, 2.74353, -1.54459, 1.0444, -5.24651,
        3.70293, -0.69597}},
  } do
    it("computes what PyTorch's does, small_stem = " .. tostring(golden.small_stem)
      .. " #slow", function()
      local model = filled{num_classes = 10, small_stem = golden.small_stem}
      local x = formula({4, 3, 32, 32}, 4)
      local loss = nn.functional.cross_entropy(model(x), dm.tensor{3, 8, 1, 10})
      loss:backward()
      assert.near(golden.loss, loss:item(), 1e-4)
      assert.near(1, model.conv1.weight.grad:norm():item() / golden.gradient, 1e-3)
      model:eval()
      for i, logit in ipairs(model(x)[2]:totable()) do
        assert.near(golden.eval[i], logit, 1e-3)
      end
    end)
  end

  it("refuses options that it does not know", function()
    local ok, message = pcall(resnet18, {classes = 10})
    assert.is_false(ok)
    assert.matches("unknown option 'classes'", message)
  end)
end)

describe("scripts/cifar10.lua", function()
  local function script(arguments)
    return run(("LUA_PATH_5_4='%s' LUA_CPATH_5_4='%s' lua5.4 scripts/cifar10.lua %s"):format(
      package.path, package.cpath, arguments))
  end

  it("says what to get when there is no data, and exits 1", function()
    local text, code = script("--data " .. path "nowhere")
    assert.equal(1, code)
    assert.matches("no data_batch_1.bin, .*cifar%-10%-binary.tar.gz", text)
    assert.not_matches("traceback", text)
  end)

  it("trains a vision transformer", function()
    local root, file = write_all "vit", path "vit.safetensors"
    local text, code = run(("LUA_PATH_5_4='%s' LUA_CPATH_5_4='%s' lua5.4 scripts/vit.lua --data %s "
      .. "--dtype bfloat16 --epochs 1 --batch 16 --limit 32 --layers 1 --width 64 --workers 1 "
      .. "--save %s"):format(package.path, package.cpath, root, file))
    assert.equal(0, code, text)
    assert.matches("ViT, recipe 'vit': 1 blocks of 64, crops and mirror images, cosine", text, 1,
      true)
    assert.matches("\nEpoch 1: loss = %d+%.%d+, test accuracy", text)
  end)

  it("trains on two ranks, of which the first one prints and writes", function()
    if launch.missing then return pending(launch.missing) end
    local root, file = write_all "ranks", path "ranks.safetensors"
    local text, code = launch.ranks(2, "../../scripts/vit", ("--data %s --dtype bfloat16 --epochs "
      .. "1 --batch 16 --limit 32 --layers 1 --width 64 --workers 1 --device cpu --save %s"):format(
      root, file))
    assert.equal(0, code, text)
    assert.equal(1, launch.count(text, "32 images, seed 1, bfloat16, batch 16, cpu, %d+ threads in "
      .. "each of 2 processes\n"), text)
    assert.equal(1, launch.count(text, "\nEpoch 1: loss = %d+%.%d+, test accuracy"), text)
    assert.equal(1, launch.told(text, "saved " .. file), text)
    assert.is_not_nil(dm.load(file).model)
  end)

  it("trains by the printed recipe, plain and in mixed precision, and goes on #slow",
    function()
      local root, file = write_all "train", path "cifar.safetensors"
      local losses = {}
      for _, dtype in ipairs{"float32", "float16"} do
        local text, code = script(("--data %s --dtype %s --epochs 1 --batch 32 --limit 64 "
          .. "--lr 0.01 --workers 1 --save %s"):format(root, dtype, file))
        assert.equal(0, code, text)
        assert.matches("recipe 'printed': 7x7 stem and max pool, no augmentation", text, 1, true)
        assert.matches("64 images, seed 1, " .. dtype, text, 1, true)
        losses[dtype] = tonumber(text:match
          "\nEpoch 1: loss = (%d+%.%d%d%d%d), test accuracy %d+%.%d%d %%")
      end
      assert.near(losses.float32, losses.float16, 0.05 * losses.float32)
      local again, code = script(("--data %s --epochs 2 --batch 32 --limit 64 --lr 0.01 "
        .. "--workers 1 --save %s --resume %s"):format(root, file, file))
      assert.equal(0, code, again)
      assert.matches("after epoch 1\n.*\nEpoch 2: loss = ", again)
      assert.not_matches("Epoch 1: ", again)
      local other
      other, code = script(("--data %s --recipe usual --resume %s"):format(root, file))
      assert.equal(1, code)
      assert.matches("is of the recipe 'printed'; hint: --recipe printed", other, 1, true)
    end)

  it("trains by the usual recipe and the strong one, even without the test file #slow", function()
    local root = write_all "usual"
    os.remove(root .. "/test_batch.bin")
    local text, code = script(("--data %s --recipe usual --dtype bfloat16 --epochs 1 --batch 4 "
      .. "--limit 4 --batches 1 --save %s"):format(root, path "usual.safetensors"))
    assert.equal(0, code, text)
    assert.matches("recipe 'usual': 3x3 stem, crops and mirror images, cosine schedule", text, 1,
      true)
    assert.matches("Epoch 1: loss = %d+%.%d%d%d%d, training accuracy", text)
    text, code = script(("--data %s --recipe strong --mixup 0.2 --cutmix 1 --epochs 1 --batch 2 "
      .. "--limit 4 --batches 1 --save %s"):format(root, path "strong.safetensors"))
    assert.equal(0, code, text)
    assert.matches("recipe 'strong': 3x3 stem, crops and mirror images, RandAugment", text, 1, true)
    assert.matches("Epoch 1: loss = %d+%.%d%d%d%d, training accuracy", text)
    text, code = script("--data " .. root)
    assert.equal(1, code)
    assert.matches("no test_batch.bin", text)
  end)
end)
