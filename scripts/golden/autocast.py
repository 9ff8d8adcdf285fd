#!/usr/bin/env python3
"""Writes spec/golden/autocast.lua: the dtypes of what PyTorch's ops give under autocast.

Run by hand: python3 scripts/golden/autocast.py; it asks lua5.4 for the cases of
scripts/bench/op_cases.lua. The CPU's ops are run. CUDA's need no GPU: its autocast is dispatched
before any kernel, and fake tensors, which have a device and a dtype but no elements, tell what
the op behind it would give.

A line has an op, options and inputs, and for "cuda" and "cpu" three results each: the dtypes of
floats, of float32 inputs, of inputs in the region's dtype ("low"), and in the other 16-bit one
("other"). "-" is no answer: PyTorch raises, the shape depends on values, or there are no floats.
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))

import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import ops_peer  # noqa: E402

CASES = """
package.path = "%s/?.lua;" .. package.path
local cases = require "op_cases"
for _, row in ipairs(cases.rows) do
  if row.dtypes:find "float" then
    local n = math.max(64, row.least or 1)
    local ours, its = cases.request(row, n)
    print(table.concat({row.name, row.peer or row.name, row.form or "plain", row.dtypes, ours, its},
      "\\t"))
  end
end
""" % os.path.join(HERE, "..", "bench")

# Their kernels call ops of the list of 16 bits themselves, which a fake result does not show.
INSIDE = {("linalg_pinv", "cuda")}
FAKE = FakeTensorMode()
OTHER = {"float16": "bfloat16", "bfloat16": "float16"}


def dtypes(y):
    """Of the floats among results."""
    if torch.is_tensor(y):
        return [str(y.dtype)[len("torch."):]] if y.is_floating_point() else []
    return [d for item in y for d in dtypes(item)]


def run(f, device, low):
    """The dtypes of f's results in a region; the switch is set by hand, as autocast() refuses
    CUDA where there is none."""
    torch.set_autocast_dtype(device, getattr(torch, low))
    torch.set_autocast_enabled(device, True)
    try:
        return dtypes(f())
    finally:
        torch.set_autocast_enabled(device, False)
        torch.clear_autocast_cache()


def answer(peer, form, request, dtype, device, low):
    _, words, options = request.split("~")
    dtype = getattr(torch, dtype)
    items = ops_peer.inputs(words, dtype, "contiguous")
    tensors = [x for _, x, _ in items]
    if device == "cpu":
        return run(ops_peer.call(peer, form, items, options, dtype, tensors), device, low)
    with FAKE:
        tensors = [torch.empty(x.shape, dtype=x.dtype, device=device) for x in tensors]
        return run(ops_peer.call(peer, form, items, options, dtype, tensors), device, low)


def results(name, peer, form, kinds, request, device):
    """Of float32, low and other inputs; the same for either 16-bit dtype of the region."""
    found = []
    for kind in ("float32", "low", "other"):
        both = set()
        for low, other in OTHER.items():
            dtype = {"float32": "float32", "low": low, "other": other}[kind]
            if dtype not in kinds or (name, device) in INSIDE:
                both.add("-")
                continue
            try:
                names = {low: "low", other: "other"}
                given = answer(peer, form, request, dtype, device, low)
                both.add(",".join(names.get(d, d) for d in given) or "-")
            except Exception:  # whatever it is, PyTorch has no answer
                both.add("-")
        found.append(both.pop() if len(both) == 1 else "-")
    return " ".join(found)


def main():
    text = subprocess.run(["lua5.4", "-e", CASES], capture_output=True, text=True, check=True)
    lines = []
    for line in text.stdout.splitlines():
        name, peer, form, kinds, ours, its = line.split("\t")
        cuda, cpu = (results(name, peer, form, kinds.split(","), its, device)
                     for device in ("cuda", "cpu"))
        if set(cuda + cpu) != {"-", " "}:
            lines.append(f"  {{[[{name}]], [[{form}]], [[{ours}]], [[{cuda}]], [[{cpu}]]}},")
    path = os.path.join(HERE, "..", "..", "spec", "golden", "autocast.lua")
    with open(path, "w") as file:
        file.write(f"-- What PyTorch {torch.__version__} answers; written by "
                   "scripts/golden/autocast.py.\n-- luacheck: ignore\n"
                   f'return {{torch = "{torch.__version__}", cases = {{\n')
        file.write("\n".join(lines) + "\n}}\n")
    print(f"{len(lines)} cases, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
