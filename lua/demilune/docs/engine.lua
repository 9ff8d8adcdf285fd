-- Functions and methods that are written in C, for dm.help. This file holds comments alone; a block
-- ends with the names that it tells of (docs/source.lua), and docs_spec runs its example.

-- ---- tensors from Lua's values ----

--- Makes a new tensor of a number, a boolean, a table of them (nested as its dims are) or another
--- tensor, whose elements are copied. A ragged table raises. Numbers become the default float
--- dtype, or int64 where all are integers. The dtype may stand before the options.
---@overload fun(data: any, dtype: string, opts?: demilune.TensorOptions): demilune.Tensor
---@param data number|boolean|table|demilune.Tensor
---@param opts? demilune.TensorOptions dtype, device, requires_grad
---@return demilune.Tensor (shape of the table)
---```lua
---local x = dm.tensor({{1, 2}, {3, 4.5}}, {dtype = "float16"})
---x.shape  --> {2, 2}
---dm.tensor{1, 2}.dtype  --> "int64"
---dm.tensor({1, 2}, "float64").dtype  --> "float64"
---dm.tensor{1, 2.5}.dtype  --> "float32"
---```
---@name dm.tensor

--- Tells whether a value is a tensor.
---@param value any
---@return boolean
---```lua
---dm.is_tensor(dm.ones(2))  --> true
---dm.is_tensor{1, 2}  --> false
---```
---@name dm.is_tensor

-- ---- dtypes and indexing ----

--- The name of a dtype, as a string; dm.float16 and "float16" are the same.
---```lua
---local x = dm.zeros(2, 3, {dtype = dm.float16})
---assert(x.dtype == "float16")
---```
---@name dm.float16 dm.bfloat16 dm.float32 dm.float64 dm.int8 dm.int16 dm.int32 dm.int64 dm.uint8
---@name dm.bool

--- In an index it adds a dim of size 1: x (2, 3) gives x[{dm.newaxis, {}, {}}] (1, 2, 3).
---```lua
---local x = dm.ones(2, 3)
---x[{{}, dm.newaxis, {}}].shape  --> {2, 1, 3}
---```
---@name dm.newaxis

-- ---- grad mode, scopes ----

--- A scope in which ops record nothing for the backward pass, until it is closed or with a function
--- for as long as that runs; then it returns the function's results.
---@param fn? function
---@return any a scope for `local _ <close>`, or fn's results
---```lua
---local w = dm.ones(2, {requires_grad = true})
---local y = dm.no_grad(function() return w * 2 end)
---y.requires_grad  --> false
---do local _ <close> = dm.no_grad(); w:mul_(3) end   -- or until the end of a block
---```
---@name dm.no_grad

--- A scope in which ops record for the backward pass, within dm.no_grad.
---@param fn? function
---@return any a scope for `local _ <close>`, or fn's results
---```lua
---local w = dm.ones(2, {requires_grad = true})
---local _ <close> = dm.no_grad()
---dm.enable_grad(function() return w * 2 end).requires_grad  --> true
---```
---@name dm.enable_grad

--- A scope as dm.no_grad, whose tensors can never be recorded later either: ops are a little
--- cheaper in it. With false before fn it is one as dm.enable_grad, which leaves the mode.
---@param fn? boolean|function
---@return any a scope for `local _ <close>`, or fn's results
---```lua
---local model = nn.Linear(3, 2)
---local y = dm.inference_mode(function() return model(dm.ones(1, 3)) end)
---y.requires_grad  --> false
---```
---@name dm.inference_mode

--- Switches recording for the backward pass on or off for the rest of the thread.
---@param on boolean
---```lua
---dm.set_grad_enabled(false)
---(dm.ones(2, {requires_grad = true}) * 2).requires_grad  --> false
---dm.set_grad_enabled(true)
---```
---@name dm.set_grad_enabled

--- Tells whether ops are recorded for the backward pass.
---@return boolean
---```lua
---dm.is_grad_enabled()  --> true
---dm.no_grad(dm.is_grad_enabled)  --> false
---```
---@name dm.is_grad_enabled

--- Tells whether this is within dm.inference_mode.
---@return boolean
---```lua
---dm.is_inference_mode_enabled()  --> false
---dm.inference_mode(dm.is_inference_mode_enabled)  --> true
---```
---@name dm.is_inference_mode_enabled

