"""The machine of the embedded PostgreSQL."""

import shutil

from skep.cli.checks.finding import Finding, Patient, fail, ok, warn

GIB = 1024**3
LOW = 2 * GIB
FULL = GIB // 4


def disk(patient: Patient) -> Finding:
    if patient.data_dir is None:
        return ok("not of this machine")
    return judge_space(shutil.disk_usage(patient.data_dir).free, str(patient.data_dir))


def judge_space(free: int, place: str) -> Finding:
    found = f"{free / GIB:,.1f} GiB free in {place}"
    advice = "make room, or let retention delete more: completed_retention_seconds, max_size"
    if free < FULL:
        return fail(found, advice)
    return warn(found, advice) if free < LOW else ok(found)
