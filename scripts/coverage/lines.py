"""Counts lines by gcov: which lines of src/ have code, and how often each was reached."""
import collections
import concurrent.futures
import fnmatch
import glob
import json
import os
import re
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))


def counts_of(note):
    """-> {path: {line: count}} of the files that one object was compiled from, and
    {(path, function): (first line, last line)}."""
    answer = subprocess.run(["gcov", "--json-format", "--stdout", note], check=True,
                            capture_output=True, text=True).stdout
    counts, functions = {}, {}
    for text in answer.splitlines():
        told = json.loads(text)
        for file in told["files"]:
            path = os.path.relpath(
                os.path.join(told["current_working_directory"], file["file"]))
            if not path.startswith("src/"):
                continue
            of_file = counts.setdefault(path, collections.Counter())
            for line in file["lines"]:
                of_file[line["line_number"]] += line["count"]
            for f in file["functions"]:
                functions[path, f["name"]] = f["start_line"], f["end_line"]
    return counts, functions


def count(build):
    """-> the same of all objects; code that many of them share counts once."""
    notes = sorted(glob.glob(f"{build}/**/*.gcno", recursive=True))
    total, all_functions = collections.defaultdict(collections.Counter), {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for counts, functions in pool.map(counts_of, notes):
            all_functions.update(functions)
            for path, of_file in counts.items():
                for line, n in of_file.items():
                    total[path][line] += n
    return total, all_functions


def statement(text, line):
    """-> the statement that this line is part of, in one line of text."""
    first, last = line - 1, line - 1
    while first > 0 and not re.search(r"([;{}:]|\*/|^#.*|^\s*)$", text[first - 1]):
        first -= 1
    while last + 1 < len(text) and not re.search(r"([;{}]|\*/)$", text[last]):
        last += 1
    return " ".join(part.strip() for part in text[first:last + 1])


class Reasons:
    """The patterns of unreached.txt: why lines are not reached, by file, and by the text of a
    statement or the name of a function."""

    def __init__(self, functions):
        self.functions = functions
        self.rows, self.used = [], collections.Counter()
        reason = None
        with open(f"{HERE}/unreached.txt") as file:
            for text in file:
                text = text.rstrip("\n")
                if text.startswith("["):
                    reason = text.strip("[]")
                elif text and not text.startswith("#"):
                    path, pattern = text.split(maxsplit=1)
                    self.rows.append((reason, path, pattern))

    def matches(self, pattern, path, text, line):
        """Whether the line is in the function NAME of a pattern NAME(), or matches it."""
        if pattern.endswith("()"):
            first, last = self.functions.get((path, pattern[:-2]), (0, 0))
            return first <= line <= last
        return re.search(pattern, statement(text, line)) is not None

    def of(self, path, text, line):
        """-> the reason why this line of a file's text is not reached, or None."""
        for row in self.rows:
            if fnmatch.fnmatch(path, row[1]) and self.matches(row[2], path, text, line):
                self.used[row] += 1
                return row[0]
        return None

    def unused(self):
        return [row for row in self.rows if not self.used[row]]


def spans(numbers):
    """-> [(first, last)] of numbers that follow one another."""
    runs = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return runs


def print_missed(path, text, missed):
    for first, last in spans(missed):
        name = f"{path}:{first}" + (f"-{last}" if last > first else "")
        print(f"  {name}: {text[first - 1].strip()[:100]}")


def percent(reached, all_lines):
    return 100 * reached / all_lines if all_lines else 100.0


def report(build):
    """Prints shares, missed lines and reasons; -> the percentage of lines reached."""
    counts, functions = count(build)
    reasons, by_reason = Reasons(functions), collections.Counter()
    folders = collections.defaultdict(lambda: [0, 0])
    print("lines that no test reaches")
    for path, of_file in sorted(counts.items()):
        with open(path) as file:
            text = file.read().splitlines()
        missed = set()
        for line in (n for n, times in of_file.items() if times == 0):
            reason = reasons.of(path, text, line)
            by_reason[reason] += 1
            if not reason:
                missed.add(line)
        reached = sum(times > 0 for times in of_file.values())
        folder = folders["/".join(path.split("/")[:2 if path.count("/") < 3 else 3])]
        folder[0] += reached
        folder[1] += reached + len(missed)
        print_missed(path, text, missed)
    print("lines that do not count, by reason")
    for reason, n in by_reason.items():
        if reason:
            print(f"  {n:5} {reason}")
    for reason, path, pattern in reasons.unused():
        print(f"  unreached.txt: no line needs '{path} {pattern}' ({reason})")
    print("lines reached")
    for name, (reached, all_lines) in sorted(folders.items()):
        print(f"  {name:20} {reached:6} of {all_lines:6}  {percent(reached, all_lines):5.1f} %")
    reached, all_lines = (sum(f[i] for f in folders.values()) for i in (0, 1))
    share = percent(reached, all_lines)
    print(f"  {'src':20} {reached:6} of {all_lines:6}  {share:5.1f} %")
    return share
