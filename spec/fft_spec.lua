-- Fourier transforms: frequencies, shifts, long transforms and error messages. Values are in
-- spec/golden/fft.lua; gradients are checked in spec/op_spec.lua.

local dm = require "demilune"
local fft = dm.fft

local function refuses(words, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok, "took what it cannot take")
  assert.matches(words, message, 1, true)
end

describe("dm.fft", function()
  it("has the frequencies of its points", function()
    assert.same({0, 0.25, -0.5, -0.25}, fft.fftfreq(4):totable())
    assert.same({0, 1, 2, -2, -1}, fft.fftfreq(5, {d = 0.2, dtype = "float64"}):totable())
    assert.same({0, 0.25, 0.5}, fft.rfftfreq(4):totable())
    assert.same({0}, fft.fftfreq(1):totable())
    assert.same({0}, fft.rfftfreq(1):totable())
  end)

  it("shifts frequency 0 to the middle, and back", function()
    local k = fft.fftfreq(5, {d = 0.2, dtype = "float64"})
    assert.same({-2, -1, 0, 1, 2}, fft.fftshift(k):totable())
    assert.same(k:totable(), fft.ifftshift(fft.fftshift(k)):totable())
    local x = dm.arange(1, 6):reshape(3, 2)
    assert.same({{6, 5}, {2, 1}, {4, 3}}, fft.fftshift(x):totable())
    assert.same({{5, 6}, {1, 2}, {3, 4}}, fft.fftshift(x, nil, {complex = true}):totable())
    assert.same({{2, 1}, {4, 3}, {6, 5}}, fft.fftshift(x, -1):totable())
    assert.same(x:totable(), fft.ifftshift(fft.fftshift(x, {1, 2}), {1, 2}):totable())
  end)

  it("takes a last table without options", function()
    local x = dm.randn(3, 4, 2)
    for _, name in ipairs{"fft", "fft2", "fftn", "irfft2", "hfftn"} do
      assert.is_true(dm.equal(dm.fft[name](x), dm.fft[name](x, {})), name)
    end
  end)

  it("goes there and back at lengths of every kind", function()
    for _, n in ipairs{1, 2, 97, 1000, 1024, 1009, 2 * 37 * 41} do
      local x = dm.randn(2, n, 2, {dtype = "float64"})
      local back = fft.ifft(fft.fft(x))
      assert.is_true((back - x):abs():max():item() < 1e-13, n)
      local r = dm.randn(n, {dtype = "float64"})
      assert.is_true((fft.irfft(fft.rfft(r), {n = n}) - r):abs():max():item() < 1e-13, n)
    end
  end)

  it("are the sums that define them, and a slice's bits do not depend on the others", function()
    dm.manual_seed(7)
    for _, n in ipairs{1, 2, 3, 4, 5, 6, 7, 12, 16, 31, 37, 60, 62, 64, 97, 128, 192, 320} do
      local x = dm.randn(19, n, 2, {dtype = "float64"})
      local k = dm.arange(0, n - 1, {dtype = "float64"})
      local turns = dm.outer(k, k):remainder(n) * (2 * math.pi / n)
      local cos, sin, re, im = turns:cos(), turns:sin(), x:select(3, 1), x:select(3, 2)
      local want = dm.stack({re:mm(cos) + im:mm(sin), im:mm(cos) - re:mm(sin)}, 3)
      local got = fft.fft(x)
      assert.is_true((got - want):abs():max():item() < 1e-12, n)
      local columns = fft.fft(x:transpose(1, 2):contiguous(), {dim = 1}):transpose(1, 2)
      assert.is_true(dm.equal(got, columns), n)
      for i = 1, 19, 3 do assert.is_true(dm.equal(got[i], fft.fft(x[i])), n) end
    end
  end)

  -- The spectrum of real x along dim by the complex transform.
  local function spectrum(x, dim, inverse)
    local pairs_of = dm.stack({x, dm.zeros_like(x)}, -1)
    return (inverse and fft.ifft or fft.fft)(pairs_of, {dim = dim})
  end

  it("has real transforms that are parts of the complex ones, along any dim", function()
    dm.manual_seed(8)
    for _, n in ipairs{1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 30, 62, 74, 97, 128} do
      for _, dtype in ipairs{"float32", "float64"} do
        local near = dtype == "float32" and 1e-6 or 1e-14
        local x = dm.randn(9, n, 13, {dtype = dtype})
        for dim = 1, 3 do
          local size = x.shape[dim]
          local whole, back = spectrum(x, dim), spectrum(x, dim, true)
          local half, wanted = fft.rfft(x, {dim = dim}), size // 2 + 1
          local function check(got, want)
            local most = near * (1 + want:abs():max():item())
            assert.is_true((got - want):abs():max():item() < most, n .. " " .. dim)
          end
          check(half, whole:narrow(dim, 1, wanted))
          check(fft.ihfft(x, {dim = dim}), back:narrow(dim, 1, wanted))
          check(fft.irfft(half, {n = size, dim = dim}), x)
          check(fft.hfft(fft.ihfft(x, {dim = dim}), {n = size, dim = dim}), x)
          check(fft.rfftn(x, {dim = {1, 3, 2}}),
            fft.fftn(dm.stack({x, dm.zeros_like(x)}, -1)):narrow(2, 1, n // 2 + 1))
        end
      end
    end
  end)

  it("leaves out the imaginary parts that half a spectrum cannot have", function()
    for _, n in ipairs{1, 2, 5, 6} do
      local x = dm.randn(n // 2 + 1, 2, {dtype = "float64"})
      local real = x:clone()
      real[1][2] = 0
      if n % 2 == 0 then real[n // 2 + 1][2] = 0 end
      assert.is_true(dm.equal(fft.irfft(x, {n = n}), fft.irfft(real, {n = n})), n)
    end
  end)

  it("has real transforms whose slices' bits do not depend on the others", function()
    dm.manual_seed(9)
    for _, n in ipairs{2, 5, 6, 12, 31, 62, 64, 74, 128, 256, 384, 1152} do
      local x = dm.randn(19, n)
      local y, columns = fft.rfft(x), fft.rfft(x:t():contiguous(), {dim = 1})
      assert.is_true(dm.equal(y, columns:transpose(1, 2)), n)
      local back = fft.irfft(y, {n = n})
      local back_columns = fft.irfft(columns:contiguous(), {n = n, dim = 1})
      assert.is_true(dm.equal(back, back_columns:t()), n)
      for i = 1, 19, 3 do
        assert.is_true(dm.equal(y[i], fft.rfft(x[i])), n)
        assert.is_true(dm.equal(back[i], fft.irfft(y[i], {n = n})), n)
      end
    end
  end)

  it("is as near in float32 as its type allows, at lengths of every kind", function()
    dm.manual_seed(10)
    local function apart(got, want)
      return ((got:to "float64" - want):norm() / want:norm()):item()
    end
    for _, n in ipairs{3, 31, 64, 97, 997, 1000, 1024, 1344, 65536} do
      local near = 1.2e-7 * (1 + math.log(n, 2) / 4)
      local x, r = dm.randn(3, n, 2), dm.randn(3, n)
      assert.is_true(apart(fft.fft(x), fft.fft(x:to "float64")) < near, n)
      assert.is_true(apart(fft.ifft(x), fft.ifft(x:to "float64")) < near, n)
      local half = fft.rfft(r)
      assert.is_true(apart(half, fft.rfft(r:to "float64")) < near, n)
      assert.is_true(
        apart(fft.irfft(half, {n = n}), fft.irfft(half:to "float64", {n = n})) < near, n)
    end
  end)

  it("spreads infinities and keeps zeros alike along any dim", function()
    for _, n in ipairs{8, 60, 64, 192} do
      for _, dtype in ipairs{"float32", "float64"} do
        local x = dm.zeros(9, n, 2, {dtype = dtype})
        x[2][3][1], x[3][n][2], x[4][1][1] = math.huge, -math.huge, math.huge
        x[5] = -x[5]
        local rows = fft.fft(x)
        local columns = fft.fft(x:transpose(1, 2):contiguous(), {dim = 1}):transpose(1, 2)
        assert.is_true(dm.allclose(rows, columns, {rtol = 0, atol = 0, equal_nan = true}), n)
        assert.is_true(dm.equal(rows:nan_to_num():signbit(), columns:nan_to_num():signbit()), n)
        assert.equal(math.huge, rows[4][1][1]:item())
        assert.equal(0, rows[4][1][2]:item())
      end
    end
  end)

  it("answers on any number of threads alike", function()
    local x = dm.randn(64, 300, 2)
    local before = dm.get_num_threads()
    dm.set_num_threads(1)
    local one = fft.fft(x)
    dm.set_num_threads(4)
    local four = fft.fft(x)
    dm.set_num_threads(before)
    assert.is_true(one:eq(four):all():item())
  end)

  it("says what is wrong", function()
    refuses("fft.fft: x has shape {4}, wanted complex numbers in a last dim of 2", fft.fft,
      dm.ones(4))
    refuses("fft.fft: x has shape {2}", fft.fft, dm.ones(2))
    refuses("fft.rfft: x is float16, wanted float32 or float64", fft.rfft,
      dm.ones(4, {dtype = "float16"}))
    refuses("dim 2 is out of range: x has 1 dims of complex numbers", fft.fft, dm.ones(4, 2),
      {dim = 2})
    refuses("0 points, wanted 1 or more", fft.fft, dm.ones(4, 2), {n = 0})
    refuses("0 points, wanted 1 or more", fft.fft, dm.ones(0, 2))
    refuses("0 points, wanted 1 or more; hint: n says how many", fft.irfft, dm.ones(1, 2))
    refuses("1 sizes for 2 dims", fft.fft2, dm.ones(3, 3, 2), {s = {3}})
    refuses("dim 1 is given twice", fft.fftn, dm.ones(3, 3, 2), {dim = {1, 1}})
    refuses("real is float32 and imag is float64", dm.complex, dm.ones(2),
      dm.ones(2, {dtype = "float64"}))
    refuses("fft.fftfreq: n is 0", fft.fftfreq, 0)
    refuses("d is 0", fft.rfftfreq, 4, {d = 0})
    refuses("dim 3 is out of range: x has 2 dims", fft.fftshift, dm.ones(2, 2), 3)
    refuses("dim 2 is out of range: x has 1 dims", fft.fftshift, dm.ones(2, 2), 2,
      {complex = true})
  end)
end)

describe("windows", function()
  local function i0(v)
    local sum, term = 1, 1
    for k = 1, 200 do
      term = term * (v / 2 / k) ^ 2
      sum = sum + term
    end
    return sum
  end
  local wanted = { -- of u from 0 to 1
    hann_window = function(u) return math.sin(math.pi * u) ^ 2 end,
    hamming_window = function(u) return 0.54 - 0.46 * math.cos(2 * math.pi * u) end,
    blackman_window = function(u)
      return 0.42 - 0.5 * math.cos(2 * math.pi * u) + 0.08 * math.cos(4 * math.pi * u)
    end,
    bartlett_window = function(u) return 1 - math.abs(2 * u - 1) end,
    kaiser_window = function(u) return i0(24 * math.sqrt(u * (1 - u))) / i0(12) end,
  }
  for name, formula in pairs(wanted) do
    it(name .. " has the values of its formula", function()
      for dtype, error in pairs{float64 = 4e-15, float32 = 2e-6, bfloat16 = 4e-3} do
        for _, periodic in ipairs{true, false} do
          for _, n in ipairs{2, 3, 8, 301} do
            local window = dm[name](n, {periodic = periodic, dtype = dtype, device = "cpu"})
            local got, period = window:totable(), periodic and n or n - 1
            for k = 0, n - 1 do
              local apart = math.abs(formula(k / period) - got[k + 1])
              assert(apart <= error, ("%s, %s: %d of %d"):format(dtype, periodic, k, n))
              if not periodic then assert.equal(got[n - k], got[k + 1]) end
            end
          end
        end
      end
      assert.same({1}, dm[name](1):totable())
      assert.equal(0, dm[name](0):numel())
    end)
  end

  it("end at 0, and large numbers do not overflow", function()
    for _, name in ipairs{"hann_window", "blackman_window", "bartlett_window"} do
      for _, at in ipairs{1, 9} do
        assert.equal(0, dm[name](9, {periodic = false, device = "cpu"})[at]:item())
      end
    end
    local sharp = dm.kaiser_window(5, {periodic = false, beta = 900, device = "cpu"})
    assert.same({0, 1, 0}, {sharp[1]:item(), sharp[3]:item(), sharp[5]:item()})
    assert.same({1, 1}, dm.kaiser_window(2, {beta = 0, device = "cpu"}):totable())
  end)
end)

describe("dm.stft", function()
  it("comes back by istft, on any window that covers the points", function()
    local x = dm.randn(3, 100, {dtype = "float64"})
    local window = dm.hann_window(16, {dtype = "float64"})
    for _, onesided in ipairs{true, false} do
      local y = dm.stft(x, 16, 4, window, {onesided = onesided, normalized = true})
      assert.same({3, onesided and 9 or 16, 26, 2}, {table.unpack(y.shape)})
      local back = dm.istft(y, 16, 4, window, {onesided = onesided, normalized = true})
      assert.same({3, 100}, {table.unpack(back.shape)})
      assert.is_true((back - x):abs():max():item() < 1e-13)
    end
  end)

  it("says what is wrong", function()
    local x = dm.ones(20)
    refuses("n_fft is 0, hop_length 0, win_length 0", dm.stft, x, 0)
    refuses("win_length 9", dm.stft, x, 8, {win_length = 9})
    refuses("window has shape {4}, wanted {8}", dm.stft, x, 8, dm.ones(4))
    refuses("stft: x has shape {2, 2, 2}", dm.stft, dm.ones(2, 2, 2), 4)
    refuses("stft: 20 points, wanted at least n_fft's 32", dm.stft, x, 32, {center = false})
    refuses("wanted {5, stretches, 2}", dm.istft, dm.ones(4, 3, 2), 8)
    refuses("hop_length is 5, wanted at most", dm.istft, dm.ones(3, 4, 2), 4, 5)
    refuses("there are points that no window covers", dm.istft, dm.ones(5, 3, 2), 8, 8,
      dm.hann_window(8), {center = false})
    refuses("hann_window: window_length is -1", dm.hann_window, -1)
    refuses("dtype is int64, wanted a float", dm.kaiser_window, 4, {dtype = "int64"})
  end)
end)

describe("differences and products", function()
  it("say what is wrong", function()
    refuses("diff: x has shape {}, n is 1", dm.diff, dm.tensor(1.0))
    refuses("n is -1", dm.diff, dm.ones(2), {n = -1})
    refuses("trapezoid: y has shape {2}, x {3}", dm.trapezoid, dm.ones(2), dm.ones(3))
    refuses("wanted at most 8 dims", dm.kron, dm.ones(1, 1, 1, 1, 1, 1, 1, 1, 1), dm.ones(1))
  end)
end)
