-- Runs before the specs: where the module is, and which collector.
-- DEMILUNE_BUILD: the build folder to test ("build", or the sanitizer's).
-- DEMILUNE_GC: "incremental" or "generational".
local build = os.getenv "DEMILUNE_BUILD" or "build"

package.path = "./lua/?.lua;./lua/?/init.lua;" .. package.path
package.cpath = "./" .. build .. "/lua/?.so;" .. package.cpath

collectgarbage(os.getenv "DEMILUNE_GC" or "incremental")
