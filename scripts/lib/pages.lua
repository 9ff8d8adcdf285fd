-- The reference as pages of Markdown, from dm.help's documentation, the guides and src/demilune.h:
-- a list of {file = "nn.md", title =, text =}, whose links name files as .html. Each public name
-- has one heading, and the words of texts that are public names are links to theirs.

local docs = require "demilune.docs"
local source = require "demilune.docs.source"

local pages = {}

-- ---- names ----

-- Ops of modules, whose names in the op table begin with the module's: linalg_inv is linalg.inv.
local PREFIXES = {"signal.windows", "linalg", "fft", "special"}

-- The page and the name on it, of a name of docs.names().
local function placed(name)
  for _, prefix in ipairs(PREFIXES) do
    local rest = name:match("^" .. prefix:gsub("%.", "_") .. "_(.+)$")
    if rest then return prefix, prefix .. "." .. rest end
  end
  local method = name:match "^Tensor%.(.+)$"
  if method then return "tensor", "x:" .. method end
  local module = name:match "^(.+)%.[%w_]+$"
  return module or "dm", module and name or "dm." .. name
end

-- {[page] = list of {shown =, name =, entry =}}, and {[shown name] = link}.
local function sorted_names()
  local by_page, links = {}, {}
  for _, name in ipairs(docs.names()) do
    local page, shown = placed(name)
    local entry = docs.find(name)
    by_page[page] = by_page[page] or {}
    if not links[shown] then -- an op and another name of it may be shown alike
      table.insert(by_page[page], {shown = shown, name = name, entry = entry})
    end
    local link = ("%s.html#%s"):format(page, shown)
    links[shown], links[name] = link, link
    links["dm." .. name] = link
  end
  for page in pairs(by_page) do links[page] = links[page] or page .. ".html" end
  return by_page, links
end

-- ---- Markdown ----

local function escaped(text) return (text:gsub("[\\`*_{}%[%]<>()#+%-.!|$~^\"'@:]", "\\%0")) end

