-- Examples of dm.nn, dm.models, dm.transforms and dm.vision, for dm.help and the
-- reference. Each is a few lines of Lua in which dm, nn, optim, amp, data and F are there. A line
-- `expression  --> value` shows a value: a number, a string, a boolean, nil, a table, or the
-- elements of a tensor as nested tables. docs_spec runs the lines, and compares the values.
return {
  ["models"] = [[
    local model = dm.models.lenet{num_classes = 3}
    model(dm.rand(1, 1, 28, 28)).shape  --> {1, 3}
    -- weights: the path of a file, or what dm.load or a state_dict gives
    local same = dm.models.lenet{num_classes = 3, weights = model:state_dict()}]],
  ["models.alexnet"] = [[
    local model = dm.models.alexnet{num_classes = 10}:eval() -- 57.0 million parameters
    model(dm.rand(1, 3, 224, 224)).shape  --> {1, 10}]],
  ["models.bert"] = [[
    local model = dm.models.bert{vocab_size = 100, hidden_size = 32, intermediate_size = 64,
      num_hidden_layers = 2, num_attention_heads = 4}
    model(dm.tensor{{5, 17, 100}}).shape  --> {1, 3, 100}]],
  ["models.convnext_base"] = [[
    local model = dm.models.convnext_base{num_classes = 10}:eval() -- 87.6 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.convnext_large"] = [[
    local model = dm.models.convnext_large{num_classes = 10}:eval() -- 196.2 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.convnext_small"] = [[
    local model = dm.models.convnext_small{num_classes = 10}:eval() -- 49.5 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.convnext_tiny"] = [[
    local model = dm.models.convnext_tiny{num_classes = 10}:eval() -- 27.8 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.densenet121"] = [[
    local model = dm.models.densenet121{num_classes = 10}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.densenet161"] = [[
    local model = dm.models.densenet161{num_classes = 10, growth_rate = 8}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.densenet169"] = [[
    local model = dm.models.densenet169{num_classes = 10, growth_rate = 8}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.densenet201"] = [[
    local model = dm.models.densenet201{num_classes = 10, growth_rate = 8}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.efficientnet_b0"] = [[
    local model = dm.models.efficientnet_b0{num_classes = 10, small_stem = true}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.efficientnet_b1"] = [[
    local model = dm.models.efficientnet_b1{num_classes = 10}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.efficientnet_b2"] = [[
    local model = dm.models.efficientnet_b2{num_classes = 10}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.efficientnet_b3"] = [[
    local model = dm.models.efficientnet_b3{num_classes = 10}:eval() -- 10.7 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.efficientnet_b4"] = [[
    local model = dm.models.efficientnet_b4{num_classes = 10}:eval() -- 17.6 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.gpt2"] = [[
    local model = dm.models.gpt2{n_layer = 2, n_head = 4, n_embd = 32, vocab_size = 100}
    local ids = dm.tensor{{5, 17, 100}} -- tokens count from 1
    model(ids).shape  --> {1, 3, 100}
    model:eval():generate(ids, 4).shape  --> {1, 7}
    local _ <close> = dm.no_grad()
    local cache = model:cache() -- keys and values of the tokens read
    model(ids, cache)
    model(dm.tensor{{8}}, cache).shape  --> {1, 1, 100}
    cache.length  --> 4]],
  ["models.lenet"] = [[
    local model = dm.models.lenet()
    model(dm.rand(8, 1, 28, 28)).shape  --> {8, 10}
    dm.models.lenet{in_channels = 3, padding = 0}(dm.rand(8, 3, 32, 32)).shape  --> {8, 10}]],
  ["models.lstm_lm"] = [[
    local model = dm.models.lstm_lm{vocab_size = 100, width = 32}
    local ids = dm.tensor{{5, 17, 100}} -- tokens count from 1
    model(ids).shape  --> {1, 3, 100}
    model:eval():generate(ids, 4).shape  --> {1, 7}]],
  ["models.mobilenet_v2"] = [[
    local model = dm.models.mobilenet_v2{num_classes = 10, width_mult = 0.5}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.resnet101"] = [[
    local model = dm.models.resnet101{num_classes = 10}:eval() -- 42.5 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.resnet152"] = [[
    local model = dm.models.resnet152{num_classes = 10}:eval() -- 58.2 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.resnet18"] = [[
    local model = dm.models.resnet18{num_classes = 10, small_stem = true}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.resnet34"] = [[
    local model = dm.models.resnet34{num_classes = 10}:eval() -- 21.3 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.resnet50"] = [[
    local model = dm.models.resnet50{num_classes = 10}:eval() -- 23.5 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.resnext101_32x8d"] = [[
    local model = dm.models.resnext101_32x8d{num_classes = 10}:eval() -- 86.8 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.resnext101_64x4d"] = [[
    local model = dm.models.resnext101_64x4d{num_classes = 10}:eval() -- 81.4 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.resnext50_32x4d"] = [[
    local model = dm.models.resnext50_32x4d{num_classes = 10}:eval() -- 23.0 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.swin_b"] = [[
    local model = dm.models.swin_b{num_classes = 10}:eval() -- 86.8 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.swin_s"] = [[
    local model = dm.models.swin_s{num_classes = 10}:eval() -- 48.8 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.swin_t"] = [[
    local model = dm.models.swin_t{num_classes = 10}:eval() -- 27.5 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.unet"] = [[
    local model = dm.models.unet{num_classes = 3, width = 8, depth = 2}
    model(dm.rand(1, 3, 32, 48)).shape  --> {1, 3, 32, 48}]],
  ["models.vgg11"] = [[
    local model = dm.models.vgg11{num_classes = 10, small_head = true}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.vgg11_bn"] = [[
    local model = dm.models.vgg11_bn{num_classes = 10, small_head = true}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.vgg13"] = [[
    local model = dm.models.vgg13{num_classes = 10, small_head = true}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.vgg13_bn"] = [[
    local model = dm.models.vgg13_bn{num_classes = 10, small_head = true}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.vgg16"] = [[
    local model = dm.models.vgg16{num_classes = 10, small_head = true}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.vgg16_bn"] = [[
    local model = dm.models.vgg16_bn{num_classes = 10, small_head = true}:eval()
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.vgg19"] = [[
    local model = dm.models.vgg19{num_classes = 10}:eval() -- 139.6 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.vgg19_bn"] = [[
    local model = dm.models.vgg19_bn{num_classes = 10}:eval() -- 139.6 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.vit_b_16"] = [[
    local model = dm.models.vit_b_16{image_size = 32, patch_size = 8, num_layers = 2,
      hidden_dim = 64, num_heads = 4, mlp_dim = 128, num_classes = 10}
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.vit_s_16"] = [[
    local model = dm.models.vit_s_16{image_size = 32, num_layers = 2, num_classes = 10}
    model(dm.rand(1, 3, 32, 32)).shape  --> {1, 10}]],
  ["models.wide_resnet101_2"] = [[
    local model = dm.models.wide_resnet101_2{num_classes = 10}:eval() -- 124.9 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["models.wide_resnet50_2"] = [[
    local model = dm.models.wide_resnet50_2{num_classes = 10}:eval() -- 66.9 million parameters
    model(dm.rand(1, 3, 64, 64)).shape  --> {1, 10}]],
  ["nn"] = [[
    local model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    local loss = nn.CrossEntropyLoss()(model(dm.rand(3, 4)), dm.tensor{1, 2, 1})
    loss:backward()
    model[1].weight.grad.shape  --> {8, 4}]],
  ["nn.AdaptiveAvgPool1d"] = [[
    nn.AdaptiveAvgPool1d(2)(dm.tensor{{1.0, 3.0, 5.0, 7.0}})  --> {{2, 6}}]],
  ["nn.AdaptiveAvgPool2d"] = [[
    nn.AdaptiveAvgPool2d(1)(dm.tensor{{{1.0, 3.0}, {5.0, 7.0}}})  --> {{{4}}}
    nn.AdaptiveAvgPool2d({3, 2})(dm.rand(1, 16, 9, 13)).shape  --> {1, 16, 3, 2}]],
  ["nn.AdaptiveAvgPool3d"] = [[
    nn.AdaptiveAvgPool3d({1, 2, 2})(dm.rand(1, 4, 5, 6, 7)).shape  --> {1, 4, 1, 2, 2}]],
  ["nn.AdaptiveLogSoftmaxWithLoss"] = [[
    -- classes 1 to 100 are frequent, 101 to 500 less so, the others rare
    local head = nn.AdaptiveLogSoftmaxWithLoss(16, 1000, {100, 500})
    local log_probs, loss = head(dm.randn(3, 16), dm.tensor{1, 200, 1000})
    log_probs.shape  --> {3}]],
  ["nn.AdaptiveMaxPool1d"] = [[
    nn.AdaptiveMaxPool1d(2)(dm.tensor{{1.0, 3.0, 7.0, 5.0}})  --> {{3, 7}}]],
  ["nn.AdaptiveMaxPool2d"] = [[
    local pool = nn.AdaptiveMaxPool2d(1, {return_indices = true})
    local y, at = pool(dm.tensor{{{1.0, 3.0}, {9.0, 7.0}}})
    y  --> {{{9}}}
    at  --> {{{3}}}]],
  ["nn.AdaptiveMaxPool3d"] = [[
    nn.AdaptiveMaxPool3d(2)(dm.rand(1, 4, 5, 6, 7)).shape  --> {1, 4, 2, 2, 2}]],
  ["nn.AlphaDropout"] = [[
    local drop = nn.AlphaDropout(0.1) -- behind nn.SELU
    drop(dm.randn(8, 20)).shape  --> {8, 20}
    drop:eval()(dm.tensor{1.0, 2.0})  --> {1, 2}]],
  ["nn.AvgPool1d"] = [[
    nn.AvgPool1d(2)(dm.tensor{{1.0, 3.0, 5.0, 7.0}})  --> {{2, 6}}
    nn.AvgPool1d(2, {stride = 1})(dm.tensor{{1.0, 3.0, 5.0, 7.0}})  --> {{2, 4, 6}}]],
  ["nn.AvgPool2d"] = [[
    nn.AvgPool2d(2)(dm.tensor{{{1.0, 3.0}, {5.0, 7.0}}})  --> {{{4}}}
    nn.AvgPool2d(3, {stride = 2})(dm.rand(1, 8, 31, 31)).shape  --> {1, 8, 15, 15}]],
  ["nn.AvgPool3d"] = [[
    nn.AvgPool3d(2)(dm.rand(1, 4, 8, 8, 8)).shape  --> {1, 4, 4, 4, 4}]],
  ["nn.BCELoss"] = [[
    local probabilities = dm.tensor{0.8, 0.4}
    nn.BCELoss()(probabilities, dm.tensor{1.0, 0.0})  --> 0.367]],
  ["nn.BCEWithLogitsLoss"] = [[
    local scores = dm.tensor{0.0, 0.0} -- before sigmoid: each means 1/2
    nn.BCEWithLogitsLoss()(scores, dm.tensor{1.0, 0.0})  --> 0.6931
    local loss = nn.BCEWithLogitsLoss{pos_weight = dm.tensor(3.0)} -- a 1 counts thrice
    loss(scores, dm.tensor{1.0, 0.0})  --> 1.3863]],
  ["nn.BatchNorm1d"] = [[
    local norm = nn.BatchNorm1d(2)
    norm(dm.tensor{{1.0, 10.0}, {3.0, 30.0}})  --> {{-1, -1}, {1, 1}}
    norm.running_mean  --> {0.2, 2}
    norm:eval()(dm.tensor{{0.2, 2.0}})  --> {{0, 0}}]],
  ["nn.BatchNorm2d"] = [[
    local layers = nn.Sequential(nn.Conv2d(3, 16, 3, {bias = false}), nn.BatchNorm2d(16))
    layers(dm.rand(2, 3, 8, 8)).shape  --> {2, 16, 6, 6}]],
  ["nn.BatchNorm3d"] = [[
    nn.BatchNorm3d(4)(dm.rand(2, 4, 3, 8, 8)).shape  --> {2, 4, 3, 8, 8}]],
  ["nn.Bilinear"] = [[
    local layer = nn.Bilinear(3, 4, 5)
    layer(dm.randn(2, 3), dm.randn(2, 4)).shape  --> {2, 5}]],
  ["nn.CELU"] = [[
    nn.CELU()(dm.tensor{-1.0, 0.0, 2.0})  --> {-0.6321, 0, 2}]],
  ["nn.CTCLoss"] = [[
    -- two steps, one sequence, class 1 (blank) and class 2; the label is 2
    local log_probs = dm.zeros(2, 1, 2):log_softmax(3)
    local steps, labels = dm.tensor{2}, dm.tensor{1} -- how many of each sequence count
    nn.CTCLoss()(log_probs, dm.tensor{{2}}, steps, labels)  --> 0.2877]],
  ["nn.ChannelShuffle"] = [[
    nn.ChannelShuffle(2)(dm.arange(1, 4):view(1, 4, 1)):flatten()  --> {1, 3, 2, 4}]],
  ["nn.CircularPad1d"] = [[
    nn.CircularPad1d(1)(dm.tensor{{1, 2, 3}})  --> {{3, 1, 2, 3, 1}}]],
  ["nn.CircularPad2d"] = [[
    -- {left, right, top, bottom}
    local pad = nn.CircularPad2d({1, 0, 1, 0})
    pad(dm.tensor{{{1, 2}, {3, 4}}})  --> {{{4, 3, 4}, {2, 1, 2}, {4, 3, 4}}}]],
  ["nn.CircularPad3d"] = [[
    nn.CircularPad3d(1)(dm.rand(1, 2, 3, 4, 5)).shape  --> {1, 2, 5, 6, 7}]],
  ["nn.ConstantPad1d"] = [[
    nn.ConstantPad1d(1, 9)(dm.tensor{{1, 2}})  --> {{9, 1, 2, 9}}
    nn.ConstantPad1d({0, 2}, -1)(dm.tensor{{1, 2}})  --> {{1, 2, -1, -1}}]],
  ["nn.ConstantPad2d"] = [[
    -- {left, right, top, bottom}
    nn.ConstantPad2d({1, 0, 1, 0}, 9)(dm.tensor{{{1, 2}}})  --> {{{9, 9, 9}, {9, 1, 2}}}]],
  ["nn.ConstantPad3d"] = [[
    nn.ConstantPad3d(1, 0.5)(dm.rand(1, 2, 3, 4, 5)).shape  --> {1, 2, 5, 6, 7}]],
  ["nn.Conv1d"] = [[
    local conv = nn.Conv1d(4, 8, 5, {padding = 2})
    conv(dm.rand(2, 4, 100)).shape  --> {2, 8, 100}
    nn.Conv1d(4, 8, 5, {stride = 2})(dm.rand(2, 4, 100)).shape  --> {2, 8, 48}]],
  ["nn.Conv2d"] = [[
    local conv = nn.Conv2d(3, 16, 3, {stride = 2, padding = 1})
    conv(dm.rand(1, 3, 32, 32)).shape  --> {1, 16, 16, 16}
    conv.weight.shape  --> {16, 3, 3, 3}
    nn.Conv2d(3, 8, 5, {padding = "same"})(dm.rand(1, 3, 9, 9)).shape  --> {1, 8, 9, 9}]],
  ["nn.Conv3d"] = [[
    local conv = nn.Conv3d(1, 4, {3, 5, 5}, {padding = {1, 2, 2}})
    conv(dm.rand(1, 1, 6, 8, 8)).shape  --> {1, 4, 6, 8, 8}]],
  ["nn.ConvTranspose1d"] = [[
    local up = nn.ConvTranspose1d(8, 4, 4, {stride = 2, padding = 1})
    up(dm.rand(2, 8, 50)).shape  --> {2, 4, 100}]],
  ["nn.ConvTranspose2d"] = [[
    local up = nn.ConvTranspose2d(16, 3, 4, {stride = 2, padding = 1})
    up(dm.rand(1, 16, 8, 8)).shape  --> {1, 3, 16, 16}
    local odd = nn.ConvTranspose2d(16, 3, 3, {stride = 2, padding = 1})
    odd(dm.rand(1, 16, 8, 8), {16, 16}).shape  --> {1, 3, 16, 16}]],
  ["nn.ConvTranspose3d"] = [[
    local up = nn.ConvTranspose3d(8, 4, 2, {stride = 2})
    up(dm.rand(1, 8, 4, 4, 4)).shape  --> {1, 4, 8, 8, 8}]],
  ["nn.CosineEmbeddingLoss"] = [[
    local a, b = dm.tensor{{1.0, 0.0}, {1.0, 0.0}}, dm.tensor{{0.0, 1.0}, {1.0, 1.0}}
    local same = dm.tensor{1, -1} -- 1: to be alike, -1: to differ
    nn.CosineEmbeddingLoss{reduction = "none"}(a, b, same)  --> {1, 0.7071}]],
  ["nn.CosineSimilarity"] = [[
    local a, b = dm.tensor{{1.0, 0.0}, {1.0, 0.0}}, dm.tensor{{0.0, 2.0}, {3.0, 0.0}}
    nn.CosineSimilarity()(a, b)  --> {0, 1}]],
  ["nn.CrossEntropyLoss"] = [[
    local scores = dm.tensor{{2.0, 0.0, 0.0}, {0.0, 3.0, 0.0}} -- (N, classes)
    nn.CrossEntropyLoss()(scores, dm.tensor{1, 2})  --> 0.1672
    nn.CrossEntropyLoss{label_smoothing = 0.1}(scores, dm.tensor{1, 2})  --> 0.3338]],
  ["nn.DataParallel"] = [[
    local model = nn.DataParallel(nn.Linear(4, 2), {device_ids = {}})   -- all GPUs by default
    model(dm.randn(6, 4)).shape  --> {6, 2}
    model.module.weight.shape    --> {2, 4}]],
  ["nn.Dropout"] = [[
    local drop = nn.Dropout(0.5)
    drop(dm.ones(2, 3)).shape  --> {2, 3}
    drop:eval()(dm.ones(3))  --> {1, 1, 1}]],
  ["nn.Dropout1d"] = [[
    local y = nn.Dropout1d(0.5)(dm.ones(1, 4, 3)) -- each channel is all 0 or all 2
    y:amax(3):eq(y:amin(3)):all()  --> true]],
  ["nn.Dropout2d"] = [[
    local y = nn.Dropout2d(0.5)(dm.ones(8, 16, 4, 4)) -- each plane is all 0 or all 2
    y.shape  --> {8, 16, 4, 4}]],
  ["nn.Dropout3d"] = [[
    nn.Dropout3d(0.2)(dm.ones(2, 4, 3, 8, 8)).shape  --> {2, 4, 3, 8, 8}
    nn.Dropout3d(0.2):eval()(dm.ones(1, 1, 1, 1, 2)):flatten()  --> {1, 1}]],
  ["nn.ELU"] = [[
    nn.ELU()(dm.tensor{-1.0, 0.0, 2.0})  --> {-0.6321, 0, 2}
    nn.ELU(0.5)(dm.tensor{-1.0, 0.0, 2.0})  --> {-0.3161, 0, 2}]],
  ["nn.Embedding"] = [[
    local embedding = nn.Embedding(1000, 8)
    embedding(dm.tensor{{1, 2, 1000}}).shape  --> {1, 3, 8}
    nn.Embedding(10, 2, {padding_idx = 1})(dm.tensor{1})  --> {{0, 0}}]],
  ["nn.EmbeddingBag"] = [[
    local bag = nn.EmbeddingBag(1000, 8, {mode = "sum"})
    bag(dm.tensor{{1, 2, 3}, {4, 5, 6}}).shape  --> {2, 8}
    -- two bags of other lengths, which begin at 1 and 3
    bag(dm.tensor{7, 8, 9}, dm.tensor{1, 3}).shape  --> {2, 8}]],
  ["nn.FeatureAlphaDropout"] = [[
    nn.FeatureAlphaDropout(0.2)(dm.randn(2, 4, 5)).shape  --> {2, 4, 5}]],
  ["nn.Flatten"] = [[
    nn.Flatten()(dm.rand(2, 3, 4, 5)).shape  --> {2, 60}
    nn.Flatten(1, 2)(dm.rand(2, 3, 4, 5)).shape  --> {6, 4, 5}]],
  ["nn.Fold"] = [[
    -- columns of 2x2 patches, one a step, back into a 4x4 image
    local columns = nn.Unfold(2, {stride = 2})(dm.ones(1, 1, 4, 4))
    columns.shape  --> {1, 4, 4}
    nn.Fold({4, 4}, 2, {stride = 2})(columns).shape  --> {1, 1, 4, 4}]],
  ["nn.FractionalMaxPool2d"] = [[
    local pool = nn.FractionalMaxPool2d(2, {output_ratio = 0.7})
    pool(dm.rand(1, 3, 20, 20)).shape  --> {1, 3, 14, 14}]],
  ["nn.FractionalMaxPool3d"] = [[
    local pool = nn.FractionalMaxPool3d(2, {output_size = {4, 5, 6}})
    pool(dm.rand(1, 3, 8, 9, 10)).shape  --> {1, 3, 4, 5, 6}]],
  ["nn.GELU"] = [[
    nn.GELU()(dm.tensor{-1.0, 0.0, 1.0})  --> {-0.1587, 0, 0.8413}
    nn.GELU "tanh"(dm.tensor{-1.0, 0.0, 1.0})  --> {-0.1588, 0, 0.8412}]],
  ["nn.GLU"] = [[
    nn.GLU()(dm.tensor{4.0, 6.0, 0.0, 0.0})  --> {2, 3}]],
  ["nn.GRU"] = [[
    local gru = nn.GRU(10, 20, {batch_first = true})
    local y, h = gru(dm.randn(3, 5, 10)) -- 3 sequences of 5 steps
    y.shape  --> {3, 5, 20}
    h.shape  --> {1, 3, 20}]],
  ["nn.GRUCell"] = [[
    local cell, h = nn.GRUCell(10, 20), nil
    for step = 1, 5 do h = cell(dm.randn(3, 10), h) end
    h.shape  --> {3, 20}]],
  ["nn.GaussianNLLLoss"] = [[
    local mean, target, var = dm.tensor{1.0}, dm.tensor{3.0}, dm.tensor{1.0}
    nn.GaussianNLLLoss()(mean, target, var)  --> 2]],
  ["nn.GroupNorm"] = [[
    nn.GroupNorm(1, 2)(dm.tensor{{1.0, 3.0}})  --> {{-1, 1}}
    nn.GroupNorm(4, 16)(dm.rand(2, 16, 8, 8)).shape  --> {2, 16, 8, 8}]],
  ["nn.Hardshrink"] = [[
    nn.Hardshrink(0.5)(dm.tensor{-1.0, 0.2, 2.0})  --> {-1, 0, 2}]],
  ["nn.Hardsigmoid"] = [[
    nn.Hardsigmoid()(dm.tensor{-3.0, 0.0, 3.0})  --> {0, 0.5, 1}]],
  ["nn.Hardswish"] = [[
    nn.Hardswish()(dm.tensor{-4.0, 0.0, 3.0})  --> {0, 0, 3}]],
  ["nn.Hardtanh"] = [[
    nn.Hardtanh()(dm.tensor{-2.0, 0.5, 2.0})  --> {-1, 0.5, 1}
    nn.Hardtanh(0, 6)(dm.tensor{-2.0, 0.5, 8.0})  --> {0, 0.5, 6}]],
  ["nn.HingeEmbeddingLoss"] = [[
    local distances = dm.tensor{0.5, 0.2}
    nn.HingeEmbeddingLoss()(distances, dm.tensor{1, -1})  --> 0.65]],
  ["nn.HuberLoss"] = [[
    local loss = nn.HuberLoss{reduction = "none", delta = 1}
    loss(dm.tensor{1.0, 6.0}, dm.tensor{2.0, 2.0})  --> {0.5, 3.5}]],
  ["nn.Identity"] = [[
    local net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    net[2] = nn.Identity() -- in place of the last layer
    net(dm.ones(1, 4)).shape  --> {1, 8}]],
  ["nn.InstanceNorm1d"] = [[
    nn.InstanceNorm1d(2)(dm.tensor{{{1.0, 3.0}, {10.0, 30.0}}})  --> {{{-1, 1}, {-1, 1}}}]],
  ["nn.InstanceNorm2d"] = [[
    local norm = nn.InstanceNorm2d(3, {affine = true})
    norm(dm.rand(2, 3, 8, 8)).shape  --> {2, 3, 8, 8}
    norm.weight  --> {1, 1, 1}]],
  ["nn.InstanceNorm3d"] = [[
    nn.InstanceNorm3d(3)(dm.rand(2, 3, 4, 8, 8)).shape  --> {2, 3, 4, 8, 8}]],
  ["nn.KLDivLoss"] = [[
    local p, q = dm.tensor{{0.5, 0.5}}, dm.tensor{{0.25, 0.75}}
    nn.KLDivLoss{reduction = "batchmean"}(p:log(), q)  --> 0.1308]],
  ["nn.L1Loss"] = [[
    nn.L1Loss()(dm.tensor{1.0, 2.0}, dm.tensor{1.0, 5.0})  --> 1.5
    nn.L1Loss{reduction = "sum"}(dm.tensor{1.0, 2.0}, dm.tensor{1.0, 5.0})  --> 3]],
  ["nn.LPPool1d"] = [[
    nn.LPPool1d(2, 2)(dm.tensor{{{3.0, 4.0, 0.0, 1.0}}})  --> {{{5, 1}}}]],
  ["nn.LPPool2d"] = [[
    nn.LPPool2d(2, 2)(dm.tensor{{{{1.0, 1.0}, {1.0, 1.0}}}})  --> {{{{2}}}}]],
  ["nn.LPPool3d"] = [[
    nn.LPPool3d(1, 2)(dm.ones(1, 1, 2, 2, 2)):flatten()  --> {8}]],
  ["nn.LSTM"] = [[
    local lstm = nn.LSTM(10, 20, {num_layers = 2, batch_first = true})
    local y, state = lstm(dm.randn(3, 5, 10)) -- 3 sequences of 5 steps
    y.shape  --> {3, 5, 20}
    state[1].shape  --> {2, 3, 20}]],
  ["nn.LSTMCell"] = [[
    local cell = nn.LSTMCell(10, 20)
    local h, c = cell(dm.randn(3, 10))
    h, c = cell(dm.randn(3, 10), {h, c}) -- the next step
    h.shape  --> {3, 20}]],
  ["nn.LayerNorm"] = [[
    nn.LayerNorm(2)(dm.tensor{{1.0, 3.0}, {5.0, 9.0}})  --> {{-1, 1}, {-1, 1}}
    nn.LayerNorm({4, 5}, {bias = false})(dm.rand(2, 3, 4, 5)).shape  --> {2, 3, 4, 5}]],
  ["nn.LazyBatchNorm1d"] = [[
    local norm = nn.LazyBatchNorm1d()
    norm(dm.rand(4, 6)).shape  --> {4, 6}
    norm.num_features  --> 6]],
  ["nn.LazyBatchNorm2d"] = [[
    local norm = nn.LazyBatchNorm2d()
    norm(dm.rand(2, 3, 4, 4)).shape  --> {2, 3, 4, 4}
    norm.num_features  --> 3]],
  ["nn.LazyBatchNorm3d"] = [[
    local norm = nn.LazyBatchNorm3d()
    norm(dm.rand(2, 3, 4, 4, 4)).shape  --> {2, 3, 4, 4, 4}
    norm.num_features  --> 3]],
  ["nn.LazyConv1d"] = [[
    local conv = nn.LazyConv1d(8, 3)
    conv(dm.rand(2, 4, 10)).shape  --> {2, 8, 8}
    conv.weight.shape  --> {8, 4, 3}]],
  ["nn.LazyConv2d"] = [[
    local conv = nn.LazyConv2d(8, 3, {padding = 1})
    conv(dm.rand(1, 3, 10, 10)).shape  --> {1, 8, 10, 10}
    conv.weight.shape  --> {8, 3, 3, 3}]],
  ["nn.LazyConv3d"] = [[
    local conv = nn.LazyConv3d(4, 3)
    conv(dm.rand(1, 2, 5, 5, 5)).shape  --> {1, 4, 3, 3, 3}
    conv.weight.shape  --> {4, 2, 3, 3, 3}]],
  ["nn.LazyConvTranspose1d"] = [[
    local up = nn.LazyConvTranspose1d(4, 2, {stride = 2})
    up(dm.rand(1, 8, 5)).shape  --> {1, 4, 10}
    up.weight.shape  --> {8, 4, 2}]],
  ["nn.LazyConvTranspose2d"] = [[
    local up = nn.LazyConvTranspose2d(4, 2, {stride = 2})
    up(dm.rand(1, 8, 5, 5)).shape  --> {1, 4, 10, 10}
    up.weight.shape  --> {8, 4, 2, 2}]],
  ["nn.LazyConvTranspose3d"] = [[
    local up = nn.LazyConvTranspose3d(4, 2, {stride = 2})
    up(dm.rand(1, 8, 3, 3, 3)).shape  --> {1, 4, 6, 6, 6}]],
  ["nn.LazyInstanceNorm1d"] = [[
    local norm = nn.LazyInstanceNorm1d{affine = true}
    norm(dm.rand(2, 3, 8)).shape  --> {2, 3, 8}
    norm.weight.shape  --> {3}]],
  ["nn.LazyInstanceNorm2d"] = [[
    local norm = nn.LazyInstanceNorm2d{affine = true}
    norm(dm.rand(2, 3, 8, 8)).shape  --> {2, 3, 8, 8}
    norm.weight.shape  --> {3}]],
  ["nn.LazyInstanceNorm3d"] = [[
    local norm = nn.LazyInstanceNorm3d{affine = true}
    norm(dm.rand(2, 3, 4, 8, 8)).shape  --> {2, 3, 4, 8, 8}
    norm.weight.shape  --> {3}]],
  ["nn.LazyLinear"] = [[
    local layer = nn.LazyLinear(5) -- in_features is that of the first input
    layer(dm.ones(2, 7)).shape  --> {2, 5}
    layer.weight.shape  --> {5, 7}]],
  ["nn.LeakyReLU"] = [[
    nn.LeakyReLU(0.1)(dm.tensor{-10.0, 0.0, 2.0})  --> {-1, 0, 2}]],
  ["nn.Linear"] = [[
    local layer = nn.Linear(4, 2)
    layer(dm.ones(3, 4)).shape  --> {3, 2}
    layer.weight.shape  --> {2, 4}
    nn.Linear(4, 2, {bias = false})(dm.zeros(1, 4))  --> {{0, 0}}]],
  ["nn.LinearCrossEntropyLoss"] = [[
    -- the last layer of a language model and its loss, without a matrix of scores
    local loss = nn.LinearCrossEntropyLoss(16, 1000)
    loss(dm.randn(4, 16), dm.tensor{1, 5, 7, 1000}).shape  --> {}
    loss.linear.weight.shape  --> {1000, 16}]],
  ["nn.LocalResponseNorm"] = [[
    nn.LocalResponseNorm(5)(dm.rand(2, 16, 8, 8)).shape  --> {2, 16, 8, 8}
    nn.LocalResponseNorm(1, {alpha = 3, beta = 0.5})(dm.ones(1, 1, 2))  --> {{{0.5, 0.5}}}]],
  ["nn.LogSigmoid"] = [[
    nn.LogSigmoid()(dm.tensor{0.0, 100.0})  --> {-0.6931, 0}]],
  ["nn.LogSoftmax"] = [[
    nn.LogSoftmax(2)(dm.tensor{{0.0, 0.0}, {0.0, 99.0}})  --> {{-0.6931, -0.6931}, {-99, 0}}]],
  ["nn.MSELoss"] = [[
    nn.MSELoss()(dm.tensor{1.0, 2.0}, dm.tensor{1.0, 4.0})  --> 2
    nn.MSELoss{reduction = "none"}(dm.tensor{1.0, 2.0}, dm.tensor{1.0, 4.0})  --> {0, 4}]],
  ["nn.MarginRankingLoss"] = [[
    local a, b = dm.tensor{3.0, 1.0}, dm.tensor{1.0, 2.0}
    local first = dm.tensor{1, 1} -- 1: a is to be the larger, -1: b
    nn.MarginRankingLoss{reduction = "none"}(a, b, first)  --> {0, 1}]],
  ["nn.MaxPool1d"] = [[
    nn.MaxPool1d(2)(dm.tensor{{1, 3, 2, 5}})  --> {{3, 5}}
    nn.MaxPool1d(2, {stride = 1})(dm.tensor{{1, 3, 2, 5}})  --> {{3, 3, 5}}]],
  ["nn.MaxPool2d"] = [[
    nn.MaxPool2d(2)(dm.tensor{{{1, 2, 3, 4}, {5, 6, 7, 8}}})  --> {{{6, 8}}}
    nn.MaxPool2d(3, {stride = 2})(dm.rand(1, 8, 31, 31)).shape  --> {1, 8, 15, 15}]],
  ["nn.MaxPool3d"] = [[
    nn.MaxPool3d(2)(dm.rand(1, 4, 8, 8, 8)).shape  --> {1, 4, 4, 4, 4}]],
  ["nn.MaxUnpool1d"] = [[
    local y, at = nn.MaxPool1d(2, {return_indices = true})(dm.tensor{{1.0, 3.0, 5.0, 2.0}})
    nn.MaxUnpool1d(2)(y, at)  --> {{0, 3, 5, 0}}]],
  ["nn.MaxUnpool2d"] = [[
    local x = dm.tensor{{{1.0, 2.0}, {4.0, 3.0}}}
    local y, at = nn.MaxPool2d(2, {return_indices = true})(x)
    nn.MaxUnpool2d(2)(y, at)  --> {{{0, 0}, {4, 0}}}]],
  ["nn.MaxUnpool3d"] = [[
    local y, at = nn.MaxPool3d(2, {return_indices = true})(dm.rand(1, 3, 4, 4, 4))
    nn.MaxUnpool3d(2)(y, at).shape  --> {1, 3, 4, 4, 4}]],
  ["nn.Mish"] = [[
    nn.Mish()(dm.tensor{-1.0, 0.0, 1.0})  --> {-0.3034, 0, 0.8651}]],
  ["nn.Module"] = [[
    local Net = nn.Module:extend "Net"
    function Net:init(width) self.layer = nn.Linear(width, 1) end
    function Net:forward(x) return self.layer(x):sigmoid() end
    Net(4)(dm.ones(2, 4)).shape  --> {2, 1}]],
  ["nn.Module.add_module"] = [[
    local net = nn.Sequential()
    net:add_module("layer", nn.Linear(4, 2)) -- as net.layer = nn.Linear(4, 2)
    net(dm.ones(1, 4)).shape  --> {1, 2}]],
  ["nn.Module.apply"] = [[
    local net, classes = nn.Sequential(nn.Linear(4, 2), nn.ReLU()), {}
    net:apply(function(m) classes[#classes + 1] = m.class end)
    classes  --> {"Linear", "ReLU", "Sequential"}]],
  ["nn.Module.buffers"] = [[
    -- running_mean, running_var and num_batches_tracked
    #nn.BatchNorm1d(4):buffers()  --> 3
    #nn.Linear(4, 2):buffers()  --> 0]],
  ["nn.Module.children"] = [[
    local net = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    #net:children()  --> 2]],
  ["nn.Module.copy"] = [[
    local layer = nn.Linear(4, 2)
    local other = layer:copy()
    other.bias:equal(layer.bias)  --> true
    nn.init.zeros_(other.bias):equal(layer.bias)  --> false]],
  ["nn.Module.cpu"] = [[
    nn.Linear(4, 2):cpu().weight.device  --> "cpu"]],
  ["nn.Module.cuda"] = [[
    local layer = nn.Linear(4, 2)
    if dm.cuda.is_available() then layer:cuda() end -- before the optimizer is made]],
  ["nn.Module.double"] = [[
    nn.Linear(4, 2):double().weight.dtype  --> "float64"]],
  ["nn.Module.eval"] = [[
    local drop = nn.Dropout(0.5):eval()
    drop(dm.ones(3))  --> {1, 1, 1}
    drop.training  --> false]],
  ["nn.Module.extend"] = [[
    local Block = nn.Module:extend "Block"
    function Block:init(width) self.layer = nn.Linear(width, width) end
    function Block:forward(x) return x + self.layer(x):relu() end
    Block(4)(dm.ones(2, 4)).shape  --> {2, 4}]],
  ["nn.Module.extra_repr"] = [[
    local Scale = nn.Module:extend "Scale"
    function Scale:init(factor) self.factor = factor end
    function Scale:extra_repr() return "factor = " .. self.factor end
    tostring(Scale(3))  --> "Scale(factor = 3)"]],
  ["nn.Module.float"] = [[
    nn.Linear(4, 2):double():float().weight.dtype  --> "float32"]],
  ["nn.Module.forward"] = [[
    local Twice = nn.Module:extend "Twice"
    function Twice.forward(_, x) return 2 * x end
    Twice()(dm.tensor{1, 2})  --> {2, 4}]],
  ["nn.Module.get_buffer"] = [[
    local net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    net:get_buffer "1.running_mean"  --> {0, 0, 0}]],
  ["nn.Module.get_parameter"] = [[
    local net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    net:get_parameter "0.weight".shape  --> {3, 4}]],
  ["nn.Module.get_submodule"] = [[
    local net = nn.Sequential{{"body", nn.Sequential(nn.Linear(4, 3))}}
    net:get_submodule "body.0".out_features  --> 3]],
  ["nn.Module.half"] = [[
    nn.Linear(4, 2):half().weight:element_size()  --> 2]],
  ["nn.Module.init"] = [[
    local Head = nn.Module:extend "Head"
    function Head:init(inputs, classes) self.layer = nn.Linear(inputs, classes) end
    Head(8, 3).layer.out_features  --> 3]],
  ["nn.Module.load_state_dict"] = [[
    local one, two = nn.Linear(4, 2), nn.Linear(4, 2)
    two:load_state_dict(one:state_dict())
    two.weight:equal(one.weight)  --> true
    two:load_state_dict({bias = dm.ones(2)}, false).missing_keys  --> {"weight"}]],
  ["nn.Module.modules"] = [[
    local net = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    #net:modules()  --> 3]],
  ["nn.Module.named_buffers"] = [[
    local names = {}
    for name in nn.BatchNorm1d(4):named_buffers() do names[#names + 1] = name end
    names  --> {"running_mean", "running_var", "num_batches_tracked"}]],
  ["nn.Module.named_children"] = [[
    local net, names = nn.Sequential{{"up", nn.Linear(2, 4)}, {"act", nn.ReLU()}}, {}
    for name, child in net:named_children() do names[#names + 1] = name end
    names  --> {"up", "act"}]],
  ["nn.Module.named_modules"] = [[
    local net, names = nn.Sequential(nn.Linear(4, 2), nn.ReLU()), {}
    for name, module in net:named_modules() do names[#names + 1] = name end
    names  --> {"", "0", "1"}]],
  ["nn.Module.named_parameters"] = [[
    local net, names = nn.Sequential(nn.Linear(4, 2), nn.ReLU()), {}
    for name, p in net:named_parameters() do names[#names + 1] = name end
    names  --> {"0.weight", "0.bias"}]],
  ["nn.Module.parameters"] = [[
    local model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    #model:parameters()  --> 4
    local optimizer = optim.AdamW(model:parameters(), {lr = 1e-3})]],
  ["nn.Module.register_buffer"] = [[
    local Mean = nn.Module:extend "Mean"
    function Mean:init(n) self:register_buffer("mean", dm.zeros(n)) end
    Mean(2):state_dict().mean  --> {0, 0}
    #Mean(2):parameters()  --> 0]],
  ["nn.Module.register_forward_hook"] = [[
    local layer, seen = nn.Linear(4, 2), nil
    local hook = layer:register_forward_hook(function(_, inputs, output) seen = output end)
    layer(dm.ones(3, 4)) -- hook:remove() ends it
    seen.shape  --> {3, 2}]],
  ["nn.Module.register_forward_pre_hook"] = [[
    local layer = nn.Identity()
    layer:register_forward_pre_hook(function(_, inputs) return 2 * inputs[1] end)
    layer(dm.tensor{1, 2})  --> {2, 4}]],
  ["nn.Module.register_full_backward_hook"] = [[
    local layer, seen = nn.Linear(4, 2), nil
    layer:register_full_backward_hook(function(_, grad_in, grad_out) seen = grad_out end)
    layer(dm.ones(3, 4, {requires_grad = true})):sum():backward()
    seen[1].shape  --> {3, 2}]],
  ["nn.Module.register_full_backward_pre_hook"] = [[
    local layer, x = nn.Identity(), dm.ones(2, {requires_grad = true})
    layer:register_full_backward_pre_hook(function(_, grad) return {3 * grad[1]} end)
    layer(x):sum():backward()
    x.grad  --> {3, 3}]],
  ["nn.Module.register_module"] = [[
    local net = nn.Sequential()
    net:register_module("layer", nn.Linear(4, 2)) -- another name of add_module
    net.layer.out_features  --> 2]],
  ["nn.Module.register_parameter"] = [[
    local layer = nn.Identity()
    layer:register_parameter("scale", nn.Parameter(dm.ones(2))) -- as layer.scale = ...
    layer.scale  --> {1, 1}]],
  ["nn.Module.requires_grad_"] = [[
    local net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    net[1]:requires_grad_(false) -- frozen: the optimizer leaves it
    net[1].weight.requires_grad  --> false
    net[2].weight.requires_grad  --> true]],
  ["nn.Module.set_submodule"] = [[
    local net = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    net:set_submodule("1", nn.GELU())
    net[2].class  --> "GELU"]],
  ["nn.Module.state_dict"] = [[
    local state = nn.Linear(4, 2):state_dict()
    state.weight.shape  --> {2, 4}
    state.bias.shape  --> {2}]],
  ["nn.Module.summary"] = [[
    local net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    -- the rows of a table, which is printed but for print = false
    #net:summary({1, 4}, {print = false})  --> 3]],
  ["nn.Module.to"] = [[
    local device = dm.cuda.is_available() and "cuda" or "cpu"
    local layer = nn.Linear(4, 2):to(device) -- before the optimizer is made
    layer:to "float64".weight.dtype  --> "float64"]],
  ["nn.Module.train"] = [[
    local net = nn.Sequential(nn.Linear(4, 2), nn.Dropout()):eval()
    net:train() -- dropout and batch norms as in training again
    net[2].training  --> true]],
  ["nn.Module.zero_grad"] = [[
    local layer = nn.Linear(4, 2)
    layer(dm.ones(1, 4)):sum():backward()
    layer:zero_grad()
    layer.bias.grad  --> nil]],
  ["nn.ModuleDict"] = [[
    local heads = nn.ModuleDict{age = nn.Linear(8, 1), kind = nn.Linear(8, 3)}
    heads.kind(dm.rand(2, 8)).shape  --> {2, 3}
    #heads  --> 2
    heads:update{size = nn.Linear(8, 2)}:pop("kind").out_features  --> 3
    heads:keys()  --> {"age", "size"}]],
  ["nn.ModuleList"] = [[
    local blocks, x = nn.ModuleList{nn.Linear(4, 4), nn.Linear(4, 4)}, dm.rand(2, 4)
    for _, block in ipairs(blocks) do x = x + block(x) end
    #blocks:parameters()  --> 4
    blocks:insert(1, nn.ReLU()):pop().in_features  --> 4
    #blocks  --> 2]],
  ["nn.MultiLabelMarginLoss"] = [[
    local scores = dm.tensor{{0.1, 0.2, 0.4, 0.8}}
    local labels = dm.tensor{{4, 1, -1, 2}} -- classes 4 and 1; -1 ends them
    nn.MultiLabelMarginLoss()(scores, labels)  --> 0.85]],
  ["nn.MultiLabelSoftMarginLoss"] = [[
    local scores, labels = dm.zeros(1, 3), dm.tensor{{1.0, 0.0, 1.0}}
    nn.MultiLabelSoftMarginLoss()(scores, labels)  --> 0.6931]],
  ["nn.MultiMarginLoss"] = [[
    nn.MultiMarginLoss()(dm.tensor{{0.1, 0.2, 0.4, 0.8}}, dm.tensor{4})  --> 0.325]],
  ["nn.MultiheadAttention"] = [[
    local attention = nn.MultiheadAttention(16, 4, {batch_first = true})
    local query, memory = dm.rand(2, 5, 16), dm.rand(2, 7, 16)
    local y, weights = attention(query, memory, memory)
    weights.shape  --> {2, 5, 7}]],
  ["nn.NLLLoss"] = [[
    local log_probs = dm.tensor{{-0.5, -2.0}, {-3.0, -0.25}} -- as of nn.LogSoftmax
    nn.NLLLoss()(log_probs, dm.tensor{1, 2})  --> 0.375]],
  ["nn.PReLU"] = [[
    local layer = nn.PReLU()
    layer(dm.tensor{-4.0, 2.0})  --> {-1, 2}
    layer.weight  --> {0.25}]],
  ["nn.PairwiseDistance"] = [[
    local a, b = dm.tensor{{0.0, 0.0}, {1.0, 1.0}}, dm.tensor{{3.0, 4.0}, {1.0, 3.0}}
    nn.PairwiseDistance()(a, b)  --> {5, 2}
    nn.PairwiseDistance(1)(a, b)  --> {7, 2}]],
  ["nn.Parameter"] = [[
    local Scale = nn.Module:extend "Scale"
    function Scale:init() self.factor = nn.Parameter(dm.ones(1)) end
    #Scale():parameters()  --> 1]],
  ["nn.ParameterDict"] = [[
    local p = nn.ParameterDict{scale = dm.ones(3), shift = dm.zeros(3)}
    p.scale.requires_grad  --> true
    #p:parameters()  --> 2]],
  ["nn.ParameterList"] = [[
    local p = nn.ParameterList{dm.ones(3), dm.zeros(3)}
    p[2]  --> {0, 0, 0}
    #p:append(dm.ones(1))  --> 3]],
  ["nn.PixelShuffle"] = [[
    nn.PixelShuffle(2)(dm.tensor{{{1}}, {{2}}, {{3}}, {{4}}})  --> {{{1, 2}, {3, 4}}}
    nn.PixelShuffle(3)(dm.rand(1, 9, 4, 4)).shape  --> {1, 1, 12, 12}]],
  ["nn.PixelUnshuffle"] = [[
    nn.PixelUnshuffle(2)(dm.tensor{{{1, 2}, {3, 4}}})  --> {{{1}}, {{2}}, {{3}}, {{4}}}]],
  ["nn.PoissonNLLLoss"] = [[
    local log_rates, counts = dm.tensor{0.0, 0.0}, dm.tensor{2.0, 0.0}
    nn.PoissonNLLLoss()(log_rates, counts)  --> 1]],
  ["nn.RMSNorm"] = [[
    nn.RMSNorm(2)(dm.tensor{{1.0, 7.0}})  --> {{0.2, 1.4}}]],
  ["nn.RNN"] = [[
    local rnn = nn.RNN(10, 20, {batch_first = true, bidirectional = true})
    local y, h = rnn(dm.randn(3, 5, 10)) -- 3 sequences of 5 steps
    y.shape  --> {3, 5, 40}
    h.shape  --> {2, 3, 20}]],
  ["nn.RNNCell"] = [[
    local cell, h = nn.RNNCell(10, 20), nil
    for step = 1, 5 do h = cell(dm.randn(3, 10), h) end
    h.shape  --> {3, 20}]],
  ["nn.RReLU"] = [[
    local layer = nn.RReLU{lower = 0.1, upper = 0.3}
    layer(dm.tensor{2.0})  --> {2}
    layer:eval() -- from now on the slope in the middle
    layer(dm.tensor{-10.0})  --> {-2}]],
  ["nn.ReLU"] = [[
    nn.ReLU()(dm.tensor{-1, 0, 2})  --> {0, 0, 2}]],
  ["nn.ReLU6"] = [[
    nn.ReLU6()(dm.tensor{-1, 3, 9})  --> {0, 3, 6}]],
  ["nn.ReflectionPad1d"] = [[
    nn.ReflectionPad1d(2)(dm.tensor{{1, 2, 3}})  --> {{3, 2, 1, 2, 3, 2, 1}}]],
  ["nn.ReflectionPad2d"] = [[
    -- {left, right, top, bottom}
    local pad = nn.ReflectionPad2d({1, 0, 1, 0})
    pad(dm.tensor{{{1, 2}, {3, 4}}})  --> {{{4, 3, 4}, {2, 1, 2}, {4, 3, 4}}}]],
  ["nn.ReflectionPad3d"] = [[
    nn.ReflectionPad3d(1)(dm.rand(1, 2, 3, 4, 5)).shape  --> {1, 2, 5, 6, 7}]],
  ["nn.ReplicationPad1d"] = [[
    nn.ReplicationPad1d({2, 1})(dm.tensor{{1, 2, 3}})  --> {{1, 1, 1, 2, 3, 3}}]],
  ["nn.ReplicationPad2d"] = [[
    -- {left, right, top, bottom}
    nn.ReplicationPad2d({1, 0, 1, 0})(dm.tensor{{{1, 2}}})  --> {{{1, 1, 2}, {1, 1, 2}}}]],
  ["nn.ReplicationPad3d"] = [[
    nn.ReplicationPad3d(1)(dm.rand(1, 2, 3, 4, 5)).shape  --> {1, 2, 5, 6, 7}]],
  ["nn.SELU"] = [[
    nn.SELU()(dm.tensor{-1.0, 0.0, 1.0})  --> {-1.1113, 0, 1.0507}]],
  ["nn.Sequential"] = [[
    local net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net(dm.ones(3, 4)).shape  --> {3, 2}
    net[3].in_features  --> 8
    nn.Sequential{{"conv", nn.Conv2d(3, 8, 3)}, {"act", nn.ReLU()}}.conv.bias.shape  --> {8}]],
  ["nn.SiLU"] = [[
    nn.SiLU()(dm.tensor{-1.0, 0.0, 1.0})  --> {-0.2689, 0, 0.7311}]],
  ["nn.Sigmoid"] = [[
    nn.Sigmoid()(dm.tensor{-1.0, 0.0, 1.0})  --> {0.2689, 0.5, 0.7311}]],
  ["nn.SmoothL1Loss"] = [[
    local loss = nn.SmoothL1Loss{reduction = "none", beta = 2}
    loss(dm.tensor{3.0, 6.0}, dm.tensor{2.0, 2.0})  --> {0.25, 3}]],
  ["nn.SoftMarginLoss"] = [[
    nn.SoftMarginLoss()(dm.tensor{0.0, 100.0}, dm.tensor{1.0, 1.0})  --> 0.3466]],
  ["nn.Softmax"] = [[
    nn.Softmax(2)(dm.tensor{{0.0, 0.0}, {0.0, math.log(3)}})  --> {{0.5, 0.5}, {0.25, 0.75}}]],
  ["nn.Softmax2d"] = [[
    -- over the channels, here two
    nn.Softmax2d()(dm.zeros(2, 1, 2))  --> {{{0.5, 0.5}}, {{0.5, 0.5}}}]],
  ["nn.Softmin"] = [[
    nn.Softmin(1)(dm.tensor{0.0, math.log(3)})  --> {0.75, 0.25}]],
  ["nn.Softplus"] = [[
    nn.Softplus()(dm.tensor{-1.0, 0.0, 30.0})  --> {0.3133, 0.6931, 30}]],
  ["nn.Softshrink"] = [[
    nn.Softshrink(0.5)(dm.tensor{-1.0, 0.2, 2.0})  --> {-0.5, 0, 1.5}]],
  ["nn.Softsign"] = [[
    nn.Softsign()(dm.tensor{-1.0, 0.0, 3.0})  --> {-0.5, 0, 0.75}]],
  ["nn.SyncBatchNorm"] = [[
    local dist = dm.distributed; dist.init_process_group()
    nn.SyncBatchNorm(2)(dm.tensor{{1.0, 10.0}, {3.0, 30.0}})  --> {{-1, -1}, {1, 1}}
    dist.destroy_process_group()]],
  ["nn.Tanh"] = [[
    nn.Tanh()(dm.tensor{-1.0, 0.0, 1.0})  --> {-0.7616, 0, 0.7616}]],
  ["nn.Tanhshrink"] = [[
    nn.Tanhshrink()(dm.tensor{-1.0, 0.0, 1.0})  --> {-0.2384, 0, 0.2384}]],
  ["nn.Threshold"] = [[
    nn.Threshold(1, -5)(dm.tensor{0.5, 2.0})  --> {-5, 2}]],
  ["nn.Transformer"] = [[
    local net = nn.Transformer(16, 4, 1, 1, 32, {batch_first = true})
    local source, target = dm.rand(2, 7, 16), dm.rand(2, 5, 16)
    net(source, target).shape  --> {2, 5, 16}]],
  ["nn.TransformerDecoder"] = [[
    local layer = nn.TransformerDecoderLayer(16, 4, 32, {batch_first = true})
    local decoder = nn.TransformerDecoder(layer, 2) -- two copies of the layer
    local target, memory = dm.rand(2, 5, 16), dm.rand(2, 7, 16)
    decoder(target, memory, {tgt_is_causal = true}).shape  --> {2, 5, 16}]],
  ["nn.TransformerDecoderLayer"] = [[
    local layer = nn.TransformerDecoderLayer(16, 4, 32, {batch_first = true})
    local target, memory = dm.rand(2, 5, 16), dm.rand(2, 7, 16)
    layer(target, memory).shape  --> {2, 5, 16}]],
  ["nn.TransformerEncoder"] = [[
    local layer = nn.TransformerEncoderLayer(16, 4, 32, {batch_first = true})
    local encoder = nn.TransformerEncoder(layer, 2) -- two copies of the layer
    encoder(dm.rand(2, 7, 16)).shape  --> {2, 7, 16}]],
  ["nn.TransformerEncoderLayer"] = [[
    local layer = nn.TransformerEncoderLayer(16, 4, 32, {batch_first = true})
    layer(dm.rand(2, 7, 16)).shape  --> {2, 7, 16}
    local padding = dm.tensor{{false, false, true}} -- true: nobody looks at that position
    layer(dm.rand(1, 3, 16), {src_key_padding_mask = padding}).shape  --> {1, 3, 16}]],
  ["nn.TripletMarginLoss"] = [[
    local anchor, near = dm.tensor{{0.0, 0.0}}, dm.tensor{{0.0, 1.0}}
    nn.TripletMarginLoss()(anchor, near, dm.tensor{{1.5, 0.0}})  --> 0.5]],
  ["nn.TripletMarginWithDistanceLoss"] = [[
    local function distance(a, b) return (a - b):abs():amax(2) end
    local loss = nn.TripletMarginWithDistanceLoss{distance_function = distance}
    local anchor, near = dm.tensor{{0.0, 0.0}}, dm.tensor{{1.0, 1.0}}
    loss(anchor, near, dm.tensor{{1.5, 0.0}})  --> 0.5]],
  ["nn.Unflatten"] = [[
    nn.Unflatten(2, {3, 4})(dm.rand(2, 12)).shape  --> {2, 3, 4}
    nn.Unflatten(2, {-1, 2, 2})(dm.rand(2, 12)).shape  --> {2, 3, 2, 2}]],
  ["nn.Unfold"] = [[
    nn.Unfold(2)(dm.tensor{{{{1, 2}, {3, 4}}}})  --> {{{1}, {2}, {3}, {4}}}
    nn.Unfold(3, {padding = 1})(dm.rand(1, 2, 8, 8)).shape  --> {1, 18, 64}]],
  ["nn.Upsample"] = [[
    nn.Upsample{scale_factor = 2}(dm.tensor{{{1.0, 2.0}}})  --> {{{1, 1, 2, 2}}}
    local up = nn.Upsample{size = {12, 20}, mode = "bilinear"}
    up(dm.rand(1, 3, 8, 8)).shape  --> {1, 3, 12, 20}]],
  ["nn.UpsamplingBilinear2d"] = [[
    local up = nn.UpsamplingBilinear2d{size = {1, 3}}
    up(dm.tensor{{{{1.0, 3.0}}}})  --> {{{{1, 2, 3}}}}]],
  ["nn.UpsamplingNearest2d"] = [[
    local up = nn.UpsamplingNearest2d{scale_factor = 2}
    up(dm.tensor{{{{1.0, 2.0}}}})  --> {{{{1, 1, 2, 2}, {1, 1, 2, 2}}}}]],
  ["nn.ZeroPad1d"] = [[
    nn.ZeroPad1d({1, 2})(dm.tensor{{1, 2}})  --> {{0, 1, 2, 0, 0}}]],
  ["nn.ZeroPad2d"] = [[
    -- {left, right, top, bottom}
    nn.ZeroPad2d({1, 0, 1, 0})(dm.tensor{{{1, 2}}})  --> {{{0, 0, 0}, {0, 1, 2}}}]],
  ["nn.ZeroPad3d"] = [[
    nn.ZeroPad3d(1)(dm.rand(1, 2, 3, 4, 5)).shape  --> {1, 2, 5, 6, 7}]],
  ["nn.functional"] = [[
    local F = dm.nn.functional -- the ops, and a few functions of several ops
    F.relu(dm.tensor{-1, 2})  --> {0, 2}
    F.mse_loss(dm.tensor{1.0, 2.0}, dm.tensor{1.0, 4.0})  --> 2]],
  ["nn.functional.embedding_bag"] = [[
    local weight = dm.tensor{{1.0, 10.0}, {2.0, 20.0}, {3.0, 30.0}}
    F.embedding_bag(dm.tensor{{1, 3}}, weight)  --> {{2, 20}}
    local ids, offsets = dm.tensor{1, 2, 3}, dm.tensor{1, 3} -- where the bags begin
    F.embedding_bag(ids, weight, offsets, {mode = "sum"})  --> {{3, 30}, {3, 30}}]],
  ["nn.functional.lp_pool1d"] = [[
    F.lp_pool1d(dm.tensor{{{3.0, 4.0, 0.0, 1.0}}}, 2, 2)  --> {{{5, 1}}}]],
  ["nn.functional.lp_pool2d"] = [[
    F.lp_pool2d(dm.ones(1, 1, 2, 4), 2, 2)  --> {{{{2, 2}}}}]],
  ["nn.functional.lp_pool3d"] = [[
    F.lp_pool3d(dm.ones(1, 1, 2, 2, 2), 1, 2)  --> {{{{{8}}}}}]],
  ["nn.functional.normalize"] = [[
    F.normalize(dm.tensor{{3.0, 4.0}, {0.0, 2.0}})  --> {{0.6, 0.8}, {0, 1}}
    F.normalize(dm.tensor{1.0, 3.0}, {p = 1, dim = 1})  --> {0.25, 0.75}]],
  ["nn.functional.triplet_margin_with_distance_loss"] = [[
    local function distance(a, b) return (a - b):abs():amax(2) end
    local near, far = dm.tensor{{1.0, 1.0}}, dm.tensor{{1.5, 0.0}}
    local loss = F.triplet_margin_with_distance_loss
    loss(dm.zeros(1, 2), near, far, {distance_function = distance})  --> 0.5]],
  ["nn.functional.upsample"] = [[
    F.upsample(dm.tensor{{{1.0, 2.0}}}, {scale_factor = 2})  --> {{{1, 1, 2, 2}}}]],
  ["nn.functional.upsample_bilinear"] = [[
    F.upsample_bilinear(dm.tensor{{{{1.0, 3.0}}}}, {1, 3})  --> {{{{1, 2, 3}}}}]],
  ["nn.functional.upsample_nearest"] = [[
    F.upsample_nearest(dm.tensor{{{{1.0, 2.0}}}}, {1, 4})  --> {{{{1, 1, 2, 2}}}}]],
  ["nn.init"] = [[
    local net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net:apply(function(m) if m.class == "Linear" then nn.init.zeros_(m.bias) end end)
    net[3].bias  --> {0, 0}]],
  ["nn.init.calculate_gain"] = [[
    nn.init.calculate_gain "relu"  --> 1.4142
    nn.init.calculate_gain("leaky_relu", 1)  --> 1]],
  ["nn.init.constant_"] = [[
    local layer = nn.Linear(2, 3)
    nn.init.constant_(layer.bias, 0.5)  --> {0.5, 0.5, 0.5}]],
  ["nn.init.dirac_"] = [[
    local conv = nn.Conv1d(1, 1, 3, {padding = 1, bias = false})
    nn.init.dirac_(conv.weight)  --> {{{0, 1, 0}}}
    conv(dm.tensor{{5.0, 6.0, 7.0}})  --> {{5, 6, 7}}]],
  ["nn.init.eye_"] = [[
    nn.init.eye_(dm.empty(2, 3))  --> {{1, 0, 0}, {0, 1, 0}}]],
  ["nn.init.fans"] = [[
    local fan_in, fan_out = nn.init.fans(nn.Conv2d(3, 16, 5).weight)
    fan_in  --> 75
    fan_out  --> 400]],
  ["nn.init.kaiming_normal_"] = [[
    local weight = dm.empty(100, 50)
    nn.init.kaiming_normal_(weight, {nonlinearity = "relu"}) -- deviation sqrt(2 / 50) = 0.2
    math.abs(weight:std():item() - 0.2) < 0.02  --> true]],
  ["nn.init.kaiming_uniform_"] = [[
    local weight = dm.empty(8, 6) -- its bound is sqrt(6 / 6) before a relu
    nn.init.kaiming_uniform_(weight, {nonlinearity = "relu"})
    weight:abs():amax():item() <= 1  --> true]],
  ["nn.init.normal_"] = [[
    local layer = nn.Embedding(10, 4)
    nn.init.normal_(layer.weight, 0, 0.02).shape  --> {10, 4}]],
  ["nn.init.ones_"] = [[
    nn.init.ones_(dm.empty(3))  --> {1, 1, 1}]],
  ["nn.init.orthogonal_"] = [[
    local q = nn.init.orthogonal_(dm.empty(2, 3))
    q:matmul(q:t()):allclose(dm.eye(2), {atol = 1e-5})  --> true]],
  ["nn.init.sparse_"] = [[
    local weight = nn.init.sparse_(dm.empty(10, 4), 0.3) -- three zeros in each column
    weight:eq(0):sum(1)  --> {3, 3, 3, 3}]],
  ["nn.init.trunc_normal_"] = [[
    local weight = nn.init.trunc_normal_(dm.empty(10, 10), {std = 2, a = -1, b = 1})
    weight:abs():amax():item() <= 1  --> true]],
  ["nn.init.uniform_"] = [[
    local weight = nn.init.uniform_(dm.empty(10, 10), -0.1, 0.1)
    weight:abs():amax():item() <= 0.1001  --> true]],
  ["nn.init.xavier_normal_"] = [[
    local layer = nn.Linear(60, 40) -- deviation gain sqrt(2 / (60 + 40))
    nn.init.xavier_normal_(layer.weight, nn.init.calculate_gain "tanh")
    layer.weight.shape  --> {40, 60}]],
  ["nn.init.xavier_uniform_"] = [[
    local weight = dm.empty(3, 3) -- its bound is sqrt(6 / (3 + 3))
    nn.init.xavier_uniform_(weight):abs():amax():item() <= 1  --> true]],
  ["nn.init.zeros_"] = [[
    local layer = nn.Linear(2, 3)
    nn.init.zeros_(layer.bias)  --> {0, 0, 0}]],
  ["nn.isinstance"] = [[
    nn.isinstance(nn.Linear(2, 3), nn.Linear)  --> true
    nn.isinstance(nn.ReLU(), nn.Module)  --> true
    nn.isinstance(nn.ReLU(), {nn.Linear, nn.Conv2d})  --> false]],
  ["nn.parallel"] = [[
    dm.distributed.init_process_group()
    local model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    model(dm.ones(2, 4)):sum():backward() -- the mean over all processes
    model.module.bias.grad:item()  --> 2.0
    dm.distributed.destroy_process_group()]],
  ["nn.parallel.ColumnParallelLinear"] = [[
    dm.distributed.init_process_group()
    local model = nn.Sequential{
      nn.parallel.ColumnParallelLinear(4, 6, {gather_output = false}), -- each rank some of the 6
      nn.ReLU(),
      nn.parallel.RowParallelLinear(6, 2, {input_is_parallel = true})} -- the sum over the ranks
    model(dm.ones(3, 4)).shape  --> {3, 2}
    model:state_dict()["0.weight"].shape  --> {6, 4}
    dm.distributed.destroy_process_group()]],
  ["nn.parallel.DistributedDataParallel"] = [[
    dm.distributed.init_process_group()
    local model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1), {broadcast_buffers = false})
    model:no_sync(function() model(dm.ones(2, 4)):sum():backward() end) -- sends nothing
    model(dm.ones(2, 4)):sum():backward()
    model.module.bias.grad:item()  --> 4.0
    local shared = nn.parallel.DistributedDataParallel(nn.Linear(4, 1), {shards = 2})
    local loss = shared:each_shard(function(x) -- the same bits on one and two processes
      local mean = shared(x):square():mean()
      mean:backward()
      return mean
    end, dm.ones(2, 4))
    dm.distributed.destroy_process_group()]],
  ["nn.parallel.fully_shard"] = [[
    dm.distributed.init_process_group()
    local model = nn.Sequential{nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)}
    nn.parallel.fully_shard(model[1])            -- blocks first, then all: of n ranks each has
    nn.parallel.fully_shard(model)               -- an n-th of the parameters, and of what follows
    local optimizer = optim.AdamW(model:parameters())
    model(dm.ones(2, 4)):sum():backward()
    optimizer:step()
    model:state_dict()["0.weight"].shape  --> {8, 4}
    dm.distributed.destroy_process_group()]],
  ["nn.parallel.RowParallelLinear"] = [[
    dm.distributed.init_process_group()
    local layer = nn.parallel.RowParallelLinear(6, 2) -- takes the whole input, and divides it
    layer:load_state_dict(nn.Linear(6, 2):state_dict()) -- a checkpoint of the plain layer
    layer(dm.ones(3, 6)).shape  --> {3, 2}
    dm.distributed.destroy_process_group()]],
  ["nn.parallel.VocabParallelEmbedding"] = [[
    dm.distributed.init_process_group()
    local rows = nn.parallel.VocabParallelEmbedding(10, 4, {padding_idx = 1})
    rows(dm.tensor{1, 10})[1]  --> {0, 0, 0, 0}
    rows:state_dict().weight.shape  --> {10, 4}
    dm.distributed.destroy_process_group()]],
  ["nn.parallel.LocalSGD"] = [[
    dm.distributed.init_process_group()
    local net = nn.Linear(4, 1)
    local model = nn.parallel.LocalSGD(net, {every = 2, outer = optim.SGD(net:parameters(),
      {lr = 0.7, momentum = 0.9, nesterov = true})})     -- DiLoCo; without outer the mean alone
    local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
    for step = 1, 3 do
      optimizer:zero_grad()
      model(dm.ones(2, 4)):sum():backward()              -- of this process alone
      optimizer:step()
      model:average_parameters()                         -- over all processes after step 2
    end
    model:state_dict().since  --> 1
    model:average_parameters{now = true}  --> true
    dm.distributed.destroy_process_group()]],
  ["nn.utils"] = [[
    local net = nn.Linear(4, 2)
    net(dm.rand(8, 4)):sum():backward()
    local norm = nn.utils.clip_grad_norm_(net:parameters(), 1)
    nn.utils.parameters_to_vector(net:parameters()).shape  --> {10}]],
  ["nn.utils.checkpoint"] = [[
    local net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4))
    local x = dm.rand(8, 4, {requires_grad = true})
    nn.utils.checkpoint(net, x):sum():backward() -- runs net twice, keeps none of its values
    x.grad.shape  --> {8, 4}]],
  ["nn.utils.checkpoint_sequential"] = [[
    local net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    local x = dm.rand(8, 4, {requires_grad = true})
    nn.utils.checkpoint_sequential(net, 2, x).shape  --> {8, 64}]],
  ["nn.utils.clip_grad_norm_"] = [[
    local w = nn.Parameter(dm.zeros(2))
    w.grad = dm.tensor{3.0, 4.0}
    nn.utils.clip_grad_norm_({w}, 1)  --> 5
    w.grad  --> {0.6, 0.8}]],
  ["nn.utils.clip_grad_value_"] = [[
    local w = nn.Parameter(dm.zeros(3))
    w.grad = dm.tensor{-3.0, 0.5, 4.0}
    nn.utils.clip_grad_value_({w}, 1)
    w.grad  --> {-1, 0.5, 1}]],
  ["nn.utils.clip_grads_with_norm_"] = [[
    local w = nn.Parameter(dm.zeros(2))
    w.grad = dm.tensor{3.0, 4.0}
    nn.utils.clip_grads_with_norm_({w}, 1, nn.utils.get_total_norm{w.grad})
    w.grad  --> {0.6, 0.8}]],
  ["nn.utils.fuse_conv_bn_eval"] = [[
    local conv, norm = nn.Conv2d(3, 8, 3):eval(), nn.BatchNorm2d(8):eval()
    local fused, x = nn.utils.fuse_conv_bn_eval(conv, norm), dm.rand(1, 3, 5, 5)
    fused(x):allclose(norm(conv(x)), {atol = 1e-5})  --> true]],
  ["nn.utils.fuse_conv_bn_weights"] = [[
    local w, mean, var = dm.ones(2, 3, 1), dm.tensor{1, 2}, dm.tensor{4, 1}
    local weight, bias = nn.utils.fuse_conv_bn_weights(w, nil, mean, var, 0)
    weight:sum(2)  --> {{1.5}, {3}}
    bias  --> {-0.5, -2}]],
  ["nn.utils.fuse_linear_bn_eval"] = [[
    local linear, norm = nn.Linear(4, 3):eval(), nn.BatchNorm1d(3):eval()
    local fused, x = nn.utils.fuse_linear_bn_eval(linear, norm), dm.rand(2, 4)
    fused(x):allclose(norm(linear(x)), {atol = 1e-5})  --> true]],
  ["nn.utils.fuse_linear_bn_weights"] = [[
    local w, b, mean, var = dm.ones(2, 3), dm.ones(2), dm.tensor{1, 2}, dm.tensor{4, 1}
    local weight, bias = nn.utils.fuse_linear_bn_weights(w, b, mean, var, 0)
    weight:sum(2)  --> {1.5, 3}
    bias  --> {0, -1}]],
  ["nn.utils.get_total_norm"] = [[
    nn.utils.get_total_norm{dm.tensor{3.0}, dm.tensor{4.0}}  --> 5
    nn.utils.get_total_norm({dm.tensor{3.0}, dm.tensor{4.0}}, {norm_type = "inf"})  --> 4]],
  ["nn.utils.parameters_to_vector"] = [[
    local net = nn.Linear(4, 2)
    nn.utils.parameters_to_vector(net:parameters()).shape  --> {10}]],
  ["nn.utils.parametrizations"] = [[
    local layer = nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))
    local q = layer.weight -- computed anew at each reading
    q:matmul(q:t()):allclose(dm.eye(3), {atol = 1e-5})  --> true]],
  ["nn.utils.parametrizations.orthogonal"] = [[
    local layer = nn.utils.parametrizations.orthogonal(nn.Linear(3, 5))
    local w = layer.weight -- (5, 3), its columns orthonormal
    w:t():matmul(w):allclose(dm.eye(3), {atol = 1e-5})  --> true]],
  ["nn.utils.parametrizations.spectral_norm"] = [[
    local layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, 5) -- its largest singular value is 10
    nn.utils.parametrizations.spectral_norm(layer)
    layer.weight  --> {{0.5, 0.5}, {0.5, 0.5}}]],
  ["nn.utils.parametrizations.weight_norm"] = [[
    local layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    layer.weight.shape  --> {3, 4}
    -- the lengths, which are trained with the directions, original1
    layer.parametrizations.weight.original0.shape  --> {3, 1}]],
  ["nn.utils.parametrize"] = [[
    local Positive, layer = nn.Module:extend "Positive", nn.Linear(2, 3)
    function Positive.forward(_, x) return x:exp() end
    nn.utils.parametrize.register_parametrization(layer, "weight", Positive())
    layer.weight:gt(0):all()  --> true]],
  ["nn.utils.parametrize.cached"] = [[
    local layer = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
    local _ <close> = nn.utils.parametrize.cached() -- to the end of the block
    for _ = 1, 3 do layer(dm.rand(1, 4)) end -- the weight is computed once]],
  ["nn.utils.parametrize.is_parametrized"] = [[
    local layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    nn.utils.parametrize.is_parametrized(layer)  --> true
    nn.utils.parametrize.is_parametrized(layer, "bias")  --> false]],
  ["nn.utils.parametrize.register_parametrization"] = [[
    local Symmetric, layer = nn.Module:extend "Symmetric", nn.Linear(3, 3)
    function Symmetric.forward(_, x) return x:triu() + x:triu(1):t() end
    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    layer.weight:equal(layer.weight:t())  --> true]],
  ["nn.utils.parametrize.remove_parametrizations"] = [[
    local layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    layer.weight.is_parameter  --> true]],
  ["nn.utils.parametrize.type_before_parametrizations"] = [[
    local layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    nn.utils.parametrize.type_before_parametrizations(layer) == nn.Linear  --> true]],
  ["nn.utils.prune"] = [[
    local layer = nn.Linear(10, 10)
    nn.utils.prune.l1_unstructured(layer, "weight", 0.2) -- the smallest fifth
    layer.weight:eq(0):sum()  --> 20
    nn.utils.prune.remove(layer, "weight") -- the zeros stay, the mask goes]],
  ["nn.utils.prune.custom_from_mask"] = [[
    local layer = nn.Linear(2, 1)
    nn.utils.prune.custom_from_mask(layer, "weight", dm.tensor{{1, 0}})
    layer.weight[{1, 2}]  --> 0]],
  ["nn.utils.prune.global_unstructured"] = [[
    local a, b, prune = nn.Linear(10, 10), nn.Linear(10, 10), nn.utils.prune
    local both = {{a, "weight"}, {b, "weight"}}
    prune.global_unstructured(both, prune.L1Unstructured, {amount = 50})
    a.weight:eq(0):sum() + b.weight:eq(0):sum()  --> 50]],
  ["nn.utils.prune.identity"] = [[
    local layer = nn.Linear(2, 1)
    nn.utils.prune.identity(layer, "weight") -- a mask of ones, to be changed later
    layer.weight_mask  --> {{1, 1}}]],
  ["nn.utils.prune.is_pruned"] = [[
    local layer = nn.Linear(2, 1)
    nn.utils.prune.is_pruned(layer)  --> false
    nn.utils.prune.l1_unstructured(layer, "weight", 1)
    nn.utils.prune.is_pruned(layer)  --> true]],
  ["nn.utils.prune.l1_unstructured"] = [[
    local layer = nn.Linear(10, 10)
    nn.utils.prune.l1_unstructured(layer, "weight", 0.3) -- a share, or a number of elements
    layer.weight:eq(0):sum()  --> 30
    layer.weight_orig.is_parameter  --> true]],
  ["nn.utils.prune.ln_structured"] = [[
    local layer = nn.Linear(10, 4)
    nn.utils.prune.ln_structured(layer, "weight", 0.5, 2, 1) -- half of the rows
    layer.weight_mask:sum(2):sort()  --> {0, 0, 10, 10}]],
  ["nn.utils.prune.random_structured"] = [[
    local layer = nn.Linear(10, 4)
    nn.utils.prune.random_structured(layer, "weight", 1, 1) -- one of the rows
    layer.weight_mask:sum()  --> 30]],
  ["nn.utils.prune.random_unstructured"] = [[
    local layer = nn.Linear(10, 4)
    nn.utils.prune.random_unstructured(layer, "weight", 0.25)
    layer.weight_mask:sum()  --> 30]],
  ["nn.utils.prune.remove"] = [[
    local layer = nn.Linear(10, 4)
    nn.utils.prune.l1_unstructured(layer, "weight", 8)
    nn.utils.prune.remove(layer, "weight") -- the zeros stay, the mask goes
    layer.weight:eq(0):sum()  --> 8]],
  ["nn.utils.remove_spectral_norm"] = [[
    local layer = nn.utils.spectral_norm(nn.Linear(4, 4))
    nn.utils.remove_spectral_norm(layer).weight.is_parameter  --> true]],
  ["nn.utils.remove_weight_norm"] = [[
    local layer = nn.utils.weight_norm(nn.Linear(4, 4))
    nn.utils.remove_weight_norm(layer).weight.is_parameter  --> true]],
  ["nn.utils.rnn"] = [[
    local rnn = nn.utils.rnn
    local x = rnn.pad_sequence({dm.tensor{1, 2, 3}, dm.tensor{4}}, {batch_first = true})
    x  --> {{1, 2, 3}, {4, 0, 0}}
    rnn.pack_padded_sequence(x, {3, 1}, {batch_first = true}).data  --> {1, 4, 2, 3}]],
  ["nn.utils.rnn.is_packed"] = [[
    local packed = nn.utils.rnn.pack_sequence{dm.tensor{1, 2, 3}, dm.tensor{4}}
    nn.utils.rnn.is_packed(packed)  --> true
    nn.utils.rnn.is_packed(packed.data)  --> false]],
  ["nn.utils.rnn.pack_padded_sequence"] = [[
    local x, rnn = dm.tensor{{1, 2, 3}, {4, 0, 0}}, nn.utils.rnn
    local packed = rnn.pack_padded_sequence(x, {3, 1}, {batch_first = true})
    packed.data  --> {1, 4, 2, 3}
    packed.batch_sizes  --> {2, 1, 1}]],
  ["nn.utils.rnn.pack_sequence"] = [[
    local sequences = {dm.rand(2, 10), dm.rand(5, 10)} -- of 2 and 5 steps
    local packed = nn.utils.rnn.pack_sequence(sequences, {enforce_sorted = false})
    local y, h = nn.GRU(10, 20)(packed)
    h.shape  --> {1, 2, 20}]],
  ["nn.utils.rnn.pad_packed_sequence"] = [[
    local packed = nn.utils.rnn.pack_sequence{dm.tensor{1, 2, 3}, dm.tensor{4}}
    local x, lengths = nn.utils.rnn.pad_packed_sequence(packed, {batch_first = true})
    x  --> {{1, 2, 3}, {4, 0, 0}}
    lengths  --> {3, 1}]],
  ["nn.utils.rnn.pad_sequence"] = [[
    local sequences, pad = {dm.tensor{1, 2, 3}, dm.tensor{4}}, nn.utils.rnn.pad_sequence
    pad(sequences, {batch_first = true})  --> {{1, 2, 3}, {4, 0, 0}}
    pad(sequences, {padding_value = -1})  --> {{1, 4}, {2, -1}, {3, -1}}]],
  ["nn.utils.rnn.unpack_sequence"] = [[
    local rnn = nn.utils.rnn
    local list = rnn.unpack_sequence(rnn.pack_sequence{dm.tensor{1, 2, 3}, dm.tensor{4}})
    list[2]  --> {4}]],
  ["nn.utils.rnn.unpad_sequence"] = [[
    local x, unpad = dm.tensor{{1, 2, 3}, {4, 0, 0}}, nn.utils.rnn.unpad_sequence
    unpad(x, dm.tensor{3, 1}, {batch_first = true})[2]  --> {4}]],
  ["nn.utils.spectral_norm"] = [[
    local layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, 5) -- its largest singular value is 10
    nn.utils.spectral_norm(layer)(dm.rand(1, 2)) -- each forward improves the estimate
    layer.weight  --> {{0.5, 0.5}, {0.5, 0.5}}]],
  ["nn.utils.vector_to_parameters"] = [[
    local layer = nn.Linear(2, 1)
    nn.utils.vector_to_parameters(dm.tensor{1.0, 2.0, 3.0}, layer:parameters())
    layer(dm.ones(1, 2))  --> {{6}}]],
  ["nn.utils.weight_norm"] = [[
    local layer = nn.utils.weight_norm(nn.Linear(4, 3))
    layer.weight_g.shape  --> {3, 1}
    layer.weight_v.shape  --> {3, 4}]],
  ["transforms"] = [[
    local T = dm.transforms
    local train = T.Compose{T.RandomCrop(32, {padding = 4}), T.ToTensor()}
    train(dm.zeros(3, 32, 32, {dtype = "uint8"})).dtype  --> "float32"]],
  ["transforms.AutoAugment"] = [[
    local augment = dm.transforms.AutoAugment "cifar10"
    augment(dm.zeros(3, 32, 32, {dtype = "uint8"})).shape  --> {3, 32, 32}]],
  ["transforms.CenterCrop"] = [[
    dm.transforms.CenterCrop(2)(dm.arange(1, 16):view(1, 4, 4))  --> {{{6, 7}, {10, 11}}}
    dm.transforms.CenterCrop({24, 20})(dm.rand(3, 32, 32)).shape  --> {3, 24, 20}]],
  ["transforms.ColorJitter"] = [[
    local jitter = dm.transforms.ColorJitter{brightness = 0.4, hue = 0.1} -- at random
    jitter(dm.rand(3, 8, 8)).shape  --> {3, 8, 8}
    local twice = dm.transforms.ColorJitter{brightness = {2, 2}}
    twice(dm.tensor({{{0, 51, 255}}}, {dtype = "uint8"}))  --> {{{0, 102, 255}}}]],
  ["transforms.Compose"] = [[
    local T = dm.transforms
    local train = T.Compose{T.RandomCrop(32, {padding = 4}), T.RandomHorizontalFlip(),
      T.ToTensor(), T.Normalize({0.5, 0.5, 0.5}, {0.25, 0.25, 0.25})}
    train(dm.zeros(3, 32, 32, {dtype = "uint8"})).shape  --> {3, 32, 32}]],
  ["transforms.CutMix"] = [[
    local mix = dm.transforms.CutMix{num_classes = 3}
    local images, shares = mix(dm.rand(4, 3, 8, 8), dm.tensor{1, 2, 3, 1}) -- and labels
    shares.shape  --> {4, 3}
    shares:sum(2)  --> {1, 1, 1, 1}]],
  ["transforms.Cutout"] = [[
    local cut = dm.transforms.Cutout(2)(dm.ones(1, 8, 8)) -- a 2x2 square of zeros
    cut:eq(0):sum():item() <= 4  --> true]],
  ["transforms.GaussianBlur"] = [[
    local blur = dm.transforms.GaussianBlur(5, {0.1, 2}) -- a deviation drawn for each image
    blur(dm.rand(3, 16, 16)).shape  --> {3, 16, 16}]],
  ["transforms.Grayscale"] = [[
    local red = dm.tensor({{{255}}, {{0}}, {{0}}}, {dtype = "uint8"})
    dm.transforms.Grayscale()(red)  --> {{{76}}}
    dm.transforms.Grayscale(3)(red):flatten()  --> {76, 76, 76}]],
  ["transforms.MixUp"] = [[
    local mix = dm.transforms.MixUp{num_classes = 3, alpha = 0.2}
    local images, shares = mix(dm.rand(4, 3, 8, 8), dm.tensor{1, 2, 3, 1}) -- and labels
    shares.shape  --> {4, 3}
    nn.CrossEntropyLoss()(dm.zeros(4, 3), shares)  --> 1.0986]],
  ["transforms.Normalize"] = [[
    local normalize = dm.transforms.Normalize({0.5}, {0.25}) -- mean and deviation
    normalize(dm.tensor{{{0.0, 0.5, 1.0}}})  --> {{{-2, 0, 2}}}]],
  ["transforms.Pad"] = [[
    local image = dm.tensor{{{5, 6}}}
    dm.transforms.Pad(1)(image)  --> {{{0, 0, 0, 0}, {0, 5, 6, 0}, {0, 0, 0, 0}}}
    local edge = dm.transforms.Pad({2, 0, 1, 0}, {padding_mode = "edge"}) -- left, top ...
    edge(image)  --> {{{5, 5, 5, 6, 6}}}]],
  ["transforms.RandAugment"] = [[
    local augment = dm.transforms.RandAugment{num_ops = 2, magnitude = 9}
    augment(dm.zeros(3, 32, 32, {dtype = "uint8"})).shape  --> {3, 32, 32}]],
  ["transforms.RandomAdjustSharpness"] = [[
    local sharper = dm.transforms.RandomAdjustSharpness(2, 0.5) -- every other image
    sharper(dm.zeros(3, 8, 8, {dtype = "uint8"})).shape  --> {3, 8, 8}]],
  ["transforms.RandomAffine"] = [[
    -- turned by -10 to 10 degrees, moved by a tenth of its sides at most
    local affine = dm.transforms.RandomAffine(10, {translate = {0.1, 0.1}})
    affine(dm.zeros(3, 32, 32, {dtype = "uint8"})).shape  --> {3, 32, 32}]],
  ["transforms.RandomApply"] = [[
    local T = dm.transforms
    local sometimes = T.RandomApply({T.GaussianBlur(3), T.Grayscale(3)}, {p = 0.3})
    sometimes(dm.rand(3, 16, 16)).shape  --> {3, 16, 16}]],
  ["transforms.RandomAutocontrast"] = [[
    local contrast = dm.transforms.RandomAutocontrast(1) -- always
    contrast(dm.tensor({{{100, 110, 120}}}, {dtype = "uint8"}))  --> {{{0, 127, 255}}}]],
  ["transforms.RandomChoice"] = [[
    local T = dm.transforms
    local one = T.RandomChoice({T.GaussianBlur(3), T.Grayscale(3)}, {p = {0.8, 0.2}})
    one(dm.rand(3, 16, 16)).shape  --> {3, 16, 16}]],
  ["transforms.RandomCrop"] = [[
    local crop = dm.transforms.RandomCrop(32, {padding = 4})
    crop(dm.rand(3, 32, 32)).shape  --> {3, 32, 32}
    dm.transforms.RandomCrop({16, 24})(dm.rand(3, 32, 32)).shape  --> {3, 16, 24}]],
  ["transforms.RandomEqualize"] = [[
    local equalize = dm.transforms.RandomEqualize(0.5) -- every other image
    equalize(dm.zeros(3, 8, 8, {dtype = "uint8"})).shape  --> {3, 8, 8}]],
  ["transforms.RandomErasing"] = [[
    local T = dm.transforms
    local train = T.Compose{T.ToTensor(), T.RandomErasing{p = 0.5, value = "random"}}
    train(dm.zeros(3, 32, 32, {dtype = "uint8"})).shape  --> {3, 32, 32}]],
  ["transforms.RandomGrayscale"] = [[
    dm.transforms.RandomGrayscale(0.1)(dm.rand(3, 8, 8)).shape  --> {3, 8, 8}
    local grey = dm.transforms.RandomGrayscale(1)(dm.rand(3, 8, 8))
    grey[1]:equal(grey[3])  --> true]],
  ["transforms.RandomHorizontalFlip"] = [[
    dm.transforms.RandomHorizontalFlip()(dm.rand(3, 8, 8)).shape  --> {3, 8, 8}
    dm.transforms.RandomHorizontalFlip(1)(dm.tensor{{{1, 2, 3}}})  --> {{{3, 2, 1}}}]],
  ["transforms.RandomInvert"] = [[
    local invert = dm.transforms.RandomInvert(1) -- always
    invert(dm.tensor({{{0, 51, 255}}}, {dtype = "uint8"}))  --> {{{255, 204, 0}}}]],
  ["transforms.RandomOrder"] = [[
    local T = dm.transforms
    local any_order = T.RandomOrder{T.RandomHorizontalFlip(), T.GaussianBlur(3)}
    any_order(dm.rand(3, 16, 16)).shape  --> {3, 16, 16}]],
  ["transforms.RandomPerspective"] = [[
    local tilt = dm.transforms.RandomPerspective{distortion_scale = 0.3, p = 1}
    tilt(dm.rand(3, 16, 16)).shape  --> {3, 16, 16}]],
  ["transforms.RandomPosterize"] = [[
    local posterize = dm.transforms.RandomPosterize(1, 1) -- one bit of eight, always
    posterize(dm.tensor({{{0, 127, 255}}}, {dtype = "uint8"}))  --> {{{0, 0, 128}}}]],
  ["transforms.RandomResizedCrop"] = [[
    local crop = dm.transforms.RandomResizedCrop(224, {scale = {0.3, 1}})
    crop(dm.rand(3, 300, 400)).shape  --> {3, 224, 224}]],
  ["transforms.RandomRotation"] = [[
    local turn = dm.transforms.RandomRotation(15) -- by -15 to 15 degrees
    turn(dm.zeros(3, 32, 32, {dtype = "uint8"})).shape  --> {3, 32, 32}
    local quarter = dm.transforms.RandomRotation({90, 90})
    quarter(dm.tensor({{{1, 2}, {3, 4}}}, {dtype = "uint8"}))  --> {{{2, 4}, {1, 3}}}]],
  ["transforms.RandomSolarize"] = [[
    local solarize = dm.transforms.RandomSolarize(128, 1) -- always
    solarize(dm.tensor({{{0, 100, 200}}}, {dtype = "uint8"}))  --> {{{0, 100, 55}}}]],
  ["transforms.RandomVerticalFlip"] = [[
    dm.transforms.RandomVerticalFlip()(dm.rand(3, 8, 8)).shape  --> {3, 8, 8}
    dm.transforms.RandomVerticalFlip(1)(dm.tensor{{{1}, {2}}})  --> {{{2}, {1}}}]],
  ["transforms.Resize"] = [[
    dm.transforms.Resize({8, 6})(dm.rand(3, 16, 16)).shape  --> {3, 8, 6}
    local shorter_side = dm.transforms.Resize(32)
    shorter_side(dm.rand(3, 64, 96)).shape  --> {3, 32, 48}]],
  ["transforms.ToTensor"] = [[
    local image = dm.tensor({{{0, 51, 255}}}, {dtype = "uint8"})
    dm.transforms.ToTensor()(image)  --> {{{0, 0.2, 1}}}]],
  ["transforms.TrivialAugmentWide"] = [[
    local augment = dm.transforms.TrivialAugmentWide()
    augment(dm.zeros(3, 32, 32, {dtype = "uint8"})).shape  --> {3, 32, 32}]],
  ["transforms.classes"] = [[
    local crop = dm.transforms.RandomCrop(8)
    getmetatable(crop) == dm.transforms.classes.RandomCrop  --> true]],
  ["transforms.declare"] = [[
    local T = dm.transforms
    T.declare(T.ToTensor(), 3) ~= nil  --> true
    T.declare(function(x) return x end, 3)  --> nil]],
  ["transforms.functional"] = [[
    local image = dm.tensor({{{0, 51, 100}}}, {dtype = "uint8"})
    dm.transforms.functional.hflip(image)  --> {{{100, 51, 0}}}
    dm.transforms.functional.adjust_brightness(image, 2)  --> {{{0, 102, 200}}}]],
  ["transforms.functional.adjust_brightness"] = [[
    local image = dm.tensor({{{0, 51, 100}}}, {dtype = "uint8"})
    dm.transforms.functional.adjust_brightness(image, 2)  --> {{{0, 102, 200}}}]],
  ["transforms.functional.adjust_contrast"] = [[
    local image = dm.tensor({{{90, 110}}}, {dtype = "uint8"}) -- their mean is 100
    dm.transforms.functional.adjust_contrast(image, 2)  --> {{{80, 120}}}]],
  ["transforms.functional.adjust_hue"] = [[
    local red = dm.tensor({{{255}}, {{0}}, {{0}}}, {dtype = "uint8"})
    dm.transforms.functional.adjust_hue(red, 0.5):flatten()  --> {0, 255, 252}]],
  ["transforms.functional.adjust_saturation"] = [[
    local red = dm.tensor({{{255}}, {{0}}, {{0}}}, {dtype = "uint8"})
    dm.transforms.functional.adjust_saturation(red, 0):flatten()  --> {76, 76, 76}]],
  ["transforms.functional.adjust_sharpness"] = [[
    local image = dm.zeros(3, 8, 8, {dtype = "uint8"})
    dm.transforms.functional.adjust_sharpness(image, 2).shape  --> {3, 8, 8}]],
  ["transforms.functional.autocontrast"] = [[
    local image = dm.tensor({{{100, 110, 120}}}, {dtype = "uint8"})
    dm.transforms.functional.autocontrast(image)  --> {{{0, 127, 255}}}]],
  ["transforms.functional.center_crop"] = [[
    local image = dm.arange(1, 16):view(1, 4, 4)
    dm.transforms.functional.center_crop(image, 2)  --> {{{6, 7}, {10, 11}}}]],
  ["transforms.functional.equalize"] = [[
    local image = dm.zeros(3, 8, 8, {dtype = "uint8"})
    dm.transforms.functional.equalize(image).shape  --> {3, 8, 8}]],
  ["transforms.functional.gaussian_blur"] = [[
    local image = dm.rand(3, 16, 16)
    dm.transforms.functional.gaussian_blur(image, 5, 1.5).shape  --> {3, 16, 16}]],
  ["transforms.functional.hflip"] = [[
    dm.transforms.functional.hflip(dm.tensor{{{1, 2, 3}}})  --> {{{3, 2, 1}}}]],
  ["transforms.functional.invert"] = [[
    local image = dm.tensor({{{0, 51, 255}}}, {dtype = "uint8"})
    dm.transforms.functional.invert(image)  --> {{{255, 204, 0}}}]],
  ["transforms.functional.pad"] = [[
    local image = dm.tensor{{{5, 6}}}
    dm.transforms.functional.pad(image, {1, 0})  --> {{{0, 5, 6, 0}}}]],
  ["transforms.functional.perspective"] = [[
    local corners = {{0, 0}, {7, 0}, {7, 7}, {0, 7}} -- {x, y} from 0, clockwise
    local moved, image = {{2, 1}, {7, 0}, {7, 7}, {0, 7}}, dm.rand(3, 8, 8)
    dm.transforms.functional.perspective(image, corners, moved).shape  --> {3, 8, 8}]],
  ["transforms.functional.posterize"] = [[
    local image = dm.tensor({{{0, 127, 255}}}, {dtype = "uint8"})
    dm.transforms.functional.posterize(image, 1)  --> {{{0, 0, 128}}}]],
  ["transforms.functional.resize"] = [[
    dm.transforms.functional.resize(dm.rand(3, 16, 24), {8, 6}).shape  --> {3, 8, 6}
    dm.transforms.functional.resize(dm.rand(3, 16, 24), 8).shape  --> {3, 8, 12}]],
  ["transforms.functional.rgb_to_grayscale"] = [[
    local red = dm.tensor({{{255}}, {{0}}, {{0}}}, {dtype = "uint8"})
    dm.transforms.functional.rgb_to_grayscale(red)  --> {{{76}}}]],
  ["transforms.functional.rotate"] = [[
    local image = dm.tensor({{{1, 2}, {3, 4}}}, {dtype = "uint8"})
    dm.transforms.functional.rotate(image, 90)  --> {{{2, 4}, {1, 3}}}]],
  ["transforms.functional.solarize"] = [[
    local image = dm.tensor({{{0, 100, 200}}}, {dtype = "uint8"})
    dm.transforms.functional.solarize(image, 128)  --> {{{0, 100, 55}}}]],
  ["transforms.functional.vflip"] = [[
    dm.transforms.functional.vflip(dm.tensor{{{1}, {2}}})  --> {{{2}, {1}}}]],
  ["transforms.is_callable"] = [[
    dm.transforms.is_callable(dm.transforms.ToTensor())  --> true
    dm.transforms.is_callable "ToTensor"  --> false]],
  ["vision"] = [[
    local boxes = dm.tensor{{0.0, 0.0, 4.0, 3.0}} -- x1, y1, x2, y2
    dm.vision.box_area(boxes)  --> {12}]],
  ["vision.Conv2dNormActivation"] = [[
    local block = dm.vision.Conv2dNormActivation(3, 16, {stride = 2})
    block(dm.rand(1, 3, 32, 32)).shape  --> {1, 16, 16, 16}
    #block  --> 3]],
  ["vision.LayerNorm2d"] = [[
    local norm = dm.vision.LayerNorm2d(2) -- of each pixel, over its channels
    norm(dm.tensor{{{{1.0}}, {{3.0}}}}):flatten()  --> {-1, 1}]],
  ["vision.MLP"] = [[
    local net = dm.vision.MLP(8, {32, 10}, {dropout = 0.1})
    net(dm.rand(4, 8)).shape  --> {4, 10}]],
  ["vision.Permute"] = [[
    local last = dm.vision.Permute{1, 3, 4, 2} -- channels last
    last(dm.rand(2, 3, 4, 5)).shape  --> {2, 4, 5, 3}]],
  ["vision.RoIAlign"] = [[
    local align = dm.vision.RoIAlign(7, 1 / 16, 2) -- boxes in pixels, features at 1/16
    local boxes = {dm.tensor{{0.0, 0.0, 64.0, 64.0}}} -- of one image
    align(dm.rand(1, 8, 14, 14), boxes).shape  --> {1, 8, 7, 7}]],
  ["vision.SqueezeExcitation"] = [[
    local scale = dm.vision.SqueezeExcitation(16, 4)
    scale(dm.rand(2, 16, 8, 8)).shape  --> {2, 16, 8, 8}]],
  ["vision.StochasticDepth"] = [[
    local drop = dm.vision.StochasticDepth(0.2)
    local x, branch = dm.rand(8, 16), nn.Linear(16, 16)
    local y = x + drop(branch(x)) -- a fifth of the rows skips the branch
    drop:eval()(dm.ones(2))  --> {1, 1}]],
  ["vision.batched_nms"] = [[
    local boxes = dm.tensor{{0.0, 0.0, 10.0, 10.0}, {0.0, 0.0, 10.0, 9.0}}
    local scores = dm.tensor{0.9, 0.8}
    dm.vision.batched_nms(boxes, scores, dm.tensor{1, 1}, 0.5)  --> {1}
    dm.vision.batched_nms(boxes, scores, dm.tensor{1, 2}, 0.5)  --> {1, 2}]],
  ["vision.box_area"] = [[
    dm.vision.box_area(dm.tensor{{0.0, 0.0, 4.0, 3.0}})  --> {12}
    dm.vision.box_area(dm.tensor{{5.0, 5.0, 4.0, 3.0}}, "cxcywh")  --> {12}]],
  ["vision.box_convert"] = [[
    local boxes = dm.tensor{{10.0, 20.0, 30.0, 60.0}}
    dm.vision.box_convert(boxes, "xyxy", "xywh")  --> {{10, 20, 20, 40}}
    dm.vision.box_convert(boxes, "xyxy", "cxcywh")  --> {{20, 40, 20, 40}}]],
  ["vision.box_iou"] = [[
    local a = dm.tensor{{0.0, 0.0, 2.0, 2.0}}
    local b = dm.tensor{{0.0, 0.0, 2.0, 1.0}, {5.0, 5.0, 6.0, 6.0}}
    dm.vision.box_iou(a, b)  --> {{0.5, 0}}]],
  ["vision.clip_boxes_to_image"] = [[
    local boxes = dm.tensor{{-5.0, 2.0, 30.0, 50.0}}
    dm.vision.clip_boxes_to_image(boxes, {40, 20})  --> {{0, 2, 20, 40}}]],
  ["vision.complete_box_iou"] = [[
    local a, b = dm.tensor{{0.0, 0.0, 2.0, 2.0}}, dm.tensor{{1.0, 0.0, 3.0, 2.0}}
    dm.vision.complete_box_iou(a, b)  --> {{0.2564}}]],
  ["vision.complete_box_iou_loss"] = [[
    local a, b = dm.tensor{{0.0, 0.0, 2.0, 2.0}}, dm.tensor{{1.0, 0.0, 3.0, 2.0}}
    dm.vision.complete_box_iou_loss(a, b)  --> {0.7436}]],
  ["vision.distance_box_iou"] = [[
    local a, b = dm.tensor{{0.0, 0.0, 2.0, 2.0}}, dm.tensor{{1.0, 0.0, 3.0, 2.0}}
    dm.vision.box_iou(a, b)  --> {{0.3333}}
    dm.vision.distance_box_iou(a, b)  --> {{0.2564}}]],
  ["vision.distance_box_iou_loss"] = [[
    local a, b = dm.tensor{{0.0, 0.0, 2.0, 2.0}}, dm.tensor{{1.0, 0.0, 3.0, 2.0}}
    dm.vision.distance_box_iou_loss(a, b, {reduction = "mean"})  --> 0.7436]],
  ["vision.generalized_box_iou"] = [[
    local a, b = dm.tensor{{0.0, 0.0, 1.0, 1.0}}, dm.tensor{{3.0, 0.0, 4.0, 1.0}}
    dm.vision.generalized_box_iou(a, b)  --> {{-0.5}}]],
  ["vision.generalized_box_iou_loss"] = [[
    local a, b = dm.tensor{{0.0, 0.0, 1.0, 1.0}}, dm.tensor{{3.0, 0.0, 4.0, 1.0}}
    dm.vision.generalized_box_iou_loss(a, b)  --> {1.5}]],
  ["vision.nms"] = [[
    local boxes = dm.tensor{{0, 0, 9, 9}, {0, 0, 9, 8}, {20, 20, 30, 30}}:float()
    dm.vision.nms(boxes, dm.tensor{0.7, 0.6, 0.9}, 0.5)  --> {3, 1}]],
  ["vision.remove_small_boxes"] = [[
    local boxes = dm.tensor{{0.0, 0.0, 9.0, 9.0}, {0.0, 0.0, 9.0, 1.0}}
    dm.vision.remove_small_boxes(boxes, 2)  --> {1}]],
  ["vision.roi_align"] = [[
    local features = dm.rand(2, 8, 16, 16)
    local boxes = dm.tensor{{1.0, 0.0, 0.0, 8.0, 8.0}, {2.0, 4.0, 4.0, 12.0, 12.0}}
    dm.vision.roi_align(features, boxes, {4, 4}).shape  --> {2, 8, 4, 4}]],
  ["vision.sigmoid_focal_loss"] = [[
    local scores, targets = dm.tensor{0.0, 0.0}, dm.tensor{1.0, 0.0}
    dm.vision.sigmoid_focal_loss(scores, targets)  --> {0.0433, 0.13}]],
  ["vision.stochastic_depth"] = [[
    local x = dm.ones(8, 4)
    local y = dm.vision.stochastic_depth(x, 0.5, "row") -- each row is all 0 or all 2
    y:amax(2):eq(y:amin(2)):all()  --> true]],
}
