-- Autograd functions of one's own under autocast.

local core = require "demilune.core"
local autograd = require "demilune.autograd"
local caller = require "demilune.caller"
local options = require "demilune.options"
local convert = require "demilune.amp.convert"
local regions = require "demilune.amp.autocast"

local custom = {}

local bind_forward = options.signature("custom_fwd",
  "fwd: function, *, device_type?: device, cast_inputs?: dtype")
local bind_backward = options.signature("custom_bwd", "bwd: function, *, device_type?: device")

local function kind_of(o) return o.device_type and regions.device_type_of(o.device_type) end

-- The device types where autocast is on, among `kind` or all; nil when there is none.
local function types_on(kind)
  local on = {}
  for _, name in ipairs(kind and {kind} or {"cpu", "cuda"}) do
    on[name] = core.is_autocast_enabled(name) or nil
  end
  return next(on) and on
end

--- For forward of an autograd Function: notes the autocast state, for custom_bwd.
--- {cast_inputs = dtype}: where autocast is on, tensors among the arguments become
--- that dtype (in tables too; float64 stays) and forward runs with autocast off.
--- {device_type = }: only that one; without it, all.
function custom.custom_fwd(...)
  local o = bind_forward(...)
  local fn, kind = o.fwd, kind_of(o)
  local off = o.cast_inputs and (kind or true)
  return function(ctx, ...)
    ctx._autocast = core.autocast_state(off)
    local on = off and types_on(kind)
    if not on then return fn(ctx, ...) end
    local args = table.pack(...)
    local function fits(t) return on[regions.device_type_of(t.device)] end
    for i = 1, args.n do args[i] = convert(args[i], o.cast_inputs, fits) end
    local _ <close> = core.autocast_resume(ctx._autocast)
    return fn(ctx, table.unpack(args, 1, args.n))
  end
end

--- For backward: runs in the state that custom_fwd noted. A Function without the
--- two gets back the state of its call anyway; it differs under cast_inputs, when
--- backward runs without autocast as forward did.
function custom.custom_bwd(...)
  local o = bind_backward(...)
  local fn = o.bwd
  kind_of(o)
  return function(ctx, ...)
    if not ctx._autocast then
      caller.raise("custom_bwd: forward was not wrapped by amp.custom_fwd")
    end
    local _ <close> = core.autocast_resume(ctx._autocast)
    return fn(ctx, ...)
  end
end

local bind_register = options.signature("register",
  "*, op?: any, policy?: any, device_type?: device")
local POLICIES = {lower_precision = "lower_precision_fp", lower_precision_fp = "lower_precision_fp",
  fp32 = "fp32", promote = "promote", unlisted = "unlisted"}

--- register{op = an autograd Function, policy = , device_type = }: under autocast
--- its tensors are converted as a listed op's, and it runs with autocast off.
--- policy: "lower_precision" (or op_table's name for it), "fp32", "promote", or
--- "unlisted" to undo it. device_type: only that one; without it, all.
function custom.register(...)
  local o = bind_register(...)
  if not autograd.is_function(o.op) then
    caller.raise("register: op is a %s, wanted an autograd.Function", type(o.op))
  end
  local policy = POLICIES[o.policy]
  if not policy then
    local near = options.nearest(tostring(o.policy), POLICIES)
    caller.raise("register: policy is %s%s", tostring(o.policy), near and
      ("; did you mean '%s'?"):format(near)
      or ", wanted \"lower_precision\", \"fp32\", \"promote\" or \"unlisted\"")
  end
  local kind = kind_of(o)
  o.op.policy = o.op.policy or {}
  for _, name in ipairs(kind and {kind} or {"cpu", "cuda"}) do o.op.policy[name] = policy end
end

return custom
