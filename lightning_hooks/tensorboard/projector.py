"""Writes the files of TensorBoard's Projector tab: vectors, labels, and a configuration that names these files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from google.protobuf import text_format  # type: ignore[import-untyped]
from numpy.typing import NDArray
from tensorboard.plugins.projector.metadata import PROJECTOR_FILENAME
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from lightning_hooks.errors import RuleError
from lightning_hooks.rules.fields import check_local
from lightning_hooks.whole_files import write_whole

if TYPE_CHECKING:
    from torch import Tensor

FOLDER: Final = "projector"


def write_projector(
    logdir: str | os.PathLike[str],
    name: str,
    vectors: Tensor,
    *,
    labels: Mapping[str, Sequence[object]] | None = None,
) -> Path:
    r"""Write vectors for TensorBoard's embedding projector; vectors of the same name are replaced, all others stay.

    Writes `projector/<name>/tensors.tsv`, `metadata.tsv` if there are labels, and an entry in `projector_config.pbtxt`, all
    below `logdir`, because the plugin serves no file outside it. Vectors are written as text: the plugin would read a binary
    file as text if its bytes happen to be valid UTF-8, as zeros are. Vectors with a NaN or an infinite component are
    skipped: the projections cannot show them. The plugin looks for configurations in TensorBoard's `--logdir` and in every
    folder below it that has an event file.

    Args:
        logdir: the log directory of the run, on this machine.
        name: the name of the vectors in the tab, such as `encoder.0`.
        vectors: [N, D], any real dtype, any device.
        labels: column name to N values, by which points are labelled and coloured; no labels by default.

    Returns:
        The path of the configuration.

    Raises:
        RuleError: the vectors are not real numbers [N, D], no vector is finite, a column of labels does not have N values, or
            the log directory is not on this machine.
        OSError: a file could not be written.

    Example:
        >>> import tempfile, torch
        >>> path = write_projector(tempfile.mkdtemp(), "encoder", torch.eye(2), labels={"digit": [7, 3]})
        >>> (path.parent / "projector/encoder/tensors.tsv").read_text()
        '1\t0\n0\t1\n'
        >>> (path.parent / "projector/encoder/metadata.tsv").read_text()
        '7\n3\n'
    """
    check_local("write_projector: logdir", logdir, "the projector of a run elsewhere is not written")
    if vectors.dim() != 2 or vectors.numel() == 0 or vectors.is_complex():
        found = f"{list(vectors.shape)} of {vectors.dtype}"
        raise RuleError(f"write_projector: vectors must be real numbers [N, D] with elements, got {found}")
    columns = dict(labels or {})
    for column, values in columns.items():
        if len(values) != len(vectors):
            raise RuleError(f"write_projector: labels {column!r} has {len(values)} values for {len(vectors)} vectors")
    points: NDArray[np.float32] = vectors.detach().cpu().float().numpy()
    kept = np.flatnonzero(np.isfinite(points).all(axis=1))
    if len(kept) == 0:
        raise RuleError(f"write_projector: none of the vectors of {name!r} is finite")
    root = Path(logdir)
    folder = f"{FOLDER}/{_folder_name(name)}"
    (root / folder).mkdir(parents=True, exist_ok=True)
    write_whole(root / folder / "tensors.tsv", "".join("\t".join(f"{x:.9g}" for x in points[row]) + "\n" for row in kept))
    if columns:
        write_whole(root / folder / "metadata.tsv", _table(columns, kept.tolist()))
    return _configure(root, name, folder, (len(kept), points.shape[1]), bool(columns))


def _configure(root: Path, name: str, folder: str, shape: tuple[int, int], is_labelled: bool) -> Path:
    """Add the entry to the configuration. Call it after the files are written, so that no entry names a missing file."""
    path: Path = root / PROJECTOR_FILENAME
    config = ProjectorConfig()
    if path.exists():
        try:
            text_format.Parse(path.read_text(encoding="utf-8"), config)
        except text_format.ParseError as error:
            raise RuleError(f"{path} is not a configuration of the projector: {error}") from error
    others = [embedding for embedding in config.embeddings if embedding.tensor_name != name]
    del config.embeddings[:]
    config.embeddings.extend(others)
    metadata = f"{folder}/metadata.tsv" if is_labelled else ""
    config.embeddings.add(tensor_name=name, tensor_path=f"{folder}/tensors.tsv", tensor_shape=shape, metadata_path=metadata)
    write_whole(path, text_format.MessageToString(config))
    return path


def _table(columns: Mapping[str, Sequence[object]], rows: Sequence[int]) -> str:
    """The labels as tab-separated lines. The plugin expects a line of headings if and only if there are several columns."""
    lines = [[_cell(values[row]) for values in columns.values()] for row in rows]
    if len(columns) > 1:
        lines.insert(0, [_cell(column) for column in columns])
    return "".join("\t".join(line) + "\n" for line in lines)


def _cell(value: object) -> str:
    """A value as text without tabs and line breaks; a value with an `item()`, such as an element of a tensor, as its number."""
    item = getattr(value, "item", None)
    # Write "-" for an empty value: the plugin drops empty lines, and would shift all later labels.
    return re.sub(r"\s+", " ", str(item() if callable(item) else value)).strip() or "-"


def _folder_name(name: str) -> str:
    """A folder name that any file system accepts. A changed name gets a hash, so that two names never share a folder."""
    safe = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:100]
    if safe == name and not name.startswith("."):
        return name
    return f"{safe.lstrip('.')}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"
