"""The public surface: what `\\df+ skep.*` and `\\dt+ skep.*` show, and that no private function is dead."""

import re
from pathlib import Path

import psycopg

SRC = Path(__file__).parents[2] / "src" / "skep"
MOST = 80
PUBLIC = """
    SELECT oid::regprocedure::text, coalesce(obj_description(oid, 'pg_proc'), '')
    FROM pg_proc WHERE pronamespace = 'skep'::regnamespace AND proname NOT LIKE '\\_%'
"""
RELATIONS = """
    SELECT relname::text FROM pg_class
    WHERE relnamespace = 'skep'::regnamespace AND relkind IN ('r', 'v') AND obj_description(oid, 'pg_class') IS NULL
"""
# Only functions read these.
INTERNAL = {
    "migrations", "schema_info", "journal_floor", "discoveries", "starts", "deleted_totals", "outbox_transactions",
    "lease_sets", "retention_visits", "sample_counts", "sink_chunks", "stream_groups", "stream_queries", "trace_names",
    "traced_names", "stream_state",
}  # fmt: skip
# For readers by snapshot, which do not ask yet whether the database was set back.
NOT_CALLED_YET = {"_has_journal_mark"}

COMMENT = re.compile(r"--.*")
ROUTINE = re.compile(
    r"^CREATE (?:FUNCTION|PROCEDURE) skep\.(\w+)\((?:(?!\$\$).)*\$\$.*?\$\$;\n", re.MULTILINE | re.DOTALL
)
GRANT = re.compile(r"^CALL skep\._(?:allow|pin)\('[^;]*;", re.MULTILINE)


def test_every_public_function_has_a_comment(conn: psycopg.Connection):
    """One or two sentences, which end like sentences."""
    comments = dict(conn.execute(PUBLIC).fetchall())
    assert [name for name, comment in comments.items() if not re.match(r"[A-Z].*\.$", comment)] == []


def test_there_are_80_public_functions_at_most(conn: psycopg.Connection):
    assert len(conn.execute(PUBLIC).fetchall()) <= MOST


def test_every_table_and_view_that_people_read_has_a_comment(conn: psycopg.Connection):
    assert {name for (name,) in conn.execute(RELATIONS)} == INTERNAL


def callers() -> list[tuple[str, str]]:
    """Return (routine, its text) for every routine, and ("", text) for everything else that may call one."""
    parts: list[tuple[str, str]] = []
    for path in sorted((SRC / "engine" / "sql").rglob("*.sql")):
        text = COMMENT.sub("", path.read_text())
        parts += [(found[1], found[0]) for found in ROUTINE.finditer(text)]
        parts.append(("", GRANT.sub("", ROUTINE.sub("", text))))
    parts += [("", path.read_text()) for path in sorted(SRC.rglob("*.py"))]
    return parts


def test_every_private_function_has_a_caller(conn: psycopg.Connection):
    """Recursion and grants do not count."""
    parts = callers()
    private = {name for name, _ in parts if name.startswith("_")} - {"_allow", "_pin"}
    called = {name for caller, text in parts for name in re.findall(r"\bskep\.(_\w+)", text) if name != caller}
    assert len(private) > 100
    assert private - called == NOT_CALLED_YET


def test_the_page_of_sql_names_every_public_function_and_no_other(conn: psycopg.Connection):
    public = {name.removeprefix("skep.").partition("(")[0] for name, _ in conn.execute(PUBLIC)}
    page = (SRC.parents[1] / "docs" / "sql.md").read_text()
    named = {name for code in re.findall(r"`([^`\n]+)`", page) for name in re.findall(r"\b([a-z_]+)\(", code)}
    assert named == public


# Other ways of a pop: named partitions, concurrency above 1, namespaces, first contact, lack of work, auto_ack.
OTHER_WAYS = {
    "_lease_next_named", "_lease_by_name", "_lease_named", "_lease_from_open", "_lease_shared", "_lease_wide",
    "_ensure_subscribed", "_ensure_subscribed_by_name", "_discover", "_append_for_pop", "_complete_leases",
    "_check_pop", "_refuse",
}  # fmt: skip


def test_the_walk_from_pop_to_the_lease_is_short():
    """What docs/architecture.md draws: 25 functions and 600 lines at most."""
    routines = {name: text for name, text in callers() if name}
    todo, walked = ["pop"], dict[str, int]()
    while todo:
        name = todo.pop()
        walked[name] = routines[name].count("\n")
        called = set(re.findall(r"\bskep\.(\w+)\s*\(", routines[name])) & routines.keys()
        todo += called - walked.keys() - OTHER_WAYS
    assert len(walked) > 10
    assert (len(walked) <= 25, sum(walked.values()) <= 600) == (True, True), walked


def test_the_page_of_the_architecture_names_functions_that_exist():
    page = (SRC.parents[1] / "docs" / "architecture.md").read_text()
    assert set(re.findall(r"\b_[a-z]\w+", page)) <= {name for name, _ in callers()}
