-- ImageFolder: which files are samples, and the loader's threads that decode them; CIFAR-100.

local dm = require "demilune"
local data, transforms, ImageFolder = dm.data, dm.transforms, dm.datasets.ImageFolder
local folder = require "spec.folder"
local path, write = folder.path, folder.write

setup(folder.make)
teardown(folder.remove)

local function golden(name)
  local f <close> = assert(io.open("spec/golden/images/" .. name, "rb"))
  return f:read "a"
end

-- A folder `root` with these files: {["class/name"] = contents}. Gives its path.
local function tree(root, files)
  for name, contents in pairs(files) do
    assert(os.execute(("mkdir -p '%s/%s'"):format(path(root), name:match "^(.*)/")))
    write(root .. "/" .. name, contents)
  end
  return path(root)
end

local function names(set)
  local list = {}
  for i, sample in ipairs(set.samples) do
    list[i] = sample[2] .. " " .. sample[1]:sub(#set.root + 2)
  end
  return list
end

local function problem_of(...)
  local set, message = ImageFolder(...)
  assert.is_nil(set)
  return message
end

describe("ImageFolder", function()
  it("takes folders as classes and their images as samples, in torchvision's order", function()
    local root = tree("order", {
      ["b/2.png"] = "", ["b/10.jpg"] = "", ["b/x.JPEG"] = "", ["b/notes.txt"] = "",
      ["b/png"] = "", ["b/.Png"] = "", ["B/1.Jpg"] = "", ["a b/z/deep/1.png"] = "",
      ["a b/z-1/1.png"] = "", ["a b/z/1.png"] = "", ["a b/y.png"] = "", ["a b/fake.jpg.gz"] = "",
    })
    write("order/alone.png", "")
    local set = assert(ImageFolder(root .. "/"))
    assert.same({"B", "a b", "b"}, set.classes)
    assert.same({B = 1, ["a b"] = 2, b = 3}, set.class_to_idx)
    assert.same({
      "1 B/1.Jpg", "2 a b/y.png", "2 a b/z/1.png", "2 a b/z-1/1.png", "2 a b/z/deep/1.png",
      "3 b/.Png", "3 b/10.jpg", "3 b/2.png", "3 b/x.JPEG",
    }, names(set))
    assert.equal(9, #set)
    assert.same({1, 2, 2, 2, 2, 3, 3, 3, 3}, set.labels:totable())
    assert.equal("ImageFolder('" .. root .. "', 9 samples, 3 classes)", tostring(set))
    set = assert(ImageFolder(root, {is_valid_file = function(p) return p:find "%.txt$" end,
      allow_empty = true}))
    assert.same({"3 b/notes.txt"}, names(set))
  end)

  it("follows links to folders, and not in a circle", function()
    local root = tree("links", {["a/1.png"] = "", ["b/2.png"] = ""})
    assert(os.execute(("ln -s . '%s/a/again'; ln -s ../b '%s/a/other'; ln -s none '%s/a/gone'")
      :format(root, root, root)))
    assert.same({"1 a/1.png", "1 a/other/2.png", "2 b/2.png"}, names(assert(ImageFolder(root))))
  end)

  it("names the classes without images, unless they are allowed", function()
    local root = tree("empty", {["a/1.png"] = "", ["b/x.txt"] = "", ["c/d/x.gif"] = ""})
    assert.equal(("ImageFolder: no images (.jpg, .jpeg, .png) in 'b', 'c' of '%s'; hint: "
      .. "allow_empty = true"):format(root), problem_of(root))
    local set = assert(ImageFolder(root, {allow_empty = true}))
    assert.same({"a", "b", "c"}, set.classes)
    assert.equal(1, #set)
    assert.matches("has no folders; hint: each class is a folder", problem_of(root .. "/a"), 1,
      true)
    assert.matches("ImageFolder: cannot open '/no/such': No such file", problem_of "/no/such", 1,
      true)
    assert.matches("Not a directory", problem_of(root .. "/a/1.png"))
    local none = tree("none", {["a/x.txt"] = ""})
    local loader = data.DataLoader(assert(ImageFolder(none, {allow_empty = true})))
    assert.is_nil((loader:iter()()))
  end)

  it("refuses options that make no sense, at the caller's line", function()
    for text, f in pairs{
      ["ImageFolder: root is missing, wanted a string"] = function() ImageFolder() end,
      ["unknown option 'tranform'; did you mean 'transform'"] = function()
        ImageFolder("x", {tranform = 1})
      end,
      ["ImageFolder: transform is 1, wanted a function"] = function()
        ImageFolder("x", {transform = 1})
      end,
      ["ImageFolder: mode is 'bgr', wanted 'rgb' or 'gray'"] = function()
        ImageFolder("x", {mode = "bgr"})
      end,
    } do
      local ok, message = pcall(f)
      assert.is_false(ok)
      assert.matches("image_folder_spec.lua:%d+: ", message)
      assert.matches(text, message, 1, true)
    end
  end)
end)

-- ---- CIFAR-100 ----

describe("CIFAR100", function()
  local function record(coarse, fine, byte)
    return string.char(coarse, fine) .. string.char(byte):rep(1024) .. ("\1"):rep(2048)
  end

  it("reads fine or coarse labels and the images behind them", function()
    assert(os.execute("mkdir -p " .. path "c100/cifar-100-binary"))
    write("c100/cifar-100-binary/train.bin", record(0, 4, 7) .. record(19, 99, 8))
    write("c100/cifar-100-binary/test.bin", record(3, 0, 9))
    local set = assert(dm.datasets.CIFAR100(path "c100", {normalize = false}))
    assert.same({100, 2}, {#set.classes, #set})
    assert.same({5, 100}, set.labels:totable())
    assert.same({"beaver", "worm"}, {set.classes[5], set.classes[100]})
    assert.same({2, 3, 32, 32}, {table.unpack(set.images.shape)})
    assert.same({8, 8, 1, 1}, {set.images[{2, 1, 1, 1}]:item(), set.images[{2, 1, 32, 32}]:item(),
      set.images[{2, 2, 1, 1}]:item(), set.images[{2, 3, 32, 32}]:item()})
    assert.near(7 / 255, set:get(1)[{1, 1, 1}]:item(), 1e-7)
    local test = assert(dm.datasets.CIFAR100(path "c100", {train = false, labels = "coarse"}))
    assert.same({20, 1}, {#test.classes, #test})
    assert.same({4, "food_containers"}, {test.labels[1]:item(), test.classes[4]})
    assert.near((9 / 255 - 0.5071) / 0.2673, test:get(1)[{1, 1, 1}]:item(), 1e-5)
  end)

  it("says what is missing and what is wrong", function()
    local CIFAR100 = dm.datasets.CIFAR100
    assert.matches("CIFAR100: no train.bin in .*cifar%-100%-binary.tar.gz",
      select(2, CIFAR100(path "nowhere")))
    write("train.bin", record(20, 3, 0))
    assert.equal(4, assert(CIFAR100(path())).labels[1]:item())
    assert.matches("a label of 20 in record 1, there are 0 to 19",
      select(2, CIFAR100(path(), {labels = "coarse"})), 1, true)
    write("train.bin", record(1, 1, 0):sub(1, -2))
    assert.matches("cut short: 3073 bytes, wanted records of 3074", select(2, CIFAR100(path())))
    assert.refuses("CIFAR100: labels is 'none', wanted 'fine' or 'coarse'",
      function() CIFAR100(path(), {labels = "none"}) end)
  end)
end)

-- ---- images that are decoded ----

local _, lacking = dm.decode_image(golden "gray.jpg")
if not lacking then _, lacking = dm.decode_image(golden "gray.png") end
if lacking then
  describe("a loader of images", function()
    it("needs libjpeg and libpng", function() pending(lacking) end)
  end)
  return
end

describe("a loader of images", function()
  local to_tensor = transforms.ToTensor()
  local crops = transforms.Compose{transforms.RandomCrop(8, {padding = 2}),
    transforms.RandomHorizontalFlip(), to_tensor, transforms.Normalize({0.5, 0.4, 0.3}, 0.25)}

  local KINDS = {"baseline.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg", "rgb.png",
    "gray_alpha.png", "palette.png", "rgb16.png", "orientation3.jpg"}
  local root
  setup(function()
    local files = {}
    for i, kind in ipairs(KINDS) do
      for k = 1, 5 do files[("%d/%d-%s"):format(i % 3, k, kind)] = golden(kind) end
    end
    root = tree("kinds", files)
  end)

  local function all(set, workers, epochs)
    local list = {}
    local loader = data.DataLoader(set,
      {batch_size = 7, num_workers = workers, shuffle = true, seed = 5})
    for _ = 1, epochs do
      for _, x, y in loader:iter() do list[#list + 1] = {x, y} end
    end
    return list
  end

  it("gives the same bytes for every number of workers, random transforms too", function()
    local set = assert(ImageFolder(root, {transform = crops}))
    local first = all(set, 0, 2)
    assert.equal(14, #first)
    assert.is_false(dm.equal(first[1][1], first[8][1])) -- another epoch, other draws
    for _, workers in ipairs{1, 3} do
      for i, batch in ipairs(all(set, workers, 2)) do
        assert.is_true(dm.equal(first[i][1], batch[1]))
        assert.is_true(dm.equal(first[i][2], batch[2]))
      end
    end
  end)

  it("gives what get(i) gives, and a transform in Lua too", function()
    local in_lua = function(x) return x:float() / 255 end
    for _, opts in ipairs{{}, {mode = "gray"}, {exif = false}} do
      local set = assert(ImageFolder(root, opts))
      local x, y = select(2, data.DataLoader(set, {batch_size = #set, num_workers = 2}):iter()())
      opts.transform = in_lua
      local same = assert(ImageFolder(root, opts))
      local lx, ly = select(2, data.DataLoader(same, {batch_size = #set}):iter()())
      assert.same({45, opts.mode and 1 or 3, 11, 19}, {table.unpack(x.shape)})
      assert.is_true(dm.equal(x, lx))
      assert.is_true(dm.equal(y, ly))
      for _, i in ipairs{1, 17, 45} do
        local one, label = set:get(i)
        assert.is_true(dm.equal(one, x[i]))
        assert.equal(label:item(), y[i]:item())
      end
      local workers = data.DataLoader(same, {batch_size = #same, num_workers = 1})
      assert.is_true(dm.equal(lx, (select(2, workers:iter()()))))
    end
    local subset = data.Subset(assert(ImageFolder(root)), {45, 3})
    local x = select(2, data.DataLoader(subset, {batch_size = 2, num_workers = 1}):iter()())
    assert.is_true(dm.equal(subset:get(1), x[1]))
  end)

  it("normalises gray images by one number", function()
    local set = assert(ImageFolder(root, {mode = "gray",
      transform = transforms.Compose{to_tensor, transforms.Normalize(0.5, 0.5)}}))
    local x = select(2, data.DataLoader(set, {batch_size = 2, num_workers = 1}):iter()())
    assert.same({2, 1, 11, 19}, {table.unpack(x.shape)})
    assert.is_true(dm.equal(set:get(1), x[1]))
  end)

  -- Steps through a loader by hand: {[batch number] = its labels}, {messages}.
  local function run(set, workers)
    local next_batch = data.DataLoader(set, {batch_size = 3, num_workers = workers}):iter()
    local seen, problems = {}, {}
    for _ = 1, 20 do
      local ok, i, _, y = pcall(next_batch)
      if ok and not i then return seen, problems end
      if ok then seen[i] = y:totable() else problems[#problems + 1] = i end
    end
    error "the loader does not end"
  end

  it("names a file at fault where the loop is, and goes on after it", function()
    local files = {}
    for k = 1, 12 do files[("%x/%02d.jpg"):format((k + 19) // 2, k)] = golden "baseline.jpg" end
    files["c/05.jpg"] = files["c/05.jpg"]:sub(1, 300)
    files["e/10.jpg"] = "GIF89a"
    local bad = tree("bad", files)
    collectgarbage()
    local live = dm.memory_allocated()
    for _, transform in ipairs{to_tensor, function(x) return x end} do
      local set = assert(ImageFolder(bad, {transform = transform}))
      for _, workers in ipairs(transform == to_tensor and {0, 1, 3} or {0}) do
        local seen, problems = run(set, workers)
        assert.same({{1, 1, 2}, [3] = {4, 4, 5}}, seen)
        assert.equal(2, #problems)
        assert.matches("jpeg: '" .. bad .. "/c/05.jpg' is cut short", problems[1], 1, true)
        assert.matches("10.jpg' is neither PNG nor JPEG", problems[2], 1, true)
      end
      local loader = data.DataLoader(set, {batch_size = 3})
      local ok, message = pcall(function() for _ in loader:iter() do end end)
      assert.is_false(ok)
      assert.matches("05.jpg' is cut short", message, 1, true)
      if transform == to_tensor then assert.matches("image_folder_spec.lua:%d+: ", message) end
      assert.matches("sample 5: ", select(2, pcall(set.get, set, 5)))
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(dm.memory_allocated() <= live + 4096)
  end)

  it("goes on in the next epoch, and goes on at a position after a batch at fault", function()
    local files = {}
    for k = 1, 9 do files[("a/%d.jpg"):format(k)] = golden "baseline.jpg" end
    files["a/1.jpg"] = ""
    local set = assert(ImageFolder(tree("again", files)))
    local loader = data.DataLoader(set, {batch_size = 3, num_workers = 1})
    for _ = 1, 2 do
      assert.is_false(pcall(function() for _ in loader:iter() do end end))
    end
    local next_batch = loader:iter()
    assert.is_false(pcall(next_batch))
    assert.equal(2, (next_batch()))
    assert.equal(2, loader:state_dict().position)
    loader:finish()
  end)

  it("says which images have no shape in common", function()
    local files = {["a/1.png"] = golden "rgb.png", ["b/2.png"] = golden "orientation6.png",
      ["a/0.jpg"] = "damaged"}
    local mixed = tree("mixed", files)
    for _, workers in ipairs{0, 2} do
      local set = data.Subset(assert(ImageFolder(mixed)), {2, 3})
      local ok, message = pcall(function()
        for _ in data.DataLoader(set, {batch_size = 2, num_workers = workers}):iter() do end
      end)
      assert.is_false(ok)
      assert.matches(("'%s/b/2.png' is {3, 19, 11}, '%s/a/1.png' is {3, 11, 19}, and a batch is "
        .. "of one shape; hint: transforms.Resize"):format(mixed, mixed), message, 1, true)
      local cropped = data.Subset(assert(ImageFolder(mixed, {transform = crops})), {2, 3})
      local loader = data.DataLoader(cropped, {batch_size = 2, num_workers = workers})
      local x = select(2, loader:iter()())
      assert.same({2, 3, 8, 8}, {table.unpack(x.shape)})
    end
    local resized = transforms.Compose{transforms.Resize{8, 9}, to_tensor}
    local square = transforms.Compose{transforms.Resize(8), transforms.CenterCrop(8), to_tensor}
    for _, case in ipairs{{resized, 9}, {square, 8}} do
      local set = data.Subset(assert(ImageFolder(mixed, {transform = case[1]})), {3, 2})
      local x = select(2, data.DataLoader(set, {batch_size = 2, num_workers = 1}):iter()())
      assert.same({2, 3, 8, case[2]}, {table.unpack(x.shape)})
      assert.is_true(dm.equal(set:get(1), x[1]))
    end
    local large = transforms.Compose{transforms.RandomCrop(12), to_tensor}
    local set = data.Subset(assert(ImageFolder(mixed, {transform = large})), {2})
    local ok, message = pcall(data.DataLoader(set, {num_workers = 1}):iter())
    assert.is_false(ok)
    assert.matches("a/1.png', 11 x 19: RandomCrop: a crop of 12 x 12", message, 1, true)
  end)

  it("feeds scripts/imagefolder.lua, from one folder or from two", function()
    local function script(arguments)
      return folder.run(("LUA_PATH_5_4='%s' LUA_CPATH_5_4='%s' lua5.4 scripts/imagefolder.lua %s")
        :format(package.path, package.cpath, arguments))
    end
    local try = "--size 16 --epochs 1 --batch 8 --workers 1 --device cpu --data "
    local text, code = script(try .. root .. " --dtype bfloat16 --save " .. path "w.safetensors")
    assert.equal(0, code, text)
    assert.matches("3 classes, 36 images to train on and 9 to test on\n", text, 1, true)
    assert.matches("Epoch 1: loss = %d+%.%d+, test accuracy %d+%.%d+ %%, %d+ images/s", text)
    assert.is_truthy(dm.load(path "w.safetensors")["0.0.weight"])
    assert(os.execute(("mkdir %s && ln -s %s %s/train && ln -s %s %s/val"):format(path "two", root,
      path "two", root, path "two")))
    text, code = script(try .. path "two" .. " --limit 10")
    assert.equal(0, code, text)
    assert.matches("3 classes, 10 images to train on and 10 to test on\n", text, 1, true)
    assert(os.execute(("mkdir %s && ln -s %s %s/train"):format(path "one", root, path "one")))
    text, code = script(try .. path "one")
    assert.equal(0, code, text)
    assert.matches("3 classes, 36 images to train on and 9 to test on\n", text, 1, true)
    local odd = tree("odd", {["test/wasps/1.png"] = ""})
    assert(os.execute(("ln -s %s %s/train"):format(root, odd)))
    assert.matches("train' and '.*test' have folders of other names", (script(try .. odd)))
    text, code = script "--data /no/such"
    assert.same({"ImageFolder: cannot open '/no/such': No such file or directory\n", 1},
      {text, code})
    assert.matches("%-%-data DIR is wanted", (script ""))
  end)

  it("of nothing but damaged files says so", function()
    local set = assert(ImageFolder(tree("damaged", {["a/1.png"] = "", ["a/2.jpg"] = "x"})))
    assert.refuses("1.png' is cut short", function() data.DataLoader(set):iter() end)
  end)
end)
