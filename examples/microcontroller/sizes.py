"""Flash and memory of a firmware by category, from the linker map.

python sizes.py build/m4.map
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FLASH, MEMORY = 0x00000000, 0x20000000
LINE = re.compile(r"^ (\.\S+|COMMON)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+)\s+(\S.*)$")


def kind(section: str, file: str) -> str:
    """Return the category of a section of the firmware."""
    if ".polyadic_test_" in section or section.endswith(
        ("polyadic_selftest", "polyadic_close")
    ):
        return "selftest"
    if section.startswith(".rodata.polyadic_"):
        return "tables"
    if section.startswith(".text.polyadic_"):
        return "code"
    if re.search(r"lib(m|gcc|c|c_nano|g|g_nano)\.a", file):
        return "libraries"
    if section == ".bss.stream":
        return "stream"
    return "stack" if section == ".stack" else "application"


def sizes(text: str) -> dict[str, dict[str, int]]:
    """Return the bytes of flash and of memory by category.

    Parameters
    ----------
    text : content of the linker map
    """
    _, _, placed = text.partition("Linker script and memory map")
    if not placed:
        raise ValueError("the file is not a linker map of GNU ld")
    # A long name has its numbers on the next line.
    lines = re.sub(r"^( \.\S+)\n\s+0x", r"\1 0x", placed, flags=re.MULTILINE).splitlines()
    found: dict[str, dict[str, int]] = {"flash": {}, "memory": {}}
    for line in lines:
        match = LINE.match(line)
        if match is None or match[1].startswith((".debug", ".comment", ".ARM.attr")):
            continue
        section, address, size, file = (
            match[1],
            int(match[2], 16),
            int(match[3], 16),
            match[4],
        )
        places = ["memory"] if address >= MEMORY else ["flash"] if address or size else []
        if section.startswith(".data"):
            places = ["flash", "memory"]  # initial values of variables are stored in flash
        for place in places:
            name = kind(section, file)
            found[place][name] = found[place].get(name, 0) + size
    stack = re.search(r"^\.stack\s+0x[0-9a-f]+\s+0x([0-9a-f]+)", placed, flags=re.MULTILINE)
    if stack is not None:
        found["memory"]["stack"] = int(stack[1], 16)
    return {
        place: {name: size for name, size in parts.items() if size}
        for place, parts in found.items()
    }


def main() -> None:
    for path in sys.argv[1:]:
        for place, parts in sizes(Path(path).read_text()).items():
            listed = ", ".join(f"{name} {size:,}" for name, size in sorted(parts.items()))
            print(f"{Path(path).stem} {place}: {sum(parts.values()):,} bytes ({listed})")


if __name__ == "__main__":
    main()
