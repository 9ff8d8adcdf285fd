-- demilune.special: special functions, element by element, of any float dtype and with
-- gradients. Those that are ops of the first page, dm.erf and dm.lgamma say, are here too, by
-- the names that PyTorch has for them; each op special_NAME is special.NAME. dm.help
-- "special.ndtri" tells arguments.
--
--   gammaln digamma psi polygamma multigammaln   log Gamma and its derivatives
--   gammainc gammaincc zeta
--   i0 i0e i1 i1e modified_bessel_i0 _i1 _k0 _k1 scaled_modified_bessel_k0 _k1
--   bessel_j0 _j1 _y0 _y1 spherical_bessel_j0 airy_ai
--   chebyshev_polynomial_t _u _v _w shifted_chebyshev_polynomial_t ... hermite_polynomial_h _he
--   laguerre_polynomial_l legendre_polynomial_p
--   erf erfc erfcx erfinv                        error functions
--   ndtr ndtri log_ndtr expit logit log_softmax softmax logsumexp
--   entr xlogy xlog1py exp2 expm1 log1p sinc round

local core = require "demilune.core"

local special = require "demilune.namespace"("special_", {
  gammaln = core.lgamma, psi = core.digamma, multigammaln = core.mvlgamma, expit = core.sigmoid,
  modified_bessel_i0 = core.i0, modified_bessel_i1 = core.special_i1,
})
for _, name in ipairs{"digamma", "polygamma", "i0", "erf", "erfc", "erfinv", "logit", "xlogy",
  "log_softmax", "softmax", "logsumexp", "exp2", "expm1", "log1p", "sinc", "round"} do
  special[name] = core[name]
end

return special
