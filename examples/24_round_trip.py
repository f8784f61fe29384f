"""How long an event takes there and back, and how long the slow ones take."""

import threading
import time

from meshmsg import Peer, Stream

TRIPS = 2000


def main() -> None:
    with (
        Peer("asker", streams=Stream("question")) as asker,
        Peer("answerer", streams=Stream("answer"), connect=asker.address) as answerer,
        asker.subscribe("answer") as answers,
        answerer.subscribe("question") as questions,
    ):
        asker.wait_for_subscribers("question", timeout=5)
        answerer.wait_for_subscribers("answer", timeout=5)
        threading.Thread(target=answer, args=(answerer, questions), daemon=True).start()
        trips_us = sorted(trip_us(asker, answers) for _ in range(TRIPS))
    for percent in (50, 99, 99.9):
        print(f"p{percent:g}: {trips_us[int(TRIPS * percent / 100)]:.0f} us")


def trip_us(asker: Peer, answers) -> float:
    began = time.perf_counter()
    asker.publish("question", b"how long?")  # leaves at once: the stream is idle
    answers.get(timeout=5)  # reads the socket in this thread
    return (time.perf_counter() - began) * 1e6


def answer(answerer: Peer, questions) -> None:
    for question in questions:
        answerer.publish("answer", question.data)


if __name__ == "__main__":
    main()
