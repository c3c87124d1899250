"""What a splice sweep can vary: repairs, compile contexts and engine settings; and one task of its grid."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import ResultsError
from nexus_lab.engine import library_versions
from nexus_lab.splice import (
    SYSTEM_PROMPT,
    BlockContext,
    NoRepair,
    RepairKind,
    StrategyError,
    Trailing,
    TrialCase,
    prompt_tokens,
    strategy,
    typical_context,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from nexus_lab.engine import Engine
    from nexus_lab.splice import RepairStrategy, ToolBlock

__all__ = [
    "DEFAULT_CONTEXTS",
    "DEFAULT_DEPTHS",
    "DEFAULT_REPAIRS",
    "NO_REANCHOR",
    "OWN_CONTEXT",
    "EngineSettings",
    "Repair",
    "SpliceTask",
    "TaskKind",
    "compile_contexts",
    "known_context",
]

DEFAULT_DEPTHS = (256, 512, 1024, 2048)
DEFAULT_CONTEXTS = ("none", "system", "consensus")
OWN_CONTEXT = "own"
"""The consensus of real conversations, other ones than those spliced behind."""
NO_REANCHOR = "no_reanchor"
"""An experiment, not a strategy: the rows are written as they were compiled, their keys not rotated."""

_ROW_FORMAT = 2
_PLANNED = 100
_HISTORY_TOKENS = 64
# The prefixes that blocks are put behind, and the history that they are compiled behind, share no turn.
_HISTORY_SEED = 900


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair to measure; a budget of ``None`` leaves it to the strategy, for ``trailing`` to its curve."""

    strategy: str
    budget: float | None = None

    @classmethod
    def parse(cls, text: str) -> Repair:
        """Read ``none``, ``full``, ``no_reanchor``, ``leading:0.25``, ``trailing:R`` and the like.

        Raises
        ------
        ResultsError
            When there is no such strategy, or the budget is no fraction.
        """
        name, _, budget = text.strip().partition(":")
        try:
            found = cls(name, None if budget in {"", "R"} else float(budget))
            found.make().plan(_PLANNED, 256, found.budget, sensitivity=np.zeros(_PLANNED, np.float32))
        except (ValueError, StrategyError) as error:
            raise ResultsError(
                f"no repair {text!r}: {getattr(error, 'problem', error)}",
                next_step="write a strategy and a fraction, such as leading:0.25, trailing:R, none or full",
            ) from error
        return found

    @property
    def label(self) -> float | str:
        """The budget as a result names it."""
        if self.budget is not None:
            return self.budget
        if self.strategy == "trailing":
            return f"R(k={Trailing().k:g})"
        return {"none": 0.0, "full": 1.0, NO_REANCHOR: 0.0}.get(self.strategy, "default")

    @property
    def text(self) -> str:
        """The repair as `parse` reads it."""
        if self.budget is not None:
            return f"{self.strategy}:{self.budget:g}"
        return f"{self.strategy}:R" if self.strategy == "trailing" else self.strategy

    def runs_on(self, block: ToolBlock) -> bool:
        """Whether the block has what the strategy needs: for ``profile`` a profile."""
        return self.strategy != RepairKind.PROFILE or block.sensitivity is not None

    def make(self) -> RepairStrategy:
        """Return the strategy; that of the experiment recomputes nothing."""
        return NoRepair() if self.strategy == NO_REANCHOR else strategy(self.strategy)


_DEFAULT = (
    "none",
    "leading:0.25",
    "carried:0.25",
    "trailing:0.25",
    "trailing:R",
    "profile:0.25",
    "scattered:0.25",
    "full",
)
DEFAULT_REPAIRS = tuple(map(Repair.parse, _DEFAULT))


def _system(engine: Engine, system: str) -> BlockContext:
    message = {"role": "system", "content": system}
    return BlockContext.of(engine.tokenize(engine.render_chat([message], add_generation_prompt=False)))


def _history(engine: Engine, system: str, n_tokens: int = _HISTORY_TOKENS) -> BlockContext:
    return BlockContext.of(prompt_tokens(engine, n_tokens, seed=_HISTORY_SEED, system=system))


_CONTEXTS: Mapping[str, Callable[[Engine, str], BlockContext]] = {
    "none": lambda _engine, _prompt: BlockContext(),
    "system": _system,
    "history": _history,
    "typical": lambda engine, system: typical_context(
        engine, system=system, conversations=(), consensus=False
    ),
    "consensus": lambda engine, system: typical_context(engine, system=system, conversations=()),
}


def known_context(name: str) -> str:
    """Return `name`, when it is a compile context.

    Raises
    ------
    ResultsError
        When it is none.
    """
    kind, _, size = name.partition(":")
    if name not in {*_CONTEXTS, OWN_CONTEXT} and not (
        kind == "history" and size.isdecimal() and int(size) > 0
    ):
        raise ResultsError(
            f"no compile context {name!r}",
            next_step=f"choose among {', '.join(_CONTEXTS)}, own, history:TOKENS",
        )
    return name


