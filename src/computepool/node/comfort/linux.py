"""Linux: the seat by X11, else by input devices, else by logind; battery by sysfs, network by NetworkManager."""

from __future__ import annotations

import re
from collections.abc import Mapping

from computepool import clock
from computepool.node.comfort.devices import InputDevices
from computepool.node.comfort.graphics import read_celsius
from computepool.node.comfort.paced import Paced
from computepool.node.comfort.port import Rest, Seat
from computepool.node.comfort.x11 import NoScreen, Screen, find_cookie
from computepool.node.hardware.port import Sight

TOOL_SECONDS = 3.0
# Each of these starts a program.
LOGIND_SECONDS = 1.0
NETWORK_SECONDS = 30.0
HEAT_SECONDS = 5.0
BATTERY_SECONDS = 2.0
RETRY_SCREEN_SECONDS = 5.0


class LinuxReader:
    def __init__(self, env: Mapping[str, str], sight: Sight | None = None) -> None:
        self._env = env
        self._sight = sight or Sight(tool_seconds=TOOL_SECONDS)
        self._screen: Screen | None = None
        self._screen_tried_at = -RETRY_SCREEN_SECONDS
        self._no_screen = ""
        self._devices = InputDevices()
        self._hint = Paced(lambda: find_hint_seconds(self._sight), LOGIND_SECONDS)
        self._battery = Paced(lambda: is_on_battery(self._sight), BATTERY_SECONDS)
        self._network = Paced(lambda: is_metered(self._sight), NETWORK_SECONDS)
        self._heat = Paced(lambda: read_celsius(self._sight), HEAT_SECONDS)
        self._ticks: tuple[int, int] | None = None

    def look_at_seat(self) -> Seat:
        seats = []
        if (idle := self._find_screen_idle()) is not None:
            seats.append(Seat(idle, "by the X server"))
        if (idle := self._devices.find_idle_seconds()) is not None:
            seats.append(Seat(idle, "by the input devices"))
        if not seats and (idle := self._hint.get()) is not None:
            seats.append(Seat(idle, "by logind's hint"))
        if not seats:
            return Seat(None, f"{self._no_screen}; /dev/input may not be read; logind gives no hint")
        return min(seats, key=lambda seat: seat.idle_seconds or 0.0)

    def look_at_rest(self, *, programs: bool, gpus: bool) -> Rest:
        return Rest(
            on_battery=self._battery.get(),
            is_metered=self._network.get(),
            programs=list_programs(self._sight) if programs else frozenset(),
            gpu_celsius=self._heat.get() if gpus else None,
            cpu_percent=self._read_load(),
        )

    def _find_screen_idle(self) -> float | None:
        display = self._env.get("DISPLAY", "")
        if not display:
            self._no_screen = "DISPLAY is not set"
            return None
        if self._env.get("WAYLAND_DISPLAY") or self._env.get("XDG_SESSION_TYPE") == "wayland":
            # An X server is there too, but it hears only what is typed into old programs.
            self._no_screen = "the desktop is Wayland's"
            return None
        try:
            if self._screen is None:
                if clock.seconds() - self._screen_tried_at < RETRY_SCREEN_SECONDS:
                    return None
                self._screen_tried_at = clock.seconds()
                self._screen = Screen(display, find_cookie(self._env, display))
            return self._screen.read_idle_seconds()
        except NoScreen as error:
            if self._screen is not None:
                self._screen.close()
                self._screen = None
            self._no_screen = str(error)
            return None

    def _read_load(self) -> float | None:
        before, self._ticks = self._ticks, parse_ticks(self._sight.read("/proc/stat"))
        if before is None or self._ticks is None or self._ticks[1] <= before[1]:
            return None
        return 100.0 * (self._ticks[0] - before[0]) / (self._ticks[1] - before[1])


def find_hint_seconds(sight: Sight) -> float | None:
    """What the desktop told logind of seat0's session. None: nobody told it anything."""
    session = sight.run("loginctl", "show-seat", "seat0", "--property=ActiveSession", "--value").text.strip()
    if not session:
        return None
    said = sight.run("loginctl", "show-session", session, "--property=IdleHint", "--property=IdleSinceHint").text
    return parse_hint(said, now_seconds=clock.unix_seconds())


def parse_hint(text: str, *, now_seconds: float) -> float | None:
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    if values.get("IdleHint") == "no":
        # Zero would be "never told", too; but a desktop that says nothing never says yes either.
        return 0.0
    since = values.get("IdleSinceHint", "")
    if values.get("IdleHint") != "yes" or not since.isdigit():
        return None
    return max(0.0, now_seconds - int(since) / 1e6)


def is_on_battery(sight: Sight) -> bool | None:
    """A plug with current beats everything; without any battery there is no question."""
    supplies = sight.glob("/sys/class/power_supply/*")
    kinds = {path: sight.read(f"{path}/type").strip() for path in supplies}
    # A mouse has a battery, too; its scope says so.
    own = [path for path in supplies if sight.read(f"{path}/scope").strip() != "Device"]
    if any(kinds[path] in ("Mains", "USB") and sight.read_int(f"{path}/online") == 1 for path in own):
        return False
    batteries = [path for path in own if kinds[path] == "Battery"]
    if not batteries:
        return None
    return any(sight.read(f"{path}/status").strip() == "Discharging" for path in batteries)


def is_metered(sight: Sight) -> bool | None:
    printed = sight.run("nmcli", "--terse", "--fields", "GENERAL.STATE,GENERAL.METERED", "device", "show")
    return None if printed.trouble else parse_metered(printed.text)


def parse_metered(text: str) -> bool | None:
    """Of connected devices; NetworkManager's guesses ("yes (guessed)") count as its word."""
    words, connected = [], False
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.endswith("STATE"):
            connected = value.startswith("100")
        elif key.endswith("METERED") and connected:
            words.append(value.strip())
    if any(word.startswith("yes") for word in words):
        return True
    return False if any(word.startswith("no") for word in words) else None


def list_programs(sight: Sight) -> frozenset[str]:
    """By the kernel's short names and by the names of their files; Wine's programs show in the latter's arguments."""
    found: set[str] = set()
    for path in sight.glob("/proc/[0-9]*"):
        short = sight.read(f"{path}/comm").strip()
        if not short:
            continue
        found.add(short.lower())
        # The kernel cuts names at 15 characters; then the command line tells the whole.
        first = sight.read(f"{path}/cmdline").partition("\0")[0]
        found.add(re.split(r"[\\/]", first)[-1].lower())
    found.discard("")
    return frozenset(found)


def parse_ticks(stat: str) -> tuple[int, int] | None:
    """Busy and all ticks of all processors since the start."""
    words = stat.partition("\n")[0].split()
    if len(words) < 6 or words[0] != "cpu":
        return None
    ticks = [int(word) for word in words[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
