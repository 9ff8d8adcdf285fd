-- Matrix products on a GPU: the shapes of the workloads, and a large square.
--   scripts/run scripts/bench/cuda_gemm.lua [--device cuda] [--rounds 7] [--tiny]
local cuda = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/cuda_lib.lua")
local lib, options = cuda.lib, cuda.options()
local ours, peer = cuda.sides(options)
cuda.heading("Matrix products", options)

local SHAPES = { -- m, n, k
  {8192, 8192, 8192},
  {4096, 4096, 4096},
  {512, 512, 512},
  {262144, 256, 256},  -- a 1x1 convolution of the quantised sine
  {256, 256, 262144},  -- its weight's gradient
  {16384, 768, 768},   -- GPT-2: a projection,
  {16384, 3072, 768},  -- the way up,
  {16384, 768, 3072},  -- and down
  {128, 10, 512},      -- a classifier
}
if options.tiny then SHAPES = {{32, 16, 8}, {5, 3, 7}} end

local report = cuda.report{"dtype", "m", "n", "k", "ms", "PyTorch ms", "faster", "TFLOP/s"}
for _, dtype in ipairs{"float16", "bfloat16", "float32"} do
  for _, s in ipairs(SHAPES) do
    local case = {dtype, "mm", s[1], s[2], s[3]}
    local begun, why = cuda.begin(ours, peer, case)
    local a, b
    if begun then a, b = cuda.times(ours, peer, options, "time", options.block) end
    if a then
      local rate = begun.flops / lib.median(a)
      local mine, other, faster = cuda.cells(a, b, 1e3)
      report.row{dtype, s[1], s[2], s[3], mine, other, faster, ("%.1f"):format(rate / 1e12)}
      cuda.record({bench = "gemm", dtype = dtype, m = s[1], n = s[2], k = s[3],
        flops_per_second = rate}, a, b)
    else
      report.fail(case, why or b)
    end
  end
end
local good = report.done()
ours:close()
peer:close()
os.exit(good)
