-- spec/collector_walk.lua in a process of its own: finalizers that free and change what a call
-- reads. By default it looks at the first sample of each op, every 96 bytes of Lua's memory;
-- DEMILUNE_COLLECTOR=whole looks at all samples and each object.
local WALKS = {short = "96 1", whole = "24 1000"}
local walk = WALKS[os.getenv "DEMILUNE_COLLECTOR" or "short"]
local repeats = require("spec.device").type ~= "cpu" or os.getenv "DEMILUNE_GC" == "generational"

describe("a finalizer in the middle of a call", function()
  it("may free, exchange and change what the call reads", function()
    if repeats then return pending "runs on the CPU, with a collector of its own" end
    local command = "LUA_PATH='%s' LUA_CPATH='%s' lua5.4 spec/collector_walk.lua %s 2>&1"
    local pipe = assert(io.popen(command:format(package.path, package.cpath, walk)))
    local last
    for line in pipe:lines() do last = line end
    assert.is_true(pipe:close(), last)
    local calls, finalizers = last:match "^(%d+) calls, (%d+) finalizers$"
    assert.is_truthy(calls, last)
    assert.is_true(tonumber(finalizers) > 0.7 * tonumber(calls), last)
  end)
end)
