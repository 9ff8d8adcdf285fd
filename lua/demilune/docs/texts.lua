-- A line of documentation for names that a loop makes, so that no comment stands above each.

local texts = {
  memory_summary = "a table, as text, of what tensors hold and what the allocator keeps",
  tril_indices = "tril_indices(rows, columns, offset = 0): (2, n), the positions on and below a "
    .. "diagonal",
  triu_indices = "triu_indices(rows, columns, offset = 0): (2, n), the positions on and above a "
    .. "diagonal",
  ["cuda.empty_cache"] = "gives memory that no tensor uses back to the GPU",
  ["cuda.manual_seed"] = "seeds the generator of the current GPU",
  ["cuda.manual_seed_all"] = "seeds the generators of all GPUs",
  ["cuda.max_memory_allocated"] = "the most bytes that tensors of a GPU used at once",
  ["cuda.max_memory_reserved"] = "the most bytes that were taken from a GPU at once",
  ["cuda.memory_allocated"] = "bytes that tensors of a GPU use",
  ["cuda.memory_reserved"] = "bytes that are taken from a GPU, used or kept for later",
  ["cuda.memory_stats"] = "all counts of a GPU's allocator, by PyTorch's names",
  ["cuda.reset_accumulated_memory_stats"] = "sets the sums of memory_stats to 0",
  ["cuda.reset_peak_memory_stats"] = "sets the peaks of memory_stats to what is in use",
  ["data.Dataset"] = "The base of data sets of one's own: data.Dataset:extend \"Name\" makes a "
    .. "class, whose init(...) gets the arguments, len() gives the number of samples, and get(i) "
    .. "the sample i of 1 to len as one value or more. #set and pairs(set) follow. Workers copy "
    .. "the set into Lua states of their own.",
  ["data.IterableDataset"] = "The base of streams: data.IterableDataset:extend \"Name\" makes a "
    .. "class, whose iter(epoch) gives what a generic for takes: a function whose every call "
    .. "makes a sample, one value or more, the first of them nil at the end. len() is optional.",
  ["data.Sampler"] = "The base of orders of one's own: data.Sampler:extend \"Name\" makes a "
    .. "class, whose order(epoch) gives the positions of an epoch, a list or an int64 tensor that "
    .. "counts from 1, and len() how many.",
  ["func.jacfwd"] = "jacfwd(f) gives a function of f's Jacobian, a pass for each element of the "
    .. "argument",
  ["func.jacrev"] = "jacrev(f) gives a function of f's Jacobian, a backward pass for each "
    .. "element of f's result",
  ["metrics.AUROC"] = "The area under the ROC curve of two classes, from 0 to 1: how often a "
    .. "positive scores above a negative. update(scores (N), labels (N)), which are 1 or true for "
    .. "the positive class, else 0 or false; compute(), reset().",
  ["metrics.Accuracy"] = "The share of samples whose class is among the top_k scores. "
    .. "update(scores (N, C), labels (N)), with top_k = 1 also update(classes (N), labels (N)); "
    .. "compute(), NaN before the first batch; reset(). Classes count from 1. Labels of "
    .. "ignore_index do not count.",
  ["metrics.ConfusionMatrix"] = "Counts, int64 (num_classes, num_classes): rows are labels, "
    .. "columns predictions; it prints as a table with the names. update(scores (N, C) or classes "
    .. "(N), labels (N)), compute(), reset().",
  ["metrics.F1Score"] = "The harmonic mean of precision and recall. average: \"macro\" is the "
    .. "mean over the classes that occur, \"micro\" counts all samples alike, \"weighted\" weighs "
    .. "by a class's samples, \"none\" gives a list. update(scores (N, C) or classes (N), labels "
    .. "(N)), compute(), reset().",
  ["metrics.Mean"] = "The mean of numbers, each with its weight, such as a loss with the size of "
    .. "its batch. update(value, weight = 1), a number or a tensor, whose elements count each; "
    .. "compute(), reset().",
  ["metrics.Perplexity"] = "e to the mean negative log likelihood of the next token. "
    .. "update(scores (..., C), labels (...)), where labels of ignore_index are left out; "
    .. "compute(), reset().",
  ["metrics.Precision"] = "The share of right ones among the predictions of a class; average as "
    .. "for F1Score. update(scores (N, C) or classes (N), labels (N)), compute(), reset().",
  ["metrics.Recall"] = "The share of a class's samples that are predicted as it; average as for "
    .. "F1Score. update(scores (N, C) or classes (N), labels (N)), compute(), reset().",
  ["models.alexnet"] = "AlexNet (A. Krizhevsky 2014): images (N, 3, 224, 224) -> (N, num_classes)",
  ["models.bert"] = "BERT with its masked-word head (J. Devlin et al. 2018): ids (B, T) -> scores "
    .. "(B, T, vocab_size); ids count from 1",
  ["models.gpt2"] = "GPT-2 (A. Radford et al. 2019): ids (B, T) -> scores of the next token (B, T, "
    .. "vocab_size); ids count from 1; model:generate(ids, n)",
  ["models.lenet"] = "LeNet-5 (Y. LeCun et al. 1998): images (N, 1, 28, 28) -> (N, num_classes)",
  ["models.lstm_lm"] = "an LSTM that predicts the next token: ids (B, T) -> scores (B, T, "
    .. "vocab_size), state",
  ["models.mobilenet_v2"] = "MobileNetV2 (M. Sandler et al. 2018): images (N, 3, H, W) -> (N, "
    .. "num_classes); width_mult: how wide the layers are; small_stem: the first convolution "
    .. "keeps the size, for small images",
  ["models.unet"] = "U-Net (O. Ronneberger et al. 2015): images (N, in_channels, H, W) -> "
    .. "scores of "
    .. "each pixel (N, num_classes, H, W)",
  ["nn.Module"] = "The base of layers and models: nn.Module:extend \"Net\" makes a class, whose "
    .. "init(...) makes parameters and layers as fields of self, and whose forward(...) computes "
    .. "the outputs; net(...) calls it.",
  ["nn.functional.lp_pool1d"] = "(sum of x^p)^(1/p) over windows of a length",
  ["nn.functional.lp_pool2d"] = "(sum of x^p)^(1/p) over windows of an image",
  ["nn.functional.lp_pool3d"] = "(sum of x^p)^(1/p) over windows of a volume",
  ["nn.functional.upsample"] = "another name of interpolate",
  ["nn.functional.upsample_bilinear"] = "interpolate with mode = \"bilinear\", align_corners = "
    .. "true",
  ["nn.functional.upsample_nearest"] = "interpolate with mode = \"nearest\"",
  ["nn.init.constant_"] = "fills a tensor with a number",
  ["nn.init.dirac_"] = "fills a convolution's weight so that it passes its input on",
  ["nn.init.eye_"] = "fills a matrix with the identity",
  ["nn.init.kaiming_normal_"] = "normal numbers of deviation gain / sqrt(fan): K. He et al. 2015",
  ["nn.init.kaiming_uniform_"] = "uniform numbers of deviation gain / sqrt(fan): K. He et al. 2015",
  ["nn.init.normal_"] = "fills a tensor with normal numbers",
  ["nn.init.ones_"] = "fills a tensor with ones",
  ["nn.init.orthogonal_"] = "a matrix whose rows or columns are orthonormal, times gain: A. "
    .. "Saxe et "
    .. "al. 2014",
  ["nn.init.sparse_"] = "normal numbers, of which a share of each column is 0: J. Martens 2010",
  ["nn.init.trunc_normal_"] = "normal numbers drawn again until they are between a and b",
  ["nn.init.uniform_"] = "fills a tensor with uniform numbers from a to b",
  ["nn.init.xavier_normal_"] = "normal numbers of deviation gain sqrt(2 / (fan_in + fan_out)): X. "
    .. "Glorot, Y. Bengio 2010",
  ["nn.init.xavier_uniform_"] = "uniform numbers of deviation gain sqrt(2 / (fan_in + "
    .. "fan_out)): X. "
    .. "Glorot, Y. Bengio 2010",
  ["nn.init.zeros_"] = "fills a tensor with zeros",
  ["nn.GRU"] = "x (T, B, input_size), or (B, T, input_size) with batch_first, h? -> y (T, B, D "
    .. "hidden_size), h; D = 2 where bidirectional (K. Cho et al. 2014)",
  ["nn.GRUCell"] = "one step: x (B, input_size), h? (B, hidden_size) -> h",
  ["nn.LSTM"] = "x (T, B, input_size), or (B, T, input_size) with batch_first, {h, c}? -> y (T, "
    .. "B, D "
    .. "hidden_size), {h, c}; D = 2 where bidirectional (S. Hochreiter, J. Schmidhuber 1997)",
  ["nn.LSTMCell"] = "one step: x (B, input_size), {h, c}? (B, hidden_size) each -> h, c",
  ["nn.RNN"] = "x (T, B, input_size), or (B, T, input_size) with batch_first, h? -> y (T, B, D "
    .. "hidden_size), h; D = 2 where bidirectional (J. Elman 1990)",
  ["nn.RNNCell"] = "one step: x (B, input_size), h? (B, hidden_size) -> h",
  ["optim.Adam"] = "w - lr m / (sqrt(v) + eps), where m and v are the gradient's and its square's "
    .. "means by betas, corrected for their start (D. Kingma, J. Ba 2015); weight_decay adds to "
    .. "the gradient",
  ["optim.AdamW"] = "Adam whose weight decay multiplies the weights by 1 - lr weight_decay and "
    .. "stays out of the gradient (I. Loshchilov, F. Hutter 2019)",
  ["optim.Muon"] = "the momentum of a matrix, made nearly orthogonal (K. Jordan et al. 2024): for "
    .. "the matrices of hidden layers; embeddings, heads, norms and biases want AdamW",
  ["optim.Optimizer"] = "The base of optimizers. optimizer.param_groups[i] has the options of a "
    .. "group and its params, optimizer.state[p] the buffers of a parameter, absent until its "
    .. "first step. Of 16-bit parameters a step computes in float32 and rounds: with "
    .. "master_weights = true float32 values are kept and stepped (state[p].master), with "
    .. "stochastic_rounding = true a step too small for 16 bits moves a weight at random, on "
    .. "average by its own size.",
  ["optim.lr_scheduler.ConstantLR"] = "the rate times factor for total_iters steps, then the rate",
  ["optim.lr_scheduler.CosineAnnealingLR"] = "half a cosine from the rate to eta_min in T_max "
    .. "steps",
  ["optim.lr_scheduler.CosineAnnealingWarmRestarts"] = "cosines from the rate to eta_min, each "
    .. "T_mult "
    .. "times as long as the one before (I. Loshchilov, F. Hutter 2017)",
  ["optim.lr_scheduler.CyclicLR"] = "up and down between base_lr and max_lr (L. Smith 2017)",
  ["optim.lr_scheduler.ExponentialLR"] = "the rate times gamma at each step",
  ["optim.lr_scheduler.LambdaLR"] = "the rate times lr_lambda(step)",
  ["optim.lr_scheduler.LinearLR"] = "a straight line from start_factor to end_factor of the "
    .. "rate in "
    .. "total_iters steps; a warm-up",
  ["optim.lr_scheduler.MultiStepLR"] = "the rate times gamma at each of the milestones",
  ["optim.lr_scheduler.MultiplicativeLR"] = "the last rate times lr_lambda(step)",
  ["optim.lr_scheduler.OneCycleLR"] = "up to max_lr and down far below (L. Smith, N. Topin 2018)",
  ["optim.lr_scheduler.PolynomialLR"] = "the rate times (1 - step / total_iters)^power",
  ["optim.lr_scheduler.StepLR"] = "the rate times gamma every step_size steps",
  ["profiler.ProfilerActivity"] = "The activities that profile{activities = {...}} records, "
    .. "\"cpu\" and \"cuda\", by PyTorch's names.",
  ["signal.windows"] = "Windows for the analysis of signals: window(n, {sym = true, dtype =, "
    .. "device =}) gives float32 (n). sym = false: a period of n, as for stft.",
  ["special.gammainc_"] = "igamma in place", ["special.gammaincc_"] = "igammac in place",
  ["text.ByteTokenizer"] = "ByteTokenizer(): a token is a byte, of which there are 256. "
    .. "tokens:encode(text) gives int64 (bytes), tokens:decode(ids) the text; ids count from 1.",
  ["text.CharTokenizer"] = "CharTokenizer(corpus): a token is a character of the corpus, a text in "
    .. "UTF-8 or a list of characters (tokens.vocabulary). #tokens counts them; "
    .. "tokens:encode(text) gives int64 (characters), tokens:decode(ids) the text; ids count "
    .. "from 1.",
  ["transforms.is_callable"] = "is_callable(value): whether a value can be called",
  ["vision.complete_box_iou_loss"] = "1 - complete_box_iou of pairs of boxes (N, 4)",
  ["vision.distance_box_iou_loss"] = "1 - distance_box_iou of pairs of boxes (N, 4)",
  ["vision.generalized_box_iou_loss"] = "1 - generalized_box_iou of pairs of boxes (N, 4)",
  ["nn.LazyLinear"] = "Linear whose in_features is that of its first input",
  ["nn.CrossEntropyLoss"] = "scores (N, C, ...) and targets (N, ...), classes from 1, or "
    .. "shares of the classes (N, C, ...) -> ()",
  ["nn.NLLLoss"] = "log-probabilities (N, C, ...) and targets (N, ...), classes from 1 -> ()",
  ["nn.BCELoss"] = "probabilities and targets of one shape, 0 to 1 -> ()",
  ["nn.BCEWithLogitsLoss"] = "scores before sigmoid and targets, 0 to 1, of one shape -> (); "
    .. "pos_weight: how much a target of 1 counts",
  ["nn.CTCLoss"] = "log_probs (T, N, C), targets (N, S), input_lengths (N), target_lengths (N) "
    .. "-> (); blank is class 1 unless another is named",
  ["nn.LogSigmoid"] = "log(1 / (1 + exp(-x))), without overflow",
  ["nn.SiLU"] = "x times sigmoid(x); Elfwing et al. 2017",
  ["nn.RReLU"] = "x above 0, a slope times x below: drawn for each element in training between "
    .. "lower and upper, their mean in evaluation; Xu et al. 2015",
  ["nn.TripletMarginWithDistanceLoss"] = "max(0, margin + d(anchor, positive) - d(anchor, "
    .. "negative)), d being distance_function(a, b), or pairwise_distance",
  ["nn.UpsamplingBilinear2d"] = "x (N, C, H, W) -> planes of that size, or scale_factor times "
    .. "as large, the corners aligned",
  ["nn.UpsamplingNearest2d"] = "x (N, C, H, W) -> planes of that size, or scale_factor times "
    .. "as large, elements repeated",
  ["nn.Upsample"] = "x (N, C, ...) -> of that size, or scale_factor times as large; mode: "
    .. "nearest, nearest-exact, linear (3 dims), bilinear or bicubic (4), trilinear (5), area",
  ["nn.Unfold"] = "x (N, C, H, W) -> (N, C kernel_size^2, L): each window as a column, L "
    .. "windows",
  ["nn.Fold"] = "columns (N, C kernel_size^2, L) -> (N, C, height, width) of output_size: the "
    .. "windows added up, the inverse of Unfold where they do not overlap",
  ["transforms.RandomHorizontalFlip"] = "with probability p left and right are exchanged",
  ["transforms.RandomVerticalFlip"] = "with probability p top and bottom are exchanged",
  ["transforms.RandomInvert"] = "with probability p each value v becomes 255 - v; uint8",
  ["transforms.RandomPosterize"] = "with probability p so many of the upper bits of each value "
    .. "are kept; uint8",
  ["transforms.RandomSolarize"] = "with probability p values of at least the threshold are "
    .. "inverted; uint8",
  ["transforms.RandomAdjustSharpness"] = "with probability p; factor 0 smooths, 1 changes "
    .. "nothing, 2 sharpens; uint8",
  ["transforms.RandomAutocontrast"] = "with probability p the darkest value of a channel becomes "
    .. "0, the brightest 255; uint8",
  ["transforms.RandomEqualize"] = "with probability p the values of each channel become "
    .. "equally frequent; uint8",
  ["transforms.MixUp"] = "mix(x, y) of a batch (N, C, H, W) and labels (N), from 1, or shares "
    .. "(N, num_classes) -> images and shares, each blended with its neighbour's by a part "
    .. "drawn from Beta(alpha, alpha); Zhang et al. 2018",
  ["transforms.CutMix"] = "mix(x, y) as MixUp, but a rectangle of the neighbour's image is "
    .. "pasted in, and the shares are by its area; Yun et al. 2019",
  ["nn.Module.add_module"] = "model:add_module(name, module): the same as model[name] = "
    .. "module, for a name that nothing has yet",
  ["nn.Module.apply"] = "model:apply(fn): calls fn(module) for all modules below, then for "
    .. "this one; returns the module",
  ["nn.Module.buffers"] = "model:buffers(): a list of the buffers of this module and those "
    .. "below, each once",
  ["nn.Module.children"] = "model:children(): a list of the modules directly below",
  ["nn.Module.copy"] = "model:copy(): a deep copy; tied parameters stay tied, functions are "
    .. "shared",
  ["nn.Module.cpu"] = "model:cpu(): the same as model:to \"cpu\"",
  ["nn.Module.cuda"] = "model:cuda(device = \"cuda\"): the same as model:to(device)",
  ["nn.Module.double"] = "model:double(): the same as model:to \"float64\"",
  ["nn.Module.eval"] = "model:eval(): evaluation mode, as train(false): no dropout, batch "
    .. "norms by their running statistics; returns the module",
  ["nn.Module.extend"] = "Module:extend(name): a new class that inherits from this one",
  ["nn.Module.float"] = "model:float(): the same as model:to \"float32\"",
  ["nn.Module.get_buffer"] = "model:get_buffer \"0.running_mean\": the buffer of that name of "
    .. "state_dict; raises where there is none",
  ["nn.Module.get_parameter"] = "model:get_parameter \"0.weight\": the parameter of that name "
    .. "of state_dict; raises where there is none",
  ["nn.Module.get_submodule"] = "model:get_submodule \"layers.0\": the module of a name that "
    .. "named_modules gives; \"\" is this one",
  ["nn.Module.half"] = "model:half(): parameters and buffers as 16-bit floats of IEEE 754",
  ["nn.Module.load_state_dict"] = "model:load_state_dict(state_dict, strict = true): copies "
    .. "its tensors into the model's; a missing or unexpected name raises unless strict is "
    .. "false, another shape always; returns {missing_keys =, unexpected_keys =}",
  ["nn.Module.modules"] = "model:modules(): a list of this module and those below, each once",
  ["nn.Module.named_buffers"] = "for name, buffer in model:named_buffers() do: of this module "
    .. "and those below, each once; options as of named_parameters",
  ["nn.Module.named_children"] = "for name, module in model:named_children() do: those "
    .. "directly below; in a list the first is \"0\"",
  ["nn.Module.named_modules"] = "for name, module in model:named_modules() do: this one, with "
    .. "the name \"\", and those below, each once; {prefix = \"\", remove_duplicate = true}",
  ["nn.Module.named_parameters"] = "for name, p in model:named_parameters() do: of this module "
    .. "and those below, each once, named as in state_dict; {prefix = \"\", recurse = true, "
    .. "remove_duplicate = true}: recurse = false leaves out the modules below",
  ["nn.Module.parameters"] = "model:parameters(): a list of the parameters of this module and "
    .. "those below, each once; for an optimizer; recurse = false leaves out the modules below",
  ["nn.Module.register_buffer"] = "model:register_buffer(name, tensor, persistent = true): a "
    .. "tensor that is saved and moved with the module, but not trained; persistent = false "
    .. "leaves it out of state_dict",
  ["nn.Module.register_forward_hook"] = "model:register_forward_hook(fn, {prepend = false, "
    .. "always_call = false}): fn(module, inputs, output) after each forward; what it returns, "
    .. "unless nil, replaces the first output; always_call: after an error, too. The handle has "
    .. ":remove()",
  ["nn.Module.register_forward_pre_hook"] = "model:register_forward_pre_hook(fn, {prepend = "
    .. "false}): fn(module, inputs) before each forward; what it returns, unless nil, replaces the "
    .. "inputs. The handle has :remove()",
  ["nn.Module.register_full_backward_hook"] = "model:register_full_backward_hook(fn, {prepend = "
    .. "false}): fn(module, grad_input, grad_output), lists, once the gradients of the inputs are "
    .. "known; what it returns, unless nil, replaces grad_input. The handle has :remove()",
  ["nn.Module.register_full_backward_pre_hook"] = "model:register_full_backward_pre_hook(fn, "
    .. "{prepend = false}): fn(module, grad_output) before the module's backward pass; what it "
    .. "returns, unless nil, replaces grad_output. The handle has :remove()",
  ["nn.Module.register_module"] = "another name of add_module",
  ["nn.Module.register_parameter"] = "model:register_parameter(name, parameter): the same as "
    .. "model[name] = parameter",
  ["nn.Module.requires_grad_"] = "model:requires_grad_(on = true): sets requires_grad of all "
    .. "parameters; false freezes them; returns the module",
  ["nn.Module.set_submodule"] = "model:set_submodule(name, module): puts another module where "
    .. "that of a name is",
  ["nn.Module.state_dict"] = "model:state_dict(): {name = tensor} of the parameters and "
    .. "persistent buffers, with PyTorch's names; the tensors share storage with the model's; "
    .. "{prefix = \"\", keep_vars = false}",
  ["nn.Module.summary"] = "model:summary(input, {dtype = \"float32\", device?, print = true}): "
    .. "prints the layers with the shapes of their outputs, parameters, bytes and FLOPs; "
    .. "input: a tensor, a shape, or a list of them; returns the rows",
  ["nn.Module.to"] = "model:to(device or dtype, ...): moves parameters and buffers and "
    .. "converts those of floats; they stay the same tensors, so that an optimizer keeps them, "
    .. "but its own buffers do not move with them; returns the module",
  ["nn.Module.train"] = "model:train(mode = true): training mode, for dropout and batch norms, "
    .. "here and below; returns the module",
  ["nn.Module.zero_grad"] = "model:zero_grad(set_to_none = true): drops the gradients of all "
    .. "parameters; false: makes them zeros",
  ["nn.utils.prune.custom_from_mask"] = "prunes where a mask, of the tensor's shape, is 0; "
    .. "returns the module",
  ["nn.utils.prune.identity"] = "prunes nothing, but adds the mask; returns the module",
  ["nn.utils.prune.l1_unstructured"] = "prunes the elements nearest to 0: amount of them, or "
    .. "that share; importance_scores: other values to compare; returns the module",
  ["nn.utils.prune.ln_structured"] = "prunes the channels along dim of the smallest norms of "
    .. "order n: amount of them, or that share; returns the module",
  ["nn.utils.prune.random_structured"] = "prunes channels along dim at random: amount of them, "
    .. "or that share; returns the module",
  ["nn.utils.prune.random_unstructured"] = "prunes elements at random: amount of them, or that "
    .. "share; returns the module",
  ["transforms.functional.adjust_brightness"] = "the image times the factor; 1 changes "
    .. "nothing, 0 makes black",
  ["transforms.functional.adjust_contrast"] = "the image's distance from its mean grey times "
    .. "the factor; 1 changes nothing",
  ["transforms.functional.adjust_hue"] = "the colours turned by -0.5 to 0.5 of the wheel of "
    .. "colours",
  ["transforms.functional.adjust_saturation"] = "the distance from grey times the factor; 1 "
    .. "changes nothing, 0 makes grey",
  ["transforms.functional.adjust_sharpness"] = "factor 0 smooths, 1 changes nothing, 2 "
    .. "sharpens; uint8",
  ["transforms.functional.autocontrast"] = "the darkest value of a channel becomes 0, the "
    .. "brightest 255; uint8",
  ["transforms.functional.center_crop"] = "center_crop(img, size): the middle of the image; "
    .. "size: a number, or {height, width}",
  ["transforms.functional.equalize"] = "the values of each channel become equally frequent; "
    .. "uint8",
  ["transforms.functional.hflip"] = "left and right exchanged",
  ["transforms.functional.invert"] = "each value v becomes 255 - v; uint8",
  ["transforms.functional.pad"] = "pad(img, padding, {fill = 0, padding_mode = \"constant\"}): "
    .. "a border, as transforms.Pad",
  ["transforms.functional.posterize"] = "so many of the upper bits of each value are kept; "
    .. "uint8",
  ["transforms.functional.resize"] = "resize(img, size, {interpolation = \"bilinear\", "
    .. "max_size?, antialias = true}): as transforms.Resize",
  ["transforms.functional.rgb_to_grayscale"] = "rgb_to_grayscale(img, num_output_channels = "
    .. "1): without colour, in 1 or 3 channels",
  ["transforms.functional.rotate"] = "rotate(img, degrees, {interpolation = \"nearest\", fill "
    .. "= 0}): counter-clockwise; uint8",
  ["transforms.functional.solarize"] = "values of at least the threshold are inverted; uint8",
  ["transforms.functional.vflip"] = "top and bottom exchanged",
}

