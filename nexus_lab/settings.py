"""Named profiles: every knob a turn runs with, checked when it is set."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from nexus_lab.errors import NexusError
from nexus_lab.paths import atomic_write, config_dir
from nexus_lab.policy_text import PolicyTextError, parse_policy

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Profile", "SettingsError", "list_profiles", "load_profile", "save_profile"]

_CURVE = "R(n_past) = r_base + (n_past - m) / (m (k - 1)) * (1 - r_base)"
_DAY_S = 86_400
_SPLICE_MODE = re.compile(r"splice\((exact|fixed|bounded\((?P<epsilon>[0-9.eE+-]+)\)|paper)\)")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class SettingsError(NexusError):
    """A setting has a value that means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The knobs of a session.

    Attributes
    ----------
    name
        Name under which the profile is stored.
    k
        Multiple of `m` at which the repair curve reaches 100 %; must exceed 1.
    m
        Splice threshold in tokens (the source paper's M).
    r_base
        Fraction of a block that is always repaired, in [0, 1].
    tau
        Margin under which a routing decision escalates; ``None`` takes the calibrated value.
    top_k
        Candidates kept per decision, and rows of the table.
    sidecar
        ``off``, or ``escalated``, which lets the model try the candidates of a decision that was too close,
        each in a sequence of its own, and confirm or change it; `nexus-lab eval sidecar` tells what it is
        worth.
    schema_mode
        What the model sees of the routed tool: ``signature``, ``full``, ``splice(exact)``,
        ``splice(bounded(EPSILON))``, ``splice(paper)`` or ``splice(fixed)``.
    repair
        Repair strategy of ``splice(fixed)``: ``leading``, ``carried``, ``trailing``, ``profile``, ``none``,
        ``full``, or ``scattered``, which is a negative control.
    repair_budget
        Fraction of the block that ``leading``, ``carried``, ``profile`` and ``scattered`` recompute, in
        [0, 1].
    policy
        Cache policy between turns, with knobs where they differ from its defaults, such as ``full`` or
        ``rolling_drop_repos(repos_every=3)``; `nexus-lab policies` lists them.
    keep_responses
        Tool responses that a rolling drop or a trim keeps, where the policy's text does not say.
    repos
        Re-pack positions after a ``rolling_drop``.
    shadow
        Run the full prefill beside a splice, to measure it. Never part of a reported TTFT.
    seed
        Seed of sampling.
    temperature
        0 takes the most likely token.
    max_tokens
        Longest call that the model may write, in tokens.
    answer_tokens
        Longest answer, in tokens.
    max_calls
        Most tools that one request calls, one after the other; 1 leaves every request whole.
    turn_seconds
        Seconds after which a turn is ended; ``None`` lets it take what it takes.
    threads
        Threads for llama.cpp and torch; ``None`` takes the physical cores.
    """

    name: str = "default"
    k: float = 4.0
    m: int = 256
    r_base: float = 0.05
    tau: float | None = None
    top_k: int = 3
    sidecar: str = "off"
    schema_mode: str = "signature"
    repair: str = "leading"
    repair_budget: float = 0.25
    policy: str = "full"
    keep_responses: int = 2
    repos: bool = True
    shadow: bool = False
    seed: int = 0
    temperature: float = 0.0
    max_tokens: int = 192
    answer_tokens: int = 96
    max_calls: int = 4
    turn_seconds: float | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        for check in (
            _check_name,
            _check_curve,
            _check_routing,
            _check_splice,
            _check_cache,
            _check_decoding,
        ):
            check(self)

    def changed(self, **values: Any) -> Profile:
        """Return a copy with `values` replaced, checked again."""
        unknown = sorted(set(values) - {field.name for field in fields(self)})
        if unknown:
            raise SettingsError(
                f"unknown setting {unknown[0]!r}",
                next_step="choose one of " + ", ".join(field.name for field in fields(self)),
            )
        return replace(self, **values)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return asdict(self)


def _require(condition: bool, problem: str, next_step: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise SettingsError(problem, next_step=next_step)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_name(profile: Profile) -> None:
    _require(
        isinstance(profile.name, str) and _NAME.fullmatch(profile.name) is not None,
        f"{profile.name!r} cannot name a profile",
        "use up to 64 letters, digits, '.', '_' or '-'",
    )


def _check_curve(profile: Profile) -> None:
    _require(
        _is_number(profile.k) and profile.k > 1,
        f"k = {profile.k!r} leaves the repair curve undefined: {_CURVE}",
        "choose k > 1; repair reaches 100 % at depth k * m",
    )
    _require(
        _is_count(profile.m, least=1),
        f"m = {profile.m!r} is no splice threshold: {_CURVE}",
        "choose a whole number of tokens of at least 1 (the source paper uses 256)",
    )
    _require(
        _is_number(profile.r_base) and 0 <= profile.r_base <= 1,
        f"r_base = {profile.r_base!r} is no fraction: {_CURVE}",
        "choose a value from 0 to 1 (the source paper uses 0.05)",
    )


def _check_routing(profile: Profile) -> None:
    _require(
        profile.tau is None or (_is_number(profile.tau) and profile.tau >= 0),
        f"tau = {profile.tau!r} is no margin",
        "choose a value of at least 0, or none for the calibrated one",
    )
    _require(_is_count(profile.top_k, least=1), f"top_k = {profile.top_k!r}", "choose at least 1")
    _require(
        profile.sidecar in ("off", "escalated"), f"sidecar = {profile.sidecar!r}", "choose off or escalated"
    )


def _check_splice(profile: Profile) -> None:
    match = _SPLICE_MODE.fullmatch(str(profile.schema_mode))
    _require(
        profile.schema_mode in ("signature", "full") or match is not None,
        f"unknown schema mode {profile.schema_mode!r}",
        "choose signature, full, splice(exact), splice(bounded(0.02)), splice(paper) or splice(fixed)",
    )
    if match is not None and match["epsilon"] is not None:
        _require(
            _positive_number(match["epsilon"]),
            f"epsilon {match['epsilon']!r} in {profile.schema_mode!r} is no bound",
            "choose a D_KL bound in nats above 0",
        )
    _require(
        profile.repair in ("leading", "carried", "trailing", "profile", "scattered", "none", "full"),
        f"unknown repair strategy {profile.repair!r}",
        "choose leading, carried, trailing, profile, none, full or scattered",
    )
    _require(
        _is_number(profile.repair_budget) and 0 <= profile.repair_budget <= 1,
        f"repair_budget = {profile.repair_budget!r} is no fraction",
        "choose a value from 0 to 1",
    )


def _positive_number(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and value > 0


def _check_cache(profile: Profile) -> None:
    for name in ("repos", "shadow"):
        value = getattr(profile, name)
        _require(isinstance(value, bool), f"{name} = {value!r} is neither yes nor no", "choose yes or no")
    try:
        parse_policy(str(profile.policy))
    except PolicyTextError as error:
        raise SettingsError(error.problem, next_step=error.next_step) from error
    _require(
        _is_count(profile.keep_responses, least=0),
        f"keep_responses = {profile.keep_responses!r}",
        "choose a whole number of at least 0",
    )


def _check_decoding(profile: Profile) -> None:
    _require(
        _is_number(profile.temperature) and profile.temperature >= 0,
        f"temperature = {profile.temperature!r}",
        "choose 0 (most likely token) or more",
    )
    _require(
        _is_count(profile.max_tokens, least=1), f"max_tokens = {profile.max_tokens!r}", "choose at least 1"
    )
    _require(
        _is_count(profile.answer_tokens, least=1),
        f"answer_tokens = {profile.answer_tokens!r}",
        "choose at least 1",
    )
    _require(_is_count(profile.max_calls, least=1), f"max_calls = {profile.max_calls!r}", "choose at least 1")
    _require(
        profile.turn_seconds is None
        or (_is_number(profile.turn_seconds) and 0 < profile.turn_seconds <= _DAY_S),
        f"turn_seconds = {profile.turn_seconds!r}",
        "choose seconds above 0 and up to a day, or none for no limit",
    )
    _require(
        _is_count(profile.seed, least=0), f"seed = {profile.seed!r}", "choose a whole number of at least 0"
    )
    _require(
        profile.threads is None or _is_count(profile.threads, least=1),
        f"threads = {profile.threads!r}",
        "choose at least 1, or none for the physical cores",
    )


def _profile_path(name: str) -> Path:
    _require(
        _NAME.fullmatch(name) is not None, f"{name!r} cannot name a profile", "use letters, digits, . _ -"
    )
    return config_dir() / "profiles" / f"{name}.json"


def save_profile(profile: Profile) -> Path:
    """Store `profile` under its name and return the file."""
    path = _profile_path(profile.name)
    atomic_write(path, (json.dumps(profile.to_dict(), indent=2) + "\n").encode())
    return path


def load_profile(name: str = "default") -> Profile:
    """Read the profile `name`; ``default`` exists even when it was never saved.

    Raises
    ------
    SettingsError
        When there is no such profile, or the file is not one.
    """
    path = _profile_path(name)
    if not path.exists():
        if name == "default":
            return Profile()
        known = ", ".join(sorted({"default", *list_profiles()}))
        raise SettingsError(f"no profile {name!r}", next_step=f"known profiles: {known}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Profile().changed(**{**values, "name": name})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(
            f"profile {path} cannot be read: {error}", next_step="mend the file, or delete it"
        ) from error


def list_profiles() -> list[str]:
    """Names of the stored profiles, sorted."""
    return sorted(path.stem for path in (config_dir() / "profiles").glob("*.json"))
