-- makemore: a character MLP over an embedding of three letters, with batch norm written by hand,
-- which then invents names.
local dm = require "demilune"
local F = dm.nn.functional

local words = {"emma", "olivia", "ava", "isabella", "sophia", "mia", "amelia", "ella", "anna"}

return function(run)
  local block_size, n_embd, n_hidden = 3, 6, 24
  local X, Y = {}, {} -- letters are 2 to 27, the dot at both ends is 1
  for _, w in ipairs(words) do
    local context = {1, 1, 1}
    for ch in (w .. "."):gmatch "." do
      local ix = ch == "." and 1 or ch:byte() - 95
      table.insert(X, {table.unpack(context)})
      table.insert(Y, ix)
      table.remove(context, 1)
      table.insert(context, ix)
    end
  end
  X, Y = dm.tensor(X), dm.tensor(Y)

  local g = dm.Generator():manual_seed(2147483647)
  local C = dm.randn({27, n_embd}, {generator = g})
  local fan_in = n_embd * block_size
  local W1 = dm.randn({fan_in, n_hidden}, {generator = g}) * (5 / 3) / fan_in ^ 0.5
  local W2 = dm.randn({n_hidden, 27}, {generator = g}) * 0.01
  local b2 = dm.randn({27}, {generator = g}) * 0
  local bngain, bnbias = dm.ones{1, n_hidden}, dm.zeros{1, n_hidden}
  local bnmean_running, bnstd_running = dm.zeros{1, n_hidden}, dm.ones{1, n_hidden}
  local parameters = {C, W1, W2, b2, bngain, bnbias}
  for _, p in ipairs(parameters) do p.requires_grad = true end

  local losses = {}
  for i = 1, 50 do
    local ix = dm.randint(X.shape[1], {32}, {generator = g})
    local Xb, Yb = X[ix], Y[ix]
    local loss
    do
      local _ <close> = run.autocast()
      local emb = C[Xb]
      local embcat = emb:view(emb.shape[1], -1)
      local hpreact = embcat:matmul(W1)
      local bnmeani = hpreact:mean(1, {keepdim = true})
      local bnstdi = hpreact:std(1, {keepdim = true})
      hpreact = bngain * (hpreact - bnmeani) / (bnstdi + 1e-4) + bnbias
      do
        local _ <close> = dm.no_grad()
        bnmean_running = 0.9 * bnmean_running + 0.1 * bnmeani
        bnstd_running = 0.9 * bnstd_running + 0.1 * bnstdi
      end
      local h = dm.tanh(hpreact)
      local logits = h:matmul(W2) + b2
      loss = F.cross_entropy(logits, Yb)
    end
    for _, p in ipairs(parameters) do p.grad = nil end
    run.scaler:scale(loss):backward()
    local lr = 0.3 / run.scaler:get_scale()
    for _, p in ipairs(parameters) do p.data = p.data - lr * p.grad end
    losses[i] = loss:item()
  end

  local name, context = {}, {1, 1, 1}
  for _ = 1, 12 do
    local emb = C[dm.tensor{context}]
    local hpreact = emb:view(1, -1):matmul(W1)
    local h = dm.tanh(bngain * (hpreact - bnmean_running) / bnstd_running + bnbias)
    local probs = F.softmax(h:matmul(W2) + b2, {dim = 2})
    local ix = dm.multinomial(probs, 1, {generator = g}):item()
    if ix == 1 then break end
    table.remove(context, 1)
    table.insert(context, ix)
    table.insert(name, string.char(ix + 95))
  end
  assert(table.concat(name):find "^%l*$")
  return losses
end
