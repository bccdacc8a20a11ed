"""Listings of machine code: each rule on a few lines, and the page's table (tests/simt/machine_code.py)."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

SIMT = Path(__file__).resolve().parents[1] / "simt"
sys.path.insert(0, str(SIMT))
import machine_code  # noqa: E402
import machine_code_rows  # noqa: E402
import sass  # noqa: E402

WIDE = ["LDG.E.128 R4, desc[UR4][R2.64]", "LDG.E.128 R8, desc[UR4][R2.64+0x10]"]
USE = ["FADD R0, R5, R0", "EXIT"]


def listing(*lines):
    body = "".join(f"        /*{16 * i:04x}*/         {line} ;      /* 0x00000a00ff017b82 */\n"
                   for i, line in enumerate(lines))
    return sass.parse(f"\t\tFunction : kernel\n{body}")["kernel"]


@pytest.mark.parametrize("lines,loads,bytes_", [
    ([*WIDE, *USE], 2, 32),
    ([WIDE[0], "FADD R0, R5, R0", WIDE[1], *USE], 1, 16),  # waits for the first one
    ([WIDE[0], "STG.E.128 desc[UR4][R2.64], R4", WIDE[1], *USE], 1, 16),
    (["LDG.E R9, desc[UR4][R2.64]", "LD.E.128 R4, [R2.64]", "IADD3 R1, R9, R9, RZ", *USE], 1, 20),
    (["@P1 LDG.E R4, desc[UR4][R2.64]", "@!P1 LDG.E.128 R4, desc[UR4][R2.64]", WIDE[1], *USE], 2, 32),
    (["@P0 BRA 0x30", *WIDE, *USE], 2, 32),
    ([WIDE[0], "MEMBAR.SC.GPU", WIDE[1], *USE], 1, 16),
    (["LDG.E.U8 R4, desc[UR4][R2.64]", *USE], 0, 0),
])
def test_loads_are_in_flight_until_one_of_them_is_needed(lines, loads, bytes_):
    assert sass.in_flight(listing(*lines)) == sass.InFlight(loads, bytes_)


def test_bytes_fences_atomics_and_local_memory_are_counted():
    code = listing("LDG.E.U8.STRONG.SYS R0, desc[UR4][R2.64]", "LDG.E.S8 R0, desc[UR4][R2.64]",
                   "LDG.E.U16 R0, desc[UR4][R2.64]", "MEMBAR.SC.GPU", "ERRBAR", "CCTL.IVALL",
                   "MEMBAR.SC.GPU", "STL [R1], R0", "LDL R0, [R1]", "ATOMS.ADD R0, [R1], R2",
                   "ATOMG.E.INC.STRONG.GPU PT, R2, desc[UR6][R2.64], R7", "REDUX UR4, R0",
                   "ATOM.E.INC.STRONG.GPU PT, R2, desc[UR6][R2.64], R7",
                   "REDG.E.MAX.STRONG.GPU desc[UR6][R2.64], R7", "EXIT")
    assert (sass.byte_loads(code), sass.fences(code), sass.local_accesses(code)) == (2, 2, 2)
    assert sass.atomics(code) == 3


# By the CUDA occupancy calculator, compute capability 9.0.
@pytest.mark.parametrize("registers,shared,threads,blocks", [
    (32, 0, 256, 8), (40, 0, 256, 6), (48, 0, 256, 5), (64, 0, 256, 4), (65, 0, 256, 3),
    (32, 48 * 1024, 256, 4), (16, 0, 32, 32), (30, 0, 1024, 2),
])
def test_resident_blocks_are_those_of_the_occupancy_calculator(registers, shared, threads, blocks):
    assert machine_code.resident_blocks(registers, shared, threads) == blocks


GOOD = machine_code.Measured(registers=40, blocks=6, wide=4, in_flight=64, kilobytes=96, byte_loads=0,
                             fences=1, atomics=3, local=0)


@pytest.mark.parametrize("change,rule", [
    ({"wide": 3}, "16 bytes at a time"), ({"byte_loads": 1}, "no single bytes"), ({"fences": 2}, "one fence"),
    ({"atomics": 4}, "few atomics"),
    ({"local": 1}, "no local memory"), ({"kilobytes": 39}, "enough in flight"),
])
def test_each_rule_fails_on_the_number_that_breaks_it_and_what_is_to_come_may(monkeypatch, change, rule):
    row = machine_code_rows.Row("k", "k.cu", "k", 4, atomics=3)
    record = {"compiler": "another", "kernels": {}}
    for to_come, found, word in (({}, replace(GOOD, **change), "breaks"), ({}, GOOD, None),
                                 ({rule: "design"}, replace(GOOD, **change), None),
                                 ({rule: "design"}, GOOD, "keeps")):
        monkeypatch.setattr(machine_code, "rows", lambda to_come=to_come: [replace(row, to_come=to_come)])
        said = machine_code.faults({"k": found}, record, "nvcc")
        assert len(said) == (word is not None)
        assert word is None or f"{word} '{rule}'" in said[0]


def test_a_number_that_is_not_the_recorded_one_is_told_for_the_same_compiler_alone(monkeypatch):
    monkeypatch.setattr(machine_code, "rows", lambda: [machine_code_rows.Row("k", "k.cu", "k", 4)])
    record = {"compiler": "nvcc 1", "kernels": {"k": machine_code.asdict(replace(GOOD, registers=41))}}
    assert len(machine_code.faults({"k": GOOD}, record, "nvcc 1")) == 1
    assert machine_code.faults({"k": GOOD}, record, "nvcc 2") == []


def test_the_page_has_the_table_of_the_record():
    record = json.loads(machine_code.RECORD.read_text())
    page = machine_code.PAGE.read_text()
    assert machine_code.page_with(machine_code.table(record), page) == page
