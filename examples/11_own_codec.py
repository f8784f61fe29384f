"""A codec of one's own: an object with a name, `encode` and `decode`."""

import json
import zlib

from meshmsg import PayloadError, Peer, Stream


def main() -> None:
    documents = Stream("documents.**", codec=ZippedJson())
    with (
        Peer("archive", streams=[documents]) as archive,
        Peer("reader", connect=archive.address) as reader,
        reader.subscribe("documents.*", codec=ZippedJson()) as events,
        reader.subscribe("documents.*") as stranger,  # does not bring the codec
    ):
        archive.wait_for_subscribers("documents.one", count=2, timeout=5)
        archive.publish("documents.one", {"text": "all work and no play " * 100})

        event = events.get(timeout=5)
        print(len(event.data["text"]), "characters in", len(event.payload), "bytes")
        try:
            print(stranger.get(timeout=5).data)
        except PayloadError as error:
            print("without the codec:", error)


class ZippedJson:
    """JSON, compressed.  The name is announced with the stream, so that nobody has to guess."""

    name = "json+zlib"

    def encode(self, data, /) -> bytes:
        return zlib.compress(json.dumps(data).encode())

    def decode(self, payload: bytes, /):
        return json.loads(zlib.decompress(payload))


if __name__ == "__main__":
    main()
