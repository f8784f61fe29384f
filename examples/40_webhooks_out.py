"""Events posted to a registered callback: signed, tried again, and never held up by a dead one."""

import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook  # what a receiver uses, in any of a dozen languages

from meshmsg import Peer, Stream
from meshmsg.webhooks import Webhooks


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Callback)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    orders = Stream("orders.**", durability="log")
    with (
        tempfile.TemporaryDirectory() as folder,
        Peer("shop", streams=[orders], data_dir=f"{folder}/shop") as shop,
        Peer("hooks", connect=shop.address, data_dir=f"{folder}/hooks") as peer,
        Webhooks(peer) as hooks,
        Peer("office", connect=peer.address) as office,
        office.subscribe("dead.webhook.**", start="earliest") as dead,
    ):
        # 127.0.0.1 is not public, so it has to be allowed by name.
        options = {"allow": "127.0.0.1", "schedule": ["0s", "50ms", "50ms"]}
        hook = hooks.add(f"{url}/fine", "orders.**", name="billing", order="all", **options)
        hooks.add(f"{url}/gone", "orders.**", name="former", **options)
        Callback.secret = hook.secrets[0].text

        for n in range(5):
            shop.publish("orders.eu", {"id": n})
        for _ in range(5):
            letter = dead.get(timeout=10)
        print("dead letters:", letter.topic, "since", letter.headers["dead.error"])
        Callback.enough.wait(10)
        hooks.flush(timeout=10)

        for row in hooks.ledger().rows:
            figures = f"{row.published} taken = {row.delivered} delivered + {row.dead} dead"
            print(f"{row.subscription}: {figures}, reconciles: {row.reconciles}")
    server.shutdown()
    server.server_close()


class Callback(BaseHTTPRequestHandler):
    """Somebody else's service: one path fails now and then, the other is gone for good."""

    secret, seen, failed, enough = "", set(), set(), threading.Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        ident = self.headers["webhook-id"]
        if self.path == "/gone":
            self.send_response(410)
        elif len(self.seen) % 2 and ident not in self.failed:
            self.failed.add(ident)
            self.send_response(500)
        else:
            event = Webhook(self.secret).verify(body, dict(self.headers))
            tries = 2 if ident in self.failed else 1
            print("verified:", event["type"], event["data"], "attempt", tries)
            self.seen.add(ident)
            self.send_response(204)
        self.end_headers()
        if len(self.seen) == 5:
            self.enough.set()

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    main()
