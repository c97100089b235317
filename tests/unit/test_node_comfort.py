"""When a machine is lent: the owner's rules, what readers make of the tools' formats, and what the watch does."""

from __future__ import annotations

import asyncio
import json
import os
import struct
from datetime import UTC, datetime
from pathlib import Path

import pytest

from computepool.node.comfort import graphics, linux, macos, windows, x11
from computepool.node.comfort.devices import InputDevices
from computepool.node.comfort.played import PlayedReader
from computepool.node.comfort.port import Rest, Seat
from computepool.node.comfort.readers import get_reader
from computepool.node.comfort.rules import ALWAYS, InvalidRules, Rules, parse_rules, render_rules
from computepool.node.comfort.verdict import Ground, Readings, decide
from computepool.node.comfort.watch import Sources, Watch
from computepool.node.hardware.port import Sight
from computepool.node.wishes import Wish, record_wish

MONDAY_EVENING = datetime(2026, 3, 2, 20, 30, tzinfo=UTC)
AWAY = Readings(idle_seconds=3600.0, on_battery=False, is_metered=False, cpu_percent=3.0)


def grounds(readings: Readings, rules: Rules, **how) -> list[Ground]:
    return [reason.ground for reason in decide(readings, rules, now=MONDAY_EVENING, **how).reasons]


@pytest.mark.parametrize(
    ("rules", "readings", "expected"),
    [
        (ALWAYS, Readings(idle_seconds=0.0, on_battery=True, is_metered=True, cpu_percent=100.0), []),
        (Rules(idle_minutes=5), AWAY, []),
        (Rules(idle_minutes=5), Readings(idle_seconds=299.9), [Ground.OWNER_PRESENT]),
        (Rules(idle_minutes=5), Readings(idle_seconds=300.0), []),
        (Rules(idle_minutes=5), Readings(), [Ground.SEAT_UNSEEN]),
        (Rules(), Readings(idle_seconds=0.0), []),
        (Rules(), Readings(on_battery=True), [Ground.ON_BATTERY]),
        (Rules(on_battery=True), Readings(on_battery=True), []),
        (Rules(), Readings(is_metered=True), [Ground.METERED_NETWORK]),
        (Rules(on_metered_network=True), Readings(is_metered=True), []),
        (Rules(never_while=("Game.exe",)), Readings(programs=frozenset({"game.exe"})), [Ground.PROGRAM_RUNS]),
        (Rules(never_while=("game",)), Readings(programs=frozenset({"gamer"})), []),
        (Rules(gpu_celsius_max=80), Readings(gpu_celsius=81.0), [Ground.TOO_HOT]),
        (Rules(gpu_celsius_max=80), Readings(gpu_celsius=None), []),
        (Rules(others_cpu_percent_max=50), Readings(cpu_percent=90.0), [Ground.BUSY]),
        (Rules(others_cpu_percent_max=50), Readings(cpu_percent=90.0, has_jobs=True), []),
        (Rules(hours="mon 19-7"), AWAY, []),
        (Rules(hours="mon 8-20"), AWAY, [Ground.OUTSIDE_HOURS]),
        (
            Rules(idle_minutes=1, hours="tue"),
            Readings(idle_seconds=0.0),
            [Ground.OWNER_PRESENT, Ground.OUTSIDE_HOURS],
        ),
    ],
)
def test_each_rule_makes_way_for_its_reason_and_no_other(rules, readings, expected):
    assert grounds(readings, rules) == expected


def test_a_hot_card_rests_until_it_has_cooled_down():
    rules = Rules(gpu_celsius_max=80)
    hot = decide(Readings(gpu_celsius=85.0), rules, now=MONDAY_EVENING)
    assert grounds(Readings(gpu_celsius=75.0), rules, before=hot) == [Ground.TOO_HOT]
    assert grounds(Readings(gpu_celsius=70.0), rules, before=hot) == []


