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


LOADS = [f"LDG.E.128 R{4 + 4 * i}, desc[UR4][R2.64+{hex(16 * i)}]" for i in range(4)]
TAIL = ["FADD R0, R4, R8", "FADD R0, R12, R16", "MEMBAR.ALL.GPU", "ERRBAR",
        "ATOM.E.INC.STRONG.GPU PT, R2, desc[UR6][R2.64], R7", "CCTL.IVALL", "EXIT"]
ROW = machine_code_rows.Row("k", "k.cu", "k", 4, atomics=1)


def measured(*lines, registers=40):
    return machine_code.measure(listing(*lines), registers, 0, 256)


GOOD = measured(*LOADS, *TAIL)
BAD = [
    ("16 bytes at a time", measured(*LOADS[:3], TAIL[0], LOADS[3], *TAIL)),
    ("no single bytes", measured("LDG.E.U8 R20, desc[UR4][R2.64]", *LOADS, *TAIL)),
    ("one fence", measured(*LOADS, "MEMBAR.SC.GPU", *TAIL)),
    ("one fence", measured(*LOADS, *TAIL[:-1], "CCTL.IVALL", "EXIT")),
    ("few atomics", measured(*LOADS, *TAIL[:-1], "REDG.E.OR.STRONG.GPU desc[UR6][R2.64], R7", "EXIT")),
    ("no local memory", measured(*LOADS, "STL [R1], R4", *TAIL)),
    ("no local memory", measured("LDL R4, [R1]", *LOADS, *TAIL)),
    ("enough in flight", measured(*LOADS, *TAIL, registers=136)),  # one block: 16 KB
]


def test_a_listing_that_breaks_no_rule_breaks_none_and_every_rule_is_broken_below():
    assert machine_code.broken(ROW, GOOD) == set()
    assert {rule for rule, _ in BAD} == machine_code_rows.RULES.keys()


@pytest.mark.parametrize("rule,bad", BAD)
def test_each_rule_fails_on_a_listing_that_breaks_it_and_what_is_to_come_may(monkeypatch, rule, bad):
    assert machine_code.broken(ROW, bad) == {rule}
    record = {"compiler": "another", "kernels": {}}
    for to_come, found, word in (({}, bad, "breaks"), ({}, GOOD, None),
                                 ({rule: "design"}, bad, None), ({rule: "design"}, GOOD, "keeps")):
        monkeypatch.setattr(machine_code, "rows", lambda to_come=to_come: [replace(ROW, to_come=to_come)])
        said = machine_code.faults({"k": found}, record, "nvcc")
        assert len(said) == (word is not None)
        assert word is None or f"{word} '{rule}'" in said[0]


def test_single_bytes_of_payloads_are_no_fault():
    assert machine_code.broken(replace(ROW, payloads=True), dict(BAD)["no single bytes"]) == set()


def test_a_number_that_is_not_the_recorded_one_is_told_for_the_same_compiler_alone(monkeypatch):
    monkeypatch.setattr(machine_code, "rows", lambda: [ROW])
    record = {"compiler": "nvcc 1", "kernels": {"k": machine_code.asdict(replace(GOOD, registers=41))}}
    assert len(machine_code.faults({"k": GOOD}, record, "nvcc 1")) == 1
    assert machine_code.faults({"k": GOOD}, record, "nvcc 2") == []


def test_the_page_has_the_table_of_the_record():
    record = json.loads(machine_code.RECORD.read_text())
    page = machine_code.PAGE.read_text()
    assert machine_code.page_with(machine_code.table(record), page) == page


def test_a_build_for_other_gpus_is_not_read_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["machine_code.py", "--build", "nowhere", "--architectures", "80-real"])
    assert machine_code.main() == machine_code.NOT_RUN
    assert "the build is for 80-real, the rules for sm_90" in capsys.readouterr().out


def test_missing_tools_are_an_error_that_names_the_packages(monkeypatch):
    monkeypatch.setattr(machine_code, "find_tool", lambda name: None)
    with pytest.raises(SystemExit, match="pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"):
        machine_code.measure_all(Path("nowhere"))
