"""Settings from the environment: all faults at once, a suggestion for a misspelt name, no secret in a message."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import msgspec
import pytest

from computepool import settings
from computepool.hub.config import PREFIX as HUB_PREFIX
from computepool.hub.config import HubSettings
from computepool.settings import InvalidSettings


class Mode(str, Enum):
    CALM = "calm"
    WILD = "wild"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    database_url: Annotated[str | None, msgspec.Meta(description="Where.", extra={"env": "DATABASE_URL"})] = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535, description="Door.")] = 8000
    seconds: float = 1.5
    demo: Annotated[bool, msgspec.Meta(description="Play.")] = False
    quiet: bool | None = None
    mode: Mode = Mode.CALM
    secret_number: int = 0
    api_key_days: int = 0
    name: str = ""


def load(env: dict[str, str], **overrides: Any) -> Sample:
    return settings.load(Sample, env, prefix="SAMPLE_", **overrides)


def faults_of(env: dict[str, str]) -> list[str]:
    with pytest.raises(InvalidSettings) as caught:
        load(env)
    title, *faults = caught.value.message.split("\n  ")
    assert title == "The settings cannot be used:"
    return faults


def test_an_empty_environment_gives_the_defaults():
    assert load({}) == Sample()


def test_values_are_read_as_what_they_are():
    env = {"SAMPLE_PORT": "99", "SAMPLE_SECONDS": "0.25", "SAMPLE_MODE": "wild", "SAMPLE_NAME": "a b"}
    assert load(env) == Sample(port=99, seconds=0.25, mode=Mode.WILD, name="a b")


def test_a_well_known_name_is_read_without_the_prefix():
    assert load({"DATABASE_URL": "postgresql://x"}).database_url == "postgresql://x"


def test_an_empty_variable_is_like_an_absent_one():
    assert load({"SAMPLE_PORT": "", "DATABASE_URL": ""}) == Sample()


def test_variables_of_others_are_left_alone():
    assert load({"PATH": "/bin", "OTHER_PORT": "x", "SAMPLER": "x"}) == Sample()


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "Yes", "on", " true "])
def test_a_switch_is_on_in_many_spellings(text):
    assert load({"SAMPLE_DEMO": text}).demo is True
    assert load({"SAMPLE_QUIET": text}).quiet is True


@pytest.mark.parametrize("text", ["0", "false", "False", "no", "OFF"])
def test_a_switch_is_off_in_many_spellings(text):
    assert load({"SAMPLE_DEMO": text}, demo=None).demo is False
    assert load({"SAMPLE_QUIET": text}).quiet is False


@pytest.mark.parametrize("text", ["maybe", "2", "truee", "-"])
def test_a_switch_is_neither_on_nor_off_in_any_other(text):
    assert faults_of({"SAMPLE_DEMO": text}) == [f"SAMPLE_DEMO={text!r}: expected true or false"]


def test_a_misspelt_name_is_refused_with_the_name_that_was_meant():
    assert faults_of({"SAMPLE_PROT": "1"}) == ["SAMPLE_PROT is not a setting; did you mean SAMPLE_PORT?"]


def test_a_name_like_no_other_is_refused_without_a_guess():
    assert faults_of({"SAMPLE_XYZZYXYZZYXYZZYXYZZY": "1"}) == ["SAMPLE_XYZZYXYZZYXYZZYXYZZY is not a setting"]


def test_all_faults_are_told_together():
    env = {
        "SAMPLE_PROT": "1",
        "SAMPLE_PORT": "many",
        "SAMPLE_DEMO": "maybe",
        "SAMPLE_MODE": "odd",
        "SAMPLE_NAME": "x",
    }
    faults = faults_of(env)
    assert [fault.split("=")[0].split(" ")[0] for fault in faults] == [
        "SAMPLE_PROT",
        "SAMPLE_PORT",
        "SAMPLE_DEMO",
        "SAMPLE_MODE",
    ]


@pytest.mark.parametrize("text", ["0", "65536", "x", "1.5", "1e3x"])
def test_a_number_out_of_its_range_is_refused_and_shown(text):
    [fault] = faults_of({"SAMPLE_PORT": text})
    assert fault.startswith(f"SAMPLE_PORT={text!r}: ")


@pytest.mark.parametrize("variable", ["SAMPLE_SECRET_NUMBER", "SAMPLE_API_KEY_DAYS"])
def test_a_secret_is_not_repeated_in_a_message(variable):
    [fault] = faults_of({variable: "hunter2"})
    assert fault.startswith(f"{variable}=***: ")
    assert "hunter2" not in fault


def test_what_is_given_on_the_command_line_wins():
    assert load({"SAMPLE_PORT": "99"}, port=7).port == 7


def test_what_is_not_given_on_the_command_line_does_not():
    assert load({"SAMPLE_PORT": "99"}, port=None).port == 99


def test_the_description_lists_every_setting_in_order_with_its_default():
    rows = settings.describe(Sample, prefix="SAMPLE_")
    assert rows[:4] == [
        ("DATABASE_URL", "", "Where."),
        ("SAMPLE_PORT", "8000", "Door."),
        ("SAMPLE_SECONDS", "1.5", ""),
        ("SAMPLE_DEMO", "false", "Play."),
    ]
    assert ("SAMPLE_MODE", "calm", "") in rows


def test_every_described_default_can_be_read_back():
    env = {variable: default for variable, default, _ in settings.describe(HubSettings, prefix=HUB_PREFIX)}
    assert settings.load(HubSettings, env, prefix=HUB_PREFIX) == HubSettings()


def test_the_schema_has_a_string_for_every_variable():
    schema = settings.json_schema(Sample, prefix="SAMPLE_")
    assert schema["SAMPLE_PORT"] == {"type": "string", "description": "Door.", "default": "8000"}
    assert schema["DATABASE_URL"] == {"type": "string", "description": "Where."}
    assert len(schema) == len(Sample.__struct_fields__)


@pytest.mark.parametrize(("variable", "word"), [("SIGN_UP", "Invalid"), ("LEASE_SECONDS", "float"), ("DEMO", "true")])
def test_a_wrong_setting_of_the_hub_is_named(variable, word):
    with pytest.raises(InvalidSettings, match=HUB_PREFIX + variable) as caught:
        settings.load(HubSettings, {HUB_PREFIX + variable: "perhaps"}, prefix=HUB_PREFIX)
    assert word in caught.value.message
