-- Options of a module's op that are fields of the module, as in PyTorch: they can be read, and
-- assigned after the module was made.

-- text: a signature (options.signature), whose names count. Returns hold(self, opts), which makes
-- fields of the options, and current(self), the options as the fields are now.
return function(text)
  local keys = {}
  for part in (text .. ","):gmatch "%s*([^,]*)," do
    local name = part:match "^[%a_][%w_]*"
    if name and name ~= "inplace" then keys[#keys + 1] = name end
  end
  local n = #keys

  local function hold(self, opts)
    self._opts = opts
    for _, key in ipairs(keys) do
      if opts[key] ~= nil then self[key] = opts[key] end
    end
  end

  local function current(self)
    local opts = rawget(self, "_opts")
    for i = 1, n do
      local key = keys[i]
      if rawget(self, key) ~= opts[key] then
        opts = {}
        for _, each in ipairs(keys) do opts[each] = rawget(self, each) end
        rawset(self, "_opts", opts)
        break
      end
    end
    return opts
  end
  return hold, current
end
