"""The keys of a mesh by public names: made, described, allowed, revoked."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmsg import ConfigError, Security, keys


def test_a_peer_is_let_in_and_taken_off(tmp_path: Path) -> None:
    ours = keys.new_folder(tmp_path / "ours", "pricing")
    theirs = keys.new_folder(
        tmp_path / "theirs", "desk", mesh_key_file=tmp_path / "ours" / "mesh.key"
    )
    grant = keys.grant_of("desk", theirs.key.hex(), publish=["none.**"])
    assert keys.allow(tmp_path / "ours", grant)
    assert not keys.allow(tmp_path / "ours", grant)
    found = keys.describe(tmp_path / "ours")
    assert {row["name"]: row["publish"] for row in found["allow"]} == {
        "pricing": ["**"],
        "desk": ["none.**"],
    }
    assert found["mesh_keys"] == keys.describe(tmp_path / "theirs")["mesh_keys"]
    assert [gone.key for gone in keys.revoke(tmp_path / "ours", "desk")] == [theirs.key]
    assert keys.revoke(tmp_path / "ours", "desk") == []
    assert ours.key != theirs.key


def test_the_name_is_that_of_the_allow_list(tmp_path: Path) -> None:
    keys.new_folder(tmp_path / "keys", "desk-*")
    assert keys.own_name(Security(key_dir=str(tmp_path / "keys"))) == "desk-*"
    assert keys.own_name(None) == ""


@pytest.mark.parametrize(
    ("name", "key", "publish", "field"),
    [("a/b", "00" * 32, ["**"], "name"), ("a", "00", ["**"], "KEY"), ("a", "00" * 32, [""], "pub")],
)
def test_what_is_wrong_is_named(name: str, key: str, publish: list[str], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        keys.grant_of(name, key, publish=publish)


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("abc\n")
    file.chmod(0o600)
    assert keys.read_private(file) == "abc\n"
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="has mode 0644"):
        keys.read_private(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        keys.read_private(tmp_path / "nothing")
