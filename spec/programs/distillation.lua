-- Knowledge distillation: a small student learns from a teacher's softened answers and the labels.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim

return function(run)
  local images, labels = run.digits(40, 8)
  local x = images:flatten{start_dim = 2}
  local teacher = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)):to(run.device)
  local student = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)):to(run.device)
  local optimizer = optim.Adam(teacher:parameters(), {lr = 0.01})
  for _ = 1, 15 do
    run.step(optimizer, function() return F.cross_entropy(teacher(x), labels) end)
  end
  teacher:eval()
  local T, soft_target_loss_weight = 2, 0.25
  local ce_loss, kl_loss = nn.CrossEntropyLoss(), nn.KLDivLoss{reduction = "batchmean"}
  optimizer = optim.Adam(student:parameters(), {lr = 0.02})
  local losses = {}
  for i = 1, 20 do
    losses[i] = run.step(optimizer, function()
      local teacher_logits = dm.no_grad(function() return teacher(x) end)
      local student_logits = student(x)
      local soft_targets = F.softmax(teacher_logits / T, {dim = -1})
      local soft_prob = F.log_softmax(student_logits / T, {dim = -1})
      local distillation = kl_loss(soft_prob, soft_targets) * T ^ 2
      return soft_target_loss_weight * distillation
        + (1 - soft_target_loss_weight) * ce_loss(student_logits, labels)
    end)
  end
  local agree = student(x):argmax(2):eq(teacher(x):argmax(2)):float():mean():item()
  assert(agree > 0.7, agree)
  return losses
end
