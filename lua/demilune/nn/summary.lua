-- model:summary: what each layer gives, and what it costs, of one forward.

local core = require "demilune.core"
local in_evaluation = require "demilune.nn.evaluation"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local bind = options.signature("summary", [[model: module, input: any, *,
  dtype: dtype = 'float32', device?: device, print: boolean = true]])

-- A tensor; a shape; or an array of these.
local function inputs_of(given, o)
  if core.is_tensor(given) then return {given} end
  if type(given) ~= "table" or #given == 0 then
    caller.raise("summary: got a %s, wanted a shape such as {2, 3, 32, 32}, tensors, or a "
      .. "table of them", type(given))
  end
  if type(given[1]) == "number" then given = {given} end
  local inputs = {}
  for i, item in ipairs(given) do
    local shape = not core.is_tensor(item) and {table.unpack(item)}
    if shape then shape[#shape + 1] = {dtype = o.dtype, device = o.device} end
    -- ones: labels and ids that every table has, and no logarithm's end
    inputs[i] = shape and core.ones(table.unpack(shape)) or item
  end
  return inputs
end

-- ---- one layer ----

-- The module's own parameters, not those below.
local function own_parameters(module)
  local list = {}
  for _, field in ipairs(module._fields) do
    local p = rawget(module, field)
    if core.is_tensor(p) and p.is_parameter then list[#list + 1] = p end
  end
  return list
end

-- A multiplication and an addition for each weight at each position: of the output, of a
-- transposed convolution's input, or each step of a recurrent layer. Products without
-- weights (attention's) and pointwise ops do not count.
local function flops_of(module, x, y)
  local weights = 0
  for _, p in ipairs(own_parameters(module)) do
    if p:dim() > 1 then weights = weights + p:numel() end
  end
  if weights == 0 or module.class:match "^Embedding" or not core.is_tensor(y) then return 0 end
  local function positions(t, channels) return t:numel() // math.max(1, channels) end
  if module.class:match "^ConvTranspose" then
    return 2 * weights * positions(x, module.in_channels)
  elseif module.class:match "^Conv%dd$" then
    return 2 * weights * positions(y, module.out_channels)
  elseif module.hidden_size then
    local sides = module.bidirectional and 2 or 1
    return 2 * weights * positions(y, (module.proj_size or 0) > 0 and module.proj_size * sides
      or module.hidden_size * sides)
  end
  return 2 * weights * positions(y, y:dim() > 0 and y:size(-1) or 1)
end

-- Parameters that no earlier row has: their number, that of trained ones, their bytes.
local function count(module, seen)
  local n, trained, bytes = 0, 0, 0
  for _, p in ipairs(own_parameters(module)) do
    if not seen[p] then
      seen[p] = true
      n, bytes = n + p:numel(), bytes + p:numel() * p:element_size()
      if p.requires_grad then trained = trained + p:numel() end
    end
  end
  return n, trained, bytes
end

local function row_of(root, module, inputs, y, seen)
  local is_tensor = core.is_tensor(y)
  local n, trained, bytes = count(module, seen)
  local path = Module.path_to(root, module) or ""
  return {name = path:gsub("^%.", ""), layer = module:describe(),
    shape = is_tensor and {table.unpack(y.shape)} or nil, dtype = is_tensor and y.dtype or nil,
    parameters = n, trainable = trained, parameter_bytes = bytes,
    bytes = is_tensor and y:numel() * y:element_size() or 0,
    flops = flops_of(module, inputs[1], y)}
end

-- ---- the table ----

local function short(n, unit)
  for _, step in ipairs{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} do
    if n >= step[1] then return ("%.1f %s%s"):format(n / step[1], step[2], unit) end
  end
  return ("%d%s"):format(n, unit == "" and "" or " " .. unit)
end

local function cells(row)
  return {row.name, row.layer, row.shape and "{" .. table.concat(row.shape, ", ") .. "}" or "-",
    row.dtype or "-", row.parameters > 0 and tostring(row.parameters) or "-",
    short(row.bytes, "B"), row.flops > 0 and short(row.flops, "") or "-"}
end

local function text_of(rows)
  local lines = {{"name", "layer", "output", "dtype", "parameters", "bytes", "FLOPs"}}
  for i, row in ipairs(rows) do lines[i + 1] = cells(row) end
  local width = {}
  for _, line in ipairs(lines) do
    for k, cell in ipairs(line) do width[k] = math.max(width[k] or 0, #cell) end
  end
  local out = {}
  for i, line in ipairs(lines) do
    for k, cell in ipairs(line) do
      line[k] = ("%" .. (k > 4 and "" or "-") .. width[k] .. "s"):format(cell)
    end
    out[i] = table.concat(line, "  ")
  end
  local t = rows.total
  out[#out + 1] = ("%d parameters (%d trained), %s; outputs %s; %s forward"):format(
    t.parameters, t.trainable, short(t.parameter_bytes, "B"), short(t.bytes, "B"),
    short(t.flops, "FLOPs"))
  return table.concat(out, "\n")
end

-- ---- the forward ----

-- Runs model once on ones of that shape (or on `given`: a tensor, or a table of shapes and
-- tensors), in evaluation, without a graph, in the autocast region that is open. Returns
-- rows in the order of the calls, one for each module that holds parameters or no module:
-- {name, layer, shape, dtype, parameters, trainable, parameter_bytes, bytes (the output's),
-- flops}; and total, their sums. opts: dtype ("float32") and device of the ones, print
-- (true): as a table, which tostring gives too.
local function summary(...)
  local o = bind(...)
  local model, given = o.model, o.input
  local first = model:parameters()[1]
  o.device = o.device or first and first.device
  local inputs = inputs_of(given, o)
  local rows, seen, hooks = {}, {}, {}
  for _, module in model:named_modules() do
    if #module:children() == 0 or #own_parameters(module) > 0 then
      hooks[#hooks + 1] = module:register_forward_hook(function(m, x, y)
        rows[#rows + 1] = row_of(model, m, x, y, seen)
      end)
    end
  end
  local ok, err = pcall(in_evaluation, model, function() model(table.unpack(inputs)) end)
  for _, hook in ipairs(hooks) do hook.remove() end
  if not ok then error(err, 0) end
  rows.total = {}
  for _, key in ipairs{"parameters", "trainable", "parameter_bytes", "bytes", "flops"} do
    rows.total[key] = 0
    for _, row in ipairs(rows) do rows.total[key] = rows.total[key] + row[key] end
  end
  setmetatable(rows, {__tostring = text_of})
  if o.print then print(rows) end
  return rows
end

return summary
