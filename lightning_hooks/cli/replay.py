"""`lightning-hooks replay flight_record/`: runs the step of a flight record again and says what it shows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from lightning_hooks.cli.building import built, values_of
from lightning_hooks.cli.given import container_classes
from lightning_hooks.cli.options import Parser
from lightning_hooks.errors import RuleError, listed, printable, shortened
from lightning_hooks.recorder.command import SCRIPT_PLACE, checkpoint_of, module_of, replay_command
from lightning_hooks.recorder.context import check_context
from lightning_hooks.recorder.files import read_record
from lightning_hooks.recorder.record import FlightRecord, TensorSummary, Verdict
from lightning_hooks.rules.importing import import_object

if TYPE_CHECKING:
    from torch import nn

    from lightning_hooks.callbacks._replay import Kept, Replayed
    from lightning_hooks.engine.recording.explaining import Autopsy

_HELP: Final = """\
Run the step of a flight record again, twice as it is and once operator by operator, and name the operation that made the
first number that is not finite. A record is data and may come from a stranger: name the module yourself, as record.md does.
Without values it is built with the hyperparameters of the record.
"""
_CODES: Final = {
    0: "the step goes wrong again; with --twice: two runs are equal",
    1: "the step does not go wrong; with --twice: two runs differ",
}
_AFTER_UPDATE: Final = " after the update, with 0 in place of what is not finite"


def replay(arguments: list[str]) -> int:
    """Replay the step of a record."""
    parser = Parser("replay", _HELP, _CODES)
    parser.add_argument("record", metavar="RECORD", type=Path, help="the folder of the record, or its record.json")
    parser.add_argument("values", nargs="*", metavar="NAME=VALUE", help="arguments of the module, with --module")
    parser.add_argument("--module", metavar="PATH", help="the import path of the module, or of a function that builds it")
    parser.add_argument(
        "--class",
        dest="classes",
        action="append",
        default=[],
        metavar="PATH",
        help="the import path of a class of the batch that the code of the module does not import; may be given several times",
    )
    parser.add_argument("--config", action="append", metavar="FILE", help="a config of LightningCLI that has the module")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="take weights and optimizers from this checkpoint")
    parser.add_argument("--twice", action="store_true", help="only name the first operator at which two runs of it differ")
    parser.add_argument("--limit", type=float, default=600.0, metavar="SECONDS", help="for the slow run; default 600")
    args = parser.parse_intermixed_args(arguments)
    if args.values and not args.module:
        parser.error("NAME=VALUE needs --module")
    if args.module and args.config:
        parser.error("--module cannot be combined with --config")
    from lightning_hooks.callbacks._replay import replay as run

    opened = open_record(args)
    folder, record, model, kept, replaced = opened.folder, opened.record, opened.model, opened.kept, opened.replaced
    if args.twice:
        return print_difference(opened)
    replayed = run(model, kept)
    failure = "" if record.failure is None else f"{record.failure.type}: "
    if replaced and replayed.first.error and not (failure and replayed.first.error.startswith(failure)):
        raise RuleError(f"{folder}: the step ends with {replayed.first.error}. {_told_replaced(replaced)}")
    notes = (
        *([_told_replaced(replaced)] if replaced else []),
        *opened.notes,
        *replayed.notes,
    )
    print(printable("\n".join(_told(record, replayed, opened.source, notes)), "\n"))
    if not replayed.is_reproducible:
        print(printable(_difference(opened, None)[0]))
    return 0 if replayed.is_reproduced else 1


@dataclass(frozen=True)
class OpenedRecord:
    """A record whose step can run again.

    Args:
        folder: of the record.
        record: what it says.
        model: the module as it is built.
        kept: what the step is replayed from.
        source: where the weights come from.
        replaced: the classes in whose place plain values stand.
        notes: what is missing.
    """

    folder: Path
    record: FlightRecord
    model: nn.Module
    kept: Kept
    source: str
    replaced: Sequence[str]
    notes: tuple[str, ...]


def open_record(args: argparse.Namespace) -> OpenedRecord:
    """Read a record, and build its module.

    Args:
        args: `record`, `module`, `values`, `config`, `checkpoint`, `classes` and `limit`, as of the command.

    Raises:
        RuleError: the record is damaged or has no batch, or its module or its weights are not given.
    """
    folder = args.record.parent if args.record.is_file() else args.record
    record = read_record(args.record)
    if "batch" not in record.files:
        raise RuleError(f"{folder}: the record has no batch, so its step cannot be replayed{_reasons(record)}")
    from lightning_hooks.callbacks._replay import Kept
    from lightning_hooks.engine.recording.saving import load_batch, load_generators

    try:
        check_context(record.context)
    except RuleError as error:
        raise RuleError(f"{folder}: {error}") from None
    generators = load_generators(folder, record.files["generators"]) if "generators" in record.files else None
    model, kinds = _model(record, folder, args)
    classes = container_classes(kinds, args.classes)
    batch, notes, replaced = load_batch(folder, record.files["batch"], classes)
    load, optimizers, source = _weights(record, folder, args.checkpoint, classes)
    kept = Kept(batch, record.context, generators, load, optimizers, args.limit)
    notes = (*notes, *([] if generators else ["the states of the generators were not kept: random numbers differ"]))
    return OpenedRecord(folder, record, model, kept, source, replaced, notes)


def print_difference(opened: OpenedRecord, other: OpenedRecord | None = None) -> int:
    """Print the first operator at which two runs differ, in one paragraph.

    Args:
        opened: the record whose step runs first.
        other: the record whose step runs second; None to run that of the first record twice.

    Returns:
        0 if they are equal to the last bit, else 1.
    """
    text, is_equal, notes = _difference(opened, other)
    for each in filter(None, [opened, other]):
        notes += [*([_told_replaced(each.replaced)] if each.replaced else []), *each.notes]
    print(printable("\n".join([text, *(f"Note: {note}" for note in dict.fromkeys(notes))]), "\n"))
    return 0 if is_equal else 1


def _difference(opened: OpenedRecord, other: OpenedRecord | None) -> tuple[str, bool, list[str]]:
    """What differs between two runs, whether they are equal, and what could not be made as in the records."""
    from lightning_hooks.callbacks._replay import operators_of
    from lightning_hooks.engine.recording.first_difference import first_difference

    steps, notes = operators_of(opened.model, opened.kept, 2 if other is None else 1)
    if other is not None:
        others, more = operators_of(other.model, other.kept, 1)
        steps, notes = [*steps, *others], (*notes, *more)
    found = first_difference(steps[0].operators, steps[1].operators)
    count = len(steps[0].operators)
    text = f"Two runs of the step are equal to the last bit, in all {count} operators." if found is None else found.text
    return text, found is None, [*notes]


def _model(record: FlightRecord, folder: Path, args: argparse.Namespace) -> tuple[nn.Module, list[Any]]:
    """The module as it is built, in training mode, and the classes and functions that the user has named."""
    if args.config:
        from lightning_hooks.cli.training import lightning_cli

        cli = lightning_cli("replay", [part for file in args.config for part in ("--config", file)])
        return cli.model, [type(each) for each in (cli.model, cli.datamodule) if each is not None]
    path = args.module
    if not path:
        named = module_of(record)
        if not named:
            raise RuleError("the record does not name the module; give --module package.Module or --config FILE")
        raise RuleError(
            f"the record names the module {named}, but a record may come from a stranger, so it imports nothing; name the "
            f"module yourself{_script_advice(named)}: {replay_command(record, folder)}"
        )
    advice = f"give them as `--module {path} NAME=VALUE`, or give --config FILE"
    if args.values:
        model = built(path, values_of(args.values), advice)
    else:
        recorded = record.context.get("hyperparameters") or {}
        model = built(path, recorded, f"the values are the hyperparameters of the record: {advice}", recorded=True)
    kind = import_object(path, "module")
    return model, [type(model), *([kind] if isinstance(kind, FunctionType) else [])]


def _weights(
    record: FlightRecord, folder: Path, checkpoint: Path | None, classes: Mapping[str, type]
) -> tuple[Callable[[nn.Module], None], list[Mapping[str, Any]], str]:
    """What writes the weights into a module, the states of the optimizers, and where both come from."""
    from lightning_hooks.engine.recording.saving import load_optimizers, load_weights

    if checkpoint is None and "weights" in record.files:
        file = record.files["weights"]
        saved = record.files.get("optimizers")
        states, _, replaced = ([], (), ()) if saved is None else load_optimizers(folder, saved, classes)
        if replaced:
            raise RuleError(f"{folder}: {_told_replaced(replaced)}")

        is_after_update = record.place is not None and record.place.direction == "update" or record.verdict is Verdict.UPDATE

        def load(model: nn.Module) -> None:
            load_weights(model, folder, file)
            if is_after_update:
                _make_finite(model)

        return load, states, f"weights of the record ({file}){_AFTER_UPDATE if is_after_update else ''}"
    if checkpoint is None:
        last = checkpoint_of(record)
        known = f"the last checkpoint of the run was {last}" if last else "the run had no checkpoint"
        raise RuleError(
            f"{folder}: the record has no weights and {known}; give --checkpoint {last or 'FILE'}, or record with "
            "FlightRecorder(weights=True)"
        )
    return _from_checkpoint(checkpoint, record)


def _make_finite(model: nn.Module) -> None:
    """Set what is not finite in the parameters to 0: the record was written after the update that made it so."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.isfinite().all():
                parameter.nan_to_num_(0.0, 0.0, 0.0)


