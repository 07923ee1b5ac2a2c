"""Reading single tensors out of a capture's files."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from lightning_hooks.capture._safetensors import need_safetensors
from lightning_hooks.capture.index import Entry
from lightning_hooks.errors import RuleError

OPEN_FILES: Final = 8  # a handle keeps the parsed header of its file, which costs more than reading a small tensor


class TensorFiles:
    """Reads tensors; the files used last stay open.

    Args:
        folder: of the capture.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._library = need_safetensors()
        self._open: OrderedDict[str, tuple[ExitStack, Any]] = OrderedDict()

    def read(self, entry: Entry) -> Tensor:
        """One tensor, on the CPU.

        Raises:
            RuleError: its file is gone, or damaged.
        """
        try:
            tensor: Tensor = self._handle(entry.file).get_tensor(entry.key)
        except FileNotFoundError:
            raise RuleError(f"{entry.file}, which holds {entry.name!r}, is gone from {str(self.folder)!r}") from None
        except self._library.SafetensorError as error:
            raise RuleError(f"{self.folder / entry.file} is damaged: {error}") from error
        return torch.view_as_complex(tensor) if entry.dtype.startswith("complex") else tensor

    def _handle(self, file: str) -> Any:
        if file not in self._open:
            stack = ExitStack()
            self._open[file] = (stack, stack.enter_context(self._library.safe_open(self.folder / file, framework="pt")))
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(file)
        return self._open[file][1]

    def __reduce__(self) -> tuple[type[TensorFiles], tuple[Path]]:
        """Without the open files, so that a capture can go to the workers of a DataLoader."""
        return (TensorFiles, (self.folder,))
