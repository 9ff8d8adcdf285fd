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

-- Raises unless it is a list of n tensors, each like x, where one is given; of those that are
-- written, none has elements that share memory.
function dense.check_list(name, what, list, n, x, is_written)
  if #list ~= n then
    caller.raise("%s: %s has %d elements, wanted %d, a tensor for each rank", name, what, #list, n)
  end
  for i, t in ipairs(list) do
    if not core.is_tensor(t) then
      caller.raise("%s: element %d of %s is a %s, wanted a tensor", name, i, what, type(t))
    elseif x and dense.text_of(t) ~= dense.text_of(x) then
      caller.raise("%s: element %d of %s is %s, wanted %s as the tensor", name, i, what,
        dense.text_of(t), dense.text_of(x))
    elseif is_written and select(3, core._dist_dense(t, true)) then
      caller.raise("%s: elements of element %d of %s share memory; hint: x:contiguous()", name, i,
        what)
    end
  end
end

-- The tensors of the list as one.
function dense.joined(list, stays)
  local parts = dense.new_parts(#list, list[1], stays)
  for i, part in ipairs(list) do parts[i] = part:detach() end
  return parts
end

return dense