--- A scope in which new tensors are made on a device.
---@param device demilune.Device such as "cpu" or "cuda:0"
---@param fn? function
---@return any a scope for `local _ <close>`, or fn's results
---```lua
---do
---  local _ <close> = dm.device "cpu"   -- or "cuda:0"
---  dm.zeros(2).device  --> "cpu"
---end
---```
---@name dm.device

--- A scope that frees the tensors made inside when it ends, without waiting for the garbage
--- collector, but for results of its function.
---@param fn? function
---@return any a scope for `local _ <close>`, or fn's results
---```lua
---local total = dm.scope(function()
---  local x = dm.ones(100) * 2   -- freed when the function returns
---  return x:sum()
---end)
---total  --> 200
---```
---@name dm.scope

-- ---- settings ----

--- Gives the device on which new tensors are made.
---@return demilune.Device
---```lua
---dm.ones(2).device == dm.get_default_device()  --> true
---```
---@name dm.get_default_device

--- Gives the float dtype of new tensors that are given none, "float32" at first.
---@return demilune.DType
---```lua
---dm.get_default_dtype()  --> "float32"
---```
---@name dm.get_default_dtype

--- Sets the float dtype of new tensors that are given none.
---@param dtype demilune.DType
---```lua
---dm.set_default_dtype "float64"
---dm.ones(2).dtype  --> "float64"
---dm.set_default_dtype "float32"
---```
---@name dm.set_default_dtype

--- Allows only algorithms that give the same bits in every run, or any. On the CPU all of them do;
--- on a GPU all but the gradients of attention in 16 bits, which cuDNN computes faster, and at any
--- length, where their sums may end in another order each time.
---@param mode boolean false at first
---```lua
---dm.use_deterministic_algorithms(true)
---dm.are_deterministic_algorithms_enabled()  --> true
---dm.use_deterministic_algorithms(false)
---```
---@name dm.use_deterministic_algorithms

--- Tells what dm.use_deterministic_algorithms has set.
---@return boolean
---```lua
---dm.are_deterministic_algorithms_enabled()  --> false
---```
---@name dm.are_deterministic_algorithms_enabled

--- Gives the number of threads that ops on the CPU use.
---@return integer
---```lua
---print(dm.get_num_threads())   -- by default as many as the processor has cores
---```
---@name dm.get_num_threads

--- Sets the number of threads that ops on the CPU use. Results do not depend on it.
---@param n integer
---```lua
---local before = dm.get_num_threads()
---dm.set_num_threads(1)
---dm.get_num_threads()  --> 1
---dm.set_num_threads(before)
---```
---@name dm.set_num_threads

--- Tells the kernels that run on this processor: `variant` is "plain", "neon", "avx2",
--- "avx512", "avx512bf16" or "amx"; `loops`, the vectors of the loops over elements, is "plain",
--- "avx2" or "avx512". A build for another processor (DM_NATIVE) may have but "plain" ones.
---@return table
---```lua
---print(dm.cpu_info().variant)
---```
---@name dm.cpu_info

-- ---- random numbers ----

--- Sets the seed of the generator that ops draw from when they are given none.
---@param seed integer
---```lua
---dm.manual_seed(1)
---local x = dm.rand(3)
---dm.manual_seed(1)
---x:equal(dm.rand(3))  --> true
---```
---@name dm.manual_seed

--- Gives the seed that was set last.
---@return integer
---```lua
---dm.manual_seed(7)
---dm.initial_seed()  --> 7
---```
---@name dm.initial_seed

--- Gives where the generator stands, {seed =, offset =}, for dm.set_rng_state.
---@return table
---```lua
---local state = dm.get_rng_state()
---local x = dm.rand(2)
---dm.set_rng_state(state)
---x:equal(dm.rand(2))  --> true
---```
---@name dm.get_rng_state

--- Puts the generator where dm.get_rng_state found it.
---@param state table {seed =, offset =}
---```lua
---dm.manual_seed(1)
---local state = dm.get_rng_state()   -- {seed =, offset =}
---dm.set_rng_state(state)
---dm.initial_seed()  --> 1
---```
---@name dm.set_rng_state

