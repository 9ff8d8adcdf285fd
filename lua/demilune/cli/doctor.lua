-- demilune doctor: what this machine has, what is missing, and the command that mends it. Each line
-- tries the thing itself: a build that names a library may still not find it when it runs.

local core = require "demilune.core"

local doctor = {}

local GIB = 2.0 ^ 30

-- The message of an error without its position.
local function reason(why) return (tostring(why):gsub("^[^%s]*:%d+: ", "")) end

-- Whether `name` is a program on the PATH.
local function has_program(name)
  return os.execute("command -v " .. name .. " >/dev/null 2>&1") == true
end

-- The lines: {title, f}, where f gives true and a text, or false (missing) or nil (optional) with
-- a text and the command that mends it.
local CHECKS = {}

local function check(title, f) CHECKS[#CHECKS + 1] = {title, f} end

check("demilune", function()
  return true, ("%s, %s, %s"):format(core._VERSION:match "%S+$", _VERSION,
    debug.getinfo(1, "S").source:match "^@?(.*)/cli/doctor%.lua$" or "")
end)

check("processor", function()
  local info = core.cpu_info()
  local text = ("kernels for %s, %d threads"):format(info.variant, core.get_num_threads())
  if info.loops == "plain" and info.variant:find "^a[vm]x" then
    return nil, text .. "; loops without vectors, for it was built for another processor",
      "remove build/, or configure it with -DDM_NATIVE=OFF"
  end
  return true, text
end)

check("memory", function()
  local free, total = require("demilune").mem_get_info()
  if not free then return nil, total end
  return true, ("%.1f GiB free of %.1f"):format(free / GIB, total / GIB)
end)

check("dm.linalg", function()
  local fine, why = pcall(core.linalg_svdvals, core.eye(2))
  if fine then return true, "LAPACK" end
  return false, (reason(why):gsub("; hint:.*", "")), "apt install libopenblas0-serial"
end)

-- Whether decoding bytes that only begin as a format fails for want of the library.
local function knows(bytes, text)
  local fine, why = pcall(function()
    local image, message = require("demilune").decode_image(bytes)
    return image or message
  end)
  return not tostring(fine and why or reason(why)):find(text, 1, true)
end

check("PNG files", function()
  if knows("\137PNG\r\n\26\n", "knows no PNG") then return true, "libpng" end
  return false, "this build has no libpng", "apt install libpng-dev, and build again"
end)

check("JPEG files", function()
  if knows("\255\216\255\224", "knows no JPEG") then return true, "libjpeg" end
  return false, "this build has no libjpeg", "apt install libjpeg-dev, and build again"
end)

check("prompt", function()
  local edits, why = core._line_open()
  if edits then return true, "line editing by readline" end
  return nil, "lines cannot be edited: " .. why
end)

check("plots", function()
  if has_program "rsvg-convert" then return true, "PNG files of plots by rsvg-convert" end
  return nil, "plots are SVG and text only", "apt install librsvg2-bin"
end)

check("dashboard", function()
  local socket, why = require("demilune.dashboard.server").sockets()
  if socket then return true, "dm.dashboard serves its page by lua-socket" end
  return nil, (why:gsub("; hint.*", "")), "apt install lua-socket"
end)

check("notebooks", function()
  if has_program "jupyter" then return true, "Jupyter; demilune jupyter install adds the kernel" end
  return nil, "Jupyter is not there", "apt install jupyter-notebook python3-ipykernel"
end)

check("CUDA", function()
  local dm = require "demilune"
  local there, why = dm.cuda.is_available()
  if not there then
    return nil, reason(why), "kernels/README.md tells what a GPU takes; the CPU needs none of it"
  end
  local names = {}
  for i = 0, dm.cuda.device_count() - 1 do
    local p = dm.cuda.get_device_properties(i)
    names[#names + 1] = ("%s, %.0f GiB, compute %d.%d"):format(p.name, p.total_memory / GIB,
      p.major, p.minor)
  end
  return true, table.concat(names, "; ")
end)

--- The tool; gives the exit status: 1 where something is missing that this library's own functions
--- need.
function doctor.main(args)
  if args[1] then
    io.stderr:write("demilune doctor: takes no arguments\n")
    return 1
  end
  local status = 0
  for _, row in ipairs(CHECKS) do
    local fine, state, text, mend = pcall(row[2])
    if not fine then state, text, mend = false, reason(state), nil end
    if state == false then status = 1 end
    local word = state and "ok" or state == nil and "-" or "missing"
    print(("%-8s %-16s %s"):format(word, row[1], text))
    if not state and mend then print(("%-25s hint: %s"):format("", mend)) end
  end
  return status
end

return doctor
