-- What a Lua programmer expects of values, loops and errors.
local dm = require "demilune"
local caller = require "demilune.caller"
local late = require "demilune.late"
local options = require "demilune.options"
local nn, optim, data = dm.nn, dm.optim, dm.data

local function rows(t) return t:totable() end

-- Runs a Lua program in a process of its own and returns what it printed, errors included.
local function output_of(program, interpreter)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(program)
  file:close()
  local pipe = assert(io.popen(("LUA_PATH='%s' LUA_CPATH='%s' %s %s 2>&1"):format(package.path,
    package.cpath, interpreter or "lua5.4", path)))
  local text = pipe:read "a"
  pipe:close()
  os.remove(path)
  return (text:gsub(path:gsub("%p", "%%%0"), "script"))
end

describe("operators", function()
  it("combine masks and bits", function()
    local x = dm.arange(5)
    assert.same({2, 4}, rows(x[x:gt(1) & x:lt(5) & ~x:eq(3)]))
    assert.same({1, 5}, rows(x[x:lt(2) | x:gt(4)]))
    assert.same({true, false, true, true, true}, rows(x:gt(1) ~ x:ne(3) ~ x:gt(3)))
    assert.same({1, 0, 1, 0, 1}, rows(x & 1))
    assert.same({9, 10, 11, 12, 13}, rows(8 | x))
    assert.same({-2, -3, -4, -5, -6}, rows(~x))
    assert.equal("bool", (x:gt(1) | x:lt(0)).dtype)
    assert.refuses("wanted integers or bool", function() return x:float() & 1 end)
  end)

  it("that Lua makes a boolean of raise, with the method that compares", function()
    local x = dm.arange(3)
    assert.refuses("hint: x:gt%(0%)", function() return x > 0 end)
    assert.refuses("hint: x:lt%(2.5%)", function() return x < 2.5 end)
    assert.refuses("hint: x:ge%(1%)", function() return x >= 1 end)
    assert.refuses("hint: x:gt%(4%)", function() if 4 < x then return 1 end end)
    assert.refuses("hint: x:le%(y%)", function() return x <= x end)
  end)
end)

