"""The plan of every statement that a call runs, also inside functions, from auto_explain."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.errors import Diagnostic

SETTINGS = {
    "log_nested_statements": "on",
    "log_format": "json",
    "log_level": "notice",
    "log_timing": "off",
}

SINGLE_ROWS = {"settings", "journal_floor", "retention_visits"}  # tables of one row, which need no index
FREEZE = """
    DO $$
    DECLARE
        name regclass;
    BEGIN
        FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'skep'::regnamespace AND relkind = 'r' LOOP
            EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', name);
        END LOOP;
    END $$
"""


@dataclass(frozen=True)
class Plan:
    query: str
    tree: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        """Return every node of the plan, from the top down."""
        waiting = [self.tree]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", [])

    def scans(self) -> Iterator[tuple[str, str | None]]:
        """Return each table that is read with the index that is used, None for a sequential scan."""
        for node in self.nodes():
            if "Relation Name" in node and node["Node Type"] not in {"ModifyTable", "Bitmap Heap Scan", "Tid Scan"}:
                yield node["Relation Name"], node.get("Index Name")
            elif node["Node Type"] == "Bitmap Index Scan":
                yield "", node["Index Name"]

    def rows_touched(self) -> int:
        """Return the rows that table scans produced or discarded; needs analyze."""
        return sum(
            round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
            for node in self.nodes()
            if "Relation Name" in node and node["Node Type"] != "ModifyTable"
        )


def explained(connection: psycopg.Connection, job: Callable[[], object], *, analyze: bool = False) -> list[Plan]:
    """Run a job and return the plans of all its statements, in the order in which they ended."""
    plans: list[Plan] = []

    def collect(notice: Diagnostic) -> None:
        _, found, text = (notice.message_primary or "").partition("plan:\n")
        if found:
            entry = json.loads(text)
            plans.append(Plan(entry["Query Text"], entry["Plan"]))

    connection.execute("LOAD 'auto_explain'")
    for name, value in {**SETTINGS, "log_analyze": str(analyze)}.items():
        connection.execute("SELECT set_config('auto_explain.' || %s, %s, false)", [name, value])
    # In a transaction a statement ends, and is logged, when the next one begins; SET is never logged.
    connection.execute("SET auto_explain.log_min_duration = 0")
    connection.add_notice_handler(collect)
    try:
        job()
        connection.execute("SET auto_explain.log_min_duration = -1")
    finally:
        connection.remove_notice_handler(collect)
    return plans


def scans(plans: list[Plan]) -> set[tuple[str, str | None]]:
    return {scan for plan in plans for scan in plan.scans()}


def assert_indexed(plans: list[Plan], *expected: str) -> None:
    found = scans(plans)
    walked = {table for table, index in found if index is None} - SINGLE_ROWS
    assert walked == set(), walked
    unused = set(expected) - {index for _, index in found}
    assert unused == set(), unused
