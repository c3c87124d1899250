"""What a splice costs and keeps: D_KL, agreement and time to first token, by depth, repair and context.

Every cell compares a splice with the full prefill of the same tokens behind the same live prefix, at the
prompt's last token and at each token of a forced answer. Figures stand beside the model's noise floor.
"""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.bench.base import Result, ResultFile, ResultsError, median_interval
from nexus_lab.bench.splice_tools import SPLICE_CASES, SpliceCase, case_of
from nexus_lab.splice import (
    SYSTEM_PROMPT,
    BlockLibrary,
    NoRepair,
    Trailing,
    TrialCase,
    growing_prefix,
    measure_reference,
    measure_splice,
    noise_floor,
    prompt_tokens,
    splice_block,
    strategy,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nexus_lab.engine import Engine
    from nexus_lab.registry import Registry
    from nexus_lab.splice import RepairStrategy, ToolBlock, Trial

__all__ = ["DEFAULT_REPAIRS", "Repair", "run", "trial_case"]

_DEPTHS = (256, 512, 1024, 2048)
_CONTEXTS = ("none", "system", "history")
_HISTORY_TOKENS = 64
# The prefixes that blocks are put behind, and the history that they are compiled behind, share no turn.
_PREFIX_SEED, _HISTORY_SEED = 11, 900
_SPEED_TOKENS, _SPEED_DEPTH, _SPEED_REPEATS = 200, 1024, 5
_ANCHORED_DEPTH = 256
_BLOCK_RANGE = (64, 512)


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair to measure; a budget of ``None`` leaves it to the paper's curve."""

    strategy: str
    budget: float | None

    @property
    def label(self) -> float | str:
        """The budget as a result names it."""
        return f"R(k={Trailing().k:g})" if self.budget is None else self.budget

    def make(self) -> RepairStrategy:
        """Return the strategy."""
        return strategy(self.strategy)


DEFAULT_REPAIRS = (
    Repair("none", 0.0),
    Repair("leading", 0.25),
    Repair("trailing", 0.25),
    Repair("trailing", None),
    Repair("scattered", 0.25),
)


def run(
    engine: Engine,
    *,
    registry: Registry | None = None,
    n_tools: int = 4,
    depths: Sequence[int] = _DEPTHS,
    repairs: Sequence[Repair] = DEFAULT_REPAIRS,
    contexts: Sequence[str] = _CONTEXTS,
    speed_depth: int = _SPEED_DEPTH,
    repeats: int = _SPEED_REPEATS,
    folder: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ResultFile:
    """Measure splices on a model; a few minutes for the bundled one.

    Parameters
    ----------
    engine
        The model to measure. Its sequences are emptied, since every run must find the same cells.
    registry
        Tools to measure with; by default the few of this room.
    n_tools
        How many of them, taken in order among those of 64 to 512 tokens.
    depths
        Tokens before the block. Those that the context cannot hold are left out, and the settings say so.
    repairs
        What to repair, and how much of the block.
    contexts
        What blocks are compiled behind: ``none``, ``system``, ``history`` (64 tokens of a conversation).
    speed_depth, repeats
        Where, and how often, a splice of about 200 tokens is timed beside its prefill.
    folder
        Where compiled blocks are kept; by default a folder that goes away afterwards.
    on_progress
        Called with the cells done and all of them.

    Raises
    ------
    ResultsError
        When the engine cannot splice, or no tool or depth is left to measure.
    """
    declined = engine.declines.get("splice")
    if declined is not None:
        raise ResultsError(f"this model cannot be spliced: {declined.reason}", next_step=declined.instead)
    unknown = sorted(set(contexts) - set(_CONTEXTS))
    if unknown:
        raise ResultsError(
            f"no compile context {unknown[0]!r}", next_step=f"choose among {', '.join(_CONTEXTS)}"
        )
    cases = _cases(engine, registry, n_tools)
    fitting = [depth for depth in depths if depth + _room(cases) <= engine.n_ctx]
    if not fitting:
        raise ResultsError(f"no depth of {list(depths)} fits", next_step="load with a larger n_ctx")
    with tempfile.TemporaryDirectory(prefix="nexus-blocks-") as temporary:
        library = BlockLibrary(engine, folder or Path(temporary))
        engine.clear()
        grid = (tuple(sorted(fitting)), tuple(repairs), tuple(contexts))
        sweep = _Sweep(engine, library, cases, grid)
        results = sweep.run(on_progress)
        results += _anchored(engine, library, cases, depth=min(_ANCHORED_DEPTH, max(fitting)))
        results += _speed(engine, library, cases, depth=speed_depth, repeats=repeats)
    settings = {
        "model": engine.info.name,
        "model_sha256": engine.info.sha256,
        "registry": registry.name if registry is not None else "built in",
        "tools": [case.name for case in cases],
        "block_tokens": [len(case.block) for case in cases],
        "positions": 1 + min(len(case.answer) for case in cases),
        "depths_left_out": [depth for depth in depths if depth not in fitting],
        "flash_attention": engine.schedule.flash_attention,
        "n_ctx": engine.n_ctx,
    }
    return ResultFile.now("eval splice", results, settings=settings, threads=engine.threads)


class _Sweep:
    """All cells of a run; keeps what each gave until the figures are drawn."""

    def __init__(
        self,
        engine: Engine,
        library: BlockLibrary,
        cases: Sequence[TrialCase],
        grid: tuple[tuple[int, ...], tuple[Repair, ...], tuple[str, ...]],
    ) -> None:
        self._engine, self._library, self._cases = engine, library, cases
        self._depths, self._repairs, self._contexts = grid
        self._trials: dict[tuple[int, Repair, str], list[Trial]] = defaultdict(list)
        self._ratios: dict[tuple[int, Repair, str], list[float]] = defaultdict(list)

    def run(self, on_progress: Callable[[int, int], None] | None) -> list[Result]:
        """Measure every cell and return its figures, the noise floor first."""
        floor = noise_floor(self._engine)
        # Compiled first: the measured prefixes then find the same cells whatever was in the library.
        blocks = {
            (case.name, name): self._library.get_or_compile(case.block, _context(self._engine, name))
            for case in self._cases
            for name in self._contexts
        }
        total = len(self._cases) * len(self._depths) * len(self._contexts) * len(self._repairs)
        done = 0
        for number, case in enumerate(self._cases):
            for key, trial, prefill_s in self._cells(case, blocks, seed=_PREFIX_SEED + number):
                self._trials[key].append(trial)
                if trial.result.ttft_s:
                    self._ratios[key].append(prefill_s / trial.result.ttft_s)
                done += 1
                if on_progress is not None:
                    on_progress(done, total)
        floors = [
            Result(
                case={"schedule": schedule, "depth": floor.n_context},
                metric="noise_floor",
                value=fidelity.dkl_mean,
                n=fidelity.n_positions,
                unit="nat",
            )
            for schedule, fidelity in (("permuted cells", floor.permuted), ("batch split", floor.batch_split))
        ]
        return floors + [result for key in self._trials for result in self._figures(key)]

    def _cells(
        self, case: TrialCase, blocks: Mapping[tuple[str, str], ToolBlock], *, seed: int
    ) -> Iterator[tuple[tuple[int, Repair, str], Trial, float]]:
        """Yield key, trial and the prefill's time to first token of every cell of one case."""
        engine = self._engine
        with growing_prefix(engine, prompt_tokens(engine, self._depths[-1], seed=seed)) as grow:
            for depth in self._depths:
                seq = grow(depth)
                reference = measure_reference(engine, seq, case)
                for name, repair in product(self._contexts, self._repairs):
                    trial = measure_splice(
                        engine,
                        seq,
                        case,
                        blocks[case.name, name],
                        reference,
                        strategy=repair.make(),
                        budget=repair.budget,
                    )
                    yield (depth, repair, name), trial, reference.ttft_s

    def _figures(self, key: tuple[int, Repair, str]) -> list[Result]:
        depth, repair, name = key
        case = {
            "depth": depth,
            "strategy": repair.strategy,
            "budget": repair.label,
            "compile_context": name,
        }
        found = [trial.fidelity for trial in self._trials[key]]
        every = [value for fidelity in found for value in fidelity.dkl]
        return [
            mean_interval(
                [fidelity.dkl_mean for fidelity in found], case=case, metric="dkl_mean", unit="nat"
            ),
            Result(
                case=case, metric="dkl_p95", value=float(np.quantile(every, 0.95)), n=len(every), unit="nat"
            ),
            share_interval([fidelity.top1 for fidelity in found], case=case, metric="top1_agreement"),
            median_interval(
                self._ratios[key], case={**case, "peer": "prefill of block and prompt"}, metric="ttft_ratio"
            ),
        ]


def mean_interval(values: Sequence[float], *, case: Mapping[str, Any], metric: str, unit: str) -> Result:
    """Return the mean of a few values that cannot be negative, with Student's interval.

    A bootstrap of four cells would be too narrow.
    """
    from scipy.stats import t

    n, mean = len(values), float(np.mean(values))
    low = high = None
    if n > 1:
        half = float(t.ppf(0.975, n - 1)) * float(np.std(values, ddof=1)) / math.sqrt(n)
        low, high = max(0.0, mean - half), mean + half
    return Result(case=case, metric=metric, value=mean, low=low, high=high, n=n, unit=unit)


def share_interval(shares: Sequence[float], *, case: Mapping[str, Any], metric: str) -> Result:
    """Return the mean of shares, with Wilson's interval for as many trials as there are shares.

    The positions of one cell agree or differ together, so that a cell counts as one trial.
    """
    from scipy.stats import norm

    n, share, z = len(shares), float(np.mean(shares)), float(norm.ppf(0.975))
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Result(
        case=case, metric=metric, value=share, low=max(0.0, centre - half), high=min(1.0, centre + half), n=n
    )


def _anchored(
    engine: Engine, library: BlockLibrary, cases: Sequence[TrialCase], *, depth: int
) -> list[Result]:
    """D_KL of splices behind the very tokens that the block was compiled behind; 0 when all is right."""
    figures = []
    for number, case in enumerate(cases):
        prefix = prompt_tokens(engine, depth, seed=_PREFIX_SEED + number)
        engine.clear()
        block = library.get_or_compile(case.block, prefix)
        with growing_prefix(engine, prefix) as grow:
            seq = grow(len(prefix))
            reference = measure_reference(engine, seq, case)
            trial = measure_splice(engine, seq, case, block, reference, strategy=NoRepair(), preceding=prefix)
        if not trial.result.anchored:
            raise ResultsError(
                "a block behind its own context was not found anchored", next_step="report this"
            )
        figures.append(trial.fidelity)
    key = {"depth": depth, "strategy": "none", "budget": 0.0, "compile_context": "identical"}
    return [
        mean_interval([figure.dkl_mean for figure in figures], case=key, metric="dkl_mean", unit="nat"),
        share_interval([figure.top1 for figure in figures], case=key, metric="top1_agreement"),
    ]


def _speed(
    engine: Engine, library: BlockLibrary, cases: Sequence[TrialCase], *, depth: int, repeats: int
) -> list[Result]:
    """Wall time of a splice of about 200 tokens beside its prefill, in turns, at one depth."""
    tokens = max((case.block for case in cases), key=len)[:_SPEED_TOKENS]
    depth = min(depth, engine.n_ctx - 2 * len(tokens))
    block = library.get_or_compile(tokens, _context(engine, "system"))
    prefills, splices = [], []
    with growing_prefix(engine, prompt_tokens(engine, depth, seed=_PREFIX_SEED)) as grow:
        seq = grow(depth)
        for _ in range(repeats):
            started = perf_counter()
            engine.prefill(seq, tokens, logits="none")
            prefills.append(perf_counter() - started)
            engine.remove(seq, depth)
            splices.append(splice_block(engine, seq, block, strategy=NoRepair()).seconds)
            engine.remove(seq, depth)
    case = {"depth": depth, "n_tokens": len(tokens)}
    ratios = [prefill / splice for prefill, splice in zip(prefills, splices, strict=True)]
    return [
        median_interval([1e3 * value for value in prefills], case=case, metric="prefill_ms", unit="ms"),
        median_interval([1e3 * value for value in splices], case=case, metric="splice_ms", unit="ms"),
        median_interval(ratios, case={**case, "peer": "prefill of the block"}, metric="splice_speedup"),
    ]


def _context(engine: Engine, name: str) -> list[int]:
    if name == "none":
        return []
    if name == "system":
        return engine.tokenize(_rendered(engine, [{"role": "system", "content": SYSTEM_PROMPT}]))
    return prompt_tokens(engine, _HISTORY_TOKENS, seed=_HISTORY_SEED)


def _rendered(engine: Engine, messages: list[dict[str, str]], *, prompt: bool = False) -> str:
    return engine.render_chat(messages, add_generation_prompt=prompt)


def _cases(engine: Engine, registry: Registry | None, n_tools: int) -> list[TrialCase]:
    given = SPLICE_CASES if registry is None else map(case_of, registry.tools)
    found: list[TrialCase] = []
    for case in given:
        if len(found) == n_tools:
            break
        trial = trial_case(engine, case)
        if _BLOCK_RANGE[0] <= len(trial.block) <= _BLOCK_RANGE[1]:
            found.append(trial)
    if not found:
        raise ResultsError(
            f"no tool has a schema of {_BLOCK_RANGE[0]} to {_BLOCK_RANGE[1]} tokens", next_step="name others"
        )
    return found


def trial_case(engine: Engine, case: SpliceCase) -> TrialCase:
    """Return the tokens of a case under the model's chat template."""
    shown = [{"role": "system", "content": f"You can call this tool:\n{case.schema_text}"}]
    block = _rendered(engine, shown)
    whole = _rendered(engine, [*shown, {"role": "user", "content": case.request}], prompt=True)
    # A template that folds the system turn into the user's has no rest of its own.
    rest = whole.removeprefix(block) if whole.startswith(block) else f"\n{case.request}\n"
    return TrialCase(case.tool.name, *(tuple(engine.tokenize(text)) for text in (block, rest, case.answer)))


def _room(cases: Sequence[TrialCase]) -> int:
    return max(len(case.block) + len(case.rest) + len(case.answer) for case in cases)
