"""Tuning a LoRA adapter on calls: the model's own weights stay, and only the answer's tokens count.

Low-rank pairs beside the matrices of each layer (Hu et al., 2021), by peft over transformers, on a CPU. The
loss is the cross-entropy of the answer's tokens, each row of a batch by its number of them.
"""

from __future__ import annotations

import logging
import time
import warnings
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.arguments.base import ArgumentsError
from nexus_lab.routing.tuning_rate import finite_step, halves_are_faster, rate_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Progress = Callable[[str, float], None]
    Pair = tuple[NDArray[np.float32], NDArray[np.float32]]

__all__ = [
    "AdapterRecipe",
    "AnswerRow",
    "Extra",
    "Rates",
    "Tuned",
    "adapted",
    "load_weights",
    "logits_of",
    "pairs_of",
    "rates",
    "require_extra",
    "tune_adapter",
]

_LOG = logging.getLogger(__name__)
_NEEDED = ("peft", "gguf", "accelerate")
_IGNORED = -100


class Extra(ArgumentsError):
    """A package that only the training needs is not installed."""


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """The tokens of a prompt and its answer.

    Attributes
    ----------
    start
        Where the answer begins.
    """

    tokens: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRecipe:
    """How an adapter is tuned.

    Attributes
    ----------
    rank
        Inner width of each pair.
    alpha
        Each pair is weighed by this over the rank.
    modules
        Matrices that get a pair, by their names in transformers.
    first_layer
        Layers below it get none, which saves the way back through them.
    rows
        Rows in a batch, of like length.
    learning_rate
        At its height; see `rate_share`.
    seconds, epochs
        Whichever is over first; an epoch is one round of rows.
    checks
        How often the held rows are read on the way; the adapter that does best on them is kept.
    """

    rank: int = 8
    alpha: int = 16
    modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    first_layer: int = 0
    rows: int = 4
    learning_rate: float = 1e-3
    dropout: float = 0.0
    seconds: float = 1500.0
    epochs: float = 3.0
    checks: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How well a model writes the answers of some rows, each token behind the right ones before it.

    Attributes
    ----------
    loss
        Nats per token of an answer.
    answers
        Share of the rows whose every token is the likeliest.
    """

    rows: int
    loss: float
    answers: float


@dataclass(slots=True, kw_only=True)
class Tuned:
    """What was done, while it goes on and in the end.

    Attributes
    ----------
    held
        Loss on the held rows at each check, the first before anything was learned.
    best
        Number of the check whose adapter is kept.
    finished
        ``False`` where Ctrl-C ended it.
    halves
        Whether activations were bfloat16.
    """

    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    held: list[float] = field(default_factory=list)
    best: int = 0
    finished: bool = False
    halves: bool = False


def require_extra() -> None:
    """Raise Extra unless what the training needs is installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise Extra(
            f"training an adapter needs {', '.join(missing)}",
            next_step="run `pip install 'nexus_lab[adapter]'`, or `pip install peft gguf`",
        )


def load_weights(path: Path) -> Any:
    """Return the weights of a GGUF file as a causal language model of transformers, float32.

    Raises
    ------
    Extra
        When what it needs is not installed.
    ArgumentsError
        When transformers cannot read the file.
    """
    require_extra()
    import torch
    from transformers import AutoModelForCausalLM

    try:
        # Its bars would run through ours.
        with redirect_stderr(StringIO()):
            return AutoModelForCausalLM.from_pretrained(
                str(path.parent), gguf_file=path.name, dtype=torch.float32, local_files_only=True
            )
    except (ValueError, KeyError, NotImplementedError, RuntimeError, OSError) as error:
        raise ArgumentsError(
            f"transformers cannot read {path.name}: {str(error).splitlines()[0] if str(error) else error!r}",
            next_step="train on another model",
        ) from error


