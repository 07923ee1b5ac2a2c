"""CRC-32C, which every record of an event file carries twice: TensorBoard computes it byte by byte in Python.

In the compiled part of this package where that is there, by `google-crc32c` where somebody installed it, and else with NumPy:
a checksum is linear in its bytes, so blocks of them are looked up side by side and then joined pairwise.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.tensorboard._compiled import compiled

Words = NDArray[np.uint32]
_BLOCK = 64  # bytes
_BASE = 0x82F63B78


def find() -> Callable[[bytes], int]:
    """The fastest function in Python from bytes to their CRC-32C."""
    try:
        from google_crc32c import value  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return crc32c
    found: Callable[[bytes], int] = value
    return found


def framing() -> Callable[[bytes], bytes]:
    """The fastest function there is from bytes to the record of an event file that holds them."""
    kernel = compiled()
    if kernel is not None:
        fastest: Callable[[bytes], bytes] = kernel.record
        return fastest
    crc = find()

    def record(data: bytes) -> bytes:
        header = struct.pack("<Q", len(data))
        return b"".join((header, struct.pack("<I", masked(crc(header))), data, struct.pack("<I", masked(crc(data)))))

    return record


def masked(crc: int) -> int:
    """A checksum as a record holds it: turned around and offset, since records may hold records."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C with NumPy.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    blocks = 1 << max(0, -(-len(data) // _BLOCK) - 1).bit_length()
    padded = np.zeros(blocks * _BLOCK, dtype=np.uint8)  # zeros in front change nothing
    if len(data) < 4:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = (crc >> 8) ^ int(_table()[(crc ^ byte) & 0xFF])
        return crc ^ 0xFFFFFFFF
    padded[-len(data) :] = np.frombuffer(data, dtype=np.uint8)
    padded[len(padded) - len(data) : len(padded) - len(data) + 4] ^= (
        0xFF  # that a checksum begins with ones is the same as this
    )
    parts: Words = np.bitwise_xor.reduce(_of_positions()[np.arange(_BLOCK), padded.reshape(blocks, _BLOCK)], axis=1)
    level = 0
    while len(parts) > 1:
        parts = _shifted(parts[0::2], _over_blocks(level)) ^ parts[1::2]
        level += 1
    return int(parts[0]) ^ 0xFFFFFFFF


@cache
def _table() -> Words:
    def of(crc: int) -> int:
        for _ in range(8):
            crc = (crc >> 1) ^ (crc & 1) * _BASE
        return crc

    return np.array([of(byte) for byte in range(256)], dtype=np.uint32)


@cache
def _of_positions() -> Words:
    """What a byte adds to the checksum of its block: [place in the block, byte]."""
    rows = [_table()]
    for _ in range(_BLOCK - 1):
        rows.append((rows[-1] >> 8) ^ _table()[rows[-1] & 0xFF])
    return np.stack(rows[::-1])


@cache
def _over_blocks(level: int) -> Words:
    """What each byte of a checksum becomes with 2**level blocks of zeros after it: [place in the checksum, byte]."""
    if level > 0:
        half = _over_blocks(level - 1)
        return _shifted(half, half)
    crc: Words = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], dtype=np.uint32)
    for _ in range(_BLOCK):
        crc = (crc >> 8) ^ _table()[crc & 0xFF]
    return crc


def _shifted(crc: Words, over: Words) -> Words:
    joined: Words = over[0][crc & 0xFF] ^ over[1][crc >> 8 & 0xFF] ^ over[2][crc >> 16 & 0xFF] ^ over[3][crc >> 24]
    return joined
