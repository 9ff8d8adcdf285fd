-- Runs a program twice: with the engine's regions, and outside of any with casts by hand as
-- rules.lua states them. Compares results, the number of casts, and gradients, bit for bit.

local dm = require "demilune"
local calls = require "spec.amp.programs.calls"
local case = require "spec.case"
local device = require "spec.device"
local functions = require "spec.amp.programs.functions"
local rules = require "spec.amp.programs.rules"
local amp = dm.amp

local run = {}

-- ---- values and results of either run ----

local function new_values(program)
  local values = {}
  for _, leaf in ipairs(program.leaves) do
    values[leaf.name] = case.build(dm, leaf.literal):to(leaf.dtype):detach()
      :requires_grad_(leaf.grad == true)
  end
  return values
end

local function tensors_of(refs, values)
  local out = {}
  for i, ref in ipairs(refs) do
    out[i] = type(ref) == "string" and values[ref] or values[ref[1]][ref[2]]
  end
  return out
end

-- Stand-ins for the results of a call that failed, so that the rest still runs.
local function stand_ins(node)
  local shapes = node.call and calls.shapes(node.call) or {functions[node.custom].gives}
  local out = {}
  for i, shape in ipairs(shapes) do out[i] = shape and dm.full(shape, 0.5) or false end
  return out
end

local function keep(node, values, ok, outs)
  values[node.result] = ok and outs or stand_ins(node)
  return {node = node, ok = ok, outs = ok and outs or {}, problem = not ok and outs or nil}
end

-- Empties a table of a run. The functions of a checkpoint and of an autograd.Function reach it, and
-- it holds their results: such a circle through the tape is freed by a backward pass only.
local function let_go(held)
  for key in pairs(held) do held[key] = nil end
end

-- ---- with regions ----

local engine = {}

