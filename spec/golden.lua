-- Loads golden values. spec/golden/NAME.lua is an index in Lua; its lists of numbers are in
-- spec/golden/NAME.safetensors (scripts/golden/store.py writes both). This reader does not use the
-- module under test: a faulty safetensors reader of the module cannot hide a wrong value.

local golden = {}

local FORMAT = {f32 = "f", f64 = "d", i8 = "b", i16 = "h", i32 = "i4", i64 = "i8"}

-- A function (at, n) -> a list of n numbers from element `at` on, of the flat tensor in `bytes`.
local function reader(bytes, begin, format)
  local size = string.packsize("<" .. format)
  return function(at, n)
    local list, position = {}, begin + at * size
    for first = 1, n, 100 do
      local count = math.min(100, n - first + 1)
      local values = {string.unpack("<" .. format:rep(count), bytes, position)}
      table.move(values, 1, count, first, list)
      position = values[count + 1]
    end
    return list
  end
end

--- The table of a family of golden values: {torch = version, kind = tolerance, cases = {...}},
--- or what the index returns. A tensor is {t = dtype, s = shape, d = values, g = gradient}.
function golden.load(name)
  local path = "spec/golden/" .. name
  local env = {math = math}
  local file <close> = io.open(path .. ".safetensors", "rb") -- a family may have no long lists
  if file then
    local bytes = file:read "a"
    local size = string.unpack("<I8", bytes)
    for kind, begin in bytes:sub(9, 8 + size):gmatch '"(%l%d+)":{[^}]-"data_offsets":%[(%d+),' do
      env[kind] = reader(bytes, 9 + size + tonumber(begin), FORMAT[kind])
    end
  end
  return assert(loadfile(path .. ".lua", "t", env))()
end

return golden
