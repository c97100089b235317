"""What can be asked of a network, and what cannot, before anything travels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from computepool.core.networks.requests import REQUEST_BYTES_MAX, Given, RequestForm
from computepool.core.networks.spec import VNodeSpec
from tests.support.networks import chain
from tests.support.vnode_nets import make_net, place_all

TOWERS = make_net("towers")


def give(form: RequestForm, samples: int = 2) -> dict[str, Given]:
    """What fits."""
    found = {}
    for name, wanted in form.inputs.items():
        elements = samples
        for length in wanted.shape:
            elements *= length
        found[name] = Given(wanted.dtype.value, (samples, *wanted.shape), elements * wanted.dtype.size_bytes)
    return found


def test_what_fits_can_be_asked():
    form = RequestForm(TOWERS)
    assert len(form.inputs) == 2
    assert form.list_faults(give(form)) == []
    assert form.find_excess(give(form)) == ""


def test_targets_are_not_asked_for_and_the_loss_takes_no_part():
    form = RequestForm(make_net("mlp"))
    assert list(form.inputs) == ["x"]
    assert "loss" not in form.needed


def test_all_that_is_wrong_is_told_at_once():
    form = RequestForm(TOWERS)
    first, second = form.inputs
    given = give(form)
    del given[first]
    given[second] = replace(given[second], dtype="f64")
    given["else"] = Given("f32", (2,), 8)
    faults = form.list_faults(given)
    assert len(faults) == 3
    assert faults[0].startswith(f"input {first} is missing: give f32[samples, ")
    assert f"'else' is not one of: {first}, {second}" in faults[1]
    assert f"input {second}: dtype 'f64'; it should be f32" in faults[2]


def test_inputs_of_one_request_have_one_number_of_samples():
    form = RequestForm(TOWERS)
    first, second = form.inputs
    mixed = {first: give(form, 2)[first], second: give(form, 3)[second]}
    assert form.list_faults(mixed) == ["the inputs have different numbers of samples: 2, 3"]


@pytest.mark.parametrize("shape", [(), (0, 6), (2, 5), (2, 6, 1)])
def test_a_shape_that_does_not_fit_is_told_with_the_right_one(shape):
    form = RequestForm(make_net("mlp"))
    [fault] = form.list_faults({"x": Given("f32", shape, 0)})
    assert fault.endswith("it should be [samples, 6], with at least one sample")


def test_a_request_a_crossing_and_an_answer_have_their_limits():
    form = RequestForm(make_net("mlp"))
    samples = REQUEST_BYTES_MAX // (6 * 4) + 1
    assert "its inputs have" in form.find_excess(give(form, samples))
    narrow = chain(VNodeSpec("a", "linear", {"features": 4_000}))
    assert "its answer would have" in RequestForm(narrow).find_excess(give(RequestForm(narrow), 300))
    wide = chain(VNodeSpec("a", "linear", {"features": 300_000}), VNodeSpec("b", "linear", {"features": 2}))
    assert "VNode a would put out" in RequestForm(wide).find_excess(give(RequestForm(wide), 300))


def test_what_a_host_answers_is_measured():
    form = RequestForm(make_net("mlp"))
    shape = (2, *form.output.shape)
    size_bytes = 2 * 4 * form.output.shape[0]
    assert form.find_answer_fault(Given("f32", shape, size_bytes), samples=2) == ""
    assert form.find_answer_fault(Given("f32", shape, size_bytes), samples=3) != ""
    assert form.find_answer_fault(Given("f16", shape, size_bytes // 2), samples=2) != ""
    assert form.find_answer_fault(Given("f32", shape, size_bytes - 4), samples=2) != ""


def test_every_seat_that_computes_something_for_an_answer_is_known():
    spec = make_net("mlp")
    placement = place_all(spec, 6)
    form = RequestForm(spec)
    seats = form.list_seats(placement)
    assert placement.seat_of("loss") not in seats
    assert form.find_output_seat(placement, 0) in seats
