-- A busted output handler: busted's plain output, and as last line the counts that scripts/test
-- adds up, `N passed, N failed, N skipped`. An error counts as a failure.
return function(options)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.plainTerminal"(options)

  busted.subscribe({ "suite", "end" }, function()
    io.write(("\n%d passed, %d failed, %d skipped\n"):format(handler.successesCount,
      handler.failuresCount + handler.errorsCount, handler.pendingsCount))
    io.flush()
    return nil, true
  end, { priority = 100 }) -- after the handler's own report

  return handler
end
