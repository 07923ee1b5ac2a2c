"""Runs torchtest2 on the gallery, in an environment that has it: `python -m galleries.checks.run --peer`."""

from __future__ import annotations

import io
import json
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import LightningModule

from galleries.checks.case import Expected, Fit, Pattern
from galleries.checks.catalogue import faulty, healthy

RESULTS = Path(__file__).parent / "peer.jsonl"

FITS: Mapping[str, frozenset[str]] = {
    name: frozenset(theirs.split())
    for name, theirs in {
        "StepRuns": "forward loss",
        "NotInOptimizer": "optimizer_coverage params_change",
        "StrangerInOptimizer": "optimizer_coverage params_change",
        "NoGradient": "gradient_flow gradient_magnitude params_change loss",
        "UnchangedParameter": "params_change overfit_batch",
        "FrozenMoves": "frozen_params",
        "NonFinite": "output_finite gradient_magnitude loss",
        "ConstantOutput": "output_varies",
        "EvalIsDeterministic": "eval_determinism",
        "SamplesAreIndependent": "batch_independence",
        "InputsMatter": "input_dependency",
        "InitialLoss": "initial_loss loss",
        "LossUnbounded": "overfit_batch loss",
        "LabelsVary": "initial_loss overfit_batch",
        "SwappedBetas": "overfit_batch",
        "DropoutTooHigh": "overfit_batch",
        "AccumulationNotDivided": "",
        "ActivationBeforeLoss": "initial_loss loss overfit_batch",
        "BiasBeforeNorm": "gradient_flow gradient_magnitude params_change",
        "PoorInitialization": "gradient_magnitude initial_loss overfit_batch",
        "InputNotNormalised": "initial_loss gradient_magnitude overfit_batch",
        "LabelsFitHead": "forward loss initial_loss overfit_batch",
        "OverfitsBatch": "overfit_batch",
        "GradientsAreRight": "gradcheck",
        "FutureIsHidden": "input_dependency batch_independence",
    }.items()
}
"""For each check, those of torchtest2 that can name the same bug. It was written from its documentation, not from results."""


def fits(expected: Expected, check: str) -> bool:
    """Whether a check of torchtest2 names what is expected."""
    return any(check in FITS[ours] for ours in expected.checks)


def record(pattern: Pattern) -> dict[str, Any]:
    """What torchtest2 says of a pattern, as plain values."""
    began, said, error = perf_counter(), [], ""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            report = _checked(pattern)
            said = [
                [each.name, each.status.value.lower(), each.message] for each in report if each.status.value in ("WARN", "FAIL")
            ]
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"[:300]
    seconds = round(perf_counter() - began, 2)
    return {"name": pattern.name, "version": version("torchtest2"), "said": said, "error": error, "seconds": seconds}


def _checked(pattern: Pattern) -> Any:
    from torchtest2 import check_model
    from torchtest2.plugins.lightning import LightningPlugin

    case = pattern.build()
    if not isinstance(case, Fit):
        options = {"loss_fn": case.loss, "optimizer": case.optimizer, **case.peer_options}
        return check_model(case.model, case.inputs, case.targets, **options)
    if not case.module.automatic_optimization:
        raise NotImplementedError("its documentation excludes manual optimization and several optimizers")
    if type(case.module).forward is LightningModule.forward:
        raise NotImplementedError("it calls `forward`, which the module does not have")
    batch = next(iter(case.loader))
    parts = batch if isinstance(batch, Mapping) else dict(enumerate(batch))
    inputs = {name: parts[name] for name in case.arguments}
    targets = {name: part for name, part in parts.items() if name not in inputs}

    def make_batch(inputs: Any, targets: Any) -> Any:
        named = inputs if isinstance(inputs, Mapping) else dict(zip(case.arguments, inputs, strict=True))
        joined = {name: {**named, **(targets or {})}[name] for name in parts}
        return joined if isinstance(batch, Mapping) else list(joined.values())

    given = inputs if isinstance(batch, Mapping) else tuple(inputs.values())
    return check_model(case.module, given, targets, plugin=LightningPlugin(make_batch), **case.peer_options)


def main() -> None:
    """Write one JSON object a line."""
    torch.set_num_threads(1)
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record(pattern)) + "\n" for pattern in [*healthy(), *faulty()])


if __name__ == "__main__":
    main()
