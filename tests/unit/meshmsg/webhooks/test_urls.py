"""Which URLs and addresses webhooks may be posted to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmsg import ConfigError
from meshmsg.webhooks.urls import Allowed, check_url

NOBODY = Allowed.parse([])


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "240.0.0.1", "::1", "::", "fe80::1",
        "fe80::1%eth0", "fec0::1", "fc00::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::1", "junk", "",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not NOBODY.has_address(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_are_taken(address: str) -> None:
    assert NOBODY.has_address(address) or address.startswith("::ffff")


def test_networks_and_hosts_are_allowed_by_name() -> None:
    allowed = Allowed.parse(["10.0.0.0/8", "127.0.0.1", "Hooks.Internal.", "[::1]"])
    assert allowed.has_address("10.200.0.1")
    assert allowed.has_address("127.0.0.1")
    assert allowed.has_address("::1")
    assert not allowed.has_address("127.0.0.2")
    assert allowed.has_host("hooks.internal")
    assert not allowed.has_host("hooks.internal.evil.com")


@pytest.mark.parametrize("word", ["", "10.0.0.0/99", "*.internal", "http://x", "a/b"])
def test_words_that_allow_nothing_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="allow"):
        Allowed.parse([word])


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/x", "https://[::1]/x", "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:127.0.0.1]/", "http://example.com/", "ftp://example.com/", "example.com",
        "https://", "https:///x", "https://user:secret@example.com/", "https://example.com:99999/",
        "https://2130706433/", "https://0x7f.1/", "https://0177.0.0.1/", "https://127.1/",
        "https://0/", "https://localhost/", "https://a.LocalHost./", "https://192.168.257/",
        "", 7, None, "https://example.com/" + "x" * 3000, "https://[::1/", "javascript:alert(1)",
        "https://[::1]@/", "https://[::1]@:80/",
    ],
)  # fmt: skip
def test_urls_that_may_not_be_posted_to(url: object) -> None:
    with pytest.raises(ConfigError, match="url"):
        check_url(url, NOBODY)


def test_urls_that_may() -> None:
    assert check_url("https://example.com/hook?a=1", NOBODY).host == "example.com"
    assert check_url("https://8.8.8.8:8443/", NOBODY).port == 8443
    assert check_url("https://0x8.8.8.8/", NOBODY).host == "0x8.8.8.8"
    assert check_url("https://0xfood.example/", NOBODY).host == "0xfood.example"
    assert check_url("https://localhost/x", Allowed.parse(["127.0.0.0/8"])).host == "localhost"
    assert check_url("http://localhost:1/x", Allowed.parse(["localhost"])).port == 1
    assert check_url("http://127.0.0.1:1/x", Allowed.parse(["127.0.0.0/8"])).port == 1


@given(st.text(max_size=80))
def test_any_text_is_a_url_or_an_error(text: str) -> None:
    for url in (text, "https://" + text, "http://" + text):
        try:
            check_url(url, NOBODY)
        except ConfigError:
            pass
