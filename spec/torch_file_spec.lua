-- dm.load reads what PyTorch, NumPy and Hugging Face's library write, and no file can do more
-- than end in a message.
-- scripts/golden/files.py writes spec/golden/files.

local dm = require "demilune"
local core = require "demilune.core"
local hooks = core._test
local archive = require "spec.archive"
local folder = require "spec.folder"
local DEVICE = require("spec.device").type
setup(folder.make)
teardown(folder.remove)

local GOLDEN = "spec/golden/files/"

local function shape(t) return {table.unpack(t.shape)} end

-- ---- files of PyTorch ----

for _, file in ipairs{"tree.pt", "old.pt"} do
  describe("dm.load of torch.save's " .. file, function()
    local tree = assert(dm.load(GOLDEN .. file))

    it("gives tensors of each dtype", function()
      local n = 0
      for dtype, t in pairs(tree.numbers) do
        assert.equal(dtype, t.dtype)
        assert.is_true(dm.equal(dm.tensor({{1, 0, 3}, {0, 5, 6}}, {device = "cpu"}):to(dtype), t))
        n = n + 1
      end
      assert.equal(10, n)
    end)

    it("gives views as they look, on one storage where they shared one", function()
      assert.same({{0, 1, 2}, {3, 4, 5}}, tree.x:totable())
      assert.same({{0, 3}, {1, 4}, {2, 5}}, tree.turned:totable())
      assert.same({3, 4, 5}, tree.row:totable())
      assert.same({{0, 2}, {3, 5}}, tree.steps:totable())
      assert.same({{7, 7}, {7, 7}, {7, 7}}, tree.wide:totable())
      assert.same({0, 1, 2}, tree.parameter:totable())
      assert.is_false(tree.parameter.requires_grad)
      assert.equal(2.5, tree.scalar:item())
      assert.same({2, 0, 3}, shape(tree.empty))
      tree.x[{2, 1}] = 30
      assert.equal(30, tree.turned[{1, 2}]:item())
      assert.equal(30, tree.row[1]:item())
      tree.x[{2, 1}] = 3
    end)

    it("gives plain values", function()
      assert.same({b = 1, a = 2}, tree.ordered)
      assert.same({0, -1, 300, 70000, math.mininteger, math.maxinteger}, tree.whole)
      assert.same({0.5, math.huge, -0.0}, tree.floats)
      assert.equal(-math.huge, 1 / tree.floats[3])
      assert.equal("häuser €", tree.text)
      assert.equal("\0\xff", tree.bytes)
      assert.equal(true, tree.yes)
      assert.is_nil(tree.none)
      assert.same({1, nil, n = 2}, tree.holes)
      assert.same({"a", {2, {}}}, tree.pair)
      assert.equal("five", tree[5])
      assert.same({2, 3}, tree.size)
      assert.equal("float16", tree.dtype)
      assert.equal("cuda:1", tree.device)
    end)

    it("is a message for every file that is cut", function()
      local bytes = assert(io.open(GOLDEN .. file, "rb")):read "a"
      for n = 0, #bytes - 1, 11 do
        local got, why = dm.load(folder.write("cut.pt", bytes:sub(1, n)))
        assert.is_nil(got)
        assert.is_string(why)
      end
    end)

    it("answers any change of a byte", function()
      local bytes = assert(io.open(GOLDEN .. file, "rb")):read "a"
      math.randomseed(11)
      for _ = 1, 300 do
        local at = math.random(#bytes)
        local got, why = dm.load(folder.write("changed.pt", bytes:sub(1, at - 1)
          .. string.char(math.random(0, 255)) .. bytes:sub(at + 1)))
        assert.is_true(got ~= nil or type(why) == "string")
      end
    end)

    it("puts tensors on the device, and frees what a failing allocation left", function()
      assert.equal(DEVICE, dm.load(GOLDEN .. file, {map_location = DEVICE}).x.device:match "^%a+")
      for n = 1, 200 do
        collectgarbage()
        local live = hooks.alloc_live()
        hooks.alloc_fail_at(n, true)
        local ok, message = pcall(dm.load, GOLDEN .. file)
        hooks.alloc_fail_at(0, false)
        if ok then return end
        assert.matches("memory", message)
        collectgarbage()
        assert.equal(live, hooks.alloc_live())
      end
      error "200 allocations did not do"
    end)
  end)
end

local text, name, int = archive.text, archive.name, archive.int
local FLOATS = ("<f"):rep(4):pack(1, 2, 3, 4)

describe("dm.load of what torch.save writes", function()
  local function loaded(opcodes, storages)
    return assert(dm.load(folder.write("some.pt", archive.torch(opcodes, storages))))
  end

  it("reads bytes without any, and bytearrays, as protocols 2 to 4 have them", function()
    local function make(module, kind, arguments) return name(module, kind) .. arguments .. "R" end
    local latin = name("_codecs", "encode") .. "(" .. text "a\u{ff}" .. text "latin1" .. "tR"
    assert.same({"", "", "a\xff", "a\xff"}, loaded("(" .. make("__builtin__", "bytes", ")")
      .. make("builtins", "bytearray", ")") .. make("__builtin__", "bytearray", latin .. "\x85")
      .. make("builtins", "bytearray", "C\2a\xff\x85") .. "l"))
    local got, why = dm.load(folder.write("some.pt", archive.torch(make("builtins", "bytearray",
      "K\5\x85"))))
    assert.is_nil(got)
    assert.matches("builtins.bytearray is not made of bytes", why)
  end)

  it("reads a Counter, in which a MultiStepLR stores its milestones, as a dict", function()
    local counter = name("collections", "Counter")
    assert.same({{[3] = 1, [7] = 2}, {}}, loaded("(" .. counter .. "}(K\3K\1K\7K\2u\x85R"
      .. counter .. ")Rl"))
    for _, wrong in ipairs{"]", "K\3", text "ab"} do
      local got, why = dm.load(folder.write("some.pt", archive.torch(counter .. wrong .. "\x85R")))
      assert.is_nil(got)
      assert.matches("a Counter is made of no dict", why)
    end
  end)

  -- torch.zeros(0, 4)[:, 2] begins at element 2 of a storage of none.
  it("reads an empty view, wherever it begins", function()
    local t = loaded(archive.tensor{size = {0}, stride = {4}, offset = 2, n = 0}, {["0"] = ""})
    assert.same({0}, shape(t))
    assert.equal("float32", t.dtype)
  end)

  it("reads files from before archives in each protocol", function()
    local old = assert(io.open(GOLDEN .. "old.pt", "rb")):read "a"
    for _, head in ipairs{"\x80\3", "\x80\4\x95\13\0\0\0\0\0\0\0",
      "\x80\5\x95\13\0\0\0\0\0\0\0"} do
      local tree = assert(dm.load(folder.write("old.pt", head .. old:sub(3))))
      assert.same({{0, 1, 2}, {3, 4, 5}}, tree.x:totable())
    end
  end)
end)

-- ---- hostile files ----

local function refuses(pattern, bytes)
  local got, why = dm.load(folder.write("hostile.pt", bytes))
  assert.is_nil(got)
  assert.matches(pattern, why)
  assert.matches("hostile", why)
end
local function refuses_pickle(pattern, opcodes, storages)
  refuses(pattern, archive.torch(opcodes, storages or {["0"] = FLOATS}))
end

describe("A hostile pickle", function()
  it("that calls something is refused by its name, and nothing is run", function()
    local mark = folder.path "ran"
    local arguments = "(" .. text("touch " .. mark) .. "tR"
    refuses_pickle("would call os%.system", name("os", "system") .. arguments)
    refuses_pickle("would call posix%.system", text "posix" .. text "system" .. "\x93" .. arguments)
    refuses_pickle("would call builtins%.eval", name("builtins", "eval") .. arguments)
    refuses_pickle("would call __main__%.Net; hint: .*state_dict", name("__main__", "Net") .. ")R")
    refuses_pickle("would call os%.system", "(" .. text "x" .. "ios\nsystem\n")
    refuses_pickle("would call os%.execute", name("os", "execute") .. arguments)
    refuses_pickle("would call .*%?%?", name("\27[2J", "\1") .. arguments)
    refuses_pickle("an instance of a class", "(" .. name("collections", "OrderedDict") .. "o")
    refuses_pickle("an instance of a class", name("collections", "OrderedDict") .. ")\x81")
    refuses_pickle("what a number stands for", "\x82\1")
    refuses_pickle("what is no function", text "os.system" .. ")R")
    refuses_pickle("what is no function", name("torch", "FloatStorage") .. ")R")
    refuses_pickle("set the attributes", "]}b")
    assert.is_nil(io.open(mark))
  end)

  it("whose stack, marks or memo do not hold is refused", function()
    refuses_pickle("it holds None", "N")
    refuses_pickle("more from its stack", "")
    refuses_pickle("more from its stack", "00")
    refuses_pickle("more from its stack", "N(0")
    refuses_pickle("more from its stack", "N\x86")
    refuses_pickle("a mark is missing", "Nt")
    refuses_pickle("fills what is no list", "}Na")
    refuses_pickle("fills what is no dict", "]NNs")
    refuses_pickle("fills what is no dict", "(NNu")
    refuses_pickle("has no value", "}(" .. text "k" .. "u")
    refuses_pickle("recalls value 7", "h\7")
    refuses_pickle("recalls value 4294967295", "j\xff\xff\xff\xff")
    refuses_pickle("opcode 0x7a", "z")
    refuses_pickle("protocol 6", "\x80\6N")
    refuses_pickle("holds a set", "\x8f")
    refuses_pickle("a key of a dict is a list", "}]Ns")
    refuses_pickle("a key of a dict is None", "}NNs")
    refuses_pickle("a key of a dict is NaN", "}G\x7f\xf8\0\0\0\0\0\0Ns")
    refuses_pickle("holds itself", "]q\0h\0a")
    refuses_pickle("deeper than 32", ("]"):rep(40) .. ("a"):rep(39))
    refuses_pickle("deeper than 32", ("]"):rep(100000) .. ("a"):rep(99999))
    refuses_pickle("more than 4194304", ("N"):rep(5000000))
    refuses_pickle("more than 4194304 tables", ("]0"):rep(5000000))
    refuses_pickle("where a value belongs", "]" .. name("torch", "FloatStorage") .. "a")
    refuses_pickle("where a value belongs", archive.storage{n = 4})
  end)

  it("whose lengths are a lie is refused before memory is asked for", function()
    for _, opcodes in ipairs{"X\xff\xff\xff\xff", "\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
      "\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "T\xff\xff\xff\xff", "\x8b\xff\xff\xff\x7f",
      "\x8b\xff\xff\xff\xff", "\x95\0\0\0", "K", "cos"} do
      refuses_pickle("it is cut short", opcodes)
    end
    refuses_pickle("an integer of 9 bytes", "\x8a\9" .. ("\1"):rep(9))
  end)

  it("with a tensor that is none is refused", function()
    local function tensor(pattern, o)
      o.n = o.n or 4
      refuses_pickle(pattern, archive.tensor(o))
    end
    tensor("beyond its storage of 4", {size = {5}, stride = {1}})
    tensor("beyond its storage of 4", {size = {2, 2}, stride = {3, 1}})
    tensor("beyond its storage of 4", {size = {2}, stride = {math.maxinteger}})
    tensor("beyond its storage of 4", {size = {1}, stride = {1}, offset = 4})
    tensor("begins at element 9223372036854775807", {size = {2}, stride = {1},
      offset = math.maxinteger})
    tensor("begins at element %-1", {size = {1}, stride = {1}, offset = -1})
    tensor("size %-1 and stride 1", {size = {-1}, stride = {1}})
    tensor("size 2 and stride %-1", {size = {2}, stride = {-1}, offset = 1})
    tensor("too large", {size = {1 << 31, 1 << 31}, stride = {0, 0}})
    tensor("too large", {size = {0, math.maxinteger}, stride = {1, 1}})
    tensor("the strides of a tensor is not", {size = {2, 2}, stride = {1}})
    local many = {}
    for i = 1, 100 do many[i] = 1 end
    tensor("the shape of a tensor is not", {size = many, stride = many})
    tensor("ComplexFloatStorage, a dtype that is not read", {size = {1}, stride = {1},
      kind = "ComplexFloatStorage"})
    tensor("storage \"gone\" is not there", {size = {1}, stride = {1}, key = "gone"})
    tensor("has 16 bytes, wanted 5 of float32", {size = {1}, stride = {1}, n = 5})
    tensor("has 16 bytes, wanted 1152921504606846976 of float64", {size = {1}, stride = {1},
      n = 1 << 60, kind = "DoubleStorage"})
    tensor("storage is not understood", {size = {1}, stride = {1}, n = -4})
    refuses_pickle("named in two ways", "(" .. archive.storage{n = 4} .. archive.storage{n = 2,
      kind = "DoubleStorage"} .. "t")
    refuses_pickle("a tensor has no storage", name("torch._utils", "_rebuild_tensor")
      .. "(N" .. int(0) .. "))tR")
    local function named(field) return "}" .. text(field) .. text "x" .. "s" end
    refuses_pickle("a tensor has no storage", name("torch._utils", "_rebuild_tensor")
      .. "(" .. named "tensor" .. int(0) .. "))tR")
    refuses_pickle("what is no function", named "call" .. ")R")
    refuses_pickle("a storage without a type", "(" .. text "storage" .. named "dtype" .. text "0"
      .. text "cpu" .. int(4) .. "tQ")
    refuses_pickle("negated", name("torch._utils", "_rebuild_tensor_v2") .. "("
      .. archive.storage{n = 4} .. int(0) .. "))\x89}\x88tR")
    refuses_pickle("the arguments of torch%._utils%._rebuild_tensor_v2",
      name("torch._utils", "_rebuild_tensor_v2") .. ")R")
    for pattern, arguments in pairs{["coded as rot13"] = text "a" .. text "rot13",
      ["character above 255"] = text "\u{100}" .. text "latin1", ["above 255"] = text "\xff"
      .. text "latin1", ["coded as 3"] = text "a" .. int(3)} do
      refuses_pickle(pattern, name("_codecs", "encode") .. "(" .. arguments .. "tR")
    end
    refuses_pickle("a parameter is no tensor", name("torch._utils", "_rebuild_parameter")
      .. "(N\x89}tR")
  end)

  it("in a file from before archives is refused too", function()
    local magic = "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    local function old(opcodes, rest)
      return magic .. "\x80\2M\xe9\3.\x80\2}" .. text "little_endian" .. "\x88s.\x80\2" .. opcodes
        .. "." .. (rest or "")
    end
    local one = {size = {4}, stride = {1}, n = 4}
    local keys = "\x80\2]" .. text "0" .. "a."
    assert.same({1, 2, 3, 4}, dm.load(folder.write("hostile.pt", old(archive.tensor(one),
      keys .. ("<i8"):pack(4) .. FLOATS))):totable())
    refuses("would call os%.system", old(name("os", "system") .. ")R"))
    refuses("larger than the file", old(archive.tensor{size = {1}, stride = {1}, n = 1 << 40}))
    refuses("cut short", old(archive.tensor(one), keys .. ("<i8"):pack(4) .. FLOATS:sub(2)))
    refuses("another size", old(archive.tensor(one), keys .. ("<i8"):pack(3) .. FLOATS))
    refuses("something follows", old(archive.tensor(one), keys .. ("<i8"):pack(4) .. FLOATS .. "x"))
    refuses("is not there", old(archive.tensor(one), "\x80\2]."))
    refuses("names a storage wrongly", old(archive.tensor(one), "\x80\2NQ."))
    refuses("names a storage wrongly", old(archive.tensor(one), "\x80\2)Q."))
    refuses("of no tensor", old(archive.tensor(one), "\x80\2]" .. text "1" .. "a."))
    refuses("another machine", magic .. "\x80\2M\xe9\3.\x80\2}.N.")
  end)
end)

describe("A hostile archive", function()
  local pickle = {"archive/data.pkl", "\x80\2" .. archive.tensor{size = {4}, stride = {1}, n = 4}
    .. "."}
  local function with(more, bytes)
    return archive.zip{pickle, {"archive/data/0", bytes or FLOATS, more}}
  end

  it("is told from a sound one", function()
    local path = folder.write("sound.pt", with())
    assert.same({1, 2, 3, 4}, dm.load(path):totable())
    folder.write("sound.pt", archive.zip({pickle, {"archive/data/0", FLOATS}}, "a comment"))
    assert.same({1, 2, 3, 4}, dm.load(path):totable())
    local wide = {size = 0xffffffff, packed = 0xffffffff, extra = ("<I2I2I8I8"):pack(1, 16, 16, 16)}
    folder.write("sound.pt", with(wide))
    assert.same({1, 2, 3, 4}, dm.load(path):totable())
    wide.extra = ("<I2I2I8I8"):pack(1, 16, 1 << 63, 16)
    refuses("directory is broken", with(wide))
    wide.extra = ("<I2I2I8"):pack(1, 8, 16)
    refuses("directory is broken", with(wide))
  end)

  it("with entries that overlap is refused", function()
    local inner = archive.zip{{"archive/data/0", FLOATS}}
    refuses("overlaps", archive.zip{{"archive/data/1", inner}, {"archive/data/0", "",
      {at = 44, packed = 16, size = 16, crc = core._crc32(FLOATS)}}})
    refuses("is there twice", archive.zip{pickle, pickle})
    refuses("overlaps", archive.zip{pickle, {pickle[1], "", {at = 0, packed = #pickle[2],
      size = #pickle[2], crc = core._crc32(pickle[2])}}})
    refuses("overlaps the directory", with({packed = 40, size = 40, crc = 0}))
  end)

  it("that says one thing in its directory, another before an entry is refused", function()
    refuses("another name in its head", with{head = {name = "archive/data/1"}})
    refuses("one size in the directory", with{head = {size = 12, packed = 12}})
    refuses("two checksums", with{head = {crc = 1}})
    refuses("packed in one way", with{head = {method = 8}})
    refuses("is not where the directory says", with{at = 3})
    refuses("outside the archive", with{at = 0xfffffffe})
  end)

  it("that would unpack to more than it can is refused as that", function()
    refuses("which they cannot", with{method = 8, size = 1 << 30})
    refuses("which they cannot", with{size = 17})
    -- 4 entries of 300 MiB in 1.2 MB: each is possible, all of them are a bomb
    local entries = {}
    for i = 1, 4 do
      entries[i] = {"archive/data/" .. i, ("\0"):rep(310000), {method = 8, size = 300 << 20}}
    end
    refuses("zip bomb", archive.zip(entries))
  end)

  it("that is damaged, encrypted or in parts is refused", function()
    refuses("wrong checksum", with({crc = 7}))
    refuses("deflated bytes that are broken", with({method = 8, size = 16}))
    refuses("is encrypted", with{flags = 1})
    refuses("method 12", with{method = 12})
    refuses("NUL in its name", archive.zip{{"archive/da\0ta", "x"}})
    refuses("another machine", archive.zip{pickle, {"archive/byteorder", "big"}})
    refuses("TorchScript", archive.zip{pickle, {"archive/constants.pkl", ""}})
    refuses("neither torch.save nor NumPy: it holds readme", archive.zip{{"readme", "x"}})
    refuses("several", (archive.zip{pickle}:gsub("PK\5\6\0\0", "PK\5\6\1\0")))
    local tree = assert(io.open(GOLDEN .. "tree.pt", "rb")):read "a"
    local last = #tree - 21 -- its record of large numbers lies before the end
    refuses("two directories", tree:sub(1, last + 11) .. "\1\0\0\0" .. tree:sub(last + 16))
    refuses("is not where it is said", tree:sub(1, last - 13) .. "\0" .. tree:sub(last - 11))
    refuses("not as long as it says", (archive.zip{pickle}:gsub("(PK\5\6....)....", "%1\9\0\9\0")))
  end)
end)

describe("dm.load", function()
  it("says what other files are", function()
    refuses("HDF5", "\x89HDF\r\n\26\n")
    refuses("GGUF", "GGUF\3\0\0\0")
    refuses("Python pickle, but none of torch.save", "\x80\4N.")
    refuses("gzip", "\x1f\x8b\8\0")
    refuses("safetensors", "hello, world")
  end)

  it("reads and writes NumPy's files", function()
    for _, file in ipairs{"arrays.npz", "packed.npz"} do
      local t = assert(dm.load(GOLDEN .. file))
      assert.same({{0, 1, 2}, {3, 4, 5}}, t.x:totable())
      assert.equal(true, t.flag:item())
      assert.equal(DEVICE, dm.load(GOLDEN .. file, {device = DEVICE}).x.device:match "^%a+")
    end
    local x, path = dm.randn(3, 2), folder.path "x.npy"
    assert(dm.save(path, x))
    assert.is_true(dm.equal(x:cpu(), dm.load(path)))
    path = folder.path "x.NPZ"
    assert(dm.save(path, {x = x}))
    assert.is_true(dm.equal(x:cpu(), dm.load(path).x))
    assert.equal("PK", folder.read("x.NPZ"):sub(1, 2))
  end)

  it("reads tensors that an index scatters over files", function()
    local want = assert(dm.load(GOLDEN .. "gpt2/model.safetensors.index.json"))
    local n = 0
    for key, t in pairs(assert(dm.load(GOLDEN .. "gpt2"))) do
      assert.is_true(dm.equal(want[key], t))
      n = n + 1
    end
    assert.equal(28, n)
    assert(dm.safetensors_write(folder.path "a", {x = dm.ones(2), y = dm.ones(1)}, {}))
    local some = assert(dm.load(folder.write("index.json", '{"weight_map": {"x": "a"}}')))
    assert.same({1, 1}, some.x:totable())
    assert.is_nil(some.y) -- the index says what there is
  end)

  it("refuses an index that lies", function()
    assert(dm.safetensors_write(folder.path "a", {x = dm.ones(2)}, {}))
    local function index(pattern, json)
      local got, why = dm.load(folder.write("index.json", json))
      assert.is_nil(got)
      assert.matches(pattern, why)
    end
    index("y is not in a", '{"weight_map": {"y": "a"}}')
    index("no file beside it", '{"weight_map": {"x": "../a"}}')
    index("no file beside it", '{"weight_map": {"x": "/etc/passwd"}}')
    index("no file beside it", '{"weight_map": {"x": ".."}}')
    index("no file beside it", '{"weight_map": {"x": 3}}')
    index("cannot open .*gone", '{"weight_map": {"x": "gone"}}')
    index("is an index itself", '{"weight_map": {"x": "index.json"}}')
    index("no weight_map", '{"a": 1}')
    index("no weight_map", '{"a": ')
  end)
end)
