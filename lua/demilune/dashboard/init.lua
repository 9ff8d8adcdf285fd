-- dm.dashboard: a page in the browser that shows a training while it runs, and those before it.
--
--   local board <close> = assert(dm.dashboard())         -- prints the address of the page
--   for step = 1, 1000 do
--     ...
--     board:log(step, {loss = loss, lr = 1e-3, samples = #x})
--     if step % 100 == 0 then board:gradients(model, step) end
--   end
--
-- The training only appends lines to DIR/NAME.jsonl, twice a second; a second process, which ends
-- with this one, serves the files of DIR. The files stay: `demilune dashboard DIR` shows them
-- later, and those that other processes write. The page is for this machine alone unless `host`
-- says otherwise, and its address holds a token without which nothing is served.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local listing = require "demilune.listing"
local options = require "demilune.options"
local launch = require "demilune.dashboard.launch"
local process = require "demilune.dashboard.process"
local runs = require "demilune.dashboard.runs"
local RunFile = require "demilune.dashboard.run_file"
local Server = require "demilune.dashboard.server"
local number_of = require("demilune.tensorboard.number").of

local now, to_json = core.now, core.json_encode
local math_type, unpack = math.type, table.unpack

local Dashboard = {}
Dashboard.__index = Dashboard
Dashboard.class = "Dashboard"

local PERIOD = 0.5 -- seconds between two values of speed and memory
local MIB = 2 ^ 20

-- ---- opening ----

-- The low floats as {{name, exponents of its smallest, its smallest normal and its largest
-- number}, ...}, for the page to mark their ranges.
local function formats()
  local list = {}
  local function exponent(x) return math.floor(math.log(x, 2) + 1e-9) end
  for _, row in ipairs(dtypes.floats) do
    if row.low then
      list[#list + 1] = {row.name, exponent(row.tiny * row.eps), exponent(row.tiny),
        exponent(row.max)}
    end
  end
  return list
end

local function new_name()
  return os.date "%Y%m%d-%H%M%S" .. "-" .. (process.id() or "0"):match "^%d+"
end

local function check(o)
  if o.port < 0 or o.port > 65535 then
    caller.raise("dashboard: port is %d, wanted 0 (a free one) to 65535", o.port)
  end
  if not runs.is_name(o.name) then
    caller.raise("dashboard: name is '%s', wanted the name of a file: up to 200 bytes of UTF-8, "
      .. "no '/', no '.' or '-' first", o.name)
  end
  if o.dir == "" or o.dir:find "[\n\r%z]" then
    caller.raise("dashboard: dir is '%s', wanted the path of a folder", o.dir)
  end
end

-- Starts the server; nil and why not.
local function serve(self)
  local server, why = launch.start(self)
  if not server then
    return nil, ("dashboard: %s; {serve = false} writes the run for `demilune dashboard` to show "
      .. "later"):format(why)
  end
  self.pipe, self.port = server.pipe, server.port
  self.url = Server.address(self.host, server.port, server.token)
  return true
end

local bind_new = options.signature("dashboard", [[dir: string = 'runs', name?: string, *,
  port: integer = 0, host: string = '127.0.0.1', serve: boolean = true, device?: device]])

--- Begins a run, and serves the page of all runs in `dir` at the address that it prints.
---     local board <close> = assert(dm.dashboard{dir = "runs", name = "small net"})
---     local trainer = dm.Trainer{model = model, loss = nn.CrossEntropyLoss(),
---       optimizer = optimizer, writer = board}
---@param dir? string the folder of the runs, made where it is missing ("runs")
---@param name? string of this run; date, time and process by default
---@param port? integer 0 takes a free one (0)
---@param host? string "0.0.0.0" lets other machines in; this one alone by default
---@param serve? boolean false only writes the run (true)
---@param device? string whose memory is shown; the GPU where there is one
---@return table? board with the fields `url`, `path` and `name`; nil where the folder takes no
---  file, the port is in use, or lua-socket is missing
---@return string? why
local function dashboard(...)
  local o = bind_new(...)
  o.name = o.name or new_name()
  check(o)
  local self = o -- whose names are fields of the board
  self.device = o.device or (require("demilune.cuda").is_available() and "cuda" or "cpu")
  local why
  if o.serve then
    local fine
    fine, why = serve(self)
    if not fine then return nil, why end
  end
  self.file, why = RunFile.open(o.dir, o.name)
  if not self.file then
    if self.pipe then self.pipe:close() end
    return nil, "dashboard: " .. why
  end
  self.name, self.path = self.file.name, self.file.path
  self.tags, self.numbers, self.charts, self.due, self.samples = {}, {}, {}, 0, 0
  self.attached = {}
  self.file:add(to_json{run = self.name, began = os.time(), process = process.id() or "",
    formats = formats()})
  if self.url then print("dashboard: " .. self.url) end
  return setmetatable(self, Dashboard) -- the last of all: Lua ends it before its file and pipe
end

-- ---- numbers ----

local MOST_KNOWN = 4096
local keys, n_keys = {}, 0 -- tags as keys of JSON, '"loss":'

local function key_of(what, tag)
  if keys[tag] then return keys[tag] end
  if type(tag) ~= "string" or not utf8.len(tag) or tag:find "%z" then
    caller.raise("%s: a tag is %s, wanted a name in UTF-8", what, type(tag) == "string"
      and "not UTF-8" or "a " .. type(tag))
  end
  if n_keys == MOST_KNOWN then keys, n_keys = {}, 0 end
  keys[tag], n_keys = to_json(tag) .. ":", n_keys + 1
  return keys[tag]
end

-- A number as JSON, with the seven digits of a float32; what JSON lacks as a text.
local function written(v)
  if v - v ~= 0 then
    return v ~= v and '"nan"' or v > 0 and '"inf"' or '"-inf"'
  end
  return ("%.7g"):format(v)
end

-- Samples per second and the device's memory, twice a second: as members of `values` in JSON.
local function measured(self, time)
  local stats = core.memory_stats(self.device)
  local text = ('"memory_MiB/current":%.7g,"memory_MiB/peak":%.7g'):format(
    stats["allocated_bytes.all.current"] / MIB, stats["allocated_bytes.all.peak"] / MIB)
  if self.samples > 0 and time > self.since then
    text = text .. (',"samples_per_second":%.7g'):format(self.samples / (time - self.since))
  end
  self.due, self.samples = time + PERIOD, 0
  if self.since then self.since = time end
  return text
end

-- The form of a line with the tags tags[1 .. n], for string.format.
local function form_of(self, tags, n)
  local members = {}
  for i = 1, n do members[i] = key_of("log", tags[i]):gsub("%%", "%%%%") .. "%.7g" end
  self.form = '{"step":%d,"time":%.3f,"values":{' .. table.concat(members, ",") .. "%s}}"
  self.n_form = n
end

-- The line of values that are not all finite numbers; raises where one is no number.
local function slow_line(step, time, values, more)
  local members = {}
  for tag, v in next, values do
    if tag ~= "samples" then
      members[#members + 1] = key_of("log", tag) .. written(number_of("log", tag, v))
    end
  end
  if #members == 0 then more = more:sub(2) end
  return ('{"step":%d,"time":%.3f,"values":{%s%s}}'):format(step, time,
    table.concat(members, ","), more)
end

-- The line of values that are all finite, nil for others. It takes one call of string.format with
-- a form that is made again only where the tags, or their order, are not those of the last line.
local function fast_line(self, step, time, values, more)
  local tags, numbers, n, same = self.tags, self.numbers, 0, true
  for tag, v in next, values do
    if tag ~= "samples" then
      if not math_type(v) then v = number_of("log", tag, v) end
      if v - v ~= 0 then return nil end
      n = n + 1
      if tags[n] ~= tag then tags[n], same = tag, false end
      numbers[n] = v
    end
  end
  if n == 0 then return nil end
  if not same or n ~= self.n_form then form_of(self, tags, n) end
  numbers[n + 1] = more
  return self.form:format(step, time, unpack(numbers, 1, n + 1))
end

local bind_log = options.signature("log", "step: integer, values: table")

--- Adds numbers to their curves. A tensor of one element is read at once, which waits for its
--- device. The member `samples`, of this step, becomes the curve samples_per_second. Curves
--- "loss/train" and "loss/valid" share a plot.
---     board:log(step, {loss = loss:item(), lr = 1e-3, samples = #x})
---@param step integer
---@param values table<string, number|table>
function Dashboard:log(step, values, excess)
  if math_type(step) ~= "integer" or type(values) ~= "table" or excess ~= nil then
    local o = bind_log(step, values, excess)
    step, values = math.tointeger(o.step), o.values
  end
  local file, samples, time, more = self.file, values.samples, now(), ""
  if not file then return end -- it was closed
  self.step = step
  if samples then
    samples = number_of("log", "samples", samples)
    if self.since then self.samples = self.samples + samples else self.since = time end
  end
  if time >= self.due then more = "," .. measured(self, time) end
  local since = time - file.began
  local line = fast_line(self, step, since, values, more) or slow_line(step, since, values, more)
  if line then file:add(line, time) end
end

-- Adds a line of one step, whose other members are given as JSON.
local function add(self, step, members)
  if not self.file then return end
  self.file:add(('{"step":%d,"time":%.3f,%s}'):format(step or 0, self.file:time(), members))
end

local bind_scalar = options.signature("add_scalar", [[tag: string, scalar_value: number|tensor,
  global_step?: integer, walltime?: number]])

--- Adds a number to the curve `tag`, as SummaryWriter does.
---     board:add_scalar("loss/train", loss, step)
---@param tag string
---@param scalar_value number|table
---@param global_step? integer 0 by default
---@param walltime? number SummaryWriter's; lines have the time at which they are added
function Dashboard:add_scalar(tag, scalar_value, global_step, walltime, excess)
  if keys[tag] and math_type(scalar_value) and math_type(global_step) == "integer"
    and walltime == nil and excess == nil then
    return add(self, global_step, '"values":{' .. keys[tag] .. written(scalar_value) .. "}")
  end
  local o = bind_scalar(tag, scalar_value, global_step, walltime, excess)
  local key = key_of("add_scalar", o.tag)
  add(self, o.global_step, ('"values":{%s%s}'):format(key,
    written(number_of("add_scalar", o.tag, o.scalar_value))))
end

local bind_scalars = options.signature("add_scalars", [[main_tag: string,
  tag_scalar_dict: table, global_step?: integer, walltime?: number]])

--- Adds several numbers to one plot, as curves "main_tag/name".
---     board:add_scalars("error", {train = 0.3, valid = 0.4}, step)
---@param main_tag string
---@param tag_scalar_dict table<string, number|table>
---@param global_step? integer 0 by default
---@param walltime? number SummaryWriter's, as in add_scalar
function Dashboard:add_scalars(...)
  local o = bind_scalars(...)
  local members, tags = {}, {}
  for name in pairs(o.tag_scalar_dict) do key_of("add_scalars", name) end -- all are names
  for i, name in ipairs(listing.names(o.tag_scalar_dict)) do
    tags[i] = o.main_tag .. "/" .. name
    members[i] = key_of("add_scalars", tags[i])
      .. written(number_of("add_scalars", name, o.tag_scalar_dict[name]))
  end
  if #tags == 0 or not self.file then return end
  local chart = to_json{chart = o.main_tag, tags = tags}
  if self.charts[o.main_tag] ~= chart then
    self.charts[o.main_tag] = chart
    self.file:add(chart)
  end
  add(self, o.global_step, ('"values":{%s}'):format(table.concat(members, ",")))
end

local bind_hparams = options.signature("add_hparams", [[hparam_dict: table,
  metric_dict: table = {}]])

--- Adds settings of the run, which the page shows with its name.
---     board:add_hparams{hparam_dict = {lr = 0.1, optimizer = "sgd"}}
---@param hparam_dict table<string, number|string|boolean>
---@param metric_dict? table<string, number|table> results, shown in the same way
function Dashboard:add_hparams(...)
  local o, settings = bind_hparams(...), {}
  for name, v in pairs(o.hparam_dict) do
    key_of("add_hparams", name)
    if type(v) == "table" or type(v) == "string" and not utf8.len(v) then
      caller.raise("add_hparams: '%s' is %s, wanted a number, a text in UTF-8 or a boolean", name,
        type(v) == "table" and "a table" or "not UTF-8")
    end
    settings[name] = type(v) == "number" and written(v):gsub('"', "") or tostring(v)
  end
  for name, v in pairs(o.metric_dict) do
    key_of("add_hparams", name)
    settings[name] = written(number_of("add_hparams", name, v)):gsub('"', "")
  end
  if self.file and next(settings) then self.file:add(to_json{settings = settings}) end
end

-- ---- mixed precision ----

options.kind("scaler", function(v) return type(v) == "table" and v.get_scale ~= nil end,
  "an amp.GradScaler")

local bind_scaler = options.signature("scaler", "scaler: scaler, step: integer")

--- Adds the scale of a GradScaler and the number of steps that it skipped so far, as the curves
--- amp/scale and amp/skipped_steps; nothing for one that is off. Waits for the device.
---     board:scaler(scaler, step)
---@param scaler table
---@param step integer
function Dashboard:scaler(...)
  local o = bind_scaler(...)
  if not o.scaler:is_enabled() then return end
  local stats = o.scaler:stats()
  add(self, o.step, ('"values":{"amp/scale":%s,"amp/skipped_steps":%d}'):format(
    written(stats.scale), stats.skipped))
end

-- The counts of a layer as a table for JSON: how many gradients are 0, inf, NaN, and in
-- [2^e, 2^(e + 1)) for each e from `low` on.
local function counted(layer, row)
  local low, high = math.huge, -math.huge
  for e in pairs(row.exponents or {}) do low, high = math.min(low, e), math.max(high, e) end
  local counts = {}
  for e = low, high do counts[#counts + 1] = row.exponents[e] or 0 end
  return {layer = layer, zero = row.zero or 0, inf = row.inf or 0, nan = row.nan or 0,
    low = #counts > 0 and low or 0, counts = counts}
end

-- The names of layers by the names of their modules: "1 Linear".
local function layer_names(model)
  local names = {}
  for name, module in model:named_modules() do
    names[name] = name == "" and module.class or name .. " " .. module.class
  end
  return names
end

-- Counts the exponents of all gradients, times the factor, by layer: a list in the model's order.
local function count_gradients(model, factor)
  local names, rows, list = layer_names(model), {}, {}
  for name, p in model:named_parameters() do
    local path = name:match "^(.*)%.[^.]*$" or ""
    local layer = names[path] or path
    if p.grad then
      if not rows[layer] then
        rows[layer], list[#list + 1] = {}, layer
      end
      core._float_stats(p.grad:detach():to "cpu", rows[layer], factor, nil)
    end
  end
  for i, layer in ipairs(list) do list[i] = counted(layer, rows[layer]) end
  return list
end

local function add_gradients(self, step, list)
  local texts = {}
  for i, row in ipairs(list) do texts[i] = to_json(row) end
  add(self, step, ('"gradients":[%s]'):format(table.concat(texts, ",")))
end

local bind_gradients = options.signature("gradients", [[model: module, step: integer,
  scaler?: scaler]])

--- Adds the exponents of a model's gradients, floor(log2 |g|), by layer, which the page draws with
--- the ranges of float16 and bfloat16. Reads all gradients, so not each step. With a scaler they
--- are still scaled, and divided by its scale: between backward() and unscale_() or step().
---     scaler:scale(loss):backward()
---     if step % 100 == 0 then board:gradients(model, step, {scaler = scaler}) end
---@param model table
---@param step integer
---@param scaler? table
function Dashboard:gradients(...)
  local o = bind_gradients(...)
  local list = count_gradients(o.model, 1 / (o.scaler and o.scaler:get_scale() or 1))
  if #list == 0 then
    caller.raise("gradients: no parameter of the %s has a gradient; hint: call it after "
      .. "backward(), before zero_grad()", o.model.class)
  end
  add_gradients(self, o.step, list)
end

local bind_attach = options.signature("attach", [[model: module, optimizer: optimizer,
  every: integer = 100]])

--- Adds the exponents of a model's gradients at each `every`-th step of an optimizer, until the
--- board is closed: for a Trainer, which leaves no gradients behind its steps. A GradScaler has
--- divided them by its scale by then.
---     board:attach(model, optimizer, {every = 100})
---@param model table
---@param optimizer table
---@param every? integer steps from one look to the next, which reads all gradients (100)
function Dashboard:attach(...)
  local o = bind_attach(...)
  if o.every < 1 then caller.raise("attach: every is %d, wanted 1 at least", o.every) end
  if self.attached[o.optimizer] then
    caller.raise("attach: this optimizer is attached already")
  end
  local step, steps = o.optimizer.step, o.optimizer.steps or 0
  local function looked(optimizer, ...)
    steps = steps + 1
    if self.file and steps % o.every == 0 then
      local list = count_gradients(o.model, 1)
      if #list > 0 then add_gradients(self, steps, list) end
    end
    return step(optimizer, ...)
  end
  self.attached[o.optimizer] = {looked, rawget(o.optimizer, "step")}
  o.optimizer.step = looked
end

-- Gives an optimizer the step that it had, unless somebody has put another one over it.
local function detach(optimizer, steps)
  if rawget(optimizer, "step") == steps[1] then optimizer.step = steps[2] end
end

-- ---- the end ----

--- Writes all that waits. Nothing waits for the disk itself.
---@return boolean? true; nil where the disk is full
---@return string? why
function Dashboard:flush()
  if not self.file then return true end
  return self.file:write()
end

--- Ends the run and the server. The file stays. A second call does nothing.
---@return boolean? true; nil where something could not be written
---@return string? why
function Dashboard:close()
  local fine, why = true, nil
  if self.file then
    if self.samples > 0 then
      add(self, self.step, ('"values":{%s}'):format(measured(self, now())))
    end
    self.file:add(('{"ended":%.3f}'):format(self.file:time()))
    fine, why = self.file:close()
    self.file = nil
    for optimizer, steps in pairs(self.attached) do detach(optimizer, steps) end
  end
  if self.pipe then
    self.pipe:close()
    self.pipe = nil
  end
  return fine, why
end
Dashboard.__close = function(self) self:close() end
Dashboard.__gc = Dashboard.__close -- a program that ends without close() loses nothing

function Dashboard:__tostring()
  return ("Dashboard(%s%s)"):format(self.path, self.url and ", " .. self.url or "")
end

caller.with_colon(Dashboard, "board", "log add_scalar add_scalars add_hparams scaler gradients "
  .. "attach flush close")

return {dashboard = dashboard}
