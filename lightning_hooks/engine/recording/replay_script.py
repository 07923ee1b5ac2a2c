"""Run the step of the flight record in this folder again, and name the operation that made the first bad number.

It needs torch and the module that was trained, and not the package that wrote the record:

    python replay.py [--module package.Module] [--checkpoint FILE]

The module is built with the hyperparameters of the record, and its `training_step` runs with the batch of the record. There is
no Trainer: `log` and `print` of the module do nothing, gradients are not clipped.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import linecache
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).resolve().parent
FORMAT = 1  # of record.json and of the files beside it
UNINITIALISED = ("empty", "new_empty", "resize_", "set_")  # their results are not written yet


class Entry:
    """The entry of a mode. In the mode's own class torch would wrap it, and the wrapper imports the compiler: seconds."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})  # type: ignore[attr-defined]


class FirstBad(Entry, TorchDispatchMode):
    """Follows NaN and infinities through the operators of a step.

    Attributes:
        born: where the bad numbers of each storage come from, by the address of the storage.
        forward: the module and the line of each operator of the forward pass, by the number of its node of autograd.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.born: dict[int, str] = {}
        self.masks: set[int] = set()
        self.modules: list[str] = []
        self.forward: dict[int, str] = {}
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name, module=module: self.modules.append(described(name, module)))
            module.register_forward_hook(lambda *_: self.modules.pop() and None, always_call=True)

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator; if its result is bad and its operands are not, note where that was."""
        node = current_node()
        if node is None:
            # Autograd creates the node of an operator right before it runs the operator.
            self.forward.setdefault(next_number() - 1, self.here())
        operands = list(tensors_in([args, kwargs]))
        bad = [address(each) for each in operands if is_bad(each)]
        ranges = [f"{tuple(each.shape)} {each.dtype} {extent(each)}" for each in operands if each.is_floating_point()]
        result = func(*args, **kwargs)
        name = func.name().partition("::")[2].partition(".")[0]
        if name == "lift_fresh":
            self.born.pop(address(operands[0]), None)
        for each in tensors_in(result):
            key = address(each)
            known = [self.born[one] for one in bad if one in self.born]
            is_view = key in map(address, operands) and not name.endswith("_")
            if is_view:
                continue
            self.born.pop(key, None)
            self.masks.discard(key)
            if name.startswith(UNINITIALISED) or not is_bad(each):
                continue
            has_literal = any(isinstance(one, float) and abs(one) == float("inf") for one in args)
            if known:
                self.born[key] = known[0]
            elif not each.isnan().any() and (has_literal or any(one in self.masks for one in bad)):
                # An infinite literal, as masks have, is meant, until a NaN is made of it.
                self.masks.add(key)
            else:
                self.born[key] = self.where(func, node, ranges, each)
        return result

    def here(self) -> str:
        """The module that runs, and the innermost line outside of libraries."""
        frame: Any = sys._getframe()
        while frame is not None and not is_user_code(frame.f_code.co_filename):
            frame = frame.f_back
        module = self.modules[-1] if self.modules else "code outside all modules"
        if frame is None:
            return module
        file, line = frame.f_code.co_filename, frame.f_lineno
        return f"{module}\n  {file}:{line} in {frame.f_code.co_name}: {linecache.getline(file, line).strip()}"

    def where(self, operator: Any, node: Any, ranges: list[str], result: Tensor) -> str:
        """The operator, its module, its line, and the ranges of its operands, in words."""
        place = self.here() if node is None else f"{node.name()} of {self.forward.get(number_of(node), 'an unknown module')}"
        read = "".join(f"\n  read {each}" for each in ranges)
        counts = f"{int(result.isnan().sum())} NaN, {int(result.isinf().sum())} Inf"
        return f"{operator.name().partition('.')[0]} in {place}\n  gave {tuple(result.shape)}: {counts}{read}"


def current_node() -> Any:
    """The node of autograd that runs; None in the forward pass, and if torch does not tell."""
    return getattr(torch._C, "_current_autograd_node", lambda: None)()


def next_number() -> int:
    autograd: Any = getattr(torch._C, "_autograd", None)
    return int(getattr(autograd, "_get_sequence_nr", lambda: 0)())


def number_of(node: Any) -> int:
    return int(getattr(node, "_sequence_nr", lambda: -1)())


