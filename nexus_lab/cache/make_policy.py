"""From the text that names a policy to the policy, a function of the user's own included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.cache.function_policy import FunctionPolicy
from nexus_lab.cache.ops import ProgramError
from nexus_lab.cache.policies import FullPolicy, RollingDropPolicy
from nexus_lab.cache.text_policies import SummarisePolicy, TrimPolicy
from nexus_lab.cache.tool_policy import ToolPolicy
from nexus_lab.cache.user_code import load_code
from nexus_lab.policy_text import PolicyTextError, parse_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nexus_lab.cache.base import Policy
    from nexus_lab.policy_text import PolicySpec

__all__ = ["FunctionPolicy", "make_policy"]


def make_policy(
    policy: str | PolicySpec, *, keep_last: int | None = None, repos: bool | None = None
) -> Policy:
    """Return the policy that a text names, such as ``rolling_drop_repos(keep_last=3,repos_every=2)``.

    A function of the user's is taken from its source as it is now, so that an edit counts from the next turn.

    Parameters
    ----------
    policy
        Its name and knobs; see `nexus_lab.policy_text.POLICIES`.
    keep_last, repos
        Settings of a session, for the rolling drops and the trim where the text does not say otherwise; with
        `repos` a ``rolling_drop`` re-packs positions.

    Raises
    ------
    ProgramError
        When there is no such policy, or no such function.
    """
    try:
        spec = parse_policy(policy) if isinstance(policy, str) else policy
    except PolicyTextError as error:
        raise ProgramError(error.problem, next_step=error.next_step) from error
    given: dict[str, Any] = dict(spec.options)
    if keep_last is not None and spec.name in {"rolling_drop", "rolling_drop_repos", "drop_both", "trim"}:
        given.setdefault("keep_last", keep_last)
    if spec.name == "rolling_drop":
        given["repos"] = bool(repos)
    if spec.name == "python":
        return _function(str(given.get("function", "")))
    build, defaults = _MADE_BY[spec.name]
    return build(**{**defaults, **given})


_MADE_BY: Mapping[str, tuple[Callable[..., Policy], Mapping[str, Any]]] = {
    "full": (FullPolicy, {}),
    "rolling_drop": (RollingDropPolicy, {}),
    "rolling_drop_repos": (RollingDropPolicy, {"repos": True}),
    "drop_reasoning": (RollingDropPolicy, {"keep_last": None, "keep_reasoning": 1}),
    "drop_both": (RollingDropPolicy, {"keep_reasoning": 1}),
    "summarise": (SummarisePolicy, {}),
    "trim": (TrimPolicy, {}),
    "agent": (ToolPolicy, {}),
}


def _function(where: str) -> FunctionPolicy:
    place, colon, name = where.rpartition(":")
    form = "name it as python(function=file.py:name) or python(function=package.module:name)"
    if not colon:
        raise ProgramError(f"{where!r} names no function", next_step=form)
    try:
        found = load_code(place, name)
    except (Exception, SystemExit) as error:  # a script may end itself
        raise ProgramError(
            f"{where} cannot be used: {type(error).__name__}: {error}", next_step=form
        ) from error
    if not callable(found.value):
        raise ProgramError(f"{where} is no function", next_step=form)
    return FunctionPolicy(found.value, where=where, digest=found.digest)
