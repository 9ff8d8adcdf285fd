-- Transformer models give the values of PyTorch and Hugging Face (spec/golden/models.lua), keep
-- tied weights tied, run under autocast, and learn small tasks.

local dm = require "demilune"
local DEVICE = require("spec.device").type
local amp, nn, models = dm.amp, dm.nn, dm.models

local function fails(text, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok, "wanted an error: " .. text)
  assert.matches(text, message, 1, true)
  assert.matches("^spec/transformers_spec.lua:%d+: ", message)
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

local function shape(t) return {table.unpack(t.shape)} end

-- ---- as PyTorch's ----

-- As scripts/golden/hugging_face.py makes them.
local function formula(dims, size, k)
  local n = 1
  for _, d in ipairs(dims) do n = n * d end
  local i = dm.arange(0, n - 1) + 131 * k
  return ((i * i + i * 7919):remainder(1021):float() / 1021 - 0.5):reshape(dims) * size
end

local function filled(c)
  local model = models[c.model](c.opts):eval()
  local params = {}
  for name, p in model:named_parameters() do params[name] = p end
  local _ <close> = dm.no_grad()
  for k, name in ipairs(sorted_keys(params)) do
    local is_norm = name:find "ln_" or name:find "ln%." or name:find "LayerNorm"
    local p = params[name]
    p:copy_(formula(shape(p), 0.5, k) + (is_norm and name:find "weight$" and 1 or 0))
  end
  return model, params
end

local function caller_of(model, c)
  if c.model == "vit_b_16" then
    local image = formula({2, 3, 8, 8}, 4, 0)
    return function() return model(image) end
  end
  local ids = dm.tensor(c.ids)
  local opts = c.mask and {attention_mask = dm.tensor(c.mask), token_type_ids = dm.tensor(c.types)}
  return function() return model(ids, opts) end
end

local function loss_of(scores, labels)
  return dm.cross_entropy(scores:reshape(-1, scores:size(-1)), labels:flatten())
end

local golden = require("spec.golden").load "models"

for _, c in ipairs(golden) do
  describe(c.model, function()
    it("has the names and shapes of PyTorch's", function()
      local model = models[c.model](c.opts)
      assert.same(c.names, sorted_keys(model:state_dict()))
      local shapes = {}
      for name, p in model:named_parameters() do shapes[name] = shape(p) end
      assert.same(c.shapes, shapes)
    end)

    it("computes what PyTorch's does", function()
      local model, params = filled(c)
      local scores = caller_of(model, c)()
      local loss = loss_of(scores, dm.tensor(c.labels))
      loss:backward()
      assert.near(c.loss, loss:item(), 1e-5)
      assert.is_true((scores - dm.tensor(c.scores)):abs():max():item() < 1e-5)
      for name, norm in pairs(c.norms) do
        assert.near(norm, params[name].grad:norm():item(), 1e-6 + 1e-4 * norm, name)
      end
    end)

    it("gives under autocast the dtypes that PyTorch's gives", function()
      local model, got, kinds, n = filled(c), {}, {}, 0
      for name, module in model:named_modules() do
        kinds[name] = getmetatable(module)
        module:register_forward_hook(function(_, _, y) got[name] = y.dtype end)
      end
      amp.autocast({device_type = DEVICE, dtype = "bfloat16"}, caller_of(model, c))
      for name, dtype in pairs(c.dtypes) do
        local kind = kinds[name]
        -- the values are of the CPU's lists; CUDA's have layer_norm in float32, and so
        -- is what hands its result on
        if DEVICE ~= "cpu" and kind == nn.LayerNorm then dtype = "float32" end
        local sure = kind == nn.LayerNorm or kind == nn.Linear or name:find "%.c_%a+$" -- GPT-2's
        if got[name] and (DEVICE == "cpu" or sure) then
          assert.equal(dtype, got[name], name)
          n = n + 1
        end
      end
      assert.is_true(n > (DEVICE == "cpu" and 20 or 8), n)
    end)
  end)
end

-- ---- files and tied weights ----

