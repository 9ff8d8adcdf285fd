#!/usr/bin/env python3
"""Writes spec/golden/ddp: the gradients and parameters of a model that PyTorch's
DistributedDataParallel trained on two processes, by gloo: parameters that one process
uses, or none, parameters that are used twice, and passes that send nothing. Wants
PyTorch; the suite does not.

    python3 scripts/golden/ddp.py
"""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import store

RANKS, STEPS, PORT = 2, 4, "29533"


def wave(*shape):
    """The numbers that spec/distributed/parallel.lua makes too."""
    n = torch.Size(shape).numel()
    return ((torch.arange(1, n + 1, dtype=torch.float64) * 0.37).sin() * 0.7).reshape(shape)


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.never = (torch.nn.Linear(8, 4) for _ in range(3))
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x, branch):
        layer = getattr(self, branch)
        return self.head(layer(x).tanh() + layer(x * 0.3))


def listed(t):
    return "false" if t is None else "{" + ",".join(repr(v) for v in t.flatten().tolist()) + "}"


def train(rank, lines):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    model = Branches().double()
    for i, p in enumerate(model.parameters()):
        p.data = wave(*p.shape) * (1 + 0.1 * i)
    ddp = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    x, own = wave(6, 8) * (1 + rank), "a" if rank == 0 else "b"
    for step in range(STEPS):
        optimizer.zero_grad()
        with ddp.no_sync():
            ddp(x * 0.5, own).sin().mean().backward()
        ddp(x, "b" if step == 1 else own).cos().mean().backward()
        grads = ",".join(listed(p.grad) for p in model.parameters())
        optimizer.step()
        params = ",".join(listed(p.detach()) for p in model.parameters())
        lines[rank, step] = f"{{grads={{{grads}}},params={{{params}}}}}"
    dist.destroy_process_group()


def main():
    with mp.Manager() as manager:
        lines = manager.dict()
        mp.spawn(train, args=(lines,), nprocs=RANKS)
        steps = [lines[0, step] for step in range(STEPS)]
        assert all(lines[1, step] == steps[step] for step in range(STEPS))
    text = (f"-- What PyTorch {torch.__version__} answers; written by scripts/golden/ddp.py.\n"
            f'-- luacheck: ignore\nreturn {{torch="{torch.__version__}",steps={{\n'
            + ",\n".join(steps) + "\n}}\n")
    print(f"{store.save('ddp', text, torch.__version__)} bytes, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
