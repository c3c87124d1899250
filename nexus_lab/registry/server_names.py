"""What a server is called that was given as a command or an address alone."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["free_name", "name_of_command", "name_of_url"]

# What starts other programs, and is none of them.
_LAUNCHER = re.compile(
    r"python[\d.]*|pypy[\d.]*|node|npx|bunx?|deno|uvx?|pipx|docker|podman|env|sudo|bash|sh"
)
_VERBS = frozenset({"run", "exec", "tool", "start"})
_SUFFIX = re.compile(r"\.(py|pyz|js|mjs|cjs|ts|sh|exe|cmd|bat)$")
_VERSION = re.compile(r"(?<=.)(==|@|:).*")
_FRAME = re.compile(r"^(mcp[-_])?(server[-_])?|[-_]mcp([-_]server)?$|[-_]server([-_]mcp)?$")


def name_of_command(words: Sequence[str]) -> str:
    """Return the name of the program that a command runs, without what all of them have in theirs."""
    named = [word for word in words if not word.startswith("-")]
    others = [word for word in named if not _LAUNCHER.fullmatch(_base(word)) and word not in _VERBS]
    program = next((word for word in others if "mcp" in word.lower()), (others or named or list(words))[0])
    base = _base(program)
    scope = PurePath(program).parent.name
    if base in ("mcp", "server") and scope.startswith("@"):
        return scope.removeprefix("@")
    return _FRAME.sub("", base) or base or "server"


def name_of_url(url: str) -> str:
    """Return the name of the host that a server is on."""
    return urlsplit(url).hostname or "http"


def free_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or with the first number behind it that nobody has."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}{number}"
    return free


def _base(word: str) -> str:
    return _SUFFIX.sub("", _VERSION.sub("", PurePath(word).name))
