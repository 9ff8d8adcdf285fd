-- Calls that ops, layers and modules refuse, a row each, and what they then say: at the caller's
-- line, what was called, what was given and what was wanted. Families of ops whose own specs hold
-- such tests have none here. All operands are on the CPU, where rules look at data, too.

local dm = require "demilune"
local F = dm.nn.functional

local FILE = "/nowhere/refused.safetensors" -- no call comes so far as to open it

local function shaped(...) return dm.zeros({...}, {device = "cpu"}) end
local function whole(...) return dm.zeros({...}, {dtype = "int64", device = "cpu"}) end
local function ones(...) return dm.ones({...}, {dtype = "int64", device = "cpu"}) end
-- A tensor of as many dims as there can be, of one element.
local MOST = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
local function deepest(dtype) return dm.zeros(MOST, {dtype = dtype, device = "cpu"}) end
local function leaf(...) return dm.zeros({...}, {requires_grad = true, device = "cpu"}) end

-- {the message, or its beginning, the call}
local PRODUCTS = {
  {'einsum: two ellipses in one term of "...i...,i"', function()
    dm.einsum("...i...,i", shaped(2, 2), shaped(2))
  end},
  {'einsum: a term of "abcdefghijklmnopq->a" has more than 16 labels', function()
    dm.einsum("abcdefghijklmnopq->a", shaped(2))
  end},
  {'einsum: operand 1 of shape {2} has 1 dims, "ab" names 2', function()
    dm.einsum("ab", shaped(2))
  end},
  {'einsum: label c of the result is in no operand of "ab->c"', function()
    dm.einsum("ab->c", shaped(2, 2))
  end},
  {'einsum: label a is twice in the result of "ab->aa"', function()
    dm.einsum("ab->aa", shaped(2, 2))
  end},
  {'einsum: "a,b,c" names more than the 2 operands given', function()
    dm.einsum("a,b,c", shaped(2), shaped(2))
  end},
  {[[einsum: a lone '-' in "a-b", wanted "->"]], function() dm.einsum("a-b", shaped(2)) end},
  {'einsum: the result of "abcdefghi,jklmnopqr" has more than 16 dims', function()
    local x = shaped(1, 1, 1, 1, 1, 1, 1, 1, 1)
    dm.einsum("abcdefghi,jklmnopqr", x, x)
  end},
  {"bilinear: bias has shape {6}, wanted {5}", function()
    F.bilinear(shaped(2, 3), shaped(2, 4), shaped(5, 3, 4), shaped(6))
  end},
  {"norm: the norm with p = inf of no elements is not defined; x is {0}", function()
    shaped(0):norm(math.huge)
  end},
  {"renorm: x has shape {3}, wanted 2 dims or more", function()
    dm.renorm(shaped(3), 2, 1, 1)
  end},
  {"addmm: input of shape {3, 3} does not broadcast to the product's {2, 5}", function()
    dm.addmm(shaped(3, 3), shaped(2, 4), shaped(4, 5))
  end},
  {"addmm: beta 0.5 and alpha 1, wanted integers for int64 tensors", function()
    dm.addmm(whole(2, 2), whole(2, 2), whole(2, 2), {beta = 0.5})
  end},
  {"bmm: {2, 3, 4} x {3, 4, 5}: 2 and 3 matrices; hint: matmul broadcasts", function()
    dm.bmm(shaped(2, 3, 4), shaped(3, 4, 5))
  end},
  {"mv: {2, 3} x {4}: dim 2 of the left is 3, dim 1 of the right is 4", function()
    dm.mv(shaped(2, 3), shaped(4))
  end},
  {"tensordot: the result would have 18 dims, wanted at most 16", function()
    local x = shaped(1, 1, 1, 1, 1, 1, 1, 1, 1)
    dm.tensordot(x, x, 0)
  end},
  {"linalg.lu_solve: pivots are float32 of shape {2}, wanted int32 as lu_factor gives", function()
    dm.linalg.lu_solve(shaped(2, 2), shaped(2), shaped(2, 2))
  end},
  {"linalg.ldl_solve: a pivot is 3, wanted 1 to 2", function()
    local pivots = dm.tensor({1, 3}, {dtype = "int32", device = "cpu"})
    dm.linalg.ldl_solve(shaped(2, 2), pivots, shaped(2, 1))
  end},
  {"linalg.vander: x has no dims, wanted one or more, or N", function()
    dm.linalg.vander(shaped(1)[1])
  end},
  {"vander: N is -2, wanted 0 or more", function() dm.vander(shaped(3), {N = -2}) end},
}

