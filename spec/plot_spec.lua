-- dm.plot and dm.show: figures as SVG, as PNG and in characters.

local dm = require "demilune"
local axes = require "demilune.plot.axes"
local canvas = require "demilune.plot.canvas"
local colours = require "demilune.plot.colours"
local pixels = require "demilune.plot.pixels"
local scale = require "demilune.plot.scale"
local series = require "demilune.plot.series"
local svg = require "demilune.plot.svg"
local terminal = require "demilune.terminal"
local nn, plot = dm.nn, dm.plot

local NAN, INF = 0 / 0, math.huge

-- ---- a reader of XML, which refuses what is not well formed ----

local ENTITY = {amp = "&", lt = "<", gt = ">", quot = '"'}

local function plain(text)
  assert(not text:find "[<>]", text)
  assert(not text:gsub("&(%l+);", function(name) return ENTITY[name] and "" end):find "&", text)
  return (text:gsub("&(%l+);", ENTITY))
end

local function attributes_of(text)
  local o = {}
  local rest = text:gsub('%s+([%w:-]+)="([^"]*)"', function(name, value)
    assert(o[name] == nil, "attribute given twice: " .. name)
    o[name] = plain(value)
    return ""
  end)
  assert(not rest:find "%S", "no attributes: " .. rest)
  return o
end

