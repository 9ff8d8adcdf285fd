-- dm.SummaryWriter: event files that TensorBoard opens, with the names and meanings of
-- torch.utils.tensorboard.
--
--   local writer <close> = assert(dm.SummaryWriter "runs/first")
--   for step = 1, 100 do
--     writer:add_scalar("loss", 1 / step, step)
--   end
--
--   $ tensorboard --logdir runs
--
-- Nothing here stops a training: a disk that is full or a folder that was removed is warned
-- about once, and told by flush() and close(). A process that is killed leaves a file that
-- TensorBoard reads up to the last whole record; it lacks the events of the last quarter of a
-- second, and those that neither max_queue nor flush_secs had asked to write.

local core = require "demilune.core"
local caller = require "demilune.caller"
local listing = require "demilune.listing"
local options = require "demilune.options"
local EventFile = require "demilune.tensorboard.event_file"
local proto = require "demilune.tensorboard.proto"
local summary = require "demilune.tensorboard.summary"

local math_type, names_of = math.type, listing.names
local number_of = require("demilune.tensorboard.number").of

local SummaryWriter = {}
SummaryWriter.__index = SummaryWriter
SummaryWriter.class = "SummaryWriter"

-- ---- opening and closing ----

-- A run that begins anew at a step hides what an earlier one wrote from there on.
local function purge(file, step)
  file:add(proto.text(3, "brain.Event:2"), step)
  file:add(proto.message(7, proto.int(1, 1)), step) -- a session log: START
end

-- The event file of a folder, opened when it is first asked for; nil and why not.
local function file_of(self, folder)
  local file = self.files[folder]
  if file then return file end
  local why
  file, why = EventFile.open(folder, self)
  if not file then
    if not self.warned[folder] then
      self.warned[folder] = true
      caller.warn("SummaryWriter: %s; the program goes on without these events", why)
    end
    return nil, why
  end
  self.files[folder] = file
  if folder == self.log_dir and self.purge_step then
    purge(file, self.purge_step)
    self.purge_step = nil
  end
  return file
end

local bind_new = options.signature("SummaryWriter", [[log_dir?: string, comment: string = '',
  purge_step?: integer, max_queue: integer = 10, flush_secs: number = 120,
  filename_suffix: string = '']])

local function new(_, ...)
  local self = setmetatable(bind_new(...), SummaryWriter)
  if self.max_queue < 0 or self.flush_secs < 0 then
    caller.raise("SummaryWriter: max_queue is %s and flush_secs %s, wanted 0 at least",
      self.max_queue, self.flush_secs)
  end
  if self.filename_suffix:find "[/%z]" or (self.log_dir or ""):find "%z" then
    caller.raise("SummaryWriter: a folder's name holds no NUL, and a suffix no '/' either")
  end
  self.log_dir = self.log_dir or ("runs/%s_%s%s"):format(os.date "%b%d_%H-%M-%S", EventFile.host(),
    self.comment)
  self.files, self.warned = {}, {[self.log_dir] = true} -- the first failure is returned
  local file, why = file_of(self, self.log_dir)
  if not file then return nil, why end
  self.warned = {}
  return self
end

