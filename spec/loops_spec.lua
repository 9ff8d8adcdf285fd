-- Every variant of the CPU loops (plain, AVX2, the widest) gives the plain loops' results within
-- rounding: one program runs with each variant.

local PROGRAM = [[
local dm = require "demilune"
dm.manual_seed(3)
local function show(name, t) print(name, t:double():abs():sum():item(), t:numel()) end
for _, dtype in ipairs{"float32", "float16", "bfloat16", "float64"} do
  local x = dm.randn(9, 77):to(dtype)
  x.requires_grad = true
  local function both(name, y)
    show(name, y)
    y:backward(y:detach() * 0.5)
    show(name .. " grad", x.grad)
    x.grad = nil
  end
  both("softmax", x:softmax(-1))
  both("log_softmax", x:log_softmax(1))
  both("gelu", x:gelu())
  both("dropout", x:dropout())
  both("layer_norm", dm.layer_norm(x, {77}))
  both("group_norm", dm.group_norm(x, 7))
  both("batch_norm", dm.batch_norm(x, {training = true}))
  both("batch_norm of images", dm.batch_norm(x:reshape(3, 3, 77), {training = true}))
  both("cross_entropy", dm.cross_entropy(x, dm.arange(9), {label_smoothing = 0.1}))
  both("sum", x:sum(1))
  both("max", x:amax(-1))
  both("std", x:std(-1))
  both("columns", x:amin(1))
  both("logsumexp", x:logsumexp(-1))
  for _, mode in ipairs{"tanh", "relu", "lstm", "gru"} do
    local gates = ({lstm = 4, gru = 3})[mode] or 1
    local w_ih, w_hh = dm.randn(gates * 20, 77):to(dtype), dm.randn(gates * 20, 20):to(dtype)
    both(mode, (dm.rnn_layer(x:reshape(3, 3, 77), w_ih * 0.1, w_hh * 0.1, mode)))
  end
  local p = dm.parameter(dm.ones(300):to(dtype))
  p.grad = dm.linspace(-1, 1, 300):to(dtype)
  for _, method in ipairs{dm.optim.SGD, dm.optim.AdamW} do
    method({p}, {lr = 0.1, weight_decay = 0.1}):step()
    show("step", p:detach())
  end
end
]]

local function run(variant)
  local name = os.tmpname()
  local file <close> = assert(io.open(name, "w"))
  local paths = "package.path, package.cpath = %q, %q\n"
  file:write(paths:format(package.path, package.cpath), PROGRAM)
  file:flush()
  local pipe = io.popen(("DEMILUNE_CPU=%s lua5.4 %s 2>&1"):format(variant, name))
  local lines = {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  assert.is_true(pipe:close(), table.concat(lines, "\n"))
  os.remove(name)
  return lines
end

describe("loops compiled for several processors", function()
  local plain = run("plain")
  local function agree(variant)
    local fast = run(variant)
    assert.equal(152, #plain)
    assert.equal(#plain, #fast)
    for i, line in ipairs(plain) do
      local name, value, n = line:match("^(.-)\t(.-)\t(.*)$")
      local other, found = fast[i]:match("^(.-)\t(.-)\t")
      assert.equal(name, other)
      local size, apart = math.max(1, tonumber(value)), math.abs(tonumber(value) - tonumber(found))
      assert(apart <= 2e-4 * size,
        ("%s of %s: %s, with %s %s"):format(name, n, value, variant, found))
    end
  end
  it("are those that dm.cpu_info names", function()
    local function info(environment)
      local pipe = io.popen(([[%s lua5.4 -e '
        package.path, package.cpath = %q, %q
        local info = require("demilune").cpu_info()
        print(info.variant, info.loops)' 2>&1]]):format(environment, package.path,
        package.cpath))
      local text = pipe:read "a"
      pipe:close()
      return text
    end
    assert.equal("plain\tplain\n", info "DEMILUNE_CPU=plain")
    local variant, loops = info "":match "^(%w+)\t(%w+)\n$"
    local wanted = {plain = "plain", neon = "plain", avx2 = "avx2"}
    assert.equal(wanted[variant] or "avx512", loops)
  end)
  it("agree: the widest here", function() agree("") end) -- "" sets no limit
  it("agree: not wider than AVX2", function() agree("avx2") end)
end)
