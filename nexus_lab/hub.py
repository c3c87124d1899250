"""The Hugging Face hub, asked through the libraries of others: not where there is no network, and quietly."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = ["quiet_libraries", "why_offline"]

_LIBRARIES = ("huggingface_hub", "transformers", "sentence_transformers")
# Above every level that a record has.
_MUTE = logging.CRITICAL + 1


def why_offline() -> str | None:
    """Return why the hub cannot be asked from here, ``None`` where it may be.

    What is certain is told at once, where the library would try for half a minute. A proxy may know hosts
    that have no address here.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    parts, proxies = urlsplit(constants.ENDPOINT), getproxies()
    if proxies.get(parts.scheme) or proxies.get("all"):
        return None
    try:
        socket.getaddrinfo(parts.hostname, parts.port or parts.scheme)
    except (OSError, UnicodeError):
        return f"{parts.hostname} cannot be found from here"
    return None


class _Muffler:
    """Mutes the libraries while anybody wants it, and then gives them their levels back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._before: dict[str, int] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._wanted += 1
            if self._wanted == 1:
                self._mute()
        try:
            yield
        finally:
            with self._lock:
                self._wanted -= 1
                if not self._wanted:
                    self._unmute()

    def _mute(self) -> None:
        loggers = {name: logging.getLogger(name) for name in _LIBRARIES}
        # Who has asked a library for more than warnings gets to see them.
        self._before = {
            name: found.level
            for name, found in loggers.items()
            if found.level in (logging.NOTSET, logging.WARNING, logging.ERROR)
        }
        for name in self._before:
            loggers[name].setLevel(_MUTE)

    def _unmute(self) -> None:
        for name, level in self._before.items():
            logging.getLogger(name).setLevel(level)


_MUFFLER = _Muffler()


def quiet_libraries() -> AbstractContextManager[None]:
    """Keep what these libraries log off the terminal; the error that ends it says what went wrong.

    They set their levels when they are first imported, which has to come before.
    """
    return _MUFFLER()
