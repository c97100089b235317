"""The agent's settings: faults are told together, and every hub has its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from computepool.node import config as config_module
from computepool.node.config import NodeConfig, Poll, find_state_dir, load_config
from computepool.node.main import main, make_parser
from computepool.settings import InvalidSettings

HUB = {"HUB_URL": "http://hub.example:8000"}


def test_the_hub_is_all_that_must_be_given() -> None:
    config = load_config(HUB)
    assert (config.hub_url, config.poll, config.cpu_slots) == ("http://hub.example:8000", Poll.LONG, 1)
    assert (config.drain_seconds, config.wait_seconds, config.pids_max) == (600, 30, 512)


def test_without_a_hub_it_is_said_what_to_set() -> None:
    with pytest.raises(InvalidSettings, match="HUB_URL"):
        load_config({})


def test_the_environment_is_read_and_flags_win() -> None:
    env = {**HUB, "COMPUTEPOOL_NODE_POLL": "short", "COMPUTEPOOL_NODE_CPU_SLOTS": "3"}
    config = load_config(env, cpu_slots=2, name=None)
    assert (config.poll, config.cpu_slots, config.name) == (Poll.SHORT, 2, "")


@pytest.mark.parametrize(
    "env",
    [
        {"COMPUTEPOOL_NODE_CPU_SLOT": "1"},
        {"COMPUTEPOOL_NODE_CPU_SLOTS": "many"},
        {"COMPUTEPOOL_NODE_CPU_SLOTS": "-1"},
        {"COMPUTEPOOL_NODE_REGION": "India"},
        {"COMPUTEPOOL_NODE_REGION": "in"},
        {"COMPUTEPOOL_NODE_CORES_MAX": "0"},
        {"COMPUTEPOOL_NODE_POLL": "sometimes"},
        {"COMPUTEPOOL_NODE_FLOOR_CREDITS_PER_HOUR": "-1"},
        {"COMPUTEPOOL_NODE_FLOOR_CREDITS_PER_HOUR": "0.0000001"},
        {"COMPUTEPOOL_NODE_FLOOR_CREDITS_PER_HOUR": "nan"},
        {"COMPUTEPOOL_NODE_FLOOR_CREDITS_PER_HOUR": "inf"},
        {"COMPUTEPOOL_NODE_FLOOR_CREDITS_PER_HOUR": "1e300"},
        {"COMPUTEPOOL_NODE_FLOOR_CREDITS_PER_HOUR": "much"},
        {"COMPUTEPOOL_NODE_IMAGES_ALLOWED": "ghcr.io/x " * 81},
        {"COMPUTEPOOL_NODE_EGRESS_ALLOWED": "x" * 300 + ":443"},
        {"HUB_URL": "hub.example"},
        {"HUB_URL": "ftp://hub.example"},
    ],
)
def test_what_cannot_be_used_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(InvalidSettings):
        load_config({**HUB, **env})


def test_a_bad_flag_is_refused_like_a_bad_variable() -> None:
    with pytest.raises(InvalidSettings):
        load_config(HUB, poll="sometimes")


@pytest.mark.parametrize(
    ("credits", "microcredits"),
    [("0", 0), ("1.50", 1_500_000), ("0.000001", 1), ("12", 12_000_000), ("0.1", 100_000), ("1e3", 10**9)],
)
def test_the_floor_is_given_in_credits_and_sent_in_microcredits(credits: str, microcredits: int) -> None:
    config = load_config({**HUB, "COMPUTEPOOL_NODE_FLOOR_CREDITS_PER_HOUR": credits})
    assert config.floor_microcredits_per_hour == microcredits


def test_the_floor_can_be_given_as_a_flag() -> None:
    flags = vars(make_parser().parse_args(["--floor-credits-per-hour", "2.25"]))
    assert load_config(HUB, **flags).floor_microcredits_per_hour == 2_250_000
    with pytest.raises(InvalidSettings):
        load_config(HUB, floor_credits_per_hour="much")


def test_a_slot_is_lent_at_any_price_unless_its_owner_says_otherwise() -> None:
    assert load_config(HUB).floor_microcredits_per_hour == 0


def test_each_hub_and_each_name_has_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module.os, "geteuid", lambda: 1000)
    env = {"XDG_STATE_HOME": "/state"}
    places = {
        find_state_dir(NodeConfig(hub_url=url, name=name), env)
        for url in ("http://a:1", "http://a:2", "https://user:secret@b")
        for name in ("", "attic", "../../etc")
    }
    assert len(places) == 9
    assert all(place.is_relative_to("/state/computepool-node") and ".." not in place.parts for place in places)
    assert not any("secret" in str(place) for place in places)


def test_root_keeps_its_state_with_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module.os, "geteuid", lambda: 0)
    assert find_state_dir(NodeConfig(hub_url="http://a:1"), {}) == Path("/var/lib/computepool-node/a_1/default")


def test_a_given_folder_is_taken_as_it_is() -> None:
    assert find_state_dir(NodeConfig(hub_url="http://a", state_dir="/x/y"), {}) == Path("/x/y")


def test_every_flag_is_a_setting() -> None:
    flags = set(vars(make_parser().parse_args([])))
    assert flags <= set(NodeConfig.__struct_fields__)


def test_bad_settings_end_the_process_with_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HUB_URL", raising=False)
    assert main(["node", "--name", "x"]) == 2
    assert "HUB_URL" in capsys.readouterr().err
