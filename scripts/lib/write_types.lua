-- lua5.4 write_types.lua SOURCES BUILT DIR: writes the definition files for editors while the
-- library is built. SOURCES is the folder of the Lua files, BUILT that of the built module. Where
-- the module cannot be loaded here, for want of a library of its own for instance, it says so, and
-- the build goes on: nothing else needs these files.
local sources, built, dir = table.unpack(arg)
package.path = ("%s/?.lua;%s/?/init.lua;%s"):format(sources, sources, package.path)
package.cpath = ("%s/?.so;%s"):format(built, package.cpath)

local fine, why = pcall(function() assert(require("demilune.docs.types").write(dir)) end)
if not fine then io.stderr:write("no definition files for editors: ", tostring(why), "\n") end
