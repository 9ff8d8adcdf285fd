-- This project's side of ops.lua: times one op in a dtype and a layout over sizes and directions.
-- A request is "time NAME PEER FORM DTYPE LAYOUT BACKWARD BLOCK SIZE SIZE ...", where a size is
-- "1024~n:32x32;p!:32x32~:-1&keepdim:true": its name, the inputs, and the options (op_cases.lua
-- says what their letters mean). The answer is "f1024=1e-6 b1024=3e-6", seconds of a call and of a
-- call with its gradients; `why` has the first error, its spaces as bytes 1.
local dm = require "demilune"
package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local op_calls = require "op_calls"
local call, inputs, now = op_calls.call, op_calls.inputs, dm.now

local CALLS = 16 -- of small tensors share a scope, as the ops of a step do
local SMALL = 1 << 14 -- elements
local ENOUGH = 0.05 -- seconds; a longer call is timed once a round

-- The first tensor of floats among results, which may be in a list.
local function first_float(...)
  for i = 1, select("#", ...) do
    local y = select(i, ...)
    if type(y) == "table" then y = y[1] end
    if y and y.dtype:find "float" and y.requires_grad then return y end
  end
  error "no gradient"
end

-- The call and the gradients of all inputs that take one.
local function with_gradients(...)
  local f, leaves = call(...)
  local grad = dm.randn_like(first_float(f()):detach())
  return function()
    first_float(f()):backward(grad)
    for _, leaf in ipairs(leaves) do leaf.grad = nil end
  end
end

-- ---------------------------------------------------------------------------
-- Time
-- ---------------------------------------------------------------------------
-- Seconds of n calls.
local function seconds(f, n, together)
  local from = now()
  for _ = 1, n // together do
    local _ <close> = dm.scope()
    for _ = 1, together do f() end
  end
  return now() - from
end

-- Seconds of a call after a first one: the least over two blocks of so many seconds.
local function fastest(f, block, elements)
  local together = elements <= SMALL and CALLS or 1
  seconds(f, 1, 1)
  local n = together
  local t = seconds(f, n, together)
  while t < block / 4 do
    n = n * 4
    t = seconds(f, n, together)
  end
  if t > ENOUGH then return t / n end
  n = together * math.ceil(n * block / t / together)
  return math.min(seconds(f, n, together), seconds(f, n, together)) / n
end

local requests = {}

function requests.about() return {threads = dm.get_num_threads()} end

function requests.time(name, _, form, dtype, layout, backward, block, ...)
  local answer = {}
  local function try(key, work)
    local ok, result = pcall(work)
    if ok then
      answer[key] = ("%.4g"):format(result)
    elseif not answer.why then
      local text = tostring(result):gsub("^call:1: ", ""):sub(1, 160)
      answer.why = text:gsub("%s+", "\1"):gsub("=", ":")
    end
  end
  for _, size in ipairs{...} do
    local n, words, options = size:match "^(%d+)~(.-)~(.*)$"
    local items, named = inputs(words, dtype, layout)
    local elements = tonumber(n)
    local function of(item) return item.x end
    local function leaf(item)
      return item.fixed and item.x or item.x:detach():requires_grad_()
    end
    try("f" .. n, function()
      return fastest(call(name, form, items, named, options, dtype, of), block, elements)
    end)
    if backward == 1 then
      try("b" .. n, function()
        return fastest(with_gradients(name, form, items, named, options, dtype, leaf),
          block, elements)
      end)
    end
    collectgarbage()
  end
  return answer
end

dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/answers.lua")(requests)
