-- Images in PNG files, grids of them, and coordinates of grids.

local dm = require "demilune"

local PATH = os.tmpname()

local function shape(t) return {table.unpack(t.shape)} end

-- ---- PNG files made by hand: stored blocks of deflate, and every checksum ----

local function crc32(s)
  local crc = 0xffffffff
  for i = 1, #s do
    crc = crc ~ s:byte(i)
    for _ = 1, 8 do crc = crc & 1 == 1 and 0xedb88320 ~ crc >> 1 or crc >> 1 end
  end
  return crc ~ 0xffffffff
end

local function adler32(s)
  local a, b = 1, 0
  for i = 1, #s do
    a = (a + s:byte(i)) % 65521
    b = (b + a) % 65521
  end
  return b << 16 | a
end

local function chunk(kind, body)
  return (">I4"):pack(#body) .. kind .. body .. (">I4"):pack(crc32(kind .. body))
end

local function deflated(raw)
  return "\x78\x01\x01" .. ("<I2I2"):pack(#raw, ~#raw & 0xffff) .. raw .. (">I4"):pack(adler32(raw))
end

-- o: width, height, bits, color (type), interlace, before (chunks before the data)
local function png(o, raw)
  return "\x89PNG\r\n\x1a\n" .. chunk("IHDR",
    (">I4I4BBBBB"):pack(o.width, o.height, o.bits or 8, o.color, 0, 0, o.interlace or 0))
    .. (o.before or "") .. chunk("IDAT", deflated(raw)) .. chunk("IEND", "")
end

local function write(bytes)
  local f <close> = assert(io.open(PATH, "wb"))
  f:write(bytes)
end

local function read(bytes)
  write(bytes)
  return dm.read_image(PATH)
end

local has_png = dm.save_image(dm.zeros(1, 1, 1), PATH) ~= nil

local function values(bytes) return assert(read(bytes)):totable() end

describe("make_grid", function()
  it("arranges images in rows with padding between and around", function()
    local x = dm.arange(1, 3):float():reshape(3, 1, 1, 1):expand({3, 1, 2, 1})
    local grid = dm.make_grid(x, {nrow = 2, padding = 1, pad_value = 9})
    assert.same({{
      {9, 9, 9, 9, 9}, {9, 1, 9, 2, 9}, {9, 1, 9, 2, 9},
      {9, 9, 9, 9, 9}, {9, 3, 9, 9, 9}, {9, 3, 9, 9, 9}, {9, 9, 9, 9, 9},
    }}, grid:totable())
    assert.same(grid:totable(), dm.make_grid({x[1], x[2], x[3]},
      {nrow = 2, padding = 1, pad_value = 9}):totable())
    assert.same({3, 2 * (3 + 2) + 2, 8 * (5 + 2) + 2}, shape(dm.make_grid(dm.zeros(9, 3, 3, 5))))
  end)

  it("gives one image as it is", function()
    local x = dm.rand(1, 3, 4, 4)
    assert.is_true(dm.make_grid(x):equal(x[1]))
  end)

  it("normalizes by the range that is there, a given one, or each its own", function()
    local x = dm.tensor{{{{-2, 0, 2}}}, {{{4, 5, 6}}}}
    local o = {normalize = true, padding = 0}
    local flat = dm.make_grid(x, o):reshape(-1):totable()
    for i, want in ipairs{0, 0.25, 0.5, 0.75, 0.875, 1} do assert.near(want, flat[i], 1e-6) end
    o.value_range = {0, 4}
    assert.same({{{0, 0, 0.5, 1, 1, 1}}}, dm.make_grid(x, o):totable())
    o.value_range, o.scale_each = nil, true
    assert.same({{{0, 0.5, 1, 0, 0.5, 1}}}, dm.make_grid(x, o):totable())
    o.scale_each = false
    assert.equal(0, dm.make_grid(dm.ones(2, 1, 1, 1), o):max():item())
  end)

  it("refuses what are no images", function()
    assert.refuses("the list holds no image", function() dm.make_grid{} end)
    assert.refuses("tensor is 'x', wanted a tensor or a list", function() dm.make_grid "x" end)
    assert.refuses("image 2 has shape", function()
      dm.make_grid{dm.ones(1, 2, 2), dm.ones(2, 1, 2, 2)}
    end)
    assert.refuses("nrow is 0", function() dm.make_grid(dm.ones(2, 1, 2, 2), {nrow = 0}) end)
  end)
end)

describe("meshgrid", function()
  local a, b = dm.arange(1, 3), dm.arange(4, 5)

  it("repeats each tensor along the dims of the others", function()
    local x, y = dm.meshgrid(a, b)
    assert.same({{1, 1}, {2, 2}, {3, 3}}, x:totable())
    assert.same({{4, 5}, {4, 5}, {4, 5}}, y:totable())
    local p, q, r = dm.meshgrid({a, b, dm.tensor(7)}, {indexing = "ij"})
    assert.same({3, 2, 1}, shape(p))
    assert.same({{{4}, {5}}, {{4}, {5}}, {{4}, {5}}}, q:totable())
    assert.equal(7, r[{3, 2, 1}]:item())
  end)

  it("exchanges the first two dims for \"xy\"", function()
    local x, y = dm.meshgrid(a, b, {indexing = "xy"})
    assert.same({{1, 2, 3}, {1, 2, 3}}, x:totable())
    assert.same({{4, 4, 4}, {5, 5, 5}}, y:totable())
    assert.same({3}, shape((dm.meshgrid(a, {indexing = "xy"}))))
  end)

  it("gives views, with gradients", function()
    local x = dm.tensor{1.0, 2.0}:requires_grad_()
    local grid = dm.meshgrid(x, dm.zeros(5))
    grid:sum():backward()
    assert.same({5, 5}, x.grad:totable())
    assert.equal(x:data_ptr(), grid:data_ptr())
  end)

  it("refuses other arguments", function()
    assert.refuses("no tensors given", function() dm.meshgrid() end)
    assert.refuses("no tensors given", function() dm.meshgrid{} end)
    assert.refuses("argument 2 is a number", function() dm.meshgrid(a, 3) end)
    assert.refuses("argument 2 is of shape {2, 2}", function() dm.meshgrid(a, dm.ones(2, 2)) end)
    assert.refuses("indexing is 'xz'", function() dm.meshgrid(a, b, {indexing = "xz"}) end)
  end)
end)

if not has_png then
  describe("a build without libpng", function()
    it("gives nil and a message", function()
      for _, answer in ipairs{
        table.pack(dm.read_image(PATH)), table.pack(dm.save_image(dm.zeros(1, 1, 1), PATH)),
      } do
        assert.is_nil(answer[1])
        assert.is_truthy(answer[2]:find("this build knows no PNG files; hint", 1, true))
      end
    end)
  end)
  os.remove(PATH)
  return
end

describe("read_image and save_image", function()
  teardown(function() os.remove(PATH) end)

  it("give back uint8 images as they were", function()
    for _, channels in ipairs{1, 3} do
      local x = dm.randint(0, 255, {channels, 7, 5}, {dtype = "uint8"})
      assert.is_true(dm.save_image(x, PATH))
      local y = assert(dm.read_image(PATH))
      assert.equal("uint8", y.dtype)
      assert.is_true(y:equal(x:cpu()))
    end
  end)

  it("bring floats from 0..1 to 0..255, rounded and held there", function()
    local x = dm.tensor{{{-1, 0, 0.5, 1, 2, 1 / 255, 1.49 / 255, 1.51 / 255}}}
    for _, dtype in ipairs{"float32", "float64"} do
      assert.is_true(dm.save_image(x:to(dtype), PATH))
      assert.same({{{0, 0, 128, 255, 255, 1, 1, 2}}}, dm.read_image(PATH):totable())
    end
    assert.is_true(dm.save_image(dm.full({3, 2, 2}, 0.5, {dtype = "bfloat16"}), PATH))
    assert.equal(128, dm.read_image(PATH)[{2, 1, 1}]:item())
  end)

  it("take images with any strides, with history, and without channels", function()
    local x = dm.rand(4, 6, 3):permute(3, 1, 2):requires_grad_()
    assert.is_true(dm.save_image(x * 1, PATH))
    assert.is_true((dm.read_image(PATH):float() / 255 - x:cpu()):abs():max():item() < 0.003)
    assert.is_true(dm.save_image(dm.ones(4, 6), PATH))
    assert.same({1, 4, 6}, shape(dm.read_image(PATH)))
  end)

  it("read every kind: palette, few bits, 16 bits, alpha, interlaced", function()
    assert.same({{{0, 255}, {85, 170}}}, -- 2 bits
      values(png({width = 2, height = 2, bits = 2, color = 0}, "\0\x30\0\x60")))
    assert.same({{{1, 128}}},
      values(png({width = 2, height = 1, bits = 16, color = 0}, "\0\x01\x01\x80\x80")))
    assert.same({{{7}}, {{8}}}, values(png({width = 1, height = 1, color = 4}, "\0\7\8")))
    assert.same({{{1}}, {{2}}, {{3}}, {{4}}},
      values(png({width = 1, height = 1, color = 6}, "\0\1\2\3\4")))
    local palette = chunk("PLTE", "\10\20\30\40\50\60")
    assert.same({{{40, 10}}, {{50, 20}}, {{60, 30}}},
      values(png({width = 2, height = 1, color = 3, before = palette}, "\0\1\0")))
    local clear = palette .. chunk("tRNS", "\0") -- the first colour is transparent
    assert.same({{{40, 10}}, {{50, 20}}, {{60, 30}}, {{255, 0}}},
      values(png({width = 2, height = 1, color = 3, before = clear}, "\0\1\0")))
    assert.same({{{1, 2}, {3, 4}}}, -- three of Adam's seven passes
      values(png({width = 2, height = 2, color = 0, interlace = 1}, "\0\1\0\2\0\3\4")))
  end)

  local whole = png({width = 3, height = 3, color = 2}, ("\0" .. ("abc"):rep(3)):rep(3))

  it("refuse a file that is cut short, at every length", function()
    assert.is_truthy(read(whole))
    for n = 0, #whole - 1 do
      local x, message = read(whole:sub(1, n))
      assert.is_nil(x)
      assert.is_truthy(message:find("cut short", 1, true) or message:find "damaged", message)
    end
  end)

  it("refuse a file with a wrong byte, at every position", function()
    for n = 1, #whole do
      local x, message = read(whole:sub(1, n - 1) .. string.char(whole:byte(n) ~ 0x55)
        .. whole:sub(n + 1))
      -- an ancillary bit in a chunk's name makes it one to pass over
      if x then assert.same({3, 3, 3}, shape(x)) else assert.is_string(message) end
    end
  end)

  it("refuse sizes that the file cannot hold, before they take memory", function()
    local before = dm.memory_allocated()
    for _, size in ipairs{{100000, 100000}, {1 << 20, 1 << 20}, {2^31 - 1 | 0, 1}, {0, 5}} do
      dm.reset_peak_memory_stats()
      local x, message = read(png({width = size[1], height = size[2], color = 2}, "\0abc"))
      assert.is_nil(x)
      assert.is_truthy(message:find "damaged", message)
    end
    assert.equal(before, dm.max_memory_allocated())
  end)

  it("say what is no PNG file, and what cannot be opened", function()
    local x, message = read "GIF89a, and more"
    assert.is_nil(x)
    assert.is_truthy(message:find("neither PNG nor JPEG: it begins 47 49 46 38", 1, true))
    assert.is_truthy(select(2, dm.read_image "/no/such.png"):find "No such file")
    assert.is_truthy(select(2, dm.read_image "/"):find "regular file")
    assert.is_truthy(select(2, dm.save_image(dm.ones(1, 1), "/no/such.png")):find "No such")
  end)

  it("write all or nothing", function()
    assert.is_true(dm.save_image(dm.ones(1, 2, 2), PATH))
    local two = dm.ones(2, 2, 2)
    assert.refuses("2 channels, wanted 1 or 3", function() dm.save_image(two, PATH) end)
    assert.refuses("int64, wanted a float dtype or uint8", function()
      dm.save_image(dm.arange(4):reshape(1, 2, 2), PATH)
    end)
    assert.refuses("none of them 0", function() dm.save_image(dm.ones(1, 0, 2), PATH) end)
    assert.refuses("unknown option 'nrows'; did you mean 'nrow'", function()
      dm.save_image(dm.ones(1, 2, 2), PATH, {nrows = 2})
    end)
    assert.refuses("path is missing", function() dm.save_image(dm.ones(1, 2, 2)) end)
    assert.same({{{255, 255}, {255, 255}}}, dm.read_image(PATH):totable())
  end)
end)
