"""Bringing a state back: what it would take, and what it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nexus_lab.lab.drawing import OP_LETTERS, Drawing, aligned, called, chosen, el, note, pattern, table
from nexus_lab.lab.restore_plan import START_WORDS
from nexus_lab.trace.text import count, duration, plural, sentence

if TYPE_CHECKING:
    import polars as pl

    from nexus_lab.lab.drawing import Child, Element
    from nexus_lab.lab.restore_plan import ColdTrial, Pass, RestoreDone, RestorePlan

__all__ = ["RestoreView"]

_MOST_OPS = 400
_BAR, _HIGH = 320, 16


@dataclass(frozen=True, repr=False)
class RestoreView(Drawing):
    """The restore of one state.

    Attributes
    ----------
    ops
        Operation kinds of the live program, in order.
    plan, cold
        What it would do from what is kept now, and as if nothing were kept; ``None`` before it was asked.
    done
        What the last one did.
    trial
        A trial from nothing.
    chosen_op
        The operation chosen in the view; ``None`` for the last one.
    evicted
        What had been evicted when the view was made, counted as in the plans.
    """

    title: ClassVar[str] = "Restore"

    ops: tuple[str, ...] = ()
    plan: RestorePlan | None = None
    cold: RestorePlan | None = None
    done: RestoreDone | None = None
    trial: ColdTrial | None = None
    chosen_op: int | None = None
    live: bool = True
    evicted: int = 0

    def element(self) -> Element:
        """Return the choice of a state, the plans, and what was done."""
        if not self.ops:
            return el("p", "There is no state to bring back yet.", class_="muted")
        plans = [plan for plan in (self.plan, self.cold) if plan is not None]
        return el(
            "div",
            self._form() if self.live else None,
            *(self._plan(plan) for plan in plans),
            None
            if plans
            else el("p", "Choose a state to see what bringing it back would do.", class_="muted"),
            self._done(),
            self._trial(),
            class_="dr",
        )

    def _form(self) -> Element:
        last = len(self.ops)
        at = self.chosen_op or last
        names = [
            (str(number), f"op {count(number)}, {kind}")
            for number, kind in enumerate(self.ops, start=1)
            if number > last - _MOST_OPS or number == at
        ]
        return el(
            "div",
            el(
                "label",
                el("span", "State behind"),
                chosen("op", str(at), names, call="cache.plan"),
                class_="f",
            ),
            called("Plan", "cache.plan"),
            called("Bring it back", "cache.restore", primary=True),
            called("Try from nothing", "cache.try_restore"),
            class_="row dr-form",
        )

    def _plan(self, plan: RestorePlan) -> Element:
        rows = (
            (
                " ".join(OP_LETTERS[kind] for kind in step.kinds),
                "one prefill" if step.joined else step.kinds[0],
                count(step.tokens),
                count(step.hidden),
                count(step.loaded),
                count(step.cells),
            )
            for step in plan.steps
        )
        head = (
            "ops",
            "as",
            "tokens computed",
            "of them hidden from later ones",
            "tokens from compiled blocks",
            "cells",
        )
        steps = (
            el(
                "details",
                el("summary", _n_passes(len(plan.steps))),
                table(head, rows, label=f"Passes, {_heading(plan)}", right=(2, 3, 4, 5)),
            )
            if plan.steps
            else None
        )
        late = len(self.ops) - plan.of
        return el(
            "div",
            el("b", _heading(plan)),
            el("span", f" (planned {plural(late, 'operation')} ago)", class_="muted") if late > 0 else None,
            el("p", plan_words(plan)),
            note("warn", self._since(plan)) if self._since(plan) else None,
            _picture(plan),
            steps,
            note("warn", el("b", "Step by step: "), _declined_words(plan)) if plan.declined else None,
        )

    def _since(self, plan: RestorePlan) -> str:
        """Return that memory was freed since a plan of what is kept; empty when none was."""
        n = 0 if plan.cold else self.evicted - plan.evicted
        if n <= 0:
            return ""
        verb = "eviction" if n == 1 else "evictions"
        return f"{count(n)} {verb} since this was planned: what it begins with may be gone. Plan again."

    def _done(self) -> Element | None:
        return None if self.done is None else el("p", el("b", "Done: "), done_words(self.done), role="status")

    def _trial(self) -> Element | None:
        return None if self.trial is None else el("p", el("b", "Tried: "), trial_words(self.trial))

    def to_text(self) -> str:
        """Return the plans and what was done as text."""
        if not self.ops:
            return "There is no state to bring back yet."
        lines: list[str] = []
        for plan in (self.plan, self.cold):
            if plan is None:
                continue
            lines.append(f"{_heading(plan)}: {plan_words(plan)}")
            lines += [f"! {self._since(plan)}"] if self._since(plan) else []
            if plan.declined is not None:
                lines.append(f"! step by step: {_declined_words(plan)}")
            if plan.steps:
                rows = [(" ".join(step.kinds), count(step.tokens), count(step.hidden)) for step in plan.steps]
                lines.append(aligned(("pass", "tokens", "hidden"), rows))
        lines += [f"done: {done_words(self.done)}"] if self.done is not None else []
        lines += [f"tried: {trial_words(self.trial)}"] if self.trial is not None else []
        return "\n".join(lines) or f"{plural(len(self.ops), 'state')} can be brought back; plan one."

    def to_frame(self) -> pl.DataFrame:
        """Return a row for each pass of the plans: its tokens ``loaded`` come from compiled blocks."""
        import polars as pl

        rows = [
            {
                "plan": "nothing kept" if plan.cold else "as kept",
                "op": plan.op,
                "pass": number,
                "ops": list(step.kinds),
                "joined": step.joined,
                "tokens": step.tokens,
                "hidden": step.hidden,
                "loaded": step.loaded,
                "cells": step.cells,
            }
            for plan in (self.plan, self.cold)
            if plan is not None
            for number, step in enumerate(plan.steps, start=1)
        ]
        whole = pl.Int64
        schema: dict[str, Any] = {
            "plan": pl.String,
            **dict.fromkeys(("op", "pass"), whole),
            "ops": pl.List(pl.String),
            "joined": pl.Boolean,
            **dict.fromkeys(("tokens", "hidden", "loaded", "cells"), whole),
        }
        return pl.DataFrame(rows, schema=schema)


def _heading(plan: RestorePlan) -> str:
    how = "if nothing were kept" if plan.cold else "from what is kept now"
    return f"Op {count(plan.op)} of {count(plan.of)}, {how}"


def _n_passes(number: int) -> str:
    return f"{count(number)} {'pass' if number == 1 else 'passes'}"


def plan_words(plan: RestorePlan) -> str:
    """Return a plan in sentences."""
    where = f" ({' and '.join(plan.places)})" if plan.places else ""
    begin = f"Begins with {START_WORDS[plan.start]}{where}"
    begin += f", which has {plural(plan.there, 'token')}" if plan.there else ""
    if not plan.steps:
        return f"{begin}; nothing is left to do."
    loaded = f"; {plural(plan.loaded, 'token')} from compiled blocks" if plan.loaded else ""
    if not plan.tokens:
        return f"{begin}; {plural(len(plan.steps), 'operation')} without a prefill{loaded}."
    epochs = f"{count(plan.epochs)} {'epoch' if plan.epochs == 1 else 'epochs'} between repos"
    joined = f"{count(plan.joined)} of them several operations at once" if plan.joined else "none joined"
    n_passes = _n_passes(len(plan.steps))
    return f"{begin}; computes {plural(plan.tokens, 'token')} in {n_passes}, {joined}; {epochs}{loaded}."


def done_words(done: RestoreDone) -> str:
    """Return what was done in a sentence."""
    begin = f"op {count(done.op)} from {START_WORDS[done.start]}"
    begin += " on disk" if done.from_disk else ""
    begin += f" with {plural(done.there, 'token')}" if done.there else ""
    did = f"{plural(done.ops, 'operation')} run, {plural(done.computed, 'token')} computed"
    joined = f", {_n_passes(done.passes)} joined" if done.at_once else ""
    why = f"; step by step because {done.declined.reason}" if done.declined is not None else ""
    return f"{begin}; {did}{joined}, {duration(done.seconds * 1e9)}{why}."


def trial_words(trial: ColdTrial) -> str:
    """Return a trial from nothing in a sentence."""
    once, steps = trial.at_once, trial.stepwise
    near = "" if trial.difference is None else f"; logits differ by {trial.difference:.2g} at most"
    joined = f"{_n_passes(once.passes)} joined"
    why = f" ({once.declined.reason})" if once.declined is not None else ""
    other = f" Another state came about, since {trial.declined.reason}." if trial.declined is not None else ""
    return (
        f"op {count(once.op)} from nothing, {plural(once.computed, 'token')}: at once "
        f"{duration(once.seconds * 1e9)} with {joined}{why}, step by step {duration(steps.seconds * 1e9)}, "
        f"one run each{near}.{other} Nothing of it was kept."
    )


def _declined_words(plan: RestorePlan) -> str:
    declined = plan.declined
    return "" if declined is None else f"{sentence(declined.reason)} Instead: {declined.instead}."


def _picture(plan: RestorePlan) -> Element | None:
    """Return a bar of what is there already, and what each pass computes or takes from compiled blocks."""
    whole = plan.there + plan.tokens + plan.loaded
    if not whole:
        return None
    parts: list[Child] = []
    at = 0.0
    for kind, tokens in ((plan.places[0] if plan.places else "live", plan.there), *map(_slice, plan.steps)):
        width = _BAR * tokens / whole
        if width:
            parts.append(pattern(kind, at, 0, width, _HIGH))
            parts.append(el("rect", x=at, width=width, height=_HIGH, class_=f"dr-edge dr-edge-{kind}"))
        at += width
    words = f"{plural(plan.there, 'token')} there, {plural(plan.tokens, 'token')} computed"
    words += f", {plural(plan.loaded, 'token')} from compiled blocks" if plan.loaded else ""
    return el(
        "svg",
        *parts,
        viewBox=f"0 0 {_BAR} {_HIGH}",
        width=_BAR,
        height=_HIGH,
        role="img",
        aria_label=words,
    )


def _slice(step: Pass) -> tuple[str, int]:
    return ("joined" if step.joined else step.kinds[0]), step.tokens + step.loaded
