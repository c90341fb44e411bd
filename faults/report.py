"""The results of all runs: stored as JSON, shown as a table."""

import json
import os
import platform
import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.catalog import FAULTS
from faults.processes import ROOT
from faults.round import Verdict
from faults.stage import STAGES

LOST = {
    "accepted messages are stored",
    "every group completes every message",
    "lag returns to zero",
    "many partitions: every message is completed",
}
DUPLICATED = {
    "no delivery after the ack",
    "a message is stored once",
    "at most once with auto_ack",
    "many partitions: no message is completed twice",
}
UNORDERED = {"in order", "many partitions: messages are in order"}
COLUMNS = ("fault", "seeds", "times", "operations", "lost", "duplicated after ack", "out of order", "other", "recovery")
MARKS = ("<!-- table -->\n", "<!-- end of table -->")


def add(path: Path, seed: int, seconds: float, verdicts: Iterable[Verdict]) -> None:
    """Add a run to the stored results."""
    rounds = [
        asdict(verdict) | {"violations": [[each.rule, each.text] for each in verdict.violations]}
        for verdict in verdicts
    ]
    run = {"seed": seed, "seconds": seconds, "commit": _commit(), "machine": _machine(), "rounds": rounds}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*load(path), run], indent=1))


def load(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


def table(runs: list[dict[str, Any]]) -> str:
    """Return the table: a row for each fault, with the results of all rounds that it was part of."""
    rows: dict[tuple[str, str], dict[str, Any]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for played in run["rounds"]:
            broken = [rule for rule, _ in played["violations"]]
            note = STAGES[played["stage"]].note
            for fault in {struck["fault"] for struck in played["struck"]}:
                row = rows[fault, note]
                row["seeds"].append(run["seed"])
                row["broken"] += broken
                row["by contract"].append(played["lost_by_contract"])
            for struck in played["struck"]:
                row = rows[struck["fault"], note]
                row["times"].append(1)
                row["operations"].append(struck["operations"])
                row["recovery"] += [struck["recovery"]] if struck["recovery"] is not None else []
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    order = sorted(rows, key=lambda key: (key[1], list(FAULTS).index(key[0])))
    return "\n".join([*lines, *(_row(*key, rows[key]) for key in order), "", _sum(runs)])


def _row(name: str, note: str, row: dict[str, Any]) -> str:
    broken = row["broken"]
    counts = [sum(rule in kind for rule in broken) for kind in (LOST, DUPLICATED, UNORDERED)]
    other = len(broken) - sum(counts)
    by_contract = f" ({sum(row['by contract'])} by contract)" if any(row["by contract"]) else ""
    recovery = row["recovery"]
    times = f"{statistics.median(recovery):.1f} s, at most {max(recovery):.1f} s" if recovery else ""
    title = f"{FAULTS[name].title}, {note}" if note else FAULTS[name].title
    lost, *rest = counts
    operations = f"{sum(row['operations']):,}"
    cells = [title, len(set(row["seeds"])), len(row["times"]), operations, f"{lost}{by_contract}", *rest, other, times]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _sum(runs: list[dict[str, Any]]) -> str:
    rounds = [played for run in runs for played in run["rounds"]]
    seconds, operations = (sum(played[name] for played in rounds) for name in ("seconds", "operations"))
    red = sum(bool(played["violations"]) for played in rounds)
    number = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    machines = ", ".join(sorted({run["machine"] for run in runs}))
    return (
        f"{number}, {len(rounds)} rounds, {seconds / 60:.0f} minutes, {operations:,} operations,"
        f" {red} rounds red. Machine: {machines}."
    )


def write(page: Path, runs: list[dict[str, Any]]) -> None:
    """Replace the table between the marks of a page."""
    begin, end = MARKS
    text = page.read_text()
    new = re.sub(f"(?<={re.escape(begin)}).*(?={re.escape(end)})", lambda _: table(runs) + "\n", text, flags=re.DOTALL)
    page.write_text(new)


def _commit() -> str:
    command = ["git", "-c", "safe.directory=*", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
