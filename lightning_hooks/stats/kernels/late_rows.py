"""Which rows of a table may be measured late, that is some hooks after their own.

Torch counts writes in place, so the compiled part sees whether a tensor was overwritten in between. But some kernels write in
place without telling torch: Liger's RMSNorm writes the gradient of its input into the memory of that of its output. So the
first tensors of a row are measured in the hook and again later. If the bits are equal, later tensors of the row are measured
late. If not, or if the numbers could not have shown it, the row is measured in the hook throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.host_copy import HostCopy, begin_copy, to_device
from lightning_hooks.stats.schema import M2


class LateRows:
    """Compares what was measured in hooks and again later.

    Args:
        queue: a `DeviceRows` of the compiled part, which measures both.
        rows: its partial rows, float64 [partial rows, 9].
    """

    def __init__(self, queue: Any, rows: Tensor) -> None:
        self._queue = queue
        self._rows = rows
        # The offset of the row of each pair of partial rows that was compared, and the results, which may not have arrived.
        self._compared: list[tuple[NDArray[np.int64], HostCopy]] = []

    def compare(self) -> None:
        """Compare the partial rows of trials. Called before their memory is used again; does not wait for the device."""
        trials = np.frombuffer(self._queue.trials(), dtype=np.int64).reshape(-1, 4)
        overwritten = trials[:, 3] < 0
        for offset in trials[overwritten, 0].tolist():
            self._queue.decide(offset, False)
        trials = trials[~overwritten]
        if not len(trials):
            return
        offsets, programs, firsts, later = trials.T
        each = np.arange(programs.sum()) - np.repeat(np.cumsum(programs) - programs, programs)
        places = to_device(np.stack([np.repeat(firsts, programs) + each, np.repeat(later, programs) + each]), self._rows.device)
        pairs = self._rows[places]
        bits = pairs.view(torch.int64)
        # A tensor whose elements are all equal, such as a gradient of zeros, may be overwritten with the same numbers.
        results = torch.stack([(bits[0] == bits[1]).all(dim=1), pairs[0, :, M2] > 0])
        self._compared.append((np.repeat(offsets, programs), begin_copy(results)))

    def decide(self) -> None:
        """Decide about the rows whose results have arrived in host memory."""
        waiting = []
        for offsets, results in self._compared:
            if not results.has_arrived:
                waiting.append((offsets, results))
                continue
            equal, varies = results.wait()
            for offset in np.unique(offsets).tolist():
                own = offsets == offset
                self._queue.decide(offset, bool(equal[own].all() and varies[own].any()))
        self._compared = waiting
