-- Pages of Markdown to HTML by pandoc (Debian: pandoc), the only file that knows it.

local folders = require "demilune.folders"

local pandoc = {}

-- The frame of each page: one style sheet, and the search, which reads its index as a script, since
-- a page that is opened as a file may not fetch one.
local FRAME = [[
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title$</title>
<link rel="stylesheet" href="style.css">
</head>
<body>
<header><a href="index.html">demilune</a>
<input id="search" type="search" placeholder="search" aria-label="search"></header>
<div id="found"></div>
<main>
<h1>$title$</h1>
$body$
</main>
<script src="index.js"></script>
<script src="search.js"></script>
</body>
</html>
]]

local STYLE = [[
:root { color-scheme: light dark; --text: #1c2024; --back: #ffffff; --soft: #f3f5f7;
  --line: #d8dde2; --link: #0b5cad; --faint: #5c6670; }
@media (prefers-color-scheme: dark) {
  :root { --text: #dfe3e8; --back: #15181c; --soft: #1f242a; --line: #363d45; --link: #7db8f5;
    --faint: #98a2ad; }
}
body { margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif; }
header { position: sticky; top: 0; display: flex; gap: 1rem; align-items: center;
  padding: .5rem max(1rem, calc(50% - 24rem)); background: var(--back);
  border-bottom: 1px solid var(--line); }
header a { font-weight: 600; }
#search { flex: 1; min-width: 0; padding: .3rem .6rem; font: inherit; color: inherit;
  background: var(--soft); border: 1px solid var(--line); border-radius: 6px; }
main, #found { max-width: 48rem; margin: 0 auto; padding: 0 1rem; }
main { padding-bottom: 4rem; }
#found a { display: block; padding: .25rem 0; overflow-wrap: anywhere; }
#found span { color: var(--faint); }
h1 { font-size: 1.7rem; }
h2 { margin: 2.2rem 0 .5rem; font-size: 1.15rem; overflow-wrap: anywhere; scroll-margin-top: 4rem; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
code, pre { font: .875rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { padding: .6rem .8rem; overflow-x: auto; background: var(--soft); border-radius: 6px; }
pre.signature { border-left: 3px solid var(--link); white-space: pre-wrap; }
.fact p { margin: .1rem 0; color: var(--faint); font-size: .9rem; }
.names { max-height: 22rem; overflow-y: auto; }
.names p { display: flex; flex-wrap: wrap; gap: .1rem .9rem; font-size: .9rem; }
table { display: block; overflow-x: auto; border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .6rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
img { max-width: 100%; }
]]

local SEARCH = [=[
// Finds pages' names by all the words that are typed: in the name first, then in its first line.
const field = document.getElementById("search"), found = document.getElementById("found");
function points(item, words) {
  const name = item[0].toLowerCase(), text = item[2].toLowerCase();
  let sum = 0;
  for (const word of words) {
    const last = name.split(/[.:]/).pop();
    if (last === word) sum += 8;
    else if (name.includes(word)) sum += 4 - Math.min(2, name.length / 40);
    else if (text.includes(word)) sum += 1;
    else return 0;
  }
  return sum;
}
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const best = words.length === 0 ? [] : INDEX.map(item => [points(item, words), item])
    .filter(pair => pair[0] > 0).sort((a, b) => b[0] - a[0]).slice(0, 20);
  found.replaceChildren(...best.map(([, [name, link, text]]) => {
    const a = document.createElement("a"), span = document.createElement("span");
    a.href = link;
    span.textContent = " " + text;
    a.append(name, span);
    return a;
  }));
});
]=]

-- A string of JavaScript.
local function quoted(text)
  return '"' .. text:gsub('[\\"]', "\\%0"):gsub("[%c<]", function(c)
    return ("\\u%04x"):format(c:byte())
  end) .. '"'
end

--- Whether pandoc is there.
---@return boolean
function pandoc.is_there() return (os.execute "pandoc --version >/dev/null 2>&1") == true end

-- One page through pandoc.
local function convert(dir, page)
  local markdown = os.tmpname()
  local fine, why = folders.write(markdown, page.text)
  if not fine then return nil, why end
  local status = os.execute(("pandoc -f markdown-smart-citations-tex_math_dollars"
    .. "+gfm_auto_identifiers -t html --no-highlight --wrap=none --template=%s "
    .. "--metadata title=%s -o %s %s"):format(
      folders.quoted(dir .. "/frame.html"), folders.quoted(page.title),
      folders.quoted(dir .. "/" .. page.file:gsub("%.md$", ".html")), folders.quoted(markdown)))
  os.remove(markdown)
  return status, ("pandoc failed on %s"):format(page.file)
end

--- Writes the pages with their style sheet and search into a folder that is there.
---@param dir string
---@param list table[] {file =, title =, text =}
---@param index string[][] {name, link, text} each
---@return boolean? true; nil where something could not be written
---@return string? why
function pandoc.write(dir, list, index)
  local rows = {}
  for i, item in ipairs(index) do
    rows[i] = ("[%s,%s,%s]"):format(quoted(item[1]), quoted(item[2]), quoted(item[3]))
  end
  for name, text in pairs{["frame.html"] = FRAME, ["style.css"] = STYLE, ["search.js"] = SEARCH,
    ["index.js"] = "const INDEX = [\n" .. table.concat(rows, ",\n") .. "\n];\n"} do
    local fine, why = folders.write(dir .. "/" .. name, text)
    if not fine then return nil, why end
  end
  for _, page in ipairs(list) do
    local fine, why = convert(dir, page)
    if not fine then return nil, why end
  end
  os.remove(dir .. "/frame.html")
  return true
end

return pandoc
