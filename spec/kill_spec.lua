-- A process that is killed while it saves leaves the old file or the new one, whole, and nothing
-- that the next process does not remove. Kills come before and after each system call of a
-- replacement (spec/kill_at.c), with and without O_TMPFILE, and at random moments: 20 of them,
-- or as many as DEMILUNE_KILLS says.

local dm = require "demilune"
local folder = require "spec.folder"
local path, write, run = folder.path, folder.write, folder.run

local preload, process, saver, looper
setup(function()
  folder.make()
  preload, process = path "kill_at.so", path "process.so"
  assert(os.execute(("cc -shared -fPIC -o %s spec/kill_at.c -ldl"):format(preload)))
  assert(os.execute(("cc -shared -fPIC $(pkg-config --cflags lua5.4) -o %s spec/process.c")
    :format(process)))
  local head = ([[
    package.path, package.cpath = %q, %q
    local dm = require "demilune"
    local process = package.loadlib(%q, "luaopen_process")()
  ]]):format(package.path, package.cpath, process)
  saver = write("saver.lua", head .. [[
    process.setenv("KILL_NOW", "1")
    assert(dm.save(arg[1], {x = dm.full({5000}, tonumber(arg[2])), n = tonumber(arg[2])}))]])
  looper = write("looper.lua", head .. [[
    for i = 1, 1e9 do
      assert(dm.save(arg[1], {x = dm.full({20000}, i + 0.0), n = i}))
      if i == 1 then io.open(arg[1] .. ".began", "w"):close() end
    end]])
  os.execute("mkdir " .. path "at")
end)
teardown(folder.remove)

-- The number of the file's tree, all of which is of one save; the checksums are compared too.
local function number_of(file)
  local tree = assert(dm.load(file))
  assert.equal(tree.n, tree.x:min():item())
  assert.equal(tree.n, tree.x:max():item())
  return tree.n
end

local function litter() return run(("ls -A %s | grep -c tmp"):format(path "at")):match "%d+" end

-- Runs the saver with these variables; whether it was killed.
local function save(variables, number)
  local _, code = run(("env LD_PRELOAD=\"$LD_PRELOAD %s\" %s lua5.4 %s %s %d"):format(preload,
    variables, saver, path "at/ckpt", number))
  -- 137 from a shell that waited, 9 where the shell became the program
  assert.is_true(code == 0 or code == 137 or code == 9, variables .. " ended with " .. code)
  return code ~= 0
end

describe("A kill #slow", function()
  for _, kind in ipairs{"", "KILL_NO_TMPFILE=1"} do
    it("at each call leaves the old or the new file " .. kind, function()
      for _, when in ipairs{"KILL_AT", "KILL_AFTER"} do
        local n, kills, last = 0, 0, 0
        save("", 0)
        repeat
          n = n + 1
          local killed = save(("%s=%d %s"):format(when, n, kind), n)
          if killed then kills = kills + 1 end
          local now = number_of(path "at/ckpt")
          assert.is_true(now == n or killed and now == last, ("%s %d: found %s, after %s")
            :format(when, n, now, last))
          last = now
          assert.is_true(tonumber(litter()) <= 1, "leftovers pile up")
        until not killed
        assert.is_true(kills >= 8, "few calls are seen: " .. kills)
        assert.equal("0", litter())
      end
    end)
  end

  it("of a process that makes a file for the first time leaves none, or a whole one", function()
    for n = 1, 100 do
      os.remove(path "at/ckpt")
      local killed = save("KILL_AT=" .. n, n)
      local file <close> = io.open(path "at/ckpt")
      if file then assert.equal(n, number_of(path "at/ckpt")) end
      if not killed then break end
    end
    assert.equal("0", litter())
  end)

  it("at any moment loses nothing and leaves nothing", function()
    local kills = tonumber(os.getenv "DEMILUNE_KILLS") or 20
    local file, most = path "at/loop", 0
    math.randomseed(18)
    for _ = 1, kills do
      local wait = ("while [ ! -e %s.began ] && kill -0 $p; do sleep 0.005; done; sleep %.4f")
        :format(file, math.random() * 0.05)
      run(("sh -c 'lua5.4 %s %s & p=$!; %s; kill -9 $p; wait $p'"):format(looper, file, wait))
      assert(os.remove(file .. ".began"), "the saving process did not begin")
      number_of(file)
      most = math.max(most, tonumber(litter()))
    end
    assert.is_true(most <= 1, "leftovers pile up: " .. most)
    save("", 1)
    assert.equal("0", litter())
  end)

  it("of another process does not cost a file that is locked, or named otherwise", function()
    local dead = write("at/.demilune-0123456789abcdef.tmp", "dead")
    local live = write("at/.demilune-fedcba9876543210.tmp", "live")
    local others = {write("at/.demilune-0123456789abcde.tmp", "short"),
      write("at/.demilune-0123456789abcdeX.tmp", "no hex"), write("at/notes.tmp", "mine")}
    run(("sh -c 'exec 9<%s; flock 9; env lua5.4 %s %s 1'"):format(live, saver, path "at/ckpt"))
    assert.is_nil(io.open(dead))
    for _, name in ipairs{live, table.unpack(others)} do
      assert.is_true(os.remove(name), name)
    end
  end)
end)

describe("Temporary names", function()
  it("do not run out, whatever the process's number is", function()
    -- the names of a thousand files that live, as of processes that all have the number 1
    for i = 1, 1000 do write(("at/.safetensors-1-%d.tmp"):format(i), "") end
    save("KILL_NO_TMPFILE=1", 7)
    assert.equal(7, number_of(path "at/ckpt"))
    os.execute(("rm -f %s/.safetensors-*"):format(path "at"))
  end)
end)
