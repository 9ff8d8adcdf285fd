-- dm.SummaryWriter writes the bytes that torch.utils.tensorboard writes (golden files), TensorBoard
-- itself reads them, and no fault of the disk stops a program.

local dm = require "demilune"
local core = require "demilune.core"
local caller = require "demilune.caller"
local crc32c = require "demilune.tensorboard.crc32c"
local events = require "spec.events"
local folder = require "spec.folder"
setup(folder.make)
teardown(folder.remove)

local GOLDEN = "spec/golden/tensorboard/"
local WALL = 1700000000.25

local function read(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end

-- The event files of a folder of the spec's.
local function files_in(name)
  local paths = {}
  for path in folder.run("ls " .. folder.path(name)):gmatch "[^\n]+" do
    if path:find "^events" then paths[#paths + 1] = folder.path(name .. "/" .. path) end
  end
  return paths
end

-- The records of the one event file of a folder, without the first, which names the writer.
local function records_in(name)
  local paths = files_in(name)
  assert.equal(1, #paths)
  local records = events.records(read(paths[1]))
  return table.move(records, 2, #records, 1, {})
end

local function golden(name)
  local records = events.records(read(GOLDEN .. name .. ".events"))
  return table.move(records, 2, #records, 1, {})
end

local function open(name, opts) return assert(dm.SummaryWriter(folder.path(name), opts)) end

-- An event without its wall time, for calls that take none.
local function timeless(data)
  assert.equal(9, data:byte())
  return data:sub(10)
end

local function ramp(...)
  local n = 1
  for _, size in ipairs{...} do n = n * size end
  return ((dm.arange(n) - 1):float() / n):reshape(...)
end

describe("CRC-32C", function()
  it("has the values of RFC 3720, section B.4", function()
    local up, down = {}, {}
    for i = 0, 31 do up[i + 1], down[i + 1] = string.char(i), string.char(31 - i) end
    local command = ("01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018 "
      .. "28000000 00000000 02000000 00000000"):gsub(" ", ""):gsub("%x%x", function(h)
      return string.char(tonumber(h, 16))
    end)
    for crc, s in pairs{[0x8A9136AA] = ("\0"):rep(32), [0x62A8AB43] = ("\xff"):rep(32),
      [0x46DD794E] = table.concat(up), [0x113FDB5C] = table.concat(down),
      [0xD9963A56] = command, [0xE3069283] = "123456789", [0] = ""} do
      assert.equal(crc, crc32c.of(s))
      assert.equal(crc, events.crc32c(s))
    end
  end)

  it("is that of the definition at every length", function()
    for n = 0, 40 do
      local bytes = {}
      for i = 1, n do bytes[i] = string.char(i * 151 % 256) end
      local s = table.concat(bytes)
      assert.equal(events.crc32c(s), crc32c.of(s))
    end
  end)

  it("passes a register over zeros", function()
    for _, n in ipairs{0, 1, 4, 23, 300} do
      local t = crc32c.pass(n)
      for _, r in ipairs{0, 1, 0xFFFFFFFF, 0x12345678} do
        assert.equal(crc32c.update(r, ("\0"):rep(n)),
          t[1][r & 255] ~ t[2][r >> 8 & 255] ~ t[3][r >> 16 & 255] ~ t[4][r >> 24])
      end
    end
  end)
end)

describe("the bytes of torch.utils.tensorboard", function()
  it("are those of scalars", function()
    local w <close> = open "scalars"
    for _, row in ipairs{{0.25, 1}, {-1.5, 300}, {1e20, 70000}, {0.0, 0}, {2.0, -1},
      {0.1, 2 ^ 40}} do
      w:add_scalar("loss/train", row[1], row[2], WALL)
    end
    w:add_scalar("häuser", 7, 127, WALL)
    w:add_scalar(("x"):rep(150), 0.5, 128, WALL)
    w:add_scalar("new", 0.1, 3, WALL, true)
    w:add_scalar{tag = "double", scalar_value = dm.tensor(0.1, {dtype = "float64"}),
      global_step = 3, walltime = WALL, new_style = true, double_precision = true}
    w:close()
    assert.same(golden "scalars", records_in "scalars")
  end)

  it("are those of scalars without a wall time, but for this", function()
    local w <close> = open "fast"
    local rows = {{0.25, 1}, {-1.5, 300}, {1e20, 70000}, {0.0, 0}, {2.0, -1}, {0.1, 1 << 40}}
    for _ = 1, 2 do -- the second time by the short way
      for _, row in ipairs(rows) do w:add_scalar("loss/train", row[1], row[2]) end
    end
    w:add_scalar("häuser", dm.tensor(7), 127)
    w:add_scalar(("x"):rep(150), dm.tensor{0.5}, 128)
    local before = os.time()
    w:close()
    local got, want = records_in "fast", golden "scalars"
    assert.equal(14, #got)
    for i, data in ipairs(got) do
      assert.equal(timeless(want[i > 6 and i - 6 or i]), timeless(data))
      assert.is_true(math.abs(("<d"):unpack(data, 2) - before) < 3)
    end
  end)

  it("are those of histograms, texts, curves and charts", function()
    local w <close> = open "others"
    local values = dm.tensor{1.0, 2, 2, 3, 7.5, 8, 8, 1.5}
    w:add_histogram("h/default", values, 4, {walltime = WALL})
    w:add_histogram("h/negative", -values:reshape(2, 4), 5, {walltime = WALL})
    w:add_histogram("h/equal", values:totable(), 6, {bins = 5, walltime = WALL})
    w:add_histogram("h/limits", values, 7, {bins = {0.0, 1.0, 2.0, 8.0, 9.0, 10.0},
      walltime = WALL})
    w:add_histogram("h/fewer", values, 8, {max_bins = 300, walltime = WALL})
    w:add_histogram("h/one", dm.tensor{2.0}, 9, {bins = 2, walltime = WALL})
    w:add_histogram_raw("h/raw", 0, 2, 3, 3.0, 5.0, {1.0, 2.0}, {1, 2}, 10, {walltime = WALL})
    w:add_text("t", "# häuser\n\n**bold**", 11, {walltime = WALL})
    local labels = dm.tensor({1, 0, 1, 1, 0, 0, 1, 0}, {dtype = "int64"})
    local predictions = dm.tensor{0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 1.0, 1.0}
    w:add_pr_curve("pr", labels, predictions, 12, {num_thresholds = 5, walltime = WALL})
    w:add_pr_curve("pr/weighted", labels:eq(1), predictions, 13,
      {num_thresholds = 9, weights = 0.5, walltime = WALL})
    w:add_custom_scalars{a = {b = {"Multiline", {"loss/train", "loss/valid"}},
      c = {"Margin", {"m", "low", "high"}}}}
    w:add_custom_scalars_multilinechart{"loss/train"}
    w:close()
    local got, want = records_in "others", golden "others"
    assert.equal(#want, #got)
    for i, data in ipairs(got) do
      if i > #want - 2 then data, want[i] = timeless(data), timeless(want[i]) end
      assert.equal(want[i], data)
    end
  end)

  it("are those of images, but for how a PNG file is packed", function()
    local w <close> = open "images"
    local function add(name, tag, x, step, format)
      w[name](w, tag, x, step, {walltime = WALL, dataformats = format})
    end
    add("add_image", "CHW", ramp(3, 4, 5), 1)
    add("add_image", "HWC", (ramp(4, 5, 4) * 255):to "uint8", 2, "HWC")
    add("add_image", "HW", ramp(4, 5) * 1.5 - 0.25, 3, "HW")
    add("add_image", "WH", ramp(4, 5), 3, "WH")
    add("add_image", "gray", ramp(1, 4, 5), 4)
    add("add_images", "NCHW", ramp(10, 1, 2, 3), 5)
    add("add_images", "NHWC", (ramp(2, 2, 3, 3) * 255):to "uint8", 6, "NHWC")
    w:close()
    local function parts(data)
      local e = events.fields(data)
      local value = events.fields(events.fields(e[5][1])[1][1])
      local image = events.fields(value[4][1])
      local bytes = image[4][1]
      image[4] = nil
      return {tag = value[1], step = e[2], wall = e[1], image = image,
        pixels = assert(dm.decode_image(bytes)):totable()}
    end
    local got, want = records_in "images", golden "images"
    assert.equal(#want, #got)
    for i, data in ipairs(got) do assert.same(parts(want[i]), parts(data)) end
  end)

  it("are those of hyperparameters", function()
    local w <close> = open "hparams"
    w:add_hparams({lr = 0.5}, {["hp/loss"] = 0.25}, {run_name = "number", global_step = 2})
    w:add_hparams({name = "häuser"}, {}, {run_name = "text",
      hparam_domain_discrete = {name = {"häuser", ""}}})
    w:add_hparams({zero = 0}, {b = 1, a = -0.0}, {run_name = "domain",
      hparam_domain_discrete = {zero = {0, 1}}})
    w:close()
    for _, name in ipairs{"number", "text"} do
      local got, want = records_in("hparams/" .. name), golden("hparams/" .. name)
      assert.equal(#want, #got)
      for i, data in ipairs(got) do assert.equal(timeless(want[i]), timeless(data)) end
    end
    -- ours are in the order of their names
    local got, want = records_in "hparams/domain", golden "hparams/domain"
    assert.same({timeless(want[2]), timeless(want[3]), timeless(want[5]), timeless(want[4])},
      {timeless(got[2]), timeless(got[3]), timeless(got[4]), timeless(got[5])})
  end)

  it("are those of several scalars, each in a folder", function()
    local w <close> = open "several"
    w:add_scalars("a/b", {c = 1.0, d = dm.tensor(2.0)}, 3, WALL)
    assert.is_true(w:close())
    assert.same(golden "several/a_b_c", records_in "several/a_b_c")
    assert.same(golden "several/a_b_d", records_in "several/a_b_d")
  end)

  it("are those of a run that begins anew at a step", function()
    local w <close> = open("purged", {purge_step = 5})
    w:add_scalar("x", 1.0, 5, WALL)
    w:close()
    local got, want = records_in "purged", golden "purged"
    assert.equal(3, #want)
    for i, data in ipairs(got) do assert.equal(timeless(want[i]), timeless(data)) end
    assert.equal(#want, #got)
  end)
end)

describe("SummaryWriter:add_histogram", function()
  -- The counts by upper limit that a histogram event holds.
  local function counted(values, opts)
    local w <close> = open "h"
    w:add_histogram("h", values, 1, opts)
    w:close()
    local records = records_in "h"
    folder.run("rm -r " .. folder.path "h")
    if not records[1] then return nil end
    local value = events.fields(events.fields(events.fields(records[1])[5][1])[1][1])
    local h = events.fields(value[5][1])
    local counts = {}
    for at = 1, #h[7][1], 8 do
      local n = ("<d"):unpack(h[7][1], at)
      if n > 0 then counts[#counts + 1] = {("<d"):unpack(h[6][1], at), n} end
    end
    return counts, ("<d"):unpack(h[3][1])
  end

  it("counts by TensorFlow's limits, which grow by a tenth", function()
    local limits, v = {}, 1e-12
    while v < 1e20 do
      limits[#limits + 1], v = v, v * 1.1
    end
    dm.manual_seed(3)
    local x = dm.cat{dm.randn(200) * 10, dm.zeros(3), dm.randn(20) * 1e-13}
    local want, by_limit = {}, {}
    for _, value in ipairs(x:double():totable()) do
      local upper -- of the half-open bucket that holds the value
      if value >= 0 then
        for _, limit in ipairs(limits) do
          if value < limit then upper = limit break end
        end
      else
        upper = 0
        for _, limit in ipairs(limits) do
          if -value > limit then upper = -limit else break end
        end
      end
      by_limit[upper] = (by_limit[upper] or 0) + 1
    end
    for limit, n in pairs(by_limit) do want[#want + 1] = {limit, n} end
    table.sort(want, function(a, b) return a[1] < b[1] end)
    assert.same(want, (counted(x)))
  end)

  it("leaves out what is not finite, and takes every dtype", function()
    local counts, n = counted(dm.tensor{1, 0 / 0, math.huge, 3, -math.huge}, {bins = {0, 2, 4}})
    assert.same({{2, 1}, {4, 1}}, counts)
    assert.equal(2, n)
    for _, dtype in ipairs{"float16", "bfloat16", "int64", "uint8", "bool"} do
      assert.same({{2, 2}}, (counted(dm.ones(2, 1):to(dtype), {bins = {0, 2, 4}})))
    end
    local sink, said = caller.sink, {}
    caller.sink = function(text) said[#said + 1] = text end
    assert.is_nil(counted(dm.tensor{0 / 0}))
    assert.is_nil(counted(dm.tensor{0 / 0}))
    caller.sink = sink
    assert.equal(1, #said)
    assert.matches("tensorboard_spec.lua:%d+: warning: add_histogram: no value of 'h' is finite",
      said[1])
  end)

  it("keeps parameters and their gradients as they are", function()
    local p = dm.nn.Parameter(dm.ones(3))
    assert.same({{2, 3}}, (counted(p, {bins = {0, 2}})))
    assert.is_true(p.requires_grad)
    assert.is_nil(p.grad)
  end)
end)

describe("SummaryWriter:add_figure", function()
  local function png_of(x)
    local path = folder.path "figure.png"
    assert(dm.save_image(x, path))
    return read(path)
  end
  local function figure(bytes, why) return {png = function() return bytes, why end} end

  it("takes whatever gives the bytes of a PNG file", function()
    local w <close> = open "figure"
    local bytes = png_of(ramp(3, 4, 5))
    w:add_figure("f", figure(bytes), 1)
    w:add_figure("list", {figure(bytes), figure(bytes)}, 2)
    w:close()
    local records = records_in "figure"
    local value = events.fields(events.fields(events.fields(records[1])[5][1])[1][1])
    assert.same({[1] = {4}, [2] = {5}, [3] = {3}, [4] = {bytes}}, events.fields(value[4][1]))
    value = events.fields(events.fields(events.fields(records[2])[5][1])[1][1])
    local both = assert(dm.decode_image(events.fields(value[4][1])[4][1]))
    local one = assert(dm.decode_image(bytes))
    assert.same(dm.cat({one, one}, 3):totable(), both:totable())
  end)

  it("warns once where there is no image, and goes on", function()
    local w <close> = open "no_figure"
    local sink, said = caller.sink, {}
    caller.sink = function(text) said[#said + 1] = text end
    for _ = 1, 2 do
      local done, why = w:add_figure("f", figure(nil, "rsvg-convert is not there"))
      assert.is_nil(done)
      assert.equal("rsvg-convert is not there", why)
    end
    assert.equal("png() gave no PNG file", select(2, w:add_figure("f", figure "<svg/>")))
    caller.sink = sink
    assert.equal(2, #said)
    w:close()
    assert.same({}, records_in "no_figure")
    assert.refuses("spec.lua:%d+: add_figure: figure is a table, wanted one that has png%(%)",
      function() w:add_figure("f", {}) end)
  end)
end)

describe("SummaryWriter:add_graph", function()
  local nn = dm.nn
  local Block = nn.Module:extend "Block"
  function Block:init() self.fc, self.scale = nn.Linear(4, 4), nn.Parameter(dm.ones(4)) end
  function Block:forward(x) return (self.fc(x) * self.scale + x):relu_() end

  -- {name = {op =, inputs =, shape =}}, and the names in their order.
  local function nodes_of(name)
    local nodes, names = {}, {}
    local records = records_in(name)
    for _, bytes in ipairs(events.fields(events.fields(records[1])[4][1])[1]) do
      local f = events.fields(bytes)
      local shape = {}
      for _, entry in ipairs(f[5]) do
        local attr = events.fields(entry)
        if attr[1][1] == "_output_shapes" then
          local list = events.fields(events.fields(attr[2][1])[1][1])
          for i, dim in ipairs(events.fields(list[7][1])[2] or {}) do
            shape[i] = events.fields(dim)[1][1]
          end
        end
      end
      names[#names + 1] = f[1][1]
      nodes[f[1][1]] = {op = f[2][1], inputs = f[3] or {}, shape = shape}
    end
    return nodes, names
  end

  it("has each op of the forward by module, with inputs and shapes", function()
    local w <close> = open "graph"
    local model = nn.Sequential{nn.Linear(3, 4), nn.ReLU(), Block()}
    model[3]:eval()
    local hook, count = debug.gethook(), 0
    w:add_graph(model, dm.ones(2, 3))
    assert.equal(hook, debug.gethook())
    w:close()
    local nodes, names = nodes_of "graph"
    for i, name in ipairs(names) do
      count = count + 1
      for _, input in ipairs(nodes[name].inputs) do -- each input is an earlier node
        local earlier = false
        for k = 1, i - 1 do earlier = earlier or names[k] == input end
        assert.is_true(earlier, input)
      end
    end
    local B = "Sequential/Block[2]"
    assert.same({op = "IO Node", inputs = {}, shape = {2, 3}}, nodes["input/x"])
    assert.same({op = "Parameter", inputs = {}, shape = {4, 3}},
      nodes["Sequential/Linear[0]/weight"])
    assert.same({op = "linear", shape = {2, 4}, inputs = {"input/x", "Sequential/Linear[0]/weight",
      "Sequential/Linear[0]/bias"}}, nodes["Sequential/Linear[0]/linear"])
    assert.same({op = "relu", shape = {2, 4}, inputs = {"Sequential/Linear[0]/linear"}},
      nodes["Sequential/ReLU[1]/relu"])
    assert.same({op = "mul", shape = {2, 4}, inputs = {B .. "/Linear[fc]/linear", B .. "/scale"}},
      nodes[B .. "/mul"])
    assert.same({op = "add", shape = {2, 4}, inputs = {B .. "/mul", "Sequential/ReLU[1]/relu"}},
      nodes[B .. "/add"])
    assert.same({op = "relu_", shape = {2, 4}, inputs = {B .. "/add"}}, nodes[B .. "/relu_"])
    assert.same({op = "IO Node", shape = {2, 4}, inputs = {B .. "/relu_"}}, nodes["output/y"])
    assert.equal(13, count)
    assert.is_true(model[1].training)
    assert.is_false(model[3].training)
    assert.is_false(model[1]._has_hooks)
  end)

  it("takes several inputs and gives several outputs", function()
    local Two = nn.Module:extend "Two"
    function Two.forward(_, a, b)
      local parts = dm.cat({a, b}, 1):split(1)
      return {parts[1], top = a:max(1)}, b
    end
    local w <close> = open "two"
    w:add_graph(Two(), {dm.ones(2, 3), dm.ones(1, 3)})
    w:close()
    local nodes = nodes_of "two"
    assert.same({"input/x", "input/x_1"}, nodes["Two/cat"].inputs)
    assert.same({"Two/cat"}, nodes["Two/split_2"].inputs)
    assert.same({"Two/split"}, nodes["output/y"].inputs)
    assert.same({"Two/max"}, nodes["output/y_1"].inputs)
    assert.same({"input/x_1"}, nodes["output/y_2"].inputs)
  end)

  it("leaves everything as it was where the forward raises", function()
    local w <close> = open "raises"
    local model = nn.Sequential{nn.Linear(3, 4)}
    assert.refuses("linear: .*5.*3", function() w:add_graph(model, dm.ones(2, 5)) end)
    assert.is_true(model[1].training)
    assert.is_false(model[1]._has_hooks)
    assert.is_nil((debug.gethook()))
    assert.refuses("_spec.lua:%d+: add_graph: input_to_model is a table, wanted a tensor",
      function() w:add_graph(model, {}) end)
    w:close()
    assert.same({}, records_in "raises")
  end)
end)

describe("SummaryWriter", function()
  it("names its files as TensorFlow does, and no two alike", function()
    local a <close> = open "same"
    local b <close> = open("same", {filename_suffix = ".mine"})
    a:add_scalar("x", 1, 1)
    b:add_scalar("x", 2, 1)
    a:close()
    b:close()
    local paths = files_in "same"
    assert.equal(2, #paths)
    local seen = 0
    for _, path in ipairs(paths) do
      assert.matches("/events%.out%.tfevents%.%d%d%d%d%d%d%d%d%d%d%.[%w._-]+%.%d+%.%d+", path)
      seen = seen + events.scalars(events.records(read(path)))[1].value
    end
    assert.equal(3, seen)
    assert.equal("SummaryWriter(" .. folder.path "same" .. ")", tostring(a))
    assert.equal(folder.path "same", a:get_logdir())
  end)

  it("makes folders, whatever their names", function()
    local name = "it's \"a\" $(run)\n `x` -y"
    local w <close> = open(name .. "/deep")
    w:add_scalar("x", 1, 1)
    assert.is_true(w:close())
    local file <close> = io.open(folder.path(name .. "/deep"))
    assert.is_truthy(file)
  end)

  it("names its folder by date and machine where none is given", function()
    local text = folder.run(("cd %s && LUA_PATH=%q LUA_CPATH=%q lua5.4 -e %q"):format(
      folder.path(), package.path:gsub("%./", os.getenv "PWD" .. "/"),
      package.cpath:gsub("%./", os.getenv "PWD" .. "/"),
      "local w = require 'demilune'.SummaryWriter{comment = '_lr'} print(w.log_dir)"))
    assert.matches("^runs/%u%l%l%d%d_%d%d%-%d%d%-%d%d_[%w._-]+_lr\n$", text)
    assert.equal(1, #files_in((text:gsub("\n", ""))))
  end)

  it("writes max_queue events, or those of flush_secs, by itself", function()
    local w <close> = open("queue", {max_queue = 3, flush_secs = 1000})
    local path = files_in "queue"[1]
    local function written() return #events.scalars(events.records(read(path))) end
    local from = core.now()
    w:add_scalar("x", 1, 1)
    w:add_scalar("x", 2, 2)
    assert.equal(0, written())
    while core.now() < from + 0.26 do end
    w:add_scalar("x", 3, 3)
    assert.equal(3, written())
    w:add_scalar("x", 4, 4)
    assert.equal(3, written())
    assert.is_true(w:flush())
    assert.equal(4, written())
    local soon <close> = open("soon", {flush_secs = 0})
    soon:add_scalar("x", 1, 1)
    assert.equal(1, #events.scalars(events.records(read(files_in "soon"[1]))))
    soon:close()
  end)

  it("keeps the order of scalars and other events", function()
    local w <close> = open "order"
    w:add_scalar("x", 1, 1)
    w:add_text("t", "a", 2)
    for i = 3, 40 do w:add_scalar("x", i, i) end
    w:add_text("t", "b", 41)
    w:close()
    for i, data in ipairs(records_in "order") do
      assert.equal(i, events.fields(data)[2][1])
    end
  end)

  it("writes at its end, and where it is collected or the program stops", function()
    do
      local w <close> = open "closed"
      w:add_scalar("x", 1, 1)
    end
    assert.equal(1, #records_in "closed")
    local script = folder.write("ends.lua", ([[
      local dm = require "demilune"
      local w = dm.SummaryWriter(%q)
      w:add_scalar("x", 1, 1)
      w:add_scalars("y", {a = 1}, 1)
      error "stop"
    ]]):format(folder.path "ended"))
    local said = folder.run(("LUA_PATH=%q LUA_CPATH=%q lua5.4 %s"):format(package.path,
      package.cpath, script))
    assert.matches("ends.lua:5: stop", said)
    assert.equal(1, #records_in "ended")
    assert.equal(1, #records_in "ended/y_a")
  end)

  it("opens a new file after close", function()
    local w <close> = open "again"
    w:close()
    assert.is_true(w:close())
    assert.is_true(w:flush())
    w:add_scalar("x", 1, 1)
    w:close()
    assert.equal(2, #files_in "again")
  end)

  it("leaves whole records where the process is killed #slow", function()
    local script = folder.write("killed.lua", ([[
      local dm = require "demilune"
      local w = dm.SummaryWriter(%q, {flush_secs = 0})
      for i = 1, math.huge do w:add_scalar("x", i, i) end
    ]]):format(folder.path "killed"))
    folder.run(("LUA_PATH=%q LUA_CPATH=%q timeout -s KILL 1 lua5.4 %s"):format(package.path,
      package.cpath, script))
    local bytes = read(files_in "killed"[1])
    local records = events.records(bytes:sub(1, 20000))
    assert.is_true(#records > 100)
    for i, scalar in ipairs(events.scalars(records)) do
      assert.equal(i, scalar.value)
      assert.equal(i, scalar.step)
    end
    local cut = events.records(bytes:sub(1, 1000)) -- somewhere in a record
    assert.is_true(#cut > 5)
  end)
end)

describe("a disk that fails", function()
  local function warnings(fn)
    local sink, said = caller.sink, {}
    caller.sink = function(text) said[#said + 1] = text end
    local ok, err = pcall(fn)
    caller.sink = sink
    if not ok then error(err, 0) end
    return said
  end

  it("is nil and why where the folder cannot be made", function()
    folder.write("file", "")
    local said = warnings(function()
      local w, why = dm.SummaryWriter(folder.path "file/below")
      assert.is_nil(w)
      assert.matches("file/below", why)
    end)
    assert.equal(0, #said)
  end)

  it("is told once where the folder was removed", function()
    local w <close> = open "removed"
    w:add_scalar("x", 1, 1)
    folder.run("rm -r " .. folder.path "removed")
    local said = warnings(function()
      for _ = 1, 2 do
        w:add_scalar("x", 2, 2)
        local done, why = w:flush()
        assert.is_nil(done)
        assert.matches("the file was removed", why)
      end
      assert.is_nil((w:close()))
    end)
    assert.equal(1, #said)
    assert.matches("tensorboard_spec.lua:%d+: warning: SummaryWriter: .*the file was removed",
      said[1])
  end)

  it("is told once where a folder of add_scalars or add_hparams cannot be made", function()
    local w <close> = open "blocked"
    folder.write("blocked/m_a", "")
    local said = warnings(function()
      for i = 1, 2 do w:add_scalars("m", {a = 1, b = 2}, i) end
      local done, why = w:add_hparams({}, {}, {run_name = "m_a"})
      assert.is_nil(done)
      assert.matches("m_a", why)
    end)
    assert.equal(2, #said)
    w:close()
    assert.equal(2, #records_in "blocked/m_b")
  end)

  it("stops no program where it is full, and loses nothing once there is space", function()
    -- a limit of 8 blocks of 512 bytes on every file stands for the full disk
    local script = folder.write("full.lua", ([[
      local dm = require "demilune"
      local w = dm.SummaryWriter(%q)
      for i = 1, 200 do w:add_scalar("x", i, i) end
      print(w:flush())
      print(w:close())
    ]]):format(folder.path "full"))
    -- gcov, where it counts lines, says that it cannot write its files either
    local function run_within(blocks, program)
      return folder.run(("LUA_PATH=%q LUA_CPATH=%q sh -c 'trap \"\" XFSZ; ulimit -f %d; "
        .. "lua5.4 %s'"):format(package.path, package.cpath, blocks, program))
        :gsub("libgcov[^\n]*\n", "")
    end
    local text = run_within(8, script)
    assert.matches("full.lua:%d: warning: SummaryWriter: File too large; the program goes on", text)
    assert.matches("\nnil\tFile too large\nnil\tFile too large\n$", text)
    assert.equal(1, select(2, text:gsub("warning", "")))
    local records, whole = events.records(read(files_in "full"[1]))
    assert.is_true(#records > 50 and whole > 4000)

    local none = folder.write("none.lua", ([[
      print(require "demilune".SummaryWriter(%q))
    ]]):format(folder.path "none"))
    assert.equal("nil\tFile too large\n", (run_within(0, none)))

    local w = open "full_for_a_while"
    local file = w.files[w.log_dir]
    local real, refuses = file.file, true
    file.file = setmetatable({}, {__index = function(_, name)
      return function(_, ...)
        if name == "write" and refuses then
          real:write((...):sub(1, 7)) -- a part, as write(2) does
          return nil, "No space left on device", 28
        end
        return real[name](real, ...)
      end
    end})
    local said = warnings(function()
      for i = 1, 5 do
        w:add_scalar("x", i, i)
        assert.same({n = 2, nil, "No space left on device"}, table.pack(w:flush()))
      end
      refuses = false
      w:add_scalar("x", 6, 6)
      assert.is_true(w:close())
    end)
    assert.equal(1, #said)
    for i, scalar in ipairs(events.scalars(records_in "full_for_a_while")) do
      assert.equal(i, scalar.value)
    end
    assert.equal(6, #records_in "full_for_a_while")
  end)
end)

describe("a wrong call", function()
  local w
  local function fails(text, fn)
    assert.refuses("tensorboard_spec.lua:%d+: " .. text, fn)
  end
  before_each(function() w = open "wrong" end)
  after_each(function()
    w:close()
    assert.same({}, records_in "wrong")
    folder.run("rm -r " .. folder.path "wrong")
  end)

  it("names what is wrong, and adds nothing", function()
    fails("add_scalar: scalar_value is a table, wanted a number or a tensor",
      function() w:add_scalar("x", {}, 1) end)
    fails("add_scalar: 'scalar_value' has shape {2}, wanted one element",
      function() w:add_scalar("x", dm.ones(2), 1) end)
    fails("add_scalar: global_step is 1.5, wanted an integer",
      function() w:add_scalar("x", 1, 1.5) end)
    fails("add_scalar: argument 7, 1, is one too many",
      function() w:add_scalar("x", 1, 1, 1.0, false, false, 1) end)
    fails("add_scalar: unknown option 'globl_step'; did you mean 'global_step'", function()
      w:add_scalar("x", 1, {globl_step = 1})
    end)
    fails("add_scalar: tag is not UTF%-8", function() w:add_scalar("\xff", 1, 1) end)
    fails("add_text: text_string is not UTF%-8", function() w:add_text("t", "\xff") end)
    fails("add_scalars: 'a' is a string, wanted a number",
      function() w:add_scalars("m", {a = "1"}, 1) end)
    fails("add_scalars: tag_scalar_dict has the key 1, wanted names",
      function() w:add_scalars("m", {1, 2}, 1) end)
    fails("add_histogram: values holds no element",
      function() w:add_histogram("h", dm.ones(0)) end)
    fails("add_histogram: bins is 'fd', wanted 'tensorflow', a number",
      function() w:add_histogram("h", dm.ones(1), 1, "fd") end)
    fails("add_histogram: bins is a list of limits, wanted two at least that rise",
      function() w:add_histogram("h", dm.ones(1), 1, {bins = {1, 1}}) end)
    fails("add_histogram: wanted one bucket at least",
      function() w:add_histogram("h", dm.ones(1), 1, {bins = 0}) end)
    fails("add_histogram_raw: 1 bucket_limits and 2 bucket_counts",
      function() w:add_histogram_raw("h", 0, 1, 1, 1, 1, {1}, {1, 2}) end)
    fails("add_image: images of 2 channels, wanted 1, 3 or 4",
      function() w:add_image("i", dm.ones(2, 4, 4)) end)
    fails("add_image: got shape {4, 4}, wanted CHW", function() w:add_image("i", dm.ones(4, 4)) end)
    fails("add_image: dataformats is 'CHX', wanted the letters of HWC",
      function() w:add_image("i", dm.ones(3, 4, 4), 1, {dataformats = "CHX"}) end)
    fails("add_images: got shape {3, 4, 4}, wanted NCHW",
      function() w:add_images("i", dm.ones(3, 4, 4)) end)
    fails("add_hparams: 'a' is a function, wanted a number, a string or a boolean",
      function() w:add_hparams({a = print}, {}) end)
    fails("add_hparams: 'm' is a string", function() w:add_hparams({}, {m = "1"}) end)
    fails("add_hparams: hparam_domain_discrete has 'b', which hparam_dict has not",
      function() w:add_hparams({a = 1}, {}, {hparam_domain_discrete = {b = {1}}}) end)
    fails("add_hparams: hparam_domain_discrete.a: element 2 is a string",
      function() w:add_hparams({a = 1}, {}, {hparam_domain_discrete = {a = {1, "2"}}}) end)
    fails("add_pr_curve: 2 labels and 3 predictions, wanted as many",
      function() w:add_pr_curve("p", {0, 1}, {0.1, 0.2, 0.3}) end)
    fails("add_pr_curve: num_thresholds is 1", function()
      w:add_pr_curve("p", {0, 1}, {0.1, 0.2}, 1, {num_thresholds = 1})
    end)
    fails("add_custom_scalars: chart 'b': wanted", function()
      w:add_custom_scalars{a = {b = {"Lines", {"x"}}}}
    end)
    fails("add_custom_scalars: 'a' is a string, wanted a table of charts", function()
      w:add_custom_scalars{a = "b"}
    end)
    fails("add_custom_scalars_marginchart: chart 'untitled': wanted",
      function() w:add_custom_scalars_marginchart{"a", "b"} end)
    fails("SummaryWriter: max_queue is %-1", function() dm.SummaryWriter("x", {max_queue = -1}) end)
    fails("SummaryWriter: a folder's name holds no NUL", function()
      dm.SummaryWriter(folder.path "wrong", {filename_suffix = "/x"})
    end)
    fails("SummaryWriter: unknown option 'logdir'; did you mean 'log_dir'",
      function() dm.SummaryWriter{logdir = "x"} end)
  end)
end)

describe("TensorBoard itself", function()
  local python = os.getenv "DEMILUNE_PYTHON" or "python3"
  local has = os.execute(python .. " -c 'import tensorboard, numpy' >/dev/null 2>&1")

  it("reads values, steps and tags #slow", function()
    if not has then return pending "python3 with tensorboard is not there" end
    local w <close> = open "read"
    for i = 1, 100 do
      w:add_scalar("loss/train", 1 / i, i)
      w:add_scalar("loss/häuser", dm.tensor(i), i)
    end
    w:add_histogram("h", dm.tensor{1.0, 2.0, 4.0}, 3)
    w:add_image("i", ramp(3, 4, 5), 4)
    w:add_text("t", "häuser", 5)
    w:add_graph(dm.nn.Sequential{dm.nn.Linear(2, 3), dm.nn.ReLU()}, dm.ones(1, 2))
    w:add_hparams({lr = 0.1, name = "a", on = true}, {["hp/loss"] = 0.5}, {run_name = "r"})
    w:close()
    -- a record that a kill cut short ends what is read
    local path = files_in "read"[1]
    local file <close> = assert(io.open(path, "ab"))
    file:write(read(path):sub(1, 20))
    file:close()
    local script = folder.write("read.py", [[
import sys, warnings
warnings.filterwarnings("ignore")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
size = {"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}
e = EventAccumulator(sys.argv[1], size_guidance=size)
e.Reload()
tags = e.Tags()
print(sorted(tags["scalars"]), tags["histograms"], tags["images"], tags["tensors"], tags["graph"])
for tag in ("loss/train", "loss/häuser"):
    s = e.Scalars(tag)
    print(len(s), all(x.step == i + 1 for i, x in enumerate(s)),
          sum(abs(x.value - (1 / x.step if tag == "loss/train" else x.step)) for x in s) < 1e-6)
h = e.Histograms("h")[0].histogram_value
print(h.min, h.max, h.num, h.sum, h.sum_squares, sum(h.bucket))
i = e.Images("i")[0]
print(i.step, i.width, i.height, i.encoded_image_string[:4])
print(e.Tensors("t/text_summary")[0].tensor_proto.string_val[0].decode())
for n in e.Graph().node:
    print(n.name, list(n.input))
r = EventAccumulator(sys.argv[1] + "/r")
r.Reload()
data = plugin_data_pb2.HParamsPluginData.FromString(
    r.summary_metadata["_hparams_/session_start_info"].plugin_data.content)
values = data.session_start_info.hparams
print({k: getattr(v, v.WhichOneof("kind")) for k, v in sorted(values.items())})
]])
    local text = folder.run(("PYTHONIOENCODING=utf-8 %s %s %s 2>/dev/null"):format(python, script,
      folder.path "read"))
    assert.equal([==[
['loss/häuser', 'loss/train'] ['h'] ['i'] ['t/text_summary'] True
100 True True
100 True True
1.0 4.0 3.0 7.0 21.0 3.0
4 5 4 b'\x89PNG'
häuser
input/x []
Sequential/Linear[0]/weight []
Sequential/Linear[0]/bias []
Sequential/Linear[0]/linear ['input/x', 'Sequential/Linear[0]/weight', 'Sequential/Linear[0]/bias']
Sequential/ReLU[1]/relu ['Sequential/Linear[0]/linear']
output/y ['Sequential/ReLU[1]/relu']
{'lr': 0.1, 'name': 'a', 'on': True}
]==], text)
  end)
end)
