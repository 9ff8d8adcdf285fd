-- The demilune command: runs scripts, the prompt, and a few tools.

local command = require "demilune.cli.command"

local cli = {}

local USAGE = [[
demilune                         the prompt
demilune SCRIPT.lua ARGS...      runs a script; its arguments are in `arg`
demilune -e CODE                 runs a piece of code, with dm, nn, ... as at the prompt
demilune -l MODULE               requires a module first; -i: the prompt after all else
demilune doctor                  what this machine has, what is missing, and what mends it
demilune bench [--quick]         times a product of matrices, a call and three trainings
demilune new DIR                 a project: train.lua, config.lua, a test, a rockspec
demilune jupyter install         makes Lua with demilune a kernel of your Jupyter; --help tells more
demilune types DIR               definition files by which editors complete names and options
demilune convert IN OUT          tensors of a file in another format, by the ends of the names:
                                 .pth .pt .safetensors .npz
demilune dashboard DIR           a page of the trainings whose files dm.dashboard wrote in DIR
demilune --version               versions of demilune and Lua
demilune --help                  this text]]

-- Tools, and the files that have their main(args). Jupyter starts the kernel, and nobody else.
local TOOLS = {doctor = "demilune.cli.doctor", bench = "demilune.cli.bench",
  new = "demilune.cli.new", convert = "demilune.cli.convert", jupyter = "demilune.cli.jupyter",
  kernel = "demilune.jupyter.kernel", dashboard = "demilune.cli.dashboard",
  types = "demilune.cli.types"}

local function fail(...) return command.fail("", ...) end

-- A message of an uncaught error with its traceback, as lua5.4 prints it.
local function traced(why)
  local meta = getmetatable(why)
  if type(why) ~= "string" and not (meta and meta.__tostring) then
    return ("(error object is a %s value)"):format(type(why))
  end
  return debug.traceback(tostring(why), 2):gsub("\n%s*%[C%]: in function 'xpcall'.*$", "")
end

-- "rank 2: " where several processes run the script; else "".
local function rank_words()
  local world = package.loaded["demilune.distributed.world"]
  if not world or not world.is_open() then return "" end
  local core = require "demilune.core"
  return core._dist_size() > 1 and ("rank %d: "):format(core._dist_rank()) or ""
end

-- Runs a chunk; 0, or 1 where it raised, which is written.
local function run(chunk, why, ...)
  if not chunk then return fail("%s", why) end
  local fine, text = xpcall(chunk, traced, ...)
  if fine then return 0 end
  return fail("%s%s", rank_words(), text)
end

-- A script with its arguments, which the global `arg` holds as under lua5.4.
local function run_script(path, args)
  local globals = {[0] = path}
  for i, value in ipairs(args) do globals[i] = value end
  _G.arg = globals
  local chunk, why = loadfile(path ~= "-" and path or nil)
  return run(chunk, why, table.unpack(args))
end

-- Reads the options before the script: what to do, in order; or nil and a message.
local function read(args)
  local plan, i = {}, 1
  while args[i] do
    local word = args[i]
    local letter, rest = word:match "^%-([el])(.*)$"
    if letter then
      if rest == "" then
        i = i + 1
        rest = args[i]
        if not rest then return nil, ("-%s wants an argument"):format(letter) end
      end
      plan[#plan + 1] = {letter, rest}
    elseif word == "-i" then
      plan.prompt = true
    elseif word == "--version" or word == "-v" then
      plan[#plan + 1] = {"version"}
    elseif word == "--help" or word == "-h" then
      plan[#plan + 1] = {"help"}
    elseif word:find "^%-." then
      return nil, ("unknown option '%s'; hint: demilune --help"):format(word)
    else
      plan.script, plan.rest = word, {table.unpack(args, i + 1)}
      return plan
    end
    i = i + 1
  end
  return plan
end

local ACTIONS = {
  e = function(code)
    require("demilune.cli.repl").preset()
    return run(load(code, "=(command line)"))
  end,
  l = function(name) return run(function() _G[name:match "[^.]*$"] = require(name) end) end,
  version = function()
    print(("%s  %s"):format(require("demilune.core")._VERSION, _VERSION))
    return 0
  end,
  help = function()
    print(USAGE)
    return 0
  end,
}

-- A tool, or a script of that name where there is one.
local function run_word(word, args)
  if TOOLS[word] then return require(TOOLS[word]).main(args) end
  if word == "repl" then
    require("demilune.cli.repl").run()
    return 0
  end
  local file = word == "-" or io.open(word)
  if not file then
    local near = require("demilune.options").nearest(word, TOOLS)
    return fail("no file '%s'%s", word, near and ("; did you mean the tool '%s'?"):format(near)
      or "; hint: demilune --help")
  end
  if io.type(file) then file:close() end
  return run_script(word, args)
end

--- Runs the command with these arguments; gives the exit status.
---@param args string[]
---@return integer status 0 where all went well
function cli.main(args)
  local plan, why = read(args)
  if not plan then return fail("%s", why) end
  local status = 0
  for _, step in ipairs(plan) do
    status = ACTIONS[step[1]](step[2])
    if status ~= 0 then return status end
  end
  if plan.script then status = run_word(plan.script, plan.rest) end
  if status == 0 and (plan.prompt or #plan == 0 and not plan.script) then
    require("demilune.cli.repl").run()
  end
  return status
end

return cli
