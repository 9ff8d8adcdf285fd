-- The tools of the demilune command share this: complaints, and the reading of options.

local options = require "demilune.options"

local command = {}

--- Complains on standard error; gives the exit status.
---@param tool string "jupyter", of demilune jupyter; "" for the command itself
---@param text string as string.format takes it
---@return integer status
function command.fail(tool, text, ...)
  local name = tool == "" and "demilune" or "demilune " .. tool
  io.stderr:write(name, ": ", text:format(...), "\n")
  return 1
end

-- The names of options as a set, for the nearest one.
local function written(kinds)
  local set = {}
  for name in pairs(kinds) do set["--" .. name] = true end
  return set
end

--- Reads arguments: options such as --port 8000, --port=8000 and --user, and words.
---@param args string[]
---@param kinds table<string, "value"|"flag"> {port = "value", user = "flag"}
---@return table? given {port = "8000", user = true}; nil where an argument is none of these
---@return string[]|string words, or why not
function command.read(args, kinds)
  local given, words, i = {}, {}, 1
  while args[i] do
    local name, value = args[i]:match "^%-%-(%l+)=?(.*)$"
    local kind = kinds[name]
    if kind == "value" then
      if not args[i]:find "=" then i, value = i + 1, args[i + 1] end
      if not value then return nil, ("--%s wants a value"):format(name) end
      given[name] = value
    elseif kind == "flag" and not args[i]:find "=" then
      given[name] = true
    elseif args[i]:find "^%-" then
      local near = options.nearest(args[i], written(kinds))
      return nil, ("unknown option '%s'%s"):format(args[i],
        near and ("; did you mean '%s'?"):format(near) or "")
    else
      words[#words + 1] = args[i]
    end
    i = i + 1
  end
  return given, words
end

return command
