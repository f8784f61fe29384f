"""What the bridges to other systems have in common: opened once, a thread, an end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from meshmsg._model.errors import ClosedError


class Closing:
    """A context manager that ends with `close()`."""

    def close(self) -> None:
        """Safe to call again."""
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Edge(Closing):
    """Has a thread, which is begun once and told to stop."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether it works."""
        return self._thread is not None and self._thread.is_alive()

    def _check_unopened(self) -> None:
        if self._thread is not None:
            raise ClosedError(f"a {type(self).__name__} is opened once: make a new one")

    def _begin(self, run: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=run, name=f"meshmsg-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop.  Safe to call again."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
