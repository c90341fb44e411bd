"""Free disk space of the embedded PostgreSQL."""

import shutil

from skep.cli.checks.result import CheckedDatabase, CheckResult, fail, ok, warn

GIB = 1024**3
LOW = 2 * GIB
FULL = GIB // 4


def disk(db: CheckedDatabase) -> CheckResult:
    if db.data_dir is None:
        return ok("not checked: the database is not the embedded one")
    return check_space(shutil.disk_usage(db.data_dir).free, str(db.data_dir))


def check_space(free: int, folder: str) -> CheckResult:
    found = f"{free / GIB:,.1f} GiB free in {folder}"
    advice = "free disk space, or let retention delete more: completed_retention_seconds, max_size"
    if free < FULL:
        return fail(found, advice)
    return warn(found, advice) if free < LOW else ok(found)