def compile_contexts(
    engine: Engine, name: str, system: str = SYSTEM_PROMPT, own: BlockContext | None = None
) -> BlockContext:
    """Return what a block is compiled behind under a name.

    ``none`` is the start of a context, ``system`` the chat template's system prompt, ``history`` 64 tokens
    of a sample conversation, ``history:N`` as many as it says; ``typical`` is the first of several
    sample conversations, with a profile from the others, and ``consensus`` the mean over all of them.
    ``own`` is `own`: the mean over real conversations.

    Raises
    ------
    ResultsError
        When there is no such context, or no real conversations for ``own``.
    """
    if name == OWN_CONTEXT:
        if own is None:
            raise ResultsError(
                "no conversations of your own to compile behind",
                next_step="give --trajectories with at least two of them",
            )
        return own
    kind, _, size = known_context(name).partition(":")
    return _history(engine, system, int(size)) if size else _CONTEXTS[kind](engine, system)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine of a task is loaded; a process keeps the engine of its last task.

    Attributes
    ----------
    model, adapter
        What is loaded, as the user named it; no adapter is an empty text.
    sha256, adapter_sha256
        Digests of these files.
    """

    model: str
    sha256: str
    n_ctx: int
    flash_attention: bool = False
    threads: int = 1
    adapter: str = ""
    adapter_sha256: str = ""

    @classmethod
    def of(cls, engine: Engine, model: str | Path, *, n_ctx: int) -> EngineSettings:
        """Return how an engine such as `engine` is loaded with another context, in one thread."""
        adapter = engine.info.adapter
        return cls(
            model=str(model),
            sha256=engine.info.sha256,
            n_ctx=n_ctx,
            flash_attention=engine.schedule.flash_attention,
            adapter="" if adapter is None else str(adapter.path),
            adapter_sha256="" if adapter is None else adapter.sha256,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What determines the rows of a task; digests stand for files, one of an adapter only if it runs."""
        found = asdict(self)
        del found["model"], found["adapter"]
        if not self.adapter_sha256:
            del found["adapter_sha256"]
        return found


@cache
def _versions() -> dict[str, str]:
    return library_versions()


class TaskKind(StrEnum):
    """What a task measures.

    ``cells``: every repair of a block behind a growing prefix. ``anchored``: the block behind the tokens it
    was compiled behind. ``speed``: the clock, with nothing beside it. ``passes``: the clock of one pass over
    scattered tokens, likewise. ``proxy``: the K-variance proxy beside the true drift.
    """

    CELLS = "cells"
    ANCHORED = "anchored"
    SPEED = "speed"
    PASSES = "passes"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpliceTask:
    """One block behind one prefix, over all depths.

    Attributes
    ----------
    kind
        What is measured.
    engine
        How the engine is loaded.
    folder
        Where compiled blocks are kept.
    server
        Server of the tool.
    case
        Tokens of block, rest and forced answer.
    prefix_name, prefix
        The live prefix up to the largest depth.
    depths, repairs, contexts
        The grid, depths rising.
    decisions
        Repairs for which the call that the model decides on is compared.
    grammar
        Grammar of that call; empty when there is none.
    attention
        Compare attention rows as well.
    continuation
        Compare what the model would say next by itself as well.
    repeats
        Rounds of the clock.
    system
        System prompt of the compile contexts.
    own
        What ``own`` stands for among the contexts.
    ending
        The last tokens of the live prefix at every depth: what ends a message.
    """

    kind: TaskKind
    engine: EngineSettings
    folder: str
    server: str
    case: TrialCase
    prefix_name: str
    prefix: tuple[int, ...]
    depths: tuple[int, ...]
    repairs: tuple[Repair, ...] = ()
    contexts: tuple[str, ...] = ()
    decisions: tuple[Repair, ...] = ()
    grammar: str = ""
    attention: bool = False
    continuation: bool = True
    repeats: int = 1
    system: str = SYSTEM_PROMPT
    own: BlockContext | None = None
    ending: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """Digest of everything that determines the rows, in hex."""
        facts: dict[str, Any] = asdict(self)
        del facts["folder"]
        facts["engine"], facts["row_format"] = self.engine.facts, _ROW_FORMAT
        facts["versions"] = _versions()
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def alone(self) -> bool:
        """Whether nothing may run beside it."""
        return self.kind in {TaskKind.SPEED, TaskKind.PASSES}

    @property
    def common(self) -> dict[str, Any]:
        """What every row of the task begins with."""
        return {
            "kind": self.kind.value,
            "tool": self.case.name,
            "server": self.server,
            "prefix": self.prefix_name,
            "n_tokens": len(self.case.block),
        }
