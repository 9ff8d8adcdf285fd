-- dm.cuda.graph: a function of tensors, such as a whole training step, as a CUDA graph. The host
-- then queues one launch in place of hundreds.
--
--   local step = dm.cuda.graph(function(x, y)
--     optimizer:zero_grad()
--     local loss = amp.autocast({}, function() return F.cross_entropy(model(x), y) end)
--     scaler:scale(loss):backward()
--     scaler:step(optimizer)
--     scaler:update()
--     schedule:step()
--     return loss
--   end)
--   for _, x, y in loader:iter() do total:add_(step(x, y)) end
--
-- A call with arguments of a new kind (shapes, dtypes, numbers) runs the function as it is, as do
-- the next ones of that kind, `warmup` in all: they make optimizers' state and libraries' plans,
-- and fill the graph's pool of memory. The call after them captures: the function runs once more,
-- and what it queues is recorded instead of done. From then on a call copies its tensors into those
-- of the capture and launches. So each call is one step, whichever way it is run.
--
-- The body of the function is not run by a launch. What moves on the host does so all the same
-- for optimizers (rates, momenta), schedules, the GradScaler and dropout's numbers, by effects that
-- these note (replay.lua). Lua variables and numbers that the body computes stay as they were in
-- the capture.

local core = require "demilune.core"
local caller = require "demilune.caller"
local Module = require "demilune.nn.module"
local options = require "demilune.options"
local replay = require "demilune.replay"

local cuda_graph = {}

local Graphed = {class = "cuda.graph"}
Graphed.__index = Graphed

-- ---- arguments and results ----

local PLAIN = {number = true, boolean = true, string = true, ["nil"] = true}

local function check_tensor(self, i, x)
  if x.device ~= self.device then
    caller.raise("cuda.graph: argument %d is on %s, wanted %s; hint: x:to \"%s\"", i, x.device,
      self.device, self.device)
  end
  if x.requires_grad then
    caller.raise("cuda.graph: argument %d requires a gradient, which would go to the copy that the "
      .. "graph reads; hint: x:detach()", i)
  end
end

-- What is switched on around the call, as a string: the function may compute something else by it.
local function modes_of()
  return ("%s %s %s %s %s"):format(core.is_grad_enabled(), core.is_inference_mode_enabled(),
    core.is_autocast_enabled "cuda" and core.get_autocast_dtype "cuda",
    core.is_autocast_enabled "cpu" and core.get_autocast_dtype "cpu", core.get_default_dtype())
end

-- The kind of the call, as a string: calls of one kind share a graph.
local function kind_of(self, n, given)
  local parts = {[0] = modes_of()}
  for i = 1, n do
    local v = given[i]
    if core.is_tensor(v) then
      check_tensor(self, i, v)
      parts[i] = v.dtype .. "[" .. table.concat(v.shape, ",") .. "]"
    elseif PLAIN[type(v)] then
      parts[i] = math.type(v) == "float" and ("%a"):format(v) or ("%s %q"):format(type(v), v)
    else
      caller.raise("cuda.graph: argument %d is a %s, wanted a tensor, number, string or boolean", i,
        type(v))
    end
  end
  return table.concat(parts, "; ", 0)
end

-- Tensors out of autograd's graph, in tables too; what else the function returns stays.
local function detached(v, keep, seen)
  if core.is_tensor(v) then
    local out = v:detach()
    return keep and core.keep(out) or out
  end
  if type(v) ~= "table" or getmetatable(v) ~= nil or seen[v] then return v end
  seen[v] = true
  local out = {}
  for key, item in pairs(v) do out[key] = detached(item, keep, seen) end
  return out
end

local function results_of(list, keep)
  for i = 1, list.n do list[i] = detached(list[i], keep, {}) end
  return list
end

-- ---- one kind of arguments ----

-- {graph, inputs, n, runs, used, optimizers, effects, results, modes, is_old}: effects, results and
-- modes, of the modules that ran, are there once it is captured.
local function new_entry(self, n, given)
  local entry = {graph = core.graph(self.device), inputs = {}, n = n, runs = 0,
    optimizers = setmetatable({}, {__mode = "k"})}
  for i = 1, n do
    local v = given[i]
    entry.inputs[i] = core.is_tensor(v) and core.keep(core.empty_like(v)) or v
  end
  return entry
end

