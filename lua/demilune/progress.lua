-- dm.progress: a bar for loops, on stderr. On a terminal one line is drawn
-- again at most ten times a second; elsewhere a line is written now and then.

local core = require "demilune.core"
local options = require "demilune.options"

local room = {}

local REDRAW_S, LINE_S, WIDTH = 0.1, 5.0, 24

local Bar = {}
Bar.__index = Bar

local function clock(seconds)
  if seconds ~= seconds or seconds == math.huge then return "?" end
  seconds = math.floor(seconds + 0.5)
  if seconds < 3600 then return ("%d:%02d"):format(seconds // 60, seconds % 60) end
  return ("%d:%02d:%02d"):format(seconds // 3600, seconds // 60 % 60, seconds % 60)
end

local function short(v)
  if math.type(v) == "float" then return ("%.4g"):format(v) end
  if core.is_tensor(v) then return ("%.4g"):format(v:item()) end
  return tostring(v)
end

-- Names and values shown at the end: bar:set{loss = 0.5}
function Bar:set(values)
  for key, value in pairs(values) do
    if self.values[key] == nil then self.names[#self.names + 1] = key end
    self.values[key] = value
  end
  table.sort(self.names)
  return self
end

function Bar:text()
  local spent = math.max(core.now() - self.began, 1e-9)
  local rate = (self.done - self.first) / spent
  local parts = {}
  if self.desc then parts[1] = self.desc end
  if self.total and self.total > 0 then
    local share = math.min(self.done / self.total, 1)
    local full = math.floor(share * WIDTH)
    parts[#parts + 1] = ("%3.0f%% [%s%s]"):format(share * 100, ("#"):rep(full),
      ("."):rep(WIDTH - full))
    parts[#parts + 1] = ("%d/%d"):format(self.done, self.total)
  else
    parts[#parts + 1] = tostring(self.done)
  end
  parts[#parts + 1] = clock(spent)
  if self.total and rate > 0 then
    parts[#parts + 1] = "left " .. clock((self.total - self.done) / rate)
  end
  parts[#parts + 1] = ("%.4g %s/s"):format(rate * self.per, self.unit)
  for _, key in ipairs(self.names) do
    parts[#parts + 1] = ("%s %s"):format(key, short(self.values[key]))
  end
  return table.concat(parts, "  ")
end

local function draw(self, last)
  local now = core.now()
  if not last and now - self.drawn < (self.terminal and REDRAW_S or LINE_S) then return end
  self.drawn = now
  if self.terminal then
    io.stderr:write("\r", self:text(), "\27[K", last and "\n" or "")
  else
    io.stderr:write(self:text(), "\n")
  end
  io.stderr:flush()
end

local DEFAULTS = {desc = options.NONE, total = options.NONE, unit = options.NONE}

-- The iterator quadruple of a loader, an array, a number or a function.
local function source(of)
  if type(of) == "number" then
    local function up(_, i)
      if i < of then return i + 1 end
    end
    return up, nil, 0, nil, of
  elseif type(of) == "function" then
    return of
  elseif type(of.iter) == "function" then
    local step, state, from, closing = of:iter()
    return step, state, from, closing, #of
  end
  local step, state, from = ipairs(of)
  return step, state, from, nil, #of
end

-- Starts the loop over what the bar was made for.
local function open(self)
  local step, state, from, closing, total = source(self.of)
  self.step, self.state, self.control, self.closing = step, state, from, closing
  self.total = self.total or total
  self.done = type(from) == "number" and from or 0
  self.first = self.done
  self.began, self.drawn = core.now(), core.now()
end

local function advance(self, first, ...)
  if first ~= nil then
    self.control = first
    self.done = math.type(first) and first or self.done + 1
    draw(self, false)
  end
  return first, ...
end

function Bar:__call()
  if not self.began then open(self) end
  return advance(self, self.step(self.state, self.control))
end

function Bar:iter() return self, nil, nil, self end

function Bar:close(fault)
  if self.closed then return end
  self.closed = true
  if self.began then draw(self, true) end
  local close = self.closing and getmetatable(self.closing).__close
  if close then close(self.closing, fault) end
end
Bar.__close = Bar.close

-- For `for i, x, y in dm.progress(loader, {desc = "epoch 1"}) do`. With values
-- to show: `local bar = dm.progress(loader)`, then `for i, x, y in bar:iter() do`
-- and bar:set{loss = v} inside. of: a loader, an array, a number, an iterator.
function room.progress(of, opts)
  local o = options.read("progress", opts, DEFAULTS)
  local per = type(of) == "table" and of.batch_size or 1
  local bar = setmetatable({of = of, desc = o.desc, total = o.total, per = per,
    unit = o.unit or per > 1 and "samples" or "it", names = {}, values = {},
    terminal = core.isatty(io.stderr)}, Bar)
  return bar:iter()
end

return room
