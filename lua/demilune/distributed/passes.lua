-- Backward passes whose gradients other processes average: what is done at the end of one.

local core = require "demilune.core"
local caller = require "demilune.caller"

local passes = {}

-- All that have a reducer, by a number that is the same on all ranks: {owner =, reducer =, finish
-- =}.
local live, n_made = {}, 0 -- with holes

--- Calls finish(owner) after each backward pass in which the reducer has sent.
---@param owner table is held weakly
function passes.add(owner, reducer, finish)
  n_made = n_made + 1
  live[n_made] = setmetatable({owner = owner, reducer = reducer, finish = finish}, {__mode = "v"})
end

--- Closes the owner's reducer, and forgets it.
function passes.close(owner)
  for i = 1, n_made do
    if live[i] and live[i].owner == owner then
      live[i].reducer:close()
      live[i] = nil
    end
  end
end

--- Waits for what the reducer has sent, and lets the gradients be the averages.
---@param name string the first word of a message
---@param by_active boolean whether the sum is divided by the ranks that had data
---@return number active the share of the ranks that had data
function passes.settle(name, reducer, by_active)
  local _ <close> = setmetatable({}, {__close = function() -- after an error
    if reducer:is_open() then reducer:settle() end
  end})
  local done, why
  repeat done, why = reducer:wait() until done ~= false
  if done == nil then caller.raise("%s: %s", name, why) end
  return reducer:settle(by_active)
end

core._reducer_waiter(function()
  for i = 1, n_made do
    local one = live[i]
    if one and not one.owner then
      live[i] = nil
    elseif one and one.reducer:is_open() then
      one.finish(one.owner)
    end
  end
end)

return passes
