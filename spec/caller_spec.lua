-- Warnings name the script's line, and come once for a key where they should.
local caller = require "demilune.caller"

describe("warnings", function()
  local texts, sink = nil, caller.sink
  before_each(function()
    texts = {}
    caller.sink = function(text) texts[#texts + 1] = text end
  end)
  after_each(function() caller.sink = sink end)

  it("are given once for a key, where they are asked to be", function()
    local key = {}
    for _ = 1, 3 do caller.warn_once(key, "%d is odd", 3) end
    caller.warn_once({}, "another")
    assert.equal(2, #texts)
    assert.matches("caller_spec%.lua:%d+: warning: 3 is odd$", texts[1])
    assert.matches("another$", texts[2])
  end)
end)
