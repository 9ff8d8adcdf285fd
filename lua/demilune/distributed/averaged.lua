-- Parameter -> the DistributedDataParallel that averages its gradients (nn/parallel.lua keeps it).
return setmetatable({}, {__mode = "kv"})
