"""Several threads in the compiled kernel: the same numbers as with one thread, also after a fork, which ends the threads."""

import importlib
import os
import threading
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.stats.kernels.agreement import numbers

pytest.importorskip("lightning_hooks.backends._native", reason="the package was installed without a compiler")
native = importlib.import_module("lightning_hooks.backends.native")

LARGE = 3_000_017


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def large():
    return torch.randn(LARGE, generator=torch.Generator().manual_seed(0))


def test_the_numbers_do_not_depend_on_the_number_of_threads(two_threads):
    tensors = [large(), large().to(torch.bfloat16)[::2], torch.ones(3), large()[:200_000].reshape(-1, 100).t()]
    found = {}
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        found[threads] = [native.read_many(tensors), [native.read_histogram(tensor) for tensor in tensors]]
    assert all(result == found[1] for result in found.values())
    assert found[1][0] == [moments for moments, _ in found[1][1]]


def test_threads_of_python_measure_at_once(two_threads):
    tensor = large()
    want, results = native.read(tensor), []
    threads = [threading.Thread(target=lambda: results.extend(native.read(tensor) for _ in range(10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [want] * 40


def in_a_child(work):
    """The bytes that `work` returns in a forked child; None if the child does not end in time."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        try:
            os.write(writing, work())
        finally:
            os._exit(0)
    os.close(writing)
    waiter = threading.Thread(target=os.waitpid, args=(child, 0))
    waiter.start()
    waiter.join(60)
    if waiter.is_alive():
        os.kill(child, 9)
        waiter.join()
        return None
    with os.fdopen(reading, "rb") as end:
        return end.read()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_measures_with_threads_of_its_own(two_threads):
    tensor = large()
    want = native.read(tensor)
    assert in_a_child(lambda: native.read(tensor)) == want
    assert in_a_child(lambda: in_a_child(lambda: native.read(tensor))) == want  # and a child of a child that had used none
    assert native.read(tensor) == want


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_the_threads_are_busy(two_threads):
    tensor, stop = large(), threading.Event()
    want = native.read(tensor)

    def keep_busy():
        while not stop.is_set():
            native.read(tensor)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for _ in range(5):
            assert in_a_child(lambda: native.read(tensor)) == want
    finally:
        stop.set()
        busy.join()


class Measured(Dataset):
    def __init__(self):
        self.tensor = large()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        torch.set_num_threads(2)  # torch itself would hang now in any operation large enough for its OpenMP threads
        return numbers(native.read(self.tensor[index:]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_workers_of_a_data_loader_measure(two_threads):
    want = [numbers(native.read(large()[index:])) for index in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = list(DataLoader(Measured(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60))
    assert torch.equal(torch.stack(found), torch.stack(want))
