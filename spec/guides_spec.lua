-- The guides (lua/demilune/guides) are true: every block of a page is run, in order, in a
-- folder of its own, and prints what the page says; links lead somewhere.

local dm = require "demilune"
local folder = require "spec.folder"
local guide = require "spec.guide"

local FOLDER = "lua/demilune/guides/"
-- Files of other programs that a page reads.
local FILES = {saving = {"vit.pth"}}
local KINDS = {lua = true, c = true, text = true, console = true, sh = true}

local function text_of(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

local pages = {}
do
  local pipe <close> = assert(io.popen("ls " .. FOLDER))
  for name in pipe:lines() do
    pages[#pages + 1] = name:match "^(%l.*)%.md$" -- README.md is the list of the others
  end
end

-- What a compiler needs to know to link with the build's libraries; nil and why it cannot.
local function link_flags()
  local build = os.getenv "DEMILUNE_BUILD" or "build"
  local settings = io.open(build .. "/demilune-lua.pc") -- there where the libraries are
  if not settings then return nil, "no libraries for C in " .. build end
  local cache = io.open(build .. "/CMakeCache.txt")
  local options = cache and cache:read "a" or ""
  if cache then cache:close() end
  if options:find "\nDM_SANITIZE:BOOL=ON" or options:find "\nDM_TSAN:BOOL=ON" then
    return nil, "a program in C would want the sanitizer of " .. build
  end
  local needs = settings:read "a":match "Requires: ([^\n]*)"
  settings:close()
  local flags, code = folder.run("pkg-config --cflags --libs lua5.4 " .. needs)
  if code ~= 0 then return nil, flags end
  return ("-Isrc %s/libdemilune_lua.a %s/libdemilune.a -pthread -ldl -lm %s"):format(build, build,
    flags:gsub("\n", " "))
end

-- Compiles the page's programs in C.
local function compile(blocks, flags)
  for _, block in ipairs(blocks) do
    if block.kind == "c" then
      local source = folder.write(block.file, table.concat(block.lines, "\n") .. "\n")
      local text, code = folder.run(("cc -std=c11 -Wall -Wextra -Werror %s -o %s %s"):format(source,
        source:gsub("%.c$", ""), flags))
      assert.equal(0, code, text)
    end
  end
end

describe("the guide", function()
  before_each(folder.make)
  after_each(folder.remove)

  for _, page in ipairs(pages) do
    it(page .. " prints what it says", function()
      local text = text_of(FOLDER .. page .. ".md")
      local blocks = guide.blocks(text)
      for _, name in ipairs(FILES[page] or {}) do
        folder.write(name, text_of("spec/golden/files/" .. name))
      end
      if text:find "save_image" then
        local _, lacking = dm.read_image "spec/golden/images/rgb.png"
        if lacking then return pending(lacking) end
      end
      if text:find "dm.dashboard{" and not pcall(require, "socket") then
        return pending "lua-socket is not installed"
      end
      if text:find "\n```c " then
        local flags, lacking = link_flags()
        if not flags then return pending(lacking) end
        compile(blocks, flags)
      end
      assert.equal("", table.concat(guide.check(folder, page, text), "\n"))
    end)
  end
end)

describe("the guides", function()
  it("are listed, each with a line", function()
    local list = text_of(FOLDER .. "README.md")
    assert.is_true(#pages >= 14)
    for _, page in ipairs(pages) do
      assert.is_truthy(list:find(("](%s.md)"):format(page), 1, true), page)
    end
  end)

  it("begin with a program, and have no block that nobody runs", function()
    for _, page in ipairs(pages) do
      local text = text_of(FOLDER .. page .. ".md")
      local blocks = guide.blocks(text)
      assert.is_truthy(blocks[1].kind == "lua" or blocks[1].kind == "c", page)
      for i, block in ipairs(blocks) do
        local at = ("%s:%d"):format(page, block.line)
        assert.is_true(KINDS[block.kind], at)
        local before = blocks[i - 1]
        if block.kind == "text" then assert.equal("lua", before.kind, at) end
        local name = block.file and block.file:match "^(.*)%.%a+$"
        if name then
          local _, uses = text:gsub(name:gsub("%p", "%%%0") .. "%f[^%w_]", "")
          assert.is_true(uses > 1, at .. ": nobody uses the file")
        end
      end
    end
  end)

  it("have links that lead somewhere", function()
    for _, page in ipairs{"README", table.unpack(pages)} do
      local prose = text_of(FOLDER .. page .. ".md"):gsub("\n```.-\n```", ""):gsub("`[^`\n]*`", "")
      for target in prose:gmatch "%]%(([^)#]+)" do
        local file = io.open(FOLDER .. target)
        assert.is_truthy(file, page .. ": " .. target)
        file:close()
      end
    end
  end)
end)

describe("the check of a page", function()
  setup(folder.make)
  teardown(folder.remove)

  local function problems(text) return table.concat(guide.check(folder, "page", text), "\n") end

  it("knows numbers by their printed digits", function()
    assert.is_true(guide.same_line("loss 0.12, 3 of 4", "loss   0.12345, 3 of 4"))
    assert.is_true(guide.same_line("1.5e-08 ... -2.", "1.512e-08 and more -2."))
    assert.is_false(guide.same_line("loss 0.12", "loss 0.1411"))
    assert.is_false(guide.same_line("1.5e-08", "1.9e-08"))
    assert.is_false(guide.same_line("3 of 4", "3 of 5"))
    assert.is_false(guide.same_line("{2, 3}", "{2, 3} "  .. "cpu"))
    assert.is_false(guide.same_line("a.b", "axb"))
  end)

  it("runs blocks in order, as one program", function()
    assert.equal("", problems [[
```lua
local x = 1 + 1
print(x, "and", 0.25)   --> 2 and 0.25
```
```lua error
error "wrong"
```
```text
script.lua:1: wrong
```
```lua file=other.lua
return 7
```
```lua
print(x + require "other")
```
```text
9
```
```console
$ lua5.4 -e 'print((require "other"))'
7
```
]])
  end)

  it("tells what is wrong, and where", function()
    assert.matches("page:1: line 1.*wanted 3.*got    2", problems "```lua\nprint(2) --> 3\n```\n")
    assert.matches("wanted nothing.*got    2", problems "```lua\nprint(2)\n```\n")
    assert.matches("wanted 2.*got    nothing", problems "```lua\nlocal _ --> 2\n```\n")
    assert.matches("got    no error", problems "```lua error\nlocal _\n```\n```text\na\n```\n")
    assert.equal("", problems "```lua\nprint(1, 2) print(3) print(4)\n```\n```text\n1 2\n...\n```")
    assert.matches("line 1", problems "```lua\nprint(1)\n```\n```text\n2\n...\n```\n")
    assert.matches("unexpected symbol", problems "```lua\n)\n```\n")
    assert.matches("%$ echo 1: .*wanted 2", problems "```console\n$ echo 1\n2\n```\n")
  end)
end)
