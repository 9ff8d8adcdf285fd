-- The demilune command: scripts, tools, and the prompt, also on a pseudo-terminal, by `script`.
local dm = require "demilune"
local complete = require "demilune.cli.complete"
local Session = require "demilune.cli.session"
local words = require "demilune.cli.words"
local folder = require "spec.folder"

local function quoted(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

local function write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  file:close()
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "a"
  file:close()
  return text
end

local COMMAND = ("env LUA_INIT= LUA_PATH=%s LUA_CPATH=%s HOME= XDG_STATE_HOME=")
  :format(quoted(package.path), quoted(package.cpath))

-- Runs `demilune ARGS` with the input; what it wrote, and its status.
local function demilune(args, input, env)
  local from = os.tmpname()
  write(from, input or "")
  local pipe = io.popen(("%s %s lua5.4 scripts/demilune %s <%s 2>&1")
    :format(COMMAND, env or "", args, from))
  local text = pipe:read "a"
  local _, _, status = pipe:close()
  os.remove(from)
  return text, status
end

describe("the words of a source", function()
  it("leave strings, comments and numbers out", function()
    assert.same({a = true, b = true, ["local"] = true},
      words.names [==[local a = "x y" -- z
        --[[ w ]] b [=[ v ]=] 0x1p4 'it\'s']==])
  end)
  it("tell the locals of the outermost block", function()
    assert.same({"a", "b", "f", "c", "d"}, words.locals [[
      local a, b <const> = 1, {local_ = function() local x end}
      local function f(p) local q if p then local r elseif q then else end end
      for i = 1, 2 do local z = i end
      while true do local y repeat local k until y end
      local c; local d <close> = nil]])
    assert.same({}, words.locals "x = 'local y'")
  end)
end)

describe("a session", function()
  local session
  before_each(function() session = Session.new() end)
  local function run(source) return assert(session:compile(source, "=stdin"))() end

  it("keeps locals, which functions share", function()
    run "local n = 1"
    run "local function inc() n = n + 1 return n end"
    assert.equal(2, run "inc()")
    run "n = 10"
    assert.equal(11, run "inc()")
    assert.equal(11, run "n")
    run "local n = 'new'"
    assert.equal("new", run "n")
    assert.equal(12, run "inc()")
    assert.same({n = "new"}, {n = session:values().n})
  end)
  it("keeps constants, several names and what a block made", function()
    run "local a <const>, b = 5, {}"
    run "local r do local s = 2 r = s end"
    assert.equal(7, run "a + r")
    assert.equal("table", run "type(b)")
    assert.is_nil(run "s")
  end)
  it("gives values of expressions, and tells what only wants more lines", function()
    assert.same({1, nil, 3}, {run "1, nil, 3"})
    for _, source in ipairs{"for i = 1, 2 do", "x = ", "f(1,", "x = [[a", "if x then y = 1 else"} do
      assert.is_true(select(3, session:compile(source, "=stdin")), source)
    end
    for _, source in ipairs{"x = = 3", "end", "x y", "'abc"} do
      local fn, why, more = session:compile(source, "=stdin")
      assert.is_nil(fn)
      assert.matches("^stdin:1: ", why)
      assert.is_false(more, source)
    end
  end)
  it("closes what is to be closed at the end of its piece", function()
    local closed = false
    rawset(_G, "spec_close", setmetatable({}, {__close = function() closed = true end}))
    run "local _ <close> = spec_close"
    assert.is_true(closed)
    rawset(_G, "spec_close", nil)
  end)
end)

describe("completion", function()
  local nn = dm.nn
  local model = nn.Sequential{nn.Linear(2, 3), nn.ReLU()}
  local locals = {dm = dm, nn = nn, model = model, x = dm.ones(2),
    optimizer = dm.optim.Adam(model:parameters()), trap = setmetatable({}, {
      __index = function() error "read" end})}
  local function of(text) return (complete.candidates(text, locals)) end
  local function has(text, name)
    for _, one in ipairs(of(text)) do
      if one == name then return true end
    end
    return false
  end

  it("knows modules, also those that are not loaded", function()
    assert.same({"Conv1d", "Conv2d", "Conv3d"}, {table.unpack(of "nn.Conv", 1, 3)})
    assert.is_true(has("dm.optim.L", "LBFGS"))
    assert.is_true(has("dm.nn.functional.cross_e", "cross_entropy"))
    assert.is_true(has("dm.optim.lr_scheduler.Co", "CosineAnnealingLR"))
    assert.is_true(has("string.for", "format"))
  end)
  it("knows methods and properties", function()
    assert.is_true(has("x:sq", "sqrt_"))
    assert.same({"shape", "short"}, of "x.sh")
    assert.same({}, of "x:shap")
    assert.same({"weight"}, of "model[1].wei")
    assert.is_true(has("model:par", "parameters"))
    assert.same({"zero_grad"}, of "optimizer:zero_")
  end)
  it("knows options inside a call's braces", function()
    assert.same({"stride = "}, of "y = nn.Conv2d(3, 8, 3, {str")
    assert.same({"padding = ", "padding_mode = "}, of "nn.Conv2d(3, 8, 3, {stride = 2, pad")
    assert.same({"keepdim = "}, of "x:sum(1, {k")
    assert.same({"weight_decay = "}, of "dm.optim.AdamW(model:parameters(), {we")
    assert.is_true(#of "dm.Trainer{" > 15)
  end)
  it("knows globals, locals and keywords, and calls nothing", function()
    assert.is_true(has("optimi", "optimizer"))
    assert.same({"while"}, of "whil")
    assert.same({}, of "trap.foo.ba")
    assert.same({}, of "nothing.at")
    assert.same({}, of "f().x")
    assert.same({}, of "")
  end)
  it("answers in 10 ms", function()
    of "dm." -- loads
    local start = os.clock()
    for _ = 1, 10 do of "dm." end
    assert.is_true((os.clock() - start) / 10 < 0.05) -- the machine may be busy
  end)
end)

describe("the prompt", function()
  setup(folder.make)
  teardown(folder.remove)

  it("prints values, keeps locals, and says the message of an error first", function()
    local text = demilune("", [[
local x = dm.tensor{{1, 2}, {3, 4.5}}
x * 2
_
x:matmul(dm.ones(4, 2))
:trace
for i = 1, 2 do
print(i)
end
{1, 2, a = {b = "c"}}
1 + 1;
_
nn.Linear(2, 3)
no_such_name
local quiet = 1
x y
]])
    for _, part in ipairs{
      "2.  4.", "[float32 tensor {2, 2} cpu]",
      "> error: matmul: {2, 2} x {4, 2}: dim 2 of the left is 2, dim 1 of the right is 4",
      "stack traceback:\n\t[C]: in function 'demilune.", "\n2\n> {1, 2, a = {b = \"c\"}}\n> > 2\n",
      "Linear(2 -> 3)", "\n> nil\n> > error: syntax error near 'y'"} do
      assert.truthy(text:find(part, 1, true), part .. " in:\n" .. text)
    end
    assert.is_nil(text:find("cli/", 1, true), text) -- no frames of the prompt
  end)

  it("has commands", function()
    local saved = folder.path()
    local script = saved .. "/session.lua"
    local text = demilune("", ([[
? relu
:time dm.ones(2)
:mem
:autocast on
dm.ones(2, 2):matmul(dm.ones(2, 2)).dtype
:autocast off
dm.ones(2, 2):matmul(dm.ones(2, 2)).dtype
:autocast float17
:tim 3
:time x y
:plot {1, 4, 9, 16}
:plot nil
:plot dm.plot.lines({1, 4, 9}, {title = "of its own"})
dm.zeros(3, 16, 16)
dm.zeros(3, 16, 16)
z = 3
z + 1
:save %s
:save /nonexistent/file
:help
]]):format(script), "LC_ALL=C.UTF-8")
    for _, pattern in ipairs{"relu%(x%)", "%d [mun]s   %[.*s%] of 9 x %d+", "MiB of tensors",
      "autocast is on for the cpu, with bfloat16", '"bfloat16"\n> autocast is off\n> "float32"',
      "error: autocast: dtype is 'float17'", "no command :tim; did you mean :time%?",
      "inputs are in ", "error: /nonexistent/file", ":autocast DTYPE|off", "of its own\n"} do
      assert.matches(pattern, text)
    end
    assert.matches("└─", text)
    assert.equal(1, select(2, text:gsub("hint: dm%.show%(_%) draws it", "")))
    assert.matches("\nz = 3\nprint%(z %+ 1%)\n", read(script))
    assert.is_truthy(loadfile(script))
  end)

  it("keeps the locals of an input that fails", function()
    local text = demilune("", "local kept = 41 error 'here'\nkept + 1\n")
    assert.matches("error: here\n> 42\n", text)
  end)

  it("goes on after errors of every kind, and ends with the input", function()
    local text, status = demilune("", "error{1}\nerror()\nerror(nil)\nf = \ncoroutine.wrap(error)"
      .. "(setmetatable({}, {__tostring = function() return 'own' end}))\n1+1\nif x then")
    assert.matches("error: {1}", text)
    assert.matches("error: own", text)
    assert.matches("the input ended in the middle", text)
    assert.equal(0, status)
  end)
end)

-- Types the keys into `demilune` on a pseudo-terminal, each after its pause in seconds.
local function typed(keys, env)
  local parts = {}
  for _, key in ipairs(keys) do
    parts[#parts + 1] = ("sleep %g; printf %s"):format(key[1], quoted(key[2]))
  end
  local pipe = io.popen(("(%s; sleep 0.5) | %s %s script -qec %s /dev/null 2>&1"):format(
    table.concat(parts, "; "), COMMAND, env or "", quoted "lua5.4 scripts/demilune"))
  local text = pipe:read "a"
  pipe:close()
  return (text:gsub("\27%[%?2004[hl]", ""):gsub("[\r\a]", ""))
end

describe("the prompt on a terminal", function()
  setup(folder.make)
  teardown(folder.remove)

  if os.execute "command -v script >/dev/null" ~= true then
    return pending "`script`, of Debian's bsdutils, is not there"
  end

  it("completes with Tab", function()
    local text = typed{{0.5, "x = dm.ones(2)\\n"}, {0.2, "x:sq\\t"}, {0.2, "rt()\\n"},
      {0.2, "nn.Conv2\\t"}, {0.2, "(3, 8, 3, {str\\t"}, {0.2, "2})\\n"}, {0.2, "\\004"}}
    assert.matches("> x:sqrt%(%)\n  1%.  1%.", text)
    assert.matches("Conv2d%(3 %-> 8, 3x3, stride = 2%)", text)
  end)

  it("is interrupted by Ctrl-C: a loop, an op at a time, what is typed; and asks once", function()
    local text = typed{{0.5, "while true do end\\n"}, {0.4, "\\003"},
      {0.3, "while true do dm.ones(3) end\\n"}, {0.4, "\\003"},
      {0.3, "coroutine.wrap(function() while true do dm.ones(3) end end)()\\n"}, {0.4, "\\003"},
      {0.3, "no such"}, {0.2, "\\003"}, {0.2, "6 * 7\\n"}, {0.3, "\\003"}, {0.3, "\\003"}}
    local _, times = text:gsub("error: [^\n]*interrupted\n", "")
    assert.equal(3, times, text)
    assert.matches("\n42\n", text)
    assert.matches("Ctrl%-C again, or Ctrl%-D, leaves", text)
    assert.is_nil(text:find "syntax error")
  end)

  it("closes a scope that was made when Ctrl-C came", function()
    local script = [[
      local dm, core = require "demilune", require "demilune.core"
      core._catch_interrupts()
      core._interruptible(true)
      local ok, message = pcall(function()
        local _ <close> = core._test.interrupt(dm.no_grad())
        while true do end
      end)
      print(ok, message, dm.is_grad_enabled())]]
    local pipe <close> = assert(io.popen(("LUA_PATH='%s' LUA_CPATH='%s' lua5.4 -e '%s' 2>&1")
      :format(package.path, package.cpath, script)))
    assert.matches("false\t[^\n]*interrupted\ttrue", pipe:read "a")
  end)

  it("serves a session of a first day", function()
    local text = typed{{0.5, "x = dm.randn(2, 3, {dtype = \"float16\"})\\nx\\n"},
      {0.3, "x:matmul(dm.ones(4, 2))\\n"},
      {0.2, "amp.autocast({device_type = \"cpu\", dtype = \"bfloat16\"}, function() "
        .. "return (x:float()):matmul(dm.ones(3, 2)).dtype end)\\n"},
      {0.2, "m = nn.Sequential{ nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10) }\\nm\\n"},
      {0.2, "m:summary{128, 784}\\n"}, {0.2, "? matmul\\n"}, {0.2, ":mem\\n"}, {0.2, "\\004"}}
    for _, part in ipairs{"[float16 tensor {2, 3} cpu]",
      "error: matmul: {2, 3} x {4, 2}: dim 2 of the left is 3, dim 1 of the right is 4",
      '"bfloat16"', "[1] Linear(784 -> 256)  200,960", "203,530 parameters, 814 kB float32",
      "{128, 256}", "matmul(x, other)", "MiB of tensors"} do
      assert.truthy(text:find(part, 1, true), part .. " in:\n" .. text)
    end
  end)

  it("keeps a history in the user's state folder, 10,000 lines without a delay", function()
    local state = folder.path()
    os.execute("mkdir " .. quoted(state .. "/demilune"))
    local old = {}
    for i = 1, 10000 do old[i] = ("old_%d()"):format(i) end
    write(state .. "/demilune/history", table.concat(old, "\n") .. "\n")
    local env = "XDG_STATE_HOME=" .. quoted(state)
    local text = typed({{0.5, "41 + 1\\n"}, {0.3, "\\033[A\\033[A\\033[A\\n"}, {0.2, "\\004"}},
      env)
    assert.matches("\n42\n", text)
    assert.matches("global 'old_9999'", text)
    local kept = read(state .. "/demilune/history")
    assert.matches("^old_3%(%)\n.*old_10000%(%)\n41 %+ 1\nold_9999%(%)\n$", kept)
  end)
end)

describe("the command", function()
  setup(folder.make)
  teardown(folder.remove)

  it("runs scripts with their arguments, and code", function()
    local dir = folder.path()
    local script = dir .. "/a b.lua"
    write(script, [[
      print(arg[0], #arg, ...)
      print(require("demilune").ones(2):sum():item())]])
    local text, status = demilune(quoted(script) .. " --x 2")
    assert.equal(script .. "\t2\t--x\t2\n2.0\n", text)
    assert.equal(0, status)
    assert.equal("4\n", (demilune "-e 'print(2 + 2)'"))
    assert.equal("2 Linear\n", (demilune [[-e 'print(#dm.ones(2) .. " " .. nn.Linear.class)']]))
    assert.equal("true\n", (demilune "-l demilune -e 'print(demilune.ones ~= nil)'"))
    assert.matches("^demilune %d+%.%d+%.%d+  Lua 5%.4\n$", (demilune "--version"))
    assert.matches("demilune doctor", (demilune "--help"))
  end)

  it("gives a status and a message where something is wrong", function()
    for args, pattern in pairs{
      ["nofile.lua"] = "no file 'nofile%.lua'", doctr = "did you mean the tool 'doctor'",
      ["-x"] = "unknown option '%-x'", ["-e"] = "%-e wants an argument",
      ["-e 'error(\"no\")'"] = "%(command line%):1: no\nstack traceback", ["-e 'x ='"] = "<eof>",
      ["-l no.such"] = "module 'no%.such' not found", ["convert a"] = "wants two files",
      ["convert nofile.pt /tmp/x.npz"] = "cannot open 'nofile%.pt'",
      ["convert README.md /tmp/x.npz"] = "is no safetensors file",
      ["convert a.pt b.txt"] = "neither %.safetensors nor %.npz",
      ["bench fast"] = "%-%-quick alone",
      types = "wants one folder", ["types /dev/null/x"] = "cannot make '/dev/null/x'",
      new = "wants one folder", ["new spec"] = "is there already", ["doctor x"] = "no arguments"} do
      local text, status = demilune(args)
      assert.equal(1, status, args .. ": " .. text)
      assert.matches(pattern, text, args)
      assert.is_nil(text:find("scripts/demilune:", 1, true), text)
    end
  end)

  it("tells what the machine has", function()
    local text, status = demilune "doctor"
    assert.equal(0, status, text)
    assert.matches("ok +processor +kernels for", text)
    assert.matches("CUDA", text)
    text = demilune("doctor", "", "DEMILUNE_LAPACK=/nonexistent")
    assert.matches("missing +dm%.linalg .*hint: apt install libopenblas0%-serial", text)
  end)

  it("converts files of tensors", function()
    local dir = folder.path()
    local to = dir .. "/vit.safetensors"
    local text, status = demilune("convert spec/golden/files/vit.pth " .. quoted(to))
    assert.equal(0, status, text)
    assert.matches("32 tensors", text)
    local want, got = dm.load "spec/golden/files/vit.pth", dm.load(to)
    local n = 0
    for name, x in pairs(want) do
      n = n + 1
      assert.is_true(x:equal(got[name]), name)
    end
    assert.equal(32, n)
    status = select(2, demilune(("convert %s %s"):format(quoted(to), quoted(dir .. "/vit.npz"))))
    assert.equal(0, status)
    for name, x in pairs(assert(dm.data.read_npz(dir .. "/vit.npz"))) do
      assert.is_true(x:equal(want[name]), name)
    end
    text = demilune("convert spec/golden/files/tree.pt " .. quoted(dir .. "/tree.npz"))
    assert.matches("^demilune convert: write_npz: .*bfloat16", text)
  end)

  it("makes a project that trains, resumes and passes its test", function()
    local dir = folder.path()
    local project = dir .. "/My Project"
    assert.equal(0, select(2, demilune("new " .. quoted(project))))
    local settings = folder.read "My Project/.luarc.json"
    local types = settings:match '"workspace.library": %["(.-)"%]'
    types = types:find "^/" and types or project .. "/" .. types
    assert(io.open(types .. "/nn.lua")):close()
    assert.matches("%d+ files", (demilune("types " .. quoted(dir .. "/types"))))
    local root = io.popen("pwd"):read "l"
    local path = package.path:gsub("%./", root .. "/")
    local cpath = package.cpath:gsub("%./", root .. "/")
    local function inside(command)
      local pipe = io.popen(("cd %s && LUA_INIT= LUA_PATH_5_4=%s LUA_CPATH_5_4=%s %s 2>&1"):format(
        quoted(project), quoted(path), quoted(cpath), command))
      local text = pipe:read "a"
      return text, select(3, pipe:close())
    end
    local text, status = inside "lua5.4 train.lua epochs=2"
    assert.equal(0, status, text)
    assert.matches("epoch 2: .*valid_accuracy", text)
    text, status = inside "lua5.4 train.lua epochs=3 resume=true"
    assert.equal(0, status, text)
    assert.is_nil(text:find "epoch 2:")
    assert.matches("epoch 3: .*valid_accuracy 1", text)
    text = inside "busted --lua=lua5.4 2>&1"
    assert.matches("2 successes / 0 failures / 0 errors", text)
    assert.matches('package = "my%-project"', read(project .. "/my-project-scm-1.rockspec"))
  end)

  it("times a few things", function()
    local text, status = demilune "bench --quick"
    assert.equal(0, status, text)
    local _, rows = text:gsub("%d [um]s", "")
    assert.equal(6, rows, text)
  end)
end)
