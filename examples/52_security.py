"""Keys: who has none stays out, and who has one does what the allow-list says."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from meshmsg import Peer, PeerRefused, Security, Stream


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys = make_keys(Path(folder))
        streams = [Stream("quotes.**"), Stream("orders.**")]
        with Peer(
            "pricing", streams=streams, security=Security(key_dir=keys / "pricing")
        ) as pricing:
            # The desk may have quotes, and nothing else.
            with (
                Peer(
                    "desk", connect=pricing.address, security=Security(key_dir=keys / "desk")
                ) as desk,
                desk.subscribe("**") as events,
            ):
                pricing.wait_for_subscribers("quotes.AAPL", timeout=20)
                pricing.publish("orders.eu", "of no concern to the desk")
                pricing.publish("quotes.AAPL", 187.2)
                print("the desk has", events.get(timeout=20).data)
                print("streams it sees:", desk.stats()["links"][0]["streams"])

                # Taken off the list, it is cut off while it is running.
                meshmsg("keys", "revoke", keys / "pricing", "desk")
                while pricing.stats()["clients"]:
                    time.sleep(0.05)
                print("the desk is cut off")

            # Without a key nobody gets in.
            with Peer("stranger", connect=pricing.address, discovery="none") as stranger:
                try:
                    stranger.wait_for_peers(1, timeout=20)
                except PeerRefused as error:
                    print("refused:", error.reason)


def make_keys(folder: Path) -> Path:
    """A folder for each peer: the same mesh key, a key of its own, and who else is there."""
    meshmsg("keys", "new", folder / "pricing", "--name", "pricing")
    mesh_key = folder / "pricing" / "mesh.key"
    meshmsg("keys", "new", folder / "desk", "--name", "desk", "--mesh-key-file", mesh_key)
    desk = meshmsg("keys", "show", folder / "desk", "--key")
    pricing = meshmsg("keys", "show", folder / "pricing", "--key")
    rights = ["--publish", "none", "--subscribe", "quotes.**", "--no-stats"]
    meshmsg("keys", "allow", folder / "pricing", desk, "--name", "desk", *rights)
    meshmsg("keys", "allow", folder / "desk", pricing, "--name", "pricing")
    return folder


def meshmsg(*arguments: object) -> str:
    """Run the command, as one would in a shell."""
    command = [sys.executable, "-m", "meshmsg", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