local IMAGES = {
  {"grid_sample: x has shape {1, 1, 0, 4}, nothing to sample", function()
    F.grid_sample(shaped(1, 1, 0, 4), shaped(1, 2, 2, 2))
  end},
  {"affine_grid: a size of -2, wanted 1 to 1048576", function()
    F.affine_grid(shaped(1, 2, 3), {1, 1, -2, 2})
  end},
  {"interpolate: scale_factor has 3 numbers, wanted 2", function()
    F.interpolate(shaped(1, 1, 4, 4), {scale_factor = {2, 2, 2}})
  end},
  {"interpolate: antialias with 'nearest', wanted bilinear or bicubic", function()
    F.interpolate(shaped(1, 1, 4, 4), {size = {2, 2}, mode = "nearest", antialias = true})
  end},
  {"max_pool2d: stride has 3 numbers, wanted 1 or 2", function()
    F.max_pool2d(shaped(1, 1, 4, 4), 2, {stride = {1, 2, 3}})
  end},
  {"conv2d: input is float32, weight float64: all must have one dtype", function()
    F.conv2d(shaped(1, 1, 4, 4), shaped(1, 1, 2, 2):double())
  end},
  {'conv2d: stride 2, but padding "same" wants 1', function()
    F.conv2d(shaped(1, 1, 4, 4), shaped(1, 1, 2, 2), {padding = "same", stride = 2})
  end},
  {"conv2d: 2 groups do not divide 4 input and 3 output channels", function()
    F.conv2d(shaped(1, 4, 4, 4), shaped(3, 2, 2, 2), {groups = 2})
  end},
  {"conv2d: bias has shape {5}, wanted {1}", function()
    F.conv2d(shaped(1, 1, 4, 4), shaped(1, 1, 2, 2), shaped(5))
  end},
  {"conv1d: bias has shape {5}, wanted {1}", function()
    F.conv1d(shaped(1, 1, 4), shaped(1, 1, 2), shaped(5))
  end},
  {"conv1d: input of shape {1, 3, 4} has 3 channels, weight of shape {1, 2, 2} wants 2", function()
    F.conv1d(shaped(1, 3, 4), shaped(1, 2, 2))
  end},
  {"conv1d: groups is 0, wanted at least 1", function()
    F.conv1d(shaped(1, 2, 4), shaped(1, 2, 2), {groups = 0})
  end},
  {"conv3d: bias has shape {5}, wanted {1}", function()
    F.conv3d(shaped(1, 1, 4, 4, 4), shaped(1, 1, 2, 2, 2), shaped(5))
  end},
  {"conv3d: 2 groups do not divide 4 input and 3 output channels", function()
    F.conv3d(shaped(1, 4, 4, 4, 4), shaped(3, 2, 2, 2, 2), {groups = 2})
  end},
  {"conv_transpose3d: bias has shape {5}, wanted {1}", function()
    F.conv_transpose3d(shaped(1, 1, 4, 4, 4), shaped(1, 1, 2, 2, 2), shaped(5))
  end},
}

