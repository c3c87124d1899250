"""What the probability that no tool fits is fitted to: the package's own requests that were held apart.

Requests that no tool fits are dear to write and soon all of one kind. More are made of the answerable
ones: a request whose tool is taken away, its siblings staying, is one that nearly fits. Both are asked over
the whole registry, with the package's examples, and over random parts of it without any, as if nobody knew
the tools.
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
    from collections.abc import Iterable, Iterator, Sequence

    from nexus_lab.registry import Registry

    Row = dict[str, Any]

__all__ = ["package_observations"]

_MOST = 400
_SMALLEST, _LARGEST = 2, 40
_HELD = "package, tools that are known"
_BARE = "package, tools that are not"


def package_observations(router: Router, held: float) -> Iterator[tuple[int, int, list[Seen]]]:
    """Yield what is seen of the package's requests that were held apart, some for each request.

    Parameters
    ----------
    router
        Gives the registry, the embedder and the cross-encoder; its examples take no part.
    held
        Share of the requests, by a hash of their text, that no model learned from.

    Yields
    ------
    number, count, seen
        Of the request among all of them.
    """
    registry = router.registry
    rows = list(_rows(registry, held))
    if not rows:
        return
    given = {"cross_encoder": router.cross_encoder, "store": False}
    known = Router(registry, router.embedder, known=True, held=held, **given)
    bare = Router(registry, router.embedder, known=False, **given)
    names = list(tools_by_key(registry))
    for number, row in enumerate(rows):
        rest = [name for name in names if name not in row["all_right"]]
        part = _part(row, registry, rest)
        seen = [see_part(known, row, _HELD, rest), see_part(bare, row, _BARE, part)]
        if row["right"] is not None:
            seen += [see_part(known, row, _HELD, names), see_part(bare, row, _BARE, [*part, row["right"]])]
        yield number, len(rows), seen


def _rows(registry: Registry, held: float) -> Iterator[Row]:
    """Yield the requests, those of a tool at most so many, by a hash of their text."""
    tools = tools_by_key(registry)
    with_tool: list[Row] = []
    for row in package_rows_for(registry):
        if share_of(row["request"]) >= held:
            continue
        told = {"query": row["request"], "context": row.get("context") or ()}
        name = row.get("tool")
        if name is None and any(near in registry for near in row.get("near", ())):
            yield {**told, "kind": "no tool", "right": None, "all_right": set(), "near": row["near"]}
        elif name in tools and known_requests(tools[name]):
            right = {name, *row.get("also_ok", ())}
            with_tool.append({**told, "right": name, "all_right": right, "near": [name]})
    yield from sorted(with_tool, key=lambda row: share_of(row["query"]))[:_MOST]


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
