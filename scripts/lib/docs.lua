-- The work of scripts/docs: ROOT types DIR, ROOT html DIR.
local root, what, dir = table.unpack(arg)
package.path = root .. "/scripts/lib/?.lua;" .. package.path
local folders = require "demilune.folders"

local function fail(text)
  io.stderr:write("scripts/docs: ", text, "\n")
  os.exit(1)
end

local WHAT = {}

function WHAT.types()
  local count, why = require("demilune.docs.types").write(dir)
  return count, why
end

function WHAT.html()
  local pages, pandoc = require "pages", require "pandoc"
  if not pandoc.is_there() then return nil, "pandoc is not there; hint: apt-get install pandoc" end
  if not folders.make(dir) then return nil, ("cannot make '%s'"):format(dir) end
  local list, index = pages.all(root)
  local fine, why = pandoc.write(dir, list, index)
  return fine and #list, why
end

if not WHAT[what] or not dir or arg[4] then fail "wants types DIR or html DIR" end
local count, why = WHAT[what]()
if not count then fail(why) end
print(("%s: %d files"):format(dir, count))