def test_reasons_are_said_in_plain_words_with_what_helps():
    verdict = decide(Readings(seat="DISPLAY is not set"), Rules(idle_minutes=5), now=MONDAY_EVENING)
    assert "DISPLAY is not set" in verdict.words
    assert "idle_minutes = 0" in verdict.words


def test_the_file_to_begin_with_can_be_read_and_lends_after_the_minutes_it_was_given():
    assert parse_rules(render_rules(idle_minutes=5)) == Rules(idle_minutes=5)


@pytest.mark.parametrize(
    "text",
    [
        "idle_minuts = 5",
        "idle_minutes = -1",
        'hours = "someday"',
        "grace_seconds = 10",
        "idle_minutes = ",
        "[x]\na=1",
    ],
)
def test_rules_that_cannot_be_meant_are_refused(text):
    with pytest.raises(InvalidRules, match="cannot be used"):
        parse_rules(text)


def write(root: Path, files: dict[str, str]) -> Sight:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Sight(root=root, tools=str(root / "bin"))


def script(root: Path, name: str, text: str) -> None:
    path = root / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


SUPPLY = "sys/class/power_supply"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({f"{SUPPLY}/BAT0/type": "Battery\n", f"{SUPPLY}/BAT0/status": "Discharging\n"}, True),
        ({f"{SUPPLY}/BAT0/type": "Battery\n", f"{SUPPLY}/BAT0/status": "Charging\n"}, False),
        (
            {
                f"{SUPPLY}/BAT0/type": "Battery",
                f"{SUPPLY}/BAT0/status": "Discharging",
                f"{SUPPLY}/AC/type": "Mains",
                f"{SUPPLY}/AC/online": "1",
            },
            False,
        ),
        (
            {
                f"{SUPPLY}/hid/type": "Battery",
                f"{SUPPLY}/hid/status": "Discharging",
                f"{SUPPLY}/hid/scope": "Device",
            },
            None,
        ),
    ],
    ids=["desktop", "laptop away", "laptop charging", "laptop on the plug", "a mouse's battery"],
)
def test_sysfs_tells_whether_it_is_the_battery(tmp_path, files, expected):
    assert linux.is_on_battery(write(tmp_path, files)) is expected


def test_network_manager_tells_whether_a_connected_device_is_metered(tmp_path):
    yes = "GENERAL.STATE:100 (connected)\nGENERAL.METERED:yes (guessed)\n\nGENERAL.STATE:10 (unmanaged)\n"
    assert linux.parse_metered(yes) is True
    assert linux.parse_metered("GENERAL.STATE:20 (unavailable)\nGENERAL.METERED:yes\n") is None
    assert linux.parse_metered("GENERAL.STATE:100 (connected)\nGENERAL.METERED:no\n") is False
    sight = write(tmp_path, {})
    assert linux.is_metered(sight) is None
    script(tmp_path, "nmcli", "printf 'GENERAL.STATE:100 (connected)\\nGENERAL.METERED:yes\\n'")
    assert linux.is_metered(sight) is True


def test_logind_says_since_when_a_desktop_is_idle():
    assert linux.parse_hint("IdleHint=no\nIdleSinceHint=0\n", now_seconds=100.0) == 0.0
    assert linux.parse_hint("IdleHint=yes\nIdleSinceHint=40000000\n", now_seconds=100.0) == 60.0
    assert linux.parse_hint("", now_seconds=100.0) is None


def test_programs_are_found_by_short_and_by_whole_names(tmp_path):
    sight = write(
        tmp_path,
        {
            "proc/7/comm": "Steam\n",
            "proc/7/cmdline": "/usr/bin/steam\0-silent\0",
            "proc/8/comm": "a-very-long-nam\n",
            "proc/8/cmdline": "C:\\Games\\A-Very-Long-Name.exe\0",
        },
    )
    assert {"steam", "a-very-long-name.exe"} <= linux.list_programs(sight)
    assert "python" in "".join(linux.list_programs(Sight()))


