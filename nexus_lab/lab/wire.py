"""What kernel and views say to each other: the kernel's half of ``frontend/src/protocol.ts``.

A handler is a method of a panel marked `instant` (runs in the callback; reads a snapshot or posts) or `job`
(runs on a thread of the desk; its reply follows). On the wire it is ``<panel>.<method>``, without the
underscore that keeps a Python keyword apart.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np

from nexus_lab.errors import NexusError
from nexus_lab.registry.text import neutralise, repair_text

__all__ = [
    "BadRequest",
    "Handling",
    "Lane",
    "Ready",
    "Reply",
    "UnknownMethod",
    "WireError",
    "call",
    "error_info",
    "handling_of",
    "instant",
    "job",
    "methods_of",
    "to_json",
]

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "_nexus_handling"
_SHOWN = 80
_LARGEST_EXACT = 2**53
_FIELDS: dict[type, tuple[str, ...]] = {}
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
    "Mapping": (dict,),
    "None": (type(None),),
}


class WireError(NexusError):
    """A value cannot be put into a message."""


class UnknownMethod(NexusError):
    """A view asked for something that no panel offers."""


class BadRequest(NexusError):
    """A view left a parameter out, named a wrong one, or gave it a wrong value."""


class Lane(Enum):
    """The thread on which a job runs.

    ``ENGINE`` owns the llama context and everything that touches it; ``SIDE`` does what needs no context
    (routing from the box, token counts, reading files), and so goes on during a turn.
    """

    ENGINE = "engine"
    SIDE = "side"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a handler that has bulk arrays beside its result.

    Attributes
    ----------
    result
        What `to_json` takes.
    buffers
        Contiguous arrays or bytes, sent as they are.
    """

    result: Any
    buffers: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """JSON values that `to_json` has made already and takes as they are; for what is sent again and again."""

    value: Any


@dataclass(frozen=True, slots=True)
class Handling:
    """How a handler is run: in the callback (no lane), or as the job `label` of a lane."""

    lane: Lane | None = None
    label: str = ""


def instant(function: F) -> F:
    """Mark a handler that runs in the callback: it reads snapshots or posts work, and never waits."""
    setattr(function, _MARK, Handling())
    return function


def job(label: str, *, lane: Lane = Lane.ENGINE) -> Callable[[F], F]:
    """Mark a handler that runs on a thread of the desk, behind what is queued there.

    Parameters
    ----------
    label
        What the bar shows meanwhile.
    lane
        Which thread.
    """

    def mark(function: F) -> F:
        setattr(function, _MARK, Handling(lane, label))
        return function

    return mark


def handling_of(function: Callable[..., Any]) -> Handling | None:
    """Return how a handler is run, ``None`` for a method that is none."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, Handling) else None


def methods_of(panel: object) -> dict[str, Callable[..., Any]]:
    """Return the handlers of a panel by their name on the wire."""
    names = [name for name in dir(type(panel)) if not name.startswith("_")]
    marked = [name for name in names if handling_of(getattr(type(panel), name)) is not None]
    return {name.rstrip("_"): getattr(panel, name) for name in marked}


def call(function: Callable[..., Any], params: Mapping[str, Any]) -> Any:
    """Call a handler with parameters of a message.

    Raises
    ------
    BadRequest
        When they are not the ones it takes; only what its annotations say of plain JSON types is checked.
    """
    signature = inspect.signature(function)
    try:
        bound = signature.bind(**params)
    except TypeError as error:
        raise BadRequest(
            f"wrong parameters: {neutralise(str(error), limit=200)}",
            next_step=f"give {', '.join(signature.parameters) or 'none'}",
        ) from None
    for name, value in bound.arguments.items():
        _check_kind(name, value, str(signature.parameters[name].annotation))
    return function(**params)


def _check_kind(name: str, value: Any, annotation: str) -> None:
    words = [word.split("[")[0].strip() for word in annotation.split("|")]
    if not all(word in _KINDS for word in words):
        return
    allowed = tuple(kind for word in words for kind in _KINDS[word])
    # A boolean is an int in Python, and is none on the wire.
    right = isinstance(value, allowed) and (not isinstance(value, bool) or bool in allowed)
    if not right or (isinstance(value, float) and not math.isfinite(value)):
        shown = neutralise(repr(value), limit=_SHOWN)
        raise BadRequest(f"{name} = {shown} is no {annotation}", next_step=f"give {name} as {annotation}")


def to_json(value: Any) -> Any:
    """Return `value` as plain JSON values.

    Frozen records become objects, arrays lists, enums their value, paths text; NaN and infinities become
    null, and whole numbers that JavaScript cannot hold become text. Lone surrogates are replaced.

    Raises
    ------
    WireError
        When a value is of another kind, or the nesting has no end.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise WireError("a value is nested without end", next_step="report this") from None


def _plain(value: Any) -> Any:  # noqa: PLR0911 - one line per kind of value, the usual ones first
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if value.isascii() else repair_text(value)
    if kind is int:
        return value if abs(value) <= _LARGEST_EXACT else str(value)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is dict:
        return {repair_text(_key(name)): _plain(item) for name, item in value.items()}
    if kind is list or kind is tuple:
        return [_plain(item) for item in value]
    if isinstance(value, Ready):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in _field_names(kind)}
    return _plain_scalar(value)


def _field_names(kind: Any) -> tuple[str, ...]:
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return names


def _plain_scalar(value: Any) -> Any:  # noqa: PLR0911 - one line per kind of value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, str):
        return repair_text(str(value))
    if isinstance(value, int | np.integer):
        return _plain(int(value))
    if isinstance(value, float | np.floating):
        return _plain(float(value))
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, PurePath):
        return repair_text(str(value))
    if isinstance(value, BaseException):
        return error_info(value)
    return _plain_container(value)


def _plain_container(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {repair_text(_key(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, AbstractSet):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item) for item in value]
    raise WireError(
        f"a {type(value).__name__} cannot be put into a message", next_step="send it as a buffer, or as text"
    )


def _key(name: object) -> str:
    return name if type(name) is str else str(name.value if isinstance(name, Enum) else name)


def error_info(error: BaseException) -> dict[str, Any]:
    """Return an error as a view shows it: type, what went wrong, and the next step where there is one."""
    if isinstance(error, NexusError):
        message, next_step = error.problem, error.next_step or None
    elif isinstance(error, KeyboardInterrupt):
        message, next_step = "interrupted", None
    else:
        message, next_step = str(error) or type(error).__name__, None
    return {
        "type": type(error).__name__,
        "message": neutralise(repair_text(message), limit=2000, keep_newlines=True),
        "next_step": repair_text(next_step) if next_step else None,
    }
