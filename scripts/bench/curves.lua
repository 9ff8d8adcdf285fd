-- Training on real data, by us and by PyTorch: from the same weights, on the same batches
-- in the same order, the losses must come out alike.
--   scripts/run scripts/bench/curves.lua [--cifar DIR] [--text FILE] [--stem torchvision]
--                                        [--steps 300] [--dtypes float32,bfloat16,float16]
-- ResNet-18 on CIFAR-10 (the folder of the binary version; the first batch file is enough)
-- and a character GPT on a text, each where its data is given. PyTorch trains in float32,
-- which all of ours are compared with: the mean loss of the last quarter of the steps, at
-- most 1 % apart.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local dm = require "demilune"
local options = lib.options { cifar = "", text = "", stem = "torchvision", steps = 300,
  dtypes = "float32,bfloat16,float16" }
local n_steps = math.tointeger(options.steps)

-- ---------------------------------------------------------------------------
-- The batches: x and y of each step
-- ---------------------------------------------------------------------------
local function images(rows)
  local set = assert(dm.datasets.CIFAR10(options.cifar, { batches = 1 }))
  local loader = dm.data.DataLoader(set,
    { batch_size = rows, shuffle = true, seed = 1, drop_last = true })
  local xs, ys = {}, {}
  while #xs < n_steps do
    for _, x, y in loader:iter() do
      xs[#xs + 1], ys[#ys + 1] = x, y
      if #xs == n_steps then break end
    end
  end
  return { x = dm.stack(xs), y = dm.stack(ys) }
end

local function characters(rows, context)
  local file <close> = assert(io.open(options.text, "rb"))
  local text = file:read "a"
  local ids = dm.text.CharTokenizer(text):encode(text)
  local first = dm.randint(#ids - context - 1, { n_steps * rows, 1 }, { dtype = "int64" })
  local at = first + dm.arange(context) - 1
  local function take(positions)
    return ids:index_select(1, positions:flatten()):reshape(n_steps, rows, context)
  end
  return { x = take(at), y = take(at + 1) }
end

-- ---------------------------------------------------------------------------
-- Both sides
-- ---------------------------------------------------------------------------
local function mean_of_last(losses)
  local last = {}
  for i = n_steps - n_steps // 4 + 1, n_steps do last[#last + 1] = losses["l" .. i] end
  return lib.mean(last)
end

local function ours(case, dtype, feed, start)
  local worker <close> = lib.worker("demilune",
    "lua5.4 " .. lib.quote(lib.here .. "/train_ours.lua"))
  assert(worker:ask("begin", dtype, table.unpack(case)))
  if start then assert(worker:ask("save", start)) end
  assert(worker:ask("feed", feed))
  return assert(worker:ask("losses", n_steps, 1e9))
end

local function theirs(case, feed, start)
  local worker <close> = lib.worker("PyTorch", ("%s %s"):format(
    lib.quote(os.getenv "PYTHON" or "python3"), lib.quote(lib.here .. "/train_peer.py")))
  local about = worker:ask "about"
  if not about then return nil end
  lib.peer_version = about.version
  assert(worker:ask("begin", start, "float32", math.tointeger(lib.output "nproc"),
    "contiguous_format", "eager", table.unpack(case)))
  assert(worker:ask("feed", feed))
  return assert(worker:ask("losses", n_steps))
end

local rows, missed = {}, 0

local function compare(name, case, batches)
  local feed, start = os.tmpname(), os.tmpname()
  assert(dm.save(feed, batches))
  local peer
  for dtype in options.dtypes:gmatch "[^,]+" do
    local losses = ours(case, dtype, feed, not peer and start)
    peer = peer or theirs(case, feed, start)
    local mine, other = mean_of_last(losses), peer and mean_of_last(peer)
    local apart = other and math.abs(mine - other) / other
    if not apart or apart > 0.01 then missed = missed + 1 end
    rows[#rows + 1] = { name, dtype, ("%.4f"):format(losses.l1), ("%.5f"):format(mine),
      other and ("%.5f"):format(other) or "-", apart and ("%.3f %%"):format(100 * apart) or "-",
      apart and lib.verdict(apart, 0.01) or "-" }
    io.stderr:write(("%s %s: %s\n"):format(name, dtype, table.concat(rows[#rows], "  ", 3)))
  end
  os.remove(feed)
  os.remove(start)
end

dm.manual_seed(1)
if options.cifar ~= "" then
  compare("ResNet-18, CIFAR-10", { "resnet18", 32, options.stem }, images(32))
end
if options.text ~= "" then
  compare("character GPT", { "gpt", 4, 128, 4, 128, 16 }, characters(16, 128))
end
if #rows == 0 then
  io.stderr:write "give --cifar DIR, --text FILE or both\n"
  os.exit(2)
end
lib.heading(("Losses on real data, mean of the last quarter of %d steps"):format(n_steps))
lib.table({ "", "ours", "first loss", "last", "PyTorch float32", "apart", "goal 1 %" }, rows)
os.exit(missed == 0)
