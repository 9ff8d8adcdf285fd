-- Every name of PyTorch's public API exists here, or is listed in ABSENT with the reason. Values
-- are compared in spec/golden_spec.lua.

local dm = require "demilune"

-- The names that each module must have.
local WANTED = {
  ["dm"] = [[
    abs absolute acos acosh adaptive_avg_pool1d adaptive_max_pool1d add addbmm addcdiv addcmul
    addmm addmv addr adjoint all allclose alpha_dropout amax amin aminmax angle any arange
    arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort argwhere
    as_strided as_strided_scatter as_tensor asarray asin asinh atan atan2 atanh atleast_1d
    atleast_2d atleast_3d avg_pool1d baddbmm bartlett_window batch_norm bernoulli bilinear
    binary_cross_entropy_with_logits bincount binomial bitwise_and bitwise_left_shift
    bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman_window block_diag bmm
    broadcast_shapes broadcast_tensors broadcast_to bucketize can_cast cartesian_prod cat
    cdist ceil celu chain_matmul channel_shuffle cholesky cholesky_inverse cholesky_solve
    chunk clamp clamp_max clamp_min clear_autocast_cache clip clone column_stack combinations
    compile complex concat concatenate cond conj conj_physical constant_pad_nd conv1d conv2d
    conv3d conv_transpose1d conv_transpose2d conv_transpose3d copysign corrcoef cos cosh
    cosine_embedding_loss cosine_similarity count_nonzero cov cross ctc_loss cummax cummin
    cumprod cumsum cumulative_trapezoid deg2rad det detach device diag diag_embed diagflat
    diagonal diagonal_scatter diff digamma dist div divide dot dropout dsplit dstack dtype eig
    einsum embedding embedding_bag empty empty_like enable_grad eq equal erf erfc erfinv exp
    exp2 expand expm1 eye feature_alpha_dropout finfo fix flatten flip fliplr flipud
    float_power floor floor_divide fmax fmin fmod fork frac frexp frobenius_norm from_dlpack
    from_file from_numpy frombuffer full full_like gather gcd ge geqrf ger get_autocast_dtype
    get_default_device get_default_dtype get_num_threads get_rng_state gradient greater
    greater_equal grid_sampler group_norm gru gru_cell gt hamming_window hann_window
    hardshrink heaviside hinge_embedding_loss histc histogram histogramdd hsplit hstack hypot
    i0 igamma igammac iinfo imag index_add index_copy index_fill index_put index_reduce
    index_select inference_mode initial_seed inner instance_norm inverse
    is_anomaly_check_nan_enabled is_anomaly_enabled is_autocast_cache_enabled
    is_autocast_enabled is_complex is_floating_point is_grad_enabled is_inference_mode_enabled
    is_tensor isclose isfinite isin isinf isnan isneginf isposinf isreal istft kaiser_window
    kl_div kron kthvalue layer_norm lcm ldexp le lerp less less_equal lgamma linspace load
    lobpcg log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp logdet
    logical_and logical_not logical_or logical_xor logit logspace logsumexp lstm lstm_cell
    lstsq lt lu lu_solve lu_unpack manual_seed margin_ranking_loss masked_fill masked_scatter
    masked_select matmul matrix_exp matrix_power matrix_rank max max_pool1d
    max_pool1d_with_indices max_pool2d max_pool3d maximum mean median meshgrid min minimum mm
    mode moveaxis movedim msort mul multinomial multiply mv mvlgamma nan_to_num nanmean
    nanmedian nanquantile nansum narrow ne neg negative nextafter no_grad nonzero norm normal
    not_equal nuclear_norm numel ones ones_like orgqr ormqr outer pairwise_distance
    pca_lowrank pdist permute pinverse pixel_shuffle pixel_unshuffle poisson poisson_nll_loss
    polar polygamma positive pow prelu prod promote_types put qr quantile quantize_per_channel
    quantize_per_tensor rad2deg rand rand_like randint randint_like randn randn_like randperm
    range ravel real reciprocal relu remainder renorm repeat_interleave reshape resolve_conj
    result_type rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 round
    row_stack rrelu rsqrt rsub save scalar_tensor scatter scatter_add scatter_reduce
    searchsorted seed segment_reduce select select_scatter selu set_autocast_cache_enabled
    set_autocast_dtype set_autocast_enabled set_default_device set_default_dtype
    set_float32_matmul_precision set_grad_enabled set_num_threads set_printoptions
    set_rng_state sgn sigmoid sign signbit sin sinc sinh slice_scatter slogdet smm softmax
    solve sort sparse_coo_tensor sparse_csr_tensor split split_with_sizes spmm sqrt square
    squeeze sspaddmm stack std std_mean stft sub subtract sum svd svd_lowrank swapaxes
    swapdims symeig t take take_along_dim tan tanh tensor tensor_split tensordot threshold
    tile to_dlpack topk trace transpose trapezoid trapz triangular_solve tril tril_indices
    triplet_margin_loss triu triu_indices true_divide trunc typename unbind unflatten unfold
    unique unique_consecutive unravel_index unsqueeze use_deterministic_algorithms vander var
    var_mean vdot view view_as_complex view_as_real vmap vsplit vstack wait where while_loop
    xlogy zeros zeros_like]],
  ["dm.nn.functional"] = [[
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool1d_with_indices adaptive_max_pool2d adaptive_max_pool2d_with_indices
    adaptive_max_pool3d adaptive_max_pool3d_with_indices affine_grid alpha_dropout avg_pool1d
    avg_pool2d avg_pool3d batch_norm bilinear binary_cross_entropy
    binary_cross_entropy_with_logits celu celu_ channel_shuffle conv1d conv2d conv3d conv_tbc
    conv_transpose1d conv_transpose2d conv_transpose3d cosine_embedding_loss cosine_similarity
    cross_entropy ctc_loss dropout dropout1d dropout2d dropout3d elu elu_ embedding
    embedding_bag feature_alpha_dropout fold fractional_max_pool2d
    fractional_max_pool2d_with_indices fractional_max_pool3d gaussian_nll_loss gelu glu
    grid_sample group_norm grouped_mm gumbel_softmax hardshrink hardsigmoid hardswish hardtanh
    hardtanh_ hinge_embedding_loss huber_loss instance_norm interpolate kl_div l1_loss
    layer_norm leaky_relu leaky_relu_ linear linear_cross_entropy local_response_norm
    log_softmax logsigmoid lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss max_pool1d
    max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d
    max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d mish mse_loss
    multi_head_attention_forward multi_margin_loss multilabel_margin_loss
    multilabel_soft_margin_loss nll_loss normalize one_hot pad pairwise_distance pdist
    pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu relu6 relu_ rms_norm rrelu
    rrelu_ scaled_dot_product_attention scaled_grouped_mm scaled_mm selu selu_ sigmoid silu
    smooth_l1_loss soft_margin_loss softmax softmin softplus softshrink softsign tanh
    tanhshrink threshold threshold_ triplet_margin_loss triplet_margin_with_distance_loss
    unfold upsample upsample_bilinear upsample_nearest]],
  ["dm.nn"] = [[
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss
    AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d
    AvgPool3d BatchNorm1d BatchNorm2d BatchNorm3d BCELoss BCEWithLogitsLoss Bilinear Buffer
    CELU ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d
    ConstantPad3d Container Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d
    ConvTranspose3d CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss CrossMapLRN2d
    CTCLoss DataParallel Dropout Dropout1d Dropout2d Dropout3d ELU Embedding EmbeddingBag
    FeatureAlphaDropout Flatten Fold FractionalMaxPool2d FractionalMaxPool3d GaussianNLLLoss
    GELU GLU GroupNorm GRU GRUCell Hardshrink Hardsigmoid Hardswish Hardtanh
    HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d
    KLDivLoss L1Loss LayerNorm LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d
    LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d
    LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear LeakyReLU Linear
    LinearCrossEntropyLoss LocalResponseNorm LogSigmoid LogSoftmax LPPool1d LPPool2d LPPool3d
    LSTM LSTMCell MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d
    MaxUnpool3d Mish Module ModuleDict ModuleList MSELoss MultiheadAttention
    MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss NLLLoss2d
    PairwiseDistance Parameter ParameterDict ParameterList PixelShuffle PixelUnshuffle
    PoissonNLLLoss PReLU ReflectionPad1d ReflectionPad2d ReflectionPad3d ReLU ReLU6
    ReplicationPad1d ReplicationPad2d ReplicationPad3d RMSNorm RNN RNNBase RNNCell RNNCellBase
    RReLU SELU Sequential Sigmoid SiLU SmoothL1Loss SoftMarginLoss Softmax Softmax2d Softmin
    Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink Threshold Transformer
    TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer
    TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold UninitializedBuffer
    UninitializedParameter Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d
    ZeroPad2d ZeroPad3d]],
  ["dm.nn.utils"] = [[
    checkpoint clip_grad_norm clip_grad_norm_ clip_grad_value_ clip_grads_with_norm_
    fuse_conv_bn_eval fuse_conv_bn_weights fuse_linear_bn_eval fuse_linear_bn_weights
    get_total_norm parameters_to_vector parametrizations parametrize prune remove_spectral_norm
    remove_weight_norm rnn skip_init spectral_norm stateless vector_to_parameters weight_norm]],
  ["dm.nn.utils.parametrize"] = [[
    ParametrizationList cached is_parametrized register_parametrization remove_parametrizations
    transfer_parametrizations_and_params type_before_parametrizations]],
  ["dm.nn.utils.parametrizations"] = [[
    orthogonal spectral_norm weight_norm]],
  ["dm.nn.utils.prune"] = [[
    BasePruningMethod CustomFromMask Identity L1Unstructured LnStructured PruningContainer
    RandomStructured RandomUnstructured custom_from_mask global_unstructured identity is_pruned
    l1_unstructured ln_structured random_structured random_unstructured remove]],
  ["dm.nn.utils.rnn"] = [[
    pack_padded_sequence pad_packed_sequence pack_sequence unpack_sequence pad_sequence
    unpad_sequence PackedSequence]],
  ["dm.nn.init"] = [[
    calculate_gain constant constant_ dirac dirac_ eye eye_ kaiming_normal kaiming_normal_
    kaiming_uniform kaiming_uniform_ normal normal_ ones_ orthogonal orthogonal_ sparse
    sparse_ trunc_normal_ uniform uniform_ xavier_normal xavier_normal_ xavier_uniform
    xavier_uniform_ zeros_]],
  ["dm.linalg"] = [[
    cholesky cholesky_ex cond cross det diagonal eig eigh eigvals eigvalsh householder_product
    inv inv_ex ldl_factor ldl_factor_ex ldl_solve LinAlgError lstsq lu lu_factor lu_factor_ex
    lu_solve matmul matrix_exp matrix_norm matrix_power matrix_rank matrix_sqrth multi_dot
    norm pinv polar qr slogdet solve solve_ex solve_triangular svd svdvals tensorinv
    tensorsolve vander vecdot vector_norm]],
  ["dm.fft"] = [[
    fft fft2 fftfreq fftn fftshift hfft hfft2 hfftn ifft ifft2 ifftn ifftshift ihfft ihfft2
    ihfftn irfft irfft2 irfftn rfft rfft2 rfftfreq rfftn]],
  ["dm.special"] = [[
    digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammainc gammaincc gammaln i0 i0e i1 i1e
    log1p log_ndtr log_softmax logit logsumexp multigammaln ndtr ndtri polygamma psi round sinc
    softmax xlog1py xlogy zeta]],
  ["dm.distributions"] = [[
    Bernoulli Beta Binomial Categorical Cauchy Chi2 ContinuousBernoulli Dirichlet Distribution
    Exponential ExponentialFamily FisherSnedecor Gamma GeneralizedPareto Geometric Gumbel
    HalfCauchy HalfNormal Independent InverseGamma Kumaraswamy LKJCholesky Laplace LogNormal
    LogisticNormal LowRankMultivariateNormal MixtureSameFamily Multinomial MultivariateNormal
    NegativeBinomial Normal OneHotCategorical OneHotCategoricalStraightThrough Pareto
    RelaxedBernoulli RelaxedOneHotCategorical StudentT Poisson Uniform VonMises Weibull Wishart
    TransformedDistribution biject_to constraints kl_divergence register_kl transform_to]],
  ["dm.distributions.transforms"] = [[
    AbsTransform AffineTransform CatTransform ComposeTransform CorrCholeskyTransform
    CumulativeDistributionTransform ExpTransform IndependentTransform LowerCholeskyTransform
    PositiveDefiniteTransform PowerTransform ReshapeTransform SigmoidTransform SoftplusTransform
    TanhTransform SoftmaxTransform StackTransform StickBreakingTransform Transform
    identity_transform]],
  ["dm.func"] = [[
    debug_unwrap functional_call functionalize grad grad_and_value hessian jacfwd jacrev jvp
    linearize rearrange replace_all_batch_norm_modules_ stack_module_state vjp vmap]],
  ["dm.optim"] = [[
    Adadelta Adafactor Adagrad Adam Adamax AdamW ASGD LAMB LBFGS Lion Muon NAdam Optimizer
    RAdam RMSprop Rprop SGD SparseAdam]],
  ["dm.optim.lr_scheduler"] = [[
    ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR
    ExponentialLR LambdaLR LinearLR LRScheduler MultiplicativeLR MultiStepLR OneCycleLR
    PolynomialLR ReduceLROnPlateau SequentialLR StepLR]],
  ["dm.optim.swa_utils"] = [[
    AveragedModel SWALR update_bn]],
  ["dm.amp"] = [[
    autocast GradScaler custom_fwd custom_bwd is_autocast_enabled get_autocast_dtype
    is_autocast_available op_table initialize report]],
  ["dm.autograd"] = [[
    grad Function gradcheck gradgradcheck detect_anomaly set_detect_anomaly]],
  ["dm.models"] = [[
    resnet18 resnet34 resnet50 resnet101 vgg16 mobilenet_v2 efficientnet_b0 vit_s_16 vit_b_16
    gpt2 bert lenet unet lstm_lm alexnet densenet121 densenet161 densenet169 densenet201
    convnext_tiny convnext_small convnext_base convnext_large swin_t swin_s swin_b
    resnext50_32x4d resnext101_32x8d wide_resnet50_2]],
  ["dm.data"] = [[
    Dataset TensorDataset IterableDataset ConcatDataset ChainDataset StackDataset Subset
    random_split DataLoader Sampler SequentialSampler RandomSampler SubsetRandomSampler
    WeightedRandomSampler BatchSampler DistributedSampler default_collate]],
  ["dm.datasets"] = [[
    MNIST FashionMNIST CIFAR10 CIFAR100 ImageFolder]],
  ["dm.transforms"] = [[
    Compose ToTensor Normalize RandomCrop RandomResizedCrop Resize CenterCrop
    RandomHorizontalFlip RandomVerticalFlip ColorJitter RandomErasing Cutout RandAugment MixUp
    CutMix Pad Grayscale RandomGrayscale RandomRotation RandomAffine AutoAugment
    TrivialAugmentWide GaussianBlur RandomPerspective RandomApply RandomChoice RandomOrder]],
  ["dm.vision"] = [[
    box_area box_convert box_iou clip_boxes_to_image remove_small_boxes nms batched_nms
    generalized_box_iou distance_box_iou complete_box_iou generalized_box_iou_loss
    distance_box_iou_loss complete_box_iou_loss sigmoid_focal_loss roi_align RoIAlign
    stochastic_depth StochasticDepth Conv2dNormActivation SqueezeExcitation MLP Permute]],
  ["dm.metrics"] = [[
    Accuracy ConfusionMatrix Precision Recall F1Score AUROC Perplexity Mean]],
  ["dm.text"] = [[
    CharTokenizer ByteTokenizer GPT2Tokenizer]],
  ["dm.profiler"] = [[
    profile record_function ProfilerActivity]],
}

