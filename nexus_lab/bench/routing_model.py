"""What needs a generator to be measured: the model as the router of its own tools, and a cache that is full.

``concat_all`` is what an agent does without a router: the schemas of all tools stand in the prompt, and the
model writes the name of one of them, under a mask that lets it write nothing else. It is slow, so it is asked
a fixed part of the requests; what it said is kept, and a run that was stopped goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.name_scores import CALL_OPENING, json_name
from nexus_lab.agent.transcript import Transcript, join_tokens
from nexus_lab.arguments import ToolNameTrie, tool_text
from nexus_lab.bench.base import Result, insist_positive, median_interval, proportion
from nexus_lab.bench.routing_rows import right_tools
from nexus_lab.bench.sweep import Finished, Journal
from nexus_lab.paths import cache_dir
from nexus_lab.routing.scoring import tools_by_key
from nexus_lab.routing.training_rows import share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nexus_lab.engine import Engine
    from nexus_lab.registry import Registry
    from nexus_lab.routing import Router

    Row = dict[str, Any]
    Progress = Callable[[str, float], None]

__all__ = ["SYSTEM", "Generator", "concat_all", "depths"]

SYSTEM = "concat_all"
_TOLD = (
    "You have these tools:\n\n{tools}\n\nAnswer every request with one JSON object: the name of the one tool "
    "that does what is asked, and its arguments."
)
_LONGEST_NAME = 64
_FILLER = "Then the conversation went on about other things, and nothing of it was a request. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """The model and what it is asked.

    Attributes
    ----------
    engine
        Its context is what a prompt must fit into.
    queries
        Requests that it chooses tools for, the first by a hash of their text.
    kv_tokens
        Tokens in its KV cache while the router decides.
    work
        Folder of what it said; the package's cache by default.
    resume
        Take up what an earlier run heard.
    """

    engine: Engine
    queries: int = 40
    kv_tokens: Sequence[int] = ()
    work: Path | None = None
    resume: bool = True
    told: dict[str, Any] = field(default_factory=dict)

    def measure(self, router: Router, rows: Sequence[Row], tell: Progress) -> list[Result]:
        """Return the figures over the registry of `router`; what they rest on goes to `told`."""
        insist_positive(queries=self.queries)
        results, told = concat_all(self, router.registry, _chosen(rows, self.queries), tell)
        self.told[str(len(router.registry))] = told
        if self.kv_tokens:
            results += depths(self.engine, router, _chosen(rows, self.queries), self.kv_tokens)
        return results


def concat_all(
    generator: Generator, registry: Registry, rows: Sequence[Row], tell: Progress
) -> tuple[list[Result], dict[str, Any]]:
    """Let the model choose among all tools of `registry`.

    Returns
    -------
    results
        ``prompt_tokens`` (of the longest prompt) and, where that fits into the context, ``top1`` and the
        milliseconds of a choice behind the schemas, which are computed once.
    told
        Tokens, context, and whether they fit, for the settings.
    """
    engine = generator.engine
    tools = tools_by_key(registry)
    shown = "\n".join(tool_text(tool, mode="full") for tool in tools.values())
    prompts = [_prompt(engine, shown, row) for row in rows]
    case = {"n_tools": len(registry), "system": SYSTEM}
    longest = max(len(prompt) for prompt in prompts)
    told = {
        "model": engine.info.name,
        "queries": len(rows),
        "prompt_tokens": longest,
        "context_tokens": engine.n_ctx,
        "trained_tokens": engine.info.n_ctx_train,
        "fits": longest + _LONGEST_NAME <= min(engine.n_ctx, engine.info.n_ctx_train),
    }
    results = [Result(case=case, metric="prompt_tokens", value=longest, n=len(rows), unit="tokens")]
    if not told["fits"]:
        return results, told
    said = _said(generator, registry, list(zip(rows, prompts, strict=True)), tell)
    right = sum(one["tool"] in right_tools(row, registry) for row, one in zip(rows, said, strict=True))
    results.append(proportion(right, len(rows), case=case, metric="top1"))
    times = [one["ms"] for one in said[1:]] or [one["ms"] for one in said]
    results.append(median_interval(times, case={**case, "stage": "all"}, metric="median_ms", unit="ms"))
    return results, told


def depths(engine: Engine, router: Router, rows: Sequence[Row], kv_tokens: Sequence[int]) -> list[Result]:
    """Route with so many tokens in the KV cache of the model.

    Returns
    -------
    results
        ``median_ms`` of a decision, and ``same_decision``: the share whose tool, margin and outcome are those
        with an empty cache.
    """
    size = len(router.registry)
    before = [router.route(row["query"], row.get("context") or ()) for row in rows]
    results = []
    filler = engine.tokenize(_FILLER, special=False)
    for tokens in kv_tokens:
        case = {"n_tools": size, "system": "full", "kv_tokens": tokens}
        with engine.scratch_sequence() as seq:
            if tokens:
                whole = (filler * (tokens // len(filler) + 1))[:tokens]
                engine.prefill(seq, whole, logits="none")
            found = [router.route(row["query"], row.get("context") or ()) for row in rows]
            held = engine.used_cells()
        same = sum(
            (one.tool, one.margin, one.outcome) == (other.tool, other.margin, other.outcome)
            for one, other in zip(found, before, strict=True)
        )
        results.append(proportion(same, len(rows), case=case, metric="same_decision"))
        results.append(Result(case=case, metric="used_cells", value=held, unit="cells"))
        times = [one.total_ms for one in found]
        results.append(median_interval(times, case=case, metric="median_ms", unit="ms"))
    return results


def _chosen(rows: Sequence[Row], count: int) -> list[Row]:
    return sorted(rows, key=lambda row: share_of(row["query"]))[:count]


def _prompt(engine: Engine, tools: str, row: Row) -> tuple[int, ...]:
    """Return the tokens of the whole prompt, up to where a tool's name is written."""
    transcript = Transcript(engine, system=_TOLD.format(tools=tools))
    pieces = transcript.open()
    for turn in row.get("context") or ():
        if isinstance(turn.get("content"), str) and turn.get("role") in ("user", "assistant", "tool"):
            pieces += transcript.message(turn["role"], turn["content"])
    pieces += [*transcript.user(row["query"]), *transcript.open_reply()]
    return (*join_tokens(pieces), *engine.tokenize(CALL_OPENING, special=False))


