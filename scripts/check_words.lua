-- Fails on words that only this project used where the field has a word of its own. Names,
-- comments and messages of the sources, the specs and the pages are checked.
-- Run from the repository root; ends with `N passed, N failed` (files).

-- A Lua pattern of lower-case text that stands between other characters than letters, the word
-- to use instead, the true uses of the word, which are allowed, and the files, as a pattern of
-- their path, in which each use is a true one. True uses of the field that need no row: a plane
-- is the (H, W) map of one channel, a tap a position in a kernel, a mode an option's choice, and
-- to finish, to observe, to declare and to multiply a number of times are plain English.
local WORDS = {
  {"pictures?", "image"},
  {"places?", "position, index, device or module path",
    {"in place", "in%-place", "in_place", "in its place", "only place", "same place", "no place",
      "takes? the place", "one place", "last place"}},
  {"rooms?", "capacity, buffer or scratch memory"},
  {"lays?", "prologue, initial value or layout"},
  {"dm_finish", "epilogue"},
  {"ahead", "prefetch", {"look ahead", "look_ahead", "ahead of"}},
  {"times_%l+", "multiply or fma"},
  {"twins?", "low-precision copy"},
  {"roughen%l*", "round stochastically"},
  {"by chance", "at random"},
  {"fold[ei]?[dns]?g?", "reduce", {},
    "unfold|conv_nd|stft|spatial|planes|extremes|parity|nn/shape|nn/init|samples|op_cases|docs/"},
  {"walk%l* back", "backward pass"},
  {"box", "handle", {"box & muller", "box and muller", "viewbox"},
    "augment|transform|/mix|vision|parity|yolo|docs/texts|docs/examples|plot|prompt_image"},
  {"boxes", "handles", {"bounding boxes"},
    "augment|transform|/mix|cifar10|vision|parity|yolo|docs/texts|docs/examples"},
  {"beside", "columns, adjacent or a slice along a dim", {"[%s,.:;(-]beside[%s,.:;)]"}},
  {"along_lines?", "along_slices"},
  {"pixels?", "position", {"pixel_%l*shuffle"}, "^src/data|^src/bind|^lua|^scripts|^spec|%.md$"},
  {"census", "what it computes"},
  {"dm_modes", "dm_thread_state"},
  {"by_ops", "tensor implementation"},
  {"n_pieces?", "chunk"},
  {"drafts?", "atomic file"},
  {"kin", "the family's name"},
  {"watch%l*", "trace, observe or monitor"},
  {"the house", "the module"},
  {"the ground", "the layer"},
  {"%-%-%-%-+ what", "a noun in a heading"},
}
-- Generated values, measured tables, and this list itself.
local SKIPPED = {"^spec/golden/", "^scripts/bench/results/",
  "^scripts/check_words%.lua$", "^LICENSE$"}
local KINDS = {c = true, h = true, inc = true, def = true, cu = true, cuh = true, cpp = true,
  lua = true, py = true, md = true, txt = true}

local function lines_of(command)
  local pipe <close> = assert(io.popen(command))
  local lines = {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  return lines
end

local function is_checked(path)
  for _, pattern in ipairs(SKIPPED) do
    if path:find(pattern) then return false end
  end
  return KINDS[path:match "%.(%l+)$"] or path:find "^scripts/[%l_]+$" ~= nil
end

-- The text without the true uses of a word.
local function without(text, uses)
  for _, use in ipairs(uses or {}) do text = text:gsub(use, "") end
  return text
end

-- Whether one of the patterns that | parts is in the path.
local function is_among(path, patterns)
  for pattern in (patterns or ""):gmatch "[^|]+" do
    if path:find(pattern) then return true end
  end
  return false
end

-- Prints the faults of a file: -> how many there are.
local function check(path)
  local words = {}
  for _, word in ipairs(WORDS) do
    if not is_among(path, word[4]) then words[#words + 1] = word end
  end
  local n, faults = 0, 0
  for line in io.lines(path) do
    n = n + 1
    local text = (" " .. line .. " "):gsub("(%l)(%u)", "%1_%2"):lower() -- as in ScatterAttr
    for _, word in ipairs(words) do
      local found = without(text, word[3]):match("%f[%l-]" .. word[1] .. "%f[^%l]")
      if found then
        print(("%s:%d: '%s': use %s"):format(path, n, found, word[2]))
        faults = faults + 1
      end
    end
  end
  return faults
end

local passed, failed = 0, 0
for _, path in ipairs(lines_of "git ls-files") do
  if is_checked(path) then
    if check(path) == 0 then passed = passed + 1 else failed = failed + 1 end
  end
end
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0)
