-- nanoGPT: causal self-attention, weight tying, AdamW with decay groups, cosine learning rate, and
-- generation with temperature and top-k.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim

local CausalSelfAttention = nn.Module:extend "CausalSelfAttention"
function CausalSelfAttention:init(config)
  self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, {bias = config.bias})
  self.c_proj = nn.Linear(config.n_embd, config.n_embd, {bias = config.bias})
  self.n_head, self.n_embd = config.n_head, config.n_embd
end
function CausalSelfAttention:forward(x)
  local B, T, C = table.unpack(x.shape)
  local q, k, v = table.unpack(self.c_attn(x):split(self.n_embd, 3))
  k = k:view(B, T, self.n_head, C // self.n_head):transpose(2, 3)
  q = q:view(B, T, self.n_head, C // self.n_head):transpose(2, 3)
  v = v:view(B, T, self.n_head, C // self.n_head):transpose(2, 3)
  local y = F.scaled_dot_product_attention(q, k, v, {dropout_p = 0, is_causal = true})
  y = y:transpose(2, 3):contiguous():view(B, T, C)
  return self.c_proj(y)
end

local Block = nn.Module:extend "Block"
function Block:init(config)
  self.ln_1 = nn.LayerNorm(config.n_embd)
  self.attn = CausalSelfAttention(config)
  self.ln_2 = nn.LayerNorm(config.n_embd)
  self.mlp = nn.Sequential(nn.Linear(config.n_embd, 4 * config.n_embd, {bias = config.bias}),
    nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd, {bias = config.bias}))
end
function Block:forward(x)
  x = x + self.attn(self.ln_1(x))
  return x + self.mlp(self.ln_2(x))
end

local GPT = nn.Module:extend "GPT"
function GPT:init(config)
  self.config = config
  local blocks = {}
  for i = 1, config.n_layer do blocks[i] = Block(config) end
  self.transformer = nn.ModuleDict{
    wte = nn.Embedding(config.vocab_size, config.n_embd),
    wpe = nn.Embedding(config.block_size, config.n_embd),
    h = nn.ModuleList(blocks),
    ln_f = nn.LayerNorm(config.n_embd),
  }
  self.lm_head = nn.Linear(config.n_embd, config.vocab_size, {bias = false})
  self.transformer.wte.weight = self.lm_head.weight
  self:apply(self._init_weights)
end
function GPT._init_weights(module)
  if nn.isinstance(module, nn.Linear) then
    nn.init.normal_(module.weight, {mean = 0.0, std = 0.02})
    if module.bias then nn.init.zeros_(module.bias) end
  elseif nn.isinstance(module, nn.Embedding) then
    nn.init.normal_(module.weight, {mean = 0.0, std = 0.02})
  end
end
function GPT:forward(idx, targets)
  local t = idx:size(2)
  local pos = dm.arange(t, {device = idx.device})
  local x = self.transformer.wte(idx) + self.transformer.wpe(pos)
  for _, block in ipairs(self.transformer.h) do x = block(x) end
  x = self.transformer.ln_f(x)
  if not targets then return self.lm_head(x[{{}, {-1, -1}, {}}]) end
  local logits = self.lm_head(x)
  return logits, F.cross_entropy(logits:view(-1, logits:size(-1)), targets:reshape(-1))
end
function GPT:configure_optimizers(weight_decay, learning_rate)
  local decay, nodecay = {}, {}
  for _, p in self:named_parameters() do
    table.insert(p:dim() >= 2 and decay or nodecay, p)
  end
  return optim.AdamW({{params = decay, weight_decay = weight_decay},
    {params = nodecay, weight_decay = 0.0}}, {lr = learning_rate, betas = {0.9, 0.95}})
end
function GPT:generate(idx, max_new_tokens, temperature, top_k)
  local _ <close> = dm.no_grad()
  for _ = 1, max_new_tokens do
    local idx_cond = idx
    if idx:size(2) > self.config.block_size then
      idx_cond = idx[{{}, {-self.config.block_size, -1}}]
    end
    local logits = self(idx_cond)
    logits = logits[{{}, -1, {}}] / temperature
    if top_k then
      local v = dm.topk(logits, math.min(top_k, logits:size(-1)))
      logits[logits:lt(v[{{}, {-1}}])] = -math.huge
    end
    local probs = F.softmax(logits, {dim = -1})
    idx = dm.cat({idx, dm.multinomial(probs, {num_samples = 1})}, {dim = 2})
  end
  return idx
end

return function(run)
  local text = ("to be or not to be, "):rep(20)
  local stoi, itos = {}, {}
  for ch in text:gmatch "." do
    if not stoi[ch] then
      itos[#itos + 1] = ch
      stoi[ch] = #itos
    end
  end
  local ids = {}
  for ch in text:gmatch "." do ids[#ids + 1] = stoi[ch] end
  local train_data = dm.tensor(ids, {dtype = "int64"})
  local config = {block_size = 16, vocab_size = #itos, n_layer = 2, n_head = 2, n_embd = 32,
    bias = false}

  local function get_batch()
    local x, y = {}, {}
    for i, at in ipairs(dm.randint(#train_data - config.block_size, {8}):tolist()) do
      x[i] = train_data[{{at, at + config.block_size - 1}}]
      y[i] = train_data[{{at + 1, at + config.block_size}}]
    end
    return dm.stack(x):to(run.device), dm.stack(y):to(run.device)
  end

  local model = GPT(config):to(run.device)
  local optimizer = model:configure_optimizers(0.1, 1e-2)
  local losses = {}
  for iter = 1, 30 do
    local lr = 1e-3 + 0.5 * (1 + math.cos(math.pi * iter / 30)) * 9e-3
    for _, param_group in ipairs(optimizer.param_groups) do param_group.lr = lr end
    local X, Y = get_batch()
    losses[iter] = run.step(optimizer, function()
      local _, loss = model(X, Y)
      return loss
    end, {clip = 1.0, model = model})
  end
  model:eval()
  local start = dm.tensor({{stoi.t, stoi.o}}, {dtype = "int64"})
  local out = {}
  for _, id in ipairs(model:generate(start, 20, 0.5, 3)[1]:tolist()) do out[#out + 1] = itos[id] end
  assert(table.concat(out):find "^to" and #out == 22)
  return losses
end
