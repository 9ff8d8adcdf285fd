-- Examples of ops, for dm.help and the
-- reference. Each is a few lines of Lua in which dm, nn, optim, amp, data and F are there. A line
-- `expression  --> value` shows a value: a number, a string, a boolean, nil, a table, or the
-- elements of a tensor as nested tables. docs_spec runs the lines, and compares the values.
return {
  relu = [[
    dm.relu(dm.tensor{-1, 0, 2})  --> {0, 0, 2}]],
}
