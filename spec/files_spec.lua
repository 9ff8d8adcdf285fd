-- Readers of files refuse what is no regular file at once, and names that hold NUL; checkpoints
-- know when they are damaged; equal trees make equal files.

local dm = require "demilune"
local folder = require "spec.folder"
local path, read, write, run = folder.path, folder.read, folder.write, folder.run
setup(folder.make)
teardown(folder.remove)

local core = require "demilune.core"

-- Every reader: a path to nil and a message, or to an error.
local readers = {
  load = dm.load, safetensors_read = dm.safetensors_read, read_idx = dm.read_idx,
  read_image = dm.read_image, read_npy = dm.data.read_npy, read_npz = dm.data.read_npz,
  read_csv = dm.data.read_csv, zip = core._zip_open,
  tokens = function(name) return core.tokens_open(name, 0) end,
}
local writers = {
  save = function(name) return dm.save(name, {1}) end,
  safetensors_write = function(name) return dm.safetensors_write(name, {}, {}) end,
  write_npy = function(name) return dm.data.write_npy(name, dm.ones(1)) end,
  write_npz = function(name) return dm.data.write_npz(name, {x = dm.ones(1)}) end,
  png_write = function(name) return core.png_write(name, dm.zeros(2, 2, 3):byte()) end,
  export_chrome_trace = function(name)
    return dm.profiler.profile{}:export_chrome_trace(name)
  end,
}

describe("What is no regular file", function()
  it("is refused at once by every reader, whatever its name ends in", function()
    for _, suffix in ipairs{"", ".npy", ".npz", ".pt", ".csv"} do
      local pipe = path("pipe" .. suffix)
      assert(os.execute("mkfifo " .. pipe))
      for _, bad in ipairs{pipe, path(), "/dev/zero", "/dev/null", "/dev/tty"} do
        for name, reader in pairs(readers) do
          local ok, found, message = pcall(reader, bad)
          assert.is_true(ok, name)
          assert.is_nil(found, name)
          assert.is_string(message, name)
        end
      end
      os.remove(pipe)
    end
  end)
end)

describe("A name that holds NUL", function()
  it("is refused, and no other file is reached", function()
    local name = path "cut"
    assert(dm.save(name, {1}))
    local before = read "cut"
    for _, list in ipairs{readers, writers} do
      for what, call in pairs(list) do
        local ok, message = pcall(call, name .. "\0.txt")
        assert.is_false(ok, what)
        assert.matches("name holds NUL after '.*cut'", message, nil, nil, what)
      end
    end
    assert.equal(before, read "cut")
    assert.refuses("name holds NUL", function() core._list("x", path() .. "\0") end)
  end)
end)

describe("Checksums:", function()
  local tree = {model = {weight = dm.arange(300):float(), flag = dm.tensor{true, false},
    none = dm.zeros(0, 3)}, step = 12345, note = "of the third epoch"}

  it("a flipped bit anywhere is found, and the tensor named", function()
    assert(dm.save(path "good", tree))
    local good = read "good"
    local data = #good - 300 * 4 - 2
    local flips = 0
    for at = 1, #good, 7 do
      for _, bit in ipairs{1, 128} do
        local bent = good:sub(1, at - 1) .. string.char(good:byte(at) ~ bit) .. good:sub(at + 1)
        local loaded, message = dm.load(write("bent", bent))
        if at > data then
          flips = flips + 1
          local name = at > #good - 2 and "model.flag" or "model.weight"
          assert.is_nil(loaded)
          assert.matches("bent' is damaged: tensor '" .. name .. "' does not have the checksum",
            message)
        elseif loaded then -- of a header: the same tree, with and without the checksums
          assert.same(12345, loaded.step)
          assert.same("of the third epoch", loaded.note)
          assert.is_true(dm.equal(tree.model.weight:cpu(), loaded.model.weight:cpu()))
          assert.same({0, 3}, {table.unpack(loaded.model.none.shape)})
        end
      end
    end
    assert.is_true(flips > 100)
  end)

  it("are not seen in the metadata, and files without them load", function()
    assert(dm.save(path "ours", {x = dm.ones(2)}))
    assert.matches("demilune.checksums", read "ours")
    local metadata = dm.safetensors_read(path "ours").metadata
    assert.is_nil(metadata["demilune.checksums"])
    assert(dm.safetensors_write(path "plain", {x = dm.ones(2)}, {a = "b"}))
    assert.is_nil((read "plain"):find "checksums")
    local tensors, pairs_of = dm.load(path "plain")
    assert.same({1, 1}, tensors.x:totable())
    assert.same({a = "b"}, pairs_of)
    assert.refuses("taken by the checksums", function()
      dm.safetensors_write(path "plain", {}, {["demilune.checksums"] = ""})
    end)
  end)

  it("of other tensors are passed over: another program wrote the file anew", function()
    local list = ("0"):rep(16 * 5)
    local header = ('{"__metadata__":{"demilune.checksums":"%s"},"x":{"dtype":"U8","shape":[2],'
      .. '"data_offsets":[0,2]}}'):format(list)
    local tensors = assert(dm.load(write("anew", ("<s8"):pack(header) .. "\1\2")))
    assert.same({1, 2}, tensors.x:totable())
  end)
end)

describe("Equal trees", function()
  it("make equal files in any process", function()
    local script = write("equal.lua", ([[
      package.path, package.cpath = %q, %q
      local dm = require "demilune"
      local t = {}
      for i = 1, 40 do t["key" .. i * 7919 %% 1000] = i %% 3 == 0 and dm.full({2}, i) or i end
      assert(dm.save(arg[1], {t = t, [1.5] = {a = 1, b = 2, c = 3, d = 4}}))
      dm.data.write_npz(arg[1] .. ".npz", {a = dm.ones(1), b = dm.ones(2), c = dm.ones(3)})
      dm.safetensors_write(arg[1] .. ".st", {}, {a = "1", b = "2", c = "3", d = "4"})]])
      :format(package.path, package.cpath))
    for i = 1, 4 do
      local text, code = run(("lua5.4 %s %s"):format(script, path("equal" .. i)))
      assert.equal(0, code, text)
    end
    for i = 2, 4 do
      for _, suffix in ipairs{"", ".npz", ".st"} do
        assert.is_true(read("equal1" .. suffix) == read("equal" .. i .. suffix), suffix)
      end
    end
  end)
end)