local LOSSES = {
  {"huber_loss: delta is 0, wanted more than 0", function()
    F.huber_loss(shaped(2), shaped(2), {delta = 0})
  end},
  {"gaussian_nll_loss: eps is 0, wanted more than 0", function()
    F.gaussian_nll_loss(shaped(2), shaped(2), shaped(2), {eps = 0})
  end},
  {"cross_entropy: label_smoothing is 2, wanted 0 to 1", function()
    F.cross_entropy(shaped(2, 3), ones(2), {label_smoothing = 2})
  end},
  {"cross_entropy: label_smoothing is 2, wanted 0 to 1", function()
    F.cross_entropy(shaped(2, 3), shaped(2, 3), {label_smoothing = 2}) -- probabilities
  end},
  {"cross_entropy: weight has shape {4}, wanted one for each of 3 classes", function()
    F.cross_entropy(shaped(2, 3), shaped(2, 3), {weight = shaped(4)})
  end},
  {"nll_loss: weight has shape {4}, wanted one for each of 3 classes", function()
    F.nll_loss(shaped(2, 3), ones(2), {weight = shaped(4)})
  end},
  {"ctc_loss: targets is float32 of shape {1, 2}, wanted int64", function()
    F.ctc_loss(shaped(5, 1, 3), shaped(1, 2), ones(1), ones(1))
  end},
  {"ctc_loss: input_lengths is float32, wanted int64; hint: input_lengths:long()", function()
    F.ctc_loss(shaped(5, 1, 3), ones(1, 2), shaped(1), ones(1))
  end},
  {"instance_norm: running_mean and running_var are wanted where use_input_stats is", function()
    F.instance_norm(shaped(2, 3, 4), {use_input_stats = false})
  end},
  {"batch_norm: one value per channel in {1, 3}, wanted more to train on", function()
    F.batch_norm(shaped(1, 3), shaped(3), shaped(3), {training = true})
  end},
}

local DRAWS = {
  {"feature_alpha_dropout: x is {3}, wanted at least 2 dims (batch, channels)", function()
    F.feature_alpha_dropout(shaped(3), {p = 0.5, training = true})
  end},
  {"normal_: std -1 given, wanted 0 or more", function() shaped(3):normal_(0, -1) end},
  {"randint: uint8 does not hold the numbers from 0 to 1000", function()
    dm.randint(0, 1000, {3}, {dtype = "uint8", device = "cpu"})
  end},
  {"randperm: uint8 does not hold the numbers up to 1000", function()
    dm.randperm(1000, {dtype = "uint8", device = "cpu"})
  end},
  {"multinomial: the weights sum to 0, wanted more than 0", function()
    dm.multinomial(shaped(3), 1)
  end},
  {"multinomial: 2 samples without replacement of 1 weights above 0", function()
    dm.multinomial(dm.tensor({1.0, 0.0, 0.0}, {device = "cpu"}), 2)
  end},
}

local SHAPES = {
  {"unflatten: dim 1 as 0, wanted 1 to 16", function() shaped(4):unflatten(1, {}) end},
  {"cat: tensor 1 has no dims; hint: stack", function()
    dm.cat{dm.tensor(1.0, {device = "cpu"}), shaped(2)}
  end},
  {"stack: dim 5 is out of range for tensors of shape {2} (wanted 1 to 2)", function()
    dm.stack({shaped(2), shaped(2)}, 5)
  end},
  {"repeat_interleave: repeats are int64 of shape {2}, wanted integers, one or 3", function()
    dm.repeat_interleave(shaped(3), ones(2), 1)
  end},
  {"repeat_interleave: output_size is 7, the repeats sum to 3", function()
    dm.repeat_interleave(shaped(3), ones(3), 1, {output_size = 7})
  end},
  {"repeat_interleave: -1 repeats given, wanted 0 or more", function()
    dm.repeat_interleave(shaped(2), ones(2) * -1)
  end},
  {"index_put: values of shape {5, 5} do not broadcast to {1, 3}", function()
    shaped(3, 3):index_put({ones(1)}, shaped(5, 5))
  end},
  {"index: an index of shape {1, 1} in x of shape {1, 1, 1, 1, 1, 1, 1, 1,", function()
    local _ = deepest()[ones(1, 1)]
  end},
  {"index: a value of shape {5} does not broadcast to {2}, what the mask chooses", function()
    local x = shaped(2)
    x[ones(2):bool()] = shaped(5)
  end},
  {"quantile: the result would have more than 16 dims", function()
    dm.quantile(deepest(), shaped(2), {dim = 1, keepdim = true})
  end},
  {"masked_scatter: 2 elements for the 3 that the mask holds", function()
    shaped(3):masked_scatter(ones(3):bool(), shaped(2))
  end},
  {"view: shape {3, 2} with these strides cannot be seen as {6}; hint: x:reshape", function()
    shaped(2, 3):t():view(6)
  end},
  {"flatten: start_dim 2 comes after end_dim 1", function() shaped(2, 3):flatten(2, 1) end},
  {"permute: dim 1 is given twice", function() shaped(2, 3):permute(1, 1) end},
  {"unsqueeze: more than 16 dims", function() deepest():unsqueeze(1) end},
  {"one_hot: num_classes -3 given, wanted 0 or more", function() F.one_hot(ones(2), -3) end},
  {"embedding: an index of shape {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}", function()
    F.embedding(deepest "int64" + 1, shaped(3, 2))
  end},
  {"split: chunks of 0 elements, wanted 1 or more", function() dm.split(shaped(4), 0) end},
  {"split: chunks of 0 elements, wanted 1 or more", function() dm.split(shaped(2, 0), 0) end},
  {"pad: 300 does not fit into int8", function()
    dm.pad(shaped(2):to("int8"), {1, 1}, {value = 300})
  end},
  {"split: dim 2 is out of range for shape {4} (dims count from 1)", function()
    dm.split(shaped(4), 1, 2)
  end},
  {"tensor_split: dim 3 is out of range for shape {4} (dims count from 1)", function()
    dm.tensor_split(shaped(4), 2, 3)
  end},
  {"split: a chunk of -1 elements", function() dm.split(shaped(4), {1, -1}) end},
  {"split: chunks of 2 elements together, dim 1 has 4", function()
    dm.split(shaped(4), {1, 1})
  end},
}

