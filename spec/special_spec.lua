-- Special functions lie within a relative 1e-14 of values by mpmath in float64. PyTorch's values
-- are in spec/golden/special.lua; gradients are checked in spec/op_spec.lua.

local dm = require "demilune"
local special = dm.special

-- x and f(x), by mpmath with 40 digits.
local VALUES = {
  lgamma = {
    {-7.75, -8.5818477635518667}, {-2.25, 0.55550154502064747}, {-0.4375, 1.2853340347067131},
    {-1e-10, 23.025850929998178}, {1e-20, 46.051701859880914}, {0.25, 1.2880225246980775},
    {0.75, 0.20328095143129537}, {1.0009765625, -0.00056290317999120463},
    {1.25, -0.098271836421813161}, {1.625, -0.10917413375679537},
    {1.9990234375, -0.0004125677359714894}, {2.25, 0.12487171489239659},
    {3.5, 1.2009736023470742}, {9.75, 12.242204940050763}, {10.25, 13.368023671476046},
    {100.5, 361.43554046777762}, {10000000000.0, 220258509288.81058},
  },
  digamma = {
    {-7.75, -1.0307688328309315}, {-2.25, 4.1585835646579723}, {-0.4375, 0.60128808806278973},
    {1e-20, -1.0000000000000001e+20}, {0.25, -4.2274535333762654}, {1, -0.57721566490153286},
    {1.5, 0.036489973978576521}, {2.75, 0.81890102497543259}, {9.75, 2.225109535044576},
    {10.25, 2.277704790686724}, {100.5, 4.6051743525818452},
    {10000000000.0, 23.025850929890457},
  },
  polygamma1 = {
    {-7.75, 19.618144334352289}, {-0.4375, 9.270603532955091}, {1e-05, 10000000001.644908},
    {0.25, 17.197329154507111}, {1.5, 0.93480220054467931}, {9.75, 0.10800324333663185},
    {10.25, 0.10247452151799187}, {100.5, 0.0099999166695831027},
  },
  polygamma4 = {
    {-7.75, -24481.576062438245}, {-0.4375, 1068.2993708990917},
    {1e-05, -2.399999999999999e+26}, {0.25, -24584.375388637934}, {1.5, -3.4742498266672252},
    {9.75, -0.00081169640922486223}, {10.25, -0.00065819933156970186},
    {100.5, -5.9995000612383783e-8},
  },
  i0 = {
    {-25.5, 9425875965.3176764}, {-3.25, 5.9893359979395184}, {0.125, 1.0039100663533545},
    {8.5, 683.16192699011561}, {11.75, 14917.234727230315}, {12.25, 24075.740039016829},
    {29.75, 611341652985.97053}, {30.25, 999495401052.53164}, {80.5, 4.0681460218469175e+33},
  },
  i0e = {
    {-25.5, 0.07939852454797062}, {-3.25, 0.23223175875812104}, {0.125, 0.88594752403033098},
    {8.5, 0.1390018430548476}, {11.75, 0.11768691028671148}, {12.25, 0.11520524238907618},
    {29.75, 0.07345530228191528}, {30.25, 0.07284046717911502}, {1000.5, 0.012614086539375468},
  },
  i1 = {
    {-25.5, -9239167088.5568891}, {-3.25, -4.952546165908548}, {1e-20, 4.9999999999999997e-21},
    {0.125, 0.062622149811234825}, {8.5, 641.61990254006676}, {11.75, 14267.615320679373},
    {12.25, 23071.110431178817}, {29.75, 600977595405.66237}, {30.25, 982833517945.78707},
    {80.5, 4.0427985678883194e+33},
  },
  i1e = {
    {-25.5, -0.077825789091938575}, {-3.25, -0.19203105433313604},
    {0.125, 0.055263853241603239}, {8.5, 0.13054935509459586}, {11.75, 0.11256185177437805},
    {12.25, 0.11039797177996276}, {29.75, 0.07221001664055529}, {30.25, 0.071626195109127485},
    {1000.5, 0.012607781071289342},
  },
  erfcx = {
    {-8.75, 3.5620602940887976e+33}, {-0.375, 1.61612865628106}, {0.125, 0.87322184508215081},
    {1.5, 0.3215854164543175}, {7.9375, 0.070527843062722486}, {8.0625, 0.069450717177323225},
    {20.3, 0.027758990824408106}, {23.9, 0.023585649371803794}, {24.1, 0.023390254792226025},
    {1000.5, 0.00056390734806123955},
  },
  ndtri = {
    {1e-300, -37.047096299361199}, {1e-37, -12.784556666602299}, {1e-10, -6.3613409024040562},
    {0.125, -1.1503493803760082}, {0.2499, -0.67480447011060999},
    {0.2501, -0.67417509707465894}, {0.499, -0.0025066308995717662},
    {0.501, 0.0025066308995717662}, {0.875, 1.1503493803760082}, {0.9999, 3.7190164854557084},
  },
  log_ndtr = {
    {-1000.5, -500507.95219468623}, {-20.25, -208.96076728764924},
    {-1.125, -2.0379578745025306}, {-0.875, -1.6565979035822067}, {0.5, -0.36894641528865639},
    {4.5, -3.3976788968344661e-6},
  },
  bessel_j0 = {
    {0.125, 0.9960975630419852}, {1.75, 0.36903253018515076}, {2.25, 0.082749851288734037},
    {7.5, 0.2663396578803784}, {24.5, 0.023697433734067902}, {25.5, 0.14406215754684786},
    {80.25, -0.053729129138704887},
  },
  bessel_j1 = {
    {1e-20, 4.9999999999999997e-21}, {0.125, 0.062378009134494681}, {1.75, 0.5801561976389925},
    {-2.25, -0.54837835664696016}, {7.5, 0.13524842757970551}, {24.5, -0.15897841181932808},
    {25.5, -0.062048536491484102}, {80.25, -0.071371212151420335},
  },
  bessel_y0 = {
    {1e-20, -29.391228250285797}, {0.125, -1.3896806251438405}, {1.75, 0.46549262864690603},
    {2.25, 0.52006476245727827}, {7.75, 0.17676987751364716}, {24.5, -0.15942871774975043},
    {25.5, -0.064859765498783491}, {80.25, -0.071035085771929305},
  },
  bessel_y1 = {
    {1e-20, -6.3661977236758138e+19}, {0.125, -5.199936112534775}, {1.75, -0.25397298594624569},
    {2.75, 0.24601900149738395}, {7.5, -0.25912851048611625}, {24.5, -0.026954655331885411},
    {25.5, -0.1453610587230494}, {80.25, 0.053287602722959318},
  },
  modified_bessel_k0 = {
    {1e-20, 46.167633375539326}, {0.125, 2.2078690867449701}, {1.75, 0.15537981238660359},
    {7.5, 0.00024917761635611439}, {24.5, 5.7688561825292189e-12},
    {300, 3.7236948548891433e-132},
  },
  modified_bessel_k1 = {
    {1e-20, 1.0000000000000001e+20}, {0.125, 7.8311182991157512}, {1.75, 0.19547745347439301},
    {7.5, 0.00026529739012528953}, {24.5, 5.8854327447569323e-12},
    {300, 3.7298958583323727e-132},
  },
  scaled_modified_bessel_k0 = {
    {0.125, 2.5018434402191294}, {7.5, 0.45052369910491569}, {1000.5, 0.039618420706405196},
  },
  scaled_modified_bessel_k1 = {
    {0.125, 8.8738195864263295}, {7.5, 0.47966893379102062}, {1000.5, 0.039638215074686227},
  },
  airy_ai = {
    {-20.25, -0.25609535403377042}, {-9.75, 0.25262476259634336}, {-8.5, -0.33029023763020888},
    {-3.25, -0.4190132668052308}, {-0.5, 0.47572809161053959}, {0, 0.35502805388781724},
    {0.375, 0.26066957317389528}, {1.875, 0.04212963624499835}, {2.125, 0.028810683246957203},
    {6.5, 2.7958823432049136e-6}, {30.25, 8.1179569425343939e-50},
  },
  spherical_bessel_j0 = {
    {1e-20, 1.0}, {0.5, 0.958851077208406}, {2, 0.45464871341284085},
    {9.5, -0.0079106442591378218},
  },
}

