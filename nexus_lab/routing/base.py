"""The contracts of the routing room: embedder, cross-encoder, and the record of a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from nexus_lab.errors import NexusError
from nexus_lab.registry import neutralise

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

__all__ = [
    "CalibrationError",
    "Candidate",
    "CrossEncoder",
    "Embedder",
    "EmbedderError",
    "Message",
    "Outcome",
    "RoutingDecision",
    "RoutingError",
    "View",
    "ViewKind",
]

_MATCHED = 160

Message = Mapping[str, Any]
"""A turn of the conversation: ``role`` and ``content``, and ``tool_calls`` where the assistant called."""


class RoutingError(NexusError):
    """A request could not be routed, or the index could not be changed."""


class EmbedderError(RoutingError):
    """The embedder cannot be loaded, or its weights are not the ones expected."""


class CalibrationError(RoutingError):
    """A calibration cannot be read or made."""


class ViewKind(StrEnum):
    """What a vector of a tool was made from."""

    NAME = "name"
    DESCRIPTION = "description"
    SENTENCE = "sentence"
    CHOICE = "choice"
    PARAMETERS = "parameters"
    EXAMPLE = "example"


@dataclass(frozen=True, slots=True)
class View:
    """One text that stands for a tool in the index."""

    kind: ViewKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@runtime_checkable
class Embedder(Protocol):
    """Turns text into unit vectors. What a text must be prefixed with is the embedder's own business.

    Attributes
    ----------
    name
        For people.
    fingerprint
        Changes whenever the same text may get another vector.
    dim
        Length of a vector.
    query_prefix, document_prefix
        What the model was trained to see before a request and before a tool; often empty.
    """

    name: str
    fingerprint: str
    dim: int
    query_prefix: str
    document_prefix: str

    def embed_queries(self, texts: Sequence[str]) -> Floats:
        """Return float32 [n, dim], each row of unit norm."""

    def embed_documents(self, texts: Sequence[str]) -> Floats:
        """Return float32 [n, dim], each row of unit norm."""


@runtime_checkable
class CrossEncoder(Protocol):
    """Scores a request against each of a few tools by reading both together."""

    name: str

    def score(self, request: str, documents: Sequence[str]) -> Floats:
        """Return float32 [n], higher where the tool fits better."""


class Outcome(StrEnum):
    """How a decision was reached.

    ``auto``: the margin reached tau, or the request names the tool or is much like one that was given for it;
    ``escalated``: a cross-encoder chose; ``escalation_unavailable``: the margin is under tau and there is
    no cross-encoder, the best candidate stands unconfirmed; ``no_tool``: no tool seems to fit.
    """

    AUTO = "auto"
    ESCALATED = "escalated"
    ESCALATION_UNAVAILABLE = "escalation_unavailable"
    NO_TOOL = "no_tool"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tool and what each stage thought of it.

    Attributes
    ----------
    tool
        Its name in the registry.
    score
        Fused score; comparable across requests, not a probability.
    dense
        Cosine of the request and the best view of the tool, drawn towards the cosine of its examples where
        those are nearer.
    lexical
        Saturated BM25, in [0, 1).
    example
        Cosine of the request and the tool's nearest example, where it has one.
    cross_encoder
        Probability by the cross-encoder that the tool fits, rather than none, where it was asked.
    view
        The view or the example that is nearest.
    notes
        What else moved the score, each in a few words: ``needs a number``, ``its server is named``.
    """

    tool: str
    score: float
    dense: float
    lexical: float
    cross_encoder: float | None = None
    view: View | None = None
    example: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingDecision:
    """Which tool a request goes to, and why.

    Attributes
    ----------
    request, normalised
        What was asked, and the text that was matched.
    candidates
        The best tools, best first.
    margin, dense_margin
        Score of the first candidate minus the second's: fused, and by cosine alone. A lone tool has no
        rival, its margin is its score; a tool that the request names may come first with a lower score.
    tau
        The margin from which a decision stands by itself.
    outcome, tool
        How it was decided and for which tool; no tool when none seems to fit.
    reason
        One sentence for the reader.
    fit, threshold
        What "no tool fits" is judged by, and the least that passes: the probability that a tool fits, or the
        fused score where no probability is calibrated.
    no_tool_chance
        Probability that no tool fits, where it is calibrated.
    used_context
        Whether the request refers back, so that the turn before it took part.
    times_ms
        Milliseconds of each stage: normalise, embed, scan, lexical, fuse, gate (and rerank).
    settings
        What the decision was made with.
    """

    request: str
    normalised: str
    candidates: tuple[Candidate, ...]
    margin: float
    dense_margin: float
    tau: float
    outcome: Outcome
    tool: str | None
    reason: str
    fit: float
    threshold: float
    used_context: bool
    no_tool_chance: float | None = None
    times_ms: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_ms(self) -> float:
        """Milliseconds of all stages."""
        return sum(self.times_ms.values())

    @property
    def matched(self) -> dict[str, str]:
        """By tool, the nearest of the texts that stand for it, safe to print, at most 160 characters.

        One of them may be what a user once asked, so these are contents.
        """
        return {
            item.tool: neutralise(item.view.text, limit=_MATCHED)
            for item in self.candidates
            if item.view is not None
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        values = asdict(self)
        values["times_ms"] = dict(self.times_ms)
        values["settings"] = dict(self.settings)
        return values
