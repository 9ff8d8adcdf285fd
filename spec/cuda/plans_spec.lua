-- dm.cuda.plans counts the plans of NVIDIA's libraries that were searched for, reused from memory
-- or disk, or refused.
local both = require "spec.cuda.both"
local folder = require "spec.folder"

if both.missing() then return end

describe("dm.cuda.plans", function()
  setup(folder.make)
  teardown(folder.remove)

  -- The counts of a program that multiplies twice in one way, once in another, and
  -- convolves twice: {cublaslt = {asked, memory, disk, refused}, cudnn = }.
  local function plans(environment)
    local script = folder.write("program.lua", [[
      local dm = require "demilune"
      local function ones(...) return dm.ones({...}, {device = "cuda"}) end
      for _, k in ipairs{4, 4, 5} do ones(3, k):matmul(ones(k, 2)) end
      for _ = 1, 2 do dm.conv2d(ones(1, 2, 4, 4), ones(3, 2, 3, 3)) end
      for library, n in pairs(dm.cuda.plans()) do
        print(library, n.asked, n.memory, n.disk, n.refused)
      end
    ]])
    local text, status = folder.run(("LUA_PATH='%s' LUA_CPATH='%s' XDG_CACHE_HOME=%s %s " ..
      "lua5.4 %s"):format(package.path, package.cpath, folder.path "cache", environment, script))
    assert.equal(0, status, text)
    local n = {}
    for line in text:gmatch "[^\n]+" do
      local word = {}
      for w in line:gmatch "%S+" do word[#word + 1] = math.tointeger(w) or w end
      n[table.remove(word, 1)] = word
    end
    return n
  end

  both.it_counts("counts requests, and plans found in memory or on disk", function()
    assert.same({cublaslt = {2, 1, 0, 0}, cudnn = {1, 1, 0, 0}}, plans "")
    assert.same({cublaslt = {2, 1, 0, 0}, cudnn = {0, 1, 1, 0}}, plans "")
  end)

  both.it_counts("tells how many calls were refused", function()
    local n = plans "DEMILUNE_EMULATED_CUBLASLT_REFUSES=cublasLtMatmulAlgoGetHeuristic"
    assert.same({2, 1, 0, 3}, n.cublaslt)
    n = plans "DEMILUNE_PLAN_CACHE=0 DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnPlan"
    assert.same({1, 1, 0, 2}, n.cudnn)
  end)

  it("counts nothing of a library that is left out", function()
    assert.same({cublaslt = {0, 0, 0, 0}, cudnn = {0, 0, 0, 0}},
      plans "DEMILUNE_CUBLASLT=0 DEMILUNE_CUDNN=0")
  end)
end)
