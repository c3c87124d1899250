"""Whole calls under the model: how likely it holds each to be, behind the signature and the request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab.agent.call_word import likelihoods
from nexus_lab.bench.argument_prompt import call_prompt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        prompt = call_prompt(self._engine, tool, request, context, mode=self._mode)
        with self._engine.scratch_sequence() as stem:
            return likelihoods(self._engine, stem, prompt, texts)
