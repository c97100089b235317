"""Submitting, watching, reading and fetching, against a table of answers in place of a hub."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest

from computepool.core.errors import InvalidSpec
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.state import AttemptState, JobState, SliceState
from computepool.core.ledger.charging import PriceMode
from computepool.core.market.offers import Audience
from computepool.core.nodes.state import NodeState
from computepool.core.placement.weights import Preference
from computepool.sdk import Client, DamagedDownload, JobHandle
from computepool.sdk.transport import Transport
from computepool.wire.accounts import Account, AccountPage, ChangeAccount, Limits
from computepool.wire.jobs import (
    Attempt,
    Job,
    JobPrice,
    JobSpec,
    LogPage,
    OutputFile,
    Requirements,
    Slice,
    SliceCounts,
    SlicePage,
)
from computepool.wire.nodes import Hardware, Node, Offer, SetOffer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = UUID(int=7)
JOB = f"/v1/jobs/{ID}"
ATTEMPT = UUID(int=9)


def make_job(**overrides: Any) -> Job:
    fields: dict[str, Any] = {
        "id": ID,
        "name": "job",
        "state": JobState.QUEUED,
        "slice_count": 1,
        "counts": SliceCounts(),
        "priority": 0,
        "priority_class": PriorityClass.NORMAL,
        "prefer": Preference.VALUE,
        "retries": 2,
        "wall_seconds": 60,
        "requirements": Requirements(),
        "created_at": NOW,
    }
    return Job(**(fields | overrides))


def make_node(**overrides: Any) -> Node:
    hardware = Hardware(cores=1, ram_bytes=1, disk_bytes=1)
    return Node(
        id=UUID(int=3),
        name="node",
        state=NodeState.ACTIVE,
        online=True,
        synthetic=False,
        isolation=IsolationLevel.SANDBOXED,
        hardware=hardware,
        slots=[],
        created_at=NOW,
        **overrides,
    )


def make_account(**overrides: Any) -> Account:
    limits = Limits(queued_slices_max=1, stored_bytes_max=1, calls_per_minute_max=1)
    fields = {"id": UUID(int=5), "email": "ada@example.org", "name": "ada", "roles": [], "limits": limits}
    return Account(**(fields | {"stored_bytes": 0, "created_at": NOW} | overrides))


def make_attempt(number: int, state: AttemptState = AttemptState.RUNNING) -> Attempt:
    return Attempt(id=ATTEMPT, number=number, node_id=UUID(int=3), slot="cpu:0", state=state, leased_at=NOW)


def make_slice(index: int = 0, state: SliceState = SliceState.SUCCEEDED, **fields: Any) -> Slice:
    return Slice(index=index, state=state, attempt_count=len(fields.get("attempts", [])), **fields)


def make_output(path: str, content: bytes) -> OutputFile:
    return OutputFile(path=path, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


class Answers:
    """What is said to `METHOD /path`; several answers are given one after the other, the last one for ever."""

    def __init__(self) -> None:
        self.table: dict[str, list[Any]] = {}
        self.requests: list[httpx.Request] = []
        self.slept = 0.0

    def on(self, call: str, *answers: Any) -> "Answers":
        self.table[call] = list(answers)
        return self

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answers = self.table[f"{request.method} {request.url.path}"]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, content=answer if isinstance(answer, bytes) else msgspec.json.encode(answer))

    def _sleep(self, seconds: float) -> None:
        self.slept += seconds

    @property
    def transport(self) -> Transport:
        http = httpx.Client(transport=httpx.MockTransport(self))
        return Transport(hub_url="http://hub", key="k", patience_seconds=60, http=http, sleep=self._sleep)

    @property
    def client(self) -> Client:
        return Client(transport=self.transport)

    def handle(self, **overrides: Any) -> JobHandle:
        return JobHandle(self.transport, make_job(**overrides))

    def submitted(self) -> JobSpec:
        return msgspec.json.decode(self.requests[-1].content, type=JobSpec)


@pytest.fixture
def answers() -> Answers:
    return Answers()


def test_a_job_is_described_as_asked_for(answers: Answers, tmp_path: Path) -> None:
    answers.on("POST /v1/jobs", make_job())
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    answers.client.submit(
        script=script, env={"A": "b"}, slices=4, vram="16GB", ram="2GiB", tiers=["rtx-4090"], wall_seconds=9
    )
    spec = answers.submitted()
    assert (spec.name, spec.script, spec.slice_count, spec.wall_seconds) == ("train", "print(1)\n", 4, 9)
    assert (spec.env, spec.command) == ({"A": "b"}, ())
    need = spec.requirements
    assert (need.vram_bytes, need.ram_bytes, need.tiers) == (16_000_000_000, 2 * 1024**3, ("rtx-4090",))
    assert need.disk_bytes == Requirements().disk_bytes


def test_secrets_go_along_with_the_job_and_ask_for_a_container(answers: Answers) -> None:
    answers.on("POST /v1/jobs", make_job())
    answers.client.submit(command=["true"], secrets={"TOKEN": "correct horse"})
    assert answers.submitted().secrets == {"TOKEN": "correct horse"}
    assert answers.submitted().requirements.isolation is IsolationLevel.CONTAINER
    answers.client.submit(command=["true"], secrets={"TOKEN": "correct horse"}, isolation="gvisor")
    assert answers.submitted().requirements.isolation is IsolationLevel.GVISOR
    answers.client.submit(command=["true"])
    assert answers.submitted().requirements.isolation is IsolationLevel.SANDBOXED


def test_wishes_go_along_with_the_job(answers: Answers) -> None:
    answers.on("POST /v1/jobs", make_job())
    answers.client.submit(
        command=["true"], max_price="40.5", prefer="cheapest", priority_class="high", deadline_at=NOW
    )
    spec = answers.submitted()
    assert spec.requirements.ceiling_microcredits_per_hour == 40_500_000
    assert (spec.prefer, spec.priority_class, spec.deadline_at) == (Preference.CHEAPEST, PriorityClass.HIGH, NOW)
    answers.client.submit(command=["true"])
    assert answers.submitted().requirements.ceiling_microcredits_per_hour is None


@pytest.mark.parametrize(
    ("asked", "price"),
    [
        ({}, JobPrice()),
        ({"price_per_slice": "2.5"}, JobPrice(mode=PriceMode.PER_SLICE, microcredits_per_slice=2_500_000)),
        (
            {"price_per_slice": "card", "max_price_per_slice": 6},
            JobPrice(mode=PriceMode.PER_SLICE, ceiling_microcredits_per_slice=6_000_000),
        ),
    ],
)
def test_a_fixed_price_goes_along_with_the_job(answers: Answers, asked: dict[str, Any], price: JobPrice) -> None:
    answers.on("POST /v1/jobs", make_job())
    answers.client.submit(command=["true"], kind="ml", **asked)
    spec = answers.submitted()
    assert (spec.kind, spec.price) == ("ml", price)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"price_per_slice": "cheap"}, "'cheap' is not a number of credits"),
        ({"max_price_per_slice": 6}, "max_price_per_slice goes with price_per_slice"),
        ({"prefer": "fast"}, "'fast' is not a preference; there are value, cheapest, fastest."),
        ({"priority_class": "urgent"}, "'urgent' is not a priority class; there are low, normal, high."),
        ({"isolation": "none"}, "'none' is not an isolation level"),
        ({"max_price": "cheap"}, "'cheap' is not a number of credits"),
    ],
)
def test_a_wish_that_does_not_exist_is_refused_before_any_call(
    answers: Answers, wish: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidSpec, match=words):
        answers.client.submit(command=["true"], **wish)
    assert answers.requests == []


def test_an_owner_sets_a_floor_and_an_operator_grants(answers: Answers) -> None:
    node, account = make_node(), make_account()
    answers.on(f"GET /v1/nodes/{node.id}", node).on(f"PUT /v1/nodes/{node.id}/offer", node)
    answers.on(f"PATCH /v1/accounts/{account.id}", account)
    answers.client.set_floor(node_id=node.id, credits_per_hour=12)
    body = msgspec.json.decode(answers.requests[-1].content, type=SetOffer)
    assert body == SetOffer(floor_microcredits_per_hour=12_000_000)
    answers.client.change_account(account_id=account.id, fair_weight=2.5, priority_class_max="high")
    body = msgspec.json.decode(answers.requests[-1].content, type=ChangeAccount)
    assert (body.fair_weight, body.priority_class_max) == (2.5, PriorityClass.HIGH)
    assert body.queued_slices_max is None


FRIEND = UUID(int=77)
OFFER = Offer(
    floor_microcredits_per_hour=5,
    hours="mon-fri 19-7",
    zone="Asia/Kolkata",
    seconds_min=60,
    kinds=["ml"],
    audience=Audience.NAMED,
    accounts=[FRIEND],
)
AS_IT_IS = SetOffer(
    floor_microcredits_per_hour=5,
    hours="mon-fri 19-7",
    zone="Asia/Kolkata",
    seconds_min=60,
    kinds=("ml",),
    audience=Audience.NAMED,
    accounts=(str(FRIEND),),
)


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"floor": "1.5"}, {"floor_microcredits_per_hour": 1_500_000}),
        ({"hours": "sat"}, {"hours": "sat"}),
        ({"hours": "sat", "zone": "UTC"}, {"hours": "sat", "zone": "UTC"}),
        ({"zone": "UTC"}, {"zone": "UTC"}),
        ({"hours": "always"}, {"hours": None, "zone": None}),
        ({"min_seconds": 0}, {"seconds_min": 0}),
        ({"kinds": []}, {"kinds": ()}),
        ({"pool": "anyone"}, {"audience": Audience.ANYONE, "accounts": ()}),
        ({"pool": "own"}, {"audience": Audience.OWN, "accounts": ()}),
        ({"pool": ["a@b.c"]}, {"audience": Audience.NAMED, "accounts": ("a@b.c",)}),
    ],
)
def test_what_is_not_given_of_an_offer_stays_as_it_is(
    answers: Answers, given: dict[str, Any], changed: dict[str, Any]
) -> None:
    node = make_node(offer=OFFER)
    answers.on(f"GET /v1/nodes/{node.id}", node).on(f"PUT /v1/nodes/{node.id}/offer", node)
    answers.client.set_offer(node_id=node.id, **given)
    body = msgspec.json.decode(answers.requests[-1].content, type=SetOffer)
    assert body == msgspec.structs.replace(AS_IT_IS, **changed)


@pytest.mark.parametrize(("pool", "words"), [("friends", "'friends' is not a pool"), ("named", "in a list")])
def test_a_pool_that_there_is_not_is_refused_before_the_offer_is_set(answers: Answers, pool: str, words: str) -> None:
    answers.on(f"GET /v1/nodes/{FRIEND}", make_node())
    with pytest.raises(InvalidSpec, match=words):
        answers.client.set_offer(node_id=FRIEND, pool=pool)
    assert [request.method for request in answers.requests] == ["GET"]


def test_accounts_are_fetched_page_by_page(answers: Answers) -> None:
    first = [make_account(id=UUID(int=number)) for number in range(1, 101)]
    last = [make_account(id=UUID(int=101))]
    answers.on("GET /v1/accounts", AccountPage(accounts=first), AccountPage(accounts=last))
    assert [account.id.int for account in answers.client.accounts()] == list(range(1, 102))
    assert answers.requests[-1].url.params["after"] == str(UUID(int=100))


def test_a_lost_answer_to_a_submission_is_asked_for_again_under_the_same_key(answers: Answers) -> None:
    def lose(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("lost")

    answers.on("POST /v1/jobs", lose, make_job())
    answers.client.submit(command=["true"])
    first, second = answers.requests
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.content == second.content


def test_two_submissions_have_two_keys_unless_told_otherwise(answers: Answers) -> None:
    answers.on("POST /v1/jobs", make_job())
    for key in (None, None, "mine"):
        answers.client.submit(command=["true"], idempotency_key=key)
    keys = [request.headers["Idempotency-Key"] for request in answers.requests]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_only_files_that_the_hub_lacks_are_sent(
    answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "old").write_bytes(b"old")
    (tmp_path / "data" / "new").write_bytes(b"new")
    (tmp_path / "data" / "new").chmod(0o755)
    old, new = (f"/v1/artifacts/{hashlib.sha256(each).hexdigest()}" for each in (b"old", b"new"))
    answers.on(f"HEAD {old}", httpx.Response(200)).on(f"HEAD {new}", httpx.Response(404))
    answers.on(f"PUT {new}", {"sha256": new[-64:], "size_bytes": 3}).on("POST /v1/jobs", make_job())
    answers.client.submit(command=["true"], files=["data"])
    put = [request for request in answers.requests if request.method == "PUT"]
    assert [request.content for request in put] == [b"new"]
    assert put[0].headers["Content-Length"] == "3"
    assert [(file.path, file.executable) for file in answers.submitted().files] == [
        ("data/new", True),
        ("data/old", False),
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        {"script": "absent.py"},
        {"command": ["x"], "files": ["absent"]},
        {"command": ["x"], "vram": "much"},
        {"command": ["x"], "isolation": "none"},
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_is_sent(answers: Answers, wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        answers.client.submit(**wanted)
    assert answers.requests == []


def test_waiting_tells_of_each_change_once_and_ends_with_the_job(answers: Answers) -> None:
    running = make_job(state=JobState.RUNNING)
    answers.on(f"GET {JOB}", make_job(), make_job(), running, running, make_job(state=JobState.FAILED))
    seen: list[Job] = []
    assert answers.handle().wait(on_change=seen.append).state is JobState.FAILED
    assert [job.state.value for job in seen] == ["queued", "running", "failed"]


def test_waiting_gives_up_in_time(answers: Answers) -> None:
    answers.on(f"GET {JOB}", make_job())
    with pytest.raises(TimeoutError, match="still queued after 0 s"):
        answers.handle().wait(timeout=0)


def test_looking_becomes_rarer_while_nothing_moves(answers: Answers) -> None:
    answers.on(f"GET {JOB}", *[make_job()] * 30, make_job(state=JobState.SUCCEEDED))
    answers.handle().wait()
    assert answers.slept > 60


def test_all_pages_of_slices_are_read(answers: Answers) -> None:
    answers.on(
        f"GET {JOB}/slices",
        SlicePage(slices=[make_slice(0), make_slice(1)], next_after=1),
        SlicePage(slices=[make_slice(2)]),
    )
    assert [part.index for part in answers.handle().slices()] == [0, 1, 2]
    assert answers.requests[1].url.params["after"] == "1"


def log_of(attempts: dict[int, bytes], *, piece: int, ended: Callable[[int], bool]) -> Callable[[httpx.Request], Any]:
    """A hub's log store: pieces of limited length, the newest attempt if none is named."""

    def answer(request: httpx.Request) -> LogPage:
        number = int(request.url.params.get("attempt", max(attempts, default=0)))
        if number == 0:
            return LogPage(attempt_id=None, attempt_number=0, text="", next_offset=0, complete=False)
        offset = int(request.url.params["offset"])
        content = attempts[number][offset : offset + piece]
        end = offset + len(content)
        complete = ended(number) and end == len(attempts[number])
        return LogPage(
            attempt_id=ATTEMPT, attempt_number=number, text=content.decode(), next_offset=end, complete=complete
        )

    return answer