-- The document as a list of elements in order: {name =, text =, each attribute}.
local function elements_of(document)
  local list, open, at = {}, {}, 1
  while true do
    local from, to, slash, name, rest, empty = document:find("<(/?)([%w:]+)(.-)(/?)>", at)
    local text = plain(document:sub(at, (from or 0) - 1))
    if #open > 0 then open[#open].text = open[#open].text .. text end
    if not from then break end
    at = to + 1
    if slash == "/" then
      assert(table.remove(open).name == name, "closed in another order: " .. name)
    else
      local element = attributes_of(rest)
      element.name, element.text = name, ""
      list[#list + 1] = element
      if empty == "" then open[#open + 1] = element end
    end
  end
  assert(#open == 0, "left open")
  return list
end

-- The elements of a figure, those of a name, or their number.
local function parsed(fig) return elements_of(assert(fig:svg())) end

local function named(list, name, key, value)
  local found = {}
  for _, element in ipairs(list) do
    if element.name == name and (not key or element[key] == value) then
      found[#found + 1] = element
    end
  end
  return found
end

local function texts(fig)
  local set = {}
  for _, element in ipairs(named(parsed(fig), "text")) do set[element.text] = true end
  return set
end

-- The paths that draw a series, not axes and grid.
local function drawn_paths(fig)
  local list = {}
  for _, path in ipairs(named(parsed(fig), "path")) do
    if not path.class then list[#list + 1] = path.d end
  end
  return list
end

local function count(text, pattern) return select(2, text:gsub(pattern, "")) end

-- ---- files and processes ----

local function read(path)
  local file = io.open(path, "rb")
  local text = file and file:read "a"
  if file then file:close() end
  return text
end

-- A folder of its own for names with quotes and spaces.
local FOLDER = os.tmpname()
os.remove(FOLDER)
os.execute(("mkdir '%s'"):format(FOLDER))
teardown(function() os.execute(("rm -r '%s'"):format(FOLDER)) end)

-- What a program prints that runs with some variables of the environment; in a terminal where
-- `tty`, and nil without the program that makes one.
local function output_of(program, environment, tty)
  local path = FOLDER .. "/program.lua"
  local file = assert(io.open(path, "w"))
  file:write("local dm = require 'demilune'\n", program)
  file:close()
  local command = ("env LUA_PATH='%s' LUA_CPATH='%s' %s lua5.4 %s"):format(package.path,
    package.cpath, environment, path)
  if tty then command = ('script -qec "%s" /dev/null </dev/null'):format(command) end
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read "a"
  pipe:close()
  return text
end

local has_script = os.execute "command -v script >/dev/null 2>&1"
local has_converter = os.execute "command -v rsvg-convert >/dev/null 2>&1"
local has_png = dm.save_image(dm.zeros(1, 1, 1), FOLDER .. "/one.png") ~= nil

-- it() where a program is there, else pending() with the reason.
local function it_with(there, reason, title, fn)
  if there then it(title, fn) else pending(title .. ": " .. reason) end
end

-- ---- ticks ----

-- Whether v is m x 10^k with m of 1, 2 and 5.
local function is_round(v)
  local mantissa = tonumber(("%.9e"):format(v):match "^[^e]+")
  return mantissa == 1 or mantissa == 2 or mantissa == 5
end

describe("ticks", function()
  it("are neighbouring multiples of 1, 2 or 5 times a power of ten", function()
    math.randomseed(3)
    for _ = 1, 3000 do
      local size = 10 ^ math.random(-12, 12)
      local lo = (math.random() - 0.5) * size
      local hi = lo + math.random() * size * 10 ^ math.random(-2, 1)
      local most = math.random(2, 12)
      local axis = scale.new(lo, hi, {})
      local ticks = axis:ticks(most)
      assert.is_true(#ticks >= 2 and #ticks <= most + 4, #ticks)
      local step = (ticks[#ticks][1] - ticks[1][1]) / (#ticks - 1)
      assert.is_true(is_round(step), step)
      for i, tick in ipairs(ticks) do
        local slack = 1e-6 * step
        assert.is_true(tick[1] >= axis.lo - slack and tick[1] <= axis.hi + slack)
        assert.near(math.floor(tick[1] / step + 0.5), tick[1] / step, 1e-5)
        assert.near(tick[1], tonumber(tick[2]), 1e-6 * step)
        assert.near(ticks[1][1] + (i - 1) * step, tick[1], slack)
      end
      local before, after = ticks[1][1] - step, ticks[#ticks][1] + step
      assert.is_true(before < axis.lo + 1e-6 * step and after > axis.hi - 1e-6 * step)
    end
  end)

  it("are the numbers that they are written as", function()
    local function labels(lo, hi, most, o)
      local list = {}
      for i, tick in ipairs(scale.new(lo, hi, o or {}):ticks(most)) do list[i] = tick[2] end
      return table.concat(list, " ")
    end
    assert.equal("0 0.2 0.4 0.6 0.8 1.0", labels(0, 1, 5))
    assert.equal("-100 -50 0 50 100", labels(-100, 100, 5))
    assert.equal("2e6 4e6 6e6", labels(1e6, 7e6, 4))
    assert.equal("1.0000001e8 1.0000002e8", labels(100000005, 100000025, 2))
    assert.equal("0 1e-9 2e-9", labels(0, 2e-9, 2))
    assert.equal("1 2 3", labels(1, 3, 9, {whole = true}))
    assert.equal("0.001 0.01 0.1 1 10", labels(1e-3, 10, 9, {log = true}))
    assert.equal("1e-6 0.0001 0.01 1", labels(1e-7, 10, 4, {log = true}))
    assert.equal("2 5 10 20 50", labels(2, 60, 9, {log = true}))
    assert.equal("2.0 2.2 2.4 2.6 2.8 3.0", labels(2, 3, 5, {log = true}))
  end)

  it("exist for one value, none and the largest", function()
    for _, pair in ipairs{{0, 0}, {5, 5}, {-3, -3}, {1e300, 1e300}, {-1e300, 1e300},
      {1e-320, 1e-320}, {1, 1 + 2 ^ -52}, {1e16, 1e16}} do
      local axis = scale.new(pair[1], pair[2], {pad = 0.05})
      assert.is_true(#axis:ticks(5) >= 2, pair[1])
      local at = axis:position(pair[1])
      assert.is_true(at >= -1e-9 and at <= 1 + 1e-9, at)
    end
    assert.is_true(#scale.new(nil, nil, {}):ticks(4) >= 2)
    assert.near(0.5, scale.new(7, 7, {log = true}):position(7), 1e-12)
  end)

  it("write numbers in cells with as few digits as say enough", function()
    for _, case in ipairs{{0.25, "0.25"}, {1200, "1200"}, {3.2e-7, "3.2e-7"}, {1e20, "1e20"},
      {-0.5, "-0.5"}, {NAN, "nan"}, {-INF, "-inf"}, {0, "0"}, {1234567, "1.235e6"},
      {0.123456, "0.1235"}} do
      assert.equal(case[2], scale.number(case[1]))
    end
    assert.equal("0.12", scale.number(0.123456, 2))
    assert.equal("1235", scale.number(1234.56, 2))
  end)
end)

-- ---- reductions ----

describe("a line of many points", function()
  it("keeps each column's first, lowest, highest and last point", function()
    math.randomseed(5)
    local n, width, height = 20000, 50, 1000
    local s = {x = {}, y = {}}
    for i = 1, n do s.x[i], s.y[i] = i, math.random() end
    local x_axis, y_axis = scale.new(1, n, {}), scale.new(0, 1, {})
    local want = {}
    for i = 1, n do
      local c = x_axis:position(s.x[i]) * width // 1
      local y = (1 - y_axis:position(s.y[i])) * height
      local w = want[c] or {first = y, low = y, high = y}
      w.low, w.high, w.last, want[c] = math.min(w.low, y), math.max(w.high, y), y, w
    end
    local runs = series.runs(s, x_axis, y_axis, width, height)
    assert.equal(1, #runs)
    local got = {}
    for i = 1, #runs[1], 2 do
      local c, y = runs[1][i] // 1, runs[1][i + 1]
      local g = got[c] or {first = y, low = y, high = y, n = 0}
      g.low, g.high, g.last, g.n = math.min(g.low, y), math.max(g.high, y), y, g.n + 1
      got[c] = g
      assert.is_true(i == 1 or runs[1][i] >= runs[1][i - 2])
    end
    for c, g in pairs(got) do
      assert.is_true(g.n <= 4)
      g.n = nil
      assert.same(want[c], g)
    end
    for c in pairs(want) do assert.is_table(got[c]) end
  end)

  it("makes no more text than its pixels can show", function()
    local x = dm.randn(1000000)
    x[500000], x[700000] = 50, NAN
    local fig = plot.lines(x, {width = 640})
    local document = fig:svg()
    assert.is_true(#document < 80000, #document)
    local d = drawn_paths(fig)[1]
    assert.equal(2, count(d, "M"))
    assert.is_true(texts(fig)["1 value not finite"])
    assert.is_true(#plot.scatter(x, dm.randn(1000000)):svg() < 1500000)
    assert.is_true(#fig:text{columns = 80, colours = 0, utf8 = true} < 20000)
  end)
end)

-- ---- lines ----

describe("lines", function()
  it("draw a document that is well formed, with a title for screen readers", function()
    local fig = plot.lines({["a<b>&\"c\""] = {1, 2, 3}, ["ü\1\xff"] = {3, 2, 1}},
      {title = "1 < 2 & 3", xlabel = "x > y", ylabel = "\"y\""})
    local list = parsed(fig)
    assert.equal("svg", list[1].name)
    assert.equal("0 0 640 400", list[1].viewBox)
    assert.equal("img", list[1].role)
    assert.equal("1 < 2 & 3 (2 lines)", list[1]["aria-label"])
    assert.equal("1 < 2 & 3 (2 lines)", named(list, "title")[1].text)
    local seen = texts(fig)
    assert.is_true(seen["1 < 2 & 3"] and seen["x > y"] and seen['"y"'] and seen['a<b>&"c"'])
    assert.is_true(seen["????"]) -- of a name that is no UTF-8
    assert.is_nil(fig:svg():find "[%z\1-\8\11\12\14-\31]")
  end)

  it("take tensors, lists, several of them, pairs and names", function()
    local function data(...)
      local list = {}
      for i, s in ipairs(plot.lines(...).view.series) do list[i] = {s.name or false, s.x, s.y} end
      return list
    end
    assert.same({{false, {1, 2}, {5, 7}}}, data{5, 7})
    assert.same({{false, {1, 2}, {5, 7}}}, data(dm.tensor({5, 7}, {dtype = "int64"})))
    assert.same({{false, {1, 2}, {0.5, 7}}},
      data(dm.tensor({0.5, 7}, {dtype = "bfloat16"}):requires_grad_()))
    assert.same({{false, {3, 4}, {5, 7}}}, data({3, 4}, dm.tensor{{5.0, 7.0}}))
    assert.same({{false, {1, 2}, {5, 1}}}, data{dm.tensor(5), true})
    assert.same({{"1", {1}, {5}}, {"2", {1}, {6}}}, data{{5}, {6}})
    assert.same({{"1", {9, 8}, {1, 2}}, {"2", {9, 8}, {3, 4}}}, data({9, 8}, {{1, 2}, {3, 4}}))
    assert.same({{"p", {1, 2}, {5, 6}}, {"q", {1, 2}, {7, 8}}},
      data({dm.tensor{5.0, 6.0}, {7, 8}}, {names = {"p", "q"}}))
    assert.same({{"a", {1}, {2}}, {"b", {5, 6}, {7, 8}}}, data{b = {{5, 6}, {7, 8}}, a = {2}})
    assert.same({{"b", {1}, {3}}}, data({a = {2}, b = {3}}, {names = {"b"}}))
  end)

  it("take a trainer's history, by epoch and without lr", function()
    local history = {{epoch = 3, lr = 0.1, train_loss = 2.5, each = {1}},
      {epoch = 4, lr = 0.1, train_loss = 1.5, valid_loss = 2}}
    local view = plot.lines(history).view
    assert.equal("epoch", view.xlabel)
    assert.same({3, 4}, view.series[1].x)
    assert.same({"train_loss", "valid_loss"}, {view.series[1].name, view.series[2].name})
    assert.same({2.5, 1.5}, view.series[1].y)
    assert.equal("1 value not finite", view.note)
    assert.same({0.1, 0.1}, plot.lines(history, {names = {"lr"}}).view.series[1].y)
  end)

  it("leave gaps for what no axis shows, and count it", function()
    local fig = plot.lines({1, 2, NAN, 4, INF, 6, 1e305, 8})
    assert.is_true(texts(fig)["3 values not finite"])
    local d = drawn_paths(fig)[1]
    assert.equal(4, count(d, "M"))
    assert.equal(1, count(d, "L"))
    fig = plot.lines({-1, 0, 1, 10, NAN}, {logy = true})
    assert.is_true(texts(fig)["1 value not finite, 2 values not above 0"])
    assert.is_true(texts(fig)["10"])
    fig = plot.lines({0, 1, 10}, {1, 2, 3}, {logx = true})
    assert.equal("1 value not above 0", fig.view.note)
  end)

  it("of no point, one point and nan alone are figures", function()
    for _, values in ipairs{{}, {3}, {NAN, NAN}, {NAN, 1, NAN}, {0, 0}, {1e300, -1e300},
      {5e-324, 0}, {1e-300, 1e300}, dm.zeros(0)} do
      for _, log in ipairs{false, true} do
        local fig = plot.lines(values, {logy = log, logx = log})
        assert.is_true(#parsed(fig) > 5)
        assert.is_nil(fig:svg():find "nan[ \"LMVH]")
        assert.is_nil(fig:svg():find "inf[ \"LMVH]")
        assert.is_true(#fig:text{columns = 30} > 20)
      end
    end
    assert.is_true(texts(plot.lines{})["no values"])
    assert.equal(1, count(drawn_paths(plot.lines{3})[1], "h0"))
  end)

  it("put points where the axes say", function()
    local fig = plot.lines({0, 10}, {0, 1}, {width = 400, height = 300})
    local list = parsed(fig)
    local left, top = named(list, "g")[1].transform:match "translate%(([%d.]+) ([%d.]+)%)"
    local x1, y1, x2, y2 = drawn_paths(fig)[1]:match "^M([%d.]+) ([%d.]+)L([%d.]+) ([%d.]+)$"
    -- ticks of the same values lie on the same positions
    for _, text in ipairs(named(list, "text")) do
      if text.text == "10" then assert.equal(tonumber(x2), tonumber(text.x)) end
      if text.text == "1.0" then assert.near(tonumber(y2), text.y - 4, 0.11) end
      if text.text == "0" and text["text-anchor"] == "middle" then
        assert.equal(tonumber(x1), tonumber(text.x))
      end
    end
    assert.is_true(tonumber(y1) > tonumber(y2))
    assert.is_true(left + x2 <= 400 and top + y1 <= 300)
  end)

  it("have colours that repeat with dashes after the sixth", function()
    local lists = {}
    for i = 1, 8 do lists[i] = {i, i + 1} end
    local strokes = {}
    for _, path in ipairs(named(parsed(plot.lines(lists)), "path")) do
      if path["stroke-width"] == "2" then strokes[#strokes + 1] = path end
    end
    assert.equal(8, #strokes)
    assert.equal(strokes[1].stroke, strokes[7].stroke)
    assert.is_nil(strokes[1]["stroke-dasharray"])
    assert.is_string(strokes[7]["stroke-dasharray"])
  end)

  it("refuse what is no series, at the caller's line", function()
    local function refuses(text, ...)
      local args = table.pack(...)
      local ok, message = pcall(function() plot.lines(table.unpack(args, 1, args.n)) end)
      assert.is_false(ok)
      assert.is_truthy(message:find("spec/plot_spec.lua:", 1, true), message)
      assert.is_truthy(message:find(text, 1, true), message)
    end
    refuses("y has 2 elements, and x 3", {1, 2, 3}, {1, 2})
    refuses("element 2 is a string, wanted a number", {1, "two"})
    refuses("x is a number, wanted a tensor or a table", 3)
    refuses("x:unbind(2)", dm.zeros(2, 3))
    refuses("unknown option 'titel'; did you mean 'title'?", {1}, {titel = "x"})
    refuses("there is no 'valid'; there are a", {a = {1}}, {names = {"valid"}})
    refuses("names has 1 elements, wanted 2", {{1}, {2}}, {names = {"a"}})
    refuses("width is 0, wanted 60 to 10000 pixels", {1}, {width = 0})
    refuses("nan, wanted 60 to 10000 pixels", {1}, {height = NAN})
    refuses("with the name 'title'", {1, 2, title = "x"})
    assert.refuses("did you mean 'lines'", function() plot.line{1} end)
  end)
end)

-- ---- scatter and bars ----

describe("scatter", function()
  it("draws a dot for each point, and a colour for each group", function()
    local fig = plot.scatter(dm.tensor{1.0, 2.0, 3.0}, {1, 2, 3})
    assert.equal(3, count(drawn_paths(fig)[1], "M"))
    fig = plot.scatter({1, 2, 3, 4}, {1, 2, 3, 4}, {c = dm.tensor{2, 1, 2, 3},
      names = {"cat", "dog"}})
    local names, sizes = {}, {}
    for i, s in ipairs(fig.view.series) do names[i], sizes[i] = s.name, #s.y end
    assert.same({"cat", "dog", "3"}, names)
    assert.same({1, 2, 1}, sizes)
    fig = plot.scatter({1, 2}, {1, 2}, {c = {"b", "a"}})
    assert.same({"a", "b"}, {fig.view.series[1].name, fig.view.series[2].name})
    assert.same({2}, fig.view.series[1].x)
    assert.equal("no values", plot.scatter({}, {}).view.note)
    assert.refuses("c is a list of 1, wanted the group of each of 2 points", function()
      plot.scatter({1, 2}, {1, 2}, {c = {1}})
    end)
    assert.refuses("c: element 2 is %-?nan", function()
      plot.scatter({1, 2}, {1, 2}, {c = {1, NAN}})
    end)
  end)
end)

describe("bars", function()
  -- Heights {from, to} of the rectangles of a path "Mx yVyHxVyz".
  local function heights(d)
    local list = {}
    for from, to in d:gmatch "M[%d.]+ ([%d.]+)V([%d.]+)" do
      list[#list + 1] = from - to
    end
    return list
  end

  it("stand on 0 and are as high as their values", function()
    local fig = plot.bars({"a", "b", "c"}, dm.tensor{1.0, -2.0, 4.0})
    local h = heights(drawn_paths(fig)[1])
    assert.near(-2, h[2] / h[1], 0.01)
    assert.near(4, h[3] / h[1], 0.01)
    local seen = texts(fig)
    assert.is_true(seen.a and seen.b and seen.c)
    assert.equal("a  1", (plot.bars({"a"}, {1}):text{columns = 20, colours = 0, utf8 = false}
      :gsub("#+", "")))
  end)

  it("take a table by label, and several values for each", function()
    local fig = plot.bars{dog = 2, cat = 1}
    assert.same({"cat", "dog"}, fig.view.categories)
    assert.same({1, 2}, fig.view.series[1].y)
    fig = plot.bars({1, 2}, {{1, 2}, {3, 4}}, {names = {"p", "q"}})
    assert.equal(2, #drawn_paths(fig) - 2) -- two entries of the legend
    assert.is_true(texts(fig).p)
    assert.refuses("2 labels for 3 values", function() plot.bars({"a", "b"}, {1, 2, 3}) end)
    assert.refuses("values are missing", function() plot.bars{"a", "b"} end)
  end)

  it("of many labels leave out some, none over another", function()
    local labels, values = {}, {}
    for i = 1, 500 do labels[i], values[i] = "class number " .. i, i end
    local n = 0
    for _, text in ipairs(named(parsed(plot.bars(labels, values)), "text")) do
      if text.text:find "^class" then n = n + 1 end
    end
    assert.is_true(n > 10 and n < 60, n)
  end)
end)

-- ---- histograms ----

describe("hist", function()
  it("counts as the definition does", function()
    dm.manual_seed(2)
    local x = dm.randn(5000):double()
    local fig = plot.hist(x, {bins = 17})
    local values, lo, hi = x:totable(), x:min():item(), x:max():item()
    local want = {}
    for i = 1, 17 do want[i] = 0 end
    for _, v in ipairs(values) do
      local i = math.min((v - lo) / (hi - lo) * 17 // 1 | 0, 16) + 1
      want[i] = want[i] + 1
    end
    assert.same(want, fig.counts:totable())
    assert.equal(18, #fig.edges)
    assert.equal(lo, fig.edges[1])
    assert.equal(hi, fig.edges[18])
    assert.same(dm.histc(x, {bins = 17, min = lo, max = hi}):totable(), fig.view.series[1].y)
  end)

  it("counts what is not finite and what is out of the range aside", function()
    local fig = plot.hist({0, 0.5, 1, 2, -1, NAN, INF}, {bins = 2, range = {0, 1}})
    assert.same({1, 2}, fig.counts:totable())
    assert.equal("2 values not finite, 2 values outside the range", fig.view.note)
  end)

  it("has an area of 1 as a density", function()
    local fig = plot.hist(dm.rand(100) * 7, {bins = 5, density = true})
    local area = 0
    for i, y in ipairs(fig.view.series[1].y) do
      area = area + y * (fig.edges[i + 1] - fig.edges[i])
    end
    assert.near(1, area, 1e-9)
  end)

  it("takes nothing, one value, equal values and any shape", function()
    assert.equal(0, plot.hist({}).counts:sum():item())
    assert.equal(0, plot.hist({NAN}).counts:sum():item())
    assert.equal(3, plot.hist({7, 7, 7}).counts:sum():item())
    assert.equal(24, plot.hist(dm.rand(2, 3, 4)).counts:sum():item())
    assert.equal(2, plot.hist({-1e300, 1e300}, {bins = 2}).counts:sum():item())
    local fig = plot.hist({1, 1, 3}, {bins = 3, logy = true})
    assert.equal(2, count(drawn_paths(fig)[1], "M"))
    assert.equal("", fig.view.note)
    assert.refuses("bins is 0", function() plot.hist({1}, {bins = 0}) end)
    assert.refuses("range is a table {lowest, highest}", function()
      plot.hist({1}, {range = {2, 1}})
    end)
  end)
end)

-- ---- matrices ----

describe("heatmap", function()
  it("colours cells between the lowest and the highest value", function()
    local fig = plot.heatmap({{0, 5}, {10, NAN}}, {labels = {"p", "q"}})
    local cells = {}
    for _, rect in ipairs(named(parsed(fig), "rect")) do
      if rect.fill and rect["shape-rendering"] then cells[#cells + 1] = rect end
    end
    assert.equal("#440154", cells[1].fill)
    assert.equal("#21918c", cells[2].fill)
    assert.equal("#fde725", cells[3].fill)
    assert.equal("#999999", cells[4].fill)
    local seen = texts(fig)
    assert.is_true(seen.p and seen.q and seen["5"] and seen["1 value not finite"])
    fig = plot.heatmap(dm.tensor{{1.0, 2.0}}, {vmin = 0, vmax = 4, map = "gray", values = false})
    assert.is_nil(texts(fig)["1"] and texts(fig)["2"] and texts(fig)["1.0"])
  end)

  it_with(has_png, "no libpng", "embeds a large matrix as one image", function()
    local fig = plot.heatmap(dm.rand(300, 1500))
    local list = parsed(fig)
    assert.equal(1, #named(list, "image"))
    assert.is_true(#list < 150)
    local bytes = named(list, "image")[1].href:match "^data:image/png;base64,(.*)$"
    assert.is_true(#bytes > 1000)
  end)

  it("takes what is empty, and refuses what is no matrix", function()
    for _, empty in ipairs{{}, {{}}, dm.zeros(0, 3), dm.zeros(3, 0)} do
      local fig = plot.heatmap(empty)
      assert.is_true(texts(fig)["no values"])
      assert.is_truthy(fig:text():find "no values")
    end
    assert.refuses("got shape {3}", function() plot.heatmap(dm.zeros(3)) end)
    assert.refuses("row 2 has 1 elements, the first 2", function() plot.heatmap{{1, 2}, {1}} end)
    assert.refuses("row_labels has 1 labels, wanted 2", function()
      plot.heatmap({{1, 2}, {3, 4}}, {labels = {"a"}})
    end)
  end)
end)

describe("confusion", function()
  local metric = dm.metrics.ConfusionMatrix{num_classes = 3, names = {"cat", "dog", "owl"}}
  metric:update(dm.tensor{1, 1, 2, 3, 3, 3, 1}, dm.tensor{1, 1, 1, 3, 3, 2, 2})

  -- The texts of the cells in reading order.
  local function cells(fig)
    local list = {}
    for _, text in ipairs(named(parsed(fig), "text", "class", "small")) do
      list[#list + 1] = text.text
    end
    return list
  end

  it("shows a metric's counts and names: rows are the truth", function()
    local fig = plot.confusion(metric)
    assert.same({{2, 1, 0}, {1, 0, 1}, {0, 0, 2}}, metric:compute():totable())
    assert.same({"2", "1", "0", "1", "0", "1", "0", "0", "2"}, cells(fig))
    local seen = texts(fig)
    assert.is_true(seen.cat and seen.owl and seen["true"] and seen.predicted)
    assert.is_truthy(fig:text{columns = 40, colours = 0}:find "cat +2 1 0\n")
  end)

  it("colours by the share of the row, which normalize writes", function()
    local fig = plot.confusion({{3, 1}, {0, 0}}, {normalize = true, classes = {"a", "b"}})
    assert.same({"0.75", "0.25", "0.00", "0.00"}, cells(fig))
    local fills = {}
    for _, rect in ipairs(named(parsed(fig), "rect", "shape-rendering", "crispEdges")) do
      fills[#fills + 1] = rect.fill
    end
    assert.same({colours.hex(colours.at("blues", 0.75)), colours.hex(colours.at("blues", 0.25)),
      "#f7fbff", "#f7fbff"}, fills)
    assert.refuses("2 rows and 3 columns", function() plot.confusion(dm.zeros(2, 3)) end)
    assert.refuses("classes has 1 labels, wanted 2", function()
      plot.confusion({{1, 2}, {3, 4}}, {classes = {"a"}})
    end)
  end)
end)

describe("colours", function()
  it("of text are read on the cells below", function()
    assert.equal(0xFFFFFF, colours.ink_on(0x000000))
    assert.equal(0x000000, colours.ink_on(0xFFFFFF))
    assert.equal(0xFFFFFF, colours.ink_on(0x440154))
    assert.equal(0x000000, colours.ink_on(0xFDE725))
  end)
end)

-- ---- images ----

describe("images", function()
  -- The inverse of base64, to compare.
  local function decoded(text)
    local digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    local bits, n, bytes = 0, 0, {}
    for c in text:gmatch "[%w+/]" do
      bits, n = bits << 6 | digits:find(c, 1, true) - 1, n + 6
      if n >= 8 then
        n = n - 8
        bytes[#bytes + 1] = string.char(bits >> n & 255)
      end
    end
    return table.concat(bytes)
  end

  it("are base64 by RFC 4648", function()
    for _, pair in ipairs{{"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"},
      {"foob", "Zm9vYg=="},
      {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"}, {"\0\xff\xfe", "AP/+"}} do
      assert.equal(pair[2], pixels.base64(pair[1]))
      assert.equal(pair[1], decoded(pair[2]))
    end
  end)

  local function embedded(fig, i)
    local href = named(parsed(fig), "image")[i or 1].href
    return dm.decode_image(decoded(href:match "base64,(.*)$"), {mode = "rgb"})
  end

  it_with(has_png, "no libpng", "are embedded with their pixels", function()
    local x = dm.randint(0, 255, {3, 4, 6}):to "uint8"
    local fig = plot.image(x, {width = 60})
    local got = embedded(fig)
    local factor = got:size(2) // 4
    assert.same({3, 4 * factor, 6 * factor}, {table.unpack(got.shape)})
    assert.is_true(got[{{}, {1, -1}, {1, -1}}]:equal(
      x:repeat_interleave(factor, 2):repeat_interleave(factor, 3):cpu()))
    local gray = dm.tensor{{0.0, 0.5}, {1.0, 2.0}}
    got = embedded(plot.image(gray))
    assert.same({0, 128, 255, 255}, {got[{1, 1, 1}]:item(), got[{1, 1, -1}]:item(),
      got[{1, -1, 1}]:item(), got[{1, -1, -1}]:item()})
    got = embedded(plot.image(gray:gt(0.7)))
    assert.same({0, 255}, {got[{1, 1, 1}]:item(), got[{2, -1, 1}]:item()})
    got = embedded(plot.image(dm.tensor{{-3.0, 5.0}}, {normalize = true}))
    assert.same({0, 255}, {got[{1, 1, 1}]:item(), got[{1, 1, -1}]:item()})
    got = embedded(plot.image(dm.full({1, 3000, 3000}, 0.2)))
    assert.is_true(got:size(2) <= 2 * 640)
    assert.equal(51, got[{1, 7, 7}]:item())
  end)

  it_with(has_png, "no libpng", "stand in rows with their titles", function()
    local fig = plot.images(dm.rand(5, 1, 8, 8), {columns = 3, titles = {"one", "two"}})
    local list = named(parsed(fig), "image")
    assert.equal(5, #list)
    assert.equal(list[1].y, list[3].y)
    assert.equal(list[1].x, list[4].x)
    assert.is_true(tonumber(list[4].y) > tonumber(list[1].y))
    assert.is_true(texts(fig).two)
    assert.equal("no images", plot.images({}).view.note)
    assert.equal(2, #named(parsed(plot.images{dm.rand(4, 4), dm.rand(3, 2, 9)}), "image"))
  end)

  it("stay as they were, outside of a scope and when their tensor changes", function()
    local fig, counts, x
    dm.scope(function()
      x = dm.keep(dm.ones(3, 1, 1):to "uint8")
      fig, counts = plot.image(x), plot.hist({1, 2, 2}, {bins = 2})
    end)
    local before = fig:text{columns = 8, colours = 1 << 24, utf8 = true}
    x:fill_(200)
    assert.equal(before, fig:text{columns = 8, colours = 1 << 24, utf8 = true})
    assert.same({1, 2}, counts.counts:totable())
  end)

  it("refuse what is none", function()
    assert.refuses("wanted {H, W}, {1, H, W} or {3, H, W}; hint: x:permute%(3, 1, 2%)", function()
      plot.image(dm.rand(4, 5, 3))
    end)
    assert.refuses("an image is int64", function() plot.image(dm.tensor{{1}}) end)
    assert.refuses("none of them 0", function() plot.image(dm.zeros(0, 3)) end)
    assert.refuses("wanted {N, C, H, W}; hint", function() plot.images(dm.rand(3, 4, 4)) end)
    assert.refuses("columns is 0", function() plot.images({}, {columns = 0}) end)
    assert.refuses("got a number", function() plot.images{3} end)
  end)

  it("are half blocks with two pixels in a cell", function()
    local x = dm.tensor{{{1.0, 0.0}, {0.0, 1.0}}, {{0.0, 1.0}, {0.0, 1.0}},
      {{0.0, 0.0}, {1.0, 1.0}}}
    local text = plot.image(x):text{columns = 8, rows = 30, colours = 1 << 24, utf8 = true}
    local first = text:match "^[^\n]*"
    assert.equal(8, count(first, "▀"))
    assert.is_truthy(first:find "38;2;255;0;0")
    text = plot.image(x):text{columns = 8, colours = 0, utf8 = false}
    assert.is_nil(text:find "[^ -~\n]")
  end)

  it_with(has_png, "no libpng", "go to terminals by their protocols", function()
    local x = dm.randint(0, 255, {30, 40, 3}):to "uint8"
    local want = x:permute(3, 1, 2):cpu()
    local joined = {}
    for head, data in pixels.sequence(x, "kitty"):gmatch "\27_G([^;]*);([^\27]*)\27\\" do
      assert.is_true(#data <= 4096 and head:find "m=[01]" ~= nil)
      joined[#joined + 1] = data
    end
    joined = table.concat(joined)
    assert.is_true(dm.decode_image(decoded(joined)):equal(want))
    local head, data = pixels.sequence(x, "iterm"):match "^\27(.*):(.*)\7$"
    local size = head:match "^]1337;File=inline=1;size=(%d+)$"
    assert.equal(tonumber(size), #decoded(data))
    assert.is_true(dm.decode_image(decoded(data)):equal(want))
  end)

  it("are sixels with the nearest of 216 colours", function()
    local x = dm.randint(0, 255, {13, 9, 3}):to "uint8"
    local body = pixels.sequence(x, "sixel"):match "^\27Pq(.*)\27\\$"
    local palette, bands = {}, body:gsub("#(%d+);2;(%d+);(%d+);(%d+)", function() return "" end)
    for i, r, g, b in body:gmatch "#(%d+);2;(%d+);(%d+);(%d+)" do
      palette[tonumber(i)] = {r * 2.55, g * 2.55, b * 2.55}
    end
    local got, band = {}, 0
    for text in bands:gmatch "([^-]*)-" do
      for colour, cells in text:gmatch "#(%d+)([^#$]*)" do
        cells = cells:gsub("!(%d+)(.)", function(n, c) return c:rep(tonumber(n)) end)
        for c = 1, #cells do
          for r = 0, 5 do
            if cells:byte(c) - 63 >> r & 1 == 1 then
              got[(band * 6 + r) * 9 + c] = palette[tonumber(colour)]
            end
          end
        end
      end
      band = band + 1
    end
    assert.equal(13 * 9, #got)
    for i, p in ipairs(x:reshape(-1, 3):totable()) do
      for k = 1, 3 do assert.is_true(math.abs(p[k] - got[i][k]) <= 26) end
    end
  end)
end)

-- ---- files ----

describe("figure:save", function()
  local fig = plot.lines({1, 3, 2}, {title = "loss"})

  it("writes SVG under any name", function()
    for _, name in ipairs{"plain.svg", "with space.SVG", "it's \"quoted\".svg",
      "$(rm -r x);`y`.svg", "-o.svg", "zeile\n2.svg", "ü.svg"} do
      local path = FOLDER .. "/" .. name
      assert.is_true(fig:save(path))
      assert.equal(fig:svg(), read(path))
    end
  end)

  it_with(has_converter, "no rsvg-convert", "writes PNG of twice the size, any name", function()
    for _, name in ipairs{"plain.png", "with space.png", "it's \"quoted\".png", "-o.png",
      "$(rm -r x);`y`.png"} do
      local path = FOLDER .. "/" .. name
      assert.is_true(fig:save(path))
      local width, height = (">I4I4"):unpack(read(path), 17)
      assert.same({1280, 800}, {width, height})
    end
  end)

  it("gives nil and a message when a file cannot be written", function()
    os.execute(("ln -s /dev/full '%s/full.svg'; mkdir '%s/folder.svg'"):format(FOLDER, FOLDER))
    for _, name in ipairs{"full.svg", "folder.svg", "no/such/folder.svg"} do
      local written, why = fig:save(FOLDER .. "/" .. name)
      assert.is_nil(written)
      assert.is_truthy(why:find(name, 1, true), why)
    end
  end)

  it("without rsvg-convert says which package has it, and writes nothing", function()
    local lua = io.popen "command -v lua5.4":read "l"
    os.execute(("mkdir -p '%s/bin' && ln -sf '%s' '%s/bin/lua5.4'"):format(FOLDER, lua, FOLDER))
    local text = output_of(([[print(dm.plot.lines{1, 2}:save "%s/none.png")]]):format(FOLDER),
      ("PATH='%s/bin'"):format(FOLDER))
    assert.is_truthy(text:find "^nil\t")
    assert.is_truthy(text:find("none.png': rsvg-convert is not installed; hint: install "
      .. "rsvg-convert (Debian: apt install librsvg2-bin), or save as .svg", 1, true), text)
    assert.is_nil(read(FOLDER .. "/none.png"))
  end)

  it("refuses other endings", function()
    assert.refuses("path is 'loss.pdf', wanted a name that ends in .svg or .png", function()
      fig:save "loss.pdf"
    end)
    assert.refuses("path is missing", function() fig:save() end)
    assert.refuses("figure.save was called with a dot", function() fig.save "loss.svg" end)
  end)

  it_with(os.execute "command -v xmllint >/dev/null 2>&1", "no xmllint",
    "writes what xmllint reads", function()
      local all = plot.grid{fig, plot.bars{["a&b"] = 1, ["<c>"] = -2}, plot.hist{1, 2},
        plot.confusion{{1, 2}, {3, 4}}, plot.scatter({1, 2}, {2, 1}), columns = 2, title = "<all>"}
      local path = FOLDER .. "/lint.svg"
      assert.is_true(all:save(path))
      assert.is_true(os.execute(("xmllint --noout '%s'"):format(path)))
    end)
end)

-- ---- several side by side ----

describe("grid", function()
  it("is as large as its columns and rows", function()
    local a, b = plot.lines({1, 2}, {width = 300, height = 200}), plot.bars{x = 1}
    local fig = plot.grid{a, b, a, columns = 2}
    assert.equal(300 + 640, fig.width)
    assert.equal(400 + 200, fig.height)
    local moved = {}
    for _, g in ipairs(named(parsed(fig), "g")) do moved[g.transform] = true end
    for _, at in ipairs{"0 0", "300 0", "0 400"} do
      assert.is_true(moved["translate(" .. at .. ")"])
    end
    local outer = plot.grid({a, fig}, {columns = 1, title = "all"})
    assert.equal(940, outer.width)
    assert.is_true(texts(outer).all)
    assert.equal(1, #named(parsed(fig), "style"))
  end)

  it("puts as many in a row of a terminal as it has columns for", function()
    local bars = plot.bars{left = 1}
    local fig = plot.grid{bars, plot.bars{right = 1}}
    local function lines(columns)
      return select(2, fig:text{columns = columns, colours = 0}:gsub("\n", "")) + 1
    end
    assert.equal(1, lines(80))
    assert.equal(2, lines(40))
  end)

  it("refuses what is no figure", function()
    assert.refuses("there are no figures", function() plot.grid{} end)
    assert.refuses("element 2 is a number", function() plot.grid{plot.lines{1}, 2} end)
    assert.refuses("columns is 0", function() plot.grid{plot.lines{1}, columns = 0} end)
    assert.refuses("unknown option 'colums'", function() plot.grid{plot.lines{1}, colums = 2} end)
  end)
end)

-- ---- in characters ----

local function every_kind()
  return {
    plot.lines({train = {3, 2, 1.5, NAN, 1}, ["a long name of a line"] = {4, 3, 2, 1, 0.5}},
      {title = "A title that is too long for it", xlabel = "the epoch", ylabel = "cross entropy"}),
    plot.lines({1e-9, 1e9}, {logy = true}), plot.lines{},
    plot.scatter(dm.randn(50), dm.randn(50), {c = dm.randint(1, 3, {50})}),
    plot.bars({"Ankle boot with laces", "é"}, {0.5, -12345.678}, {title = "bars"}),
    plot.bars({"a", "b"}, {{1, 2}, {3, 4}}), plot.bars({}, {}),
    plot.hist(dm.randn(1000)), plot.image(dm.rand(3, 20, 30), {title = "image"}),
    plot.images(dm.rand(7, 1, 5, 5), {columns = 4, titles = {"a", "bbbbbbbbbb"}}),
    plot.heatmap(dm.rand(3, 3), {labels = {"first", "second", "third"}}),
    plot.heatmap(dm.rand(100, 200)), plot.confusion(dm.eye(12):long()),
    plot.grid{plot.lines{1, 2}, plot.hist{1, 2}},
  }
end

describe("text", function()
  it("is ASCII where the locale is, and no wider than the terminal", function()
    for i, fig in ipairs(every_kind()) do
      for _, columns in ipairs{20, 33, 80, 200} do
        local text = fig:text{columns = columns, utf8 = false, colours = 0}
        for line in text:gmatch "[^\n]+" do
          assert.is_nil(line:find "[^ -~]", ("%d: %s"):format(i, line))
          assert.is_true(utf8.len(line) <= columns, ("%d: %s"):format(i, line))
        end
      end
    end
  end)

  it("is as wide in UTF-8, and has escapes for colours alone", function()
    for i, fig in ipairs(every_kind()) do
      for _, n in ipairs{0, 16, 256, 1 << 24} do
        local text = fig:text{columns = 20, utf8 = true, colours = n}
        assert.equal(n > 0 and i ~= 3 and i ~= 7, text:find "\27" ~= nil, i)
        for line in text:gsub("\27%[[%d;]*m", ""):gmatch "[^\n]+" do
          assert.is_true(utf8.len(line) <= 20, ("%d: %s"):format(i, line))
        end
        assert.is_nil(text:gsub("\27%[[%d;]+m", ""):find "\27")
      end
    end
  end)

  it("survives one column, and no rows", function()
    for _, fig in ipairs(every_kind()) do
      assert.is_string(fig:text{columns = 1, rows = 1, colours = 0})
      assert.is_string(fig:text{columns = 1, rows = 1, colours = 256, utf8 = true})
    end
    assert.refuses("columns is 0", function() plot.lines{1}:text{columns = 0} end)
  end)

  it("draws a rising line from the lower left to the upper right", function()
    local lines = {}
    for line in (plot.lines{0, 1}:text{columns = 24, utf8 = false, colours = 0} .. "\n")
      :gmatch "([^\n]*)\n" do
      if line:find "|" then lines[#lines + 1] = line:match "|(.*)$" end
    end
    local last = math.huge
    for _, line in ipairs(lines) do
      local at = line:find "%*"
      assert.is_true(at ~= nil and at <= last)
      last = at
    end
    assert.equal(1, last)
    assert.equal(#lines[1], lines[1]:find "%*[^*]*$")
  end)

  it("draws braille dots and colours by their codes", function()
    local dots = canvas.dots(1, 1, false)
    for _, at in ipairs{{0, 0}, {1, 3}, {5, 5}, {-1, 0}} do dots:set(at[1], at[2], 0xFF0000) end
    local onto = canvas.new(1, 1)
    dots:flush(onto, 1, 1)
    assert.equal("⢁", onto:text(0, true))
    assert.equal("\27[0;31m⢁\27[0m", onto:text(16, true):gsub("91", "31"))
    assert.equal("\27[0;38;5;196m⢁\27[0m", onto:text(256, true))
    assert.equal("\27[0;38;2;255;0;0m⢁\27[0m", onto:text(1 << 24, true))
    onto = canvas.new(3, 1)
    onto:put(1, -1, "abcdef", nil, 0)
    assert.equal("cde", onto:text(0, true))
    onto:put(1, 1, "\27[2\n")
    assert.equal("?[2", onto:text(0, true))
    onto:put(1, 1, "äb…")
    assert.equal("?b.", onto:text(0, false))
  end)
end)

-- ---- terminals ----

describe("the terminal", function()
  -- terminal.of() with these variables of the environment alone, on a terminal.
  local function of(environment)
    local core = require "demilune.core"
    local getenv, isatty = os.getenv, core.isatty
    os.getenv = function(name) return environment[name] end -- luacheck: ignore
    core.isatty = function() return true end
    environment.COLUMNS = environment.COLUMNS or "70"
    local ok, found = pcall(terminal.of)
    os.getenv, core.isatty = getenv, isatty -- luacheck: ignore
    return assert(ok and found, found)
  end

  it("is known by the environment", function()
    assert.equal(0, of{}.colours)
    assert.equal(0, of{TERM = "dumb"}.colours)
    assert.equal(16, of{TERM = "xterm"}.colours)
    assert.equal(256, of{TERM = "xterm-256color"}.colours)
    assert.equal(1 << 24, of{TERM = "xterm", COLORTERM = "truecolor"}.colours)
    assert.equal(0, of{TERM = "xterm", COLORTERM = "truecolor", NO_COLOR = "1"}.colours)
    assert.equal(16, of{TERM = "xterm", NO_COLOR = ""}.colours)
    assert.is_true(of{LANG = "en_US.UTF-8"}.utf8)
    assert.is_true(of{LANG = "C", LC_CTYPE = "de_DE.utf8"}.utf8)
    assert.is_false(of{LANG = "en_US.UTF-8", LC_ALL = "C"}.utf8)
    assert.equal(70, of{}.columns)
    assert.equal(31, of{COLUMNS = "31", LINES = "9"}.columns)
    assert.equal(9, of{COLUMNS = "31", LINES = "9"}.rows)
    assert.equal("kitty", of{TERM = "xterm-kitty"}.graphics)
    assert.equal("kitty", of{TERM = "xterm", KITTY_WINDOW_ID = "1"}.graphics)
    assert.equal("iterm", of{TERM = "xterm", TERM_PROGRAM = "iTerm.app"}.graphics)
    assert.equal("sixel", of{TERM = "foot"}.graphics)
    assert.is_nil(of{TERM = "xterm-256color"}.graphics)
    assert.is_nil(of{TERM = "tmux-256color", KITTY_WINDOW_ID = "1", TMUX = "x"}.graphics)
  end)

  it("is no terminal in a pipe: no colours, and one line of dm.show", function()
    local text = output_of([[
      print(dm.plot.lines{1, 2})
      dm.show(dm.plot.lines({1, 2}, {title = "loss"}))
      dm.show(dm.rand(3, 8, 9))]], "LC_ALL=C.UTF-8 TERM=xterm-256color COLUMNS=40")
    assert.is_nil(text:find "\27")
    assert.is_truthy(text:find("figure: loss (1 line), 640 x 400 pixels; hint: fig:save "
      .. "\"figure.svg\" writes it to a file\n", 1, true), text)
    assert.is_truthy(text:find("1 image: float32 {3, 8, 9}; hint: dm.save_image(x, "
      .. "\"image.png\")", 1, true), text)
  end)

  it("that is full gives dm.show a message", function()
    local text = output_of([[
      io.stdout:setvbuf "no"
      local shown, why = dm.show(dm.plot.lines{1, 2})
      io.stderr:write(tostring(shown), " ", tostring(why))]],
      "X=1 sh -c 'exec \"$@\" >/dev/full' sh")
    assert.equal("nil No space left on device", text)
  end)

  local PLAIN = "COLUMNS=40 TMUX= KITTY_WINDOW_ID= TERM_PROGRAM= COLORTERM= "

  it_with(has_script, "no program 'script'", "gets colours, or an image by its protocol", function()
    local text = output_of("dm.show(dm.plot.lines{1, 2})",
      PLAIN .. "LC_ALL=C.UTF-8 TERM=xterm-256color NO_COLOR=", true)
    assert.is_truthy(text:find "\27%[0;38;5;25m\xe2", text)
    text = output_of("dm.show(dm.rand(3, 8, 9))", PLAIN .. "LC_ALL=C TERM=xterm NO_COLOR=1", true)
    assert.is_nil(text:find "\27")
    text = output_of("dm.show(dm.rand(3, 8, 9))", PLAIN .. "TERM=foot", true)
    assert.is_truthy(text:find "^\27Pq#0;2;0;0;0", text)
    if has_png then
      text = output_of("dm.show(dm.rand(3, 8, 9))", PLAIN .. "TERM=xterm-kitty", true)
      assert.is_truthy(text:find "^\27_Ga=T,f=100,m=", text)
    end
    text = output_of("print(require('demilune.terminal').of().columns)", "COLUMNS=", true)
    assert.is_truthy(tonumber(text), text)
  end)

  it("refuses to show what is none", function()
    assert.refuses("value is a table, wanted an image", function() dm.show{} end)
    assert.refuses("an image has shape {2, 2, 2}", function() dm.show(dm.rand(2, 2, 2)) end)
  end)
end)

-- ---- the learning-rate finder ----

describe("lr_finder", function()
  local function setup(o)
    dm.manual_seed(1)
    local model = nn.Sequential{nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2),
      nn.Linear(16, 3)}
    model:eval()
    local x = dm.randn(64, 6)
    local y = x[{{}, {1, 3}}]:argmax(2)
    local s = {model = model, loss = nn.CrossEntropyLoss(),
      optimizer = dm.optim.Adam({{params = model[1]:parameters(), lr = 0.01},
        {params = model[5]:parameters(), lr = 0.03}}),
      loader = dm.data.DataLoader(dm.data.TensorDataset(x, y), {batch_size = 16, shuffle = true})}
    -- a step, so that there are states and gradients
    s.loss(model(x), y):backward()
    s.optimizer:step()
    for key, v in pairs(o or {}) do s[key] = v end
    return s
  end

  -- All that must be as before, as plain values.
  local function state_of(s)
    local state = {random = dm.get_rng_state(), loader = {}, modes = {}, lrs = {}}
    for name, t in pairs(s.model:state_dict()) do state[name] = t:totable() end
    for i, p in ipairs(s.model:parameters()) do
      state["grad" .. i] = p.grad:totable()
      for key, v in pairs(s.optimizer.state[p] or {}) do
        state[key .. i] = dm.is_tensor(v) and v:totable() or v
      end
    end
    for g, group in ipairs(s.optimizer.param_groups) do state.lrs[g] = group.lr end
    for name, module in s.model:named_modules() do state.modes[name] = module.training end
    for key, v in pairs(s.loader:state_dict()) do state.loader[key] = v end
    return state
  end

  it("raises the rate by one factor and brings all back", function()
    local s = setup()
    local before = state_of(s)
    s.steps, s.from, s.to = 40, 1e-5, 1
    local found = plot.lr_finder(s)
    assert.same(before, state_of(s))
    assert.near(1e-5, found.lr[1], 1e-12)
    for i = 2, #found.lr do
      assert.near((1e5) ^ (1 / 39), found.lr[i] / found.lr[i - 1], 1e-9)
    end
    assert.equal(#found.lr, #found.loss)
    assert.equal(#found.lr, #found.smoothed)
    assert.is_true(#found.lr == 40 or #found.lr > 10)
    assert.is_truthy(tostring(found):find "suggestion")
    assert.is_true(texts(found.figure)["learning rate"])
  end)

  it("brings all back after an error, too", function()
    local n = 0
    local s = setup{forward = function(model, x)
      n = n + 1
      if n == 5 then error("a fault of the loss", 0) end
      return model(x):sum()
    end}
    s.loss = nil
    local before = state_of(setup())
    assert.refuses("a fault of the loss", function() plot.lr_finder(s) end)
    assert.same(before, state_of(s))
  end)

  it("computes mean and suggestion by their definitions, and stops where it diverges", function()
    local losses = {}
    for i = 1, 60 do
      losses[i] = i < 40 and 3 - 2 / (1 + math.exp(-(i - 25) / 3)) or (i - 39) * 4 + 1
    end
    local weight, at = dm.zeros(1):requires_grad_(), 0
    local Net = nn.Module:extend "Net"
    function Net:init() self.weight = nn.Parameter(weight) end
    local model = Net()
    local found = plot.lr_finder{model = model, forward = function(m)
      at = at + 1
      return m.weight:sum() * 0 + losses[at]
    end, optimizer = dm.optim.SGD(model:parameters(), {lr = 0.1}), smooth = 0.5, steps = 60,
      loader = dm.data.DataLoader(dm.data.TensorDataset(dm.zeros(4, 1), dm.zeros(4, 1)))}
    local mean, smoothed, best, stop = 0, {}, math.huge, nil
    for i, loss in ipairs(losses) do
      mean = 0.5 * mean + 0.5 * loss
      local v = mean / (1 - 0.5 ^ i)
      if v > 4 * best then
        stop = i - 1
        break
      end
      best, smoothed[i] = math.min(best, v), v
    end
    assert.equal(stop, #found.lr)
    for i, v in ipairs(smoothed) do assert.near(v, found.smoothed[i], 1e-6) end
    local steepest, slope = nil, 0
    for i = 2 + stop // 10, stop - 1 do
      local d = (smoothed[i + 1] - smoothed[i - 1])
        / (math.log(found.lr[i + 1]) - math.log(found.lr[i - 1]))
      if d < slope then steepest, slope = i, d end
    end
    assert.is_true(steepest > 20 and steepest < 30)
    assert.equal(found.lr[steepest], found.suggestion)
    assert.is_true(texts(found.figure)[scale.number(found.suggestion)])
  end)

  it("gives no suggestion where the loss does not fall, nor after nan", function()
    local s = setup{forward = function(model, x) return model(x):sum() * 0 + 1 end, steps = 10}
    s.loss = nil
    assert.is_nil(plot.lr_finder(s).suggestion)
    s.forward = function(model, x) return model(x):sum() * NAN end
    local found = plot.lr_finder(s)
    assert.equal(0, #found.lr)
    assert.is_truthy(tostring(found):find "no suggestion")
  end)

  it("refuses options that make no run", function()
    local function refuses(text, o)
      local s = setup(o)
      assert.refuses(text, function() plot.lr_finder(s) end)
    end
    refuses("wanted 0 < from < to", {from = 1, to = 0.1})
    refuses("steps is 1", {steps = 1})
    refuses("smooth is 1", {smooth = 1})
    refuses("diverge is 1", {diverge = 1})
    refuses("loader is a table, wanted a DataLoader", {loader = {}})
    refuses("wanted loss%(scores, y%), or forward", {forward = print})
    refuses("the loss is of shape {16, 3}", {loss = function(x) return x end})
    assert.refuses("model is missing", function() plot.lr_finder{} end)
    local empty = dm.data.DataLoader(dm.data.TensorDataset(dm.zeros(0, 6), dm.zeros(0)))
    refuses("the loader gives no batch", {loader = empty})
  end)
end)

describe("the parts", function()
  it("of the module are all named by pairs", function()
    local names = {}
    for name, value in pairs(plot) do
      names[#names + 1] = name
      assert.is_function(value)
    end
    table.sort(names)
    assert.equal("bars confusion grid heatmap hist image images lines lr_finder scatter show",
      table.concat(names, " "))
    assert.equal(dm.show, plot.show)
  end)

  it("cut text to characters", function()
    assert.equal("abc", svg.cut("abc", 3))
    assert.equal("ab…", svg.cut("abcd", 3))
    assert.equal("äö…", svg.cut("äöüß", 3))
    assert.equal("12.5", svg.px(12.54))
    assert.equal("0", svg.px(-0.01))
    assert.is_table(axes.new{series = {}})
  end)
end)
