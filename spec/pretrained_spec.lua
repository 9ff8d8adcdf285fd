-- Folders of models: dm.save_pretrained, dm.from_pretrained, and those of Hugging Face's library
-- (scripts/golden/pretrained.py writes spec/golden/files/pretrained).
local dm = require "demilune"
local core = require "demilune.core"
local folder = require "spec.folder"
setup(folder.make)
teardown(folder.remove)

local GOLDEN = "spec/golden/files/pretrained"

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "a"
  file:close()
  return text
end

local ANSWERS = core.json_decode(read(GOLDEN .. "/answers.json"))
local IDS = dm.tensor{{2, 3, 4, 5}, {5, 4, 3, 1}}

-- The images of the script: (2, 3, size, size).
local function images(size)
  local i = dm.arange(0, 2 * 3 * size * size - 1)
  return (((i * i + i * 7919):remainder(1021):float() / 1021 - 0.5) * 4):reshape(2, 3, size, size)
end

local function far(a, b) return (a - b):abs():max():item() / b:abs():max():item() end

-- The names of a ResNet there, by those of torchvision.
local function name_there(name)
  local layer, block, rest = name:match "^layer(%d)%.(%d)%.(.*)$"
  if layer then
    local head = ("resnet.encoder.stages.%d.layers.%s."):format(layer - 1, block)
    local kind, n, last = rest:match "^(%a+)(%d)%.(.*)$"
    if kind then
      local part = kind == "conv" and "convolution" or "normalization"
      return ("%slayer.%d.%s.%s"):format(head, n - 1, part, last)
    end
    n, last = rest:match "^downsample%.(%d)%.(.*)$"
    return head .. "shortcut." .. (n == "0" and "convolution." or "normalization.") .. last
  end
  return (name:gsub("^fc%.", "classifier.1.")
    :gsub("^conv1%.", "resnet.embedder.embedder.convolution.")
    :gsub("^bn1%.", "resnet.embedder.embedder.normalization."))
end

describe("a folder of Hugging Face's library", function()
  for name, inputs in pairs{gpt2 = IDS, bert = IDS, vit = images(8)} do
    it("gives a " .. name .. " that answers what it answers there", function()
      local model, config = dm.from_pretrained(GOLDEN .. "/" .. name)
      assert.is_false(model.training)
      assert.equal(name, config.model_type)
      local want = dm.tensor(ANSWERS[name])
      assert.is_true(far(model(inputs):flatten(), want) < 1e-5)
    end)
  end

  it("gives a resnet, whose tensors have all the names there", function()
    local model = dm.models.resnet18{num_classes = 3}:eval()
    local state, names = {}, {}
    for name, t in pairs(model:state_dict()) do state[name_there(name)] = t end
    for name in io.lines(GOLDEN .. "/resnet/names.txt") do names[name] = true end
    for name in pairs(state) do assert.is_true(names[name], name) end
    for name in pairs(names) do assert.is_truthy(state[name], name) end
    local path = folder.path "resnet"
    os.execute("mkdir " .. path)
    folder.write("resnet/config.json", read(GOLDEN .. "/resnet/config.json"))
    assert(dm.save(path .. "/model.safetensors", state))
    local got = assert(dm.from_pretrained(path))
    assert.is_true(got(images(32)):equal(model(images(32))))
  end)

  local python = os.getenv "DEMILUNE_PYTHON" or "python3"
  local has = os.execute(python .. " -c 'import transformers, torch' >/dev/null 2>&1")
  it("gives a resnet that answers what it answers there #slow", function()
    if not has then return pending(python .. " with torch and transformers is not there") end
    local path = folder.path "there"
    local text = folder.run(("%s scripts/golden/pretrained.py resnet %s"):format(python, path))
    local file = io.open(path .. "/answers.json")
    assert.is_truthy(file, text)
    local want = dm.tensor(core.json_decode(file:read "a"))
    file:close()
    assert.is_true(far(assert(dm.from_pretrained(path))(images(32)):flatten(), want) < 1e-5)
  end)

  it("of another kind, or that computes something else, is refused by what it says", function()
    local function message(config)
      os.execute("mkdir -p " .. folder.path "other")
      folder.write("other/config.json", core.json_encode(config))
      dm.save(folder.path "other/model.safetensors", {x = dm.ones(1)})
      local fine, why = pcall(function() dm.from_pretrained(folder.path "other") end)
      assert.is_false(fine)
      assert.matches("^spec/pretrained_spec.lua:%d+: from_pretrained: ", why)
      return why
    end
    assert.matches("model_type 'llama' is none of bert, gpt2", message{model_type = "llama"})
    assert.matches("activation_function = relu is not what demilune's gpt2 computes %(gelu_new%)",
      message{model_type = "gpt2", activation_function = "relu"})
    assert.matches("blocks 'basic 1 1 1 1' is none of", message{model_type = "resnet",
      layer_type = "basic", depths = {1, 1, 1, 1}})
    assert.matches("names the model 'resnet1'", message{demilune = {model = "resnet1"}})
    local vit = core.json_decode(read(GOLDEN .. "/vit/config.json"))
    local fine, why = pcall(function()
      local path = folder.path "half"
      os.execute("mkdir -p " .. path)
      folder.write("half/config.json", core.json_encode(vit))
      local state = dm.load(GOLDEN .. "/vit")
      state["vit.encoder.layer.1.attention.attention.key.bias"] = nil
      dm.save(path .. "/model.safetensors", state)
      dm.from_pretrained(path)
    end)
    assert.is_false(fine)
    assert.matches("encoder_layer_1.self_attention.in_proj_bias lacks its query, key or value", why)
  end)
end)

