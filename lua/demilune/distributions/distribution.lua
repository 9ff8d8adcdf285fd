-- The common part of all distributions. A class is made by distribution.class(def); def has
--
--   name, arguments      as "loc, scale = 1": the constructor's arguments in PyTorch's order, as
--                        options.signature has them; a name alone is a tensor or a number, and
--                        validate_args is added
--   parameters           {loc = constraint}, the arguments that are tensors or numbers; those of
--                        constraints of a vector keep its dim behind the batch_shape
--   init(self, o)        optional, o the arguments by name: what else there is to be done
--   rsample or draw      function(self, shape): numbers of shape sample + batch + event, with
--                        gradients in the parameters, or without
--   log_prob, cdf, icdf  function(self, value)
--   entropy, values      function(self); values of enumerate_support, {n} + event
--   expand               function(self, batch_shape), where views of parameters are not enough
--   properties           {mean = function(self), ...}: fields computed when they are read;
--                        support is a constraint
--   methods              further functions of the class
--   super                the class whose parts, properties and methods it has too
--
-- A distribution broadcasts its parameters to their common batch_shape.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local distribution = {}

-- ---- shapes ----

-- One list of the elements of several lists.
function distribution.join(...)
  local out = {}
  for _, list in ipairs{...} do
    for i = 1, #list do out[#out + 1] = list[i] end
  end
  return out
end
local join = distribution.join

-- x, summed over its last n dims.
function distribution.sum_last(x, n)
  for _ = 1, n do x = x:sum(-1) end
  return x
end

local function part(list, first, last) return table.move(list, first, last, 1, {}) end

local function shown(shape) return "{" .. table.concat(shape, ", ") .. "}" end

