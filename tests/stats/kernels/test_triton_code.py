"""The machine code of the Triton kernels of moments: the instructions of an element, and the parameters of a launch.

No device is needed: Triton compiles for a GPU that is not there, and its wheel has the tool that disassembles.
"""

import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import triton
from triton.backends.compiler import GPUTarget

from lightning_hooks.stats.kernels import cuda, launching, triton_code, triton_counts
from lightning_hooks.stats.kernels.triton_code import BFLOAT16, FLOAT16, FLOAT32

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
ELEMENTS = triton_code.BLOCK // triton_code.LANES.value  # that a lane adds up in a turn of the main loop
DIVISION = {"PROGRAMS": cuda._PROGRAMS, "MOST_BLOCKS": cuda._MOST_BLOCKS}
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
BACKWARDS = re.compile(r"\bBRA\b.*0x([0-9a-f]+)")


def compiled(kernel, capability, tmp_path, monkeypatch, **constants):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return launching.compiled(kernel, {**constants, **cuda._BLOCKS}, GPUTarget("cuda", capability, 32)).asm


def instructions(cubin, tmp_path):
    """The instructions of a kernel, by address."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin)
    listing = subprocess.run([CUOBJDUMP, "--dump-sass", path], capture_output=True, text=True, check=True).stdout
    return {int(address, 16): text for address, text in INSTRUCTION.findall(listing)}


def main_loop(found):
    """The instructions of the largest loop that loads whole vectors without a mask."""
    loops = []
    for address, text in found.items():
        jump = BACKWARDS.search(text)
        if jump and int(jump.group(1), 16) < address:
            body = [other for at, other in found.items() if int(jump.group(1), 16) <= at <= address]
            loops.append([each for each in body if not each.startswith("NOP")])
    whole = [loop for loop in loops if any(re.match(r"LDG\.E\.128", text) for text in loop)]
    return max(whole, key=len)


@pytest.mark.slow
@pytest.mark.skipif(not CUOBJDUMP.exists(), reason="Triton's wheel has no cuobjdump")
@pytest.mark.parametrize("code", [FLOAT32, FLOAT16, BFLOAT16])
def test_an_element_takes_few_instructions_and_no_memory_of_the_lane(code, tmp_path, monkeypatch):
    kernels = {
        "plain": (triton_code.measure_one, {"MAGNITUDES": False}),
        "magnitudes": (triton_code.measure_one, {"MAGNITUDES": True}),
        "eight": (triton_code.measure_eight, {"MAGNITUDES": False, **DIVISION}),
    }
    lengths = {}
    for name, (kernel, constants) in kernels.items():
        asm = compiled(kernel, 90, tmp_path, monkeypatch, CODE=code, **constants)
        loop = main_loop(instructions(asm["cubin"], tmp_path))
        assert not [text for text in loop if re.match(r"(@\S+ )?(LDL|STL)\b", text)], "values left the registers"
        lengths[name] = len(loop) / ELEMENTS
    # Triton 3.7 saves two instructions or more, Triton 3.6 saves 1.97 for float32.
    assert lengths["plain"] <= 9.6 and lengths["plain"] <= lengths["magnitudes"] - 1.9, lengths
    assert lengths["eight"] <= lengths["plain"] + 0.1, lengths


@pytest.mark.slow
@pytest.mark.skipif(not CUOBJDUMP.exists(), reason="Triton's wheel has no cuobjdump")
@pytest.mark.parametrize("code", [FLOAT32, FLOAT16, BFLOAT16])
def test_a_block_with_few_powers_of_two_is_counted_in_half_as_many_instructions(code, tmp_path, monkeypatch):
    asm = compiled(triton_counts.count_one, 90, tmp_path, monkeypatch, CODE=code)
    loop = main_loop(instructions(asm["cubin"], tmp_path))
    assert not [text for text in loop if re.match(r"(@\S+ )?(LDL|STL)\b", text)], "values left the registers"
    # The last jump in the loop, but for the one back to its beginning, skips the counting in all buckets.
    few = max(place for place, text in enumerate(loop[:-1]) if re.search(r"\bBRA\b", text))
    assert few / ELEMENTS <= 50 and few <= len(loop) / 2, (few / ELEMENTS, len(loop) / ELEMENTS)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [75, 80, 90])
def test_parameters_are_integers_of_64_bits_in_the_order_of_the_arguments(capability, tmp_path, monkeypatch):
    kernels = (
        (triton_code.measure_one, 4, {}),
        (triton_code.measure_list, 4, {"PAIRED": False}),
        (triton_code.measure_eight, 24, DIVISION),
    )
    for kernel, arguments, constants in kernels:
        asm = compiled(kernel, capability, tmp_path, monkeypatch, CODE=BFLOAT16, MAGNITUDES=False, **constants)
        head = asm["ptx"].partition(".entry")[2].partition(")")[0]
        parameters = re.findall(r"\.param (\S+)", head)
        # After the arguments Triton adds pointers to scratch memory, for which a launch passes zeros.
        assert arguments <= len(parameters) <= arguments + 4 and set(parameters) <= {".u64", ".b64"}, head
