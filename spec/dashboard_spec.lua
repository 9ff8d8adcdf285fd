-- dm.dashboard: the files of runs by definition, and the server as clients of every kind meet it.
-- A test that asks the server wants lua-socket and is pending without it.

local dm = require "demilune"
local core = require "demilune.core"
local folders = require "demilune.folders"
local process = require "demilune.dashboard.process"
local runs = require "demilune.dashboard.runs"
local folder = require "spec.folder"
local warnings = require "spec.warnings"

local quoted = folders.quoted
local has_socket, socket = pcall(require, "socket")

setup(folder.make)
teardown(folder.remove)

local opened = {} -- boards, which each test closes

local function board(opts)
  opts = opts or {}
  opts.dir = opts.dir or folder.path "runs"
  if opts.serve == nil then opts.serve = false end
  local b = assert(dm.dashboard(opts))
  opened[#opened + 1] = b
  return b
end

after_each(function()
  for i = #opened, 1, -1 do
    opened[i]:close()
    opened[i] = nil
  end
end)

-- The events of a board's file.
local function events(b)
  b:flush()
  local file <close> = assert(io.open(b.path))
  local list = {}
  for line in file:lines() do list[#list + 1] = core.json_decode(line) end
  return list
end

-- The last event that has the member.
local function last(b, member)
  local found
  for _, event in ipairs(events(b)) do
    if event[member] ~= nil then found = event end
  end
  return found
end

local function run_lua(code)
  return ("env LUA_PATH=%s LUA_CPATH=%s lua5.4 -e %s"):format(quoted(package.path),
    quoted(package.cpath), quoted(code))
end

describe("a run", function()
  it("has a line for each step, with its numbers", function()
    local b = board{name = "lines"}
    for step = 1, 3 do b:log(step, {loss = 1 / step, lr = 1e-3}) end
    b:log(4, {accuracy = dm.tensor(0.25), ["loss/valid"] = 3})
    b:log{step = 5, values = {["100 %"] = 1}}
    b:close()
    local list = events(b)
    assert.equal("lines", list[1].run)
    assert.equal(process.id(), list[1].process)
    for step = 1, 3 do
      assert.equal(step, list[step + 1].step)
      assert.near(1 / step, list[step + 1].values.loss, 1e-7)
      assert.equal(1e-3, list[step + 1].values.lr)
      assert.is_true(list[step + 1].time >= 0 and list[step + 1].time < 60)
    end
    assert.same({accuracy = 0.25, ["loss/valid"] = 3}, list[5].values)
    assert.same({["100 %"] = 1}, list[6].values)
    assert.is_true(list[7].ended >= 0)
    assert.equal(7, #list)
  end)

  it("tells the ranges of the low floats", function()
    local ranges = {}
    for _, format in ipairs(events(board())[1].formats) do
      ranges[format[1]] = {table.unpack(format, 2)}
    end
    assert.same({-24, -14, 15}, ranges.float16)
    assert.same({-133, -126, 127}, ranges.bfloat16)
  end)

  it("keeps NaN and infinity as texts", function()
    local b = board()
    b:log(1, {loss = 0 / 0, up = math.huge, down = -math.huge, one = 1})
    b:add_scalar("loss", dm.tensor(0 / 0), 2)
    local list = events(b)
    local values = list[2].values
    assert.same({"nan", "inf", "-inf", 1}, {values.loss, values.up, values.down, values.one})
    assert.same({loss = "nan"}, list[3].values)
  end)

  it("takes the calls of a SummaryWriter", function()
    local b = board()
    b:add_scalar("loss/train", 0.5, 7)
    b:add_scalar("loss/train", dm.tensor(0.25), 8)
    b:add_scalar{tag = "one", scalar_value = 1}
    b:add_scalars("error", {train = 1, valid = dm.tensor(2)}, 9)
    b:add_scalars("error", {train = 3, valid = 4}, 10)
    b:add_hparams({lr = 0.5, name = "sgd", nesterov = true}, {accuracy = 0.75})
    local list = events(b)
    assert.same({7, 0.5}, {list[2].step, list[2].values["loss/train"]})
    assert.same({8, 0.25}, {list[3].step, list[3].values["loss/train"]})
    assert.same({0, 1}, {list[4].step, list[4].values.one})
    assert.same({chart = "error", tags = {"error/train", "error/valid"}}, list[5])
    assert.same({["error/train"] = 1, ["error/valid"] = 2}, list[6].values)
    assert.same({["error/train"] = 3, ["error/valid"] = 4}, list[7].values)
    assert.same({lr = "0.5", name = "sgd", nesterov = "true", accuracy = "0.75"}, list[8].settings)
  end)

  it("serves a Trainer as its writer", function()
    local b = board()
    local model = dm.nn.Linear(4, 2)
    local trainer = dm.Trainer{model = model, loss = dm.nn.CrossEntropyLoss(), amp = "float16",
      optimizer = dm.optim.SGD(model:parameters(), {lr = 0.1}), writer = b, log_every = 1,
      verbose = false}
    local x, y = dm.randn(32, 4), dm.randint(1, 2, {32})
    local set = dm.data.TensorDataset(x, y)
    local history = trainer:fit{train = dm.data.DataLoader(set, {batch_size = 8}), epochs = 2}
    local got = {}
    for _, event in ipairs(events(b)) do
      for tag, v in pairs(event.values or {}) do
        got[tag] = got[tag] or {}
        got[tag][event.step] = v
      end
    end
    assert.near(history[2].train_loss, got["loss/train"][8], 1e-6)
    assert.near(0.1, got.lr[5], 1e-8)
    assert.equal(trainer.scaler:get_scale(), got["amp/scale"][8])
    assert.is_true(got.samples_per_second[3] > 0)
  end)

  it("gets a name of its own", function()
    local names = {}
    for i = 1, 3 do names[i] = board{name = "same"}.name end
    assert.same({"same", "same-2", "same-3"}, names)
    assert.matches("^%d+%-%d+%-%d+", board().name)
  end)

  it("tells speed and memory, at the end too", function()
    local b = board()
    for step = 1, 20 do b:log(step, {samples = 4, loss = 1}) end
    b:close()
    local values = last(b, "values").values
    assert.is_true(values.samples_per_second > 0)
    assert.is_true(values["memory_MiB/peak"] >= values["memory_MiB/current"])
    assert.is_nil(values.samples)
  end)

  it("goes on when it was closed", function()
    local b = board()
    assert.is_true(b:close())
    b:log(1, {loss = 1})
    b:add_scalar("loss", 1, 1)
    b:add_scalars("loss", {a = 1}, 1)
    assert.is_true(b:flush())
    assert.is_true(b:close())
    assert.equal(2, #events(b))
  end)

  -- A step of 1 ms may pay 5 us: that is a line of text, and no call of the system.
  it("costs a line a step, and a write each half second", function()
    local b = board()
    b:flush()
    local writes, bytes, real = 0, 0, b.file.file
    b.file.file = {
      write = function(_, data)
        writes, bytes = writes + 1, bytes + #data
        return real:write(data)
      end,
      close = function() return real:close() end,
    }
    local began = core.now()
    for step = 1, 5000 do b:log(step, {loss = 1 / 3, lr = 1e-3, accuracy = 2 / 3}) end
    local most = (core.now() - began) / 0.5 + 1
    assert.is_true(writes <= most, writes .. " writes")
    b:flush()
    assert.is_true(bytes / 5000 < 90, bytes .. " bytes")
    b.file.file = real
  end)
end)

describe("gradients", function()
  local function model_with(values)
    local model = dm.nn.Sequential{dm.nn.Linear(#values, 1, {bias = false}), dm.nn.ReLU()}
    model:parameters()[1].grad = dm.tensor{values}
    return model
  end

  it("are counted by floor(log2 |g|)", function()
    local b = board()
    b:gradients(model_with{0.125, -0.24, 1.5 * 2 ^ -20, 2 ^ -20, 3, 0, math.huge, 0 / 0}, 6)
    local event = last(b, "gradients")
    assert.equal(6, event.step)
    local layer = event.gradients[1]
    assert.equal("0 Linear", layer.layer)
    assert.same({1, 1, 1}, {layer.zero, layer.inf, layer.nan})
    local counts = {}
    for i, n in ipairs(layer.counts) do
      if n > 0 then counts[layer.low + i - 1] = n end
    end
    assert.same({[-3] = 2, [-20] = 2, [1] = 1}, counts)
  end)

  it("are divided by the scale of a scaler", function()
    local b = board()
    local scaler = dm.amp.GradScaler{device = "cpu", init_scale = 2.0 ^ 10}
    b:gradients(model_with{2 ^ 4, 2 ^ 4}, 1, {scaler = scaler})
    local layer = last(b, "gradients").gradients[1]
    assert.same({-6, {2}}, {layer.low, layer.counts})
  end)

  -- The loss is 2^-10 times the sum over four rows of ones: each gradient is 2^-8.
  it("of a Trainer are looked at in its steps, unscaled", function()
    local b = board()
    local model = dm.nn.Linear(3, 2)
    local optimizer = dm.optim.SGD(model:parameters(), {lr = 0.1})
    b:attach(model, optimizer, {every = 2})
    local trainer = dm.Trainer{model = model, optimizer = optimizer, amp = "float16",
      forward = function(net, x) return net(x):sum() * 2 ^ -10 end, verbose = false}
    local set = dm.data.TensorDataset(dm.ones(16, 3))
    trainer:fit{train = dm.data.DataLoader(set, {batch_size = 4}), epochs = 1}
    local steps = {}
    for _, event in ipairs(events(b)) do
      if event.gradients then
        steps[#steps + 1] = event.step
        assert.same({-8, {8}}, {event.gradients[1].low, event.gradients[1].counts})
      end
    end
    assert.same({2, 4}, steps)
    assert.refuses("attached already", function() b:attach(model, optimizer) end)
    b:close()
    assert.is_nil(rawget(optimizer, "step"))
    trainer:fit{train = dm.data.DataLoader(set, {batch_size = 4}), epochs = 2}
  end)

  it("may all be 0", function()
    local b = board()
    b:gradients(model_with{0.0, 0.0}, 1)
    local layer = last(b, "gradients").gradients[1]
    assert.same({2, 0}, {layer.zero, #layer.counts})
  end)

  it("come with the scaler's scale and skipped steps", function()
    local b = board()
    local w = dm.ones(2):requires_grad_()
    local optimizer = dm.optim.SGD({w}, {lr = 0.1})
    local scaler = dm.amp.GradScaler{device = "cpu", init_scale = 4.0}
    scaler:scale((w * math.huge):sum()):backward()
    scaler:step(optimizer)
    scaler:update()
    b:scaler(scaler, 3)
    assert.same({["amp/scale"] = 2, ["amp/skipped_steps"] = 1}, last(b, "values").values)
    local before = #events(b)
    b:scaler(dm.amp.GradScaler{device = "cpu", enabled = false}, 4)
    assert.equal(before, #events(b))
  end)
end)

describe("mistakes", function()
  it("raise at the caller's line, and write nothing", function()
    local b = board()
    local before = #events(b)
    local function refuses(pattern, f)
      assert.refuses("dashboard_spec.lua:%d+: .*" .. pattern, f)
    end
    refuses("unknown option 'prt'.*port", function() dm.dashboard{prt = 1} end)
    refuses("port is 70000, wanted 0 .* to 65535", function() dm.dashboard{port = 70000} end)
    refuses("name is '../x'", function() dm.dashboard{name = "../x"} end)
    refuses("name is '.hidden'", function() dm.dashboard{name = ".hidden"} end)
    refuses("dir is ''", function() dm.dashboard "" end)
    refuses("step is 'one'", function() b:log("one", {loss = 1}) end)
    refuses("'loss' is a string, wanted a number", function() b:log(1, {loss = "low"}) end)
    refuses("'loss' has shape {2}, wanted one", function() b:log(1, {loss = dm.ones(2)}) end)
    refuses("a tag is a number", function() b:log(1, {0.5}) end)
    refuses("not UTF%-8", function() b:log(1, {["\xff"] = 1}) end)
    refuses("'samples' is a string", function() b:log(1, {samples = "8"}) end)
    refuses("'a' is a boolean", function() b:add_scalars("x", {a = true}, 1) end)
    refuses("'net' is a table", function() b:add_hparams{hparam_dict = {net = {}}} end)
    refuses("every is 0, wanted 1 at least", function()
      local model = dm.nn.Linear(1, 1)
      b:attach(model, dm.optim.SGD(model:parameters(), {lr = 1}), {every = 0})
    end)
    refuses("wanted an amp.GradScaler", function() b:scaler({}, 1) end)
    refuses("board.log was called with a dot; hint: board:log", function() b.log(1, {}) end)
    refuses("no parameter of the Linear has a gradient; hint", function()
      b:gradients(dm.nn.Linear(2, 2), 1)
    end)
    assert.equal(before, #events(b))
  end)

  it("of the disk are told once, and refused lines are written later", function()
    local b = board()
    b:log(1, {loss = 1})
    b:flush()
    local real = b.file.file
    b.file.file = assert(io.open("/dev/full", "wb"))
    b.file.file:setvbuf "no"
    local texts = warnings(function()
      b:log(2, {loss = 2})
      assert.is_nil(b:flush())
      b:log(3, {loss = 3})
      local fine, why = b:flush()
      assert.is_nil(fine)
      assert.matches("No space left", why)
    end)
    assert.equal(1, #texts)
    assert.matches("No space left.*the program goes on", texts[1])
    b.file.file:close()
    b.file.file = real
    local steps = {}
    for _, event in ipairs(events(b)) do steps[#steps + 1] = event.step end
    assert.same({1, 2, 3}, steps)
  end)

  it("of a folder are returned", function()
    folder.write("file", "")
    local b, why = dm.dashboard{dir = folder.path "file/runs", serve = false}
    assert.is_nil(b)
    assert.matches("^dashboard: .*Not a directory", why)
    os.execute("mkdir " .. folder.path "closed" .. " && chmod 555 " .. folder.path "closed")
    local probe = io.open(folder.path "closed/probe", "w")
    if probe then return probe:close() end -- root may write everywhere
    b, why = dm.dashboard{dir = folder.path "closed", serve = false}
    assert.is_nil(b)
    assert.matches("Permission denied", why)
  end)

  it("without lua-socket name the package, and files are written all the same", function()
    local code = [[package.preload.socket = function() error "none" end
      local dm = require "demilune"
      print(dm.dashboard{dir = arg_dir})
      local b = assert(dm.dashboard{dir = arg_dir, serve = false})
      b:log(1, {loss = 1})
      b:close()]]
    local text = folder.run(run_lua(code:gsub("arg_dir", ("%q"):format(folder.path "alone"))))
    assert.matches("^nil\tdashboard: .*hint: apt%-get install lua%-socket.*serve = false", text)
    assert.equal("ended", runs.list(folder.path "alone")[1].state)
  end)
end)

describe("a folder of runs", function()
  it("lists the files that are runs, with their states", function()
    local dir = folder.path "states"
    local open = board{dir = dir, name = "open"}
    open:flush()
    board{dir = dir, name = "closed"}:close()
    folder.write("states/other.jsonl", "no run\n")
    folder.write("states/empty.jsonl", "")
    folder.write("states/notes.txt", "x")
    folder.write("states/gone.jsonl", '{"run":"gone","began":5,"process":"1.1"}\n')
    folder.write("states/elsewhere.jsonl", '{"run":"elsewhere","began":5,"process":""}\n')
    os.execute("mkdir " .. folder.path "states/folder.jsonl")
    local states = {}
    for _, run in ipairs(runs.list(dir)) do states[run.name] = run.state end
    assert.same({open = "running", closed = "ended", gone = "stopped", elsewhere = "unknown"},
      states)
    assert.is_nil(runs.list(folder.path "nowhere"))
  end)

  it("keeps names from leaving it", function()
    for _, name in ipairs{"", "..", ".x", "-x", "a/b", "../a", "a\nb", "a\0b", "\xff"} do
      assert.is_false(runs.is_name(name))
    end
    for _, name in ipairs{"a", "small net", "2026-01-01_lr=0.1", "größe", "a..b"} do
      assert.is_true(runs.is_name(name))
    end
  end)
end)

-- ---- the server ----

local with_socket = has_socket and it or function(title)
  it(title, function() pending "lua-socket is not installed" end)
end

-- A board that serves, whose line with the address is kept from the output.
local function served(opts)
  opts.serve = true
  local print_, told = _G.print, {}
  _G.print = function(...) told[#told + 1] = table.concat({...}, "\t") end
  local fine, b = pcall(board, opts)
  _G.print = print_
  assert.is_true(fine, b)
  assert.same({"dashboard: " .. b.url}, told)
  return b
end

local function connect(b)
  local client = assert(socket.connect("127.0.0.1", b.port))
  client:settimeout(10)
  return client
end

-- The server's answer to these bytes: status, body, head. The client may be slow to send.
local function exchange(b, bytes)
  local client = connect(b)
  client:send(bytes)
  local text, _, part = client:receive "*a"
  client:close()
  local head, body = (text or part):match "^(.-\r\n)\r\n(.*)$"
  return tonumber((head or ""):match "^HTTP/1%.1 (%d+) "), body, head
end

local function get(b, path, query, method)
  return exchange(b, ("%s %s?%stoken=%s HTTP/1.1\r\nHost: x\r\n\r\n"):format(method or "GET", path,
    query or "", b.url:match "token=(%x+)$"))
end

-- The runs that a board's server tells, by name.
local function told_runs(b)
  local status, body = get(b, "/runs")
  assert.equal(200, status)
  local found = {}
  for _, run in ipairs(core.json_decode(body).runs) do found[run.name] = run end
  return found
end

-- Whether something comes true within ten seconds.
local function comes_true(condition)
  local due = core.now() + 10
  while core.now() < due do
    if condition() then return true end
    socket.sleep(0.05)
  end
  return false
end

local function is_down(port)
  local client = socket.connect("127.0.0.1", port)
  if client then client:close() end
  return client == nil
end

describe("the server", function()
  with_socket("serves page, runs and their bytes to who has the token", function()
    local b = served{dir = folder.path "page", name = "a net"}
    b:log(1, {loss = 0.5})
    b:flush()
    assert.matches("^http://127%.0%.0%.1:%d+/%?token=" .. ("%x"):rep(32) .. "$", b.url)
    local status, body, head = get(b, "/")
    assert.equal(200, status)
    assert.matches("<!doctype html>", body, 1, true)
    assert.matches("Content%-Security%-Policy: default%-src 'none'", head)
    assert.equal("running", told_runs(b)["a net"].state)
    local text = folder.read "page/a net.jsonl"
    status, body = get(b, "/run", "name=a%20net&from=0&")
    assert.same({200, text}, {status, body})
    status, body = get(b, "/run", "name=a+net&from=20&")
    assert.same({200, text:sub(21)}, {status, body})
    status, body = get(b, "/run", "name=a%20net&from=99999999999&")
    assert.same({200, ""}, {status, body})
    status, body, head = get(b, "/run", "name=a%20net&", "HEAD")
    assert.same({200, ""}, {status, body})
    assert.matches("Content%-Length: " .. #text, head)
  end)

  with_socket("gives nothing to who has not", function()
    local b = served{dir = folder.path "page"}
    local token = b.url:match "token=(%x+)$"
    local wrong = token:gsub("^.", function(c) return c == "0" and "1" or "0" end)
    for _, path in ipairs{"/", "/?token=", "/?token=" .. wrong, "/?token=" .. token:sub(1, -2),
      "/?token=" .. token .. "0", "/runs", "/run?name=a", "/favicon.ico"} do
      local status, body = exchange(b, ("GET %s HTTP/1.1\r\n\r\n"):format(path))
      assert.same({403, "Forbidden\n"}, {status, body}, path)
    end
  end)

  -- The addresses at which a port of this machine listens, as /proc/net/tcp writes them.
  local function listens_at(port)
    local found = {}
    for line in io.lines "/proc/net/tcp" do
      local address, at, state = line:match "^%s*%d+: (%x+):(%x+) %x+:%x+ (%x+)"
      if address and tonumber(at, 16) == port and state == "0A" then found[#found + 1] = address end
    end
    return found
  end

  with_socket("listens to this machine alone, and shows its token to no list of processes",
    function()
      local b = served{dir = folder.path "page"}
      assert.same({"0100007F"}, listens_at(b.port))
      local lines = folder.run "cat /proc/[0-9]*/cmdline"
      assert.is_truthy(lines:find("dashboard.launch", 1, true))
      assert.is_nil(lines:find(b.url:match "token=(%x+)$", 1, true))
      local open = served{dir = folder.path "page", host = "0.0.0.0"}
      assert.same({"00000000"}, listens_at(open.port))
      assert.matches("^http://[%w.-]+:%d+/", open.url)
    end)

  with_socket("refuses paths out of the folder", function()
    folder.write("secret.jsonl", '{"run":"secret"}\n')
    local b = served{dir = folder.path "page"}
    for _, name in ipairs{"../secret", "..%2fsecret", "%2e%2e%2Fsecret", "/etc/passwd", "", "a%00b",
      "..%5csecret/../../x"} do
      assert.equal(400, (get(b, "/run", "name=" .. name .. "&")), name)
    end
    assert.equal(404, (get(b, "/run", "name=nothing&")))
    assert.equal(404, (get(b, "/../secret.jsonl")))
    for _, from in ipairs{"-1", "x", "1e3", "0x10", ("9"):rep(40)} do
      assert.equal(400, (get(b, "/run", "name=a&from=" .. from .. "&")), from)
    end
  end)

  with_socket("answers or closes requests that are no HTTP, and serves the next one", function()
    local b = served{dir = folder.path "page"}
    assert.equal(400, (exchange(b, "hello\r\n\r\n")))
    assert.equal(400, (exchange(b, "GET http://x/ HTTP/1.1\r\n\r\n")))
    assert.equal(400, (exchange(b, "GET / HTTP/9.9\r\n\r\n")))
    assert.equal(400, (exchange(b, "\0\1\2\n\n")))
    assert.equal(405, (get(b, "/", "", "POST")))
    assert.equal(405, (get(b, "/", "", "DELETE")))
    assert.equal(431, (exchange(b, "GET /" .. ("a"):rep(20000) .. " HTTP/1.1\r\n\r\n")))
    assert.equal(431, (exchange(b, "GET / HTTP/1.1\r\n" .. ("X: y\r\n"):rep(10000) .. "\r\n")))
    assert.equal(200, (get(b, "/")))
  end)

  with_socket("minds no client that is slow, silent or gone", function()
    local b = served{dir = folder.path "page"}
    for step = 1, 20000 do b:log(step, {loss = 1 / step}) end -- more than a socket's buffer
    b:flush()
    local silent = {}
    for i = 1, 100 do silent[i] = connect(b) end -- more than it keeps
    for i = 1, 50 do silent[i]:close() end
    local gone = connect(b)
    gone:send(("GET /run?name=%s&token=%s HTTP/1.1\r\n\r\n"):format(b.name,
      b.url:match "token=(%x+)$"))
    gone:receive(10)
    gone:close()
    assert.equal(200, (get(b, "/")))
    local slow = connect(b)
    for c in ("GET /?token=" .. b.url:match "token=(%x+)$" .. " HTTP/1.0\n\n"):gmatch "." do
      slow:send(c)
    end
    assert.matches("^HTTP/1.1 200", (slow:receive "*l"))
    slow:close()
    for i = 51, 100 do silent[i]:close() end
    local status, body = get(b, "/run", "name=" .. b.name .. "&")
    assert.same({200, math.min(1 << 20, told_runs(b)[b.name].size)}, {status, #body})
  end)

  with_socket("says which port is free where one is in use", function()
    local b = served{dir = folder.path "page"}
    local other, why = dm.dashboard{dir = folder.path "page", port = b.port}
    assert.is_nil(other)
    assert.matches(("^dashboard: port %d of 127.0.0.1: address already in use; hint: port = %%d+ "
      .. "is free"):format(b.port), why)
    other, why = dm.dashboard{dir = folder.path "page", host = "nowhere.invalid"}
    assert.is_nil(other)
    assert.matches("^dashboard: port 0 of nowhere.invalid: ", why)
  end)

  with_socket("shows the runs of another process, and ends with its own", function()
    local dir = folder.path "two"
    local mine = served{dir = dir, name = "mine"}
    local code = ([[local dm = require "demilune"
      local b = assert(dm.dashboard{dir = %q, name = "theirs"})
      b:log(1, {loss = 1})
      b:flush()
      print(require "demilune.dashboard.process".id())
      io.stdout:flush()
      require "socket".sleep(60)]]):format(dir)
    local pipe = io.popen(run_lua(code) .. " 2>&1")
    local port = pipe:read "l":match ":(%d+)/"
    local id = pipe:read "l"
    local found = told_runs(mine)
    assert.same({"running", "running"}, {found.mine.state, found.theirs.state})
    assert.is_false(is_down(port))
    os.execute("kill -9 " .. id:match "^%d+")
    assert.is_true(comes_true(function() return is_down(port) end))
    assert.equal("stopped", told_runs(mine).theirs.state)
    pipe:close()
    local own = mine.port
    mine:close()
    assert.is_true(is_down(own))
  end)

  with_socket("is left by a program that ends without closing", function()
    local text = folder.run(run_lua(([[local b = assert(require "demilune".dashboard{dir = %q})
      b:log(1, {loss = 1})]]):format(folder.path "left")))
    local port = text:match ":(%d+)/"
    assert.is_true(comes_true(function() return is_down(port) end))
    local run = runs.list(folder.path "left")[1]
    assert.equal("ended", run.state)
    assert.matches('"loss":1', folder.read("left/" .. run.name .. ".jsonl"))
  end)
end)

describe("demilune dashboard", function()
  local function command(args)
    return ("env LUA_PATH=%s LUA_CPATH=%s lua5.4 scripts/demilune dashboard %s"):format(
      quoted(package.path), quoted(package.cpath), args)
  end

  it("says what is wrong with its arguments", function()
    local function fails(pattern, args)
      local text, status = folder.run(command(args))
      assert.equal(1, status)
      assert.matches(pattern, text)
    end
    fails("no folder 'nowhere' that can be read", "nowhere")
    fails("unknown option '%-%-prt'; did you mean '%-%-port'%?", "--prt 1")
    fails("%-%-port wants a number", "--port x")
    fails("%-%-port wants a value", "--port")
    fails("unknown 'b'; it takes one folder", "a b")
  end)

  with_socket("serves finished runs until Ctrl-C", function()
    local dir = folder.path "kept"
    board{dir = dir, name = "first"}:close()
    local pipe = io.popen(("echo $$; exec %s 2>&1"):format(command(quoted(dir))))
    local pid = pipe:read "l"
    local url = pipe:read "l":match "^dashboard: (http.*)$"
    local port = tonumber(url:match ":(%d+)/")
    assert.equal("ended", told_runs{url = url, port = port}.first.state)
    os.execute("kill -INT " .. pid)
    assert.equal("", pipe:read "a")
    assert.is_true(pipe:close())
  end)
end)

describe("the page", function()
  local CHROMIUM = "chromium"

  local function has_browser()
    return os.execute(("command -v %s >/dev/null 2>&1"):format(CHROMIUM)) == true
  end

  -- The document after some seconds of the page's clock, and the lines of its console.
  local function document(url)
    return (folder.run(("%s --headless --no-sandbox --disable-gpu --user-data-dir=%s "
      .. "--virtual-time-budget=4000 --enable-logging=stderr --dump-dom %s"):format(CHROMIUM,
      quoted(folder.path "profile"), quoted(url))))
  end

  with_socket("draws every curve, and takes no name for HTML #slow", function()
    if not has_browser() then return pending "chromium is not installed" end
    local b = served{dir = folder.path "drawn", name = "<b>net<b>"}
    local other = board{dir = folder.path "drawn", name = "other"}
    for step = 1, 300 do
      b:log(step, {loss = 1 / step, ["accuracy/train"] = step / 300, samples = 8})
      other:log(step, {loss = step == 100 and 0 / 0 or 2 / step})
    end
    b:add_scalar("<img src=x onerror=alert(1)>", 1, 1)
    local model = dm.nn.Linear(2, 2)
    model(dm.ones(1, 2)):sum():backward()
    b:gradients(model, 300)
    local still = dm.nn.Linear(2, 2, {bias = false})
    still(dm.zeros(1, 2)):sum():backward() -- all gradients are 0
    other:gradients(still, 300)
    b:flush()
    other:flush()
    local text = document(b.url)
    for _, title in ipairs{"loss", "accuracy", "memory_MiB", "&lt;img src=x onerror=alert(1)&gt;",
      "Exponents of gradients, &lt;b&gt;net&lt;b&gt;", "Exponents of gradients, other"} do
      assert.is_truthy(text:find("<h2>" .. title .. "</h2>", 1, true), title)
    end
    assert.matches("nan at step 100", text)
    assert.matches("100 %% zero", text)
    assert.is_nil(text:find("<img", 1, true))
    assert.is_nil(text:find "CONSOLE", (text:match "[^\n]*CONSOLE[^\n]*"))
  end)
end)
