-- Makes a failing program smaller: while one of its smaller neighbours fails too, that one takes
-- its part. A neighbour lacks a node, a region, an option or a gradient, has a plainer leaf, or
-- calls an op on fewer elements.

local calls = require "spec.amp.programs.calls"
local case = require "spec.case"
local functions = require "spec.amp.programs.functions"

-- ---- programs as data ----

local function copy_block(block)
  local out = {}
  for i, node in ipairs(block) do
    local other = {}
    for key, value in pairs(node) do other[key] = value end
    other.refs = node.refs and {table.unpack(node.refs)}
    other.body = node.body and copy_block(node.body)
    out[i] = other
  end
  return out
end

local function copy(program)
  local out = {seed = program.seed, backward = program.backward, leaves = {}}
  for i, leaf in ipairs(program.leaves) do
    out.leaves[i] = {name = leaf.name, literal = leaf.literal, dtype = leaf.dtype, grad = leaf.grad}
  end
  out.block = copy_block(program.block)
  return out
end

-- visit(block, index) for each node, those of a body after the node that has it.
local function each_node(block, visit)
  for i = #block, 1, -1 do
    visit(block, i)
    if block[i] and block[i].body then each_node(block[i].body, visit) end
  end
end

local function count(program)
  local n = 0
  each_node(program.block, function() n = n + 1 end)
  return n
end

-- The node that each_node visits as the k-th.
local function node_at(program, k)
  local n, found, at = 0, nil, nil
  each_node(program.block, function(block, i)
    n = n + 1
    if n == k then found, at = block, i end
  end)
  return found, at
end

local function fresh_leaf(program, literal, dtype)
  local n = 0
  for _, leaf in ipairs(program.leaves) do n = math.max(n, math.tointeger(leaf.name:sub(2))) end
  local name = "x" .. n + 1
  program.leaves[#program.leaves + 1] = {name = name, literal = literal, dtype = dtype,
    grad = literal.g}
  return name
end

local function literal_of(node, i)
  if node.call then return node.call.slots[i] end
  return calls.of("neg", {{slot = 1}}, functions[node.custom].takes[i]).slots[1]
end

-- Leaves take the part of results that are gone, and leaves that nobody reads go.
local function mend(program, dtype)
  local known, used = {}, {}
  each_node(program.block, function(block, i)
    if block[i].result then known[block[i].result] = true end
  end)
  each_node(program.block, function(block, i)
    local node = block[i]
    for k, ref in ipairs(node.refs or {}) do
      if type(ref) == "table" and not known[ref[1]] then
        node.refs[k] = fresh_leaf(program, literal_of(node, k), dtype)
      end
      if type(node.refs[k]) == "string" then used[node.refs[k]] = true end
    end
    if node.update then used[node.update] = true end
  end)
  for i = #program.leaves, 1, -1 do
    if not used[program.leaves[i].name] then table.remove(program.leaves, i) end
  end
end

-- ---- smaller calls ----

local function elements(call)
  local n = 0
  for _, literal in ipairs(call.slots) do n = n + case.numel(literal.s) end
  return n
end

-- The call with every dim of size `from` of its tensors cut to `to`.
local function cut(call, from, to)
  local out = {}
  for key, value in pairs(call) do out[key] = value end
  out.shapes, out.inner, out.slots = nil, nil, {}
  for i, literal in ipairs(call.slots) do
    local shape = {}
    for d, size in ipairs(literal.s) do shape[d] = size == from and to or size end
    out.slots[i] = {t = literal.t, s = shape, d = {table.unpack(literal.d, 1, case.numel(shape))},
      g = literal.g}
  end
  return out
end

local function smaller_calls(call)
  local out, sizes = {}, {}
  for _, other in ipairs(calls.by_name[call.name] or {}) do
    if elements(other) < elements(call) then out[#out + 1] = other end
  end
  for _, literal in ipairs(call.slots) do
    for _, size in ipairs(literal.s) do sizes[size] = true end
  end
  for size in pairs(sizes) do
    if size > 1 then out[#out + 1] = cut(call, size, 1) end
    if size > 2 then out[#out + 1] = cut(call, size, size - 1) end
  end
  return out
end

-- ---- neighbours ----

local function without_option(region, key, name)
  local out = {}
  for k, value in pairs(region) do out[k] = value end
  if not name then
    out[key] = nil
  else
    out.policy = {}
    for k, word in pairs(region.policy) do out.policy[k] = k ~= name and word or nil end
  end
  return out
end

-- Neighbours that change the k-th node: try(edit(block, i), dtype of leaves).
local function change_node(program, k, try)
  local block, at = node_at(program, k)
  local node = block[at]
  for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
    try(k, function(b, i) table.remove(b, i) end, dtype)
  end
  if node.body then
    try(k, function(b, i)
      local body = table.remove(b, i).body
      for n = #body, 1, -1 do table.insert(b, i, body[n]) end
    end)
  end
  for key in pairs(node.region or {}) do
    try(k, function(b, i) b[i].region = without_option(node.region, key) end)
  end
  for name in pairs(node.region and node.region.policy or {}) do
    try(k, function(b, i) b[i].region = without_option(node.region, "policy", name) end)
  end
  if node.form and node.form ~= "close" then try(k, function(b, i) b[i].form = "close" end) end
  for r, ref in ipairs(node.refs or {}) do
    if type(ref) == "table" then
      for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
        try(k, function(b, i) b[i].refs[r] = {"gone", 1} end, dtype)
      end
    end
  end
  for _, call in ipairs(node.call and smaller_calls(node.call) or {}) do
    for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
      try(k, function(b, i)
        b[i].call = call
        for r = 1, #call.slots do b[i].refs[r] = {"gone", 1} end
        for r = #call.slots + 1, #b[i].refs do b[i].refs[r] = nil end
      end, dtype)
    end
  end
end

-- Calls each(neighbour) until it gives true; returns whether it did.
local function neighbours(program, each)
  local done = false
  local function offer(edit, dtype)
    if done then return end
    local other = copy(program)
    edit(other)
    mend(other, dtype or "float32")
    done = each(other)
  end
  for order = 0, program.backward - 1 do offer(function(p) p.backward = order end) end
  for k = 1, count(program) do
    change_node(program, k, function(at, edit, dtype)
      offer(function(p) edit(node_at(p, at)) end, dtype)
    end)
  end
  for i, leaf in ipairs(program.leaves) do
    if leaf.dtype ~= "float32" then offer(function(p) p.leaves[i].dtype = "float32" end) end
    if leaf.grad then offer(function(p) p.leaves[i].grad = nil end) end
  end
  return done
end

-- The smallest program found for which fails(program) is true; it is for the one given.
return function(program, fails)
  local current = program
  repeat
    local found = neighbours(current, function(other)
      local ok, is_failing = pcall(fails, other)
      if not (ok and is_failing) then return false end
      current = other
      return true
    end)
  until not found
  return current
end