--- A generator of one's own: g:manual_seed(seed), g:initial_seed(), g:get_state(). It draws the
--- same numbers on every device.
---@param opts? table {device =}
---@return demilune.Generator
---```lua
---local g = dm.Generator():manual_seed(3)
---local x = dm.rand(2, {generator = g})   -- leaves dm's own generator where it is
---x:equal(dm.rand(2, {generator = g:manual_seed(3)}))  --> true
---```
---@name dm.Generator

-- ---- memory and devices ----

--- Bytes that live tensors hold on a device.
---@param device? demilune.Device the one where new tensors are made
---@return integer bytes
---```lua
---local before, x = dm.memory_allocated(), dm.ones(1024)
---dm.memory_allocated() - before >= 4096  --> true
---```
---@name dm.memory_allocated

--- The most bytes that tensors have held at once on a device.
---@param device? demilune.Device
---@return integer bytes
---```lua
---dm.reset_peak_memory_stats()
---local y = dm.ones(1024, 1024):exp():sum()
---print(dm.max_memory_allocated() / 2 ^ 20 .. " MiB")   -- 8 or more
---```
---@name dm.max_memory_allocated

--- Bytes that the allocator holds of a device: those of tensors, and a cache of free ones.
---@param device? demilune.Device
---@return integer bytes
---```lua
---dm.memory_reserved() >= dm.memory_allocated()  --> true
---```
---@name dm.memory_reserved

--- The most bytes that the allocator has held of a device.
---@param device? demilune.Device
---@return integer bytes
---```lua
---print(dm.max_memory_reserved() / 2 ^ 20 .. " MiB")
---```
---@name dm.max_memory_reserved

--- Numbers of the allocator by name: bytes and blocks, now, at most, and in all.
---@param device? demilune.Device
---@return table
---```lua
---local stats = dm.memory_stats()
---print(stats["allocated_bytes.all.peak"])   -- print(stats) shows all
---```
---@name dm.memory_stats

--- Lets dm.max_memory_allocated and dm.max_memory_reserved begin anew from what is held now.
---@param device? demilune.Device
---```lua
---dm.reset_peak_memory_stats()
---dm.max_memory_allocated() == dm.memory_allocated()  --> true
---```
---@name dm.reset_peak_memory_stats

--- Sets the allocator's sums over time to 0; what lives stays counted.
---@param device? demilune.Device
---```lua
---dm.reset_accumulated_memory_stats()
---dm.memory_stats()["allocated_bytes.all.freed"]  --> 0
---```
---@name dm.reset_accumulated_memory_stats

--- Returns cached memory to the system; live tensors stay.
---@param device? demilune.Device
---```lua
---local x = dm.ones(1000, 1000)
---x:free()            -- kept for the next tensor
---dm.empty_cache()    -- given back to the system
---```
---@name dm.empty_cache

--- Waits until all work given to a device is done.
---@param device? demilune.Device
---```lua
---local y = dm.ones(64, 64):mm(dm.ones(64, 64))   -- on a GPU this returns at once
---dm.synchronize()                               -- now it is done
---```
---@name dm.synchronize

-- ---- views ----

--- Gives a list of views of x along dim: each of n elements, the last perhaps fewer, or of the
--- sizes in a table, which sum to the dim's size.
---@param x demilune.Tensor (..., N, ...)
---@param size integer|integer[]
---@param dim? integer 1
---@return demilune.Tensor[]
---```lua
---local a, b = table.unpack(dm.arange(5):split(3))
---a  --> {1, 2, 3}
---b  --> {4, 5}
---dm.arange(5):split({1, 4})[2]  --> {2, 3, 4, 5}
---```
---@name dm.split

--- Gives a list of at most n views of x along dim, of ceil(size / n) elements each.
---@param x demilune.Tensor (..., N, ...)
---@param n integer
---@param dim? integer 1
---@return demilune.Tensor[]
---```lua
---local a, b = table.unpack(dm.arange(5):chunk(2))
---a  --> {1, 2, 3}
---b  --> {4, 5}
---```
---@name dm.chunk

--- Gives a list of views of x along dim: n whose sizes differ by at most 1, or those that begin at
--- 1 and at the positions of a table.
---@param x demilune.Tensor (..., N, ...)
---@param n integer|integer[]
---@param dim? integer 1
---@return demilune.Tensor[]
---```lua
---dm.arange(7):tensor_split(3)[1]  --> {1, 2, 3}
---dm.arange(7):tensor_split({3, 6})[2]  --> {3, 4, 5}
---```
---@name dm.tensor_split