-- Of two operands: a, x and f(a, x), by mpmath.
local PAIRS = {
gammainc = {{0.5, 0.25, 0.52049987781304654}, {3, 4, 0.76189669444645566}, {50, 60,
  0.91559331890630817}, {200, 190, 0.2433474271006238}, {1000, 1010, 0.62767894473699473}},
  gammaincc = {
    {0.5, 0.25, 0.47950012218695346}, {3, 4, 0.23810330555354434},
    {50, 60, 0.08440668109369183}, {200, 190, 0.7566525728993762},
    {2, 40, 1.7418252446695515e-16},
  },
  zeta = {
    {1.5, 0.25, 10.213055360466601}, {2, 1, 1.6449340668482264},
    {3.5, 7.25, 0.0033524741021978822}, {12, 0.5, 4096.0077244357965},
    {1.0625, 2, 15.581747646655021},
  },
}

local function polygamma(n) return function(x) return dm.polygamma(n, x) end end
local FUNCTIONS = {lgamma = dm.lgamma, digamma = dm.digamma, polygamma1 = polygamma(1),
  polygamma4 = polygamma(4), i0 = dm.i0}
for name in pairs(VALUES) do FUNCTIONS[name] = FUNCTIONS[name] or special[name] end
local HAS_ZEROS = {lgamma = true, digamma = true, bessel_j0 = true, bessel_j1 = true,
  bessel_y0 = true, bessel_y1 = true, airy_ai = true, spherical_bessel_j0 = true}

