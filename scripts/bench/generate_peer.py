"""The PyTorch side of generate.lua: one request a line, one answer a line."""
import os
import sys
import time

from answers import number, serve

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    torch = None

CONTEXT = 1024
now = time.process_time if os.environ.get("BENCH_ALONE") else time.perf_counter


def make(layers, width, vocabulary, dtype):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, keys, values, start: int):
            batch, n, _ = x.shape
            q, k, v = (part.view(batch, n, -1, 64).transpose(1, 2)
                       for part in self.qkv(self.ln_1(x)).chunk(3, -1))
            keys[:, :, start:start + n] = k
            values[:, :, start:start + n] = v
            y = F.scaled_dot_product_attention(q, keys[:, :, :start + n],
                                               values[:, :, :start + n], is_causal=start == 0)
            x = x + self.proj(y.transpose(1, 2).reshape(batch, n, width))
            return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.ln_f = nn.LayerNorm(width)

        def forward(self, ids, cache, start: int):
            at = torch.arange(start, start + ids.shape[1])
            x = self.wte(ids) + self.wpe(at)
            for i, block in enumerate(self.blocks):
                x = block(x, cache[i, 0], cache[i, 1], start)
            return F.linear(self.ln_f(x[:, -1]), self.wte.weight)

    return GPT2().to(dtype).eval()


class State:
    pass


def begin(compiled, dtype, batch, prompt, layers, width, vocabulary):
    torch.manual_seed(1)
    s = State
    s.model, s.prompt = make(layers, width, vocabulary, getattr(torch, dtype)), prompt
    s.cache = torch.zeros(layers, 2, batch, width // 64, CONTEXT, 64, dtype=getattr(torch, dtype))
    scores = s.model(torch.randint(vocabulary, (batch, prompt)), s.cache, 0)
    s.last = scores.argmax(-1, keepdim=True)
    if compiled:
        s.model = torch.compile(s.model, dynamic=True)
    tokens(4)
    return {"ready": 1}


def tokens(n):
    s = State
    ids = s.last
    start = now()
    for i in range(n):
        ids = s.model(ids, s.cache, s.prompt + i).argmax(-1, keepdim=True)
    return {"seconds": (now() - start) / n}


def read():
    best = float("inf")
    for _ in range(3):
        start = now()
        MEMORY.sum().item()
        best = min(best, now() - start)
    return {"rate": MEMORY.numel() * 4 / best}


def answer(line):
    name, *words = line.split()
    request = {"about": lambda: {"version": torch.__version__, "python": sys.version.split()[0]},
               "eager": lambda *w: begin(False, *w), "compile": lambda *w: begin(True, *w),
               "time": tokens, "read": read}[name]
    with torch.inference_mode():
        return request(*(number(w) for w in words))


if torch:
    MEMORY = torch.zeros(64 * 1024 * 1024)
serve(torch, answer)
