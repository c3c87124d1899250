"""Who writes the next cache policy of a search: an optimiser, or a language model that reads results.

Both write policies in the form that settings and the command line take, never code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nexus_lab.agent import Endpoint, EndpointError
from nexus_lab.arguments import grammar_text
from nexus_lab.engine import GrammarMask, SamplerSettings
from nexus_lab.errors import NexusError
from nexus_lab.policy_text import POLICIES, KnobKind, PolicySpec, PolicyTextError, parse_policy
from nexus_lab.registry import neutralise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexus_lab.engine import Engine
    from nexus_lab.policy_text import Knob, PolicyKind

__all__ = [
    "OWN_CODE",
    "SEARCHED",
    "BadAnswer",
    "EndpointWriter",
    "LocalWriter",
    "ModelProposer",
    "OptunaProposer",
    "Proposer",
    "ProposerError",
    "Trial",
    "Writer",
]

OWN_CODE = "python"
"""The policy that runs a function: only a user may name it, never who proposes."""

SEARCHED = tuple(name for name in POLICIES if name not in {"full", OWN_CODE})
"""Policies that are searched unless others are named."""

_SHOWN_TRIALS = 12
_WHY = 120
_ANSWER_TOKENS = 256
_SHOWN = 160


class ProposerError(NexusError):
    """A proposer that cannot propose."""


class BadAnswer(ProposerError):
    """A model's answer that is no policy; another may be one."""


