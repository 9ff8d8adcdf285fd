#!/usr/bin/env python3
"""Counts the lines of src/ that the tests reach, and those that the fuzzers reach.

python3 scripts/coverage [--report] [--build FOLDER] [--least PERCENT]
python3 scripts/coverage --fuzz [--seconds SECONDS]

The first form builds build/coverage with gcc --coverage, runs the C checks, every spec file in
a process of its own and the walk of what threads share, and prints the share of lines that
were reached, per folder and in all, and the lines that were not. Lines that unreached.txt
explains do not count. It fails below PERCENT (95). --report only counts anew what a run left.

The second form is for the readers of files: see fuzz.py.
"""
import argparse
import concurrent.futures
import glob
import os
import subprocess
import sys

import fuzz
import lines


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build/coverage", help="the build folder")
    parser.add_argument("--report", action="store_true", help="run nothing, only count")
    parser.add_argument("--least", type=float, default=95, help="percent of lines to reach")
    parser.add_argument("--fuzz", action="store_true", help="count what the fuzzers reach")
    parser.add_argument("--seconds", type=int, default=0, help="of fuzzing, for each fuzzer")
    return parser.parse_args()


def make(build):
    """Builds the module and the checks; counters are atomic because threads share them."""
    subprocess.run(
        ["cmake", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DWITH_CUDA=0",
         "-DDM_INSTALL_C=OFF", "-DDM_SHARED=OFF",
         "-DCMAKE_C_FLAGS=-O1 --coverage -fprofile-update=atomic"],
        check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", build, "--quiet", "all", "checks"], check=True)


def commands(build):
    """-> (name, command, more of the environment) of each program."""
    paths = {"LUA_PATH_5_4": "lua/?.lua;lua/?/init.lua;./?.lua;;",
             "LUA_CPATH_5_4": f"{build}/lua/?.so;;"}
    yield "spec/race_walk.lua", ["lua5.4", "spec/race_walk.lua"], paths
    for path in sorted(glob.glob("spec/*_check.c")):
        name = os.path.basename(path)[:-2]
        yield name, [f"{build}/spec/{name}"], {}
        if name == "cpu_check":  # once more without the wider vectors
            for cpu in "plain", "avx2":
                yield f"{name} {cpu}", [f"{build}/spec/{name}"], {"DEMILUNE_CPU": cpu}
    busted = subprocess.run(["sh", "-c", "command -v busted"], check=True,
                            capture_output=True, text=True).stdout.strip()
    for path in sorted(glob.glob("spec/**/*_spec.lua", recursive=True)):
        yield path, ["lua5.4", busted, "--exclude-tags=slow", path], {"DEMILUNE_BUILD": build}


def run(name, command, environment, build):
    """Runs one program with its output in a log; -> whether it passed."""
    log = f"{build}/log/{name.replace('/', '_').replace(' ', '_')}.log"
    with open(log, "w") as out:
        try:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                    timeout=1800, env={**os.environ, **environment}).returncode
        except subprocess.TimeoutExpired:
            status = "time limit"
    if status != 0:
        print(f"failed ({status}): {name}, see {log}", flush=True)
    return status == 0


def run_all(build):
    """-> how many programs failed. Counts of earlier runs are removed."""
    for path in glob.glob(f"{build}/**/*.gcda", recursive=True):
        os.remove(path)
    os.makedirs(f"{build}/log", exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda c: run(*c, build), commands(build)))
    return results.count(False)


def main():
    options = arguments()
    if options.fuzz:
        return fuzz.main(options.seconds)
    failed = 0
    if not options.report:
        make(options.build)
        failed = run_all(options.build)
    share = lines.report(options.build)
    is_enough = share >= options.least
    print(f"{int(is_enough)} passed, {failed + (not is_enough)} failed")
    return int(failed > 0 or not is_enough)


sys.exit(main())
