-- For specs of convolutions: asserts that y and the gradients of x, w and bias, in that order and
-- in float64, are those wanted, up to eps of the largest number.
local assert = require "luassert"
local dm = require "demilune"

return function(wanted, got, eps)
  for i, name in ipairs{"y", "x's gradient", "w's gradient", "the bias's"} do
    local scale = wanted[i]:abs():max():item() + 1
    assert.is_true(dm.allclose(wanted[i], got[i], {rtol = eps, atol = eps * scale}), name)
  end
end