def test_a_finished_log_is_read_to_its_end(answers: Answers) -> None:
    answers.on(f"GET {JOB}/slices/0/logs", log_of({1: b"abcdefgh"}, piece=3, ended=lambda _: True))
    answers.on(f"GET {JOB}/slices/0", make_slice(attempts=[make_attempt(1)]))
    for follow in (True, False):
        assert "".join(answers.handle().logs(follow=follow)) == "abcdefgh"


def test_reading_without_following_stops_at_what_is_there(answers: Answers) -> None:
    answers.on(f"GET {JOB}/slices/0/logs", log_of({1: b"so far"}, piece=100, ended=lambda _: False))
    assert "".join(answers.handle().logs(follow=False)) == "so far"
    answers.on(f"GET {JOB}/slices/0/logs", log_of({}, piece=100, ended=lambda _: False))
    assert "".join(answers.handle().logs(follow=False)) == ""


def test_following_goes_on_over_a_retry(answers: Answers) -> None:
    attempts = {1: b"first try\n"}
    answers.on(f"GET {JOB}/slices/0/logs", log_of(attempts, piece=100, ended=lambda _: True))

    def retry(_: httpx.Request) -> Slice:
        attempts[2] = b"second try\n"
        return make_slice(state=SliceState.RUNNING, attempts=[make_attempt(1, AttemptState.LOST), make_attempt(2)])

    queued = make_slice(state=SliceState.QUEUED, attempts=[make_attempt(1, AttemptState.LOST)])
    done = make_slice(attempts=[make_attempt(1), make_attempt(2)])
    answers.on(f"GET {JOB}/slices/0", queued, retry, done)
    assert "".join(answers.handle().logs()) == "first try\nsecond try\n"


