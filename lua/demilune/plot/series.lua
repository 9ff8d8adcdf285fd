-- Numbers of the caller as lists, and lists reduced to what pixels or dots can show.

local core = require "demilune.core"
local caller = require "demilune.caller"
local scale = require "demilune.plot.scale"

local series = {}

-- ---- from tensors and tables ----

local function of_tensor(what, name, t)
  local longest = 1
  for d = 1, t:dim() do longest = math.max(longest, t:size(d)) end
  if t:numel() > longest then
    caller.raise("%s: %s has shape %s, wanted (n); hint: x:unbind(2) gives a list of columns", what,
      name, t.shape)
  end
  local _ <close> = core.no_grad()
  return t:detach():to("cpu"):double():reshape(-1):totable()
end

local function number_of(v)
  if core.is_tensor(v) and v:numel() == 1 then v = v:item() end
  if type(v) == "boolean" then return v and 1.0 or 0.0 end
  return type(v) == "number" and v + 0.0 or nil
end

--- The numbers of a tensor (n) or of a list of numbers or tensors of one element.
---@param what string the function, for messages
---@param name string the argument
---@param v any
---@return number[]
function series.numbers(what, name, v)
  if core.is_tensor(v) then return of_tensor(what, name, v) end
  if type(v) ~= "table" then
    caller.raise("%s: %s is a %s, wanted a tensor or a list of numbers", what, name, type(v))
  end
  local list = {}
  for i, item in ipairs(v) do
    list[i] = number_of(item)
    if not list[i] then
      caller.raise("%s: %s: element %d is a %s, wanted a number", what, name, i, type(item))
    end
  end
  local key = next(v, #list > 0 and #list or nil)
  if type(key) == "string" then
    caller.raise("%s: %s is a table with the name '%s', wanted a list of numbers; hint: options go "
      .. "into a table behind it", what, name, key)
  end
  return list
end

--- {1, 2, ..., n}, as floats.
---@param n integer
---@return number[]
function series.positions(n)
  local list = {}
  for i = 1, n do list[i] = i + 0.0 end
  return list
end

--- Whether all are integers; nan and the infinities are none.
---@param list number[]
---@return boolean
function series.are_whole(list)
  for _, v in ipairs(list) do
    if v % 1 ~= 0 then return false end
  end
  return true
end

--- The lowest and the highest of the values in lists that an axis can show, nil without any; and
--- how many others there are.
---@param lists table[]
---@param log boolean
---@return number|nil lo
---@return number|nil hi
---@return integer lost
function series.bounds(lists, log)
  local least, most = log and scale.SMALLEST or -scale.LARGEST, scale.LARGEST
  local lo, hi, lost = math.huge, -math.huge, 0
  for _, list in ipairs(lists) do
    for i = 1, #list do
      local v = list[i]
      if v >= least and v <= most then
        if v < lo then lo = v end
        if v > hi then hi = v end
      else
        lost = lost + 1
      end
    end
  end
  if hi < lo then return nil, nil, lost end
  return lo, hi, lost
end

-- ---- to pixels ----

--- Runs of points {x1, y1, x2, y2, ...} between gaps, in units of the drawing: x from 0 to width,
--- y from 0 at the top to height. Of neighbours in one column of units the first, the lowest, the
--- highest and the last are kept, which draws the same line.
---@param s table {x = list, y = list}
---@param x_axis table a scale
---@param y_axis table
---@param width number
---@param height number
---@return table[] runs
function series.runs(s, x_axis, y_axis, width, height)
  local runs, run, column = {}, nil, nil
  local first, low, high, last -- of the column, each an index
  local xs, ys, px, py = s.x, s.y, {}, {}
  local function put(i)
    run[#run + 1], run[#run + 2] = px[i], py[i]
  end
  local function close_column()
    if not column then return end
    local order = {first, math.min(low, high), math.max(low, high), last}
    for k = 1, 4 do
      if k == 1 or order[k] ~= order[k - 1] then put(order[k]) end
    end
    column = nil
  end
  for i = 1, #ys do
    local x, y = xs[i], ys[i]
    if not (x_axis:shows(x) and y_axis:shows(y)) then
      close_column()
      run = nil
    else
      x, y = x_axis:position(x) * width, (1 - y_axis:position(y)) * height
      px[i], py[i] = x, y
      local at = x // 1
      if at ~= column then
        close_column()
        if not run then
          run = {}
          runs[#runs + 1] = run
        end
        column, first, low, high, last = at, i, i, i, i
      else
        if y < py[low] then low = i end
        if y > py[high] then high = i end
        last = i
      end
    end
  end
  close_column()
  return runs
end

--- Points {x1, y1, x2, y2, ...} in units of the drawing, one for each square of `cell` units that
--- has any.
---@param s table {x = list, y = list}
---@param cell number
---@return number[]
function series.points(s, x_axis, y_axis, width, height, cell)
  local seen, list = {}, {}
  local across = width // cell + 2
  for i = 1, #s.y do
    local x, y = s.x[i], s.y[i]
    if x_axis:shows(x) and y_axis:shows(y) then
      x, y = x_axis:position(x) * width, (1 - y_axis:position(y)) * height
      local key = y // cell * across + x // cell
      if not seen[key] then
        seen[key] = true
        list[#list + 1], list[#list + 2] = x, y
      end
    end
  end
  return list
end

return series
