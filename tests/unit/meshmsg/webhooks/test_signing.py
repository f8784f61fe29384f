"""Signatures of webhooks, checked by the reference library and by ourselves."""

from __future__ import annotations

import base64
import time

import pytest
from standardwebhooks import Webhook

from meshmsg.webhooks.signing import sign, verify

OLD, NEW = ("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
BODY = b'{"n": 1}'


def signed(*secrets: str, now: float | None = None) -> dict[str, str]:
    return sign(secrets, "msg_1", time.time() if now is None else now, BODY)


def test_post_is_good_for_the_reference_library() -> None:
    headers = signed(NEW)
    assert headers["webhook-id"] == "msg_1"
    assert Webhook(NEW).verify(BODY, headers) == {"n": 1}
    verify(BODY, headers, NEW)


def test_post_is_good_for_each_secret_while_one_is_replaced() -> None:
    headers = signed(OLD, NEW)
    for secret in (OLD, NEW):
        verify(BODY, headers, secret)
    with pytest.raises(ValueError, match="signature"):
        verify(BODY, signed(OLD), NEW)


@pytest.mark.parametrize("late", [-301, 301])
def test_post_of_another_time_is_none(late: float) -> None:
    with pytest.raises(ValueError, match="timestamp"):
        verify(BODY, signed(NEW, now=time.time() + late), NEW)


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": "x"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,not base64!"},
        {"webhook-signature": "v1"},
    ],
)
def test_post_that_was_changed_is_none(change: dict[str, str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - in the words of the library
        verify(BODY, signed(NEW) | change, NEW)
    with pytest.raises(ValueError):  # noqa: PT011
        verify(BODY + b" ", signed(NEW), NEW)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_post_without_a_header_is_none(name: str) -> None:
    headers = signed(NEW)
    del headers[name]
    with pytest.raises(ValueError, match="eader"):
        verify(BODY, headers, NEW)
