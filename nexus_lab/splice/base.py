"""Contracts of the splice room: plans, strategies, results and refusals."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from nexus_lab._core import FormatError
    from nexus_lab.errors import Decline

__all__ = [
    "BlockRefused",
    "RepairKind",
    "RepairPath",
    "RepairPlan",
    "RepairStrategy",
    "Run",
    "SplicePath",
    "SpliceResult",
    "SpliceTimings",
]


class BlockRefused(NexusError):
    """A block file does not fit the running model, or is not a whole block file.

    Attributes
    ----------
    field
        The field of the file that differs.
    expected, found
        What the running model or the format wants, and what the file holds.
    """

    def __init__(self, field: str, *, expected: object, found: object, path: object = None) -> None:
        where = f" {path}" if path is not None else ""
        super().__init__(
            f"block{where}: {field} is {found}, expected {expected}",
            next_step="compile the block again with the running model (a library does it by itself)",
        )
        self.field = field
        self.expected = expected
        self.found = found

    @classmethod
    def wrap(cls, error: FormatError, *, path: object) -> BlockRefused:
        """Turn what the native reader found into this room's error."""
        return cls(error.field, expected=error.expected, found=error.found, path=path)


class RepairKind(StrEnum):
    """How the tokens of a splice that are computed in their true context were chosen."""

    NONE = "none"
    LEADING = "leading"
    CARRIED = "carried"
    TRAILING = "trailing"
    PROFILE = "profile"
    SCATTERED = "scattered"
    FULL = "full"


class SplicePath(StrEnum):
    """The road a block took into the cache, in the source paper's letters."""

    SPLICE = "A"
    PREFILL = "B"


class RepairPath(StrEnum):
    """How the tokens of a repair were computed.

    ``runs``: each stretch by a prefill of its own, in its turn between the spliced ones; a single stretch
    needs nothing else. ``one_pass``: all of them together, by one prefill with patched inputs over the whole
    splice.
    """

    RUNS = "runs"
    ONE_PASS = "one_pass"  # noqa: S105 - no secret


class Run(NamedTuple):
    """A stretch of a block, half open, that is recomputed or spliced as a whole."""

    start: int
    stop: int
    recomputed: bool


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Which tokens of a block are computed in their true context; the others are spliced.

    Attributes
    ----------
    kind
        How they were chosen.
    n_tokens
        Length of the block.
    recomputed
        Their indices in the block, ascending.
    """

    kind: RepairKind
    n_tokens: int
    recomputed: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Tokens recomputed."""
        return len(self.recomputed)

    @property
    def fraction(self) -> float:
        """Recomputed share of the block, from 0 to 1."""
        return self.count / self.n_tokens if self.n_tokens else 0.0

    def runs(self) -> tuple[Run, ...]:
        """Stretches of the block in order, each recomputed or spliced as a whole."""
        chosen = set(self.recomputed)
        stretches = groupby(range(self.n_tokens), key=chosen.__contains__)
        members = [(recomputed, list(indices)) for recomputed, indices in stretches]
        return tuple(Run(indices[0], indices[-1] + 1, recomputed) for recomputed, indices in members)


@runtime_checkable
class RepairStrategy(Protocol):
    """Chooses the tokens of a block to recompute."""

    @property
    def name(self) -> str:
        """Name under which results and settings know the strategy."""
        ...

    def plan(
        self,
        n_tokens: int,
        n_past: int,
        budget: float | None = None,
        *,
        sensitivity: NDArray[np.float32] | None = None,
    ) -> RepairPlan:
        """Choose for a block of `n_tokens` behind `n_past` tokens.

        Parameters
        ----------
        n_tokens
            Length of the block.
        n_past
            Tokens before the block.
        budget
            Fraction of the block that may be recomputed; ``None`` leaves it to the strategy.
        sensitivity
            How far each token's rows moved between the contexts that the block was compiled behind,
            float32 [n_tokens]; ``None`` when it was compiled behind one.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SpliceTimings:
    """Wall time of each step of a splice, in seconds; a step that did not run took 0.

    Attributes
    ----------
    check_s
        Header checked against the running model.
    rotate_s
        Keys read from the file, rotated from their anchor to the cursor, and laid out as cells.
    restore_s
        Rows written into the cache.
    repair_s
        Tokens computed in their true context; a full prefill of the block counts here too.
    rest_s
        The rest of the prompt, up to the logits of the first new token.
    """

    check_s: float = 0.0
    rotate_s: float = 0.0
    restore_s: float = 0.0
    repair_s: float = 0.0
    rest_s: float = 0.0

    @property
    def block_s(self) -> float:
        """Time until the block stood in the cache."""
        return self.check_s + self.rotate_s + self.restore_s + self.repair_s

    @property
    def total_s(self) -> float:
        """Time of all steps."""
        return self.block_s + self.rest_s

    def to_dict(self) -> dict[str, float]:
        """Return the steps by name, in seconds."""
        steps = ("check_s", "rotate_s", "restore_s", "repair_s", "rest_s")
        return {step: getattr(self, step) for step in steps}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpliceResult:
    """How a block came into the cache.

    Attributes
    ----------
    path
        ``A`` when any row was spliced, ``B`` when the block was prefilled as text.
    plan
        The repair that ran; ``full`` on path B.
    contract
        The contract asked for, in the words of the settings; empty when the caller named a strategy.
    n_past
        Position of the block's first token.
    n_tokens
        Length of the block.
    anchored
        The preceding tokens are those the block was compiled behind, at the same position.
    timings
        Wall time of each step.
    declined
        Why path B was taken, or ``None``.
    repair_path
        How the plan's tokens were computed.
    repair_declined
        Why several stretches were computed one by one, or ``None``.
    logits
        Logits after the rest of the prompt, float32 [n_vocab]; ``None`` without a rest.
    """

    path: SplicePath
    plan: RepairPlan
    contract: str
    n_past: int
    n_tokens: int
    anchored: bool
    timings: SpliceTimings
    declined: Decline | None = None
    repair_path: RepairPath = RepairPath.RUNS
    repair_declined: Decline | None = None
    logits: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)

    @property
    def spliced(self) -> int:
        """Tokens whose rows came from the block file."""
        return self.n_tokens - self.plan.count

    @property
    def repaired(self) -> int:
        """Tokens computed in their true context."""
        return self.plan.count

    @property
    def seconds(self) -> float:
        """Time until the block stood in the cache."""
        return self.timings.block_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: the block and the rest of the prompt; ``None`` without a rest."""
        return self.timings.total_s if self.logits is not None else None

    def to_row(self) -> dict[str, Any]:
        """Return the record as flat JSON values."""
        return {
            "path": self.path.value,
            "repair": self.plan.kind.value,
            "contract": self.contract,
            "n_past": self.n_past,
            "n_tokens": self.n_tokens,
            "spliced": self.spliced,
            "repaired": self.repaired,
            "anchored": self.anchored,
            "declined": self.declined.code if self.declined else None,
            "reason": self.declined.reason if self.declined else None,
            "repair_path": self.repair_path.value,
            "repair_reason": self.repair_declined.reason if self.repair_declined else None,
            "ttft_s": self.ttft_s,
            **self.timings.to_dict(),
        }
