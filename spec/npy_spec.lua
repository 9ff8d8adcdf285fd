-- read_npy and read_npz read files of NumPy and of write_npy, in every dtype, and survive any
-- damaged file.
local dm = require "demilune"
local folder = require "spec.folder"
local data = dm.data
setup(folder.make)
teardown(folder.remove)

local function bytes_of(hex)
  return (hex:gsub("%s", ""):gsub("%x%x", function(b) return string.char(tonumber(b, 16)) end))
end

-- What NumPy 2.4.6 writes for np.asfortranarray([[1.5, -2, 3], [11.5, 8, 13]], "f4"), and
-- with savez_compressed for x = np.arange(6, dtype="i2").reshape(2, 3), flag = True.
local NPY = bytes_of [[
934E554D5059010076007B276465736372273A20273C6634272C2027666F727472616E5F6F72646572273A20547275
652C20277368617065273A2028322C2033292C207D2020202020202020202020202020202020202020202020202020
2020202020202020202020202020202020202020202020202020202020202020200A
0000C03F00003841000000C0000000410000404000005041]]
local NPZ = bytes_of [[
504B03042D0000000800000021001A4E987EFFFFFFFFFFFFFFFF05001400782E6E7079010010008C00000000000000
52000000000000009BEC17EA1B10C9C850C650AD9E925A9C5CA46EA5A06E9369A4AEA3A09E965F54529498179F5F94
920A12774BCC294E058A17672416A402F91A463A0AC69A3A0AB50A64032E06064606260666061606560600504B0304
2D000000080000002100822DF8D3FFFFFFFFFFFFFFFF08001400666C61672E6E707901001000810000000000000043
000000000000009BEC17EA1B10C9C850C650AD9E925A9C5CA46EA5A05E9364A8AEA3A09E965F54529498179F5F9492
0A12774BCC294E058A17672416A402F91A9A3A0AB50A14012E4600504B01022D032D0000000800000021001A4E987E
520000008C000000050000000000000000000000800100000000782E6E7079504B01022D032D000000080000002100
822DF8D34300000081000000080000000000000000000000800189000000666C61672E6E7079504B05060000000002
00020069000000060100000000]]

local function read(kind, bytes)
  return data["read_" .. kind](folder.write("t." .. kind, bytes))
end

