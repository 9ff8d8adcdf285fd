-- demilune.transforms: torchvision's numbers, random draws, the loader's threads, bad input.

local dm = require "demilune"
local core = require "demilune.core"
local data, transforms = dm.data, dm.transforms
local functional = transforms.functional
local golden = require "spec.golden.transforms"

local function image_of(case)
  local bytes = case.bytes:gsub("%x%x", function(hex) return string.char(tonumber(hex, 16)) end)
  return core._from_bytes(bytes):reshape(case.shape)
end

local images = {image_of(golden.images[1]), image_of(golden.images[2])}

-- The largest difference of two uint8 images.
local function distance(a, b)
  return (a:to "int64" - b:to "int64"):abs():amax():item()
end

local function all_equal(x, y) return tostring(x.shape) == tostring(y.shape) and dm.equal(x, y) end

-- An image whose pixel (y, x) of channel c tells where it is, counted from 0.
local function coordinates(height, width)
  local y = dm.arange(0, height - 1, {dtype = "uint8", device = "cpu"}):reshape(-1, 1)
  local x = dm.arange(0, width - 1, {dtype = "uint8", device = "cpu"}):reshape(1, -1)
  return dm.stack{y:expand{height, width}, x:expand{height, width}}
end

-- A batch of one image, n times, as a data set that a transform is applied to in threads.
local Repeated = data.Dataset:extend "Repeated"
function Repeated:init(x, n, ...)
  self.x = x:unsqueeze(1):expand{n, table.unpack(x.shape)}:clone()
  self.declared = {}
  for k, transform in ipairs{...} do
    self.declared[k] = assert(transforms.declare(transform, x:size(1)), "not for C")
  end
end
function Repeated:len() return #self.x end
function Repeated:get(i) return self.x[i] end
Repeated.native_get = Repeated.get
function Repeated:columns()
  local columns = {}
  for k, list in ipairs(self.declared) do columns[k] = {tensor = self.x, augment = list} end
  return columns
end

-- The columns of one epoch over n copies of x.
local function many(x, n, opts, ...)
  local loader = data.DataLoader(Repeated(x, n, ...), {batch_size = n, seed = opts.seed or 7,
    num_workers = opts.workers or 1})
  return select(2, loader:iter()())
end