def test_processors_are_as_busy_as_their_ticks_say():
    before = linux.parse_ticks("cpu  100 0 0 900 0 0 0 0 0 0\n")
    after = linux.parse_ticks("cpu  150 0 0 950 0 0 0 0 0 0\n")
    assert before == (100, 1000)
    assert after == (150, 1100)
    assert linux.parse_ticks("") is None


def test_heat_and_power_come_from_the_driver_and_are_set_back(tmp_path):
    sight = write(tmp_path, {"sys/class/drm/card0/device/hwmon/hwmon3/temp1_input": "61000\n"})
    assert graphics.read_celsius(sight) == 61.0
    notes = tmp_path / "notes"
    script(
        tmp_path,
        "nvidia-smi",
        f'case "$1" in *temperature*) printf "74\\n[N/A]\\n";; *power*) printf "320.00\\n150.00\\n[N/A]\\n";; '
        f'*) echo "$@" >> {notes};; esac',
    )
    assert graphics.read_celsius(sight) == 74.0
    changed, troubles = graphics.limit_power(sight, 200)
    assert [limit.card for limit in changed] == [0]
    assert troubles == ["card 2 tells no power limit"]
    graphics.restore_power(sight, changed)
    assert notes.read_text().splitlines() == ["-i 0 -pl 200", "-i 0 -pl 320"]


def test_power_is_left_alone_where_no_driver_sets_it(tmp_path):
    changed, troubles = graphics.limit_power(write(tmp_path, {}), 200)
    assert changed == []
    assert "nvidia-smi is not installed" in troubles[0]


def test_formats_of_macos_and_windows_are_read():
    assert macos.parse_idle('  | "HIDIdleTime" = 2500000000\n') == 2.5
    assert macos.parse_power("Now drawing from 'Battery Power'\n -InternalBattery-0") is True
    assert macos.parse_power("Now drawing from 'AC Power'\n") is False
    assert macos.parse_programs("/Applications/Game.app/Contents/MacOS/Game\n") == {"game"}
    assert windows.ticks_between(2**32 - 1000, 500) == 1500
    assert windows.parse_programs('"Game.exe","12","Console","1","5,000 K"\n') == {"game.exe"}
    assert isinstance(get_reader("auto", {}, platform="darwin"), macos.MacReader)
    assert get_reader("auto", {}, platform="win32").look_at_seat().idle_seconds is None


def test_input_devices_tell_that_something_moved_and_keep_nothing_of_it(tmp_path):
    assert InputDevices(tmp_path).find_idle_seconds() is None
    os.mkfifo(tmp_path / "event0")
    devices = InputDevices(tmp_path)
    keyboard = os.open(tmp_path / "event0", os.O_RDWR | os.O_NONBLOCK)
    try:
        before = devices.find_idle_seconds()
        devices._moved_at -= 100
        assert before is not None
        assert (devices.find_idle_seconds() or 0) >= 100
        os.write(keyboard, b"x" * 24)
        assert (devices.find_idle_seconds() or 0) < 50
    finally:
        os.close(keyboard)


def test_an_x_server_beside_wayland_is_not_believed():
    """It hears only what is typed into old programs: its owner would look absent while they type."""
    for env in ({"WAYLAND_DISPLAY": "wayland-0"}, {"XDG_SESSION_TYPE": "wayland"}):
        reader = linux.LinuxReader({"DISPLAY": ":0", **env})
        assert reader._find_screen_idle() is None
        assert "Wayland" in reader._no_screen


def test_cookies_of_x_servers_are_found_by_display_and_torn_files_do_no_harm():
    def entry(*pieces: bytes) -> bytes:
        return struct.pack(">H", 256) + b"".join(struct.pack(">H", len(each)) + each for each in pieces)

    content = entry(b"host", b"1", x11.COOKIE, b"secret") + entry(b"host", b"2", x11.COOKIE, b"other")
    assert x11.parse_cookies(content) == {"1": b"secret", "2": b"other"}
    assert x11.parse_cookies(content[:-20]) == {"1": b"secret"}
    with pytest.raises(x11.NoScreen, match="another machine"):
        x11.Screen("far.example.org:0", None)


