"""Nobody but its owner may place or replace a file in a stack's home."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.embedded import env, private_files, state
from sluice.embedded.failure import StackError
from sluice.embedded.home import Home, cache_folder

pytestmark = pytest.mark.unit


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o002, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_sluice_makes_is_private_under_any_umask(tmp_path: Path, umask: int) -> None:
    home = Home.at(tmp_path / "home")
    assert mode(home.root) == 0o700
    private_files.write_private(home.env_file, "secret")
    assert mode(home.env_file) == 0o600
    assert [file.name for file in home.root.iterdir()] == ["env"]


@pytest.mark.parametrize("wrong", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, wrong: int) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(wrong)
    (folder / "env").write_text("export PATH=/evil\n")
    for use in (
        lambda: Home.at(folder),
        lambda: env.load_env(folder),
        lambda: private_files.write_private(folder / "env", "secret"),
        lambda: state.save_state(Home(folder), state.StackState()),
    ):
        with pytest.raises(StackError, match=f"has mode {wrong:04o}.*chmod go-w {folder}"):
            use()
    assert [file.name for file in folder.iterdir()] == ["env"]
    folder.chmod(0o755)  # others may read what is in it
    assert Home.at(folder).root == folder


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = private_files.private_folder(tmp_path / "home")
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(StackError, match=r"belongs to another user.*SLUICE_HOME"):
        Home.at(folder)


def test_a_link_is_refused_though_it_leads_to_a_private_folder(tmp_path: Path) -> None:
    real = private_files.private_folder(tmp_path / "real")
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(StackError, match=f"is a symbolic link.*{real}"):
        Home.at(tmp_path / "link")
    below = Home.at(tmp_path / "link" / "below")  # a link above it is the owner's own business
    assert below.root == real / "below"


def test_a_link_in_the_place_of_a_file_or_its_draft_is_not_followed(tmp_path: Path) -> None:
    folder, victim = private_files.private_folder(tmp_path / "home"), tmp_path / "victim"
    victim.write_text("untouched")
    (folder / "env").symlink_to(victim)
    (folder / f".env.{os.getpid()}").symlink_to(victim)
    private_files.write_private(folder / "env", "secret")
    assert victim.read_text() == "untouched" and (folder / "env").read_text() == "secret"
    assert not (folder / "env").is_symlink()


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    file = private_files.private_folder(tmp_path / "home") / "env"
    private_files.write_private(file, "old")
    with pytest.raises(UnicodeEncodeError):
        private_files.write_private(file, "\udcff")
    assert file.read_text() == "old" and [each.name for each in file.parent.iterdir()] == ["env"]


def test_a_cache_whose_jars_others_could_replace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SLUICE_CACHE", str(folder))
    assert cache_folder() == folder and not mode(folder) & 0o022
    assert cache_folder() == folder
    folder.chmod(0o775)
    with pytest.raises(StackError, match=f"has mode 0775.*chmod go-w {folder}"):
        cache_folder()
    folder.chmod(0o755)
    owner = folder.stat().st_uid
    monkeypatch.setattr(private_files, "ROOT", owner)  # the cache of an image that root has built
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert cache_folder() == folder
    monkeypatch.setattr(private_files, "ROOT", owner + 2)
    with pytest.raises(StackError, match=r"belongs to another user.*SLUICE_CACHE"):
        cache_folder()
