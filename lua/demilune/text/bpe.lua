-- GPT-2's tokenizer: byte pair encoding (R. Sennrich et al. 2016) of bytes within words
-- (A. Radford et al. 2019), from the files that people have: encoder.json and vocab.bpe,
-- or vocab.json and merges.txt.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local simple = require "demilune.text.simple"

local bpe = {}

-- ---- the alphabet: a printable character for each byte ----

local CHARACTER, BYTE = {}, {} -- of a byte; of a character
do
  local spare = 256
  for byte = 0, 255 do
    local is_plain = byte >= 33 and byte <= 126 or byte >= 161 and byte ~= 173
    CHARACTER[byte] = utf8.char(is_plain and byte or spare)
    if not is_plain then spare = spare + 1 end
    BYTE[CHARACTER[byte]] = string.char(byte)
  end
end

-- ---- words ----

local SPACE = 3 -- 1 a letter, 2 a number, 3 white space, 4 another: core._char_class
local class_of = {} -- by code point; filled in as they are met

local function find_class(code)
  local class = core._char_class(code)
  class_of[code] = class
  return class
end

-- The class of the character at byte i, and where the next one begins; nil at the end.
local function class_at(text, i)
  local byte = text:byte(i)
  if not byte then return nil, i end
  if byte < 128 then return class_of[byte] or find_class(byte), i + 1 end
  local code = utf8.codepoint(text, i)
  return class_of[code] or find_class(code), utf8.offset(text, 2, i)
end

-- Where the run of characters of this class ends that begins at i: the byte after it,
-- and where its last character begins.
local function run_end(text, i, class)
  local last = i
  while true do
    local next_class, after = class_at(text, i)
    if next_class ~= class then return i, last end
    last, i = i, after
  end
end

local CONTRACTIONS = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}

