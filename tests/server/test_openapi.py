"""The description: every route is in it, the page asks nobody else, and the server does what it says."""

import json
import os
import re
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from skep.server import routes
from skep.server.http.openapi import document
from tests.server.serving import Client, client

__all__ = ["client"]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DETERMINISTIC = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=int(os.environ.get("SKEP_TEST_EXAMPLES", "12")),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


OPERATIONS: list[Any] = [
    cast("Any", found).ok() for found in schemathesis.openapi.from_dict(document(routes.ENDPOINTS)).get_all_operations()
]


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # a generator of schemathesis does
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_the_server_answers_as_described(operation: Any, client: Client):
    @DETERMINISTIC
    @given(data=strategies.data(), mode=strategies.sampled_from(GenerationMode))
    def call(data: Any, mode: GenerationMode) -> None:
        case = data.draw(
            operation.as_strategy(generation_mode=mode if has_input(operation) else GenerationMode.POSITIVE)
        )
        if "timeout" in (case.query or {}):
            case.query["timeout"] = 20  # whoever waits long learns nothing more
        elif case.query:
            case.query.pop("wait", None)
        case.call_and_validate(base_url=client.url, checks=CHECKS)

    call()


def has_input(operation: Any) -> bool:
    """Tell whether there is something to send that is wrong."""
    return bool(operation.definition.raw["parameters"] or operation.definition.raw.get("requestBody"))


def operations(api: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    }


def test_every_endpoint_is_described(client: Client):
    answer = client.get("/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["openapi"].startswith("3.1")
    told = operations(answer.json)
    assert set(told) == {(each.method, each.path.replace("...}", "}")) for each in routes.ENDPOINTS}
    ids = [operation["operationId"] for operation in told.values()]
    assert len(ids) == len(set(ids))


def test_references_lead_somewhere():
    api = document(routes.ENDPOINTS)
    names = {ref.rpartition("/")[2] for ref in re.findall(r'"\$ref": "([^"]+)"', json.dumps(api))}
    assert names
    assert names <= set(api["components"]["schemas"])


def test_path_parameters_are_declared():
    for (_, path), operation in operations(document(routes.ENDPOINTS)).items():
        declared = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path))


def test_who_needs_rights_and_who_not():
    told = operations(document(routes.ENDPOINTS))
    for endpoint in routes.ENDPOINTS:
        operation = told[endpoint.method, endpoint.path.replace("...}", "}")]
        assert ("security" in operation) == (endpoint.action is not None)
        assert ("401" in operation["responses"]) == (endpoint.action is not None)
        assert operation["responses"]["400"]["content"]["application/json"]["schema"]["$ref"].endswith("/Error")


def test_the_page_stands_alone(client: Client):
    answer = client.get("/docs")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    page = answer.body.decode()
    assert not re.search(r"https?:|//[a-z]|\bsrc=|@import|innerHTML", page), "no other place, no markup from data"
    assert len(page.splitlines()) < 200
    assert set(re.findall(r'fetch\("([^"]+)"', page)) == {"openapi.json"}
