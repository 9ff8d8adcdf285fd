-- Trains an LSTM on a text and writes more of it: scripts/gpt.lua with --model lstm and two
-- layers of 256. `scripts/run scripts/lstm.lua --help` lists the options.
--
--   scripts/run scripts/lstm.lua --data shakespeare.txt

local given = {table.unpack(arg)}
table.move({"--model", "lstm", "--layers", "2", "--width", "256"}, 1, 6, 1, arg)
table.move(given, 1, #given, 7, arg)
dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/gpt.lua")