def _insist_searchable(names: Sequence[str]) -> None:
    for name in names:
        if name not in POLICIES or name == OWN_CODE:
            raise ProposerError(
                f"{name!r} cannot be proposed", next_step="choose among " + ", ".join(SEARCHED)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A policy that was tried.

    Attributes
    ----------
    number
        From 0.
    policy
        The policy as text.
    proposer
        Who proposed it.
    why
        In its words; empty where it has none.
    nll
        Nats per token of the real replies; None when some conversation was declined.
    cost
        Of a conversation, at the search's prices; None likewise.
    declined
        Conversations that the policy could not go through.
    """

    number: int
    policy: str
    proposer: str
    why: str = ""
    nll: float | None = None
    cost: float | None = None
    declined: int = 0


@runtime_checkable
class Proposer(Protocol):
    """Writes the next policy."""

    @property
    def name(self) -> str:
        """Name in results."""
        ...

    def propose(self, past: Sequence[Trial], *, attempt: int = 0) -> tuple[PolicySpec, str]:
        """Return a policy to try, and why.

        Parameters
        ----------
        past
            All trials so far.
        attempt
            How often what it proposed had been tried before, or was no policy; it should come up with
            something else.
        """
        ...


@runtime_checkable
class Writer(Protocol):
    """A language model that answers under a JSON schema."""

    def write(self, prompt: str, schema: Mapping[str, Any], *, seed: int) -> str:
        """Return its answer, JSON text."""
        ...


# -- optuna -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OptunaProposer:
    """Proposes with optuna's tree-structured Parzen estimator, for both objectives at once.

    The study is made anew from the trials each time, so that a search can be taken up, and can learn from
    what others proposed.

    Attributes
    ----------
    policies
        Names to choose from.
    seed
        Of the sampler.

    Raises
    ------
    ProposerError
        When it is to choose from what runs code, or is no policy.
    """

    policies: tuple[str, ...] = SEARCHED
    seed: int = 0
    name: str = "optuna"

    def __post_init__(self) -> None:
        """Look at the names before anything is tried."""
        _insist_searchable(self.policies)

    def propose(self, past: Sequence[Trial], *, attempt: int = 0) -> tuple[PolicySpec, str]:
        """Return a policy to try.

        Raises
        ------
        ProposerError
            When optuna is not there.
        """
        try:
            import optuna
        except ImportError as error:
            raise ProposerError(
                "optuna is not installed",
                next_step="pip install 'nexus_lab[search]', or choose --proposer model",
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        seed = self.seed + len(past) + 1000 * attempt
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=6)
        study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
        for trial in past:
            known = self._known(optuna, trial)
            if known is not None:
                study.add_trial(known)
        asked = study.ask()
        name = asked.suggest_categorical("policy", list(self.policies))
        knobs = {knob.name: _suggested(asked, name, knob) for knob in POLICIES[name].knobs}
        return PolicySpec(name, knobs), ""

    def _known(self, optuna: Any, trial: Trial) -> Any:
        spec = parse_policy(trial.policy)
        if trial.nll is None or spec.name not in self.policies:
            return None
        among = optuna.distributions.CategoricalDistribution(list(self.policies))
        params: dict[str, Any] = {"policy": spec.name}
        distributions: dict[str, Any] = {"policy": among}
        for knob in POLICIES[spec.name].knobs:
            value = spec.options.get(knob.name, knob.default)
            if knob.kind is KnobKind.COUNT and int(value) > knob.high:
                return None  # a user tried what a search does not
            params[f"{spec.name}.{knob.name}"] = value
            distributions[f"{spec.name}.{knob.name}"] = _distribution(optuna, knob)
        return optuna.trial.create_trial(
            params=params, distributions=distributions, values=[float(trial.nll), float(trial.cost or 0)]
        )


def _distribution(optuna: Any, knob: Knob) -> Any:
    if knob.kind is KnobKind.COUNT:
        return optuna.distributions.IntDistribution(knob.low, knob.high)
    choices = [True, False] if knob.kind is KnobKind.FLAG else list(knob.choices)
    return optuna.distributions.CategoricalDistribution(choices)


def _suggested(asked: Any, name: str, knob: Knob) -> Any:
    label = f"{name}.{knob.name}"
    if knob.kind is KnobKind.COUNT:
        return asked.suggest_int(label, knob.low, knob.high)
    return asked.suggest_categorical(
        label, [True, False] if knob.kind is KnobKind.FLAG else list(knob.choices)
    )


# -- a language model ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelProposer:
    """Lets a language model read the results so far and write the next policy, under a schema.

    Attributes
    ----------
    writer
        The model.
    policies
        Names that it may choose from; an answer with another is none.
    seed
        Of its sampling.

    Raises
    ------
    ProposerError
        When it is to choose from what runs code, or is no policy.
    """

    writer: Writer
    policies: tuple[str, ...] = SEARCHED
    seed: int = 0
    name: str = "model"

    def __post_init__(self) -> None:
        """Look at the names before anything is tried."""
        _insist_searchable(self.policies)

    def propose(self, past: Sequence[Trial], *, attempt: int = 0) -> tuple[PolicySpec, str]:
        """Return the policy that the model writes.

        Raises
        ------
        BadAnswer
            When it writes none.
        """
        schema = self.schema()
        text = self.writer.write(self.prompt(past), schema, seed=self.seed + len(past) + 1000 * attempt)
        try:
            said = json.loads(text)
            name, why = str(said.pop("policy")), neutralise(str(said.pop("why", "")), limit=_WHY)
            # An endpoint need not hold its model to the schema.
            kind = {offered: POLICIES[offered] for offered in self.policies}[name]
            knobs = {knob.name: knob for knob in kind.knobs}
            told = ",".join(f"{key}={_written(knobs[key], value)}" for key, value in said.items())
            return parse_policy(f"{name}({told})"), why
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError, PolicyTextError) as error:
            raise BadAnswer(
                f"the model wrote no policy: {text[:_WHY]!r}", next_step="try again, or another model"
            ) from error

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of an answer: a policy, all its knobs, and why."""
        return {"anyOf": [_kind_schema(POLICIES[name]) for name in self.policies]}

    def prompt(self, past: Sequence[Trial]) -> str:
        """Return what the model reads: what there is to choose from, and how the best and the last did."""
        kinds = "\n".join(_kind_words(POLICIES[name]) for name in self.policies)
        done = [trial for trial in past if trial.nll is not None]
        best = _thinned(front_of(done), _SHOWN_TRIALS)
        shown = {trial.number: trial for trial in (*best, *past[-_SHOWN_TRIALS:])}
        lines = "\n".join(
            f"- {trial.policy}: NLL {trial.nll:.4f}, cost {trial.cost:.0f}"
            if trial.nll is not None and trial.cost is not None
            else f"- {trial.policy}: failed on {trial.declined} conversations"
            for _, trial in sorted(shown.items())
        )
        return (
            "You tune how an agent manages its KV cache. Lower NLL is better, and so is lower cost.\n"
            f"Policies and their knobs:\n{kinds}\n\nTried so far:\n{lines or '- nothing'}\n\n"
            "Propose one policy that was not tried and could be better in NLL, in cost, or in both. "
            "Answer with JSON."
        )


def front_of(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that no other beats in both NLL and cost, cheapest first."""
    done = [trial for trial in trials if trial.nll is not None and trial.cost is not None]
    front: list[Trial] = []
    for trial in sorted(done, key=lambda item: (item.cost or 0.0, item.nll or 0.0)):
        if not front or (trial.nll or 0.0) < (front[-1].nll or 0.0):
            front.append(trial)
    return front


def _thinned(trials: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most so many of the trials, evenly spread with both ends, since a prompt has an end."""
    if len(trials) <= most:
        return list(trials)
    return [trials[round(place * (len(trials) - 1) / (most - 1))] for place in range(most)]


def _written(knob: Knob, value: Any) -> str:
    """Return a knob's value as text; what a search does not look at is no answer."""
    if knob.kind is KnobKind.COUNT and not (isinstance(value, int) and knob.low <= value <= knob.high):
        raise ValueError(f"{knob.name} = {value!r:.20}")
    return knob.write(value)


def _kind_words(kind: PolicyKind) -> str:
    knobs = "; ".join(f"{knob.name} ({knob.about})" for knob in kind.knobs)
    return f"- {kind.name}: {kind.about}. Knobs: {knobs}"


def _kind_schema(kind: PolicyKind) -> dict[str, Any]:
    knobs = {knob.name: _knob_schema(knob) for knob in kind.knobs}
    properties = {"why": {"type": "string", "maxLength": _WHY}, "policy": {"const": kind.name}, **knobs}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _knob_schema(knob: Knob) -> dict[str, Any]:
    if knob.kind is KnobKind.COUNT:
        return {"type": "integer", "minimum": knob.low, "maximum": knob.high}
    return {"type": "boolean"} if knob.kind is KnobKind.FLAG else {"enum": list(knob.choices)}


@dataclass(frozen=True, slots=True)
class LocalWriter:
    """A model of this machine, held to the schema by a grammar."""

    engine: Engine
    temperature: float = 0.8

    def write(self, prompt: str, schema: Mapping[str, Any], *, seed: int) -> str:
        """Return its answer."""
        engine = self.engine
        mask = GrammarMask(engine, grammar_text(schema))
        rendered = engine.render_chat([{"role": "user", "content": prompt}])
        with engine.scratch_sequence() as seq:
            logits = engine.prefill(seq, engine.tokenize(rendered))
            if logits is None:
                raise ProposerError("the model gave no logits", next_step="report this")
            sampler = SamplerSettings(temperature=self.temperature, seed=seed)
            return engine.generate(seq, logits, max_tokens=_ANSWER_TOKENS, sampler=sampler, mask=mask).text


@dataclass(frozen=True, slots=True)
class EndpointWriter:
    """A model behind an endpoint that speaks the OpenAI chat API.

    Attributes
    ----------
    url
        Such as ``http://localhost:8080/v1``.
    model
        Its name there.
    key_variable
        Environment variable of the API key; ``None`` sends none. It goes to that address only, over https or
        to this machine.
    timeout_s
        Longest wait.
    headers
        Sent with each request; as of `Endpoint`.

    Raises
    ------
    ProposerError
        When the address is none, or the key cannot be sent there.
    """

    url: str
    model: str
    key_variable: str | None = None
    timeout_s: float = 120.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        # Known before hours are spent on the policies that come first.
        try:
            self._endpoint()
        except EndpointError as error:
            raise ProposerError(error.problem, next_step=error.next_step) from error

    def write(self, prompt: str, schema: Mapping[str, Any], *, seed: int) -> str:
        """Return its answer.

        Raises
        ------
        ProposerError
            When the endpoint does not answer, or not in that form.
        """
        body = {
            "messages": [{"role": "user", "content": f"{prompt}\nJSON schema: {json.dumps(schema)}"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "policy", "schema": schema},
            },
            "seed": seed,
        }
        try:
            return self._endpoint().ask(body).text
        except EndpointError as error:
            raise ProposerError(
                f"{neutralise(self.url, limit=_SHOWN)} gave no answer: {error.problem}",
                next_step=error.next_step,
            ) from error

    def _endpoint(self) -> Endpoint:
        return Endpoint(
            self.url,
            self.model,
            key_variable=self.key_variable,
            timeout_s=self.timeout_s,
            headers=self.headers,
        )
