"""The plan of the faults suite: a seed always has the same plan, and every fault is used."""

from faults.plan import ROUND_SECONDS, make

STAGES = {"plain": {"kill": 3.0, "cut": 2.0, "stop": 4.0}, "clock": {"jump": 5.0}}


def test_the_same_seed_is_the_same_plan():
    assert make(7, 600, STAGES) == make(7, 600, STAGES)
    assert make(7, 600, STAGES) != make(8, 600, STAGES)


def test_rounds_fill_the_time_and_use_every_stage_and_fault():
    rounds = make(1, 10 * ROUND_SECONDS, STAGES)
    assert len(rounds) == 10
    assert {planned.stage for planned in rounds[:2]} == STAGES.keys()
    for planned in rounds:
        lasts = sum(step.pause + STAGES[planned.stage][step.fault] for step in planned.steps)
        assert ROUND_SECONDS <= lasts < ROUND_SECONDS + 10
        assert {step.fault for step in planned.steps} == STAGES[planned.stage].keys()


def test_a_short_run_is_one_short_round():
    (planned,) = make(1, 5, STAGES)
    assert 1 <= len(planned.steps) <= 3
