-- nn.Module: registration, state_dict, hooks, copies and error paths (plumbing); initial values
-- and running statistics of layers; autograd.Function by gradcheck.
local dm = require "demilune"
local hooks = require("demilune.core")._test
local nn = dm.nn

local function fails(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
  return message
end

local Pair = nn.Module:extend "Pair"
function Pair:init() self.layers = {nn.Linear(3, 4), nn.Linear(4, 2)} end
function Pair:forward(x) return self.layers[2](self.layers[1](x)) end

describe("nn.Module", function()
  it("registers parameters, modules and tables of modules by assignment", function()
    local m = Pair()
    m.scale = nn.Parameter(dm.ones(1))
    m:register_buffer("seen", dm.zeros(1))
    local names = {}
    for name in m:named_parameters() do names[#names + 1] = name end
    assert.same({"scale", "layers.0.weight", "layers.0.bias", "layers.1.weight",
      "layers.1.bias"}, names)
    assert.equal(1, #m:buffers())
    assert.equal(3, #m:modules())
    m.scale = nil
    assert.equal(4, #m:parameters())
  end)

  it("a plain tensor instead of a parameter is refused", function()
    local hint = "Linear: weight was a parameter.*hint: nn.Parameter%(tensor%)"
    local layer, w = nn.Linear(2, 3), dm.ones(3, 2)
    layer.weight = nil
    assert.error_matches(function() layer.weight = w end, hint)
    assert.equal(1, #layer:parameters())
    layer.weight = nn.Parameter(w:clone())
    assert.equal(2, #layer:parameters())
    layer = nn.Linear(2, 3)
    layer.weight = w
    for _, ask in ipairs{"parameters", "state_dict", "zero_grad", "buffers", "float"} do
      assert.error_matches(function() layer[ask](layer) end, hint)
      assert.error_matches(function() nn.Sequential{layer}[ask](nn.Sequential{layer}) end, hint)
    end
    layer:register_buffer("weight", w)
    assert.equal(1, #layer:parameters())
    assert.equal(1, #layer:buffers())
    local list = nn.ParameterList{w}
    list[1] = w * 2
    assert.error_matches(function() list:parameters() end, "ParameterList: 1 was a parameter")
  end)

  it("copy shares no tensor, and keeps what is tied", function()
    local m = Pair()
    m.layers[2].weight.requires_grad = false
    m.again = m.layers[1]
    m:register_buffer("seen", dm.zeros(1))
    local c = m:copy()
    assert.equal(c.layers[1], c.again)
    assert.is_true(dm.equal(m(dm.ones(1, 3)), c(dm.ones(1, 3))))
    for name, t in pairs(m:state_dict()) do t:add_(1) assert(c:state_dict()[name], name) end
    assert.is_false(dm.equal(m.layers[1].weight, c.layers[1].weight))
    assert.equal(0, c.seen:item())
    assert.is_false(c.layers[2].weight.requires_grad)
    assert.equal(5, #c:buffers() + #c:parameters())
  end)

  it("train and eval reach every module below", function()
    local m = nn.Sequential{Pair(), nn.Dropout(0.5)}
    m:eval()
    for _, module in m:named_modules() do assert.is_false(module.training) end
  end)

  it("to converts floating tensors and keeps the parameters' identity", function()
    local m = nn.Sequential{nn.Linear(2, 2), nn.BatchNorm1d(2)}
    local before = m:parameters()
    m:half()
    for i, p in ipairs(m:parameters()) do
      assert.is_true(rawequal(before[i], p))
      assert.equal("float16", p.dtype)
    end
    assert.equal("int64", m[2].num_batches_tracked.dtype)
  end)

  it("to converts tensors that are views, which part from their bases", function()
    local m, whole = nn.Module(), dm.ones(4, 4)
    m:register_buffer("mask", dm.ones(4, 4):tril():view(1, 1, 4, 4))
    m.row = nn.Parameter(whole[2])
    m:double()
    assert.same({"float64", "float64", "float32"}, {m.mask.dtype, m.row.dtype, whole.dtype})
    assert.same({1, 1, 0, 0}, m.mask[1][1][2]:totable())
    m.row.data:fill_(3)
    assert.equal(16, whole:sum():item());
    (m.row * m.mask):sum():backward()
    assert.same({4, 3, 2, 1}, m.row.grad:totable())
  end)

  it("a parameter of what an op made is a leaf, which shares its memory", function()
    local w = dm.tensor({{1, 2}, {3, 4.0}}, {requires_grad = true})
    local p = nn.Parameter(w:t())
    assert.is_true(p.is_leaf and p.is_parameter)
    p:sum():backward()
    assert.same({{1, 1}, {1, 1}}, p.grad:totable())
    assert.is_nil(w.grad)
    p.data:mul_(2)
    assert.same({{2, 4}, {6, 8}}, w:totable())
    local frozen = nn.Parameter(w * 2, false)
    assert.is_true(frozen.is_leaf and not frozen.requires_grad)
    assert.is_true(nn.ParameterList{w * 2}[1].is_leaf)
  end)

  it("state_dict goes over to another module", function()
    local a, b = Pair(), Pair()
    b:load_state_dict(a:state_dict())
    local x = dm.randn(2, 3)
    assert.same(a(x):totable(), b(x):totable())
  end)

  -- PyTorch gives the same names and counts.
  it("a module at two positions has both names in a state_dict, and is one child", function()
    local shared = nn.Linear(2, 2)
    local m = nn.Sequential(shared, nn.ReLU(), shared)
    local names, calls = {}, 0
    for name in pairs(m:state_dict()) do names[#names + 1] = name end
    assert.same({"0.weight", "0.bias", "2.weight", "2.bias"}, names)
    assert.equal(2, #m:parameters())
    assert.equal(2, #m:children())
    m:apply(function(module) if module == shared then calls = calls + 1 end end)
    assert.equal(1, calls)
    local state = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)):state_dict()
    assert.same({}, m:load_state_dict(state).unexpected_keys)
    assert.same(state["2.weight"]:totable(), shared.weight:totable())
  end)

  it("load_state_dict lists missing and unexpected names, and shapes", function()
    local m = Pair()
    local state = m:state_dict()
    state["layers.0.weight"], state.foo = nil, dm.zeros(1)
    state["layers.1.bias"] = dm.zeros(7)
    local message = fails("^spec/nn_spec", function() m:load_state_dict(state) end)
    assert.matches("missing: layers.0.weight", message, 1, true)
    assert.matches("unexpected: foo", message, 1, true)
    assert.matches("layers.1.bias is {7}, wanted {2}", message, 1, true)
    assert.is_nil(message:find "hint")
    local wrapped = {}
    for name, t in pairs(m:state_dict()) do wrapped["module." .. name] = t end
    fails("hint: every name begins with 'module%.', which DataParallel adds",
      function() m:load_state_dict(wrapped) end)
  end)

  it("errors name the path of the module once, and the caller's line", function()
    local m = nn.Sequential{Pair()}
    local message = fails("^spec/nn_spec.lua:%d+: in model%[1%].layers%[1%] Linear%(3 %-> 4%): ",
      function() m(dm.ones(2, 5)) end)
    local _, n = message:gsub("in model", "")
    assert.equal(1, n)
  end)

  it("__init and a scope for a device have hints", function()
    local Old = nn.Module:extend "Old"
    function Old:__init() self.n = 1 end
    fails("^spec/nn_spec.lua:%d+: Old has __init, .*hint: function Old:init", function()
      local _ = Old()
    end)
    local function to(x)
      local scope <close> = dm.device "cpu"
      x:to(scope)
    end
    local hint = 'hint: a device is a string, "cuda"; dm.device opens a scope'
    fails(hint, to, dm.ones(1))
    fails(hint, to, nn.Linear(1, 1))
  end)

  it("an unknown option names the nearest one", function()
    fails("unknown option 'biass'; did you mean 'bias'", nn.Linear, 1, 1, {biass = false})
  end)

  it("prints as its constructor with counts", function()
    local text = tostring(nn.Sequential{nn.Linear(784, 256), nn.ReLU()})
    assert.matches("[1] Linear(784 -> 256)  200,960", text, 1, true)
    assert.matches("200,960 parameters, 804 kB float32", text, 1, true)
  end)

  it("forward hooks get the inputs of their own call, and an error leaves none behind", function()
    local model = nn.Module:extend "Countdown"()
    function model:forward(n)
      if n < 0 then error "below zero" end
      return n == 0 and 0 or self(n - 1) + 1
    end
    local seen = {}
    model:register_forward_hook(function(_, inputs, output)
      seen[#seen + 1] = ("%d gives %d"):format(inputs[1], output)
    end)
    assert.equal(2, model(2))
    assert.same({"0 gives 0", "1 gives 1", "2 gives 2"}, seen)
    local held = setmetatable({dm.ones(3)}, {__mode = "v"})
    assert.is_false(pcall(model, -1, held[1]))
    collectgarbage()
    collectgarbage()
    assert.is_nil(held[1])
  end)

  it("a hook that removes itself leaves the next one its turn", function()
    for _, kind in ipairs{"forward_pre", "forward", "full_backward_pre", "full_backward"} do
      local m, calls, handle = nn.Linear(2, 2), {}, nil
      local register = m["register_" .. kind .. "_hook"]
      handle = register(m, function()
        calls[#calls + 1] = "once"
        handle:remove()
        handle:remove() -- a second time does nothing
      end)
      for _ = 1, 2 do register(m, function() calls[#calls + 1] = "each" end) end
      register(m, function() calls[#calls + 1] = "first" end, {prepend = true})
      local x = dm.ones({1, 2}, {requires_grad = true})
      for _ = 1, 2 do m(x):sum():backward() end
      assert.equal("first once each each first each each", table.concat(calls, " "), kind)
    end
  end)

  it("the backward pass calls the hooks that there were in the forward pass", function()
    local m, calls, handle = nn.Linear(2, 2), 0, nil
    handle = m:register_full_backward_hook(function()
      calls = calls + 1
      handle:remove()
    end)
    m(m(dm.ones({1, 2}, {requires_grad = true}))):sum():backward()
    assert.equal(2, calls) -- as in PyTorch 2.15, by both uses of the module
  end)

  it("hooks of always_call see an error; removing one leaves another of its function", function()
    local m, seen = nn.Linear(2, 2), {}
    local function hook(_, inputs, y) seen[#seen + 1] = {inputs[1], y} end
    local handle = m:register_forward_hook(hook, {always_call = true})
    m:register_forward_hook(hook)
    local wrong = dm.ones(1, 3)
    assert.error_matches(function() m(wrong) end, "3")
    assert.same({{wrong}}, seen)
    m(dm.ones(1, 2))
    assert.equal(3, #seen)
    handle:remove()
    handle:remove()
    assert.error(function() m(wrong) end)
    m(dm.ones(1, 2))
    assert.equal(4, #seen)
    assert.error_matches(function() m:register_forward_hook(hook, {with_kwargs = true}) end,
      "inputs have no names")
    assert.error_matches(function() m:register_forward_hook(3) end, "wanted a function")
  end)

  it("names of tensors heed recurse, prefix and remove_duplicate", function() -- as PyTorch 2.15
    local shared = nn.Linear(1, 1, {bias = false})
    local m = nn.Sequential{shared, nn.BatchNorm1d(1), shared}
    m.scale = nn.Parameter(dm.ones(1))
    local function names(...)
      local list = {}
      for name in ... do list[#list + 1] = name end
      return table.concat(list, " ")
    end
    assert.equal("scale", names(m:named_parameters{recurse = false}))
    assert.equal("x.scale", names(m:named_parameters("x", false)))
    assert.equal("scale 0.weight 1.weight 1.bias 2.weight",
      names(m:named_parameters{remove_duplicate = false}))
    assert.equal("", names(m:named_buffers{recurse = false}))
    assert.equal("x x.0 x.1 x.2", names(m:named_modules{prefix = "x", remove_duplicate = false}))
    assert.equal(" 0 1", names(m:named_modules()))
    assert.same({1, 0, 4, 3}, {#m:parameters(false), #m:buffers{recurse = false},
      #m:parameters(), #m:buffers()})
    assert.is_true(rawequal(m.scale, m:state_dict{keep_vars = true}.scale))
    assert.is_false(m:state_dict().scale.requires_grad)
    assert.is_true(m:state_dict{prefix = "net."}["net.0.weight"]:equal(shared.weight))
    assert.error_matches(function() m:named_parameters{recursive = false} end, "recurse")
  end)

  it("forward pre-hooks may replace the inputs, by one or by an array of them", function()
    local Add = nn.Module:extend "Add"
    function Add.forward(_, a, b) return a, b end
    local m, seen = Add(), {}
    local function see(_, inputs) seen[#seen + 1] = #inputs end
    local function changing(hook, ...)
      local handles = {m:register_forward_pre_hook(see), m:register_forward_pre_hook(hook),
        m:register_forward_pre_hook(see)}
      local got = table.pack(m(...))
      for _, handle in ipairs(handles) do handle.remove() end
      return got
    end
    local x, y = dm.ones(2), dm.zeros(2)
    assert.same({x, y, n = 2}, changing(function() end, x, y))
    assert.same({y, nil, n = 2}, changing(function() return y end, x, y))
    assert.same({y, x, n = 2}, changing(function(_, inputs)
      return {inputs[2], inputs[1]}
    end, x, y))
    assert.same({nil, x, n = 2}, changing(function() return {nil, x, n = 2} end, x, y))
    -- a change of the hook's table has no effect
    assert.same({x, y, n = 2}, changing(function(_, inputs) inputs[1] = nil end, x, y))
    assert.same({2, 2, 2, 1, 2, 2}, {table.unpack(seen, 1, 6)})
    assert.same({x, y, n = 2}, table.pack(m(x, y)))
  end)

  it("modules, parameters and buffers are found, replaced and added by their names", function()
    local m = nn.Module:extend "Net"()
    m.layers = {nn.Linear(2, 2), nn.Sequential{nn.ReLU(), nn.BatchNorm1d(2)}}
    local norm = m.layers[2][2]
    for name, module in m:named_modules() do assert.equal(module, m:get_submodule(name)) end
    assert.equal(m, m:get_submodule "")
    assert.equal(norm, m:get_submodule "layers.1.1")
    assert.equal(norm.weight, m:get_parameter "layers.1.1.weight")
    assert.equal(norm.running_mean, m:get_buffer "layers.1.1.running_mean")
    local list = nn.ParameterList{nn.Parameter(dm.ones(1))}
    assert.equal(list[1], list:get_parameter "0")
    local new = {nn.Linear(2, 3), nn.Tanh(), nn.Tanh(), nn.Linear(1, 1)}
    m:set_submodule("layers.0", new[1])
    m:set_submodule("layers.1.0", new[2])
    m:set_submodule("head", new[3])
    m:add_module("tail", new[4])
    assert.equal(new[1], m.layers[1])
    assert.equal(new[2], m.layers[2][1])
    assert.equal(new[3], m.head)
    assert.equal(new[4].weight, m:get_parameter "tail.weight")
    m:register_module("tail", new[3])
    assert.equal(new[3], m.tail)
    fails("get_submodule: Net has no module 'layers.7'", function()
      m:get_submodule "layers.7"
    end)
    fails("get_parameter: Net has no parameter 'layers.1.1.running_mean'", function()
      m:get_parameter "layers.1.1.running_mean"
    end)
    fails("get_buffer: Net has no buffer 'tail'", function() m:get_buffer "tail" end)
    fails("wanted one without dots", function() m:add_module("a.b", new[1]) end)
    fails("Net has something else by the name 'forward'", function()
      m:add_module("forward", new[1])
    end)
    fails("get_submodule: Net has no module 'none'", function()
      m:set_submodule("none.x", new[1])
    end)
  end)

  it("full backward hooks get the module's own gradients, and may replace them", function()
    local m = nn.Bilinear(2, 3, 2)
    local x, y = dm.randn(4, 2):requires_grad_(), dm.randn(4, 3)
    local function grads_of(scale)
      x.grad = nil
      local h = x * 1
      ;(m(h, y):sum() * scale + h:sum()):backward() -- h's other use is not the module's
      return x.grad:totable()
    end
    local plain, doubled = grads_of(1), grads_of(2)
    local seen
    local handle = m:register_full_backward_hook(function(module, grad_input, grad_output)
      assert.equal(m, module)
      seen = {grad_input, grad_output}
    end)
    assert.same(plain, grads_of(1))
    assert.equal(2, seen[1].n)
    assert.is_nil(seen[1][2])
    assert.same(plain, (seen[1][1] + 1):totable())
    assert.equal(1, seen[2].n)
    assert.same(dm.ones(4, 2):totable(), seen[2][1]:totable())
    handle.remove()
    handle = m:register_full_backward_hook(function(_, grad_input)
      return {grad_input[1] * 2, n = 2}
    end)
    assert.same(doubled, grads_of(1))
    handle.remove()
    handle = m:register_full_backward_pre_hook(function(_, grad_output)
      return grad_output[1] * 2
    end)
    assert.same(doubled, grads_of(1))
    handle.remove()
    seen = nil
    assert.same(plain, grads_of(1))
    assert.is_false(m._has_hooks)
    -- no input wants a gradient
    handle = m:register_full_backward_hook(function(_, ...) seen = {...} end)
    m(x:detach(), y):sum():backward()
    assert.is_nil(seen[1][1])
    assert.same(dm.ones(4, 2):totable(), seen[2][1]:totable())
    do
      local _ <close> = dm.no_grad()
      assert.is_false(m(x, y).requires_grad)
    end
    handle.remove()
    m:register_full_backward_hook(function() return {} end)
    assert.error_matches(function() m(x, y):sum():backward() end,
      "a full backward hook of Bilinear returned 0 gradients, wanted 2 gradients, in a table")
  end)

  it("a forward hook may replace the output, until removed", function()
    local m = nn.Identity()
    local handle = m:register_forward_hook(function(_, inputs, y) return inputs[1] + y end)
    assert.equal(4, m(dm.tensor(2.0)):item())
    handle:remove()
    assert.equal(2, m(dm.tensor(2.0)):item())
  end)
end)

describe("nn layers", function()
  it("Linear and Conv2d start within 1 / sqrt(fan in)", function()
    local w = nn.Linear(100, 50).weight
    assert.is_true(w:abs():max():item() <= 0.1)
    assert.is_true(w:abs():max():item() > 0.09)
    assert.is_true(nn.Conv2d(4, 8, 5).bias:abs():max():item() <= 0.1)
  end)

  it("initial weights have the deviation that their formulas ask for", function()
    local w = dm.empty(200, 50)
    local wanted = {
      kaiming_normal_ = math.sqrt(2 / 50), kaiming_uniform_ = math.sqrt(2 / 50),
      xavier_normal_ = math.sqrt(2 / 250), xavier_uniform_ = math.sqrt(2 / 250),
    }
    for name, deviation in pairs(wanted) do
      assert.is_true(rawequal(w, nn.init[name](w)))
      assert.is_true(math.abs(w:std():item() / deviation - 1) < 0.05, name)
      local most = w:abs():max():item() / deviation
      assert.equal(name:find "uniform" ~= nil, most < 1.74, name) -- sqrt(3)
      fails("unknown option", nn.init[name], w, {fan = 1})
    end
    nn.init.kaiming_normal_(w, {mode = "fan_out", nonlinearity = "linear"})
    assert.is_true(math.abs(w:std():item() / math.sqrt(1 / 200) - 1) < 0.05)
  end)

  -- as in PyTorch, where they are the module's attributes
  it("have their options as fields, which may be assigned later", function()
    local x, target = dm.tensor{{{1, -2, 3, 4, 5.0}}}, dm.zeros(1, 1, 5)
    local function gives(wanted, layer, ...)
      assert.same(wanted, layer(...):reshape(-1):totable())
    end
    local loss = nn.MSELoss()
    gives({11}, loss, x, target)
    assert.equal("mean", loss.reduction)
    loss.reduction = "sum"
    gives({55}, loss, x, target)
    assert.matches("sum", tostring(loss))
    local entropy = nn.CrossEntropyLoss()
    entropy.weight = dm.tensor{1, 0.0}
    assert.equal("float64", entropy:double().weight.dtype)
    assert.equal(0, entropy(dm.zeros(1, 2), dm.tensor({2}, {dtype = "int64"})):nan_to_num():item())
    local slope = nn.LeakyReLU(0.5)
    slope.negative_slope = 0.25
    gives({1, -0.5, 3, 4, 5}, slope, x)
    local pool = nn.MaxPool1d(2)
    pool.kernel_size, pool.stride = 3, 1
    gives({3, 4, 5}, pool, x)
    local up = nn.Upsample{scale_factor = 2}
    up.scale_factor = 3
    assert.same({1, 1, 15}, {table.unpack(up(x).shape)})
    local pad = nn.ConstantPad1d(1, 0)
    pad.value, pad.padding = 7, {2, 0}
    gives({7, 7, 1, -2, 3, 4, 5}, pad, x)
    local conv = nn.Conv1d(1, 1, 3, {bias = false})
    conv.weight.data:fill_(1)
    gives({2, 5, 12}, conv, x)
    conv.padding = 1
    gives({-1, 2, 5, 12, 9}, conv, x)
    conv.padding_mode = "circular"
    gives({4, 2, 5, 12, 10}, conv, x)
    conv.stride, conv.padding_mode, conv.padding, conv.dilation = {2}, "zeros", {2}, {2}
    gives({4, 9, 8}, conv, x)
    assert.matches("dilation = 2", tostring(conv:copy()))
    local back = nn.ConvTranspose1d(1, 1, 2, {bias = false})
    back.weight.data:fill_(1)
    back.stride = {2}
    gives({1, 1, -2, -2, 3, 3, 4, 4, 5, 5}, back, x)
  end)

  it("of embeddings are made of a tensor that is there", function()
    local rows = dm.tensor{{1.5, 2}, {3, 4}}
    local ids = dm.tensor({1, 2}, {dtype = "int64"})
    local layer = nn.Embedding.from_pretrained(rows, {padding_idx = 1})
    assert.is_false(layer.weight.requires_grad)
    assert.same({{1.5, 2}, {3, 4}}, layer(ids):totable()) -- the padding row stays, as in PyTorch
    layer = nn.Embedding.from_pretrained(rows, false)
    layer(ids):sum():backward()
    assert.same({{1, 1}, {1, 1}}, layer.weight.grad:totable())
    local bag = nn.EmbeddingBag.from_pretrained(rows, {mode = "sum"})
    assert.same({{4.5, 6}}, bag(ids:reshape(1, 2)):totable())
    bag.weight.data:zero_()
    assert.equal(0, rows:sum():item())
    fails("from_pretrained: embeddings are {2}", nn.Embedding.from_pretrained, dm.ones(2))
  end)

  it("refuse a number or a table for x, and tell how a loader's loop begins", function()
    local F, x, y = nn.functional, dm.ones(2, 3), dm.tensor{1, 2}
    local hint = "; hint: a DataLoader gives i, x, y: `for i, x, y in loader`"
    local function number(where, fn)
      assert.is_truthy(fails("^spec/nn_spec.lua:%d+: ", fn):find(where
        .. ": x: tensor expected, got number" .. hint, 1, true), where)
    end
    number("in model[1] Linear(3 -> 3): linear", function()
      nn.Sequential{nn.Linear(3, 3)}(1, x)
    end)
    number("in ReLU: relu", function() nn.ReLU()(1) end)
    number("conv2d", function() F.conv2d(1, dm.ones(2, 1, 3, 3)) end)
    number("embedding", function() F.embedding(1, x) end)
    number("cross_entropy", function() F.cross_entropy(1, y) end)
    for _, name in ipairs{"BatchNorm2d", "InstanceNorm1d", "LazyBatchNorm1d", "LazyConv2d"} do
      number(name, function() nn[name](3, name == "LazyConv2d" and 3 or nil)(1) end)
    end
    number("LazyLinear", function() nn.LazyLinear(3)(1) end)
    fails("linear: x: tensor expected, got table\n", nn.Linear(3, 3), {1, 2, 3})
    fails("^[^;]*softmax: x: tensor expected, got number\n", F.softmax, 1, 1)
    fails("mse_loss: target: tensor expected, got number\n", F.mse_loss, x, 1)
    fails("mse_loss: reduction: 'sums' is none of", F.mse_loss, x, x, "sums")
    assert.equal(x:polygamma(1)[1][1]:item(), dm.polygamma(1, x)[1][1]:item())
  end)

  it("Conv2d padding 'same' keeps the plane for even kernels too", function()
    for _, k in ipairs{1, 2, 3, 4} do
      assert.same({1, 2, 7, 6}, {table.unpack(nn.Conv2d(1, 2, k, {padding = "same"})(
        dm.ones(1, 1, 7, 6)).shape)})
    end
  end)

  it("BatchNorm with momentum 'cumulative' keeps the plain mean", function()
    local bn = nn.BatchNorm1d(1, {momentum = "cumulative"})
    bn(dm.tensor{{1.0}, {3.0}})
    bn(dm.tensor{{5.0}, {7.0}})
    assert.equal(4, bn.running_mean:item())
    assert.equal(2, bn.num_batches_tracked:item())
  end)

  it("running statistics move once, and only when the call succeeds", function()
    local x = dm.randn(4, 2, {requires_grad = true})
    -- One call with request n for memory refused: whether it came that far,
    -- whether it succeeded, and the statistics after it.
    local function call(n, sticky)
      local mean, var, batches = dm.zeros(2), dm.ones(2), dm.tensor(7, {dtype = "int64"})
      hooks.alloc_fail_at(n, sticky)
      local ok = pcall(x.batch_norm, x, mean, var,
        {training = true, num_batches_tracked = batches})
      local reached = hooks.alloc_requests() >= n
      hooks.alloc_fail_at(0)
      return reached, ok, {mean:totable(), var:totable(), batches:item()}
    end
    local _, _, moved = call(0)
    assert.equal(8, moved[3])
    local still = {{0.0, 0.0}, {1.0, 1.0}, 7}
    for _, sticky in ipairs{false, true} do
      local n = 0
      repeat
        n = n + 1
        local reached, ok, got = call(n, sticky)
        assert.same(ok and moved or still, got)
      until not reached
      assert.is_true(n > 5)
    end
  end)

  it("batches are counted in training alone, where a number of their own is given", function()
    local bn = nn.BatchNorm1d(2)
    for _ = 1, 3 do bn(dm.randn(4, 2)) end
    bn:eval()(dm.randn(4, 2))
    assert.equal(3, bn.num_batches_tracked:item())
    assert.equal("int64", bn.num_batches_tracked.dtype)
    assert.equal(0, bn:train()(dm.zeros(0, 2)):numel())
    assert.equal(4, bn.num_batches_tracked:item()) -- a batch of none, too
    local function train(count) return function()
      return dm.randn(4, 2):batch_norm({training = true, num_batches_tracked = count})
    end end
    assert.refuses("num_batches_tracked is float32 {}", train(dm.tensor(0.0)))
    assert.refuses("wanted one element of int64", train(dm.zeros(2, {dtype = "int64"})))
  end)

  it("running statistics are vectors of their own", function()
    local x, one = dm.randn(4, 1), dm.zeros(1)
    local function train(mean, var) return function()
      return x:batch_norm(mean, var, {training = true})
    end end
    assert.refuses("running_mean has shape {}, wanted one dim", train(dm.tensor(0.0), one))
    assert.refuses("running_var has shape {1, 1}, wanted one dim", train(one, dm.ones(1, 1)))
    x = dm.randn(4, 3)
    assert.refuses("running_mean has shape {3}, expanded", train(one:expand(3), dm.ones(3)))
  end)

  it("Sequential keeps its input and its output alive", function()
    local x = dm.randn(2, 3)
    local m = nn.Sequential{nn.ReLU(), nn.Identity(), nn.Flatten(), nn.ReLU()}
    local _ <close> = dm.no_grad()
    local y = m(x)
    assert.equal(6, x:numel())
    assert.same({2, 3}, {table.unpack(y.shape)})
  end)

  it("lists are extended, take parameters, and have no positions below 1", function()
    local m = nn.Sequential(nn.Linear(2, 3))
    assert.equal(m, m:extend{nn.ReLU(), nn.Linear(3, 1)})
    assert.equal(3, #m)
    assert.equal(4, #nn.ModuleList{nn.ReLU()}:extend(m))
    assert.equal("Net", nn.Sequential:extend("Net").class)
    fails("Sequential:extend: wanted a list", m.extend, m, "Net")
    fails("Sequential: position %-1, wanted 1 or more; hint: list%[#list%]", function()
      m[-1] = nn.Linear(3, 2)
    end)
    local list, dict = nn.ParameterList{dm.ones(1)}, nn.ParameterDict()
    list[2], dict.scale = dm.ones(2), dm.ones(3) -- parameters, as in PyTorch
    list:extend{dm.ones(4)}
    assert.equal(3, #list:parameters())
    assert.is_true(dict.scale.is_parameter)
  end)

  -- the names are PyTorch's, whose positions begin with 0
  it("inserts into lists and takes out of them", function()
    for _, class in ipairs{nn.Sequential, nn.ModuleList} do
      local a, b, c = nn.Linear(1, 2), nn.Linear(2, 3), nn.Linear(3, 4)
      local list = class{a, c}
      assert.equal(list, list:insert(2, b):insert(4, nn.ReLU()):insert(-1, nn.Tanh()))
      local classes = {}
      for i, m in ipairs(list) do classes[i] = m.class .. (m.out_features or "") end
      assert.same({"Linear2", "Linear3", "Linear4", "Tanh", "ReLU"}, classes)
      assert.equal("ReLU", list:pop().class)
      assert.equal(b, list:pop(2))
      assert.equal("Tanh", list:pop(-1).class)
      local names = {}
      for name in list:named_parameters() do names[#names + 1] = name end
      assert.same({"0.weight", "0.bias", "1.weight", "1.bias"}, names)
      assert.equal(2, #list)
      list:append(b):insert(1, b)
      names = {}
      for name in pairs(list:state_dict()) do names[#names + 1] = name end
      assert.equal(8, #names)
      local function refuses(text, f) assert.refuses("nn_spec.lua:%d+: " .. text, f) end
      refuses(class.class .. ":insert: position 6, wanted 1 to 5", function() list:insert(6, a) end)
      refuses(class.class .. ":insert: position 0, wanted", function() list:insert(0, a) end)
      refuses(class.class .. ":insert: position x", function() list:insert("x", a) end)
      refuses(class.class .. ": element 1 is a number, wanted a module", function()
        list:insert(1, 2)
      end)
      refuses(class.class .. ":pop: position %-5, wanted 1 to 4", function() list:pop(-5) end)
      refuses("%a+.pop was called with a dot", function() list.pop() end)
      refuses(class.class .. ":pop: it is empty", function() class():pop() end)
    end
    local named = nn.Sequential{{"last", nn.ReLU()}}:insert(1, nn.Linear(2, 2))
    assert.is_true(named(dm.full({1, 2}, -1.0)):ge(0):all():item())
  end)

  it("has the methods of a dict, of modules and of parameters", function()
    local a, b, c = nn.Linear(1, 2), nn.ReLU(), nn.Tanh()
    local dict = nn.ModuleDict{one = a}
    assert.equal(dict, dict:update{{"zeta", b}, {"alpha", c}})
    assert.same({"one", "zeta", "alpha"}, dict:keys())
    assert.same({a, b, c}, dict:values())
    dict:update{zeta = c, beta = b, able = b} -- zeta stays where it is
    assert.same({"one", "zeta", "alpha", "able", "beta"}, dict:keys())
    assert.equal(c, dict:pop "zeta")
    dict:update(nn.ModuleDict{{"zeta", a}})
    local names = {}
    for name, m in dict:items() do
      names[#names + 1] = name
      assert.equal(dict[name], m)
    end
    assert.same({"one", "alpha", "able", "beta", "zeta"}, names)
    dict:clear()
    assert.equal(0, #dict)
    assert.equal(0, #dict:parameters())
    -- members may have the names of methods
    dict:update{keys = a, values = b}
    assert.equal(a, dict.keys)
    assert.equal(2, #dict)
    local function refuses(text, f) assert.refuses("nn_spec.lua:%d+: " .. text, f) end
    refuses("ModuleDict:pop: there is no 'none'", function() dict:pop "none" end)
    refuses("ModuleDict: element x is a number, wanted a module", function()
      dict:update{w = a, x = 1}
    end)
    assert.is_nil(rawget(dict, "w")) -- all or nothing
    refuses("ModuleDict: element 1: wanted {name, value}", function() dict:update{a} end)
    refuses("ModuleDict: a name is a number", function() dict:update{[3] = a} end)
    refuses("dict.clear was called with a dot", function() dict.clear() end)

    local p = nn.ParameterDict{w = dm.ones(2)}
    p:update{b = dm.zeros(3)}:update(nn.ParameterDict{a = dm.ones(1)})
    assert.same({"w", "b", "a"}, p:keys())
    assert.is_true(p:values()[2].is_parameter)
    assert.equal(2, p:pop "w":numel())
    local saved = {}
    for name in pairs(p:state_dict()) do saved[#saved + 1] = name end
    table.sort(saved)
    assert.same({"a", "b"}, saved)
    p.w = dm.zeros(1) -- no name of an earlier one keeps it from being a new parameter
    assert.is_true(p.w.is_parameter)
    p:clear()
    assert.equal(0, #p:parameters())
    refuses("ParameterDict: element w is a number, wanted a tensor", function()
      p:update{w = 1}
    end)
  end)

  it("Sequential runs modules with names too, in the order of their assignment", function()
    local m = nn.Sequential{{"wide", nn.Linear(2, 3)}, {"act", nn.ReLU()}}
    m.narrow = nn.Linear(3, 1)
    local names = {}
    for name in m:named_children() do names[#names + 1] = name end
    assert.same({"wide", "act", "narrow"}, names)
    local x = dm.randn(4, 2)
    assert.is_true(dm.equal(m.narrow(m.wide(x):relu()), m(x)))
    m.act = nn.Identity()
    assert.is_true(dm.equal(m.narrow(m.wide(x)), m(x)))
    local first = nn.Sequential{nn.Flatten()}
    first.last = nn.Sigmoid()
    assert.is_true(dm.equal(x:sigmoid(), first(x)))
    assert.refuses("Sequential: element 2: wanted {name, module}", function()
      nn.Sequential{{"a", nn.ReLU()}, nn.ReLU()}
    end)
  end)
end)

describe("autograd", function()
  local Cube = dm.autograd.Function{
    name = "Cube",
    forward = function(ctx, x)
      ctx:save_for_backward(x)
      return x * x * x
    end,
    backward = function(ctx, gy)
      local x = ctx:saved_tensors()
      return gy * x * x * 3
    end,
  }

  it("a Function passes gradcheck and gradgradcheck", function()
    local x = dm.randn(4, {dtype = "float64", requires_grad = true})
    assert.is_true(dm.autograd.gradcheck(Cube, {x}))
    assert.is_true(dm.autograd.gradgradcheck(Cube, {x}))
  end)

  it("a wrong gradient is named by input and element", function()
    local Wrong = dm.autograd.Function{
      forward = function(_, x) return x * 2 end,
      backward = function(_, gy) return gy * 3 end,
    }
    local x = dm.randn(2, {dtype = "float64", requires_grad = true})
    fails("input 1, element 1", dm.autograd.gradcheck, Wrong, {x})
  end)

  it("a saved tensor that changed in place is refused", function()
    local x = dm.ones(2, {requires_grad = true})
    local h = x * 1
    local y = Cube(h)
    h:add_(1)
    fails("changed in place", function() y:sum():backward() end)
  end)
end)
