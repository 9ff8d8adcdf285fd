-- Which dtype comes out of an op under autocast.
--   scripts/run scripts/examples/dtypes.lua [--device cuda] [--dtype float16]

local dm = require "demilune"
local argparse = require "argparse"
local amp, F = dm.amp, dm.nn.functional

local parser = argparse("dtypes.lua", "Dtypes under autocast.")
parser:option("--device", "cpu or cuda"):default(dm.cuda.is_available() and "cuda" or "cpu")
parser:option("--dtype", "bfloat16 on the CPU, float16 on CUDA, unless given")
  :choices{"bfloat16", "float16"}
local args = parser:parse()
local on = {device = args.device}

local x, y = dm.rand(1024, 1, on), dm.rand(1024, 1, on)
print(("Input dtypes:\n  x: %s %s\n  y: %s %s"):format(x.dtype, x.shape, y.dtype, y.shape))

local a, b = amp.autocast({device_type = args.device, dtype = args.dtype}, function()
  return x:matmul(y:t()), x + y -- listed: 16 bits; not listed: as its inputs
end)
print(("Output dtypes:\n  Multiplication: %s %s\n  Addition: %s %s"):format(a.dtype, a.shape,
  b.dtype, b.shape))

local image, kernel = dm.rand(1, 3, 8, 8, on), dm.rand(4, 3, 3, 3, on)
local logits, labels = dm.rand(8, 10, on), dm.randint(10, {8}, on)
print "Rules:"
do
  local _ <close> = amp.autocast{device_type = args.device, dtype = args.dtype}
  local half = logits:matmul(dm.rand(10, 10, on))
  for _, result in ipairs{
    {"matmul", half}, {"conv2d", F.conv2d(image, kernel)}, {"softmax", half:softmax(-1)},
    {"layer_norm", F.layer_norm(half, {10})}, {"cross_entropy", F.cross_entropy(half, labels)},
  } do
    print(("  %s: %s"):format(result[1], result[2].dtype))
  end
end

local classes = {}
for op, class in pairs(amp.op_table(args.device)) do
  classes[class] = classes[class] or {}
  table.insert(classes[class], op)
end
print(("Listed on %s:"):format(args.device))
for _, class in ipairs{"lower_precision_fp", "fp32", "fp32_set_opt_dtype", "promote", "banned"} do
  local names = classes[class]
  if names then
    table.sort(names)
    print(("  %s: %s"):format(class, table.concat(names, " ")))
  end
end
