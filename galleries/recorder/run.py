"""Runs the gallery with the flight recorder and other tools: `python -m galleries.recorder.run [--only GLOB]`.

Writes what each tool said of each training into results/answers.jsonl, and what it cost into results/costs.jsonl.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from galleries.recorder.answer import judge
from galleries.recorder.catalogue import faulty, healthy
from galleries.recorder.cost import costs
from galleries.recorder.fault import Fault, fit
from galleries.recorder.own import OWN, Recorder
from galleries.recorder.peers import Tool, peers
from galleries.rules import RECORDER

RESULTS = Path(__file__).parent / "results"
BACKEND = "eager"
"""Of `torch.compile`: traces the networks and runs their graphs as they are."""


def run(fault: Fault, make: type[Tool], backend: str | None = None) -> dict[str, Any]:
    """Train with one tool, and return what it said and which parts of that are right.

    Args:
        fault: the training.
        make: the tool.
        backend: of `torch.compile`; None trains eagerly.
    """
    tool, error = make(), None
    gc.collect()
    with tempfile.TemporaryDirectory() as folder, tool.around():
        try:
            fit(
                fault,
                Path(folder),
                tool.callbacks,
                backend=backend,
                prepare=tool.prepare,
                said=tool.warnings,
                **tool.options,
            )
        except Exception as raised:
            error = raised
        answer = tool.answer(fault, error)
    return {
        "name": fault.name,
        "tool": make.name,
        "backend": "eager" if backend is None else "compiled",
        "answer": None if answer is None else asdict(answer),
        "right": judge(fault, answer),
        **({"rules": RECORDER} if make in OWN else {}),
        "error": "" if error is None else f"{type(error).__name__}: {error}"[:200],
    }


def main() -> None:
    """Run what is chosen and write one JSON object a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="*")
    parser.add_argument("--tools", default="*")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--parts", default="answers,costs")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    for each in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(each).setLevel(logging.ERROR)
    args.out.mkdir(parents=True, exist_ok=True)
    tools = [tool for tool in [*OWN, *peers()] if fnmatch.fnmatchcase(tool.name, args.tools)]
    versions = {name: version(name) for name in ("torch", "lightning", "transformers", "lightning-hooks")}
    if "answers" in args.parts:
        with open(args.out / "answers.jsonl", "w", encoding="utf-8") as file:
            for fault in [*healthy(), *faulty()]:
                if fnmatch.fnmatchcase(fault.name, args.only):
                    for line in answers(fault, tools):
                        file.write(json.dumps(line | versions) + "\n")
                        file.flush()
    if "costs" in args.parts:
        lines = [json.dumps(line | versions) for line in costs(tools)]
        (args.out / "costs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def answers(fault: Fault, tools: Sequence[type[Tool]]) -> Iterator[dict[str, Any]]:
    """A line for each tool, and one for the flight recorder with compiled networks."""
    for tool in tools:
        yield run(fault, tool)
        if tool is Recorder and fault.compiles:
            yield run(fault, tool, BACKEND)


if __name__ == "__main__":
    main()
