"""The agent as a service of the machine: the files that systemd, launchd and Windows read. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

NAME = "computepool-node"
LABEL = "org.computepool.node"
# After a crash; the agent's own refusals (settings, removed) are not repeated.
RESTART_SECONDS = 10
NO_RESTART_CODES = (2, 3, 4, 5, 6, 7)


@dataclass(frozen=True, slots=True)
class Service:
    """What to run: the command with its arguments, and settings that are no secrets."""

    command: Sequence[str]
    env: Mapping[str, str]


def render_systemd(service: Service) -> str:
    """A unit of the user's own systemd. Delegate: the sandbox makes control groups for its jobs."""
    settings = "".join(
        f"Environment={_quote_systemd(f'{key}={value}')}\n" for key, value in sorted(service.env.items())
    )
    command = " ".join(_quote_systemd(word) for word in service.command)
    return f"""\
[Unit]
Description=ComputePool agent: lends this machine
After=network-online.target

[Service]
ExecStart={command}
{settings}Delegate=yes
Nice=10
Restart=on-failure
RestartSec={RESTART_SECONDS}
RestartPreventExitStatus={" ".join(map(str, NO_RESTART_CODES))}
# Runners outlive the agent, and the next one adopts them.
KillMode=process
TimeoutStopSec=660

[Install]
WantedBy=default.target
"""


def render_launchd(service: Service) -> str:
    words = "\n".join(f"    <string>{escape(word)}</string>" for word in service.command)
    settings = "\n".join(
        f"    <key>{escape(key)}</key><string>{escape(value)}</string>" for key, value in sorted(service.env.items())
    )
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>{LABEL}</string>
  <key>ProgramArguments</key>
  <array>
{words}
  </array>
  <key>EnvironmentVariables</key>
  <dict>
{settings}
  </dict>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key>
  <dict><key>Crashed</key><true/></dict>
  <key>ProcessType</key><string>Background</string>
  <key>AbandonProcessGroup</key><true/>
</dict>
</plist>
"""


def render_windows(service: Service) -> str:
    """For `schtasks /create /xml`. Settings go through the command: a task has no environment of its own."""
    settings = " && ".join(f'set "{key}={value}"' for key, value in sorted(service.env.items()))
    command = " ".join(f'"{word}"' for word in service.command)
    whole = f"{settings} && {command}" if settings else command
    return f"""\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo><Description>ComputePool agent: lends this machine</Description></RegistrationInfo>
  <Triggers><LogonTrigger><Enabled>true</Enabled></LogonTrigger></Triggers>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>8</Priority>
    <RestartOnFailure><Interval>PT1M</Interval><Count>999</Count></RestartOnFailure>
  </Settings>
  <Actions><Exec>
    <Command>cmd.exe</Command>
    <Arguments>{escape(f'/d /s /c "{whole}"')}</Arguments>
  </Exec></Actions>
</Task>
"""


def _quote_systemd(text: str) -> str:
    """systemd reads quotes as a shell does, and % and $ as its own."""
    safe = text.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    return safe if shlex.quote(text) == text else '"' + safe.replace('"', '\\"') + '"'
