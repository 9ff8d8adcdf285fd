"""The PyTorch side of the benchmarks: one request a line, one answer a line.

`add1 1` -> `seconds=1.2e-06 threads=1`. Every case matches the one of the
same name in ours.lua. Where PyTorch has several ways, the fastest one answers:
1 or 2 threads, channels_last or not, foreach or fused optimizers.
"""
import gc
import gzip
import statistics
import sys
import time

from answers import number, serve

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    torch = None

DATA = "/usr/share/datasets/fashion-mnist/"


# ---- one op, one small step -------------------------------------------------

def seconds_per_call(f, least=0.02, samples=7):
    """Median over samples of at least `least` seconds each, warmed up."""
    n, t = 1, 0.0
    while t < least:
        n *= 2
        start = time.perf_counter()
        for _ in range(n):
            f()
        t = time.perf_counter() - start
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        for _ in range(n):
            f()
        times.append((time.perf_counter() - start) / n)
    return statistics.median(times)


def small_cases():
    one, other = torch.randn(1), torch.randn(1)
    w, v = torch.randn(1, requires_grad=True), torch.randn(1, requires_grad=True)
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    linear, x = nn.Linear(4, 4), torch.randn(4, 4)
    return {
        "empty": lambda: None,
        "add": lambda: one + other,
        "add_recorded": lambda: w + v,
        "relu": lambda: torch.relu(one),
        "mm": lambda: torch.mm(a, b),
        "linear": lambda: linear(x),
        "mlp_step": mlp_step({}),
        "mlp_step_fused": mlp_step({"fused": True}),
        "mlp_step_foreach": mlp_step({"foreach": True}),
    }


def mlp_step(options):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **options)
    x, y = torch.randn(8, 16), torch.randint(4, (8,))

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def small(name):
    """The best of 1 and 2 threads; of the three Adams for the step."""
    names = [n for n in CASES if n == name or n.startswith(name + "_f")]
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for n in names:
            found.append((seconds_per_call(CASES[n], samples=3), threads, n))
    s, threads, n = min(found)
    torch.set_num_threads(threads)
    return {"seconds": min(s, seconds_per_call(CASES[n])), "threads": threads, "variant": n}


# ---- regions, and ops in them that need no cast ------------------------------

def op_cases():
    one, other = torch.randn(1), torch.randn(1)
    low, bias = torch.randn(1, 1).bfloat16(), torch.randn(1).bfloat16()
    return {
        "add": lambda: one + other,
        "mul": lambda: one * other,
        "relu": lambda: torch.relu(one),
        "softmax": lambda: torch.softmax(one, 0),
        "cat": lambda: torch.cat([one, other]),
        "mse_loss": lambda: F.mse_loss(one, other),
        "mm": lambda: torch.mm(low, low),
        "linear": lambda: F.linear(low, low, bias),
    }


def in_region(name):
    """Outside and inside a region, and the difference: the median over neighbours."""
    torch.set_num_threads(1)
    f = op_cases()[name]
    n = int(5e-4 / seconds_per_call(f, 0.01, 3)) + 1

    def time_slice():
        start = time.perf_counter()
        for _ in range(n):
            f()
        return (time.perf_counter() - start) / n

    off, on, extra = [], [], []
    for _ in range(200):
        before = time_slice()
        with torch.autocast("cpu", torch.bfloat16):
            on.append(time_slice())
        off.append((before + time_slice()) / 2)
        extra.append(on[-1] - off[-1])
    return {"off": statistics.median(off), "on": statistics.median(on),
            "extra": statistics.median(extra)}


def region(form):
    def nothing():
        pass

    def block():
        with torch.autocast("cpu", torch.bfloat16):
            pass

    forms = {"block": block, "wrapped": torch.autocast("cpu", torch.bfloat16)(nothing)}
    if form not in forms:
        raise RuntimeError("no such form")
    return {"seconds": seconds_per_call(forms[form])}


# ---- the network of scripts/fashion_mnist.lua -------------------------------

def read_idx(name, header):
    with gzip.open(DATA + name + ".gz") as f:
        return torch.frombuffer(bytearray(f.read()[header:]), dtype=torch.uint8)


def images_and_labels(part):
    x = read_idx(part + "-images-idx3-ubyte", 16).view(-1, 1, 28, 28)
    y = read_idx(part + "-labels-idx1-ubyte", 8).long()
    return (x.float() / 255 - 0.2860) / 0.3530, y


