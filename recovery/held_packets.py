"""What a packet receiver holds behind a gap: runs of packets, as they came in one datagram.

Who asks whether a packet is held knows it from elsewhere: what lies between the
next packet and the highest, and is neither missing nor lost, is held.
"""

from __future__ import annotations

from meshmsg.recovery.packet_runs import Run


class HeldPackets:
    """Runs by the number of their first packet."""

    __slots__ = ("_runs", "bytes")

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, number: int) -> bool:
        """Whether a run begins with this packet."""
        return number in self._runs

    def add(self, number: int, run: Run) -> None:
        """Hold a run; none of its packets may be held already."""
        self._runs[number] = run
        self.bytes += run.count * run.packet_bytes

    def take(self, number: int) -> Run | None:
        """The run that begins with this packet, which is not held any more."""
        run = self._runs.pop(number, None)
        if run is not None:
            self.bytes -= run.count * run.packet_bytes
        return run

    def split(self, number: int, run: Run) -> None:
        """Hold a run that was taken as packets of their own."""
        for place in range(run.count):
            packet = run.packet(place)
            self.add(number + place, Run(1, packet, 0, len(packet)))

    def drop_from(self, number: int) -> None:
        """Forget this packet and all behind it."""
        for first in [n for n, run in self._runs.items() if n + run.count > number]:
            run = self.take(first)
            assert run is not None
            if first < number:
                self.add(first, run._replace(count=number - first))

    def clear(self) -> None:
        """Forget everything."""
        self._runs.clear()
        self.bytes = 0
