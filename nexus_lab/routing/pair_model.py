"""The network of the cross-encoder: six MiniLM layers over request and tool together, compared by parts.

Every token of the request attends to every token of the tool and back. What is then compared is the mean of
the request's tokens with the mean of the tool's, by their cosine. Untrained, with the layers of the embedder,
that is nearly the embedder's own score, from where training is short; a head on the first token, which the
embedder never used, had learned nothing after 400 requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from nexus_lab.routing.reading import MOST_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PairModel", "pair_scores"]

_SCALE, _OFFSET = 12.0, 0.4


class PairModel(torch.nn.Module):
    """A score for pairs: ``scale x (cosine - offset)``.

    Parameters
    ----------
    bert
        A ``BertModel``.
    """

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert
        self.scale = torch.nn.Parameter(torch.tensor([_SCALE]))
        self.offset = torch.nn.Parameter(torch.tensor([_OFFSET]))

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        """Return the scores of pairs, float32 [n]."""
        hidden = self.bert(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        second = (token_type_ids * attention_mask).unsqueeze(-1)
        first = attention_mask.unsqueeze(-1) - second
        means = [functional.normalize((hidden * part).sum(1), dim=-1) for part in (first, second)]
        return self.scale * ((means[0] * means[1]).sum(-1) - self.offset)


def pair_scores(model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]], *, together: int) -> Any:
    """Return the scores of pairs of a request and a tool's text, float32 [n], in their order.

    Parameters
    ----------
    together
        Pairs that are read in one batch; those of like length share one, so that little is padded.
    """
    read = tokenizer(
        [request for request, _ in pairs],
        [document for _, document in pairs],
        truncation="longest_first",
        max_length=MOST_TOKENS,
    )
    lengths = [len(ids) for ids in read["input_ids"]]
    order = sorted(range(len(pairs)), key=lambda place: lengths[place])
    scores = [
        model(**_padded(read, order[start : start + together])) for start in range(0, len(order), together)
    ]
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.as_tensor(order)] = torch.arange(len(order))
    return torch.cat(scores)[back]


def _padded(read: Any, places: Sequence[int]) -> dict[str, Any]:
    """Return the tensors of some pairs; what pads them is masked, so its token does not matter."""
    width = max(len(read["input_ids"][place]) for place in places)
    return {
        name: torch.as_tensor(
            [read[name][place] + [0] * (width - len(read[name][place])) for place in places]
        )
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
