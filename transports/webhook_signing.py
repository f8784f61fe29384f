"""Signatures of webhooks, by the `standardwebhooks` library."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook


def sign(secrets: Sequence[str], ident: str, now: float, body: bytes) -> dict[str, str]:
    """The three headers of the Standard Webhooks specification, a signature for each secret."""
    moment = datetime.fromtimestamp(int(now), UTC)
    text = body.decode()
    signatures = " ".join(Webhook(secret).sign(ident, moment, text) for secret in secrets)
    return {
        "webhook-id": ident,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": signatures,
    }
