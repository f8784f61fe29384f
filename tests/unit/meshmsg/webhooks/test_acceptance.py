"""Which posts are taken: pure decisions, with signatures of the reference library."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmsg._model.topics import check_topic
from meshmsg.webhooks.acceptance import Claim, Memory, Refusal, examine, topic_for
from meshmsg.webhooks.signing import sign, verify

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" * 2


def now() -> float:
    return datetime.now(UTC).timestamp()


def take(headers: dict[str, str], body: bytes = b"{}", scheme: str = "standard") -> Claim:
    secrets = () if scheme == "none" else (SECRET,)
    return examine(scheme, secrets, headers, body, now=now(), tolerance_s=60.0, verify=verify)


def test_what_one_edge_signs_the_other_takes() -> None:
    claim = take(sign([SECRET], "msg_1", now(), b"{}"))
    assert (claim.id, claim.message) == ("msg_1", "msg_1")


def test_several_signatures_are_looked_at() -> None:
    other = "whsec_" + "B" * 44
    assert take(sign([other, SECRET], "msg_1", now(), b"{}")).id == "msg_1"


@given(
    st.dictionaries(
        st.sampled_from(
            ["webhook-id", "webhook-timestamp", "webhook-signature", "x-hub-signature-256"]
        ),
        st.one_of(
            st.text(max_size=20), st.sampled_from(["v1,AAAA", "v1,", ",", "v1", "1700000000"])
        ),
    ),
    st.binary(max_size=20),
    st.sampled_from(["standard", "github"]),
)
def test_anything_else_is_refused(headers: dict[str, str], body: bytes, scheme: str) -> None:
    with pytest.raises(Refusal) as caught:
        take(headers, body, scheme)
    assert caught.value.status in (400, 401)


def test_unsigned_posts_are_known_by_their_id_if_they_have_one() -> None:
    assert take({}, scheme="none") == Claim("", "", None, "")
    assert take({"webhook-id": "a"}, scheme="none").id == "a"


@given(st.text(max_size=200))
def test_topic_of_any_type_is_a_topic(kind: str) -> None:
    check_topic(topic_for("hooks.{type}", kind))


def test_memory_forgets_the_oldest() -> None:
    memory = Memory(2)
    for ident in "abc":
        memory.add(ident)
    assert ["a" in memory, "b" in memory, "c" in memory] == [False, True, True]
    assert len(memory) == 2