def _said(
    generator: Generator, registry: Registry, asked: Sequence[tuple[Row, tuple[int, ...]]], tell: Progress
) -> list[dict[str, Any]]:
    """Return what the model says to each request: ``tool`` and ``ms``."""
    engine = generator.engine
    names = {json_name(key): key for key in tools_by_key(registry)}
    trie = ToolNameTrie(names, engine.vocabulary.all_token_bytes)
    over = (engine.info.fingerprint, registry.fingerprint)
    folder = generator.work or cache_dir() / "routing" / _digest(*over)
    said: list[dict[str, Any]] = []
    with Journal(folder) as journal, engine.scratch_sequence() as seq:
        held: tuple[int, ...] = ()
        for number, (_, prompt) in enumerate(asked):
            tell(f"the model among {len(registry)} tools", number / len(asked))
            key = _digest(*over, json.dumps(prompt))
            known = journal.finished.get(key) if generator.resume else None
            if known is None:
                started = time.perf_counter()
                written = _written(engine, seq, prompt, held, trie)
                held = prompt
                spent = time.perf_counter() - started
                known = Finished([{"tool": names.get(written or ""), "ms": 1000 * spent}], spent)
                journal.add(key, known)
            said += known.rows
    return said


def _written(
    engine: Engine, seq: int, prompt: tuple[int, ...], held: tuple[int, ...], trie: ToolNameTrie
) -> str | None:
    """Return the name that the model writes behind `prompt`; `held` is the prompt before it."""
    shared = next(
        (place for place, pair in enumerate(zip(prompt, held, strict=False)) if pair[0] != pair[1]),
        min(len(prompt), len(held)),
    )
    shared = min(shared, len(prompt) - 1)
    engine.remove(seq, shared)
    logits = engine.prefill(seq, prompt[shared:])
    if logits is None:
        return None
    mask = trie.start()
    engine.generate(seq, logits, max_tokens=_LONGEST_NAME, mask=mask, decode_last=False)
    return mask.name


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
