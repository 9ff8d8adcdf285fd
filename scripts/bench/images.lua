-- Images a second out of an ImageFolder: our loader against torchvision's, Pillow and
-- PyTorch's DataLoader, on the same files, the same transforms, as many workers.
--   scripts/run scripts/bench/images.lua --small DIR --photos DIR [--workers 2] [--rounds 7]
--       [--images 4000]
-- --small: images of 32 x 32, which are cropped (with a border of 4) and mirrored.
-- --photos: larger ones, whose shorter side becomes 72, cropped to 64 x 64 and mirrored.
-- Both become float32 and are normalised, in batches of 128. Either may be left out. A
-- round takes up to --images of each, drawn evenly from the folder; the workers of the
-- other side wait meanwhile. The files lie in the system's cache after the first round.
-- PYTHON names a Python with torch, torchvision and Pillow.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local options = lib.options { small = "", photos = "", workers = 2, rounds = 7, images = 4000 }
local GOAL = 1.5

local function side(name, command, kind, folder)
  local worker = lib.worker(name, command)
  local answer, why = worker:ask("begin", kind, options.workers, options.images, folder)
  if answer then
    lib.peer_version = answer.version or lib.peer_version
    return worker
  end
  worker:close()
  return nil, why
end

local function row(kind, folder)
  local ours, why = side("demilune", "lua5.4 " .. lib.quote(lib.here .. "/images_ours.lua"),
    kind, folder)
  if not ours then error(("%s: %s"):format(folder, why), 0) end
  local peer, absent = side("torchvision", lib.quote(os.getenv "PYTHON" or "python3") .. " "
    .. lib.quote(lib.here .. "/images_peer.py"), kind, folder)
  for _, worker in ipairs { ours, peer } do worker:ask "round" end -- fills the cache
  if not peer then
    local a = {}
    for i = 1, options.rounds do a[i] = assert(ours:ask "round").rate end
    ours:close()
    return { kind, lib.spread(a, 1, "%.0f"), absent, "", "" }
  end
  local a, b, problem = lib.in_turns(ours, peer, options.rounds, "rate", "round")
  ours:close()
  peer:close()
  if not b then error(problem, 0) end
  local ratio = lib.ratio(a, b)
  return { kind, lib.spread(a, 1, "%.0f"), lib.spread(b, 1, "%.0f"), ("%.2f"):format(ratio),
    lib.verdict(ratio, GOAL, true) }
end

local rows = {}
for _, kind in ipairs { "small", "photos" } do
  if options[kind] ~= "" then rows[#rows + 1] = row(kind, options[kind]) end
end
lib.heading(("ImageFolder, images a second, %d workers"):format(options.workers))
lib.table({ "images", "demilune", "torchvision", "ratio", "goal 1.5" }, rows)
