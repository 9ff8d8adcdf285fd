-- scripts/kernel_report.lua and kernel_coverage.lua judge kernels by what the compiler and the
-- emulated device wrote down.

local folder = require "spec.folder"

describe("the report of kernels", function()
  setup(folder.make)
  teardown(folder.remove)

  -- The last line that the report gives of one kernel, and all of it.
  local function judged(name, registers, stack, spills, ptx)
    if ptx then folder.write("kernels.ptx", ptx) else os.remove(folder.path "kernels.ptx") end
    local log = folder.write("kernels.sm_90.log", ([[
ptxas info    : Compiling entry function '%s' for 'sm_90'
ptxas info    : Function properties for %s
    %d bytes stack frame, %d bytes spill stores, %d bytes spill loads
ptxas info    : Used %d registers, used 1 barriers]]):format(name, name, stack, spills, spills,
      registers))
    local text = folder.run("lua5.4 scripts/kernel_report.lua " .. log)
    return text:match "([^\n]*)\n$", text
  end
  local FLOAT, DOUBLE = "_Z9my_kernelPf", "_Z9my_kernelIdEvPT_"
  local PTX = ".visible .entry _Z9my_kernelPf(\n)\n.maxntid %d, 1, 1\n{\n\tret;\n}\n"

  it("refuses spills, stack frames and blocks with too many registers", function()
    assert.equal("1 passed, 0 failed", judged(FLOAT, 40, 0, 0))
    for fault, line in pairs{spills = {40, 8, 8}, stack = {40, 8, 0}} do
      local last, text = judged(FLOAT, table.unpack(line))
      assert.equal("0 passed, 1 failed", last)
      assert.matches("FAILED: " .. fault .. " my_kernel", text)
    end
    assert.equal("1 passed, 0 failed", judged(FLOAT, 128, 0, 0, PTX:format(512)))
    local last, text = judged(FLOAT, 136, 0, 0, PTX:format(512))
    assert.equal("0 passed, 1 failed", last)
    assert.matches("FAILED: registers", text)
  end)

  it("lets kernels of double spill, and those have a frame that the list gives a reason", function()
    assert.equal("1 passed, 0 failed", judged(DOUBLE, 40, 8, 8))
    assert.equal("1 passed, 0 failed", judged("_Z10sin_kernelPf", 40, 16, 0))
    assert.equal("0 passed, 1 failed", judged("_Z10sin_kernelPf", 40, 56, 0))
    assert.equal("1 passed, 0 failed", judged("_Z17dm_columns_kernelPf", 40, 8, 4))
    assert.equal("0 passed, 1 failed", judged("_Z17dm_columns_kernelPf", 40, 16, 4))
  end)

  it("finds launches of more threads than the kernel's bounds", function()
    local list = folder.write("coverage", "step_kernel<T> 3\nthreads step_kernel<T> 257\n")
    local text = folder.run("lua5.4 scripts/kernel_coverage.lua " .. list)
    assert.matches("step_kernel runs with 257 threads, its bounds allow 256", text)
    folder.write("coverage", "step_kernel<T> 3\nthreads step_kernel<T> 256\n")
    text = folder.run("lua5.4 scripts/kernel_coverage.lua " .. list)
    assert.is_nil(text:find "bounds allow")
  end)
end)