describe("loops", function()
  local set = data.TensorDataset(dm.arange(10):reshape(5, 2), dm.arange(5))

  it("run over a loader itself", function()
    local loader = data.DataLoader(set, {batch_size = 2, shuffle = true, seed = 3})
    for _ = 1, 2 do -- two epochs
      local again = data.DataLoader(set, {batch_size = 2, shuffle = true, seed = 3})
      again:load_state_dict(loader:state_dict())
      local next_batch = again:iter()
      local n = 0
      for i, x, y in loader do
        local j, xj, yj = next_batch()
        assert.same({j, rows(xj), rows(yj)}, {i, rows(x), rows(y)})
        n = i
      end
      assert.equal(3, n)
    end
    assert.equal(3, loader:state_dict().epoch)
    for i in loader do if i == 2 then break end end
    local seen = {}
    for i, x in pairs(loader) do seen[i] = #x end -- begins anew after the break
    assert.same({2, 2, 1}, seen)
  end)

  it("over one loader do not lie in each other unnoticed", function()
    local loader = data.DataLoader(set, {batch_size = 2})
    assert.refuses("hint: for i, x in loader:iter%(%) do", function()
      for _ in loader do for i in loader do if i == 1 then break end end end
    end)
    assert.refuses("hint: for i, x in loader:iter%(%) do", function()
      for _ in loader do for _ in loader do assert(true) end end
    end)
  end)

  it("run over data sets", function()
    local seen = {}
    for i, x, y in pairs(set) do seen[i] = {x:sum():item(), y:item()} end
    assert.same({{3, 1}, {7, 2}, {11, 3}, {15, 4}, {19, 5}}, seen)
    assert.equal(5, #set)
    local Squares = data.Dataset:extend "Squares"
    function Squares.len() return 3 end
    function Squares.get(_, i) return i * i end
    local sum = 0
    for i, v in pairs(Squares()) do sum = sum + i * v end
    assert.same({36, 3}, {sum, #Squares()})
  end)

  it("run over containers of modules", function()
    local a, b, c = nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)
    local dict = nn.ModuleDict{second = b, first = a}
    dict.third, dict.extra = c, 5
    local names = {}
    for name, module in pairs(dict) do names[#names + 1] = {name, module} end
    assert.same({"first", "second", "third"}, {names[1][1], names[2][1], names[3][1]})
    assert.is_true(rawequal(names[3][2], c))
    assert.equal(3, #dict)
    dict.second = nil
    assert.equal(2, #dict)
    local p = nn.ParameterDict{w = dm.ones(2)}
    for name, t in pairs(p) do assert.same({"w", 2}, {name, #t}) end
    assert.equal(1, #p)
    for _, list in ipairs{nn.Sequential(a, b), nn.ModuleList{a, b}} do
      local n = 0
      for i, module in pairs(list) do
        n = n + 1
        assert.is_true(rawequal(list[i], module))
      end
      assert.equal(2, n)
    end
  end)

  it("run over a state_dict in PyTorch's order", function()
    local Net = nn.Module:extend "Net"
    function Net:init()
      self.norm = nn.BatchNorm1d(2)
      self:register_buffer("seen", dm.zeros(1))
      self.scale = nn.Parameter(dm.ones(1))
      self.fc = nn.Linear(2, 2)
    end
    local state, names = Net():state_dict(), {}
    for name, t in pairs(state) do
      assert.is_true(rawequal(state[name], t))
      names[#names + 1] = name
    end
    assert.equal("scale seen norm.weight norm.bias norm.running_mean norm.running_var "
      .. "norm.num_batches_tracked fc.weight fc.bias", table.concat(names, " "))
    state.seen, state.more = nil, dm.zeros(3)
    names = {}
    for name in pairs(state) do names[#names + 1] = name end
    assert.equal("scale norm.weight", table.concat(names, " ", 1, 2))
    assert.equal("more", names[#names])
    local path = os.tmpname()
    assert(dm.save(path, state))
    assert.same({3}, {table.unpack(dm.load(path).more.shape)})
    os.remove(path)
  end)
end)

describe("what is printed", function()
  it("is the content of a table", function()
    local m = nn.Linear(3, 4)
    assert.equal("{\n  weight = float32 {4, 3}\n  bias = float32 {4}\n}", tostring(m:state_dict()))
    local opt = optim.SGD(m:parameters(), {lr = 0.5, momentum = 0.9})
    m(dm.ones(1, 3)):sum():backward()
    opt:step()
    local text = tostring(opt:state_dict())
    assert.matches("lr = 0.5", text, 1, true)
    assert.matches("momentum_buffer = float32 {4, 3}", text, 1, true)
    assert.matches("last_epoch = 0", tostring(optim.lr_scheduler.StepLR(opt, 2):state_dict()), 1,
      true)
    assert.matches("scale = 8.0", tostring(dm.amp.GradScaler{init_scale = 8.0,
      device = "cpu"}:state_dict()), 1, true)
    assert.matches("skipped = 0", tostring(dm.amp.GradScaler{device = "cpu"}:stats()), 1, true)
    assert.matches("variant = \"", tostring(dm.cpu_info()), 1, true)
    assert.matches("\n  matmul = \"lower_precision_fp\"", tostring(dm.amp.op_table "cpu"), 1, true)
    assert.matches("\n  abs  absolute value, |x|\n", tostring(dm.ops()), 1, true)
    assert.matches("missing_keys = {}", tostring(m:load_state_dict(m:state_dict())), 1, true)
    for _, t in ipairs{dm.cpu_info(), dm.memory_stats(), dm.ops(), dm.amp.op_table "cpu",
      data.DataLoader(data.TensorDataset(dm.ones(1))):state_dict()} do
      assert.is_nil(tostring(t):find "table: 0x")
    end
  end)

  it("is all of ten numbers", function()
    for _, shape in ipairs{{10}, {10, 1}, {10, 1, 1}, {1, 10, 1}, {5, 2}, {1, 1, 5, 2}} do
      local text = tostring(dm.arange(10):view(shape))
      assert.is_nil(text:find("...", 1, true), text)
    end
    assert.matches("...", tostring(dm.arange(50)), 1, true)
  end)
end)

describe("a slip of the pen", function()
  it("in a name gets the nearest one, where Lua's error is certain", function()
    local m = nn.Linear(3, 4, {bias = false})
    assert.refuses("manners_spec.lua:%d+: a module has no 'paramters'; did you mean 'parameters'",
      function() m:paramters() end)
    assert.refuses("did you mean 'forward'", function() return (m.forwrd(dm.ones(3))) end)
    assert.refuses("did you mean 'weight'", function() return (m.wieght:sum()) end)
    assert.refuses("nn has no 'Liner'; did you mean 'Linear'", function()
      local _ = nn.Liner(3)
    end)
    assert.refuses("optim has no 'AdamWW'; did you mean 'AdamW'", function()
      local _ = optim.AdamWW{}
    end)
    assert.refuses("data has no 'DataLoder'; did you mean 'DataLoader'", function()
      local _ = data.DataLoder{}
    end)
    assert.refuses("demilune has no 'zeross'; did you mean 'zeros'", function()
      local _ = dm.zeross(3)
    end)
    assert.refuses("did you mean 'eval'", function() m:evaluate() end) -- it begins so
    assert.refuses("did you mean 'rand'", function() local _ = dm.arnd(3) end) -- one edit
  end)

  it("gets the name that PyTorch's has here", function()
    assert.refuses("demilune has no 'F'; did you mean 'nn.functional'?",
      function() dm.F.relu(dm.ones(1)) end)
    assert.refuses("did you mean 'manual_seed'", function() dm.seed(1) end)
    assert.refuses("did you mean 'amp.autocast'", function() dm.autocast{} end)
    assert.refuses("a tensor has no 'numpy'; hint: x:totable%(%), or demilune convert",
      function() dm.ones(1):numpy() end)
    assert.is_nil(dm.F)
  end)

  it("gets none that has nothing to do with it", function()
    for _, word in ipairs{"F", "warmup", "codes", "seed"} do
      assert.is_nil(options.nearest(word, late.names(dm)), word)
    end
  end)

  it("is none where a program asks whether a name is there", function()
    local m = nn.Linear(3, 4, {bias = false})
    assert.is_nil(m.bias)
    assert.is_nil(m.wieght)
    assert.equal(3, m.wieght and m.wieght:numel() or 3)
    assert.equal("no", m.paramters and "yes" or "no")
    assert.is_nil(nn.Liner)
    assert.is_nil(dm.zeross)
    assert.refuses("attempt to index a nil value", function() return (m.unheard_of.at) end)
    assert.refuses("attempt to call a nil value", function()
      local f = m.paramters
      f()
    end)
  end)

  it("a dot for a colon is told", function()
    local m = nn.Linear(1, 1)
    local opt = optim.SGD(m:parameters(), {lr = 0.1})
    local loader = data.DataLoader(data.TensorDataset(dm.ones(1)))
    local scaler = dm.amp.GradScaler{device = "cpu"}
    local function told(pattern, f)
      assert.refuses("manners_spec.lua:%d+: .*hint: .*" .. pattern, function() f() return nil end)
    end
    told("optimizer:step", function() opt.step() end)
    told("optimizer:zero_grad", function() opt.zero_grad() end)
    told("module:train", function() m.train() end)
    told("module:parameters", function() m.parameters() end)
    told("module:extend", function() nn.Module.extend "Block" end)
    told("scaler:step", function() scaler.step(opt) end)
    told("scheduler:step", function() optim.lr_scheduler.StepLR(opt, 2).step() end)
    told("loader:iter", function() loader.iter() end)
    told("a method takes a colon", function() dm.ones(2).sum() end)
    told("a method takes a colon", function() dm.ones(2).backward() end)
  end)
end)

describe("a traceback", function()
  it("has the frames between a model's call and the error", function()
    local text = output_of[[
      local dm = require "demilune"
      local nn = dm.nn
      local Block = nn.Module:extend "Block"
      function Block:init() self.fc = nn.Linear(3, 4) end
      local function helper(self, x)
        local y = self.fc(x)
        return y
      end
      function Block:forward(x)
        local y = helper(self, x)
        return y
      end
      local model = nn.Sequential(Block())
      if arg[1] then model:register_forward_hook(function() end) end
      local function train()
        local y = dm.no_grad(function()
          local y = model(dm.ones(2, 5))
          return y
        end)
        return y
      end
      train()]]
    assert.matches("script:6: in model[1].fc Linear(3 -> 4): linear: input {2, 5}", text, 1, true)
    for _, line in ipairs{6, 10, 17, 16, 22} do
      assert.matches(("\n\tscript:%d: in"):format(line), text)
    end
  end)

  it("sets the modes around it back", function()
    local Failing = nn.Module:extend "Failing"
    function Failing.forward() error "here" end
    local model = Failing()
    for _ = 1, 2 do
      assert.refuses("here", function() dm.no_grad(function() return (model(1)) end) end)
      assert.is_true(dm.is_grad_enabled())
      model:register_forward_hook(function() end)
    end
    dm.profiler.profile({}, function()
      pcall(model, 1)
      local _ = nn.ReLU()(dm.ones(1))
    end)
    local thread = coroutine.wrap(function()
      local Yielding = nn.Module:extend "Yielding"
      function Yielding.forward(_, x) return coroutine.yield(x) end
      return "end", Yielding()(7)
    end)
    assert.equal(7, thread())
    assert.same({"end", 8}, {thread(8)})
  end)
end)

describe("a scope", function()
  it("that nobody closed warns with its line when it is collected", function()
    local sink, texts = caller.sink, {}
    caller.sink = function(text) texts[#texts + 1] = text end
    local line
    for _, name in ipairs{"no_grad", "inference_mode", "scope"} do
      dm[name]()
      line = debug.getinfo(1, "l").currentline - 1
      collectgarbage()
      collectgarbage()
      assert.matches(("manners_spec.lua:%d: warning: %s: this scope was never closed; hint: ")
        :format(line, name), texts[#texts], 1, true)
    end
    assert.is_true(dm.is_grad_enabled())
    local n = #texts
    do local _ <close> = dm.no_grad() end
    dm.no_grad():close()
    dm.no_grad(function() end)
    dm.no_grad():wrap(function() end)()
    coroutine.wrap(function() -- nobody resumes it
      local _ <close> = dm.no_grad()
      coroutine.yield()
    end)()
    collectgarbage()
    collectgarbage()
    caller.sink = sink
    assert.equal(3, n)
    assert.equal(n, #texts)
  end)

  it("or any other value from C refuses a method without its object", function()
    local region, stats = dm.amp.autocast{device_type = "cpu"}, dm.profiler.profile{}
    region:close()
    stats:stop()
    local values = {dm.no_grad(), dm.scope(), region, dm.Generator(), dm.ones(1)}
    values[1]:close()
    values[2]:close()
    for _, value in ipairs(values) do
      local meta = debug.getmetatable(value)
      for _, methods in ipairs{meta, type(meta.__index) == "table" and meta.__index or {}} do
        for name, f in pairs(methods) do
          for _, args in ipairs{{}, {1}, {"text"}, {{}}, {io.stdout}, {dm.Generator()}} do
            local callable = type(f) == "function" and name ~= "__gc"
            if callable then pcall(f, table.unpack(args)) end
          end
        end
      end
    end
  end)
end)

describe("another Lua", function()
  it("is told which one is needed", function()
    local seen = 0
    for _, name in ipairs{"lua5.1", "lua5.2", "lua5.3", "luajit"} do
      if os.execute(name .. " -v >/dev/null 2>&1") then
        local text = output_of("require 'demilune'", name)
        local first = text:match "^%S+: ([^\n]*)"
        assert.matches("^demilune needs Lua 5%.4, and this is Lua%S* %S+; hint: lua5%.4", first)
        seen = seen + 1
      end
    end
    if seen == 0 then pending "no other Lua is there" end
  end)
end)

describe("dm.load", function()
  it("says what a file is that it does not read", function()
    local path = os.tmpname()
    local function told(pattern, content, name)
      local at = path .. (name or "")
      local file = assert(io.open(at, "wb"))
      file:write(content)
      file:close()
      local tree, problem = dm.load(at)
      os.remove(at)
      assert.is_nil(tree)
      assert.matches(pattern, problem, 1, true)
      assert.matches(at, problem, 1, true)
    end
    told("hint: gunzip it", "\x1f\x8b\8\0" .. ("x"):rep(20))
    told("a GGML file", "ggml" .. ("x"):rep(20))
    told("a Parquet file", "PAR1" .. ("x"):rep(20))
    told("hint: dm.read_image", "\x89PNG\r\n" .. ("x"):rep(20))
    told("an ONNX model", "\8\7\x12\7pytorch", ".onnx")
    told("a TensorFlow Lite model", "\x1c\0\0\0TFL3" .. ("x"):rep(20), ".tflite")
    told("a table as text", "a,b\n1,2\n", ".csv")
    told("safetensors: '", "nothing that is known")
  end)
end)

describe("modules", function()
  it("are asked for their class", function()
    local Mine = nn.Linear:extend "Mine"
    local mine = Mine(2, 3)
    assert.is_true(nn.isinstance(mine, Mine))
    assert.is_true(nn.isinstance(mine, nn.Linear))
    assert.is_true(nn.isinstance(mine, nn.Module))
    assert.is_true(nn.isinstance(mine, {nn.Conv2d, nn.Linear}))
    assert.is_false(nn.isinstance(nn.Linear(2, 3), Mine))
    assert.is_false(nn.isinstance(mine, {nn.Conv2d, nn.ReLU}))
    assert.is_false(nn.isinstance(3, nn.Linear))
    assert.refuses("wanted a class such as nn.Linear", function() nn.isinstance(mine, "Linear") end)
  end)

  it("in a list are replaced by the names of named_children", function()
    for _, class in ipairs{nn.Sequential, nn.ModuleList} do
      local list = class(nn.Linear(2, 3), nn.ReLU())
      for name in list:named_children() do list[name] = nn.Identity() end
      assert.equal(2, #list)
      for _, m in ipairs(list) do assert.equal("Identity", m.class) end
    end
    local named = nn.Sequential(nn.ReLU())
    named["7"] = nn.Identity() -- no index: a name
    assert.equal(1, #named)
    assert.equal("Identity", named["7"].class)
  end)

  it("say how a part of a list is had", function()
    local list = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Identity())
    assert.refuses("hint: nn.Sequential%(table.unpack%(layers, first, last%)%)", function()
      return list[{1, 2}]
    end)
    assert.equal(2, #nn.Sequential(table.unpack(list, 1, 2)))
  end)

  it("find no 'indices' in the first of two results", function()
    assert.refuses("local values, indices = x:max%(1%)", function()
      return dm.ones(2, 2):max(1).indices
    end)
  end)
end)

describe("the module", function()
  local hooks = require("demilune.core")._test

  it("shows no hook of the tests, and no name of its own files", function()
    local hook_names = {}
    for name, f in pairs(hooks) do hook_names[f] = name end
    assert.is_string(hook_names[hooks.alloc_fail_at])
    for _, module in ipairs{dm, nn.functional, nn, optim, data, dm.amp, dm.autograd, dm.cuda} do
      assert.is_nil(module._test)
      assert.is_nil(module._write_file)
      for name in pairs(hooks) do assert.is_nil(rawget(module, name), name) end
      for name, value in pairs(module) do assert.is_nil(hook_names[value], tostring(name)) end
    end
    for name in pairs(hooks) do
      assert.is_nil(dm[name], name)
      assert.is_nil(nn.functional[name], name)
    end
    for name in pairs(dm) do
      local is_version = name == "_VERSION" or name == "__version__"
      assert.is_true(is_version or name:sub(1, 1) ~= "_", name)
    end
  end)
end)

describe("the text of a signature", function()
  it("is read again where Ctrl-C ended the first call, wherever that was", function()
    local function call(at)
      local bind = options.signature("interrupted", "a: number, b: number = 2")
      local left = at
      local function count()
        left = left - 1
        if left == 0 then error "interrupted!" end
      end
      local first = pcall(function()
        debug.sethook(count, "", 1)
        bind(1, 4)
        debug.sethook()
      end)
      debug.sethook()
      return first, bind(1, 4)
    end
    local at, done = 0, false
    while not done do
      local bound
      at = at + 1
      done, bound = call(at)
      assert.same({a = 1, b = 4}, bound)
    end
    assert.is_true(at > 100, at)
  end)
end)
