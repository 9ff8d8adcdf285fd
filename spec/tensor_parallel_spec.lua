-- nn.parallel's layers that are divided among ranks: alone, and on several ranks by mpirun, where
-- it is installed.

local dm = require "demilune"
local launch = require "spec.distributed.launch"
local nn, dist = dm.nn, dm.distributed
local parallel = nn.parallel

local with_mpirun = launch.tests(it, pending)

-- The classes, with the plain ones, arguments and an input.
local CASES = {
  {parallel.ColumnParallelLinear, nn.Linear, {6, 4}, function() return dm.randn(3, 6) end},
  {parallel.RowParallelLinear, nn.Linear, {6, 4}, function() return dm.randn(3, 6) end},
  {parallel.VocabParallelEmbedding, nn.Embedding, {6, 4, 2}, function()
    return dm.randint(6, {5})
  end},
}

local function seeded(class, args)
  dm.manual_seed(3)
  return class(table.unpack(args))
end

describe("layers divided among the ranks, in a world of one", function()
  before_each(function() dist.init_process_group() end)
  after_each(function()
    if dist.is_initialized() then dist.destroy_process_group() end
  end)

  for _, case in ipairs(CASES) do
    local class, plain_class, args, input = table.unpack(case)

    it(class.class .. " is the plain layer bit by bit, and sends nothing", function()
      local plain, layer = seeded(plain_class, args), seeded(class, args)
      local before = dist.stats().calls
      local x = input()
      local y, own = plain(x), layer(x)
      assert.is_true(y:equal(own))
      y:square():sum():backward()
      own:square():sum():backward()
      for name, p in plain:named_parameters() do
        assert.is_true(p:equal(layer[name]))
        assert.is_true(p.grad:equal(layer[name].grad))
      end
      assert.equal(before, dist.stats().calls)
    end)

    it(class.class .. " shares states with the plain layer", function()
      local plain, layer = seeded(plain_class, args), class(table.unpack(args))
      layer:load_state_dict(plain:state_dict())
      local names = {}
      for name, t in pairs(layer:state_dict()) do
        names[#names + 1] = name
        assert.is_true(t:equal(plain[name]))
      end
      for name in pairs(plain:state_dict()) do assert.equal(table.remove(names, 1), name) end
      assert.refuses("load_state_dict of " .. class.class .. ": shapes differ: weight is {1}",
        function() layer:load_state_dict({weight = dm.ones(1)}, false) end)
      assert.matches(class.class .. "%(6.*, 1 ranks%)", tostring(layer))
    end)

    it(class.class .. " wants a process group when it is made", function()
      dist.destroy_process_group()
      assert.refuses("tensor_parallel_spec.lua:%d+: " .. class.class .. ": there is no process "
        .. "group", function() class(table.unpack(args)) end)
    end)
  end

  it("take no options of others", function()
    assert.refuses("ColumnParallelLinear: unknown option 'input_is_parallel'", function()
      parallel.ColumnParallelLinear(2, 2, {input_is_parallel = true})
    end)
    assert.refuses("RowParallelLinear: process_group is 3, wanted a group", function()
      parallel.RowParallelLinear(2, 2, {process_group = 3})
    end)
  end)
end)

describe("layers divided among the ranks", function()
  for n = 2, 4 do
    local title = n == 4 and "train a GPT on a grid of 2 x 2 as one process does"
      or ("compute what the plain ones do, on %d"):format(n)
    with_mpirun(title, function()
      local path = os.tmpname()
      finally(function() os.remove(path) end)
      local text, code = launch.ranks(n, "tensor", path)
      assert.equal(n, launch.count(text, ("rank %%d of %d: divided layers\n"):format(n)), text)
      assert.equal(0, code)
    end)
  end
end)
