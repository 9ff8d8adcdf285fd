local dm = require "demilune"
local amp = dm.amp

describe("autocast", function()
  it("restores the state on every way out", function()
    pcall(function()
      local _ <close> = amp.autocast{dtype = "bfloat16"}
      assert.is_true(amp.is_autocast_enabled("cpu"))
      error "out"
    end)
    assert.is_false(amp.is_autocast_enabled("cpu"))
    assert.equal("float16", amp.autocast({dtype = "float16"}, function()
      return dm.mm(dm.ones(2, 2), dm.ones(2, 2)).dtype
    end))
    assert.is_false(amp.is_autocast_enabled("cpu"))
  end)

  it("a wrapped function may call itself", function()
    local f
    f = amp.autocast{dtype = "bfloat16"}:wrap(function(n)
      return n == 0 and dm.mm(dm.ones(1, 1), dm.ones(1, 1)).dtype or f(n - 1)
    end)
    assert.equal("bfloat16", f(3))
    assert.is_false(amp.is_autocast_enabled("cpu"))
  end)

  it("refuses what is no device type, and warns on float32", function()
    assert.error_matches(function() amp.autocast{device_type = 3} end, "wanted a string")
    assert.error_matches(function() amp.autocast{device_type = "gpu"} end, "unknown device")
    local caller, texts = require "demilune.caller", {}
    local sink = caller.sink
    caller.sink = function(text) texts[#texts + 1] = text end
    amp.autocast({dtype = "float32"}, function()
      assert.is_false(amp.is_autocast_enabled("cpu"))
    end)
    caller.sink = sink
    assert.equal(1, #texts)
  end)
end)
