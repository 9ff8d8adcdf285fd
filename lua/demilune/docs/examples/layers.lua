-- Examples of dm.nn, dm.models, dm.transforms and dm.vision, for dm.help and the
-- reference. Each is a few lines of Lua in which dm, nn, optim, amp, data and F are there. A line
-- `expression  --> value` shows a value: a number, a string, a boolean, nil, a table, or the
-- elements of a tensor as nested tables. docs_spec runs the lines, and compares the values.
return {
  ["nn.Linear"] = [[
    local layer = nn.Linear(4, 2)
    layer(dm.ones(3, 4)).shape  --> {3, 2}]],
}
