-- What dm.Trainer writes for TensorBoard: every so many steps the loss of the last batch, learning
-- rate, speed and the scaler's state, and each epoch its values. All have the number of the step.

local core = require "demilune.core"

local Training = {}
Training.__index = Training

--- A log for one training.
---@param writer table a dm.SummaryWriter
---@param every integer steps from one reading to the next; reading the loss waits for its device
---@return table
function Training.new(writer, every)
  return setmetatable({writer = writer, every = every, samples = 0}, Training)
end

--- Begins to measure the speed: at each epoch, so that validation does not count.
function Training:begin() self.samples, self.from = 0, core.now() end

--- Counts the samples of a batch.
---@param n integer
function Training:batch(n) self.samples = self.samples + n end

--- Writes loss/step, lr, samples_per_second and, with a scaler, amp/scale and amp/skipped_steps.
---@param trainer table
---@param loss table a tensor of one element
function Training:step(trainer, loss)
  local step = trainer.steps
  if step % self.every ~= 0 then return end
  local writer = self.writer
  writer:add_scalar("loss/step", loss:item(), step) -- waits, so that the speed is the device's
  writer:add_scalar("lr", trainer.optimizer.param_groups[1].lr, step)
  writer:add_scalar("samples_per_second", self.samples / math.max(core.now() - self.from, 1e-9),
    step)
  if trainer.scaler:is_enabled() then
    local stats = trainer.scaler:stats()
    writer:add_scalar("amp/scale", stats.scale, step)
    writer:add_scalar("amp/skipped_steps", stats.skipped, step)
  end
  self:begin()
end

-- train_loss -> "loss/train", so that TensorBoard shows training and validation together.
local function tag_of(name)
  local part, rest = name:match "^(%l+)_(.+)$"
  if part == "train" or part == "valid" then return rest .. "/" .. part end
  return "epoch/" .. name
end

--- Writes the numbers of an epoch, and all that waits.
---@param step integer
---@param values table<string, any>
function Training:epoch(step, values)
  local names = {}
  for name, v in pairs(values) do
    if type(v) == "number" and name ~= "epoch" and name ~= "lr" then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do self.writer:add_scalar(tag_of(name), values[name], step) end
  self.writer:flush()
end

return Training
