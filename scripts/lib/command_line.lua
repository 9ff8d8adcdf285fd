-- The command lines of the training scripts: the options that they share, and how they end.

local dm = require "demilune"
local argparse = require "argparse"

local command_line = {}

-- A parser of argparse, and number(name, convert, default, about), which adds an option whose
-- value is a number.
function command_line.parser(name, about)
  local parser = argparse(name, about)
  return parser, function(option, convert, default, help)
    parser:option("--" .. option, help):convert(convert):default(default)
  end
end

-- Adds --dtype and --device: the precision of autocast (float32 switches it off), and where
-- tensors are.
function command_line.precision(parser, dtype, about)
  parser:option("--dtype", about or "what matrix products and convolutions compute in")
    :choices{"float32", "bfloat16", "float16"}:default(dtype)
  parser:option("--device", "cpu or cuda"):default(dm.cuda.is_available() and "cuda" or "cpu")
end

-- The options that were given; seeds the generators with --seed.
function command_line.parse(parser)
  local args = parser:parse()
  dm.manual_seed(args.seed)
  return args
end

local rank = 0

-- Joins the processes that `scripts/run -n` has started, if it has: -> how many there are. Each
-- takes its share of --batch, and its GPU. Only the first one prints from now on.
function command_line.ranks(args)
  local dist = dm.distributed
  dist.init_process_group()
  local n = dist.get_world_size()
  rank = dist.get_rank()
  if args.batch % n ~= 0 then
    command_line.stop(("--batch %d does not divide into %d processes"):format(args.batch, n))
  end
  if n > 1 and args.device == "cuda" then args.device = dist.device() end
  return n
end

-- " in each of 4 processes", or "" where there is one.
function command_line.of_ranks(n)
  return n > 1 and (" in each of %d processes"):format(n) or ""
end

-- print, of the first process.
function command_line.say(...)
  if rank == 0 then print(...) end
end

-- The message, with the number of this process where there are several.
local function of_rank(message)
  local dist = dm.distributed
  if not dist.is_initialized() or dist.get_world_size() == 1 then return message end
  return ("rank %d: %s"):format(rank, message)
end

-- Writes a message and ends the program with 1.
---@return any # never
function command_line.stop(message)
  io.stderr:write(of_rank(message), "\n")
  os.exit(1, true)
end

-- Goes on from the checkpoint at `path`, where one is named; "auto" is the file that the trainer
-- saves, where it is there already. A checkpoint that cannot be read ends the program.
function command_line.resume(trainer, path)
  if path == "auto" then
    local file = io.open(trainer.checkpoint)
    path = file and trainer.checkpoint
    if file then file:close() end
  end
  if not path then return end
  local ok, problem = pcall(trainer.load, trainer, path)
  if not ok then
    command_line.stop("--resume: " .. tostring(problem):gsub("^%S+%.lua:%d+: ", ""))
  end
  command_line.say(("resumed %s after epoch %d"):format(path, trainer.epoch))
end

-- Calls fn, a training that saves checkpoints: Ctrl-C ends the program with 130, an error with
-- its traceback and 1.
function command_line.run(fn)
  local ok, problem = xpcall(fn, function(e)
    return tostring(e):find "interrupted!" and "interrupted" or debug.traceback(e, 2)
  end)
  if ok then return end
  local stopped = problem == "interrupted"
  io.stderr:write("\n", of_rank(problem), stopped and "; the last checkpoint is whole\n" or "\n")
  os.exit(stopped and 130 or 1, true)
end

return command_line
