-- Attributes far from any size: spec/extremes.lua gives them to the ops that compute sizes and
-- offsets from attributes, in a process of its own with little memory. Under the sanitizers an
-- overflow of a signed number ends that process, too.

local OPS = "arange as_strided avg_pool1d avg_pool2d avg_pool3d conv1d conv2d conv3d "
  .. "conv_transpose1d conv_transpose2d conv_transpose3d ctc_loss fold max_pool1d max_pool2d "
  .. "max_pool3d max_unpool1d max_unpool2d max_unpool3d narrow pad repeat_interleave roll tile "
  .. "unfold"

describe("attributes near 2^31, 2^62 and 2^63", function()
  it("give an error or a result", function()
    local paths = ("LUA_PATH_5_4='%s' LUA_CPATH_5_4='%s'"):format(package.path, package.cpath)
    local command = "timeout 100 lua5.4 spec/extremes.lua " .. OPS .. " 2>&1"
    local pipe = assert(io.popen(paths .. " " .. command))
    local last
    for line in pipe:lines() do last = line end
    assert.is_true(pipe:close(), last)
    assert.matches("^%d%d%d%d calls$", last)
  end)
end)