describe("save_pretrained", function()
  it("writes a folder that from_pretrained reads, with a card", function()
    local model = dm.models.lenet{num_classes = 4}:eval()
    local path = folder.path "it's mine/lenet"
    assert.is_true(dm.save_pretrained(model, path, {card = "Tells digits apart."}))
    local x = dm.randn(2, 1, 28, 28)
    local got, config = dm.from_pretrained(path)
    assert.is_true(got(x):equal(model(x)))
    assert.equal("lenet", config.demilune.model)
    assert.equal(4, config.demilune.options.num_classes)
    local card = read(path .. "/README.md")
    assert.matches("^# lenet\n\nTells digits apart%.\n\n%d+ parameters%.\n", card)
    assert.matches('dm%.from_pretrained "%."', card)
    assert.is_true(dm.save_pretrained(got, path)) -- over the first
  end)

  it("keeps what a folder of another library said of layer norms", function()
    local model = dm.from_pretrained(GOLDEN .. "/vit")
    assert(dm.save_pretrained(model, folder.path "vit"))
    local got = dm.from_pretrained(folder.path "vit")
    assert.is_true(got(images(8)):equal(model(images(8))))
    assert.equal(1e-12, got.encoder.ln.eps)
  end)

  it("of a class of one's own wants the model to read into", function()
    local Net = dm.nn.Module:extend "Net"
    function Net:init(n) self.linear = dm.nn.Linear(n, 2) end
    function Net:forward(x) return self.linear(x) end
    local model = Net(3)
    local path = folder.path "own"
    assert(dm.save_pretrained(model, path))
    local x = dm.randn(4, 3)
    assert.is_true(dm.from_pretrained(path, {model = Net(3)})(x):equal(model(x)))
    assert.error_matches(function() dm.from_pretrained(path) end, "hint: from_pretrained")
    assert.error_matches(function() dm.from_pretrained(path, {model = Net(5)}) end,
      "linear.weight is {2, 3}, wanted {2, 5}")
  end)

  it("says which file cannot be read or written", function()
    local model, why = dm.from_pretrained(folder.path "nowhere")
    assert.is_nil(model)
    assert.matches("config.json", why)
    os.execute("mkdir -p " .. folder.path "broken")
    folder.write("broken/config.json", "{")
    model, why = dm.from_pretrained(folder.path "broken")
    assert.is_nil(model)
    assert.matches("broken/config.json is no JSON object", why)
    folder.write("file", "")
    local saved, problem = dm.save_pretrained(dm.nn.Linear(1, 1), folder.path "file/in")
    assert.is_nil(saved)
    assert.matches("file/in", problem)
  end)
end)
