-- A session at the prompt: pieces of source that run one after the other and share their locals.
--
-- `local x = 1` ends with its piece in Lua. Here each piece is compiled inside a function that
-- declares the locals of the earlier pieces, and debug.upvaluejoin makes them the same variables:
-- a function that was made before sees what is assigned now, and the other way round.

local words = require "demilune.cli.words"

local Session = {}
Session.__index = Session

--- A new session, in which nothing is declared.
function Session.new() return setmetatable({locals = {}, order = {}}, Session) end

-- Whether a message of load tells that the source only wants more lines. A string in quotes ends on
-- its line.
local function is_incomplete(text)
  return text:find "<eof>['\"]?$" ~= nil and not text:find "unfinished string near"
end

-- The declarations that a source needs: those earlier locals whose names it has.
function Session:declared(source)
  local names, list = words.names(source), {}
  for _, name in ipairs(self.order) do
    if names[name] then list[#list + 1] = name end
  end
  return list
end

-- The source as a function of the session's variables; nil and load's message otherwise. `after`
-- is code behind it, in the same block.
function Session:build(source, name, after)
  local list = self:declared(source)
  local head = #list > 0 and "local " .. table.concat(list, ", ") .. "; " or ""
  local outer, why = load(("%sreturn function(...) %s\n%s\nend"):format(head, source, after or ""),
    name)
  if not outer then return nil, why end
  local fn = outer()
  for i = 1, 255 do
    local upvalue = debug.getupvalue(fn, i)
    if not upvalue then break end
    local variable = self.locals[upvalue]
    if variable then debug.upvaluejoin(fn, i, variable.fn, variable.index) end
  end
  return fn
end

-- A closure of the values, for constants, which Lua writes into the code.
local function holder(value)
  return function() return value end
end

-- Keeps the variables that the closure has as upvalues; of a name that is none its value.
function Session:keep(names, closure)
  local found = {}
  for i = 1, 255 do
    local upvalue = debug.getupvalue(closure, i)
    if not upvalue then break end
    found[upvalue] = i
  end
  local values = table.pack(closure())
  for i, name in ipairs(names) do
    if not self.locals[name] then self.order[#self.order + 1] = name end
    local fn, index = closure, found[name]
    if not index then fn, index = holder(values[i]), 1 end
    self.locals[name] = {fn = fn, index = index}
  end
end

-- Where a variable of this name and value lies in one of the functions, so that it stays the
-- same; in a function of its own where none has it.
local function found_in(functions, name, value)
  for _, fn in ipairs(functions) do
    for i = 1, 255 do
      local upvalue, held = debug.getupvalue(fn, i)
      if not upvalue then break end
      if upvalue == name and rawequal(held, value) then return fn, i end
    end
  end
  return holder(value), 1
end

local DEEPEST = 1000 -- calls below which the running piece is looked for

-- The level on the stack of the piece that runs, for who calls this; nil where none does.
local function level_of(piece)
  for level = 3, DEEPEST do
    local info = debug.getinfo(level, "f")
    if not info then return nil end
    if info.func == piece then return level - 1 end
  end
end

--- Keeps the locals that the piece which runs has so far. The message handler of its error calls
--- this, so that neither an error nor an interrupt loses what was computed.
function Session:rescue()
  local piece = self.piece
  local level = piece and level_of(piece.run)
  if not level then return end
  local values, functions, at = {}, {}, 1
  for i = 1, 255 do
    local name, value = debug.getlocal(level, i)
    if not name then break end
    for k = at, #piece.declared do -- the outermost block's locals come first, in this order
      if piece.declared[k] == name then
        values[name], at = {value}, k + 1
        if type(value) == "function" then functions[#functions + 1] = value end
        break
      end
    end
  end
  for _, name in ipairs(piece.declared) do
    if values[name] and name ~= "_" then
      if not self.locals[name] then self.order[#self.order + 1] = name end
      local fn, index = found_in(functions, name, values[name][1])
      self.locals[name] = {fn = fn, index = index}
    end
  end
end

-- A function that runs a piece which gives a closure of its locals, or nil, and results; those
-- locals are kept.
function Session:keeping(run, source, names)
  local function given(closure, ...)
    if closure then self:keep(names, closure) end
    return ...
  end
  return function()
    self.piece = {run = run, declared = words.locals(source)}
    return given(run())
  end
end

-- The names that a source declares, each once.
local function declarations(source)
  local seen, list = {}, {}
  for _, name in ipairs(words.locals(source)) do
    if not seen[name] and name ~= "_" then list[#list + 1] = name end
    seen[name] = true
  end
  return list
end

--- session:compile(source, name) -> a function that runs it and gives its results, or nil, a
--- message, and whether only more lines are wanted. An expression is compiled as `return` of it.
---@param source string
---@param name string the chunk's name, such as "=stdin"
---@return function? run
---@return string? why
---@return boolean? incomplete
function Session:compile(source, name)
  local fn = self:build("return " .. source, name)
  if fn then return fn end
  local plain, why = load(source, name) -- for its message, and since the rest may close our `end`
  if not plain then return nil, why, is_incomplete(why) end
  local names = declarations(source)
  if #names > 0 then
    local list = table.concat(names, ", ")
    local made = self:build(source, name, "return function() return " .. list .. " end")
    if made then return self:keeping(made, source, names) end
  end
  return self:build(source, name)
end

-- Signs with which a line may go on with what stands above it, by Lua's grammar.
local GOES_ON = "^%s*[({\"'%[%-~]"

-- The statements of a source, and the expression that its last lines are; nil where they are none.
local function parted(source)
  local whole, starts = load(source, "=") ~= nil, {1}
  for at in source:gmatch "\n()" do starts[#starts + 1] = at end
  for i = #starts, 1, -1 do
    local head, tail = source:sub(1, starts[i] - 1), source:sub(starts[i])
    local is_part = not (whole and tail:find(GOES_ON)) and load("return nil, " .. tail, "=")
    if is_part and load(head, "=") then return head, tail end
  end
end

--- session:compile_cell(source, name): as compile, for a source of several statements, which gives
--- the values of the expression that its last lines are.
---@param source string
---@param name string
---@return function? run
---@return string? why
---@return boolean? incomplete
function Session:compile_cell(source, name)
  local head, tail = parted(source)
  if not head then return self:compile(source, name) end
  local names = declarations(head)
  local closure = #names > 0 and ("function() return %s end"):format(table.concat(names, ", "))
  -- with a value in front, a call in the expression is no tail call, and errors name its line
  local made = self:build(("%sreturn %s, %s"):format(head, closure or "nil", tail), name)
  if not made then return self:compile(source, name) end
  return self:keeping(made, head, names)
end

--- The session's locals by name, for completion: {[name] = value}.
function Session:values()
  local values = {}
  for name, variable in pairs(self.locals) do
    local _, value = debug.getupvalue(variable.fn, variable.index)
    values[name] = value
  end
  return values
end

return Session
