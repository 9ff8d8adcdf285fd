-- demilune.jupyter: values shown in a notebook, whose kernel is kernel.lua.
--
--   local chart = dm.jupyter.display(dm.plot.lines(losses))
--   chart:update(dm.plot.lines(losses))              -- the same output, drawn anew
--   dm.jupyter.display{["text/html"] = "<b>done</b>"}
--
--   display clear is_running is_output
--
-- Outside of a notebook values are printed, so that a script runs in both.

local bundle = require "demilune.jupyter.bundle"
local options = require "demilune.options"

local jupyter = {}

-- send(message) of the kernel that runs this program; nil outside of a notebook.
local send

--- Sets what takes messages to the notebook; kernel.lua alone calls it.
---@param fn fun(message: table)?
function jupyter._connect(fn) send = fn end

--- Whether the program runs in a notebook.
---   if dm.jupyter.is_running() then dm.jupyter.display(fig) else assert(fig:save "loss.svg") end
---@return boolean
function jupyter.is_running() return send ~= nil end

local Output = {class = "Output"}
Output.__index = Output

-- Shows the formats of a value; id is that of an output which may be drawn anew.
local function show(value, id, update)
  local data, metadata = bundle.of(value)
  if not send then return print(data["text/plain"] or bundle.any(data)) end
  send{type = "display", data = data, metadata = metadata, id = id, update = update}
end

local bind_update = options.signature("output:update", "value: any")

--- Shows another value in the same output.
---   chart:update(dm.plot.lines(losses))
---@param value any as for display
function Output:update(...) show(bind_update(...).value, self.id, true) end

function Output:__tostring() return "output " .. self.id end

--- Whether a value is what display gives.
---   dm.jupyter.is_output(chart)
---@param value any
---@return boolean
function jupyter.is_output(value) return getmetatable(value) == Output end

local bind_display = options.signature("display", "value: any")
local count = 0

--- Shows a value below the cell: a figure, an image or a list of images is drawn, a tensor and a
--- module have a table and a tree, other values their text.
---   dm.jupyter.display(dm.plot.hist(weights))
---@param value any a value; or {[MIME type] = text}, with base64 for bytes
---@return table output output:update(value) draws another value in its place
function jupyter.display(...)
  local o = bind_display(...)
  count = count + 1
  local output = setmetatable({id = ("demilune-%d-%x"):format(count, os.time())}, Output)
  show(o.value, output.id)
  return output
end

local bind_clear = options.signature("clear", "wait: boolean = false")

--- Removes the outputs of the running cell so far; elsewhere it does nothing.
---   dm.jupyter.clear{wait = true}
---@param opts? table {wait = false (true: when the next output comes, which avoids flicker)}
function jupyter.clear(...)
  local o = bind_clear(...)
  if send then send{type = "clear", wait = o.wait} end
end

return jupyter
