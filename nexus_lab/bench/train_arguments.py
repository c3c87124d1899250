"""Training an adapter for arguments on one's own tools: `nexus-lab train-arguments`.

Rows are the prompts that the agent's own writing makes, so what the adapter learns is what it is asked.
Before and after it llama.cpp and transformers are held against each other on the same prompt: weights that
are read wrongly, or an adapter that is written wrongly, end the training with an error.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.arguments.base import ArgumentsError
from nexus_lab.arguments.tune_adapter import (
    AdapterRecipe,
    AnswerRow,
    adapted,
    load_weights,
    logits_of,
    pairs_of,
    rates,
    require_extra,
    tune_adapter,
)
from nexus_lab.bench.argument_cases import hashed
from nexus_lab.bench.argument_exercises import answer_text
from nexus_lab.bench.argument_prompt import call_prompt
from nexus_lab.bench.argument_scoring import CallScorer
from nexus_lab.bench.argument_swaps import known_names, swapped
from nexus_lab.bench.argument_word import fit_word
from nexus_lab.engine import Engine, resolve_model
from nexus_lab.engine.adapter_writing import check_trainable, write_adapter
from nexus_lab.engine.gguf_file import read_gguf
from nexus_lab.paths import home
from nexus_lab.routing.weights import Trained, write_with_card

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nexus_lab.agent.transcript import ChatModel
    from nexus_lab.arguments.scoring import Scoring
    from nexus_lab.arguments.tune_adapter import Rates, Tuned
    from nexus_lab.bench.argument_exercises import Exercise
    from nexus_lab.engine.gguf_file import GgufFile

    Progress = Callable[[str, float], None]

__all__ = ["NAME", "Disagreement", "Trained", "answer_row", "train_arguments"]

NAME = "arguments"
_HELD = 0.15
_MOST_HELD, _MOST_JUDGED, _MOST_APART = 100, 24, 40
_ROUNDS = 4
_LONGEST = 1024
# Nats between the next tokens of two runs of the same weights; quantized ones differ by some hundredths.
_MOST_NATS = 0.5


class Disagreement(ArgumentsError):
    """llama.cpp and transformers do not compute the same with what should be the same weights."""


@dataclass(frozen=True, slots=True)
class _Lists:
    """What is learned from, in rounds, what the adapter is judged by, and what is kept apart from both.

    Attributes
    ----------
    unseen
        What is held back, as it was.
    """

    rounds: list[list[AnswerRow]]
    held: list[AnswerRow]
    apart: list[AnswerRow]
    unseen: list[Exercise]


def train_arguments(
    exercises: Sequence[Exercise],
    *,
    apart: Sequence[Exercise] = (),
    model: str | Path = "bundled",
    folder: Path | None = None,
    recipe: AdapterRecipe | None = None,
    mode: str = "signature",
    swaps: bool = True,
    threads: int | None = None,
    sources: Mapping[str, str] | None = None,
    command: str = "",
    on_progress: Progress | None = None,
) -> Trained:
    """Train an adapter, and write it with its card; each one that did better on the way is written as well.

    Parameters
    ----------
    exercises
        What it learns from; some, by a hash of their groups, are held back: they say when it is at its best,
        and how much its word then counts beside the evidence of a conversation.
    apart
        What is not learned from, for the rates on the card.
    model
        As `Engine.load` takes it; a llama or qwen model of matrices that transformers can read.
    folder
        Where the adapter goes; ``None`` takes one in the package's data folder.
    mode
        What the model sees of a tool: ``signature`` or ``full``.
    swaps
        Whether rounds after the first tell of other names and numbers.
    threads
        Of the training.
    sources
        For the card: files and their SHA-256.
    command
        For the card.

    Raises
    ------
    Extra
        When peft or gguf is not installed.
    UnsupportedModel
        When no adapter can be written for the model.
    Disagreement
        When llama.cpp and transformers differ.
    ArgumentsError
        When there is too little to learn from, or nothing was learned.
    """
    require_extra()
    tell = on_progress or (lambda _what, _done: None)
    recipe = recipe or AdapterRecipe()
    gguf = read_gguf(resolve_model(model))
    check_trainable(gguf)
    with Engine.load(model, n_ctx=_LONGEST, threads=threads) as engine:
        lists = _lists(engine, exercises, apart, mode, swaps=swaps, seed=recipe.seed)
        probe = _probe(lists)
        plain = _engine_logits(engine, probe)
    tell("reading the weights", 0.0)
    tuned = _adapted(gguf, recipe, threads)
    draft = _Draft(folder or home() / "adapters", tuned, gguf, recipe)
    draft.facts |= _facts(recipe, lists, gguf, mode) | {"files": dict(sources or {}), "command": command}
    distances = {"without": _checked(plain, tuned, probe, "the weights")}
    shares = {"without": _rounded(rates(tuned, lists.apart))}
    draft.facts |= {"nats_from_llama_cpp": distances, "rows_kept_apart": shares}
    done = tune_adapter(tuned, lists.rounds, lists.held, recipe, tell, checkpoint=draft.keep)
    if done.best == 0:
        raise ArgumentsError(
            f"nothing was learned: the loss on the held rows went {done.held}",
            next_step="give more cases, or more minutes",
        )
    trained = draft.write(done)
    try:
        tell("reading the rows kept apart", 1.0)
        shares["with"] = _rounded(rates(tuned, lists.apart))
        with Engine.load(model, n_ctx=2 * _LONGEST, threads=threads, adapter=trained.path) as engine:
            distances["with"] = _checked(_engine_logits(engine, probe), tuned, probe, "the adapter")
            tell("weighing calls with the adapter", 1.0)
            scoring = fit_word(lists.unseen, CallScorer(engine, mode=mode))
    except KeyboardInterrupt:
        return trained
    except Disagreement:
        draft.take_back(trained.path)
        raise
    return draft.write(done, scoring)


class _Draft:
    """An adapter in the making: its model, and what is known of it so far."""

    def __init__(self, folder: Path, tuned: Any, gguf: GgufFile, recipe: AdapterRecipe) -> None:
        self._folder, self._tuned, self._gguf, self._alpha = folder, tuned, gguf, recipe.alpha
        self.facts: dict[str, Any] = {}

    def keep(self, done: Tuned) -> None:
        """Write it as it is now."""
        self.write(done)

    def write(self, done: Tuned, scoring: Scoring | None = None) -> Trained:
        """Write it and its card; a kill before that leaves the old ones in use."""
        card = {**self.facts, "done": asdict(done), "scoring": scoring and asdict(scoring)}
        self._folder.mkdir(parents=True, exist_ok=True)
        draft = self._folder / f".{NAME}.gguf"
        header = scoring.to_facts() if scoring is not None else {}
        try:
            pairs = pairs_of(self._tuned)
            write_adapter(draft, pairs, self._gguf, alpha=self._alpha, name=NAME, facts=header)
            data = draft.read_bytes()
        finally:
            draft.unlink(missing_ok=True)
        return write_with_card(self._folder, NAME, ".gguf", data, card)

    def take_back(self, path: Path) -> None:
        """Remove what was written."""
        self._card.unlink()
        path.unlink()

    @property
    def _card(self) -> Path:
        return self._folder / f"{NAME}.json"


def _adapted(gguf: GgufFile, recipe: AdapterRecipe, threads: int | None) -> Any:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    return adapted(load_weights(gguf.path), recipe)


def answer_row(model: ChatModel, exercise: Exercise, *, mode: str = "signature") -> AnswerRow:
    """Return an exercise as tokens: the prompt of the agent's own writing, and the arguments behind it."""
    prompt = call_prompt(model, exercise.tool, exercise.request, exercise.context, mode=mode)
    answer = model.tokenize(answer_text(exercise.answer), special=False)
    return AnswerRow((*prompt, *answer), len(prompt))


