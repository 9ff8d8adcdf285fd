-- The contents of events, as TensorBoard's plugins expect them: each function gives the field
-- `summary` of an event. The messages are those of event.proto, summary.proto and tensor.proto
-- of TensorFlow, and of the plugins' own files.

local proto = require "demilune.tensorboard.proto"

local int, text, message = proto.int, proto.text, proto.message

local summary = {}

local FLOAT, DOUBLE, STRING = 1, 2, 7 -- types of tensors

-- A summary of one value, given the fields behind its tag.
local function of_value(tag, fields) return message(5, message(1, text(1, tag) .. fields)) end

local function of_plugin(name, content)
  return message(9, message(1, text(1, name) .. text(2, content or "")))
end

-- A tensor of these dims; `values` is the field that holds its elements.
local function tensor(dtype, dims, values)
  local shape = {}
  for i, size in ipairs(dims) do shape[i] = message(2, int(1, size)) end
  return message(8, int(1, dtype) .. message(2, table.concat(shape)) .. values)
end

--- A scalar in a tensor, with the metadata of its plugin (PyTorch's new_style).
---@param tag string
---@param value number
---@param double_precision boolean float64, else float32
function summary.scalar_tensor(tag, value, double_precision)
  local held = double_precision and int(1, DOUBLE) .. proto.doubles(6, {value})
    or int(1, FLOAT) .. proto.floats(5, {value})
  return of_value(tag, message(8, held) .. of_plugin "scalars")
end

--- A scalar without metadata.
---@param tag string
---@param value number
function summary.scalar(tag, value) return of_value(tag, proto.one_float(2, value)) end

--- A histogram {min =, max =, num =, sum =, sum_squares =, limits =, counts =}; the limits are
--- the upper ones of the buckets.
---@param tag string
---@param h table
function summary.histogram(tag, h)
  return of_value(tag, message(5, proto.double(1, h.min) .. proto.double(2, h.max)
    .. proto.double(3, h.num) .. proto.double(4, h.sum) .. proto.double(5, h.sum_squares)
    .. proto.doubles(6, h.limits) .. proto.doubles(7, h.counts)))
end

--- An image {height =, width =, channels =, bytes = of a PNG file}.
---@param tag string
---@param image table
function summary.image(tag, image)
  return of_value(tag, message(4, int(1, image.height) .. int(2, image.width)
    .. int(3, image.channels) .. text(4, image.bytes)))
end

--- A text, in Markdown.
---@param tag string
---@param s string
function summary.text(tag, s)
  return of_value(tag .. "/text_summary", tensor(STRING, {1}, message(8, s)) .. of_plugin "text")
end

--- A precision-recall curve.
---@param tag string
---@param rows number[][] counts of true and false positives, of true and false negatives,
--- precision and recall, each a list by threshold
---@param thresholds integer
function summary.pr_curve(tag, rows, thresholds)
  local values = {}
  for _, row in ipairs(rows) do table.move(row, 1, #row, #values + 1, values) end
  return of_value(tag, tensor(FLOAT, {#rows, #rows[1]}, proto.floats(5, values))
    .. of_plugin("pr_curves", int(2, thresholds)))
end

local function tags_of(field, tags)
  local parts = {}
  for i, tag in ipairs(tags) do parts[i] = message(field, tag) end
  return table.concat(parts)
end

-- A chart {"Multiline", tags} or {"Margin", {value, lower, upper}}.
local function chart(title, kind, tags)
  local content = kind == "Multiline" and message(2, tags_of(1, tags))
    or message(3, message(1, text(1, tags[1]) .. text(2, tags[2]) .. text(3, tags[3])))
  return message(2, text(1, title) .. content)
end

--- The layout of custom scalars.
---@param categories table a list of {title =, {title =, kind =, tags =}, ...}
function summary.custom_scalars(categories)
  local parts = {}
  for i, category in ipairs(categories) do
    local charts = {text(1, category.title)}
    for k, c in ipairs(category) do charts[k + 1] = chart(c.title, c.kind, c.tags) end
    parts[i] = message(2, table.concat(charts))
  end
  return of_value("custom_scalars__config__",
    tensor(STRING, {}, message(8, table.concat(parts))) .. of_plugin "custom_scalars")
end

-- ---- hyperparameters ----

-- A google.protobuf.Value, and the type that the plugin calls it.
local function value_of(v)
  if type(v) == "string" then return message(3, v), 1 end
  if type(v) == "boolean" then return proto.one_bool(4, v), 2 end
  return proto.one_double(2, v), 3
end

local function hparam_info(h)
  local _, kind = value_of(h.value)
  local domain = ""
  if h.domain then
    local values = {}
    for i, v in ipairs(h.domain) do values[i] = message(1, (value_of(v))) end
    domain = message(5, table.concat(values))
  end
  return message(4, text(1, h.name) .. int(4, kind) .. domain)
end

--- Three summaries: the experiment (names), the start of a session (values) and its end.
---@param hparams table a list of {name =, value = a number, string or boolean, domain = a list}
---@param metrics string[] tags of scalars
---@return string experiment
---@return string session_start
---@return string session_end
function summary.hparams(hparams, metrics)
  local infos, values = {}, {}
  for i, h in ipairs(hparams) do
    infos[i] = hparam_info(h)
    values[i] = message(1, message(1, h.name) .. message(2, (value_of(h.value))))
  end
  for i, tag in ipairs(metrics) do
    infos[#hparams + i] = message(5, message(1, text(2, tag)))
  end
  local function part(name, field, content)
    return of_value("_hparams_/" .. name, of_plugin("hparams", message(field, content)))
  end
  return part("experiment", 2, table.concat(infos)),
    part("session_start_info", 3, table.concat(values)),
    part("session_end_info", 4, int(1, 1)) -- success
end

return summary
