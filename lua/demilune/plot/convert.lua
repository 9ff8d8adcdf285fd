-- SVG to PNG by librsvg's program rsvg-convert (Debian's package librsvg2-bin): drawing text and
-- curves takes a library of its own, and whoever saves SVG alone needs none.

local core = require "demilune.core"

local convert = {}

local HINT = "hint: install rsvg-convert (Debian: apt install librsvg2-bin), or save as .svg"

-- The program's standard output, given a file; or nil and a message. The only name
-- in the command is one that os.tmpname made.
local function run(path, zoom)
  local command = ("rsvg-convert --zoom %d '%s' 2>/dev/null"):format(zoom, path)
  local started, pipe = pcall(io.popen, command)
  if not started or not pipe then return nil, "no program can be started; " .. HINT end
  local bytes = pipe:read "a"
  local good, _, status = pipe:close()
  if good and bytes:sub(1, 8) == "\x89PNG\r\n\x1a\n" then return bytes end
  if status == 127 then return nil, "rsvg-convert is not installed; " .. HINT end
  return nil, ("rsvg-convert failed with status %s"):format(tostring(status))
end

--- The bytes of a PNG file that shows an SVG document; or nil and a message.
---@param document string
---@param zoom integer pixels of the result to one of the document
---@return string|nil
---@return string|nil message
function convert.png(document, zoom)
  local named, path = pcall(os.tmpname)
  if not named then return nil, path end
  local bytes
  local written, why = core._write_file("save", path, document)
  if written then bytes, why = run(path, zoom) end
  os.remove(path)
  return bytes, why
end

return convert
