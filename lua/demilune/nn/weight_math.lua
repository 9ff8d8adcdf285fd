-- Lengths and directions of weights, which nn.utils.weight_norm and spectral_norm and their
-- parametrizations share. T. Salimans, D. Kingma 2016; T. Miyato et al. 2018.

local caller = require "demilune.caller"

local weight_math = {}

--- 1..rank without dim, as negative dims count too.
function weight_math.check_dim(what, dim, p)
  local rank = p:dim()
  local d = math.type(dim) == "integer" and (dim < 0 and rank + 1 + dim or dim)
  if not d or d < 1 or d > rank then
    caller.raise("%s: dim is %s, the weight %s", what, tostring(dim), tostring(p.shape))
  end
  return d
end

--- The dim whose lengths weight_norm keeps, 1..rank or "all"; -1 stands for all, as in PyTorch.
function weight_math.length_dim(dim, p)
  if dim == "all" or dim == -1 then return "all" end
  return weight_math.check_dim("weight_norm", dim, p)
end

--- The norm of v over all dims but one, or (dim "all") over all.
function weight_math.lengths(v, dim)
  if dim == "all" then return v:norm() end
  local others = {}
  for d = 1, v:dim() do
    if d ~= dim then others[#others + 1] = d end
  end
  return #others > 0 and v:norm{dim = others, keepdim = true} or v:abs()
end

--- t over its length.
function weight_math.unit(t, eps) return t / t:norm():clamp{min = eps} end

--- The weight as a matrix (size of dim, all other dims).
function weight_math.as_matrix(w, dim)
  return w:movedim({dim}, {1}):reshape(w:size(dim), -1)
end

--- The dim of a module's weight that counts its outputs.
function weight_math.output_dim(module)
  return (module.class or ""):match "ConvTranspose%dd$" and 2 or 1
end

return weight_math
