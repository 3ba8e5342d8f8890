"""CRC-32 of many short texts at once, of consecutive texts, and of the end of a text.

Owns the arithmetic: CRC-32 is linear, so the checksum of `a + b` is that of `a`, moved over as many
bytes as `b` has, plus (exclusive or) that of `b`. So from the CRC-32 of whole records and of their
heads follows that of their data, without a second pass over the data. Moving uses tables, one per
hexadecimal digit of the distance. Source: zlib, `crc32_combine`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias
from zlib import crc32

from waltz.arrays import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Checksums: TypeAlias = "NDArray[np.uint32]"

_DIGIT_BITS: Final = 4
_DIGITS: Final = 1 << _DIGIT_BITS
_POLYNOMIAL: Final = 0xEDB88320
_NEAR: Final = _DIGITS**3


def moved(checksums: Checksums, byte_counts: NDArray[np.int64]) -> Checksums:
    """Return each checksum's contribution to that of its text followed by `byte_counts` bytes."""
    result = checksums
    rest, digit = byte_counts, 0
    while rest.any():
        steps = rest & (_DIGITS - 1)
        if steps.any():
            result = _apply(_moves(digit)[0], result, steps << 10)
        rest, digit = rest >> _DIGIT_BITS, digit + 1
    return result


def checksums_of_rows(rows: NDArray[np.uint8]) -> Checksums:
    """Return the CRC-32 of each row, at least one; rows that differ in few columns are cheap."""
    first = rows[0]
    difference = rows ^ first
    found = np.full(len(rows), crc32(first.tobytes()), np.uint32)
    tables = _byte_tables(rows.shape[1])
    for column in np.flatnonzero(difference.any(axis=0)).tolist():
        found ^= tables[column].take(difference[:, column])
    return found


def joined(checksums: Checksums, byte_counts: NDArray[np.int64]) -> int:
    """Return the CRC-32 of consecutive texts, at least one, from their CRC-32 and their lengths."""
    distances = np.cumsum(byte_counts[::-1])[::-1] - byte_counts
    # Texts at similar distances share the long part of the move.
    near = moved(checksums, distances & (_NEAR - 1))
    far = distances & -_NEAR
    starts = np.flatnonzero(np.diff(far, prepend=-1))
    shares = moved(np.bitwise_xor.reduceat(near, starts), far[starts])
    return int(np.bitwise_xor.reduce(shares))


def _apply(tables: Checksums, values: Checksums, places: NDArray[np.int64] | int) -> Checksums:
    """Apply the operator whose tables begin at `places` to each of `values`: one table of 256
    entries per byte of a value."""
    split = values.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4).T.astype(np.int64)
    split += _table_starts()
    split += places
    result: Checksums = np.bitwise_xor.reduce(tables.take(split), axis=0)
    return result


@cache
def _table_starts() -> NDArray[np.int64]:
    return np.arange(0, 1024, 256).reshape(4, 1)


def _tables(columns: Checksums) -> Checksums:
    """Return the four tables, back to back, of the operator that maps single bits to `columns`."""
    numbers = np.arange(256)
    found = np.zeros((4, 256), np.uint32)
    for place in range(4):
        for bit in range(8):
            found[place] ^= np.where(numbers >> bit & 1, columns[8 * place + bit], 0).astype("u4")
    return found.ravel()


@cache
def _moves(digit: int) -> tuple[Checksums, Checksums]:
    """Return the tables of all moves by 0 to 15 times 16**digit bytes, back to back, and the images
    of single bits under the move 16 times as far."""
    if digit:
        step = _moves(digit - 1)[1]
    else:
        step = np.array([_POLYNOMIAL, *(1 << bit for bit in range(31))], np.uint32)
        for _ in range(3):
            step = _apply(_tables(step), step, 0)
    columns: Checksums = np.uint32(1) << np.arange(32, dtype=np.uint32)
    found = []
    for _ in range(_DIGITS):
        found.append(_tables(columns))
        columns = _apply(_tables(step), columns, 0)
    return np.concatenate(found), columns


@cache
def _byte_tables(row_bytes: int) -> NDArray[np.uint32]:
    """Return per column the change of a row's checksum for each difference there."""
    none = crc32(b"\0")
    single = np.array([crc32(bytes([byte])) ^ none for byte in range(256)], np.uint32)
    distances = range(row_bytes - 1, -1, -1)
    return np.stack([moved(single, np.full(256, distance)) for distance in distances])
