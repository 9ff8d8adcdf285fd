"""The PyTorch side of scale.lua: one measurement by gloo, whose numbers rank 0 prints.

    torchrun --nproc-per-node 2 scale_peer.py train SECONDS DDP cnn 128
    torchrun --nproc-per-node 2 scale_peer.py reduce SECONDS ELEMENTS

A batch is the whole of all ranks. OMP_NUM_THREADS says how many threads a rank has.
"""
import math
import sys
import time

import torch
import torch.distributed as dist
from networks import NETWORKS
from torch.nn.parallel import DistributedDataParallel

WARM_CALLS = 3
ROWS = {"cnn": 0, "resnet18": 0, "gpt": 4}


def timed(f, seconds):
    """The seconds of a call: all ranks make as many, of which rank 0 says how many fit."""
    begin = time.perf_counter()
    for _ in range(WARM_CALLS):
        f()
    each = (time.perf_counter() - begin) / WARM_CALLS
    count = torch.tensor(max(3, math.ceil(seconds / each)))
    dist.broadcast(count, 0)
    for _ in range(max(1, int(count) // 4)):
        f()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(int(count)):
        f()
    return (time.perf_counter() - begin) / int(count)


def batch_of(kind, args):
    """The tensors that the case of this name has in cases.lua."""
    rows = args[ROWS[kind]]
    if kind == "cnn":
        return torch.randn(rows, 1, 28, 28), torch.randint(10, (rows,))
    if kind == "resnet18":
        return torch.randn(rows, 3, 32, 32), torch.randint(10, (rows,))
    shape = (rows, args[3])
    return torch.randint(65, shape), torch.randint(65, shape)


def train(seconds, layout, kind, *args):
    args = list(args)
    args[ROWS[kind]] //= dist.get_world_size()
    torch.manual_seed(1)
    model, optimizer, criterion = NETWORKS[kind](*args)
    x, y = batch_of(kind, args)
    if layout == "channels_last" and x.ndim == 4:
        model, x = (v.to(memory_format=torch.channels_last) for v in (model, x))
    model = DistributedDataParallel(model)

    def step():
        optimizer.zero_grad(set_to_none=True)
        criterion(model(x), y).backward()
        optimizer.step()
    return timed(step, seconds)


def reduce(seconds, elements):
    x = torch.ones(elements)

    def mean():
        dist.all_reduce(x)
        x.div_(dist.get_world_size())
    return timed(mean, seconds)


def number(word):
    return int(word) if word.isdigit() else word


before = time.perf_counter()
dist.init_process_group("gloo")
init = time.perf_counter() - before
name, *words = sys.argv[1:]
result = {"train": train, "reduce": reduce}[name](*map(number, words))
if dist.get_rank() == 0:
    print(f"seconds={result:.9f} init={init:.6f} version={torch.__version__}")
dist.destroy_process_group()