class Lender:
    def __init__(self) -> None:
        self.is_empty = True
        self.diary: list[str] = []

    def make_way(self, words: str, *, grace_seconds: float) -> None:
        self.diary.append("way")

    def take_up(self) -> None:
        self.diary.append("up")

    def pause(self, is_paused: bool) -> None:
        if is_paused:
            self.diary.append("paused")

    def drain(self) -> None:
        self.diary.append("drain")


def make_watch(folder: Path, reader=None) -> tuple[Watch, Lender]:
    lender = Lender()
    reader = reader or PlayedReader(folder / "seat.json")
    sources = Sources(reader=reader, rules_path=folder / "comfort.toml", wish_path=folder / "wish.json")
    return Watch(sources, lender, drain=lender.drain), lender


async def test_the_watch_makes_way_and_takes_up_again(tmp_path):
    (tmp_path / "comfort.toml").write_text("idle_minutes = 1")
    seat = tmp_path / "seat.json"
    watch, lender = make_watch(tmp_path)
    seat.write_text('{"idle_seconds": 0}')
    await watch.begin()
    seat.write_text('{"idle_seconds": 61}')
    await watch.look()
    assert lender.diary == ["way", "up"]


async def test_without_rules_nobody_looks_and_the_machine_is_lent(tmp_path):
    watch, lender = make_watch(tmp_path)
    await watch.begin()
    assert lender.diary == []
    assert watch.verdict.lends


async def test_changed_rules_count_at_once_and_unusable_ones_change_nothing(tmp_path):
    (tmp_path / "seat.json").write_text('{"idle_seconds": 30}')
    rules = tmp_path / "comfort.toml"
    watch, lender = make_watch(tmp_path)
    await watch.begin()
    rules.write_text("idle_minutes = 1")
    await watch.look()
    assert not watch.verdict.lends
    rules.write_text("idle_minutes = nonsense")
    await watch.look()
    assert not watch.verdict.lends
    rules.unlink()
    await watch.look()
    assert watch.verdict.lends
    assert lender.diary == ["way", "way", "up"]


class Blind:
    def look_at_seat(self) -> Seat:
        raise RuntimeError("the reader fell over")

    def look_at_rest(self, *, programs: bool, gpus: bool) -> Rest:
        raise RuntimeError("the reader fell over")


async def test_a_watch_that_breaks_gives_the_machine_to_its_owner(tmp_path):
    (tmp_path / "comfort.toml").write_text("idle_minutes = 1")
    watch, lender = make_watch(tmp_path, Blind())
    await watch.begin()
    assert watch.verdict.has(Ground.WATCH_BROKE)
    assert lender.diary == ["way"]


async def test_the_owners_wishes_are_heard(tmp_path):
    wish = tmp_path / "wish.json"
    watch, lender = make_watch(tmp_path)
    record_wish(wish, Wish(pause=True))
    await watch.begin()
    assert lender.diary == ["paused"]
    assert watch.verdict.lends
    record_wish(wish, Wish(pause=True, now=True))
    await watch.look()
    assert watch.verdict.has(Ground.PAUSED)
    record_wish(wish, Wish())
    await watch.look()
    record_wish(wish, Wish(drain=True))
    await watch.look()
    assert lender.diary == ["paused", "paused", "way", "up", "drain"]
    assert not wish.exists()


async def test_a_running_watch_sees_the_owner_by_itself(tmp_path):
    (tmp_path / "comfort.toml").write_text("idle_minutes = 1")
    seat = tmp_path / "seat.json"
    seat.write_text(json.dumps({"idle_seconds": 100}))
    watch, lender = make_watch(tmp_path)
    lender.is_empty = False
    await watch.begin()
    running = asyncio.ensure_future(watch.run())
    seat.write_text(json.dumps({"idle_seconds": 0}))
    for _ in range(500):
        if lender.diary:
            break
        await asyncio.sleep(0.02)
    running.cancel()
    assert lender.diary[0] == "way"
