-- Test accuracy and time of an epoch of the Fashion-MNIST network.
--   scripts/run scripts/bench/fashion.lua [--seeds 3] [--dtypes float32,bfloat16,float16]
--                                         [--epochs 5] [--peer float32]
-- Both sides train the same network with the same settings from their own
-- random weights, epoch by epoch in turns; each with its own loader, in a new
-- order of the images per epoch. An epoch's time is that of its training.
-- PyTorch trains in the dtypes of --peer: without 16-bit instructions it takes
-- many times as long in the others. A dtype that PyTorch was not asked for is compared
-- with its first one. PyTorch runs eager code with glibc's allocator told to keep freed
-- memory, in the faster of the memory formats and numbers of threads; train.lua compares
-- a step of this network with compiled code too.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local net = require "net"
local options = lib.options {
  seeds = 3, dtypes = "float32,bfloat16,float16", epochs = net.epochs, peer = "float32",
}
net.epochs = math.tointeger(options.epochs)

local ours, peer = lib.sides()

--- One training on both sides -> accuracies in percent, seconds per epoch.
local function train(dtype, seed)
  local sides = { { worker = ours, seconds = {} }, { worker = peer, seconds = {} } }
  for _, s in ipairs(sides) do
    if s.worker == peer and not ("," .. options.peer .. ","):find("," .. dtype .. ",", 1, true) then
      s.why = "not asked"
    else
      s.settings, s.why = s.worker:ask("begin", dtype, seed, net.words())
    end
  end
  for e = 1, net.epochs do
    for turn = 1, 2 do
      local s = sides[(e + turn) % 2 + 1]
      if s.settings then s.seconds[e] = assert(s.worker:ask "epoch").seconds end
    end
  end
  for _, s in ipairs(sides) do
    if s.settings then s.accuracy = 100 * assert(s.worker:ask "accuracy").accuracy end
  end
  assert(sides[1].settings, sides[1].why)
  return table.unpack(sides)
end

local function percents(values)
  local words = {}
  for i, v in ipairs(values) do words[i] = ("%.2f"):format(v) end
  return ("%.2f (%s)"):format(lib.mean(values), table.concat(words, " "))
end

local quality, speed, means, standard = {}, {}, {}, nil
for dtype in options.dtypes:gmatch "[^,]+" do
  local a, b = { right = {}, seconds = {} }, { right = {}, seconds = {} }
  for seed = 1, options.seeds do
    local us, them = train(dtype, seed)
    table.insert(a.right, us.accuracy)
    table.move(us.seconds, 1, #us.seconds, #a.seconds + 1, a.seconds)
    b.why, b.settings = them.why, them.settings
    if them.settings then
      table.insert(b.right, them.accuracy)
      table.move(them.seconds, 1, #them.seconds, #b.seconds + 1, b.seconds)
    end
    io.stderr:write(("%s, seed %d: %.2f %%, %.1f s an epoch\n"):format(dtype, seed, us.accuracy,
      lib.median(us.seconds)))
  end
  local mean, there = lib.mean(a.right), b.settings
  standard = standard or there and lib.mean(b.right)
  local other = there and lib.mean(b.right) or standard
  means[#means + 1] = mean
  quality[#quality + 1] = {
    dtype, percents(a.right), there and percents(b.right) or b.why,
    other and ("%+.2f"):format(mean - other) or "-", lib.verdict(mean, 91, true),
    other and lib.verdict(math.abs(mean - other), 0.4) or "-",
  }
  speed[#speed + 1] = {
    dtype, lib.spread(a.seconds, 1), there and lib.spread(b.seconds, 1) or b.why,
    there and ("%.3f"):format(lib.ratio(a.seconds, b.seconds)) or "-",
    there and ("%d, %s"):format(b.settings.threads, b.settings.layout) or "-",
  }
end

lib.heading(("Fashion-MNIST, %d epochs, %d seeds"):format(net.epochs, options.seeds))
print("Settings: " .. net.words() .. "\n")
lib.table({
  "test accuracy, %", "demilune: mean (seeds)", "PyTorch: mean (seeds)", "difference", "91 %",
  "within 0.4",
}, quality)
local widest = math.max(table.unpack(means)) - math.min(table.unpack(means))
print(("The means of demilune lie within %.2f points of each other (goal 0.4: %s).\n")
  :format(widest, lib.verdict(widest, 0.4)))
lib.table({
  "seconds an epoch", "demilune", "PyTorch, eager", "ratio", "PyTorch's threads, layout",
}, speed)
ours:close()
peer:close()
