"""How an act of `meshmsg demo` is looked at: a picture that moves, lines for a log, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LINE_S = 1.0

Show = Callable[[Any], None]


class Views:
    """The views of one act, from its picture and its line; `begun` says if a line makes sense.

    `news` is what has happened so far, each with its second.
    """

    def __init__(
        self,
        picture: Callable[[Any], RenderableType],
        line: Callable[[Any], str],
        begun: Callable[[Any], Any],
        news: Callable[[Any], Sequence[tuple[float, str]]] = lambda run: (),
    ) -> None:
        self._picture = picture
        self._line = line
        self._begun = begun
        self._news = news

    @contextmanager
    def live(self, out: Console) -> Iterator[Show]:
        """Drawn over and over in the same place."""
        from rich.live import Live

        with Live(console=out, auto_refresh=False) as live:
            yield lambda run: live.update(self._picture(run), refresh=True)

    @contextmanager
    def plain(self, out: Console) -> Iterator[Show]:
        """A line when something happens, and one a second."""
        shown_at, phase, told = -LINE_S, "", 0

        def show(run: Any) -> None:
            nonlocal shown_at, phase, told
            for at_s, text in list(self._news(run))[told:]:
                told += 1
                if text != run.phase:
                    out.print(f"{at_s:5.1f} s  {text}", soft_wrap=True)
            if run.phase != phase:
                phase = run.phase
                out.print(f"{run.elapsed_s:5.1f} s  {phase}", soft_wrap=True)
            elif run.elapsed_s - shown_at >= LINE_S and self._begun(run):
                shown_at = run.elapsed_s
                out.print(f"{run.elapsed_s:5.1f} s    {self._line(run)}", soft_wrap=True)

        yield show

    @contextmanager
    def none(self) -> Iterator[Show]:
        """Nothing to see."""
        yield lambda run: None
