"""Signatures of webhooks, by the `standardwebhooks` library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook, WebhookVerificationError


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


def verify(body: bytes, headers: Mapping[str, str], secret: str) -> None:
    """Check signature and time (five minutes) of a post; raises `ValueError` that says what."""
    try:
        Webhook(secret).verify(body, dict(headers), json_parse=False)
    except WebhookVerificationError as error:
        raise ValueError(str(error)) from None
    except (TypeError, ValueError):  # such as a signature that is not base64
        raise ValueError("the signature cannot be read") from None
