-- demilune jupyter: makes Lua with demilune a kernel of the user's Jupyter, and takes it away.
--
-- A kernel is a folder with kernel.json, by which Jupyter starts kernel.py with the Python that
-- has ipykernel; kernel.py starts the Lua that ran this command, with the modules that it found.

local command = require "demilune.cli.command"
local core = require "demilune.core"
local folders = require "demilune.folders"
local options = require "demilune.options"

local jupyter = {}

local USAGE = [[
demilune jupyter install [--user | --prefix P] [--python PYTHON]
demilune jupyter uninstall [--user | --prefix P] [--python PYTHON]

--user         for this user, the default
--prefix P     below P/share/jupyter, such as an environment of Python: what `python -m venv` made
--python P     the Python of Jupyter, where it is not found]]

local KINDS = {user = "flag", prefix = "value", python = "value"}
local NAME, TITLE = "demilune", "Lua (demilune)"

local quoted = folders.quoted

local function fail(...) return command.fail("jupyter", ...) end

-- The first line that a command prints; nil where it fails.
local function asked(question)
  local pipe <close> = assert(io.popen(question .. " 2>/dev/null"))
  local line = pipe:read "l"
  return pipe:close() and line or nil
end

-- ---- Python ----

-- The Python of the jupyter command, by its first line.
local function python_of_jupyter()
  local path = asked "command -v jupyter"
  local file = path and io.open(path)
  if not file then return nil end
  local first = file:read "l"
  file:close()
  return first and first:match "^#!%s*(/%S*python%S*)"
end

local TRIED = [[-c "import ipykernel, jupyter_client; import sys; print(sys.executable)"]]

-- The path of a Python that has ipykernel and jupyter_client; nil and what brings them.
local function find_python(given)
  local candidates = given and {given} or {python_of_jupyter(), "python3", "/usr/bin/python3"}
  for i = 1, 3 do
    local path = candidates[i] and asked(("%s %s"):format(quoted(candidates[i]), TRIED))
    if path then return path end
  end
  return nil, (given and ("'%s' has no ipykernel"):format(given) or "no Python has ipykernel")
    .. "; hint: apt install jupyter-notebook python3-ipykernel, or pip install jupyterlab"
end

-- Jupyter's command for kernels: kernelspec(python, "install", ...) -> its output, and success.
local function kernelspec(python, ...)
  local words = {quoted(python), "-m", "jupyter_client.kernelspecapp"}
  for _, word in ipairs{...} do words[#words + 1] = quoted(word) end
  local pipe <close> = assert(io.popen(table.concat(words, " ") .. " 2>&1"))
  local text = pipe:read "a"
  return text, pipe:close()
end

-- ---- the kernel's files ----

-- A path from the root, without "./" in it.
local function absolute(path)
  if path:sub(1, 1) ~= "/" then path = asked "pwd" .. "/" .. path end
  return (path:gsub("/%./", "/"))
end

-- The Lua that runs: the word before the script and its options.
local function interpreter()
  local arg, i = rawget(_G, "arg") or {}, 0
  while arg[i - 1] do i = i - 1 end
  local name = i < 0 and arg[i] or "lua5.4"
  return asked("command -v " .. quoted(name)) or name
end

-- The content of kernel.json, and the folder of these files.
local function description(python)
  local here = absolute(debug.getinfo(1, "S").source:match "^@(.*)/cli/jupyter%.lua$")
  local root = here:match "^(.*)/demilune$"
  local engine = absolute(package.searchpath("demilune.core", package.cpath))
  local settings = {lua = interpreter(), version = core._VERSION:match "%S+$",
    path = ("%s/?.lua;%s/?/init.lua"):format(root, root),
    cpath = engine:gsub("demilune/core(%.%w+)$", "?%1")}
  return {argv = {python, here .. "/jupyter/kernel.py", "-f", "{connection_file}"},
    display_name = TITLE, language = "lua", interrupt_mode = "signal",
    env = {DEMILUNE_KERNEL = core.json_encode(settings)}}
end

-- ---- the two actions ----

local ACTIONS = {}

function ACTIONS.install(python, o)
  local folder = os.tmpname()
  os.remove(folder)
  if not folders.make(folder) then return fail("cannot make the folder '%s'", folder) end
  local fine, why = folders.write(folder .. "/kernel.json",
    core.json_encode(description(python)) .. "\n")
  local text, done
  if fine then
    text, done = kernelspec(python, "install", folder, "--name", NAME, "--replace",
      o.prefix and "--prefix" or "--user", o.prefix)
  end
  os.remove(folder .. "/kernel.json")
  os.remove(folder)
  if not fine then return fail("%s", why) end
  if not done then return fail("jupyter kernelspec install: %s", text) end
  print(("'%s' is a kernel of Jupyter%s now; try: jupyter lab, jupyter notebook"):format(TITLE,
    o.prefix and " in " .. o.prefix or ""))
  return 0
end

-- The folder of the kernel of this user, by Jupyter's own words.
local function user_folder(python)
  return asked(quoted(python)
    .. " -c 'from jupyter_core.paths import jupyter_data_dir as d; print(d())'")
end

function ACTIONS.uninstall(python, o)
  local data = o.prefix and o.prefix .. "/share/jupyter" or user_folder(python)
  local folder = ("%s/kernels/%s"):format(data, NAME)
  local file = io.open(folder .. "/kernel.json")
  if not file then return fail("no kernel in '%s'", folder) end
  file:close()
  local fine, why = os.remove(folder .. "/kernel.json")
  if not fine then return fail("%s", why) end
  os.remove(folder) -- stays where somebody has put more into it
  print(("'%s' is no kernel of Jupyter any more"):format(TITLE))
  return 0
end

--- The tool; gives the exit status.
---@param args string[]
---@return integer status
function jupyter.main(args)
  local word = args[1] or "--help"
  if word == "--help" or word == "-h" then
    print(USAGE)
    return 0
  end
  local action = ACTIONS[word]
  if not action then
    local near = options.nearest(word, ACTIONS)
    return fail("unknown word '%s'%s", word, near and ("; did you mean '%s'?"):format(near)
      or "; hint: demilune jupyter --help")
  end
  local o, words = command.read({table.unpack(args, 2)}, KINDS)
  if not o then return fail("%s; hint: demilune jupyter --help", words) end
  if words[1] then return fail("unknown word '%s'; hint: demilune jupyter --help", words[1]) end
  if o.user and o.prefix then return fail "--user or --prefix, not both" end
  local python, lacking = find_python(o.python)
  if not python and not (word == "uninstall" and o.prefix) then return fail("%s", lacking) end
  return action(python, o)
end

return jupyter
