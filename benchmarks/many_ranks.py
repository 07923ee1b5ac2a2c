"""What merging the tables of all ranks takes: many ranks simulated one after the other, and real processes with gloo.

python -m benchmarks.many_ranks
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import output
from lightning_hooks.stats import ranks
from lightning_hooks.stats.replicas import Replicas, replicas
from lightning_hooks.stats.schema import COUNT, M2, MAX, MEAN, MIN
from lightning_hooks.stats.sections import Sections
from lightning_hooks.stats.table import Table

ROWS = 10_002
SIMULATED = (2, 8, 64, 1024)
PROCESSES = (2, 4)
SIZES = (100, 1_000, 10_002)
_ELEMENTS = 4


@cache
def first_state(rows: int) -> Tensor:
    """The state of the first rank: each row has the moments of a few random numbers."""
    numbers = np.random.default_rng(0).normal(1.0, 2.0, (_ELEMENTS, rows))
    state = Sections(rows).blank()
    moments = Sections(rows).moments_of(state)
    columns = (float(_ELEMENTS), numbers.mean(0), numbers.var(0) * _ELEMENTS, numbers.min(0), numbers.max(0))
    for column, values in zip((COUNT, MEAN, M2, MIN, MAX), columns, strict=True):
        moments[:, column] = torch.as_tensor(values)
    return state


def state_of(rank: int, rows: int) -> Tensor:
    """The state of a rank: the first half are copies, equal on all ranks; in the others each rank has other numbers."""
    state = first_state(rows).clone()
    own = Sections(rows).moments_of(state)[rows // 2 :]
    own.copy_(own.roll(rank, 0))
    return state


def owned_by(rank: int, rows: int) -> Replicas:
    """The first half of the rows are copies."""
    return replicas(dict.fromkeys(range(rows // 2), rank), Sections(rows))


# -- simulated -------------------------------------------------------------------------------------------------------------


class FakeGroup:
    """Reduces the tensors of all ranks, which come one after the other: none is kept."""

    def __init__(self) -> None:
        self.result: Tensor | None = None

    def take(self, operation: str, tensor: Tensor) -> None:
        """One more rank's tensor."""
        if self.result is None:
            self.result = tensor.clone()
        elif operation == "max":
            torch.maximum(self.result, tensor, out=self.result)
        else:
            self.result += tensor


def step(rank: int, world: int, rows: int, answers: Sequence[Tensor]) -> Any:
    """What a rank asks for next, or its merged state, and the seconds up to then.

    Args:
        rank: which.
        world: how many there are.
        rows: of a table.
        answers: of the collectives so far.
    """
    steps = ranks.merge_reduced(state_of(rank, rows), Sections(rows), owned_by(rank, rows), world)
    begin = time.thread_time()
    try:
        asked: Any = next(steps)
        for answer in answers:
            asked = steps.send(answer)
    except StopIteration as end:
        asked = end.value
    return asked, time.thread_time() - begin


def simulate(world: int, rows: int) -> dict[str, Any]:
    """One step of all ranks in this process. They run up to a collective one after the other, and again up to the next.

    Args:
        world: number of ranks.
        rows: of a table.
    """
    answers: list[Tensor] = []
    while True:
        group = FakeGroup()
        for rank in range(world):
            asked, _ = step(rank, world, rows, answers)
            if isinstance(asked, Tensor):
                break
            group.take(*asked)
        if group.result is None:
            break
        answers.append(group.result)
    ends = [step(rank, world, rows, answers) for rank in range(min(world, 8))]
    merged = ends[0][0]
    if not all(torch.equal(state, merged) for state, _ in ends):
        raise RuntimeError("ranks disagree")
    return {
        "ranks": world,
        "rows": rows,
        "collectives": len(answers),
        "bytes": sum(answer.nbytes for answer in answers),
        "seconds": statistics.median(seconds for _, seconds in ends),
        "error": error_of(Sections(rows).moments_of(merged).numpy(), world),
    }