-- Layers of one, two and three dims: $x stands for the dims of an input, $sizes for those of what
-- an adaptive pool gives, and $d for the number of dims.
local WINDOW = "; stride: kernel_size where none is given"
local OF_DIMS = {
  AdaptiveAvgPool = "x (N, C, $x), or without N -> (N, C, $sizes)",
  AdaptiveMaxPool = "x (N, C, $x), or without N -> (N, C, $sizes)",
  AvgPool = "x (N, C, $x), or without N -> each side (size + 2 padding - kernel_size) // stride "
    .. "+ 1" .. WINDOW,
  BatchNorm = "x (N, C, $x) -> the same shape; by the batch in training, by running_mean and "
    .. "running_var in evaluation",
  Conv = "x (N, in_channels, $x), or without N -> (N, out_channels, $x), each side (size + "
    .. "2 padding - dilation (kernel_size - 1) - 1) // stride + 1",
  ConvTranspose = "x (N, in_channels, $x), or without N -> (N, out_channels, $x), each side "
    .. "(size - 1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1; "
    .. "layer(x, output_size) chooses among the sizes",
  InstanceNorm = "x (N, C, $x), or without N -> the same shape",
  LPPool = "x (N, C, $x) -> (sum of x^norm_type)^(1 / norm_type) of each window" .. WINDOW,
  LazyBatchNorm = "BatchNorm$dd whose num_features is that of its first input",
  LazyConv = "Conv$dd whose in_channels is that of its first input",
  LazyConvTranspose = "ConvTranspose$dd whose in_channels is that of its first input",
  LazyInstanceNorm = "InstanceNorm$dd whose num_features is that of its first input",
  MaxPool = "x (N, C, $x), or without N -> each side (size + 2 padding - dilation (kernel_size "
    .. "- 1) - 1) // stride + 1" .. WINDOW,
  MaxUnpool = "x (N, C, $x) and the positions that MaxPool$dd gives with return_indices -> each "
    .. "side (size - 1) stride + kernel_size - 2 padding, or output_size",
}
local BORDERS = {
  Circular = "what lies at the other end", Constant = "value",
  Reflection = "a mirror image without the edge", Replication = "the edge repeated",
  Zero = "zeros",
}
for kind, border in next, BORDERS do
  OF_DIMS[kind .. "Pad"] = "x (N, C, $x), or without N, with a border of " .. border
    .. "; padding: a number of elements, or {$sides}"
