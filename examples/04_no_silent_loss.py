"""A fifth of all frames is lost on the way; every event arrives, once and in order."""

from meshmsg import Peer
from meshmsg.testing import lose_frames

FRAMES, EVENTS_PER_FRAME = 500, 20


def main() -> None:
    with (
        Peer("sensors") as sensors,
        Peer("monitor", connect=sensors.address) as monitor,
        monitor.subscribe("temperature.*") as events,
    ):
        sensors.wait_for_subscribers("temperature.oven", timeout=5)
        with lose_frames(sensors, ratio=0.2, seed=7) as lossy:
            for n in range(FRAMES):
                first = n * EVENTS_PER_FRAME
                sensors.publish_many("temperature.oven", range(first, first + EVENTS_PER_FRAME))
            # The last frames may be among the lost; a heartbeat tells the subscriber.
            values = [events.get(timeout=5).data for _ in range(FRAMES * EVENTS_PER_FRAME)]

        assert values == list(range(FRAMES * EVENTS_PER_FRAME))
        source = events.stats()["sources"][0]
        print(f"{lossy.dropped} of {FRAMES} frames were lost on the way")
        print(f"{source['repaired']} events were asked for and sent again")
        print(f"{len(values)} events received in order, {events.lost} lost")


if __name__ == "__main__":
    main()
