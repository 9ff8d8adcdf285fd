"""The PyTorch side of the benchmarks on a GPU: tuned eager code.

    python3 cuda_peer.py DEVICE

One request a line, one answer a line; every case is the twin of the one of the
same name in cuda_ours.lua: same weights, same batches. channels_last, fused
optimizers, cudnn.benchmark; float32 means float32 (no TF32).
"""
import sys
import time

from answers import number, serve

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    torch = None

DEVICE = sys.argv[1]


def synchronize():
    if DEVICE != "cpu":
        torch.cuda.synchronize()


# ---- numbers that both sides make alike -------------------------------------

def noise(n, seed):
    """n numbers in -1 .. 1 that look random, from a seed; float64 on the CPU."""
    v = torch.arange(1, n + 1, dtype=torch.float64) * 12.9898 + seed * 78.233
    v = v.sin() * 43758.5453
    return (v - v.floor()) * 2 - 1


@torch.no_grad() if torch else (lambda f: f)
def start(model):
    """Weights uniform by their inputs, biases 0; norms stay as they are."""
    for i, p in enumerate(model.parameters(), 1):
        if p.ndim > 1:
            fan_in = p.numel() // p.shape[0]
            p.copy_(noise(p.numel(), i).reshape(p.shape) / fan_in ** 0.5)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.zero_()
    return model.to(DEVICE, memory_format=torch.channels_last)


def batch(shape, classes):
    n = 1
    for size in shape:
        n *= size
    x = (noise(n, 1000) * 3 ** 0.5).float().reshape(shape).to(DEVICE)
    if len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return x, torch.arange(shape[0], device=DEVICE) % classes


# ---- one op on much data: how often it must read or write it all -------------

def both_ways(units, f, x):
    """Forward, and backward from a gradient as large as the output."""
    x.requires_grad_()
    g = torch.randn_like(f(x))

    def step():
        f(x).backward(g)
        x.grad = None
    return units, step


def op_case(name, x):
    y = torch.randn_like(x) if name == "add" else None
    labels = torch.randint(x.shape[1], (x.shape[0],), device=DEVICE)
    norm = nn.LayerNorm(x.shape[1]).to(DEVICE, x.dtype)
    cases = {
        "copy": lambda: (2, x.clone),
        "add": lambda: (3, lambda: x + y),
        "gelu": lambda: (2, lambda: F.gelu(x)),
        "sum": lambda: (1, x.sum),
        "softmax": lambda: (2, lambda: F.softmax(x, -1)),
        "layer_norm": lambda: (2, lambda: norm(x)),
        "cross_entropy": lambda: (1, lambda: F.cross_entropy(x, labels)),
        "softmax_backward": lambda: both_ways(5, lambda v: F.softmax(v, -1), x),
        "layer_norm_backward": lambda: both_ways(5, norm, x),
        "cross_entropy_backward": lambda: both_ways(3, lambda v: F.cross_entropy(v, labels), x),
    }
    return cases[name]()


def begin_op(name, dtype, rows, columns):
    x = torch.randn(rows, columns, device=DEVICE).to(getattr(torch, dtype))
    units, f = op_case(name, x)
    return {"step": f, "bytes": units * x.numel() * x.element_size()}


def begin_mm(dtype, m, n, k):
    dtype = getattr(torch, dtype)
    a = torch.randn(m, k, device=DEVICE).to(dtype)
    b = torch.randn(k, n, device=DEVICE).to(dtype)
    return {"step": lambda: torch.mm(a, b), "flops": 2 * m * n * k}


# ---- training ---------------------------------------------------------------

def training(dtype, model, optimizer, criterion, x, y):
    half = dtype != "float32"
    kind = getattr(torch, dtype) if half else torch.bfloat16
    scaler = torch.amp.GradScaler(DEVICE, enabled=dtype == "float16")
    self = {}

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=kind, enabled=half):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        self["loss"] = loss.detach()
    self["step"] = step
    return self


def begin_sine(dtype, size, hidden):
    layers = []
    for inputs in (2, hidden, hidden):
        layers += [nn.Conv2d(inputs, hidden, 1), nn.BatchNorm2d(hidden), nn.ReLU()]
    model = start(nn.Sequential(*layers, nn.Conv2d(hidden, 1, 1)))
    x = noise(2 * size * size, 1000).float().reshape(1, 2, size, size).to(DEVICE)
    y = (x[:, :1] * 3).round() / 3
    x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    return training(dtype, model, optimizer, nn.MSELoss(), x, y)