describe("read_npy", function()
  it("reads what NumPy writes", function()
    local t = assert(read("npy", NPY))
    assert.equal("float32", t.dtype)
    assert.same({{1.5, -2, 3}, {11.5, 8, 13}}, t:totable())
  end)

  it("reads what was written, in every dtype and shape", function()
    local path = folder.path "x.npy"
    for _, dtype in ipairs{"float16", "float32", "float64", "bool", "int8", "int16", "int32",
      "int64", "uint8"} do
      for _, shape in ipairs{{}, {0}, {5}, {2, 3}, {2, 0, 3}, {2, 1, 3}} do
        local x = dm.randint(0, 1, shape):to(dtype)
        assert(data.write_npy(path, x))
        local y = assert(data.read_npy(path))
        assert.equal(dtype, y.dtype)
        assert.same(shape, {table.unpack(y.shape)})
        assert.is_true(dm.equal(x:cpu(), y))
      end
    end
    local turned = dm.arange(1, 6, 1):reshape(2, 3):t()
    assert(data.write_npy(path, turned))
    assert.same(turned:totable(), data.read_npy(path):totable())
    assert.error_matches(function() data.write_npy(path, dm.ones(1):bfloat16()) end, "no bfloat16")
    assert.same(turned:totable(), data.read_npy(path):totable()) -- the file is as it was
    assert.is_nil((data.write_npy(folder.path "no/such/folder/x.npy", turned)))
  end)

  it("is nil and why where the file is broken", function()
    local function fails(pattern, bytes)
      local t, why = read("npy", bytes)
      assert.is_nil(t)
      assert.matches(pattern, why)
    end
    fails("no NumPy array", "hello")
    fails("no NumPy array", "")
    fails("head is cut", NPY:sub(1, 50))
    fails("20 bytes of data, its shape wants 24", NPY:sub(1, -5))
    fails("25 bytes of data", NPY .. "x")
    fails("'>f4', which is not read", (NPY:gsub("<f4", ">f4")))
    fails("'<c8', which is not read", (NPY:gsub("<f4", "<c8")))
    fails("not understood", (NPY:gsub("shape", "shade")))
    fails("too large", (NPY:gsub("%(2, 3%), }" .. (" "):rep(40),
      "(99999999999, 99999999999, 9999999999999), }" .. (" "):rep(6))))
    for _, shape in ipairs{"1,1,1,1,1,1,1,1,1,1,1,1,1,1,2,1,3", "0, 9223372036854775807",
      "4294967296, 4294967296, 0, 4294967296", "99999999999999999999, 0"} do
      fails("its shape", (NPY:gsub("%(2, 3%), }" .. (" "):rep(40),
        function(all) return ("(%s), }"):format(shape) .. (" "):rep(#all - #shape - 5) end)))
    end
    fails("unknown", (NPY:gsub("^(......).", "%1\9")))
    assert.is_nil((data.read_npy(folder.path "nowhere.npy")))
    assert.matches("regular file", select(2, data.read_npy(folder.path())))
  end)
end)

describe("read_npz", function()
  it("reads what NumPy compresses", function()
    local t = assert(read("npz", NPZ))
    assert.same({{0, 1, 2}, {3, 4, 5}}, t.x:totable())
    assert.equal("int16", t.x.dtype)
    assert.equal(true, t.flag:item())
  end)

  it("reads what was written", function()
    local path = folder.path "x.npz"
    local x, y = dm.randn(3, 4), dm.arange(1, 9, 1)
    assert(data.write_npz(path, {x = x, ["layer.1/y"] = y}))
    local t = assert(data.read_npz(path))
    assert.is_true(dm.equal(x:cpu(), t.x) and dm.equal(y:cpu(), t["layer.1/y"]))
    -- NumPy takes a name for UTF-8 where bit 11 of the flags says so, at byte 7 of an entry.
    assert(data.write_npz(path, {["\u{e9}\u{6f22}"] = x}))
    assert.equal(1 << 11, (("<I2"):unpack(assert(io.open(path, "rb")):read "a", 7)))
    assert.is_true(dm.equal(x:cpu(), data.read_npz(path)["\u{e9}\u{6f22}"]))
    assert(data.write_npz(path, {}))
    assert.is_nil(next(data.read_npz(path)))
    assert.error_matches(function() data.write_npz(path, {3}) end, "a name is a number")
    assert.error_matches(function() data.write_npz(path, {a = 3}) end, "a: wanted a tensor")
  end)

  it("is nil and why where the file is broken", function()
    local function fails(pattern, bytes)
      local t, why = read("npz", bytes)
      assert.is_nil(t)
      assert.matches(pattern, why)
    end
    fails("no directory", "hello")
    fails("no directory", NPZ:sub(1, -3))
    local at = NPZ:find("PK\1\2", 1, true)
    fails("directory is broken", NPZ:sub(1, at) .. "x" .. NPZ:sub(at + 2))
    local packed = NPZ:find("\x9b\xec\x17", 1, true)
    fails("'x.npy' holds deflated", NPZ:sub(1, packed + 20) .. "\0\0\0" .. NPZ:sub(packed + 24))
  end)

  it("stands any change of a byte, and any cut", function()
    math.randomseed(7)
    for _ = 1, 400 do
      local at = math.random(#NPZ)
      local t, why = read("npz", NPZ:sub(1, at - 1) .. string.char(math.random(0, 255))
        .. NPZ:sub(at + 1))
      assert.is_true(type(t) == "table" or type(why) == "string")
      t, why = read("npz", NPZ:sub(1, math.random(0, #NPZ - 1)))
      assert.is_nil(t)
      assert.equal("string", type(why))
    end
  end)
end)