local function take_inputs(entry, given)
  local _ <close> = core.no_grad()
  for i = 1, entry.n do
    if core.is_tensor(given[i]) then entry.inputs[i]:copy_(given[i]) end
  end
end

-- Calls fn(...), noting which optimizers step: -> what pcall gives.
local function called(self, entry, protected, ...)
  local outer = replay.optimizers
  replay.optimizers = entry.optimizers
  local results = table.pack(protected(self.fn, ...))
  replay.optimizers = outer
  return results
end

-- The function itself, once more before the capture: its memory comes from the graph's pool.
local function warm_up(self, entry)
  entry.graph:use_pool(true)
  local results = called(self, entry, pcall, table.unpack(entry.inputs, 1, entry.n))
  entry.graph:use_pool(false)
  if not results[1] then error(results[2], 0) end
  entry.runs = entry.runs + 1
  return results_of(table.pack(table.unpack(results, 2, results.n)))
end

-- What the device refuses gets the name of what the program has called: "item", "print".
local function named(why)
  local is_refusal = type(why) == "string" and why:find(": cuda.graph: ", 1, true)
    and debug.getinfo(2, "f").func ~= error
  local name = is_refusal and caller.called()
  if not name then return why end
  return (why:gsub(": cuda%.graph: ", function(text) return text .. name .. ": " end, 1))
end

local function named_pcall(fn, ...) return xpcall(fn, named, ...) end

-- After a capture that failed: what the host has noted of the step is taken back, and gradients
-- and 16-bit copies of weights go, which were never computed.
local function take_back(entry, effects)
  for i = #effects, 1, -1 do
    if effects[i].undo then effects[i].undo() end
  end
  for optimizer in pairs(entry.optimizers) do
    for _, group in ipairs(optimizer.param_groups) do core.graph_drop(group.params) end
  end
end

-- Runs the function between the begin and the end of a capture. No finalizer runs meanwhile: what
-- it does would be recorded.
local function record(self, entry)
  local collects = collectgarbage "isrunning"
  collectgarbage()
  entry.graph:capture_begin()
  collectgarbage "stop"
  replay.begin(entry.graph)
  local modes = {}
  Module.collect(modes)
  local results = called(self, entry, named_pcall, table.unpack(entry.inputs, 1, entry.n))
  Module.collect(nil)
  local effects = replay.finish()
  local ok, why = results[1], results[2]
  for _, effect in ipairs(effects) do
    if ok and effect.check then ok, why = pcall(effect.check) end
  end
  if ok then
    results = table.pack(table.unpack(results, 2, results.n))
    ok, why = pcall(results_of, results, true)
  end
  local ended, problem = pcall(entry.graph.capture_end, entry.graph, ok)
  if ok and not ended then ok, why = false, problem end
  if collects then collectgarbage "restart" end
  if not ok then
    take_back(entry, effects)
    error(why, 0)
  end
  for module in pairs(modes) do modes[module] = module.training end
  return effects, results, modes
end

local function note_stamps(effects)
  for _, effect in ipairs(effects) do
    if effect.stamp then effect.stamped = effect.stamp() end
  end
end

-- Whether the step would be recorded as it was: no parameter, gradient or state was exchanged, and
-- all modules are in the modes in which the capture left them.
local function is_valid(entry)
  if not entry.graph:is_ready() then return false end
  for module, mode in pairs(entry.modes) do
    if module.training ~= mode then return false end
  end
  for _, effect in ipairs(entry.effects) do
    if effect.stamp and effect.stamp() ~= effect.stamped then return false end
  end
  return true
end

local function launch(entry)
  entry.is_old = false
  entry.graph:launch()
  for _, effect in ipairs(entry.effects) do
    if effect.after then effect.after() end
  end
  return table.unpack(entry.results, 1, entry.results.n)
end

-- ---- the function ----

-- The entry of that kind, which becomes the one used last; the one that was not used for longest
-- goes where there are too many.
local function entry_of(self, kind, n, given)
  local entry = self.entries[kind]
  self.calls = self.calls + 1
  if not entry then
    if self.n_entry == self.max_graphs then
      local oldest
      for key, other in pairs(self.entries) do
        if not oldest or other.used < self.entries[oldest].used then oldest = key end
      end
      self.entries[oldest] = nil
      self.n_entry = self.n_entry - 1
    end
    entry = new_entry(self, n, given)
    self.entries[kind] = entry
    self.n_entry = self.n_entry + 1
  end
  entry.used = self.calls
  return entry
