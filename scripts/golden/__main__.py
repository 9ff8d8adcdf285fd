#!/usr/bin/env python3
"""Writes spec/golden: what PyTorch answers, for the specs to compare with.

Run by hand when a definition is added: python3 scripts/golden [family ...]
The specs read only the files, so PyTorch is needed by nobody else. A family is a
function of one of the files here; each has random numbers of its own, so that a
family can be written without the others. Files that say so in their first lines are
programs of their own: python3 scripts/golden/scaler.py.
"""
import sys
import zlib

import torch

import creation, derived, distributions, dtypes, edges, fourier, functions  # noqa: E401, F401
import further, linalg, losses, norms, pointwise, positions, products  # noqa: E401, F401
import reductions, sequence, spatial, training, vision, weights  # noqa: E401, F401
import cases
import store


def main():
    wanted, total = sys.argv[1:], 0
    for name, kind, fn in cases.FAMILIES:
        if wanted and name not in wanted:
            continue
        cases.LINES.clear()
        cases.NAMES.clear()
        torch.manual_seed(zlib.crc32(name.encode()))
        fn()
        head = (f"-- What PyTorch {torch.__version__} answers; written by scripts/golden.\n"
                "-- luacheck: ignore\n"
                f'return {{torch="{torch.__version__}",kind="{kind}",cases={{\n')
        size = store.save(name, head + "\n".join(cases.LINES) + "\n}}\n", torch.__version__)
        total += size
        print(f"{name:12s} {len(cases.LINES):5d} cases {size:8d} bytes")
    print(f"{total} bytes, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
