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
_CHECKSUM_BYTES: Final = 4

_BEFORE_FOUR: Final = 0x6DD90A9D
"""The value that, moved over four bytes, is the CRC-32 of four zeros."""

_NEAR: Final = 1 << 14
"""Distances below this number have a table of powers, which fits into a processor's cache."""


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


def joined(checksums: Checksums, offsets: NDArray[np.int64]) -> int:
    """Return the CRC-32 of consecutive texts, at least one, each of which ends with the CRC-32,
    big-endian, of all its bytes before. The texts begin at `offsets`; the last offset is the end.

    A checksum is moved by multiplying it with a power of x, without carries. The products of many
    checksums are added before their sum is reduced: nearly all of the work is multiplications of
    whole columns.
    """
    # Four bytes change a checksum by their own value, which is here that of the checksum, swapped.
    registers = (checksums ^ checksums.byteswap() ^ np.uint32(_BEFORE_FOUR)).astype(np.uint64)
    distances = offsets[-1] - offsets[1:]
    far = distances & -_NEAR
    powers = _powers().take((distances & (_NEAR - 1)) + _CHECKSUM_BYTES)
    starts = np.concatenate([[0], np.flatnonzero(far[1:] != far[:-1]) + 1])
    products = _sums_of_products(registers, powers, starts)
    low, high = products.astype(np.uint32), (products >> np.uint64(32)).astype(np.uint32)
    near = moved(low, np.full(len(low), _CHECKSUM_BYTES)) ^ high
    return int(np.bitwise_xor.reduce(moved(near, far[starts])))


def _sums_of_products(
    ones: NDArray[np.uint64], others: NDArray[np.uint64], starts: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return per group, which begins at one of `starts`, the sum of the products of its pairs of
    polynomials of 32 bits: 64 bits, the last of which is x to the power of 0.

    Every fourth bit of one factor times every fourth bit of the other is a number without carries
    into the next of these bits, for at most 8 ones meet there.
    """
    parts = [others & mask for mask in _every_fourth()]
    sums: list[NDArray[np.uint64] | None] = [None] * 4
    for place, mask in enumerate(_every_fourth()):
        part = ones & mask
        for shift in range(4):
            product = part * parts[shift]
            known = sums[(place + shift) % 4]
            if known is None:
                sums[(place + shift) % 4] = product
            else:
                known ^= product
    found = np.zeros(len(starts), np.uint64)
    for each, mask in zip(sums, _every_fourth(), strict=True):
        assert each is not None
        found ^= np.bitwise_xor.reduceat(each, starts) & (mask | mask << np.uint64(32))
    return found << np.uint64(1)


@cache
def _every_fourth() -> tuple[np.uint64, ...]:
    """Return the masks of every fourth bit of 32."""
    return tuple(np.uint64(0x11111111 << shift) for shift in range(4))


@cache
def _powers() -> NDArray[np.uint64]:
    """Return x to the power of 8 times each near distance, and a checksum's length beyond."""
    found = np.array([1 << 31], np.uint32)
    while len(found) < 2 * _NEAR:
        found = np.concatenate([found, moved(found, np.full(len(found), len(found)))])
    return found[: _NEAR + _CHECKSUM_BYTES].astype(np.uint64)


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
    images = np.where(_bits_of_bytes(), columns.reshape(4, 1, 8), np.uint32(0))
    found: Checksums = np.bitwise_xor.reduce(images, axis=2)
    return found.ravel()


@cache
def _bits_of_bytes() -> NDArray[np.bool_]:
    """Return per byte whether each of its bits is set, the lowest one first."""
    set_bits: NDArray[np.bool_] = (np.arange(256)[:, np.newaxis] >> np.arange(8) & 1) != 0
    return set_bits


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
    one_step, found = _tables(step), []
    for _ in range(_DIGITS):
        found.append(_tables(columns))
        columns = _apply(one_step, columns, 0)
    return np.concatenate(found), columns


@cache
def _byte_tables(row_bytes: int) -> NDArray[np.uint32]:
    """Return per column the change of a row's checksum for each difference there."""
    none = crc32(b"\0")
    single = np.array([crc32(bytes([byte])) ^ none for byte in range(256)], np.uint32)
    distances = range(row_bytes - 1, -1, -1)
    return np.stack([moved(single, np.full(256, distance)) for distance in distances])
