"""What a listing of machine code (cuobjdump -sass) says of a kernel: loads, fences, local memory.

Not a disassembler: it reads operands only far enough to know which registers an instruction reads
and writes first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import FrozenSet, Tuple

_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;")
_REGISTER = re.compile(r"(?<![A-Z0-9_])R(\d+)(\.64)?")
_WIDTH = re.compile(r"\.(8|16|32|64|128)(?:\.|$)")
_BYTE = re.compile(r"\.[US]8(?:\.|$)")
# Their first operand is read, not written; so is that of a predicate's comparison.
_NO_RESULT = re.compile("ST|RED|BAR|BRA|EXIT|CCTL|MEMBAR|ERRBAR|BSSY|BSYNC|NOP|WARPSYNC|CALL|RET|.SETP")
_MOST_WAYS = 12  # that are followed to one instruction


@dataclass(frozen=True)
class Instruction:
    address: int
    predicate: str  # P1, !P1, or none
    opcode: str  # with its modifiers: LDG.E.128
    operands: tuple[str, ...]

    @cached_property
    def is_load(self) -> bool:
        """Of global memory, by an address of it or a generic one."""
        return self.opcode.startswith(("LDG.", "LD."))

    @property
    def is_byte_load(self) -> bool:
        return self.is_load and _BYTE.search(self.opcode) is not None

    @cached_property
    def width(self) -> int:
        """Bytes that it loads or stores."""
        if _BYTE.search(self.opcode):
            return 1
        if re.search(r"\.[US]16(?:\.|$)", self.opcode):
            return 2
        found = _WIDTH.search(self.opcode)
        return int(found[1]) // 8 if found else 4

    @cached_property
    def target(self) -> int | None:
        """Of a branch."""
        if not self.opcode.startswith("BRA") or not self.operands:
            return None
        return int(self.operands[-1], 16) if self.operands[-1].startswith("0x") else None

    @cached_property
    def ends(self) -> bool:
        """What follows is not what comes next, where it is executed."""
        return self.opcode.startswith(("EXIT", "RET")) or self.target is not None

    @property
    def conditional_target(self) -> bool:
        """Of a branch by a predicate among its operands."""
        return self.target is not None and len(self.operands) > 1

    @cached_property
    def predicates_set(self) -> list[str]:
        """Those that it may have changed."""
        return [each for each in self.operands[:3] if re.fullmatch(r"U?P\d", each)]

    @cached_property
    def written(self) -> frozenset[int]:
        if not self.operands or _NO_RESULT.match(self.opcode):
            return frozenset()
        found = _REGISTER.match(self.operands[0])
        if not found:
            return frozenset()
        wide = ".64" in self.opcode or ".WIDE" in self.opcode or self.opcode[:4] in ("DADD", "DMUL", "DFMA")
        count = max(self.width // 4, 1) if self.opcode.startswith(("LD", "ATOM")) else 2 if wide else 1
        return frozenset(range(int(found[1]), int(found[1]) + count))

    @cached_property
    def read(self) -> frozenset[int]:
        first = 0 if _NO_RESULT.match(self.opcode) or not self.written else 1
        registers: set[int] = set()
        for operand in self.operands[first:]:
            for found in _REGISTER.finditer(operand):
                count = 2 if found[2] else 1
                if self.opcode.startswith("ST") and operand is self.operands[-1]:
                    count = max(self.width // 4, 1)
                registers.update(range(int(found[1]), int(found[1]) + count))
        return frozenset(registers)


def parse(text: str) -> dict[str, list[Instruction]]:
    """Instructions of each function of a listing."""
    functions: dict[str, list[Instruction]] = {}
    code = None
    for line in text.splitlines():
        name = _FUNCTION.match(line)
        if name:
            code = functions.setdefault(name[1], [])
            continue
        found = _LINE.match(line)
        if found and code is not None:
            operands = tuple(part.strip() for part in found[4].split(",")) if found[4] else ()
            code.append(Instruction(int(found[1], 16), found[2] or "", found[3], operands))
    return functions


def byte_loads(code: list[Instruction]) -> int:
    """Loads of one byte, on all paths: rounds of a loop may be unrolled."""
    return sum(each.is_byte_load for each in code)


def count(code: list[Instruction], *beginnings: str) -> int:
    return sum(each.opcode.startswith(beginnings) for each in code)


def fences(code: list[Instruction]) -> int:
    """Instructions that make order in global memory, or empty the L1 cache; of a pair one."""
    return max(count(code, "MEMBAR"), count(code, "CCTL"))


def atomics(code: list[Instruction]) -> int:
    """In global memory."""
    return count(code, "ATOM.", "ATOMG.", "RED.", "REDG.")


def local_accesses(code: list[Instruction]) -> int:
    return count(code, "LDL", "STL")


@dataclass(frozen=True, order=True)
class InFlight:
    """What one thread has asked for and not needed yet."""

    loads: int = 0  # of 16 bytes
    bytes: int = 0


# (registers that a load writes, its bytes), and what predicates hold.
_Pending = Tuple[Tuple[FrozenSet[int], int], ...]
_Known = FrozenSet[str]


def _sum(pending: _Pending) -> InFlight:
    return InFlight(sum(bytes_ == 16 for _, bytes_ in pending), sum(bytes_ for _, bytes_ in pending))


def _issue(each: Instruction, pending: _Pending) -> _Pending:
    """What is pending behind an instruction: who waits for a load has all that were issued before it."""
    touched = each.read | each.written
    for i in reversed(range(len(pending))):
        if pending[i][0] & touched:
            pending = pending[i + 1:]
            break
    if each.opcode.startswith("MEMBAR"):
        return ()
    return (*pending, (each.written, each.width)) if each.is_load and each.width > 1 else pending


def _negated(predicate: str) -> str:
    return predicate[1:] if predicate.startswith("!") else f"!{predicate}"


def _cases(each: Instruction, known: _Known) -> list[tuple[bool, _Known]]:
    """(whether it is executed, what is known of predicates then), for what is known before."""
    if not each.predicate or each.predicate in known:
        return [(True, known)]
    if _negated(each.predicate) in known:
        return [(False, known)]
    if each.is_load or each.ends:
        return [(True, known | {each.predicate}), (False, known | {_negated(each.predicate)})]
    return [(True, known)]


def in_flight(code: list[Instruction]) -> InFlight:
    """The most that is on its way at once, on the best path that goes no loop twice. Loads of one byte
    are not counted: they stand in where memory is unaligned."""
    index = {each.address: i for i, each in enumerate(code)}
    best = InFlight()
    # To an instruction: what is pending, what is known of predicates.
    ways: list[set[tuple[_Pending, _Known]]] = [set() for _ in range(len(code) + 1)]
    ways[0].add(((), frozenset()))
    for i, each in enumerate(code):
        kept = sorted(ways[i], key=lambda way: _sum(way[0]))[-_MOST_WAYS:]
        ways[i].clear()
        for pending, known in kept:
            for executed, now in _cases(each, known):
                after = _issue(each, pending) if executed else pending
                best = max(best, _sum(after))
                now = now - {name for set_ in each.predicates_set for name in (set_, f"!{set_}")}
                if not executed or not each.ends or each.conditional_target:
                    ways[i + 1].add((after, now))
                if executed and each.target is not None and each.target > each.address:
                    ways[index.get(each.target, len(code))].add((after, now))
    return best
