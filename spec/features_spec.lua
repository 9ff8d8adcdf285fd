-- Maps each feature of mixed-precision training to the spec or script that shows it. A line is
-- the feature, then references: FILE, or FILE: words of a test's title. The spec fails when a file
-- or a title is missing. "GPU" marks a part that only a GPU can show.

-- luacheck: no max string line length

local TABLE = [[
autocast region with device_type, dtype, enabled | spec/amp/autocast_spec.lua: on, off inside, on again, off after
default dtype by device | spec/amp/autocast_spec.lua: the dtypes of old; GPU
float16 autocast | spec/amp/autocast_spec.lua: the CPU's 16-bit list equals casts by hand; scripts/examples/amp_loop.lua; GPU
bfloat16 autocast, without a scaler | spec/examples_spec.lua: bf16_loop; scripts/examples/bf16_loop.lua
matmul and conv in 16 bits | spec/amp/autocast_spec.lua: CUDA's 16-bit list equals casts by hand
softmax, norms, losses, log in float32 (CUDA's table) | spec/amp/autocast_spec.lua: CUDA's float32 list equals casts by hand; spec/amp/autocast_spec.lua: CUDA's ops with a dtype give float32 and
batch norm's statistics in float32 | spec/amp/autocast_spec.lua: convolution, batch norm, ReLU, convolution,
neither ops keep or promote | spec/amp/autocast_spec.lua: a product and a sum; spec/amp/autocast_spec.lua: comparisons, arithmetic and joins of
the op lists, from Lua | spec/amp/autocast_spec.lua: the op tables
unlisted ops run in their inputs' dtype, and the trace that says so | spec/amp/report_spec.lua: ops that ran in float32
one switch turns a script into float32 | spec/examples_spec.lua: amp_loop with --dtype float32
the wrapped function, recursion | spec/amp/autocast_spec.lua: a wrapped function may call itself, and be; spec/amp/autocast_spec.lua: wrap gives arguments and results through
forward and loss inside, backward outside | spec/examples_spec.lua: amp_loop differs; spec/amp/autocast_spec.lua: around backward() and step()
backward in the forward's precision | spec/amp/autocast_spec.lua: through a 16-bit product: float32 at the
nested and disabled regions | spec/amp/autocast_spec.lua: off inside on
float32 weights, casts temporary and cached | spec/amp/autocast_spec.lua: counts of casts of one weight; spec/amp/weight_copies_spec.lua: a model in training casts its inputs
evaluation under autocast | spec/amp/autocast_spec.lua: inference inside a region, and a region; scripts/examples/evaluation.lua
float32 data, cast where it is used | spec/examples_spec.lua: evaluation
autocast and scaler apart | spec/examples_spec.lua: plain_loop, amp_loop and bf16_loop; spec/amp/scaler_spec.lua: a scaler under bfloat16 changes nothing
amp.autocast() without arguments, the cuda.amp spelling | spec/amp/autocast_spec.lua: without CUDA a CUDA region warns and is off; lua/demilune/cuda.lua: dm.cuda.amp is dm.amp
the dtype of a result | spec/examples_spec.lua: dtypes: a product
custom_fwd and custom_bwd | spec/amp/custom_spec.lua: bare, forward sees float32 with autocast
custom_fwd with cast_inputs | spec/amp/custom_spec.lua: cast_inputs converts
functions of one's own, save_for_backward | spec/nn_spec.lua: a Function passes gradcheck
policies for single ops, and for functions of one's own | spec/amp/autocast_spec.lua: change single ops; spec/amp/custom_spec.lua: amp.register
casts equal casts by hand, in random programs | spec/amp/fuzz_spec.lua: equal casts by hand
GradScaler() and GradScaler{device = } | spec/amp/scaler_spec.lua: defaults
its settings, validated | spec/amp/scaler_spec.lua: E1 and E2, but not of a scaler that is off
scale(loss):backward() | spec/amp/scaler_spec.lua: multiplies, on the tensor's device
step skips on inf and NaN | spec/amp/scaler_spec.lua: a step that is skipped changes no bit
update grows and backs off | spec/amp/scaler_spec.lua: scale 4, growth 2, backoff 0.25, interval 2; spec/golden/scaler.lua
unscale_, once a step | spec/amp/scaler_spec.lua: E4, E5 and E6, each without a change
clipping after unscale_ | spec/amp/scaler_spec.lua: unscale_, then clipping at 0.2; scripts/examples/clipping.lua
a warning when scaled gradients are clipped | spec/amp/clip_spec.lua: clipping of gradients that are still scaled
several optimizers, one update | spec/amp/scaler_spec.lua: several optimizers: each skips on its own
two models in a chain | spec/examples_spec.lua: two_optimizers
accumulation, with clipping | spec/amp/scaler_spec.lua: gradients of two batches,; spec/examples_spec.lua: accumulation
the scale adapts both ways | spec/examples_spec.lua: scale: backs off
inf and NaN in any element of any gradient | spec/amp/scaler_spec.lua: found_inf is exactly 1.0, and says which
underflow repaired | spec/amp/scaler_spec.lua: underflow is repaired
no scaler for bfloat16 and inference | spec/examples_spec.lua: evaluation; spec/examples_spec.lua: bf16_loop
a lower first scale | spec/examples_spec.lua: a lower first scale
float32 updates outside of autocast | spec/golden_spec.lua: golden optim
nothing waits for the device | spec/amp/scaler_spec.lua: nothing is read by the host; GPU
diagnosis in place of a silent collapse | spec/amp/scaler_spec.lua: after `patience` updates
one call for the whole step | spec/amp/scaler_spec.lua: amp.step
16-bit and float32 tensors, conversions | spec/golden_spec.lua: golden cast
products and transposes | spec/golden_spec.lua: golden
conv2d, function and module | spec/golden_spec.lua: golden; spec/nn_spec.lua: Conv2d
softmax, layer_norm, cross_entropy | spec/golden_spec.lua: golden
packed sequences, in float32 and under autocast | spec/rnn_spec.lua: give a network what each sequence gives alone; spec/amp/rnn_spec.lua: over packed sequences equals the float16 control
recurrent networks, in float32 and under autocast | spec/rnn_spec.lua: starts from zeros; spec/amp/rnn_spec.lua: ; spec/amp/rnn_spec.lua: an LSTM with 16-bit weights needs a region
the losses as modules | spec/examples_spec.lua: plain_loop
Module, Sequential, BatchNorm2d, ReLU; train and eval | spec/nn_spec.lua: train and eval reach
isnan, isinf | spec/examples_spec.lua: nan_loss
zero_grad, backward, step | spec/optim_spec.lua: worked example
SGD and Adam | spec/optim_spec.lua: Adam: three steps; spec/optim_spec.lua: SGD: three steps
no_grad | spec/autograd_spec.lua: no_grad records nothing
item(), loss / k | spec/examples_spec.lua: accumulation
device strings, is_available | spec/amp/autocast_spec.lua: without CUDA a CUDA region warns and is off; GPU
seeded random tensors, tensors from data | spec/tensor_spec.lua: follow the seed
arange, meshgrid, stack, cos, linspace, bucketize, min, max | spec/examples_spec.lua: the problem is the original's
the float32 loop, the AMP loop, the bfloat16 loop | scripts/examples/plain_loop.lua; scripts/examples/amp_loop.lua; scripts/examples/bf16_loop.lua
the validation loop | scripts/examples/evaluation.lua; spec/trainer_spec.lua: evaluates in eval mode
DataLoader: seeded, workers, length | spec/data_spec.lua: gives the same order for any number of workers
samplers: weighted, of a batch, distributed; streams | spec/sampler_spec.lua: draws as often as; spec/sampler_spec.lua: decide a loader's; spec/sampler_spec.lua: deals the samples; spec/stream_spec.lua: comes in batches
token files larger than memory | spec/stream_spec.lua: does not lie in memory
normalised images | spec/data_spec.lua: and count labels from 1
vision transformers | spec/transformers_spec.lua: computes what PyTorch's does; spec/transformers_spec.lua: halves the loss of
BERT and GPT: embedding, attention, layer norm, gelu, tied weights | spec/transformers_spec.lua: gives under autocast the dtypes; spec/transformers_spec.lua: stay one tensor; spec/attention_spec.lua: golden transformer
ResNet-18 with ten classes | spec/cifar_spec.lua: computes what PyTorch's does
the ResNet family, ResNet-50 | spec/golden/torchvision_models.lua: resnet50={counts; spec/models_spec.lua: trains %s: the loss falls in bfloat16; spec/models_spec.lua: resnet50 = {side
AlexNet, DenseNet, ConvNeXt, Swin, ResNeXt | spec/golden/torchvision_models.lua: densenet121={side; spec/models_spec.lua: has torchvision's modules, names
bounding boxes, nms, roi_align, focal loss | spec/golden/vision.lua: op="roi_align"; spec/vision_spec.lua: keeps what the definition keeps
EfficientNet: depthwise convolutions, SiLU, squeeze and excitation | spec/golden/torchvision_models.lua: efficientnet_b0={counts; spec/models_spec.lua: efficientnet_b0 = {side
CIFAR-10 from its binary files | spec/cifar_spec.lua: says what to get
Compose, ToTensor, Normalize | spec/cifar_spec.lua: ToTensor and Normalize give
the CIFAR-10 script, plain and in mixed precision | spec/cifar_spec.lua: trains by the printed recipe; scripts/cifar10.lua; GPU
weights that Python saved, frozen but for a new end | spec/examples_spec.lua: trains a new end
the epoch's line | spec/examples_spec.lua: plain_loop
float32 against AMP: time, loss, memory, in one table | scripts/quantised_sine.lua; scripts/bench/quantised_sine.lua; GPU
the quantised sine's ConvModel | spec/examples_spec.lua: the model has 134145 parameters; spec/examples_spec.lua: peaks: the shares of memory
its image | spec/examples_spec.lua: trains in float32 and; spec/image_spec.lua: read_image and save_image
clip_grad_norm_, clip_grad_value_ | spec/amp/clip_spec.lua: (3, 4) at 1, in one parameter or two; spec/amp/clip_spec.lua: squares that overflow float32, and
the profiler's scope | spec/profiler_spec.lua: is a scope; GPU
key_averages():table | spec/profiler_spec.lua: has its columns in order, falls by its key,; spec/profiler_spec.lua: refuses an unknown sort key by its name
anomaly detection | spec/anomaly_spec.lua: sqrt(0) * 0 names sqrt, output 1, and the; spec/anomaly_spec.lua: a function of one's own is named, and its
the check of the loss | spec/examples_spec.lua: nan_loss
memory_allocated, peak, reset, empty_cache | spec/memory_spec.lua: 1000 bytes asked for are 1024 allocated; spec/memory_spec.lua: the peak is at least what is in use, and a
time and memory of a piece of work | spec/profiler_spec.lua: starts clean
saving and speed-up in percent | spec/profiler_spec.lua: compares by the formulas
garbage gives memory back | spec/tensor_spec.lua: stays flat without scopes
checkpoints run again as they ran first | spec/checkpoint_spec.lua: of three linear layers on float16 input
apex: O0 to O3 | spec/amp/initialize_spec.lua: each level casts what it says; scripts/examples/apex.lua
a 16-bit model with float32 masters | spec/amp/masters_spec.lua: trains as float32 does
a 16-bit model with stochastic rounding | spec/amp/masters_spec.lua: stochastic rounding
which dtypes ran, what overflowed, what to do | spec/amp/report_spec.lua: suggests
]]

local function text_of(path)
  local file <close> = io.open(path)
  return file and file:read "a"
end

-- What is wrong with a reference to a test, or nil.
local function fault_of(reference)
  local path, words = reference:match "^%s*([^:%s]+):?%s*(.*)$"
  if path == "GPU" then return nil end
  local text = text_of(path)
  if not text then return path .. " is not there" end
  if not text:find(words, 1, true) then return ("%s has no '%s'"):format(path, words) end
end

describe("the table of features", function()
  it("names specs and scripts that are there", function()
    local faults, seen = {}, {}
    for line in TABLE:gmatch "[^\n]+" do
      local feature, references = line:match "^(.-) | (.*)$"
      assert.is_nil(seen[feature])
      seen[feature] = true
      for reference in references:gmatch "[^;]+" do
        faults[#faults + 1] = fault_of(reference)
      end
    end
    assert.same({}, faults)
  end)
end)
