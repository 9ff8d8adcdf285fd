"""How much of each reader's source its fuzzer reaches.

`python3 scripts/coverage --fuzz` builds the fuzzers and gives each the seeds of
spec/fuzz/corpus.tar; with --seconds N, it then fuzzes each for so long and gives it all that it
found. It prints the share of lines of each reader's files, and the lines that neither reached.
C is counted by clang (Debian's llvm-14), Lua by the fuzzers' own hook.
"""
import collections
import concurrent.futures
import json
import os
import re
import shutil
import subprocess

import lines

BUILD = "build/fuzz"
CORPUS = "spec/fuzz/corpus.tar"

# The files that each fuzzer is for. A text after the path is a pattern of the line that ends
# the reader in its file, two texts are those of its first and last line; a file may come again.
READERS = {
    "checkpoint": [("lua/demilune/io.lua", "^-- ---- reading", "^-- ---- formats")],
    "csv": [("lua/demilune/data/csv.lua", "^-- ---- reading", "^return csv")],
    "idx": [("src/data/idx.c",), ("src/data/inflate.c",)],
    "index": [("lua/demilune/io.lua", "^local function look_up", "^local IN_FOLDER")],
    "jpeg": [("src/data/jpeg.c",), ("src/data/exif.c",), ("src/data/decode.c",)],
    "json": [("src/bind/misc.c", "JSON, by libcjson", "the op table as data")],
    "npy": [("lua/demilune/data/npy.lua", "^local function read_head", "^local function encode"),
            ("lua/demilune/data/npy.lua", "^function npy.read_npy", "^function npy.write_npy"),
            ("lua/demilune/data/npy.lua", "^function npy.read_npz", "^function npy.write_npz")],
    "png": [("src/data/png.c", "---- writing"), ("src/data/decode.c",)],
    "safetensors": [("src/data/safetensors.c", "---- writing: the header"),
                    ("src/data/checksum.c",), ("src/data/file.c",)],
    "tokenizer": [("lua/demilune/text/bpe.lua",), ("src/data/unicode.c",)],
    "tokens": [("src/data/tokens.c", "^dm_status dm_tokens_window"), ("src/data/file.c",)],
    "torch": [("lua/demilune/torch_file.lua",), ("lua/demilune/pickle.lua",)],
    "zip": [("src/data/zip.c",), ("src/data/inflate.c",)],
}


def tool(name):
    """-> the path of an llvm program, with or without Debian's version, or None."""
    return shutil.which(f"{name}-14") or shutil.which(name)


def make():
    subprocess.run(
        ["cmake", "-B", BUILD, "-G", "Ninja", "-DDM_FUZZ=ON", "-DCMAKE_C_COMPILER=clang",
         "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS=-O1", "-DWITH_CUDA=0",
         "-DDM_INSTALL_C=OFF"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", BUILD, "--quiet", "fuzzers"], check=True)
    shutil.rmtree(f"{BUILD}/seeds", ignore_errors=True)
    os.makedirs(f"{BUILD}/seeds")
    subprocess.run(["tar", "-xf", CORPUS, "-C", f"{BUILD}/seeds"], check=True)


def run(name, tag, arguments, folders):
    """Runs a fuzzer; its counts go to files of this tag."""
    stem = os.path.abspath(f"{BUILD}/{name}.{tag}")
    environment = {**os.environ, "LLVM_PROFILE_FILE": f"{stem}.profraw", "DEMILUNE_CUDA": "0",
                   "FUZZ_LINES": f"{stem}.lines", "OMP_NUM_THREADS": "1"}
    with open(f"{stem}.log", "w") as log:
        subprocess.run(
            [f"{BUILD}/spec/{name}_fuzz", "-timeout=20", "-rss_limit_mb=2048",
             "-detect_leaks=0", f"-artifact_prefix={BUILD}/{name}-", *arguments, *folders],
            check=True, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)


def c_counts(name, tag, paths):
    """-> {path: {line: count}} of C files, from clang's counters."""
    stem = f"{BUILD}/{name}.{tag}"
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", f"{stem}.profraw", "-o",
                    f"{stem}.profdata"], check=True)
    answer = subprocess.run(
        [tool("llvm-cov"), "export", "-format=lcov", f"{BUILD}/spec/{name}_fuzz",
         f"-instr-profile={stem}.profdata"], check=True, capture_output=True, text=True)
    counts = {}
    for text in answer.stdout.splitlines():
        if text.startswith("SF:"):
            of_file = counts.setdefault(os.path.relpath(text[3:]), {})
        elif text.startswith("DA:"):
            line, times = text[3:].split(",")[:2]
            of_file[int(line)] = int(times)
    return {path: counts[path] for path in paths}


