"""What the command line says and does before any hub is asked."""

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path

import click
import pytest

from computepool import clock
from computepool.cli.main import EXIT_REFUSED, cli, run
from computepool.cli.run import choose_program, parse_deadline, parse_variables, read_secrets, to_folder_name
from computepool.cli.sign_in import split_link
from computepool.core.errors import Unauthenticated
from computepool.core.jobs.order import PriorityClass
from computepool.core.placement.weights import Preference


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the person who runs the tests."""
    for name in ("HUB_URL", "COMPUTEPOOL_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def test_help_needs_none_of_the_heavy_packages() -> None:
    code = (
        "import sys; from computepool.cli.main import run; code = run(['--help']);"
        "heavy = {'httpx', 'rich', 'msgspec', 'cryptography', 'asyncio'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("run", "jobs", "logs", "cancel", "nodes", "node", "sign-in", "hub", "accounts", "fleet", "demo"):
        assert f"\n  {name} " in done.stdout


def test_importing_the_sdk_does_not_import_httpx() -> None:
    code = "import sys, computepool.sdk; sys.exit('httpx' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", [*cli.list_commands(click.Context(cli)), "login"])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"Usage: computepool {name}" in capsys.readouterr().out


def test_a_misspelt_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["job"]) == EXIT_REFUSED
    assert "Did you mean jobs?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["jobs"], ["nodes"], ["logs", "last"], ["cancel", "last"], ["run", "--", "ls"]]
)
def test_without_a_hub_one_line_says_what_to_do(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert said.startswith("error: No hub is named.")
    assert said.endswith("(invalid_settings)\n")
    assert "Traceback" not in said


def test_without_a_key_one_line_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "--hub-url", "http://127.0.0.1:9"]) == EXIT_REFUSED
    assert "computepool sign-in --hub-url http://127.0.0.1:9 (unauthenticated)" in capsys.readouterr().err


def test_a_key_that_is_refused_is_told_with_where_it_came_from_and_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Unauthenticated("This API key is unknown, expired or revoked.")

    monkeypatch.setattr("computepool.cli.jobs.connect", refuse)
    assert run(["jobs"]) == EXIT_REFUSED
    assert "revoked. Run: computepool sign-in (unauthenticated)" in capsys.readouterr().err
    monkeypatch.setenv("COMPUTEPOOL_KEY", "cpk_wrong")
    assert run(["jobs"]) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert "COMPUTEPOOL_KEY" in said
    assert "cpk_wrong" not in said


def test_help_sorts_every_command_by_what_people_come_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    titles = ("Run work:", "Lend a machine:", "Money and market:", "Your account:", "For operators:")
    places = [said.index(f"\n{title}") for title in titles]
    assert places == sorted(places)
    assert all(said.count(f"\n  {name} ") == 1 for name in cli.list_commands(click.Context(cli)))


def test_nothing_to_run_is_a_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run"]) == EXIT_REFUSED
    assert "nothing to run" in capsys.readouterr().err
    assert run(["run", "--", *()]) == EXIT_REFUSED


def test_a_script_takes_what_stands_behind_the_dashes_as_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert choose_program(str(script), []) == {"script": script, "command": []}
    assert choose_program(str(script), ["--lr", "1"])["command"] == ["python3", "main.py", "--lr", "1"]


def test_what_stands_behind_the_dashes_alone_is_the_command() -> None:
    assert choose_program(None, ["sh", "-c", "ls"]) == {"command": ["sh", "-c", "ls"]}


def test_a_program_that_names_its_interpreter_is_started_by_it(tmp_path: Path) -> None:
    tool, shell = tmp_path / "tool", tmp_path / "steps.sh"
    tool.write_text("#!/usr/bin/env perl\n")
    shell.write_text("echo 1\n")
    assert choose_program(str(tool), ["x"]) == {"files": [tool], "command": ["./tool", "x"]}
    assert choose_program(str(shell), []) == {"files": [shell], "command": ["sh", "./steps.sh"]}


def test_a_missing_script_points_to_the_dashes() -> None:
    with pytest.raises(click.UsageError, match="run -- python3"):
        choose_program("python3", [])


@pytest.mark.parametrize(
    ("command", "option", "kind"),
    [
        ("run", "--prefer", Preference),
        ("run", "--class", PriorityClass),
        ("accounts", "--class", PriorityClass),
    ],
)
def test_choices_are_those_of_the_wire(command: str, option: str, kind: type[Enum]) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    [parameter] = [each for each in found.params if option in each.opts]
    assert isinstance(parameter.type, click.Choice)
    assert list(parameter.type.choices) == [each.value for each in kind]


def test_a_deadline_is_a_time_from_now_or_a_moment() -> None:
    assert parse_deadline(None) is None
    soon = parse_deadline("2h")
    assert soon is not None
    assert timedelta(hours=1, minutes=59) < soon - clock.now() <= timedelta(hours=2)
    assert parse_deadline("2030-01-31T18:00+00:00") == datetime(2030, 1, 31, 18, tzinfo=UTC)
    local = parse_deadline("2030-01-31T18:00")
    assert local is not None
    assert local.tzinfo is not None
    with pytest.raises(click.UsageError, match="--deadline tomorrow: write 90s"):
        parse_deadline("tomorrow")


@pytest.mark.parametrize("arguments", [["nodes", "attic-pc", "floor"], ["nodes", "attic-pc", "pause", "12"]])
def test_a_floor_goes_with_its_credits_and_nothing_else_does(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == EXIT_REFUSED
    assert "computepool nodes NODE floor 12" in capsys.readouterr().err


def test_a_grant_without_an_account_is_a_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["accounts", "--weight", "2"]) == EXIT_REFUSED
    assert "Name the ACCOUNT" in capsys.readouterr().err


def test_variables_are_split_at_the_first_equals_sign() -> None:
    assert parse_variables(("A=1", "B=x=y", "C=")) == {"A": "1", "B": "x=y", "C": ""}
    with pytest.raises(click.UsageError, match="NAME=VALUE"):
        parse_variables(("A",))


@pytest.mark.parametrize(
    ("name", "folder"), [("train", "train"), ("../../x y", "_.._x_y"), ("", "job"), ("...", "job")]
)
def test_a_jobs_name_never_leads_out_of_the_folder(name: str, folder: str) -> None:
    assert to_folder_name(name) == folder


def test_a_sign_in_link_names_its_hub() -> None:
    assert split_link("https://hub.example.org/sign-in?token=abc") == ("https://hub.example.org", "abc")
    assert split_link("https://example.org/grid/sign-in?token=abc") == ("https://example.org/grid", "abc")
    assert split_link("abc") == (None, "abc")
    with pytest.raises(click.UsageError, match="no token"):
        split_link("https://hub.example.org/sign-in")


def test_the_reference_page_names_every_command_and_option() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    context = click.Context(cli)
    missing = []
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        parts = list(command.commands.values()) if isinstance(command, click.Group) else [command]
        section = re.split(rf"\n## computepool {name}\b(?!s)", page)[-1].partition("\n## ")[0]
        options = [max(p.opts, key=len) for part in parts for p in part.params if isinstance(p, click.Option)]
        everywhere = {"--hub-url", "--key"}
        missing += [
            f"{name} {option}" for option in options if option not in everywhere and f"`{option}" not in section
        ]
    assert missing == []


def test_secrets_come_from_variables_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKEN", "correct horse")
    (tmp_path / "key").write_text("battery staple\n")
    assert read_secrets(("TOKEN", f"KEY=@{tmp_path / 'key'}")) == {"TOKEN": "correct horse", "KEY": "battery staple"}


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("TOKEN=correct horse", "no place on a command line"),
        ("TOKEN=", "no place on a command line"),
        ("TOKEN", "you have no variable TOKEN"),
        ("TOKEN=@absent", "cannot be read"),
    ],
)
def test_a_secret_is_never_taken_from_the_command_line(word: str, words: str) -> None:
    with pytest.raises(click.UsageError, match=words) as refused:
        read_secrets((word,))
    assert "correct horse" not in refused.value.message