-- The shape that two broadcast to, or nil.
local function broadcast(a, b)
  local n, out = math.max(#a, #b), {}
  for i = 1, n do
    local x, y = a[#a - n + i] or 1, b[#b - n + i] or 1
    if x ~= y and x ~= 1 and y ~= 1 then return nil end
    out[i] = x == 1 and y or x
  end
  return out
end

local function ones(n)
  local out = {}
  for i = 1, n do out[i] = 1 end
  return out
end

-- The shape that a function was given: numbers, a list of them, or {sample_shape = list}.
local function shape_of(what, first, ...)
  local list = type(first) == "table" and first or {first, ...}
  if list.sample_shape then list = list.sample_shape end
  for _, n in ipairs(list) do
    if math.type(n) ~= "integer" or n < 0 then
      caller.raise("%s: the shape has %s, wanted whole numbers of 0 or more", what, tostring(n))
    end
  end
  return part(list, 1, #list)
end

-- ---- arguments ----

-- Binds a constructor's arguments, and lists their names.
local function read_arguments(name, text)
  local names, parts = {}, {}
  for parameter in (text .. ", validate_args?: boolean"):gmatch "[^,]+" do
    local word, mark, rest = parameter:match "([%w_]+)(%??)%s*(.*)"
    names[#names + 1] = word
    parts[#parts + 1] = word .. mark .. (rest:find "^:" and rest or ": tensor|number" .. rest)
  end
  return options.signature(name, table.concat(parts, ", ")), names
end

-- The parameters given, as float tensors: a number or a tensor of integers gets the dtype of the
-- first tensor of floats, where there is one, and a number its device.
local function tensors_of(o, parameters)
  local like, device, out = "float32", nil, {}
  for _, name in ipairs(parameters) do
    local v = o[name]
    if core.is_tensor(v) then
      device = device or v.device
      if v:is_floating_point() then
        like, device = v.dtype, v.device
        break
      end
    end
  end
  for _, name in ipairs(parameters) do
    local v = o[name]
    if core.is_tensor(v) then
      out[name] = v:is_floating_point() and v or v:to(like)
    elseif v ~= nil then
      out[name] = core.tensor(v + 0.0, {dtype = like, device = device})
    end
  end
  return out
end

-- The first value of x that breaks the constraint, for a message; ok is what the constraint found.
local function offender(x, ok, constraint)
  local event = part(x.shape, #x.shape - constraint.event_dim + 1, #x.shape)
  local bad = x:expand(join(ok.shape, event))
  bad = bad:reshape(ok:numel(), -1)[ok:reshape(-1):logical_not()][1]:totable()
  local words = {}
  for i = 1, math.min(#bad, 8) do
    words[i] = bad[i] ~= bad[i] and "NaN" or ("%.6g"):format(bad[i])
  end
  if constraint.event_dim == 0 then return words[1] end
  return ("{%s%s}"):format(table.concat(words, ", "), #bad > 8 and ", ..." or "")
end

local function check(what, name, x, constraint, hint)
  local _ <close> = core.no_grad()
  local ok = constraint:check(x)
  if ok:all():item() then return end
  caller.raise("%s: %s has %s, wanted %s%s", what, name, offender(x, ok, constraint),
    tostring(constraint), hint and "; hint: " .. hint or "")
end

local validates = true
local bind_default = options.signature("set_default_validate_args", "value: boolean")

--- Whether arguments are checked where a distribution does not say (validate_args); checks read
--- the numbers, and wait for a device. They are on.
---@param value boolean
function distribution.set_default_validate_args(value)
  validates = bind_default(value).value
end

-- ---- the base class ----

-- Fields that are computed when they are read, and functions, of every distribution.
local PROPERTIES, METHODS = {}, {}
function PROPERTIES:stddev() return self.variance:sqrt() end
function PROPERTIES:has_rsample() return self.class.parts.rsample ~= nil end

-- A field that is not set means a property, a method, an argument that was not given, or a
-- mistake.
local function look_up(self, key)
  local class = rawget(self, "class")
  local property = class.properties[key]
  if property then return property(self) end
  local method = class.methods[key]
  if method or class.known[key] then return method end
  local near = options.nearest(tostring(key), METHODS)
    or options.nearest(tostring(key), class.all_properties)
  caller.raise("%s has no '%s'%s", class.name, tostring(key),
    near and near ~= key and ("; did you mean '%s'?"):format(near) or "")
end

local Meta = {__name = "demilune.Distribution", __index = look_up}

--- Whether v is a distribution.
---@param v any
function distribution.is_distribution(v) return getmetatable(v) == Meta end
options.kind("distribution", distribution.is_distribution, "a distribution", true)

function Meta:__tostring()
  local base = rawget(self, "base_dist")
  local parts = {base and tostring(base)}
  for _, name in ipairs(self.class.tensors) do
    local p = rawget(self, name)
    if p then
      parts[#parts + 1] = ("%s: %s"):format(name,
        p:numel() == 1 and ("%g"):format(p:item()) or shown(p.shape))
    end
  end
  return ("%s(%s)"):format(self.class.name, table.concat(parts, ", "))
end

-- One of the class's own parts; raises where it has none.
local function own(self, key)
  local fn = self.class.parts[key]
  if fn == nil then caller.raise("%s has no %s", self.class.name, key) end
  return fn
end

-- A parameter, whose dtype and device draws and values have.
local function like(self)
  local base = rawget(self, "base_dist")
  if base then return like(base) end
  for _, name in ipairs(self.class.tensors) do
    local p = rawget(self, name)
    if p then return p end
  end
end

-- A value as a tensor that fits the distribution.
local function checked_value(self, what, value)
  what = self.class.name .. ":" .. what
  if type(value) == "number" then
    local p = like(self)
    value = core.tensor(value + 0.0, {dtype = p.dtype, device = p.device})
  elseif not core.is_tensor(value) then
    caller.raise("%s: the value is a %s, wanted a tensor or a number", what, type(value))
  end
  if not self._validate then return value end
  local event, shape = self.event_shape, value.shape
  local wanted = join(self.batch_shape, event)
  local fits = #shape >= #event and broadcast(shape, wanted)
  for i = 1, fits and #event or 0 do
    fits = fits and shape[#shape - #event + i] == event[i]
  end
  if not fits then
    caller.raise("%s: the value has shape %s, wanted one that broadcasts to batch_shape %s" ..
      " and event_shape %s", what, shown(shape), shown(self.batch_shape), shown(event))
  end
  return value
end

local function checked_sample(self, what, value)
  value = checked_value(self, what, value)
  if self._validate then
    check(self.class.name .. ":" .. what, "the value", value, self.support,
      "validate_args = false takes any value")
  end
  return value
end

--- Log of the density, or of the probability, of values.
---@param value any tensor that broadcasts to sample + batch_shape + event_shape, or a number
---@return table tensor of sample + batch_shape
function METHODS:log_prob(value)
  local fn = own(self, "log_prob")
  return fn(self, checked_sample(self, "log_prob", value))
end

--- Probability of a number of at most value.
---@param value any tensor or number
function METHODS:cdf(value)
  local fn = own(self, "cdf")
  return fn(self, checked_sample(self, "cdf", value))
end

--- The number at which cdf is value, the inverse of cdf.
---@param value any tensor or number from 0 to 1
function METHODS:icdf(value)
  local fn = own(self, "icdf")
  return fn(self, checked_value(self, "icdf", value))
end

-- Draws of 16-bit parameters are made of float32's uniform numbers; those of transforms have the
-- dtype that these gave them.
local function rounded(self, x)
  local base = self
  while base do
    if rawget(base, "transforms") then return x end
    base = rawget(base, "base_dist")
  end
  return x:is_floating_point() and x:to(like(self).dtype) or x
end

--- Numbers drawn, without gradients.
---@param ... any the shape of the draws: d:sample(), d:sample(3), d:sample{2, 3}
---@return table tensor of that shape + batch_shape + event_shape
function METHODS:sample(...)
  local shape = join(shape_of(self.class.name .. ":sample", ...), self.batch_shape,
    self.event_shape)
  local draw = self.class.parts.rsample or own(self, "draw")
  local _ <close> = core.no_grad()
  return rounded(self, draw(self, shape))
end

--- Numbers drawn, with gradients in the parameters (a reparameterized sample).
---@param ... any the shape of the draws
function METHODS:rsample(...)
  local draw = self.class.parts.rsample
  if not (draw and self.has_rsample) then
    caller.raise("%s:rsample: its numbers have no gradient in the parameters; hint: sample, and" ..
      " log_prob times the reward (REINFORCE)", self.class.name)
  end
  return rounded(self, draw(self, join(shape_of(self.class.name .. ":rsample", ...),
    self.batch_shape, self.event_shape)))
end

--- Entropy in nats, of batch_shape.
function METHODS:entropy()
  return own(self, "entropy")(self)
end

--- e to the entropy.
function METHODS:perplexity() return self:entropy():exp() end

local bind_enumerate = options.signature("enumerate_support", "expand: boolean = true")

--- All values of a discrete distribution along a new first dim, of shape {n} + batch_shape +
--- event_shape; with {expand = false} of {n} + ones + event_shape.
---@param opts? {expand: boolean}
function METHODS:enumerate_support(opts)
  local expand = bind_enumerate(opts).expand
  local values = own(self, "values")(self)
  values = values:reshape(join({values.shape[1]}, ones(#self.batch_shape), self.event_shape))
  if not expand then return values end
  return values:expand(join({values.shape[1]}, self.batch_shape, self.event_shape))
end

-- A distribution with the same fields.
function distribution.copy(self)
  local copy = {}
  for key, value in next, self do copy[key] = value end
  return setmetatable(copy, Meta)
end

--- The same distribution with a larger batch_shape, to which the own one broadcasts; its
--- parameters are views.
---@param ... any the batch_shape: d:expand{3, 2}
function METHODS:expand(...)
  local class, shape = self.class, shape_of(self.class.name .. ":expand", ...)
  local to = broadcast(self.batch_shape, shape)
  if not to or #to ~= #shape or shown(to) ~= shown(shape) then
    caller.raise("%s:expand: batch_shape %s does not broadcast to %s", class.name,
      shown(self.batch_shape), shown(shape))
  end
  if class.parts.expand then return class.parts.expand(self, shape) end
  local copy = distribution.copy(self)
  for _, name in ipairs(class.tensors) do
    local p, dims = copy[name], class.parameters[name].event_dim
    if p then
      local own_shape = p.shape
      copy[name] = p:expand(join(shape, part(own_shape, #own_shape - dims + 1, #own_shape)))
    end
  end
  copy.batch_shape = shape
  return copy
end

-- ---- random numbers for draws ----

-- Uniform numbers in [0, 1), of float32 for 16-bit parameters: in 16 bits 1 is among them, and too
-- few others. Normal numbers, as the distribution's parameters are.
function distribution.uniform(self, shape)
  local p = like(self)
  local dtype = p.dtype == "float64" and "float64" or "float32"
  return core.rand(shape, {dtype = dtype, device = p.device})
end
function distribution.normal(self, shape)
  local p = like(self)
  return core.randn(shape, {dtype = p.dtype, device = p.device})
end

-- ---- classes ----

local Class = {__name = "demilune.Distribution class"}
Class.__index = Class
function Class:__tostring() return "distributions." .. self.name end

function Class:__call(...)
  local o = self.bind(...)
  local validate = o.validate_args
  if validate == nil then validate = validates end
  local made = {class = self, event_shape = {}, _validate = validate}
  local given = tensors_of(o, self.tensors)
  -- the batch_shape, and the parameters expanded to it
  local batch = {}
  for _, name in ipairs(self.tensors) do
    local p, dims = given[name], self.parameters[name].event_dim
    if p then
      if #p.shape < dims then
        caller.raise("%s: %s has shape %s, wanted %s", self.name, name, shown(p.shape),
          tostring(self.parameters[name]))
      end
      local wider = broadcast(batch, part(p.shape, 1, #p.shape - dims))
      if not wider then
        caller.raise("%s: %s has shape %s, which does not broadcast with %s of the parameters" ..
          " before it", self.name, name, shown(p.shape), shown(batch))
      end
      batch = wider
    end
  end
  made.batch_shape = batch
  for _, name in ipairs(self.tensors) do
    local p, constraint = given[name], self.parameters[name]
    if p then
      if validate then check(self.name, name, p, constraint) end
      made[name] = p:expand(join(batch,
        part(p.shape, #p.shape - constraint.event_dim + 1, #p.shape)))
    end
  end
  setmetatable(made, Meta)
  if self.parts.init then self.parts.init(made, o) end
  return made
end

function distribution.is_class(v) return getmetatable(v) == Class end

-- A table that has what another one has, too.
local function extended(own_parts, others) return setmetatable(own_parts, {__index = others}) end

--- A class of distributions; see the head of this file. It is called with its arguments.
---@param def table
function distribution.class(def)
  local super = def.super
  local properties, methods = def.properties or {}, def.methods or {}
  local class = setmetatable({name = def.name, super = super,
    parts = extended(def, super and super.parts),
    properties = extended(properties, super and super.properties or PROPERTIES),
    methods = extended(methods, super and super.methods or METHODS),
    all_properties = {}, known = {}, tensors = {}}, Class)
  class.parameters = class.parts.parameters
  local names
  class.bind, names = read_arguments(def.name, class.parts.arguments)
  for _, name in ipairs(names) do
    class.known[name] = true
    if class.parameters[name] then class.tensors[#class.tensors + 1] = name end
  end
  for _, from in ipairs{PROPERTIES, super and super.all_properties or {}, properties} do
    for name in pairs(from) do class.all_properties[name] = true end
  end
  return class
end

distribution.check, distribution.part, distribution.shown = check, part, shown
distribution.broadcast, distribution.ones, distribution.like = broadcast, ones, like

return distribution
