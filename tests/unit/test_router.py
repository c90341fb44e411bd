"""Paths: split before they are decoded, fixed segments before parameters, the rest of a path last."""

import pytest

from skep.server.http.asgi import HttpError
from skep.server.http.endpoint import Call, Endpoint, Reply, Router, decoded, param_names


async def run(_call: Call) -> Reply:
    return Reply(200)


def endpoint(method: str, path: str) -> Endpoint:
    return Endpoint(method=method, path=path, action=None, run=run, summary="")  # pyright: ignore[reportArgumentType]


ROUTER = Router(
    [
        endpoint("GET", "/api/v1/pop"),
        endpoint("GET", "/api/v1/pop/queue/{queue}"),
        endpoint("GET", "/api/v1/pop/queue/{queue}/partition/{partition}"),
        endpoint("GET", "/api/v1/traces/names"),
        endpoint("GET", "/api/v1/traces/by-name/{name}"),
        endpoint("GET", "/api/v1/traces/{partition}/{transaction...}"),
        endpoint("DELETE", "/api/v1/traces/{partition}/{transaction...}"),
        endpoint("POST", "/api/v1/traces/{partition}/{transaction}/retry"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "found", "params"),
    [
        ("GET", "/api/v1/pop", "/api/v1/pop", {}),
        ("GET", "/api/v1/pop/queue/orders", "/api/v1/pop/queue/{queue}", {"queue": "orders"}),
        ("GET", "/api/v1/pop/queue/a%2Fb", "/api/v1/pop/queue/{queue}", {"queue": "a/b"}),
        ("GET", "/api/v1/pop/queue/%252F", "/api/v1/pop/queue/{queue}", {"queue": "%2F"}),
        ("GET", "/api/v1/pop/queue/..", "/api/v1/pop/queue/{queue}", {"queue": ".."}),
        ("GET", "/api/v1/pop/queue/names", "/api/v1/pop/queue/{queue}", {"queue": "names"}),
        (
            "GET",
            "/api/v1/pop/queue/q/partition/p%20%C3%A9",
            "/api/v1/pop/queue/{queue}/partition/{partition}",
            {"queue": "q", "partition": "p é"},
        ),
        ("GET", "/api/v1/traces/names", "/api/v1/traces/names", {}),
        ("GET", "/api/v1/traces/by-name/x", "/api/v1/traces/by-name/{name}", {"name": "x"}),
        (
            "GET",
            "/api/v1/traces/p/a/b",
            "/api/v1/traces/{partition}/{transaction...}",
            {"partition": "p", "transaction": "a/b"},
        ),
        (
            "POST",
            "/api/v1/traces/p/t/retry",
            "/api/v1/traces/{partition}/{transaction}/retry",
            {"partition": "p", "transaction": "t"},
        ),
    ],
)
def test_a_path_is_found(method: str, path: str, found: str, params: dict[str, str]):
    methods, values = ROUTER.find(path)
    assert methods[method].path == found
    assert decoded(param_names(found), values) == params


@pytest.mark.parametrize(
    "path", ["/", "", "//", "/api/v1/pop/", "/api/v1/pop/queue/", "/api/v1/pop/queue//partition/p", "/api"]
)
def test_a_path_is_not_found(path: str):
    assert ROUTER.find(path) == ({}, [])


@pytest.mark.parametrize("value", ["%ff", "%00", "a%00b"])
def test_a_path_that_is_no_text_is_refused(value: str):
    with pytest.raises(HttpError) as refused:
        decoded(["queue"], [value])
    assert refused.value.status == 400


def test_two_endpoints_of_one_path_are_a_mistake():
    with pytest.raises(ValueError, match="twice"):
        Router([endpoint("GET", "/a/{b}"), endpoint("GET", "/a/{c}")])
