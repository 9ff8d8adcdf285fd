-- Trains a vision transformer on CIFAR-10: scripts/cifar10.lua with --recipe vit.
-- `scripts/run scripts/vit.lua --help` lists the options.

local given = {table.unpack(arg)}
table.move({"--recipe", "vit", "--save", "vit.safetensors"}, 1, 4, 1, arg)
table.move(given, 1, #given, 5, arg)
dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/cifar10.lua")