-- Ranges in which float32 is compared with float64.
local RANGES = {lgamma = {-8, 60}, digamma = {-8, 60}, polygamma1 = {-8, 60}, polygamma4 = {0, 60},
  i0 = {-60, 60}, i0e = {-60, 60}, i1 = {-60, 60}, i1e = {-60, 60}, erfcx = {-9, 30},
  ndtri = {0, 1}, log_ndtr = {-60, 5}, bessel_j0 = {-60, 60}, bessel_j1 = {-60, 60},
  bessel_y0 = {0.05, 60}, bessel_y1 = {0.05, 60}, modified_bessel_k0 = {0.01, 60},
  modified_bessel_k1 = {0.01, 60}, scaled_modified_bessel_k0 = {0.01, 900},
  scaled_modified_bessel_k1 = {0.01, 900}, airy_ai = {-12, 20}, spherical_bessel_j0 = {-9, 9}}

local function refuses(words, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok, "took what it cannot take")
  assert.matches(words, message, 1, true)
end

describe("a special function in float64", function()
  for name, pairs_of in pairs(VALUES) do
    it("is right: " .. name, function()
      for _, pair in ipairs(pairs_of) do
        local x, want = pair[1], pair[2]
        local got = FUNCTIONS[name](dm.tensor(x, {dtype = "float64"})):item()
        local off = math.abs(got - want) / (math.abs(want) + (HAS_ZEROS[name] and 1 or 0))
        assert(off <= 1e-14, ("%s(%.17g) is %.17g, wanted %.17g"):format(name, x, got, want))
      end
    end)
  end
end)

describe("a special function of two operands in float64", function()
  for name, values in pairs(PAIRS) do
    it("is right: " .. name, function()
      for _, of in ipairs(values) do
        local a, x, want = table.unpack(of)
        local function number(v) return dm.tensor(v + 0.0, {dtype = "float64"}) end
        local got = special[name](number(a), number(x)):item()
        -- exp of a sum of numbers as large as a log(x) has an error of that many ulp
        local bound = 1e-14 + 2 ^ -50 * a * math.abs(math.log(x))
        assert(math.abs(got - want) <= bound * math.abs(want),
          ("%s(%.17g, %.17g) is %.17g, wanted %.17g"):format(name, a, x, got, want))
      end
    end)
  end
end)

describe("a special function in float32", function()
  for name, range in pairs(RANGES) do
    it("is float64's: " .. name, function()
      local x = dm.linspace(range[1] + 0.01, range[2] - 0.01, 4001)
      local got, want = FUNCTIONS[name](x):double(), FUNCTIONS[name](x:double())
      local off = (got - want):abs() / (want:abs() + 1)
      assert(off:max():item() <= 8 * 2 ^ -23, ("%s: %g"):format(name, off:max():item()))
    end)
  end
end)

