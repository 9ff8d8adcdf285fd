-- Parameters of which this rank has consecutive elements only, as nn.parallel.fully_shard leaves
-- them: what they are slices of, and what is whole made of them.

local core = require "demilune.core"
local caller = require "demilune.caller"
local collectives = require "demilune.distributed.collectives"
local divided = require "demilune.distributed.divided"
local shard = require "demilune.distributed.shard"

local slices = {}

--- What a parameter {n} of this rank is a slice of.
---@class demilune.distributed.Slice
---@field name string of the parameter in the module that was divided
---@field shape integer[] of the whole
---@field owners table[] {{index = of the rank in the group, from = elements before, n =}, ...}, one
--- for each rank, in the order of the elements; n may be 0
---@field from integer elements of the whole before this rank's
---@field n integer this rank's
---@field group demilune.distributed.Group
---@field gather fun(own: demilune.Tensor): demilune.Tensor what is whole of a tensor {n} of which
--- each rank has its slice; within keep_shares a demilune.distributed.Shard. All ranks of the group
--- call it
---@field cut fun(whole: demilune.Tensor): demilune.Tensor this rank's slice of what is whole

local slice_of = setmetatable({}, {__mode = "k"}) -- parameter -> its Slice
local name_of = setmetatable({}, {__mode = "k"})  -- parameter that was whole -> its name
local keeps_shares = false

local function gather(slice, own)
  if keeps_shares then
    return shard.new{shape = slice.shape, dtype = own.dtype, owners = slice.owners, own = own,
      group = slice.group}
  end
  local most, parts = 0, {}
  for _, owner in ipairs(slice.owners) do most = math.max(most, owner.n) end
  if most == 0 then return own:reshape(slice.shape) end
  local padded = core.zeros(most, {dtype = own.dtype, device = own.device})
  padded:narrow(1, 1, slice.n):copy_(own)
  for i, part in ipairs(collectives.all_gather(padded, slice.group)) do
    parts[i] = part:narrow(1, 1, slice.owners[i].n)
  end
  return core.cat(parts):reshape(slice.shape)
end

--- Notes that p is a slice.
---@param p demilune.Tensor
---@param slice demilune.distributed.Slice without its functions, which it gets
function slices.note(p, slice)
  function slice.gather(own) return gather(slice, own) end
  function slice.cut(whole) return whole:reshape(-1):narrow(1, slice.from + 1, slice.n) end
  slice_of[p] = slice
  divided.note(p, slice.group)
end

--- The slice that p is; nil for a parameter that is whole.
---@return demilune.distributed.Slice?
function slices.of(p) return slice_of[p] end

--- Whether parameters of a module are slices.
---@param module table
---@return boolean
function slices.is_divided(module)
  if next(slice_of) == nil then return false end
  for _, p in module:named_parameters() do
    if slice_of[p] then return true end
  end
  return false
end

--- Notes that a parameter is no longer that of a module, where a slice of it is.
---@param p demilune.Tensor
---@param name string
function slices.replace(p, name) name_of[p] = name end

--- Whether a parameter was replaced by a slice.
function slices.is_replaced(p) return name_of[p] ~= nil end

--- Raises where an optimizer still has a parameter that is no longer its module's.
---@param name string the first word of the message
---@param groups table[] of the optimizer
function slices.check_current(name, groups)
  if next(name_of) == nil then return end
  for _, group in ipairs(groups) do
    for _, p in ipairs(group.params) do
      if name_of[p] then
        caller.raise("%s: parameter '%s' was made a slice by fully_shard after the optimizer was "
          .. "made, and is gone; hint: the optimizer comes after fully_shard", name, name_of[p])
      end
    end
  end
end

-- ---- forwards under way ----

local scopes = {} -- of the units whose forwards run, the outermost first

--- Notes that a unit's forward has begun. scope() begins it once more, and gives a value whose
--- close ends that.
---@param scope fun(): table
function slices.open(scope) scopes[#scopes + 1] = scope end

--- Notes that it has ended.
function slices.close(scope)
  for i = #scopes, 1, -1 do
    if scopes[i] == scope then
      table.remove(scopes, i)
      return
    end
  end
end

--- The scopes of the units whose forwards run; nil where none does.
---@return function[]?
function slices.opened()
  return #scopes > 0 and table.move(scopes, 1, #scopes, 1, {}) or nil
end

local REOPENED = {__close = function(list, failure)
  for i = #list, 1, -1 do getmetatable(list[i]).__close(list[i], failure) end
end}

--- Begins forwards once more, as a checkpoint does, until the value that it returns is closed.
---@param list function[]? of opened()
function slices.reopen(list)
  if not list then return nil end
  local closed = setmetatable({}, REOPENED)
  local fine, why = pcall(function()
    for i, scope in ipairs(list) do closed[i] = scope() end
  end)
  if fine then return closed end
  REOPENED.__close(closed, why)
  error(why, 0)
end

-- ---- states ----

--- Calls fn, within which gather gives the shares as they are, for distributed.save.
---@return any what fn returns
function slices.keep_shares(fn)
  local before = keeps_shares
  keeps_shares = true
  local _ <close> = setmetatable({}, {__close = function() keeps_shares = before end})
  return fn()
end

return slices
