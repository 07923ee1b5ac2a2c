"""CRC-32C, which every record of an event file carries twice: TensorBoard computes it byte by byte in Python.

In the compiled part of this package where that is there, by `google-crc32c` where somebody installed it, and else with NumPy:
a checksum is linear in its bytes, so those of a block are looked up side by side, and so are the checksums of blocks.
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
_SPAN = 64  # blocks
_BASE = 0x82F63B78
_PLACES = np.arange(_BLOCK) * 256
_ENDS = np.arange(_SPAN * 4).reshape(_SPAN, 4) * 256
_xor = np.bitwise_xor.reduce


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
    if len(data) < 4:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = (crc >> 8) ^ int(_table()[(crc ^ byte) & 0xFF])
        return crc ^ 0xFFFFFFFF
    blocks = -(-len(data) // _BLOCK)
    if blocks > _SPAN:
        blocks += -blocks % _SPAN
    padded = np.zeros(blocks * _BLOCK, dtype=np.uint8)  # zeros in front change nothing
    padded[-len(data) :] = np.frombuffer(data, dtype=np.uint8)
    first = len(padded) - len(data)
    padded[first : first + 4] ^= 0xFF  # that a checksum begins with ones is the same as this
    of_blocks: Words = _xor(_of_positions().take(padded.reshape(blocks, _BLOCK) + _PLACES), axis=1)
    bytes_of = of_blocks.astype("<u4", copy=False).view(np.uint8).reshape(-1, min(blocks, _SPAN), 4)
    crc, (low, second, third, high) = 0, _over_span()
    for span in _xor(_over_blocks().take(bytes_of + _ENDS[-min(blocks, _SPAN) :]), axis=(1, 2)).tolist():
        crc = low[crc & 0xFF] ^ second[crc >> 8 & 0xFF] ^ third[crc >> 16 & 0xFF] ^ high[crc >> 24] ^ span
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> Words:
    def of(crc: int) -> int:
        for _ in range(8):
            crc = (crc >> 1) ^ (crc & 1) * _BASE
        return crc

    return np.array([of(byte) for byte in range(256)], dtype=np.uint32)


@cache
def _of_positions() -> Words:
    """What a byte adds to the checksum of its block: [place in the block, byte], flat."""
    rows = [_table()]
    for _ in range(_BLOCK - 1):
        rows.append((rows[-1] >> 8) ^ _table()[rows[-1] & 0xFF])
    return np.concatenate(rows[::-1])


@cache
def _shifts() -> list[Words]:
    """What each byte of a checksum becomes with no block of zeros after it, with one, up to a span of them: [place, byte]."""
    nothing: Words = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], dtype=np.uint32)
    one = nothing
    for _ in range(_BLOCK):
        one = (one >> 8) ^ _table()[one & 0xFF]
    shifts = [nothing]
    for _ in range(_SPAN):
        last = shifts[-1]
        shifts.append(one[0][last & 0xFF] ^ one[1][last >> 8 & 0xFF] ^ one[2][last >> 16 & 0xFF] ^ one[3][last >> 24])
    return shifts


@cache
def _over_blocks() -> Words:
    """What each byte of the checksum of a block adds to that of its span: [block, place in the checksum, byte], flat."""
    return np.concatenate([shift.ravel() for shift in _shifts()[_SPAN - 1 :: -1]])


@cache
def _over_span() -> list[list[int]]:
    """What each byte of a checksum becomes with a span of zeros after it: [place in the checksum][byte]."""
    over: list[list[int]] = _shifts()[_SPAN].tolist()
    return over