end

local DIMS = {
  {d = "1", x = "L", sizes = "output_size", sides = "left, right"},
  {d = "2", x = "H, W", sizes = "height, width", sides = "left, right, top, bottom"},
  {d = "3", x = "D, H, W", sizes = "depth, height, width",
    sides = "left, right, top, bottom, front, back"},
}
for dims, words in ipairs(DIMS) do
  for name, text in next, OF_DIMS do
    texts[("nn.%s%dd"):format(name, dims)] = text:gsub("%$dd", words.d .. "d")
      :gsub("%$(%l+)", words)
  end
end
texts["nn.BatchNorm1d"] = texts["nn.BatchNorm1d"]:gsub("^x", "x (N, C) or")

local SMALL_STEM = "; small_stem: the first convolution is 3x3 and keeps the size, without a "
  .. "pool, for images of 32x32"

-- Families of models by the beginning of their names, with what their options mean.
local FAMILIES = {
  {"^convnext_", "ConvNeXt (Z. Liu et al. 2022)"},
  {"^densenet", "DenseNet (G. Huang et al. 2017)"},
  {"^efficientnet_", "EfficientNet (M. Tan, Q. Le 2019)", "; small_stem: the first convolution "
    .. "keeps the size, for small images"},
  {"^resnet", "ResNet (K. He et al. 2015)", SMALL_STEM},
  {"^resnext", "ResNeXt (S. Xie et al. 2017)", SMALL_STEM},
  {"^wide_resnet", "wide ResNet (S. Zagoruyko, N. Komodakis 2016)", SMALL_STEM},
  {"^swin_", "Swin transformer (Z. Liu et al. 2021)"},
  {"^vgg", "VGG (K. Simonyan, A. Zisserman 2014)", "; small_head: one linear layer, not three, "
    .. "for images of 32x32"},
  {"^vit_", "vision transformer (A. Dosovitskiy et al. 2020)"},
}

return setmetatable(texts, {__index = function(_, name)
  local model = type(name) == "string" and name:match "^models%.(.*)$"
  for _, family in ipairs(model and FAMILIES or {}) do
    if model:find(family[1]) then
      return family[2] .. ", torchvision's names: images (N, 3, H, W) -> (N, num_classes)"
        .. (family[3] or "") .. "; weights: the path of a file of them, or what dm.load gave"
    end
  end
end})
