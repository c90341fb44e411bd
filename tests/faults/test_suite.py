"""The faults suite itself: a short run has no violations, and builds that are broken on purpose have some."""

import asyncio
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from faults.broken import BUILDS, Load, damage_database
from faults.catalog import FAULTS
from faults.plan import Round, Step, make
from faults.round import Verdict, run
from faults.stage import Stage
from faults.world import World

CREW = {
    "push-http": 1,
    "push-client": 1,
    "push-outbox": 1,
    "pop-http": 2,
    "pop-client": 1,
    "pop-transform": 1,
    "pop-auto": 1,
}
SEED = 8


@pytest.fixture
def home() -> Generator[Path]:
    """A directory that PostgreSQL, which may run as another user, can access."""
    path = Path(tempfile.mkdtemp(prefix="skep-faults-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


async def play(planned: Round, directory: Path, home: Path, stage: Stage, patience: float = 60) -> Verdict:
    return await run(planned, World(directory, home, stage, SEED), patience)


@pytest.mark.timeout(300)
async def test_a_short_run_is_green(tmp_path: Path, home: Path):
    """The same program as `make faults SEED=8 SECONDS=12`, with fewer clients."""
    plain = {fault.name: fault.lasts for fault in FAULTS.values() if "plain" in fault.stages}
    (planned,) = make(SEED, 12, {"plain": plain})
    verdict = await play(planned, tmp_path, home, Stage(CREW))
    print(f"\n{planned.describe()}: {verdict.operations} operations, {verdict.seconds:.0f} s")
    assert verdict.violations == []
    assert verdict.messages > 50
    assert [struck.fault for struck in verdict.struck] == [step.fault for step in planned.steps]


# Consumers that are so slow that leases expire now and then; and consumers that always drain their partitions.
LOADS: dict[Load, Stage] = {
    "slow": Stage(
        {"push-http": 1, "pop-http": 2, "pop-client": 1},
        1,
        {"partitions": 2, "pause": 0.05, "think": 0.1, "batch": 20},
    ),
    "quick": Stage(
        {"push-client": 1, "pop-client": 2}, 1, {"partitions": 200, "pause": 0.05, "think": 0.0, "batch": 20}
    ),
}
STEPS = (Step("stop-consumer", 0.5, 1),)
SOUND = ""


@pytest.mark.parametrize("build", BUILDS)
def test_the_changes_of_a_build_match_the_functions(database_url: str, build: str):
    """Finds functions that have changed, without a run of some minutes."""
    with psycopg.connect(database_url) as db:
        damage_database(db, build)
        db.rollback()


@pytest.mark.timeout(600)
async def test_builds_that_are_broken_on_purpose_are_red(tmp_path: Path, home: Path):
    """Runs a few at a time, since they mostly wait. The correct build has no violations under both loads."""
    few = asyncio.Semaphore(4)

    async def broken_rules(build: str, load: Load, number: int) -> set[str]:
        name = f"{build or load}-{number}"
        for path in (tmp_path / name, home / name):
            path.mkdir()
        planned = Round(1, "plain", SEED + number, STEPS)
        async with few:
            stage = replace(LOADS[load], build=build)
            verdict = await play(planned, tmp_path / name, home / name, stage, 15 if build else 60)
        return {violation.rule for violation in verdict.violations}

    async def seen(build: str) -> set[str]:
        """Try up to three times: a race may not happen at once."""
        found: set[str] = set()
        for number in range(3):
            found |= await broken_rules(build, BUILDS[build].load, number)
            if found & BUILDS[build].rules:
                break
        return found

    slow, quick, *damaged = await asyncio.gather(
        broken_rules(SOUND, "slow", 0), broken_rules(SOUND, "quick", 0), *(seen(build) for build in BUILDS)
    )
    assert (slow, quick) == (set(), set())
    for build, found in zip(BUILDS, damaged, strict=True):
        assert found & BUILDS[build].rules, f"{build}: {found}"
