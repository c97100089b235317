"""Two machines behind routers that masquerade, with real agents: addresses change and cables are pulled mid-job.

Short forms; `make soak/nat` pulls the cables for 20 s and for 5 minutes, with the leases that hubs give by default.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from soaks.nat import Outcome, Rhythm, open_grid, play_lost, run_nat
from tests.support.nat_lab import NAMESPACES, NatLab, inside, list_missing

# A lease that a stalled machine does not miss, for what must be kept; a short one for what must be lost.
KEPT = Rhythm(lease_seconds=60, beat_seconds=1, cut_seconds=4, job_seconds=8)
LOST = Rhythm(lease_seconds=3, beat_seconds=1, cut_seconds=10, job_seconds=6)
PATIENCE_SECONDS = 10.0


@pytest.fixture(autouse=True)
def needs_namespaces() -> None:
    """A machine that cannot have them fails: silence would be a lie."""
    if missing := list_missing():
        pytest.fail(f"NAT cannot be tested on this machine: {'; '.join(missing)}")


@pytest.mark.timeout(600)
def test_all_slices_finish_behind_nat_through_new_addresses_and_pulled_cables(dsn, tmp_path):
    kept, lost, callers = run_nat(dsn, tmp_path, kept=KEPT, lost=LOST)
    assert kept == Outcome(slices=4, unfinished=0, wrong_results=0, unruly=0, repeated=0, late=0)
    assert (lost.slices, lost.unfinished, lost.wrong_results, lost.unruly) == (4, 0, 0, 0)
    # Until the first result was delivered every slot was taken by one that nobody had: it came late, and counted.
    assert lost.late > 0
    # The hub saw the homes where their routers are, before and after they moved, and never a machine itself.
    assert callers == {"198.18.0.2", "198.18.1.2", "198.18.0.3", "198.18.1.3"}


@pytest.mark.timeout(300)
def test_control_agents_that_try_nothing_twice_leave_their_slices_unfinished(dsn, tmp_path):
    with open_grid(dsn, tmp_path, LOST, is_planted=True) as grid:
        found = play_lost(grid, LOST, seconds=PATIENCE_SECONDS)
    assert (found.slices, found.unfinished) == (4, 4)


def test_nothing_is_left_of_a_lab_whatever_happens_in_it():
    before = find_network()
    lab = NatLab(home_count=1)
    with pytest.raises(ZeroDivisionError):
        break_inside(lab)
    assert find_network() == before
    names = [lab.hub, lab.homes[0].machine, lab.homes[0].router]
    assert not [name for name in names if (NAMESPACES / name).exists()]


def break_inside(lab: NatLab) -> None:
    before = find_network()
    with lab, inside(lab.homes[0].machine):
        assert find_network() != before
        raise ZeroDivisionError


def find_network() -> Path:
    return Path("/proc/thread-self/ns/net").readlink()
