"""Tuning the cross-encoder: to choose the right tool among those that are easily taken for it, or none.

The loss is the cross-entropy over a list (Cao et al., 2007) of the candidates' scores and a constant 0 that
stands for "none of them", so that a score says by itself how well a tool fits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.routing.base import RoutingError
from nexus_lab.routing.reading import request_text, tool_text
from nexus_lab.routing.tuning_rate import finite_step, halves_are_faster, rate_share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexus_lab.routing.tuning_lists import CandidateList

    Progress = Callable[[str, float], None]

__all__ = ["ReaderRecipe", "tune_reader"]

_MOST_LOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderRecipe:
    """How the cross-encoder is tuned.

    Attributes
    ----------
    requests
        Requests in a batch, each with its candidates.
    candidates
        Tools that a request is read with: the right one and the nearest wrong ones.
    frozen_layers
        Lowest layers that stay as they are, which saves some of the time.
    learning_rate
        At its height; see `rate_share`.
    with_example
        Share of the requests whose tools are read with the example that is nearest, where they have one; the
        tools of a known server all have some, those of another none.
    missing
        Share of the requests whose right tool is left out, so that none fits.
    together
        Pairs that share a batch, those of like length.
    half
        Multiply in bfloat16, the sums in float32: two to four times as fast where the processor does so by
        itself. ``None`` does where it pays.
    seconds, epochs
        Whichever is over first.
    checkpoint_seconds
        What has been learned is handed over as often.
    """

    requests: int = 8
    candidates: int = 6
    frozen_layers: int = 2
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-2
    weight_decay: float = 0.01
    with_example: float = 0.5
    missing: float = 0.1
    together: int = 12
    half: bool | None = None
    seconds: float = 1500.0
    epochs: float = 3.0
    checkpoint_seconds: float = 300.0
    seed: int = 0


def tune_reader(
    model: Any,
    tokenizer: Any,
    lists: Sequence[CandidateList],
    recipe: ReaderRecipe,
    tell: Progress,
    *,
    checkpoint: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Tune a `PairModel` in place, and return what was done.

    Parameters
    ----------
    model, tokenizer
        Of `bare_reader`.
    lists
        Requests with their candidates.
    checkpoint
        Called now and then with what has been done so far, while `model` holds what it has learned.

    Raises
    ------
    RoutingError
        When the requests do not fill a batch, `recipe` asks for less than one of them, or batch after batch
        has no finite loss.
    """
    total = _total(len(lists), recipe)
    import torch

    torch.manual_seed(recipe.seed)
    chooser = np.random.default_rng(recipe.seed)
    optimiser, trained = _optimiser(model, recipe)
    model.train()
    began, seen = time.monotonic(), 0
    kept = began
    losses: list[float] = []
    right: list[float] = []
    order: list[int] = []
    half, lost = halves_are_faster() if recipe.half is None else recipe.half, 0
    while seen < total:
        gone = max(seen / total, (time.monotonic() - began) / recipe.seconds)
        if gone >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = group["height"] * rate_share(gone)
        if len(order) < recipe.requests:
            order += chooser.permutation(len(lists)).tolist()
        drawn = [_drawn(lists[order.pop(0)], recipe, chooser) for _ in range(recipe.requests)]
        loss, hits = _loss(model, tokenizer, drawn, recipe, half=half)
        seen += len(drawn)
        if not finite_step(optimiser, loss, trained):
            # Half the width is what may overflow; the whole one goes on from the same parameters.
            half, lost = False, lost + 1
            if lost > _MOST_LOST:
                raise RoutingError(
                    f"the loss of {lost} batches is no finite number",
                    next_step="lower the learning rate, or look for odd texts among the requests",
                )
            continue
        losses.append(float(loss.detach()))
        right.append(hits / len(drawn))
        if len(losses) % 10 == 0:
            mean = f"loss {np.mean(losses[-40:]):.3f}, right {np.mean(right[-40:]):.0%}"
            tell(f"tuning the cross-encoder: {mean} after {seen}", gone)
        if checkpoint is not None and time.monotonic() - kept >= recipe.checkpoint_seconds:
            checkpoint(_done(seen, lists, began))
            kept = time.monotonic()
    model.eval()
    return _done(seen, lists, began)


def _done(seen: int, lists: Sequence[CandidateList], began: float) -> dict[str, Any]:
    return {"requests": seen, "lists": len(lists), "seconds": round(time.monotonic() - began)}


def _optimiser(model: Any, recipe: ReaderRecipe) -> tuple[Any, list[Any]]:
    """Return the optimiser, each group with the height of its rate, and the parameters that are trained."""
    import torch

    encoder = model.bert
    for frozen in (encoder.embeddings, *encoder.encoder.layer[: recipe.frozen_layers]):
        for parameter in frozen.parameters():
            parameter.requires_grad_(False)
    head = [model.scale, model.offset]
    body = [p for p in encoder.encoder.parameters() if p.requires_grad]
    groups = [
        {"params": body, "height": recipe.learning_rate, "weight_decay": recipe.weight_decay},
        {"params": head, "height": recipe.head_learning_rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0), [*body, *head]


def _loss(
    model: Any,
    tokenizer: Any,
    drawn: Sequence[tuple[str, list[str], list[int]]],
    recipe: ReaderRecipe,
    *,
    half: bool,
) -> tuple[Any, int]:
    """Return the mean loss of some requests, and for how many the right tool (or none) stands first."""
    import torch

    from nexus_lab.routing.pair_model import pair_scores

    pairs = [(text, one) for text, read, _ in drawn for one in read]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        scores = pair_scores(model, tokenizer, pairs, together=recipe.together).float()
    loss: Any = torch.zeros(())
    hits, start = 0, 0
    for _, read, gold in drawn:
        of_list = torch.cat([torch.zeros(1), scores[start : start + len(read)]])
        start += len(read)
        chances = torch.log_softmax(of_list, 0)
        wanted = chances[torch.as_tensor([place + 1 for place in gold] or [0])]
        loss = loss - torch.logsumexp(wanted, 0)
        best = int(of_list.argmax())
        hits += (best - 1 in gold) if gold else best == 0
    return loss / len(drawn), hits


def _total(count: int, recipe: ReaderRecipe) -> int:
    """Return how many requests are read at most, of `count` that there are."""
    if count < recipe.requests:
        raise RoutingError(
            f"{count} requests are too few to train on",
            next_step=f"give at least {recipe.requests} whose tool is in its registry, beside those that are "
            "held for the calibration",
        )
    total = int(recipe.epochs * count)
    if total < 1:
        raise RoutingError(
            f"epochs = {recipe.epochs:g} of {count} requests is less than one request",
            next_step="choose more epochs",
        )
    return total


def _drawn(
    row: CandidateList, recipe: ReaderRecipe, chooser: np.random.Generator
) -> tuple[str, list[str], list[int]]:
    """Return a request's text, the texts of some candidates, and the places of the right ones."""
    gold = (
        []
        if not row.right or chooser.random() < recipe.missing
        else [row.right[int(chooser.integers(len(row.right)))]]
    )
    count = recipe.candidates - len(gold)
    # The first are the likeliest mistakes; one in three comes from further down.
    near = row.wrong[: count + 3]
    wrong = [near[int(place)] for place in chooser.permutation(len(near))[:count]]
    order = [*gold, *wrong]
    chooser.shuffle(order)
    shown = chooser.random() < recipe.with_example
    told = [tool_text(one.tool, example=one.example if shown else None) for one in order]
    return request_text(row.request, row.context), told, [order.index(one) for one in gold]