def conv(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


def resnet18(classes):
    class Block(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            self.conv1, self.bn1 = conv(inputs, width, 3, stride), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = conv(width, width, 3, 1), nn.BatchNorm2d(width)
            self.downsample = nn.Sequential()
            if stride != 1 or inputs != width:
                self.downsample = nn.Sequential(conv(inputs, width, 1, stride),
                                                nn.BatchNorm2d(width))

        def forward(self, x):
            y = F.relu(self.bn1(self.conv1(x)), inplace=True)
            y = self.bn2(self.conv2(y))
            y += self.downsample(x)
            return F.relu(y, inplace=True)

    layers, inputs = [conv(3, 64, 3, 1), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
    for i in range(4):
        width = 64 << i
        layers += [Block(inputs, width, 1 if i == 0 else 2), Block(width, width, 1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def begin_resnet18(dtype, images):
    model = start(resnet18(10))
    x, y = batch((images, 3, 32, 32), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4,
                                fused=True)
    return training(dtype, model, optimizer, nn.CrossEntropyLoss(), x, y)


def begin_mlp(dtype, rows):
    model = start(nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
                                nn.Linear(128, 10)))
    x, y = batch((rows, 784), 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    return training(dtype, model, optimizer, nn.CrossEntropyLoss(), x, y)


# ---- what a call costs the host ----------------------------------------------

def begin_host(name):
    a, b = torch.randn(1, device=DEVICE), torch.randn(1, device=DEVICE)
    w = torch.randn(1, device=DEVICE, requires_grad=True)
    linear, x = nn.Linear(16, 16).to(DEVICE), torch.randn(8, 16, device=DEVICE)
    return {"step": {"add": lambda: a + b, "add_": lambda: a.add_(b),
                     "add_recorded": lambda: w + b, "relu": lambda: torch.relu(a),
                     "linear": lambda: linear(x)}[name]}


# ---- requests -----------------------------------------------------------------

CURRENT = {}


def seconds(n, waits=True):
    synchronize()
    step = CURRENT["step"]
    begin = time.perf_counter()
    for _ in range(n):
        step()
    if waits:
        synchronize()
    return time.perf_counter() - begin


def about():
    return {"version": torch.__version__, "cudnn": torch.backends.cudnn.version(),
            "cuda": torch.version.cuda}


def begin(kind, *args):
    global CURRENT
    CURRENT = {}
    if DEVICE != "cpu":
        torch.cuda.empty_cache()
    torch.manual_seed(1)
    CURRENT = {"op": begin_op, "mm": begin_mm, "sine": begin_sine, "resnet18": begin_resnet18,
               "mlp": begin_mlp, "host": begin_host}[kind](*args)
    return {"bytes": CURRENT.get("bytes", 0), "flops": CURRENT.get("flops", 0)}


def time_block(least):
    """Seconds of a step, over a block of about so many seconds."""
    if "n" not in CURRENT:
        seconds(2)
        n = 1
        while seconds(n) < least and n < 1 << 20:
            n *= 2
        CURRENT["n"] = n
    return {"seconds": seconds(CURRENT["n"]) / CURRENT["n"], "steps": CURRENT["n"]}


def host(n):
    """Seconds until the host is back, of n calls that the device's queue has room for."""
    seconds(n, False)
    return {"seconds": seconds(n, False) / n}


def losses(n):
    out = {}
    for i in range(1, n + 1):
        CURRENT["step"]()
        out[f"l{i}"] = f"{CURRENT['loss'].item():.9g}"
    return out


def peak():
    seconds(1)
    if DEVICE == "cpu":
        return {"bytes": 0}
    torch.cuda.reset_peak_memory_stats()
    seconds(1)
    return {"bytes": torch.cuda.max_memory_allocated()}


def answer(line):
    name, *words = line.split()
    request = {"about": about, "begin": begin, "time": time_block, "host": host,
               "losses": losses, "peak": peak}[name]
    return request(*map(number, words))


def main():
    if torch:
        torch.set_num_threads(1)  # the host only launches
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    serve(torch, answer)


main()
