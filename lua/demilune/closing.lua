-- The fourth value that an iterator gives to a generic for, which is closed when the loop
-- is left. Lua before 5.4.5 compiles some loops wrongly: where a `break` leaves a block
-- that has a variable to close, or one that a function holds, the closing value is passed
-- over, and later the value in its register is called instead. Such a loop must not
-- get one. It is told by its code: a CLOSE after the loop that begins above the registers
-- of the loop itself.

-- Whether this Lua does so.
local function forgets()
  local closed = false
  local function with(f) return setmetatable({}, {__close = f}) end
  local function iterator()
    return function() return true end, nil, nil, with(function() closed = true end)
  end
  local function leave()
    for _ in iterator() do
      local _ <close> = with(function() end)
      if not closed then break end
    end
    return closed
  end
  return not leave()
end

local HEAD = 32 -- bytes before a dumped function, and the count of its upvalues
local CLOSE, TFORPREP = 54, 75 -- Lua 5.4's

-- A number of seven bits a byte, the last one marked; and the position after it.
local function read_number(code, at)
  local n = 0
  while true do
    local byte = code:byte(at)
    n, at = n << 7 | byte & 127, at + 1
    if byte > 127 then return n, at end
  end
end

-- Whether a function has a loop that is compiled wrongly.
local function has_bad_loop(fn)
  local code = string.dump(fn, true)
  local size, at = read_number(code, HEAD + 1) -- of the source's name and 1; 0: none
  at = at + math.max(size - 1, 0)
  at = select(2, read_number(code, select(2, read_number(code, at)))) -- two line numbers
  local count
  count, at = read_number(code, at + 3)
  local function instruction(pc)
    local i = ("<I4"):unpack(code, at + 4 * pc)
    return i & 127, i >> 7 & 255, i >> 15 -- opcode, A, Bx
  end
  for pc = 0, count - 1 do
    local op, base, jump = instruction(pc)
    local after = pc + jump + 3 -- TFORPREP leads to TFORCALL; then TFORLOOP, and what follows
    if op == TFORPREP and after < count then
      local next_op, first = instruction(after)
      if next_op == CLOSE and first > base + 3 then return true end
    end
  end
  return false
end

if not forgets() then return function(value) return value end end

local known = setmetatable({}, {__mode = "k"}) -- functions, and whether they are bad

--- The value, or nil where the function `level` levels up (1: the caller of the one that
--- calls this) must not have it.
return function(value, level)
  local info = debug.getinfo(level + 2, "fS")
  if not info or info.what == "C" then return nil end
  local bad = known[info.func]
  if bad == nil then
    bad = has_bad_loop(info.func)
    known[info.func] = bad
  end
  if bad then return nil end
  return value
end