def adapted(weights: Any, recipe: AdapterRecipe) -> Any:
    """Return the model of `load_weights` with an adapter beside it that changes nothing yet."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(recipe.seed)
    layers = range(recipe.first_layer, int(weights.config.num_hidden_layers))
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=recipe.dropout,
        target_modules=list(recipe.modules),
        layers_to_transform=list(layers) if recipe.first_layer else None,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of names between two libraries
        return get_peft_model(weights, config)


def pairs_of(model: Any) -> dict[str, Pair]:
    """Return A, float32 [rank, n_in], and B, float32 [n_out, rank], by the name of the matrix."""
    found = {}
    for name, module in model.get_base_model().named_modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            sides = (module.lora_A["default"].weight, module.lora_B["default"].weight)
            found[name] = (sides[0].detach().float().numpy().copy(), sides[1].detach().float().numpy().copy())
    return found


def logits_of(model: Any, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits behind each token, float32 [n_tokens, n_vocab]."""
    import torch

    model.eval()
    with torch.no_grad():
        found = model(input_ids=torch.tensor([list(tokens)]), use_cache=False)
    logits: NDArray[np.float32] = found.logits[0].float().numpy()
    return logits


def rates(model: Any, rows: Sequence[AnswerRow], *, together: int = 4) -> Rates:
    """Return how well `model` writes the answers of `rows`; of nothing, zeros."""
    import torch

    model.eval()
    loss, tokens, right = 0.0, 0, 0
    ordered = sorted(rows, key=lambda row: len(row.tokens))
    with torch.no_grad():
        for start in range(0, len(ordered), together):
            batch = ordered[start : start + together]
            each, hits = _losses(model, batch)
            loss += float(each.sum())
            tokens += len(each)
            right += sum(bool(part.all()) for part in hits.split([_answer(row) for row in batch]))
    return Rates(rows=len(rows), loss=loss / max(tokens, 1), answers=right / max(len(rows), 1))


def tune_adapter(
    model: Any,
    rounds: Sequence[Sequence[AnswerRow]],
    held: Sequence[AnswerRow],
    recipe: AdapterRecipe,
    tell: Progress,
    *,
    checkpoint: Callable[[Tuned], None] | None = None,
) -> Tuned:
    """Tune the adapter of `model`, which has the best one in the end, and say what was done.

    Ctrl-C ends it: what did best on the held rows so far stays; before the first check nothing does.

    Parameters
    ----------
    model
        Of `adapted`.
    rounds
        Rows to learn from, taken in turn; each round in an order of its own.
    held
        Rows that say which adapter is the best; none are learned from.
    tell
        Called with what is going on and the share that is done.
    checkpoint
        Called when an adapter did better than all before, while `model` has it.

    Raises
    ------
    ArgumentsError
        When there are no rows.
    KeyboardInterrupt
        Before anything was learned that is better than nothing.
    """
    if not held or not any(rounds):
        raise ArgumentsError(
            f"{sum(map(len, rounds))} rows to learn from and {len(held)} to judge by are too few",
            next_step="give more cases, or sessions with recorded contents",
        )
    keeper = _Keeper(model, held, checkpoint)
    done, began = keeper.done, time.monotonic()
    try:
        _go_through(model, rounds, recipe, keeper, tell)
        done.finished = True
    except KeyboardInterrupt:
        if done.best == 0:
            raise
        _LOG.info("stopped; the best adapter so far stays")
    keeper.restore()
    done.seconds = round(time.monotonic() - began, 1)
    return done


class _Keeper:
    """Judges the adapter now and then, and keeps the best.

    Attributes
    ----------
    done
        What has been done; its best is 0 where nothing was better than no adapter.
    """

    def __init__(
        self, model: Any, held: Sequence[AnswerRow], checkpoint: Callable[[Tuned], None] | None
    ) -> None:
        self._model, self._held, self._checkpoint = model, held, checkpoint
        self._kept = self._state()
        self._loss = float("inf")
        self.done = Tuned(halves=halves_are_faster())

    def check(self) -> None:
        """Judge the adapter as it is, and keep it if it is the best so far."""
        loss = rates(self._model, self._held).loss
        self.done.held.append(round(loss, 4))
        # A loss that is no number is not below anything.
        if not loss < self._loss:
            return
        self._kept, self._loss, self.done.best = self._state(), loss, len(self.done.held) - 1
        if self.done.best and self._checkpoint is not None:
            self._checkpoint(self.done)

    def restore(self) -> None:
        """Give the model its best adapter."""
        self._model.load_state_dict(self._kept, strict=False)
        self._model.eval()

    def _state(self) -> dict[str, Any]:
        return {
            name: values.detach().clone()
            for name, values in self._model.named_parameters()
            if values.requires_grad
        }


