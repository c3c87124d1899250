"""What is counted of calls that were filled in, and how sure it is; arguments of one case stand together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nexus_lab.agent.loop import SYSTEM_PROMPT
from nexus_lab.arguments import MissingValues
from nexus_lab.arguments.spans import hear
from nexus_lab.bench.argument_writing import Cost
from nexus_lab.bench.base import Result, proportion
from nexus_lab.bench.clusters import cluster_ratio
from nexus_lab.registry import schema_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nexus_lab.agent.calling import Written
    from nexus_lab.bench.argument_cases import ArgumentCase

__all__ = ["Scored", "figures", "gains", "score", "share_over_cases"]

_SHORT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """How one call was filled in.

    Attributes
    ----------
    right, stated
        Arguments that the request states and that came out right, and all that it states.
    filled, filled_right
        How many arguments were given for which the case knows what is right, and how many of them are.
    valid
        Whether the call was readable and satisfied the full schema.
    told
        Whether it was given up for want of a value, and said so, instead of being written.
    copied, texts
        Texts among its values that occur in the prompt and nowhere in the conversation, and all texts.
    cost
        What it took to come to the call.
    """

    right: tuple[str, ...]
    stated: tuple[str, ...]
    valid: bool
    filled: int = 0
    filled_right: int = 0
    told: bool = False
    copied: int = 0
    texts: int = 0
    cost: Cost = field(default_factory=Cost)

    @property
    def all_right(self) -> bool:
        """Whether every stated argument came out right in a valid call."""
        return self.valid and len(self.right) == len(self.stated)


def score(written: Written, case: ArgumentCase) -> Scored:
    """Compare a call with the arguments that a case states."""
    found = written.arguments or {}
    right = tuple(name for name in case.stated if name in found and case.is_right(name, found[name]))
    known = [name for name in found if name in case.accepted]
    texts = list(_texts(found, case.tool.input_schema))
    turns = [*case.context, {"role": "user", "content": case.request}]
    said = " ".join(str(turn.get("content")) for turn in turns).casefold()
    # A date that was said in another form is no copy.
    meant = {str(span.value) for span in hear(turns)[1]}
    prompt = f"{SYSTEM_PROMPT} {schema_text(case.tool)}".casefold()
    return Scored(
        right=right,
        stated=case.stated,
        valid=written.arguments is not None and written.problem is None,
        filled=len(known),
        filled_right=sum(case.is_right(name, found[name]) for name in known),
        told=written.arguments is None and isinstance(written.problem, MissingValues),
        copied=sum(
            text.casefold() in prompt and text.casefold() not in said and text not in meant for text in texts
        ),
        texts=len(texts),
    )


def _texts(found: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts among values, but for those that the schema lists or gives as default."""
    properties = schema.get("properties", {})
    for name, value in found.items():
        part = properties.get(name, {})
        listed = _listed(part) if isinstance(part, dict) else []
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and len(text) >= _SHORT and text not in listed:
                yield text


def _listed(schema: Mapping[str, Any]) -> list[Any]:
    items = schema.get("items")
    inner = _listed(items) if isinstance(items, dict) else []
    return [*schema.get("enum", ()), schema.get("const"), schema.get("default"), *inner]


def share_over_cases(
    hits: Sequence[int], counts: Sequence[int], *, case: Mapping[str, Any], metric: str
) -> Result:
    """Return the share of all that is counted, with a bootstrap interval over whole cases.

    Parameters
    ----------
    hits, counts
        For each case, how many of how many; a case that counts nothing may be among them.

    Returns
    -------
    Result
        Its ``n`` is what was counted. Where all or nothing is a hit, resampling would pretend certainty: the
        interval is then Wilson's, with a case as one trial.

    Raises
    ------
    ResultsError
        When nothing was counted.
    """
    counting = [n for n, count in enumerate(counts) if count]
    above, below = [hits[n] for n in counting], [counts[n] for n in counting]
    total = sum(below)
    if not 0 < sum(above) < total:
        all_hit = bool(total) and sum(above) == total
        found = proportion(len(below) * all_hit, len(below), case=case, metric=metric)
    else:
        found = cluster_ratio(above, below, range(len(below)), case=case, metric=metric)
    return replace(found, n=total)


def figures(
    cases: Sequence[ArgumentCase],
    scored: Sequence[Scored],
    routed: Sequence[bool] | None,
    *,
    case: Mapping[str, str],
) -> list[Result]:
    """Return the figures of one system over the cases of ``case["part"]``: ``all`` or ``apart``.

    Parameters
    ----------
    routed
        Whether each request was sent to its tool; ``None`` where that is not charged.
    """
    kept = [n for n, one in enumerate(cases) if one.apart or case["part"] == "all"]
    part = [scored[n] for n in kept]
    counted = [
        ("args_right", [len(one.right) for one in part], [len(one.stated) for one in part]),
        ("cases_right", [int(one.all_right) for one in part], [1] * len(part)),
        ("json_valid", [int(one.valid) for one in part], [int(not one.told) for one in part]),
        ("asked_back", [int(one.told) for one in part], [1] * len(part)),
        ("filled_right", [one.filled_right for one in part], [one.filled for one in part]),
        ("copied_from_prompt", [one.copied for one in part], [one.texts for one in part]),
    ]
    if routed is not None:
        reached = [len(scored[n].right) * routed[n] for n in kept]
        counted.append(("end_to_end_right", reached, [len(one.stated) for one in part]))
    return [
        share_over_cases(hits, counts, case=case, metric=metric)
        for metric, hits, counts in counted
        if sum(counts)
    ]


def gains(
    cases: Sequence[ArgumentCase],
    ours: Sequence[Scored],
    theirs: Sequence[Scored],
    *,
    case: Mapping[str, str],
) -> list[Result]:
    """Return how many more of the stated arguments come out right with `ours`, case by case.

    The interval is a bootstrap over cases, each with its difference; where none differs there is none.
    """
    kept = [n for n, one in enumerate(cases) if (one.apart or case["part"] == "all") and ours[n].stated]
    if not kept:
        return []
    more = [len(ours[n].right) - len(theirs[n].right) for n in kept]
    stated = [len(ours[n].stated) for n in kept]
    found = cluster_ratio(more, stated, range(len(kept)), case=case, metric="args_right_gain")
    low, high = (found.low, found.high) if any(more) else (None, None)
    return [replace(found, n=sum(stated), low=low, high=high)]