def fashion_net(c1, c2, hidden, dropout):
    return nn.Sequential(
        nn.Conv2d(1, c1, 3, padding=1, bias=False), nn.BatchNorm2d(c1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(c1, c2, 3, padding=1, bias=False), nn.BatchNorm2d(c2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(c2 * 7 * 7, hidden), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(hidden, 10))


class Training:
    """Model, optimizer, schedule and scaler, as the script has them."""

    def __init__(self, dtype, seed, o, steps):
        torch.manual_seed(seed)
        self.dtype = dtype
        self.model = fashion_net(o["c1"], o["c2"], o["hidden"], o["dropout"])
        self.layout = torch.contiguous_format
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=o["lr"], weight_decay=o["weight_decay"])
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, o["lr"], total_steps=steps)
        self.scaler = torch.amp.GradScaler("cpu", enabled=dtype == "float16")

    def use_layout(self, layout):
        self.layout = layout
        self.model.to(memory_format=layout)

    def autocast(self):
        low = self.dtype != "float32"
        return torch.autocast("cpu", getattr(torch, self.dtype) if low else None, enabled=low)

    def step(self, x, y):
        x = x.contiguous(memory_format=self.layout)
        self.optimizer.zero_grad()
        with self.autocast():
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        return loss.detach()

    def accuracy(self, x, y):
        self.model.eval()
        with torch.no_grad(), self.autocast():
            right = sum((self.model(p).argmax(1) == q).sum()
                        for p, q in zip(x.split(1000), y.split(1000)))
        self.model.train()
        return right.item() / len(y)


STATE = {}


def data():
    if "train" not in STATE:
        STATE["train"], STATE["test"] = images_and_labels("train"), images_and_labels("t10k")
    return STATE["train"], STATE["test"]


def fastest_setting(dtype, o):
    """1 or 2 threads, channels_last or not: the fastest by 12 steps each."""
    if dtype not in STATE:
        (x, y), _ = data()
        found = []
        for layout in (torch.contiguous_format, torch.channels_last):
            t = Training(dtype, 1, o, 1000)
            t.use_layout(layout)
            for threads in (1, 2):
                torch.set_num_threads(threads)
                times = []
                for i in range(15):
                    part = slice(i * o["batch"], (i + 1) * o["batch"])
                    start = time.perf_counter()
                    t.step(x[part], y[part])
                    times.append(time.perf_counter() - start)
                found.append((statistics.median(times[3:]), threads, layout))
        STATE[dtype] = min(found, key=lambda f: f[0])
    return STATE[dtype]


def begin(dtype, seed, **o):
    _, threads, layout = fastest_setting(dtype, o)
    torch.set_num_threads(threads)
    (x, _), _ = data()
    STATE["batches"] = len(x) // o["batch"]
    STATE["training"] = Training(dtype, seed, o, STATE["batches"] * o["epochs"])
    STATE["training"].use_layout(layout)
    STATE["batch"] = o["batch"]
    return {"threads": threads, "layout": str(layout).replace("torch.", "")}


def epoch():
    """All images in a new random order, without the short last batch."""
    (x, y), _ = data()
    training, total = STATE["training"], torch.zeros(())
    start = time.perf_counter()
    batches = torch.randperm(len(x)).split(STATE["batch"])[:STATE["batches"]]
    for index in batches:
        total += training.step(x[index], y[index])
    return {"seconds": time.perf_counter() - start, "loss": total.item() / len(batches)}


def accuracy():
    return {"accuracy": STATE["training"].accuracy(*data()[1])}


# ---- peak memory of a step --------------------------------------------------

def memory(dtype, **o):
    """Peak of live bytes over a training step, as the CPU allocator reports
    each block to the profiler, in order of time: the weights, moments, batch
    and buffers that live from before, and what the step adds on top. Gradients
    are set to None before each step, as zero_grad does by default."""
    from torch.profiler import ProfilerActivity, profile
    (x, y), _ = data()
    peaks = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        t = Training(dtype, 1, o, 1000)
        t.use_layout(layout)
        x_batch = x[:o["batch"]].clone(memory_format=layout)
        y_batch = y[:o["batch"]].clone()
        for _ in range(3):
            t.step(x_batch, y_batch)
        t.optimizer.zero_grad()
        gc.collect()  # what the layout before has left
        live = [x_batch, y_batch, *t.model.parameters(), *t.model.buffers()]
        for s in t.optimizer.state.values():
            live += [v for v in s.values() if torch.is_tensor(v)]
        before = sum(v.untyped_storage().nbytes() for v in live)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
            t.step(x_batch, y_batch)
        sizes = [(e.start_ns(), e.nbytes()) for e in p.profiler.kineto_results.events()
                 if e.name() == "[memory]"]
        level = peak = 0
        for _, n in sorted(sizes, key=lambda s: s[0]):
            level += n
            peak = max(peak, level)
        peaks[str(layout).replace("torch.", "")] = before + peak
    layout = min(peaks, key=peaks.get)
    return {"bytes": peaks[layout], "layout": layout}


# ---- the loop ---------------------------------------------------------------

def about():
    return {"version": torch.__version__, "python": sys.version.split()[0]}


def answer(line):
    name, *words = line.split()
    named = dict(w.split("=", 1) for w in words if "=" in w)
    plain = [number(w) for w in words if "=" not in w]
    request = {"about": about, "small": small, "begin": begin, "epoch": epoch,
               "accuracy": accuracy, "memory": memory, "in_region": in_region,
               "region": region}[name]
    return request(*plain, **{k: number(v) for k, v in named.items()})


def main():
    global CASES
    if torch:
        torch.manual_seed(1)
        CASES = small_cases()
    serve(torch, answer)


main()
