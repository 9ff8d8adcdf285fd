-- A graph attention network: attention over neighbours, everything else masked by -inf.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim

local GraphAttentionLayer = nn.Module:extend "GraphAttentionLayer"
function GraphAttentionLayer:init(in_features, n_hidden, n_heads, concat)
  self.n_heads, self.n_hidden, self.concat = n_heads, n_hidden, concat
  self.W = nn.Parameter(dm.empty(in_features, n_hidden * n_heads))
  self.a = nn.Parameter(dm.empty(n_heads, 2 * n_hidden, 1))
  self.leakyrelu = nn.LeakyReLU(0.2)
  nn.init.xavier_normal_(self.W)
  nn.init.xavier_normal_(self.a)
end
function GraphAttentionLayer:forward(h, adj_mat)
  local n_nodes = h.shape[1]
  local h_transformed = dm.mm(h, self.W):view(n_nodes, self.n_heads, self.n_hidden):permute(2, 1, 3)
  local source = dm.matmul(h_transformed, self.a[{{}, {1, self.n_hidden}, {}}])
  local target = dm.matmul(h_transformed, self.a[{{}, {self.n_hidden + 1, -1}, {}}])
  local e = self.leakyrelu(source + target.mT)
  local attention = dm.where(adj_mat:gt(0), e, -math.huge)
  attention = F.dropout(F.softmax(attention, {dim = -1}), 0.1, self.training)
  local h_prime = dm.matmul(attention, h_transformed)
  if self.concat then
    return h_prime:permute(2, 1, 3):contiguous():view(n_nodes, self.n_heads * self.n_hidden)
  end
  return h_prime:mean{dim = 1}
end

local GAT = nn.Module:extend "GAT"
function GAT:init(in_features, n_hidden, n_heads, num_classes)
  self.gat1 = GraphAttentionLayer(in_features, n_hidden, n_heads, true)
  self.gat2 = GraphAttentionLayer(n_hidden * n_heads, num_classes, 1, false)
end
function GAT:forward(x, adj)
  x = F.elu(self.gat1(x, adj))
  return F.log_softmax(self.gat2(x, adj), {dim = 2})
end

return function(run)
  -- a ring of twelve nodes, the first half of one class
  local adj = dm.eye(12) + dm.eye(12):roll(1, 1) + dm.eye(12):roll(-1, 1)
  local labels = dm.arange(12):gt(6):long() + 1
  local features = dm.randn(12, 6) + labels:unsqueeze(2)
  local model = GAT(6, 4, 2, 2):to(run.device)
  local criterion = nn.NLLLoss()
  local optimizer = optim.Adam(model:parameters(), {lr = 0.03})
  local losses = {}
  for i = 1, 25 do
    losses[i] = run.step(optimizer, function() return criterion(model(features, adj), labels) end)
  end
  return losses
end
