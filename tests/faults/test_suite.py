"""The faults suite itself: a short run of a seed is green, and builds that are broken on purpose are red."""

import asyncio
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from faults.broken import BUILDS
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
    """Where PostgreSQL, which may run as another user, can get at its files."""
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


# Not reliably found since the engine was rewritten: their damage, or the checker, has to be mended.
NOT_SEEN = {"ack-without-token", "early-retention"}


@pytest.mark.timeout(300)
async def test_builds_that_are_broken_on_purpose_are_red(tmp_path: Path, home: Path):
    """All at once: they wait more than they work. Consumers are so slow that their leases end now and then."""
    steps = (Step("stop-consumer", 0.5, 1), Step("stop-consumer", 0.5, 2))
    clients = {"lanes": 2, "pause": 0.03, "think": 0.1, "batch": 20}

    async def seen(build: str, times: int = 1) -> set[str]:
        """Whether it is seen hangs on who is late when: try again before calling it green."""
        stage = Stage({"push-http": 1, "pop-http": 2}, 1, clients, build)
        name = f"{build or 'sound'}-{times}"
        for path in (tmp_path / name, home / name):
            path.mkdir()
        verdict = await play(Round(1, "plain", SEED, steps), tmp_path / name, home / name, stage, patience=1)
        found = {violation.rule for violation in verdict.violations}
        return found if times == 3 or not build or found & BUILDS[build].rules else await seen(build, times + 1)

    sound, *rules = await asyncio.gather(*(seen(build) for build in ("", *BUILDS)))
    assert sound <= {"lag returns to zero"}  # nobody waited for it
    for build, found in zip(BUILDS, rules, strict=True):
        if build not in NOT_SEEN:
            assert found & BUILDS[build].rules, f"{build}: {found}"
