"""The models panel: which models there are, what they need, and loading one."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nexus_lab.lab.adapter_words import adapter_row, named_with, weights_with
from nexus_lab.lab.crew import NotReady
from nexus_lab.lab.fragments import fragment
from nexus_lab.lab.models_records import (
    ModelRow,
    Speed,
    measure_speed,
    memory_free,
    quantisation,
    read_model,
    row_of_engine,
    row_of_entry,
    same_file,
)
from nexus_lab.lab.panel import Panel
from nexus_lab.lab.wire import BadRequest, Lane, instant, job, to_json

if TYPE_CHECKING:
    import polars as pl

    from nexus_lab.engine import ModelEntry
    from nexus_lab.engine.gguf_file import GgufFile
    from nexus_lab.lab.desk import Desk

__all__ = ["ModelsPanel"]

_TEMPLATE = """
<section class="nl-models"><h2>Models</h2>
<table><thead><tr><th>Model</th><th>File</th><th>Kind</th><th>Size</th><th>Memory at {{ part.n_ctx | number }}
tokens</th><th>Status</th></tr></thead><tbody>
{% for row in part.rows %}
<tr><td>{{ row.name }}</td><td><code>{{ row.path }}</code></td>
<td>{{ row.architecture or "" }} {{ row.quantisation or "" }}{% if row.adapter %}<br>
with the adapter <b>{{ row.adapter.name }}</b>: rank {{ row.adapter.lora_rank }},
{{ row.adapter.targets }} matrices, {{ row.adapter.size_bytes | bytes }}, sha256
<code>{{ row.adapter.sha256[:12] }}</code>{% if row.adapter.weighs_calls %}; weighs close calls{% endif %}
{% endif %}</td><td>{{ row.size_bytes | bytes }}</td>
<td>{{ row.memory_bytes | bytes }}</td>
<td>{% if row.error %}× {{ row.error.message }}{% elif row.loaded %}✓ loaded{% endif %}
{% for item in row.declines %}! {{ item.what }}: {{ item.decline.reason }} {% endfor %}</td></tr>
{% endfor %}
</tbody></table>
{% if part.speed %}<p>Prefill {{ part.speed.prefill_tps | number(0) }} tokens/s over
{{ part.speed.n_tokens }} tokens, decode {{ part.speed.decode_tps | number(0) }} tokens/s over
{{ part.speed.n_decoded }}</p>{% endif %}
</section>
"""


class ModelsPanel(Panel):
    """Finds models, loads and unloads them, and measures how fast one is here."""

    name: ClassVar[str] = "models"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._folders: tuple[Path, ...] = ()
        self._entries: tuple[tuple[ModelEntry, GgufFile | None], ...] = ()
        self._speed: Speed | None = None
        desk.side.submit("looking for models", self.refresh)

    def __repr__(self) -> str:
        loaded = named_with(self.desk.model_name, self.desk.adapter) or "none"
        return f"ModelsPanel({len(self._entries)} models, loaded: {loaded})"

    # -- what views show ----------------------------------------------------------------------------------

    def part(self) -> dict[str, Any]:
        """Return the models that were found, and what the next load would use."""
        engine, n_ctx = self.desk.engine, self._n_ctx
        return {
            "rows": self._shown(n_ctx),
            "n_ctx": n_ctx,
            "threads": engine.threads if engine is not None else self._threads(),
            "memory_free_bytes": memory_free(),
            "folders": [str(folder) for folder in self._folders],
            "speed": self._speed,
        }

    @property
    def _n_ctx(self) -> int:
        engine = self.desk.engine
        return engine.n_ctx if engine is not None else self.desk.crew.n_ctx

    def rows(self, n_ctx: int) -> list[ModelRow]:
        """Return one row per model, with the memory it needs at a context of `n_ctx` tokens."""
        engine = self.desk.engine
        rows = [row_of_entry(entry, gguf, n_ctx, engine) for entry, gguf in self._entries]
        if engine is not None and not any(row.loaded for row in rows):
            rows.append(replace(row_of_engine(engine), quantisation=self.desk.quantisation))
        return rows

    def _shown(self, n_ctx: int) -> list[ModelRow]:
        """Return the rows for a live view, which tells an adapter with the weights that it is added to."""
        return [
            replace(row, quantisation=weights_with(row.quantisation, row.adapter["name"]))
            if row.adapter
            else row
            for row in self.rows(n_ctx)
        ]

    def _threads(self) -> int:
        from nexus_lab.engine import cap_threads

        return cap_threads(self.desk.profile.threads)

    def on_engine(self) -> None:
        """Forget the speed of the model before, and say how this one is quantised."""
        self._speed = None
        engine = self.desk.engine
        if engine is not None:
            known = (gguf for entry, gguf in self._entries if same_file(entry, engine))
            self.desk.quantisation = quantisation(next(known, None) or read_model(Path(engine.info.path)))
        self.changed()

    # -- what it is asked ---------------------------------------------------------------------------------

    @job("looking for models", lane=Lane.SIDE)
    def refresh(self) -> None:
        """Look again: the bundled model, the folders, and the cache of the hub."""
        from nexus_lab.engine import find_models

        found = find_models(self._folders)
        self._entries = tuple((entry, read_model(entry.path)) for entry in found)
        self.changed()

    @job("looking for models", lane=Lane.SIDE)
    def add_folder(self, path: str) -> None:
        """Look into a folder of GGUF files as well; also a single file names its folder."""
        folder = Path(path).expanduser()
        folder = folder.parent if folder.is_file() else folder
        if not folder.is_dir():
            raise BadRequest(f"there is no folder {folder}", next_step="check the path")
        if folder not in self._folders:
            self._folders = (*self._folders, folder)
        self.refresh()

    @job("loading the model")
    def load(
        self,
        path: str,
        n_ctx: int | None = None,
        threads: int | None = None,
        adapter: str | None = None,
    ) -> dict[str, Any]:
        """Load a model in the place of the one that is there; the conversation ends with it.

        Parameters
        ----------
        adapter
            GGUF file of a LoRA adapter. Without one, the model that is loaded keeps the adapter it runs with
            when it is loaded again, and others have none; ``""`` leaves it out there too.
        """
        if n_ctx is not None and n_ctx < 1:
            raise BadRequest(f"n_ctx = {n_ctx}", next_step="choose at least 1")
        lora = self._kept_adapter(path) if adapter is None else adapter or None
        engine = self.desk.crew.load(path, n_ctx=n_ctx, threads=threads, adapter=lora)
        return {
            "model": engine.info.name,
            "n_ctx": engine.n_ctx,
            "threads": engine.threads,
            "adapter": adapter_row(engine.info.adapter),
        }

    def _kept_adapter(self, path: str) -> Path | None:
        """Return the adapter of the model that is loaded, when that one is at `path`."""
        from nexus_lab.engine import resolve_model

        engine = self.desk.engine
        if engine is None or engine.info.adapter is None:
            return None
        same = resolve_model(path).resolve() == Path(engine.info.path).resolve()
        return engine.info.adapter.path if same else None

    @job("unloading the model")
    def unload(self) -> None:
        """Free the model; the conversation ends with it."""
        self.desk.crew.unload()

    @job("measuring the model")
    def measure(self) -> Speed:
        """Measure prefill and decode on a sequence of its own; the conversation stays as it is."""
        engine = self.desk.engine
        if engine is None:
            raise NotReady("no model is loaded", next_step="load one first")
        self._speed = measure_speed(engine, progress=self.desk.driver.progress)
        self.changed()
        return self._speed

    @instant
    def estimate(self, n_ctx: int) -> dict[str, Any]:
        """Return the rows with the memory that a context of `n_ctx` tokens would need."""
        if n_ctx < 1:
            raise BadRequest(f"n_ctx = {n_ctx}", next_step="choose at least 1")
        return {"rows": self._shown(n_ctx)}

    # -- plain Python -------------------------------------------------------------------------------------

    def to_frame(self) -> pl.DataFrame:
        """Return one row per model: file, size, shape, memory at the context that is set, status, adapter."""
        import polars as pl

        rows = []
        for row in self.rows(self._n_ctx):
            values = {**asdict(row), "error": row.error["message"] if row.error else None}
            values |= {
                f"adapter_{key}": (row.adapter or {}).get(key) for key in ("path", "sha256", "lora_rank")
            }
            values["adapter"] = row.adapter["name"] if row.adapter else None
            values["declines"] = [f"{item['what']}: {item['decline'].reason}" for item in row.declines]
            rows.append(values)
        schema: dict[str, Any] = {
            "name": pl.String,
            "path": pl.String,
            "source": pl.String,
            "size_bytes": pl.Int64,
            "architecture": pl.String,
            "quantisation": pl.String,
            "n_layer": pl.Int64,
            "n_head": pl.Int64,
            "n_head_kv": pl.Int64,
            "n_ctx_train": pl.Int64,
            "memory_bytes": pl.Int64,
            "license": pl.String,
            "declines": pl.List(pl.String),
            "error": pl.String,
            "loaded": pl.Boolean,
            "adapter": pl.String,
            "adapter_path": pl.String,
            "adapter_sha256": pl.String,
            "adapter_lora_rank": pl.Int64,
        }
        return pl.DataFrame(rows, schema=schema)

    def to_html(self) -> str:
        """Return the models as a static fragment."""
        part = {**self.part(), "rows": self.rows(self._n_ctx)}
        return fragment(_TEMPLATE, part=to_json(part))
