-- demilune.signal: windows for spectral analysis, in PyTorch's names: signal.windows.hann(M).
-- dm.help "signal.windows.kaiser" tells a window's options.
--
--   bartlett blackman cosine exponential gaussian general_cosine general_hamming hamming hann
--   kaiser nuttall

return {windows = require "demilune.namespace" "signal_windows_"}
