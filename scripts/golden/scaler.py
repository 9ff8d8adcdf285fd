#!/usr/bin/env python3
"""Writes spec/golden/scaler: what PyTorch's GradScaler did over thousands of
steps, as run lengths, and what its clipping made of random gradients. Wants
PyTorch; the suite does not.

    python3 scripts/golden/scaler.py
"""
import torch

import store


class Lcg:
    """The random numbers that spec/amp/scaler_spec.lua makes too."""

    def __init__(self, seed):
        self.state = seed

    def next(self, n):
        self.state = (self.state * 1103515245 + 12345) & 0x7FFFFFFF
        return (self.state >> 8) % n


def gradient(rng, step):
    """Of a size that drifts over 2^-20 ... 2^12, so that the scale has to follow;
    every now and then infinite."""
    wild, mantissa, exponent = rng.next(97), rng.next(1024), rng.next(12)
    if wild == 0:
        return float("inf")
    return (1 + mantissa / 1024) * 2.0 ** (exponent - 20 + (step // 500) % 20)


def run(n, seed, **opts):
    """(skips, scales): lengths of the stretches of done and skipped steps, in
    turn; and {length, scale, tracker at its end} while the scale was the same."""
    rng = Lcg(seed)
    scaler = torch.amp.GradScaler("cpu", **opts)
    p = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=1.0)
    skips, scales, skipping, length, same, last = [], [], False, 0, 0, None
    for step in range(n):
        p.grad = scaler.scale(torch.tensor([gradient(rng, step)])).half().float()
        before = p.item()
        scaler.step(optimizer)
        scaler.update()
        skipped = p.item() == before
        with torch.no_grad():
            p.zero_()
        if skipped != skipping:
            skips.append(length)
            skipping, length = skipped, 0
        length += 1
        scale = scaler.get_scale()
        if last is not None and scale != last[0]:
            scales.append((same, *last))
            same = 0
        same += 1
        last = (scale, scaler._get_growth_tracker())
    skips.append(length)
    scales.append((same, *last))
    given = ",".join(f"{k}={v!r}" for k, v in opts.items())
    return (f"{{n={n},seed={seed},opts={{{given}}},skips={{{','.join(map(str, skips))}}},scales={{"
            + ",".join(f"{{{k},{float.hex(s)},{t}}}" for k, s, t in scales) + "}}")


def numbers(t):
    return "{" + ",".join(float.hex(v) if abs(v) < float("inf") else repr(v) for v in t.tolist()) + "}"


def clip(dtype, max_norm, p):
    grads = [torch.randn(n).to(dtype) * 3 for n in (5, 1, 12)]
    params = [torch.zeros(len(g), dtype=dtype, requires_grad=True) for g in grads]
    for param, g in zip(params, grads):
        param.grad = g.clone()
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type=p)
    lists = ["{" + ",".join(map(numbers, ts)) + "}" for ts in (grads, [q.grad for q in params])]
    word = '"inf"' if p == float("inf") else repr(p)
    return (f'{{dtype="{str(dtype)[6:]}",max_norm={max_norm},norm_type={word},norm={float.hex(norm.item())},'
            f"grads={lists[0]},out={lists[1]}}}")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    runs = [
        run(10000, 7, init_scale=65536.0, growth_interval=25),
        run(2000, 8, init_scale=1000.0, growth_factor=1.7, backoff_factor=0.3, growth_interval=9),
    ]
    clips = [clip(d, m, p) for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
             for m in (0.5, 100.0) for p in (1.0, 2.0, 3.0, float("inf"))]
    text = (f"-- What PyTorch {torch.__version__} answers; written by scripts/golden/scaler.py.\n"
            f'-- luacheck: ignore\nreturn {{torch="{torch.__version__}",runs={{\n'
            + ",\n".join(runs) + "\n},clips={\n" + ",\n".join(clips) + "\n}}\n")
    print(f"{store.save('scaler', text, torch.__version__)} bytes, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
