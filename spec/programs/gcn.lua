-- A graph convolutional network on two communities: A x W with the normalised adjacency matrix.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim

local GraphConv = nn.Module:extend "GraphConv"
function GraphConv:init(input_dim, output_dim)
  self.kernel = nn.Parameter(dm.empty(input_dim, output_dim))
  nn.init.xavier_normal_(self.kernel)
  self.bias = nn.Parameter(dm.zeros(output_dim))
end
function GraphConv:forward(x, adj_mat)
  local support = dm.mm(x, self.kernel)
  return dm.mm(adj_mat, support) + self.bias
end

local GCN = nn.Module:extend "GCN"
function GCN:init(input_dim, hidden_dim, output_dim, dropout_p)
  self.gc1 = GraphConv(input_dim, hidden_dim)
  self.gc2 = GraphConv(hidden_dim, output_dim)
  self.dropout = nn.Dropout(dropout_p)
end
function GCN:forward(x, adj)
  x = self.dropout(F.relu(self.gc1(x, adj)))
  return F.log_softmax(self.gc2(x, adj), {dim = 2})
end

-- Ten nodes, of which the even and the odd ones know each other.
local function communities()
  local adj = dm.eye(10)
  for i = 1, 10 do
    for j = 1, 10 do
      if (i + j) % 2 == 0 then adj[{i, j}] = 1 end
    end
  end
  adj[1][2], adj[2][1] = 1, 1
  local degree = dm.sum(adj, 2)
  local d = dm.diag(degree:pow(-0.5))
  return d:matmul(adj):matmul(d), dm.arange(10):remainder(2) + 1
end

return function(run)
  local adj, labels = communities()
  local features = dm.randn(10, 6)
  local known = dm.tensor{1, 2}
  local model = GCN(6, 8, 2, 0.1):to(run.device)
  local optimizer = optim.Adam(model:parameters(), {lr = 0.05, weight_decay = 5e-4})
  local losses = {}
  for i = 1, 25 do
    losses[i] = run.step(optimizer, function()
      local output = model(features, adj)
      return F.nll_loss(output[known], labels[known])
    end)
  end
  model:eval()
  local right = model(features, adj):argmax(2):eq(labels):float():mean()
  assert(right:item() >= 0.8, right)
  return losses
end
