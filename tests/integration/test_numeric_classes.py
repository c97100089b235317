"""Machines of different kinds may come to different last bits: nobody is blamed for that, and forgers still are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from computepool.core.trust.standing import Standing
from computepool.hub.services import inspections
from computepool.wire.jobs import Compare
from tests.support.validation_lab import RIGHT, WRONG, Lab, open_validation_lab

ROUNDED = b"the right answer, but for its last bit"
INTEL, AMD = {"instruction_set": "x86_64-v4-GenuineIntel"}, {"instruction_set": "x86_64-v3-AuthenticAMD"}


@pytest.fixture
async def lab(dsn: str, tmp_path) -> AsyncIterator[Lab]:
    async with open_validation_lab(dsn, tmp_path) as lab:
        yield lab


async def let_runs_age(lab: Lab, seconds: float) -> None:
    await lab.let_wait(seconds)
    await lab.spine.fetch("UPDATE attempts SET finished_at = finished_at - $1 * interval '1 second'", seconds)


async def test_other_bits_of_another_kind_of_machine_blame_nobody(lab):
    newcomer, auditor = await lab.enrol(**AMD), await lab.enrol(vouched=True, **INTEL)
    await lab.enrol(vouched=True, **INTEL)
    await lab.enrol(vouched=True, **INTEL)
    job, grant = await lab.run(newcomer, ROUNDED)
    await lab.look()
    await lab.answer(RIGHT)
    await lab.look(3)
    assert await lab.list_asked() == [], "Intel could only disagree once more"
    await let_runs_age(lab, 11)
    await lab.look()
    assert await lab.outcome(grant) == "no_auditor"
    assert await lab.output(job) == ROUNDED
    for node in (newcomer, auditor):
        trust = await lab.trust(node)
        assert (trust.standing, trust.integrity.validated_count) == (Standing.CLEAR, 0)


async def test_control_a_hub_that_compares_bits_of_all_machines_blames_an_honest_one(lab, monkeypatch):
    monkeypatch.setattr(inspections, "set_apart", lambda facts, comparator: facts)
    monkeypatch.setattr(inspections, "are_comparable", lambda facts, runner, comparator: True)
    newcomer = await lab.enrol(**AMD)
    for _ in range(3):
        await lab.enrol(vouched=True, **INTEL)
    await lab.run(newcomer, ROUNDED)
    await lab.settle(RIGHT)
    assert (await lab.trust(newcomer)).standing is Standing.SUSPECT


async def test_the_same_bits_of_another_kind_of_machine_count_like_any(lab):
    newcomer, auditor = await lab.enrol(**AMD), await lab.enrol(vouched=True, **INTEL)
    _, grant = await lab.run(newcomer)
    await lab.settle(RIGHT)
    assert await lab.outcome(grant) == "agreed"
    assert (await lab.trust(newcomer)).integrity.validated_count == 1
    assert (await lab.trust(auditor)).integrity.validated_count == 1


async def test_machines_of_the_same_kind_are_asked_first_and_decide(lab):
    forger = await lab.enrol(**AMD)
    others = [await lab.enrol(vouched=True, **INTEL) for _ in range(4)]
    alike = {(await lab.enrol(vouched=True, **AMD)).id for _ in range(3)}
    job, grant = await lab.run(forger, WRONG)
    await lab.look()
    asked = await lab.answer({node.id: RIGHT for node in others} | dict.fromkeys(alike, ROUNDED))
    await lab.look()
    asked += await lab.answer(dict.fromkeys(alike, ROUNDED))
    await lab.look()
    assert set(asked) == alike
    assert await lab.outcome(grant) == "found_wrong"
    assert await lab.output(job) == ROUNDED
    assert (await lab.trust(forger)).standing is Standing.SUSPECT


async def test_who_says_that_bits_are_the_same_anywhere_has_them_compared_everywhere(lab):
    forger = await lab.enrol(**AMD)
    for _ in range(3):
        await lab.enrol(vouched=True, **INTEL)
    job, grant = await lab.run(forger, WRONG, compare=Compare(anywhere=True))
    await lab.settle(RIGHT)
    assert await lab.outcome(grant) == "found_wrong"
    assert await lab.output(job) == RIGHT
