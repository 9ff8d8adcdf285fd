-- The workers of this side read one request a line and answer in one line, until "quit".
-- "begin float32 1 batch=128" calls requests.begin("float32", 1, {batch = 128}), whose
-- result, a table, is printed as `a=1 b=2`.
local function answer(requests, line)
  local words, named = {}, {}
  for word in line:gmatch "%S+" do
    local key, value = word:match "^(.-)=(.*)$"
    if key then
      named[key] = tonumber(value) or value
    else
      words[#words + 1] = tonumber(word) or word
    end
  end
  words[#words + 1] = next(named) and named or nil
  return requests[words[1]](table.unpack(words, 2))
end

return function(requests)
  for line in io.lines() do
    if line == "quit" then break end
    local ok, reply = xpcall(answer, debug.traceback, requests, line)
    local words = {}
    if ok then
      for key, value in pairs(reply) do words[#words + 1] = ("%s=%s"):format(key, value) end
    else
      words[1] = "error " .. tostring(reply):gsub("%s*\n%s*", " / ")
    end
    print(table.concat(words, " "))
    io.stdout:flush()
  end
end
