-- What the host does in a step that a graph has recorded (demilune.cuda_graph). A launch of the
-- graph repeats the device's work alone; optimizers, schedules and the GradScaler note here, while
-- the graph is captured, what is to be done on the host at each launch.

local caller = require "demilune.caller"

local replay = {
  graph = nil, -- the graph that is captured now; nil: none
  optimizers = nil, -- a set of those that have stepped in a graph's function; nil: it does not run
}

local effects -- those noted so far

--- Begins to note effects, for a graph.
function replay.begin(graph) replay.graph, effects = graph, {} end

--- Ends it; gives the effects in their order.
function replay.finish()
  local list = effects
  replay.graph, effects = nil, nil
  return list
end

-- Notes an effect of the step that is captured. Its functions, none of which has to be there:
--   before(graph)  is called before each later launch
--   after()        is called after each launch, the first one too
--   stamp()        -> a value; where it is another than after the capture, the graph is old
--   check()        is called at the end of the capture, and may refuse it
--   undo()         is called where the capture fails, since then the step is not done
function replay.note(effect) effects[#effects + 1] = effect end

--- Raises: this cannot be captured. text: what it is.
function replay.refuse(text, ...)
  caller.raise("cuda.graph: " .. text .. " cannot be captured", ...)
end

--- A function of the host alone, which each launch calls again with the arguments that the
--- captured step gave it. Calls of others like it within it are not noted as well.
function replay.again(fn)
  return function(...)
    if not replay.graph then return fn(...) end
    local graph, list, n, given = replay.graph, effects, select("#", ...), {...}
    replay.graph, effects = nil, nil
    local results = table.pack(pcall(fn, ...))
    replay.graph, effects = graph, list
    if not results[1] then error(results[2], 0) end
    replay.note{before = function() fn(table.unpack(given, 1, n)) end}
    return table.unpack(results, 2, results.n)
  end
end

return replay