-- A checkpoint of a function of lists of tensors; a call that fails has none.
function run.checkpoint(fn)
  local lists
  local flat = table.pack(dm.nn.utils.checkpoint(function()
    local all = {}
    lists = table.pack(fn())
    for k = 1, lists.n do
      lists[k] = lists[k] or {}
      table.move(lists[k], 1, #lists[k], #all + 1, all)
    end
    return table.unpack(all)
  end))
  local at, given = 0, {}
  for k, list in ipairs(lists) do
    given[k] = table.move(flat, at + 1, at + #list, 1, {})
    at = at + #list
  end
  lists = nil -- it is the function's, too: a circle (let_go)
  return table.unpack(given)
end

function engine.region(self, node)
  local function body() self:block(node.body) end
  if node.form == "close" then
    local _ <close> = amp.autocast(node.region)
    body()
  elseif node.form == "call" then
    amp.autocast(node.region, body)
  else
    amp.autocast(node.region):wrap(body)()
  end
end

-- The nodes run again in the backward pass: what they give is kept the first time only.
local function in_checkpoint(self, node)
  local values, items, first = self.values, self.items, true
  local seen = {}
  local lists = table.pack(run.checkpoint(function()
    local inner = setmetatable({values = setmetatable({}, {__index = values}), items = {}}, engine)
    inner:block(node.body)
    local lists = {}
    for i, item in ipairs(inner.items) do lists[i] = item.outs end
    if first then table.move(inner.items, 1, #inner.items, 1, seen) end
    first = false
    return table.unpack(lists)
  end))
  for i, item in ipairs(seen) do items[#items + 1] = keep(item.node, values, item.ok, lists[i]) end
  let_go(seen)
end

function engine.scope(self, node)
  if node.scope == "no_grad" then
    dm.no_grad(function() self:block(node.body) end)
  elseif node.scope == "coroutine" then
    coroutine.wrap(function() self:block(node.body) end)()
  else
    in_checkpoint(self, node)
  end
end

local function custom(node, f, values)
  return pcall(function() return {f(table.unpack(tensors_of(node.refs, values)))} end)
end

function engine:node(node)
  local values, items = self.values, self.items
  if node.region then return engine.region(self, node) end
  if node.scope then return engine.scope(self, node) end
  if node.clear then return amp.clear_autocast_cache() end
  if node.update then return dm.no_grad(function() values[node.update]:mul_(0.5) end) end
  local ok, outs
  if node.custom then
    ok, outs = custom(node, functions.custom(node.custom, node.how), values)
  else
    dm.manual_seed(node.seed)
    ok, outs = pcall(calls.run, node.call, tensors_of(node.refs, values))
  end
  items[#items + 1] = keep(node, values, ok, outs)
end

function engine:block(block)
  for _, node in ipairs(block) do self:node(node) end
end
engine.__index = engine

-- ---- with casts by hand ----

-- A run by hand writes what it does into `log`, where there is one, as lines of Lua.
local hand = {}
hand.__index = hand

local function put(self, text, ...)
  if self.log then self.log[#self.log + 1] = text:format(...) end
end

local function wrapped(self, text)
  return self.off and ("dm.no_grad(function() return %s end)"):format(text) or text
end

local function name_of(self, v) return self.names[v] or "?" end

local function convert(self, v, to, with_history)
  self.casts = self.casts + 1
  local _ <close> = with_history and dm.enable_grad() or nil
  local y = v:to(to)
  if self.log then
    local text = ("%s:to %q"):format(name_of(self, v), to)
    self.names[y] = "c" .. self.casts
    put(self, "local c%d = %s", self.casts, with_history and text or wrapped(self, text))
  end
  return y
end

local function cast(self, now, v, to)
  if not rules.casts(v, to) then return v end
  if not rules.shares(now, v, to) then return convert(self, v, to) end
  local key = v:data_ptr() -- saved tensors are other handles of a weight
  local of = now.shared[key] or {}
  now.shared[key] = of
  of[to] = of[to] or convert(self, v, to, true)
  return of[to]
end

local function cast_all(self, now, word, operands)
  local to = rules.target(now, word, operands)
  if not to then return operands end
  local out = {}
  for i, v in ipairs(operands) do out[i] = cast(self, now, v, to) end
  return out
end

-- The results of a call, cast as the lists say.
local function call_by_hand(self, now, call, operands)
  if not rules.say(now, call, calls.inner) then self.unsaid = true end
  local word = rules.word(now, call)
  if word == "banned" then error("banned", 0) end
  local option = rules.option(word, operands)
  local before = self.casts
  local tensors = cast_all(self, now, word, operands)
  if rules.reads_low(word, call, calls.inner) then
    self.uncounted = self.uncounted + self.casts - before
  end
  if self.seed then dm.manual_seed(self.seed) end
  local outs = calls.run(call, tensors, option)
  if self.log then
    local names = {}
    for i, v in ipairs(tensors) do names[i] = name_of(self, v) end
    self.calls = self.calls + 1
    local text = calls.text(call, names, option)
    if call.random then put(self, "dm.manual_seed(%d)", self.seed) end
    put(self, "local h%d = %s", self.calls, (wrapped(self, text):gsub("%%", "%%%%")))
    for i, y in ipairs(outs) do
      if dm.is_tensor(y) then self.names[y] = ("h%d[%d]"):format(self.calls, i) end
    end
  end
  return outs
end

-- The ops inside a function of one's own. `state` is a field of what is given: the state in force.
local function inner_call(self, holder)
  return function(name, ...)
    local args = table.pack(...)
    local operands, slots = {}, {}
    for i = 1, args.n do
      slots[i] = args[i]
      if dm.is_tensor(args[i]) then
        operands[#operands + 1] = args[i]
        slots[i] = {slot = #operands}
      end
    end
    local call = {name = name, args = slots, fn = dm[name], text = "dm." .. name, inner = {}}
    return call_by_hand(self, holder.now, call, operands)[1]
  end
end

-- A function with casts by hand: its forward runs in now, or without autocast on inputs that are
-- cast to a dtype; its backward runs in the state of its forward.
local function custom_by_hand(self, now, node)
  local how, holder = node.how, {now = now}
  if how.policy then holder.now = rules.off(now) end
  local function forward(fn)
    return function(ctx, ...)
      local inputs = {...}
      if how.cast_inputs then
        if now.enabled then
          for i, v in ipairs(inputs) do
            if rules.casts(v, how.cast_inputs) then
              inputs[i] = v:to(how.cast_inputs)
              self.names[inputs[i]] = ("%s:to %q"):format(name_of(self, v), how.cast_inputs)
            end
          end
        end
        holder.now = rules.off(now)
      end
      local off = self.off
      self.off = true
      local outs = table.pack(pcall(fn, ctx, table.unpack(inputs)))
      self.off, holder.now = off, rules.resumed(holder.now)
      if not outs[1] then error(outs[2], 0) end
      return table.unpack(outs, 2, outs.n)
    end
  end
  local f = functions.new(node.custom, inner_call(self, holder), forward,
    function(fn) return fn end)
  if not how.policy or not now.enabled then return f end
  local word = how.policy == "lower_precision" and "lower_precision_fp" or how.policy
  return function(...) return f(table.unpack(cast_all(self, now, word, {...}))) end
end

function hand:node(node, now)
  local values, items = self.values, self.items
  if node.region then return self:block(node.body, rules.entered(now, node.region)) end
  if node.scope then
    if node.scope == "coroutine" then return self:block(node.body, rules.apart(now)) end
    if node.scope == "checkpoint" then return self:block(node.body, now) end
    local off = self.off
    self.off = true
    dm.no_grad(function() self:block(node.body, now) end)
    self.off = off
    return
  end
  if node.clear or node.update then
    for key in pairs(now.shared or {}) do
      if node.clear or key == values[node.update]:data_ptr() then now.shared[key] = nil end
    end
    if node.update then
      dm.no_grad(function() values[node.update]:mul_(0.5) end)
      put(self, "dm.no_grad(function() %s:mul_(0.5) end)", node.update)
    end
    return
  end
  local ok, outs
  if node.custom then
    self.seed = nil
    ok, outs = custom(node, custom_by_hand(self, now, node), values)
  else
    self.seed = node.seed
    ok, outs = pcall(call_by_hand, self, now, node.call, tensors_of(node.refs, values))
  end
  items[#items + 1] = keep(node, values, ok, outs)
  if self.log then
    items[#items].by_hand = "h" .. self.calls
    for i, y in ipairs(values[node.result]) do
      self.names[y] = self.names[y] or ok and ("h%d[%d]"):format(self.calls, i)
        or ("dm.full({%s}, 0.5)"):format(table.concat(y and y.shape or {}, ", "))
    end
  end
end

function hand:block(block, now)
  for _, node in ipairs(block) do self:node(node, now) end
end

-- ---- gradients ----

local ramps = {}
local function ramp(n)
  ramps[n] = ramps[n] or dm.linspace(0.5, 1.5, n)
  return ramps[n]
end

-- A sum of all elements, no two of them with the same weight.
local function weighed(total, y)
  local part = (y:to("float32"):reshape(-1) * ramp(y:numel())):sum()
  return total and total + part or part
end

-- The gradients in `leaves` of all results, a list of lists, and after them (order 2) those of
-- these gradients. nil: nothing to differentiate.
function run.gradients(results, leaves, order)
  local total
  for _, list in ipairs(results) do
    for _, y in ipairs(list) do
      if dm.is_tensor(y) and y.requires_grad and y:numel() > 0 then total = weighed(total, y) end
    end
  end
  if not total then return nil end
  if order == 1 then
    total:backward()
  else
    local grads = table.pack(dm.autograd.grad(total, leaves,
      {create_graph = true, allow_unused = true}))
    total = nil
    for i = 1, #leaves do
      if grads[i] and grads[i].requires_grad then total = weighed(total, grads[i]) end
    end
    if total then total:backward() end
    local second = run.taken(leaves)
    return table.move(second, 1, #leaves, #leaves + 1, {table.unpack(grads, 1, #leaves)})
  end
  return run.taken(leaves)
end

-- The leaves' gradients, which are taken away from them.
function run.taken(leaves)
  local out = {}
  for i, leaf in ipairs(leaves) do
    out[i] = leaf.grad or false
    leaf.grad = nil
  end
  return out
end

-- ---- the comparison ----

local function flat(t)
  return t:dim() == 0 and {t:item()} or t:reshape(-1):totable()
end

-- Text on how two tensors differ; nil when dtype, shape and bits are equal.
function run.differ(a, b)
  if not dm.is_tensor(a) or not dm.is_tensor(b) then
    return a ~= b and ("%s, by hand %s"):format(tostring(a), tostring(b)) or nil
  end
  if a.dtype ~= b.dtype then return a.dtype .. ", by hand " .. b.dtype end
  local shape, other = table.concat(a.shape, ", "), table.concat(b.shape, ", ")
  if shape ~= other then return ("shape {%s}, by hand {%s}"):format(shape, other) end
  local x, y = flat(a.data), flat(b.data)
  for i = 1, #y do
    local same = x[i] == y[i] and (x[i] ~= 0 or type(x[i]) ~= "number" or 1 / x[i] == 1 / y[i])
      or x[i] ~= x[i] and y[i] ~= y[i]
    if not same then
      return ("element %d: %s, by hand %s"):format(i, tostring(x[i]), tostring(y[i]))
    end
  end
end

-- Raises when two tensors, or lists of them, differ.
function run.same(a, b, what)
  if type(a) ~= "table" then a, b = {a}, {b} end
  for i = 1, math.max(#a, #b) do
    local text = run.differ(a[i], b[i])
    if text then error(("%s[%d]: %s"):format(what or "result", i, text), 2) end
  end
end

local function differing_results(items, others)
  for i, item in ipairs(items) do
    local other = others[i]
    if item.ok ~= other.ok then
      return ("%s: %s, by hand %s"):format(item.node.result,
        item.ok and "no error" or tostring(item.problem),
        other.ok and "no error" or tostring(other.problem)), item
    end
    for k = 1, math.max(#item.outs, #other.outs) do
      local text = run.differ(item.outs[k], other.outs[k])
      if text then return ("%s[%d]: %s"):format(item.node.result, k, text), item end
    end
  end
end

local function outs_of(items)
  local out = {}
  for i, item in ipairs(items) do out[i] = item.outs end
  return out
end

local function leaves_of(program, values)
  local leaves, names = {}, {}
  for _, leaf in ipairs(program.leaves) do
    if leaf.grad then
      leaves[#leaves + 1], names[#names + 1] = values[leaf.name], leaf.name
    end
  end
  return leaves, names
end

-- Whether a backward pass failed as it may only in the engine's run: an op that reads 16 bits
-- keeps its operands, not a float32 copy, so that no change in place may follow.
local function is_kept_operand(problem)
  return problem:find("of cross_entropy, .* was changed in place afterwards") ~= nil
end

-- Text on the first gradient that differs, or has not its leaf's dtype. reads_low: an op read 16
-- bits where the run by hand has casts.
local function differing_gradients(program, values, items, others_values, others, seen, reads_low)
  local leaves, names = leaves_of(program, values)
  local ok, got = pcall(run.gradients, outs_of(items), leaves, program.backward)
  local by_hand, want = pcall(run.gradients, outs_of(others), leaves_of(program, others_values),
    program.backward)
  if seen then seen("backward", ok) end
  if by_hand and not ok and reads_low and is_kept_operand(tostring(got)) then return nil end
  if ok ~= by_hand then
    return ("backward: %s, by hand %s"):format(ok and "no error" or tostring(got),
      by_hand and "no error" or tostring(want))
  end
  if not ok or not got or not want then
    return (ok and (got == nil) ~= (want == nil)) and "only one has gradients" or nil
  end
  for i = 1, #leaves * program.backward do
    local k = (i - 1) % #leaves + 1
    local what = (i > #leaves and "second gradient of " or "gradient of ") .. names[k]
    local text = run.differ(got[i] or false, want[i] or false)
    if text then return what .. ": " .. text end
    if got[i] and got[i].dtype ~= leaves[k].dtype then
      return ("%s: %s, the leaf is %s"):format(what, got[i].dtype, leaves[k].dtype)
    end
  end
end

local TABLES = rules.tables()

-- The run by hand: values, items and casts.
function run.by_hand(program, tables, log)
  local by_hand = setmetatable({values = new_values(program), items = {}, casts = 0, uncounted = 0,
    calls = 0, log = log, names = {}}, hand)
  for name, tensor in pairs(by_hand.values) do by_hand.names[tensor] = name end
  by_hand:block(program.block, rules.start(tables or TABLES))
  return by_hand
end

local function compared(program, regions, by_hand, casts, seen)
  local text = differing_results(regions.items, by_hand.items)
  if text then return text end
  local wanted = by_hand.casts - by_hand.uncounted
  if casts ~= wanted then return ("%d casts, by hand %d"):format(casts, wanted) end
  if program.backward == 0 then return nil end
  return differing_gradients(program, regions.values, regions.items, by_hand.values,
    by_hand.items, seen, by_hand.uncounted > 0)
end

-- The first difference between the two runs as text, or nil. tables: the policies that casts by
-- hand follow (rules.tables). seen(name, ok) is told of each call, and of "backward". Nothing is
-- compared where the lists do not say what a call does: nil, true. Only neighbours of a program are
-- such.
function run.difference(program, tables, seen)
  local before = amp.cast_count()
  local regions = setmetatable({values = new_values(program), items = {}}, engine)
  regions:block(program.block)
  local casts = amp.cast_count() - before
  if amp.is_autocast_enabled(device.type) then return "autocast is on afterwards" end
  local by_hand = run.by_hand(program, tables)
  for _, item in ipairs(seen and not by_hand.unsaid and regions.items or {}) do
    seen(item.node.call and item.node.call.name or item.node.custom, item.ok)
  end
  local text = not by_hand.unsaid and compared(program, regions, by_hand, casts, seen) or nil
  for _, held in ipairs{regions.values, regions.items, by_hand.values, by_hand.items,
    by_hand.names} do let_go(held) end
  return text, by_hand.unsaid
end

return run