describe("dm.special", function()
  it("has PyTorch's names", function()
    for name in ([[gammaln digamma psi polygamma multigammaln i0 i0e i1 i1e erf erfc erfcx erfinv
      ndtr ndtri log_ndtr expit logit log_softmax softmax logsumexp entr xlogy xlog1py exp2 expm1
      log1p sinc round gammainc gammaincc zeta airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1
      modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1
      scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0
      chebyshev_polynomial_t hermite_polynomial_h laguerre_polynomial_l legendre_polynomial_p
      shifted_chebyshev_polynomial_w]]):gmatch "%S+" do
      assert.is_function(special[name], name)
    end
  end)

  it("polynomials of degrees that no recurrence reaches end, too", function()
    local x = dm.tensor{0.5, 2}
    for _, n in ipairs{1e6, math.maxinteger, math.huge} do
      local ok, text = pcall(dm.special.legendre_polynomial_p, x, n)
      assert.is_false(ok)
      assert.match("degree is [%dinf]+, wanted at most 100000", text)
    end
    assert.same({0, 0}, dm.special.legendre_polynomial_p(x, math.mininteger):totable())
    assert.same({0, 3}, {table.unpack(
      dm.special.chebyshev_polynomial_t(dm.zeros(0, 3), math.maxinteger).shape)})
    local y = dm.special.legendre_polynomial_p(x, dm.tensor{0 / 0, 2})
    assert.is_true(y[1]:isnan():item() and y[2]:item() == 5.5)
  end)

  it("takes polygamma's n before x, and as a method's argument", function()
    local x = dm.tensor{0.5, 2}
    assert.same(dm.polygamma(1, x):totable(), x:polygamma(1):totable())
  end)

  it("says what is wrong", function()
    refuses("polygamma: n is -1, wanted 0 to 1000", dm.polygamma, -1, dm.ones(2))
    refuses("polygamma: n is 1001", dm.polygamma, 1001, dm.ones(2))
    refuses("mvlgamma: p is 0, wanted 1 or more", dm.mvlgamma, dm.ones(2), 0)
    local shape = {}
    for d = 1, 16 do shape[d] = 1 end
    refuses("16", dm.mvlgamma, dm.ones(shape), 2)
  end)

  it("gives an element of float32 the same bits alone as beside others, near and far", function()
    local list = {0, -0.0, 1 / 0, -1 / 0, 0 / 0, 1e-42, -3, -2.5, 1, 2, 3e4, 2e5, -7e6, 3e38}
    for i = 1, 57 do list[#list + 1] = i * 0.37 - 6 end
    local x = dm.tensor(list)
    local functions = {x.lgamma, x.digamma, x.sinc, function(v) return v:polygamma(1) end}
    for name in ("erfcx log_ndtr bessel_j0 bessel_j1 bessel_y0 bessel_y1"):gmatch "%S+" do
      functions[#functions + 1] = special[name]
    end
    functions[#functions + 1] = function(v) return dm.pow(v, v) end
    functions[#functions + 1] = function(v) return dm.nextafter(v, -v) end
    for number, f in ipairs(functions) do
      local y = f(x)
      for i = 1, #list do
        local a, b = y[i]:item(), f(x[{{i, i}}]):item()
        assert.is_true(a == b and 1 / a == 1 / b or a ~= a and b ~= b, number .. ": " .. i)
      end
    end
  end)
end)

describe("nextafter", function()
  it("knows float32's neighbours", function()
    local x = dm.tensor{1, 1, 0, -1, -0.0, 2, 1 / 0, -2 ^ -149, 0 / 0, 1}
    local to = dm.tensor{2, 0, -1, 0, 0, 2, 0, 1, 1, 0 / 0}
    local y = dm.nextafter(x, to)
    assert.same({1 + 2 ^ -23, 1 - 2 ^ -24, -2 ^ -149, -1 + 2 ^ -24, 0, 2, 2 ^ 128 - 2 ^ 104, 0},
      y[{{1, 8}}]:totable())
    assert.is_true(1 / y[5]:item() > 0 and 1 / y[8]:item() < 0)
    assert.is_true(y[{{9, 10}}]:isnan():all():item())
  end)

  it("knows float16's neighbours", function()
    local x = dm.tensor({1, 1, 0, 65504, -1, 0.0, 2, 1 / 0}, {dtype = "float16"})
    local to = dm.tensor({2, 0, -1, 1 / 0, 0, 0.0, 2, 0}, {dtype = "float16"})
    assert.same({1 + 2 ^ -10, 1 - 2 ^ -11, -2 ^ -24, 1 / 0, -1 + 2 ^ -11, 0, 2, 65504},
      dm.nextafter(x, to):totable())
  end)
end)
