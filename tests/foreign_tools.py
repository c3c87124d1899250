"""Damages valid files in many seeded ways, and holds a reader to its word: it reads them or says why not."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

N_CASES = int(os.environ.get("NEXUS_FUZZ", "150"))
"""Damaged inputs per reader and kind of damage; `make fuzz` asks for more."""

_NUMBERS = (0, 1, 2, 7, 8, 32, 127, 128, 255, 256, 257, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
_LONG = (2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)
_MARK = "the-place-of-a-deep-list"
_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    2**64,
    10**400,
    0.5,
    1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    "text",
    "1",
    "a\0b",
    "\ud800",
    "../..",
    "9" * 40,
    [],
    [[]],
    [None],
    [1, "a"],
    {},
    {"a": 1},
    _MARK,
)


def damaged_bytes(
    data: bytes, n: int = N_CASES, *, seed: int = 1, near: int | None = None
) -> Iterator[bytes]:
    """Yield `n` versions of `data`, changed in one place or a few.

    Parameters
    ----------
    near
        Most changes fall among so many first bytes, where a format has its fields.
    """
    for index in range(n):
        source = random.Random(f"{seed} {index}")  # noqa: S311 - damage, no secret
        mutable = bytearray(data)
        _change_bytes(mutable, data, near or len(data), source)
        while source.random() < 0.35:
            _change_bytes(mutable, data, near or len(data), source)
        yield bytes(mutable)


def _change_bytes(data: bytearray, other: bytes, near: int, source: random.Random) -> None:
    if not data:
        data += source.randbytes(9)
    reach = len(data) if source.random() < 0.2 else min(near, len(data))
    at, size = source.randrange(reach), source.choice((1, 1, 2, 4, 8, 8))
    match source.randrange(9):
        case 0 | 1:
            data[at] ^= 1 << source.randrange(8)
        case 2:
            data[at] = source.randrange(256)
        case 3 | 4:
            numbers = _NUMBERS if size < 8 else (*_NUMBERS, *_LONG)
            value = source.choice(numbers) & (256**size - 1)
            data[at : at + size] = value.to_bytes(size, "little")
        case 5:
            del data[source.choice((at, source.randrange(len(data)))) :]
        case 6:
            data += source.randbytes(source.randrange(1, 40))
        case 7:
            start = source.randrange(len(other))
            data[at : at + source.randrange(40)] = other[start : start + source.randrange(40)]
        case 8:
            size = source.choice((4, 8))
            here = data[at : at + size].ljust(size, b"\0")
            number = struct.unpack("<I" if size == 4 else "<Q", here)[0] + source.randrange(-3, 4)
            data[at : at + size] = (number % 256**size).to_bytes(size, "little")


def damaged_json(value: Any, n: int = N_CASES, *, seed: int = 1) -> Iterator[bytes]:
    """Yield `n` texts of JSON like that of `value`, with parts exchanged, removed, renamed or doubled.

    Some are cut, too, some have a part nested without end, and some are no UTF-8.
    """
    for index in range(n):
        source = random.Random(f"{seed} {index}")  # noqa: S311 - damage, no secret
        changed = copy.deepcopy({"": value})
        _change_part(changed, source)
        while source.random() < 0.35:
            _change_part(changed, source)
        text = json.dumps(changed.get(""))
        depth = source.choice((3, 100, 300, 900, 100_000))
        yield text.replace(f'"{_MARK}"', "[" * depth + "]" * depth).encode()
    yield from damaged_bytes(json.dumps(value).encode(), n // 3, seed=seed)


def _change_part(root: dict[str, Any], source: random.Random) -> None:
    places = list(_places(root))
    if not places:
        root[""] = copy.deepcopy(source.choice(_VALUES))
        return
    holder, key = source.choice(places)
    match source.randrange(6):
        case 0 | 1 | 2:
            holder[key] = copy.deepcopy(source.choice(_VALUES))
        case 3:
            del holder[key]
        case 4:
            other, name = source.choice(places)
            holder[key] = copy.deepcopy(other[name])
        case 5:
            if isinstance(holder, dict):
                holder[source.choice(("new", "type", "", f"{key}x"))] = holder.pop(key)
            else:
                holder.insert(key, copy.deepcopy(holder[key]))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a JSON value, as what holds it and the key or index there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield value, key
        yield from _places(part)


def hold_to_word(
    read: Callable[[Path], object], path: Path, inputs: Iterator[bytes], *, refuses: bool = True
) -> Counter[str]:
    """Give each input to `read` as the file `path`; anything but an answer or a NexusError fails the test.

    Parameters
    ----------
    read
        Reads the file, and uses what it got.
    refuses
        Some inputs have to be refused, too; a reader that treats a bad file as none never refuses.

    Returns
    -------
    Counter
        How often it answered (``read``) and raised each kind of error.
    """
    found: Counter[str] = Counter()
    faults: dict[str, str] = {}
    for number, data in enumerate(inputs):
        path.write_bytes(data)
        try:
            read(path)
        except NexusError as error:
            found[type(error).__name__ if error.problem else "without a word"] += 1
        except Exception as error:  # noqa: BLE001 - any other is what is looked for
            place = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in place if "nexus_lab" in frame.filename]
            where = f"{ours[-1].filename}:{ours[-1].lineno}" if ours else "?"
            faults.setdefault(
                f"{type(error).__name__} at {where}",
                f"input {number}, {len(data)} bytes: {data[:60]!r}: {error!s:.200}",
            )
        else:
            found["read"] += 1
    if faults:
        pytest.fail("\n".join(f"{kind}: {case}" for kind, case in faults.items()))
    assert found["read"], found
    assert not found["without a word"], found
    assert not refuses or len(found) > 1, found
    return found
