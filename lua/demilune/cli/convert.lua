-- demilune convert IN OUT: the tensors of a file, written in another format.

local command = require "demilune.cli.command"

local convert = {}

local function fail(...) return command.fail("convert", ...) end

-- A message without the line of Lua, which is not the user's.
local function plain(text) return (tostring(text):gsub("^[^%s]*:%d+: ", "")) end

-- Whether a path ends so.
local function ends(path, ending) return path:lower():sub(-#ending) == ending end

-- The tensors of a table by their path within it, "model.layer1.weight"; and how many values are
-- none, which a file of tensors cannot hold.
local function flat(value, prefix, into)
  local core = require "demilune.core"
  local left_out = 0
  for key, item in pairs(value) do
    local name = prefix == "" and tostring(key) or prefix .. "." .. tostring(key)
    if core.is_tensor(item) then
      into[name] = item
    elseif type(item) == "table" then
      left_out = left_out + select(2, flat(item, name, into))
    else
      left_out = left_out + 1
    end
  end
  return into, left_out
end

local function read(dm, path)
  if ends(path, ".npz") then return dm.data.read_npz(path) end
  if ends(path, ".npy") then
    local x, why = dm.data.read_npy(path)
    return x and {array = x}, why
  end
  return dm.load(path)
end

local function write(dm, path, tensors)
  if ends(path, ".npz") then return dm.data.write_npz(path, tensors) end
  return dm.save(path, tensors)
end

--- The tool; gives the exit status.
function convert.main(args)
  local from, to = args[1], args[2]
  if not to or args[3] then return fail("wants two files: demilune convert IN OUT") end
  if not (ends(to, ".safetensors") or ends(to, ".npz")) then
    return fail("'%s' ends in neither .safetensors nor .npz, which can be written", to)
  end
  local dm = require "demilune"
  local fine, found, why = pcall(read, dm, from)
  if not fine then return fail("%s", plain(found)) end
  if type(found) ~= "table" then return fail("%s", why or from .. " holds no tensors") end
  local tensors, left_out = flat(found, "", {})
  if next(tensors) == nil then return fail("%s holds no tensors", from) end
  local done, written, problem = pcall(write, dm, to, tensors)
  if not done or not written then return fail("%s", plain(done and problem or written)) end
  local count, bytes = 0, 0
  for _, x in pairs(tensors) do count, bytes = count + 1, bytes + x:numel() * x:element_size() end
  print(("%s: %d tensors, %.1f MiB%s"):format(to, count, bytes / 2 ^ 20, left_out > 0
    and ("; %d values that are no tensors were left out"):format(left_out) or ""))
  return 0
end

return convert
