"""The Triton kernels are correct in Triton's interpreter, compile for other devices, and are chosen if they work."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from lightning_hooks import backends

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

COMPILE = """
import re, sys
from triton.backends.compiler import GPUTarget
from lightning_hooks.stats.kernels import addresses, cuda, cuda_units, handles, launching
from lightning_hooks.stats.kernels import triton_code, triton_counts, triton_merge, triton_pairs

def compiled(kernel, **constants):
    return launching.compiled(kernel, constants, GPUTarget("cuda", capability, 32)).asm

for capability in map(int, sys.argv[1:]):
    # Most time passes here, so older devices have the kernels of float32 and of bfloat16, for which they lack instructions.
    codes = (0, 1, 2, 3) if capability == 90 else (0, 2)
    one = [(code, False) for code in codes] + [(0, True), (2, True)]
    kernels = [compiled(triton_code.measure_one, CODE=code, MAGNITUDES=magnitudes, **cuda._BLOCKS) for code, magnitudes in one]
    kernels += [
        compiled(triton_code.measure_list, CODE=2, MAGNITUDES=False, PAIRED=paired, **cuda._BLOCKS) for paired in (False, True)
    ]
    kernels += [compiled(triton_pairs.compare_list, CODE=code, **cuda._BLOCKS) for code in codes]
    constants = {"MAGNITUDES": False, "PROGRAMS": cuda._PROGRAMS, "MOST_BLOCKS": cuda._MOST_BLOCKS, **cuda._BLOCKS}
    eight = [compiled(triton_code.measure_eight, CODE=code, **constants) for code in codes if code != 1]
    for kernel in kernels + eight:
        assert re.search(r"ld.global\\S*.v[24].b(32|64)", kernel["ptx"]), "no wide loads"
        assert ".local" not in kernel["ptx"], "values left the registers"
        assert ".ftz" not in kernel["ptx"], "subnormals are flushed"
        assert "convert_layout" not in kernel["ttgir"], "values go from lane to lane"
        assert kernel["cubin"]
        # C++ passes numbers of 8 bytes, and four empty pointers, of which the driver reads as many as the kernel has.
        parameters, arguments = handles.parameters_in(kernel["ptx"]), 24 if kernel in eight else 4
        assert arguments <= len(parameters) <= arguments + 4 and {*parameters} <= {"u64", "b64"}, parameters
    for code in codes:
        kernel = compiled(triton_counts.count_one, CODE=code, **cuda._BLOCKS)
        assert re.search(r"ld.global\\S*.v[24].b(32|64)", kernel["ptx"]), "no wide loads"
        assert ".local" not in kernel["ptx"] and ".ftz" not in kernel["ptx"]
        assert kernel["cubin"]
    assert compiled(triton_counts.count_list, CODE=2, PAIRED=True, **cuda._BLOCKS)["cubin"]
    assert compiled(triton_counts.clear_counts, BUCKETS=512)["cubin"]
    assert compiled(triton_merge.merge_rows, CHUNK=triton_merge.CHUNK)["cubin"]
    assert compiled(triton_pairs.merge_products, CHUNK=triton_pairs.CHUNK)["cubin"]
    dtypes = [dtype for dtype, code in addresses.CODES.items() if code in codes]
    for kernel, constants in (each for dtype in dtypes for each in cuda_units.kernels_of(dtype)):
        found = compiled(kernel, **constants)
        assert ".ftz" not in found["ptx"], "subnormals are flushed"
        assert ".local" not in found["ptx"], "values left the registers"
        arguments, parameters = len(kernel.arg_names) - len(constants), handles.parameters_in(found["ptx"])
        assert arguments <= len(parameters) <= arguments + 4 and {*parameters} <= {"u64", "b64"}, parameters
        assert found["cubin"]
    print("compiled for", capability)
"""
LAUNCH = """
from triton.backends.compiler import GPUTarget
from lightning_hooks.stats.kernels import cuda, launching, triton_code