--- Gives a list of views along dim 2 (dim 1 of a vector), as tensor_split; a number must divide the
--- size.
---@param x demilune.Tensor (N, M, ...)
---@param n integer|integer[]
---@return demilune.Tensor[]
---```lua
---local left, right = table.unpack(dm.tensor{{1, 2, 3, 4}, {5, 6, 7, 8}}:hsplit(2))
---right  --> {{3, 4}, {7, 8}}
---```
---@name dm.hsplit

--- Gives a list of views along dim 1, as tensor_split; a number must divide the size.
---@param x demilune.Tensor (N, M, ...)
---@param n integer|integer[]
---@return demilune.Tensor[]
---```lua
---local top, bottom = table.unpack(dm.tensor{{1, 2}, {3, 4}}:vsplit(2))
---bottom  --> {{3, 4}}
---```
---@name dm.vsplit

--- Gives a list of views along dim 3, as tensor_split; a number must divide the size.
---@param x demilune.Tensor (N, M, D, ...)
---@param n integer|integer[]
---@return demilune.Tensor[]
---```lua
---local front, back = table.unpack(dm.tensor{{{1, 2, 3, 4}}}:dsplit(2))
---back  --> {{{3, 4}}}
---```
---@name dm.dsplit

--- Gives a list of the views x:select(dim, i), which have one dim less than x.
---@param x demilune.Tensor (..., N, ...)
---@param dim? integer 1
---@return demilune.Tensor[]
---```lua
---local first, second = table.unpack(dm.tensor{{1, 2, 3}, {4, 5, 6}}:unbind())
---second  --> {4, 5, 6}
---dm.tensor{{1, 2, 3}, {4, 5, 6}}:unbind(2)[3]  --> {3, 6}
---```
---@name dm.unbind

-- ---- comparing, values ----

--- Tells whether all elements are within atol + rtol |other| of each other.
---@param x demilune.Tensor (any shape)
---@param other demilune.Tensor (the same shape)
---@param opts? table {rtol = 1e-5, atol = 1e-8, equal_nan = false}
---@return boolean
---```lua
---dm.allclose(dm.ones(2), dm.ones(2) + 1e-6)  --> true
---dm.allclose(dm.ones(2), dm.ones(2) + 0.1, {atol = 0.2})  --> true
---```
---@name dm.allclose

--- Tells whether shape and all elements are the same.
---@param x demilune.Tensor (any shape)
---@param other demilune.Tensor
---@return boolean
---```lua
---dm.equal(dm.tensor{1, 2}, dm.tensor{1, 2})  --> true
---dm.equal(dm.tensor{1, 2}, dm.tensor{{1, 2}})  --> false
---```
---@name dm.equal

--- The number of elements.
---@param x demilune.Tensor (any shape)
---@return integer
---```lua
---dm.ones(2, 3):numel()  --> 6
---```
---@name dm.numel

--- A tensor on the same storage, without history: gradients do not pass it.
---@param x demilune.Tensor (any shape)
---@return demilune.Tensor (the same shape)
---```lua
---local w = dm.ones(2, {requires_grad = true})
---local y = (w * 2):detach()
---y.requires_grad  --> false
---```
---@name dm.detach

--- Takes x's own history away; x is a leaf then.
---@return demilune.Tensor x
---```lua
---local y = dm.ones(2, {requires_grad = true}) * 2
---y:detach_()
---y.is_leaf  --> true
---```
---@name Tensor.detach_

--- The value of a tensor of one element as a number or a boolean of Lua; it waits for a GPU.
---@return number|boolean
---```lua
---dm.tensor{3.5}:item()  --> 3.5
---dm.tensor{1, 2}:sum():item() + 1  --> 4
---```
---@name Tensor.item

--- The elements as a table, nested as the dims are; of a 0-dim tensor the number.
---@return any
---```lua
---dm.ones(2, 2):totable()  --> {{1, 1}, {1, 1}}
---dm.tensor(5):totable()  --> 5
---```
---@name Tensor.totable Tensor.tolist

--- The size of a dim, or all sizes in a table as x.shape.
---@param dim? integer
---@return integer|table
---```lua
---dm.ones(2, 3):size(2)  --> 3
---dm.ones(2, 3):size()  --> {2, 3}
---```
---@name Tensor.size

