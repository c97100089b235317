"""What can go wrong with networks and runs, beyond what can go wrong with anything."""

from __future__ import annotations

from computepool.core.errors import Conflict, HubUnavailable, InvalidRequest


class DataRefused(InvalidRequest):
    """A reference to data that the hub will not or cannot fetch."""

    code = "data_refused"


class NoPlacement(Conflict):
    """No PNode takes what is to be placed; the reasons name the VNode, the PNode and what to do."""

    code = "no_placement"


class RunElsewhere(HubUnavailable):
    """Another hub owns the run, or will in a moment: resolve, and call that one."""

    code = "run_elsewhere"


class NoLiveRun(Conflict):
    """Nobody holds the network's weights: its run is over, or was never begun."""

    code = "no_live_run"


class InferenceFailed(InvalidRequest):
    """The network gives no answer to this request, or a host could not compute it; the message names who."""

    code = "inference_failed"
