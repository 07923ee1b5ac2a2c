"""Runs jobs in processes, each of which takes one job after the other. A job that ends its process is a line like any other."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

T = TypeVar("T")


def quiet() -> None:
    """Let a process use one core, and say nothing."""
    # Lightning sets the levels of its loggers when it is imported, so import it before they are set here.
    import lightning.pytorch  # noqa: F401
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def run_all(
    work: Callable[[T], dict[str, Any]], jobs: Iterable[T], processes: int, prepare: Callable[[], None] = quiet
) -> Iterator[tuple[T, dict[str, Any]]]:
    """Yield each job with its line as soon as it is done.

    Args:
        work: makes the line of a job. It runs in a process of its own, so it must be a function of a module.
        jobs: what to do.
        processes: the number of processes.
        prepare: called in each process when it begins.
    """
    mine = threading.local()
    executors: list[ProcessPoolExecutor] = []

    def started() -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        mine.executor = ProcessPoolExecutor(1, mp_context=context, initializer=prepare)
        executors.append(mine.executor)
        return mine.executor

    def run(job: T) -> dict[str, Any]:
        executor = getattr(mine, "executor", None) or started()
        try:
            return executor.submit(work, job).result()
        except BrokenProcessPool as failure:
            mine.executor = None
            return {"error": f"the process ended: {failure}"}
        except Exception as failure:
            return {"error": f"{type(failure).__name__}: {failure}"}

    threads = ThreadPoolExecutor(processes)
    try:
        futures = {threads.submit(run, job): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        # After Ctrl-C, wait for the jobs under way and not for all others.
        threads.shutdown(wait=False, cancel_futures=True)
        for executor in executors:
            executor.shutdown(cancel_futures=True)
