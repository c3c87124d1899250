"""A cache policy as fields of a view: which one, and a value for each of its knobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from nexus_lab.lab.drawing import chosen, el
from nexus_lab.policy_text import POLICIES, KnobKind, PolicySpec, PolicyTextError, parse_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.lab.drawing import Element
    from nexus_lab.policy_text import Knob
    from nexus_lab.settings import Profile

    Value = int | bool | str

__all__ = ["OFFERED", "PolicyChoice", "chosen_policy", "explicit", "policy_fields", "profile_policy"]

OFFERED = tuple(name for name in POLICIES if name != "python")
"""Policies that a view can choose; one that runs code is only the profile's to name."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy as it was chosen.

    Attributes
    ----------
    spec
        The policy with a value for every knob.
    faults
        What is wrong with a field, by knob; its value in `spec` is the one it had before.
    """

    spec: PolicySpec
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The policy as a profile takes it."""
        return explicit(self.spec)


def explicit(spec: PolicySpec) -> str:
    """Return a policy as text that means the same under every profile.

    A profile may keep another number of tool responses, so that knob is always told.
    """
    told = dict(PolicySpec(spec.name, spec.options).options)
    knobs = POLICIES[spec.name].knobs
    parts = [
        f"{knob.name}={knob.write(told.get(knob.name, knob.default))}"
        for knob in knobs
        if knob.name == "keep_last" or told.get(knob.name, knob.default) != knob.default
    ]
    return f"{spec.name}({','.join(parts)})" if parts else spec.name


def profile_policy(profile: Profile) -> PolicySpec:
    """Return the policy that a profile names, with a value for every knob."""
    given = parse_policy(profile.policy)
    name = "rolling_drop_repos" if given.name == "rolling_drop" and profile.repos else given.name
    options: dict[str, Value] = {knob.name: knob.default for knob in POLICIES[name].knobs}
    # Where a summary stays whole, keep_last counts messages, and is none of the profile's.
    if "keep_last" in options and name != "summarise":
        options["keep_last"] = profile.keep_responses
    return PolicySpec(name, MappingProxyType({**options, **given.options}))


def chosen_policy(values: Mapping[str, str], profile: Profile) -> PolicyChoice:
    """Return the policy that a view's fields say; the profile's where they say nothing.

    Parameters
    ----------
    values
        ``policy``, and ``knob.POLICY.NAME`` for a knob.
    """
    own = profile_policy(profile)
    name = values.get("policy") or own.name
    if name != own.name and name not in OFFERED:
        name = own.name
    options: dict[str, Value] = {}
    faults: dict[str, str] = {}
    for knob in POLICIES[name].knobs:
        before = own.options[knob.name] if name == own.name else knob.default
        text = values.get(field_name(name, knob))
        options[knob.name] = before
        if text is None or name == "python":
            continue
        try:
            options[knob.name] = knob.read(text or "no" if knob.kind is KnobKind.FLAG else text)
        except PolicyTextError as error:
            faults[knob.name] = f"{error.problem}: {error.next_step}"
    return PolicyChoice(PolicySpec(name, MappingProxyType(options)), MappingProxyType(faults))


def field_name(policy: str, knob: Knob) -> str:
    """Return the name of the field of a knob."""
    return f"knob.{policy}.{knob.name}"


def policy_fields(choice: PolicyChoice, profile: Profile) -> Element:
    """Return the fields: the policy by name, then its knobs, each with what it does."""
    spec = choice.spec
    names = dict.fromkeys((profile_policy(profile).name, *OFFERED))
    kind = POLICIES[spec.name]
    policy = el(
        "label",
        el("span", "Policy"),
        chosen("policy", spec.name, ((name, name) for name in sorted(names, key=tuple(POLICIES).index))),
        class_="f",
    )
    knobs = (_knob(spec, knob, choice.faults.get(knob.name)) for knob in kind.knobs)
    about = el("p", f"{kind.about}.", class_="small muted")
    return el("div", policy, about, el("div", *knobs, class_="dr-knobs"), class_="dr-form")


def _knob(spec: PolicySpec, knob: Knob, fault: str | None) -> Element:
    value = spec.options.get(knob.name, knob.default)
    name = field_name(spec.name, knob)
    label = f"{knob.name}: {knob.about}"
    if knob.kind is KnobKind.FLAG:
        box = el("input", type="checkbox", name=name, checked=bool(value))
        return el("label", box, f" {label}", class_="c")
    if knob.kind is KnobKind.CHOICE:
        control = chosen(name, str(value), ((item, item) for item in knob.choices))
    elif knob.kind is KnobKind.COUNT:
        control = el("input", type="number", name=name, value=str(value), min=knob.low, step=1)
    else:
        control = el("input", type="text", name=name, value=str(value), disabled=True)
    wrong = el("span", f"× {fault}", class_="dr-bad") if fault else None
    return el("label", el("span", label), control, wrong, class_="f")
