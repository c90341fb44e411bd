"""`make faults`: run a plan, check it, and keep the results. A failed round keeps its histories.

python -m faults run --seed 7 --seconds 600     run the plan of a seed
python -m faults plan --seed 7 --seconds 600    print the plan
python -m faults check DIRECTORY                check the histories of a round again
python -m faults table [--write PAGE]           print a table of all runs
"""

import argparse
import asyncio
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from faults import history, report, state
from faults.catalog import FAULTS
from faults.checker import Index, Violation, check
from faults.cluster import missing
from faults.plan import Round, make
from faults.processes import ROOT
from faults.round import Verdict
from faults.round import run as run_round
from faults.stage import STAGES
from faults.timeline import timeline
from faults.world import World

OUT = ROOT / "faults-out"
SHOWN = 3  # violations of a rule that are printed


def main() -> int:
    arguments = _parse()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("skep").setLevel(logging.WARNING)
    match arguments.command:
        case "plan":
            for planned in _plan(arguments):
                print(planned.describe())
            return 0
        case "check":
            setup, found = state.load(arguments.directory)
            histories = history.read(arguments.directory)
            return _show(Index(setup, histories, found), check(setup, histories, found))
        case "table":
            runs = report.load(arguments.out / "results.json")
            print(report.table(runs))
            if arguments.write:
                report.write(arguments.write, runs)
            return 0
        case _:
            return asyncio.run(_run_until_signal(arguments))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "plan"):
        command = commands.add_parser(name)
        command.add_argument("--seed", type=int, default=random.randrange(1000))
        command.add_argument("--seconds", type=float, default=60)
        command.add_argument("--faults", nargs="+", choices=sorted(FAULTS), help="use only these")
        command.add_argument("--stages", nargs="+", choices=STAGES, help="use only these")
        command.add_argument("--out", type=Path, default=OUT)
    command = commands.add_parser("check")
    command.add_argument("directory", type=Path)
    command = commands.add_parser("table")
    command.add_argument("--out", type=Path, default=OUT)
    command.add_argument("--write", type=Path, help="write the table to this page")
    return parser.parse_args()


def _plan(arguments: argparse.Namespace) -> list[Round]:
    always = {name: stage.always for name, stage in STAGES.items()}
    return make(arguments.seed, arguments.seconds, _stages(arguments), always)


def _stages(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the faults of each requested stage. A stage that this machine cannot run is skipped, or is an error."""
    stages: dict[str, dict[str, float]] = {}
    for name in arguments.stages or STAGES:
        if lacking := missing(STAGES[name]):
            if os.environ.get("SKEP_TEST_ALL") == "1":
                raise SystemExit(f"stage {name} needs {lacking} (required by SKEP_TEST_ALL=1)")
            print(f"stage {name} is skipped: it needs {lacking}")
            continue
        chosen = [each for each in FAULTS.values() if not arguments.faults or each.name in arguments.faults]
        here = [each for each in chosen if name in each.stages and each.name not in STAGES[name].always]
        if here:
            stages[name] = {each.name: each.lasts for each in here}
    return stages


async def _run_until_signal(arguments: argparse.Namespace) -> int:
    """Run the plan; stop all processes on SIGTERM too."""
    running = asyncio.ensure_future(_run(arguments))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


async def _run(arguments: argparse.Namespace) -> int:
    rounds = _plan(arguments)
    print(f"seed {arguments.seed}, {arguments.seconds:.0f} s, {len(rounds)} rounds")
    verdicts = [await _play(planned, arguments.out / f"seed-{arguments.seed}") for planned in rounds]
    report.add(arguments.out / "results.json", arguments.seed, arguments.seconds, verdicts)
    print(f"\n{report.table(report.load(arguments.out / 'results.json'))}")
    return 1 if any(verdict.violations for verdict in verdicts) else 0


async def _play(planned: Round, out: Path) -> Verdict:
    print(planned.describe())
    directory = out / f"round-{planned.number}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    home = Path(tempfile.mkdtemp(prefix="skep-faults-"))
    try:
        verdict = await run_round(planned, World(directory, home, STAGES[planned.stage], planned.seed))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    drained = f"drained in {verdict.drained:.1f} s"
    print(f"  {verdict.messages:,} messages, {verdict.operations:,} operations, {drained}, {verdict.seconds:.0f} s")
    if verdict.violations:
        setup, found = state.load(directory)
        _show(Index(setup, history.read(directory), found), verdict.violations)
        print(f"  histories are in {directory}")
    else:
        shutil.rmtree(directory)
    return verdict


def _show(index: Index, violations: list[Violation]) -> int:
    """Print the violations, and the timelines of the first messages."""
    counts = Counter(violation.rule for violation in violations)
    for rule, count in counts.items():
        print(f"  RED {rule}: {count}")
        for violation in [each for each in violations if each.rule == rule][:SHOWN]:
            value = f"{violation.value}: " if violation.value else ""
            print(f"    {value}{violation.text}")
            if violation.location or violation.value:
                print("\n".join(f"      {line}" for line in timeline(index, violation)))
    if not violations:
        print("  green")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
