import stat
from pathlib import Path

import pytest

from computepool.sdk import resolve_settings, save_settings
from computepool.settings import InvalidSettings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save_settings(hub_url="https://hub.example.org/", key="cpk_file", path=tmp_path / "deep" / "config.toml")


def test_argument_wins_over_environment_and_environment_over_file(file: Path) -> None:
    env = {"HUB_URL": "https://env.example.org", "COMPUTEPOOL_KEY": "cpk_env"}
    by_argument = resolve_settings(hub_url="http://arg:8000", key="cpk_arg", env=env, path=file)
    by_env = resolve_settings(env=env, path=file)
    by_file = resolve_settings(env={}, path=file)
    assert (by_argument.hub_url, by_argument.key) == ("http://arg:8000", "cpk_arg")
    assert (by_env.hub_url, by_env.key) == ("https://env.example.org", "cpk_env")
    assert (by_file.hub_url, by_file.key) == ("https://hub.example.org", "cpk_file")


def test_the_files_key_is_not_sent_to_another_hub(file: Path) -> None:
    assert resolve_settings(hub_url="https://other.example.org", env={}, path=file).key is None
    assert resolve_settings(env={"HUB_URL": "https://other.example.org"}, path=file).key is None
    assert resolve_settings(env={"HUB_URL": "https://HUB.example.org//"}, path=file).key == "cpk_file"


def test_an_empty_key_means_none_at_all(file: Path) -> None:
    assert resolve_settings(key="", env={"COMPUTEPOOL_KEY": "cpk_env"}, path=file).key is None


def test_only_its_owner_can_read_the_file(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    save_settings(hub_url="https://hub.example.org", key="cpk_new", path=file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert resolve_settings(env={}, path=file).key == "cpk_new"
    assert [each.name for each in file.parent.iterdir()] == ["config.toml"]


def test_the_file_lies_where_the_desktop_keeps_settings(tmp_path: Path) -> None:
    path = save_settings(hub_url="http://h", key="k", env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert path == tmp_path / "computepool" / "config.toml"


def test_without_a_hub_the_message_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="HUB_URL"):
        resolve_settings(env={}, path=tmp_path / "absent.toml")


@pytest.mark.parametrize(
    "url", ["hub.example.org", "ftp://hub", "http://", "https://me:secret@hub", "http://hub/?a=1"]
)
def test_an_address_that_cannot_be_a_hubs_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings):
        resolve_settings(hub_url=url, env={}, path=tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("text", "word"),
    [("hub_ur = 'x'", "did you mean hub_url"), ("key = 3", "must be a text"), ("key = ", "valid TOML")],
)
def test_a_broken_file_is_explained(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(InvalidSettings, match=word):
        resolve_settings(hub_url="http://h", env={}, path=path)