def _from_checkpoint(path: Path, record: FlightRecord) -> tuple[Callable[[nn.Module], None], list[Mapping[str, Any]], str]:
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        weights = content["state_dict"]
    except FileNotFoundError:
        raise RuleError(f"{path}: there is no such checkpoint; give another with --checkpoint FILE") from None
    except Exception as error:
        raise RuleError(f"{path} cannot be read as a checkpoint of Lightning: {shortened(str(error), 300)}") from error

    def load(model: nn.Module) -> None:
        model.load_state_dict(weights)

    step = content.get("global_step")
    source = f"checkpoint {path} of step {step}; the record is of step {record.step}"
    return load, list(content.get("optimizer_states") or []), source


def _told_replaced(paths: Sequence[str]) -> str:
    """Which classes of a record the user has not named, and how to name them."""
    known = [path.replace("__main__.", f"{SCRIPT_PLACE}.") for path in paths if "<locals>" not in path]
    advice = f"; name them with {' '.join(f'--class {path}' for path in known)}" if known else ""
    return f"The code of the module does not import the classes {listed(paths)}, so plain values stand for them{advice}"


def _script_advice(named: str) -> str:
    """How to name a class of the script that was run, whose name the record does not know."""
    if not named.startswith(SCRIPT_PLACE):
        return ""
    return f", with the name of the script that was run for {SCRIPT_PLACE} (it must train only if __name__ is '__main__')"


