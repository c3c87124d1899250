"""The routing panel as a static fragment: decisions, what stands behind the newest, and the calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexus_lab.lab.fragments import fragment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexus_lab.routing import RouterCalibration

__all__ = ["routing_page"]

_EXPLAINED = 3
_TEMPLATE = """
<section class="nl-routing"><h2>Routing</h2>
<p>tau = {{ part.tau | number(4) }}, {{ part.provenance }}; {{ part.examples }} examples</p>
<table><thead><tr><th>Request</th><th>Decision</th><th>Tool</th><th>Margin</th><th>tau</th><th>Mark</th>
<th>Why</th></tr></thead><tbody>
{% for row in part.decisions %}
<tr><td>{{ row.request }}</td><td class="num">{{ row.decision }}</td>
<td class="num"><code>{{ row.tool or "no tool" }}</code></td>
<td class="r num">{{ row.margin | number(4) }}</td><td class="r num">{{ row.tau | number(4) }}</td>
<td>{{ row.mark or "" }}{{ " (" ~ row.right_tool ~ ")" if row.right_tool else "" }}</td>
<td>{{ row.reason }}</td></tr>
{% endfor %}
</tbody></table>
{% for row in explained %}
<h3>Behind “{{ row.request }}”</h3>
<p class="small">{{ row.stages }}{% if row.fit is not none and row.threshold is not none %}; fit
<span class="num">{{ row.fit | number(3) }}</span>, no tool under
<span class="num">{{ row.threshold | number(3) }}</span>{% endif %}</p>
<table class="small"><thead><tr><th class="r">#</th><th>Tool</th><th class="r">Dense</th>
<th class="r">Lexical</th><th class="r">Example</th><th class="r">Stage 1</th><th class="r">Read, p</th>
<th>Nearest</th><th>Also counted</th></tr></thead><tbody>
{% for item in row.candidates %}
<tr><td class="r num">{{ loop.index }}</td><td><code>{{ item.tool }}</code></td>
<td class="r num">{{ item.dense | number(3) }}</td><td class="r num">{{ item.lexical | number(3) }}</td>
<td class="r num">{{ item.get("example") | number(3) }}</td>
<td class="r num">{{ item.score | number(4) }}</td>
<td class="r num">{{ item.cross_encoder | number(3) }}</td><td>
{{- item.view or "–" }}{{ ": " ~ item.matched if item.get("matched") else "" }}</td>
<td>{{ item.get("notes") | default([], true) | join(", ") }}</td></tr>
{% endfor %}
</tbody></table>
{% endfor %}
<h3>Calibration</h3>
<p class="small">{{ calibration.gate.source }}. A unit of the cross-encoder's score counts
<span class="num">{{ calibration.reader_weight | number }}</span>{{ unknown }}.
Made by <code>{{ calibration.command }}</code></p>
{% if calibration.abstention.rates %}
<table class="small"><thead><tr><th>Requests</th><th>Over</th><th class="r">n</th>
<th class="r">Told to have no tool</th><th class="r">AUROC</th></tr></thead><tbody>
{% for rate in calibration.abstention.rates %}
<tr><td>{{ rate.group }}</td><td>{{ rate.over }}</td><td class="r num">{{ rate.n | number }}</td>
<td class="r num">{{ (100 * rate.share) | number(1) }} %</td>
<td class="r num">{{ rate.get("auroc") | number(3) }}</td></tr>
{% endfor %}
</tbody></table>
{% endif %}
</section>
"""


def routing_page(part: Mapping[str, Any], calibration: RouterCalibration) -> str:
    """Return the panel as HTML; text of unknown origin is escaped.

    Parameters
    ----------
    part
        What views show, as JSON values.
    calibration
        The one in use.
    """
    kept = [row for row in part["decisions"] if row["candidates"]][:_EXPLAINED]
    explained = [{**row, "stages": _stages(row["times_ms"])} for row in kept]
    weight = calibration.reader_weight_unknown
    unknown = "" if weight is None else f", over tools without examples {weight:g}"
    return fragment(_TEMPLATE, part=part, explained=explained, calibration=calibration, unknown=unknown)


def _stages(times: Mapping[str, float]) -> str:
    """Return "12.1 ms: embed 9.8, scan 0.4, ...", in the order in which they ran."""
    stages = ", ".join(f"{stage} {value:.2f}" for stage, value in times.items())
    return f"{sum(times.values()):.1f} ms: {stages}"