local MODULES = {
  {"grad: a gradient of shape {4} for a tensor of shape {3}", function()
    leaf(3).grad = shaped(4)
  end},
  {"grad: a gradient is a float tensor, given int64", function() leaf(3).grad = whole(3) end},
  {"data: only a leaf takes other data", function()
    local y = leaf(3) * 2
    y.data = shaped(3)
  end},
  {"autograd.grad: 2 grad_outputs for 1 outputs", function()
    local x = leaf(3)
    dm.autograd.grad({x * 2}, {x}, {grad_outputs = {shaped(3), shaped(3)}})
  end},
  {"backward: the gradient has shape {4}, the tensor {3}", function()
    local y = leaf(3) * 2
    y:backward(shaped(4))
  end},
  {"copy_: a gradient cannot flow into int64", function() whole(3):copy_(leaf(3)) end},
  {"safetensors_write: the name of a tensor is no string", function()
    dm.safetensors_write(FILE, {shaped(2)}, {})
  end},
  {"safetensors_write: metadata wants strings for keys and values", function()
    dm.safetensors_write(FILE, {a = shaped(2)}, {b = 3})
  end},
  {"safetensors_write: metadata 'b' holds a NUL", function()
    dm.safetensors_write(FILE, {a = shaped(2)}, {b = "a\0"})
  end},
  {'autocast: policy of matmul is a number, wanted a word such as "fp32"', function()
    dm.amp.autocast{policy = {matmul = 3}}
  end},
  {"autocast: unknown policy 'half' of matmul, wanted lower_precision, fp32,", function()
    dm.amp.autocast{policy = {matmul = "half"}}
  end},
  {"autocast: policy: no op 'nonsense'", function()
    dm.amp.autocast{policy = {nonsense = "fp32"}}
  end},
}

local ALL = {
  {"products", PRODUCTS}, {"ops on images", IMAGES}, {"losses and norms", LOSSES},
  {"random draws", DRAWS}, {"ops on shapes", SHAPES}, {"autograd, autocast and files", MODULES},
}
for _, family in ipairs(ALL) do
  describe("refused by " .. family[1] .. ":", function()
    for _, row in ipairs(family[2]) do
      it(row[1], function()
        local works, text = pcall(row[2])
        assert.is_false(works)
        local line, said = text:match "refusals_spec%.lua:(%d+): (.*)"
        assert.equal(row[1], (said or text):sub(1, #row[1]))
        local info = debug.getinfo(row[2], "S")
        assert.is_true(tonumber(line) >= info.linedefined)
        assert.is_true(tonumber(line) <= info.lastlinedefined)
      end)
    end
  end)
end
