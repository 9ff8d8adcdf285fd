-- Folders, which plain Lua cannot make, by the shell's mkdir; and texts as whole files.

local folders = {}

--- A text as one word of the shell.
---@param text string
---@return string
function folders.quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

--- Makes a folder and those above it, where they lack; true, or nil where that fails.
---@param path string
---@return boolean?
function folders.make(path)
  return os.execute("mkdir -p -- " .. folders.quoted(path) .. " 2>/dev/null")
end

--- Writes a text over a file.
---@param path string
---@param text string
---@return boolean? true; nil where it could not be written
---@return string? why
function folders.write(path, text)
  local file, why = io.open(path, "w")
  if not file then return nil, why end
  local fine, problem = file:write(text)
  local closed, late = file:close()
  if fine and closed then return true end
  return nil, problem or late
end

return folders