def described(name: str, module: nn.Module) -> str:
    return f"{name or 'the model itself'} ({type(module).__name__})"


def is_user_code(file: str) -> bool:
    return file != __file__ and "-packages" not in file and not file.startswith(("<", sys.base_prefix))


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def is_bad(tensor: Tensor) -> bool:
    numbers = tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta and tensor.numel()
    return bool(numbers) and not bool(tensor.isfinite().all())


def is_mask(tensor: Tensor) -> bool:
    """Whether all elements are 0 or −Inf, as those of a mask that is added."""
    return bool(((tensor == 0) | tensor.isneginf()).all())


def extent(tensor: Tensor) -> str:
    finite = tensor[tensor.isfinite()]
    return f"from {finite.min().item():.4g} to {finite.max().item():.4g}" if finite.numel() else "without finite elements"


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


def read(file: str) -> Any:
    """The value of one of the files of JSON."""
    content = json.loads((HERE / file).read_text(encoding="utf-8"))
    if content["format"] > FORMAT:
        sys.exit(f"{file} has format {content['format']}; this script reads formats up to {FORMAT}")
    tensors: dict[str, Tensor] = {}
    if content["tensors"].endswith(".pt"):
        tensors = torch.load(HERE / content["tensors"], weights_only=True)
    elif content["tensors"]:
        from safetensors.torch import load_file

        tensors = load_file(HERE / content["tensors"])
    return decoded(content["value"], tensors)


def decoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A value of JSON with the tensors that it names."""

    def each(inner: Any) -> Any:
        return decoded(inner, tensors)

    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()))
    if kind == "tensor":
        tensor = torch.view_as_complex(tensors[content]) if value.get("complex") else tensors[content]
        return tensor.requires_grad_() if value.get("requires_grad") else tensor
    if kind == "dict":
        return {each(key): each(inner) for key, inner in content}
    if kind in ("list", "tuple", "set"):
        return {"list": list, "tuple": tuple, "set": set}[kind](map(each, content))
    if kind in ("namedtuple", "dataclass"):
        fields = {name: each(inner) for name, inner in value["fields"].items()}
        cls = imported(content)
        if kind == "namedtuple":
            return cls(**fields)
        instance = object.__new__(cls)
        for name, inner in fields.items():
            object.__setattr__(instance, name, inner)
        return instance
    if kind == "sparse":
        return torch.sparse_coo_tensor(each(content[0]), each(content[1]), value["shape"], is_coalesced=True)
    simple: dict[str, Any] = {
        "float": float,
        "bytes": bytes.fromhex,
        "array": lambda inner: each(inner).numpy(),
        "dtype": lambda name: getattr(torch, name),
        "device": torch.device,
    }
    if kind not in simple:
        print(f"a {content} was not saved; it is None")
        return None
    return simple[kind](content)


def imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        sys.exit(f"{path} cannot be imported ({error}); run this where the module is, or give --module package.Module")


def main() -> None:
    """Replay the step, and print what it shows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--module", help="the import path of the module, or of a function that builds it")
    parser.add_argument("--checkpoint", help="take the weights from this checkpoint")
    args = parser.parse_args()
    sys.path.insert(0, str(Path.cwd()))
    record = json.loads((HERE / "record.json").read_text(encoding="utf-8"))
    if record["format"] > FORMAT:
        sys.exit(f"record.json has format {record['format']}; this script reads formats up to {FORMAT}")
    context, files = record["context"], record["files"]
    kind = imported(args.module or context.get("module", ""))
    names = inspect.signature(kind).parameters
    model = kind(**{name: value for name, value in context.get("hyperparameters", {}).items() if name in names})
    load_weights(model, files, args.checkpoint or context.get("checkpoint"))
    if record["verdict"] == "update":
        # The record was written after the update: what it made bad is 0 here.
        for parameter in model.parameters():
            parameter.data.nan_to_num_(0.0, 0.0, 0.0)
    batch = read(files["batch"])
    trainer = NoTrainer(context)
    prepared(model, context, trainer)
    if "generators" in files:
        restore_generators(read(files["generators"]))
    print(f"The record says: {record['verdict']}. {record['message']}")
    print(result_of(model, batch, context, files))


