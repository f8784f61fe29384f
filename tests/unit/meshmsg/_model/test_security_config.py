"""Keys, key files and the allow-list: what is taken, what is refused, and that no secret shows."""

from __future__ import annotations

import base64
import errno
import itertools
import os
import secrets
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import meshmsg._model.security_config as security_module
from meshmsg import ConfigError, Peer, PeerConfig, Security
from meshmsg._access import allow_list as _allow
from meshmsg._access.allow_list import Grant, Names, covered, covers, parse_allow
from meshmsg._access.key_files import allow, describe, format_allow, new_folder, revoke
from meshmsg._access.keyring import EVERYONE, Keyring
from meshmsg._model.config import config_from_tables
from meshmsg._model.topics import Pattern
from meshmsg.transports.zmq.curve import pair_of

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


class TestKeyFiles:
    def test_a_new_folder_is_for_its_owner_only(self, tmp_path: Path) -> None:
        old = os.umask(0)
        try:
            grant = new_folder(tmp_path / "k", "desk", None)
        finally:
            os.umask(old)
        folder = tmp_path / "k"
        assert mode_of(folder) == 0o700
        assert {p.name: mode_of(p) for p in folder.iterdir()} == {
            "mesh.key": 0o600,
            "peer.key": 0o600,
            "allow.toml": 0o644,
        }
        found = describe(folder)
        assert found["key"] == grant.key.hex()
        for name in ("mesh.key", "peer.key"):
            assert (folder / name).read_text().strip() not in str(found)

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        new_folder(tmp_path, "desk", None)
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(ConfigError, match="is there already, and is not overwritten"):
            new_folder(tmp_path, "desk", None)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_a_folder_that_others_may_write_is_refused(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o777)
        with pytest.raises(ConfigError, match="chmod 700"):
            new_folder(tmp_path, "desk", None)

    def test_allow_and_revoke(self, tmp_path: Path) -> None:
        new_folder(tmp_path, "desk", None)
        key = secrets.token_bytes(32)
        assert allow(tmp_path, Grant('we"ird', key, ("a.*", "b"), (), False))
        assert not allow(tmp_path, Grant('we"ird', key, ("a.*",), ("**",), True))
        keyring = Keyring(Security(key_dir=str(tmp_path)))
        assert keyring.grants[key] == Grant('we"ird', key, ("a.*",))
        assert keyring.look() == set()
        assert [grant.key for grant in revoke(tmp_path, 'we"ird')] == [key]
        assert revoke(tmp_path, "nobody") == []
        assert keyring.look() == set()  # it may be half written
        assert keyring.look() == {key}
        assert keyring.user(b"control", key) is None

    def test_a_new_name_is_taken_from_keys_that_could_use_it_by_a_star(
        self, tmp_path: Path
    ) -> None:
        new_folder(tmp_path, "desk", None)
        anybody, shop = secrets.token_bytes(32), secrets.token_bytes(32)
        allow(tmp_path, Grant("*", anybody))
        keyring = Keyring(Security(key_dir=str(tmp_path)))
        assert keyring.may_be_named(anybody.hex().encode(), "shop")
        allow(tmp_path, Grant("shop", shop))
        assert [keyring.look(), keyring.look()] == [set(), {anybody}]
        assert not keyring.may_be_named(anybody.hex().encode(), "shop")
        assert keyring.may_be_named(shop.hex().encode(), "shop")

    @pytest.mark.parametrize("text", ["", "\n", "[[peer", "x=" + "[" * 100_000, "\0", None])
    def test_a_list_that_is_broken_lets_nobody_in_and_cuts_nobody_off(
        self, tmp_path: Path, text: str | None
    ) -> None:
        new_folder(tmp_path, "desk", None)
        keyring = Keyring(Security(key_dir=str(tmp_path)))
        before = dict(keyring.grants)
        path = tmp_path / "allow.toml"
        if text is None:
            path.unlink()
            os.mkfifo(path, 0o600)  # nobody ever writes to it
        else:
            path.write_text(text)
        assert [keyring.look() for _ in range(3)] == [set()] * 3
        assert keyring.grants == before

    @pytest.mark.parametrize("us", [0, 1000])
    def test_files_of_another_user_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, us: int
    ) -> None:
        """Root is no exception: what another user can change is not the administrator's word."""
        new_folder(tmp_path, "desk", None)
        monkeypatch.setattr(os, "geteuid", lambda: us)
        monkeypatch.setattr(os, "fstat", fstat := Owned(os.fstat, us))
        keyring = Keyring(Security(key_dir=str(tmp_path)))
        fstat.user = 12345
        with pytest.raises(ConfigError, match="belongs to user 12345"):
            Security(key_dir=str(tmp_path))
        with pytest.raises(ConfigError, match="belongs to user 12345"):
            keyring._read()
        fstat.user = 0  # the administrator's, as a cluster mounts them
        assert Security(key_dir=str(tmp_path)).keys


