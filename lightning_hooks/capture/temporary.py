"""The temporary folder of a writer, locked while its process lives.

By the lock, other writers tell the folder of a live writer from the leftovers of a killed process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from pathlib import Path
from types import ModuleType
from typing import Final

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:
    # Windows has no fcntl, so the leftovers of killed runs are not removed there.
    fcntl = None

# How often to try to lock the folder: another writer holds the lock only while it checks whether the folder is a leftover.
_ATTEMPTS: Final = 100
_PAUSE: Final = 0.01  # seconds between two attempts


class TemporaryFolder:
    """A folder for unfinished files, created and locked on first use.

    If the file system has no locks, the folder is used without a lock. Other writers cannot lock the folder either, and so do
    not remove it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._exists = False
        self._lock: int | None = None

    def create(self) -> None:
        """Create and lock the folder on the first call.

        Raises:
            OSError: the folder cannot be created, or it is a link, or another process keeps locking or removing it.
        """
        attempts = 0
        while not self._exists:
            self.path.mkdir(exist_ok=True)
            if self.path.is_symlink():
                raise OSError(f"{self.path} is a link, and no folder of a writer is; remove the link")
            try:
                self._lock = _locked(self.path)
            except (BlockingIOError, FileNotFoundError) as error:
                # Another writer locked or removed the folder as a leftover before this writer could lock it.
                attempts += 1
                if attempts == _ATTEMPTS:
                    does = "locking" if isinstance(error, BlockingIOError) else "removing"
                    raise OSError(f"another process keeps {does} {self.path}; give each run a folder of its own") from error
                time.sleep(_PAUSE)
                continue
            except OSError:
                # This file system has no locks, so use the folder without a lock.
                pass
            self._exists = True

    def remove(self) -> None:
        """Remove the folder with all files in it, and release the lock."""
        if self._exists:
            shutil.rmtree(self.path, ignore_errors=True)
            if self._lock is not None:
                _release(self._lock)
            self._exists, self._lock = False, None


def remove_leftovers(folder: Path, rank: int) -> None:
    """Remove the temporary folders of this rank whose writers are dead; a live writer keeps its folder locked."""
    for path in folder.iterdir():
        if re.fullmatch(rf"\.rank{rank}(-run\d+)?\.tmp", path.name):
            with contextlib.suppress(OSError):
                lock = _locked(path)
                shutil.rmtree(path, ignore_errors=True)
                _release(lock)


def _locked(path: Path) -> int:
    """Lock a folder without waiting.

    Returns:
        A descriptor that holds the lock; the lock is released when the process ends.

    Raises:
        BlockingIOError: another writer holds the lock.
        FileNotFoundError: the folder was removed before the lock was held.
        OSError: the file system has no locks.
    """
    if fcntl is None:
        raise OSError("this system has no locks")
    # A link would lead into a folder of somebody else's, so it is an error of the operating system.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Check that the locked folder is still at `path`: between open() and flock(), another writer may have replaced it.
        if os.fstat(descriptor).st_ino != path.stat().st_ino:
            raise FileNotFoundError(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _release(descriptor: int) -> None:
    # Unlock before closing: a forked process, such as a worker of a DataLoader, may hold a copy of the descriptor.
    assert fcntl is not None
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
