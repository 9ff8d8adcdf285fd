-- dist.save and dist.load: in a world of one rank in this process, and on several ranks by mpirun,
-- where it is installed. What two ranks have written, three and one read.

local dm = require "demilune"
local core = require "demilune.core"
local folder = require "spec.folder"
local launch = require "spec.distributed.launch"
local run_checks = require "spec.distributed.checkpoint"
local dist = dm.distributed
local path = folder.path

setup(folder.make)
teardown(folder.remove)

local with_mpirun = launch.tests(it, pending, "#slow")

-- Runs a part of the program on n ranks, all of which end well.
local function ranks(n, what, variables)
  local text, code = launch.ranks(n, "checkpoint", ("%s %s"):format(what, path "."), variables)
  assert.equal(n, launch.count(text, "rank %d of " .. n .. ": %d+ checks"), text)
  assert.equal(0, code)
end

-- Calls f in a world of one rank.
local function alone(f)
  dist.init_process_group()
  local _ <close> = setmetatable({}, {__close = function() dist.destroy_process_group() end})
  f()
end

local function read_bytes(name)
  local file <close> = assert(io.open(name, "rb"))
  return file:read "a"
end

describe("a file in parts", function()
  local ENTRIES = {{name = "x", dtype = "float32", shape = {40, 3}},
    {name = "a", dtype = "bool", shape = {5}}, {name = "b", dtype = "int64", shape = {}},
    {name = "none", dtype = "float64", shape = {0, 2}}}
  local METADATA = {key = 'a "demilune.checksums":"0', other = "\\"}

  local function tensors()
    dm.manual_seed(1)
    local list = {x = dm.randn(40, 3), a = dm.tensor{true, false, true, true, false},
      b = dm.tensor(7, {dtype = "int64"}), none = dm.zeros(0, 2, {dtype = "float64"})}
    for name, x in pairs(list) do list[name] = x:to "cpu" end
    return list
  end

  -- Writes the tensors in parts of so many elements -> the file's bytes.
  local function in_parts(size)
    local file <close> = assert(core._parts_open(path "parts", nil, ENTRIES, METADATA))
    local other <close> = assert(core._parts_open(path "parts", file:temp(), ENTRIES, METADATA))
    local sums = {}
    for i, entry in ipairs(ENTRIES) do
      local flat = tensors()[entry.name]:reshape(-1)
      sums[i] = file:begin(i)
      for from = 0, #flat - 1, size do
        local n = math.min(size, #flat - from)
        local writer = from // size % 2 == 0 and file or other
        sums[i] = assert(writer:write(i, from, flat:narrow(1, from + 1, n), sums[i]))
      end
    end
    assert.is_true(other:sync())
    assert.is_true(file:finish(sums))
    return read_bytes(path "parts")
  end

  it("has the bytes of one that is written at once", function()
    assert(dm.safetensors_write(path "whole", tensors(), METADATA, true))
    for _, size in ipairs{1, 3, 16, 17, 63, 64, 65, 1000} do
      assert.equal(read_bytes(path "whole"), in_parts(size), "parts of " .. size)
    end
  end)

  it("gives tensors, and elements of them", function()
    in_parts(50)
    local file <close> = assert(core._stored_open(path "parts"))
    assert.same(METADATA, file:metadata())
    for i, entry in ipairs(file:entries()) do
      local x = tensors()[entry.name]
      assert.is_true(file:read(i):equal(x), entry.name)
      local n = x:numel()
      for _, part in ipairs{{0, n}, {n // 2, n - n // 2}, {n, 0}} do
        assert.is_true(file:read(i, part[1], part[2])
          :equal(x:reshape(-1):narrow(1, part[1] + 1, part[2])), entry.name)
      end
      assert.has_error(function() file:read(i, n, 1) end)
      assert.has_error(function() file:read(i, -1, 1) end)
    end
    assert.has_error(function() file:read(5) end)
    file:close()
    assert.has_error(function() file:read(1) end)
  end)

  it("leaves the old one where it is not finished, and nothing else", function()
    local before = in_parts(50)
    do
      local file <close> = assert(core._parts_open(path "parts", nil, ENTRIES, METADATA))
      assert(file:write(1, 0, dm.zeros(40, 3), file:begin(1)))
      assert.has_error(function() file:write(1, 1, dm.zeros(40, 3), file:begin(1)) end)
      assert.has_error(function() file:write(5, 0, dm.zeros(1), file:begin(1)) end)
      assert.has_error(function() file:write(1, 0, dm.zeros(1), "no sum") end)
      assert.has_error(function() file:finish{file:begin(1)} end)
    end
    assert.equal(before, read_bytes(path "parts"))
    assert.equal("", folder.run(("ls -A %s | grep tmp"):format(path ".")))
  end)

  it("is joined by its temporary name only", function()
    assert.has_error(function() core._parts_open(path "parts", "../parts", ENTRIES, METADATA) end)
    local file, why = core._parts_open(path "parts", ".demilune-0123456789abcdef.tmp", ENTRIES, {})
    assert.is_nil(file)
    assert.matches("a temporary file of another process: No such file", why)
    assert.has_error(function()
      core._parts_open(path "parts", nil, {ENTRIES[1], ENTRIES[1]}, METADATA)
    end)
  end)
end)

describe("dist.save and dist.load", function()
  it("serve one rank, too", function()
    alone(function() assert.is_true(run_checks("one", path ".") > 50) end)
  end)

  with_mpirun("write the bytes of one process by two ranks, for three and for one", function()
    ranks(2, "write")
    ranks(3, "read")
    local _ <close> = dm.device "cpu" -- on which the two were
    alone(function() assert.is_true(run_checks("read", path ".") > 50) end)
  end)

  with_mpirun("tell all four ranks that the disk of one is full, and keep the old file", function()
    local preload = path "kill_at.so"
    assert(os.execute(("cc -shared -fPIC -o %s spec/kill_at.c -ldl"):format(preload)))
    ranks(4, "full", ("LD_PRELOAD=\"$LD_PRELOAD %s\" FULL_FILE=%s"):format(preload, path "marker"))
  end)
end)

-- Kills a rank at so many moments of a loop of saves; the file is always one of a whole save.
local function kill(times)
  local last = 0
  for k = 1, times do
    local text = launch.ranks(2, "checkpoint", ("loop %s %.3f %d"):format(path ".",
      0.011 * k % 0.13, k % 2))
    assert.is_nil(text:find("checkpoint.lua:%d+: "), text) -- as an error begins
    local tree = assert(dm.load(path "loop"))
    assert.is_true(tree.number > last, "no save was done")
    last = tree.number
    for _, x in ipairs(tree.x) do
      assert.is_true(x:eq(last):all():item(), "a file of two saves")
    end
  end
  -- what the last one left goes with the next file of another process
  local text, code = launch.run(("%s lua5.4 -e 'assert(require(\"demilune\").save(\"%s\", {1}))'")
    :format(launch.paths(), path "loop"))
  assert.equal(0, code, text)
  assert.equal("", folder.run(("ls -A %s | grep tmp"):format(path ".")))
end

describe("kill -9 of a rank while all save", function()
  with_mpirun("leaves the old file or the new one", function()
    kill(tonumber(os.getenv "DEMILUNE_KILLS") or 5)
  end)
end)
