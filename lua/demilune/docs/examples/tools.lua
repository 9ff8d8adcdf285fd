-- Examples of the other modules, of functions of dm and of methods, for dm.help and the
-- reference. Each is a few lines of Lua in which dm, nn, optim, amp, data and F are there. A line
-- `expression  --> value` shows a value: a number, a string, a boolean, nil, a table, or the
-- elements of a tensor as nested tables. docs_spec runs the lines, and compares the values.
return {
  ["metrics.Accuracy"] = [[
    local accuracy = dm.metrics.Accuracy()
    accuracy:update(dm.tensor{{0.1, 0.9}, {0.8, 0.2}}, dm.tensor{2, 2})
    accuracy:compute()  --> 0.5]],
}
