-- The words of a piece of Lua source, for the prompt: names, and the locals of its outermost block.

local words = {}

-- The position behind the long bracket that opens at `at`, or nil where none opens there; the end
-- of the text where it does not close.
local function behind_long(text, at)
  local level = text:match("^%[(=*)%[", at)
  if not level then return nil end
  local _, last = text:find("]" .. level .. "]", at, true)
  return (last or #text) + 1
end

-- The position behind the string in quotes that opens at `at`.
local function behind_string(text, at)
  local quote = text:sub(at, at)
  local i = at + 1
  while i <= #text do
    local c = text:sub(i, i)
    if c == "\\" then i = i + 1 elseif c == quote then return i + 1 end
    i = i + 1
  end
  return #text + 1
end

--- words.each(text): an iterator over (word, position) of names, keywords and single signs.
--- Numbers, strings and comments are left out.
---@param text string Lua source, which may be incomplete
---@return fun(): string?, integer?
function words.each(text)
  local at = 1
  return function()
    while at <= #text do
      local from = at
      local name = text:match("^[%a_][%w_]*", at)
      if name then
        at = at + #name
        return name, from
      end
      local c = text:sub(at, at)
      if text:find("^%-%-", at) then
        at = behind_long(text, at + 2) or (text:find("\n", at, true) or #text) + 1
      elseif c == '"' or c == "'" then
        at = behind_string(text, at)
      elseif behind_long(text, at) then
        at = behind_long(text, at)
      elseif text:find("^%.?%d", at) then
        at = at + #text:match("^%.?%d[%w_.]*", at)
      else
        at = at + 1
        if not c:find "%s" then return c, from end
      end
    end
  end
end

--- The set of all names in a source: {[name] = true}.
function words.names(text)
  local set = {}
  for word in words.each(text) do
    if word:find "^[%a_]" then set[word] = true end
  end
  return set
end

-- How a word changes the depth of blocks.
local DEPTH = {["do"] = 1, ["then"] = 1, ["function"] = 1, ["repeat"] = 1, ["end"] = -1,
  ["until"] = -1, ["elseif"] = -1, ["("] = 1, [")"] = -1, ["{"] = 1, ["}"] = -1}

--- The names that `local` declares in the outermost block of a source, as a list in order.
---@param text string
---@return string[]
function words.locals(text)
  local list, depth, state = {}, 0, nil
  for word in words.each(text) do
    local is_name = word:find "^[%a_]" and not DEPTH[word]
    if state == "attrib" then -- within < >
      if word == ">" then state = "declared" end
    elseif state == "local" and word == "function" then
      state = "function"
    elseif (state == "local" or state == "function") and is_name then
      list[#list + 1] = word
      state = state == "local" and "declared" or nil
      if not state then depth = depth + 1 end -- of the function's body
    elseif state == "declared" and word == "<" then
      state = "attrib"
    elseif state == "declared" and word == "," then
      state = "local"
    else
      state = nil
      depth = depth + (DEPTH[word] or 0)
      if word == "local" and depth == 0 then state = "local" end
    end
  end
  return list
end

return words
