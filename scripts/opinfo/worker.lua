-- The side of scripts/opinfo that runs demilune: reads a request, runs it as Lua, answers.
--
-- A request is a line "length of the code, length of the data", the code, and the data: the
-- bytes of its tensors. The code finds the functions of `env` below, and what the requests
-- before it left there. The answer is a line "ok" or "error", the length of a list of values
-- or of the message, the length of the data, and both. A value is a line:
--   t dtype sizes requires_grad    a tensor, its bytes in the data
--   n 1   n 0x1p+0   b true   s text   z          a number, boolean, string, nil
--   {  ...  }                      a table's list

local dm = require "demilune"
local core = require "demilune.core"
dm.set_num_threads(1)

local env = setmetatable({dm = dm, t = {}, out = {n = 0}}, {__index = _G})
local data = ""

--- A tensor of the request's data, n bytes from byte `at` (from 0): these in rows; or, where
--- there are strides, a window of them.
function env.T(dtype, at, n, size, requires_grad, stride, offset)
  local x = core._from_bytes(data:sub(at + 1, at + n), dtype)
  x = stride and x:as_strided(size, stride, offset) or x:reshape(size):clone()
  return requires_grad and x:detach():requires_grad_() or x
end

-- All tensors in a value, in order.
local function tensors_in(v, list)
  if dm.is_tensor(v) then
    list[#list + 1] = v
  elseif type(v) == "table" then
    for i = 1, v.n or #v do tensors_in(v[i], list) end
  end
  return list
end

local function wanting(list)
  local some = {}
  for _, x in ipairs(list) do
    if x.requires_grad then some[#some + 1] = x end
  end
  return some
end

--- Runs the call under test, keeps its results for grad.
function env.call(f)
  env.out = table.pack(f())
  return env.out
end

--- The gradients of what requires them among the call's results by env.t, with g as the
--- results' gradients; one a tensor of env.t, nil where there is none. again: grad2 follows.
function env.grad(g, again)
  env.g = g
  local live, leaves, first, cotangents = tensors_in(env.out, {}), wanting(env.t), {}, {}
  for i, y in ipairs(live) do
    if g[i] and y.requires_grad then
      first[#first + 1], cotangents[#cotangents + 1] = y, g[i]
    end
  end
  env.grads = {n = #leaves}
  if #first == 0 then return env.grads end
  env.grads = table.pack(dm.autograd.grad(first, leaves, {grad_outputs = cotangents,
    create_graph = again, allow_unused = true}))
  return env.grads
end

--- The gradients of the gradients, with v as theirs, by env.t and by the g of grad.
function env.grad2(v)
  local first, cotangents, leaves = {}, {}, wanting(env.t)
  for i = 1, env.grads.n do
    local y = env.grads[i]
    if y and v[i] and y.requires_grad then
      first[#first + 1], cotangents[#cotangents + 1] = y, v[i]
    end
  end
  for i = 1, env.g.n do leaves[#leaves + 1] = env.g[i] or nil end
  if #first == 0 then return {n = #leaves} end
  return table.pack(dm.autograd.grad(first, leaves, {grad_outputs = cotangents,
    allow_unused = true}))
end

--- Whether an expression gives something that can be called, "dm.linalg.inv" say.
function env.callable(expression)
  local ok, found = pcall(assert(load("return " .. expression, "=name", "t", env)))
  local meta = ok and type(found) ~= "function" and getmetatable(found)
  return {n = 1, ok and (type(found) == "function" or meta and meta.__call ~= nil or false)}
end

-- ---- answers ----

local function write_value(v, lines, bytes)
  local kind = type(v)
  if dm.is_tensor(v) then
    lines[#lines + 1] = ("t %s %s %s"):format(v.dtype, table.concat(v.shape, ","),
      v.requires_grad and 1 or 0)
    bytes[#bytes + 1] = core._to_bytes(v:detach():to "cpu")
  elseif kind == "table" then
    lines[#lines + 1] = "{"
    for i = 1, v.n or #v do write_value(v[i], lines, bytes) end
    lines[#lines + 1] = "}"
  elseif kind == "number" then
    lines[#lines + 1] = "n " .. (math.type(v) == "integer" and ("%d"):format(v) or ("%a"):format(v))
  elseif kind == "boolean" then
    lines[#lines + 1] = "b " .. tostring(v)
  elseif kind == "nil" then
    lines[#lines + 1] = "z"
  else
    lines[#lines + 1] = "s " .. tostring(v):gsub("\n", " ")
  end
end

local function answer(code)
  local lines, bytes = {}, {}
  local values = assert(load(code, "=call", "t", env))()
  for i = 1, values and (values.n or #values) or 0 do write_value(values[i], lines, bytes) end
  return table.concat(lines, "\n"), table.concat(bytes)
end

for line in io.lines() do
  local n_code, n_data = line:match "^(%d+) (%d+)$"
  local code = io.read(tonumber(n_code))
  data = n_data == "0" and "" or io.read(tonumber(n_data)) -- read(0) would wait for more
  local ok, text, bytes = pcall(answer, code or "")
  if not ok then text, bytes = tostring(text), "" end
  io.write(ok and "ok" or "error", " ", #text, " ", #bytes, "\n", text, bytes)
  io.flush()
end
