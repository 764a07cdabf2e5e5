"""What every verb shares: where the streams are, and how to speak to people and to programs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import holdfast
from holdfast.clock import monotonic_us
from holdfast.model.errors import UnknownStream, UsageError
from holdfast.model.names import check_name, contained

if TYPE_CHECKING:
    from rich.console import Console

Root = Annotated[
    Path | None, typer.Option("--root", help="Folder of the streams.", envvar="HOLDFAST_ROOT", show_default="./streams")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The stream.")]

#: A bar that is drawn more often than the eye can follow only costs time.
_DRAW_US = 100_000


class Session:
    """One run of one verb."""

    def __init__(self, root: Path | None, json: bool) -> None:
        self.store = holdfast.open(root or Path("streams"))
        self.json = json

    @cached_property
    def out(self) -> Console:
        from rich.console import Console

        # Piped output must not be cut to the width of a terminal that is not there.
        return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)

    @cached_property
    def err(self) -> Console:
        from rich.console import Console

        return Console(stderr=True, highlight=False)

    def emit(self, **fields: Any) -> None:
        """One JSON object on a line of its own, at once."""
        sys.stdout.buffer.write(msgspec.json.encode(fields) + b"\n")
        sys.stdout.buffer.flush()

    def say(self, text: str, **fields: Any) -> None:
        """A sentence for people, or the fields for programs."""
        if self.json:
            self.emit(**fields)
        else:
            print(text, flush=True)

    def note(self, text: str) -> None:
        """Something about the run itself: never mixed with results."""
        print(text, file=sys.stderr, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        for name in columns:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self.out.print(table)

    def folder(self, name: str) -> Path:
        """Where a stream lives, also when its definition is damaged and it cannot be opened."""
        if (dealing := self.store.stripes_of(name)) is not None:
            raise UsageError(
                f"stream {name} is striped ({dealing.text}), and this takes a stream with one log; name a stripe: "
                f"{', '.join(dealing.names)}"
            )
        folder = contained(self.store.root, check_name(name))
        if not folder.is_dir():
            known = ", ".join(self.store.names()) or "none"
            raise UnknownStream(
                f"no stream {name!r} below {self.store.root}; there are: {known}; check the name, or create it"
            )
        return folder

    def logs(self, name: str) -> tuple[str, ...]:
        """The streams with a log of their own that a name stands for: its stripes, or itself."""
        dealing = self.store.stripes_of(name)
        return (name,) if dealing is None else dealing.names

    @contextlib.contextmanager
    def progress(self, what: str, *, bytes: bool = False) -> Iterator[Callable[[int, int], None]]:
        """A bar on the terminal for long work; nothing where nobody looks."""
        if self.json or not sys.stderr.isatty():
            yield lambda done, total: None
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        counter = DownloadColumn() if bytes else MofNCompleteColumn()
        with Progress(TextColumn("{task.description}"), BarColumn(), counter, TimeRemainingColumn(), console=self.err,
                      transient=True) as bar:  # fmt: skip
            task = bar.add_task(what, total=None)
            drawn = 0

            def show(done: int, total: int) -> None:
                nonlocal drawn
                now = monotonic_us()
                if now - drawn >= _DRAW_US or done >= total:
                    drawn = now
                    bar.update(task, completed=done, total=total)

            yield show