-- Reasons, each with the names that are absent for it, by module.
local ABSENT = {
  ["decompositions that no training here asks for"] = {
    ["dm"] = [[
      lobpcg]],
  },
  ["a complex dtype, which there is none of: complex numbers are pairs in a last dim"] = {
    ["dm"] = [[
      angle conj conj_physical imag polar real resolve_conj view_as_complex view_as_real]],
    ["dm.linalg"] = [[
      eig eigvals]],
  },
  ["deprecated: dm.linalg has it"] = {
    ["dm"] = [[
      chain_matmul cholesky eig lstsq matrix_rank nuclear_norm frobenius_norm qr solve symeig]],
  },
  ["deprecated in PyTorch, by another name here"] = {
    ["dm"] = [[
      range]],
    ["dm.nn"] = [[
      Container NLLLoss2d CrossMapLRN2d]],
    ["dm.nn.init"] = [[
      constant dirac eye kaiming_normal kaiming_uniform normal orthogonal sparse uniform
      xavier_normal xavier_uniform]],
    ["dm.nn.utils"] = [[
      clip_grad_norm]],
  },
  ["binomial numbers are drawn by dm.distributions.Binomial"] = {
    ["dm"] = [[
      binomial]],
  },
  ["sparse tensors, which there are none of"] = {
    ["dm"] = [[
      sparse_coo_tensor sparse_csr_tensor smm spmm sspaddmm]],
    ["dm.optim"] = [[
      SparseAdam]],
  },
  ["quantised and scaled 8-bit dtypes, which there are none of"] = {
    ["dm"] = [[
      quantize_per_channel quantize_per_tensor]],
    ["dm.nn.functional"] = [[
      grouped_mm scaled_grouped_mm scaled_mm]],
  },
  ["Python's arrays, compilers, transforms of functions; dm.tensor takes tables"] = {
    ["dm"] = [[
      as_tensor asarray compile cond fork from_dlpack from_file from_numpy frombuffer to_dlpack
      wait while_loop typename]],
  },
  ["no global defaults to trip over: dtypes, devices and modes are options and scopes"] = {
    ["dm"] = [[
      set_default_device set_float32_matmul_precision]],
  },
  ["dtypes are strings, without objects that describe them"] = {
    ["dm"] = [[
      dtype]],
  },
  ["an option or another form of the op by the shorter name"] = {
    ["dm"] = [[
      embedding_bag gru lstm rnn_relu rnn_tanh seed grid_sampler max_pool1d_with_indices]],
    ["dm.nn.functional"] = [[
      adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices
      adaptive_max_pool3d_with_indices fractional_max_pool2d_with_indices max_pool1d_with_indices
      max_pool2d_with_indices max_pool3d_with_indices multi_head_attention_forward]],
  },
  ["a lazy module holds no tensors before its first call"] = {
    ["dm.nn"] = [[
      UninitializedBuffer UninitializedParameter]],
  },
  ["is_distribution tells a distribution; transforms are named"] = {
    ["dm.distributions"] = [[
      Distribution ExponentialFamily biject_to transform_to]],
  },
  ["matrices of random correlations, and volumes that no training here asks for"] = {
    ["dm.distributions.transforms"] = [[
      CatTransform CorrCholeskyTransform CumulativeDistributionTransform PositiveDefiniteTransform
      StackTransform Transform identity_transform]],
  },
  ["vmap runs f slice by slice on plain tensors: nothing to unwrap or replace"] = {
    ["dm.func"] = [[
      debug_unwrap functionalize linearize rearrange replace_all_batch_norm_modules_]],
  },
  ["no class of its own: buffers by register_buffer, cells and recurrent layers by name"] = {
    ["dm.nn"] = [[
      Buffer RNNBase RNNCellBase]],
    ["dm.optim.lr_scheduler"] = [[
      LRScheduler]],
  },
  ["rare, and not built"] = {
    ["dm.nn.utils.parametrize"] = [[
      transfer_parametrizations_and_params]],
    ["dm.distributions"] = [[
      LKJCholesky Wishart]],
    ["dm.nn.functional"] = [[
      conv_tbc]],
    ["dm.nn.utils"] = [[
      skip_init stateless]],
    ["dm.linalg"] = [[
      LinAlgError]],
  },
}

