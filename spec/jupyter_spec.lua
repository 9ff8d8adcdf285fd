-- The Jupyter kernel: its lines of JSON without Python, and notebooks in the real Jupyter where
-- that is there.

local core = require "demilune.core"
local Session = require "demilune.cli.session"
local bundle = require "demilune.jupyter.bundle"
local device = require "spec.device"
local dm = require "demilune"
local folder = require "spec.folder"

local function quoted(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

local ROOT
do
  local pipe <close> = assert(io.popen "pwd")
  ROOT = pipe:read "l"
end
local BUILD = os.getenv "DEMILUNE_BUILD" or "build"
local ENVIRONMENT = ("DEMILUNE_CUDA=0 LUA_INIT= LC_ALL=C.UTF-8 LUA_PATH=%s LUA_CPATH=%s"):format(
  quoted(ROOT .. "/lua/?.lua;" .. ROOT .. "/lua/?/init.lua;;"),
  quoted(("%s/%s/lua/?.so;;"):format(ROOT, BUILD)))
local COMMAND = ("env %s lua5.4 %s/scripts/demilune"):format(ENVIRONMENT, ROOT)

-- ---- the lines of JSON ----

local MARK = "<mark>"

-- The messages in what a kernel wrote, and the text in front of each.
local function parsed(text)
  local messages, at = {}, 1
  for from, line, after in text:gmatch("()" .. MARK .. "([^\n]*)\n()") do
    local message = assert(core.json_decode(line))
    message.before, at = text:sub(at, from - 1), after
    messages[#messages + 1] = message
  end
  return messages
end

-- The messages for these requests; and the replies by their numbers.
local function answers(requests)
  local lines = {}
  for i, request in ipairs(requests) do
    request.id, request.count = i, i
    lines[i] = core.json_encode(request) .. "\n"
  end
  local path = folder.write("requests", table.concat(lines))
  local text, code = folder.run(("%s kernel %s %s </dev/null"):format(COMMAND, path,
    quoted(MARK)))
  assert.equal(0, code, text)
  local messages, replies = parsed(text), {}
  for _, message in ipairs(messages) do
    if message.type == "reply" then replies[message.id] = message end
  end
  return messages, replies, text
end

local function cell(code, more)
  local request = more or {}
  request.type, request.code = "execute", code
  return request
end

-- The replies to cells, one after the other.
local function run(...)
  local requests = {}
  for i, code in ipairs{...} do requests[i] = cell(code) end
  local messages, replies, text = answers(requests)
  return replies, messages, text
end

local function plain(reply) return reply.data and reply.data["text/plain"] end

describe("a cell", function()
  local session
  before_each(function() session = Session.new() end)
  local function value(source)
    return assert(session:compile_cell(source, "=In[1]"))()
  end

  it("gives the expression that its last lines are, and keeps its locals", function()
    assert.equal(3, value "local a, b = 1, 2\n\na + b -- the sum\n-- and a comment")
    assert.same({1, 2}, {value "a,\nb"})
    assert.equal(2, value "for i = 1, 2 do a = i end\n(a)")
    assert.equal(7, value "local function f(n) return n end\nf(\n  7)")
    assert.is_nil(value "local x = 5")
    assert.equal("table", value "local t = {}\nt.n = 1\ntype(t)")
  end)
  it("parts no statement where Lua's grammar goes on", function()
    assert.is_nil(value "local kept = type\n(5)") -- one call, by the grammar
    assert.equal("number", value "kept")
    assert.is_nil(value "local less = 5\n- 3")
    assert.equal(2, value "less")
    assert.equal("b\nx", value "local s = [[a\nx]]\n[[b\nx]]")
  end)
  it("closes variables behind its last expression", function()
    rawset(_G, "spec_open", false)
    local holder = setmetatable({}, {__close = function() rawset(_G, "spec_open", false) end})
    rawset(_G, "spec_hold", function() rawset(_G, "spec_open", true) return holder end)
    assert.is_true(value "local _ <close> = spec_hold()\nspec_open")
    assert.is_false(rawget(_G, "spec_open"))
    rawset(_G, "spec_open", nil)
    rawset(_G, "spec_hold", nil)
  end)
  it("tells whether only more lines are wanted", function()
    assert.is_true(select(3, session:compile_cell("x = 1\nfor i = 1, 2 do", "=In[1]")))
    assert.is_false(select(3, session:compile_cell("x = 1\nx y", "=In[1]")))
  end)
end)

describe("the kernel's lines", function()
  setup(folder.make)
  teardown(folder.remove)

  it("run cells: text in its order, values, locals and `_`", function()
    local replies, messages = run("print 'one'\nlocal x = 41\nx + 1", "_ + x", "x;", "1, nil, 'a'",
      "nil", "local y = 2", "")
    assert.equal("one\n", messages[2].before)
    assert.equal("running", messages[1].type)
    assert.same({"42", "83", nil, '1\tnil\t"a"'}, {plain(replies[1]), plain(replies[2]), nil,
      plain(replies[4])})
    for _, i in ipairs{3, 5, 6, 7} do
      assert.equal("ok", replies[i].status)
      assert.is_nil(replies[i].data)
    end
  end)

  it("tell an error's message first, its line, and where it came from below", function()
    local replies = run("local function f(x)\n  return x:matmul(dm.ones(4, 2)) + 1\nend\n"
      .. "f(dm.ones(2, 3))", "x y", "error {1}", "dm.oness(2)")
    local lines = replies[1].traceback
    assert.equal("error", replies[1].status)
    assert.matches("^In%[1%]:2: matmul: {2, 3} x {4, 2}: dim 2 of the left", replies[1].evalue)
    assert.matches("error\27%[0m: In%[1%]:2: matmul", lines[1])
    assert.equal("In[1]:2:  return x:matmul(dm.ones(4, 2)) + 1", lines[2])
    assert.equal("stack traceback:", lines[3])
    assert.matches("\n\tIn%[1%]:2: in local 'f'\n\tIn%[1%]:4: in the cell$",
      table.concat(lines, "\n"))
    assert.is_nil(table.concat(lines):find("jupyter/", 1, true))
    assert.equal("In[2]:1: syntax error near 'y'", replies[2].evalue)
    assert.equal("{1}", replies[3].evalue)
    assert.matches("^In%[4%]:1: ", replies[4].evalue)
  end)

  it("keep the locals of a cell that fails, also those that functions share", function()
    local replies = run("local a, n, c <const> = {}, 1, 5\nlocal function inc() n = n + 1 end\n"
      .. "local n2 = 2\ndo local n2, later = 7 error 'here' end\nlocal later = 1",
      "inc()\ntype(a), n, n2, later", "local a, b = 3\nlocal a = 4\na:none()", "a, b",
      "local function deep(k) return 1 + deep(k + 1) end\ndeep(1)", "n")
    assert.matches("here", replies[1].evalue)
    assert.equal('"table"\t2\t2\tnil', plain(replies[2]))
    assert.matches("index a number", replies[3].evalue)
    assert.equal("4\tnil", plain(replies[4]))
    assert.matches("stack overflow", replies[5].evalue)
    assert.equal("2", plain(replies[6]))
  end)

  it("show nothing for an output that is shown already", function()
    local replies = run("io.write 'a'", "io.stderr:write ''", "dm.jupyter.display(5)")
    for i = 1, 3 do assert.is_nil(replies[i].data) end
  end)

  it("refuse to read from a keyboard, and read files", function()
    folder.write("file", "a line\n")
    local replies = run("io.read()", "io.stdin:read 'l'", "for _ in io.lines() do end",
      ("io.input '%s'\nio.read()"):format(folder.path "file"))
    for i, name in ipairs{"io.read", "io.stdin", "io.lines"} do
      assert.matches(("^In%%[%d%%]:1: %s: a cell has no keyboard"):format(i, name),
        replies[i].evalue)
    end
    assert.equal('"a line"', plain(replies[4]))
  end)

  it("have the prompt's commands", function()
    local replies, messages = run("? relu", "nn.Linear?", ":time 1 + 1", ":time x y", ":tim 1")
    local texts = {}
    for _, message in ipairs(messages) do
      if message.type == "reply" then texts[message.id] = message.before end
    end
    assert.matches("relu%(x%)", texts[1])
    assert.matches("nn.Linear%(in_features", texts[2])
    assert.matches("%d [mun]s   %[", texts[3])
    assert.equal("error", replies[4].status)
    assert.matches("syntax error", replies[4].evalue)
    assert.matches("did you mean :time", texts[5])
  end)

  it("complete, inspect, and tell whether a cell is whole", function()
    local _, replies = answers{
      cell("local x = dm.ones(2)\nlocal net = nn.Linear(2, 3)\nlocal function twice(n)\n"
        .. "  return 2 * n\nend"),
      {type = "complete", text = "x:sq"}, {type = "complete", text = "y = nn.Conv2d(3, 8, 3, {str"},
      {type = "complete", text = "? nn.LST"}, {type = "complete", text = "1 + "},
      {type = "inspect", code = "y = nn.Linear(2, ", cursor = 17},
      {type = "inspect", code = "x:sum(1)", cursor = 3},
      {type = "inspect", code = "twice(2)", cursor = 2},
      {type = "inspect", code = "net:parameters()", cursor = 8},
      {type = "inspect", code = "net", cursor = 1}, {type = "inspect", code = "12 +", cursor = 1},
      {type = "is_complete", code = "for i = 1, 2 do"}, {type = "is_complete", code = "x = 1"},
      {type = "is_complete", code = "x y"}, {type = "is_complete", code = ":time x"},
      {type = "nothing"}}
    assert.same({"sqrt", "sqrt_", "square", "square_", "squeeze"}, replies[2].matches)
    assert.equal("sq", replies[2].word)
    assert.same({"stride = "}, replies[3].matches)
    assert.is_truthy(table.concat(replies[4].matches, " "):find("LSTM", 1, true))
    assert.same({}, replies[5].matches)
    assert.matches("^nn.Linear%(in_features, out_features", replies[6].text)
    assert.matches("sum over all dims", replies[7].text)
    assert.equal("function of In[1]:3\n\nlocal function twice(n)\n  return 2 * n\nend",
      replies[8].text)
    assert.matches("parameters", replies[9].text)
    assert.matches("^Linear%(2 %-> 3%)", replies[10].text)
    assert.is_nil(replies[11].text)
    for i, state in ipairs{"incomplete", "complete", "invalid", "complete"} do
      assert.equal(state, replies[11 + i].state)
    end
    assert.equal("error", replies[16].status)
  end)

  it("show figures and images, and draw an output anew", function()
    local replies, messages = run("dm.plot.lines{1, 2, 4}",
      "print 'before'\ndm.show(dm.plot.lines{1, 2})\nprint 'behind'",
      "local out = dm.jupyter.display(dm.plot.bars({'a', 'b'}, {1, 2}))\n"
        .. "out:update{['text/html'] = '<b>b</b>'}\ndm.jupyter.clear{wait = true}",
      "dm.jupyter.display(5)\ndm.jupyter.is_running()", "dm.show(5)",
      "{figure = dm.plot.lines{1, 2}}")
    assert.matches("^<svg.*</svg>%s*$", replies[1].data["image/svg+xml"])
    assert.matches("^figure: 1 line", plain(replies[1]))
    local shown = {}
    for _, message in ipairs(messages) do
      if message.type == "display" or message.type == "clear" then shown[#shown + 1] = message end
    end
    assert.equal("before\n", shown[1].before)
    assert.matches("<svg", shown[1].data["image/svg+xml"])
    assert.is_string(shown[2].id)
    assert.is_nil(shown[2].update)
    assert.same({shown[2].id, true, "<b>b</b>"}, {shown[3].id, shown[3].update,
      shown[3].data["text/html"]})
    assert.same({"clear", true}, {shown[4].type, shown[4].wait})
    assert.equal("5", plain(shown[5]))
    assert.equal("true", plain(replies[4]))
    assert.matches("show: value is a number", replies[5].evalue)
    assert.matches("<svg", replies[6].data["image/svg+xml"])
    if dm.read_image "spec/golden/images/rgb.png" then
      local _, drawn = run "dm.show(dm.rand(3, 8, 8))"
      assert.matches("^iVBORw0KGgo", drawn[2].data["image/png"])
      assert.is_nil(drawn[2].data["image/svg+xml"])
    end
  end)

  it("draw a progress bar in one output, anew", function()
    local _, messages = run "for i in dm.progress(3, {desc = 'bar'}) do end\nprint 'done'"
    local first, last = messages[2], messages[#messages - 1]
    assert.matches("^bar    0%%  %S+  0/3", first.data["text/plain"])
    assert.is_nil(first.update)
    assert.matches("^bar  100%%  %S+  3/3  [%d.e+]+ it/s  0:00$", last.data["text/plain"])
    assert.same({first.id, true}, {last.id, last.update})
    assert.equal("done\n", messages[#messages].before)
  end)

  it("leave os.execute as it is but for interrupts", function()
    local replies = run("os.execute 'exit 3'", "os.execute()", "os.execute 'kill -INT $$'",
      "os.execute 'true'", "os.execute(nil)")
    assert.equal('nil\t"exit"\t3', plain(replies[1]))
    assert.equal("true", plain(replies[2]))
    assert.equal("In[3]:1: interrupted", replies[3].evalue)
    assert.equal('true\t"exit"\t0', plain(replies[4]))
    assert.equal("true", plain(replies[5]))
  end)

  it("hold text of any bytes", function()
    local replies = run("'\\xff\\0a'", "error 'a\\xffb'")
    assert.equal('"\u{FFFD}\\0a"', plain(replies[1]))
    assert.matches("a\u{FFFD}b$", replies[2].evalue)
  end)

  it("end where nothing is to be read", function()
    local text, code = folder.run(COMMAND .. " kernel /nonexistent/file </dev/null")
    assert.equal(1, code)
    assert.matches("demilune kernel: /nonexistent/file: No such file", text)
    local _, end_code = folder.run(COMMAND .. " kernel </dev/null")
    assert.equal(0, end_code)
  end)

  it("are interrupted by SIGINT, and go on", function()
    folder.write("requests", core.json_encode{id = 1, type = "execute", count = 1,
      code = "local n = 0\nwhile true do n = n + 1 end"} .. "\n"
      .. core.json_encode{id = 2, type = "execute", count = 2, code = "n > 0"} .. "\n")
    -- the kernel is the shell's child, whose SIGINT a shell without job control would ignore
    local text = folder.run(("%s kernel %s %s </dev/null & pid=$!; sleep 1; kill -INT $pid; "
      .. "wait $pid"):format("setsid " .. COMMAND, folder.path "requests", quoted(MARK)))
    local messages = parsed(text)
    assert.same({"running", "reply", "running", "reply"}, {messages[1].type, messages[2].type,
      messages[3].type, messages[4].type})
    assert.matches("interrupted", messages[2].evalue)
    assert.equal("true", plain(messages[4]))
  end)
end)

describe("values in a notebook", function()
  local function html(value) return bundle.of(value)["text/html"] end

  it("tensors tell shape, dtype, device, and count NaN and infinities", function()
    local text = html(dm.tensor{{1, 0 / 0, 3}, {1 / 0, -1 / 0, 0.5}}:requires_grad_())
    for _, part in ipairs{"<b>float32</b> {2, 3}", device.type, "requires grad", ">1 NaN<",
      ">2 Inf<", "0.5 to 3, mean 1.5", ">nan</td>", ">inf</td>", ">-inf</td>",
      "<td>0.5</td>"} do
      assert.is_truthy(text:find(part, 1, true), part .. " in " .. text)
    end
    assert.equal(6, select(2, text:gsub("<td[^>]*>[^<]", "")))
    local told = bundle.of(dm.ones(2, 3))["text/plain"]
    assert.matches("%[float32 tensor {2, 3} " .. device.type, told)
  end)
  it("large tensors lose their middle, and further dims show the first matrix", function()
    local text = html(dm.arange(1, 4000):reshape(2, 2000):t())
    assert.matches("<th>2000</th><td>2000</td><td>4000</td>", text)
    assert.equal(8, select(2, text:gsub("<tr><th>%d", "")))
    text = html(dm.zeros(2, 5, 3, 4, {dtype = "int64"}))
    assert.matches("x%[{1, 1}%] of 10 such matrices", text)
    assert.equal(12, select(2, text:gsub("<td>0</td>", "")))
    assert.matches("<b>int64</b> {}.*: 7</div>", html(dm.tensor(7)))
    assert.matches("<b>float32</b> {0, 3}", html(dm.zeros(0, 3)))
    assert.matches("<td>true</td>", html(dm.tensor{true, false}))
  end)
  it("modules are trees with numbers of parameters", function()
    local nn = dm.nn
    local model = nn.Sequential{nn.Linear(784, 256), nn.ReLU(), nn.Sequential{nn.Linear(256, 10)}}
    local text = html(model)
    assert.matches("^<div><details open><summary><code>Sequential</code> &middot; 203,530", text)
    assert.matches("%[1%]: <code>Linear%(784 %-&gt; 256%)</code> &middot; 200,960", text)
    assert.equal(1, select(2, text:gsub("<details>", "")))
    assert.equal(1, select(2, text:gsub("203,530 parameters", "")))
  end)
  it("lists of records are tables, and other tables are text", function()
    local text = html{{loss = 0.5, epoch = 1, name = "<a>"}, {loss = 0 / 0, epoch = 2}}
    assert.matches("<th>epoch</th><th>name</th><th>loss</th>", text)
    assert.matches("<td>1</td><td>&lt;a&gt;</td><td>0.5</td>", text)
    assert.matches("<td>2</td><td></td><td[^>]*>nan</td>", text)
    for _, value in ipairs{{}, {1, 2}, {{1, 2}}, {{a = {}}}, {a = 1}, "text", 5, true} do
      assert.is_nil(html(value))
    end
  end)
  it("outside of a notebook values are printed", function()
    local text = io.popen(("env %s lua5.4 -e %s 2>&1"):format(ENVIRONMENT, quoted [[
      local dm = require "demilune"
      dm.jupyter.display(5):update(6)
      dm.jupyter.display{["text/html"] = "<b>x</b>"}
      dm.jupyter.clear()
      print(dm.jupyter.is_running())]])):read "a"
    assert.equal("5\n6\n<b>x</b>\nfalse\n", text)
  end)
end)

-- ---- Jupyter ----

-- A Python with all that the specs below want; nil where none has it.
local function find_python()
  for _, name in ipairs{os.getenv "PYTHON" or "python3", "/usr/bin/python3"} do
    local path = io.popen(name .. " -c 'import ipykernel, nbclient, sys; print(sys.executable)' "
      .. "2>/dev/null"):read "l"
    if path then return path end
  end
end

local PYTHON = find_python()

describe("demilune jupyter", function()
  setup(folder.make)
  teardown(folder.remove)

  it("tells how it is used, and what is wrong", function()
    assert.matches("demilune jupyter install %[", (folder.run(COMMAND .. " jupyter")))
    for args, pattern in pairs{["instal"] = "did you mean 'install'",
      ["install --prefix"] = "%-%-prefix wants a value", ["install --perfix x"] =
        "unknown option '%-%-perfix'", ["install --user --prefix x"] = "not both",
      ["install --python /nonexistent/python"] =
        "'/nonexistent/python' has no ipykernel; hint: apt install jupyter%-notebook"} do
      local text, code = folder.run(COMMAND .. " jupyter " .. args)
      assert.equal(1, code, args)
      assert.matches("^demilune jupyter: .*" .. pattern, text)
    end
  end)

  if not PYTHON then return pending "no Python with ipykernel and nbclient" end

  it("installs and uninstalls", function()
    local prefix = folder.path "prefix it's"
    local options = (" --prefix %s --python %s"):format(quoted(prefix), quoted(PYTHON))
    local text, code = folder.run(COMMAND .. " jupyter install" .. options)
    assert.equal(0, code, text)
    local path = prefix .. "/share/jupyter/kernels/demilune/kernel.json"
    local file = assert(io.open(path))
    local found = core.json_decode(file:read "a")
    file:close()
    assert.equal("lua", found.language)
    assert.equal(ROOT .. "/lua/demilune/jupyter/kernel.py", found.argv[2])
    assert.equal(0, select(2, folder.run(COMMAND .. " jupyter uninstall" .. options)))
    assert.is_nil(io.open(path))
    text, code = folder.run(COMMAND .. " jupyter uninstall" .. options)
    assert.equal(1, code)
    assert.matches("no kernel in", text)
  end)

  it("installs for the user by default", function()
    local home = ("env -u JUPYTER_DATA_DIR -u XDG_DATA_HOME HOME=%s "):format(folder.path())
    local options = " --python " .. quoted(PYTHON)
    local text, code = folder.run(home .. COMMAND .. " jupyter install" .. options)
    assert.equal(0, code, text)
    local path = folder.path ".local/share/jupyter/kernels/demilune/kernel.json"
    assert(io.open(path)):close()
    text, code = folder.run(home .. COMMAND .. " jupyter uninstall --user" .. options)
    assert.equal(0, code, text)
    assert.is_nil(io.open(path))
  end)
end)

describe("in Jupyter #slow", function()
  if not PYTHON then return pending "no Python with ipykernel and nbclient" end

  setup(function()
    folder.make()
    local text, code = folder.run(("%s jupyter install --prefix %s --python %s"):format(COMMAND,
      folder.path(), quoted(PYTHON)))
    assert.equal(0, code, text)
  end)
  teardown(folder.remove)

  -- Runs spec/notebook.py.
  local function python(...)
    local words = {"env JUPYTER_PATH=" .. folder.path() .. "/share/jupyter", "DEMILUNE_CUDA=0",
      "IPYTHONDIR=" .. folder.path(), "PYTHONWARNINGS=ignore", quoted(PYTHON), "spec/notebook.py"}
    for _, word in ipairs{...} do words[#words + 1] = quoted(word) end
    local text, code = folder.run(table.concat(words, " "))
    assert.equal(0, code, text)
  end

  -- The results of steps: of a cell a list of its messages.
  local function take(steps)
    folder.write("steps.json", core.json_encode(steps))
    python("cells", folder.path "steps.json", folder.path "results.json")
    return core.json_decode(folder.read "results.json")
  end

  local function text_of(messages)
    local parts = {}
    for _, message in ipairs(messages) do parts[#parts + 1] = message.content.text end
    return table.concat(parts)
  end

  it("cells run: streams, values, figures, errors, completion, help", function()
    local results = take{
      {code = "io.stderr:write 'warned\\n'\nprint 'é'\nlocal x = dm.ones(2, 3)\nx"},
      {code = "x:matmul(dm.ones(4, 2))"}, {code = "dm.plot.lines{1, 4, 9}"},
      {code = "local c = dm.jupyter.display(dm.plot.lines{1, 2}); c:update(dm.plot.lines{2})"},
      {code = "os.execute 'echo from a program'"},
      {code = "for i = 1, 5 do io.stderr:write(i) end"}, {complete = "é = 1 x:sq"},
      {inspect = "nn.Linear("}}
    local first, kinds = results[1], {}
    for i, message in ipairs(first) do
      local c = message.content
      kinds[i] = message.type
      if c.name then assert.equal(c.name == "stdout" and "é\n" or "warned\n", c.text) end
    end
    table.sort(kinds)
    assert.same({"execute_result", "stream", "stream"}, kinds)
    assert.equal("execute_result", first[3].type)
    assert.matches("<b>float32</b> {2, 3}", first[3].content.data["text/html"])
    assert.matches("%[float32 tensor {2, 3} cpu%]", first[3].content.data["text/plain"])
    assert.equal("error", results[2][1].type)
    assert.matches("^In%[2%]:1: matmul", results[2][1].content.evalue)
    assert.matches("<svg", results[3][1].content.data["image/svg+xml"])
    assert.same({"display_data", "update_display_data"}, {results[4][1].type, results[4][2].type})
    assert.equal(results[4][1].content.transient.display_id,
      results[4][2].content.transient.display_id)
    assert.equal("from a program\n", results[5][1].content.text)
    assert.equal("12345", text_of(results[6]))
    assert.same({"sqrt", "sqrt_", "square", "square_", "squeeze"}, results[7].matches)
    assert.same({8, 10}, {results[7].cursor_start, results[7].cursor_end})
    assert.matches("^nn.Linear%(in_features", results[8].data["text/plain"])
  end)

  it("text comes while a cell runs, and much text in few messages", function()
    local results = take{{code = "for i = 1, 3 do print(i) os.execute 'sleep 0.4' end"},
      {code = "for i = 1, 50000 do print(i) end"}}
    assert.equal(3, #results[1])
    assert.is_true(results[1][3].seconds - results[1][1].seconds > 0.5)
    assert.is_true(#results[2] < 100)
    assert.equal(50000, select(2, text_of(results[2]):gsub("\n", "")))
  end)

  it("a loop and a program are interrupted, and variables stay", function()
    local results = take{{code = "x = 5\nwhile true do end", interrupt = 1},
      {code = "while true do os.execute 'sleep 60' end", interrupt = 1}, {code = "x"}}
    local messages = results[1]
    assert.matches("interrupted", messages[#messages].content.evalue)
    assert.is_true(messages[#messages].seconds < 30)
    assert.is_true(results[2][1].seconds < 30)
    assert.matches("^In%[2%]:1: interrupted", results[2][1].content.evalue)
    assert.equal("5", results[3][1].content.data["text/plain"])
  end)

  it("a process that ends is told of and replaced, and the kernel restarts", function()
    local results = take{{code = "x = 5\nprint 'last'\nos.exit(3)"}, {code = "x, 1"},
      {code = "os.execute 'kill -SEGV $PPID'"}, {code = "y = 6"}, {restart = true},
      {code = "y, 2"}}
    assert.equal("last\n", results[1][1].content.text)
    assert.matches("the Lua process ended with status 3; the next cell starts a new one",
      results[1][2].content.evalue)
    assert.equal("nil\t1", results[2][1].content.data["text/plain"])
    assert.matches("ended by the signal SIGSEGV", results[3][1].content.evalue)
    assert.equal("restarted", results[5])
    assert.equal("nil\t2", results[6][1].content.data["text/plain"])
  end)

  it("a loop that catches its errors does not outlive a restart", function()
    local path = folder.path "pid"
    local results = take{{code = ("os.execute 'echo $PPID >%s'\nwhile true do pcall(function() "
      .. "while true do end end) end"):format(path), leave = 2}, {restart = true}, {code = "5"}}
    assert.equal("5", results[3][1].content.data["text/plain"])
    local pid = math.tointeger(tonumber((folder.read "pid")))
    assert.is_truthy(pid)
    assert.is_not_true(os.execute(("kill -0 %d 2>/dev/null"):format(pid)))
  end)

  it("the study of the quantised sine runs whole #slow", function()
    python("run", "scripts/quantised_sine.ipynb", folder.path "out.ipynb")
    local notebook = core.json_decode(folder.read "out.ipynb")
    local kinds, figures = {}, 0
    for _, one in ipairs(notebook.cells) do
      for _, output in ipairs(one.outputs or {}) do
        kinds[output.output_type] = true
        local data = output.data or {}
        if data["image/svg+xml"] or data["image/png"] then figures = figures + 1 end
      end
    end
    assert.is_nil(kinds.error)
    assert.is_true(kinds.stream and kinds.display_data or kinds.execute_result)
    assert.is_true(figures >= 3)
    local file <close> = assert(io.open "scripts/quantised_sine.ipynb")
    assert.is_true(file:seek "end" < 200 * 1024)
  end)
end)
