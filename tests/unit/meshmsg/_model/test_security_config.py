"""Keys, key files and the allow-list: what is taken, what is refused, and that no secret shows."""

from __future__ import annotations

import base64
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meshmsg._model.security_config as security_module
from meshmsg import ConfigError, Peer, PeerConfig, Security
from meshmsg._access.key_files import new_folder
from meshmsg._access.keyring import Keyring
from meshmsg._model.config import config_from_tables

KEY = "Zq3-uY8hJx0_vB5nRkT2wLmEo7sD1fGc9aXpQi4HyUz"


class Owned:
    """`os.fstat`, of files that belong to somebody."""

    def __init__(self, fstat: Callable[[int], os.stat_result], user: int) -> None:
        self._fstat = fstat
        self.user = user

    def __call__(self, fd: int) -> os.stat_result:
        found = list(self._fstat(fd))
        found[stat.ST_UID] = self.user
        return os.stat_result(found)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestSecurity:
    def test_keys_for_purposes_have_nothing_in_common(self) -> None:
        one = Security(mesh_key=KEY)
        assert len(one.derive(b"a")) == 32
        assert one.derive(b"a") == Security(mesh_key=KEY.encode()).derive(b"a")
        assert one.derive(b"a") != one.derive(b"b")
        assert one.derive(b"a") != Security(mesh_key=KEY[::-1]).derive(b"a")
        both = Security(mesh_key=KEY, other_keys=(KEY[::-1],))
        assert both.derive_all(b"a") == (
            one.derive(b"a"),
            Security(mesh_key=KEY[::-1]).derive(b"a"),
        )

    @pytest.mark.parametrize(
        "key",
        [
            "",
            "secret",
            "a" * 100,
            "password" * 5,
            "0123456789" * 2,
            b"short",
            "passwordpasswordpasswordpass1234",
            "correct horse battery staple 2026",
            "correct-horse-battery-staple-2026-and-more1",  # of the right length and letters
            "Ab1" * 14 + "A",
            "0123456701234567" * 4,
            "a" * 64,
            KEY[:-1],
            KEY + "x",
            bytes(range(200, 232)),
        ],
    )
    def test_what_can_be_guessed_is_refused(self, key: Any) -> None:
        with pytest.raises(ConfigError, match=r"meshmsg keys new") as caught:
            Security(mesh_key=key)
        assert not key or str(key) not in str(caught.value).replace("meshmsg keys new", "")

    def test_what_machines_draw_is_taken(self) -> None:
        for _ in range(1000):
            data = secrets.token_bytes(32)
            for key in (data.hex(), data.hex().upper(), base64.b64encode(data), KEY):
                assert Security(mesh_key=key).keys == (
                    key if isinstance(key, bytes) else key.encode(),
                )
            assert Security(mesh_key=secrets.token_urlsafe(32)).keys

    @pytest.mark.parametrize("key", [7, ["x"], {"key": KEY}])
    def test_what_is_no_key_is_refused_without_showing_it(self, key: Any) -> None:
        for arguments in ({"mesh_key": key}, {"mesh_key": KEY, "other_keys": {KEY: 1}}):
            with pytest.raises(ConfigError, match=r"security\.") as caught:
                Security(**arguments)  # type: ignore[arg-type]
            assert KEY not in str(caught.value)

    @pytest.mark.parametrize(
        "arguments", [{}, {"mesh_key": KEY, "key_dir": "x"}, {"mesh_key_file": "a", "key_dir": "b"}]
    )
    def test_one_place_for_the_keys(self, arguments: dict[str, str]) -> None:
        with pytest.raises(ConfigError, match="give one of mesh_key, mesh_key_file and key_dir"):
            Security(**arguments)  # type: ignore[arg-type]

    def test_no_secret_in_texts(self, tmp_path: Path) -> None:
        found = Security(mesh_key=KEY, other_keys=KEY[::-1])
        config = PeerConfig("p", security=found)
        keyring = Keyring(found)
        for text in (
            repr(found),
            str(found),
            repr(config),
            repr(keyring.curve),
            repr(vars(keyring)),
        ):
            for secret in (
                KEY,
                KEY[::-1],
                keyring.curve.own.secret.hex(),
                repr(keyring.curve.own.secret),
            ):
                assert secret not in text
        with Peer("p", security=found) as peer:
            assert KEY not in str(peer.stats())

    def test_from_a_file_and_from_the_environment(self, tmp_path: Path) -> None:
        path = tmp_path / "mesh.key"
        path.write_text(f"{KEY}\n{KEY[::-1]}\n")
        path.chmod(0o600)
        assert Security(mesh_key_file=str(path)).keys == (KEY.encode(), KEY[::-1].encode())
        assert Security.from_env({}) is None
        assert Security.from_env({"MESHMSG_MESH_KEY": ""}) is None
        found = Security.from_env({"MESHMSG_MESH_KEY": KEY})
        assert found is not None
        assert found.keys == (KEY.encode(),)
        also = Security.from_env({"MESHMSG_MESH_KEY_FILE": str(path)})
        assert also is not None
        assert also.keys[0] == KEY.encode()

    def test_from_mesh_toml(self, tmp_path: Path) -> None:
        config = config_from_tables({"peer": {"name": "p"}, "security": {"mesh_key": KEY}})
        assert config.security == Security(mesh_key=KEY)
        with pytest.raises(ConfigError, match=r"security\.mesh_kee: is not a key here"):
            config_from_tables({"peer": {"name": "p"}, "security": {"mesh_kee": KEY}})
        with pytest.raises(ConfigError, match=r"security\.keys: is not a key here"):
            config_from_tables({"peer": {"name": "p"}, "security": {"keys": [KEY]}})
        with pytest.raises(ConfigError, match="security: is not a Security"):
            Peer("p", security=KEY)  # type: ignore[arg-type]

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o666, 0o777])
    def test_files_that_others_may_read_are_refused(self, tmp_path: Path, mode: int) -> None:
        new_folder(tmp_path / "k", "p", None)
        for name in ("mesh.key", "peer.key"):
            path = tmp_path / "k" / name
            path.chmod(mode)
            with pytest.raises(ConfigError, match=rf"has mode 0{mode:o}.*chmod 600"):
                Keyring(Security(key_dir=str(tmp_path / "k")))
            path.chmod(0o600)
        Keyring(Security(key_dir=str(tmp_path / "k")))

    def test_an_allow_list_that_others_may_change_is_refused(self, tmp_path: Path) -> None:
        new_folder(tmp_path / "k", "p", None)
        path = tmp_path / "k" / "allow.toml"
        path.chmod(0o664)
        with pytest.raises(ConfigError, match="others may change it"):
            Keyring(Security(key_dir=str(tmp_path / "k")))
        path.unlink()
        with pytest.raises(ConfigError, match=r"is missing.*mesh_key_file="):
            Keyring(Security(key_dir=str(tmp_path / "k")))

    def test_files_that_are_no_keys(self, tmp_path: Path) -> None:
        path = tmp_path / "mesh.key"
        with pytest.raises(ConfigError, match=r"cannot be read: No such file.*keys new"):
            Security(mesh_key_file=str(path))
        for content, problem in (
            (b"", "is empty"),
            (b"\xff" * 5, "guess"),
            (b"x" * 70_000, "large"),
        ):
            path.write_bytes(content)
            path.chmod(0o600)
            with pytest.raises(ConfigError, match=problem):
                Security(mesh_key_file=str(path))
        new_folder(tmp_path / "k", "p", None)
        peer_key = tmp_path / "k" / "peer.key"
        peer_key.write_text("zz" * 32)
        with pytest.raises(ConfigError, match="is not a peer's key"):
            Keyring(Security(key_dir=str(tmp_path / "k")))

    def test_the_extra_is_named_where_it_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(module: str) -> None:
            raise ImportError(name=module)

        monkeypatch.setattr("importlib.import_module", missing)
        with pytest.raises(ConfigError, match=r"pip install 'meshmsg\[security\]'"):
            security_module.derive(b"x", b"y")
