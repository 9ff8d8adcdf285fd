-- dm.text: tokenizers and token files. Ids count from 1, as all positions do; files of
-- other programs count from 0, and are read and written so.
--
--   local tokens = dm.text.CharTokenizer(corpus)
--   local ids = tokens:encode(corpus)                  -- int64
--   local set = dm.text.Windows(ids, {length = 256})   -- samples x, y: y is x one further
--   print(tokens:decode(ids:narrow(1, 1, 20)))

local MODULES = {CharTokenizer = "simple", ByteTokenizer = "simple", GPT2Tokenizer = "bpe",
  Windows = "windows", read_tokens = "windows", write_tokens = "windows"}

return setmetatable({}, {__index = function(self, name)
  if not MODULES[name] then return nil end
  for key, value in pairs(require("demilune.text." .. MODULES[name])) do
    rawset(self, key, value)
  end
  return rawget(self, name)
end})
