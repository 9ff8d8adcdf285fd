-- dm.text: tokenizers and token files. Ids count from 1, as all positions do; files of
-- other programs count from 0, and are read and written so.
--
--   local tokens = dm.text.CharTokenizer(corpus)
--   local ids = tokens:encode(corpus)                  -- int64
--   local set = dm.text.Windows(ids, {length = 256})   -- samples x, y: y is x one further
--   print(tokens:decode(ids:narrow(1, 1, 20)))

local late = require "demilune.late"

return late.extend({}, {
  CharTokenizer = "demilune.text.simple",
  ByteTokenizer = "demilune.text.simple",
  GPT2Tokenizer = "demilune.text.bpe",
  Windows = "demilune.text.windows",
  read_tokens = "demilune.text.windows",
  write_tokens = "demilune.text.windows",
})
