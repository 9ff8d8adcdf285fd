-- Definition files for editors (lua/demilune/docs/types.lua), and the reference as pages
-- (scripts/lib/pages.lua).
package.path = "scripts/lib/?.lua;" .. package.path
local dm = require "demilune"
local calls = require "demilune.docs.calls"
local core = require "demilune.core"
local docs = require "demilune.docs"
local pages = require "pages"
local pandoc = require "pandoc"
local folder = require "spec.folder"
local samples = require "spec.samples"
local case = require "spec.case"
local types = require "demilune.docs.types"

-- Types that LuaLS has itself.
local BUILT_IN = {}
for word in ([[any nil boolean number integer string table function userdata thread fun self true
  false unknown file io]]):gmatch "%S+" do
  BUILT_IN[word] = true
end

-- The type that a line of comment names, without its text.
local function types_in(line)
  return line:match "^%-%-%-@param%s+%S+%s+(.*)$" or line:match "^%-%-%-@return%s+(.*)$"
    or line:match "^%-%-%-@field%s+%S+%s+(.*)$" or line:match "^%-%-%-@overload%s+(.*)$"
    or line:match "^%-%-%-@type%s+(.*)$"
end

describe("definition files", function()
  setup(folder.make)
  teardown(folder.remove)

  local files = types.files()
  local whole = {}
  for i, file in ipairs(files) do whole[i] = file[2] end
  whole = table.concat(whole)

  it("load as Lua, each in one file", function()
    local seen = {}
    for _, file in ipairs(files) do
      assert(load(file[2], "=" .. file[1]))
      assert.is_nil(seen[file[1]], file[1])
      seen[file[1]] = true
      assert.matches("^%-%-%-@meta ", file[2])
    end
    assert.is_true(seen["demilune.lua"] and seen["nn.lua"] and seen["optim.lua"])
  end)

  it("have each public name", function()
    local missing = {}
    for _, name in ipairs(docs.names()) do
      local holder, short = name:match "^(.-)%.?([%w_]+)$"
      holder = holder == "" and "dm" or holder:match "[%w_]+$"
      local method = ("\nfunction Tensor:%s("):format(short)
      if not (whole:find(("\nfunction %s.%s("):format(holder, short), 1, true)
        or whole:find(("\n%s.%s = "):format(holder, short), 1, true)
        or whole:find(method, 1, true) or whole:find(method:gsub("%($", "_("), 1, true)
        or name == "repeat") then -- a keyword: tile
        missing[#missing + 1] = name
      end
    end
    assert.equal("", table.concat(missing, " "))
  end)

  it("have each method of tensors and of the objects that a training has", function()
    for name in pairs(core.methods) do
      if name:sub(1, 1) ~= "_" and name ~= "repeat" and docs.find("x:" .. name) then
        assert.truthy(whole:find(("\nfunction Tensor:%s("):format(name), 1, true), name)
      end
    end
    for class, names in pairs{
      ["nn.Module"] = "parameters state_dict to train eval register_buffer named_modules",
      ["optim.Optimizer"] = "step zero_grad state_dict load_state_dict add_param_group",
      ["optim.LRScheduler"] = "step get_last_lr state_dict", ["data.DataLoader"] = "iter len",
      ["amp.GradScaler"] = "scale step update unscale_", ["Trainer"] = "fit evaluate save load",
      ["SummaryWriter"] = "add_scalar add_image close", ["metrics.Metric"] = "update compute reset",
    } do
      local at = assert(whole:find(("\n---@class demilune.%s%%f[^%%w.]"):format(class)), class)
      local body = whole:sub(at, (whole:find("\nend\n", at, true)))
      for name in names:gmatch "%S+" do
        assert.truthy(body:find(("\nfunction Class:%s("):format(name), 1, true),
          class .. ":" .. name)
      end
    end
  end)

  it("have the methods of generators", function()
    local class = whole:match "%-%-%-@class demilune.Generator (.-)\n\n"
    for name in pairs(debug.getmetatable(dm.Generator()).__index) do
      assert.truthy(class:find("@field " .. name .. " fun(", 1, true), name)
    end
  end)

  it("name each parameter of a function, and no other", function()
    local said = {}
    for line in whole:gmatch "[^\n]+" do
      local name = line:match "^%-%-%-@param%s+([%w_.]+)"
      local head, list = line:match "^function (%S-)%((.-)%) end$"
      if name then
        said[#said + 1] = name
      elseif head then
        assert.equal(list, table.concat(said, ", "), head)
        said = {}
      end
    end
  end)

  it("use no type that none of them defines", function()
    local defined, unknown = {}, {}
    for line in whole:gmatch "[^\n]+" do
      local name = line:match "^%-%-%-@class%s+([%w_.]+)" or line:match "^%-%-%-@alias%s+([%w_.]+)"
      if name then defined[name] = true end
    end
    for line in whole:gmatch "[^\n]+" do
      local kind = types_in(line)
      for word in (kind and kind or ""):gmatch "%f[%w_.]demilune[%w_.]+" do
        if not defined[word:gsub("%.+$", "")] then unknown[word] = true end
      end
      local first = kind and kind:match "^[%a_][%w_]*"
      if first and first ~= "demilune" and not BUILT_IN[first] then unknown[line] = true end
    end
    assert.is_nil((next(unknown)))
  end)

  it("complete options by name", function()
    local at = assert(whole:find("\n---@class demilune.nn.Conv2d.Options\n", 1, true))
    local class = whole:sub(at, (whole:find("\n\n", at + 1, true)))
    assert.matches("@field padding%? integer|integer%[%]", class)
    assert.matches('@field padding_mode%? "zeros"|', class)
  end)

  it("say how many tensors an op gives", function()
    local wrong, only_method = {}, {}
    for _, row in ipairs(require("demilune.ops").rows) do
      only_method[row.name] = not row.as_function and not rawget(core, row.name)
    end
    for name, list in pairs(samples) do
      local call = calls.of_op(name)
      local first = call and list[1]
      if first and not first.random then
        local results = case.call(dm, only_method[name] and "x:" .. name or name,
          case.decode(dm, first))
        local tensors = results.n ~= nil and dm.is_tensor(results[1]) -- a list has no n
        if tensors ~= (call.returns[1].type == "demilune.Tensor")
          or results.n and results.n > #call.returns then
          wrong[#wrong + 1] = ("%s: %s %s"):format(name, results.n, type(results[1]))
        end
      end
    end
    table.sort(wrong)
    assert.equal("", table.concat(wrong, " "))
  end)

  it("are written into a folder, and a folder that cannot be made is told", function()
    local dir = folder.path()
    assert.equal(#files, types.write(dir .. "/types"))
    local file = assert(io.open(dir .. "/types/nn.lua"))
    assert.matches("^%-%-%-@meta demilune.nn\n", file:read "a")
    file:close()
    local count, why = types.write "/dev/null/types"
    assert.is_nil(count)
    assert.matches("cannot make '/dev/null/types'", why)
  end)
end)

describe("the reference as pages", function()
  local list, index = pages.all "."
  setup(folder.make)
  teardown(folder.remove)

  it("has a heading and a line in the search for each public name", function()
    local found, shown = {}, {}
    for _, item in ipairs(index) do found[item[2]], shown[item[1]] = true, true end
    for _, name in ipairs(docs.names()) do
      local of_module = name:gsub("^signal_windows_", "signal.windows."):gsub("^(%l+)_", "%1.", 1)
      assert.is_true(shown[name] or shown["dm." .. name] or shown[of_module]
        or shown[(name:gsub("^Tensor%.", "x:"))], name)
    end
    local whole = {}
    for _, page in ipairs(list) do whole[page.file:gsub("md$", "html")] = page.text end
    local count = 0
    for link in pairs(found) do
      local file, mark = link:match "^(.-)#?([^#]*)$"
      if file ~= "" then
        assert.truthy(whole[file]:find(("{#%s}\n"):format(mark), 1, true), link)
        count = count + 1
      end
    end
    assert.is_true(count > 1000, count)
  end)

  it("shows signature, autocast, gradient and example", function()
    local text
    for _, page in ipairs(list) do text = page.file == "dm.md" and page.text or text end
    local at = assert(text:find("{#dm.relu}", 1, true))
    local entry = text:sub(at, text:find("\n## ", at, true))
    assert.matches("\ndm%.relu%(x%)\n", entry)
    assert.matches("::: fact\nautocast", entry)
    assert.matches("has a gradient", entry)
    assert.matches("%-%-> {0, 0, 2}", entry)
  end)

  it("has a function of demilune.h under each heading of the page of C", function()
    local text
    for _, page in ipairs(list) do text = page.file == "c-api.md" and page.text or text end
    local file <close> = assert(io.open "src/demilune.h")
    for name in file:read "a":gmatch "DM_API[^;]-(dm_[%w_]+)%(" do
      assert.truthy(text:find(name:gsub("_", "\\_"), 1, true), name)
    end
  end)

  it("becomes pages of which every link leads somewhere", function()
    if not pandoc.is_there() then return pending "pandoc is not there" end
    assert(pandoc.write(folder.path(), list, index))
    local marks, links = {}, {}
    for _, page in ipairs(list) do
      local name = page.file:gsub("md$", "html")
      local html = folder.read(name)
      marks[name] = true
      for mark in html:gmatch '%sid="([^"]+)"' do
        assert.is_nil(marks[name .. "#" .. mark], name .. "#" .. mark)
        marks[name .. "#" .. mark] = true
      end
      for link in html:gmatch 'href="([^"]+)"' do
        if not link:find "^https?:" and link ~= "style.css" then
          links[link:find "^#" and name .. link or link] = name
        end
      end
    end
    local count = 0
    for link, name in pairs(links) do
      assert.is_true(marks[link], name .. " -> " .. link)
      count = count + 1
    end
    assert.is_true(count > 1000, count)
    assert.matches("const INDEX = %[\n%[\"", folder.read "index.js")
  end)
end)