end

local function call(self, ...)
  if replay.graph then replay.refuse "a graph within a graph" end
  local n, given = select("#", ...), {...}
  local kind = kind_of(self, n, given)
  local entry = entry_of(self, kind, n, given)
  if entry.effects and not is_valid(entry) then
    if not entry.is_old then -- the step as it is may put that right
      entry.is_old = true
      local results = results_of(table.pack(self.fn(...)))
      return table.unpack(results, 1, results.n)
    end
    self.entries[kind], self.n_entry = nil, self.n_entry - 1
    entry = entry_of(self, kind, n, given)
    entry.runs = self.warmup - 1
  end
  take_inputs(entry, given)
  if entry.effects then
    for _, effect in ipairs(entry.effects) do
      if effect.before then effect.before(entry.graph) end
    end
    return launch(entry)
  end
  if entry.runs < self.warmup then
    local results = warm_up(self, entry)
    return table.unpack(results, 1, results.n)
  end
  local effects, results, modes = record(self, entry)
  note_stamps(effects)
  entry.effects, entry.results, entry.modes = effects, results, modes
  return launch(entry)
end
Graphed.__call = call

--- Forgets all graphs: the next call of each kind warms up again.
function Graphed:reset() self.entries, self.n_entry = {}, 0 end

--- How many graphs are captured, and how many pieces of work they do in all.
---@return integer graphs
---@return integer nodes
function Graphed:count()
  local graphs, nodes = 0, 0
  for _, entry in pairs(self.entries) do
    if entry.effects then graphs, nodes = graphs + 1, nodes + entry.graph:n_node() end
  end
  return graphs, nodes
end

function Graphed:__tostring()
  return ("cuda.graph(%d captured, %d pieces of work)"):format(self:count())
end

local bind = options.signature("cuda.graph",
  "fn: function, *, warmup: integer = 3, max_graphs: integer = 8, device: device = 'cuda'")

--- A function that does what fn does, on the GPU by one launch.
---
--- step(...) takes tensors on the device, numbers, strings and booleans. The first `warmup` calls
--- of a kind (shapes, dtypes, numbers, and autocast or no_grad around the call) run fn as it is,
--- the next one captures it, later ones copy their tensors in and launch: fn changes those copies.
--- At most max_graphs kinds are kept; the one that was not used for longest goes. Each has a pool
--- of memory of its own, about as large as what a step takes.
---
--- fn's tensors come back detached. Those of a launch are the graph's own: **the next launch
--- writes them again**, so that what is to stay is cloned or read before. The same holds for the
--- gradients. Other results, and Lua variables that fn sets, stay as in the capture.
---
--- A part of a step may be captured, such as its passes without the optimizer. Where something
--- else writes parameters in between (load_state_dict, an optimizer), the next launch reads them;
--- where it exchanges parameters, gradients or state, freezes a parameter, or sets the modules
--- that fn calls to train() or eval(), the next call runs fn as it is; if need be, it is captured
--- anew. fn must not change what it does otherwise: clip norms, tensors on the CPU, buffers in
--- other memory and the like are read by the capture alone.
---
--- Raises at fn's line what cannot be captured: reading a tensor (item, printing, x[mask]), copies
--- between host and device, other streams, shuffles, seeds, optimizers whose steps read numbers
--- of the host (LAMB, Adafactor, Muon, LBFGS). The step is not done then: gradients are dropped,
--- nothing is left recorded, and the device goes on. (A schedule that came before in the step has
--- moved.)
---@overload fun(fn: function, opts: {warmup: integer?, max_graphs: integer?, device: any}): table
---@param fn function (tensors and plain values) -> tensors
---@return table step callable; step:reset(), step:count()
function cuda_graph.new(...)
  local o = bind(...)
  for _, name in ipairs{"warmup", "max_graphs"} do
    if o[name] < 1 then
      caller.raise("cuda.graph: %s is %d, wanted a whole number from 1", name, o[name])
    end
  end
  local device = core.zeros(1, {device = o.device}).device
  if device == "cpu" then
    caller.raise "cuda.graph: device is \"cpu\", wanted a CUDA device"
  end
  return setmetatable({fn = o.fn, warmup = o.warmup, max_graphs = o.max_graphs, device = device,
    entries = {}, n_entry = 0, calls = 0}, Graphed)
end

return cuda_graph
