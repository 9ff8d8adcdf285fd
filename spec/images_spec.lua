-- Images in JPEG and PNG files: what is decoded, and what is refused.

local dm = require "demilune"
local golden = require "spec.golden.images"
local folder = require "spec.folder"

local HERE = "spec/golden/images/"

local function bytes_of(name)
  local f <close> = assert(io.open(HERE .. name, "rb"))
  return f:read "a"
end

-- What a build without the library says of its files; nil: it has that library.
local function lacks(name)
  local _, problem = dm.decode_image(bytes_of(name))
  return problem and problem:find("this build knows no", 1, true) and problem
end
local no_jpeg, no_png = lacks "gray.jpg", lacks "gray.png"
local function is_lacking(name) return name:find "%.jpg$" and no_jpeg or no_png end

local function values(digits, height, width, channels)
  local list = {}
  for pair in digits:gmatch "%x%x" do list[#list + 1] = tonumber(pair, 16) end
  return dm.tensor(list, {dtype = "uint8", device = "cpu"}):reshape(height, width, channels)
    :permute(3, 1, 2)
end

setup(folder.make)
teardown(folder.remove)

describe("read_image and decode_image", function()
  for _, case in ipairs(golden) do
    local name, mode, height, width, channels, digits = table.unpack(case)
    it(("give Pillow's values of %s, %s"):format(name, mode), function()
      if is_lacking(name) then return pending(is_lacking(name)) end
      local want = values(digits, height, width, channels)
      for _, got in ipairs{
        assert(dm.read_image(HERE .. name, {mode = mode})),
        assert(dm.decode_image(bytes_of(name), {mode = mode})),
      } do
        assert.equal("uint8", got.dtype)
        assert.same({table.unpack(want.shape)}, {table.unpack(got.shape)})
        assert.equal(0, (got:cpu():int() - want:int()):abs():max():item())
      end
    end)
  end

  it("leave an image as it is stored with exif = false", function()
    if no_jpeg then return pending(no_jpeg) end
    local stored = dm.read_image(HERE .. "orientation1.jpg")
    for orientation = 2, 8 do
      local path = ("%sorientation%d.jpg"):format(HERE, orientation)
      assert.is_true(dm.equal(stored, dm.read_image(path, {exif = false})))
      assert.is_false(dm.equal(stored, dm.read_image(path)))
    end
  end)

  it("take gray from the colours as Pillow does", function()
    if no_jpeg then return pending(no_jpeg) end
    local rgb = dm.read_image(HERE .. "baseline.jpg"):double()
    local gray = dm.read_image(HERE .. "baseline.jpg", {mode = "gray"})
    assert.same({1, 11, 19}, {table.unpack(gray.shape)})
    local want = rgb[1] * 0.299 + rgb[2] * 0.587 + rgb[3] * 0.114
    assert.is_true((gray[1]:double() - want):abs():max():item() < 0.51)
    assert.same({1, 11, 19}, {table.unpack(dm.read_image(HERE .. "gray.jpg").shape)})
  end)

  it("refuse what are no options, and what is no path", function()
    assert.refuses("read_image: mode is 'bgr', wanted 'unchanged', 'gray' or 'rgb'",
      function() dm.read_image("x", {mode = "bgr"}) end)
    assert.refuses("decode_image: unknown option 'exiv'; did you mean 'exif'",
      function() dm.decode_image("x", {exiv = true}) end)
    assert.refuses("decode_image: input is missing, wanted a string",
      function() dm.decode_image() end)
  end)
end)

-- ---- damaged files ----

local function refused(bytes)
  local x, message = dm.decode_image(bytes)
  assert.is_nil(x)
  return message
end

describe("a file", function()
  for _, name in ipairs{"baseline.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg",
    "restarts.jpg", "orientation6.png", "transparent.png"} do
    it(("%s that is cut short is refused, wherever it is cut"):format(name), function()
      if is_lacking(name) then return pending(is_lacking(name)) end
      local whole = bytes_of(name)
      for n = 0, #whole - 1 do
        local message = refused(whole:sub(1, n))
        assert.is_truthy(message:find("cut short", 1, true) or message:find "damaged"
          or message:find "cannot decode", message)
      end
    end)

    it(name .. " with wrong bytes gives an image or a message", function()
      if is_lacking(name) then return pending(is_lacking(name)) end
      collectgarbage()
      local whole, live = bytes_of(name), dm.memory_allocated()
      for n = 1, #whole do
        for _, flip in ipairs{0x01, 0x80, 0xff} do
          local x, message = dm.decode_image(whole:sub(1, n - 1)
            .. string.char(whole:byte(n) ~ flip) .. whole:sub(n + 1))
          if x then x:free() else assert.is_string(message) end
        end
      end
      collectgarbage()
      assert.equal(live, dm.memory_allocated())
    end)
  end

  it("whose header asks for more than its bytes can hold is refused before memory is taken",
    function()
      if no_jpeg then return pending(no_jpeg) end
      local whole = bytes_of "baseline.jpg"
      local at = assert(whole:find("\xff\xc0\0\17\8", 1, true)) + 5
      local function sized(height, width)
        return whole:sub(1, at - 1) .. (">I2I2"):pack(height, width) .. whole:sub(at + 4)
      end
      assert.is_truthy(dm.decode_image(sized(11, 19)))
      local before = dm.memory_allocated()
      dm.reset_peak_memory_stats()
      assert.matches("cannot hold the 8000 x 8000 image", refused(sized(8000, 8000)))
      assert.matches("is 65500 x 65500, at most %d+ pixels are read",
        refused(sized(65500, 65500)))
      assert.equal(before, dm.max_memory_allocated())
    end)

  it("of thousands of scans is refused soon", function()
    if no_jpeg then return pending(no_jpeg) end
    -- A scan with its tables, made one of whole values, which may come again and again.
    local whole, scan = bytes_of "progressive.jpg"
    for from, header in whole:gmatch "()(\xff\xda\0\8\1..\1%?\1)" do
      local first = from
      while whole:sub(first, first + 1) ~= "\xff\xc4" do first = first - 1 end
      local last = assert(whole:find("\xff\xc4", from, true)) - 1
      scan = scan or whole:sub(first, from - 1) .. header:sub(1, -2) .. "\0"
        .. whole:sub(from + #header, last)
    end
    local function with(n) return whole:sub(1, -3) .. scan:rep(n) .. "\xff\xd9" end
    assert(dm.decode_image(with(50)))
    assert.matches("more than 100 scans", refused(with(200)))
  end)

  it("that is neither, a folder, or not there is named", function()
    assert.matches("'a string' is neither PNG nor JPEG: it begins 47 49 46 38",
      refused "GIF89a, and more", 1, true)
    assert.matches("cut short", refused "")
    assert.matches("'/no/such.jpg': No such file", select(2, dm.read_image "/no/such.jpg"), 1, true)
    assert.matches("is not a regular file", select(2, dm.read_image "/"))
    if no_jpeg then return end
    local path = folder.write("cut.jpg", bytes_of("baseline.jpg"):sub(1, 400))
    local _, message = dm.read_image(path)
    assert.matches(path .. "' is cut short", message, 1, true)
  end)
end)

-- ---- Exif that makes no sense ----

describe("Exif", function()
  local whole, at

  -- orientation6.jpg with other bytes from position `from` (0: the byte order) of its metadata on.
  local function with(from, bytes)
    return whole:sub(1, at + from - 1) .. bytes .. whole:sub(at + from + #bytes)
  end
  local function is_turned(bytes)
    local x = assert(dm.decode_image(bytes))
    return x:size(2) == 19
  end

  setup(function()
    whole = bytes_of "orientation6.jpg"
    at = assert(select(2, whole:find("Exif\0\0", 1, true))) + 1
  end)

  it("turns an image only where it is sound", function()
    if no_jpeg then return pending(no_jpeg) end
    assert.equal("MM\0\42\0\0\0\8\0\1\1\18\0\3\0\0\0\1\0\6", whole:sub(at, at + 19))
    assert.is_true(is_turned(whole))
    for name, bytes in pairs{
      ["another byte order"] = with(0, "XX"), ["two byte orders"] = with(0, "IM"),
      ["no 42"] = with(2, "\0\43"), ["a folder beyond the end"] = with(4, "\xff\xff\xff\xff"),
      ["a folder at the end"] = with(4, "\0\0\0\x1a"), ["no entries"] = with(8, "\0\0"),
      ["another tag"] = with(10, "\1\19"), ["another type"] = with(12, "\0\4"),
      ["two of them"] = with(14, "\0\0\0\2"), ["orientation 0"] = with(18, "\0\0"),
      ["orientation 9"] = with(18, "\0\9"), ["orientation 262"] = with(18, "\1\6"),
    } do
      assert.is_false(is_turned(bytes), name)
    end
    assert.is_true(is_turned(with(8, "\xff\xff"))) -- found before the entries run out
    assert.is_true(is_turned(with(0, "II\42\0\8\0\0\0\1\0\18\1\3\0\1\0\0\0\6\0")))
  end)
end)
