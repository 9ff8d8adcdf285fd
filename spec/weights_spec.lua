-- Models take files of PyTorch, torchvision and Hugging Face's library as their weights, and
-- answer what they answer there. scripts/golden/files.py writes spec/golden/files.

local dm = require "demilune"
local folder = require "spec.folder"
local DEVICE = require("spec.device").type
setup(folder.make)
teardown(folder.remove)

local GOLDEN = "spec/golden/files/"

-- As scripts/golden/hugging_face.py makes them.
local FILES = {vit_b_16 = "vit.pth", gpt2 = "gpt2", bert = "bert.pth"}

describe("weights = file", function()
  for _, c in ipairs(require("spec.golden").load "models") do
    it("gives " .. c.model .. " what it answers in PyTorch", function()
      c.opts.weights = GOLDEN .. FILES[c.model]
      local model = dm.models[c.model](c.opts):eval()
      assert.equal(GOLDEN .. FILES[c.model], c.opts.weights)
      local scores
      if c.ids then
        scores = model(dm.tensor(c.ids), c.mask and {attention_mask = dm.tensor(c.mask),
          token_type_ids = dm.tensor(c.types)})
      else
        local i = dm.arange(0, 2 * 3 * 8 * 8 - 1)
        scores = model((((i * i + i * 7919):remainder(1021):float() / 1021 - 0.5) * 4)
          :reshape(2, 3, 8, 8))
      end
      assert.is_true((scores - dm.tensor(c.scores)):abs():max():item() < 1e-5)
    end)
  end

  it("raises and lists what is missing and what is not the model's", function()
    local function message(opts)
      local ok, why = pcall(function() dm.models.resnet18(opts) end)
      assert.is_false(ok)
      assert.matches("^spec/weights_spec.lua:%d+: ", why)
      return why
    end
    local state = dm.models.resnet18{num_classes = 3}:state_dict()
    state["fc.bias"], state["fc.extra"] = nil, dm.ones(1)
    local why = message{num_classes = 3, weights = state}
    assert.matches("missing: fc.bias", why)
    assert.matches("unexpected: fc.extra", why)
    assert.matches("fc.weight is {3, 512}, wanted {1000, 512}", message{weights = state})
    assert.matches("weights: .*No such file", message{weights = folder.path "nowhere"})
  end)

  it("gives the names that differ in one order, whatever the table's is", function()
    local model = dm.nn.Sequential()
    for i = 1, 12 do model[i] = dm.nn.Linear(1, 1) end
    local missing, given, unexpected = {}, {}, {}
    for i = 0, 11 do
      missing[2 * i + 1], missing[2 * i + 2] = i .. ".weight", i .. ".bias"
      given[("x%02d"):format(i)] = dm.ones(1)
      unexpected[i + 1] = ("x%02d"):format(i)
    end
    local keys = model:load_state_dict(given, {strict = false})
    assert.same(missing, {table.unpack(keys.missing_keys)})
    assert.same(unexpected, {table.unpack(keys.unexpected_keys)})
  end)

  it("takes states from before batches were counted", function()
    local bn = dm.nn.BatchNorm2d(2)
    local state = bn:state_dict()
    state.num_batches_tracked = nil
    assert.same({}, bn:load_state_dict(state).missing_keys)
  end)

  local python = os.getenv "DEMILUNE_PYTHON" or "python3"
  local has_torch = os.execute(python .. " -c 'import torchvision' >/dev/null 2>&1")

  it("gives torchvision's models what they answer there #slow", function()
    if not has_torch then return pending "python3 with torchvision is not there" end
    local script = folder.write("peer.py", [[
import sys, torch, torchvision
torch.manual_seed(1)
folder = sys.argv[1]
x = torch.randn(2, 3, 64, 64)
torch.save(x, f"{folder}/x.pt")
for i, name in enumerate(sys.argv[2:]):
    model = torchvision.models.get_model(name)
    model(torch.randn(8, 3, 64, 64))
    old = i % 2 == 1
    torch.save(model.state_dict(), f"{folder}/{name}.pth", _use_new_zipfile_serialization=not old)
    torch.save(model.eval()(x), f"{folder}/{name}.y.pt")
]])
    local names = {"resnet18", "vgg11", "mobilenet_v2", "efficientnet_b0", "resnet50"}
    assert.equal("", folder.run(("%s %s %s %s"):format(python, script, folder.path(),
      table.concat(names, " "))))
    local _ <close> = dm.no_grad()
    local x = dm.load(folder.path "x.pt", {device = DEVICE})
    for _, model_name in ipairs(names) do
      local model = dm.models[model_name]{weights = folder.path(model_name .. ".pth")}:eval()
      local want = dm.load(folder.path(model_name .. ".y.pt"), {device = DEVICE})
      local far = (model(x) - want):abs():max():item() / want:abs():max():item()
      assert.is_true(far < 1e-5, ("%s: %g"):format(model_name, far))
    end
  end)
end)
