-- Folders of a model: model.safetensors, config.json, which tells how the model is built, and
-- README.md, a card for people. dm.save_pretrained writes one, dm.from_pretrained reads it, and
-- those of Hugging Face's library for GPT-2, BERT, ViT and ResNet as they are.

local core = require "demilune.core"
local caller = require "demilune.caller"
local files = require "demilune.io"
local folders = require "demilune.folders"
local made = require "demilune.models.made"
local models = require "demilune.models"
local nn = require "demilune.nn"
local options = require "demilune.options"

local pretrained = {}

local WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"

-- ---- other libraries' configurations ----

-- Whether a value of the configuration is what this library's model computes; raises for others.
local function wants(config, key, ...)
  local value = config[key]
  if value == nil then return end
  for _, known in ipairs{...} do
    if value == known then return end
  end
  caller.raise("from_pretrained: %s = %s is not what demilune's %s computes (%s)", key,
    tostring(value), config.model_type, tostring((...)))
end

-- The number of classes, as the table of labels has it.
local function n_classes(config)
  if config.num_labels then return config.num_labels end
  local n = 0
  for _ in pairs(config.id2label or {}) do n = n + 1 end
  return n > 0 and n or 2
end

-- A name with each pattern of the list replaced in turn.
local function renamed(name, patterns)
  for _, pair in ipairs(patterns) do name = name:gsub(pair[1], pair[2]) end
  return name
end

local VIT = {
  {"^vit%.", ""},
  {"^embeddings%.cls_token$", "class_token"},
  {"^embeddings%.position_embeddings$", "encoder.pos_embedding"},
  {"^embeddings%.patch_embeddings%.projection%.", "conv_proj."},
  {"^encoder%.layer%.", "layers."},
  {"^layers%.(%d+)%.", "encoder.layers.encoder_layer_%1."},
  {"%.attention%.attention%.(%a+)%.", ".attention.%1_proj."},
  {"%.attention%.query_proj%.", ".attention.q_proj."},
  {"%.attention%.key_proj%.", ".attention.k_proj."},
  {"%.attention%.value_proj%.", ".attention.v_proj."},
  {"%.attention%.output%.dense%.", ".attention.o_proj."},
  {"%.attention%.o_proj%.", ".self_attention.out_proj."},
  {"%.intermediate%.dense%.", ".mlp.0."},
  {"%.output%.dense%.", ".mlp.3."},
  {"%.mlp%.fc1%.", ".mlp.0."},
  {"%.mlp%.fc2%.", ".mlp.3."},
  {"%.layernorm_before%.", ".ln_1."},
  {"%.layernorm_after%.", ".ln_2."},
  {"^layernorm%.", "encoder.ln."},
  {"^classifier%.", "heads.head."},
}

-- The weights of a ViT under torchvision's names: query, key and value are one tensor there.
local function vit_weights(state)
  local own, parts = {}, {}
  for name, t in pairs(state) do
    name = renamed(name, VIT)
    local layer, which, kind = name:match "^(.*)%.attention%.([qkv])_proj%.(%a+)$"
    if layer then
      local to = ("%s.self_attention.in_proj_%s"):format(layer, kind)
      parts[to] = parts[to] or {}
      parts[to][which] = t
    elseif not name:find "^pooler%." then
      own[name] = t
    end
  end
  for name, p in pairs(parts) do
    if not (p.q and p.k and p.v) then
      caller.raise("from_pretrained: %s lacks its query, key or value", name)
    end
    own[name] = core.cat({p.q, p.k, p.v}, {dim = 1})
  end
  return own
end

-- The weights of a ResNet under torchvision's names.
local function resnet_weights(state)
  local own = {}
  for name, t in pairs(state) do
    name = name:gsub("^resnet%.", "")
      :gsub("^embedder%.embedder%.convolution%.", "conv1.")
      :gsub("^embedder%.embedder%.normalization%.", "bn1.")
      :gsub("^encoder%.stages%.(%d+)%.layers%.", function(i) return "layer" .. i + 1 .. "." end)
      :gsub("%.shortcut%.convolution%.", ".downsample.0.")
      :gsub("%.shortcut%.normalization%.", ".downsample.1.")
      :gsub("%.layer%.(%d+)%.convolution%.", function(i) return ".conv" .. i + 1 .. "." end)
      :gsub("%.layer%.(%d+)%.normalization%.", function(i) return ".bn" .. i + 1 .. "." end)
      :gsub("^classifier%.1%.", "fc.")
    own[name] = t
  end
  return own
