"""The requests of Queen's JavaScript client over Node's own HTTP, whose parser forgives less than Python's."""

import shutil

import pytest

from tests.server.conftest import PROGRAMS, Seen, talk
from tests.server.environments import missing
from tests.server.process import Server


@pytest.fixture(scope="module")
def seen(server: Server) -> Seen:
    node = shutil.which("node")
    if node is None:
        missing("no Node.js here (Debian: apt-get install nodejs)")
    return talk((str(node), str(PROGRAMS / "fetch.mjs"), "node"), (server,))


def test_messages(seen: Seen):
    assert (seen["configured"]["status"], seen["configured"]["body"]["configured"]) == (201, True)
    assert [one["status"] for one in seen["pushed"]["body"]] == ["queued"] * 3
    assert seen["pushed"]["status"] == 201
    assert [one["data"] for one in seen["popped"]["body"]["messages"]] == [{"data": 1}, {"data": 2}, {"data": 3}]
    assert seen["popped"]["type"].startswith("application/json")
    assert seen["acked"]["body"][0]["success"] is True
    assert [one["success"] for one in seen["batch"]["body"]] == [True, True]
    assert seen["transaction"]["body"]["success"] is True
    assert seen["deleted"]["body"]["deleted"] is True


def test_empty_answers_keep_the_connection_in_step(seen: Seen):
    assert seen["empty"] == [[]] * 20


def test_a_lease_is_an_object(seen: Seen):
    renewed = seen["renewed"]["body"]
    assert {"leaseId", "success", "renewed", "newExpiresAt", "expiresAt", "lease_expires_at"} <= renewed.keys()


def test_errors(seen: Seen):
    assert (seen["bad"]["status"], seen["bad"]["body"]["error"]) == (400, "items array is required")
    assert seen["unknown"]["status"] == 404
    assert seen["unknown"]["body"]["error"]
    assert seen["preflight"] == "*"


def test_a_crowd_that_waits(seen: Seen):
    assert sorted(seen["crowd"]) == list(range(50))
