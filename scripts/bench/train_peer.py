"""The PyTorch side of train.lua and of the drivers for a GPU.

    python3 train_peer.py [DEVICE]

One request a line, one answer a line. Every case matches the one of the same name in
train_ours.lua and starts from the weights and the batch that it saved. The request says
how many threads, which memory format, and whether the code is eager or compiled and in
which mode of torch.compile. Optimizers are fused. On a GPU cudnn.benchmark is on, and
float32 means float32 (no TF32).
"""
import contextlib
import gc
import json
import os
import struct
import sys
import threading
import time

from answers import number, serve

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from networks import NETWORKS
except ImportError:
    sys.exit()  # the driver's tables do without this side

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
if DEVICE != "cpu":
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


# ---- files of the other side ------------------------------------------------

def load(path):
    """A safetensors file as a dict; positions count from 0 here."""
    kinds = {"F32": torch.float32, "I64": torch.int64}
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = bytearray(f.read())
    header.pop("__metadata__", None)
    found = {}
    for name, at in header.items():
        first, last = at["data_offsets"]
        t = torch.frombuffer(memoryview(data)[first:last], dtype=kinds[at["dtype"]])
        t = t.reshape(at["shape"]).clone().to(DEVICE)
        found[name] = t - 1 if t.dtype == torch.int64 else t
    return found


def start(model, saved):
    """Its parameters take the saved values, by their names."""
    prefix = "weights."
    values = {n[len(prefix):]: t for n, t in saved.items() if n.startswith(prefix)}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(values.pop(name).reshape(p.shape))
    if values:
        raise ValueError(f"the model lacks {', '.join(values)}")


# ---- eager or compiled ------------------------------------------------------

def compiled(f, mode):
    """f by torch.compile in this mode ("default", "max-autotune"), or itself if "eager"."""
    if mode == "eager":
        return f
    torch.compiler.reset()
    return torch.compile(f, mode=None if mode == "default" else mode, dynamic=False)


# ---- one op on much data ----------------------------------------------------

def both_ways(f, x):
    """Forward, and backward from a gradient as large as the output."""
    x.requires_grad_()
    g = torch.randn_like(f(x))

    def step():
        f(x).backward(g)
        x.grad = None
    return step


def op(dtype, mode, name, rows, columns):
    x = torch.randn(rows, columns, device=DEVICE).to(dtype)
    y, labels = torch.randn_like(x), torch.randint(columns, (rows,), device=DEVICE)
    norm = nn.LayerNorm(columns).to(DEVICE, dtype)
    forward = {
        "copy": torch.clone, "add": lambda v: v + y, "exp": torch.exp, "gelu": F.gelu,
        "silu": F.silu, "sum": torch.sum, "sum_rows": lambda v: v.sum(1),
        "sum_columns": lambda v: v.sum(0), "amax_rows": lambda v: v.amax(1),
        "amax_columns": lambda v: v.amax(0), "var_rows": lambda v: v.var(1),
        "logsumexp": lambda v: v.logsumexp(1), "softmax": lambda v: F.softmax(v, -1),
        "log_softmax": lambda v: F.log_softmax(v, -1), "layer_norm": norm,
        "batch_norm": nn.BatchNorm1d(columns).to(DEVICE, dtype),
        "dropout": lambda v: F.dropout(v, 0.1),
        "cross_entropy": lambda v: F.cross_entropy(v, labels),
    }
    backward = name.endswith("_backward")
    f = compiled(forward[name[:-len("_backward")] if backward else name], mode)
    return {"step": both_ways(f, x) if backward else lambda: f(x)}


def mm(dtype, mode, m, n, k):
    a = torch.randn(m, k, device=DEVICE).to(dtype)
    b = torch.randn(k, n, device=DEVICE).to(dtype)
    product = compiled(torch.mm, mode)
    return {"step": lambda: product(a, b)}


def host(_, __, name):
    """What a call costs the host."""
    a, b, w = (torch.randn(1, device=DEVICE) for _ in range(3))
    w.requires_grad_()
    linear, x = nn.Linear(16, 16).to(DEVICE), torch.randn(8, 16, device=DEVICE)
    return {"step": {"add": lambda: a + b, "add_": lambda: a.add_(b),
                     "add_recorded": lambda: w + b, "relu": lambda: torch.relu(a),
                     "linear": lambda: linear(x)}[name]}


# ---- training ---------------------------------------------------------------

def training(path, dtype, layout, mode, kind, args):
    saved = load(path)
    model, optimizer, criterion = NETWORKS[kind](*args)
    start(model.to(DEVICE), saved)
    x, y = saved["x"], saved["y"]
    if layout == "channels_last" and x.ndim == 4:
        model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    half = dtype != torch.float32
    scaler = torch.amp.GradScaler(DEVICE, enabled=dtype == torch.float16)
    self = {"model": model, "optimizer": optimizer, "batch": (x, y)}

    def forward(x, y):
        with torch.autocast(DEVICE, dtype=dtype) if half else contextlib.nullcontext():
            return criterion(model(x), y)
    forward = compiled(forward, mode)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*self["batch"])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        self["loss"] = loss.detach()
    self["step"] = step
    return self


