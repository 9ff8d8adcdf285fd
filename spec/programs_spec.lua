-- Programs of the kind that people port from PyTorch, in spec/programs: each trains on small data,
-- in float32, in bfloat16 and in float16 with a GradScaler, and its loss falls. A program returns a
-- function of `run` to a list of losses, or several lists; `run` gives what all of them need:
--   run.device            where the model goes
--   run.autocast()        a region of the dtype, switched off in float32; to be closed
--   run.scaler            a GradScaler, which is switched off but in float16
--   run.step(optimizer, loss_of, options)   one step of training; the loss as a number
--   run.digits(n, side)   images {n, 1, side, side} of ten kinds, and labels
local dm = require "demilune"
local here = require "spec.device"

-- Each kind of image has a bar of its own height, width and position.
local function digits(n, side)
  local images, labels = dm.rand(n, 1, side, side) * 0.3, dm.arange(n) % 10 + 1
  for i = 1, n do
    local kind = labels[i]:item() - 1
    local row, column = kind % 5 * side // 5 + 1, kind // 5 * side // 2 + 1
    images[{i, 1, {row, row + side // 8}, {column, column + side // 2 - 1}}] = 1
  end
  return images, labels
end

local function new_run(dtype)
  local run = {device = here.type, digits = digits}
  run.scaler = dm.amp.GradScaler{device = here.type, init_scale = 1024,
    enabled = dtype == "float16"}
  function run.autocast()
    return dm.amp.autocast{device_type = here.type, dtype = dtype ~= "float32" and dtype or nil,
      enabled = dtype ~= "float32"}
  end
  function run.step(optimizer, loss_of, options)
    options = options or {}
    optimizer:zero_grad()
    local loss
    do
      local _ <close> = run.autocast()
      loss = loss_of()
    end
    run.scaler:scale(loss):backward()
    if options.model then
      run.scaler:unscale_(optimizer)
      local parameters = options.model:parameters()
      if options.clip then dm.nn.utils.clip_grad_norm_(parameters, options.clip) end
      if options.clip_value then dm.nn.utils.clip_grad_value_(parameters, options.clip_value) end
    end
    run.scaler:step(optimizer)
    run.scaler:update()
    return loss:item()
  end
  return run
end

-- Chosen so that no part of the suite waits for them; the others are left out where runs are slow.
local QUICK = {gcn = true, mnist = true, regression = true}

describe("program", function()
  local names = {}
  local pipe <close> = io.popen "ls spec/programs/*.lua"
  for path in pipe:lines() do
    local name = path:match "([%w_]+)%.lua$"
    if name ~= "cartpole" then names[#names + 1] = name end -- which three of them share
  end

  for _, name in ipairs(names) do
    it(name .. " learns in every dtype" .. (QUICK[name] and "" or " #slow"), function()
      local starts
      for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
        dm.manual_seed(1)
        math.randomseed(1)
        local curves = {dofile("spec/programs/" .. name .. ".lua")(new_run(dtype))}
        if type(curves[1][1]) ~= "table" then curves = {curves[1]} end
        starts = starts or curves
        for k, losses in ipairs(curves) do
          local first, last = losses[1], losses[#losses]
          local text = ("%s: %g to %g"):format(dtype, first, last)
          assert.is_true(last < 0.95 * first, text)
          assert.near(starts[k][1], first, 0.25 * starts[k][1], text)
        end
      end
    end)
  end

  it("of that kind are 31 or more", function() assert.is_true(#names >= 31) end)
end)