--- How many elements lie between neighbours along each dim, as a table.
---@return integer[]
---```lua
---dm.ones(2, 3):stride()  --> {3, 1}
---dm.ones(2, 3):t():stride()  --> {1, 3}
---```
---@name Tensor.stride

--- How many elements lie in memory before x's first one.
---@return integer
---```lua
---dm.arange(6):narrow(1, 3, 4):storage_offset()  --> 2
---```
---@name Tensor.storage_offset

--- The number of dims.
---@return integer
---```lua
---dm.ones(2, 3):dim()  --> 2
---```
---@name Tensor.dim Tensor.ndimension

--- Tells whether elements lie in memory in the order of their positions, without gaps.
---@return boolean
---```lua
---dm.ones(2, 3):is_contiguous()  --> true
---dm.ones(2, 3):t():is_contiguous()  --> false
---```
---@name Tensor.is_contiguous

--- The address of the first element, as a number.
---@return integer
---```lua
---local x = dm.ones(2)
---x:data_ptr() == x:view(1, 2):data_ptr()  --> true
---```
---@name Tensor.data_ptr

--- Bytes of an element.
---@return integer bytes
---```lua
---dm.ones(2, {dtype = "float16"}):element_size()  --> 2
---```
---@name Tensor.element_size

--- Tells whether x's dtype has negative numbers: not uint8 and not bool.
---@return boolean
---```lua
---dm.tensor{1}:is_signed()  --> true
---dm.tensor({1}, {dtype = "uint8"}):is_signed()  --> false
---```
---@name Tensor.is_signed

--- Gives x's memory back at once, without waiting for the collector; later use of x raises.
---```lua
---local x = dm.ones(1000)
---x:free()
---pcall(x.sum, x)  --> false
---```
---@name Tensor.free

-- ---- dtype and device ----

--- x in another dtype or on another device: a dtype, a device, a tensor whose both it takes, or a
--- table of names. It is x itself where nothing changes. Gradients pass.
---@param target any a dtype, a device, a tensor, or {dtype, device, non_blocking, copy}
---@return demilune.Tensor (the same shape)
---```lua
---local x = dm.ones(2)
---x:to("float16").dtype  --> "float16"
---x:to{dtype = "int64", device = "cpu"}  --> {1, 1}
---```
---@name Tensor.to

--- x in the dtype of this name, or that PyTorch calls so: half is float16, long int64, int int32,
--- short int16, char int8, byte uint8. It is x itself where nothing changes.
---@return demilune.Tensor (the same shape)
---```lua
---dm.tensor{1.7, -1.7}:long()  --> {1, -1}
---```
---@name Tensor.float Tensor.double Tensor.half Tensor.bfloat16 Tensor.long Tensor.int Tensor.short
---@name Tensor.char Tensor.byte Tensor.bool

--- x on the CPU; x itself where it is there.
---@return demilune.Tensor (the same shape)
---```lua
---dm.ones(2):cpu().device  --> "cpu"
---```
---@name Tensor.cpu

--- x on a CUDA device: the current one, or of that number or name.
---@param device? demilune.Device|integer
---@return demilune.Tensor (the same shape)
---```lua
---local x = dm.ones(2)
---if dm.cuda.is_available() then x = x:cuda() end   -- or x:cuda(1), x:cuda "cuda:1"
---```
---@name Tensor.cuda

