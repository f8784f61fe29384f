"""The keys of a peer: whom it lets in, when its list is read again, and proofs of who it is."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from meshmsg import ConfigError, Security
from meshmsg._access.allow_list import Grant
from meshmsg._access.key_files import allow, new_folder
from meshmsg._access.keyring import EVERYONE, NUMBER_BITS, Keyring, read_allow, read_pair
from meshmsg.transports.zmq.curve import CONTROL, DATA, WORK, pair_of

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


def id_of(key: bytes) -> bytes:
    """By what a key is called inside."""
    return key.hex().encode()


def test_one_mesh_key_is_one_user() -> None:
    one, other = Keyring(Security(mesh_key=KEY)), Keyring(Security(mesh_key=KEY[::-1]))
    assert one.user(b"control", one.curve.own.public) == EVERYONE
    assert one.user(b"control", other.curve.own.public) is None
    assert one.user(b"control", one.curve.door.public) is None
    assert one.grant(EVERYONE) is not None


def test_proofs(tmp_path: Path) -> None:
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


def test_public_keys_are_those_of_x25519() -> None:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    secret = secrets.token_bytes(32)
    theirs = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    assert pair_of(secret).public == theirs


def test_a_new_name_is_taken_from_keys_that_could_use_it_by_a_star(tmp_path: Path) -> None:
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
    tmp_path: Path, text: str | None
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, us: int
) -> None:
    """Root is no exception: what another user can change is not the administrator's word."""
    new_folder(tmp_path, "desk", None)
    monkeypatch.setattr(os, "geteuid", lambda: us)
    monkeypatch.setattr(os, "fstat", fstat := Owned(os.fstat, us))
    keyring = Keyring(Security(key_dir=str(tmp_path)))
    fstat.user = 12345
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        Security(key_dir=str(tmp_path))
    (tmp_path / "allow.toml").write_text("# nobody\n")
    assert [keyring.look() for _ in range(3)] == [set()] * 3
    assert keyring.grants
    fstat.user = 0  # the administrator's, as a cluster mounts them
    assert Security(key_dir=str(tmp_path)).keys


def test_a_key_that_is_not_on_the_list_does_not_come_in(tmp_path: Path) -> None:
    desk = new_folder(tmp_path, "desk", KEY)
    keyring = Keyring(Security(key_dir=str(tmp_path)))
    assert keyring.user(CONTROL, desk.key) == id_of(desk.key)
    assert keyring.user(DATA, desk.key) == id_of(desk.key)
    for key in (secrets.token_bytes(32), b"", Keyring(Security(mesh_key=KEY)).curve.own.public):
        assert keyring.user(DATA, key) is None


def test_work_is_fetched_by_the_key_that_it_is_for_and_no_other(tmp_path: Path) -> None:
    desk, other = new_folder(tmp_path, "desk", None), secrets.token_bytes(32)
    allow(tmp_path, Grant("other", other))
    keyring = Keyring(Security(key_dir=str(tmp_path)))
    assert keyring.user(WORK + id_of(desk.key), desk.key) == id_of(desk.key)
    assert keyring.user(WORK + id_of(desk.key), other) is None


@pytest.mark.parametrize("user", [b"", b"mesh", b"zz" * 32, b"\xff" * 64, b"ab" * 31])
def test_an_id_that_is_no_key_of_the_list_has_no_rights(tmp_path: Path, user: bytes) -> None:
    new_folder(tmp_path, "desk", None)
    keyring = Keyring(Security(key_dir=str(tmp_path)))
    assert keyring.grant(user) is None
    assert not keyring.may_be_named(user, "desk")


def test_the_number_of_a_peer_is_one_of_its_key(tmp_path: Path) -> None:
    desk, other = new_folder(tmp_path, "desk", None), secrets.token_bytes(32)
    keyring = Keyring(Security(key_dir=str(tmp_path)))
    numbers = {keyring.draw_number() for _ in range(50)}
    assert len(numbers) > 1
    assert all(0 <= number < 1 << 63 for number in numbers)
    assert all(keyring.has_number(id_of(desk.key), number) for number in numbers)
    assert not any(keyring.has_number(id_of(other), number) for number in numbers)
    assert not keyring.has_number(id_of(desk.key), min(numbers) + (1 << NUMBER_BITS))
    assert keyring.own_name() == "desk"


def test_with_a_mesh_key_alone_every_number_and_name_is_everyones() -> None:
    keyring = Keyring(Security(mesh_key=KEY))
    assert keyring.has_number(EVERYONE, keyring.draw_number())
    assert keyring.may_be_named(EVERYONE, "anybody")
    assert keyring.own_name() == ""
    assert keyring.look() == set()


def test_a_former_mesh_key_still_opens_and_is_not_put_on() -> None:
    """So that the keys of a mesh are changed peer by peer."""
    old, new = Keyring(Security(mesh_key=KEY)), Keyring(Security(mesh_key=KEY[::-1]))
    both = Keyring(Security(mesh_key=KEY[::-1], other_keys=(KEY,)))
    assert both.user(CONTROL, old.curve.own.public) == EVERYONE
    assert both.user(CONTROL, new.curve.own.public) == EVERYONE
    assert both.curve.own == new.curve.own
    assert both.curve.doors == (new.curve.door.public, old.curve.door.public)


def test_a_change_counts_once_the_file_stays_as_it_is(tmp_path: Path) -> None:
    new_folder(tmp_path, "desk", None)
    keyring = Keyring(Security(key_dir=str(tmp_path)))
    keys = [secrets.token_bytes(32) for _ in range(2)]
    allow(tmp_path, Grant("one", keys[0]))
    assert keyring.look() == set()
    allow(tmp_path, Grant("two", keys[1]))  # it is being written still
    assert keyring.look() == set()
    assert not keyring.grants.keys() & set(keys)
    keyring.look()
    assert set(keys) <= keyring.grants.keys()


def test_only_keys_that_may_do_less_are_cut_off(tmp_path: Path) -> None:
    new_folder(tmp_path, "desk", None)
    keys = {name: secrets.token_bytes(32) for name in ("same", "less", "renamed")}
    for name, key in keys.items():
        allow(tmp_path, Grant(name, key))
    keyring = Keyring(Security(key_dir=str(tmp_path)))
    allow(tmp_path, Grant("less", keys["less"], ("a.**",)))
    allow(tmp_path, Grant("other", keys["renamed"]))
    assert [keyring.look(), keyring.look()] == [set(), {keys["less"], keys["renamed"]}]


def test_files_that_are_no_keys_or_lists_are_named(tmp_path: Path) -> None:
    path = tmp_path / "peer.key"
    for text in ("", "ab" * 31, "zz" * 32, "ab" * 33):
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=r"peer\.key"):
            read_pair(path)
    path.write_text("\n" + "ab" * 32 + "\n")
    assert read_pair(path) == pair_of(b"\xab" * 32)
    (tmp_path / "allow.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_allow(tmp_path / "allow.toml")
