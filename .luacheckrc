std = "lua54"
max_line_length = 100
cache = false
files["spec"] = { std = "+busted", globals = { "DEMILUNE_TOLD" } }
files["spec/mpi"] = { read_globals = { "standin" } }
