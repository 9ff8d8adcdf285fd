-- Tokenizers give the ids of their definitions (GPT-2's: of tiktoken), and windows of a token
-- file give the ids that were written.
local dm = require "demilune"
local core = require "demilune.core"
local folder = require "spec.folder"
local text = dm.text
setup(folder.make)
teardown(folder.remove)

local function ids(list) return dm.tensor(list, {dtype = "int64"}) end

describe("CharTokenizer", function()
  it("numbers the characters of a text by their code points", function()
    local t = text.CharTokenizer "héllo\n"
    assert.equal("CharTokenizer(5 tokens)", tostring(t))
    assert.same({"\n", "h", "l", "o", "é"}, t.vocabulary)
    assert.same({2, 5, 3, 3, 4}, t:encode("héllo"):totable())
    assert.equal("lé\n", t:decode(ids{3, 5, 1}))
    assert.equal("hé", text.CharTokenizer(t.vocabulary):decode{2, 5})
  end)

  it("refuses what it does not know", function()
    local t = text.CharTokenizer "ab"
    assert.error_matches(function() t:encode "abc" end, "character 3, 'c', is no token")
    assert.error_matches(function() t:decode{1, 3} end, "id 3 at 2, there are 2 tokens")
    assert.error_matches(function() text.CharTokenizer "a\xff" end, "byte 2 of the text is not")
    assert.error_matches(function() text.CharTokenizer(7) end, "wanted a text or a list")
    assert.error_matches(function() t:encode(7) end, "wanted a string")
    assert.error_matches(function() t:decode "a" end, "wanted a tensor or a list")
  end)
end)

it("ByteTokenizer takes any bytes", function()
  local t = text.ByteTokenizer()
  local all = {}
  for i = 0, 255 do all[i + 1] = string.char(i) end
  all = table.concat(all)
  assert.equal(256, #t)
  assert.equal(256, t:encode(all)[256]:item())
  assert.equal(all, t:decode(t:encode(all)))
  assert.error_matches(function() t:decode{0} end, "id 0 at 1")
end)

-- A tokenizer of 256 bytes, some merges and the end of a text.
local function write_tokenizer(name, merges)
  os.execute("mkdir -p " .. folder.path(name))
  local tokens, spare = {}, 256
  local function add(token)
    tokens[#tokens + 1] = ('"%s":%d'):format(token:gsub('[\\"]', "\\%0"), #tokens)
  end
  for byte = 0, 255 do
    local is_plain = byte >= 33 and byte <= 126 or byte >= 161 and byte ~= 173
    add(utf8.char(is_plain and byte or spare))
    if not is_plain then spare = spare + 1 end
  end
  for _, merge in ipairs(merges) do add((merge:gsub(" ", ""))) end
  add "<|endoftext|>"
  folder.write(name .. "/vocab.json", "{" .. table.concat(tokens, ",") .. "}")
  folder.write(name .. "/merges.txt", "#version: 0.2\n" .. table.concat(merges, "\n") .. "\n")
  return folder.path(name)
end

describe("GPT2Tokenizer", function()
  if not core._char_class(0) then
    it("names the library that the build lacks", function()
      local none, why = text.GPT2Tokenizer "anywhere"
      assert.is_nil(none)
      assert.matches("Debian: libutf8proc-dev", why, 1, true)
    end)
    return
  end

  it("asks utf8proc for letters, numbers and white space", function()
    for class, characters in ipairs{"aZé北ªʰ", "07½²Ⅷ٣", " \t\n\v\f\r\u{85}\u{a0}\u{2003}\u{3000}",
      "-_.'\0\u{7f}\u{180e}\u{200b}\u{ad}\u{10ffff}€"} do
      for _, code in utf8.codes(characters) do
        assert.equal(class, core._char_class(code), ("U+%04X"):format(code))
      end
    end
  end)

  it("joins the pair that comes first in the list, within words", function()
    local t = assert(text.GPT2Tokenizer(write_tokenizer("small", {"b c", "a b", "Ġ a", "Ġa bc"})))
    assert.equal(261, #t)
    local function pieces(s)
      local list = {}
      for i, id in ipairs(t:encode(s):totable()) do list[i] = t:decode{id} end
      return table.concat(list, "|")
    end
    assert.equal("a|bc", pieces "abc")      -- not ab, c
    assert.equal("ab| a|c", pieces "ab ac")
    assert.equal("a| abc", pieces "a abc")
    assert.equal(" | a", pieces "  a")      -- one space stays with the word
    assert.equal("a|'|s|ab", pieces "a'sab")
    assert.equal("a|1|bc", pieces "a1bc")   -- letters and numbers are apart
    for _, s in ipairs{"", " ", "né 北京 \n\n ½²\t x\u{3000}y", "a'll 'd"} do
      assert.equal(s, t:decode(t:encode(s)))
    end
  end)

  it("knows the end of a text when asked to", function()
    local t = assert(text.GPT2Tokenizer(write_tokenizer("small", {"a b"})))
    assert.same({257, 258, 98}, t:encode("ab<|endoftext|>a", {special = true}):totable())
    assert.equal(258, t.eot)
    assert.equal(15, #t:encode "ab<|endoftext|>a")
    assert.equal("ab<|endoftext|>a", t:decode{257, 258, 98})
  end)

  it("is nil and why where files are missing or broken", function()
    local function fails(name, vocabulary, merges, pattern)
      os.execute("mkdir -p " .. folder.path(name))
      if vocabulary then folder.write(name .. "/vocab.json", vocabulary) end
      if merges then folder.write(name .. "/merges.txt", merges) end
      local t, why = text.GPT2Tokenizer(folder.path(name))
      assert.is_nil(t)
      assert.matches(pattern, why)
    end
    fails("none", nil, nil, "neither encoder.json nor vocab.json")
    fails("half", '{"a":0}', nil, "neither vocab.bpe nor merges.txt")
    fails("cut", '{"a":0', "", "vocab.json: ")
    fails("list", '[1,2]', "", "is no token with an id")
    fails("gaps", '{"a":0,"b":2}', "", "gaps")
    fails("twice", '{"a":0,"b":0}', "", "two tokens have the id 0")
    fails("both", '{"a":0,"b":1,"ab":1,"c":3,"d":4,"e":5}', "", "two tokens have the id 1")
    fails("ids", '{"a":"x"}', "", "is no token with an id")
    fails("merge", '{"a":0}', "a b c\n", "'a b c' is no pair")
    local t = assert(text.GPT2Tokenizer(write_tokenizer("small", {})))
    assert.error_matches(function() t:encode "\xff" end, "byte 1 of the text is not UTF%-8")
    assert.error_matches(function() t:decode{0} end, "id 0 at 1, there are 257")
  end)

  -- tiktoken 0.12 with GPT-2's own files
  it("cuts words as GPT-2 does", function()
    local t = text.GPT2Tokenizer "../shared/data/gpt2-tokenizer"
    if not t then return pending "GPT-2's tokenizer is not here" end
    assert.same({15497, 12, 996, 1}, t:encode("Hello, world!"):totable())
    local odd = "I'm héllo  wörld\n\n  naïve 北京 ½ x² 'LL we'll\t\tz "
    local want = {}
    for word in ("40 1101 289 2634 18798 220 266 30570 335 628 220 41492 10263 234 245 12859 105 "
      .. "25208 2124 31185 705 3069 356 1183 197 197 89 220"):gmatch "%d+" do
      want[#want + 1] = tonumber(word) + 1
    end
    assert.same(want, t:encode(odd):totable())
    assert.equal(odd, t:decode(t:encode(odd)))
  end)
end)

describe("Windows", function()
  it("are x and the same one further, views of the ids", function()
    local all = dm.arange(1, 20, 1, {dtype = "int64", device = "cpu"})
    local set = text.Windows(all, {length = 4, step = 3})
    assert.equal(6, #set)
    local x, y = set:get(6)
    assert.same({16, 17, 18, 19}, x:totable())
    assert.same({17, 18, 19, 20}, y:totable())
    all[17] = 0
    assert.same({16, 0, 18, 19}, x:totable())
  end)

  it("come in batches that threads cut, without a copy of all windows", function()
    local all = dm.arange(1, 3000, 1, {dtype = "int64"})
    local set = text.Windows(all, {length = 1000})
    local before = dm.memory_allocated()
    dm.reset_peak_memory_stats()
    local loader = dm.data.DataLoader(set, {batch_size = 8, shuffle = true, num_workers = 1})
    local seen = {}
    for _, x, y in loader:iter() do
      assert.is_true(dm.equal(x + 1, y))
      for _, first in ipairs(x:select(2, 1):totable()) do seen[#seen + 1] = first end
      if #seen == 200 then break end
    end
    table.sort(seen)
    for i = 2, #seen do assert.is_true(seen[i] > seen[i - 1]) end
    assert.is_true(dm.max_memory_allocated() - before < 8e6) -- all windows: 16 MB a side
  end)

  it("refuse what is too short", function()
    assert.error_matches(function() text.Windows(ids{1, 2, 3}, {length = 3}) end, "3 ids are")
    assert.equal(1, #text.Windows(ids{1, 2, 3}, {length = 2}))
    assert.error_matches(function() text.Windows({1, 2}) end, "wanted a tensor")
    assert.error_matches(function() text.Windows(ids{1, 2}, {length = 0}) end, "length is 0")
  end)
end)

describe("token files", function()
  it("come back as they were written, in part too", function()
    local path = folder.path "tokens.bin"
    assert(text.write_tokens(path, ids{1, 50257, 65536, 2}))
    assert.same({1, 50257, 65536, 2}, text.read_tokens(path):totable())
    assert.same({65536, 2}, text.read_tokens(path, {first = 3}):totable())
    assert.same({50257}, text.read_tokens(path, {first = 2, count = 1}):totable())
    assert.same({}, text.read_tokens(path, {first = 5}):totable())
    local plain = folder.write("plain.bin", "\0\0\255\255")
    assert.same({1, 65536}, text.read_tokens(plain):totable())
  end)

  it("say what is wrong with them", function()
    local function fails(content, pattern)
      local t, why = text.read_tokens(folder.write("bad.bin", content))
      assert.is_nil(t)
      assert.matches(pattern, why)
    end
    fails("abc", "3 bytes of tokens")
    fails(("<i4i4i4"):pack(20240520, 1, 9) .. ("\0"):rep(1012), "0 tokens, its head says 9")
    assert.is_nil((text.read_tokens(folder.path "nowhere")))
    local path = folder.write("two.bin", "\0\0\0\0")
    assert.error_matches(function() text.read_tokens(path, {first = 2, count = 2}) end, "has 2")
    assert.error_matches(function() text.write_tokens(path, {0}) end, "id 0 at 1")
    assert.error_matches(function() text.write_tokens(path, {65537}) end, "wanted 1 to 65536")
  end)
end)
