"""Several processes use one server; the last one stops it."""

import psycopg
import pytest

from skep import embedded

pytestmark = pytest.mark.usefixtures("made")


def test_the_last_user_stops_the_server(new_user, machine, notes):
    first, second = new_user(), new_user()
    url = first.url()
    assert second.url() == url
    first.stop()
    assert notes.responds(url)
    second.stop()
    assert machine.is_down()


def test_stop_does_not_wait_for_other_users(data_dir, new_user, machine):
    user = new_user()
    user.url()
    embedded.start(data_dir).stop()
    assert not machine.is_down()


def test_two_concurrent_stops_both_wait_for_the_end(new_user, machine):
    users = [new_user() for _ in range(4)]
    for user in users:
        user.url()
    for user in users:
        user._say()
    assert [user._read() for user in users] == ["stopped"] * 4
    assert machine.is_down()


def test_killed_user_counts_as_gone(new_user, machine, notes):
    first, second = new_user(), new_user()
    url = first.url()
    assert second.url() == url
    first.kill()
    assert notes.responds(url)
    second.kill()
    machine.wait_until_down()
    assert "database system is shut down" in machine.log()


def test_start_waits_for_a_shutdown_under_way(data_dir, new_user, notes):
    user = new_user()
    notes.write(user.url(), "one")
    user.kill()  # no process waits for the end of this server
    with embedded.start(data_dir) as server:
        assert notes.read(server.url) == ["one"]


def test_coming_and_going_never_leaves_anyone_without_server(data_dir, new_user):
    """A process that holds the server for a moment must find it there, however the others come and go."""
    for _ in range(5):
        user = new_user()
        with embedded.start(data_dir) as server:
            psycopg.connect(server.url).close()
        psycopg.connect(user.url()).close()
        user.stop()
