"""The cross-encoder that comes with the package: it reads a request together with a tool."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from nexus_lab.registry import repair_text
from nexus_lab.routing.base import RoutingError
from nexus_lab.routing.embedder import check_bundled_embedder, one_thread
from nexus_lab.routing.weights import fill, read_card, read_weights, weights_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nexus_lab.routing.base import CrossEncoder, Embedder

    Floats = NDArray[np.float32]

__all__ = ["NAME", "ToolReader", "bare_reader", "choose_reader", "load_reader"]

NAME = "reader"
_TOGETHER = 5


class ToolReader:
    """A `CrossEncoder` of six MiniLM layers; use `load_reader` to make one.

    A score is a logit against "none of them", so 0 is where a tool fits as likely as not. Calls from several
    threads take turns.

    Attributes
    ----------
    kernel
        ``int8`` or ``float32``: what its layers compute in.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str, fingerprint: str, kernel: str = "float32"
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._turn = threading.Lock()
        self.name, self.fingerprint, self.kernel = name, fingerprint, kernel

    def __repr__(self) -> str:
        return f"ToolReader({self.name!r})"

    def score(self, request: str, documents: Sequence[str]) -> Floats:
        """Return float32 [n]: how well each tool fits the request."""
        import torch

        from nexus_lab.routing.pair_model import pair_scores

        if not documents:
            return np.zeros(0, np.float32)
        asked = repair_text(request)
        pairs = [(asked, repair_text(document)) for document in documents]
        with self._turn, one_thread(), torch.inference_mode():
            logits = pair_scores(self._model, self._tokenizer, pairs, together=_TOGETHER)
        return np.asarray(logits.numpy(), np.float32)


def choose_reader(given: CrossEncoder | str | None, embedder: Embedder | str | None) -> CrossEncoder | None:
    """Return the cross-encoder that was asked for.

    Parameters
    ----------
    given
        An object, ``None``, ``bundled``, or ``auto``: the bundled one, unless the embedder is an object.

    Raises
    ------
    RoutingError
        When it is another word.
    """
    if not isinstance(given, str):
        return given
    if given not in ("auto", "bundled"):
        raise RoutingError(f"no cross-encoder {given!r}", next_step="give 'bundled', None or an object")
    if given == "auto" and not (embedder is None or isinstance(embedder, str)):
        return None
    return load_reader()


def load_reader(kernel: str = "auto") -> ToolReader:
    """Return the cross-encoder of the user, where `nexus-lab train-gate` made one, else the package's.

    Parameters
    ----------
    kernel
        ``int8``, ``float32``, or ``auto`` for the faster one here; a score differs by some hundredths.

    Raises
    ------
    RoutingError
        When there is no such kernel.
    WeightsError
        When the weights are damaged, or were made for another base model.
    """
    from nexus_lab.routing.int8_layers import int8_pays, with_int8_layers

    if kernel not in ("auto", "int8", "float32"):
        raise RoutingError(f"no kernel {kernel!r}", next_step="choose auto, int8 or float32")
    chosen = ("int8" if int8_pays() else "float32") if kernel == "auto" else kernel
    folder = weights_folder(NAME)
    card = read_card(folder, NAME)
    model, tokenizer = bare_reader()
    fill(model, read_weights(folder, NAME), name=NAME)
    model.eval()
    if chosen == "int8":
        with_int8_layers(model.bert.encoder)
    told = str(card.get("name", NAME))
    return ToolReader(model, tokenizer, name=told, fingerprint=card["sha256"], kernel=chosen)


def bare_reader() -> tuple[Any, Any]:
    """Return an untrained cross-encoder over the bundled model's token embeddings, and its tokenizer."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, BertConfig, BertModel

    from nexus_lab.routing.pair_model import PairModel

    weights = check_bundled_embedder()
    bert = BertModel(BertConfig.from_pretrained(weights.parent), add_pooling_layer=False)
    bert.load_state_dict(load_file(weights), strict=False)
    tokenizer: Any = AutoTokenizer.from_pretrained(weights.parent)
    return PairModel(bert), tokenizer
