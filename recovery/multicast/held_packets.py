"""What a packet receiver holds behind a gap: runs of packets, as they came in one datagram.

Who asks whether a packet is held knows it from elsewhere: what lies between the next packet and the
highest, and is neither missing nor lost, is held.
"""

from __future__ import annotations

from meshmsg.recovery.multicast.packet_runs import Run, run_packet, run_size


class HeldPackets:
    """Runs by the number of their first packet."""

    __slots__ = ("bytes", "runs")

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.runs)

    def add(self, number: int, run: Run) -> None:
        """Hold a run; none of its packets may be held already."""
        self.runs[number] = run
        self.bytes += run_size(run)

    def take(self, number: int) -> Run | None:
        """The run that begins with this packet, which is not held any more."""
        run = self.runs.pop(number, None)
        if run is not None:
            self.bytes -= run_size(run)
        return run

    def split(self, number: int, run: Run) -> None:
        """Hold a run that was taken as packets of their own, of which nothing is known."""
        for place in range(run[0]):
            packet = run_packet(run, place)
            self.add(number + place, (1, packet, 0, len(packet), -1, ()))

    def drop_from(self, number: int) -> None:
        """Forget this packet and all behind it."""
        for first in [n for n, run in self.runs.items() if n + run[0] > number]:
            run = self.take(first)
            assert run is not None
            if first < number:
                self.add(first, (number - first, *run[1:]))

    def clear(self) -> None:
        """Forget everything."""
        self.runs.clear()
        self.bytes = 0
