-- A program as Lua that can stand in a spec: the regions, the same with casts by hand, and what is
-- compared. It wants dm, amp and programs, which is spec.amp.programs.

local calls = require "spec.amp.programs.calls"
local run = require "spec.amp.programs.run"

local Writer = {}
Writer.__index = Writer

function Writer:put(text, ...)
  self.lines[#self.lines + 1] = self.indent .. text:format(...)
end

function Writer:inside(body)
  local indent = self.indent
  self.indent = indent .. "  "
  body()
  self.indent = indent
end

function Writer:name(ref)
  if type(ref) == "string" then return ref end
  local failed = self.failed[ref[1]]
  if failed then return ("dm.full({%s}, 0.5)"):format(table.concat(failed[ref[2]].shape, ", ")) end
  return ("%s[%d]"):format(ref[1], ref[2])
end

-- The results of a block, those of its bodies too.
local function results_of(block, found)
  found = found or {}
  for _, node in ipairs(block) do
    found[#found + 1] = node.result
    if node.body then results_of(node.body, found) end
  end
  return found
end

local OPEN = {
  close = "do local _ <close> = amp.autocast%s", call = "amp.autocast(%s, function()",
  wrap = "amp.autocast(%s):wrap(function()",
}
local CLOSE = {close = "end", call = "end)", wrap = "end)()"}

function Writer:scope(node)
  local names = table.concat(results_of(node.body), ", ")
  local open, close = "dm.no_grad(function()", "end)"
  if node.scope == "coroutine" then
    open, close = "coroutine.wrap(function()", "end)()"
  elseif node.scope == "checkpoint" then
    open = "programs.checkpoint(function()"
    if names ~= "" then open = names .. " = " .. open end
  end
  self:put("%s", open)
  self:inside(function()
    if node.scope == "checkpoint" then self:declare(names) end
    self:block(node.body)
    if node.scope == "checkpoint" then self:put("return %s", names) end
  end)
  self:put("%s", close)
end

function Writer:call(node)
  local names = {}
  for i, ref in ipairs(node.refs) do names[i] = self:name(ref) end
  local text
  if node.custom then
    text = ("{programs.custom(%q, %s)(%s)}"):format(node.custom, calls.written(node.how, {}),
      table.concat(names, ", "))
  else
    if node.call.random then self:put("dm.manual_seed(%d)", node.seed) end
    text = calls.text(node.call, names)
  end
  if self.failed[node.result] then
    self:put("assert(not pcall(function() return %s end), %q)", text, node.result)
  else
    self:put("%s = %s", node.result, text)
  end
end

function Writer:block(block)
  for _, node in ipairs(block) do
    if node.region then
      self:put(OPEN[node.form], calls.written(node.region, {}))
      self:inside(function() self:block(node.body) end)
      self:put("%s", CLOSE[node.form])
    elseif node.scope then
      self:scope(node)
    elseif node.clear then
      self:put("amp.clear_autocast_cache()")
    elseif node.update then
      self:put("dm.no_grad(function() %s:mul_(0.5) end)", node.update)
    else
      self:call(node)
    end
  end
end

function Writer:declare(names, value)
  if names ~= "" then self:put("local %s%s", names, value or "") end
end

local function write_leaves(self, program)
  local names, want_grad = {}, {}
  self:put("local function leaves()")
  self:inside(function()
    self:put("return")
    for i, leaf in ipairs(program.leaves) do
      names[i] = leaf.name
      if leaf.grad then want_grad[#want_grad + 1] = leaf.name end
      self:put("  %s%s%s", calls.tensor_text(leaf.literal, leaf.dtype),
        leaf.grad and ":requires_grad_()" or "", i < #program.leaves and "," or "")
    end
  end)
  self:put("end")
  return table.concat(names, ", "), table.concat(want_grad, ", ")
end

-- The program as Lua. tables: the policies of the casts by hand.
return function(program, tables)
  local log = {}
  local by_hand = run.by_hand(program, tables, log)
  local self = setmetatable({lines = {}, indent = "", failed = {}}, Writer)
  local results, hand_results, has_custom = {}, {}, false
  for _, item in ipairs(by_hand.items) do
    local name = item.node.result
    has_custom = has_custom or item.node.custom ~= nil
    if item.ok then
      results[#results + 1], hand_results[#hand_results + 1] = name, item.by_hand
    else
      self.failed[name] = by_hand.values[name]
    end
  end
  self:put("-- program %d", program.seed)
  local names, want_grad = write_leaves(self, program)
  local compares = program.backward > 0 and want_grad ~= "" and not has_custom
  local function gradients(what, list)
    self:put("%s = programs.gradients({%s}, {%s}, %d)", what, table.concat(list, ", "), want_grad,
      program.backward)
  end
  self:declare(table.concat(results_of(program.block), ", "))
  if compares then self:put("local got, want") end
  self:put("do")
  self:inside(function()
    self:declare(names, " = leaves()")
    self:put("local before = amp.cast_count()")
    self:block(program.block)
    self:put("assert(amp.cast_count() - before == %d, \"casts\")", by_hand.casts)
    if compares then gradients("got", results) end
  end)
  self:put("end")
  self:put("do -- by hand")
  self:inside(function()
    self:declare(names, " = leaves()")
    for _, line in ipairs(log) do self:put("%s", line) end
    for i, name in ipairs(results) do
      self:put("programs.same(%s, %s, %q)", name, hand_results[i], name)
    end
    if compares then gradients("want", hand_results) end
  end)
  self:put("end")
  if compares then self:put("programs.same(got, want, \"gradient\")") end
  return table.concat(self.lines, "\n")
end
