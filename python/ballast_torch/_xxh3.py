# SPDX-License-Identifier: Apache-2.0
"""XXH3 of 64 bits, of 17 to 240 bytes: by it profiles name models and orders (lib/base/hash.h)."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_PRIME_1, _PRIME_MX = 0x9E3779B185EBCA87, 0x165667919E3779F9
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
_SECRET_LAST = 136 - 17  # XXH3_SECRET_SIZE_MIN - XXH3_MIDSIZE_LASTOFFSET


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at:at + 8], "little")


def _mix(data: bytes, at: int, secret: int, seed: int) -> int:
    low = _word(data, at) ^ (_word(_SECRET, secret) + seed) & _MASK
    high = _word(data, at + 8) ^ (_word(_SECRET, secret + 8) - seed) & _MASK
    product = low * high
    return product & _MASK ^ product >> 64


def _avalanche(value: int) -> int:
    value &= _MASK
    value = (value ^ value >> 37) * _PRIME_MX & _MASK
    return value ^ value >> 32


def xxh3(data: bytes, seed: int = 0) -> int:
    """XXH3_64bits_withSeed of 17 to 240 bytes.

    Raises:
        ValueError: of less or more.
    """
    length = len(data)
    if not 17 <= length <= 240:
        raise ValueError(f"a hash of {length} bytes is not needed here")
    result = length * _PRIME_1
    if length <= 128:
        for i in range((length - 1) // 32 + 1):
            result += _mix(data, 16 * i, 32 * i, seed) + _mix(data, length - 16 * (i + 1), 32 * i + 16, seed)
        return _avalanche(result)
    for i in range(8):
        result += _mix(data, 16 * i, 16 * i, seed)
    result = _avalanche(result)
    for i in range(8, length // 16):
        result += _mix(data, 16 * i, 16 * (i - 8) + 3, seed)
    return _avalanche(result + _mix(data, length - 16, _SECRET_LAST, seed))
