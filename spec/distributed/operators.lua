-- What the operators of a reduction do with two tensors, by plain ops; an average is divided by the
-- number of ranks in the end.
return {
  sum = function(a, b) return a + b end, avg = function(a, b) return a + b end,
  product = function(a, b) return a * b end,
  min = function(a, b) return a:minimum(b) end, max = function(a, b) return a:maximum(b) end,
  band = function(a, b) return a:bitwise_and(b) end,
  bor = function(a, b) return a:bitwise_or(b) end,
}
