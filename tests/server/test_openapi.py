"""schemathesis over /openapi.json: no 500, nothing that the document does not say, nothing wrong accepted."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import load_all_checks
from schemathesis.generation import GenerationMode

from tests.server.serving import Serving

RULES = settings(
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
load_all_checks()


def operations(server: Serving) -> list[Any]:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    found = [result.ok() for result in schema.get_all_operations()]
    assert len(found) > 25
    return found


def checks(*names: str) -> list[Any]:
    return schemathesis.checks.CHECKS.get_by_names(names)


@pytest.mark.parametrize(
    ("mode", "examples"),
    [
        pytest.param(GenerationMode.POSITIVE, 2, id="right"),
        pytest.param(GenerationMode.NEGATIVE, 2, id="wrong"),
        pytest.param(GenerationMode.POSITIVE, 100, id="right-soak", marks=pytest.mark.soak),
        pytest.param(GenerationMode.NEGATIVE, 100, id="wrong-soak", marks=pytest.mark.soak),
    ],
)
def test_the_routes_do_as_the_document_says(server: Serving, mode: GenerationMode, examples: int):
    conform = checks("status_code_conformance", "content_type_conformance", "response_schema_conformance")
    if mode.is_negative:
        conform += checks("negative_data_rejection")
    before = len(server.log)
    for operation in operations(server):
        if mode.is_negative and not operation.body:
            continue

        @seed(1)
        @settings(RULES, max_examples=examples)
        @given(case=operation.as_strategy(generation_mode=mode))
        def one(case: Any) -> None:
            answer = case.call(base_url=server.url, timeout=20)
            assert answer.status_code != 500, answer.text
            case.validate_response(answer, checks=conform)

        one()
    assert server.get("/health").json()["status"] == "ok"
    server.wait_idle()
    assert not any(" failure " in line or "Traceback" in line for line in server.log[before:])


def test_every_route_is_in_the_document(server: Serving):
    from exocli.server.app import routes

    known = set(server.get("/openapi.json").json()["paths"])
    paths = {route.path.replace("{name:path}", "{name}") for route in routes()}
    others = paths - known
    assert {path for path in others if not path.startswith("/web/")} == {"/", "/openapi.json"}
    assert known <= paths
