-- dm.save and dm.load keep every bit and structure of a tree (plumbing), and survive full disks,
-- damaged files and failed allocations. Tensors of any device load on the CPU.

local dm = require "demilune"
local hooks = require("demilune.core")._test

local folder = require "spec.folder"
local path, read, write, run = folder.path, folder.read, folder.write, folder.run
setup(folder.make)
teardown(folder.remove)

local function round_trip(tree)
  assert(dm.save(path "trip", tree))
  return assert(dm.load(path "trip"))
end

local function assert_equal_tensors(want, got)
  assert.equal(want.dtype, got.dtype)
  assert.same({table.unpack(want.shape)}, {table.unpack(got.shape)})
  assert.equal("cpu", got.device)
  assert.is_true(dm.equal(want:cpu(), got))
end

-- The bytes of a tensor as saved, so that NaN and -0 compare by their bits.
local function same_number(a, b)
  return math.type(a) == math.type(b) and (a == b and 1 / a == 1 / b or a ~= a and b ~= b)
end

describe("Plain values:", function()
  it("numbers keep their kind and every bit", function()
    for _, v in ipairs{0, 1, -1, 2^53 | 0, (2^53 | 0) + 1, math.maxinteger, math.mininteger, 0.0,
      -0.0, 1.0, 0.1, 1e300, 5e-324, 2^53, 1e22, math.pi, math.huge, -math.huge, 0 / 0} do
      local got = round_trip{v = v}.v
      assert.is_true(same_number(v, got), tostring(v) .. " came back as " .. tostring(got))
    end
  end)

  it("strings keep any bytes, tables their keys", function()
    local all = {}
    for b = 0, 255 do all[#all + 1] = string.char(b) end
    local tree = {
      text = "häuser \n\t\"\\ €", bytes = table.concat(all), empty_text = "",
      yes = true, no = false, empty = {}, list = {1, 2.5, "x", {}, {1}},
      sparse = {[1] = "a", [3] = "c"}, keyed = {[10] = 1, [-1] = 2, [2.5] = 3, [true] = 4},
      mixed = {1, 2, name = "n"}, dollar = {["$float"] = "no", ["$x"] = 1},
      ["\0\255"] = {["a.b"] = 1, [""] = 2},
    }
    local got = round_trip(tree)
    assert.same(tree, got)
    assert.same({"integer", "float"}, {math.type(got.list[1]), math.type(got.list[2])})
  end)

  it("the tree may be a single value", function()
    assert.equal(3, round_trip(3))
    assert.equal(false, dm.save(path "f", false) and dm.load(path "f"))
    assert_equal_tensors(dm.ones(2), round_trip(dm.ones(2)))
  end)

  it("what is no data is refused, with its path, at the caller's line", function()
    local function message_of(tree)
      local ok, message = pcall(function() dm.save(path "x", tree) end)
      assert.is_false(ok)
      assert.matches("^spec/io_spec.lua:%d+: save: ", message)
      return message
    end
    assert.matches("model.f is a function", message_of{model = {f = print}})
    assert.matches("model.2 is a userdata", message_of{model = {1, io.stdout}})
    assert.matches("model.co is a thread", message_of{model = {co = coroutine.create(print)}})
    assert.matches("a key that is a table", message_of{model = {[{}] = 1}})
    local loop = {}
    loop.inner = {loop}
    assert.matches("inner.1 holds itself", message_of(loop))
    local deep = {}
    for _ = 1, 100 do deep = {deep} end
    assert.matches("deeper than", message_of(deep))
    assert.has_error(function() dm.save({}, "x") end)
    assert.has_error(function() dm.load() end)
    assert.has_error(function() dm.load("x", {devise = "cpu"}) end)
    assert.is_nil(io.open(path "x"))
  end)
end)

describe("Tensors:", function()
  it("every dtype and shape comes back", function()
    for _, dtype in ipairs{"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16",
      "int8", "uint8", "bool"} do
      local x = dm.tensor({{1, 0, 3}, {0, 5, 6}}):to(dtype)
      local got = round_trip{x = x, scalar = x[{1, 1}], none = x:narrow(1, 1, 0)}
      assert_equal_tensors(x, got.x)
      assert_equal_tensors(x[{1, 1}], got.scalar)
      assert.same({0, 3}, {table.unpack(got.none.shape)})
    end
  end)

  it("special values keep their bits", function()
    for _, dtype in ipairs{"float64", "float32", "float16", "bfloat16"} do
      local want = {0 / 0, math.huge, -math.huge, -0.0, 1.5}
      local got = round_trip{x = dm.tensor(want, {dtype = dtype})}.x:totable()
      for i, v in ipairs(want) do assert.is_true(same_number(v, got[i])) end
    end
    local ends = {math.maxinteger, math.mininteger, -1}
    assert.same(ends, round_trip{x = dm.tensor(ends)}.x:totable())
  end)

  it("views, expanded ones and those with a history are written as they look", function()
    local x = dm.arange(6):to("float32"):reshape(2, 3)
    local w = dm.ones(3, {requires_grad = true})
    local got = round_trip{t = x:t(), wide = dm.ones(1, 2):expand(3, 2), y = w * 2, w = w,
      column = x:select(2, 2)}
    assert_equal_tensors(x:t(), got.t)
    assert_equal_tensors(dm.ones(3, 2), got.wide)
    assert_equal_tensors(dm.full({3}, 2.0), got.y)
    assert_equal_tensors(x:select(2, 2), got.column)
    assert.is_false(got.w.requires_grad)
  end)

  it("keep their keys among plain values, and equal paths stay apart", function()
    local a, b, c = dm.ones(1), dm.ones(1) * 2, dm.ones(1) * 3
    local got = round_trip{
      model = {["0.weight"] = a, [1] = {x = b, n = 3}}, ["model.0"] = {weight = c},
      __metadata__ = a, ["\255"] = b, shared = {a, a},
    }
    assert.equal(1.0, got.model["0.weight"]:item())
    assert.equal(2.0, got.model[1].x:item())
    assert.equal(3, got.model[1].n)
    assert.equal(3.0, got["model.0"].weight:item())
    assert.equal(1.0, got.__metadata__:item())
    assert.equal(2.0, got["\255"]:item())
    assert.equal(1.0, got.shared[2]:item())
  end)

  it("lie under their dotted path", function()
    dm.save(path "names", {model = {["0.weight"] = dm.ones(2)}, optimizer = {{m = dm.ones(1)}}})
    local file = dm.safetensors_read(path "names")
    local names = {}
    for name in pairs(file.tensors) do names[#names + 1] = name end
    table.sort(names)
    assert.same({"model.0.weight", "optimizer.1.m"}, names)
  end)

  it("survive the scope in which they were saved, and equal trees make equal files", function()
    local function make()
      return {b = dm.ones(2, 3):t(), a = {1, x = 2, y = dm.zeros(1)}, c = "x"}
    end
    do
      local _ <close> = dm.scope()
      assert(dm.save(path "one", make()))
    end
    assert(dm.save(path "two", make()))
    assert.equal(read "one", read "two")
  end)

  it("a failing allocation raises, leaks nothing, and the old file survives", function()
    local tree = {x = dm.ones(4, 5):t(), y = {dm.arange(3)}, n = 1}
    assert(dm.save(path "old", tree))
    local before = read "old"
    for n = 1, 30 do
      local small = dm.ones(2, 3):t()
      hooks.alloc_fail_at(n, true)
      local saved, message = pcall(dm.save, path "old", {x = small})
      hooks.alloc_fail_at(0, false)
      if saved then break end
      assert.matches("memory", message)
      assert.equal(before, read "old")
    end
    assert_equal_tensors(dm.ones(3, 2), dm.load(path "old").x)
    for n = 1, 30 do
      collectgarbage()
      local live = hooks.alloc_live()
      hooks.alloc_fail_at(n, true)
      local loaded, message = pcall(dm.load, path "old")
      hooks.alloc_fail_at(0, false)
      if loaded then break end
      assert.matches("memory", message)
      collectgarbage()
      assert.equal(live, hooks.alloc_live())
    end
  end)
end)

describe("The outside world:", function()
  it("a path that cannot be is nil and a message", function()
    for _, bad in ipairs{path "no/such/folder/f", path(), "/dev/full", ""} do
      local ok, message = dm.save(bad, {1})
      assert.is_nil(ok)
      assert.is_string(message)
    end
    local tree, message = dm.load(path "nowhere")
    assert.is_nil(tree)
    assert.matches("No such file", message)
    assert.is_nil((dm.load(path())))
  end)

  it("a disk that fills up leaves the old checkpoint and no litter", function()
    local script = write("full.lua", ([[
      package.path, package.cpath = %q, %q
      local dm = require "demilune"
      assert(dm.save(arg[1], {x = dm.ones(10)}))
      os.execute "true"
      print("full", dm.save(arg[1], {x = dm.ones(100000)}))
      print("kept", dm.load(arg[1]).x:sum():item())
      print("small", dm.save(arg[1], {x = dm.ones(20)}))]]):format(package.path, package.cpath))
    -- a limit of 16 blocks of 512 bytes on every file stands for the full disk
    local text = run(("sh -c 'trap \"\" XFSZ; ulimit -f 16; lua5.4 %s %s'"):format(script,
      path "ckpt"))
    assert.matches("full\tnil\t.*cannot write.*File too large", text)
    assert.matches("kept\t10.0", text)
    assert.matches("small\ttrue", text)
    assert.equal("", run(("ls -A %s | grep tmp"):format(path())))
  end)

  it("damaged files are nil and a message, never a crash", function()
    assert(dm.save(path "good", {x = dm.ones(3, 4), list = {1, 2.0, "three"}, k = {[5] = 1}}))
    local good = read "good"
    for n = 0, #good - 1, 7 do
      local tree, message = dm.load(write("cut", good:sub(1, n)))
      assert.is_nil(tree)
      assert.is_string(message)
    end
    math.randomseed(7)
    for _ = 1, 300 do -- any byte of the header may be any byte: an answer, or a message
      local at, byte = math.random(1, 200), string.char(math.random(0, 255))
      local tree, message = dm.load(write("bent", good:sub(1, at - 1) .. byte .. good:sub(at + 1)))
      assert.is_true(tree ~= nil or type(message) == "string")
    end
  end)

  it("headers that lie are refused", function()
    local function file(header, body) return string.pack("<s8", header) .. (body or "") end
    local lies = {
      file('{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', ("\0"):rep(8)),
      file('{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}}', ("\0"):rep(16)),
      file('{"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}', ("\0"):rep(8)),
      file('{"x":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}', ("\0"):rep(8)),
      file('{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        .. '"y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}', ("\0"):rep(12)),
      file('{"x":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}'),
      file('{"x":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}', ("\0"):rep(4)),
      file('{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', ("\0"):rep(4)),
      file '{"x":', file "[]", file "", "", "\255\255\255\255\255\255\255\127{}",
    }
    for i, text in ipairs(lies) do
      local tree, message = dm.load(write("lie", text))
      assert.is_nil(tree, i)
      assert.matches("lie", message)
    end
  end)

  it("a tree that lies is refused", function()
    for _, json in ipairs{"", "nonsense", "[]", "3", '[{"$tensor":"gone"}]', '[{"$float":"x"}]',
      '[{"$int":"1.5"}]', '[{"$bytes":"zz"}]', '[{"$map":[[null,1]]}]', '[{"$map":3}]',
      '[{"$tensor":{}}]', ("["):rep(5000)} do
      assert(dm.safetensors_write(path "lie", {x = dm.ones(1)}, {demilune = json}))
      local tree, message = dm.load(path "lie")
      assert.is_nil(tree, json)
      assert.matches("tree in its metadata is damaged", message)
    end
  end)

  it("loading runs no code", function()
    assert(dm.safetensors_write(path "code", {}, {demilune = '["os.exit(1)", {"a": "return 1"}]'}))
    assert.equal("os.exit(1)", dm.load(path "code"))
  end)
end)

describe("What has a state of its own", function()
  it("is not saved with its fields, and the hint says what is", function()
    local nn, name = dm.nn, path "fields"
    local model = nn.Linear(2, 2)
    assert.error_matches(function() dm.save(name, {model = model}) end,
      "save: model is a Linear.*hint: its :state_dict%(%)")
    assert.error_matches(function() dm.save(name, model) end, "save: the tree is a Linear")
    assert.error_matches(function()
      dm.save(name, {dm.optim.SGD(model:parameters())})
    end, "save: 1 is a SGD")
    assert.error_matches(function() dm.save(name, {a = dm.amp.GradScaler()}) end,
      "demilune.GradScaler")
    assert.is_nil(io.open(name))
    assert.is_true(dm.save(name, {model = model:state_dict()}))
    assert.is_true(dm.save{path = name, tree = {1}})
    assert.same({1}, dm.load{path = name, map_location = "cpu"})
  end)
end)

describe("Other programs:", function()
  it("a foreign file comes as {name = tensor}, and its metadata", function()
    assert(dm.safetensors_write(path "foreign", {["layer.weight"] = dm.ones(2)}, {note = "hi"}))
    local tensors, metadata = dm.load(path "foreign")
    assert_equal_tensors(dm.ones(2), tensors["layer.weight"])
    assert.same({note = "hi"}, metadata)
  end)

  local python = os.getenv "DEMILUNE_PYTHON" or "python3"
  local has_python = os.execute(python .. " -c 'import safetensors, numpy' >/dev/null 2>&1")

  it("Python's safetensors reads ours, and we read its files", function()
    if not has_python then return pending "python3 with safetensors and numpy is not there" end
    assert(dm.save(path "ours", {model = {w = dm.arange(6):reshape(2, 3):t()}, n = {1, 2.5}}))
    local script = write("peer.py", [[
import sys, json
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
import numpy as np
got = load_file(sys.argv[1])
print(sorted(got), got["model.w"].tolist(), got["model.w"].dtype)
with safe_open(sys.argv[1], "np") as f:
    print(json.loads(f.metadata()["demilune"])[0]["n"])
save_file({"a": np.arange(4, dtype=np.float16).reshape(2, 2), "b": np.array([True, False])},
          sys.argv[2], {"who": "python"})
]])
    local text = run(("%s %s %s %s"):format(python, script, path "ours", path "theirs"))
    assert.equal("['model.w'] [[1, 4], [2, 5], [3, 6]] int64\n[1, 2.5]\n", text)
    local tensors, metadata = assert(dm.load(path "theirs"))
    assert.equal("float16", tensors.a.dtype)
    assert.same({{0.0, 1.0}, {2.0, 3.0}}, tensors.a:totable())
    assert.same({true, false}, tensors.b:totable())
    assert.equal("python", metadata.who)
  end)
end)
