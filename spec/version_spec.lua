-- src/demilune.h alone states the version; the module, the changelog and the rockspec agree with
-- it.

local dm = require "demilune"

local function text_of(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

describe("the version", function()
  local version = text_of "src/demilune.h":match '#define DM_VERSION "(%d+%.%d+%.%d+)"'

  it("is dm._VERSION, by the names that people try as well", function()
    assert.equal("demilune " .. version, dm._VERSION)
    assert.equal(dm._VERSION, dm.version)
    assert.equal(dm._VERSION, dm.__version__)
  end)

  it("has a section of its own at the top of the list of changes", function()
    assert.equal(version, text_of "rockspec/CHANGELOG.md":match "\n## (%d+%.%d+%.%d+)")
  end)

  it("has a rockspec that differs from the checkout's in name and version only", function()
    local name = ("rockspec/demilune-%s-1.rockspec"):format(version)
    local checkout = text_of "rockspec/demilune-scm-1.rockspec"
    local release = text_of(name):gsub('version = "' .. version:gsub("%.", "%%.") .. '%-1"',
      'version = "scm-1"')
    assert.equal(checkout, release)
  end)
end)
