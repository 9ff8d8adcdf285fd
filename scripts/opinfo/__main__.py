#!/usr/bin/env python3
"""Runs the samples of PyTorch's own suites against demilune.

python3 scripts/opinfo [--suite op|module|optim] [--dtype float32] [--ops PATTERN]
                       [--limit SAMPLES] [--log FILE] [--build FOLDER]

Each sample is called in PyTorch and in demilune (a Lua process, worker.lua), and the two
are compared: results, gradients, second gradients, the same with strided inputs, in place,
wrong inputs (both must refuse), and the dtypes of results under autocast. Prints how many
of the suite's entries there are here, how many checks fail, and the failures in clusters.
What differs on purpose is written, with its reason, in differences.txt.
"""
import argparse
import os
import sys
import warnings


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--suite", choices=("op", "module", "optim"), default="op")
    parser.add_argument("--dtype", default="float32", help="of the samples")
    parser.add_argument("--ops", default="", help="a regular expression that names match")
    parser.add_argument("--limit", type=int, default=None, help="samples of an entry, at most")
    parser.add_argument("--log", help="a file that gets a line for each failure")
    parser.add_argument("--build", default="build", help="the build folder to test")
    return parser.parse_args()


def main():
    options = arguments()
    try:
        import torch
    except ImportError:
        print("skipped: torch is not installed, whose suites this runs")
        return 0
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.stderr.flush()
    import modules
    import ops
    import optimizers
    from report import Report
    from worker import Worker

    worker = Worker(options.build)
    report = Report(options)
    suite = {"op": ops, "module": modules, "optim": optimizers}[options.suite]
    suite.run(worker, report, options)
    worker.stop()
    report.show(worker.restarts)
    return 1 if report.failures else 0


if __name__ == "__main__":
    os.environ.setdefault("TORCH_LOGS", "-all")
    sys.exit(main())
