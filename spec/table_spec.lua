-- The op table: what src/ops/generate.lua says of rows that are wrong, and what it writes.

local dm = require "demilune"
local folder = require "spec.folder"

local FIRST = [[
local op = ...
op.kernel "first" {
  tensors = "x",
  options = {"stride:pair=1", "groups:int=1"},
  attr = "dm_SharedAttr",
  doc = "others follow it",
}
]]

-- Rows that are wrong, and what the generator's message says after the file and the line.
local WRONG = {
  {"a misspelt kind", [[{options = {"stride:pear=1"}, doc = "d"}]],
    "option stride has no kind 'pear'"},
  {"an enum without words", [[{options = {"mode:enum=a"}, doc = "d"}]],
    "option mode: an enum has words"},
  {"a default that is none of the words", [[{options = {"mode:enum(a|b)=c"}, doc = "d"}]],
    "option mode: 'c' is none of its words"},
  {"a default that is no number", [[{options = {"groups:int=one"}, doc = "d"}]],
    "option groups: 'one' is no number"},
  {"an unknown column", [[{tensor = "x", doc = "d"}]], "there is no column 'tensor'"},
  {"no doc", [[{tensors = "x"}]], "it has no doc"},
  {"an unknown flag", [[{flags = "inplaced", doc = "d"}]], "flags has no 'inplaced'"},
  {"an unknown bit of saves", [[{saves = "I0 X1", doc = "d"}]], "saves has no 'X1'"},
  {"an unknown policy", [[{autocast = "fp33", doc = "d"}]], "autocast has no 'fp33'"},
  {"an unknown device", [[{autocast = {gpu = "fp32"}, doc = "d"}]], "autocast on 'gpu'"},
  {"no name of a function", [[{rule = "my rule", doc = "d"}]], "rule is no function's name"},
  {"a struct that another row has otherwise",
    [[{options = {"stride:one=1", "groups:int=1"}, attr = "dm_SharedAttr", doc = "d"}]],
    "its options make another dm_SharedAttr than those of first"},
  {"a struct to nest that no row has",
    [[{options = {"stride:pair=1"}, nests = {conv = "dm_OtherAttr"}, doc = "d"}]],
    "nests dm_OtherAttr, which no row before it has"},
  {"a struct to nest with other members",
    [[{options = {"groups:int=1"}, nests = {conv = "dm_SharedAttr"}, doc = "d"}]],
    "its options do not hold those of dm_SharedAttr"},
}

local function generate(rows)
  local path = folder.write("rows.lua", rows)
  local text, status = folder.run(("lua5.4 src/ops/generate.lua %s %s"):format(folder.path(), path))
  return status == 0, text
end

describe("the op table", function()
  setup(folder.make)
  teardown(folder.remove)

  for _, case in ipairs(WRONG) do
    it("refuses " .. case[1] .. ", and names the row", function()
      local ok, text = generate(FIRST .. 'op.kernel "second" ' .. case[2] .. "\n")
      assert.is_false(ok)
      assert.truthy(text:find("rows.lua:8: op second: " .. case[3], 1, true), text)
    end)
  end

  it("refuses a second row of one name", function()
    local ok, text = generate(FIRST .. 'op.view "first" {doc = "d"}\n')
    assert.is_false(ok)
    assert.truthy(text:find("op first: there is another row of that name", 1, true), text)
  end)

  it("refuses lines of more than 100 characters", function()
    local ok, text = generate(FIRST .. ('op.view "long" {doc = "%s"}\n'):format(("d"):rep(80)))
    assert.is_false(ok)
    assert.truthy(text:find("rows.lua:8: op long: the line is longer than 100", 1, true), text)
  end)

  it("nests structs, and says so in the descriptors of options", function()
    assert.is_true(generate(FIRST .. [[
op.kernel "second" {
  options = {"groups:int", "stride:pair", "groups2:int"},
  doc = "d",
}
op.kernel "third" {
  options = {"n:int", "stride:pair", "groups:int", "mode:enum(a|b)=b"},
  nests = {shared = "dm_SharedAttr"},
  doc = "d",
}
]]))
    local header = folder.read "attrs.gen.h"
    assert.truthy(header:find("typedef struct dm_ThirdAttr {\n  int64_t n;\n"
      .. "  dm_SharedAttr shared;\n  int64_t mode; /* a|b */\n} dm_ThirdAttr;", 1, true), header)
    local layout = '#define DM_LAYOUT_dm_ThirdAttr "int64_t;int64_t[2];int64_t;int64_t;"'
    assert.truthy(header:find(layout, 1, true), header)
    local descriptors = folder.read "signatures.gen.inc"
    assert.truthy(descriptors:find(
      '{"stride", "", 0, offsetof(dm_ThirdAttr, shared.stride), A_PAIR, true}', 1, true))
    assert.truthy(descriptors:find(
      '{"mode", "a|b", 1, offsetof(dm_ThirdAttr, mode), A_ENUM, false}', 1, true))
    assert.truthy(descriptors:find("[DM_OP_third] = DM_LAYOUT_dm_ThirdAttr,", 1, true))
  end)

  it("has no line of more than 100 characters", function()
    local pipe <close> = assert(io.popen "ls src/ops/*.lua")
    local n = 0
    for path in pipe:lines() do
      for line in io.lines(path) do
        n = n + 1
        assert.truthy(#line <= 100, path .. ": " .. line)
      end
    end
    assert.truthy(n > 2000)
  end)
end)

describe("the page on mixed precision", function()
  it("lists the ops of the op tables", function()
    local page, wanted = assert(loadfile "scripts/autocast_page.lua")("pages")()
    assert.equal(wanted, page, "stale; hint: scripts/run scripts/autocast_page.lua")
    for device, title in pairs{cpu = "On the CPU", cuda = "On CUDA"} do
      for op, word in pairs(dm.amp.op_table(device)) do
        local list = page:match("\n`" .. word .. "`\n.-%- " .. title .. ":(.-)\n[%-\n]")
        if word ~= "unlisted" then assert.truthy(list:find("%f[%w_]" .. op .. "%f[^%w_]"), op) end
      end
    end
    for line in page:match("lists: begin.*lists: end"):gmatch "[^\n]+" do
      assert.truthy(#line <= 100, line)
    end
  end)
end)

describe("the figures of the sources", function()
  it("say how wide the table's rows are", function()
    local pipe <close> = io.popen "lua5.4 scripts/figures.lua"
    local width = pipe:read("a"):match "widest row: (%d+)"
    assert.truthy(tonumber(width) <= 100, width)
  end)
end)
