-- The thread pool has the number of threads that the environment asks for, and its threads sleep
-- when there is no work.

local script = os.tmpname()

-- The output of a program, run in a new process as `before lua5.4 ...`.
local function output_of(before, program)
  local file = assert(io.open(script, "w"))
  file:write(("package.path, package.cpath = %q, %q\nlocal dm = require 'demilune'\n%s"):format(
    package.path, package.cpath, program))
  file:close()
  local pipe = assert(io.popen(("%s lua5.4 %s 2>&1"):format(before, script)))
  local text = pipe:read "a"
  pipe:close()
  return text
end

local function threads(before)
  return tonumber(output_of("env -u DEMILUNE_NUM_THREADS -u OMP_NUM_THREADS " .. before,
    "io.write(dm.get_num_threads())"))
end

-- Seconds of processor time that the program's process used, by its own count.
local USED = [[
local function used()
  local file = assert(io.open "/proc/self/stat")
  local fields = {}
  for word in file:read "a":match "%)(.*)":gmatch "%S+" do fields[#fields + 1] = word end
  file:close()
  return (fields[12] + fields[13]) / 100
end
]]

describe("the pool of threads", function()
  teardown(function() os.remove(script) end)

  it("is as large as the environment says", function()
    assert.equal(3, threads "env DEMILUNE_NUM_THREADS=3")
    assert.equal(5, threads "env OMP_NUM_THREADS=5")
    assert.equal(4, threads "env OMP_NUM_THREADS=4,2")
    assert.equal(3, threads "env DEMILUNE_NUM_THREADS=3 OMP_NUM_THREADS=5")
    assert.equal(5, threads "env DEMILUNE_NUM_THREADS= OMP_NUM_THREADS=5")
    assert.equal(threads "env", threads "env OMP_NUM_THREADS=many")
    assert.equal(threads "env", threads "env OMP_NUM_THREADS=-1")
  end)

  it("is as large as the cores that the process may use", function()
    if not os.execute "taskset -p $$ >/dev/null 2>&1" then return pending "no taskset here" end
    local list = io.popen("taskset -cp $$"):read "a":match ": (.*)"
    assert.equal(1, threads("taskset -c " .. list:match "%d+"))
  end)

  it("is as large as a script says", function()
    assert.equal("2", output_of("env OMP_NUM_THREADS=5",
      "dm.set_num_threads(2) io.write(dm.get_num_threads())"))
  end)

  -- {images, channels, side, outputs, kernel}: products, Winograd's tiles and gathered strips, of
  -- so few tiles that channels, or steps, are what threads share, and of more.
  local CONVOLUTIONS = {
    {32, 64, 8, 64, 3}, {32, 512, 1, 512, 3}, {8, 256, 4, 256, 3}, {4, 96, 7, 200, 3},
    {2, 30, 9, 130, 5}, {3, 16, 32, 48, 1}, {1, 3, 20, 40, 7},
  }
  for _, dtype in ipairs{"float32", "bfloat16", "float64"} do
    it("gives convolutions of " .. dtype .. " the same bits, whatever its size", function()
      local dm = require "demilune"
      local _ <close> = dm.device "cpu"
      local before = dm.get_num_threads()
      for _, size in ipairs(CONVOLUTIONS) do
        local n, c, side, o, k = table.unpack(size)
        dm.manual_seed(1)
        local x, w = dm.randn(n, c, side, side):to(dtype), dm.randn(o, c, k, k):to(dtype)
        local norm = dm.nn.BatchNorm2d(o):to(dtype)
        local wanted
        for _, n_threads in ipairs{1, 2, 3, 16, 64} do
          dm.set_num_threads(n_threads)
          x.grad, w.grad = nil, nil
          local y = norm(x:requires_grad_():conv2d(w:requires_grad_(), {padding = k // 2}))
          y:square():sum():backward()
          local got = {y:detach(), x.grad, w.grad}
          wanted = wanted or got
          for i, t in ipairs(got) do
            assert.is_true(t:equal(wanted[i]), ("%s of %s with %d threads"):format(
              ({"y", "dx", "dw"})[i], table.concat(size, " "), n_threads))
          end
        end
      end
      dm.set_num_threads(before)
    end)
  end

  it("sleeps when there is no work", function()
    local text = output_of("", USED .. [[
      dm.set_num_threads(3)
      local x = dm.randn(300, 300)
      for _ = 1, 5 do x:mm(x) end
      local before = used()
      os.execute "sleep 0.5"
      print(used() - before)]])
    assert.is_true(tonumber(text) < 0.1, text)
  end)
end)