end

-- ResNets by kind of block and number of blocks.
local RESNETS = {
  ["basic 2 2 2 2"] = "resnet18", ["basic 3 4 6 3"] = "resnet34",
  ["bottleneck 3 4 6 3"] = "resnet50", ["bottleneck 3 4 23 3"] = "resnet101",
  ["bottleneck 3 8 36 3"] = "resnet152",
}

-- By model_type: f(config) -> the model's name in dm.models, its options, and a function that gives
-- the weights this library's names, where they are others. `eps` of layer norms is set afterwards.
local TYPES = {}

function TYPES.gpt2(config)
  wants(config, "activation_function", "gelu_new")
  wants(config, "scale_attn_by_inverse_layer_idx", false)
  wants(config, "add_cross_attention", false)
  if config.n_inner and config.n_inner ~= 4 * config.n_embd then
    wants(config, "n_inner", 4 * config.n_embd)
  end
  return "gpt2", {n_layer = config.n_layer, n_head = config.n_head, n_embd = config.n_embd,
    block_size = config.n_positions, vocab_size = config.vocab_size,
    dropout = config.resid_pdrop}, nil, config.layer_norm_epsilon
end

function TYPES.bert(config)
  wants(config, "hidden_act", "gelu")
  wants(config, "position_embedding_type", "absolute")
  wants(config, "is_decoder", false)
  local o = {pad_token_id = (config.pad_token_id or 0) + 1}
  for _, key in ipairs{"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "intermediate_size", "max_position_embeddings", "type_vocab_size", "hidden_dropout_prob",
    "attention_probs_dropout_prob"} do
    o[key] = config[key]
  end
  return "bert", o, nil, config.layer_norm_eps
end

function TYPES.vit(config)
  wants(config, "hidden_act", "gelu")
  wants(config, "num_channels", 3)
  wants(config, "qkv_bias", true)
  return "vit_b_16", {image_size = config.image_size, patch_size = config.patch_size,
    num_classes = n_classes(config), num_layers = config.num_hidden_layers,
    num_heads = config.num_attention_heads, hidden_dim = config.hidden_size,
    mlp_dim = config.intermediate_size, dropout = config.hidden_dropout_prob,
    attention_dropout = config.attention_probs_dropout_prob}, vit_weights, config.layer_norm_eps
end

function TYPES.resnet(config)
  wants(config, "hidden_act", "relu")
  wants(config, "num_channels", 3)
  wants(config, "embedding_size", 64)
  wants(config, "downsample_in_first_stage", false)
  wants(config, "downsample_in_bottleneck", false)
  local kind = ("%s %s"):format(config.layer_type or "bottleneck",
    table.concat(config.depths or {}, " "))
  local name = RESNETS[kind]
  if not name then
    caller.raise("from_pretrained: a ResNet of blocks '%s' is none of resnet18, 34, 50, 101, 152",
      kind)
  end
  return name, {num_classes = n_classes(config)}, resnet_weights
end

-- ---- reading ----

-- The text of a small file in the folder; nil and a message where it cannot be read.
local function text_of(folder, name)
  return core._read_file("from_pretrained", folder .. "/" .. name, 1 << 20)
end

local function set_eps(model, eps)
  for _, m in ipairs(model:modules()) do
    if nn.isinstance(m, nn.LayerNorm) then m.eps = eps end
  end
  made[model].layer_norm_eps = eps
end

