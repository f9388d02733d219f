"""The Grafana dashboard asks for metrics and labels that the server has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from http_server import serving

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboard.json"
WORDS = {"sum", "rate", "histogram_quantile", "by", "on", "group_left", "label_values"}
"""PromQL's and Grafana's own."""

BUCKETS = ("bucket", "sum", "count")
"""Samples of a histogram."""

PROMETHEUS_LABELS = {"job", "le"}
"""Labels that Prometheus adds, and that of a histogram's buckets."""


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return loaded


def expressions() -> list[str]:
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return asked + [variable["definition"] for variable in dashboard()["templating"]["list"]]


def names_in(expression: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that a query names."""
    plain = re.sub(r'"[^"]*"|\[[^\]]*\]', "", expression)
    labels = set(re.findall(r"(\w+)\s*=~?", plain))
    for group in re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", plain):
        labels |= set(re.findall(r"\w+", group))
    labels |= set(re.findall(r"label_values\(\w+, (\w+)\)", plain))
    return set(re.findall(r"\b[a-z]\w*", plain)) - WORDS - labels, labels


def exported_names(text: str) -> set[str]:
    """The samples that Prometheus's text format announces; a metric may not have any yet."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    buckets = {f"{name}_{end}" for name, kind in kinds.items() if kind == "histogram" for end in BUCKETS}
    return {name for name, kind in kinds.items() if kind != "histogram"} | buckets


@pytest.fixture(scope="module")
def exposition() -> str:
    """What a server exports that has answered something."""
    with serving() as running:
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 40, "temperature": 0}
        assert httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=30).status_code == 200
        return httpx.get(f"{running.url}/metrics").text


def test_names_are_found_in_a_query() -> None:
    query = 'sum by (model, le) (rate(a{model=~"$model"}[$__rate_interval])) / on (model) b{job="x"}'
    assert names_in(query) == ({"a", "b"}, {"model", "le", "job"})
    assert names_in("label_values(foredraft_x, model)") == ({"foredraft_x"}, {"model"})


def test_every_metric_and_label_of_the_dashboard_is_exported(exposition: str) -> None:
    exported = exported_names(exposition)
    families = text_string_to_metric_families(exposition)
    known = {label for family in families for sample in family.samples for label in sample.labels}
    for expression in expressions():
        metrics, labels = names_in(expression)
        assert metrics, expression
        assert metrics <= exported, expression
        assert labels <= known | PROMETHEUS_LABELS, expression


def test_panels_have_places_and_queries_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        assert panel["description"]
    taken = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(taken)) == len(taken)


def test_the_dashboard_shows_what_an_operator_asks() -> None:
    shown = " ".join(expressions())
    for metric in (
        "generation_tokens_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
        "speedup_plain_seconds_total",
        "num_requests_waiting",
        "kv_cache_tokens",
        "kv_cache_capacity_tokens",
    ):
        assert f"foredraft_{metric}" in shown
