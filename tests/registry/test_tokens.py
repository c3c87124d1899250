"""Token figures of signatures beside full schemas."""

from __future__ import annotations

import json

import pytest

from nexus_lab.bench.tokens import measure, run
from nexus_lab.registry import RegistryFormatError, load_registry, schema_text, signature

TOOLS = [
    {
        "name": f"tool_{index}",
        "description": "Do it",
        "inputSchema": {
            "type": "object",
            "properties": {f"p{i}": {"type": "string", "description": "x" * 50} for i in range(index)},
        },
    }
    for index in range(1, 6)
]


def test_figures_are_those_of_the_texts():
    registry = load_registry(TOOLS)
    found = {(r.case["system"], r.metric): r.value for r in measure(registry, list)}
    full = [len(schema_text(tool)) for tool in registry]
    line = [len(signature(tool, detail="line")) for tool in registry]
    assert found["full_schema", "tokens_median"] == full[2]
    assert found["full_schema", "tokens_p99"] == full[4]
    assert found["line", "tokens_total"] == sum(line)
    assert found["line", "token_saving"] == pytest.approx(1 - sum(line) / sum(full))
    assert ("full_schema", "token_saving") not in found
    assert {system for system, _ in found} == {"full_schema", "dense", "line", "brief", "inline"}


def test_a_run_is_written_in_the_one_form(tmp_path):
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS))
    results = run(path, tokenize=list)
    results.write(tmp_path / "results.json")
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["name"] == "bench signatures"
    assert written["settings"]["registry"] == "tools"
    assert {"case", "metric", "value", "n"} <= set(written["results"][0])


def test_an_empty_registry_has_no_figures():
    with pytest.raises(RegistryFormatError, match="no tools"):
        measure(load_registry([]), list)


@pytest.mark.model
def test_the_bundled_models_tokenizer_counts(data_dir):
    found = {
        (r.case["system"], r.metric): r.value for r in run(data_dir / "registries" / "n250.json").results
    }
    assert found["line", "tokens_median"] <= 22
    assert found["dense", "tokens_median"] <= 20
    for system in ("dense", "line", "brief", "inline"):
        assert found[system, "token_saving"] >= 0.8
        assert found[system, "tokens_p99"] <= 150