def _go_through(
    model: Any,
    rounds: Sequence[Sequence[AnswerRow]],
    recipe: AdapterRecipe,
    keeper: _Keeper,
    tell: Progress,
) -> None:
    import torch

    trained = [values for values in model.parameters() if values.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=0.0, weight_decay=0.0)
    total = recipe.epochs * sum(map(len, rounds)) / len(rounds)
    tell("reading the held rows", 0.0)
    keeper.check()
    done, losses = keeper.done, list[float]()
    began, checked = time.monotonic(), 0
    for batch in _batches(rounds, recipe):
        gone = max(done.rows / total, (time.monotonic() - began) / recipe.seconds)
        if gone >= 1:
            break
        if int(gone * (recipe.checks + 1)) > checked:
            checked = int(gone * (recipe.checks + 1))
            tell("reading the held rows", gone)
            keeper.check()
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * rate_share(gone)
        losses.append(_step(model, batch, optimiser, trained))
        done.rows += len(batch)
        done.tokens += sum(len(row.tokens) for row in batch)
        mean = f"loss {np.nanmean(losses[-40:]):.3f} after {done.rows} rows"
        tell(f"tuning: {mean}, {done.tokens / (time.monotonic() - began):.0f} tokens a second", gone)
    tell("reading the held rows", 1.0)
    keeper.check()


def _step(model: Any, batch: Sequence[AnswerRow], optimiser: Any, trained: Sequence[Any]) -> float:
    model.train()
    losses, _ = _losses(model, batch)
    loss = losses.mean()
    finite_step(optimiser, loss, trained)
    return float(loss.detach())


def _batches(rounds: Sequence[Sequence[AnswerRow]], recipe: AdapterRecipe) -> Iterator[list[AnswerRow]]:
    """Yield batches without end, of rows of like length, in an order that the seed decides."""
    chooser = np.random.default_rng(recipe.seed)
    while True:
        for rows in rounds:
            # Neighbours among some batches, so that the order stays one of chance.
            order = chooser.permutation(len(rows))
            for start in range(0, len(order), 8 * recipe.rows):
                near = sorted(order[start : start + 8 * recipe.rows], key=lambda n: len(rows[n].tokens))
                groups = [near[first : first + recipe.rows] for first in range(0, len(near), recipe.rows)]
                for place in chooser.permutation(len(groups)):
                    yield [rows[n] for n in groups[place]]


def _answer(row: AnswerRow) -> int:
    return len(row.tokens) - row.start


def _losses(model: Any, batch: Sequence[AnswerRow]) -> tuple[Any, Any]:
    """Return the loss of each token of the answers, row after row, and whether it is the likeliest.

    Only what predicts them goes through the output matrix, which is a fifth of a small model.
    """
    import torch

    longest = max(len(row.tokens) for row in batch)
    tokens = torch.zeros((len(batch), longest), dtype=torch.long)
    mask = torch.zeros((len(batch), longest), dtype=torch.long)
    wanted = torch.full((len(batch), longest), _IGNORED)
    for place, row in enumerate(batch):
        tokens[place, : len(row.tokens)] = torch.tensor(row.tokens)
        mask[place, : len(row.tokens)] = 1
        wanted[place, row.start - 1 : len(row.tokens) - 1] = torch.tensor(row.tokens[row.start :])
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    with torch.autocast("cpu", torch.bfloat16, enabled=halves_are_faster()):
        found = base.get_decoder()(input_ids=tokens, attention_mask=mask, use_cache=False)
    counts = wanted != _IGNORED
    logits = base.get_output_embeddings()(found.last_hidden_state[counts].float())
    targets = wanted[counts]
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return losses, logits.detach().argmax(dim=-1) == targets
