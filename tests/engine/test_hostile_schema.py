"""A user who may create objects in the database does not get the rights of users who install or use Skep there."""

from collections.abc import Callable, Generator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from skep.engine.install import install, uninstall
from skep.engine.script import script
from skep.errors import Conflict, PermissionDenied, SchemaMismatch
from tests.engine.verbs import refused

# trap() records its caller: the installer, if the trap works.
TRAP = """
    CREATE SCHEMA skep;
    CREATE TABLE public.trapped (who name);
    GRANT ALL ON public.trapped TO PUBLIC;
    GRANT USAGE ON SCHEMA skep TO PUBLIC;
    CREATE FUNCTION skep.trap() RETURNS text LANGUAGE sql AS
        $$ INSERT INTO public.trapped VALUES (current_user); SELECT ''::text $$;
"""
VIEWS = """
    CREATE VIEW skep.migrations AS SELECT 1 AS number, skep.trap() AS name, skep.trap() AS checksum;
    CREATE VIEW skep.schema_info AS SELECT skep.trap() AS package, skep.trap() AS functions_checksum;
    GRANT SELECT ON skep.migrations, skep.schema_info TO PUBLIC;
"""
TABLES = """
    CREATE TABLE skep.migrations (number integer, name text, checksum text);
    CREATE TABLE skep.schema_info (package text, functions_checksum text);
    GRANT SELECT ON skep.migrations, skep.schema_info TO PUBLIC;
"""
POLICIES = f"""
    {TABLES}
    INSERT INTO skep.migrations VALUES (1, 'one', 'sum');
    INSERT INTO skep.schema_info VALUES ('1', 'sum');
    CREATE POLICY trap ON skep.migrations USING (skep.trap() = '');
    CREATE POLICY trap ON skep.schema_info USING (skep.trap() = '');
    ALTER TABLE skep.migrations ENABLE ROW LEVEL SECURITY;
    ALTER TABLE skep.schema_info ENABLE ROW LEVEL SECURITY;
"""
FUNCTIONS = f"""
    {TABLES}
    INSERT INTO skep.schema_info VALUES ('1', 'sum');
    CREATE FUNCTION skep.current_setting(text) RETURNS text LANGUAGE sql AS
        $$ SELECT skep.trap(); SELECT pg_catalog.current_setting($1) $$;
    CREATE FUNCTION skep.aclexplode(aclitem[], OUT grantee oid, OUT privilege_type text, OUT is_grantable boolean)
        RETURNS SETOF record LANGUAGE sql AS $$ SELECT skep.trap(); SELECT 0::oid, ''::text, false WHERE false $$;
    CREATE FUNCTION skep.equal(oid, oid) RETURNS boolean LANGUAGE sql AS $$ SELECT skep.trap() = '' $$;
    CREATE OPERATOR skep.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = skep.equal);
"""


@pytest.fixture
def mallory(empty_database_url: str, template: str) -> Generator[psycopg.Connection]:
    """A session of a user who may create schemas in an empty database; `template` has created the roles."""
    with psycopg.connect(empty_database_url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS mallory, owner; CREATE ROLE mallory; CREATE ROLE owner CREATEROLE LOGIN")
        database = sql.Identifier(owner.info.dbname)
        owner.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO mallory, owner").format(database))
        owner.execute("GRANT CREATE ON SCHEMA public TO mallory")
        with psycopg.connect(empty_database_url, autocommit=True) as session:
            session.execute("SET ROLE mallory")
            session.execute(TRAP)
            yield session
        owner.execute("DROP OWNED BY mallory, owner CASCADE; DROP ROLE mallory, owner")


def trapped(session: psycopg.Connection) -> list[tuple[str, ...]]:
    return session.execute("SELECT DISTINCT who FROM public.trapped").fetchall()


def test_the_traps_work(mallory: psycopg.Connection):
    mallory.execute(VIEWS)
    mallory.execute("RESET ROLE; SELECT * FROM skep.migrations")
    assert trapped(mallory) == [(mallory.info.user,)]


@pytest.mark.parametrize("role", ["", "owner"], ids=["a superuser", "another user"])
@pytest.mark.parametrize("trap", [VIEWS, POLICIES, FUNCTIONS], ids=["views", "policies", "functions"])
def test_a_schema_created_before_the_install_gets_no_rights(
    mallory: psycopg.Connection, empty_database_url: str, trap: str, role: str
):
    """Neither install nor uninstall calls anything in a schema that belongs to another user."""
    mallory.execute(trap.encode())
    url = make_conninfo(empty_database_url, options=f"-crole={role}") if role else empty_database_url
    with pytest.raises((SchemaMismatch, PermissionDenied)):
        install(url)
    with psycopg.connect(url, autocommit=True) as session, pytest.raises(psycopg.Error, match="schema skep"):
        session.execute(script().encode())
    with pytest.raises((SchemaMismatch, PermissionDenied, Conflict)):
        uninstall(url)
    assert trapped(mallory) == []


def test_an_uninstall_by_a_superuser_calls_nothing_of_the_schema(mallory: psycopg.Connection, empty_database_url: str):
    mallory.execute(FUNCTIONS.encode())
    mallory.execute("DROP OPERATOR skep.= (oid, oid)")
    uninstall(empty_database_url)
    assert trapped(mallory) == []
    assert mallory.execute("SELECT to_regnamespace('skep')").fetchone() == (None,)


def test_functions_in_public_are_not_called_by_the_installer(mallory: psycopg.Connection, empty_database_url: str):
    """In databases of PostgreSQL 14 every user may create functions in public."""
    mallory.execute("DROP SCHEMA skep CASCADE")
    mallory.execute("""
        CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE sql AS
            $$ INSERT INTO public.trapped VALUES (current_user); SELECT ''::text $$
    """)
    install(empty_database_url)
    install(empty_database_url)
    assert trapped(mallory) == []


def test_functions_in_public_are_not_called_by_functions_of_skep(connect: Callable[..., psycopg.Connection]):
    """_queen_transaction() runs with the rights of the server, and uses only functions of the system."""
    owner = connect()
    owner.execute("""
        CREATE FUNCTION public.format(text, jsonb) RETURNS text LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'trapped'; END $$
    """)
    messages = Jsonb([{"queue": "q", "partition": "p", "payload": 1, "transaction_id": "t"}])
    owner.execute("SELECT skep._push_messages(%s)", [messages])
    with pytest.raises(psycopg.Error, match="trapped"):
        owner.execute("SELECT format('%%s', '1'::jsonb)")
    with refused("SK007", "duplicate transactionId"):
        owner.execute("SELECT skep._queen_transaction('{}', '{}', '{}', '{}', '{}', '{}', %s)", [messages])


def test_every_open_function_has_a_fixed_search_path(conn: psycopg.Connection):
    """It has a search_path, or its body was parsed at the install.

    _head_of() could not be inlined with either; its operators match exactly, so that no other can be chosen.
    """
    loose = conn.execute("""
        SELECT p.proname FROM pg_proc p
        WHERE p.pronamespace = 'skep'::regnamespace AND p.prosqlbody IS NULL
          AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)
          AND EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee <> p.proowner)
    """).fetchall()
    assert loose == [("_head_of",)]