def lua_counts(name, tag, paths):
    """-> the same of Lua files: the lines of their functions, and those that ran."""
    reached = set()
    with open(f"{BUILD}/{name}.{tag}.lines") as file:
        for text in file:
            path, line = text.rstrip("\n").rsplit(":", 1)
            reached.add((os.path.relpath(path), int(line)))
    counts = {}
    for path in paths:
        listing = subprocess.run(["luac5.4", "-l", "-p", path], check=True,
                                 capture_output=True, text=True).stdout
        # the file's own code runs when it is loaded, before the hook is set
        inside = "".join(re.split(r"^(?=main|function) *", listing, flags=re.MULTILINE)[2:])
        numbers = {int(n) for n in re.findall(r"^\t\d+\t\[(\d+)\]", inside, re.MULTILINE)}
        with open(path) as file:  # Lua's compiler puts code at each end, which may be dead
            ends = {i for i, text in enumerate(file, 1) if re.match(r"\s*end\W*$", text)}
        counts[path] = {n: int((path, n) in reached) for n in numbers - ends}
    return counts


def bounds(text, marks):
    """-> the first and the last line of a reader, from the patterns beside its path."""
    def find(mark):
        return next(i for i, line in enumerate(text, 1) if re.search(mark, line))
    if not marks:
        return 1, len(text)
    return (find(marks[0]) if len(marks) > 1 else 1), find(marks[-1])


def of_reader(name, tag):
    """-> {path: {line: count}} of the lines that belong to the reader."""
    paths = sorted({row[0] for row in READERS[name]})
    counts = {}
    in_c = [p for p in paths if p.endswith(".c")]
    if in_c:
        counts.update(c_counts(name, tag, in_c))
    in_lua = [p for p in paths if p.endswith(".lua")]
    if in_lua:
        counts.update(lua_counts(name, tag, in_lua))
    found = collections.defaultdict(dict)
    for path, *marks in READERS[name]:
        with open(path) as file:
            first, last = bounds(file.read().splitlines(), marks)
        found[path].update((n, times) for n, times in counts[path].items() if first <= n <= last)
    return found


def share(counts):
    everything = [times for of_file in counts.values() for times in of_file.values()]
    reached = sum(times > 0 for times in everything)
    return reached, len(everything), lines.percent(reached, len(everything))


def measure(name, seconds):
    """Runs the seeds and, after fuzzing, all that is known: -> the counts of both; None where
    the fuzzer failed."""
    try:
        return measure_unless_failed(name, seconds)
    except subprocess.CalledProcessError as error:
        print(f"failed: {' '.join(error.cmd[:1])}, see {BUILD}/{name}.*.log", flush=True)
        return None


def measure_unless_failed(name, seconds):
    seeds, found = f"{BUILD}/seeds/{name}", f"{BUILD}/corpus/{name}"
    os.makedirs(found, exist_ok=True)
    run(name, "seeds", ["-runs=0"], [seeds])
    before = of_reader(name, "seeds")
    if not seconds:
        return before, before
    run(name, "fuzzing", [f"-max_total_time={seconds}"], [found, seeds])
    run(name, "all", ["-runs=0"], [found, seeds])
    return before, of_reader(name, "all")


def main(seconds):
    missing = [name for name in ("clang", "llvm-profdata", "llvm-cov", "luac5.4")
               if not (tool(name) if name.startswith("llvm") else shutil.which(name))]
    if missing:
        print(f"skipped: {', '.join(missing)} not found (Debian: clang, llvm-14, lua5.4)")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    make()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda name: measure(name, seconds), READERS))
    print(f"lines of each reader: reached by the seeds, and after {seconds} s of fuzzing")
    for name, result in zip(READERS, results):
        if not result:
            continue
        before, after = result
        reached, _, first = share(before)
        more, everything, second = share(after)
        print(f"{name:12} {reached:5} of {everything:5} {first:5.1f} %"
              f"   {more:5} {second:5.1f} %")
        for path, of_file in after.items():
            with open(path) as file:
                text = file.read().splitlines()
            lines.print_missed(path, text, {n for n, times in of_file.items() if not times})
    n_failed = results.count(None)
    print(f"{len(READERS) - n_failed} passed, {n_failed} failed")
    return int(n_failed > 0)
