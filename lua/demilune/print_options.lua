-- dm.set_printoptions: how tensors are written as text (src/bind/print.c).

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local print_options = {}

-- PyTorch's, but for "default", which is this module's own way.
local PROFILES = {
  default = {},
  short = {precision = 2, threshold = 1000, edgeitems = 2, linewidth = 80},
  full = {precision = 4, threshold = math.huge, edgeitems = 3, linewidth = 80},
}
local NAMES = {"precision", "threshold", "edgeitems", "linewidth"}

local current = {} -- what was set; the rest is this module's own way

local bind = options.signature("set_printoptions", [[precision?: integer, threshold?: number,
  edgeitems?: integer, linewidth?: integer, profile?: 'default'|'short'|'full',
  sci_mode?: boolean]])

--- Sets how tensors are printed from now on. precision: the digits behind the point; threshold:
--- tensors of more elements show their edges alone, edgeitems at each end of a dim; linewidth:
--- characters in a line; sci_mode: whether floats have exponents (nil: the far ones). profile sets
--- all: "default" is the way at first, "short" and "full" are PyTorch's. What is not given stays,
--- but for sci_mode, which is nil then.
---@param precision? integer
---@param threshold? number
---@param edgeitems? integer
---@param linewidth? integer
---@param profile? "default"|"short"|"full"
---@param sci_mode? boolean
function print_options.set_printoptions(...)
  local o = bind(...)
  local new = {}
  for _, name in ipairs(NAMES) do
    local value = o[name]
    if value and (value < 0 or value ~= value) then
      caller.raise("set_printoptions: %s is %s, wanted a number from 0", name, tostring(value))
    end
    local base = o.profile and PROFILES[o.profile] or current
    new[name] = value or base[name]
  end
  current = new
  core._set_printoptions(new.precision, new.threshold, new.edgeitems, new.linewidth, o.sci_mode)
end

return print_options
