"""What a node declares of its speed, slot by slot."""

from __future__ import annotations

from math import inf, nan

import pytest

from computepool.core.nodes.slots import (
    TFLOPS_MAX,
    GpuCard,
    cut_into_slots,
    list_declared_tflops,
    list_machine_faults,
)
from tests.support.builders import GB, make_machine, node_number

CARD = GpuCard("RTX 3090", 24 * GB, 35.0)
SILENT_CARD = GpuCard("RTX 3090", 24 * GB)


def test_each_card_has_its_own_speed_and_cpu_slots_share_theirs_by_cores():
    machine = make_machine(gpus=(CARD, SILENT_CARD), cpu_slots=2, cores=8, cpu_tflops=0.8)
    speeds = list_declared_tflops(machine)
    assert len(speeds) == len(cut_into_slots(node_number(1), machine))
    # Four slots of two cores each: a quarter of the eight cores.
    assert speeds == [35.0, None, pytest.approx(0.2), pytest.approx(0.2)]


def test_a_node_that_has_not_measured_declares_nothing():
    assert list_declared_tflops(make_machine(gpus=(SILENT_CARD,), cpu_slots=1)) == [None, None]


@pytest.mark.parametrize("tflops", [1e-6, 35.0, TFLOPS_MAX])
def test_a_speed_within_reason_is_taken(tflops: float):
    assert list_machine_faults(make_machine(cpu_tflops=tflops, gpus=(GpuCard("x", GB, tflops),))) == []


@pytest.mark.parametrize("tflops", [0.0, -1.0, TFLOPS_MAX * 1.01, inf, nan])
@pytest.mark.parametrize("card", [False, True])
def test_a_speed_that_cannot_be_is_one_fault(card: bool, tflops: float):
    machine = make_machine(gpus=(GpuCard("x", GB, tflops),)) if card else make_machine(cpu_tflops=tflops)
    [fault] = list_machine_faults(machine)
    assert "positive number of TFLOPS" in fault
