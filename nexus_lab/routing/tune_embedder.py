"""Tuning the embedder: requests move towards the texts of their tool, and towards each other.

Both losses are InfoNCE over a batch (van den Oord et al., 2018): a request against the texts of the tools,
its own among them, and against the other requests. Half of a batch is from one server, whose tools are the
ones that are hard to tell apart. The token embeddings stay as they are, so that what is shipped is small.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.routing.base import ViewKind
from nexus_lab.routing.embedder import transformer_of
from nexus_lab.routing.normalise import normalise
from nexus_lab.routing.tuning_rate import finite_step, rate_share
from nexus_lab.routing.views import tool_views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexus_lab.registry import ToolSpec
    from nexus_lab.routing.training_rows import Pool

    Progress = Callable[[str, float], None]

__all__ = ["EmbedderRecipe", "tune_embedder"]

_PADDED_TOGETHER = 24
_NEVER = -1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderRecipe:
    """How the embedder is tuned.

    Attributes
    ----------
    tools, requests
        Tools in a batch, and requests of each.
    hard
        Tools in a batch that are there as mistakes only: neighbours of the others.
    request_tokens, tool_tokens
        Where texts are cut.
    temperature
        That cosines are divided by.
    learning_rate
        At its height; see `rate_share`.
    same
        Weight of the loss between requests.
    rival_cosine
        Tools of other servers that are nearer than this may well do the same job, and are no mistakes.
    seconds, epochs
        Whichever is over first.
    """

    tools: int = 24
    requests: int = 2
    hard: int = 16
    request_tokens: int = 36
    tool_tokens: int = 64
    temperature: float = 0.05
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    same: float = 0.5
    rival_cosine: float = 0.8
    seconds: float = 1200.0
    epochs: float = 6.0
    seed: int = 0


class _Sampler:
    """Draws batches: tools of one pool, half of them of one server, with their requests."""

    def __init__(
        self, pools: Sequence[Pool], recipe: EmbedderRecipe, embed: Callable[[list[str]], Any]
    ) -> None:
        self.recipe = recipe
        self.chooser = np.random.default_rng(recipe.seed)
        self.pools = [_Side(pool, embed) for pool in pools]
        self.n_rows = sum(len(side.requests) for side in self.pools)
        self.weights = np.asarray([len(side.requests) for side in self.pools]) / self.n_rows

    def batch(self) -> tuple[_Side, list[str], list[str], list[str]]:
        """Return a pool, its tools that requests are drawn for (right), others (hard), and the requests."""
        recipe, chooser = self.recipe, self.chooser
        side = self.pools[int(chooser.choice(len(self.pools), p=self.weights))]
        server = side.servers[int(chooser.choice(len(side.servers), p=side.server_weights))]
        inside = _draw(chooser, side.by_server[server], recipe.tools // 2, side.counts)
        rest = [key for key in side.asked if key not in set(inside)]
        right = inside + _draw(chooser, rest, recipe.tools - len(inside), side.counts)
        hard: list[str] = []
        for key in chooser.permutation(right).tolist():
            near = [other for other in side.near(key) if other not in right and other not in hard]
            if near and len(hard) < recipe.hard:
                hard.append(near[int(chooser.integers(min(6, len(near))))])
        requests = [request for key in right for request in side.take(key, recipe.requests, chooser)]
        return side, right, hard, requests


class _Side:
    """A pool as batches are drawn from it."""

    def __init__(self, pool: Pool, embed: Callable[[list[str]], Any]) -> None:
        self.tools = dict(pool.tools)
        self.requests = [(row.tools[0], normalise(row.request).text) for row in pool.rows if row.tools]
        self.by_tool: dict[str, list[str]] = {}
        for key, text in self.requests:
            self.by_tool.setdefault(key, []).append(text)
        self.asked = list(self.by_tool)
        # The square root: a tool with many requests is drawn more often, but not as often as they are many.
        self.counts = {key: len(texts) ** 0.5 for key, texts in self.by_tool.items()}
        self.by_server: dict[str, list[str]] = {}
        for key in self.asked:
            self.by_server.setdefault(self.tools[key].server or "", []).append(key)
        self.servers = list(self.by_server)
        sizes = np.asarray([sum(len(self.by_tool[key]) for key in keys) for keys in self.by_server.values()])
        self.server_weights = sizes / sizes.sum()
        self.keys = list(self.tools)
        self.place = {key: place for place, key in enumerate(self.keys)}
        self.vectors = embed([_document(tool) for tool in self.tools.values()])

    def near(self, key: str) -> list[str]:
        """Return the tools nearest to `key` by their texts, nearest first."""
        cosines = self.vectors @ self.vectors[self.place[key]]
        return [self.keys[place] for place in np.argsort(-cosines)[1:25]]

    def rivals(self, first: Sequence[str], second: Sequence[str]) -> Any:
        """Return cosine [len(first), len(second)] of tools of different servers, 0 within one server."""
        cosines = (
            self.vectors[[self.place[key] for key in first]]
            @ self.vectors[[self.place[key] for key in second]].T
        )
        foreign = [[self.tools[one].server != self.tools[two].server for two in second] for one in first]
        return cosines * np.asarray(foreign)

    def take(self, key: str, count: int, chooser: np.random.Generator) -> list[str]:
        """Return `count` requests for the tool `key`; one that is alone stands for itself."""
        texts = self.by_tool[key]
        places = chooser.choice(len(texts), count, replace=len(texts) < count)
        return [texts[int(place)] for place in places]

    def text(self, key: str, chooser: np.random.Generator) -> str:
        """Return one of the texts that stand for the tool `key` in the index, most often the whole one."""
        views = [view for view in tool_views(self.tools[key]) if view.kind is not ViewKind.CHOICE]
        if len(views) == 1 or chooser.random() < 0.5:  # noqa: PLR2004
            return _document(self.tools[key])
        return views[int(chooser.integers(len(views)))].text


def _document(tool: ToolSpec) -> str:
    views = tool_views(tool)
    return next((view.text for view in views if view.kind is ViewKind.DESCRIPTION), views[0].text)


def _draw(chooser: np.random.Generator, keys: list[str], count: int, counts: dict[str, float]) -> list[str]:
    if len(keys) <= count:
        return list(keys)
    weights = np.asarray([counts[key] for key in keys])
    return [
        keys[int(place)]
        for place in chooser.choice(len(keys), count, replace=False, p=weights / weights.sum())
    ]


def tune_embedder(
    model: Any, pools: Sequence[Pool], recipe: EmbedderRecipe, tell: Progress
) -> dict[str, Any]:
    """Tune a sentence-transformers model in place, and return what was done.

    Parameters
    ----------
    model
        A `SentenceTransformer` of one transformer and mean pooling; its token embeddings stay.
    """
    import torch

    torch.manual_seed(recipe.seed)
    encoder, tokenizer = transformer_of(model), model.tokenizer
    sampler = _Sampler(
        pools, recipe, lambda texts: model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    )
    steps = int(recipe.epochs * sampler.n_rows / (recipe.tools * recipe.requests)) + 1
    for parameter in encoder.embeddings.parameters():
        parameter.requires_grad_(False)
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    encoder.train()
    began, losses = time.monotonic(), []
    for step in range(steps):
        gone = max(step / steps, (time.monotonic() - began) / recipe.seconds)
        if gone >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * rate_share(gone)
        side, right, hard, requests = sampler.batch()
        documents = [side.text(key, sampler.chooser) for key in right + hard]
        asked = _vectors(encoder, tokenizer, requests, recipe.request_tokens)
        told = _vectors(encoder, tokenizer, documents, recipe.tool_tokens)
        barred = side.rivals(right, right + hard) > recipe.rival_cosine
        found, alike = _losses(asked, told, barred, recipe)
        if not finite_step(optimiser, found + recipe.same * alike, trained):
            continue
        losses.append((float(found.detach()), float(alike.detach())))
        if len(losses) % 10 == 1:
            recent = np.mean(losses[-10:], axis=0)
            tell(f"tuning the embedder: loss {recent[0]:.3f} and {recent[1]:.3f}, step {step}", gone)
    encoder.eval()
    return {"steps": len(losses), "rows": sampler.n_rows, "seconds": round(time.monotonic() - began)}


def _vectors(encoder: Any, tokenizer: Any, texts: list[str], tokens: int) -> Any:
    """Return a tensor [n, dim] of unit rows; texts of like length are padded together."""
    import torch
    from torch.nn import functional

    order = np.argsort([len(text) for text in texts])
    rows: list[Any] = [None] * len(texts)
    for part in np.array_split(order, max(1, len(texts) // _PADDED_TOGETHER)):
        batch = tokenizer(
            [texts[int(place)] for place in part],
            padding=True,
            truncation=True,
            max_length=tokens,
            return_tensors="pt",
        )
        hidden = encoder(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        pooled = functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
        for place, row in zip(part, pooled, strict=True):
            rows[int(place)] = row
    return torch.stack(rows)


def _losses(asked: Any, told: Any, rivals: Any, recipe: EmbedderRecipe) -> tuple[Any, Any]:
    """Return the loss of requests against tools, and of requests against one another.

    Parameters
    ----------
    asked, told
        Vectors of the requests, those of a tool in a row, and of the tools, the right ones first.
    rivals
        bool [n_right, n_tools]: tools that do not count as mistakes.
    """
    import torch
    from torch.nn import functional

    owners = np.repeat(np.arange(len(rivals)), recipe.requests)
    barred = torch.as_tensor(rivals)[owners]
    scores = (asked @ told.T / recipe.temperature).masked_fill(barred, _NEVER)
    found = functional.cross_entropy(scores, torch.as_tensor(owners))
    same = torch.as_tensor(owners[:, None] == owners[None, :])
    itself = torch.eye(len(owners), dtype=torch.bool)
    among = (asked @ asked.T / recipe.temperature).masked_fill(itself | (barred[:, owners] & ~same), _NEVER)
    twins = same & ~itself
    alike = -(torch.log_softmax(among, 1) * twins).sum(1) / twins.sum(1)
    return found, alike.mean()
