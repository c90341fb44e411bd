"""Two servers on one database, and published Queen clients that talk to both."""

from collections.abc import Generator

import pytest

from tests.server.conftest import Conversation
from tests.server.process import Server, serving


@pytest.fixture(scope="module")
def other_server(
    server: Server, module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Server]:
    with serving(module_database_url, tmp_path_factory.mktemp("other")) as running:
        yield running


def test_a_push_wakes_who_waits_at_the_other(queen: Conversation, server: Server, other_server: Server):
    seen = queen("two_servers", server, other_server)
    assert seen["woken"] == ["from the other"]
    assert seen["latency"] < 0.5


def test_leases_and_duplicates_are_everybodys(queen: Conversation, server: Server, other_server: Server):
    seen = queen("two_servers", server, other_server)
    assert (seen["again"], seen["while leased"]) == ("duplicate", [])
    assert (seen["renewed"], seen["acked"], seen["then"]) == (True, True, [2])


def test_clients_fail_over(queen: Conversation, server: Server, other_server: Server):
    assert queen("two_servers", server, other_server)["failed over"] == [0, 1, 2, 3, 4, 5]
