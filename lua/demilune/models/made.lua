-- How the models of dm.models were made: model -> {model = its name, options =, layer_norm_eps =}.
return setmetatable({}, {__mode = "k"})