constants = {"CODE": 0, "MAGNITUDES": False, **cuda._BLOCKS}
found = launching.compiled(triton_code.measure_one, constants, GPUTarget("cuda", 80, 32))
calls = []
found.module, found._run = "loaded", lambda *args: calls.append(args)  # as if on a device
launching.launch_of(found, tuple(constants.values()))(5, 7, 11, 12, 13, 14)
found[(5, 1, 1)](11, 12, 13, 14, *constants.values(), stream=7)
without_hooks = [(*call[:6], *call[9:]) for call in calls]  # positions 6 to 8 are hooks of profilers
assert without_hooks[0] == without_hooks[1] and calls[0][6:9] == (None, None, None), calls
print("the same")
"""
WITHOUT = """
import sys
sys.modules["triton"] = None  # an import of it fails, as where it is not installed
import torch
torch.cuda.is_available = lambda: True
from lightning_hooks import backends
from lightning_hooks.stats import kernels
print(kernels.in_use_on_cuda())
"""


def run(*arguments, **env):
    clean = {key: value for key, value in os.environ.items() if key not in (backends.VARIABLE, "TRITON_INTERPRET")}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, env={**clean, **env})


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    "checks",
    [
        "counted",
        "counted_at_random counted_in_lists counted_in_a_table",
        "sizes fuzz",
        "odd several_blocks_each without_magnitudes",
        "magnitudes offsets differences",
        "views lists comparisons table partial_rows other_streams step places",
        "pointers units_through_pointers",
        "eight eight_of_several_blocks",
        "units units_in_parts units_that_are_not_finite units_of_a_table",
    ],
)
def test_in_the_interpreter(checks, tmp_path):
    script = {"counted": "count_checks", "pointers": "pointer_checks"}.get(re.split("[ _]", checks)[0], "triton_checks")
    done = run("-m", f"tests.stats.kernels.{script}", *checks.split(), TRITON_INTERPRET="1", TRITON_CACHE_DIR=str(tmp_path))
    assert done.stdout.splitlines() == [f"{check} agrees" for check in checks.split()], done.stderr


@needs_triton
@pytest.mark.slow
def test_for_devices_that_are_not_here(tmp_path):
    done = run("-c", COMPILE, "75", "80", "90", TRITON_CACHE_DIR=str(tmp_path))
    assert done.stdout.splitlines() == [f"compiled for {capability}" for capability in (75, 80, 90)], done.stderr


@needs_triton
@pytest.mark.slow
def test_a_launch_with_plain_integers_is_that_of_triton(tmp_path):
    done = run("-c", LAUNCH, TRITON_CACHE_DIR=str(tmp_path))
    assert done.stdout.strip() == "the same", done.stderr


@pytest.mark.slow
def test_without_triton_the_reference_serves_and_says_why():
    done = run("-c", WITHOUT)
    assert done.stdout.startswith("reference (no Triton: "), done.stderr
    assert "triton" in done.stdout


@pytest.mark.slow
def test_the_reference_can_be_asked_for_everywhere():
    done = run("-c", WITHOUT, LIGHTNING_HOOKS_KERNEL="reference")
    assert done.stdout.strip() == "reference (LIGHTNING_HOOKS_KERNEL=reference)", done.stderr


def test_tensors_in_host_memory_do_not_ask_for_triton():
    done = run(
        "-c",
        "import sys, torch; from lightning_hooks.stats import kernels; "
        "from lightning_hooks.stats.table import Table; t = Table(1); t.writer(0, kernels.FallbackWriter()); "
        "t.measure_all([0], [torch.ones(3)]); "
        "kernels.measure_many([torch.ones(3, dtype=torch.int32)]); kernels.measure(torch.ones(3, dtype=torch.int32)); "
        "print('triton' in sys.modules)",
    )
    assert done.stdout.strip() == "False", done.stderr