local SMALL = {
  gpt2 = {n_layer = 1, n_head = 2, n_embd = 16, vocab_size = 8, block_size = 8, dropout = 0},
  bert = {vocab_size = 8, hidden_size = 16, num_hidden_layers = 1, num_attention_heads = 2,
    intermediate_size = 16, max_position_embeddings = 8, hidden_dropout_prob = 0,
    attention_probs_dropout_prob = 0},
  vit_s_16 = {image_size = 8, patch_size = 4, num_classes = 2, num_layers = 1, num_heads = 2,
    hidden_dim = 16, mlp_dim = 16},
}

local function small(name) return models[name](SMALL[name]) end

local TIES = {
  gpt2 = {"lm_head.weight", "transformer.wte.weight"},
  bert = {"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
}

local function weights(model, name)
  if name == "gpt2" then return model.lm_head.weight, model.transformer.wte.weight end
  return model.cls.predictions.decoder.weight, model.bert.embeddings.word_embeddings.weight
end

describe("tied weights", function()
  for name, tie in pairs(TIES) do
    it("stay one tensor through to(), state_dict and load: " .. name, function()
      local model, other = small(name), small(name)
      local function is_tied(m)
        local a, b = weights(m, name)
        local _ <close> = dm.no_grad()
        a[{1, 1}] = 7
        return rawequal(a, b) and b[{1, 1}]:item() == 7
      end
      assert.is_true(is_tied(model))
      local path = os.tmpname()
      dm.save(path, model:state_dict())
      other:load_state_dict(dm.load(path))
      os.remove(path)
      assert.is_true(is_tied(other))
      assert.same(weights(model, name):totable(), weights(other, name):totable())
      model:to "bfloat16"
      assert.is_true(is_tied(model))
      assert.equal("bfloat16", weights(model, name).dtype)
      local state = other:state_dict()
      assert.same(state[tie[1]]:totable(), state[tie[2]]:totable())
      local count = 0
      for _, p in other:named_parameters() do
        if rawequal(p, (weights(other, name))) then count = count + 1 end
      end
      assert.equal(1, count)
    end)

    it("are in files once: " .. name, function()
      local model, other = small(name), small(name)
      local state = model:state_dict()
      state[tie[1]] = nil
      other:load_state_dict(state)
      assert.same(weights(model, name):totable(), weights(other, name):totable())
    end)
  end
end)

describe("published files", function()
  local function loads(name, rename)
    local model, other, state = small(name), small(name), {}
    for key, t in pairs(model:state_dict()) do
      key = rename(key)
      if key then state[key] = t end
    end
    other:load_state_dict(state)
    local a, b = model:state_dict(), other:state_dict()
    for key, t in pairs(a) do assert.same(t:totable(), b[key]:totable()) end
    state.unheard_of = dm.zeros(1)
    fails("unheard_of", other.load_state_dict, other, state)
    fails("wanted a table", other.load_state_dict, other, 3)
    return other, state
  end

  it("of GPT-2 have no prefix, and masks", function()
    local model, state = loads("gpt2", function(key)
      return key ~= "lm_head.weight" and key:gsub("^transformer%.", "") or nil
    end)
    state.unheard_of = nil
    state["h.0.attn.bias"] = dm.ones(1, 1, 8, 8)
    model:load_state_dict(state)
  end)

  it("of BERT have gamma and beta, a pooler and another head", function()
    local model, state = loads("bert", function(key)
      return (key:gsub("LayerNorm%.weight", "LayerNorm.gamma"):gsub("LayerNorm%.bias",
        "LayerNorm.beta"))
    end)
    state.unheard_of = nil
    state["bert.pooler.dense.weight"] = dm.ones(2, 2)
    state["cls.seq_relationship.bias"] = dm.ones(2)
    model:load_state_dict(state)
    local bare = {}
    for key, t in pairs(state) do bare[key:match "^bert%.(.*)" or "skipped"] = t end
    bare.skipped = nil
    local keys = model:load_state_dict(bare, {strict = false})
    assert.same({}, keys.unexpected_keys)
    for _, key in ipairs(keys.missing_keys) do assert.matches("^cls%.", key) end
  end)

  it("of vision transformers may name the products", function()
    loads("vit_s_16", function(key)
      return (key:gsub("mlp%.0", "mlp.linear_1"):gsub("mlp%.3", "mlp.linear_2"))
    end)
  end)
end)

describe("a model's start", function()
  it("is PyTorch's", function()
    dm.manual_seed(1)
    local gpt = models.gpt2{n_layer = 2, n_head = 2, n_embd = 64, vocab_size = 50, block_size = 8}
    assert.near(0.02, gpt.transformer.wte.weight:std():item(), 2e-3)
    assert.near(0.02, gpt.transformer.h[1].attn.c_attn.weight:std():item(), 1e-3)
    assert.near(0.01, gpt.transformer.h[1].mlp.c_proj.weight:std():item(), 5e-4)
    local bert = small "bert"
    assert.equal(0, bert.bert.embeddings.word_embeddings.weight[1]:abs():max():item())
    assert.near(0.02, bert.bert.encoder.layer[1].output.dense.weight:std():item(), 5e-3)
    local vit = models.vit_s_16{image_size = 32, num_layers = 1}
    assert.near(1 / math.sqrt(3 * 16 * 16), vit.conv_proj.weight:std():item(), 1e-3)
    assert.equal(0, vit.heads.head.weight:abs():max():item())
    assert.equal(384, vit.class_token:size(3))
  end)

  it("trunc_normal_ draws again what lies outside", function()
    local t = nn.init.trunc_normal_(dm.empty(5000), 0, 1, -0.5, 1)
    assert.is_true(t:ge(-0.5):all():item() and t:le(1):all():item())
    assert.is_true(t:lt(-0.49):any():item() and t:gt(0.98):any():item())
    fails("trunc_normal_: no normal number", nn.init.trunc_normal_, t, 0, 1, 1, 1)
    fails("trunc_normal_: no normal number", nn.init.trunc_normal_, t, 0, 0.01, 1, 2)
  end)
end)

describe("a model refuses", function()
  it("options and inputs that do not fit", function()
    fails("gpt2: unknown option 'n_heads'", models.gpt2, {n_heads = 2})
    fails("gpt2: 5 heads do not divide n_embd = 16", models.gpt2, {n_head = 5, n_embd = 16})
    fails("bert: 5 heads do not divide hidden_size = 768", models.bert, {num_attention_heads = 5})
    fails("patches of 16 do not divide images of 40", models.vit_b_16, {image_size = 40})
    fails("ids are {1, 9}, wanted {batch, 1 to 8 tokens}", small "gpt2", dm.ones(1, 9):long())
    fails("ids are {9}, wanted {batch, 1 to 8 tokens}", small "bert", dm.ones(9):long())
    fails("attention_mask is {2, 8}, wanted the ids' shape {1, 8}", small "bert",
      dm.ones(1, 8):long(), {attention_mask = dm.ones(2, 8)})
    fails("images are {1, 3, 9, 9}, wanted {N, 3, 8, 8}", small "vit_s_16", dm.zeros(1, 3, 9, 9))
    assert.is_nil(models.vit_b_17)
  end)
end)

-- ---- training in mixed precision ----

-- A task for each model: -> inputs, labels, and the part of the outputs that they label.
local TASKS = {}

function TASKS.gpt2() -- the next of 1, 2, ... in a circle
  local ids = dm.tensor{{1, 2, 3, 4, 5, 6, 7, 8}, {4, 5, 6, 7, 8, 1, 2, 3}}
  return small "gpt2", ids, ids:remainder(8) + 1
end

function TASKS.bert() -- the token itself
  local ids = dm.tensor{{2, 7, 3, 5}, {8, 4, 6, 2}}
  return small "bert", ids, ids
end

function TASKS.vit_s_16() -- which half is bright
  local x, y = dm.randn(8, 3, 8, 8) * 0.3, {}
  for i = 1, 8 do
    y[i] = i % 2 + 1
    x[{i, {}, {4 * y[i] - 3, 4 * y[i]}}] = 1.5
  end
  return small "vit_s_16", x, dm.tensor(y)
end

function TASKS.encoder() -- the sign of the sum of a sequence's first features
  local layer = nn.TransformerEncoderLayer(8, 2, {dim_feedforward = 16, dropout = 0,
    batch_first = true})
  local net = nn.Sequential{nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(32, 2)}
  local x = dm.randn(16, 4, 8)
  return net, x, x:select(3, 1):sum(2):gt(0):long() + 1
end

local function train(task, dtype)
  dm.manual_seed(3)
  local model, x, y = TASKS[task]()
  local optimizer = dm.optim.AdamW(model:parameters(), {lr = 0.01})
  local scaler = amp.GradScaler{device = DEVICE, enabled = dtype == "float16"}
  local losses = {}
  for step = 1, 20 do
    optimizer:zero_grad()
    local scores, loss
    do
      local _ <close> = amp.autocast{device_type = DEVICE, dtype = dtype}
      scores = model(x)
      loss = loss_of(scores, y)
    end
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    losses[step] = loss:item()
    assert.equal(dtype, scores.dtype)
    assert.equal("float32", loss.dtype)
  end
  for name, p in model:named_parameters() do
    assert.equal("float32", p.dtype, name)
    assert.equal("float32", p.grad and p.grad.dtype, name)
  end
  return losses
end

describe("training in mixed precision", function()
  for _, task in ipairs(sorted_keys(TASKS)) do
    for _, dtype in ipairs{"bfloat16", "float16"} do
      it(("halves the loss of %s in %s"):format(task, dtype), function()
        local losses = train(task, dtype)
        assert.is_true(losses[20] < 0.5 * losses[1], ("%g to %g"):format(losses[1], losses[20]))
      end)
    end
  end
end)

describe("generate", function()
  local makers = {
    gpt2 = function()
      return dm.models.gpt2{n_layer = 1, n_head = 2, n_embd = 16, vocab_size = 8, block_size = 4,
        dropout = 0.5}
    end,
    lstm_lm = function()
      return dm.models.lstm_lm{n_layer = 1, width = 8, vocab_size = 8, block_size = 4,
        dropout = 0.5}
    end,
  }
  for name, make in pairs(makers) do
    it("goes on a text with what " .. name .. " finds likely", function()
      local model = make()
      local ids = dm.tensor({{1, 5, 3, 2, 7, 4}, {8, 8, 1, 1, 2, 6}}, {dtype = "int64"})
      local longer = model:generate(ids, 3, {temperature = 0})
      assert.same({2, 9}, {table.unpack(longer.shape)})
      assert.is_true(dm.equal(ids, longer:narrow(2, 1, 6)))
      assert.is_true(model.training)
      model:eval()
      for i = 7, 9 do -- each the best after the four before it
        local best = model(longer:narrow(2, i - 4, 4)):select(2, 4):argmax(-1)
        assert.same(best:totable(), longer:select(2, i):totable())
      end
    end)

    it("draws among the likeliest: " .. name, function()
      local model = make():eval()
      local ids = dm.ones({200, 1}, {dtype = "int64"})
      local scores = model(ids):select(2, 1)[1]
      local _, best = scores:topk(2)
      local allowed = {}
      for _, id in ipairs(best:totable()) do allowed[id] = true end
      local g = dm.Generator()
      g:manual_seed(4)
      local drawn = model:generate(ids, 1, {top_k = 2, generator = g}):select(2, 2):totable()
      local seen = {}
      for _, id in ipairs(drawn) do
        assert.is_true(allowed[id])
        seen[id] = true
      end
      assert.same(allowed, seen)
      g:manual_seed(4)
      assert.same(drawn, model:generate(ids, 1, {top_k = 2, generator = g}):select(2, 2):totable())
    end)
  end

  it("gives a text in parts the bits of the whole text", function()
    local sizes = {n_layer = 2, n_head = 2, n_embd = 32, vocab_size = 50, block_size = 300}
    for _, dtype in ipairs{"float32", "float64", "bfloat16", "float16"} do
      local model = dm.models.gpt2(sizes):eval():to(dtype)
      local _ <close> = dm.no_grad()
      for _, B in ipairs{1, 3} do
        local ids = dm.randint(1, 50, {B, 290})
        local whole, cache = model(ids), model:cache()
        local from = 1
        for _, T in ipairs{1, 5, 1, 1, 130, 2, 150} do
          local _ <close> = dm.scope()
          local part = model(ids:narrow(2, from, T), cache)
          from = from + T
          assert.equal(from - 1, cache.length)
          local wanted = whole:narrow(2, from - T, T)
          if DEVICE == "cpu" then
            assert.is_true(dm.equal(wanted, part), dtype)
          else -- the library's products of few rows add in another order
            assert.is_true(dm.allclose(wanted:float(), part:float(), {rtol = 1e-2, atol = 1e-2}))
          end
        end
      end
    end
  end)

  it("reads each token once, and forgets what it is told to", function()
    local model = dm.models.gpt2{n_layer = 1, n_head = 1, n_embd = 8, vocab_size = 9,
      block_size = 6}:eval()
    local _ <close> = dm.no_grad()
    local ids, cache = dm.tensor({{1, 5, 3, 2}}, {dtype = "int64"}), model:cache(5)
    assert.equal("KeyValueCache(0 of 5 tokens, 1 layers)", tostring(cache))
    local first = model(ids, cache)
    model(ids:narrow(2, 1, 1), cache)
    cache:crop(2)
    local again = model(ids:narrow(2, 3, 2), cache)
    assert.is_true(dm.allclose(first:narrow(2, 3, 2), again))
    cache:crop(0) -- another batch may follow
    assert.same({2, 3, 9}, {table.unpack(model(dm.ones({2, 3}, {dtype = "int64"}), cache).shape)})

    local lengths = {}
    local forward = model.transformer.forward
    function model.transformer.forward(self, x, ...)
      lengths[#lengths + 1] = x:size(2)
      return forward(self, x, ...)
    end
    model:generate(ids, 5)
    assert.same({4, 1, 1, 6, 6}, lengths)

    function model.transformer.forward() error "meant" end
    model:train()
    assert.error_matches(function() model:generate(ids, 1) end, "meant")
    assert.is_true(model.training) -- as before
  end)

  it("refuses a cache that does not fit", function()
    local model = dm.models.gpt2{n_layer = 1, n_head = 1, n_embd = 8, vocab_size = 9,
      block_size = 6}:eval()
    local ids = dm.ones({2, 4}, {dtype = "int64"})
    assert.error_matches(function() model:cache(7) end, "capacity is 7, wanted 1 to 6 tokens")
    assert.error_matches(function() model(ids, model:cache()) end, "dm.no_grad")
    local _ <close> = dm.no_grad()
    assert.error_matches(function() model(ids, {}) end, "model:cache")
    local cache = model:cache()
    local scores = model(ids, cache)
    assert.error_matches(function() model(ids, cache) end, "4 tokens of at most 6, and 4 more")
    assert.error_matches(function() model(ids:narrow(1, 1, 1):narrow(2, 1, 1), cache) end,
      "a batch of 2")
    assert.error_matches(function() cache:crop(5) end, "from 0 to 4")
    do
      local _ <close> = amp.autocast{dtype = "bfloat16"}
      assert.error_matches(function() model(ids:narrow(2, 1, 1), cache) end, "region of autocast")
    end
    assert.equal(4, cache.length) -- as before
    cache:crop(3)
    assert.is_true(dm.allclose(scores:narrow(2, 4, 1), model(ids:narrow(2, 4, 1), cache)))
  end)

  it("refuses what it cannot go on from", function()
    local model = makers.lstm_lm()
    assert.error_matches(function() model:generate(dm.ones(3), 1) end, "wanted ids")
    assert.error_matches(function()
      model:generate(dm.ones({1, 1}, {dtype = "int64"}), 1, {temperature = -1})
    end, "temperature is %-1")
  end)
end)