describe("transforms have torchvision's numbers:", function()
  local names = {}
  for _, case in ipairs(golden.cases) do
    if case.name and not names[case.name] then
      names[case.name] = {}
      names[#names + 1] = case.name
    end
    if case.name then table.insert(names[case.name], case) end
  end

  for _, name in ipairs(names) do
    it(name, function()
      for _, case in ipairs(names[name]) do
        local expected = image_of(case)
        local y = functional[name](images[case.image], table.unpack(case.args))
        assert.equal("uint8", y.dtype)
        assert.same(case.shape, {table.unpack(y.shape)})
        -- a bilinear turn may meet a tie, which the last bit of its sine decides
        local opts = name == "rotate" and case.args[2] or name == "perspective" and case.args[3]
        local most = opts and opts.interpolation == "bilinear" and 1 or 0
        local d = distance(expected, y)
        assert.is_true(d <= most, ("%s of image %d is off by %d"):format(name, case.image, d))
      end
    end)
  end

  -- apply() makes each of the images of cases and no other; cases[i][key] is the change's name.
  local function check_outcomes(cases, key, apply)
    local expected, seen = {}, {}
    for i, case in ipairs(cases) do expected[i] = image_of(case) end
    for _ = 1, 40 * #cases do
      local y, found = apply(), false
      for i, image in ipairs(expected) do
        if distance(image, y) <= (cases[i][key] == "Rotate" and 1 or 0) then
          seen[i], found = true, true
        end
      end
      assert.is_true(found, "an image of no change")
    end
    for i, case in ipairs(cases) do assert.is_true(seen[i], case[key] .. " was never drawn") end
  end

  it("TrivialAugmentWide: each of its changes and no other", function()
    dm.manual_seed(3)
    local cases = {}
    for _, case in ipairs(golden.cases) do
      if case.trivial then cases[#cases + 1] = case end
    end
    local transform = transforms.TrivialAugmentWide{num_magnitude_bins = 2}
    check_outcomes(cases, "trivial", function() return transform(images[cases[1].image]) end)
  end)

  it("AutoAugment: each of its changes, and its policies", function()
    dm.manual_seed(4)
    local transform, changes = transforms.AutoAugment(), {}
    for _, case in ipairs(golden.cases) do
      if case.auto then
        changes[case.auto] = changes[case.auto] or {}
        table.insert(changes[case.auto], case)
      elseif case.policy then
        local lines = {}
        for i, pair in ipairs(transforms.AutoAugment{policy = case.policy}.policies) do
          local words = {}
          for k, one in ipairs(pair) do
            words[k] = ("%s %.1f %s"):format(one.name, one.p, one.magnitude or "-")
          end
          lines[i] = table.concat(words, ", ")
        end
        assert.equal(case.text, table.concat(lines, "\n"))
      end
    end
    for name, cases in pairs(changes) do
      transform.policies = {{{name = name, p = 1, magnitude = cases[1].magnitude}}}
      check_outcomes(cases, "auto", function() return transform(images[cases[1].image]) end)
    end
  end)

  it("RandAugment: each of its changes and no other", function()
    local groups = {}
    for _, case in ipairs(golden.cases) do
      if case.rand then
        groups[case.image] = groups[case.image] or {}
        table.insert(groups[case.image], case)
      end
    end
    for number, cases in pairs(groups) do
      local list = core.augment{transforms.RandAugment{num_ops = 1,
        magnitude = cases[1].magnitude, interpolation = cases[1].interpolation}:declare(3)}
      local expected, seen, n_seen = {}, {}, 0
      for i, case in ipairs(cases) do expected[i] = image_of(case) end
      for draw = 1, 600 do
        local y, found = list:apply(images[number], draw), false
        for i, image in ipairs(expected) do
          if distance(image, y) <= (cases[i].rand:match "^Rotate" and 1 or 0) then
            if not seen[i] then n_seen = n_seen + 1 end
            seen[i], found = true, true
          end
        end
        assert.is_true(found, "draw " .. draw .. " made an image of no change")
      end
      for i, case in ipairs(cases) do assert.is_true(seen[i], case.rand .. " was never drawn") end
      assert.equal(#cases, n_seen)
    end
  end)

  it("floats give what bytes give, rounding aside", function()
    for _, x in ipairs(images) do
      local f = x:float() / 255
      local function same(most, name, ...)
        local bytes, floats = functional[name](x, ...):float() / 255, functional[name](f, ...)
        assert.same({table.unpack(bytes.shape)}, {table.unpack(floats.shape)})
        local d = (bytes - floats):abs():amax():item() * 255
        assert.is_true(d <= most, ("%s: off by %.2f of 255"):format(name, d))
      end
      for _, size in ipairs{5, {20, 24}, {9, 7}} do
        same(1, "resize", size)
        same(1e-4, "resize", size, {interpolation = "nearest"})
      end
      for _, mode in ipairs{"constant", "edge", "reflect", "symmetric"} do
        same(1e-4, "pad", {3, 40, 20, 5}, {padding_mode = mode})
      end
      same(1e-4, "center_crop", {19, 5})
      same(1e-4, "hflip")
      same(1e-4, "vflip")
      same(1, "rgb_to_grayscale", 3)
      for _, factor in ipairs{0, 0.4, 1.6} do
        for _, kind in ipairs{"brightness", "contrast", "saturation"} do
          same(2, "adjust_" .. kind, factor)
        end
      end
      same(20, "adjust_hue", 0.2) -- bytes have 256 hues
    end
  end)
end)

describe("one draw does the same to", function()
  local T = transforms
  local function drawn(transform, x, seed)
    dm.manual_seed(seed)
    return transform(x)
  end

  it("bytes, floats and integers", function()
    local x = images[1]
    for _, transform in ipairs{
      T.RandomCrop({9, 11}, {padding = {3, 2, 1, 0}, fill = {7, 8, 9}}),
      T.RandomCrop(20, {pad_if_needed = true, padding_mode = "reflect"}),
      T.RandomResizedCrop({6, 8}, {interpolation = "nearest"}), T.RandomHorizontalFlip(),
      T.RandomVerticalFlip(), T.CenterCrop{4, 30}, T.Pad({1, 2}, {padding_mode = "symmetric"}),
    } do
      for seed = 1, 8 do
        local bytes = drawn(transform, x, seed)
        assert.is_true(all_equal(bytes:float(), drawn(transform, x:float(), seed)))
        assert.is_true(all_equal(bytes:to "int64", drawn(transform, x:to "int64", seed)))
      end
    end
    local grey = T.RandomGrayscale(0.5)
    for seed = 1, 8 do
      local function is_grey(y) return dm.equal(y[1], y[2]) end
      assert.equal(is_grey(drawn(grey, x, seed)), is_grey(drawn(grey, x:float() / 255, seed)))
    end
  end)

  it("a batch behind ToTensor, in threads or called", function()
    local erase = T.Compose{T.ToTensor(), T.RandomErasing{p = 0.7, value = -1}, T.Cutout(5)}
    local x = images[1]
    for seed = 1, 8 do
      local list = T.declare(T.RandomErasing{p = 0.7, value = -1}, 3)
      assert.is_nil(list) -- it takes floats
      local y = drawn(T.RandomErasing{p = 0.7, value = -1}, x:float() / 255, seed)
      dm.manual_seed(seed)
      local draw = core.randint(0, (1 << 62) - 1, {1}, {dtype = "int64", device = "cpu"}):item()
      local by_engine = T.declare(T.Compose{T.ToTensor(), T.RandomErasing{p = 0.7, value = -1}}, 3)
      assert.is_true(dm.equal(by_engine:apply(x, draw), y))
    end
    assert.same({3, 13, 17}, {table.unpack(erase(x).shape)})
  end)

  it("a tensor, whose gradient passes", function()
    local x = (images[1]:float() / 255):requires_grad_()
    local chain = T.Compose{T.RandomHorizontalFlip(1), T.Pad(1), T.CenterCrop{15, 19},
      T.Resize({4, 6}, {interpolation = "bicubic"})}
    chain(x):sum():backward()
    local plain = (functional.pad(images[1], 1):float() * 0 + 1):requires_grad_()
    functional.resize(plain, {4, 6}, {interpolation = "bicubic"}):sum():backward()
    assert.near(3 * 4 * 6, plain.grad:sum():item(), 1e-3) -- the weights of an output sum to 1
    local inner = plain.grad:narrow(-2, 2, 13):narrow(-1, 2, 17):flip{-1}
    assert.is_true(dm.allclose(inner, x.grad, {atol = 1e-6}))
  end)

  it("nothing where a transform has no plan", function()
    for _, transform in ipairs{T.RandAugment(), T.RandomRotation(10)} do
      local list = core.augment{transform:declare(3)}
      assert.error_matches(function() list:plan(4, 5, 1) end, "this one has no plan")
      assert.same({}, list:boxes(4, 5, 1))
    end
  end)
end)

describe("transforms draw", function()
  local function spread_of(t) return {t:amin():item(), t:amax():item()} end

  it("crops of the areas and aspects that were asked for", function()
    local crop = transforms.RandomResizedCrop(1, {scale = {0.1, 0.5}, ratio = {0.5, 2},
      interpolation = "nearest"})
    -- 250 x 250 positions; a crop of one pixel shows its own middle, so that sizes are read
    -- from how a row and a column of two pixels lie apart
    local wide = transforms.RandomResizedCrop({2, 2}, {scale = {0.1, 0.5}, ratio = {0.5, 2},
      interpolation = "nearest"})
    local x = coordinates(200, 250)
    local y = many(x, 2000, {}, wide):float()
    local height = (y:select(2, 1):select(2, 2):select(2, 1)
      - y:select(2, 1):select(2, 1):select(2, 1)) * 2
    local width = (y:select(2, 2):select(3, 2):select(2, 1)
      - y:select(2, 2):select(3, 1):select(2, 1)) * 2
    local area, ratio = height * width / (200 * 250), width / height
    local areas, ratios = spread_of(area), spread_of(ratio)
    assert.is_true(areas[1] > 0.09 and areas[1] < 0.13, areas[1])
    assert.is_true(areas[2] < 0.52 and areas[2] > 0.46, areas[2])
    assert.is_true(ratios[1] > 0.47 and ratios[1] < 0.53, ratios[1])
    assert.is_true(ratios[2] < 2.1 and ratios[2] > 1.9, ratios[2])
    assert.near(0.3, area:mean():item(), 0.02) -- uniform: the middle of its range
    assert.near(0, ratio:log():mean():item(), 0.05)
    assert.same({2, 1, 1}, {table.unpack(crop(x).shape)})
  end)

  it("crops at every position alike, and pads what lacks", function()
    local y = many(coordinates(7, 6), 4000, {}, transforms.RandomCrop({1, 1}, {}))
    local counts = {}
    for _, pixel in ipairs(y:reshape(-1, 2):totable()) do
      local key = pixel[1] * 6 + pixel[2]
      counts[key] = (counts[key] or 0) + 1
    end
    for key = 0, 41 do
      assert.is_true(counts[key] and math.abs(counts[key] - 4000 / 42) < 50, key)
    end
    local padded = transforms.RandomCrop({9, 4}, {pad_if_needed = true, fill = {200, 100}})
    local z = many(coordinates(7, 6), 50, {}, padded)
    assert.same({50, 2, 9, 4}, {table.unpack(z.shape)})
    assert.is_true((z:select(2, 1):eq(200):sum():item()) >= 50 * 2 * 4)
  end)

  it("flips, greys and erases as often as p says", function()
    local x = coordinates(4, 5)
    for _, p in ipairs{0, 0.25, 1} do
      local y, z = many(x, 1000, {}, transforms.RandomHorizontalFlip(p),
        transforms.RandomVerticalFlip(p))
      local mirrored = y:select(2, 2):select(2, 1):select(2, 1):eq(4):float():mean():item()
      local turned = z:select(2, 1):select(2, 1):select(2, 1):eq(3):float():mean():item()
      assert.near(p, mirrored, 0.05)
      assert.near(p, turned, 0.05)
      local grey = many(images[1], 400, {}, transforms.RandomGrayscale(p))
      local is_grey = grey:select(2, 1):eq(grey:select(2, 2)):reshape(400, -1):all(2)
      assert.near(p, is_grey:float():mean():item(), 0.08)
    end
    local erasing = transforms.Compose{transforms.ToTensor(),
      transforms.RandomErasing{p = 0.5, scale = {0.1, 0.2}, ratio = {1, 1}, value = -3}}
    local e = many(dm.full({1, 30, 30}, 9, {dtype = "uint8", device = "cpu"}), 600, {}, erasing)
    local erased = e:eq(-3):reshape(600, -1):float():mean(2)
    assert.near(0.5, erased:gt(0):float():mean():item(), 0.07)
    assert.is_true(erased:amax():item() < 0.22)
    assert.near(0.15 * 0.5, erased:mean():item(), 0.02)
  end)

  it("noise, and holes that reach over the edge", function()
    local x = dm.zeros({3, 20, 20}, {dtype = "uint8", device = "cpu"})
    local noise = many(x, 100, {}, transforms.Compose{transforms.ToTensor(),
      transforms.RandomErasing{p = 1, scale = {0.3, 0.3}, ratio = {1, 1}, value = "random"}})
    local drawn = noise[noise:ne(0)]
    assert.near(0, drawn:mean():item(), 0.03)
    assert.near(1, drawn:std():item(), 0.03)
    local holes = many(x + 255, 2000, {}, transforms.Compose{transforms.ToTensor(),
      transforms.Cutout(8)})
    local area = holes:eq(0):float():reshape(2000, -1):sum(2) / 3
    assert.equal(64, area:amax():item())
    assert.is_true(area:amin():item() < 64 and area:amin():item() >= 16)
    assert.is_true(holes:select(2, 1):select(2, 1):select(2, 1):eq(0):any():item())
  end)

  it("factors within their ranges, in every order", function()
    local grey = dm.full({1, 2, 2}, 100, {dtype = "uint8", device = "cpu"})
    local y = many(grey, 2000, {}, transforms.ColorJitter{brightness = {0.5, 1.5}}):float()
    assert.is_true(y:amin():item() >= 50 and y:amin():item() < 53)
    assert.is_true(y:amax():item() <= 150 and y:amax():item() > 147)
    assert.near(99.5, y:mean():item(), 2)
    -- fixed factors: what differs is the order alone. All 24 of them, as by hand.
    local x = images[2]
    local factors = {brightness = 1.5, contrast = 0.5, saturation = 1.8, hue = 0.2}
    local jitter, made = {}, {}
    for name, v in pairs(factors) do jitter[name] = {v, v} end
    local function permute(list, k)
      if k > #list then
        local z = x
        for _, name in ipairs(list) do z = functional["adjust_" .. name](z, factors[name]) end
        made[table.concat(z:reshape(-1):totable(), " ")] = 0
      end
      for i = k, #list do
        list[k], list[i] = list[i], list[k]
        permute(list, k + 1)
        list[k], list[i] = list[i], list[k]
      end
    end
    permute({"brightness", "contrast", "saturation", "hue"}, 1)
    local all = many(x, 500, {}, transforms.ColorJitter(jitter))
    for i = 1, 500 do
      local key = table.concat(all[i]:reshape(-1):totable(), " ")
      assert.is_truthy(made[key], "an order that is none")
      made[key] = made[key] + 1
    end
    for _, n in pairs(made) do assert.is_true(n > 0) end
  end)

  it("turns and moves within their ranges", function()
    local x = dm.zeros({1, 41, 41}, {dtype = "uint8", device = "cpu"})
    x[{1, 21, 36}] = 255 -- 15 pixels to the right of the middle
    local y = many(x, 500, {}, transforms.RandomRotation({0, 90}))
    local rows = y:reshape(500, 41, 41):amax(3):to "int64":argmax(2)
    assert.is_true(rows:amin():item() <= 8 and rows:amax():item() <= 21) -- upwards
    local z = many(x, 500, {}, transforms.RandomAffine(0, {translate = {0.1, 0}}))
    local columns = z:reshape(500, 41, 41):amax(2):to "int64":argmax(2)
    assert.same({32, 40}, {columns:amin():item(), columns:amax():item()})
  end)
end)

describe("the loader's threads", function()
  local jpeg_like = transforms.Compose{
    transforms.RandomResizedCrop(9, {scale = {0.3, 1}}), transforms.RandomHorizontalFlip(),
    transforms.RandAugment(), transforms.ColorJitter{brightness = 0.4, hue = 0.1},
    transforms.RandomRotation(15, {interpolation = "bilinear"}), transforms.ToTensor(),
    transforms.Normalize({0.5, 0.4, 0.3}, {0.2, 0.3, 0.4}),
    transforms.RandomErasing{p = 0.5, value = "random"}, transforms.Cutout(3)}

  it("make the same images whatever their number", function()
    local first = many(images[1], 60, {workers = 0}, jpeg_like)
    assert.same({60, 3, 9, 9}, {table.unpack(first.shape)})
    for _, workers in ipairs{1, 3} do
      assert.is_true(dm.equal(first, many(images[1], 60, {workers = workers}, jpeg_like)))
    end
    assert.is_false(dm.equal(first, many(images[1], 60, {seed = 8}, jpeg_like)))
    assert.is_false(dm.equal(first[1], first[2]))
  end)

  it("cut an image and its mask alike, whatever else is done to one of them", function()
    local crop = transforms.RandomResizedCrop(6, {interpolation = "nearest"})
    local flip, affine = transforms.RandomHorizontalFlip(), transforms.RandomAffine(20)
    local x = dm.cat({coordinates(40, 50), coordinates(40, 50):narrow(1, 1, 1)}, 1)
    local image, mask = many(x, 200, {},
      transforms.Compose{transforms.RandomInvert(1), crop, transforms.RandomInvert(1), flip,
        affine},
      transforms.Compose{crop, flip, affine})
    local inside = mask:ne(0) -- what lies outside is black in both, or inverted twice
    assert.is_true(image:where(inside, 0):eq(mask:where(inside, 0)):all():item())
    assert.is_true(inside:float():mean():item() > 0.5)
  end)

  it("and a call make equal images of equal draws", function()
    for seed = 1, 20 do
      dm.manual_seed(seed)
      local draw = core.randint(0, (1 << 62) - 1, {1}, {dtype = "int64", device = "cpu"}):item()
      dm.manual_seed(seed)
      local called = jpeg_like(images[1])
      assert.is_true(dm.equal(called,
        transforms.declare(jpeg_like, 3):apply(images[1], draw)))
    end
    -- views, and batches of one draw
    dm.manual_seed(1)
    local view = jpeg_like(images[1]:permute(2, 3, 1):contiguous():permute(3, 1, 2))
    dm.manual_seed(1)
    assert.is_true(dm.equal(view, jpeg_like(images[1])))
    dm.manual_seed(1)
    local batch = jpeg_like(dm.stack{images[1], images[1]})
    assert.is_true(dm.equal(view, batch[1]) and dm.equal(view, batch[2]))
  end)

  it("leave bytes where ToTensor is not asked for", function()
    local y = many(images[1], 3, {}, transforms.CenterCrop(5))
    assert.equal("uint8", y.dtype)
    assert.is_true(dm.equal(y[3], functional.center_crop(images[1], 5)))
  end)

  it("do orders that make sense; Lua does the others", function()
    local T = transforms
    local to, norm, erase = T.ToTensor(), T.Normalize(0.5, 0.5), T.RandomErasing()
    local flip, crop = T.RandomHorizontalFlip(), T.RandomCrop(3, {padding = 1})
    local resize = T.Resize(4)
    for _, list in ipairs{{flip, to, norm}, {to, flip, norm}, {to, crop, norm}, {to, norm, flip},
      {resize, to, norm, norm}, {to, erase, norm, erase}, {resize, crop}, {to, T.CenterCrop(20)}} do
      assert.is_truthy(T.declare(T.Compose(list), 3))
    end
    for _, list in ipairs{{to, to}, {norm, to}, {to, norm, crop}, {to, resize}, {erase, to},
      {to, erase, flip}, {to, T.RandomCrop(3, {padding = 1, fill = 5})},
      {to, function(x) return x end}} do
      assert.is_nil(T.declare(T.Compose(list), 3))
    end
    -- an order of Lua's: erased, then mirrored
    local mixed = T.Compose{to, T.RandomErasing{p = 1}, flip, T.Resize(5), T.ColorJitter{hue = 0.1}}
    assert.same({3, 5, 6}, {table.unpack(mixed(images[1]).shape)})
  end)

  it("normalise behind what erases, too", function()
    local x = images[1]
    local erase = transforms.RandomErasing{p = 1, scale = {0.2, 0.2}, value = {0.5, 0.25, 1}}
    local plain, late = many(x, 20, {}, transforms.Compose{transforms.ToTensor(), erase},
      transforms.Compose{transforms.ToTensor(), erase, transforms.Normalize({0.1, 0.2, 0.3}, 2)})
    local mean = dm.tensor({0.1, 0.2, 0.3}, {device = "cpu"}):reshape(-1, 1, 1)
    assert.is_true(dm.equal((plain - mean) / 2, late))
  end)
end)

describe("transforms of batches", function()
  local x = dm.arange(0, 3):float():reshape(4, 1, 1, 1):expand{4, 2, 6, 8}
  local y = dm.tensor{1, 3, 2, 3}

  it("MixUp blends an image and its label with the one in front of it", function()
    dm.manual_seed(2)
    local shares = {}
    for _ = 1, 300 do
      local mixed, labels = transforms.MixUp{num_classes = 3, alpha = 0.4}(x, y)
      local share = labels[{1, 1}]:item()
      assert.same({4, 3}, {table.unpack(labels.shape)})
      assert.is_true(labels:sum(-1):sub(1):abs():lt(1e-5):all():item())
      assert.near(3 * (1 - share), mixed[{1, 2, 3, 4}]:item(), 1e-4) -- the last one's
      assert.near(1 * share, mixed[{2, 1, 1, 1}]:item(), 1e-4)
      shares[#shares + 1] = share
    end
    local s = dm.tensor(shares)
    assert.near(0.5, s:mean():item(), 0.06)
    assert.near(1 / (4 * (2 * 0.4 + 1)), s:std():item() ^ 2, 0.02) -- Beta's variance
  end)

  it("CutMix pastes a box of it, and its share of the label", function()
    dm.manual_seed(3)
    local boxes = 0
    for _ = 1, 200 do
      local mixed, labels = transforms.CutMix{num_classes = 3}(x, y)
      local own = mixed[2]:eq(1)
      assert.is_true((own + mixed[2]:eq(0)):gt(0):all():item())
      local share = own:float():mean():item()
      assert.near(share, labels[{2, 3}]:item(), 1e-5)
      if share < 1 and share > 0 then boxes = boxes + 1 end
    end
    assert.is_true(boxes > 100)
  end)

  it("take shares for labels, and go into collate_fn", function()
    local mix = transforms.MixUp{}
    local shares = dm.tensor{{1, 0}, {0, 1}, {0.5, 0.5}, {0, 1}}
    local _, labels = mix(x, shares)
    assert.same({4, 2}, {table.unpack(labels.shape)})
    local loader = data.DataLoader(data.TensorDataset(x:contiguous(), y), {batch_size = 4,
      collate_fn = function(samples)
        return transforms.CutMix{num_classes = 3}(data.default_collate(samples))
      end})
    for _, a, b in loader:iter() do
      assert.same({4, 2, 6, 8}, {table.unpack(a.shape)})
      assert.same({4, 3}, {table.unpack(b.shape)})
    end
  end)

  it("refuse what they cannot mix", function()
    for _, case in ipairs{
      {"wanted a batch {N, C, H, W}", transforms.MixUp{num_classes = 3}, x[1], y},
      {"hint: num_classes = n", transforms.MixUp{}, x, y},
      {"a label of 3, num_classes is 2", transforms.CutMix{num_classes = 2}, x, y},
      {"hint: ToTensor before it", transforms.CutMix{num_classes = 3}, x:to "uint8", y},
      {"alpha is 0, wanted a number above 0", transforms.MixUp, {alpha = 0}},
      {"num_classes is 2.5", transforms.MixUp, {num_classes = 2.5}},
    } do
      local ok, message = pcall(function() case[2](case[3], case[4]) end)
      assert.is_false(ok)
      assert.matches("transforms_spec.lua:%d+: ", message)
      assert.matches(case[1], message, 1, true)
    end
  end)
end)

describe("transforms refuse", function()
  local T = transforms
  local x = images[1]
  local two = coordinates(4, 5)
  for _, case in ipairs{
    {"a crop of 20 x 20 is larger than the image, 13 x 17", T.RandomCrop(20), x},
    {"a crop of 20 x 20 is larger", T.RandomCrop(20), x:float()},
    {"padding_mode is 'wrap', wanted 'constant', 'edge'", T.Pad, 1, {padding_mode = "wrap"}},
    {"padding is -1; wanted whole numbers", T.Pad, -1},
    {"padding is 1, 2, 3; wanted whole numbers", T.RandomCrop, 3, {padding = {1, 2, 3}}},
    {"fill: wanted a number, or one per channel, 0 to 255", T.Pad, 1, {fill = 300}},
    {"2 numbers, the images have 3 channels", T.Pad(1, {fill = {1, 2}}), x},
    {"size is -4, -4; wanted whole numbers", T.Resize, -4},
    {"size is 0, 3", T.CenterCrop, {0, 3}},
    {"max_size is 4 with size 8", T.Resize, 8, {max_size = 4}},
    {"interpolation is 'lanczos'", T.Resize, 8, {interpolation = "lanczos"}},
    {"antialias is false", T.Resize, 8, {antialias = false}},
    {"unknown option 'interpolaton'; did you mean 'interpolation'", T.Resize, 8,
      {interpolaton = "x"}},
    {"would become a side of 0", T.Resize(1, {max_size = 2}), dm.zeros({1, 3, 90},
      {dtype = "uint8", device = "cpu"})},
    {"p is 1.5, wanted 0 to 1", T.RandomVerticalFlip, 1.5},
    {"p is -1, wanted 0 to 1", T.RandomGrayscale, -1},
    {"nan, wanted 0 to 1", T.RandomErasing, {p = 0 / 0}},
    {"scale is {0.5, 0.1}", T.RandomResizedCrop, 8, {scale = {0.5, 0.1}}},
    {"ratio is {0, 1}", T.RandomErasing, {ratio = {0, 1}}},
    {"brightness is -1, wanted 0 or more", T.ColorJitter, {brightness = -1}},
    {"hue is {-0.7, 0.7}", T.ColorJitter, {hue = 0.7}},
    {"images of 2 channels, wanted 1 (grey) or 3", T.ColorJitter{contrast = 1}, two},
    {"images of 2 channels, wanted 1 (grey) or 3", T.ColorJitter{contrast = 1}, two:float()},
    {"images of 2 channels", T.RandAugment(), two},
    {"wanted uint8 on the CPU; hint: ToTensor after it", T.RandAugment(), x:float()},
    {"magnitude 31 of num_magnitude_bins 31", T.RandAugment, {magnitude = 31}},
    {"num_output_channels is 2", T.Grayscale, 2},
    {"bits is 9, wanted 0 to 8", T.RandomPosterize, 9},
    {"degrees is {2, 1}", T.RandomRotation, {2, 1}},
    {"translate is {0.1}, wanted {x, y}", T.RandomAffine, 0, {translate = {0.1}}},
    {"length is 0", T.Cutout, 0},
    {"hint: ToTensor before it", T.Cutout(2), x},
    {"an image of 3 channels, 0 x 17", T.CenterCrop(3), x:narrow(2, 1, 0)},
    {"factor is {0.6, 0.6}", functional.adjust_hue, x, 0.6},
  } do
    it(case[1], function()
      local ok, message = pcall(function() case[2](table.unpack(case, 3)) end)
      assert.is_false(ok)
      assert.matches("transforms_spec.lua:%d+: ", message)
      assert.matches(case[1], message, 1, true)
    end)
  end

  it("a column that its transforms do not fit, when the loader is made", function()
    local set = Repeated(two, 3, T.Compose{T.RandomCrop(9)})
    local ok, message = pcall(function()
      for _ in data.DataLoader(set, {num_workers = 1}):iter() do error "not reached" end
    end)
    assert.is_false(ok)
    assert.matches("a crop of 9 x 9 is larger than the image, 4 x 5", message, 1, true)
  end)
end)

it("transforms say what they are", function()
  local T = transforms
  assert.equal("Resize(8, interpolation = bilinear)", tostring(T.Resize(8)))
  assert.equal("RandomCrop(4x5, padding = {1, 2, 1, 2})",
    tostring(T.RandomCrop({4, 5}, {padding = {1, 2}})))
  assert.equal("Compose(ColorJitter(brightness = {0.5, 1.5}, contrast = {1, 1}, "
    .. "saturation = {1, 1}, hue = {0, 0}), RandomPosterize(3, p = 0.5))",
    tostring(T.Compose{T.ColorJitter{brightness = 0.5}, T.RandomPosterize(3)}))
  assert.equal("MixUp(alpha = 0.2, num_classes = 10)",
    tostring(T.MixUp{num_classes = 10, alpha = 0.2}))
  assert.is_nil(T.NoSuch)
  assert.is_true(all_equal(functional.hflip(functional.hflip(images[1])), images[1]))
end)

-- ---- transforms that are drawn in Lua ----

describe("transforms of others", function()
  local T, x = transforms, images[1]
  local function counted(n, transform)
    local counts = {}
    for _ = 1, n do
      local key = tostring(transform(x):select(1, 1):to "int64":sum():item())
      counts[key] = (counts[key] or 0) + 1
    end
    return counts
  end
  local function sum_of(y) return tostring(y:select(1, 1):to "int64":sum():item()) end
  local invert, black = T.RandomInvert(1), function(y) return y * 0 end

  it("RandomApply applies all or none", function()
    dm.manual_seed(1)
    local counts = counted(400, T.RandomApply({invert, black}, {p = 0.25}))
    assert.near(100, counts["0"], 45) -- 5 standard deviations
    assert.equal(400, counts["0"] + counts[sum_of(x)])
  end)

  it("RandomChoice draws by its weights, RandomOrder applies all", function()
    dm.manual_seed(2)
    local counts = counted(400, T.RandomChoice({invert, black}, {p = {3, 1}}))
    assert.near(100, counts["0"], 45)
    assert.equal(400, counts["0"] + counts[sum_of(invert(x))])
    counts = counted(100, T.RandomOrder{invert, black})
    assert.near(50, counts["0"], 25) -- black last
    assert.equal(100, counts["0"] + counts[sum_of(invert(x * 0))])
  end)

  it("blur and turn floats as bytes, rounding aside, in any number of dims", function()
    local f, F = x:float(), functional
    local corners = {{0, 0}, {16, 0}, {16, 12}, {0, 12}}
    local moved = {{2, 1}, {15, 0}, {13, 10}, {1, 12}}
    assert.is_true(dm.equal(F.gaussian_blur(x, 3, 1), F.gaussian_blur(f, 3, 1):round():to "uint8"))
    assert.is_true(dm.equal(F.perspective(x, corners, moved),
      F.perspective(f, corners, moved):round():to "uint8"))
    local batch = dm.stack{dm.stack{x, x}, dm.stack{x, x}}
    assert.is_true(dm.equal(F.gaussian_blur(x, 3, 1), F.gaussian_blur(batch, 3, 1)[{2, 1}]))
    assert.is_true(dm.equal(F.perspective(x, corners, moved, {fill = 3}),
      F.perspective(batch, corners, moved, {fill = 3})[{2, 1}]))
    assert.is_true(dm.equal(x, F.perspective(x, corners, corners)))
  end)

  it("GaussianBlur and RandomPerspective draw within their bounds", function()
    dm.manual_seed(3)
    local blur = T.GaussianBlur(3, {sigma = {0.5, 0.5}})
    assert.is_true(dm.equal(functional.gaussian_blur(x, 3, 0.5), blur(x)))
    assert.is_true(dm.equal(x, T.RandomPerspective{distortion_scale = 0, p = 1}(x)))
    assert.is_true(dm.equal(x, T.RandomPerspective{p = 0}(x)))
    local differs = T.RandomPerspective{p = 1}(x)
    assert.is_false(dm.equal(x, differs))
    assert.same({table.unpack(x.shape)}, {table.unpack(differs.shape)})
  end)

  it("run in Lua workers of the loader, with the draws of no workers", function()
    local Images = data.Dataset:extend "Images"
    function Images:init(transform) self.transform = transform end
    function Images.len() return 8 end
    function Images:get(i)
      local image = require("demilune").arange(1, 192, {dtype = "int64", device = "cpu"}) * i
      return self.transform(image:remainder(256):to "uint8":reshape(3, 8, 8))
    end
    local all = T.Compose{T.AutoAugment{policy = "cifar10"}, T.TrivialAugmentWide(),
      T.RandomApply{T.GaussianBlur(3)}, T.RandomPerspective{p = 1},
      T.RandomChoice{T.RandomInvert(1), T.RandomHorizontalFlip(1)}, T.ToTensor()}
    local batches = {}
    for _, workers in ipairs{0, 2} do
      local loader = data.DataLoader(Images(all), {batch_size = 8, seed = 5,
        num_workers = workers})
      batches[#batches + 1] = select(2, loader:iter()())
    end
    assert.is_true(dm.equal(batches[1], batches[2]))
  end)

  it("refuse what they cannot do", function()
    for _, bad in ipairs{
      {"RandomApply: element 1 is a number, wanted a transform", T.RandomApply, {1}},
      {"RandomOrder: wanted a list of transforms, got none", T.RandomOrder, {}},
      {"RandomChoice: p wants one number for each of 1", T.RandomChoice, {invert}, {p = {1, 2}}},
      {"GaussianBlur: kernel_size is 4, wanted an odd number", T.GaussianBlur, 4},
      {"GaussianBlur: sigma wants a number above 0", T.GaussianBlur, 3, {sigma = 0}},
      {"RandomPerspective: distortion_scale is {2, 2}", T.RandomPerspective,
        {distortion_scale = 2}},
      {"AutoAugment: policy is 'mnist', wanted 'imagenet'", T.AutoAugment, {policy = "mnist"}},
      {"num_magnitude_bins is 1, wanted a whole number from 2", T.TrivialAugmentWide,
        {num_magnitude_bins = 1}},
      {"AutoAugment: the image is float32 on", T.AutoAugment(), x:float()},
      {"startpoints: wanted four corners", functional.perspective, x, {}, {}},
    } do
      assert.refuses(bad[1], function() bad[2](table.unpack(bad, 3)) end)
    end
  end)
end)
