-- demilune.special: special functions, element by element, of any float dtype and with
-- gradients. Those that are ops of the first page, dm.erf and dm.lgamma say, are here too, by
-- the names that PyTorch has for them; each op special_NAME is special.NAME. dm.help
-- "special.ndtri" tells arguments.
--
--   gammaln digamma psi polygamma multigammaln   log Gamma and its derivatives
--   i0 i0e i1 i1e                                modified Bessel functions
--   erf erfc erfcx erfinv                        error functions
--   ndtr ndtri log_ndtr expit logit log_softmax softmax logsumexp
--   entr xlogy xlog1py exp2 expm1 log1p sinc round

local core = require "demilune.core"

local special = {
  gammaln = core.lgamma, psi = core.digamma, multigammaln = core.mvlgamma, expit = core.sigmoid,
}
for name, fn in pairs(core) do
  local own = name:match "^special_(.+)$"
  if own then special[own] = fn end
end
for _, name in ipairs{"digamma", "polygamma", "i0", "erf", "erfc", "erfinv", "logit", "xlogy",
  "log_softmax", "softmax", "logsumexp", "exp2", "expm1", "log1p", "sinc", "round"} do
  special[name] = core[name]
end

return special