class TestAllowList:
    def test_round_trip(self) -> None:
        keys = [secrets.token_bytes(32) for _ in range(3)]
        grants = [
            Grant("a", keys[0]),
            Grant("b-*", keys[1], ("x.**",), (), False),
            Grant("tür\U0001f40d'\"\\", keys[2], ("\U0001d11e.**", 'q"x'), ("é",)),
        ]
        assert parse_allow(format_allow(grants), "f") == {g.key: g for g in grants}

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("[[peer]]\nname = 'a'", r"peer\[0\]\.key: is not a public key"),
            ("[[peer]]\nname = 'a'\nkey = '00'", r"peer\[0\]\.key: is not a public key"),
            (f"[[peer]]\nkey = '{'ab' * 32}'", r"peer\[0\]\.name"),
            (f"[[peer]]\nname = 'a b'\nkey = '{'ab' * 32}'", r"peer\[0\]\.name"),
            (f"[[peer]]\nname = 'a'\nkey = '{'ab' * 32}'\npublish = 'x'", "not a list of patterns"),
            (f"[[peer]]\nname = 'a'\nkey = '{'ab' * 32}'\nsubscribe = ['a..b']", "subscribe"),
            (f"[[peer]]\nname = 'a'\nkey = '{'ab' * 32}'\nstats = 1", "neither true nor false"),
            (f"[[peer]]\nname = 'a'\nkey = '{'ab' * 32}'\nadmin = 1", "is not a key here"),
            (f"[[peer]]\nname = 'a'\nkey = '{'ab' * 32}'\n" * 2, "stands twice"),
            ("peer = 7", r"write \[\[peer\]\]"),
            ("[other]", r"write \[\[peer\]\]"),
            ("[[peer", "is not TOML"),
        ],
    )
    def test_what_is_wrong_is_named(self, text: str, problem: str) -> None:
        with pytest.raises(ConfigError, match=problem):
            parse_allow(text, "allow.toml")

    def test_names(self) -> None:
        one, two = b"1", b"2"
        assert Names([Grant("desk", one)]).keys_of("desk") == {one}
        assert Names([Grant("desk", one)]).keys_of("desk-1") == set()
        assert Names([Grant("desk-*", one)]).keys_of("desk-1") == {one}
        assert Names([Grant("desk-*", one)]).keys_of("desk") == set()
        assert Names([Grant("*", one)]).keys_of("anything") == {one}
        assert Names([Grant("desk-*", one), Grant("desk-*", two)]).keys_of("desk-1") == {one, two}

    def test_a_name_belongs_to_the_entry_that_gives_it_most_exactly(self) -> None:
        any_key, desks, desk = b"1", b"2", b"3"
        names = Names([Grant("*", any_key), Grant("desk-*", desks), Grant("desk-1", desk)])
        assert names.keys_of("desk-1") == {desk}
        assert names.keys_of("desk-2") == {desks}
        assert names.keys_of("shop") == {any_key}

    def test_covering_is_what_trying_all_topics_says(self) -> None:
        """Against brute force: every topic of up to four levels of three names."""
        topics = [".".join(t) for n in range(1, 5) for t in itertools.product("abc", repeat=n)]
        levels = ("a", "*", "**")
        patterns = [".".join(t) for n in range(1, 4) for t in itertools.product(levels, repeat=n)]
        selects = {p: frozenset(filter(Pattern(p).matches, topics)) for p in patterns}
        for wanted in patterns:
            for granted in itertools.combinations(patterns[::2], 2):
                brute = selects[wanted] <= selects[granted[0]] | selects[granted[1]]
                assert covers(granted, wanted) == brute, (granted, wanted)
        assert not covers((), "a")
        assert covers(("**",), "a.*.**")

    def test_patterns_made_to_be_hard_are_answered(self) -> None:
        hard = ".".join(["**", "a"] * 20)
        assert covers((hard,), hard)
        covers((".".join(["**", "b"] * 20), ".".join(["*", "**"] * 20)), hard)

    def test_a_search_has_so_many_steps_and_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One such pattern took half a second; a welcome has thousands."""
        steps = Counter[str]()
        step = _allow._step

        def counted(levels: list[str], places: frozenset[int], symbol: str) -> frozenset[int]:
            steps[".".join(levels)] += len(places)
            return step(levels, places, symbol)

        monkeypatch.setattr(_allow, "_step", counted)
        hard = ".".join(["quotes", *(f"**.n{n}" for n in range(30)), "**.a", *"*" * 10])
        assert not covers(("quotes.a.**", "*.n3.**"), hard)
        assert 0 < steps.total() <= _allow.STEPS_MAX
        steps.clear()
        assert covers(("quotes.**",), hard)  # what begins like it needs none
        assert not steps

    def test_only_some_patterns_of_a_message_are_searched(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_allow, "SEARCHES_MAX", 3)
        plain = {f"orders.{n}" for n in range(100)}
        hard = {f"*.eu.{n}" for n in range(100)}
        found = covered(("orders.**", "*.eu.*"), plain | hard)
        assert plain <= found
        assert len(found & hard) == 3

    def test_answers_that_are_remembered_are_few(self) -> None:
        for n in range(2 * _allow.COVERS_MAX):
            covers(("a.*",), f"b{n}.*")
        assert covers.cache_info().currsize <= _allow.COVERS_MAX


class TestKeyring:
    def test_one_mesh_key_is_one_user(self) -> None:
        one, other = Keyring(Security(mesh_key=KEY)), Keyring(Security(mesh_key=KEY[::-1]))
        assert one.user(b"control", one.curve.own.public) == EVERYONE
        assert one.user(b"control", other.curve.own.public) is None
        assert one.user(b"control", one.curve.door.public) is None
        assert one.grant(EVERYONE) is not None

    def test_proofs(self, tmp_path: Path) -> None:
        rings = []
        for name in ("a", "b", "c"):
            new_folder(tmp_path / name, name, KEY)
            rings.append(Keyring(Security(key_dir=str(tmp_path / name))))
        a, b, c = rings
        user = a.curve.own.public.hex().encode()
        proof = b.prove(user, b"n" * 16, b"welcome")
        assert a.is_proved(b.curve.own.public, b"n" * 16, b"welcome", proof)
        assert not a.is_proved(b.curve.own.public, b"m" * 16, b"welcome", proof)
        assert not a.is_proved(b.curve.own.public, b"n" * 16, b"other", proof)
        assert not a.is_proved(c.curve.own.public, b"n" * 16, b"welcome", proof)
        assert not c.is_proved(b.curve.own.public, b"n" * 16, b"welcome", proof)
        assert not a.is_proved(b"", b"n" * 16, b"welcome", proof)
        assert not a.is_proved(b"\0" * 32, b"n" * 16, b"welcome", proof)

    def test_public_keys_are_those_of_x25519(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        secret = secrets.token_bytes(32)
        theirs = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        assert pair_of(secret).public == theirs


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_full_disk_leaves_nothing_of_a_key_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    written = itertools.count()

    def fail(_: int) -> None:
        if next(written) == room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match="No space left"):
        new_folder(tmp_path / "keys", "desk", None)
    assert list((tmp_path / "keys").iterdir()) == []