-- Plain text with links for words that are public names of modules.
local function linked(text, links, own)
  local out, from = {}, 1
  for at, word, to in text:gmatch "()%f[%w_]([%a][%w_]*%.[%w_.]*[%w_])()" do
    if links[word] and links[word] ~= own then
      out[#out + 1] = escaped(text:sub(from, at - 1))
      out[#out + 1] = ("[`%s`](%s)"):format(word, links[word])
      from = to
    end
  end
  out[#out + 1] = escaped(text:sub(from))
  return table.concat(out)
end

-- Lines that tell one fact of an op each, and stand apart.
local function is_fact(line)
  return line:find "^autocast" or line == "has a gradient" or line == "no gradient"
end

-- A documentation's lines: paragraphs, blocks of code for lines that are set in, and facts.
local function add_text(out, lines, links, own)
  local block = false
  for _, line in ipairs(lines) do
    local code = line:find "^  " ~= nil
    if code ~= block then out[#out + 1] = code and "\n```" or "```\n" end
    block = code
    if is_fact(line) then out[#out + 1] = "\n::: fact\n" .. escaped(line) .. "\n:::\n"
    else out[#out + 1] = code and line or linked(line, links, own) end
  end
  if block then out[#out + 1] = "```" end
end

local function add_entry(out, item, links)
  local entry = item.entry
  out[#out + 1] = ("\n## %s {#%s}\n"):format(escaped(item.shown), item.shown)
  local signature = entry.signature
  if item.shown:gsub("%.", "_") == entry.name then -- linalg.inv(A), not linalg_inv(A)
    signature = item.shown .. signature:sub(#entry.name + 1)
  end
  if item.shown:find "^dm%." and not signature:find "^x:" then signature = "dm." .. signature end
  out[#out + 1] = ("```{.lua .signature}\n%s\n```\n"):format(signature)
  add_text(out, entry.text, links, links[item.name])
  if entry.example then
    out[#out + 1] = "\n```lua\n" .. table.concat(entry.example, "\n") .. "\n```"
  end
end

-- The heads of the two pages of names that are no module's.
local INTRODUCTIONS = {
  dm = "An op whose first operand is a tensor is a method of tensors too: `x:sum(1)` is "
    .. "`dm.sum(x, 1)`. With `_` behind its name, a method writes its result into the tensor. "
    .. "Options go by position, or by name in a last table.",
  tensor = "Besides these, tensors have the ops as methods: see [dm](dm.html).",
}

-- A page of names: first where they are, then each.
local function module_page(page, items, links)
  local title = page == "tensor" and "Methods of tensors" or page == "dm" and "dm" or "dm." .. page
  local out = {}
  local path = package.searchpath("demilune." .. page, package.path)
  out[1] = INTRODUCTIONS[page]
  add_text(out, path and source.head(path) or {}, links, "")
  out[#out + 1] = "\n::: names"
  for _, item in ipairs(items) do
    out[#out + 1] = ("[%s](#%s)"):format(escaped(item.shown:match "[%w_]+$"), item.shown)
  end
  out[#out + 1] = ":::\n"
  for _, item in ipairs(items) do add_entry(out, item, links) end
  return {file = page .. ".md", title = title, text = table.concat(out, "\n")}
end

-- ---- guides ----

-- Pages of Markdown that the guides link to, besides each other.
local FILES = {["guides/README.md"] = "guides", ["README.md"] = "from-pytorch",
  ["amp/README.md"] = "amp-reference"}

-- A link of the file at `path`, of the folder of the library, as a link between pages; nil for what
-- is no page.
local function page_link(path, link)
  if link:find "^https?:" or link:find "^#" then return link end
  local file, mark = link:match "^([^#]*)(#?.*)$"
  local whole = (path:match "^(.*/)" or "") .. file
  repeat
    local shorter, count = whole:gsub("[^/.]+/%.%./", "")
    whole = shorter
  until count == 0
  local guide = whole:match "^guides/([%w-]+)%.md$"
  local page = FILES[whole] or guide and "guide-" .. guide
  return page and page .. ".html" .. mark
end

-- The text of a file with its links between pages, and names in code as links.
local function guide_text(path, text, links)
  local out, code = {}, false
  for line in (text .. "\n"):gmatch "(.-)\n" do
    if line:find "^```" then
      code = not code
    elseif not code then
      line = line:gsub("%[([^%[%]]-)%]%(([^()%s]+)%)", function(words, link)
        local target = page_link(path, link)
        return target and ("[%s](%s)"):format(words, target) or words
      end)
      line = line:gsub("%f[%[`]`([%w_.]+)`", function(name)
        return links[name] and ("[`%s`](%s)"):format(name, links[name]) or nil
      end)
    end
    out[#out + 1] = line
  end
  return table.concat(out, "\n")
end

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

-- The page of a file below the library's folder.
local function guide_page(root, path, name, links)
  local text = read(root .. "/lua/demilune/" .. path)
  local title = text:match "^# ([^\n]+)" or name
  text = guide_text(path, text:gsub("^# [^\n]+\n", ""), links)
  return {file = name .. ".md", title = title:gsub("`", ""), text = text, guide = true}
end

-- ---- the C API ----

-- The names that a piece of the header declares.
local function declared(code)
  local names = {}
  for name in code:gmatch "DM_API[^;]-(dm_[%w_]+)%(" do names[#names + 1] = name end
  for name in code:gmatch "}%s*(dm_[%w_]+);" do names[#names + 1] = name end
  return names
end

local function c_page(root)
  local text = read(root .. "/src/demilune.h")
  local head, rest = text:match "^/%*%s*(.-)%*/(.*)$"
  local out = {(escaped((head:gsub("\n   ", "\n"))):gsub("\\`", "`"))}
  rest = rest:match "(enum { DM_MAX_DIM.*)#ifdef __cplusplus"
  for piece in (rest .. "\n\n"):gmatch "(.-)\n%s*\n" do
    local comment, code = piece:match "^%s*/%*%s*(.-)%s*%*/%s*(.*)$"
    if not comment then comment, code = "", piece end
    local names = declared(code)
    if #names > 0 then
      out[#out + 1] = ("\n## %s {#%s}\n"):format(escaped(table.concat(names, ", ")), names[1])
    end
    out[#out + 1] = escaped((comment:gsub("\n%s*", " "))):gsub("\\`", "`")
    if code:find "%S" then out[#out + 1] = "\n```c\n" .. code .. "\n```\n" end
  end
  return {file = "c-api.md", title = "From C: demilune.h", text = table.concat(out, "\n")}
end

-- ---- all ----

-- The words of the first page for each page of names: the first sentence at the head of its file.
local function about(page)
  if page == "dm" then return "ops, tensors from Lua's values, files, settings" end
  if page == "tensor" then return "what a tensor answers to besides the ops" end
  local path = package.searchpath("demilune." .. page, package.path)
  local head = path and source.head(path) or {}
  local text = table.concat(head, " "):gsub("^[%w_.]+%s*[:(][^:]-:?%s+", "")
  return (text:match "^(.-[.:;])%f[%s%z]" or text):gsub("[.:;]$", "")
end

local function index_page(list, names)
  local out = {"Type a name or a word.\n", "::: {#results}", ":::\n", "## Modules\n"}
  for _, page in ipairs(names) do
    out[#out + 1] = ("- [%s](%s.html) %s"):format(page == "dm" and "dm" or page == "tensor"
      and "tensors" or "dm." .. page, page, escaped(about(page)))
  end
  out[#out + 1] = "- [demilune.h](c-api.html) the engine from C\n\n## Guides\n"
  for _, page in ipairs(list) do
    if page.guide then
      out[#out + 1] = ("- [%s](%s)"):format(escaped(page.title), page.file:gsub("md$", "html"))
    end
  end
  return {file = "index.md", title = "demilune", text = table.concat(out, "\n")}
end

--- All pages, and the index of the search: a list of {name, link, first line}.
---@param root string the folder of the repository
---@return table[] pages
---@return string[][] index
function pages.all(root)
  local by_page, links = sorted_names()
  local list, names, index = {}, {}, {}
  for page in pairs(by_page) do names[#names + 1] = page end
  table.sort(names)
  for _, page in ipairs(names) do
    list[#list + 1] = module_page(page, by_page[page], links)
    for _, item in ipairs(by_page[page]) do
      index[#index + 1] = {item.shown, links[item.name], item.entry.text[1] or ""}
    end
  end
  list[#list + 1] = c_page(root)
  list[#list + 1] = guide_page(root, "README.md", "from-pytorch", links)
  list[#list + 1] = guide_page(root, "amp/README.md", "amp-reference", links)
  for _, link in ipairs(pages.guides(root)) do
    list[#list + 1] = guide_page(root, "guides/" .. link .. ".md", "guide-" .. link, links)
  end
  list[#list + 1] = guide_page(root, "guides/README.md", "guides", links)
  for _, page in ipairs(list) do
    if page.guide then index[#index + 1] = {page.title, page.file:gsub("md$", "html"), "guide"} end
  end
  list[#list + 1] = index_page(list, names)
  return list, index
end

--- The names of the guides, in the order of their README.
---@param root string
---@return string[]
function pages.guides(root)
  local list, seen = {}, {}
  for name in read(root .. "/lua/demilune/guides/README.md"):gmatch "%]%(([%w-]+)%.md%)" do
    if not seen[name] then list[#list + 1] = name end
    seen[name] = true
  end
  return list
end

return pages
