-- Transforms that are made of others: applied or not, one of them, all in a random order. The
-- choice is drawn in Lua, so that the loader runs them in its Lua workers.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local step = require "demilune.transforms.step"
local transforms = require "demilune.transforms"

local choice = {}

-- A class of transforms with a list of others.
local function class(name)
  local c = step.class(name)
  function c:describe()
    local words = {}
    for i, one in ipairs(self) do words[i] = tostring(one) end
    words[#words + 1] = self.p and ("p = %g"):format(self.p)
    return table.concat(words, ", ")
  end
  return c
end

-- A copy of the list; raises where an element is no transform.
local function listed(name, list)
  if #list == 0 then caller.raise("%s: wanted a list of transforms, got none", name) end
  for i, one in ipairs(list) do
    if not transforms.is_callable(one) then
      caller.raise("%s: element %d is a %s, wanted a transform", name, i, type(one))
    end
  end
  return {table.unpack(list)}
end

local RandomApply = class "RandomApply"
function RandomApply:apply(x)
  if step.uniform(0, 1) >= self.p then return x end
  for _, one in ipairs(self) do x = one(x) end
  return x
end

--- All of these, one after the other, with probability p; else none.
---@param transforms table transforms, or functions of an image
---@param opts? table p (0.5)
local bind_apply = options.signature("RandomApply", "transforms: list, p: number = 0.5")
function choice.RandomApply(...)
  local o = bind_apply(...)
  local self = setmetatable(listed("RandomApply", o.transforms), RandomApply)
  self.p = step.probability("RandomApply", o.p)
  return self
end

local RandomChoice = class "RandomChoice"
function RandomChoice:apply(x)
  local at = step.uniform(0, self.total)
  for i, weight in ipairs(self.weights) do
    at = at - weight
    if at < 0 or i == #self then return self[i](x) end
  end
end

--- One of these.
---@param transforms table transforms, or functions of an image
---@param opts? table p: how likely each is, relative to the others; all alike without
local bind_choice = options.signature("RandomChoice", "transforms: list, p?: numbers")
function choice.RandomChoice(...)
  local o = bind_choice(...)
  local self = setmetatable(listed("RandomChoice", o.transforms), RandomChoice)
  self.weights, self.total = {}, 0
  if o.p and #o.p ~= #self then
    caller.raise("RandomChoice: p wants one number for each of %d transforms", #self)
  end
  for i = 1, #self do
    self.weights[i] = o.p and o.p[i] or 1
    if self.weights[i] < 0 then
      caller.raise("RandomChoice: p[%d] is %s, wanted a number from 0", i, tostring(o.p[i]))
    end
    self.total = self.total + self.weights[i]
  end
  if self.total == 0 then caller.raise "RandomChoice: p is 0 for all transforms" end
  return self
end

local RandomOrder = class "RandomOrder"
function RandomOrder:apply(x)
  for _, i in ipairs(core.randperm(#self, {device = "cpu"}):totable()) do x = self[i](x) end
  return x
end

--- All of these, in a random order.
---@param transforms table transforms, or functions of an image
local bind_order = options.signature("RandomOrder", "transforms: list")
function choice.RandomOrder(...)
  return setmetatable(listed("RandomOrder", bind_order(...).transforms), RandomOrder)
end

return choice
