#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The object that nvcc made holds machine code for sm_80 and sm_90, and PTX for what comes after.

usage: fatbin.py OBJECT. Read from the fat binary's headers, as cuobjdump would: the image of a compiler need not have it.
"""
import struct
import sys

MAGIC, PTX, ELF = 0xBA55ED50, 1, 2


def entries(data):
    """(kind, architecture) of each image in each fat binary."""
    at = 0
    while (at := data.find(struct.pack("<I", MAGIC), at)) >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        inner, end = at + header, at + header + size
        while inner < end:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", data, inner)
            yield kind, struct.unpack_from("<I", data, inner + 28)[0]
            inner += entry_header + payload
        at = end


with open(sys.argv[1], "rb") as file:
    found = set(entries(file.read()))
assert {(ELF, 80), (ELF, 90), (PTX, 90)} <= found, found
print("sm_80, sm_90 and PTX of compute_90 are in", sys.argv[1])
