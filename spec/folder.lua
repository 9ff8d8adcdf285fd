-- A temporary folder for the files of a spec: setup(folder.make), teardown(folder.remove).

local folder = {}
local root

function folder.make()
  root = os.tmpname()
  os.remove(root)
  assert(os.execute("mkdir " .. root))
end
function folder.remove() os.execute("rm -rf " .. root) end

-- Without a name: the path of the folder itself.
function folder.path(name) return name and root .. "/" .. name or root end

function folder.read(name)
  local f <close> = assert(io.open(folder.path(name), "rb"))
  return f:read "a"
end

-- Gives the path.
function folder.write(name, text)
  local f <close> = assert(io.open(folder.path(name), "wb"))
  f:write(text)
  return folder.path(name)
end

-- The output of a command, and its exit status.
function folder.run(command)
  local p = assert(io.popen(command .. " 2>&1"))
  local text = p:read "a"
  local _, _, code = p:close()
  return text, code
end

return folder
