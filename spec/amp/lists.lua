-- The lists of PyTorch's autocast (aten/src/ATen/autocast_mode.h), in its names, by device type and
-- policy. The specs hold the engine's op tables against them, and casts by hand follow them.
-- rnn_layer is its mkldnn_rnn_layer; on CUDA it converts what cuDNN's networks get. The last ones
-- of a list are functions of PyTorch's that call listed ops.

return {
  cuda = {
    lower_precision_fp = [[conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
      conv_transpose3d prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm
      baddbmm bmm chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
      rnn_layer scaled_dot_product_attention]],
    fp32 = [[acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow
      softplus layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity
      poisson_nll_loss cosine_embedding_loss nll_loss hinge_embedding_loss kl_div l1_loss
      smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
      soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
      dist pdist cdist renorm logsumexp interpolate cross_entropy square
      gumbel_softmax sum_to_size trapezoid local_response_norm multilabel_soft_margin_loss
      pairwise_distance]],
    fp32_set_opt_dtype = [[prod softmax log_softmax cumprod cumsum linalg_vector_norm
      linalg_matrix_norm sum norm softmin]],
    promote = [[addcdiv addcmul atan2 bilinear cross dot vdot grid_sample tensordot
      scatter_add]],
    banned = "binary_cross_entropy",
  },
  cpu = {
    lower_precision_fp = [[conv1d conv2d conv3d bmm mm linalg_vecdot baddbmm addmm addbmm linear
      matmul conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d prelu
      rnn_layer scaled_dot_product_attention]],
    fp32 = [[avg_pool3d binary_cross_entropy grid_sample polar prod quantile nanquantile stft
      cdist trace cholesky cholesky_inverse cholesky_solve inverse pinverse max_pool3d
      max_unpool2d max_unpool3d
      adaptive_avg_pool3d reflection_pad1d
      replication_pad1d mse_loss cosine_embedding_loss nll_loss hinge_embedding_loss
      poisson_nll_loss smooth_l1_loss cross_entropy l1_loss huber_loss margin_ranking_loss
      soft_margin_loss triplet_margin_loss multi_margin_loss ctc_loss kl_div
      multilabel_margin_loss binary_cross_entropy_with_logits fft_fft fft_ifft fft_fft2
      fft_ifft2 fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn fft_irfftn
      linalg_cond linalg_matrix_rank linalg_solve linalg_cholesky linalg_svdvals linalg_eigvalsh
      linalg_inv linalg_qr linalg_svd linalg_eig linalg_eigh linalg_lstsq geqrf qr svd
      triangular_solve fractional_max_pool2d adaptive_max_pool3d local_response_norm]],
    promote = "stack cat index_copy",
  },
}