-- The model that a configuration describes, with its first weights, and a function for those of the
-- file, or nil.
local function built(config)
  if type(config.demilune) == "table" then
    local name = config.demilune.model
    local build = type(name) == "string" and models[name]
    if not build then
      caller.raise("from_pretrained: config.json names the model '%s', which dm.models lacks; "
        .. "hint: from_pretrained(folder, {model = your_model})", tostring(name))
    end
    local model, eps = build(config.demilune.options or {}), config.demilune.layer_norm_eps
    if eps then set_eps(model, eps) end
    return model
  end
  local describe = TYPES[config.model_type]
  if not describe then
    caller.raise("from_pretrained: model_type '%s' is none of bert, gpt2, resnet, vit; hint: "
      .. "from_pretrained(folder, {model = your_model})", tostring(config.model_type))
  end
  local name, opts, rename, eps = describe(config)
  local model = models[name](opts)
  if eps then set_eps(model, eps) end
  return model, rename
end

local bind_from = options.signature("from_pretrained", "folder: string, *, model?: module, "
  .. "strict: boolean = true")

--- Reads a model from a folder that save_pretrained wrote, or one of Hugging Face's of a GPT-2
--- (with its head), a BERT (masked words), a ViT or a ResNet (classes). It is in evaluation mode;
--- model:train() is for training it further. Ids of tokens count from 1 here.
---
---     local model = dm.from_pretrained "gpt2"          -- a folder in which config.json lies
---     local mine = dm.from_pretrained("mine", {model = Net(32)})
---
---@param folder string
---@param model? table a module to take the weights, where config.json names none of dm.models
---@param strict? boolean whether each name must be there, and no other (true)
---@return table? model nil where the folder or a file of it cannot be read
---@return any message after nil; else the configuration, a table
function pretrained.from_pretrained(...)
  local o = bind_from(...)
  local text, why = text_of(o.folder, CONFIG)
  if not text and not o.model then return nil, why end
  local fine, config = true, {}
  if text then fine, config = pcall(core.json_decode, text) end
  if not fine or type(config) ~= "table" then
    return nil, ("from_pretrained: %s/%s is no JSON object"):format(o.folder, CONFIG)
  end
  local state, problem = files.load(o.folder)
  if type(state) ~= "table" then
    return nil, problem or ("from_pretrained: %s holds no tensors"):format(o.folder)
  end
  local model, rename = o.model, nil
  if not model then model, rename = built(config) end
  model:load_state_dict(rename and rename(state) or state, {strict = o.strict})
  return model:eval(), config
end

-- ---- writing ----

-- The card: what the model is and how it is read.
local function card_of(model, how, text)
  local count = 0
  for _, p in ipairs(model:parameters()) do count = count + p:numel() end
  local lines = {"# " .. (how and how.model or model.class), "",
    text or "A model of demilune.", "",
    ("%d parameters."):format(count), "", "```lua", 'local dm = require "demilune"'}
  lines[#lines + 1] = how and 'local model = dm.from_pretrained "."'
    or ('local model = dm.from_pretrained(".", {model = %s(...)})'):format(model.class)
  lines[#lines + 1] = "```\n"
  return table.concat(lines, "\n")
end

local bind_save = options.signature("save_pretrained", "model: module, folder: string, *, "
  .. "card?: string")

--- Writes a model to a folder, which is made: its weights, its configuration, where dm.models made
--- it, and a card. Files that are there are replaced, each at once.
---
---     dm.save_pretrained(model, "mine", {card = "Tells coats from shirts."})
---
---@param model table a module
---@param folder string
---@param card? string what the card says of the model, in Markdown
---@return boolean? true, or nil where a file cannot be written
---@return string? message
function pretrained.save_pretrained(...)
  local o = bind_save(...)
  folders.make(o.folder) -- files.save says what fails
  local saved, why = files.save(o.folder .. "/" .. WEIGHTS, o.model:state_dict())
  if not saved then return nil, why end
  local how = made[o.model]
  local config = {demilune = how or {class = o.model.class}, model_type = "demilune"}
  for name, text in pairs{[CONFIG] = core.json_encode(config) .. "\n",
    [CARD] = card_of(o.model, how, o.card)} do
    saved, why = core._write_file("save_pretrained", o.folder .. "/" .. name, text)
    if not saved then return nil, why end
  end
  return true
end

return pretrained
