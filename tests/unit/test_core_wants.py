"""What jobs want and owners allow: one rule for hub and node."""

from __future__ import annotations

import pytest

from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.wants import list_allow_faults, list_allows, list_refused, list_wants

DIGEST = "@sha256:" + "a" * 64


def test_a_plain_job_wants_nothing_and_needs_nobodys_leave():
    assert list_wants(image=None, egress=(), packages=()) == ()
    assert list_refused((), ()) == ()


def test_wants_are_told_in_one_order_whatever_the_order_of_the_request():
    one = list_wants(image="python" + DIGEST, egress=("b.org:443", "A.org:443", "a.org:443"), packages=("x",))
    other = list_wants(image="python" + DIGEST, egress=("a.org:443", "b.org:443"), packages=("y", "z"))
    assert one == other == ("egress a.org:443", "egress b.org:443", f"image python{DIGEST}", "packages")


@pytest.mark.parametrize(
    ("want", "allows", "is_allowed"),
    [
        ("packages", (), False),
        ("packages", ("packages",), True),
        ("packages", ("image *", "egress *:443"), False),
        ("image docker.io/library/python" + DIGEST, ("image docker.io/library/*",), True),
        ("image docker.io/library/python" + DIGEST, ("image docker.io/library/python" + DIGEST,), True),
        ("image docker.io/library/python" + DIGEST, ("image docker.io/library/python@sha256:" + "b" * 64,), False),
        ("image docker.io/library/python" + DIGEST, ("egress docker.io/library/*", "packages"), False),
        ("egress files.example.org:443", ("egress *.example.org:443",), True),
        ("egress files.example.org:80", ("egress *.example.org:443",), False),
        ("egress example.org:443", ("egress *.example.org:443",), False),
        ("egress 10.0.0.1:443", ("egress *:443",), True),
    ],
)
def test_each_want_is_allowed_by_a_pattern_of_its_own_kind_or_not_at_all(want, allows, is_allowed):
    assert list_refused((want,), allows) == (() if is_allowed else (want,))


def test_an_owner_allows_by_lists_and_repeats_count_once():
    allows = list_allows(
        images=("ghcr.io/a/*", "ghcr.io/a/*"),
        egress=("*.org:443",),
        container_egress=("*.org:443",),
        has_packages=True,
    )
    assert allows == ("container-egress *.org:443", "egress *.org:443", "image ghcr.io/a/*", "packages")
    assert list_allow_faults(allows) == []
    assert list_allows(images=(), egress=(), container_egress=(), has_packages=False) == ()


def test_a_stricter_job_needs_a_way_out_of_a_stricter_sandbox():
    wants = list_wants(image=None, egress=("a.org:443",), packages=(), isolation=IsolationLevel.CONTAINER)
    assert list_refused(wants, ("egress *.org:443",)) == wants == ("container-egress a.org:443",)
    assert list_refused(wants, ("container-egress *.org:443",)) == ()


@pytest.mark.parametrize(
    "word", ["", "image", "image ", "packages now", "egress a b", "gpu x", "image a\nb", "image " + "x" * 300]
)
def test_what_is_no_pattern_is_refused_with_what_would_be_one(word):
    assert list_allow_faults((word,)) == [f"allows {word[:100]!r} is not image NAME, egress HOST:PORT or packages"]