local function on_every_file(self, what)
  local folders, fine, problem = {}, true, nil
  for folder in pairs(self.files) do folders[#folders + 1] = folder end
  table.sort(folders)
  for _, folder in ipairs(folders) do
    local ok, why = self.files[folder][what](self.files[folder])
    if not ok then fine, problem = nil, problem or why end
  end
  return fine, problem
end

--- Writes all events that wait. Nothing waits for the disk itself.
---@return boolean? true; nil where the disk is full or a folder was removed
---@return string? why
function SummaryWriter:flush() return on_every_file(self, "flush") end

--- Writes all events that wait, and closes the files. What is added later opens new ones.
---@return boolean? true; nil where something could not be written
---@return string? why
function SummaryWriter:close()
  local fine, why = on_every_file(self, "close")
  self.files = {}
  return fine, why
end
function SummaryWriter:__close() self:close() end

--- The folder of the event files.
---@return string
function SummaryWriter:get_logdir() return self.log_dir end

function SummaryWriter:__tostring() return ("SummaryWriter(%s)"):format(self.log_dir) end

-- ---- adding ----

-- A tag is UTF-8: readers refuse a file that holds other bytes in a text.
local function check_text(what, name, s)
  if not utf8.len(s) then caller.raise("%s: %s is not UTF-8", what, name) end
end

-- Adds an event of the folder, by default the writer's own.
local function add(self, fields, step, walltime, folder)
  local file, why = file_of(self, folder or self.log_dir)
  if not file then return nil, why end
  file:add(fields, step, walltime)
end

local bind_scalar = options.signature("add_scalar", [[tag: string, scalar_value: number|tensor,
  global_step?: integer, walltime?: number, new_style: boolean = false,
  double_precision: boolean = false]])

local MOST_KNOWN = 4096
local known, n_known = {}, 0 -- tags that were found to be UTF-8

--- Adds a number to the curve `tag`; a "/" in it groups curves. A tensor of one element is read
--- at once, which waits for its device; a number in a loop of 1 ms steps costs a thousandth.
---     writer:add_scalar("loss/train", loss, step)
---@param tag string
---@param scalar_value number|table
---@param global_step? integer 0 by default
---@param walltime? number seconds since 1970; now by default, in whole milliseconds
---@param new_style? boolean write it as a tensor with the plugin's metadata (false)
---@param double_precision? boolean float64 in that tensor (false)
function SummaryWriter:add_scalar(tag, scalar_value, global_step, walltime, new_style,
    double_precision, excess)
  if known[tag] and walltime == nil and new_style == nil and excess == nil
    and math_type(scalar_value) and math_type(global_step) == "integer" then
    local file = self.files[self.log_dir] or file_of(self, self.log_dir)
    if file then file:add_scalar(tag, scalar_value, global_step) end
    return
  end
  local o = bind_scalar(tag, scalar_value, global_step, walltime, new_style, double_precision,
    excess)
  check_text("add_scalar", "tag", o.tag)
  if n_known == MOST_KNOWN then known, n_known = {}, 0 end
  if not known[o.tag] then known[o.tag], n_known = true, n_known + 1 end
  local value, step = number_of("add_scalar", "scalar_value", o.scalar_value), o.global_step or 0
  if o.new_style then
    return add(self, summary.scalar_tensor(o.tag, value, o.double_precision), step, o.walltime)
  elseif o.walltime then
    return add(self, summary.scalar(o.tag, value), step, o.walltime)
  end
  local file = file_of(self, self.log_dir)
  if file then file:add_scalar(o.tag, value, step) end
end

-- Raises unless the keys of a table are UTF-8 strings.
local function check_names(what, name, t)
  for key in pairs(t) do
    if type(key) ~= "string" or not utf8.len(key) then
      caller.raise("%s: %s has the key %s, wanted names in UTF-8", what, name, tostring(key))
    end
  end
end

local bind_scalars = options.signature("add_scalars", [[main_tag: string,
  tag_scalar_dict: table, global_step?: integer, walltime?: number]])

--- Adds several numbers to one plot. Each has an event file in a folder of its own, which
--- TensorBoard shows as a run.
---     writer:add_scalars("loss", {train = 0.3, valid = 0.4}, step)
---@param main_tag string
---@param tag_scalar_dict table<string, number|table>
---@param global_step? integer
---@param walltime? number
function SummaryWriter:add_scalars(...)
  local o = bind_scalars(...)
  check_text("add_scalars", "main_tag", o.main_tag)
  check_names("add_scalars", "tag_scalar_dict", o.tag_scalar_dict)
  local values = {}
  for name, v in pairs(o.tag_scalar_dict) do
    values[name] = number_of("add_scalars", name, v)
  end
  local prefix = ("%s/%s_"):format(self.log_dir, o.main_tag:gsub("/", "_"))
  for _, name in ipairs(names_of(values)) do
    add(self, summary.scalar(o.main_tag, values[name]), o.global_step, o.walltime, prefix .. name)
  end
end

local bind_histogram = options.signature("add_histogram", [[tag: string, values: tensor|numbers,
  global_step?: integer, bins: string|integer|numbers = 'tensorflow', walltime?: number,
  max_bins?: integer]])

--- Adds a histogram. Values that are not finite are left out; one without any other is not
--- added, and warned about once.
---     for name, p in model:named_parameters() do writer:add_histogram(name, p, epoch) end
---@param tag string
---@param values table a tensor of any shape and device, or a list of numbers
---@param global_step? integer
---@param bins? string|integer|number[] "tensorflow": its limits; a number of equal buckets; limits
---@param walltime? number
---@param max_bins? integer
function SummaryWriter:add_histogram(...)
  local o = bind_histogram(...)
  check_text("add_histogram", "tag", o.tag)
  local bins = o.bins
  if type(bins) == "string" and bins ~= "tensorflow" then
    caller.raise("add_histogram: bins is '%s', wanted 'tensorflow', a number of buckets or their "
      .. "limits", bins)
  elseif type(bins) == "table" then
    for i = 2, math.max(#bins, 2) do
      if not (bins[i] and bins[i] > bins[i - 1]) then
        caller.raise("add_histogram: bins is a list of limits, wanted two at least that rise")
      end
    end
  elseif type(bins) == "number" and bins < 1 or o.max_bins and o.max_bins < 1 then
    caller.raise("add_histogram: wanted one bucket at least")
  end
  local values = core.is_tensor(o.values) and o.values or core.tensor(o.values)
  if values:numel() == 0 then caller.raise("add_histogram: values holds no element") end
  local h = require "demilune.tensorboard.histogram".of(values, bins, o.max_bins)
  if h then return add(self, summary.histogram(o.tag, h), o.global_step, o.walltime) end
  caller.warn_once("add_histogram " .. o.tag, "add_histogram: no value of '%s' is finite", o.tag)
end

local bind_histogram_raw = options.signature("add_histogram_raw", [[tag: string, min: number,
  max: number, num: integer, sum: number, sum_squares: number, bucket_limits: tensor|numbers,
  bucket_counts: tensor|numbers, global_step?: integer, walltime?: number]])

local function list_of(v) return core.is_tensor(v) and v:flatten():totable() or v end

--- Adds a histogram that was counted elsewhere; the limits are the buckets' upper ones.
function SummaryWriter:add_histogram_raw(...)
  local o = bind_histogram_raw(...)
  check_text("add_histogram_raw", "tag", o.tag)
  o.limits, o.counts = list_of(o.bucket_limits), list_of(o.bucket_counts)
  if #o.limits ~= #o.counts then
    caller.raise("add_histogram_raw: %d bucket_limits and %d bucket_counts, wanted as many",
      #o.limits, #o.counts)
  end
  return add(self, summary.histogram(o.tag, o), o.global_step, o.walltime)
end

-- ---- images and texts ----

-- Adds an image that `images` made, or tells why there is none.
local function add_encoded(self, what, o, image, why)
  if image then return add(self, summary.image(o.tag, image), o.global_step, o.walltime) end
  caller.warn_once(what .. tostring(why), "%s: %s; the program goes on without the image", what,
    why)
  return nil, why
end

local function add_tensor_image(self, what, o)
  local images = require "demilune.tensorboard.images"
  check_text(what, "tag", o.tag)
  return add_encoded(self, what, o, images.of(images.pixels(what, o.img_tensor, o.dataformats)))
end

local IMAGE = [[tag: string, img_tensor: tensor, global_step?: integer, walltime?: number,
  dataformats: string = ]]
local bind_image = options.signature("add_image", IMAGE .. "'CHW'")
local bind_images = options.signature("add_images", IMAGE .. "'NCHW'")

--- Adds an image, as a PNG file: floats from 0 to 1, uint8 from 0 to 255, of 1, 3 or 4 channels.
---     writer:add_image("sample", x[1], step)
---     writer:add_image("mask", mask, step, {dataformats = "HW"})
---@param tag string
---@param img_tensor table
---@param global_step? integer
---@param walltime? number
---@param dataformats? string the tensor's dims: "CHW", "HWC", "HW" ...
---@return nil, string? why where the image could not be written
function SummaryWriter:add_image(...)
  return add_tensor_image(self, "add_image", bind_image(...))
end

--- Adds a batch of images as one, eight in a row; dataformats is "NCHW", "NHWC" ...
---@param tag string
---@param img_tensor table
---@param global_step? integer
---@param walltime? number
---@param dataformats? string
---@return nil, string? why where the image could not be written
function SummaryWriter:add_images(...)
  return add_tensor_image(self, "add_images", bind_images(...))
end

local bind_figure = options.signature("add_figure", [[tag: string, figure: any,
  global_step?: integer, close: boolean = true, walltime?: number]])

--- Adds a figure, such as dm.plot makes: anything with a method png() that gives the bytes of a
--- PNG file, or nil and a message. A list of figures of one size becomes one image. `close` is
--- PyTorch's, whose figures stay open; it has no effect here.
---@param tag string
---@param figure table
---@param global_step? integer
---@param close? boolean
---@param walltime? number
---@return nil, string? why where the figure gave no image
function SummaryWriter:add_figure(...)
  local o = bind_figure(...)
  check_text("add_figure", "tag", o.tag)
  return add_encoded(self, "add_figure", o,
    require "demilune.tensorboard.images".of_figure(o.figure))
end

local bind_text = options.signature("add_text", [[tag: string, text_string: string,
  global_step?: integer, walltime?: number]])

--- Adds a text, which TensorBoard shows as Markdown.
---@param tag string
---@param text_string string UTF-8
---@param global_step? integer
---@param walltime? number
function SummaryWriter:add_text(...)
  local o = bind_text(...)
  check_text("add_text", "tag", o.tag)
  check_text("add_text", "text_string", o.text_string)
  return add(self, summary.text(o.tag, o.text_string), o.global_step, o.walltime)
end

-- ---- graphs, hyperparameters, curves ----

local bind_graph = options.signature("add_graph", [[model: module, input_to_model: any,
  verbose: boolean = false, use_strict_trace: boolean = true]])

--- Adds the graph of a model: the ops of one forward on these inputs, in evaluation and without
--- gradients, by module, with the shapes of their results. The last two are PyTorch's:
--- `verbose` prints the nodes, `use_strict_trace` has no effect.
---     writer:add_graph(model, dm.zeros(1, 3, 32, 32))
---@param model table
---@param input_to_model table a tensor, or a list of the model's inputs
---@param verbose? boolean
---@param use_strict_trace? boolean
function SummaryWriter:add_graph(...)
  local o = bind_graph(...)
  local graph = require "demilune.tensorboard.graph"
  local nodes = graph.trace(o.model, o.input_to_model)
  if o.verbose then print(graph.text(nodes)) end
  add(self, proto.message(4, graph.bytes(nodes)))
  return add(self, graph.run_metadata())
end

-- No kind of a table with names: behind metric_dict such a table holds options.
options.kind("domains", function(v) return type(v) == "table" end, "a table of lists by name")

local bind_hparams = options.signature("add_hparams", [[hparam_dict: table, metric_dict: table,
  hparam_domain_discrete: domains = {}, run_name?: string, global_step?: integer]])

-- The hyperparameters as a list by name.
local function hparams_of(given, domains)
  local list = {}
  for _, name in ipairs(names_of(given)) do
    local v, domain = given[name], domains[name]
    v = core.is_tensor(v) and number_of("add_hparams", name, v) or v
    if type(v) ~= "number" and type(v) ~= "boolean" and type(v) ~= "string" then
      caller.raise("add_hparams: '%s' is a %s, wanted a number, a string or a boolean", name,
        type(v))
    end
    if type(v) == "string" then check_text("add_hparams", name, v) end
    list[#list + 1] = {name = name, value = v, domain = domain}
    for i, one in ipairs(type(domain) == "table" and domain or {domain}) do
      if type(one) ~= type(v) or type(domain) ~= "table" then
        caller.raise("add_hparams: hparam_domain_discrete.%s: element %d is a %s, wanted a list of "
          .. "%ss", name, i, type(one), type(v))
      end
    end
  end
  return list
end

--- Adds the hyperparameters of a run and its results, in a folder of their own, for TensorBoard's
--- table of runs. The metrics are scalars too; give them tags that no add_scalar has. A boolean
--- is one, where PyTorch 2.15 writes a number.
---     writer:add_hparams({lr = 0.1, batch = 32}, {["hparam/accuracy"] = 0.9})
---     writer:add_hparams({optimizer = "sgd"}, {["hparam/accuracy"] = 0.9},
---       {hparam_domain_discrete = {optimizer = {"sgd", "adam"}}, run_name = "first"})
---@param hparam_dict table<string, number|string|boolean>
---@param metric_dict table<string, number|table>
---@param hparam_domain_discrete? table<string, table> the values that a parameter may have
---@param run_name? string the folder's name; by default the time
---@param global_step? integer
function SummaryWriter:add_hparams(...)
  local o = bind_hparams(...)
  check_names("add_hparams", "hparam_dict", o.hparam_dict)
  check_names("add_hparams", "metric_dict", o.metric_dict)
  for name in pairs(o.hparam_domain_discrete) do
    if o.hparam_dict[name] == nil then
      caller.raise("add_hparams: hparam_domain_discrete has '%s', which hparam_dict has not",
        tostring(name))
    end
  end
  local values, tags = {}, names_of(o.metric_dict)
  for i, tag in ipairs(tags) do
    local v = number_of("add_hparams", tag, o.metric_dict[tag])
    values[i] = v
  end
  local events = {summary.hparams(hparams_of(o.hparam_dict, o.hparam_domain_discrete), tags)}
  for i, tag in ipairs(tags) do events[#events + 1] = summary.scalar(tag, values[i]) end
  local folder = ("%s/%s"):format(self.log_dir, o.run_name
    or ("%d.%06d"):format(os.time(), core.now() * 1e6 % 1e6 // 1))
  local file, why = EventFile.open(folder, self)
  if not file then
    caller.warn("add_hparams: %s; the program goes on without them", why)
    return nil, why
  end
  for _, fields in ipairs(events) do file:add(fields, o.global_step) end
  return file:close()
end

local bind_pr_curve = options.signature("add_pr_curve", [[tag: string, labels: tensor|numbers,
  predictions: tensor|numbers, global_step?: integer, num_thresholds: integer = 127,
  weights?: number|tensor|numbers, walltime?: number]])

--- Adds a precision-recall curve of a classifier of two classes.
---     writer:add_pr_curve("cats", y:eq(1), scores:softmax(2):select(2, 1), step)
---@param tag string
---@param labels table 0 or 1, or booleans
---@param predictions table probabilities of 1
---@param global_step? integer
---@param num_thresholds? integer 127, which is the most
---@param weights? number|table of each label
---@param walltime? number
function SummaryWriter:add_pr_curve(...)
  local o = bind_pr_curve(...)
  check_text("add_pr_curve", "tag", o.tag)
  local n = math.min(o.num_thresholds, 127)
  local rows = require "demilune.tensorboard.pr_curve".rows(o.labels, o.predictions, n, o.weights)
  return add(self, summary.pr_curve(o.tag, rows, n), o.global_step, o.walltime)
end

-- ---- charts of several scalars ----

local bind_layout = options.signature("add_custom_scalars", "layout: table")

local function check_chart(what, title, chart)
  local kind, tags = chart[1], chart[2]
  if kind ~= "Multiline" and kind ~= "Margin" or type(tags) ~= "table" or #tags == 0
    or kind == "Margin" and #tags ~= 3 then
    caller.raise("%s: chart '%s': wanted {\"Multiline\", tags} or {\"Margin\", {value, lower, "
      .. "upper}}", what, title)
  end
  for i, tag in ipairs(tags) do
    if type(tag) ~= "string" then
      caller.raise("%s: chart '%s': tag %d is a %s, wanted a string", what, title, i, type(tag))
    end
    check_text(what, "a tag", tag)
  end
  return {title = title, kind = kind, tags = tags}
end

local function add_layout(self, what, layout)
  local categories = {}
  check_names(what, "layout", layout)
  for i, title in ipairs(names_of(layout)) do
    local charts = layout[title]
    if type(charts) ~= "table" then
      caller.raise("%s: '%s' is a %s, wanted a table of charts", what, title, type(charts))
    end
    check_names(what, title, charts)
    categories[i] = {title = title}
    for k, name in ipairs(names_of(charts)) do
      local chart = charts[name]
      if type(chart) ~= "table" then chart = {} end
      categories[i][k] = check_chart(what, name, chart)
    end
  end
  return add(self, summary.custom_scalars(categories))
end

--- Defines charts of scalars that add_scalar writes, once for a writer: {category = {chart =
--- {"Multiline", tags}, chart = {"Margin", {value, lower, upper}}}}.
---@param layout table
function SummaryWriter:add_custom_scalars(...)
  return add_layout(self, "add_custom_scalars", bind_layout(...).layout)
end

local CHART = "tags: list, category: string = 'default', title: string = 'untitled'"
local bind_multiline = options.signature("add_custom_scalars_multilinechart", CHART)
local bind_margin = options.signature("add_custom_scalars_marginchart", CHART)

--- Defines one chart of several curves.
---     writer:add_custom_scalars_multilinechart({"loss/train", "loss/valid"}, {title = "loss"})
---@param tags string[]
---@param category? string
---@param title? string
function SummaryWriter:add_custom_scalars_multilinechart(...)
  local o = bind_multiline(...)
  return add_layout(self, "add_custom_scalars_multilinechart",
    {[o.category] = {[o.title] = {"Multiline", o.tags}}})
end

--- Defines one chart of a curve between two others: tags of the value, its lower and upper bound.
---@param tags string[]
---@param category? string
---@param title? string
function SummaryWriter:add_custom_scalars_marginchart(...)
  local o = bind_margin(...)
  return add_layout(self, "add_custom_scalars_marginchart",
    {[o.category] = {[o.title] = {"Margin", o.tags}}})
end

return {SummaryWriter = setmetatable(SummaryWriter, {__call = new})}