def _reasons(record: FlightRecord) -> str:
    reasons = [note.rstrip(".") for note in record.notes if "batch" in note.lower()]
    return f": {'; '.join(reasons)}" if reasons else ""


def _told(record: FlightRecord, replayed: Replayed, source: str, notes: tuple[str, ...]) -> list[str]:
    """The replay in words, the verdict first."""
    found, first = replayed.found, replayed.first
    lines = []
    if not replayed.is_reproduced:
        lines.append(f"{Verdict.NOT_REPRODUCED.value}: step {record.step} gives finite numbers here")
    elif found.verdict is not None:
        # Only the run that was recorded knows that its scale could not be lowered further.
        is_of_scaler = record.verdict is Verdict.SCALER and found.verdict is Verdict.BACKWARD
        lines += _verdict(found, Verdict.SCALER if is_of_scaler else found.verdict)
    else:
        lines.append(f"{record.verdict.value}: {first.error or first.noticed}")
    lines.append(f"The record says: {record.verdict.value}. {record.message}".rstrip())
    runs = (
        "two runs gave the same, bit for bit" if replayed.is_reproducible else "two runs differ: the step is not deterministic"
    )
    what = first.error or (f"not finite: {first.noticed}" if first.noticed else "all finite")
    lines.append(f"Replayed with the {source}: {what}; {runs}.")
    lines += [f"Note: {note}" for note in (*found.notes, *notes)]
    return lines


def _verdict(found: Autopsy, verdict: Verdict) -> list[str]:
    operation = found.operation
    if operation is None:
        what = {"batch": "the batch", "grad": f"the gradient of {found.module}"}.get(found.tensor, found.module or found.tensor)
        what = f"{found.tensor} of {found.module}" if found.tensor.startswith("state.") else what
        before = " when the step began" if found.inputs else ""
        lines = [f"{verdict.value}: {what} was not finite{before}"]
        return [*lines, *(f"  {each.name}: {_numbers(each)}" for each in found.inputs or filter(None, [found.result]))]
    if verdict is Verdict.UPDATE:
        where = f"in the update of {found.module}"
    elif verdict is Verdict.GRADIENTS:
        where = f"in code that changed the gradient of {found.module} before its update"
    else:
        unnamed = "the model itself" if found.type else "code outside all modules"
        call = f", call {found.call + 1}" if found.type else ""
        where = f"in {found.module or unnamed}{f' ({found.type})' if found.type else ''}{call}"
    node = f", backward of {operation.node}," if operation.node else ""
    lines = [f"{verdict.value}: {operation.name}{node} {where}"]
    if operation.source:
        lines.append(f"  {operation.source}: {operation.line}")
    if operation.result is not None:
        lines.append(f"  gave {_numbers(operation.result)}")
    return [*lines, *(f"  read {each.name}: {_numbers(each)}" for each in operation.inputs)]


def _numbers(tensor: TensorSummary) -> str:
    counts = {"NaN": tensor.nan, "+Inf": tensor.positive_infinite, "-Inf": tensor.negative_infinite}
    bad = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    size = "x".join(map(str, tensor.shape)) or "scalar"
    extent = "" if tensor.minimum is None else f", finite elements from {tensor.minimum:.4g} to {tensor.maximum:.4g}"
    first = f" (first at {list(tensor.first)})" if tensor.first else ""
    return f"{size} {tensor.dtype}{extent}{f': {bad}{first}' if bad else ''}"