def test_following_waits_for_the_first_attempt_and_ends_if_none_comes(answers: Answers) -> None:
    answers.on(f"GET {JOB}/slices/0/logs", log_of({}, piece=9, ended=lambda _: False))
    queued, cancelled = make_slice(state=SliceState.QUEUED), make_slice(state=SliceState.CANCELLED)
    answers.on(f"GET {JOB}/slices/0", queued, queued, cancelled)
    assert list(answers.handle().logs()) == []
    assert answers.slept > 0


def test_one_attempt_is_read_alone_when_named(answers: Answers) -> None:
    answers.on(f"GET {JOB}/slices/0/logs", log_of({1: b"one", 2: b"two"}, piece=9, ended=lambda _: True))
    assert "".join(answers.handle().logs(attempt=1)) == "one"


def offer(answers: Answers, *parts: tuple[int, OutputFile, bytes]) -> None:
    slices = [make_slice(index, outputs=[output]) for index, output, _ in parts]
    answers.on(f"GET {JOB}/slices", SlicePage(slices=slices))
    for _, output, content in parts:
        answers.on(f"GET /v1/artifacts/{output.sha256}", content)


def test_outputs_of_one_slice_lie_in_the_folder_itself(answers: Answers, tmp_path: Path) -> None:
    offer(answers, (0, make_output("a/b.txt", b"hello"), b"hello"))
    assert answers.handle().download(tmp_path) == [tmp_path / "a" / "b.txt"]
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"hello"


