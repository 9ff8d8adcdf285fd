-- read_csv gives the columns of a table as tensors of numbers or lists of text, and names the
-- line of a broken file.
local dm = require "demilune"
local folder = require "spec.folder"
local read_csv = dm.data.read_csv
setup(folder.make)
teardown(folder.remove)

local function read(text, opts) return read_csv(folder.write("t.csv", text), opts) end

describe("read_csv", function()
  it("gives numbers as tensors and text as lists", function()
    local t = assert(read "a,b,c\n1,x,2.5\n-3e2,y z,\n")
    assert.same({"a", "b", "c"}, t.names)
    assert.equal(2, #t)
    assert.same({1, -300}, t.a:totable())
    assert.equal("float64", t.a.dtype)
    assert.same({"x", "y z"}, t.b)
    assert.is_true(t.c[2]:item() ~= t.c[2]:item()) -- blank: nan
    assert.same({{1, 2.5}}, t:tensor{"a", "c"}:narrow(1, 1, 1):totable())
    assert.equal("2 rows\n  a: numbers\n  b: text\n  c: numbers", tostring(t))
  end)

  it("takes quotes, other ends of lines, marks of bytes and blank rows", function()
    local t = assert(read('\xef\xbb\xbf"a b";c\r\n"x;""y""";1\r\n\r\n"two\nlines" ; 2 \r\nz;3',
      {separator = ";"}))
    assert.same({'x;"y"', "two\nlines", "z"}, t["a b"])
    assert.same({1, 2, 3}, t.c:totable())
    local u = assert(read("1, ?\n2, 4 \n", {header = false}))
    assert.same({"column1", "column2"}, u.names)
    assert.equal(4, u.column2[2]:item())
    local v = assert(read("# made up\n1\t2\n", {header = false, separator = "\t", comment = "#",
      names = {"p", "q"}}))
    assert.equal(2, v.q:item())
    assert.equal(0, #assert(read "a,b\n"))
  end)

  it("codes text", function()
    local t = assert(read "k\nb\na\n\nb\n")
    assert.equal(3, #t) -- a row of nothing is passed over
    local ids, words = t:codes "k"
    assert.same({2, 1, 2}, ids:totable())
    assert.same({"a", "b"}, words)
  end)

  -- Python's csv.writer puts quotes around an empty field that is alone, so that it is a row;
  -- pandas reads 3 rows of the first text.
  it("keeps a row of one empty field in quotes", function()
    local t = assert(read 'k\n1\n""\n3\n')
    assert.equal(3, #t)
    assert.is_true(t.k[2]:isnan():item())
    local u, words = assert(read 'k\nb\n""\nb\n'):codes "k"
    assert.same({2, 1, 2}, u:totable())
    assert.same({"", "b"}, words)
  end)

  it("takes quotes between tabs and spaces that separate", function()
    for _, separator in ipairs{"\t", " "} do
      local t = assert(read(('"a"|"b c"\n1|"x"\n|"y"\n"3"|\n||\n'):gsub("\n||\n", "\n|\n")
        :gsub("|", separator), {separator = separator}))
      assert.same({"a", "b c"}, t.names)
      assert.same({"x", "y", "", ""}, t["b c"])
      assert.equal(1, t.a[1]:item())
      assert.is_true(t.a[2]:isnan():item())
      assert.equal(3, t.a[3]:item())
    end
  end)

  it("passes over comments whatever they hold, and takes none in quotes for one", function()
    local t = assert(read('# it, "is\na,b\n  #, "x" y\n1,2\n"#x",3\n#', {comment = "#"}))
    assert.same({"1", "#x"}, t.a)
    assert.same({2, 3}, t.b:totable())
  end)

  it("reads infinite numbers as NumPy and pandas write them", function()
    local t = assert(read "a,b\ninf,infer\n-inf,inf\n2,\n")
    assert.same({math.huge, -math.huge, 2}, t.a:totable())
    assert.same({"infer", "inf", ""}, t.b)
  end)

  it("is nil and why where the file is broken", function()
    local function fails(pattern, ...)
      local t, why = read(...)
      assert.is_nil(t)
      assert.matches(pattern, why)
    end
    fails("row 3 has 1 fields, the first 2", "a,b\n1,2\n3\n")
    fails("row 2: a quoted field has no end", 'a\n"1')
    fails("row 2: 'x' after a quoted field", 'a\n"1"x\n')
    fails("two columns are named 'a'", "a,a\n1,2\n")
    fails("%.csv: is empty$", "")
    fails("%.csv: is empty$", "\n\n")
    local t, why = read_csv(folder.path "nowhere.csv")
    assert.is_nil(t)
    assert.matches("nowhere.csv", why)
  end)

  it("names what is asked for wrongly", function()
    local t = assert(read "a,b\n1,x\n")
    assert.error_matches(function() t:tensor{"c"} end, "no column 'c'; there are a, b")
    assert.error_matches(function() t:tensor() end, "column 'b' holds text, such as 'x'")
    assert.error_matches(function() t:codes "c" end, "no column 'c'; there are a, b")
    assert.matches('hint: read_csv%(path, {separator = ";"}%)$', tostring(read "a;b\n1;2\n"))
    assert.error_matches(function() read("", {separator = "ab"}) end, "wanted one sign")
    assert.error_matches(function() read("", {sep = ","}) end, "unknown option 'sep'")
  end)

  it("reads what people have", function()
    local t = read_csv "../shared/data/tabular/california_housing_ageron.csv"
    if not t then return pending "the housing table is not here" end
    assert.equal(20640, #t)
    assert.equal(207, t.total_bedrooms:isnan():sum():item())
    assert.equal(5, #select(2, t:codes "ocean_proximity"))
    assert.near(206855.816909, t.median_house_value:mean():item(), 1e-3)
  end)
end)
