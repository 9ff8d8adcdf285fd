"""How golden values are stored: an index in Lua and its numbers in a safetensors file.

A family's index, spec/golden/NAME.lua, holds one case per line. Lists of four or more
numbers leave the text: they stand as `f32(at, n)`, that is n numbers from element `at`
(counted from 0) of the flat tensor `f32` of spec/golden/NAME.safetensors. spec/golden.lua
reads both. A list goes to the smallest dtype that holds all of its numbers exactly.
"""
import json
import os
import re
import struct

FOLDER = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                       "..", "..", "spec", "golden"))
LEAST = 4  # shorter lists stay in the text
# A list of plain numbers, but neither a shape (s={...}) nor part of a string.
NUMBER = r"(?:-?(?:0x[0-9a-fA-F.p+-]+|[0-9.]+(?:e[-+]?\d+)?|[01]/0)|math\.mininteger)"
LIST = re.compile(rf'"(?:[^"\\]|\\.)*"|s={{[^}}]*}}|{{({NUMBER}(?:,{NUMBER}){{{LEAST - 1},}})}}')
# name -> (safetensors dtype, struct's letter), the smallest first
INTEGERS = {"i8": ("I8", "b"), "i16": ("I16", "h"), "i32": ("I32", "i"), "i64": ("I64", "q")}
FLOATS = {"f32": ("F32", "f"), "f64": ("F64", "d")}


def number(word):
    """The value of a Lua literal; 0/0 is NaN, 1/0 infinity."""
    if word == "math.mininteger":
        return -2**63
    if word.endswith("/0"):
        return float("nan") if word.strip("-").startswith("0") else float(word[:-2] + "e999")
    if "0x" in word:
        return float.fromhex(word) if re.search("[.p]", word) else int(word, 16)
    return int(word) if re.fullmatch(r"-?\d+", word) else float(word)


def kind_of(values):
    """The flat tensor that holds these values: all integers, or the narrower float."""
    if all(isinstance(v, int) for v in values):
        return next(k for k, (_, letter) in INTEGERS.items()
                    if -(1 << (8 * struct.calcsize(letter) - 1)) <= min(values)
                    and max(values) < 1 << (8 * struct.calcsize(letter) - 1))
    for v in values:
        try:
            if v == v and struct.unpack("<f", struct.pack("<f", v))[0] != v:
                return "f64"
        except OverflowError:
            return "f64"
    return "f32"


class Pool:
    """The numbers of one family by dtype; a list that was stored before is found again."""

    def __init__(self):
        self.values = {k: [] for k in (*FLOATS, *INTEGERS)}
        self.seen = {}

    def put(self, match):
        key = match.group(1)
        if key is None:
            return match.group(0)
        if key not in self.seen:
            values = [number(word) for word in key.split(",")]
            kind = kind_of(values)
            self.seen[key] = f"{kind}({len(self.values[kind])},{len(values)})"
            self.values[kind] += values
        return self.seen[key]

    def write(self, path, torch_version):
        # 8-byte numbers first, so that each tensor begins at a multiple of its size.
        kinds = sorted((k for k, v in self.values.items() if v), key=lambda k: (-int(k[1:]), k))
        header, data = {"__metadata__": {"torch": torch_version}}, b""
        for kind in kinds:
            dtype, letter = {**FLOATS, **INTEGERS}[kind]
            raw = struct.pack(f"<{len(self.values[kind])}{letter}", *self.values[kind])
            header[kind] = {"dtype": dtype, "shape": [len(self.values[kind])],
                            "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + data)


def save(name, text, torch_version):
    """Writes a family from its Lua text; returns the bytes of both files."""
    pool = Pool()
    index = LIST.sub(pool.put, text)
    paths = [os.path.join(FOLDER, name + end) for end in (".lua", ".safetensors")]
    with open(paths[0], "w", encoding="ascii", newline="\n") as f:
        f.write(index)
    pool.write(paths[1], torch_version)
    return sum(os.path.getsize(p) for p in paths)
