"""The side of ggml (llama.cpp) of generate.lua: one request a line, one answer a line.

GPT-2 with random weights is written as a GGUF file into a temporary folder. Keys and values are
float16, and attention is fused where llama.cpp chooses so: its defaults."""
import ctypes
import os
import sys
import tempfile
import time

from answers import number, serve

try:
    import gguf
    import llama_cpp as llama
    import numpy
except ImportError:
    llama = None

CONTEXT = 1024
THREADS = int(os.environ.get("OMP_NUM_THREADS", 0)) or os.cpu_count()
now = time.process_time if os.environ.get("BENCH_ALONE") else time.perf_counter


class State:
    model = context = batch = None


def write(path, dtype, layers, width, vocabulary):
    matrix = {"float32": gguf.GGMLQuantizationType.F32,
              "bfloat16": gguf.GGMLQuantizationType.BF16}[dtype]
    draw = numpy.random.default_rng(1)
    file = gguf.GGUFWriter(path, "gpt2")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(width)
    file.add_feed_forward_length(4 * width)
    file.add_block_count(layers)
    file.add_head_count(width // 64)
    file.add_layer_norm_eps(1e-5)
    file.add_vocab_size(vocabulary)
    file.add_tokenizer_model("none")

    def add(name, *shape):
        data = draw.standard_normal(shape, numpy.float32) * 0.02
        kind = matrix if len(shape) == 2 and name != "position_embd.weight" else 0
        kind = gguf.GGMLQuantizationType(kind)
        file.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)

    add("token_embd.weight", vocabulary, width)
    add("position_embd.weight", CONTEXT, width)
    norms = ["output_norm"]
    for i in range(layers):
        norms += [f"blk.{i}.attn_norm", f"blk.{i}.ffn_norm"]
        for name, outputs, inputs in (("attn_qkv", 3 * width, width), ("attn_output", width, width),
                                      ("ffn_up", 4 * width, width), ("ffn_down", width, 4 * width)):
            add(f"blk.{i}.{name}.weight", outputs, inputs)
            add(f"blk.{i}.{name}.bias", outputs)
    for name in norms:
        add(f"{name}.weight", width)
        add(f"{name}.bias", width)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def decode(rows, positions, sequences, wanted):
    """Reads one token for each entry of the lists; scores are made of those wanted."""
    b = State.batch
    b.n_tokens = len(rows)
    for i, token in enumerate(rows):
        b.token[i], b.pos[i], b.n_seq_id[i] = token, positions[i], 1
        b.seq_id[i][0], b.logits[i] = sequences[i], wanted[i]
    if llama.llama_decode(State.context, b):
        raise RuntimeError("llama_decode failed")


def best_tokens(rows):
    """The likeliest token of each row of the scores."""
    found = []
    for row in rows:
        scores = llama.llama_get_logits_ith(State.context, row)
        found.append(int(numpy.ctypeslib.as_array(scores, (State.vocabulary,)).argmax()))
    return found


def begin(dtype, batch, prompt, layers, width, vocabulary):
    s = State
    if s.batch:
        llama.llama_batch_free(s.batch)
        llama.llama_free(s.context)
        llama.llama_model_free(s.model)
    s.vocabulary, s.prompt, s.sequences = vocabulary, prompt, batch
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "gpt2.gguf")
        write(path, dtype, layers, width, vocabulary)
        of = llama.llama_model_default_params()
        of.use_mmap = False
        s.model = llama.llama_model_load_from_file(path.encode(), of)
    if not s.model:
        raise RuntimeError("the model was not read")
    of = llama.llama_context_default_params()
    of.n_ctx, of.n_seq_max = batch * 256, batch
    of.n_batch = of.n_ubatch = max(512, batch * prompt)
    of.n_threads = of.n_threads_batch = THREADS
    s.context = llama.llama_init_from_model(s.model, of)
    s.batch = llama.llama_batch_init(of.n_batch, 0, 1)
    ids = numpy.random.default_rng(2).integers(vocabulary, size=(batch, prompt))
    decode([int(t) for row in ids for t in row], list(range(prompt)) * batch,
           [i for i in range(batch) for _ in range(prompt)],
           [at == prompt - 1 for _ in range(batch) for at in range(prompt)])
    s.last = best_tokens([(i + 1) * prompt - 1 for i in range(batch)])
    tokens(4)
    return {"ready": 1}


def tokens(n):
    s = State
    memory = llama.llama_get_memory(s.context)
    for i in range(s.sequences):
        llama.llama_memory_seq_rm(memory, i, s.prompt, -1)
    ids, all_of_them = s.last, range(s.sequences)
    start = now()
    for i in range(n):
        decode(ids, [s.prompt + i] * s.sequences, all_of_them, [1] * s.sequences)
        ids = best_tokens(all_of_them)
    return {"seconds": (now() - start) / n}


def answer(line):
    name, *words = line.split()
    request = {"about": lambda: {"version": llama.__version__, "python": sys.version.split()[0]},
               "begin": begin, "time": tokens}[name]
    return request(*(number(w) for w in words))


if llama:
    llama.llama_backend_init()
    llama.llama_log_set(SILENT := llama.llama_log_callback(lambda *_: None), ctypes.c_void_p(0))
serve(llama, answer)
