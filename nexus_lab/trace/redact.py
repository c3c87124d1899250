"""Removing secrets and personal details from contents before they are stored or shown.

The patterns name things by their form: keys with a known prefix, key-value pairs whose key says secret,
private key blocks, credentials in addresses, e-mail addresses, home folders. A secret of no known form
passes; that is why contents stay out unless the user asks for them, and why custom patterns exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nexus_lab.trace.base import SessionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KINDS", "Redactor"]

# Every repetition is bounded: a hostile text must not make a pattern quadratic.
_CREDENTIAL = (
    r"(?:[a-z0-9]{1,32}[-_]){0,4}(?:api[-_]?key|access[-_]?key|private[-_]?key|secret|password|passwd|passphrase"
    r"|authorization|credentials?)"
)
_BEARER = r"[\w-]{0,40}token"
_SENSITIVE_NAME = re.compile(rf"{_CREDENTIAL}|{_BEARER}", re.IGNORECASE)
_QUOTED = r"\"(?:[^\"\\]|\\.)+\"|'(?:[^'\\]|\\.)+'"
_BARE = r"(?:(?:basic|bearer|digest)\s+)?(?!\[redacted)[^\s\"',;&}\]]+"

_PATTERNS: dict[str, tuple[str, ...]] = {
    "key": (
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)",
        r"\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]{1,32}[-_]){0,4}[A-Za-z0-9]{16,}",
        r"\bgh[pousr]_[A-Za-z0-9]{20,}",
        r"\bgithub_pat_[A-Za-z0-9_]{20,}",
        r"\bglpat-[A-Za-z0-9_-]{16,}",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"\bAIza[A-Za-z0-9_-]{30,}",
        r"\bhf_[A-Za-z0-9]{20,}",
        r"\bnpm_[A-Za-z0-9]{30,}",
        r"\bpypi-[A-Za-z0-9_-]{20,}",
    ),
    "token": (
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        r"(?i:\bbearer\s{1,8})[A-Za-z0-9._~+/=-]{12,}",
        rf"(?P<keep>(?i:\b{_BEARER})[\"']?\s{{0,8}}[:=]\s{{0,8}}[\"']?)[A-Za-z0-9._~+/=-]{{12,}}",
    ),
    "password": (
        # key=value, key: value, "key": "value"; the key stays readable.
        rf"(?i:(?P<keep>\b{_CREDENTIAL}\b[\"']?\s{{0,8}}[:=]\s{{0,8}})(?:{_QUOTED}|{_BARE}))",
        r"(?P<keep>\b[a-zA-Z][a-zA-Z0-9+.-]{0,20}://[^\s:/@]{0,80}:)[^\s/@]{1,200}(?=@)",
    ),
    "e-mail": (
        r"\b[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,6}\.[A-Za-z]{2,24}\b",
    ),
    "home": (
        r"(?P<keep>(?:/home|/Users|/export/home)/)[^/\s\"']+",
        r"(?P<keep>\b[A-Za-z]:\\{1,2}Users\\{1,2})[^\\\s\"']+",
    ),
}
KINDS = tuple(_PATTERNS)
SECRETS = ("key", "token", "password")


@dataclass(frozen=True, slots=True)
class Redactor:
    """Replaces what it recognises by ``[redacted: kind]``, in texts and in JSON values.

    Attributes
    ----------
    kinds
        Names of what is removed, as the manifest and the exports state them.
    """

    kinds: tuple[str, ...]
    _rules: tuple[tuple[str, re.Pattern[str]], ...]

    @classmethod
    def of(cls, kinds: Iterable[str] = KINDS, patterns: Iterable[str] = ()) -> Redactor:
        """Make a redactor for some of `KINDS` and for custom regular expressions.

        Raises
        ------
        SessionError
            When a kind is unknown or a pattern does not compile, with the place where it breaks.
        """
        chosen = tuple(kinds)
        for kind in chosen:
            if kind not in _PATTERNS:
                raise SessionError(
                    f"nothing is known as {kind!r} to redact", next_step="choose of " + ", ".join(KINDS)
                )
        rules = [(kind, re.compile(pattern)) for kind in chosen for pattern in _PATTERNS[kind]]
        custom = [("custom", _compile(pattern)) for pattern in patterns]
        return cls((*chosen, *(["custom"] if custom else [])), (*custom, *rules))

    @classmethod
    def secrets(cls) -> Redactor:
        """Make the redactor that recorders use unless told otherwise: keys, tokens, passwords."""
        return cls.of(SECRETS)

    def text(self, text: str) -> str:
        """Return `text` without what is recognised."""
        return _apply(self._rules, text)

    def value(self, value: Any) -> Any:
        """Return a JSON value with its texts redacted; a value under a secret's name goes whole."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self._entry(str(key), item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _entry(self, key: str, value: Any) -> Any:
        name = key.rpartition(".")[2]  # attributes of other programs are named like http.password
        secret = "password" in self.kinds and _SENSITIVE_NAME.fullmatch(name) is not None
        if secret and isinstance(value, str | int | float) and not isinstance(value, bool):
            return "[redacted: password]"
        return self.value(value)


@lru_cache(maxsize=256)  # a turn says the same text several times: request, message, row
def _apply(rules: tuple[tuple[str, re.Pattern[str]], ...], text: str) -> str:
    for kind, pattern in rules:
        keep = "keep" in pattern.groupindex
        text = pattern.sub(rf"\g<keep>[redacted: {kind}]" if keep else f"[redacted: {kind}]", text)
    return text


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise SessionError(
            f"{pattern!r} is no regular expression: {error}",
            next_step="mend it, or escape the special characters",
        ) from error
