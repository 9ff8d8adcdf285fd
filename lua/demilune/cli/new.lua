-- demilune new DIR: a project to begin with, which trains as it stands.

local command = require "demilune.cli.command"
local folders = require "demilune.folders"
local types = require "demilune.docs.types"

local new = {}

local FILES = {}

FILES["config.lua"] = [[
-- The settings of a training; `lua5.4 train.lua epochs=3` overrides a line.
return {
  seed = 1,
  epochs = 5,
  batch_size = 32,
  lr = 1e-2,
  hidden = 32,
  dtype = "bfloat16", -- of autocast; "float32" leaves it off
  checkpoint = "checkpoint.safetensors",
}
]]

FILES["model.lua"] = [[
-- The network: two inputs, two classes.
local dm = require "demilune"
local nn = dm.nn

local Model = nn.Module:extend "Model"

function Model:init(hidden)
  self.layers = nn.Sequential{nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 2)}
end

--- forward(x): x (N, 2) -> scores (N, 2).
function Model:forward(x) return self.layers(x) end

return Model
]]

FILES["points.lua"] = [[
-- The data: points of two rings, and which ring each is of. Put your own here: a data set has
-- `#set` samples, and set[i] gives the tensors of one, or is made of whole tensors as this one.
local dm = require "demilune"

--- A data set of n points: x (n, 2) float32, y (n) int64, 1 the inner ring and 2 the outer one.
return function(n)
  local y = dm.randint(1, 2, {n})
  local angle = dm.rand(n) * (2 * math.pi)
  local radius = y:float() + dm.randn(n) * 0.15
  local x = dm.stack({angle:cos() * radius, angle:sin() * radius}, {dim = 2})
  return dm.data.TensorDataset(x, y)
end
]]

FILES["train.lua"] = [[
-- Trains the model:  lua5.4 train.lua [epochs=3] [lr=0.003] [resume=true]
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local dm = require "demilune"
local config = require "config"
local Model = require "model"
local points = require "points"

for _, word in ipairs(arg) do
  local key, value = word:match "^(%w+)=(.*)$"
  if not key then error("wanted key=value, got " .. word, 0) end
  if value == "true" or value == "false" then value = value == "true" end
  config[key] = tonumber(value) or value
end

dm.manual_seed(config.seed)
local train = dm.data.DataLoader(points(2000), {batch_size = config.batch_size, shuffle = true})
local valid = dm.data.DataLoader(points(500), {batch_size = 100})
local model = Model(config.hidden)

local trainer = dm.Trainer{
  model = model,
  loss = dm.nn.CrossEntropyLoss(),
  optimizer = dm.optim.AdamW(model:parameters(), {lr = config.lr}),
  metrics = {accuracy = dm.metrics.Accuracy()},
  amp = config.dtype ~= "float32" and config.dtype or nil,
  checkpoint = config.checkpoint,
  resume = config.resume and config.checkpoint or nil,
}
trainer:fit{train = train, valid = valid, epochs = config.epochs}
]]

FILES["spec/model_spec.lua"] = [[
-- busted --lua=lua5.4
package.path = "./?.lua;" .. package.path
local dm = require "demilune"
local Model = require "model"
local points = require "points"

describe("the model", function()
  it("gives each point two scores", function()
    assert.same({7, 2}, Model(8)(dm.randn(7, 2)).shape)
  end)
  it("learns a few points by heart", function()
    dm.manual_seed(1)
    local set = points(64)
    local x, y = set.tensors[1], set.tensors[2]
    local model = Model(16)
    local optimizer = dm.optim.Adam(model:parameters(), {lr = 0.05})
    local loss
    for _ = 1, 60 do
      optimizer:zero_grad()
      loss = dm.nn.functional.cross_entropy(model(x), y)
      loss:backward()
      optimizer:step()
    end
    assert.is_true(loss:item() < 0.3)
  end)
end)
]]

FILES["README.md"] = [[
# NAME

    demilune train.lua                  # or lua5.4 train.lua
    demilune train.lua epochs=20        # any line of config.lua
    demilune train.lua resume=true      # goes on where the checkpoint ends
    busted --lua=lua5.4                 # the tests

`points.lua` makes the data, `model.lua` is the network, `config.lua` holds the numbers.
]]

FILES["NAME-scm-1.rockspec"] = [[
rockspec_format = "3.0"
package = "NAME"
version = "scm-1"
source = {url = "file://."}
dependencies = {"lua >= 5.4", "demilune"}
build = {type = "builtin", modules = {["NAME.model"] = "model.lua"}}
]]

-- For lua-language-server: where the library's definition files are.
FILES[".luarc.json"] = [[
{
  "runtime.version": "Lua 5.4",
  "workspace.library": ["TYPES"]
}
]]

local function fail(...) return command.fail("new", ...) end

-- The folder of definition files that the library was installed with, or one that is written into
-- the project; nil and a message where it cannot be written.
local function folder_of_types(dir)
  local installed = types.installed()
  if installed then return installed end
  local count, why = types.write(dir .. "/types")
  if not count then return nil, why end
  return "types"
end

--- The tool; gives the exit status. It writes over nothing: the folder must not be there yet.
function new.main(args)
  local dir = args[1] and args[1]:gsub("/+$", "")
  if not dir or dir == "" or args[2] then return fail("wants one folder: demilune new DIR") end
  local name = dir:match("[^/]*$"):lower():gsub("[^%w]+", "-"):gsub("^%-", "")
  if name == "" then return fail("'%s' gives a project no name", dir) end
  if io.open(dir) then return fail("'%s' is there already", dir) end
  if not folders.make(dir .. "/spec") then return fail("cannot make '%s'", dir) end
  local found, problem = folder_of_types(dir)
  if not found then return fail("%s", problem) end
  local words = {NAME = name, TYPES = found:gsub('[\\"]', "\\%0")}
  for path, text in pairs(FILES) do
    local fine, why = folders.write(dir .. "/" .. path:gsub("NAME", name),
      (text:gsub("%u+", words)))
    if not fine then return fail("%s", why) end
  end
  print(("%s: a project that trains. Try\n  cd %s && demilune train.lua"):format(dir,
    folders.quoted(dir)))
  return 0
end

return new
