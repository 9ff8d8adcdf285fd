-- Examples of the other modules, of functions of dm and of methods, for dm.help and the
-- reference. Each is a few lines of Lua in which dm, nn, optim, amp, data and F are there. A line
-- `expression  --> value` shows a value: a number, a string, a boolean, nil, a table, or the
-- elements of a tensor as nested tables. docs_spec runs the lines, and compares the values.
return {
  SummaryWriter = [[
    local folder = os.tmpname(); os.remove(folder)
    local writer = assert(dm.SummaryWriter(folder))   -- tensorboard --logdir ...
    for step = 1, 3 do writer:add_scalar("loss", 1 / step, step) end
    writer:close()]],
  ["Tensor.bfloat16"] = [[
    dm.ones(2):bfloat16().dtype  --> "bfloat16"
    dm.tensor{1.001}:bfloat16()  --> {1}]],
  ["Tensor.bool"] = [[
    dm.tensor{0, 1, -2}:bool()  --> {false, true, true}]],
  ["Tensor.byte"] = [[
    dm.tensor{1.7, 255}:byte()  --> {1, 255}
    dm.ones(2):byte().dtype  --> "uint8"]],
  ["Tensor.char"] = [[
    dm.tensor{1.7, -1.7}:char()  --> {1, -1}
    dm.ones(2):char().dtype  --> "int8"]],
  ["Tensor.double"] = [[
    dm.tensor{1, 2}:double().dtype  --> "float64"]],
  ["Tensor.float"] = [[
    dm.tensor{1, 2}:float().dtype  --> "float32"]],
  ["Tensor.half"] = [[
    dm.ones(2):half().dtype  --> "float16"
    dm.tensor{1.001}:half()  --> {1.001}]],
  ["Tensor.index_put_"] = [[
    local x = dm.zeros(2, 2)
    x:index_put_({dm.tensor{1, 2}, dm.tensor{2, 1}}, 5)
    x  --> {{0, 5}, {5, 0}}]],
  ["Tensor.int"] = [[
    dm.tensor{1.7, -1.7}:int()  --> {1, -1}
    dm.ones(2):int().dtype  --> "int32"]],
  ["Tensor.long"] = [[
    dm.tensor{1.7, -1.7}:long()  --> {1, -1}
    dm.ones(2):long().dtype  --> "int64"]],
  ["Tensor.record_stream"] = [[
    if dm.cuda.is_available() then
      local x, side = dm.ones(4, {device = "cuda"}), dm.cuda.Stream()
      side:wait_stream(dm.cuda.current_stream())
      dm.cuda.stream(side, function() return x * 2 end)
      x:record_stream(side)   -- side reads x, which may be freed here meanwhile
    end]],
  ["Tensor.short"] = [[
    dm.tensor{1.7, -1.7}:short()  --> {1, -1}
    dm.ones(2):short().dtype  --> "int16"]],
  ["Tensor.tolist"] = [[
    dm.ones(2, 2):tolist()  --> {{1, 1}, {1, 1}}]],
  Trainer = [[
    local model, x = nn.Linear(1, 1), dm.linspace(0, 1, 16):unsqueeze(2)
    local train = data.DataLoader(data.TensorDataset(x, 2 * x), {batch_size = 4})
    local trainer = dm.Trainer{model = model, loss = nn.MSELoss(), verbose = false,
      optimizer = optim.SGD(model:parameters(), {lr = 0.1}), clip = 1, amp = "bfloat16"}
    #trainer:fit{train = train, epochs = 3}  --> 3]],
  ["amp.GradScaler"] = [[
    local w, scaler = dm.ones(2, {requires_grad = true}), amp.GradScaler{device = "cpu"}
    local optimizer = optim.SGD({w}, {lr = 0.1})
    scaler:scale(w:sum()):backward()   -- times 65536, so that float16 keeps small gradients
    scaler:step(optimizer); scaler:update()   -- no step where a gradient is inf or NaN
    w  --> {0.9, 0.9}]],
  ["amp.autocast"] = [[
    local model, x = nn.Linear(4, 2), dm.ones(3, 4)
    local on = {device_type = "cpu", dtype = "bfloat16"}
    local y = amp.autocast(on, function() return model(x) end)
    y.dtype  --> "bfloat16"
    model.weight.dtype  --> "float32"]],
  ["amp.custom_bwd"] = [[
    local triple = dm.autograd.Function{
      forward = amp.custom_fwd(function(_, x) return 3 * x end),
      backward = amp.custom_bwd(function(_, gy) return 3 * gy end)}   -- as forward ran
    local x = dm.ones(2, {requires_grad = true})
    triple(x):sum():backward()
    x.grad  --> {3, 3}]],
  ["amp.custom_fwd"] = [[
    local square = dm.autograd.Function{   -- computes in float32 under autocast, too
      forward = amp.custom_fwd(function(ctx, x) ctx:save_for_backward(x) return x * x end,
        {cast_inputs = "float32"}),
      backward = amp.custom_bwd(function(ctx, gy) return 2 * ctx:saved_tensors() * gy end)}
    square(dm.tensor({3}, {dtype = "float16"}))  --> {9}]],
  ["amp.initialize"] = [[
    local model = nn.Linear(4, 2)
    local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
    model, optimizer = amp.initialize(model, optimizer, {opt_level = "O2"})
    model.weight.dtype  --> "float16"]],
  ["amp.is_autocast_available"] = [[
    amp.is_autocast_available("cpu")  --> true]],
  ["amp.loss_scalers"] = [[
    local model = nn.Linear(4, 2)
    local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
    model, optimizer = amp.initialize(model, optimizer, {opt_level = "O1"})
    amp.loss_scalers(optimizer)[1]:get_scale()  --> 65536]],
  ["amp.memory"] = [[
    local model = nn.Linear(100, 10)   -- 1,010 numbers of 4 bytes
    amp.memory(model).float32.parameters  --> 4040]],
  ["amp.op_table"] = [[
    amp.op_table("cpu").conv2d  --> "lower_precision_fp"
    amp.op_table("cuda").exp  --> "fp32"]],
  ["amp.register"] = [[
    local function twice(_, x) return 2 * x end   -- forward and backward
    local double = dm.autograd.Function{name = "double", forward = twice, backward = twice}
    amp.register{op = double, policy = "lower_precision"}
    local on = {device_type = "cpu", dtype = "bfloat16"}
    local y = amp.autocast(on, function() return double(dm.ones(2)) end)
    y.dtype  --> "bfloat16"]],
  ["amp.report"] = [[
    local model, x = nn.Linear(4, 2), dm.ones(3, 4)
    local report = amp.report{grads = model}
    local on = {device_type = "cpu", dtype = "bfloat16"}
    amp.autocast(on, function() return model(x):sum() end):backward()
    report:close()
    print(report)   -- what was cast, what overflowed, what to change]],
  ["amp.scale_loss"] = [[
    local model = nn.Linear(4, 2)
    local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
    model, optimizer = amp.initialize(model, optimizer, {opt_level = "O1"})
    amp.scale_loss(model(dm.ones(3, 4)):sum(), optimizer, function(s) s:backward() end)
    optimizer:step()]],
  ["amp.step"] = [[
    local w = dm.ones(2, {requires_grad = true})
    local optimizer, scaler = optim.SGD({w}, {lr = 0.1}), amp.GradScaler{device = "cpu"}
    amp.step{loss = w:sum(), optimizer = optimizer, scaler = scaler, max_norm = 1}
    w  --> {0.9293, 0.9293}]],
  ["autograd.Function"] = [[
    local round = dm.autograd.Function{   -- passes the gradient straight through
      forward = function(_, x) return x:round() end,
      backward = function(_, gy) return gy end}
    local x = dm.tensor({0.4, 1.7}, {requires_grad = true})
    round(x):sum():backward()
    x.grad  --> {1, 1}]],
  ["autograd.backward"] = [[
    local w = dm.tensor({2.0, 3.0}, {requires_grad = true})
    local squares, halves = (w ^ 2):sum(), (w / 2):sum()
    dm.autograd.backward({squares, halves})
    w.grad  --> {4.5, 6.5}]],
  ["autograd.detect_anomaly"] = [[
    local x = dm.zeros(1, {requires_grad = true})
    local function step() x:sqrt():mul(0):backward() end   -- the gradient is 0 times inf
    local fine, why = pcall(dm.autograd.detect_anomaly, step)
    fine  --> false
    print(why)   -- the line that called sqrt]],
  ["autograd.get_recompute_bytes"] = [[
    dm.autograd.get_recompute_bytes()  --> 1048576]],
  ["autograd.grad"] = [[
    local x = dm.tensor(3.0, {requires_grad = true})
    local slope = dm.autograd.grad(x ^ 2, x, {create_graph = true})
    slope  --> 6
    dm.autograd.grad(slope, x)  --> 2
    local _, none = dm.autograd.grad(x * 2, {x, dm.ones(2, {requires_grad = true})},
      {materialize_grads = true})
    none  --> {0, 0}]],
  ["autograd.gradcheck"] = [[
    local x = dm.rand(3, {dtype = "float64", requires_grad = true})
    dm.autograd.gradcheck(function(x) return x:sin() end, {x})  --> true]],
  ["autograd.gradgradcheck"] = [[
    local x = dm.rand(3, {dtype = "float64", requires_grad = true})
    dm.autograd.gradgradcheck(function(x) return x ^ 3 end, {x})  --> true]],
  ["autograd.is_function"] = [[
    local f = dm.autograd.Function{forward = function(_, x) return x end, backward = print}
    dm.autograd.is_function(f)  --> true
    dm.autograd.is_function(print)  --> false]],
  ["autograd.saved_memory"] = [[
    local w, x = dm.randn(64, 64, {requires_grad = true}), dm.randn(128, 64)
    local saved = dm.autograd.saved_memory(x:mm(w):sigmoid():sum())
    saved.bytes  --> 65536
    print(saved)   -- x, and sigmoid's result]],
  ["autograd.set_detect_anomaly"] = [[
    local scope = dm.autograd.set_detect_anomaly(true)
    dm.autograd.is_anomaly_enabled()  --> true
    scope:close()]],
  ["autograd.set_recompute_bytes"] = [[
    dm.autograd.set_recompute_bytes(math.huge)   -- keeps everything, as PyTorch does
    dm.autograd.set_recompute_bytes(2^20)        -- as at first]],
  bfloat16 = [[
    dm.zeros(2, {dtype = dm.bfloat16}).dtype  --> "bfloat16"
    dm.finfo(dm.bfloat16).max  --> 3.3895e38]],
  bool = [[
    dm.zeros(2, {dtype = dm.bool})  --> {false, false}]],
  ["cuda.allow_tf32"] = [[
    if dm.cuda.is_available() then
      dm.cuda.allow_tf32{conv = true}          -- as PyTorch begins
      dm.cuda.allow_tf32{}.matmul              --> false
      dm.cuda.allow_tf32{conv = false}
    end]],
  ["cuda.benchmark"] = [[
    if dm.cuda.is_available() then
      dm.cuda.benchmark(true)                  -- before the first step
      dm.cuda.benchmark(false)                 --> false
    end]],
  ["cuda.Event"] = [[
    if dm.cuda.is_available() then
      local Event, x = dm.cuda.Event, dm.ones(256, 256, {device = "cuda"})
      local from, to = Event{enable_timing = true}, Event{enable_timing = true}
      from:record(); x:mm(x); to:record(); to:synchronize()
      print(from:elapsed_time(to), "ms")
    end]],
  ["cuda.Stream"] = [[
    if dm.cuda.is_available() then
      local stream, x = dm.cuda.Stream(), dm.ones(4, {device = "cuda"})
      stream:wait_stream(dm.cuda.current_stream())
      local y = dm.cuda.stream(stream, function() return x * 2 end)
      stream:synchronize()
    end]],
  ["cuda.current_stream"] = [[
    if dm.cuda.is_available() then
      local x = dm.ones(4, {device = "cuda"})
      dm.cuda.current_stream():synchronize()
    end]],
  ["cuda.default_stream"] = [[
    if dm.cuda.is_available() then
      local side = dm.cuda.Stream()
      side:wait_stream(dm.cuda.default_stream())   -- what was queued there comes first
    end]],
  ["cuda.device_count"] = [[
    for i = 0, dm.cuda.device_count() - 1 do print(dm.cuda.get_device_name(i)) end]],
  ["cuda.empty_cache"] = [[
    if dm.cuda.is_available() then
      local x = dm.ones(1000, 1000, {device = "cuda"})
      x = nil; collectgarbage(); dm.cuda.empty_cache()   -- other programs may have it now
    end]],
  ["cuda.get_device_capability"] = [[
    if dm.cuda.is_available() then
      local major, minor = dm.cuda.get_device_capability(0)   -- 9 and 0 of an H100
      print(("sm_%d%d"):format(major, minor))
    end]],
  ["cuda.get_device_name"] = [[
    if dm.cuda.is_available() then
      print(dm.cuda.get_device_name("cuda:0"))
    end]],
  ["cuda.get_device_properties"] = [[
    if dm.cuda.is_available() then
      local gpu = dm.cuda.get_device_properties(0)
      print(gpu.name, gpu.total_memory // 2 ^ 30 .. " GiB", gpu.multi_processor_count)
    end]],
  ["cuda.graph"] = [[
    if dm.cuda.is_available() then
      local w = dm.ones(3, {device = "cuda", requires_grad = true})
      local optimizer = optim.SGD({w}, {lr = 0.1})
      local step = dm.cuda.graph(function(x)
        optimizer:zero_grad()
        local loss = (w * x):sum()
        loss:backward()
        optimizer:step()
        return loss
      end)
      for i = 1, 5 do step(dm.ones(3, {device = "cuda"})) end   -- the last two by the graph
      assert(math.abs(w[1]:item() - 0.5) < 1e-6)
    end]],
  ["cuda.is_available"] = [[
    local fine, why = dm.cuda.is_available()
    local device = fine and "cuda" or "cpu"   -- why: no driver, no GPU, built without CUDA
    dm.ones(2, {device = device}).device:match "^%a+" == device  --> true]],
  ["cuda.manual_seed"] = [[
    if dm.cuda.is_available() then
      dm.cuda.manual_seed(42)
      local x = dm.randn(3, {device = "cuda"})   -- the same numbers each time
    end]],
  ["cuda.manual_seed_all"] = [[
    if dm.cuda.is_available() then
      dm.cuda.manual_seed_all(42)
    end]],
  ["cuda.max_memory_allocated"] = [[
    if dm.cuda.is_available() then
      local x = dm.ones(1024, 1024, {device = "cuda"})
      print(dm.cuda.max_memory_allocated() / 2 ^ 20 .. " MiB")   -- 4 or more
    end]],
  ["cuda.max_memory_reserved"] = [[
    if dm.cuda.is_available() then
      local x = dm.ones(1024, 1024, {device = "cuda"})
      print(dm.cuda.max_memory_reserved() / 2 ^ 20 .. " MiB")   -- with the cache
    end]],
  ["cuda.mem_get_info"] = [[
    if dm.cuda.is_available() then
      local free, total = dm.cuda.mem_get_info()
      print(("%.0f %% of the GPU's memory is free"):format(100 * free / total))
    end]],
  ["cuda.memory_allocated"] = [[
    if dm.cuda.is_available() then
      local x = dm.ones(1024, 1024, {device = "cuda"})
      print(dm.cuda.memory_allocated() / 2 ^ 20 .. " MiB")   -- 4 or more
    end]],
  ["cuda.memory_reserved"] = [[
    if dm.cuda.is_available() then
      local x = dm.ones(1024, 1024, {device = "cuda"})
      print(dm.cuda.memory_reserved() / 2 ^ 20 .. " MiB")   -- with the cache
    end]],
  ["cuda.memory_stats"] = [[
    if dm.cuda.is_available() then
      local stats = dm.cuda.memory_stats()
      print(stats["allocated_bytes.all.peak"], stats.num_ooms)
    end]],
  ["cuda.memory_summary"] = [[
    if dm.cuda.is_available() then
      print(dm.cuda.memory_summary("cuda:0", {abbreviated = true}))
    end]],
  ["cuda.plans"] = [[
    if dm.cuda.is_available() then
      print(dm.cuda.plans().cudnn.asked)   -- how often cuDNN was asked for a plan
    end]],
  ["cuda.reset_accumulated_memory_stats"] = [[
    if dm.cuda.is_available() then
      dm.cuda.reset_accumulated_memory_stats()
      print(dm.cuda.memory_stats()["allocated_bytes.all.allocated"])   -- 0
    end]],
  ["cuda.reset_peak_memory_stats"] = [[
    if dm.cuda.is_available() then
      dm.cuda.reset_peak_memory_stats()   -- then a step of training
      print(dm.cuda.max_memory_allocated())
    end]],
  ["cuda.stream"] = [[
    if dm.cuda.is_available() then
      local side = dm.cuda.Stream()
      local x = dm.cuda.stream(side, function() return dm.zeros(4, {device = "cuda"}) end)
      dm.cuda.current_stream():wait_stream(side)   -- before x is used here
    end]],
  ["cuda.synchronize"] = [[
    if dm.cuda.is_available() then
      local x = dm.ones(4, {device = "cuda"}) * 2   -- returns before it is done
      dm.cuda.synchronize()
    end]],
  ["data.BatchSampler"] = [[
    local sampler = data.SequentialSampler(data.TensorDataset(dm.arange(5)))
    local batches = data.BatchSampler(sampler, 2, {drop_last = false})
    #batches  --> 3]],
  ["data.ChainDataset"] = [[
    local Words = data.IterableDataset:extend "Words"
    function Words:init(text) self.text = text end
    function Words:iter() return self.text:gmatch "%a+" end
    local chain = data.ChainDataset{Words "one two", Words "three"}
    for word in chain:iter() do print(word) end]],
  ["data.ConcatDataset"] = [[
    local a, b = data.TensorDataset(dm.tensor{1, 2}), data.TensorDataset(dm.tensor{3, 4, 5})
    local both = data.ConcatDataset{a, b}
    #both  --> 5
    both:get(3)  --> 3]],
  ["data.DataLoader"] = [[
    local set = data.TensorDataset(dm.randn(10, 4), dm.arange(10))
    local loader = data.DataLoader(set, {batch_size = 4, shuffle = true, seed = 1})
    for i, x, y in loader:iter() do print(i, x.shape, y) end   -- 4, 4 and 2 samples
    #loader  --> 3]],
  ["data.Dataset"] = [[
    local Squares = data.Dataset:extend "Squares"
    function Squares:len() return 100 end
    function Squares:get(i) return dm.tensor(i), dm.tensor(i * i) end
    local _, x, y = data.DataLoader(Squares(), {batch_size = 3}):iter()()
    y  --> {1, 4, 9}]],
  ["data.DistributedSampler"] = [[
    local set = data.TensorDataset(dm.arange(10))   -- rank counts from 0, as launchers do
    local share = data.DistributedSampler(set, {num_replicas = 2, rank = 0})
    #share  --> 5
    local loader = data.DataLoader(set, {batch_size = 5, sampler = share})]],
  ["data.IterableDataset"] = [[
    local Count = data.IterableDataset:extend "Count"
    function Count:iter()
      local i = 0
      return function() i = i + 1; if i <= 4 then return dm.tensor(i) end end
    end
    local _, x = data.DataLoader(Count(), {batch_size = 4}):iter()()
    x  --> {1, 2, 3, 4}]],
  ["data.RandomSampler"] = [[
    local set = data.TensorDataset(dm.arange(10))
    local sampler = data.RandomSampler(set, {replacement = true, num_samples = 4, seed = 1})
    #sampler  --> 4]],
  ["data.Sampler"] = [[
    local Backwards = data.Sampler:extend "Backwards"
    function Backwards:init(set) self.n = #set end
    function Backwards:order() return dm.arange(self.n, 1, -1) end   -- of an epoch
    local set = data.TensorDataset(dm.tensor{5, 6, 7})
    local _, x = data.DataLoader(set, {batch_size = 3, sampler = Backwards(set)}):iter()()
    x  --> {7, 6, 5}]],
  ["data.SequentialSampler"] = [[
    local set = data.TensorDataset(dm.tensor{5, 6, 7})
    local sampler = data.SequentialSampler(set)   -- as without a sampler
    local _, x = data.DataLoader(set, {batch_size = 2, sampler = sampler}):iter()()
    x  --> {5, 6}]],
  ["data.StackDataset"] = [[
    local x, y = data.TensorDataset(dm.tensor{1, 2}), data.TensorDataset(dm.tensor{10, 20})
    select(2, data.StackDataset(x, y):get(2))  --> 20
    data.StackDataset{image = x, label = y}:get(2).label  --> 20]],
  ["data.Subset"] = [[
    local set = data.TensorDataset(dm.tensor{10, 20, 30})
    local part = data.Subset(set, {3, 1})
    part:get(1)  --> 30]],
  ["data.SubsetRandomSampler"] = [[
    local set = data.TensorDataset(dm.arange(10))
    local sampler = data.SubsetRandomSampler({1, 3, 5}, {seed = 1})   -- these, shuffled
    #data.DataLoader(set, {sampler = sampler})  --> 3]],
  ["data.TensorDataset"] = [[
    local set = data.TensorDataset(dm.tensor{{1, 2}, {3, 4}}, dm.tensor{7, 8})
    local x, y = set:get(2)
    x  --> {3, 4}
    y  --> 8]],
  ["data.TokenFile"] = [[
    local path = os.tmpname()
    assert(dm.text.write_tokens(path, {5, 6, 7}))
    local tokens = assert(data.TokenFile(path))
    #tokens  --> 3
    tokens:read(2, 2)  --> {6, 7}]],
  ["data.WeightedRandomSampler"] = [[
    local sampler = data.WeightedRandomSampler({1, 1, 8}, 100, {seed = 1})   -- 3 most often
    #sampler  --> 100]],
  ["data.default_collate"] = [[
    local x, y = data.default_collate{{dm.tensor{1, 2}, 5}, {dm.tensor{3, 4}, 6}}
    x  --> {{1, 2}, {3, 4}}
    y  --> {5, 6}]],
  ["data.random_split"] = [[
    local set = data.TensorDataset(dm.arange(10))
    local train, valid = data.random_split(set, {0.8, 0.2}, {seed = 1})   -- or {8, 2}
    #train  --> 8]],
  ["data.read_csv"] = [[
    local path = os.tmpname()
    io.open(path, "w"):write("height,name\n1.5,Ann\n1.75,Bob\n"):close()
    local people = assert(data.read_csv(path))
    people.height  --> {1.5, 1.75}
    people:tensor{"height"}.shape  --> {2, 1}
    people:codes "name"  --> {1, 2}]],
  ["data.read_npy"] = [[
    local path = os.tmpname()
    assert(data.write_npy(path, dm.tensor{{1, 2}, {3, 4}}))
    data.read_npy(path)  --> {{1, 2}, {3, 4}}]],
  ["data.read_npz"] = [[
    local path = os.tmpname()
    assert(data.write_npz(path, {x = dm.arange(3), y = dm.ones(2)}))
    data.read_npz(path).x  --> {1, 2, 3}]],
  ["data.write_npy"] = [[
    local path = os.tmpname()
    data.write_npy(path, dm.arange(3))  --> true
    data.read_npy(path)  --> {1, 2, 3}]],
  ["data.write_npz"] = [[
    local path = os.tmpname()
    data.write_npz(path, {x = dm.arange(3)})  --> true]],
  ["datasets.CIFAR10"] = [[
    local set, why = dm.datasets.CIFAR10("data", {train = false})   -- the binary version
    if set then print(#set, set:get(1).shape) else print(why) end   -- {3, 32, 32}]],
  ["datasets.CIFAR100"] = [[
    local set, why = dm.datasets.CIFAR100("data", {train = false})   -- the binary version
    if set then print(#set, set:get(1).shape) else print(why) end   -- {3, 32, 32}]],
  ["datasets.FashionMNIST"] = [[
    local set, why = dm.datasets.FashionMNIST("data", {train = false})   -- nil: Debian's
    if set then print(#set, set:get(1).shape) else print(why) end   -- {1, 28, 28}]],
  ["datasets.ImageFolder"] = [[
    local set, why = dm.datasets.ImageFolder "photos"   -- photos/cat/1.jpg, ...
    if set then print(#set, set:get(1).shape) else print(why) end]],
  ["datasets.MNIST"] = [[
    local set, why = dm.datasets.MNIST("data", {train = false})   -- a folder of the files
    if set then print(#set, set:get(1).shape) else print(why) end   -- {1, 28, 28}]],
  dashboard = [[
    local dir = os.tmpname() .. ".runs"
    local board = dm.dashboard{dir = dir, name = "a", serve = false}
    for step = 1, 3 do board:log(step, {loss = 1 / step}) end
    board:close()
    #dir > 0 and os.execute("rm -r " .. dir)  --> true]],
  decode_image = [[
    local path = os.tmpname()
    assert(dm.save_image(dm.ones(1, 4, 4), path))
    local bytes = io.open(path, "rb"):read "a"   -- or from an archive, a socket
    dm.decode_image(bytes, {mode = "rgb"}).shape  --> {3, 4, 4}]],
  ["distributed.all_gather"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local list = dist.all_gather(dm.tensor{1, 2})   -- a tensor of each rank
    list[1]  --> {1, 2}
    dist.destroy_process_group()]],
  ["distributed.all_gather_into_tensor"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local x = dm.tensor{1, 2}
    local all = dm.zeros(dist.get_world_size() * 2, {dtype = "int64"})
    dist.all_gather_into_tensor(all, x)
    all[{{1, 2}}]  --> {1, 2}
    dist.destroy_process_group()]],
  ["distributed.all_gather_object"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local names = dist.all_gather_object("rank " .. dist.get_rank())
    names[1]  --> "rank 0"
    dist.destroy_process_group()]],
  ["distributed.all_reduce"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local loss = dm.tensor{0.5}
    dist.all_reduce(loss, "avg")   -- the mean of all ranks, on each of them
    loss  --> {0.5}
    local handle = dist.all_reduce(loss, {async_op = true})
    handle:wait()  --> {0.5}
    dist.destroy_process_group()]],
  ["distributed.all_to_all_single"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local x = dm.arange(dist.get_world_size())
    local y = dm.zeros_like(x)
    dist.all_to_all_single(y, x)   -- y[i] is x[rank + 1] of rank i - 1
    y[1]:item() == dist.get_rank() + 1  --> true
    local sizes = {}               -- here two rows to each rank, and two from each
    for i = 1, dist.get_world_size() do sizes[i] = 2 end
    local rows = dm.ones(2 * #sizes, 3)
    dist.all_to_all_single(dm.empty_like(rows), rows, sizes, sizes):eq(rows):all():item()  --> true
    dist.destroy_process_group()]],
  ["distributed.barrier"] = [[
    local dist = dm.distributed; dist.init_process_group()
    if dist.get_rank() == 0 then print "rank 0 prepares the data" end
    dist.barrier()                 -- the others wait for it
    dist.destroy_process_group()]],
  ["distributed.broadcast"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local weights = dm.full({2}, dist.get_rank() + 5)
    dist.broadcast(weights, 0)     -- all have those of rank 0
    weights  --> {5, 5}
    dist.destroy_process_group()]],
  ["distributed.broadcast_object"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local config = dist.broadcast_object({lr = 0.1, layers = {64, 64}}, 0)
    config.lr  --> 0.1
    dist.destroy_process_group()]],
  ["distributed.all_to_all"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local mine, theirs = {}, {}
    for i = 1, dist.get_world_size() do mine[i], theirs[i] = dm.full({2}, i), dm.full({2}, 0) end
    dist.all_to_all(theirs, mine)[1]:eq(dist.get_rank() + 1):all():item()  --> true
    dist.destroy_process_group()]],
  ["distributed.reduce_scatter"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local list = {}
    for i = 1, dist.get_world_size() do list[i] = dm.full({3}, i) end
    local sum = dist.reduce_scatter(dm.zeros_like(list[1]), list)
    sum[1]:item() == (dist.get_rank() + 1) * #list  --> true
    dist.destroy_process_group()]],
  ["distributed.P2POp"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local message = dist.P2POp(dist.isend, dm.ones(3), 1, {tag = 2})
    message.peer  --> 1
    dist.destroy_process_group()]],
  ["distributed.batch_isend_irecv"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local rank, n = dist.get_rank(), dist.get_world_size()
    local x, y, list = dm.full({3}, rank), dm.zeros(3), {}
    if n > 1 then                  -- around the ring
      list = {dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, y, (rank - 1) % n)}
    end
    local handles = dist.batch_isend_irecv(list)
    for _, handle in ipairs(handles) do handle:wait() end
    dist.destroy_process_group()]],
  ["distributed.broadcast_object_list"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local list = dist.get_rank() == 0 and {"adam", {lr = 0.1}} or {}
    dist.broadcast_object_list(list, 0)   -- all have the values of rank 0
    list[2].lr  --> 0.1
    dist.destroy_process_group()]],
  ["distributed.gather_object"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local names = dist.gather_object({name = "rank " .. dist.get_rank()}, 0)
    names and names[1].name  --> "rank 0"
    dist.destroy_process_group()]],
  ["distributed.scatter_object_list"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local files = {}
    for i = 1, dist.get_world_size() do files[i] = ("part-%d.csv"):format(i) end
    local mine = dist.scatter_object_list({}, dist.get_rank() == 0 and files or nil, 0)
    mine == files[dist.get_rank() + 1]  --> true
    dist.destroy_process_group()]],
  ["distributed.destroy_process_group"] = [[
    local dist = dm.distributed; dist.init_process_group()
    dist.is_initialized()  --> true
    dist.destroy_process_group()
    dist.is_initialized()  --> false]],
  ["distributed.device"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local model = nn.Linear(2, 1):to(dist.device())   -- a GPU for each rank of a machine, or "cpu"
    dist.destroy_process_group()]],
  ["distributed.gather"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local list = dist.gather(dm.tensor(7), 0)   -- on rank 0 a tensor of each rank, else nil
    if dist.get_rank() == 0 then print(#list) end
    dist.destroy_process_group()]],
  ["distributed.get_node_local_rank"] = [[
    local dist = dm.distributed; dist.init_process_group()
    dist.get_node_local_rank() >= 0  --> true
    dist.destroy_process_group()]],
  ["distributed.get_rank"] = [[
    local dist = dm.distributed; dist.init_process_group()
    if dist.get_rank() == 0 then print "one of us prints" end
    local pair = dist.new_group{0}
    dist.get_rank(pair)  --> 0
    dist.destroy_process_group()]],
  ["distributed.get_world_size"] = [[
    local dist = dm.distributed; dist.init_process_group()
    dist.get_world_size() >= 1  --> true
    dist.destroy_process_group()]],
  ["distributed.init_process_group"] = [[
    local dist = dm.distributed; dist.init_process_group()
    print(dist.get_world_size())   -- 4 after `mpirun -n 4 lua5.4 train.lua`, 1 without it
    dist.destroy_process_group()]],
  ["distributed.irecv"] = [[
    local dist = dm.distributed; dist.init_process_group()
    if dist.get_world_size() > 1 and dist.get_rank() == 1 then
      local x = dm.zeros(3)
      local handle = dist.irecv(x, 0)
      handle:wait()   -- now x is what rank 0 has sent
    end
    dist.destroy_process_group()]],
  ["distributed.is_available"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local ok, why = dist.is_available()
    if not ok then print("one process only: " .. why) end
    dist.destroy_process_group()]],
  ["distributed.is_initialized"] = [[
    local dist = dm.distributed; dist.init_process_group()
    dist.is_initialized()  --> true
    dist.destroy_process_group()]],
  ["distributed.isend"] = [[
    local dist = dm.distributed; dist.init_process_group()
    if dist.get_world_size() > 1 and dist.get_rank() == 0 then
      local handle = dist.isend(dm.ones(3), 1)
      handle:wait{timeout = 60}
    end
    dist.destroy_process_group()]],
  ["distributed.load"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local model = nn.Linear(4, 1)
    dist.save("model.safetensors", {model = model, epoch = 3})
    local rest = dist.load("model.safetensors", {model = model})   -- by any number of ranks
    rest.epoch  --> 3
    dist.destroy_process_group()]],
  ["distributed.new_group"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local group = dist.new_group{0}   -- all ranks call it, with the same list
    if dist.get_rank() == 0 then dist.all_reduce(dm.ones(2), {group = group}) end
    group.ranks  --> {0}
    dist.destroy_process_group()]],
  ["distributed.nn"] = [[
    local dist = dm.distributed; dist.init_process_group()
    dist.nn.all_reduce(dm.ones(2, {requires_grad = true})).requires_grad  --> true
    dist.destroy_process_group()]],
  ["distributed.nn.all_gather"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local x = dm.tensor({1.0, 2}, {requires_grad = true})
    local all = dm.stack(dist.nn.all_gather(x))   -- (ranks, 2)
    all:sum():backward()                          -- all ranks do so
    x.grad[1]:item() == dist.get_world_size()  --> true
    dist.destroy_process_group()]],
  ["distributed.nn.all_reduce"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local x = dm.tensor({3.0}, {requires_grad = true})
    local mean = dist.nn.all_reduce(x, "avg")     -- of all ranks, and with a gradient
    mean:square():sum():backward()                -- all ranks do so
    x.grad  --> {6}
    dist.destroy_process_group()]],
  ["distributed.nn.all_to_all"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local mine, theirs = {}, {}
    for i = 1, dist.get_world_size() do
      mine[i], theirs[i] = dm.full({2}, i), dm.zeros(2, {dtype = "int64"})
    end
    dist.nn.all_to_all(theirs, mine)[1]:eq(dist.get_rank() + 1):all():item()  --> true
    dist.destroy_process_group()]],
  ["distributed.nn.all_to_all_single"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local n = dist.get_world_size()
    local x = dm.ones(n, 3, {requires_grad = true})
    local y = dist.nn.all_to_all_single(dm.empty_like(x), x)   -- a row from each rank
    y:mul(2):sum():backward()
    x.grad[1]  --> {2, 2, 2}
    dist.destroy_process_group()]],
  ["distributed.nn.broadcast"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local x = dm.tensor({dist.get_rank() + 5.0}, {requires_grad = true})
    local y = dist.nn.broadcast(x, 0)
    y  --> {5}
    y:sum():backward()   -- the sum of all gradients on rank 0, zeros on the others
    dist.destroy_process_group()]],
  ["distributed.nn.gather"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local x = dm.tensor({2.0}, {requires_grad = true})
    local list = dist.nn.gather(x, 0)   -- on rank 0; zeros on the others
    dm.stack(list):sum():backward()
    x.grad  --> {1}
    dist.destroy_process_group()]],
  ["distributed.nn.reduce"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local x = dm.tensor({2.0}, {requires_grad = true})
    local y = dist.nn.reduce(x, 0)      -- the sum on rank 0, zeros on the others
    y:sum():backward()
    x.grad  --> {1}
    dist.destroy_process_group()]],
  ["distributed.nn.reduce_scatter"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local list = {}
    for i = 1, dist.get_world_size() do list[i] = dm.full({2}, i + 0.0) end
    local y = dist.nn.reduce_scatter(dm.zeros(2), list, "avg")
    y[1]:item() == dist.get_rank() + 1  --> true
    dist.destroy_process_group()]],
  ["distributed.nn.scatter"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local list = {}
    for i = 1, dist.get_world_size() do list[i] = dm.full({2}, i + 0.0) end
    dist.nn.scatter(list, 0)[1]:item() == dist.get_rank() + 1  --> true
    dist.destroy_process_group()]],
  ["distributed.recv"] = [[
    local dist = dm.distributed; dist.init_process_group()
    if dist.get_world_size() > 1 and dist.get_rank() == 1 then
      print(dist.recv(dm.zeros(3), 0))   -- a tensor of the same shape and dtype
    end
    dist.destroy_process_group()]],
  ["distributed.reduce"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local n = dm.tensor(1)
    dist.reduce(n, 0)   -- the sum, on rank 0 alone
    n:item() == dist.get_world_size()  --> true
    dist.destroy_process_group()]],
  ["distributed.reduce_scatter_tensor"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local parts = dm.ones(dist.get_world_size(), 3)
    local mine = dm.zeros(3)
    dist.reduce_scatter_tensor(mine, parts, "avg")
    mine  --> {1, 1, 1}
    dist.destroy_process_group()]],
  ["distributed.save"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local model = nn.Linear(4, 1)
    local optimizer = optim.ZeroRedundancyOptimizer(model:parameters(), optim.Adam)
    dist.save("model.safetensors", {model = model, optimizer = optimizer})   --> true
    dm.load("model.safetensors").model.weight:equal(model.weight)  --> true
    dist.destroy_process_group()]],
  ["distributed.scatter"] = [[
    local dist = dm.distributed; dist.init_process_group()
    local mine, list = dm.zeros(2)
    if dist.get_rank() == 0 then
      list = {}
      for i = 1, dist.get_world_size() do list[i] = dm.full({2}, 0.5) end
    end
    dist.scatter(mine, list, 0)
    mine  --> {0.5, 0.5}
    dist.destroy_process_group()]],
  ["distributed.send"] = [[
    local dist = dm.distributed; dist.init_process_group()
    if dist.get_world_size() > 1 and dist.get_rank() == 0 then
      dist.send(dm.ones(3), 1)   -- rank 1 calls dist.recv(x, 0)
    end
    dist.destroy_process_group()]],
  ["distributed.should_stop"] = [[
    local dist = dm.distributed; dist.init_process_group()
    dist.should_stop()  --> false
    dist.destroy_process_group()]],
  ["distributed.stats"] = [[
    local dist = dm.distributed; dist.init_process_group()
    dist.barrier()
    dist.stats().calls  --> 1
    dist.destroy_process_group()]],
  ["distributions.Bernoulli"] = [[
    local d = dm.distributions.Bernoulli(0.25)   -- or {logits = x}
    d:log_prob(1):exp()  --> 0.25
    d:enumerate_support()  --> {0, 1}]],
  ["distributions.Beta"] = [[
    local d = dm.distributions.Beta(2, 2)
    d.mean  --> 0.5
    d:log_prob(0.5):exp()  --> 1.5]],
  ["distributions.Binomial"] = [[
    local d = dm.distributions.Binomial(4, 0.5)
    d:log_prob(2):exp()  --> 0.375
    d.mean  --> 2]],
  ["distributions.Categorical"] = [[
    local d = dm.distributions.Categorical{logits = dm.zeros(2, 4)}   -- or {probs = p}
    d:sample().shape  --> {2}
    d:log_prob(dm.tensor{1, 4}):exp()  --> {0.25, 0.25}
    d:entropy():exp()  --> {4, 4}]],
  ["distributions.Cauchy"] = [[
    local d = dm.distributions.Cauchy(0, 1)
    d:cdf(1)  --> 0.75
    d:icdf(0.5)  --> 0]],
  ["distributions.Chi2"] = [[
    local d = dm.distributions.Chi2(3)   -- degrees of freedom
    d.mean  --> 3
    d.variance  --> 6]],
  ["distributions.ContinuousBernoulli"] = [[
    local d = dm.distributions.ContinuousBernoulli(0.8)   -- shades from 0 to 1
    d.mean  --> 0.6120
    d:cdf(0.5)  --> 0.3333]],
  ["distributions.Dirichlet"] = [[
    local d = dm.distributions.Dirichlet(dm.tensor{1.0, 3.0})
    d.mean  --> {0.25, 0.75}
    d:sample():sum()  --> 1]],
  ["distributions.Exponential"] = [[
    local d = dm.distributions.Exponential(2)   -- its rate
    d.mean  --> 0.5
    d:sample(2, 3).shape  --> {2, 3}]],
  ["distributions.FisherSnedecor"] = [[
    local d = dm.distributions.FisherSnedecor(4, 6)   -- degrees of freedom
    d.mean  --> 1.5]],
  ["distributions.Gamma"] = [[
    local d = dm.distributions.Gamma(2, 4)   -- concentration, rate
    d.mean  --> 0.5
    d.variance  --> 0.125]],
  ["distributions.GeneralizedPareto"] = [[
    local d = dm.distributions.GeneralizedPareto(0, 1, 0.5)   -- loc, scale, concentration
    d.mean  --> 2
    d:cdf(2)  --> 0.75]],
  ["distributions.Geometric"] = [[
    local d = dm.distributions.Geometric(0.25)   -- failures before the first success
    d.mean  --> 3
    d:log_prob(0):exp()  --> 0.25]],
  ["distributions.Gumbel"] = [[
    local d = dm.distributions.Gumbel(0, 1)   -- the most likely number, and the spread
    d:cdf(0)  --> 0.3679
    d.mean  --> 0.5772]],
  ["distributions.HalfCauchy"] = [[
    local d = dm.distributions.HalfCauchy(2)   -- the size of a Cauchy(0, 2)'s number
    d:cdf(2)  --> 0.5]],
  ["distributions.HalfNormal"] = [[
    local d = dm.distributions.HalfNormal(2)   -- the size of a Normal(0, 2)'s number
    d:sample(100):min():item() >= 0  --> true
    d.variance  --> 1.4535]],
  ["distributions.Independent"] = [[
    local d = dm.distributions.Independent(dm.distributions.Normal(dm.zeros(3), 1), 1)
    d.event_shape  --> {3}
    d:log_prob(dm.zeros(3))  --> -2.7568]],
  ["distributions.InverseGamma"] = [[
    local d = dm.distributions.InverseGamma(3, 4)   -- concentration, rate
    d.mean  --> 2
    d.mode  --> 1]],
  ["distributions.Kumaraswamy"] = [[
    local d = dm.distributions.Kumaraswamy(2, 1)
    d:cdf(0.5)  --> 0.25]],
  ["distributions.Laplace"] = [[
    local d = dm.distributions.Laplace(0, 1)
    d:log_prob(0):exp()  --> 0.5
    d.variance  --> 2]],
  ["distributions.LogNormal"] = [[
    local d = dm.distributions.LogNormal(0, 1)   -- e to the power of a Normal's number
    d:cdf(1)  --> 0.5
    d:sample(3).shape  --> {3}]],
  ["distributions.LogisticNormal"] = [[
    local d = dm.distributions.LogisticNormal(dm.zeros(3), 1)
    d:sample(5).shape  --> {5, 4}]],
  ["distributions.LowRankMultivariateNormal"] = [[
    local d = dm.distributions.LowRankMultivariateNormal(dm.zeros(2), dm.ones(2, 1), dm.ones(2))
    d.covariance_matrix  --> {{2, 1}, {1, 2}}
    d:log_prob(dm.zeros(2))  --> -2.3872]],
  ["distributions.MixtureSameFamily"] = [[
    local D = dm.distributions
    local d = D.MixtureSameFamily(D.Categorical(dm.tensor{0.25, 0.75}),
      D.Normal(dm.tensor{-2.0, 2.0}, 1))
    d.mean  --> 1
    d:log_prob(0)  --> -2.919]],
  ["distributions.Multinomial"] = [[
    local d = dm.distributions.Multinomial(10, dm.tensor{0.2, 0.8})
    d.mean  --> {2, 8}
    d:sample():sum()  --> 10]],
  ["distributions.MultivariateNormal"] = [[
    local d = dm.distributions.MultivariateNormal(dm.zeros(2), dm.eye(2))
    d:sample(5).shape  --> {5, 2}
    d:log_prob(dm.zeros(2))  --> -1.8379]],
  ["distributions.NegativeBinomial"] = [[
    local d = dm.distributions.NegativeBinomial(3, 0.5)   -- successes before 3 failures
    d.mean  --> 3
    d:log_prob(0):exp()  --> 0.125]],
  ["distributions.Normal"] = [[
    local d = dm.distributions.Normal(0, 1)
    d:sample(3).shape  --> {3}
    d:log_prob(0)  --> -0.9189
    d:cdf(0)  --> 0.5]],
  ["distributions.OneHotCategorical"] = [[
    local d = dm.distributions.OneHotCategorical(dm.tensor{0.0, 1.0, 0.0})
    d:sample()  --> {0, 1, 0}]],
  ["distributions.OneHotCategoricalStraightThrough"] = [[
    local logits = dm.zeros(3, {requires_grad = true})
    local d = dm.distributions.OneHotCategoricalStraightThrough{logits = logits}
    local x = d:rsample()
    x:sum()  --> 1
    x.requires_grad  --> true]],
  ["distributions.Pareto"] = [[
    local d = dm.distributions.Pareto(1, 3)   -- least number, how fast their share falls
    d.mean  --> 1.5
    d:cdf(2)  --> 0.875]],
  ["distributions.Poisson"] = [[
    local d = dm.distributions.Poisson(3)
    d.variance  --> 3
    d:log_prob(0)  --> -3]],
  ["distributions.RelaxedBernoulli"] = [[
    local d = dm.distributions.RelaxedBernoulli(0.5, {logits = dm.zeros(3)})   -- temperature
    d:rsample(2).shape  --> {2, 3}]],
  ["distributions.RelaxedOneHotCategorical"] = [[
    local d = dm.distributions.RelaxedOneHotCategorical(0.5, {logits = dm.zeros(3)})
    d:rsample():sum()  --> 1]],
  ["distributions.StudentT"] = [[
    local d = dm.distributions.StudentT(4)   -- degrees of freedom
    d.variance  --> 2
    d:sample(3).shape  --> {3}]],
  ["distributions.TransformedDistribution"] = [[
    local D = dm.distributions
    local d = D.TransformedDistribution(D.Normal(0, 1), D.transforms.TanhTransform{cache_size = 1})
    local x = d:rsample()
    d:log_prob(0)  --> -0.9189
    d:cdf(0)  --> 0.5]],
  ["distributions.Uniform"] = [[
    local d = dm.distributions.Uniform(0, 4)
    d:cdf(1)  --> 0.25
    d.mean  --> 2]],
  ["distributions.VonMises"] = [[
    local d = dm.distributions.VonMises(0, 4)   -- an angle, and how near to it
    d:log_prob(0)  --> -0.2625
    d:sample(2).shape  --> {2}]],
  ["distributions.Weibull"] = [[
    local d = dm.distributions.Weibull(2, 1)   -- scale, concentration
    d.mean  --> 2
    d:cdf(2)  --> 0.6321]],
  ["distributions.constraints"] = [[
    dm.distributions.constraints.positive:check(dm.tensor{2, -1})  --> {true, false}
    tostring(dm.distributions.Normal(0, 1).support)  --> "a real number"]],
  ["distributions.is_distribution"] = [[
    dm.distributions.is_distribution(dm.distributions.Normal(0, 1))  --> true
    dm.distributions.is_distribution(dm.ones(1))  --> false]],
  ["distributions.kl_divergence"] = [[
    local D = dm.distributions
    D.kl_divergence(D.Normal(1, 1), D.Normal(0, 1))  --> 0.5]],
  ["distributions.register_kl"] = [[
    local D = dm.distributions
    D.register_kl(D.Uniform, D.Exponential, function(p, q)
      return q.rate * p.mean - ((p.high - p.low) * q.rate):log()
    end)
    D.kl_divergence(D.Uniform(0, 1), D.Exponential(1))  --> 0.5]],
  ["distributions.set_default_validate_args"] = [[
    dm.distributions.set_default_validate_args(true)   -- false: faster, and unchecked
    pcall(dm.distributions.Normal, 0, -1)  --> false]],
  ["distributions.transforms"] = [[
    local T = dm.distributions.transforms
    local t = T.SigmoidTransform().inv   -- log(x / (1 - x))
    t.domain:check(dm.tensor{0.5, 2.0})  --> {true, false}]],
  ["distributions.transforms.AbsTransform"] = [[
    local t = dm.distributions.transforms.AbsTransform()
    t(dm.tensor{-2.0, 3.0})  --> {2, 3}]],
  ["distributions.transforms.AffineTransform"] = [[
    local t = dm.distributions.transforms.AffineTransform(1, 2)   -- 1 + 2 x
    t(dm.tensor{3.0})  --> {7}
    t.inv(dm.tensor{7.0})  --> {3}]],
  ["distributions.transforms.ComposeTransform"] = [[
    local T = dm.distributions.transforms
    local t = T.ComposeTransform{T.ExpTransform(), T.AffineTransform(1, 2)}   -- 1 + 2 e^x
    t(dm.tensor{0.0})  --> {3}]],
  ["distributions.transforms.ExpTransform"] = [[
    local t = dm.distributions.transforms.ExpTransform()
    local x = dm.tensor{0.0, 1.0}
    t(x)  --> {1, 2.7183}
    t:log_abs_det_jacobian(x, t(x))  --> {0, 1}]],
  ["distributions.transforms.IndependentTransform"] = [[
    local T = dm.distributions.transforms
    local t = T.IndependentTransform(T.ExpTransform(), 1)   -- of vectors
    local x = dm.tensor{1.0, 2.0}
    t:log_abs_det_jacobian(x, t(x))  --> 3]],
  ["distributions.transforms.LowerCholeskyTransform"] = [[
    local t = dm.distributions.transforms.LowerCholeskyTransform()
    t(dm.tensor{{0.0, 5.0}, {2.0, 0.0}})  --> {{1, 0}, {2, 1}}]],
  ["distributions.transforms.PowerTransform"] = [[
    local t = dm.distributions.transforms.PowerTransform(2)
    t.inv(dm.tensor{9.0})  --> {3}]],
  ["distributions.transforms.ReshapeTransform"] = [[
    local t = dm.distributions.transforms.ReshapeTransform({4}, {2, 2})
    t(dm.ones(3, 4)).shape  --> {3, 2, 2}]],
  ["distributions.transforms.SigmoidTransform"] = [[
    local t = dm.distributions.transforms.SigmoidTransform()
    t(dm.tensor{0.0})  --> {0.5}
    t.inv(dm.tensor{0.75})  --> {1.0986}]],
  ["distributions.transforms.SoftmaxTransform"] = [[
    local t = dm.distributions.transforms.SoftmaxTransform()
    t(dm.tensor{1.0, 1.0})  --> {0.5, 0.5}]],
  ["distributions.transforms.SoftplusTransform"] = [[
    local t = dm.distributions.transforms.SoftplusTransform()
    t(dm.tensor{0.0})  --> {0.6931}]],
  ["distributions.transforms.StickBreakingTransform"] = [[
    local t = dm.distributions.transforms.StickBreakingTransform()
    t(dm.zeros(3))  --> {0.25, 0.25, 0.25, 0.25}]],
  ["distributions.transforms.TanhTransform"] = [[
    local t = dm.distributions.transforms.TanhTransform{cache_size = 1}
    local x = dm.tensor{40.0}
    t.inv(t(x))  --> {40}]],
  ["distributions.transforms.is_transform"] = [[
    local T = dm.distributions.transforms
    T.is_transform(T.ExpTransform())  --> true
    T.is_transform(dm.ones(1))  --> false]],
  ["fft.fftfreq"] = [[
    dm.fft.fftfreq(4)  --> {0, 0.25, -0.5, -0.25}
    dm.fft.fftfreq(4, {d = 0.25})  --> {0, 1, -2, -1}]],
  ["fft.fftshift"] = [[
    dm.fft.fftshift(dm.tensor{0, 1, 2, -2, -1})  --> {-2, -1, 0, 1, 2}]],
  ["fft.ifftshift"] = [[
    dm.fft.ifftshift(dm.tensor{-2, -1, 0, 1, 2})  --> {0, 1, 2, -2, -1}]],
  ["fft.rfftfreq"] = [[
    dm.fft.rfftfreq(4)  --> {0, 0.25, 0.5}]],
  float16 = [[
    dm.zeros(2, {dtype = dm.float16}).dtype  --> "float16"
    dm.finfo(dm.float16).max  --> 65504]],
  float32 = [[
    dm.zeros(2, {dtype = dm.float32}).dtype  --> "float32"
    dm.finfo(dm.float32).max  --> 3.4028e38]],
  float64 = [[
    dm.zeros(2, {dtype = dm.float64}).dtype  --> "float64"
    dm.finfo(dm.float64).max  --> 1.7977e308]],
  from_pretrained = [[
    local folder = os.tmpname(); os.remove(folder)
    assert(dm.save_pretrained(nn.Linear(4, 2), folder))
    local model = assert(dm.from_pretrained(folder, {model = nn.Linear(4, 2)}))
    model.training  --> false]],
  ["func.functional_call"] = [[
    local layer = nn.Linear(2, 1)
    local other = {weight = dm.tensor{{1.0, 2.0}}, bias = dm.zeros(1)}
    dm.func.functional_call(layer, other, dm.tensor{{3.0, 4.0}})  --> {{11}}]],
  ["func.grad"] = [[
    local cube = function(x) return x ^ 3 end
    dm.func.grad(cube)(dm.tensor(2.0))  --> 12
    dm.func.grad(dm.func.grad(cube))(dm.tensor(2.0))  --> 12]],
  ["func.grad_and_value"] = [[
    local slope, y = dm.func.grad_and_value(function(x) return x ^ 2 end)(dm.tensor(3.0))
    slope  --> 6
    y  --> 9]],
  ["func.hessian"] = [[
    local f = function(x) return x[1] ^ 2 * x[2] end
    dm.func.hessian(f)(dm.tensor{1.0, 2.0})  --> {{4, 2}, {2, 0}}]],
  ["func.jacfwd"] = [[
    local f = function(x) return dm.stack({x[1] * x[2], x[1], x[2]}, 1) end
    dm.func.jacfwd(f)(dm.tensor{2.0, 3.0})  --> {{3, 2}, {1, 0}, {0, 1}}]],
  ["func.jacrev"] = [[
    dm.func.jacrev(function(x) return x ^ 2 end)(dm.tensor{1.0, 2.0})  --> {{2, 0}, {0, 4}}]],
  ["func.jvp"] = [[
    local x, direction = dm.tensor{1.0, 2.0}, dm.tensor{1.0, 0.0}
    local y, slope = dm.func.jvp(function(x) return x ^ 2 end, {x}, {direction})
    y  --> {1, 4}
    slope  --> {2, 0}]],
  ["func.stack_module_state"] = [[
    local models = {nn.Linear(3, 2), nn.Linear(3, 2)}
    local parameters = dm.func.stack_module_state(models)
    parameters.weight.shape  --> {2, 2, 3}]],
  ["func.vjp"] = [[
    local y, pull = dm.func.vjp(function(x) return x ^ 2 end, dm.tensor{1.0, 2.0})
    y  --> {1, 4}
    pull(dm.tensor{1.0, 1.0})  --> {2, 4}]],
  ["func.vmap"] = [[
    local dot = function(a, b) return a:dot(b) end
    dm.func.vmap(dot)(dm.ones(3, 4), dm.ones(3, 4))  --> {4, 4, 4}
    dm.func.vmap(dot, {1, false})(dm.ones(3, 4), dm.ones(4))  --> {4, 4, 4}]],
  help = [[
    dm.help "conv2d"              -- an op, its options, autocast's policy
    dm.help(nn.Linear(4, 2))      -- what an object is
    dm.help "guide indexing"      -- a guide; dm.help "learning rate" searches]],
  int16 = [[
    dm.zeros(2, {dtype = dm.int16}).dtype  --> "int16"
    dm.iinfo(dm.int16).max  --> 32767]],
  int32 = [[
    dm.zeros(2, {dtype = dm.int32}).dtype  --> "int32"
    dm.iinfo(dm.int32).max  --> 2147483647]],
  int64 = [[
    dm.zeros(2, {dtype = dm.int64}).dtype  --> "int64"
    dm.iinfo(dm.int64).max  --> math.maxinteger]],
  int8 = [[
    dm.zeros(2, {dtype = dm.int8}).dtype  --> "int8"
    dm.iinfo(dm.int8).max  --> 127]],
  load = [[
    local path, model = os.tmpname(), nn.Linear(4, 2)
    assert(dm.save(path, {model = model:state_dict()}))
    local checkpoint = assert(dm.load(path))   -- also .safetensors, .pt, .npy, .npz
    model:load_state_dict(checkpoint.model)]],
  logspace = [[
    dm.logspace(0, 3, 4)  --> {1, 10, 100, 1000}
    dm.logspace(0, 3, 4, {base = 2})  --> {1, 2, 4, 8}]],
  make_grid = [[
    dm.make_grid(dm.rand(6, 3, 8, 8), {nrow = 3, padding = 2}).shape  --> {3, 22, 32}]],
  mem_get_info = [[
    local free, total = dm.mem_get_info "cpu"
    if free then print(free // 2 ^ 20 .. " MiB of " .. total // 2 ^ 20) end]],
  memory_summary = [[
    local x = dm.ones(1000)
    print(dm.memory_summary("cpu", {abbreviated = true}))]],
  meshgrid = [[
    local rows, columns = dm.meshgrid(dm.tensor{1, 2}, dm.tensor{5, 6, 7})
    rows  --> {{1, 1, 1}, {2, 2, 2}}
    columns  --> {{5, 6, 7}, {5, 6, 7}}]],
  ["jupyter.clear"] = [[
    -- in a loop of a cell: the next drawing takes the place of this one
    dm.jupyter.clear{wait = true}]],
  ["jupyter.display"] = [[
    local chart = dm.jupyter.display(dm.plot.lines({3, 2, 1}))
    chart:update(dm.plot.lines({3, 2, 1, 0.5}))]],
  ["jupyter.is_output"] = [[
    dm.jupyter.is_output(dm.ones(2))  --> false]],
  ["jupyter.is_running"] = [[
    dm.jupyter.is_running()  --> false]],
  ["metrics.AUROC"] = [[
    local auroc = dm.metrics.AUROC()
    auroc:update(dm.tensor{0.9, 0.4, 0.6, 0.1}, dm.tensor{1, 1, 0, 0})
    auroc:compute()  --> 0.75]],
  ["metrics.Accuracy"] = [[
    local accuracy = dm.metrics.Accuracy()
    accuracy:update(dm.tensor{{0.1, 0.9}, {0.8, 0.2}}, dm.tensor{2, 2})
    accuracy:compute()  --> 0.5]],
  ["metrics.ConfusionMatrix"] = [[
    local matrix = dm.metrics.ConfusionMatrix(2, {names = {"cat", "dog"}})
    matrix:update(dm.tensor{1, 2, 2}, dm.tensor{1, 1, 2})   -- predictions, labels
    matrix:compute()  --> {{1, 1}, {0, 1}}
    print(matrix)]],
  ["metrics.F1Score"] = [[
    local f1 = dm.metrics.F1Score(2, {average = "none"})
    f1:update(dm.tensor{1, 2, 2}, dm.tensor{1, 1, 2})   -- predictions, labels
    f1:compute()  --> {0.6667, 0.6667}]],
  ["metrics.Mean"] = [[
    local mean = dm.metrics.Mean()
    mean:update(1.0)
    mean:update(2.0, 3)   -- of 3 samples
    mean:compute()  --> 1.75]],
  ["metrics.Perplexity"] = [[
    local perplexity = dm.metrics.Perplexity()
    local scores, y = dm.zeros(2, 5, 10), dm.ones(2, 5, {dtype = "int64"})
    perplexity:update(scores, y)   -- 10 tokens, all as likely
    perplexity:compute()  --> 10]],
  ["metrics.Precision"] = [[
    local precision = dm.metrics.Precision(2, {average = "none"})
    precision:update(dm.tensor{1, 2, 2}, dm.tensor{1, 1, 2})   -- predictions, labels
    precision:compute()  --> {1, 0.5}]],
  ["metrics.Recall"] = [[
    local recall = dm.metrics.Recall(2, {average = "none"})
    recall:update(dm.tensor{1, 2, 2}, dm.tensor{1, 1, 2})   -- predictions, labels
    recall:compute()  --> {0.5, 1}]],
  ops = [[
    local names = {}
    for _, row in ipairs(dm.ops()) do names[row.name] = row.doc end
    names.relu  --> "max(x, 0)"]],
  ["optim.ASGD"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.ASGD({w}, {lr = 0.1, t0 = 100})
    w:square():sum():backward(); optimizer:step()
    w  --> {0.8, 1.6}]],
  ["optim.Adadelta"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.Adadelta({w}, {rho = 0.9})   -- needs no rate of its own
    for _ = 1, 3 do optimizer:zero_grad(); w:square():sum():backward(); optimizer:step() end
    w:square():sum():item() < 5  --> true]],
  ["optim.Adafactor"] = [[
    local model = nn.Linear(64, 32)
    local optimizer = optim.Adafactor(model:parameters(), {lr = 0.01})
    model(dm.ones(4, 64)):sum():backward(); optimizer:step()
    optimizer.state[model.weight].row_var.shape  --> {32, 1}]],
  ["optim.Adagrad"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.Adagrad({w}, {lr = 0.5})
    w:square():sum():backward(); optimizer:step()
    w  --> {0.5, 1.5}]],
  ["optim.Adam"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.Adam({w}, {lr = 0.1, betas = {0.9, 0.99}})
    w:square():sum():backward(); optimizer:step()
    w  --> {0.9, 1.9}]],
  ["optim.AdamW"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.AdamW({w}, {lr = 0.1, weight_decay = 1})   -- decays w itself
    w:square():sum():backward(); optimizer:step()
    w  --> {0.8, 1.7}]],
  ["optim.Adamax"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.Adamax({w}, {lr = 0.1})
    w:square():sum():backward(); optimizer:step()
    w  --> {0.9, 1.9}]],
  ["optim.LAMB"] = [[
    local model = nn.Linear(4, 2)
    local optimizer = optim.LAMB(model:parameters(), {lr = 0.01, weight_decay = 0.01})
    model(dm.ones(8, 4)):sum():backward()
    optimizer:step(); optimizer:zero_grad()]],
  ["optim.LBFGS"] = [[
    local w = dm.tensor({5.0, -5.0}, {requires_grad = true})
    local optimizer = optim.LBFGS({w}, {line_search_fn = "strong_wolfe"})
    optimizer:step(function()
      optimizer:zero_grad()
      local loss = ((w - 1) ^ 2):sum(); loss:backward(); return loss
    end)
    w  --> {1, 1}]],
  ["optim.Lion"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.Lion({w}, {lr = 0.1})   -- the sign of the gradient
    w:square():sum():backward(); optimizer:step()
    w  --> {0.9, 1.9}]],
  ["optim.Muon"] = [[
    local layer = nn.Linear(4, 4, {bias = false})   -- for matrices; AdamW takes the rest
    local optimizer = optim.Muon(layer:parameters(), {lr = 0.02, momentum = 0.95})
    layer(dm.randn(8, 4)):pow(2):sum():backward()
    optimizer:step()]],
  ["optim.NAdam"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.NAdam({w}, {lr = 0.1})
    for _ = 1, 3 do optimizer:zero_grad(); w:square():sum():backward(); optimizer:step() end
    w:square():sum():item() < 5  --> true]],
  ["optim.Optimizer"] = [[
    local model = nn.Linear(4, 2)   -- groups of parameters with options of their own:
    local optimizer = optim.SGD({{params = {model.weight}, weight_decay = 0.01},
      {params = {model.bias}}}, {lr = 0.1})
    optimizer.param_groups[1].weight_decay  --> 0.01
    optimizer.param_groups[2].lr  --> 0.1
    local norm   -- of the gradients at each step
    local hook = optimizer:register_step_pre_hook(function()
      norm = nn.utils.clip_grad_norm_(model:parameters(), 1)
    end)
    model(dm.ones(1, 4)):sum():backward(); optimizer:step(); hook:remove()
    norm  --> 3.1623]],
  ["optim.RAdam"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.RAdam({w}, {lr = 0.1})
    w:square():sum():backward(); optimizer:step()
    w  --> {0.8, 1.6}]],
  ["optim.RMSprop"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.RMSprop({w}, {lr = 0.1, alpha = 0.75})
    w:square():sum():backward(); optimizer:step()
    w  --> {0.8, 1.8}]],
  ["optim.Rprop"] = [[
    local w = dm.tensor({1.0, 2.0}, {requires_grad = true})
    local optimizer = optim.Rprop({w}, {lr = 0.1})
    w:square():sum():backward(); optimizer:step()
    w  --> {0.9, 1.9}]],
  ["optim.SGD"] = [[
    local w = dm.ones(2, {requires_grad = true})
    local optimizer = optim.SGD({w}, {lr = 0.1, momentum = 0.9})   -- or model:parameters()
    w:sum():backward(); optimizer:step()
    w  --> {0.9, 0.9}]],
  ["optim.ZeroRedundancyOptimizer"] = [[
    dm.distributed.init_process_group()
    local model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1, {bias = false}))
    local optimizer = optim.ZeroRedundancyOptimizer(model:parameters(),
      {optimizer_class = optim.Adam, lr = 0.01})   -- each rank keeps its share of the state
    model(dm.ones(2, 4)):sum():backward(); optimizer:step()
    optimizer:consolidate_state_dict()             -- to rank 0, which may save it
    optimizer:state_dict().state[1].exp_avg.shape  --> {1, 4}
    optimizer = optim.ZeroRedundancyOptimizer(model:parameters(),
      {optimizer_class = optim.SGD, stage = 2})    -- and its share of the gradients
    optimizer.stage  --> 2
    dm.distributed.destroy_process_group()]],
  ["optim.lr_scheduler"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ = 1, 5 do optimizer:step(); scheduler:step() end
    optimizer.param_groups[1].lr  --> 0.5]],
  ["optim.lr_scheduler.ChainedScheduler"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local a = optim.lr_scheduler.ConstantLR(optimizer, 0.1)
    local b = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    local schedule = optim.lr_scheduler.ChainedScheduler{a, b}   -- both factors
    for _ = 1, 2 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {0.025}]],
  ["optim.lr_scheduler.ConstantLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local schedule = optim.lr_scheduler.ConstantLR(optimizer, {factor = 0.5})
    for _ = 1, 3 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {0.5}]],
  ["optim.lr_scheduler.CosineAnnealingLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, {T_max = 10})
    for _ = 1, 5 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {0.5}]],
  ["optim.lr_scheduler.CosineAnnealingWarmRestarts"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local schedule = optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)
    for _ = 1, 10 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {1}]],
  ["optim.lr_scheduler.CyclicLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1, momentum = 0.9})
    local schedule = optim.lr_scheduler.CyclicLR(optimizer, 0.1, 1, {step_size_up = 5})
    for _ = 1, 5 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {1}]],
  ["optim.lr_scheduler.ExponentialLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local schedule = optim.lr_scheduler.ExponentialLR(optimizer, {gamma = 0.5})
    for _ = 1, 3 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {0.125}]],
  ["optim.lr_scheduler.LambdaLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local function inverse(step) return 1 / (1 + step) end
    local schedule = optim.lr_scheduler.LambdaLR(optimizer, inverse)
    for _ = 1, 3 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {0.25}]],
  ["optim.lr_scheduler.LinearLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local schedule = optim.lr_scheduler.LinearLR(optimizer, 0.1, {total_iters = 10})
    for _ = 1, 10 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {1}]],
  ["optim.lr_scheduler.MultiStepLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local schedule = optim.lr_scheduler.MultiStepLR(optimizer, {2, 4}, {gamma = 0.1})
    for _ = 1, 4 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {0.01}]],
  ["optim.lr_scheduler.MultiplicativeLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local function half() return 0.5 end
    local schedule = optim.lr_scheduler.MultiplicativeLR(optimizer, half)
    for _ = 1, 2 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {0.25}]],
  ["optim.lr_scheduler.OneCycleLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 0.1, momentum = 0.9})
    local schedule = optim.lr_scheduler.OneCycleLR(optimizer, 1, {total_steps = 10})
    for _ = 1, 2 do optimizer:step(); schedule:step() end   -- pct_start = 0.3 of the steps
    schedule:get_last_lr()  --> {1}]],
  ["optim.lr_scheduler.PolynomialLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local schedule = optim.lr_scheduler.PolynomialLR(optimizer, 4, {power = 2})
    for _ = 1, 2 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {0.25}]],
  ["optim.lr_scheduler.ReduceLROnPlateau"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local schedule = optim.lr_scheduler.ReduceLROnPlateau(optimizer, {patience = 1})
    for _, valid_loss in ipairs{0.5, 0.6, 0.6} do schedule:step(valid_loss) end
    optimizer.param_groups[1].lr  --> 0.1]],
  ["optim.lr_scheduler.SequentialLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local warm_up = optim.lr_scheduler.LinearLR(optimizer, 0.1, {total_iters = 5})
    local fall = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    local schedule = optim.lr_scheduler.SequentialLR(optimizer, {warm_up, fall}, {5})
    for _ = 1, 6 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {0.5}]],
  ["optim.lr_scheduler.StepLR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local schedule = optim.lr_scheduler.StepLR(optimizer, {step_size = 2, gamma = 0.1})
    for _ = 1, 4 do optimizer:step(); schedule:step() end
    schedule:get_last_lr()  --> {0.01}]],
  ["optim.lr_scheduler.get_last_lr"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 0.1})
    local schedule = optim.lr_scheduler.StepLR(optimizer, 10)
    schedule:get_last_lr()  --> {0.1}]],
  ["optim.swa_utils"] = [[
    local model = nn.Linear(4, 2)
    local mean = optim.swa_utils.AveragedModel(model, {decay = 0.999})   -- EMA
    mean:update_parameters(model)   -- after each optimizer:step()
    mean(dm.ones(3, 4)).shape  --> {3, 2}]],
  ["optim.swa_utils.AveragedModel"] = [[
    local model = nn.Linear(1, 1, {bias = false})
    local mean = optim.swa_utils.AveragedModel(model)   -- {decay = 0.99} for an EMA
    for i = 1, 3 do nn.init.constant_(model.weight, i); mean:update_parameters(model) end
    mean.module.weight  --> {{2}}]],
  ["optim.swa_utils.SWALR"] = [[
    local optimizer = optim.SGD(nn.Linear(4, 2):parameters(), {lr = 1})
    local scheduler = optim.swa_utils.SWALR(optimizer, {swa_lr = 0.1, anneal_epochs = 5})
    for _ = 1, 5 do optimizer:step(); scheduler:step() end
    scheduler:get_last_lr()  --> {0.1}]],
  ["optim.swa_utils.get_ema_multi_avg_fn"] = [[
    local average = optim.swa_utils.get_ema_multi_avg_fn(0.9)
    local mean = optim.swa_utils.AveragedModel(nn.Linear(4, 2), {multi_avg_fn = average})]],
  ["optim.swa_utils.get_swa_multi_avg_fn"] = [[
    local means = {dm.tensor{1.0}}   -- of 3 models; the fourth has 5
    optim.swa_utils.get_swa_multi_avg_fn()(means, {dm.tensor{5.0}}, 3)
    means[1]  --> {2}]],
  ["optim.swa_utils.update_bn"] = [[
    local model = nn.Sequential{nn.BatchNorm1d(2)}
    local x = data.TensorDataset(dm.tensor{{1.0, 2}, {3, 2}})
    optim.swa_utils.update_bn(data.DataLoader(x, {batch_size = 2}), model)
    model[1].running_mean  --> {2, 2}]],
  ["plot.bars"] = [[
    local figure = dm.plot.bars({"cat", "dog"}, {0.9, 0.7}, {ylabel = "recall"})
    print(figure)   -- draws in the terminal; figure:save "recall.svg"]],
  ["plot.confusion"] = [[
    local counts = {{8, 2}, {1, 9}}   -- rows are labels, columns predictions
    local figure = dm.plot.confusion(counts, {classes = {"cat", "dog"}, normalize = true})
    print(figure)]],
  ["plot.grid"] = [[
    local a, b = dm.plot.lines{3, 2, 1}, dm.plot.bars{cat = 2, dog = 1}
    local figure = dm.plot.grid({a, b}, {columns = 2})
    print(figure)]],
  ["plot.heatmap"] = [[
    local figure = dm.plot.heatmap(dm.eye(3), {labels = {"a", "b", "c"}})
    print(figure)]],
  ["plot.hist"] = [[
    local figure = dm.plot.hist(dm.tensor{1, 1, 2, 4}, {bins = 3})
    figure.counts  --> {2, 1, 1}
    figure.edges  --> {1, 2, 3, 4}]],
  ["plot.image"] = [[
    local figure = dm.plot.image(dm.rand(3, 16, 16), {title = "noise"})
    figure:save(os.tmpname() .. ".svg")  --> true]],
  ["plot.images"] = [[
    local figure = dm.plot.images(dm.rand(4, 1, 8, 8), {columns = 2})
    print(figure)]],
  ["plot.lines"] = [[
    local losses = {train = {1, 0.5, 0.3}, valid = {1, 0.7, 0.6}}
    local figure = dm.plot.lines(losses, {title = "loss", logy = true})
    print(figure)   -- draws in the terminal; figure:save "loss.svg"]],
  ["plot.lr_finder"] = [[
    local model, x = nn.Linear(4, 2), dm.randn(32, 4)
    local found = dm.plot.lr_finder{model = model, loss = nn.MSELoss(), steps = 20,
      optimizer = optim.SGD(model:parameters(), {lr = 0.1}),
      loader = data.DataLoader(data.TensorDataset(x, x:narrow(2, 1, 2)), {batch_size = 8})}
    print(found.suggestion)   -- print(found) draws the losses]],
  ["plot.show"] = [[
    dm.plot.show(dm.plot.lines{3, 2, 1.5})   -- the same as dm.show]],
  ["profiler.ProfilerActivity"] = [[
    dm.profiler.ProfilerActivity.CPU  --> "cpu"
    dm.profiler.profile{activities = {dm.profiler.ProfilerActivity.CPU}}:stop()]],
  ["profiler.measure"] = [[
    local x = dm.ones(256, 256)
    local m = dm.profiler.measure(function() return x:mm(x) end)
    print(m.seconds, m.peak_bytes)   -- the time, and the most memory held
    m[1].shape  --> {256, 256}]],
  ["profiler.profile"] = [[
    local profile = dm.profiler.profile{record_shapes = true}
    local y = dm.ones(64, 64):mm(dm.ones(64, 64))
    profile:stop()
    print(profile:key_averages():table{sort_by = "cpu_time_total"})]],
  ["profiler.record_function"] = [[
    local profile = dm.profiler.profile{}
    dm.profiler.record_function("my part", function() return dm.ones(3):sum() end)
    profile:stop()
    print(profile)]],
  progress = [[
    for i in dm.progress(3, {desc = "counting"}) do
      dm.progress.set{loss = 1 / i}   -- shown behind the bar
    end]],
  read_image = [[
    local path = os.tmpname()
    assert(dm.save_image(dm.ones(3, 2, 2), path))   -- a PNG
    dm.read_image(path, {mode = "gray"})  --> {{{255, 255}, {255, 255}}}]],
  save = [[
    local path, model = os.tmpname(), nn.Linear(4, 2)
    dm.save(path, {model = model:state_dict(), epoch = 3})  --> true
    dm.load(path).epoch  --> 3]],
  save_image = [[
    local path = os.tmpname()
    dm.save_image(dm.rand(3, 8, 8), path)  --> true
    dm.read_image(path).shape  --> {3, 8, 8}]],
  save_pretrained = [[
    local folder = os.tmpname(); os.remove(folder)
    dm.save_pretrained(nn.Linear(4, 2), folder, {card = "Tells cats from dogs."})  --> true]],
  set_printoptions = [[
    dm.set_printoptions{precision = 2}
    print(dm.tensor{1 / 3})
    dm.set_printoptions{profile = "default"}]],
  show = [[
    dm.show(dm.rand(3, 16, 16))          -- an image, in the terminal
    dm.show(dm.plot.lines{3, 2, 1.5})    -- a figure]],
  ["signal.windows"] = [[
    dm.signal.windows.hann(5)  --> {0, 0.5, 1, 0.5, 0}
    dm.signal.windows.gaussian(5, {std = 1}).shape  --> {5}]],
  ["special.gammainc_"] = [[
    dm.special.gammainc_(dm.ones(1), dm.tensor{1.0})  --> {0.6321}]],
  ["special.gammaincc_"] = [[
    dm.special.gammaincc_(dm.ones(1), dm.tensor{1.0})  --> {0.3679}]],
  ["special.modified_bessel_i0"] = [[
    dm.special.modified_bessel_i0(dm.tensor{0.0, 1})  --> {1, 1.2661}]],
  ["special.modified_bessel_i1"] = [[
    dm.special.modified_bessel_i1(dm.tensor{0.0, 1})  --> {0, 0.5652}]],
  ["text.ByteTokenizer"] = [[
    local tokens = dm.text.ByteTokenizer()
    #tokens  --> 256
    tokens:encode "AB"  --> {66, 67}]],
  ["text.CharTokenizer"] = [[
    local tokens = dm.text.CharTokenizer "hello"   -- its characters e, h, l, o
    tokens:encode "hole"  --> {2, 4, 3, 1}
    tokens:decode{2, 1, 3, 3, 4}  --> "hello"]],
  ["text.GPT2Tokenizer"] = [[
    local tokens, why = dm.text.GPT2Tokenizer "gpt2"   -- vocab.json and merges.txt
    if tokens then print(tokens:encode "Hello world") else print(why) end]],
  ["text.Windows"] = [[
    local set = dm.text.Windows(dm.arange(10), {length = 3})   -- y is x one further
    local x, y = set:get(2)
    x  --> {2, 3, 4}
    y  --> {3, 4, 5}]],
  ["text.read_tokens"] = [[
    local path = os.tmpname()
    assert(dm.text.write_tokens(path, {5, 6, 7}))
    dm.text.read_tokens(path, {first = 2, count = 2})  --> {6, 7}]],
  ["text.write_tokens"] = [[
    local path = os.tmpname()
    dm.text.write_tokens(path, {1, 2, 3}, {dtype = "uint16"})  --> true]],
  tril_indices = [[
    dm.tril_indices(2, 2)  --> {{1, 2, 2}, {1, 1, 2}}
    local at = dm.tril_indices(3, 3)
    dm.arange(9):reshape(3, 3)[{at[1], at[2]}]  --> {1, 4, 5, 7, 8, 9}]],
  triu_indices = [[
    dm.triu_indices(2, 2)  --> {{1, 1, 2}, {1, 2, 2}}
    dm.triu_indices(3, 3, {offset = 1})  --> {{1, 1, 2}, {2, 3, 3}}]],
  uint8 = [[
    dm.zeros(2, {dtype = dm.uint8}).dtype  --> "uint8"
    dm.iinfo(dm.uint8).max  --> 255]],
  vmap = [[
    local total = dm.vmap(function(x) return x:sum() end)   -- of one sample
    total(dm.tensor{{1, 2}, {3, 4}})  --> {3, 7}]],
}