def load_weights(model: nn.Module, files: dict[str, str], checkpoint: str | None) -> None:
    if "weights" in files and not checkpoint:
        saved = read(files["weights"])
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        with torch.no_grad():
            for name, tensor in named:
                if name in saved:
                    tensor.copy_(saved[name])
    elif checkpoint:
        model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"])
    else:
        print("The record has no weights, and there is no checkpoint: the weights are those of a new module.")


class NoTrainer:
    """What modules ask of a Trainer most: the epoch and the step."""

    training, sanity_checking, world_size, global_rank, is_global_zero = True, False, 1, 0, True

    def __init__(self, context: dict[str, Any]) -> None:
        self.current_epoch, self.global_step = int(context.get("epoch") or 0), int(context.get("global_step") or 0)


def prepared(model: Any, context: dict[str, Any], trainer: NoTrainer) -> None:
    """Put a module into training mode, with its precision, and without its Trainer."""
    model.train()
    if hasattr(type(model), "trainer"):
        model.trainer = trainer
    model.log = model.log_dict = model.print = lambda *args, **kwargs: None
    model.manual_backward = lambda loss, *args, **kwargs: loss.backward(*args, **kwargs)
    stoppers = [Stopper() for _ in context.get("optimizers") or [None]]
    model.optimizers = lambda use_pl_optimizer=True: stoppers if len(stoppers) > 1 else stoppers[0]
    dtype = {"16-true": torch.float16, "bf16-true": torch.bfloat16, "64-true": torch.float64}.get(str(context.get("precision")))
    if dtype is not None:
        model.to(dtype)


class Stopper:
    """Stands for the optimizers of a module that steps by itself; its step does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def restore_generators(states: dict[str, Any]) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))
    random.setstate(states["python"])
    of_numpy, numpy_random = states["numpy"], vars(np.random)
    # The state of NumPy's default generator is a tuple. That of another kind is a dictionary, which only that kind accepts.
    if isinstance(of_numpy, dict):
        numpy_random["set_bit_generator"](numpy_random[of_numpy["bit_generator"]]())
    np.random.set_state(of_numpy)


def result_of(model: Any, batch: Any, context: dict[str, Any], files: dict[str, str]) -> str:
    """Run the step, and say in words whether its weights, loss or gradients are finite."""
    parameters = {name for name, _ in model.named_parameters()}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        # A buffer may be infinite on purpose, as masks are.
        if is_bad(tensor) and (name in parameters or tensor.isnan().any()):
            return f"weights: {name} is not finite when the step begins"
    bad_batch = [i for i, each in enumerate(tensors_in(batch)) if is_bad(each) and not is_mask(each)]
    half = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(str(context.get("precision")))
    arguments = [batch, int(context.get("batch_idx") or 0)][: len(inspect.signature(model.training_step).parameters)]
    loss = None
    with FirstBad(model) as mode:
        with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
            output = model.training_step(*arguments)
        loss = output["loss"] if isinstance(output, dict) else output
        if loss is not None and is_bad(loss):
            if bad_batch:
                return f"batch: its tensor {bad_batch[0]} is not finite, and the loss is {loss.item()}"
            return f"forward: {mode.born.get(address(loss), 'the loss is not finite')}"
        if loss is not None:
            (loss * float(context.get("loss_scale") or 1.0) / int(context.get("accumulate_grad_batches") or 1)).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and is_bad(parameter.grad):
                return f"backward, grad of {name}: {mode.born.get(address(parameter.grad), 'unknown operation')}"
        if loss is not None:
            update(model, files)
        for name, parameter in model.named_parameters():
            if is_bad(parameter):
                return f"update, {name}: {mode.born.get(address(parameter), 'unknown operation')}"
    return "All numbers are finite: the step does not go wrong here."


def update(model: Any, files: dict[str, str]) -> None:
    made = model.configure_optimizers()
    made = made[0] if isinstance(made, tuple) else made.get("optimizer") if isinstance(made, dict) else made
    states = read(files["optimizers"]) if "optimizers" in files else []
    for i, optimizer in enumerate(made if isinstance(made, (list, tuple)) else [made] if made is not None else []):
        if i < len(states):
            optimizer.load_state_dict(states[i])
        optimizer.step()


if __name__ == "__main__":
    main()
