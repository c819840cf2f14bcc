# SPDX-License-Identifier: Apache-2.0
"""usage: older_glibc.py LIBRARY VERSION SYMBOL...

Rewrites a 64-bit shared library in place, so that it no longer wants glibc's VERSION: its references to SYMBOL... become unversioned
(whoever defines them serves: src/wheel.c), and the want becomes one more for GLIBC_2.2.5. Fails if other symbols want VERSION.
Needs pyelftools, which auditwheel brings.
"""
import struct
import sys

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection

GLOBAL = 1  # VER_NDX_GLOBAL


def entries(section):
    """(offset in the file of a vernaux, its name, the index that symbols have)"""
    at = section["sh_offset"]
    for need, auxiliaries in section.iter_versions():
        place = at + need["vn_aux"]
        for auxiliary in auxiliaries:
            yield place, auxiliary.name, auxiliary["vna_other"]
            place += auxiliary["vna_next"]
        at += need["vn_next"]


def patch(path, version, symbols):
    with open(path, "r+b") as file:
        elf = ELFFile(file)
        needs = next(s for s in elf.iter_sections() if isinstance(s, GNUVerNeedSection))
        indices = next(s for s in elf.iter_sections() if isinstance(s, GNUVerSymSection))
        names = [symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()]
        found = list(entries(needs))
        place, _, index = next(e for e in found if e[1] == version)
        model = next(e for e in found if e[1] == "GLIBC_2.2.5")[0]
        for i, name in enumerate(names):
            file.seek(indices["sh_offset"] + 2 * i)
            if struct.unpack("<H", file.read(2))[0] & 0x7fff != index:
                continue
            if name not in symbols:
                raise SystemExit(f"{path}: {name} wants {version}, too")
            file.seek(indices["sh_offset"] + 2 * i)
            file.write(struct.pack("<H", GLOBAL))
        for begin, size in ((0, 4), (8, 4)):  # vna_hash, vna_name
            file.seek(model + begin)
            value = file.read(size)
            file.seek(place + begin)
            file.write(value)


if __name__ == "__main__":
    patch(sys.argv[1], sys.argv[2], sys.argv[3:])