def error_of(merged: Any, world: int) -> float:
    """The greatest relative error of a mean or of squared deviations, over float80 of what all ranks hold."""
    rows = len(merged)
    own = slice(rows // 2, rows)

    def parts(rank: int) -> tuple[Any, Any]:
        moments = Sections(rows).moments_of(state_of(rank, rows)).numpy()[own].astype(np.longdouble)
        return moments[:, MEAN], moments[:, M2]

    mean = np.sum([parts(rank)[0] for rank in range(world)], axis=0) / world
    m2 = sum(squares + _ELEMENTS * (of_rank - mean) ** 2 for of_rank, squares in map(parts, range(world)))
    size = np.maximum(abs(mean), np.sqrt(m2 / (_ELEMENTS * world)))  # a mean near zero is as exact as the numbers it is of
    errors = [abs(merged[own, MEAN] - mean) / size, abs(merged[own, M2] - m2) / m2]
    return float(np.max(errors))


def alone(way: str, world: int, rows: int) -> dict[str, Any]:
    """Seconds and the greatest memory of one rank's merge, in a process that has done nothing else.

    Args:
        way: `reduced` or `gathered`; for the latter the tables of all ranks are those of this one.
        world: number of ranks.
        rows: of a table.
    """
    _merge(way, 2, 16)
    state = state_of(0, rows)
    before = _peak(reset=True)
    begin = time.thread_time()
    received = _merge(way, world, rows, state)
    return {"seconds": time.thread_time() - begin, "memory": _peak() - before, "bytes": received}


def _merge(way: str, world: int, rows: int, state: Tensor | None = None) -> int:
    """Merge; the bytes that this rank gives into collectives or gets from them, whichever is more."""
    state = state_of(0, rows) if state is None else state
    sections, owned = Sections(rows), owned_by(0, rows)
    if way == "gathered":
        tables = torch.cat([state, owned.first, owned.weight]).repeat(world, 1)
        ranks.merge_gathered(tables, sections, owned)
        return tables.nbytes
    steps = ranks.merge_reduced(state, sections, owned, world)
    given = 0
    _, tensor = next(steps)
    while True:
        given += tensor.nbytes
        try:
            _, tensor = steps.send(tensor)
        except StopIteration:
            return given


def _peak(*, reset: bool = False) -> int:
    """The greatest resident memory of this process, perhaps from now on (Linux)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


# -- real processes --------------------------------------------------------------------------------------------------------


def exchange(world: int, sizes: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Both ways by this process, one of several with gloo.

    Args:
        world: number of processes.
        sizes: rows of the tables.
        repeats: of each exchange.
    """
    torch.distributed.init_process_group("gloo")
    found = []
    for rows in sizes:
        table = Table(rows, copied=dict.fromkeys(range(rows // 2)))
        table.state.copy_(state_of(torch.distributed.get_rank(), rows))
        row: dict[str, Any] = {"ranks": world, "rows": rows, "bytes": world * table.state.nbytes}
        for way, limit in (("gathered", sys.maxsize), ("reduced", -1)):
            ranks.GATHERED = limit  # type: ignore[misc]
            spent = []
            for _ in range(repeats):
                torch.distributed.barrier()
                wall, own = time.perf_counter(), time.thread_time()
                table.exchange()
                spent.append((time.perf_counter() - wall, time.thread_time() - own))
            row[f"{way}_ms"], row[f"{way}_cpu_ms"] = (statistics.median(column) * 1e3 for column in zip(*spent, strict=True))
        found.append(row)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return found


def child(*words: str, **environment: str) -> subprocess.Popen[str]:
    """This script again, in a process of its own, which prints JSON."""
    command = [sys.executable, "-m", "benchmarks.many_ranks", *words]
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> Any:
    """What a process printed last."""
    printed, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a process of many_ranks ended with {process.returncode}")
    return json.loads(printed.splitlines()[-1])


def processes(world: int) -> list[dict[str, Any]]:
    """`exchange` in as many processes; the figures of the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    started = [child("--exchange", str(world), **common, RANK=str(rank)) for rank in range(world)]
    rows: list[dict[str, Any]] = [result(process) for process in started][0]
    return rows


def measure(simulated: Sequence[int], real: Sequence[int], rows: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The two tables."""
    found = []
    for world in simulated:
        row = simulate(world, rows)
        row["memory"] = result(child("--alone", "reduced", str(world), str(rows)))["memory"]
        gathered = result(child("--alone", "gathered", str(world), str(rows)))
        row |= {f"gathered_{key}": value for key, value in gathered.items()}
        found.append(row)
        print(
            f"{world} ranks: {row['bytes'] / 1e6:.2f} MB, {row['seconds'] * 1e3:.2f} ms, error {row['error']:.1e}", flush=True
        )
    return found, [row for world in real for row in processes(world)]


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--simulated", type=int, nargs="*", default=SIMULATED)
    parser.add_argument("--processes", type=int, nargs="*", default=PROCESSES)
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--exchange", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.alone is not None:
        way, world, rows = options.alone
        print(json.dumps(alone(way, int(world), int(rows))))
    elif options.exchange is not None:
        print(json.dumps(exchange(options.exchange, SIZES, 30)))
    else:
        found, real = measure(options.simulated, options.processes, options.rows)
        output.write(options.name or "many_ranks", found, options.out, processes=real)


if __name__ == "__main__":
    main()