CURRENT = {}
WARM, SLOW = 2.0, 5.0  # seconds


# ---- requests ---------------------------------------------------------------

def synchronize():
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def seconds(n, waits=True):
    """Of n steps; the device's work counts if it waits."""
    synchronize()
    step = CURRENT["step"]
    begin_at = time.perf_counter()
    for _ in range(n):
        step()
    if waits:
        synchronize()
    return time.perf_counter() - begin_at


def about():
    return {"version": torch.__version__}


def begin(path, dtype, threads, layout, mode, kind, *args):
    """A case with so many threads, in contiguous_format or channels_last, eager or compiled."""
    global CURRENT
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    dtype = getattr(torch, dtype)
    CURRENT = {}
    if DEVICE != "cpu":
        torch.cuda.empty_cache()
    if kind in NETWORKS:
        CURRENT = training(path, dtype, layout, mode, kind, args)
    else:
        CURRENT = {"op": op, "mm": mm, "host": host}[kind](dtype, mode, *args)
    CURRENT["eager"] = mode == "eager"
    return {}


def feed(path):
    """From here on every step takes the next of a file's batches, x and y (batches, ...)."""
    saved, step = load(path), CURRENT["step"]
    batches = iter(zip(saved["x"], saved["y"]))

    def next_step():
        CURRENT["batch"] = next(batches)
        step()
    CURRENT["step"] = next_step
    return {"batches": len(saved["x"])}


def losses(n):
    """The losses of the next n steps."""
    out = {}
    for i in range(1, n + 1):
        CURRENT["step"]()
        out[f"l{i}"] = f"{CURRENT['loss'].item():.9g}"
    return out


def warm_up(limit=None):
    """Steps until compiling, tuning and caches are done: 20, or as many as fit WARM
    seconds; an eager step of more than SLOW seconds is the only one. The process ends
    where this takes longer than the limit, as nothing else stops a compiler."""
    timer = threading.Timer(limit, os._exit, [1]) if limit else None
    if timer:
        timer.start()
    first = pace = seconds(1)
    n, total = 0, 0.0
    while n < 20 and total < WARM and (first < SLOW or not CURRENT.get("eager")):
        n, total = n + 1, total + seconds(1)
        pace = total / n
    if timer:
        timer.cancel()
    CURRENT["pace"] = pace
    return {"seconds": pace, "first": first, "steps": max(n, 1)}


def time_block(least):
    """Seconds of a step, over a block of about so many seconds. Where it is many steps,
    a tenth of them come first and are not timed: the other side had the caches."""
    if "pace" not in CURRENT:
        warm_up()
    n = max(1, round(least / CURRENT["pace"]))
    if n > 1:
        seconds(n // 10 + 1)
    CURRENT["pace"] = seconds(n) / n
    return {"seconds": CURRENT["pace"], "steps": n}


def returned(n):
    """Seconds until the host is back, of n calls that fit into the device's queue."""
    seconds(n, False)
    return {"seconds": seconds(n, False) / n}


def tensor_peak():
    """Peak of live bytes over a training step: as the CPU's allocator reports each block
    to the profiler, in order of time: what lives from before, such as weights, moments,
    buffers and batch, and what the step adds on top. Garbage of the settings before goes
    first: freed in the middle of the step it would count as less than nothing."""
    gc.collect()
    if DEVICE != "cpu":
        seconds(1)
        torch.cuda.reset_peak_memory_stats()
        seconds(1)
        return torch.cuda.max_memory_allocated()
    from torch.profiler import ProfilerActivity, profile
    model, optimizer = CURRENT["model"], CURRENT["optimizer"]
    optimizer.zero_grad(set_to_none=True)
    live = [*CURRENT["batch"], *model.parameters(), *model.buffers()]
    for s in optimizer.state.values():
        live += [v for v in s.values() if torch.is_tensor(v)]
    before = sum(v.untyped_storage().nbytes() for v in live)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        CURRENT["step"]()
    sizes = [(e.start_ns(), e.nbytes()) for e in p.profiler.kineto_results.events()
             if e.name() == "[memory]"]
    level = peak = 0
    for _, n in sorted(sizes, key=lambda s: s[0]):
        level += n
        peak = max(peak, level)
    return before + peak


def peak():
    """The most bytes that tensors held in a step."""
    return {"peak": tensor_peak()}


def resident():
    """The most bytes that the process ever held."""
    with open("/proc/self/status") as f:
        lines = dict(line.split(":", 1) for line in f)
    return {"resident": int(lines["VmHWM"].split()[0]) * 1024}


def work():
    """Both: resident() first, as peak() profiles."""
    return resident() | {"peak": tensor_peak() if "model" in CURRENT else 0}


REQUESTS = {"about": about, "begin": begin, "warm": warm_up, "feed": feed, "losses": losses,
            "time": time_block, "host": returned, "peak": peak,
            "work": work}


def answer(line):
    name, *words = line.split()
    return REQUESTS[name](*map(number, words))


serve(torch, answer)
