-- Fails on words that only this project used where the field has a word of its own. Names,
-- comments and messages of the sources, the specs and the pages are checked.
-- Run from the repository root; ends with `N passed, N failed` (files).

-- A Lua pattern of lower-case text that stands between other characters than letters, the word
-- to use instead, and the true uses of the word, which are allowed.
local WORDS = {
  {"pictures?", "image"},
  {"places?", "position, index, device or module path",
    {"in place", "in%-place", "in_place", "in its place", "only place", "same place", "no place",
      "takes? the place", "one place", "last place"}},
  {"rooms?", "capacity, buffer or scratch memory"},
  {"lays?", "prologue, initial value or layout"},
  {"ahead", "prefetch", {"look ahead", "look_ahead", "ahead of"}},
  {"twins?", "low-precision copy"},
  {"roughen%l*", "round stochastically"},
  {"by chance", "at random"},
  {"walk%l* back", "backward pass"},
  {"census", "what it computes"},
  {"drafts?", "atomic file"},
  {"kin", "the family's name"},
  {"watch%l*", "trace, observe or monitor"},
}
-- Generated values, seeds of the fuzzers, measured tables, and this list itself.
local SKIPPED = {"^spec/golden/", "^spec/fuzz/corpus/", "^scripts/bench/results/",
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

-- Prints the faults of a file: -> how many there are.
local function check(path)
  local n, faults = 0, 0
  for line in io.lines(path) do
    n = n + 1
    local text = line:lower()
    for _, word in ipairs(WORDS) do
      local found = without(text, word[3]):match("%f[%l]" .. word[1] .. "%f[^%l]")
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