def test_outputs_of_many_slices_lie_in_folders_of_their_number(answers: Answers, tmp_path: Path) -> None:
    offer(answers, (0, make_output("x", b"0"), b"0"), (1, make_output("x", b"1"), b"1"))
    answers.handle(slice_count=2).download(tmp_path)
    assert [(tmp_path / str(i) / "x").read_text() for i in (0, 1)] == ["0", "1"]


def test_a_repeated_download_fetches_only_what_is_missing_or_changed(answers: Answers, tmp_path: Path) -> None:
    offer(answers, (0, make_output("x", b"0"), b"0"), (1, make_output("x", b"1"), b"1"))
    answers.handle(slice_count=2).download(tmp_path)
    (tmp_path / "1" / "x").write_text("?")
    answers.requests.clear()
    answers.handle(slice_count=2).download(tmp_path)
    assert [request.url.path for request in answers.requests[1:]] == [
        f"/v1/artifacts/{hashlib.sha256(b'1').hexdigest()}"
    ]
    assert (tmp_path / "1" / "x").read_text() == "1"


@pytest.mark.parametrize("content", [b"other", b"hell", b"hello and more"])
def test_a_file_with_another_content_is_refused_and_leaves_nothing(
    answers: Answers, tmp_path: Path, content: bytes
) -> None:
    offer(answers, (0, make_output("x", b"hello"), content))
    with pytest.raises(DamagedDownload):
        answers.handle().download(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a\\b", "", "./x"])
def test_an_output_never_leaves_its_folder(answers: Answers, tmp_path: Path, path: str) -> None:
    offer(answers, (0, make_output(path, b"x"), b"x"))
    with pytest.raises(DamagedDownload):
        answers.handle().download(tmp_path / "dest")
    assert not (tmp_path / "x").exists()


def test_an_output_never_passes_through_a_link_that_leads_out(answers: Answers, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "a").symlink_to(tmp_path / "outside")
    offer(answers, (0, make_output("a/x", b"x"), b"x"))
    with pytest.raises(DamagedDownload):
        answers.handle().download(tmp_path / "dest")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_in_the_place_of_an_output_is_replaced_not_followed(answers: Answers, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "dest").mkdir()
    (tmp_path / "dest" / "x").symlink_to(tmp_path / "victim")
    offer(answers, (0, make_output("x", b"theirs"), b"theirs"))
    answers.handle().download(tmp_path / "dest")
    assert (tmp_path / "victim").read_bytes() == b"mine"
    assert (tmp_path / "dest" / "x").read_bytes() == b"theirs"


def test_equal_outputs_of_one_slice_do_not_get_in_each_others_way(answers: Answers, tmp_path: Path) -> None:
    outputs = [make_output(f"{i}.txt", b"same") for i in range(40)]
    answers.on(f"GET {JOB}/slices", SlicePage(slices=[make_slice(outputs=outputs)]))
    answers.on(f"GET /v1/artifacts/{outputs[0].sha256}", b"same")
    assert answers.handle().download(tmp_path) == [tmp_path / f"{i}.txt" for i in range(40)]
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"same"] * 40
