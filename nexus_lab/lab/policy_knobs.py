"""Policy knobs, and what they would cost: the exact counts of a conversation under a policy against full."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from nexus_lab.cache.costs import Prices
from nexus_lab.lab.drawing import Drawing, aligned, called, chosen, el, note, one_line, table
from nexus_lab.lab.policy_form import policy_fields
from nexus_lab.trace.text import count, plural, sentence

if TYPE_CHECKING:
    import polars as pl

    from nexus_lab.lab.drawing import Child, Element
    from nexus_lab.lab.dry_session import DryCost
    from nexus_lab.lab.policy_form import PolicyChoice
    from nexus_lab.settings import Profile

__all__ = ["CAVEAT", "Forgetting", "PolicyCost", "PolicyKnobs"]

CAVEAT = (
    "A drop does not undo what the dropped tokens already did: the KV of later tokens was computed while "
    "they were still attended to, and stays as it is."
)
"""What a drop leaves behind; stands wherever a drop can be chosen."""

_METRICS = (
    ("tokens_prefilled", "tokens prefilled"),
    ("again", "tokens computed again"),
    ("tokens_decoded", "tokens decoded"),
    ("cells_attended", "cells attended"),
    ("cells_scanned", "cells scanned"),
    ("peak_cells", "peak cells"),
    ("active", "cells at the end"),
    ("cost", "cost"),
)
_BAR, _HIGH = 96, 10


@dataclass(frozen=True)
class Forgetting:
    """Forgetting what was dropped for good, in the live conversation, now.

    Attributes
    ----------
    dropped
        Tokens that are dropped.
    prefilled
        Tokens that are prefilled anew for it.
    """

    dropped: int = 0
    prefilled: int = 0


@dataclass(frozen=True)
class PolicyCost:
    """A conversation under full, under a policy, and under it with true forgetting.

    Attributes
    ----------
    name
        The conversation.
    tokens
        Its tokens.
    costs
        Full first.
    """

    name: str
    tokens: int
    costs: tuple[DryCost, ...]
    prices: Prices = field(default_factory=Prices)

    def value(self, cost: DryCost, metric: str) -> float:
        """Return one figure."""
        if metric == "cost":
            return cost.costs.price(self.prices)
        return float(getattr(cost, metric) if hasattr(cost, metric) else getattr(cost.costs, metric))

    def rows(self) -> list[tuple[str, list[float]]]:
        """Return each figure by its name, a value for each cost that was counted."""
        told = [cost for cost in self.costs if cost.declined is None]
        return [(title, [self.value(cost, metric) for cost in told]) for metric, title in _METRICS]


@dataclass(frozen=True, repr=False)
class PolicyKnobs(Drawing):
    """Knobs of a policy, what it would cost, and what it does not do.

    Attributes
    ----------
    choice, profile
        The policy, and the profile of the next turn.
    cost
        What it costs; ``None`` where there is no conversation.
    problem
        Why there is none.
    source, path, talks, talk
        Where the conversation is from: ``session`` or ``file``; the file, its conversations, and which.
    forgetting
        What true forgetting takes in the live conversation.
    """

    title: ClassVar[str] = "Policy"

    choice: PolicyChoice
    profile: Profile
    cost: PolicyCost | None = None
    problem: str = ""
    source: str = "session"
    path: str = ""
    talks: tuple[str, ...] = ()
    talk: str = ""
    forgetting: Forgetting = Forgetting()
    live: bool = True

    # -- drawn --------------------------------------------------------------------------------------------

    def element(self) -> Element:
        """Return fields, costs and the caveat."""
        return el(
            "div",
            policy_fields(self.choice, self.profile) if self.live else None,
            el("p", "Policy ", el("code", self.choice.text), self._in_use()),
            self._source() if self.live else None,
            note("bad", self.problem) if self.problem else None,
            self._costs(),
            self._caveat(),
            class_="dr",
        )

    def _in_use(self) -> str:
        from nexus_lab.lab.policy_form import explicit, profile_policy

        own = explicit(profile_policy(self.profile))
        return ", in use" if own == self.choice.text else f"; in use is {own}"

    def _source(self) -> Element:
        where = chosen("source", self.source, (("session", "this session"), ("file", "a trajectory file")))
        fields = [el("label", el("span", "Counted on"), where, class_="f")]
        if self.source == "file":
            path = el("input", type="text", name="path", value=self.path, placeholder="trajectories.jsonl")
            fields.append(el("label", el("span", "File"), path, class_="f dr-wide"))
        if self.source == "file" and self.talks:
            talks = chosen("talk", self.talk, ((name, name) for name in self.talks))
            fields.append(el("label", el("span", "Conversation"), talks, class_="f"))
        use = called("Use from the next turn", "cache.use_policy", primary=True)
        return el("div", *fields, use, class_="row dr-form")

    def _costs(self) -> Element | None:
        if self.cost is None:
            return None
        cost = self.cost
        declined = [item for item in cost.costs if item.declined is not None]
        told = [item for item in cost.costs if item.declined is None]
        head = ["figure", *(_column(item) for item in told)]
        rows: list[list[Child]] = [
            [title, *(_cell(value, values[0], max(values)) for value in values)]
            for title, values in cost.rows()
        ]
        return el(
            "div",
            el(
                "p",
                f"{cost.name}, {plural(cost.tokens, 'token')}; {price_words(cost.prices)}",
                class_="small muted",
            ),
            table(head, rows, label=f"Exact costs of {cost.name}"),
            *(
                note(
                    "warn",
                    f"{item.policy} is not counted: {item.declined.reason}. ",
                    sentence(item.declined.instead),
                )
                for item in declined
                if item.declined is not None
            ),
            *(note("warn", _past(item)) for item in told if item.past_training is not None),
        )

    def _caveat(self) -> Element:
        found = self.forgetting
        now = f" {forgetting_words(found)}"
        button = (
            el("p", called(f"Forget for good: prefill {plural(found.prefilled, 'token')}", "cache.forget"))
            if self.live and found.dropped
            else None
        )
        return el("div", note("warn", CAVEAT, now), button)

    # -- told ---------------------------------------------------------------------------------------------

    def to_text(self) -> str:
        """Return the policy, its costs and the caveat as text."""
        lines = [f"policy {self.choice.text}{self._in_use()}"]
        lines += [f"× {self.problem}"] if self.problem else []
        if self.cost is not None:
            told = [item for item in self.cost.costs if item.declined is None]
            rows = [
                [title, *(_written(value, values[0]) for value in values)]
                for title, values in self.cost.rows()
            ]
            name = one_line(self.cost.name)
            lines += [
                f"{name}, {plural(self.cost.tokens, 'token')}; {price_words(self.cost.prices)}",
                aligned(["figure", *(_column(item) for item in told)], rows),
            ]
            lines += [
                f"! {item.policy} is not counted: {item.declined.reason}"
                for item in self.cost.costs
                if item.declined is not None
            ]
            lines += [f"! {_past(item)}" for item in told if item.past_training is not None]
        found = self.forgetting
        lines.append(f"! {CAVEAT}")
        lines.append(f"  {forgetting_words(found)}")
        return "\n".join(lines)

    def to_frame(self) -> pl.DataFrame:
        """Return a row for each policy and figure, its ``value`` and its ``ratio`` to that of full."""
        import polars as pl

        rows = []
        told = [] if self.cost is None else [item for item in self.cost.costs if item.declined is None]
        for item in told:
            for metric, _ in _METRICS:
                assert self.cost is not None  # noqa: S101 - there is something to tell
                value, full = self.cost.value(item, metric), self.cost.value(told[0], metric)
                rows.append(
                    {
                        "policy": item.policy,
                        "forgotten": item.forgotten,
                        "metric": metric,
                        "value": value,
                        "ratio": value / full if full else None,
                    }
                )
        schema = {
            "policy": pl.String,
            "forgotten": pl.Boolean,
            "metric": pl.String,
            "value": pl.Float64,
            "ratio": pl.Float64,
        }
        return pl.DataFrame(rows, schema=schema)


def forgetting_words(found: Forgetting) -> str:
    """Return what true forgetting would take now."""
    if not found.dropped:
        return "In the live conversation nothing is dropped."
    verb, them = ("is", "it") if found.dropped == 1 else ("are", "them")
    return (
        f"In the live conversation {plural(found.dropped, 'token')} {verb} dropped; forgetting {them} for "
        f"good prefills {plural(found.prefilled, 'token')} anew."
    )


def price_words(prices: Prices) -> str:
    """Return prices in words."""
    told = ", ".join(f"{name} {price:g}" for name, price in prices.to_dict().items() if price)
    return f"cost at {told} a unit"


def _column(cost: DryCost) -> str:
    return f"{cost.policy}, forgotten for good" if cost.forgotten else cost.policy


def _past(cost: DryCost) -> str:
    return (
        f"Under {_column(cost)} positions go past those that the model was trained on, from token "
        f"{count(cost.past_training)} on; a replay with the model ends there."
    )


def _written(value: float, full: float) -> str:
    ratio = f" ({value / full:.2f}×)" if full and value != full else ""
    return f"{count(value)}{ratio}"


def _cell(value: float, full: float, most: float) -> Element:
    """Return a figure with a bar, as long as it is to the most of its row; a tick is at what full costs."""
    whole = most or 1.0
    width, tick = _BAR * value / whole, _BAR * full / whole
    bar = el(
        "svg",
        el("rect", width=_BAR, height=_HIGH, class_="dr-track"),
        el("rect", width=width, height=_HIGH, class_="dr-data"),
        el("path", d=f"M{tick:.1f} -1V{_HIGH + 1}", class_="dr-tick"),
        width=_BAR,
        height=_HIGH,
        viewBox=f"0 0 {_BAR} {_HIGH}",
        aria_hidden="true",
    )
    return el("span", el("span", _written(value, full), class_="num"), bar, class_="dr-cell")
