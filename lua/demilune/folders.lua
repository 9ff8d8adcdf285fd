-- Folders, which plain Lua cannot make: by the shell's mkdir.

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

return folders
