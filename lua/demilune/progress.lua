-- dm.progress: a bar for loops.
--
--   for i, x, y in dm.progress(train, {desc = "epoch 1"}) do
--     ...
--     dm.progress.set{loss = loss, samples = #x}
--   end
--
-- On a terminal one line is redrawn, at most ten times a second; elsewhere a
-- line is written now and then, and one at the end.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local closing = require "demilune.closing"
local terminal = require "demilune.terminal"

local REDRAW_S, LINE_S = 0.1, 10 -- on a terminal; elsewhere
local BAR_WIDTH = 20

local progress = {}
local bars = {} -- those that run, the innermost last

-- ---- text ----

-- 75 -> "1:15", 3675 -> "1:01:15"
local function clock(seconds)
  local s = math.floor(seconds + 0.5)
  if s >= 3600 then return ("%d:%02d:%02d"):format(s // 3600, s // 60 % 60, s % 60) end
  return ("%d:%02d"):format(s // 60, s % 60)
end

local function short(v)
  if math.type(v) ~= "float" then return tostring(v) end
  if v ~= v then return "nan" end -- C writes some as -nan
  local size = math.abs(v)
  local plain = size == 0 or size >= 1e-3 and size < 1e5
  return (plain and "%.4f" or "%.3e"):format(v)
end

-- Enough digits to compare.
local function rate(per_second)
  return (per_second >= 100 and "%.0f" or "%.3g"):format(per_second)
end

local function drawing(share)
  local full, on, off = math.floor(share * BAR_WIDTH), "#", "."
  if terminal.is_utf8() then on, off = "█", "░" end
  return on:rep(full) .. off:rep(BAR_WIDTH - full)
end

-- ---- one bar ----

local Bar = {}
Bar.__index = Bar

function Bar:text(now, has_bar)
  local elapsed = math.max(now - self.began, 1e-9)
  local parts = {self.desc}
  local function put(text, ...) parts[#parts + 1] = text:format(...) end
  if self.total then
    local share = self.total > 0 and math.min(self.done / self.total, 1) or 1
    put("%3d%%", math.floor(100 * share))
    if has_bar then put("%s", drawing(share)) end
    put("%d/%d", self.done, self.total)
  else
    put("%d", self.done)
  end
  if self.samples > 0 then put("%s samples/s", rate(self.samples / elapsed))
  elseif self.done > 0 then put("%s it/s", rate(self.done / elapsed)) end
  if self.total and self.done > 0 and self.done < self.total then
    put("%s left", clock(elapsed / self.done * (self.total - self.done)))
  else
    put("%s", clock(elapsed))
  end
  for _, name in ipairs(self.names) do put("%s %s", name, short(self.values[name])) end
  return table.concat(parts, "  ")
end

-- The text as it fits the terminal's line: without the bar, or cut, where there is no space.
function Bar:line(now)
  if not self.terminal then return self:text(now) end
  local columns = terminal.size(self.file)
  local text = self:text(now, true)
  if (utf8.len(text) or #text) < columns then return text end
  text = self:text(now)
  local stop = utf8.len(text) and utf8.offset(text, columns)
  return stop and text:sub(1, stop - 1) or text
end

-- Writes it when it is time, or when it is the last time.
function Bar:show(last)
  local now = core.now()
  if not last and now - self.shown < (self.terminal and REDRAW_S or LINE_S) then return end
  self.shown = now
  if self.terminal then
    self.file:write("\r", self:line(now), "\27[K", last and "\n" or "")
  else
    self.file:write(self:line(now), "\n")
  end
  self.file:flush()
end

-- Ends it, and the loader below, on every way out of the loop; once.
function Bar:close()
  if self.closed then return end
  self.closed = true
  local _ <close> = self.source
  for k = #bars, 1, -1 do
    if bars[k] == self then table.remove(bars, k) end
  end
  self:show(true)
end
Bar.__close = Bar.close

-- Bars of loops inside this one's that `break` left without closing them.
local function close_inner(bar)
  for k = #bars, 1, -1 do
    if bars[k] == bar then break end
    bars[k]:close()
  end
end

local function new_bar(opts, total, source)
  local now, file, on_terminal = core.now(), opts.file, terminal.is_terminal(opts.file)
  if not file then file, on_terminal = terminal.of_bars() end
  local bar = setmetatable({
    desc = opts.desc, total = opts.total or total, file = file, terminal = on_terminal,
    source = source, began = now, done = 0, samples = 0, names = {}, values = {},
    shown = on_terminal and now - REDRAW_S or now, -- on a terminal it is there at once
  }, Bar)
  bars[#bars + 1] = bar
  bar:show()
  return bar
end

-- ---- the iterated object ----

local function count_to(n)
  local i = 0
  return function()
    i = i + 1
    if i <= n then return i end
  end
end

-- A loader's iterator, and the batches to come: fewer amid an epoch.
local function rounds_of_loader(over)
  local total = over.len and over:len() or nil
  if total and over.state_dict then total = math.max(total - over:state_dict().position, 0) end
  local f, state, control, source = over:iter()
  return f, state, control, source, total
end

-- Iterator, state, control and closing value, and how many rounds (nil: unknown).
local function rounds_of(over)
  if math.type(over) == "integer" then return count_to(over), nil, nil, nil, over end
  if type(over) == "function" then return over end
  if type(over) == "table" and over.iter then return rounds_of_loader(over) end
  if type(over) == "table" then
    local f, state, control = ipairs(over)
    return f, state, control, nil, #over
  end
  caller.raise("progress: wanted a loader, a list, a count or an iterator, got %s", type(over))
end

local bind = options.signature("progress",
  "over: rounds, desc?: string, total?: integer, file?: value")

-- progress(over, {desc =, total =, file =}) -> what a generic for takes. `over`
-- is a DataLoader, a list, a count, or an iterator function.
local function begin(_, ...)
  local opts = bind(...)
  local over = opts.over
  if opts.file and io.type(opts.file) ~= "file" then
    caller.raise("progress: file: an open file expected, got %s", io.type(opts.file)
      or type(opts.file))
  end
  local f, state, control, source, total = rounds_of(over)
  local bar = new_bar(opts, total, source)
  local started = false
  local function deliver(first, ...)
    control = first
    if first == nil then bar:close() end
    return first, ...
  end
  return function()
    close_inner(bar)
    if started then
      bar.done = bar.done + 1
      bar:show()
    end
    started = true
    return deliver(f(state, control))
  end, nil, nil, closing(bar, 1)
end

--- progress.set{loss = 0.3, samples = 128}: values shown next to the innermost bar that
--- runs; `samples` are added to those it has seen, for the rate. A tensor is read
--- at once, which waits for its device. Nothing happens when no bar runs.
function progress.set(values)
  if type(values) ~= "table" then
    caller.raise("progress.set: a table expected, got %s", type(values))
  end
  local bar, fresh = bars[#bars], {}
  if not bar then return end
  for name, value in pairs(values) do
    if name == "samples" then
      bar.samples = bar.samples + value
    else
      if bar.values[name] == nil then fresh[#fresh + 1] = name end
      bar.values[name] = core.is_tensor(value) and value:item() or value
    end
  end
  table.sort(fresh)
  table.move(fresh, 1, #fresh, #bar.names + 1, bar.names)
  bar:show()
end

progress.progress = setmetatable(progress, {__call = begin})

return progress
