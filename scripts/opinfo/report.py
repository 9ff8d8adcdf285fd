"""Counts checks, knows the deliberate differences, and prints clusters of failures."""
import collections
import os
import re

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "differences.txt")


class Difference:
    """A line of differences.txt: names, a phase (of a dtype, where it is named) and failures by
    pattern, and the reason."""

    def __init__(self, line):
        names, phase, failure, self.reason = (part.strip() for part in line.split(" | "))
        self.names, self.used = names.split(), 0
        self.phase, self.failure = re.compile(phase), re.compile(failure)

    def explains(self, name, phase, dtype, failure):
        return ((self.names == ["*"] or name.split(" ")[0] in self.names)
                and (self.phase.fullmatch(phase) or self.phase.fullmatch(f"{dtype} {phase}"))
                and self.failure.search(failure))


def differences():
    with open(FILE, encoding="utf-8") as f:
        return [Difference(line) for line in f if line.strip() and not line.startswith("#")]


def short(reason):
    """A failure without what changes from sample to sample."""
    reason = re.sub(r"^(raises: ).*?\.lua:\d+: ", r"\1", reason)
    reason = re.sub(r"^(raises: )=?call:\d+: |\[string[^]]*\]:\d+: ", r"\1", reason)
    reason = re.sub(r"\{[-\d, ]*\}", "{}", reason)
    reason = re.sub(r"\[[-\d, ]*\]", "[]", reason)
    reason = re.sub(r"0x[0-9a-f]+", "N", reason)
    return re.sub(r"(?<![a-z])-?\d+(\.\d+)?(e-?\d+)?", "N", reason)[:150]


class Report:
    def __init__(self, options):
        self.checks, self.failures, self.deliberate = 0, 0, 0
        self.dtype = options.dtype
        self.entries, self.missing, self.others = [], [], collections.Counter()
        self.skips, self.clusters = collections.Counter(), {}
        self.failing, self.differences = set(), differences()
        self.log = open(options.log, "w", encoding="utf-8") if options.log else None

    def entry(self, name):
        self.entries.append(name)

    def other(self, reason):
        self.others[reason] += 1

    def absent(self, name):
        self.missing.append(name)

    def skip(self, name, phase, reason):
        self.skips[reason] += 1

    def check(self, name, phase, reason, code, index):
        self.checks += 1
        if reason is None:
            return
        for d in self.differences:
            if d.explains(name, phase, self.dtype, reason):
                d.used += 1
                self.deliberate += 1
                return
        self.failures += 1
        self.failing.add(name)
        key = (name, phase, short(reason))
        cluster = self.clusters.setdefault(key, [0, code, reason, index])
        cluster[0] += 1
        if self.log:
            line = "\t".join((name, phase, str(index), reason, code)).replace("\n", " ")
            self.log.write(line + "\n")

    def show(self, restarts):
        for (name, phase, reason), (n, code, _, index) in sorted(
                self.clusters.items(), key=lambda c: (c[0][0], c[0][1], -c[1][0])):
            print(f"{n:5d}  {name} | {phase} | {reason} | sample {index}: {code[:160]}")
        if self.missing:
            print(f"\nmissing: {', '.join(self.missing)}")
        for reason, n in self.others.most_common():
            print(f"not counted: {n:4d}  {reason}")
        for reason, n in self.skips.most_common(12):
            print(f"skipped:     {n:4d}  {reason}")
        for d in self.differences:
            if d.used:
                print(f"on purpose:  {d.used:4d}  {' '.join(d.names)}: {d.reason}")
        there = len(self.entries) - len(self.missing)
        print(f"\n{there} of {len(self.entries)} entries there, {there - len(self.failing)} of "
              f"them without a failure")
        print(f"{self.checks} checks, {self.failures} failures in {len(self.clusters)} clusters, "
              f"{self.deliberate} different on purpose, {sum(self.skips.values())} skipped, "
              f"{restarts} restarts")
