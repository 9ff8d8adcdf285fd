-- Files of tokens that are larger than memory: read where they lie, by the loader's
-- threads too.
--
--   local tokens = assert(dm.data.TokenFile("openwebtext.bin"))    -- #tokens of them
--   local set = dm.text.Windows(tokens, {length = 1024})           -- for a DataLoader
--   local part = tokens:narrow(1, 1, #tokens * 9 // 10)            -- the first nine tenths
--
-- The file's tokens count from 0, the ids that it gives from 1. Windows are read when
-- they are asked for and not mapped: a file that becomes shorter is an error there.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local tokens = {}

local BITS = {uint16 = 16, int32 = 32}

local TokenFile = {class = "TokenFile"}
TokenFile.__index = TokenFile
function TokenFile:__len() return self.n end
function TokenFile:__tostring() return ("TokenFile(%d tokens)"):format(self.n) end

--- TokenFile(path, {dtype = "uint16" or "int32"}) -> the ids of a file of tokens, plain or
--- with llm.c's head; or nil and why not. dtype: by default as the head says, uint16
--- without one.
local bind = options.signature("TokenFile", "path: string, dtype?: 'uint16'|'int32'")
local function open(class, ...)
  local o = bind(...)
  local file, why = core.tokens_open(o.path, BITS[o.dtype] or 0)
  if not file then return nil, why end
  return setmetatable({file = file, first = 1, n = file:count()}, class)
end

local function check_range(what, self, first, count)
  if math.type(first) ~= "integer" or math.type(count) ~= "integer" or first < 1 or count < 0
    or count > self.n - first + 1 then
    caller.raise("%s: %s tokens from %s on, the file has %d", what, tostring(count),
      tostring(first), self.n)
  end
end

--- int64 (count): the ids from `first` on; or nil and why not.
function TokenFile:read(first, count)
  check_range("read", self, first, count)
  return self.file:read(self.first + first - 1, count)
end

--- narrow(1, first, count): a part, as of a tensor of one dim. Nothing is read.
function TokenFile:narrow(dim, first, count)
  if dim ~= 1 then caller.raise("narrow: dim is %s, wanted 1", tostring(dim)) end
  check_range("narrow", self, first, count)
  return setmetatable({file = self.file, first = self.first + first - 1, n = count},
    getmetatable(self))
end

-- For the loader: n rows of `length` ids, the first of them from `first` on, each `step`
-- after the one before.
function TokenFile:windows(first, length, step, n)
  return {tokens = self.file, first = self.first + first - 1, length = length, step = step,
    count = n}
end

function tokens.is_file(value) return getmetatable(value) == TokenFile end
options.kind("tokens", tokens.is_file, "a TokenFile")

tokens.TokenFile = setmetatable(TokenFile, {__call = open})

return tokens
