"""Counters and histograms for Prometheus. A registry an application, so that two do not mix.

Names end in their unit; labels have few values: served models' names, routes' labels, outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exocli.server.hub import Hub
from exocli.server.requests import Running

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
GAPS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._requests = Counter(
            "exo_requests",
            "Generating requests by how they ended.",
            ["api", "model", "outcome"],
            registry=registry,
        )
        self._http = Counter("exo_http_responses", "Responses by status.", ["status"], registry=registry)
        self._tokens = Counter(
            "exo_tokens",
            "Tokens by kind: prompt, cached, completion.",
            ["model", "kind"],
            registry=registry,
        )
        self._cache_hits = Counter(
            "exo_cache_hits",
            "Requests that found a part of their prompt cached.",
            ["model"],
            registry=registry,
        )
        self._ttft = Histogram(
            "exo_time_to_first_token_seconds",
            "Request to first text.",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._gap = Histogram(
            "exo_inter_token_seconds",
            "Between two pieces of a reply.",
            ["model"],
            buckets=GAPS,
            registry=registry,
        )
        self._total = Histogram(
            "exo_request_seconds",
            "Request to the last rank's leaving.",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._cancel = Histogram(
            "exo_cancel_latency_seconds",
            "A cancel's asking to the last rank's leaving.",
            ["model", "phase"],
            buckets=SECONDS,
            registry=registry,
        )

    def on_token(self, running: Running, gap: float) -> None:
        self._gap.labels(running.model.name).observe(gap)

    def on_response(self, status: int) -> None:
        self._http.labels(str(status)).inc()

    def on_finished(self, running: Running) -> None:
        finished = running.finished
        assert finished is not None
        model, usage, timing = running.model.name, finished.usage, finished.timing
        self._requests.labels(running.api, model, finished.reason).inc()
        self._tokens.labels(model, "prompt").inc(usage.prompt_tokens)
        self._tokens.labels(model, "cached").inc(usage.cached_tokens)
        self._tokens.labels(model, "completion").inc(usage.completion_tokens)
        if usage.cached_tokens:
            self._cache_hits.labels(model).inc()
        if timing.ttft_s:
            self._ttft.labels(model).observe(timing.ttft_s)
        self._total.labels(model).observe(timing.total_s)
        if finished.cancel is not None:
            latency = finished.cancel.latency_ms / 1000
            self._cancel.labels(model, finished.cancel.phase).observe(latency)

    def watch(self, hub: Hub, running: Callable[[], Iterable[Running]]) -> None:
        """Gauges are read when they are asked for."""
        self.registry.register(_Gauges(hub, running))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, hub: Hub, running: Callable[[], Iterable[Running]]) -> None:
        self._hub = hub
        self._running = running

    def collect(self) -> Iterable[Metric]:
        flight = GaugeMetricFamily("exo_requests_in_flight", "By phase.", labels=["model", "phase"])
        counts: dict[tuple[str, str], int] = {
            (model.name, phase): 0
            for model in self._hub.unique
            for phase in ("queued", "loading", "prefill", "decode")
        }
        for running in self._running():
            counts[running.model.name, running.phase] += 1
        for labels, count in counts.items():
            flight.add_metric(list(labels), count)
        yield flight
        loaded = GaugeMetricFamily("exo_model_loaded", "1 while the model is in memory.", labels=["model"])
        restarts = GaugeMetricFamily(
            "exo_worker_restarts", "Workers started anew since the server started.", labels=["model"]
        )
        for model in self._hub.unique:
            loaded.add_metric([model.name], float(model.state == "loaded"))
            restarts.add_metric([model.name], model.restarts)
        yield loaded
        yield restarts
