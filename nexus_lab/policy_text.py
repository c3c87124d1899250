"""Cache policies as text: the names, the knobs of each, and how ``name(knob=value, ...)`` is read.

Settings, the command line, the workbench and a policy search all speak of policies in this form; what a
policy does is in the cache room.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "POLICIES",
    "Knob",
    "KnobKind",
    "PolicyKind",
    "PolicySpec",
    "PolicyTextError",
    "parse_policies",
    "parse_policy",
]

Value = int | bool | str

_FORM = re.compile(r"\s*(?P<name>[a-z_]+)\s*(?:\((?P<options>.*)\))?\s*", re.DOTALL)
_DIGITS = 10
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class PolicyTextError(NexusError):
    """A text that names no policy, or gives one a knob that it does not have."""


class KnobKind(StrEnum):
    """What values a knob takes."""

    COUNT = "count"
    FLAG = "flag"
    CHOICE = "choice"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One option of a policy.

    Attributes
    ----------
    about
        What it does, in a few words.
    low, high
        Range of a count: below `low` it means nothing, up to `high` a search looks.
    choices
        Values of a choice.
    """

    name: str
    kind: KnobKind
    default: Value
    about: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()

    @staticmethod
    def write(value: Value) -> str:
        """Return `value` as `read` takes it."""
        return ("yes" if value else "no") if isinstance(value, bool) else str(value)

    def read(self, text: str) -> Value:
        """Return the value that `text` stands for.

        Raises
        ------
        PolicyTextError
            When it is none of this knob's.
        """
        word = text.strip()
        if self.kind is KnobKind.FLAG and word.lower() in _FLAGS:
            return _FLAGS[word.lower()]
        if self.kind is KnobKind.COUNT and word.isdecimal() and len(word) < _DIGITS and int(word) >= self.low:
            return int(word)
        if word and (self.kind is KnobKind.TEXT or word in self.choices):
            return word
        wanted = {
            KnobKind.FLAG: "yes or no",
            KnobKind.COUNT: f"a whole number of at least {self.low}",
            KnobKind.CHOICE: " or ".join(self.choices),
            KnobKind.TEXT: "a value",
        }[self.kind]
        raise PolicyTextError(f"{self.name} = {word!r}", next_step=f"choose {wanted}")


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A policy that can be named.

    Attributes
    ----------
    about
        What it does, in a sentence.
    """

    name: str
    about: str
    knobs: tuple[Knob, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy with values for some of its knobs.

    Attributes
    ----------
    options
        Values by knob, those that were given.
    """

    name: str
    options: Mapping[str, Value] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The policy as text without knobs at their defaults, so that equal policies have equal texts."""
        knobs = POLICIES[self.name].knobs
        told = [
            f"{knob.name}={knob.write(self.options[knob.name])}"
            for knob in knobs
            if self.options.get(knob.name, knob.default) != knob.default
        ]
        return f"{self.name}({','.join(told)})" if told else self.name

    @property
    def code(self) -> str | None:
        """What it imports and calls that is not of this package, as file or module and function."""
        return str(self.options.get("function", "")) if self.name == "python" else None


def _count(name: str, default: int, about: str, *, low: int = 0, high: int = 8) -> Knob:
    return Knob(name=name, kind=KnobKind.COUNT, default=default, about=about, low=low, high=high)


_KEEP = _count("keep_last", 2, "tool responses that stay", high=6)
_MIN_TOKENS = _count("min_tokens", 0, "shorter messages stay", high=200)
_HEAD = _count("keep_head", 0, "first tokens of a dropped message that stay", high=64)
_EVERY = _count("repos_every", 1, "drops between two repos; each repos moves all rows behind them", low=1)
_REPOS = Knob(name="repos", kind=KnobKind.FLAG, default=True, about="re-pack positions after drops")
_SCOPE = Knob(
    name="scope",
    kind=KnobKind.CHOICE,
    default="calls",
    choices=("calls", "thoughts"),
    about="what reasoning is: turns that call a tool, or only the thinking and prose in them",
)
_KEEP_CALLS = _count("keep_reasoning", 1, "turns whose reasoning stays", high=6)
_TRIGGER = _count("above", 3072, "active tokens from which on it acts", low=64, high=6144)

POLICIES: Mapping[str, PolicyKind] = {
    kind.name: kind
    for kind in (
        PolicyKind("full", "keep everything"),
        PolicyKind(
            "rolling_drop",
            "drop the KV of all but the last tool responses; later positions keep their holes",
            (_KEEP, _MIN_TOKENS, _HEAD),
        ),
        PolicyKind(
            "rolling_drop_repos",
            "drop the KV of all but the last tool responses, and re-pack positions",
            (_KEEP, _EVERY, _MIN_TOKENS, _HEAD),
        ),
        PolicyKind(
            "drop_reasoning",
            "drop the KV of the assistant's reasoning in all but the last turns that called a tool",
            (_KEEP_CALLS, _SCOPE, _REPOS, _EVERY, _MIN_TOKENS),
        ),
        PolicyKind(
            "drop_both",
            "drop the KV of old tool responses and of old reasoning",
            (_KEEP, _KEEP_CALLS, _SCOPE, _REPOS, _EVERY, _MIN_TOKENS),
        ),
        PolicyKind(
            "summarise",
            "above a threshold, let the model write a summary, and prefill that and the last messages anew",
            (
                _TRIGGER,
                _count("keep_last", 4, "messages that stay as they are", low=1, high=12),
                _count("max_tokens", 160, "longest summary", low=16, high=512),
            ),
        ),
        PolicyKind(
            "trim",
            "replace the text of all but the last tool responses by a stub, and prefill what follows anew",
            (_KEEP, _MIN_TOKENS),
        ),
        PolicyKind(
            "agent",
            "offer the model tools that list and drop spans of its own cache",
            (
                _count("every", 2, "tool responses between two offers", low=1),
                _count("max_calls", 2, "calls in one offer", low=1, high=4),
                _REPOS,
            ),
        ),
        PolicyKind(
            "python",
            "ask a function of yours",
            (
                Knob(
                    name="function",
                    kind=KnobKind.TEXT,
                    default="",
                    about="package.module:function or file.py:function, as it is when a turn begins",
                ),
            ),
        ),
    )
}
"""Every policy that can be named, by name."""


def parse_policy(text: str) -> PolicySpec:
    """Read ``name`` or ``name(knob=value, ...)``.

    Raises
    ------
    PolicyTextError
        When there is no such policy or knob, or a value means nothing.
    """
    match = _FORM.fullmatch(text)
    kind = POLICIES.get(match["name"]) if match else None
    if match is None or kind is None:
        raise PolicyTextError(
            f"unknown cache policy {text!r}", next_step="choose one of " + ", ".join(POLICIES)
        )
    knobs = {knob.name: knob for knob in kind.knobs}
    options: dict[str, Value] = {}
    for part in (match["options"] or "").split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not name and not equals:
            continue
        if name not in knobs or not equals:
            known = ", ".join(knobs) or "none"
            raise PolicyTextError(f"{kind.name} has no knob {name!r}", next_step=f"its knobs: {known}")
        options[name] = knobs[name].read(value)
    return PolicySpec(kind.name, options)


def parse_policies(text: str) -> tuple[PolicySpec, ...]:
    """Read policies with commas between them; commas in brackets belong to a policy."""
    parts = re.findall(r"(?:[^,(]|\([^)]*\)?)+", text)
    return tuple(parse_policy(part) for part in parts if part.strip())
