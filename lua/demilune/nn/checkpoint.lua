-- Activation checkpointing: the activations of a part of a model are not kept for the
-- gradients, but computed again in the backward pass. T. Chen et al. 2016, "Training deep nets with
-- sublinear memory cost".

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local slices = require "demilune.distributed.slices"

local checkpoint = {}

local OPTIONS = "use_reentrant: boolean = false, preserve_rng_state: boolean = true"
local bind_options = options.signature("checkpoint", "*, " .. OPTIONS)

-- A last table that has one of the options' names is the options.
local function split(args)
  local last = args[args.n]
  if args.n > 0 and type(last) == "table" and getmetatable(last) == nil then
    if last.use_reentrant ~= nil or last.preserve_rng_state ~= nil then
      args[args.n], args.n = nil, args.n - 1
      return bind_options(last)
    end
  end
  return bind_options()
end

-- The default generator as it was, until closed.
local function generator_as(state)
  local now = core.get_rng_state()
  core.set_rng_state(state)
  return setmetatable({}, {__close = function() core.set_rng_state(now) end})
end

--- checkpoint(fn, ..., {preserve_rng_state = true}) gives what fn(...) gives. What
--- the ops inside would save is dropped, and backward runs fn once more to have
--- it, in the autocast state of the first run and with its random numbers; that
--- run's temporaries are freed at its end (dm.keep saves one). Gradients reach
--- tensors among the arguments and all that fn uses by itself, and are those of a
--- plain fn(...), bit for bit. fn must do the same both times: shapes and counts
--- are checked. Modules that count calls (running statistics) count twice.
--- use_reentrant is read and changes nothing: there is one kind.
function checkpoint.checkpoint(fn, ...)
  local args = table.pack(...)
  local o = split(args)
  if not core.is_grad_enabled() or core.is_inference_mode_enabled() then
    return fn(table.unpack(args, 1, args.n))
  end
  local tensors, positions, others = {}, {}, {}
  for i = 1, args.n do
    if core.is_tensor(args[i]) then
      tensors[#tensors + 1], positions[#positions + 1] = args[i], i
    else
      others[i] = args[i]
    end
  end
  local n, cast, opened = args.n, core.autocast_state(), slices.opened()
  local random = o.preserve_rng_state and core.get_rng_state()
  local function again(...)
    local full = table.move(others, 1, n, 1, {})
    for k, position in ipairs(positions) do full[position] = (select(k, ...)) end
    local _ <close> = core.scope()
    local _ <close> = core.enable_grad()
    local _ <close> = core.autocast_resume(cast)
    local _ <close> = random and generator_as(random) or nil
    local _ <close> = slices.reopen(opened)
    fn(table.unpack(full, 1, n))
  end
  return core.checkpoint_run(again, tensors, fn, table.unpack(args, 1, n))
end

local bind_sequential = options.signature("checkpoint_sequential",
  "functions: module|list, segments: integer, input: any, *, " .. OPTIONS)

--- Runs the functions (a Sequential, or an array) one after another on input, cut
--- into that many segments of which all but the last are checkpointed.
function checkpoint.checkpoint_sequential(...)
  local o = bind_sequential(...)
  local functions, segments, input = o.functions, o.segments, o.input
  local n = #functions
  if segments < 1 or segments > n then
    caller.raise("checkpoint_sequential: %s segments for %d functions, wanted an integer from 1 " ..
      "to %d", tostring(segments), n, n)
  end
  local function segment(first, last)
    return function(x)
      for i = first, last do x = functions[i](x) end
      return x
    end
  end
  local size = n // segments
  for first = 1, size * (segments - 1), size do
    input = checkpoint.checkpoint(segment(first, first + size - 1), input,
      {preserve_rng_state = o.preserve_rng_state})
  end
  return segment(size * (segments - 1) + 1, n)(input)
end

return checkpoint