def _lists(
    engine: Engine,
    exercises: Sequence[Exercise],
    apart: Sequence[Exercise],
    mode: str,
    *,
    swaps: bool,
    seed: int,
) -> _Lists:
    ordered = sorted(exercises, key=lambda one: hashed(f"held {one.group}"))
    held = ordered[: min(_MOST_HELD, max(1, round(_HELD * len(ordered))))]
    groups = {one.group for one in held}
    learned = [one for one in ordered if one.group not in groups]
    chooser, names = np.random.default_rng(seed), known_names(learned)

    def rows(some: Sequence[Exercise]) -> list[AnswerRow]:
        return [row for one in some if len((row := answer_row(engine, one, mode=mode)).tokens) <= _LONGEST]

    more = range(_ROUNDS - 1 if swaps else 0)
    rounds = [rows(learned), *(rows([swapped(one, names, chooser) for one in learned]) for _ in more)]
    kept = sorted(apart, key=lambda one: hashed(f"apart {one.group} {one.request}"))[:_MOST_APART]
    unseen = [one for one in held if rows([one])]
    return _Lists(rounds, rows(unseen[:_MOST_JUDGED]), rows(kept), unseen)


def _probe(lists: _Lists) -> list[int]:
    """Return a prompt with its answer but for the last token."""
    rows = [*lists.held, *lists.apart, *lists.rounds[0]]
    if not rows:
        raise ArgumentsError(
            "there is nothing to learn from", next_step="give cases whose tools are in the registry"
        )
    return list(rows[0].tokens[:-1])


def _engine_logits(engine: Engine, tokens: Sequence[int]) -> NDArray[np.float32]:
    with engine.scratch_sequence() as seq:
        return np.asarray(engine.prefill(seq, tokens, logits="all"))


def _checked(theirs: NDArray[np.float32], tuned: Any, tokens: Sequence[int], what: str) -> float:
    """Return the mean D_KL of the next token between llama.cpp and transformers, in nats."""
    from scipy.special import log_softmax

    one, other = log_softmax(theirs, axis=1), log_softmax(logits_of(tuned, tokens), axis=1)
    nats = float((np.exp(one) * (one - other)).sum(axis=1).mean())
    if not nats <= _MOST_NATS:
        raise Disagreement(
            f"llama.cpp and transformers compute other things with {what}: {nats:.2f} nats apart",
            next_step="train on another model; this one has something that one of the two leaves out",
        )
    return round(nats, 5)


def _rounded(found: Rates) -> dict[str, Any]:
    return {"rows": found.rows, "loss": round(found.loss, 4), "answers": round(found.answers, 4)}


def _facts(recipe: AdapterRecipe, lists: _Lists, gguf: GgufFile, mode: str) -> dict[str, Any]:
    learned = json.dumps([row.tokens for rows in lists.rounds for row in rows]).encode()
    return {
        "name": NAME,
        "base": {"file": gguf.path.name, "license": gguf.metadata.get("general.license")},
        "learned_from": {
            "rows": len(lists.rounds[0]),
            "rounds": len(lists.rounds),
            "rows_held": len(lists.held),
            "sha256": hashlib.sha256(learned).hexdigest(),
            "shown": mode,
        },
        "recipe": asdict(recipe),
    }
