"""Random requests made from the OpenAPI schema: no answer of 5xx, none that the schema does not know; and every field has a meaning."""

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from minllm.server.openapi import schema
from minllm.server.paths import PATHS

POSTS = [one.path for one in PATHS if one.body is not None]
SCHEMA = schema("1")


def test_every_field_is_explained():
    for one in PATHS:
        for name, field in (one.body.model_fields if one.body else {}).items():
            assert field.description, (one.path, name)
    assert set(SCHEMA["paths"]) == {one.path for one in PATHS}


def shortened(body):
    """A right request ends soon."""
    limits = [name for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if not isinstance(body.get(name), str | list)]
    return body | {name: min(body[name], 4) if isinstance(body.get(name), int) else 4 for name in limits}


@pytest.mark.parametrize("path", POSTS)
def test_random_requests(served, request, path):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    requests = schemathesis.openapi.from_dict(SCHEMA)[path]["POST"].as_strategy()
    each = (2_000 if request.config.option.exhaustive else 210) // len(POSTS)
    statuses = []
    with httpx.Client(base_url=served.address, timeout=60) as http:

        @settings(max_examples=each, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(requests)
        def ask(case):
            body = shortened(case.body) if isinstance(case.body, dict) else case.body
            response = http.post(path, json=body)
            statuses.append(response.status_code)
            assert response.status_code < 500 or (response.status_code == 504 and "deadline" in body), (body, response.text)
            assert str(response.status_code) in SCHEMA["paths"][path]["post"]["responses"]

        ask()
    assert len(statuses) >= each * 0.9


def test_the_schema_is_served(http):
    assert http.get("/openapi.json").json()["paths"].keys() == SCHEMA["paths"].keys()
