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
    local none = {0, 0, 0, 0}
    assert.same({cublaslt = {2, 1, 0, 0}, cudnn = {1, 1, 0, 0}, nccl = none}, plans "")
    assert.same({cublaslt = {2, 1, 0, 0}, cudnn = {0, 1, 1, 0}, nccl = none}, plans "")
  end)

  both.it_counts("prefetches plans of gradients, and of a batch of another size", function()
    local processors = assert(io.popen "getconf _NPROCESSORS_ONLN")
    local n_processor = processors:read "n"
    processors:close()
    if n_processor == 1 then return pending "one processor prefetches nothing" end
    -- count(n, f) waits until n plans are on disk, runs f, and tells how many plans f asked for
    -- and how many of them were prefetched.
    local PROGRAM = [[
      local dm = require "demilune"
      local _ <close> = dm.device "cuda"
      local asked, prefetched = 0, 0
      local function files()
        local list = assert(io.popen "find $FOLDER -type f ! -name '*.plans' 2>&1 | wc -l")
        return list:read "n", list:close()
      end
      local function count(n, f)
        for _ = 1, 200 do
          if files() >= n then break end
          os.execute "sleep 0.02"
        end
        local result, p = f(), dm.cuda.plans().cudnn
        print(p.asked - asked, p.prefetched - prefetched)
        asked, prefetched = p.asked, p.prefetched
        return result
      end
      local small, large = dm.nn.BatchNorm2d(8), dm.nn.BatchNorm2d(16)
      local function images(n, channels) return dm.ones{n, channels, 4, 4}:requires_grad_() end
      local y = count(0, function() return small(images(4, 8)) end)
      count($SECOND, function() y:sum():backward() end)
      count(0, function() return large(images(4, 16)) end)
      count(0, function() return small(images(3, 8)) end)
      count($SIXTH, function() return large(images(3, 16)) end)]]
    local function counts(environment, second, sixth)
      local script = folder.write("program.lua", (PROGRAM:gsub("%$(%w+)",
        {FOLDER = folder.path "plans", SECOND = second, SIXTH = sixth})))
      return (folder.run(("LUA_PATH='%s' LUA_CPATH='%s' XDG_CACHE_HOME=%s %s lua5.4 %s"):format(
        package.path, package.cpath, folder.path "plans", environment, script)))
    end
    assert.equal("1\t0\n1\t0\n1\t0\n1\t0\n1\t0\n", counts("DEMILUNE_PLAN_PREFETCH=0", 0, 0))
    os.execute("rm -r " .. folder.path "plans")
    -- large's gradients follow its forward pass, small's that of the smaller batch
    assert.equal("1\t0\n1\t1\n1\t0\n1\t0\n1\t1\n", counts("", 2, 6))
  end)

  both.it_counts("tells how many calls were refused", function()
    local n = plans "DEMILUNE_EMULATED_CUBLASLT_REFUSES=cublasLtMatmulAlgoGetHeuristic"
    assert.same({2, 1, 0, 3}, n.cublaslt)
    n = plans "DEMILUNE_PLAN_CACHE=0 DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnPlan"
    assert.same({1, 1, 0, 2}, n.cudnn)
  end)

  -- What a program prints.
  local function printed(environment, program)
    local script = folder.write("program.lua", 'local dm = require "demilune"\n' .. program)
    return (folder.run(("LUA_PATH='%s' LUA_CPATH='%s' DEMILUNE_PLAN_CACHE=0 %s lua5.4 %s"):format(
      package.path, package.cpath, environment, script)))
  end
  local CONVOLVE = [[
    local x, w = dm.ones({1, 2, 4, 4}, {device = "cuda"}), dm.ones({3, 2, 3, 3}, {device = "cuda"})
    print(pcall(function() return dm.conv2d(x, w):sum():item() end))
    local n = dm.cuda.plans().cudnn
    print(n.state, n.reason, n.refusal)]]

  both.it_counts("keeps a plan that a graph launches, however many come after it", function()
    -- 256 rows of four plans: 2,500 more drop every plan that may be dropped
    assert.equal("9.0\t4\n9.0\t4\n", printed("", [[
      local o = {device = "cuda"}
      local x, w = dm.ones({1, 1, 5, 4}, o), dm.ones({1, 1, 3, 3}, o)
      local step = dm.cuda.graph(function(t) return dm.conv2d(t, w) end)
      for _ = 1, 6 do step(x) end
      local function show()
        x:fill_(1)
        local y = step(x)
        print(y[1][1][1][1]:item(), y:numel() - 2)
      end
      show()
      local line, one = dm.ones({1, 1, 2, 2500}, o), dm.ones({1, 1, 1, 1}, o)
      for i = 1, 2500 do dm.conv2d(line:narrow(4, 1, i), one) end
      show()]]))
  end)

  both.it_counts("tells what became of a library, and why", function()
    assert.equal("true\t216.0\nopen\tnil\tnil\n", printed("", CONVOLVE))
    assert.equal("true\t216.0\noff\tDEMILUNE_CUDNN=0\tnil\n", printed("DEMILUNE_CUDNN=0",
      CONVOLVE))
    assert.equal("demilune: warning: cudnn is not used: no libcudnn.so.9; hint: "
      .. "DEMILUNE_CUDA_LIBS=folder; our own, slower kernels do its work\n"
      .. "true\t216.0\nmissing\tno libcudnn.so.9; hint: DEMILUNE_CUDA_LIBS=folder\tnil\n",
      printed("DEMILUNE_EMULATED_MISSING=libcudnn.so.9", CONVOLVE:gsub("^%s*local x[^\n]*\n",
        "%0for _ = 1, 2 do dm.conv2d(x, w) end\n")))
    assert.matches("^demilune: warning: cublaslt is not used: no libcublasLt.so.13; [^\n]*\n4.0\n$",
      printed("DEMILUNE_EMULATED_MISSING=libcublasLt.so.13", [[
        local x = dm.ones({4, 4}, {device = "cuda"})
        for _ = 1, 3 do x:matmul(x) end
        print(x:matmul(x)[{1, 1}]:item())]]))
    assert.matches("^demilune: warning: nvrtc is not used: no libnvrtc.so.%d+; hint: [^\n]*; cuDNN "
      .. "may refuse attention and batch norm\ntrue\t216.0\nopen\tnil\tnil\n$",
      printed("DEMILUNE_EMULATED_MISSING=libnvrtc.so.13", CONVOLVE))
    assert.equal("true\t216.0\nopen\tnil\tthe emulation refuses\n",
      printed("DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnPlan", CONVOLVE))
    assert.equal("untried\n", printed("", "print(dm.cuda.plans().cublaslt.state)"))
  end)

  both.it_counts("raises in place of our own kernels, where they are forbidden", function()
    assert.matches("program.lua:3: conv2d: cudnn refuses it: the emulation refuses, and "
      .. "DEMILUNE_NO_FALLBACK is set", printed("DEMILUNE_NO_FALLBACK=1 "
      .. "DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnPlan", CONVOLVE))
    assert.matches("program.lua:3: conv2d: cudnn is not there %(no libcudnn.so.9; hint: .-%), and",
      printed("DEMILUNE_NO_FALLBACK=1 DEMILUNE_EMULATED_MISSING=libcudnn.so.9", CONVOLVE))
    assert.matches("a matrix product: cublaslt refuses it: no algorithm was found", printed(
      "DEMILUNE_NO_FALLBACK=1 DEMILUNE_EMULATED_CUBLASLT_REFUSES=cublasLtMatmulAlgoGetHeuristic",
      [[print(pcall(dm.matmul, dm.ones({3, 4}, {device = "cuda"}),
        dm.ones({4, 2}, {device = "cuda"})))]]))
    assert.equal("true\t216.0\nopen\tnil\tnil\n", printed("DEMILUNE_NO_FALLBACK=1", CONVOLVE))
  end)

  both.it_counts("rounds float32 to TF32 only where that is allowed", function()
    local PROGRAM = [[
      %s
      local x = dm.full({1, 8, 4, 4}, 1 + 2 ^ -12, {device = "cuda"})
      print(dm.conv2d(x, dm.ones({8, 8, 1, 1}, {device = "cuda"}))[{1, 1, 1, 1}]:item() - 8)
      x = x:view(8, 16)
      print(x:matmul(dm.ones({16, 8}, {device = "cuda"}))[{1, 1}]:item() - 16)]]
    assert.equal("0.001953125\n0.00390625\n", printed("", PROGRAM:format ""))
    assert.equal("0.0\n0.00390625\n", printed("", PROGRAM:format "dm.cuda.allow_tf32{conv = true}"))
    assert.equal("0.001953125\n0.0\n", printed("", PROGRAM:format
      "dm.cuda.allow_tf32{matmul = true}"))
    assert.equal("true\tfalse\ntrue\tfalse\nfalse\tfalse\n", printed("", [[
      local function show(t) print(t.matmul, t.conv) end
      show(dm.cuda.allow_tf32{matmul = true})
      show(dm.cuda.allow_tf32{})
      show(dm.cuda.allow_tf32{matmul = false})]]))
  end)

  both.it_counts("chooses a plan by its time, where that is asked for", function()
    local n = both.counts("DEMILUNE_PLAN_CACHE=0", [[
      assert(not dm.cuda.benchmark() and dm.cuda.benchmark(true) and dm.cuda.benchmark())
      dm.cuda.allow_tf32{conv = true}
      local x = dm.ones({1, 8, 4, 4}, {device = "cuda"})
      local w = dm.ones({8, 8, 1, 1}, {device = "cuda"})
      for _ = 1, 2 do assert(dm.conv2d(x, w):sum():item() == 8 * 8 * 16) end
      assert(not dm.cuda.benchmark(false))]])
    assert.equal(10, n.cudnnBackendExecute) -- two engines, each four times, and two calls
    assert.equal(1, n.cudnnHeuristic)
  end)

  -- The files of plans: made by one process, found by the next, whatever is in the folder.
  describe("on disk", function()
    local PROGRAM = [[
      local x = dm.ones({1, 8, 4, 4}, {device = "cuda", dtype = "float16"})
      local w = dm.ones({8, 8, 3, 3}, {device = "cuda", dtype = "float16"})
      assert(dm.conv2d(x, w, nil, 1, 1)[{1, 1, 2, 2}]:item() == 72)
      local q = dm.ones({1, 2, 4, 8}, {device = "cuda", dtype = "float16"})
      assert(dm.scaled_dot_product_attention(q, q, q)[{1, 1, 1, 1}]:item() == 1)]]
    local function from_files(environment)
      local n = both.counts(environment or "", PROGRAM)
      return n.cudnnPlanFromJson, n.cudnnHeuristic
    end
    -- The two files of plans, and their folder.
    local function files()
      local list = io.popen(("find %s -type f -path '*/cudnn-*/*'"):format(folder.path "cache"))
      local found = {}
      for path in list:lines() do found[#found + 1] = path end
      list:close()
      return found, found[1] and found[1]:match "^(.*)/"
    end
    local function content(path)
      local file <close> = assert(io.open(path, "rb"))
      return file:read "a"
    end
    local function put(path, text)
      local file <close> = assert(io.open(path, "wb"))
      file:write(text)
    end
    before_each(function() os.execute("rm -rf " .. folder.path "cache") end)

    both.it_counts("gives plans back without a heuristic or a search", function()
      assert.same({0, 2}, {from_files()})
      local found = files()
      assert.equal(2, #found)
      for _, path in ipairs(found) do assert.matches("/%x+$", path) end
      assert.same({2, 0}, {from_files()})
      assert.same({0, 2}, {from_files "DEMILUNE_PLAN_CACHE=0"})
    end)

    both.it_counts("goes on without a file that is torn, strange or somebody else's", function()
      from_files()
      local found = files()
      local whole = content(found[1])
      local damages = {
        empty = "", short = whole:sub(1, 20), torn = whole:sub(1, -2), long = whole .. " ",
        noise = ("\255"):rep(#whole), [ "another's"] = content(found[2]),
        ["another version's"] = "dmplan9" .. whole:sub(8),
        ["a huge size"] = whole:sub(1, 16) .. ("\255"):rep(7) .. "\127" .. whole:sub(25),
        ["a negative size"] = whole:sub(1, 16) .. ("\255"):rep(8) .. whole:sub(25),
        ["other text"] = whole:sub(1, -3) .. "x}",
      }
      for what, text in pairs(damages) do
        put(found[1], text)
        assert.equal(1, (from_files()), what)
        assert.equal(whole, content(found[1]), what) -- written anew, by the choice that was kept
      end
      for what, command in pairs{["others may write"] = "chmod 666 %s",
        ["a link"] = "mv %s %s.whole && ln -s %s.whole %s"} do
        os.execute((command:gsub("%%s", found[1])))
        assert.equal(1, (from_files()), what)
      end
    end)

    both.it_counts("removes a file of which the library makes no plan", function()
      from_files()
      assert.equal(0, (from_files "DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnPlanFromJson"))
      assert.equal(2, (from_files()))
    end)

    both.it_counts("keeps the choice where the library writes no JSON", function()
      local environment = "DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnPlanToJson"
      from_files(environment)
      assert.same({}, (files()))
      assert.same({0, 0}, {from_files(environment)})
    end)

    both.it_counts("goes on where the cache cannot be written", function()
      from_files()
      local _, plans_folder = files()
      os.execute(("rm -rf %s && touch %s"):format(plans_folder, plans_folder))
      assert.same({0, 0}, {from_files()}) -- a file is where the folder should be
      os.execute("rm -rf " .. folder.path "cache")
      put(folder.path "cache", "")
      assert.same({0, 2}, {from_files()})
      os.remove(folder.path "cache")
    end)

    both.it_counts("bounds the folder, and drops the oldest first", function()
      from_files()
      local found, plans_folder = files()
      os.remove(found[2])
      os.execute(("truncate -s 200M %s/old && touch -d 2001-01-01 %s/old"):format(plans_folder,
        plans_folder))
      os.execute(("truncate -s 60M %s/new"):format(plans_folder))
      assert.equal(1, (from_files()))
      local left = {}
      for _, path in ipairs((files())) do left[path:match "[^/]+$"] = true end
      assert.is_nil(left.old)
      assert.is_true(left.new)
      assert.equal(2, (from_files()))
    end)
  end)

  -- A step of training of each, under autocast, small enough for the emulation.
  it("does not need them in a training step of the usual models", function()
    local text = printed("DEMILUNE_NO_FALLBACK=1", [[
      local nn, models, amp = dm.nn, dm.models, dm.amp
      local _ <close> = dm.device "cuda"
      dm.manual_seed(1)
      local function step(name, model, x, target)
        local loss
        do
          local _ <close> = amp.autocast{device_type = "cuda", dtype = "bfloat16"}
          local y = model(x)
          loss = target and nn.functional.cross_entropy(y:flatten(1, -2), target:flatten())
            or y:square():mean()
        end
        loss:backward()
        assert(loss:isfinite():item(), name)
        print(name)
      end
      local ids = dm.randint(16, {1, 8})
      local images = dm.randn(1, 3, 16, 16)
      step("resnet18", models.resnet18{num_classes = 16, small_stem = true}, images)
      step("vit", models.vit_s_16{image_size = 16, patch_size = 8, num_layers = 1,
        hidden_dim = 64, mlp_dim = 128, num_heads = 2}, images)
      step("unet", models.unet{width = 8, depth = 2}, images)
      step("gpt2", models.gpt2{vocab_size = 16, n_embd = 16, n_layer = 1, n_head = 2, dropout = 0.1,
        block_size = 8}, ids, ids)
      step("bert", models.bert{vocab_size = 16, hidden_size = 16, num_hidden_layers = 1,
        num_attention_heads = 2, intermediate_size = 32, max_position_embeddings = 8}, ids, ids)
      step("lstm", models.lstm_lm{vocab_size = 16, width = 16, n_layer = 1}, ids, ids)
      -- the network of scripts/quantised_sine.lua
      local layers = {}
      for _, channels in ipairs{2, 16, 16} do
        layers[#layers + 1] = nn.Conv2d(channels, 16, 1)
        layers[#layers + 1] = nn.BatchNorm2d(16)
        layers[#layers + 1] = nn.ReLU()
      end
      layers[#layers + 1] = nn.Conv2d(16, 1, 1)
      step("sine", nn.Sequential(layers), dm.randn(1, 2, 8, 8))
      step("linear", nn.Sequential{nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)}, dm.randn(4, 8))
    ]])
    assert.equal("resnet18\nvit\nunet\ngpt2\nbert\nlstm\nsine\nlinear\n", text)
  end)

  it("counts nothing of a library that is left out", function()
    local none = {0, 0, 0, 0}
    assert.same({cublaslt = none, cudnn = none, nccl = none},
      plans "DEMILUNE_CUBLASLT=0 DEMILUNE_CUDNN=0")
  end)
end)
