-- The README's image of the prompt: types a session into a real pseudo-terminal (util-linux'
-- `script`) and draws what stands there then.
--   scripts/run scripts/prompt_image.lua .github/images/prompt.svg
local SESSION = [[
model = nn.Sequential{nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)}
model
x = dm.randn(2, 784)
model(x):softmax(2)
dm.ones(2, 3) + dm.ones(2)
local losses = {}; for i = 1, 40 do losses[i] = math.exp(-i / 9) + math.random() / 12 end
:plot losses
:time model(x)
? dm.no_grad
]]
local COLUMNS, SIZE, WIDTH, HEIGHT, EDGE = 100, 13, 7.83, 17, 16

-- The lines of the terminal after the session, without the marks of the terminal's own.
local function played()
  local path, quoted = os.tmpname(), {}
  for line in SESSION:gmatch "[^\n]+" do quoted[#quoted + 1] = ("%q"):format(line) end
  local root = arg[0]:match "^(.*)/scripts/[^/]*$" or "."
  local command = ("(sleep 1.5; for line in %s; do printf '%%s\\n' \"$line\"; sleep 0.7; done; "
    .. "printf '\\004'; sleep 0.3) | TERM=xterm-256color script -q -c 'stty cols %d rows 20; "
    .. "%s/scripts/run' %s >/dev/null"):format(table.concat(quoted, " "), COLUMNS, root, path)
  assert(os.execute(command))
  local file = assert(io.open(path))
  local text = file:read "a":gsub("\27%[%?2004[hl]\r?", ""):gsub("\27%[[%d;]*m", ""):gsub("\r", "")
  file:close()
  os.remove(path)
  local lines = {}
  for line in text:gmatch "[^\n]*" do
    if not line:find "^Script " then lines[#lines + 1] = line end
  end
  while lines[#lines] == "" or lines[#lines] == "> " do lines[#lines] = nil end
  return lines
end

local ESCAPES = {["<"] = "&lt;", [">"] = "&gt;", ["&"] = "&amp;"}
local function class_of(line)
  return line:find "^> " and "typed" or line:find "^error" and "error" or "told"
end

local function drawn(lines)
  local out = {([[<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-size="%d"
 font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace">
<style>text { white-space: pre } .typed { fill: #fff } .told { fill: #b9c3d0 }
 .error { fill: #ff9a8d }</style>
<rect width="100%%" height="100%%" rx="8" fill="#171b22"/>]])
    :format(math.ceil(COLUMNS * WIDTH) + 2 * EDGE, #lines * HEIGHT + 2 * EDGE, SIZE)}
  for i, line in ipairs(lines) do
    if line ~= "" then
      out[#out + 1] = ('<text x="%d" y="%d" xml:space="preserve" class="%s">%s</text>'):format(EDGE,
        EDGE + i * HEIGHT - 4, class_of(line), (line:gsub("[<>&]", ESCAPES)))
    end
  end
  return table.concat(out, "\n") .. "\n</svg>\n"
end

local file = assert(io.open(assert(arg[1], "wanted: the file for the image"), "w"))
assert(file:write(drawn(played())))
assert(file:close())
