-- The network, settings and defaults of scripts/fashion_mnist.lua, for both
-- sides of the benchmarks.
local net = {
  c1 = 16, c2 = 32, hidden = 64, dropout = 0.1, -- channels, width, probability
  lr = 5e-3, weight_decay = 1e-2, batch = 128, epochs = 5,
}

--- As words of a request: "c1=16 c2=32 ...".
function net.words()
  local words = {}
  for key, value in pairs(net) do
    if type(value) == "number" then words[#words + 1] = key .. "=" .. value end
  end
  table.sort(words)
  return table.concat(words, " ")
end

return net
