-- Tensors as the works of demilune.distributed read and write them: dense, and on the CPU, unless
-- they go from their device by NCCL.

local core = require "demilune.core"
local caller = require "demilune.caller"
local world = require "demilune.distributed.world"

local dense = {}

-- Shape and dtype in words: "{2, 3} float32".
function dense.text_of(x) return ("%s %s"):format(tostring(x.shape), x.dtype) end

-- x for C to read: dense, on x's device where it stays, else on the CPU.
function dense.to_read(x, stays) return (core._dist_dense(x, stays)) end

-- A dense tensor for C to write, and a function that copies it into x.
function dense.to_write(name, x, stays)
  local y, is_shared, overlaps = core._dist_dense(x, stays)
  if overlaps then
    caller.raise("%s: elements of the tensor share memory; hint: x:contiguous()", name)
  end
  return y, function()
    if not is_shared then x:detach():copy_(y) end
    return x
  end
end

-- Whether a call with an input and an output goes from their device, by NCCL.
function dense.stay(name, group, kind, op, input, output)
  return input.device == output.device and world.stays(name, group, kind, op, input)
end

-- An uninitialized tensor for n parts like x, on x's device where they stay, else on the CPU.
function dense.new_parts(n, x, stays)
  return core.empty({n, table.unpack(x.shape)}, {dtype = x.dtype,
    device = stays and x.device or "cpu"})
end

return dense
