"""What the probability that no tool fits is fitted to: the package's own requests that were held apart.

They are asked over the whole registry, whose tools are known, and over random parts of it as if nobody knew
the tools: without examples, and without the requests that are known to be asked in vain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.routing.calibrate_seen import Seen, see_part
from nexus_lab.routing.known import known_requests, package_rows_for
from nexus_lab.routing.router import Router
from nexus_lab.routing.rows import share_of
from nexus_lab.routing.scoring import tools_by_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nexus_lab.registry import Registry

    Row = dict[str, Any]

__all__ = ["package_observations"]

_MOST = 400
_FOLDS = 5
_SMALLEST, _LARGEST = 2, 40
_HELD = "package, tools that are known"
_BARE = "package, tools that are not"


def package_observations(router: Router, held: float, *, read: bool) -> Iterator[tuple[int, int, list[Seen]]]:
    """Yield what is seen of the package's requests that were held apart, some for each request.

    Parameters
    ----------
    router
        Gives the registry, the embedder and the cross-encoder; its examples take no part.
    held
        Share of the requests, by a hash of their text, that no model learned from.
    read
        Whether the cross-encoder reads them, those that it learned from left out.

    Yields
    ------
    number, count, seen
        Of the request among all of them.
    """
    registry = router.registry
    rows = list(_rows(registry, held))
    if not rows:
        return
    given: Row = {"cross_encoder": router.cross_encoder, "store": False}
    bare = Router(registry, router.embedder, known=False, **given)
    names = list(tools_by_key(registry))
    known, part_of_known = bare, -1
    for number, row in enumerate(rows):
        if row["fold"] != part_of_known:
            part_of_known = row["fold"]
            known = Router(registry, router.embedder, held=_held(held, part_of_known), **given)
        right = [] if row["right"] is None else [row["right"]]
        rest = [name for name in names if name not in row["all_right"]]
        asked = [(known, _HELD, names), (bare, _BARE, [*_part(row, registry, rest), *right])]
        apart = read and bool(row["apart"])
        yield number, len(rows), [see_part(by, row, over, some, read=apart) for by, over, some in asked]


def _held(share: float, fold: int) -> Callable[[str], bool]:
    """Return what takes no part while the requests of a fold are asked: what is held, and the fold itself."""
    return lambda request: share_of(request) < share or _fold(request) == fold


def _fold(request: str) -> int:
    return int(share_of(f"in vain {request}") * _FOLDS)


def _rows(registry: Registry, held: float) -> Iterator[Row]:
    """Yield the requests, in folds: those without a tool, and at most so many of those with one, by a hash.

    No embedder learns from requests without a tool, so all of them take part, each while its fold is not
    among those that are known to be asked in vain; what a cross-encoder learned from is marked.
    """
    tools = tools_by_key(registry)
    found: list[Row] = []
    with_tool: list[Row] = []
    for row in package_rows_for(registry):
        request, name = row["request"], row.get("tool")
        apart = share_of(request) < held
        told = {"query": request, "context": row.get("context") or (), "fold": _fold(request), "apart": apart}
        if name is None and any(near in registry for near in row.get("near", ())):
            found.append({**told, "kind": "no tool", "right": None, "all_right": set(), "near": row["near"]})
        elif apart and name in tools and known_requests(tools[name]):
            right = {name, *row.get("also_ok", ())}
            with_tool.append({**told, "right": name, "all_right": right, "near": [name]})
    found += sorted(with_tool, key=lambda row: share_of(row["query"]))[:_MOST]
    yield from sorted(found, key=lambda row: row["fold"])


def _part(row: Row, registry: Registry, names: Sequence[str]) -> list[str]:
    """Return a random part of the tools called `names`, half of the server that the request is about."""
    chooser = np.random.default_rng(int(share_of(row["query"]) * 2**32))
    count = int(np.exp(chooser.uniform(np.log(_SMALLEST), np.log(_LARGEST))))
    servers = {tool.server for near in row["near"] if (tool := registry.get(near)) is not None}
    known = tools_by_key(registry)
    siblings = [name for name in names if known[name].server in servers]
    chosen = _draw(chooser, siblings, (count + 1) // 2)
    taken = set(chosen)
    others = _draw(chooser, [name for name in names if name not in taken], count - len(chosen))
    return [*chosen, *others]


def _draw(chooser: np.random.Generator, names: Iterable[str], count: int) -> list[str]:
    listed = list(names)
    return [listed[int(place)] for place in chooser.permutation(len(listed))[:count]]
