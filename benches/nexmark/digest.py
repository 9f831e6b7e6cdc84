#!/usr/bin/env python3
"""Digests result files (csv.gz with header) as `query rows sum`: the sum of FNV-1a over the lines, so that order does not matter.

usage: digest.py FILE…     Trailing zeros of a timestamp's fraction are dropped, as the engine prints them.
"""
import gzip, pathlib, re, sys

def fnv(line):
    h = 0xCBF29CE484222325
    for byte in line:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h

TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(\d+)")

def plain(line):
    def fraction(match):
        digits = match[2].rstrip("0")
        return match[1] + ("." + digits if digits else "")
    return TIME.sub(fraction, line)

for name in sys.argv[1:]:
    with gzip.open(name, "rt") as file:
        lines = file.read().splitlines()[1:]
    total = sum(fnv(plain(line).encode()) for line in lines) & 0xFFFFFFFFFFFFFFFF
    print(pathlib.Path(name).name.split(".")[0], len(lines), f"{total:016x}")