--- x in another tensor's dtype and on its device.
---@param other demilune.Tensor
---@return demilune.Tensor (x's shape)
---```lua
---dm.tensor{1.5, 2.5}:type_as(dm.arange(3))  --> {1, 2}
---```
---@name Tensor.type_as

--- A contiguous copy of x, which is on the CPU, in memory from which copies to a CUDA device need
--- not wait. Raises where there is no CUDA device.
---@return demilune.Tensor (the same shape)
---```lua
---if dm.cuda.is_available() then
---  local x = dm.ones(2):pin_memory()
---  x = x:to("cuda", {non_blocking = true})   -- returns before it is copied
---end
---```
---@name Tensor.pin_memory

--- Tells whether x lies in pinned memory.
---@return boolean
---```lua
---dm.ones(2):is_pinned()  --> false
---```
---@name Tensor.is_pinned

--- After x is freed, its memory is not used again before a stream has done the work that it has
--- then.
---@param stream any of dm.cuda.Stream
---@name Tensor.record_stream

-- ---- gradients ----

--- Adds the gradients of x to those of all leaves behind it (p.grad). x has one element, or its own
--- gradient, of its shape, is given. `inputs`, a tensor or an array, are the only ones that get
--- gradients: leaves, or inner tensors, which from then on keep theirs (retain_grad). Raises where
--- an input does not require grad.
---@param gradient? demilune.Tensor|table x's; or {gradient, retain_graph, create_graph, inputs}
---```lua
---local w = dm.tensor({2.0, 3.0}, {requires_grad = true})
---local loss = (w ^ 2):sum()
---loss:backward()
---w.grad  --> {4, 6}
---```
---@name Tensor.backward

--- Sets requires_grad of x, a leaf, and returns x.
---@param on? boolean true
---@return demilune.Tensor x
---```lua
---local w = dm.ones(2):requires_grad_()
---w.requires_grad  --> true
---w:requires_grad_(false)   -- freezes it
---```
---@name Tensor.requires_grad_

--- Keeps the gradient of x, which is no leaf, in x.grad at the backward pass.
---```lua
---local y = dm.ones(2, {requires_grad = true}) * 2
---y:retain_grad()
---y:sum():backward()
---y.grad  --> {1, 1}
---```
---@name Tensor.retain_grad

--- Calls fn(gradient) when the gradient of x is known: once a backward pass, of a leaf with the sum
--- of what came by all ways, at the end of the pass. What fn returns, of the same shape, replaces
--- the gradient. The handle has remove().
---@param fn fun(gradient: demilune.Tensor): demilune.Tensor?
---@return any handle
---```lua
---local w = dm.ones(2, {requires_grad = true})
---local handle = w:register_hook(function(g) return g * 10 end)
---w:sum():backward()
---w.grad  --> {10, 10}
---handle:remove()
---```
---@name Tensor.register_hook

--- Calls fn(x) after each backward pass that has added to x.grad, once, at its end; x is a leaf.
--- fn may step an optimizer, and drop the gradient. autograd.grad does not call it. The handle has
--- remove().
---@param fn fun(x: demilune.Tensor)
---@return any handle
---```lua
---local w = dm.ones(2, {requires_grad = true})
---local optimizer = optim.SGD({w}, {lr = 0.1})
---w:register_post_accumulate_grad_hook(function()
---  optimizer:step()
---  optimizer:zero_grad()
---end)
---w:sum():backward()
---w  --> {0.9, 0.9}
---w.grad  --> nil
---```
---@name Tensor.register_post_accumulate_grad_hook

--- A copy of x with values at the positions that index tensors pair up; index_put_ changes x.
---@param indices demilune.Tensor[] int64 or bool, a tensor a dim, from dim 1
---@param values demilune.Tensor|number
---@param opts? table {accumulate = false}: whether values are added
---@return demilune.Tensor (x's shape)
---```lua
---local at = {dm.tensor{1, 3}}
---dm.zeros(3):index_put(at, dm.tensor{5.0, 6.0})  --> {5, 0, 6}
---dm.ones(3):index_put(at, 2, {accumulate = true})  --> {3, 1, 3}
---```
---@name Tensor.index_put Tensor.index_put_ dm.index_put

-- ---- autocast's state ----

--- Tells whether autocast is on for a type of device.
---@param device_type? string "cpu" or "cuda"
---@return boolean
---```lua
---local _ <close> = amp.autocast{device_type = "cpu"}
---amp.is_autocast_enabled "cpu"  --> true
---```
---@name amp.is_autocast_enabled

--- Switches autocast for a type of device; amp.autocast does so for a region.
---@param device_type string
---@param enabled boolean
---```lua
---amp.set_autocast_enabled("cpu", true)
---dm.ones(2, 2):mm(dm.ones(2, 2)).dtype  --> "bfloat16"
---amp.set_autocast_enabled("cpu", false)
---```
---@name amp.set_autocast_enabled

--- Gives the dtype that autocast computes in on a type of device.
---@param device_type string
---@return demilune.DType
---```lua
---amp.get_autocast_dtype "cpu"  --> "bfloat16"
---amp.get_autocast_dtype "cuda"  --> "float16"
---```
---@name amp.get_autocast_dtype

--- Sets the dtype that autocast computes in on a type of device.
---@param device_type string
---@param dtype demilune.DType
---```lua
---amp.set_autocast_dtype("cpu", "float16")
---amp.get_autocast_dtype "cpu"  --> "float16"
---amp.set_autocast_dtype("cpu", "bfloat16")
---```
---@name amp.set_autocast_dtype

--- Tells whether casts of weights are kept until their region ends.
---@return boolean
---```lua
---amp.is_autocast_cache_enabled()  --> true
---```
---@name amp.is_autocast_cache_enabled

--- Sets whether casts of weights are kept until their region ends.
---@param enabled boolean
---```lua
---amp.set_autocast_cache_enabled(false)   -- each use casts the weight anew
---amp.set_autocast_cache_enabled(true)
---```
---@name amp.set_autocast_cache_enabled

--- Drops the casts of weights that are kept.
---```lua
---amp.clear_autocast_cache()   -- after weights were changed by hand within a region
---```
---@name amp.clear_autocast_cache

--- Gives the number of casts that autocast has made.
---@return integer
---```lua
---local before, x = amp.cast_count(), dm.ones(2, 2)
---amp.autocast({device_type = "cpu"}, function() return x:mm(x) end)
---amp.cast_count() > before  --> true
---```
---@name amp.cast_count

--- Tells whether errors of the backward pass name the op of the forward pass.
---@return boolean
---```lua
---dm.autograd.is_anomaly_enabled()  --> false
---```
---@name autograd.is_anomaly_enabled

--- Tells whether, within detect_anomaly, each gradient is looked at for NaN.
---@return boolean
---```lua
---local scope = dm.autograd.set_detect_anomaly(true, {check_nan = false})
---dm.autograd.is_anomaly_check_nan_enabled()  --> false
---scope:close()
---```
---@name autograd.is_anomaly_check_nan_enabled

-- ---- CUDA ----

--- A new stream of a CUDA device: work of one stream runs in order, of several at once. It has
--- synchronize(), query(), wait_stream(s), record_event(e), wait_event(e).
---@param device? demilune.Device
---@return any
---@name cuda.Stream

--- A scope in which a device's work goes to a stream.
---@param stream any of dm.cuda.Stream
---@param fn? function
---@return any a scope for `local _ <close>`, or fn's results
---@name cuda.stream

--- Gives the stream to which a device's work goes now.
---@param device? demilune.Device
---@return any
---@name cuda.current_stream

--- Gives a device's first stream.
---@param device? demilune.Device
---@return any
---@name cuda.default_stream

--- Tells a CUDA device's name, memory, processors and compute capability.
---@param device? demilune.Device
---@return table
---@name cuda.get_device_properties

-- ---- special functions that are ops by another name ----

--- The logistic function 1 / (1 + e^-x), element by element: dm.sigmoid.
---@param x demilune.Tensor (any shape)
---@return demilune.Tensor (the same shape)
---```lua
---dm.special.expit(dm.tensor{0.0, 100})  --> {0.5, 1}
---```
---@name special.expit

--- log |Gamma(x)|, element by element: dm.lgamma.
---@param x demilune.Tensor (any shape)
---@return demilune.Tensor (the same shape)
---```lua
---dm.special.gammaln(dm.tensor{1.0, 2, 4}):exp()  --> {1, 1, 6}
---```
---@name special.gammaln

--- The derivative of log Gamma(x), element by element: dm.digamma.
---@param x demilune.Tensor (any shape)
---@return demilune.Tensor (the same shape)
---```lua
---dm.special.psi(dm.tensor{1.0, 2})  --> {-0.5772, 0.4228}
---```
---@name special.psi

--- The logarithm of the multivariate gamma function of dim p, element by element: dm.mvlgamma.
---@param x demilune.Tensor (any shape)
---@param p integer
---@return demilune.Tensor (the same shape)
---```lua
---dm.special.multigammaln(dm.tensor{3.0}, 2)  --> {1.5502}
---```
---@name special.multigammaln

--- The modified Bessel function of the first kind of order 0 or 1, element by element.
---@param x demilune.Tensor (any shape)
---@return demilune.Tensor (the same shape)
---```lua
---assert(dm.special.modified_bessel_i0(dm.zeros(1)):item() == 1)
---```
---@name special.modified_bessel_i0 special.modified_bessel_i1
