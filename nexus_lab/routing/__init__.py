"""The routing room: which tool fits this request?

Torch, sentence-transformers and the native core load with the first router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexus_lab._lazy import lazy_names
from nexus_lab.routing.base import (
    CalibrationError,
    Candidate,
    CrossEncoder,
    Embedder,
    EmbedderError,
    Message,
    Outcome,
    RoutingDecision,
    RoutingError,
    View,
    ViewKind,
)
from nexus_lab.routing.normalise import MaskedSpan, NormalisedRequest, SpanKind, normalise, split_identifiers

if TYPE_CHECKING:
    from nexus_lab.routing.calibrate import calibrate_router
    from nexus_lab.routing.calibration import (
        Abstention,
        Calibration,
        RouterCalibration,
        auroc,
        calibrate_abstention,
        calibrate_tau,
        load_calibration,
        save_calibration,
    )
    from nexus_lab.routing.embedder import SentenceEmbedder, check_bundled_embedder, load_embedder
    from nexus_lab.routing.index import ToolIndex
    from nexus_lab.routing.router import Router
    from nexus_lab.routing.rows import RowsError, read_id_lists, read_rows
    from nexus_lab.routing.scoring import StageScores
    from nexus_lab.routing.store import EmbeddingStore

__all__ = [
    "Abstention",
    "Calibration",
    "CalibrationError",
    "Candidate",
    "CrossEncoder",
    "Embedder",
    "EmbedderError",
    "EmbeddingStore",
    "MaskedSpan",
    "Message",
    "NormalisedRequest",
    "Outcome",
    "Router",
    "RouterCalibration",
    "RoutingDecision",
    "RoutingError",
    "RowsError",
    "SentenceEmbedder",
    "SpanKind",
    "StageScores",
    "ToolIndex",
    "View",
    "ViewKind",
    "auroc",
    "calibrate_abstention",
    "calibrate_router",
    "calibrate_tau",
    "check_bundled_embedder",
    "load_calibration",
    "load_embedder",
    "normalise",
    "read_id_lists",
    "read_rows",
    "save_calibration",
    "split_identifiers",
]

_HOMES = {
    "Abstention": "calibration",
    "Calibration": "calibration",
    "EmbeddingStore": "store",
    "Router": "router",
    "RouterCalibration": "calibration",
    "RowsError": "rows",
    "SentenceEmbedder": "embedder",
    "StageScores": "scoring",
    "ToolIndex": "index",
    "auroc": "calibration",
    "calibrate_abstention": "calibration",
    "calibrate_router": "calibrate",
    "calibrate_tau": "calibration",
    "check_bundled_embedder": "embedder",
    "load_calibration": "calibration",
    "load_embedder": "embedder",
    "read_id_lists": "rows",
    "read_rows": "rows",
    "save_calibration": "calibration",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
