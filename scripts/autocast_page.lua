-- The lists of ops on the page lua/demilune/amp/README.md, from the op table.
--   scripts/run scripts/autocast_page.lua    writes them between the page's markers
-- spec/features_spec.lua fails when they are stale; it loads this file as a function that gives
-- the page as it is and as it should be.
local PATH, WIDTH = "lua/demilune/amp/README.md", 100
local BEGIN, END = "<!-- lists: begin -->\n", "<!-- lists: end -->\n"
local WORDS = {"lower_precision_fp", "fp32", "fp32_set_opt_dtype", "promote", "banned"}
local DEVICES = {{"cpu", "On the CPU"}, {"cuda", "On CUDA"}}

-- A list item of the ops whose policy is `word`, in lines of at most WIDTH characters.
local function item(title, table_of, word)
  local names, lines = {}, {}
  for name, policy in pairs(table_of) do
    if policy == word then names[#names + 1] = name end
  end
  table.sort(names)
  local line = ("- %s:"):format(title)
  for _, name in ipairs(#names > 0 and names or {"none"}) do
    if #line + 1 + #name > WIDTH then
      lines[#lines + 1], line = line, " "
    end
    line = line .. " " .. name
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n") .. "\n"
end

local function lists()
  local amp = require("demilune").amp
  local parts = {}
  for _, word in ipairs(WORDS) do
    local part = {("`%s`\n\n"):format(word)}
    for _, device in ipairs(DEVICES) do
      part[#part + 1] = item(device[2], amp.op_table(device[1]), word)
    end
    parts[#parts + 1] = table.concat(part)
  end
  return "\n" .. table.concat(parts, "\n") .. "\n"
end

local function pages()
  local file <close> = assert(io.open(PATH))
  local page = file:read "a"
  local _, first = page:find(BEGIN, 1, true)
  local last = page:find(END, 1, true)
  return page, page:sub(1, first) .. lists() .. page:sub(last)
end

if ... == "pages" then return pages end
local _, page = pages()
local file <close> = assert(io.open(PATH, "w"))
file:write(page)
