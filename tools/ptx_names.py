# SPDX-License-Identifier: MIT
"""Registers of PTX named by when they were last used, which makes the text of one kernel
file's instances, and of its unrolled loops, repeat itself: it packs a tenth as large.

The names of virtual registers mean nothing. In each function, once `.reg .b32 %r<9>;` has
declared a kind, `%r+` is a register that was not used before and `%r-2` the one that was used
before two others of its kind. src/backend/cuda/ptx_names.c names them %r1, %r2, ... again in
the order in which they appear, as restore() does here.
"""
import re

REGISTER = re.compile(r"%([a-z]+)(?:<(\d+)>|(\d+)\b)")
SHORT = re.compile(r"%([a-z]+)(?:<(\d+)>|\+|-(\d+))")
TAKEN = re.compile(r"%[a-z]+[+-]")


def shorten(text):
    if taken := TAKEN.search(text):
        raise ValueError(f"PTX with {taken[0]!r} in it")
    recent, size = {}, {}

    def name(found):
        kind, declared, number = found.groups()
        if declared:
            recent[kind], size[kind] = [], int(declared)
        if declared or kind not in recent:    # no register of ours, %clock64 say
            return found[0]
        used = recent[kind]
        if number not in used:
            used.insert(0, number)
            if len(used) >= size[kind]:
                raise ValueError(f"PTX with more %{kind} than it declares")
            return f"%{kind}+"
        at = used.index(number)
        used.insert(0, used.pop(at))
        return f"%{kind}-{at}"

    return REGISTER.sub(name, text)


def restore(text):
    recent = {}

    def name(found):
        kind, declared, at = found.groups()
        if declared:
            recent[kind] = []
            return found[0]
        used = recent[kind]
        used.insert(0, used.pop(int(at)) if at else len(used) + 1)
        return f"%{kind}{used[0]}"

    return SHORT.sub(name, text)


def same(one, other):
    """Whether two texts differ in nothing but one-to-one names of registers."""
    if REGISTER.sub("%", one) != REGISTER.sub("%", other):
        return False
    there, back = {}, {}
    for a, b in zip(REGISTER.finditer(one), REGISTER.finditer(other)):
        kind, declared, number = a.groups()
        if (kind, declared) != (b[1], b[2]):
            return False
        if declared:
            there[kind], back[kind] = {}, {}
        elif kind not in there:
            if number != b[3]:
                return False
        elif there[kind].setdefault(number, b[3]) != b[3] or \
                back[kind].setdefault(b[3], number) != number or \
                not 0 < int(b[3]):
            return False
    return True
