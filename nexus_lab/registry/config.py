"""How a server is started or reached; what is secret in it never shows."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from nexus_lab.registry.errors import RegistryFormatError, ServerStartFailed
from nexus_lab.registry.text import neutralise

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MASK", "ServerConfig", "Transport", "split_line"]

MASK = "***"
_SECRET_OPTION = re.compile(
    r"(?i)^(?P<option>-{0,2}[\w-]*(?:token|secret|passw|api[-_]?key|auth|credential|access[-_]?key)[\w-]*)(?:[=:](?P<value>.+))?$"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URL_WITH_USER = re.compile(r"(?<=//)[^/@\s]+@")


class Transport(StrEnum):
    """How messages travel."""

    STDIO = "stdio"
    HTTP = "http"
    SSE = "sse"


def split_line(line: str) -> list[str]:
    """Return program and arguments of a command line.

    Raises
    ------
    RegistryFormatError
        When it is empty, or a quotation in it is not closed.
    """
    step = "give a program and its arguments, quoted as in a shell"
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise RegistryFormatError(f"the command cannot be read: {error}", next_step=step) from None
    if not words:
        raise RegistryFormatError("there is no command", next_step=step)
    return words


@dataclass(frozen=True, slots=True, repr=False)
class ServerConfig:
    """What it takes to start a server's process, or to reach it.

    Attributes
    ----------
    name
        Name of the server, the prefix of its tools' qualified names.
    command, args, cwd
        Program, its arguments and its working folder; `command` is empty for a server behind a URL.
    env
        Variables added to the few that a server gets (``PATH``, ``HOME``, ...). ``None`` as value takes the
        variable from our own environment at start. Values are never shown, saved or hashed.
    url, headers
        Address of a streamable HTTP server, and headers sent to it. Header values are never shown or saved.
    transport
        ``stdio``, ``http``; ``sse`` is listed but cannot be started.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    transport: Transport = Transport.STDIO

    def __post_init__(self) -> None:
        if not self.name:
            raise RegistryFormatError("a server has no name", next_step="give it one")
        if bool(self.command) == bool(self.url):
            raise RegistryFormatError(
                f"server {neutralise(self.name, limit=60)!r} needs either a command or a URL",
                next_step='give "command" for a local process, or "url" for streamable HTTP',
            )
        if self.url and self.transport is Transport.STDIO:
            object.__setattr__(self, "transport", Transport.HTTP)
        if self.url and urlsplit(self.url).scheme not in ("http", "https"):
            raise RegistryFormatError(
                f"server {neutralise(self.name, limit=60)!r}: its URL is not http or https",
                next_step="give an address such as http://127.0.0.1:8000/mcp",
            )

    def __repr__(self) -> str:
        return f"ServerConfig(name={self.name!r}, {self.shown()!r})"

    def shown(self) -> str:
        """Return the command line or the address on one line, secrets masked, harmless to print."""
        if self.url:
            return neutralise(_mask_url(self.url), limit=400)
        variables = [f"{name}={MASK}" for name in self.env]
        return neutralise(" ".join([*variables, self.command, *_mask_args(self.args)]), limit=400)

    def line(self) -> str:
        """Return the command line as a shell reads it, or the address, to be edited; secrets are masked."""
        return _mask_url(self.url) if self.url else shlex.join([self.command, *_mask_args(self.args)])

    def edited(self, line: str | None = None, env: Mapping[str, str | None] | None = None) -> ServerConfig:
        """Return the configuration with another command line or address, or other variables.

        Parameters
        ----------
        line
            As `line` gives it; words that are still masked keep what they stand for.
        env
            Variables to set, and with ``None`` to remove; the others stay as they are.

        Raises
        ------
        RegistryFormatError
            When the line cannot be read or says nothing, or a variable has no name that can be set.
        """
        variables = dict(self.env)
        for name, value in (env or {}).items():
            if not _VARIABLE.fullmatch(name) or "\0" in (value or ""):
                raise RegistryFormatError(
                    f"{neutralise(name, limit=60)!r} is no variable that can be set",
                    next_step="write NAME=value, one a line",
                )
            variables.pop(name, None)
            if value is not None:
                variables[name] = value
        if line is None or line.strip() == self.line():
            return replace(self, env=variables)
        if self.url:
            return replace(self, url=line.strip(), env=variables)
        known = dict(zip(_mask_args(self.args), self.args, strict=True))
        command, *args = split_line(line)
        return replace(self, command=command, args=tuple(known.get(arg, arg) for arg in args), env=variables)

    def secrets(self) -> tuple[str, ...]:
        """Return values that must not appear in anything shown, longest first."""
        values = [*(value for value in self.env.values() if value), *self.headers.values()]
        values += [arg for arg, masked in zip(self.args, _mask_args(self.args), strict=True) if arg != masked]
        return tuple(sorted({value for value in values if len(value) >= 6}, key=len, reverse=True))  # noqa: PLR2004 - shorter ones would mask ordinary words

    def masked(self, text: str) -> str:
        """Return `text` without this configuration's secret values."""
        for secret in self.secrets():
            text = text.replace(secret, MASK)
        return text

    def check_startable(self) -> None:
        """Check that nothing needed to start the server is missing.

        Raises
        ------
        ServerStartFailed
            When the transport is not supported, or a secret was masked when the configuration was saved.
        """
        if self.transport is Transport.SSE:
            raise ServerStartFailed(
                "the SSE transport is no longer part of MCP and is not supported",
                server=self.name,
                next_step="use the server's streamable HTTP address, or start it over stdio",
            )
        masked = [part for part in (*self.args, self.url or "") if MASK in part]
        empty = [name for name, value in self.headers.items() if not value]
        if masked or empty:
            what = f"header {empty[0]!r}" if empty else f"{neutralise(masked[0], limit=80)!r}"
            raise ServerStartFailed(
                f"{what} was left out when this configuration was saved",
                server=self.name,
                next_step="load the client's own configuration, or give the command again",
            )

    def environment(self) -> dict[str, str]:
        """Return the variables to add, those left open taken from our own environment.

        Raises
        ------
        ServerStartFailed
            When one of them is not set.
        """
        values = {name: os.environ.get(name) if value is None else value for name, value in self.env.items()}
        missing = [name for name, value in values.items() if value is None]
        if missing:
            raise ServerStartFailed(
                f"it needs {', '.join(missing)}, not set in the environment",
                server=self.name,
                next_step=f"set {missing[0]} and start again",
            )
        return {name: value for name, value in values.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON, names of variables and headers without their values."""
        entry: dict[str, Any] = {"name": self.name, "transport": str(self.transport)}
        if self.url:
            entry |= {"url": _mask_url(self.url), "headers": sorted(self.headers)}
        else:
            entry |= {"command": self.command, "args": _mask_args(self.args), "env": sorted(self.env)}
        if self.cwd:
            entry["cwd"] = self.cwd
        return entry

    @classmethod
    def from_dict(cls, name: str, entry: Mapping[str, Any]) -> ServerConfig:
        """Read an entry of a client's ``mcpServers`` (or of a saved registry).

        Raises
        ------
        RegistryFormatError
            When it names neither a command nor a URL, or a part has the wrong type.
        """
        reader = _Reader(name, entry)
        kind = str(entry.get("type") or entry.get("transport") or "").lower()
        url = reader.text("url") or reader.text("serverUrl") or reader.text("httpUrl")
        return cls(
            name,
            command="" if url else reader.text("command"),
            args=tuple(reader.texts("args")),
            env=reader.mapping("env"),
            cwd=reader.text("cwd") or None,
            url=url or None,
            headers={key: value or "" for key, value in reader.mapping("headers").items()},
            transport=Transport.SSE if kind == "sse" else Transport.HTTP if url else Transport.STDIO,
        )


@dataclass(frozen=True, slots=True)
class _Reader:
    name: str
    entry: Mapping[str, Any]

    def _fail(self, key: str, wanted: str) -> RegistryFormatError:
        shown = neutralise(self.name, limit=60)
        return RegistryFormatError(f"server {shown!r}: {key!r} is not {wanted}", next_step="mend that entry")

    def text(self, key: str) -> str:
        value = self.entry.get(key, "")
        if not isinstance(value, str | None) or "\0" in (value or ""):
            raise self._fail(key, "a text")
        return value or ""

    def texts(self, key: str) -> list[str]:
        value = self.entry.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str | int | float) for item in value):
            raise self._fail(key, "a list of texts")
        return [str(item) for item in value]

    def mapping(self, key: str) -> dict[str, str | None]:
        value = self.entry.get(key) or {}
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return dict.fromkeys(value)
        if not isinstance(value, dict):
            raise self._fail(key, "an object")
        return {str(name): None if item is None else str(item) for name, item in value.items()}


def _mask_url(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{MASK}@{host}" if "@" in parts.netloc else host
    return urlunsplit((parts.scheme, netloc, parts.path, MASK if parts.query else "", ""))


def _mask_args(args: tuple[str, ...]) -> list[str]:
    masked = []
    secret_follows = False
    for arg in args:
        match = _SECRET_OPTION.match(arg)
        if secret_follows and not arg.startswith("-"):
            masked.append(MASK)
        elif match and match["value"]:
            masked.append(f"{match['option']}={MASK}")
        else:
            masked.append(_URL_WITH_USER.sub(f"{MASK}@", arg))
        secret_follows = bool(match and not match["value"] and arg.startswith("-"))
    return masked
