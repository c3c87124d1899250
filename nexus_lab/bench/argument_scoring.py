"""Whole calls under the model: how likely it holds each to be, behind the signature and the request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nexus_lab.bench.argument_prompt import call_prompt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from nexus_lab.engine import Engine
    from nexus_lab.registry import ToolSpec

__all__ = ["CallScorer"]


class CallScorer:
    """Weighs calls with one engine.

    Parameters
    ----------
    engine
        Runs the model.
    mode
        What the model sees of the tool.
    """

    def __init__(self, engine: Engine, *, mode: str = "signature") -> None:
        self._engine = engine
        self._mode = mode

    def __call__(
        self, tool: ToolSpec, request: str, context: Sequence[Mapping[str, str]], texts: Sequence[str]
    ) -> list[float]:
        """Return the log-likelihood of each text as the arguments of a call, in nats.

        Parameters
        ----------
        texts
            The arguments as JSON, without spaces.
        """
        engine = self._engine
        prompt = call_prompt(engine, tool, request, context, mode=self._mode)
        with engine.scratch_sequence() as stem:
            last = np.asarray(engine.prefill(stem, prompt))
            return [self._after(stem, last, text) for text in texts]

    def _after(self, stem: int, last: NDArray[np.float32], text: str) -> float:
        # As the model writes them: what closes the call is not its own.
        tokens = np.asarray(self._engine.tokenize(text, special=False))
        with self._engine.scratch_sequence() as branch:
            self._engine.copy_sequence(stem, branch)
            rest = np.asarray(self._engine.prefill(branch, tokens, logits="all"))
        logits = np.concatenate([last[np.newaxis], rest[:-1]]).astype(np.float64)
        top = logits.max(axis=1)
        norm = top + np.log(np.exp(logits - top[:, np.newaxis]).sum(axis=1))
        return float((logits[np.arange(len(tokens)), tokens] - norm).sum())
