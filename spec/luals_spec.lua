-- What an editor with lua-language-server shows: the real server, where it is installed (as
-- `lua-language-server`, or where LUALS names it), with the definition files of `demilune types`.
local core = require "demilune.core"
local folder = require "spec.folder"
local types = require "demilune.docs.types"

local encode, decode = core.json_encode, core.json_decode

local SERVER = os.getenv "LUALS" or "lua-language-server"
local is_there = os.execute(("command -v '%s' >/dev/null 2>&1"):format(SERVER))

local function with_server(title, f)
  if is_there then it(title .. " #slow", f)
  else pending(title .. ": lua-language-server is not installed") end
end

-- A project in the spec's folder, whose settings name the definition files.
local function project()
  assert(os.execute(("cd '%s' && rm -rf project log && mkdir project log"):format(folder.path())))
  assert(types.write(folder.path "types"))
  folder.write("project/.luarc.json", encode{["runtime.version"] = "Lua 5.4",
    ["workspace.library"] = {folder.path "types"}})
  return folder.path "project"
end

describe("lua-language-server", function()
  setup(folder.make)
  teardown(folder.remove)

  with_server("finds nothing to warn of in the scripts and the ported programs", function()
    local root = project()
    assert(os.execute(("cp -r scripts/*.lua scripts/lib spec/programs '%s'"):format(root)))
    local said = folder.run(("'%s' --check '%s' --checklevel=Warning --check_format=json "
      .. "--logpath='%s' </dev/null"):format(SERVER, root, folder.path "log"))
    local list, found = {}, io.open(folder.path "log/check.json")
    if found then found:close() end
    for path, problems in pairs(found and decode(folder.read "log/check.json") or {}) do
      for _, p in ipairs(problems) do
        list[#list + 1] = ("%s:%d: %s: %s"):format(path:match "[^/]*$", p.range.start.line + 1,
          p.code, p.message)
      end
    end
    assert.equal("", table.concat(list, "\n"))
    assert.matches("no problems found", said)
  end)

  -- Answers to requests about a script; `at` counts lines and columns from 0.
  local function ask(text, requests)
    local root = project()
    local uri = "file://" .. root .. "/train.lua"
    folder.write("project/train.lua", text)
    local out = {}
    local function say(message)
      message.jsonrpc = "2.0"
      local body = encode(message)
      out[#out + 1] = ("Content-Length: %d\r\n\r\n%s"):format(#body, body)
    end
    say{id = 1, method = "initialize", params = {rootUri = "file://" .. root, capabilities =
      {textDocument = {completion = {completionItem = {snippetSupport = false}}}},
      workspaceFolders = {{uri = "file://" .. root, name = "project"}}}}
    say{method = "initialized", params = {none = false}}
    say{method = "textDocument/didOpen", params = {textDocument = {uri = uri, languageId = "lua",
      version = 1, text = text}}}
    folder.write("opened", table.concat(out))
    out = {}
    for i, r in ipairs(requests) do
      say{id = i + 1, method = "textDocument/" .. r.method, params = {textDocument = {uri = uri},
        position = {line = r.at[1], character = r.at[2]}}}
    end
    folder.write("asked", table.concat(out))
    -- it answers nothing before the project is loaded, whose problems it tells then
    folder.run(([[cd '%s'; : >out
      wait_for() {
        i=0; while [ $i -lt 600 ] && ! grep -q "$1" out; do sleep 0.1; i=$((i+1)); done
      }
      (cat opened; wait_for publishDiagnostics; cat asked; wait_for '"id":%d') |
      '%s' --logpath="$PWD/log" >out 2>/dev/null]]):format(folder.path(), #requests + 1, SERVER))
    local answers, said = {}, folder.read "out"
    for length, at in said:gmatch "Content%-Length: (%d+)\r\n\r\n()" do
      local message = decode(said:sub(at, at + tonumber(length) - 1))
      if message.id and message.result then answers[message.id - 1] = message.result end
    end
    return answers
  end

  with_server("completes names, methods and option keys, and shows their text", function()
    local text = 'local dm = require "demilune"\n'
      .. 'local net = dm.nn.Linear(3, 4)\n'
      .. 'local x = dm.ones(2, 3)\n'
      .. 'local y = x:soft\n'
      .. 'local adam = dm.optim.AdamW(net:parameters(), {weight_d})\n'
      .. 'local z = dm.soft\n'
      .. 'local w = dm.softmax(x, 2)\n'
    local got = ask(text, {{method = "completion", at = {3, 16}},
      {method = "completion", at = {4, 54}}, {method = "completion", at = {5, 17}},
      {method = "hover", at = {6, 15}}})
    local function labels(answer)
      local set = {}
      for _, item in ipairs(answer and answer.items or answer or {}) do
        set[item.label:match "^[%w_]+"] = true
      end
      return set
    end
    assert.is_true(labels(got[1]).softmax and labels(got[1]).softplus)
    assert.is_true(labels(got[2]).weight_decay)
    assert.is_true(labels(got[3]).softmax)
    local shown = got[4].contents.value
    assert.matches("dim", shown)
    assert.matches("softmax", shown)
    assert.matches("demilune.Tensor", shown)
  end)
end)
