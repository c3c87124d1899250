"""The network of the cross-encoder: six MiniLM layers over request and tool together, compared by parts.

Every token of the request attends to every token of the tool and back. What is then compared is the mean of
the request's tokens with the mean of the tool's, by their cosine. Untrained, with the layers of the embedder,
that is nearly the embedder's own score, from where training is short; a head on the first token, which the
embedder never used, had learned nothing after 400 requests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

__all__ = ["PairModel"]

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
