"""The splice room: what a precompiled block costs in fidelity.

A tool block is compiled once behind a chosen context (`BlockLibrary`), spliced at the live cursor with some
of its tokens repaired (`splice_block`), and measured against the full prefill and the model's noise floor
(`shadow_prefill`, `noise_floor`).
"""

from __future__ import annotations

from nexus_lab.splice.base import (
    BlockRefused,
    RepairKind,
    RepairPath,
    RepairPlan,
    RepairStrategy,
    Run,
    SplicePath,
    SpliceResult,
    SpliceTimings,
)
from nexus_lab.splice.blocks import ToolBlock
from nexus_lab.splice.building import BlockRecipe, BuildReport, QuotaTooSmall, build_blocks
from nexus_lab.splice.calibration import (
    PREFILL,
    Calibration,
    CalibrationCell,
    CalibrationError,
    CalibrationSample,
    Coverage,
    least_samples,
    load_calibration,
    save_calibration,
)
from nexus_lab.splice.compiler import BlockCompiler, CompileError
from nexus_lab.splice.contexts import (
    OWN_TOKENS,
    TYPICAL_CONTEXTS,
    TYPICAL_TOKENS,
    message_ending,
    typical_context,
)
from nexus_lab.splice.contracts import (
    Bounded,
    Choice,
    ContractError,
    Exact,
    Fixed,
    Paper,
    SpliceContract,
    choose,
    parse_contract,
)
from nexus_lab.splice.conversations import (
    ConversationsError,
    for_compiling,
    forget_conversations,
    keep_conversations,
    kept_conversations,
    kept_path,
)
from nexus_lab.splice.curve import CURVE, CurveError, repair_count, repair_fraction
from nexus_lab.splice.drift import DriftError, KVDrift, key_value_drift, row_drift
from nexus_lab.splice.fidelity import NoiseFloor, Shadow, no_room, noise_floor, prompt_tokens, shadow_prefill
from nexus_lab.splice.identity import BlockContext, block_id, context_hash
from nexus_lab.splice.library import BlockLibrary, BlockUnknown, LibraryBlocks, library_root
from nexus_lab.splice.measures import (
    Fidelity,
    LogitsError,
    compare_logits,
    kl_divergence,
    top1_agreement,
    top_k_overlap,
)
from nexus_lab.splice.model import SpliceUnavailable, model_header
from nexus_lab.splice.samples import SYSTEM_PROMPT, sample_history, sample_tokens
from nexus_lab.splice.shelf import DEFAULT_QUOTA
from nexus_lab.splice.splicer import (
    choose_for,
    is_anchored,
    splice_block,
    stored_calibration,
    why_not,
)
from nexus_lab.splice.strategies import (
    BUDGETED,
    Carried,
    Full,
    Leading,
    NoProfile,
    NoRepair,
    Scattered,
    Sensitive,
    StrategyError,
    Trailing,
    strategy,
)
from nexus_lab.splice.survey import BlockReport, BlockState, survey
from nexus_lab.splice.trials import (
    Reference,
    Trial,
    TrialCase,
    ended,
    growing_prefix,
    measure_reference,
    measure_splice,
)

__all__ = [
    "BUDGETED",
    "CURVE",
    "DEFAULT_QUOTA",
    "OWN_TOKENS",
    "PREFILL",
    "SYSTEM_PROMPT",
    "TYPICAL_CONTEXTS",
    "TYPICAL_TOKENS",
    "BlockCompiler",
    "BlockContext",
    "BlockLibrary",
    "BlockRecipe",
    "BlockRefused",
    "BlockReport",
    "BlockState",
    "BlockUnknown",
    "Bounded",
    "BuildReport",
    "Calibration",
    "CalibrationCell",
    "CalibrationError",
    "CalibrationSample",
    "Carried",
    "Choice",
    "CompileError",
    "ContractError",
    "ConversationsError",
    "Coverage",
    "CurveError",
    "DriftError",
    "Exact",
    "Fidelity",
    "Fixed",
    "Full",
    "KVDrift",
    "Leading",
    "LibraryBlocks",
    "LogitsError",
    "NoProfile",
    "NoRepair",
    "NoiseFloor",
    "Paper",
    "QuotaTooSmall",
    "Reference",
    "RepairKind",
    "RepairPath",
    "RepairPlan",
    "RepairStrategy",
    "Run",
    "Scattered",
    "Sensitive",
    "Shadow",
    "SpliceContract",
    "SplicePath",
    "SpliceResult",
    "SpliceTimings",
    "SpliceUnavailable",
    "StrategyError",
    "ToolBlock",
    "Trailing",
    "Trial",
    "TrialCase",
    "block_id",
    "build_blocks",
    "choose",
    "choose_for",
    "compare_logits",
    "context_hash",
    "ended",
    "for_compiling",
    "forget_conversations",
    "growing_prefix",
    "is_anchored",
    "keep_conversations",
    "kept_conversations",
    "kept_path",
    "key_value_drift",
    "kl_divergence",
    "least_samples",
    "library_root",
    "load_calibration",
    "measure_reference",
    "measure_splice",
    "message_ending",
    "model_header",
    "no_room",
    "noise_floor",
    "parse_contract",
    "prompt_tokens",
    "repair_count",
    "repair_fraction",
    "row_drift",
    "sample_history",
    "sample_tokens",
    "save_calibration",
    "shadow_prefill",
    "splice_block",
    "stored_calibration",
    "strategy",
    "survey",
    "top1_agreement",
    "top_k_overlap",
    "typical_context",
    "why_not",
]
