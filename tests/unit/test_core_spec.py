"""What may be submitted: every limit is tried on both of its sides."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.spec import (
    COMMAND_BYTES_MAX,
    ENV_BYTES_MAX,
    ENV_COUNT_MAX,
    FILES_MAX,
    NAME_LENGTH_MAX,
    PATH_BYTES_MAX,
    PATH_PART_BYTES_MAX,
    RETRIES_MAX,
    SCRIPT_BYTES_MAX,
    SECRET_BYTES_MAX,
    SECRET_BYTES_MIN,
    SECRETS_MAX,
    SLICES_MAX,
    WALL_SECONDS_MAX,
    JobPrice,
    Requirements,
    find_class_refusal,
    is_safe_relative_path,
    is_sha256,
    list_faults,
)
from computepool.core.ledger.charging import PriceMode
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX
from computepool.core.trust.comparators.kinds import Comparator, ComparatorKind
from computepool.core.trust.validation import Verify
from tests.support.builders import NOW, SHA256, make_file, make_spec

LONGEST_PATH = "/".join(["x" * 255] * 4) + "/"


def faults_of(**overrides: object) -> list[str]:
    return list_faults(make_spec(**overrides), now=NOW)


def needs(**overrides: object) -> dict[str, Requirements]:
    return {"requirements": Requirements(**overrides)}


def pays(mode: PriceMode = PriceMode.PER_SLICE, **figures: int) -> dict[str, JobPrice]:
    return {"price": JobPrice(mode, **figures)}


def test_the_plainest_job_has_no_faults():
    assert faults_of() == []


BEHIND_CONTAINERS = {"requirements": Requirements(isolation=IsolationLevel.CONTAINER)}


@pytest.mark.parametrize(
    ("secrets", "fault"),
    [
        ({"A": "x" * SECRET_BYTES_MIN}, None),
        ({"A": "x" * SECRET_BYTES_MAX}, None),
        ({f"A{number}": "x" * SECRET_BYTES_MIN for number in range(SECRETS_MAX)}, None),
        ({f"A{number}": "x" * SECRET_BYTES_MIN for number in range(SECRETS_MAX + 1)}, "secrets; 16 are allowed"),
        ({"A": "x" * (SECRET_BYTES_MIN - 1)}, "8 to 4,096 bytes"),
        ({"A": "x" * (SECRET_BYTES_MAX + 1)}, "8 to 4,096 bytes"),
        ({"A": "line one\nline two"}, "base64"),
        ({"A": "with a \0 in it"}, "base64"),
        ({"hunter2 hunter2": "x" * 20}, "the name of a secret is not letters"),
        ({"COMPUTEPOOL_A": "x" * 20}, "reserved"),
        ({"LD_PRELOAD": "x" * 20}, "reserved"),
        ({"COLOUR": "x" * 20}, "leave it out of env"),
    ],
)
def test_secrets_have_bounds_and_faults_do_not_show_them(secrets, fault):
    faults = faults_of(secrets=secrets, env={"COLOUR": "green"}, **BEHIND_CONTAINERS)
    assert len(faults) == (0 if fault is None else 1)
    for told in faults:
        assert fault in told
        assert "hunter2" not in told
        assert not any(value in told for value in secrets.values())


def test_secrets_need_the_isolation_that_the_hub_demands():
    spec = make_spec(secrets={"A": "x" * 20})
    assert list_faults(spec, now=NOW, secrets_isolation=IsolationLevel.SANDBOXED) == []
    [fault] = list_faults(spec, now=NOW)
    assert "isolation container or stronger" in fault
    assert "x" * 20 not in repr(spec)


def test_results_of_a_job_with_secrets_are_not_checked_elsewhere():
    told = {"secrets": {"A": "x" * 20}, "comparator": Comparator(ComparatorKind.EXACT), **BEHIND_CONTAINERS}
    [fault] = faults_of(**told)
    assert "leave out compare" in fault
    assert faults_of(**told, verify=Verify.NONE) == []


def compares(*command: str, kind: ComparatorKind = ComparatorKind.COMMAND) -> dict[str, Comparator]:
    return {"comparator": Comparator(kind, command=command)}


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (compares("python3", "same.py"), None),
        (compares("x" * COMMAND_BYTES_MAX), None),
        (compares(), "needs compare.command, such as python3 same.py"),
        (compares(""), "needs compare.command, such as python3 same.py"),
        (compares("x" * (COMMAND_BYTES_MAX + 1)), "compare.command is longer than 65,536 bytes"),
        (compares("a\0b"), "compare.command contains a NUL byte"),
        (compares("true", kind=ComparatorKind.EXACT), "compare.command goes with compare.kind command"),
        (compares("true", kind=ComparatorKind.NUMERIC), "compare.command goes with compare.kind command"),
        (compares(kind=ComparatorKind.EXACT) | {"files": (make_file(path="one/a"),)}, None),
        (compares("true") | {"files": (make_file(path="ones/a"), make_file(path="a/other"))}, None),
        (compares("true") | {"files": (make_file(path="one/a"),)}, "lies where compare.command finds a result"),
        (compares("true") | {"files": (make_file(path="other"),)}, "lies where compare.command finds a result"),
    ],
)
def test_a_command_that_compares_has_bounds_and_goes_with_its_kind(overrides, fault):
    faults = faults_of(**overrides)
    assert len(faults) == (0 if fault is None else 1), faults
    assert all(fault in told for told in faults)


def test_a_quorum_needs_some_way_to_compare():
    [fault] = faults_of(verify=Verify.QUORUM)
    assert "exact, numeric or a command" in fault
    assert faults_of(verify=Verify.QUORUM, **compares("true")) == []


@pytest.mark.parametrize("name", ["microcredits_per_slice", "ceiling_microcredits_per_slice"])
def test_a_price_per_slice_has_bounds_and_goes_with_its_mode(name):
    for figure in (1, PRICE_MICROCREDITS_MAX):
        assert faults_of(**pays(**{name: figure})) == []
        [fault] = faults_of(**pays(PriceMode.PER_SECOND, **{name: figure}))
        assert fault == f"price.{name} goes with price.mode per_slice; leave it out, or set the mode"
    for figure in (-1, 0, PRICE_MICROCREDITS_MAX + 1):
        [fault] = faults_of(**pays(**{name: figure}))
        assert fault.startswith(f"price.{name} is {figure}; it must be between 1 and ")


def test_a_ceiling_per_hour_does_not_go_with_a_price_per_slice():
    assert faults_of(**pays()) == []
    [fault] = faults_of(**pays(), **needs(ceiling_microcredits_per_hour=1))
    assert "set price.ceiling_microcredits_per_slice instead" in fault


@pytest.mark.parametrize(
    "spec",
    [
        {"slice_count": 1},
        {"slice_count": SLICES_MAX},
        {"name": "x"},
        {"name": "x" * NAME_LENGTH_MAX},
        {"retries": 0},
        {"retries": RETRIES_MAX},
        {"priority": -10},
        {"priority": 10},
        {"command": ("x" * COMMAND_BYTES_MAX,)},
        {"script": "x" * SCRIPT_BYTES_MAX},
        {"env": {f"V{n}": "" for n in range(ENV_COUNT_MAX)}},
        {"env": {"V": "x" * (ENV_BYTES_MAX - 1)}},
        {"env": {"_v1": "any text: äöü", "x" * 128: ""}},
        {"files": tuple(make_file(path=f"f{n}") for n in range(FILES_MAX))},
        {"files": (make_file(size_bytes=0),)},
        {"files": (make_file(path="main.py"),)},
        {"files": (make_file(path="main.py"), make_file(path="main.pyx/a"), make_file(path="main.py.d"))},
        {"wall_seconds": 1},
        {"wall_seconds": WALL_SECONDS_MAX},
        {"expires_at": NOW + timedelta(microseconds=1)},
        {"deadline_at": NOW + timedelta(microseconds=1)},
        {"deadline_at": NOW + timedelta(hours=1), "expires_at": NOW + timedelta(hours=1)},
        needs(ceiling_microcredits_per_hour=None),
        needs(ceiling_microcredits_per_hour=1),
        needs(ceiling_microcredits_per_hour=PRICE_MICROCREDITS_MAX),
        needs(vram_bytes=1 << 50, ram_bytes=1 << 50, disk_bytes=1 << 50),
        needs(vram_bytes=0, ram_bytes=0, disk_bytes=0),
        needs(cores=1),
        needs(cores=1024),
        needs(regions=("IN", "DE"), tiers=("rtx-4090", "cpu"), isolation=IsolationLevel.GVISOR),
        needs(tiers=tuple(f"t{n}" for n in range(32)), regions=("IN",) * 250),
    ],
)
def test_what_lies_just_inside_a_limit_is_taken(spec):
    assert faults_of(**spec) == []


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"slice_count": 0}, "slice_count is 0; a job has 1 to 100,000 slices"),
        ({"slice_count": SLICES_MAX + 1}, "slice_count is 100001"),
        ({"name": ""}, "name has 0 characters"),
        ({"name": "x" * (NAME_LENGTH_MAX + 1)}, "name has 201 characters"),
        ({"name": "a\0b"}, "name or script contains a NUL"),
        ({"script": "a\0b"}, "name or script contains a NUL"),
        ({"retries": -1}, "retries is -1"),
        ({"retries": RETRIES_MAX + 1}, "retries is 21"),
        ({"priority": -11}, "priority is -11"),
        ({"priority": 11}, "priority is 11"),
        ({"command": ()}, "nothing to run"),
        ({"command": ("x" * COMMAND_BYTES_MAX, "x")}, "the command is longer"),
        ({"command": ("ä" * (COMMAND_BYTES_MAX // 2), "x")}, "the command is longer"),
        ({"command": ("a\0b",)}, "the command contains a NUL"),
        ({"script": "x" * (SCRIPT_BYTES_MAX + 1)}, "the script has 1,000,001 bytes"),
        ({"script": "ä" * (SCRIPT_BYTES_MAX // 2) + "x"}, "the script has 1,000,001 bytes"),
        ({"env": {f"V{n}": "" for n in range(ENV_COUNT_MAX + 1)}}, "env has 129 variables"),
        ({"env": {"V": "x" * ENV_BYTES_MAX}}, "env is larger"),
        ({"env": {"1V": ""}}, "env name '1V'"),
        ({"env": {"": ""}}, "env name ''"),
        ({"env": {"V\n": ""}}, "env name 'V\\n'"),
        ({"env": {"x" * 129: ""}}, "is not letters"),
        ({"env": {"COMPUTEPOOL_X": ""}}, "COMPUTEPOOL_X is reserved"),
        ({"env": {"LD_PRELOAD": ""}}, "LD_PRELOAD is reserved"),
        ({"env": {"V": "a\0b"}}, "env V contains a NUL"),
        ({"files": tuple(make_file(path=f"f{n}") for n in range(FILES_MAX + 1))}, "there are 1001 files"),
        ({"files": (make_file(path="../x"),)}, "file path '../x' must be relative"),
        ({"files": (make_file(), make_file())}, "'input.bin' is given twice"),
        ({"script": "pass", "files": (make_file(path="main.py"),)}, "'main.py' is given twice"),
        ({"files": (make_file(path="a/b"), make_file(path="a"))}, "'a' is also the folder of 'a/b'"),
        ({"files": (make_file(path="a/b/c/d"), make_file(path="a-x"), make_file(path="a"))}, "folder of 'a/b/c/d'"),
        ({"script": "pass", "files": (make_file(path="main.py/x"),)}, "'main.py' is also the folder"),
        ({"files": (make_file(sha256=SHA256.upper()),)}, "64 lower-case hex digits"),
        ({"files": (make_file(sha256=SHA256 + "\n"),)}, "64 lower-case hex digits"),
        ({"files": (make_file(size_bytes=-1),)}, "negative size"),
        ({"wall_seconds": 0}, "wall_seconds is 0"),
        ({"wall_seconds": WALL_SECONDS_MAX + 1}, "wall_seconds is 1209601"),
        ({"expires_at": NOW}, "lies in the past"),
        ({"expires_at": datetime(2031, 1, 1)}, "needs a time zone"),  # noqa: DTZ001
        ({"deadline_at": NOW}, "deadline_at lies in the past"),
        ({"deadline_at": datetime(2031, 1, 1)}, "deadline_at needs a time zone"),  # noqa: DTZ001
        (
            {"deadline_at": NOW + timedelta(hours=2), "expires_at": NOW + timedelta(hours=1)},
            "deadline_at lies after expires_at",
        ),
        (needs(ceiling_microcredits_per_hour=0), "ceiling_microcredits_per_hour is 0; it must be between 1 and"),
        (needs(ceiling_microcredits_per_hour=-5), "ceiling_microcredits_per_hour is -5"),
        (needs(ceiling_microcredits_per_hour=PRICE_MICROCREDITS_MAX + 1), "or absent for any price"),
        (needs(vram_bytes=-1), "requirements.vram_bytes is -1"),
        (needs(ram_bytes=-1), "requirements.ram_bytes is -1"),
        (needs(disk_bytes=(1 << 50) + 1), "requirements.disk_bytes is"),
        (needs(cores=0), "requirements.cores is 0"),
        (needs(cores=1025), "requirements.cores is 1025"),
        (needs(regions=("in",)), "region 'in' is not an ISO-2"),
        (needs(regions=("IND",)), "region 'IND' is not an ISO-2"),
        (needs(regions=("IN\n",)), "is not an ISO-2"),
        (needs(tiers=("RTX 4090",)), "tier 'RTX 4090' is not a tier name"),
        (needs(tiers=("-x",)), "tier '-x' is not a tier name"),
        (needs(tiers=("x" * 33,)), "is not a tier name"),
        (needs(tiers=tuple(f"t{n}" for n in range(33))), "too many tiers or regions"),
        (needs(regions=("IN",) * 251), "too many tiers or regions"),
    ],
)
def test_what_lies_just_outside_a_limit_is_one_fault_in_plain_words(spec, words):
    [fault] = faults_of(**spec)
    assert words in fault


def test_all_faults_are_told_together():
    faults = faults_of(name="", command=(), retries=99, wall_seconds=0, env={"1": ""}, **needs(cores=0))
    assert len(faults) == 6


@pytest.mark.parametrize(
    "path",
    ["a", "a/b/c", "...", ".hidden", "a..b", "with space", "ä/ö.txt", "日本.txt", "x" * 255, LONGEST_PATH[:-1]],
)
def test_a_path_below_the_folder_is_safe(path):
    assert is_safe_relative_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        ".",
        "a/../b",
        "a/./b",
        "a//b",
        "a/",
        "a\\b",
        "a\0b",
        "a\nb",
        "a\rb",
        "a\x1bb",
        "a\u202eb",
        "a\ud800b",
        "x" * (PATH_PART_BYTES_MAX + 1),
        "ä" * 128,
        LONGEST_PATH + "x",
    ],
)
def test_a_path_that_leads_out_or_that_no_node_could_store_is_not_safe(path):
    assert not is_safe_relative_path(path)


def test_a_path_may_have_1024_bytes_and_no_more():
    path = "x" * 255 + "/" + "/".join(["x" * 255] * 3)
    assert len(path) == PATH_BYTES_MAX - 1
    assert is_safe_relative_path(path)
    assert is_safe_relative_path("a/" + path[1:])
    assert not is_safe_relative_path("a/" + path)


def test_a_thousand_deep_paths_are_judged_without_a_copy_of_every_folder():
    deep = "/".join("a" * 500)
    files = tuple(make_file(path=f"{deep}/{n}") for n in range(FILES_MAX))
    assert faults_of(files=files) == []


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "AB" * 32, "zz" * 32, "ab" * 32 + "\n"])
def test_only_64_lower_case_hex_digits_are_a_sha256(text):
    assert is_sha256(SHA256)
    assert not is_sha256(text)


def test_isolation_is_a_ladder_and_not_an_alphabet():
    assert sorted(IsolationLevel) == [IsolationLevel.SANDBOXED, IsolationLevel.CONTAINER, IsolationLevel.GVISOR]
    assert max(IsolationLevel) is IsolationLevel.GVISOR
    assert IsolationLevel.CONTAINER > IsolationLevel.SANDBOXED
    assert IsolationLevel.CONTAINER >= IsolationLevel.CONTAINER <= IsolationLevel.GVISOR


@pytest.mark.parametrize("offered", IsolationLevel)
@pytest.mark.parametrize("asked", IsolationLevel)
def test_a_stronger_isolation_meets_every_weaker_demand(offered, asked):
    ladder = ["sandboxed", "container", "gvisor"]
    assert offered.meets(asked) is (ladder.index(offered.value) >= ladder.index(asked.value))


def test_isolation_does_not_compare_with_plain_text():
    with pytest.raises(TypeError):
        _ = IsolationLevel.SANDBOXED < 1


@pytest.mark.parametrize("granted", PriorityClass)
@pytest.mark.parametrize("asked", PriorityClass)
def test_a_class_is_refused_exactly_above_the_grant(asked, granted):
    ladder = ["low", "normal", "high"]
    refusal = find_class_refusal(asked, granted)
    assert (refusal is not None) is (ladder.index(asked.value) > ladder.index(granted.value))
    if refusal is not None:
        assert refusal.startswith(
            f"priority_class is {asked.value}; this account may ask for {granted.value} at most."
        )


DIGEST = "@sha256:" + "a" * 64


@pytest.mark.parametrize(
    "package",
    [
        "numpy",
        "numpy==2.1.0",
        "torch>=2.4,<3",
        "uvicorn[standard]~=0.30",
        "ruamel.yaml",
        "x==1.*",
        "scikit-learn >= 1.5",
    ],
)
def test_package_with_versions_is_taken(package):
    assert list_faults(make_spec(packages=(package,)), now=NOW) == []


@pytest.mark.parametrize(
    "package",
    [
        *("", "-r other.txt", "--index-url=http://evil", "./local", "../up", "numpy @ http://evil/x.whl", "a;b"),
        *("git+https://x/y", "a==1 --hash=sha256:0", "x\ny", "a" * 201, "file:///x.whl", "numpy==$(id)", "-e ."),
    ],
)
def test_address_path_or_option_is_no_package(package):
    (fault,) = list_faults(make_spec(packages=(package,)), now=NOW)
    assert "numpy==2.1.0" in fault


def test_packages_have_a_number():
    (fault,) = list_faults(make_spec(packages=("a",) * 101), now=NOW)
    assert "100 are allowed" in fault


def test_image_needs_its_digest_and_a_container():
    contained = Requirements(isolation=IsolationLevel.CONTAINER)
    assert list_faults(make_spec(image="docker.io/library/python" + DIGEST, requirements=contained), now=NOW) == []
    (fault,) = list_faults(make_spec(image="python:3.12", requirements=contained), now=NOW)
    assert "digest" in fault
    (fault,) = list_faults(make_spec(image="python" + DIGEST), now=NOW)
    assert "isolation container" in fault
    (fault,) = list_faults(make_spec(image="python" + DIGEST, requirements=contained, packages=("a",)), now=NOW)
    assert "leave packages empty" in fault


@pytest.mark.parametrize(
    "target", ["example.org", "example.org:0", "example.org:65536", "http://x:80", "*.x:443", "a b:1"]
)
def test_host_to_reach_is_one_host_and_one_port(target):
    (fault,) = list_faults(make_spec(egress=(target,)), now=NOW)
    assert "host:port" in fault
    assert list_faults(make_spec(egress=("example.org:443",)), now=NOW) == []
    strict = Requirements(isolation=IsolationLevel.GVISOR)
    (fault,) = list_faults(make_spec(egress=("example.org:443",), requirements=strict), now=NOW)
    assert "no gVisor has a way out" in fault
