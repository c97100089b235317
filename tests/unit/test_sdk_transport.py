"""The transport against scripted answers: what is repeated, what is not, and which class a refusal becomes."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from computepool.core import errors
from computepool.sdk.transport import Transport, rebuild_error
from computepool.settings import InvalidSettings
from computepool.wire.artifacts import Artifact

DONE: dict[str, Any] = {"sha256": "a" * 64, "size_bytes": 1}


class Script:
    """Answers one call after the other; an exception stands for a broken connection."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers: Iterator[httpx.Response | Exception] = iter(answers)
        self.requests: list[httpx.Request] = []
        self.slept: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def transport(self, patience_seconds: float = 60.0, **options: Callable[[str], None]) -> Transport:
        http = httpx.Client(transport=httpx.MockTransport(self))
        return Transport(
            hub_url="http://hub",
            key="cpk_1",
            patience_seconds=patience_seconds,
            http=http,
            sleep=self.slept.append,
            **options,
        )


def refusal(status: int, code: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "message": "No.", "details": {"a": 1}}, headers=headers)


def test_the_key_travels_with_every_call() -> None:
    script = Script(httpx.Response(200, json=DONE))
    script.transport().call("GET", "/v1/x", Artifact)
    assert script.requests[0].headers["Authorization"] == "Bearer cpk_1"


@pytest.mark.parametrize(
    "trouble",
    [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("cut"), httpx.Response(502)],
)
def test_a_harmless_call_is_repeated_until_the_hub_is_back(trouble: httpx.Response | Exception) -> None:
    script = Script(trouble, refusal(503, "hub_unavailable"), httpx.Response(200, json=DONE))
    assert script.transport().call("GET", "/v1/x", Artifact) == Artifact(**DONE)
    assert len(script.slept) == 2
    assert 0.5 <= script.slept[0] <= 1.5
    assert 1.0 <= script.slept[1] <= 3.0


def test_a_call_that_must_happen_once_is_not_repeated_after_it_may_have_arrived() -> None:
    for trouble in (httpx.ReadTimeout("slow"), refusal(503, "hub_unavailable")):
        script = Script(trouble, httpx.Response(201, json=DONE))
        with pytest.raises(errors.HubUnavailable):
            script.transport().call("POST", "/v1/keys", Artifact, body={})
        assert len(script.requests) == 1


def test_a_call_that_must_happen_once_is_repeated_if_it_never_left() -> None:
    script = Script(httpx.ConnectError("refused"), httpx.Response(201, json=DONE))
    assert script.transport().call("POST", "/v1/keys", Artifact, body={}) == Artifact(**DONE)


def test_a_limit_with_a_time_to_come_back_is_waited_for() -> None:
    script = Script(refusal(429, "rate_limited", {"Retry-After": "7"}), httpx.Response(201, json=DONE))
    script.transport().call("POST", "/v1/keys", Artifact, body={})
    assert script.slept == [7.0]


def test_a_limit_is_raised_at_once_when_waiting_cannot_help() -> None:
    for answer in (refusal(429, "limit_exceeded"), refusal(429, "rate_limited", {"Retry-After": "3600"})):
        script = Script(answer)
        with pytest.raises(errors.LimitExceeded):
            script.transport().call("GET", "/v1/x", Artifact)
        assert script.slept == []


def test_patience_ends_and_the_message_names_the_hub() -> None:
    script = Script(httpx.ConnectError("refused"))
    with pytest.raises(errors.HubUnavailable, match=r"http://hub does not answer: refused\. Is that the right"):
        script.transport(patience_seconds=0).call("GET", "/v1/x", Artifact)


def test_each_repetition_is_told() -> None:
    told: list[str] = []
    script = Script(httpx.ConnectError("refused"), httpx.Response(200, json=DONE))
    script.transport(on_trouble=told.append).call("GET", "/v1/x", Artifact)
    assert len(told) == 1


@pytest.mark.parametrize("code", sorted(errors.leaves()))
def test_every_error_class_is_rebuilt_from_its_code(code: str) -> None:
    error = rebuild_error(400, msgspec.json.encode({"code": code, "message": "No.", "details": {"message": 1}}))
    assert type(error) is errors.leaves()[code]
    assert (error.message, error.details) == ("No.", {"message": 1})


@pytest.mark.parametrize(
    ("status", "cls"),
    [
        (400, errors.InvalidRequest),
        (401, errors.Unauthenticated),
        (404, errors.NotFound),
        (418, errors.InvalidRequest),
        (429, errors.LimitExceeded),
        (500, errors.HubUnavailable),
    ],
)
def test_an_unknown_answer_is_judged_by_its_status(status: int, cls: type[errors.ComputePoolError]) -> None:
    by_page = rebuild_error(status, b"<html>nginx</html>")
    by_new_code = rebuild_error(status, b'{"code": "of_tomorrow", "message": "New."}')
    assert type(by_page) is type(by_new_code) is cls
    assert by_new_code.details == {"code": "of_tomorrow"}


def test_a_redirect_is_explained_and_not_followed() -> None:
    script = Script(httpx.Response(308, headers={"Location": "https://hub/v1/x"}))
    with pytest.raises(InvalidSettings, match="redirects to https://hub/v1/x"):
        script.transport().call("GET", "/v1/x", Artifact)
    assert len(script.requests) == 1


def test_an_answer_that_is_no_hubs_is_explained() -> None:
    script = Script(httpx.Response(200, text="<html>"))
    with pytest.raises(errors.ComputePoolError, match="Is it a hub"):
        script.transport().call("GET", "/v1/x", Artifact)


def test_a_broken_download_begins_anew() -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise httpx.ReadError("cut")

    script = Script(httpx.Response(200, content=broken()), httpx.Response(200, content=b"whole"))
    assert script.transport().download("/v1/artifacts/x", lambda pieces: b"".join(pieces)) == b"whole"


def test_asking_whether_something_is_there_costs_no_body() -> None:
    script = Script(httpx.Response(404), httpx.Response(200))
    transport = script.transport()
    assert (transport.exists("/v1/artifacts/x"), transport.exists("/v1/artifacts/x")) == (False, True)
    assert script.requests[0].method == "HEAD"


def test_what_is_not_text_is_refused_before_it_is_sent() -> None:
    script = Script()
    with pytest.raises(errors.InvalidRequest, match="UTF-8"):
        script.transport().call("POST", "/v1/jobs", Artifact, body={"name": "caf\udce9"})
    assert script.requests == []
