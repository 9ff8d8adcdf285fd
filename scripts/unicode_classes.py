#!/usr/bin/env python3
"""Writes lua/demilune/text/classes.lua: which characters are letters and numbers.

Run by hand when Unicode has grown: python3 scripts/unicode_classes.py
"""
import os
import unicodedata

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lua/demilune/text/classes.lua")


def ranges(category):
    """Beyond ASCII, as pairs in hexadecimal: from the last end to the first, to the last."""
    words, end, first = [], 0x7F, None
    for code in range(0x80, 0x110001):
        inside = code < 0x110000 and unicodedata.category(chr(code))[0] == category
        if inside and first is None:
            first = code
        elif not inside and first is not None:
            words += [f"{first - end:x}", f"{code - 1 - first:x}"]
            first, end = None, code - 1
    return " ".join(words)


def wrapped(text):
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > 96:
            lines.append(line)
            line = ""
        line += (" " if line else "") + word
    return "\n".join([*lines, line])


with open(PATH, "w", encoding="ascii") as f:
    f.write(f"-- Letters and numbers of Unicode {unicodedata.unidata_version} beyond ASCII (general "
            "categories L and N):\n-- ranges, as their distance from the one before and their length "
            "less one, in hexadecimal.\n-- Written by scripts/unicode_classes.py.\n"
            f"return {{letters = [[\n{wrapped(ranges('L'))}]],\nnumbers = [[\n{wrapped(ranges('N'))}]]}}\n")
