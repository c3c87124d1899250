"""Loads a model into a runtime and finds out what it can do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexus_lab.engine.adapter import model_fingerprint, read_adapter
from nexus_lab.engine.base import ModelInfo
from nexus_lab.engine.catalogue import check_generates, file_sha256, resolve_model
from nexus_lab.engine.chat import ChatTemplate
from nexus_lab.engine.context import ContextSettings, LlamaContext
from nexus_lab.engine.gguf_file import read_gguf
from nexus_lab.engine.native import function_addresses, llama
from nexus_lab.engine.probe import probe, static_declines
from nexus_lab.engine.rope import rope_candidates, rope_from_gguf
from nexus_lab.engine.runtime import Runtime
from nexus_lab.engine.vocab import Vocabulary

if TYPE_CHECKING:
    from nexus_lab.engine.base import AdapterInfo
    from nexus_lab.engine.gguf_file import GgufFile
    from nexus_lab.errors import Decline

__all__ = ["Loaded", "load"]

_PAIRINGS = {0: "norm", 2: "neox"}
# llama.cpp does not say what kind of window a model has.
_CHUNKED = frozenset({"llama4"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Everything an engine is made of."""

    runtime: Runtime
    vocabulary: Vocabulary
    chat: ChatTemplate
    info: ModelInfo
    declines: dict[str, Decline]


def load(model: str | Path, settings: ContextSettings, *, adapter: str | Path | None = None) -> Loaded:
    """Load `model` under `settings`, with an adapter if one is named; see `Engine.load` for the errors."""
    from nexus_lab import _core

    path = resolve_model(model)
    gguf = read_gguf(path)
    check_generates(gguf)
    lora = None if adapter is None else read_adapter(Path(adapter).expanduser(), gguf)
    settings = replace(settings, adapter=None if lora is None else lora.path)
    bridge = _core.EvalBridge(function_addresses())
    runtime = Runtime(lambda: LlamaContext(path, settings, bridge), bridge)
    try:
        return _complete(runtime, gguf, settings, lora)
    except BaseException:
        runtime.close()
        raise


def _complete(
    runtime: Runtime, gguf: GgufFile, settings: ContextSettings, adapter: AdapterInfo | None
) -> Loaded:
    lib, model = llama(), runtime.context.model
    vocabulary = Vocabulary(runtime.context.vocab)
    rope_type = int(lib.llama_model_rope_type(model))
    info = _info(runtime, gguf, rope_type, adapter)
    declines = static_declines(
        recurrent=bool(lib.llama_model_is_recurrent(model)),
        hybrid=bool(lib.llama_model_is_hybrid(model)),
        rope_type=rope_type,
        kv_type=settings.kv_type,
        can_shift=runtime.context.can_shift(),
        window=runtime.window,
        chunked=gguf.architecture in _CHUNKED,
        latent=int(gguf.value("attention.key_length_mla", 0)) > 0,
    )
    rope = info.rope
    found = probe(
        runtime,
        _probe_tokens(vocabulary),
        [] if rope is None else rope_candidates(gguf, rope, sliding=runtime.window > 0),
        flash_attention=settings.flash_attention,
        n_layer=info.n_layer,
        n_ctx_train=info.n_ctx_train,
    )
    return Loaded(
        runtime=runtime,
        vocabulary=vocabulary,
        chat=_chat(gguf, vocabulary),
        info=replace(info, rope=found.rope),
        declines={**found.declines, **declines},
    )


def _info(runtime: Runtime, gguf: GgufFile, rope_type: int, adapter: AdapterInfo | None) -> ModelInfo:
    lib, context = llama(), runtime.context
    n_head = int(lib.llama_model_n_head(context.model))
    n_embd = int(lib.llama_model_n_embd(context.model))
    sha256 = file_sha256(gguf.path)
    pairing = _PAIRINGS.get(rope_type)
    license_name = gguf.metadata.get("general.license")
    return ModelInfo(
        name=gguf.path.stem,  # general.name is often a checkpoint's, and says nothing of the quantization
        path=gguf.path,
        sha256=sha256,
        architecture=gguf.architecture,
        n_layer=int(lib.llama_model_n_layer(context.model)),
        n_head=n_head,
        n_head_kv=int(lib.llama_model_n_head_kv(context.model)),
        head_dim_k=int(gguf.value("attention.key_length", n_embd // max(1, n_head))),
        head_dim_v=int(gguf.value("attention.value_length", n_embd // max(1, n_head))),
        n_embd=n_embd,
        n_vocab=context.n_vocab,
        n_ctx_train=int(lib.llama_model_n_ctx_train(context.model)),
        rope=None if pairing is None else rope_from_gguf(gguf, pairing=pairing, n_ctx=context.n_ctx),
        fingerprint=model_fingerprint(sha256, adapter),
        adapter=adapter,
        size_bytes=gguf.size_bytes,
        license=None if license_name is None else str(license_name),
    )


def _probe_tokens(vocabulary: Vocabulary) -> list[int]:
    """Two different tokens of text, where the vocabulary has them."""
    tokens = list(dict.fromkeys(vocabulary.tokenize("the 7 of", special=False)))
    spare = (token for token in range(vocabulary.size - 1, -1, -1) if token not in tokens)
    while len(tokens) < 2:  # noqa: PLR2004 - two tokens
        tokens.append(next(spare))
    return tokens[:2]


def _chat(gguf: GgufFile, vocabulary: Vocabulary) -> ChatTemplate:
    source = gguf.metadata.get("tokenizer.chat_template")
    return ChatTemplate(
        None if source is None else str(source),
        bos="" if vocabulary.bos is None else vocabulary.token_text(vocabulary.bos),
        eos="" if vocabulary.eos is None else vocabulary.token_text(vocabulary.eos),
    )
