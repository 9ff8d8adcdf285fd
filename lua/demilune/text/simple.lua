-- Tokenizers without merges: a token is a character, or a byte.

local core = require "demilune.core"
local caller = require "demilune.caller"

local simple = {}

local function new(class, ...)
  local self = setmetatable({}, class)
  self:init(...)
  return self
end

local function class(name)
  local c = setmetatable({class = name}, {__call = new})
  c.__index = c
  function c:__len() return self.n end
  function c:__tostring() return ("%s(%d tokens)"):format(name, self.n) end
  simple[name] = c
  return c
end

-- The ids of a tensor or a list.
function simple.ids_of(what, ids)
  if core.is_tensor(ids) then ids = ids:reshape(-1):totable() end
  if type(ids) ~= "table" then
    caller.raise("%s: wanted a tensor or a list of ids, got %s", what, type(ids))
  end
  return ids
end

function simple.check_text(what, text)
  if type(text) ~= "string" then
    caller.raise("%s: wanted a string, got %s", what, type(text))
  end
end

-- ---- characters ----

local CharTokenizer = class "CharTokenizer"

-- corpus: a text in UTF-8, whose characters in the order of their code points are the
-- tokens; or a list of characters as `vocabulary` gives it.
function CharTokenizer:init(corpus)
  local list = corpus
  if type(corpus) == "string" then
    local seen, codes = {}, {}
    local ok, at = utf8.len(corpus)
    if not ok then caller.raise("CharTokenizer: byte %d of the text is not UTF-8", at) end
    for _, code in utf8.codes(corpus) do
      if not seen[code] then
        seen[code] = true
        codes[#codes + 1] = code
      end
    end
    table.sort(codes)
    list = {}
    for i, code in ipairs(codes) do list[i] = utf8.char(code) end
  elseif type(corpus) ~= "table" then
    caller.raise("CharTokenizer: wanted a text or a list of characters, got %s", type(corpus))
  end
  self.vocabulary, self.id_of, self.n = list, {}, #list
  for id, character in ipairs(list) do self.id_of[character] = id end
end

--- -> int64 (number of characters). A character that is no token raises.
function CharTokenizer:encode(text)
  simple.check_text("encode", text)
  local ids, n = {}, 0
  for character in text:gmatch(utf8.charpattern) do
    n = n + 1
    ids[n] = self.id_of[character]
    if not ids[n] then
      caller.raise("encode: character %d, '%s', is no token", n, character)
    end
  end
  return core.tensor(ids, {dtype = "int64"})
end

--- -> the text of ids, a tensor or a list.
function CharTokenizer:decode(ids)
  local words = {}
  for i, id in ipairs(simple.ids_of("decode", ids)) do
    words[i] = self.vocabulary[id]
    if not words[i] then
      caller.raise("decode: id %s at %d, there are %d tokens", tostring(id), i, self.n)
    end
  end
  return table.concat(words)
end

-- ---- bytes ----

local ByteTokenizer = class "ByteTokenizer"
function ByteTokenizer:init() self.n = 256 end

--- -> int64 (number of bytes): each byte and 1.
function ByteTokenizer.encode(_, text)
  simple.check_text("encode", text)
  return core._from_bytes(text):long() + 1
end

--- -> the bytes of ids, a tensor or a list, as a string.
function ByteTokenizer.decode(_, ids)
  local words = {}
  for i, id in ipairs(simple.ids_of("decode", ids)) do
    if math.type(id) ~= "integer" or id < 1 or id > 256 then
      caller.raise("decode: id %s at %d, there are 256 tokens", tostring(id), i)
    end
    words[i] = string.char(id - 1)
  end
  return table.concat(words)
end

return simple