-- The byte after the word that begins at i. A word is a contraction's end; letters,
-- numbers or other signs with at most one space before; or spaces, but for the last one
-- where something follows.
local function word_end(text, i)
  for _, word in ipairs(CONTRACTIONS) do
    if text:sub(i, i + #word - 1) == word then return i + #word end
  end
  local class, after = class_at(text, i)
  local first = i
  if text:byte(i) == 32 then
    local next_class = class_at(text, after)
    if next_class and next_class ~= SPACE then class, first = next_class, after end
  end
  local stop, last = run_end(text, first, class)
  if class == SPACE and stop <= #text and last > i then return last end
  return stop
end

-- ---- merges ----

local Tokenizer = {class = "GPT2Tokenizer"}
Tokenizer.__index = Tokenizer
function Tokenizer:__len() return self.n end
function Tokenizer:__tostring() return ("%s(%d tokens)"):format(self.class, self.n) end

-- The ids of one word: the pair of parts that the files name first is joined, until none
-- is named.
local function merged(self, word)
  local parts = {}
  for i = 1, #word do parts[i] = CHARACTER[word:byte(i)] end
  while #parts > 1 do
    local best, at = math.huge, nil
    for i = 1, #parts - 1 do
      local rank = self.ranks[parts[i] .. " " .. parts[i + 1]]
      if rank and rank < best then best, at = rank, i end
    end
    if not at then break end
    local left, right = parts[at], parts[at + 1]
    local joined, n = {}, 0
    local i = 1
    while i <= #parts do
      n = n + 1
      if parts[i] == left and parts[i + 1] == right then
        joined[n], i = left .. right, i + 2
      else
        joined[n], i = parts[i], i + 1
      end
    end
    parts = joined
  end
  for i, part in ipairs(parts) do
    parts[i] = self.id_of[part]
    if not parts[i] then
      caller.raise("encode: the tokenizer has no token for '%s' in '%s'", part, word)
    end
  end
  return parts
end

-- Adds the ids of a text without special tokens.
local function add(self, ids, text)
  local i = 1
  while i <= #text do
    local stop = word_end(text, i)
    local word = text:sub(i, stop - 1)
    local parts = self.known[word]
    if not parts then
      parts = merged(self, word)
      self.known[word] = parts
    end
    table.move(parts, 1, #parts, #ids + 1, ids)
    i = stop
  end
end

--- -> int64 (number of tokens), of a text in UTF-8. {special = true}: "<|endoftext|>" is
--- its token, and not so many characters.
local bind_encode = options.signature("encode", "text: string, special: boolean = false")
function Tokenizer:encode(...)
  local o = bind_encode(...)
  local text = o.text
  local ok, at = utf8.len(text)
  if not ok then caller.raise("encode: byte %d of the text is not UTF-8", at) end
  local ids, from = {}, 1
  while o.special and self.eot do
    local first, last = text:find("<|endoftext|>", from, true)
    if not first then break end
    add(self, ids, text:sub(from, first - 1))
    ids[#ids + 1], from = self.eot, last + 1
  end
  add(self, ids, from == 1 and text or text:sub(from))
  return core.tensor(ids, {dtype = "int64"})
end

--- -> the text of ids, a tensor or a list.
function Tokenizer:decode(ids)
  local words = {}
  for i, id in ipairs(simple.ids_of("decode", ids)) do
    local token = self.vocabulary[id]
    if not token then
      caller.raise("decode: id %s at %d, there are %d tokens", tostring(id), i, self.n)
    end
    words[i] = token:gsub(utf8.charpattern, BYTE)
  end
  return table.concat(words)
end

-- ---- files ----

local function read_file(folder, names)
  for _, name in ipairs(names) do
    local path = folder .. "/" .. name
    local text = core._read_file("load", path)
    if text then return text, path end
  end
  return nil, ("%s: there is neither %s"):format(folder, table.concat(names, " nor "))
end

-- {token = id from 1}, the tokens by id, and how many; or nil and why.
local function read_vocabulary(text, path)
  local ok, map = pcall(core.json_decode, text)
  if not ok or type(map) ~= "table" then
    return nil, ("%s: %s"):format(path, ok and "no JSON object" or tostring(map))
  end
  local tokens, n, last = {}, 0, 0
  for token, id in pairs(map) do
    id = math.type(id) == "integer" and id + 1 or 0
    if type(token) ~= "string" or id < 1 then
      return nil, ("%s: %s is no token with an id"):format(path, tostring(token))
    elseif tokens[id] then
      return nil, ("%s: two tokens have the id %d"):format(path, id - 1)
    end
    tokens[id], map[token] = token, id
    n, last = n + 1, math.max(last, id)
  end
  if last ~= n then return nil, ("%s: the ids of %d tokens have gaps"):format(path, n) end
  return map, tokens, n
end

-- {"a b" = rank}, or nil and why.
local function read_merges(text, path)
  local ranks, n = {}, 0
  for line in text:gmatch "[^\r\n]+" do
    if line:find "^%S+ %S+$" then
      n = n + 1
      ranks[line] = n
    elseif line:sub(1, 8) ~= "#version" then
      return nil, ("%s: '%s' is no pair of tokens"):format(path, line)
    end
  end
  return ranks
end

--- GPT2Tokenizer(folder), or nil and why not. Its length is the number of tokens; `eot`
--- the id of "<|endoftext|>". It takes a build with utf8proc, which knows what a letter is.
function bpe.GPT2Tokenizer(folder)
  simple.check_text("GPT2Tokenizer", folder)
  local class, lacks = core._char_class(0)
  if not class then return nil, "GPT2Tokenizer: " .. lacks end
  local text, path = read_file(folder, {"encoder.json", "vocab.json"})
  if not text then return nil, path end
  local merges, merges_path = read_file(folder, {"vocab.bpe", "merges.txt"})
  if not merges then return nil, merges_path end
  local ids, tokens, n = read_vocabulary(text, path)
  if not ids then return nil, tokens end
  local ranks, why = read_merges(merges, merges_path)
  if not ranks then return nil, why end
  return setmetatable({id_of = ids, vocabulary = tokens, n = n, ranks = ranks,
    known = setmetatable({}, {__mode = "v"}), eot = ids["<|endoftext|>"]}, Tokenizer)
end

return bpe
