"""Spans of another program's trace, as OTLP JSON has them."""

from __future__ import annotations

import json


def span(name, *, parent="", trace="t1", start=10, end=20, attributes=(), **more):
    return {
        "traceId": trace,
        "spanId": name,
        "parentSpanId": parent,
        "name": name,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": list(attributes),
        **more,
    }


def attribute(key, value):
    kind = {str: "stringValue", int: "intValue", float: "doubleValue"}[type(value)]
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}


def document(*spans):
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})
