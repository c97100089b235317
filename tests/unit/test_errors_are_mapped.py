"""Every error has one status at the HTTP edge and one code that never changes: the SDK rebuilds the class from it."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re

import pytest

import computepool.core
import computepool.hub
from computepool.core import errors
from computepool.core.errors import ComputePoolError
from computepool.hub.http.errors import STATUS, to_response

# Codes cross the wire and stand in other people's programs: a change here breaks them.
STABLE = {
    "error": 500,
    "invalid_request": 400,
    "invalid_spec": 400,
    "invalid_settings": 500,
    "payload_too_large": 413,
    "unauthenticated": 401,
    "forbidden": 403,
    "sign_up_closed": 403,
    "synthetic_refused": 403,
    "account_suspended": 403,
    "input_blocked": 403,
    "not_found": 404,
    "conflict": 409,
    "idempotency_mismatch": 409,
    "stale_lease": 409,
    "stale_boot": 409,
    "name_taken": 409,
    "node_removed": 409,
    "version_mismatch": 409,
    "limit_exceeded": 429,
    "rate_limited": 429,
    "new_nodes_limited": 429,
    "hub_unavailable": 503,
    "store_error": 507,
    "illegal_transition": 500,
    "invalid_amount": 400,
    "insufficient_credits": 402,
    "posting_mismatch": 409,
    "posting_refused": 409,
    "dispute_refused": 409,
    "data_refused": 400,
    "inference_failed": 400,
    "no_live_run": 409,
    "no_placement": 409,
    "run_elsewhere": 503,
    "currency_mismatch": 400,
    "payout_below_minimum": 400,
    "signature_refused": 401,
    "account_frozen": 403,
    "account_owes": 409,
    "payment_refused": 409,
    "payout_details_missing": 409,
    "cash_limit_exceeded": 429,
    "payout_cooling_off": 429,
    "provider_unavailable": 503,
}


def list_classes() -> list[type[ComputePoolError]]:
    """Every error class that a hub can raise, wherever in core or hub it is written."""
    for package in (computepool.core, computepool.hub):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__") and ".migrations." not in module.name:
                importlib.import_module(module.name)

    def walk(cls: type[ComputePoolError]) -> list[type[ComputePoolError]]:
        return [cls, *(found for sub in cls.__subclasses__() for found in walk(sub))]

    ours = ("computepool.core", "computepool.hub", "computepool.settings")
    return [cls for cls in walk(ComputePoolError) if cls.__module__.startswith(ours)]


CLASSES = list_classes()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_has_a_status_of_its_own_in_the_table(cls):
    assert cls in STATUS


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_declares_its_own_code(cls):
    assert "code" in vars(cls)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", cls.code)


def test_no_two_errors_share_a_code():
    codes = [cls.code for cls in CLASSES]
    assert len(codes) == len(set(codes))


def test_codes_and_statuses_are_what_they_have_always_been():
    assert {cls.code: STATUS[cls] for cls in CLASSES} == STABLE


def test_the_table_holds_nothing_that_cannot_be_raised():
    assert set(STATUS) == set(CLASSES)


def test_the_classes_can_be_found_by_their_codes():
    found = errors.leaves()
    assert all(found[cls.code] is cls for cls in CLASSES)


def test_the_tree_in_the_docstring_names_every_class():
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__))
    assert drawn == {cls.__name__ for cls in CLASSES if cls.__module__ == errors.__name__} - {"ComputePoolError"}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_client_may_retry_exactly_what_is_not_its_own_fault(cls):
    assert cls.retryable is (STATUS[cls] in (429, 503))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_answer_carries_code_message_and_details(cls):
    response = to_response(cls("what happened", job_id="7"))
    assert response.status_code == STATUS[cls]
    assert json.loads(bytes(response.body)) == {
        "code": cls.code,
        "message": "what happened",
        "retryable": cls.retryable,
        "details": {"job_id": "7"},
    }
    assert ("retry-after" in response.headers) is cls.retryable


def test_an_answer_says_when_to_come_back():
    response = to_response(errors.RateLimited("too fast", retry_after_seconds=30))
    assert response.headers["retry-after"] == "30"


def test_whoever_is_not_known_is_told_how_to_be():
    assert to_response(errors.Unauthenticated("who?")).headers["www-authenticate"] == "Bearer"
