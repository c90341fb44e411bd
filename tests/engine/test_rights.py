"""Install, upgrade and uninstall without a superuser, on every PostgreSQL that Skep supports."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from skep.engine.install import ROLES, install, uninstall, verify
from skep.engine.script import script
from skep.engine.sources import SqlFile, packaged
from skep.errors import PermissionDenied
from tests.engine.servers import server
from tests.engine.verbs import drain, push, refused
from tests.postgres_binaries import MAJORS

ROOT = Path(__file__).parents[2]
UPGRADE = replace(packaged(), functions=(*packaged().functions, SqlFile("99_more", "-- more\n")))


class Cluster:
    """A server on which tests create users and databases; `clear` drops all of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._users: list[str] = []

    def execute(self, query: LiteralString, **names: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(sql.SQL(query).format(**{key: sql.Identifier(name) for key, name in names.items()}))

    def user(self, name: str, options: LiteralString = "") -> None:
        self.execute(f"CREATE ROLE {{name}} LOGIN PASSWORD 'secret' {options}", name=name)
        self._users.append(name)

    def owner(self, name: str, options: LiteralString = "") -> str:
        """Create a user who owns a database of the same name; return its URL as this user."""
        self.user(name, options)
        self.execute("CREATE DATABASE {name} OWNER {name} ENCODING 'UTF8' TEMPLATE template0", name=name)
        return self.url_as(name, name)

    def url_as(self, user: str, database: str) -> str:
        return make_conninfo(self.url, user=user, password="secret", dbname=database)

    def clear(self) -> None:
        for name in self._users:
            self.execute("DROP DATABASE IF EXISTS {name} WITH (FORCE)", name=name)
        for name in (*ROLES, *self._users):
            self.execute("DROP ROLE IF EXISTS {name}", name=name)
        self._users.clear()


@pytest.fixture(scope="module", params=MAJORS)
def server_url(request: pytest.FixtureRequest) -> Generator[str]:
    with server(request.param) as url:
        yield url


@pytest.fixture
def cluster(server_url: str) -> Generator[Cluster]:
    made = Cluster(server_url)
    try:
        yield made
    finally:
        made.clear()


def check_use(url: str) -> None:
    """Push, by a call and through the outbox, pop and ack."""
    with psycopg.connect(url, autocommit=True) as connection:
        verify_any(connection)
        push(connection, "q", 1, 2)
        connection.execute("INSERT INTO skep.outbox (queue, payload) VALUES ('q', '3')")
        assert [delivery.payload for delivery in drain(connection, "q")] == [1, 2, 3]


def verify_any(connection: psycopg.Connection) -> None:
    """Accept the package and its upgrade."""
    functions = connection.execute("SELECT functions_checksum FROM skep.schema_info").fetchone()
    verify(connection, UPGRADE if functions == (UPGRADE.functions_checksum,) else packaged())


def check_life(url: str, missing_roles: tuple[str, ...]) -> None:
    """Install, upgrade, uninstall and install again, and use it in between."""
    assert install(url).missing_roles == missing_roles
    check_use(url)
    upgraded = install(url, UPGRADE)
    assert (upgraded.functions, upgraded.missing_roles) == (True, missing_roles)
    assert install(url, UPGRADE).missing_roles == missing_roles  # there is nothing to do
    check_use(url)
    uninstall(url)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regnamespace('skep')").fetchone() == (None,)
    install(url)
    check_use(url)


def test_an_owner_with_createrole_installs_everything(cluster: Cluster):
    url = cluster.owner("ann", "CREATEROLE")
    check_life(url, ())
    with psycopg.connect(url, autocommit=True) as ann:
        ann.execute("CREATE ROLE app LOGIN PASSWORD 'secret' IN ROLE skep_producer, skep_consumer")
    try:
        check_use(cluster.url_as("app", "ann"))
    finally:
        cluster.execute("DROP ROLE app")


def test_an_owner_without_createrole_installs_without_the_roles(cluster: Cluster):
    check_life(cluster.owner("bob"), ROLES)


def test_single_functions_are_granted_without_the_roles(cluster: Cluster):
    """The example of docs/install.md; an upgrade keeps the grants."""
    url = cluster.owner("bob")
    cluster.user("app")
    install(url)
    with psycopg.connect(url, autocommit=True) as bob:
        bob.execute((ROOT / "examples" / "grant_functions.sql").read_bytes())
    install(url, UPGRADE)
    with psycopg.connect(cluster.url_as("app", "bob"), autocommit=True) as app:
        app.execute("""SELECT skep.push('[{"queue": "q", "payload": 1}]'::jsonb)""")
        app.execute("SELECT skep.push('q', '2')")
        app.execute("INSERT INTO skep.outbox (queue, payload, delay) VALUES ('q', '3', 0)")
        with refused("42501"):
            drain(app, "q")
    with psycopg.connect(url, autocommit=True) as bob:
        assert [delivery.payload for delivery in drain(bob, "q")] == [1, 2, 3]


def test_the_roles_can_be_added_later(cluster: Cluster):
    url = cluster.owner("bob")
    assert install(url).missing_roles == ROLES
    for role in ROLES:
        cluster.execute("CREATE ROLE {role} NOLOGIN", role=role)
    assert install(url, again=True).missing_roles == ()
    cluster.user("app", "IN ROLE skep_producer, skep_consumer")
    check_use(cluster.url_as("app", "bob"))


@pytest.mark.parametrize("options", ["", "CREATEROLE"])
def test_another_owner_installs_into_a_second_database(cluster: Cluster, options: LiteralString):
    """The roles exist, and belong to the owner of the first database."""
    install(cluster.owner("ann", "CREATEROLE"))
    check_life(cluster.owner("bob", options), ())
    cluster.user("app", "IN ROLE skep_producer, skep_consumer")
    for database in ("ann", "bob"):
        check_use(cluster.url_as("app", database))


@pytest.mark.parametrize("options", ["", "CREATEROLE"])
def test_the_printed_script_needs_no_more(cluster: Cluster, options: LiteralString):
    url = cluster.owner("ann", options)
    for sources in (packaged(), UPGRADE):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(script(sources).encode())
        check_use(url)


def test_a_superuser_upgrades_as_the_owner_only(cluster: Cluster):
    """Its functions would run with the rights of the superuser, on tables to which the owner may add triggers."""
    install(cluster.owner("Ann's"))
    superuser = make_conninfo(cluster.url, dbname="Ann's")
    with pytest.raises(PermissionDenied, match='schema skep belongs to "Ann\'s", not to') as caught:
        install(superuser, UPGRADE)
    assert "SET ROLE" in (caught.value.hint or "")
    assert install(make_conninfo(superuser, options="-crole=Ann's"), UPGRADE).functions
    with psycopg.connect(cluster.url_as("Ann's", "Ann's"), autocommit=True) as connection:
        owners = "SELECT DISTINCT pg_get_userbyid(proowner) FROM pg_proc WHERE pronamespace = 'skep'::regnamespace"
        assert connection.execute(owners).fetchall() == [("Ann's",)]


def test_an_administrator_may_produce_and_consume_in_every_database(cluster: Cluster):
    """Also in a second database, whose owner may not make skep_admin a member of the other roles."""
    install(cluster.owner("ann", "CREATEROLE"))
    install(cluster.owner("bob"))
    cluster.user("boss", "IN ROLE skep_admin")
    for database in ("ann", "bob"):
        check_use(cluster.url_as("boss", database))
