"""Posted webhooks become events: signature checked, each taken once, answered when it is safe."""

import json
import tempfile
import urllib.error
import urllib.request
from datetime import UTC, datetime

from standardwebhooks import Webhook  # what the sender uses

from meshmsg import Peer, Stream
from meshmsg.webhooks import WebhookServer

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="


def main() -> None:
    hooks = Stream("hooks.**", durability="log")
    with (
        tempfile.TemporaryDirectory() as folder,
        Peer("edge", streams=[hooks], data_dir=folder) as edge,
        Peer("billing", connect=edge.address) as billing,
        billing.subscribe("hooks.**", start="earliest") as events,
        WebhookServer(edge, "127.0.0.1:0", topic="hooks.{type}", secrets=SECRET) as server,
    ):
        paid = {"type": "invoice.paid", "data": {"invoice": 7}}
        print("posted:", post(server.url, "msg_1", paid))
        print("posted again:", post(server.url, "msg_1", paid))  # the answer was lost, say
        print("forged:", post(server.url, "msg_2", paid, secret="whsec_" + "A" * 32))
        print("from yesterday:", post(server.url, "msg_3", paid, age_s=86_400))

        event = events.get(timeout=5)
        print(event.topic, event.data["data"], "as", event.headers["webhook.id"])
        print("more:", events.get(timeout=0.2))
        print({name: count for name, count in server.stats().items() if count})


def post(url: str, ident: str, event: dict, secret: str = SECRET, age_s: float = 0) -> int:
    """What any service does that sends Standard Webhooks."""
    body = json.dumps(event)
    moment = datetime.fromtimestamp(datetime.now(UTC).timestamp() - age_s, UTC)
    headers = {
        "content-type": "application/json",
        "webhook-id": ident,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": Webhook(secret).sign(ident, moment, body),
    }
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


if __name__ == "__main__":
    main()