local function module_of(path)
  local module = dm
  for name in path:gmatch "[^.]+" do
    if name ~= "dm" then module = module and module[name] end
  end
  return module
end

-- The reason that keeps each name out, by its full name.
local function absent_names()
  local out = {}
  for reason, modules in pairs(ABSENT) do
    for path, names in pairs(modules) do
      for name in names:gmatch "%S+" do
        local full = path .. "." .. name
        assert(not out[full], full .. " is listed twice")
        out[full] = reason
      end
    end
  end
  return out
end

describe("a user of PyTorch", function()
  local absent = absent_names()
  for path, names in pairs(WANTED) do
    it("finds the names of " .. path, function()
      local module, surprises = module_of(path), {}
      for name in names:gmatch "%S+" do
        local full = path .. "." .. name
        local there = module ~= nil and module[name] ~= nil
        if there and absent[full] then surprises[#surprises + 1] = full .. " is there after all" end
        if not there and not absent[full] then surprises[#surprises + 1] = full .. " is missing" end
      end
      assert.same({}, surprises)
    end)
  end

  it("has a reason only for names that are looked for", function()
    for full in pairs(absent) do
      local path, name = full:match "^(.*)%.([^.]+)$"
      local words = " " .. WANTED[path]:gsub("%s+", " ") .. " "
      assert.is_truthy(words:find(" " .. name .. " ", 1, true), full)
    end
  end)
end)
