"""The inputs of one `holdfast send`, run side by side until they are done or somebody says stop."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import typer

from holdfast.cli.session import Session
from holdfast.inputs.credentials import Keyring
from holdfast.inputs.feed import DeadLetters, Feed, Sent
from holdfast.inputs.network import Access
from holdfast.stream.striped_producer import AnyProducer

if TYPE_CHECKING:
    from holdfast.inputs.file import FileInput

#: How often the main thread looks up while inputs run; a signal is heard at once all the same.
_LOOK_S = 0.2


class Options(NamedTuple):
    """What the command line asked for."""

    file: str | None
    format: str | None
    follow: bool
    dead_letters: Path | None
    tcp: int | None
    http: int | None
    host: str
    token: str | None
    senders: Path | None
    certificate: Path | None
    key: Path | None
    rate: float | None
    rows_max: int | None
    seed: int
    id: str | None
    again: bool

    @property
    def listens(self) -> bool:
        return self.tcp is not None or self.http is not None

    def check(self) -> None:
        if self.file is not None and self.rate is not None:
            raise typer.BadParameter("rows come from a file or from --generate; got both")
        if self.follow and self.file in (None, "-"):
            raise typer.BadParameter("--follow needs a file; standard input is followed anyway")
        if self.rows_max is not None and self.rate is None:
            raise typer.BadParameter("--count goes with --generate")

    def access(self, port: int) -> Access:
        return Access(self.host, port, self.token, self.certificate, self.key, self.keys())

    def keys(self) -> Keyring | None:
        if self.senders is None:
            return None
        from holdfast.host.senders import load_senders

        return load_senders(self.senders)


class _Input(Protocol):
    def stop(self) -> None: ...


class Inputs:
    """Builds the inputs, runs each in a thread, and collects what they sent."""

    def __init__(self, session: Session, producer: AnyProducer, options: Options) -> None:
        self._session, self._producer, self._options = session, producer, options
        self._running: list[tuple[_Input, Callable[[], Any]]] = []
        self._cleanup = contextlib.ExitStack()
        self._counted: Feed | None = None
        self._generated = Sent()
        self._error: BaseException | None = None
        self._before = producer.next_tuple_id
        self._file: FileInput | None = None

    @property
    def resumed(self) -> bool:
        """A part of the file, or all of it, had been sent before."""
        return self._file is not None and self._file.resumed

    def __enter__(self) -> Inputs:
        try:
            self._build()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _build(self) -> None:
        o = self._options
        if o.tcp is not None:
            from holdfast.inputs.tcp import TcpInput

            tcp = TcpInput(self._producer, o.access(o.tcp))
            self._cleanup.callback(tcp.close)
            self._listening("tcp", tcp.host, tcp.port)
            self._running.append((tcp, tcp.run))
        if o.http is not None:
            from holdfast.inputs.http import HttpInput

            http = HttpInput({self._producer.definition.name: self._producer}, o.access(o.http))
            self._cleanup.callback(http.close)
            self._listening("http", http.host, http.port)
            self._running.append((http, http.run))
        if o.rate is not None:
            self._build_generator(o)
        elif o.file not in (None, "-"):
            self._build_file(o, str(o.file))
        elif o.file == "-" or not self._running:
            from holdfast.inputs.stdin import StdinInput

            stdin = StdinInput(self._feed(o.format or "json"), id=o.id)
            self._running.append((stdin, stdin.run))

    def _listening(self, what: str, host: str, port: int) -> None:
        if self._session.json:
            self._session.emit(listening=what, host=host, port=port)
        else:
            stream = self._producer.definition.name
            where = f"http://{host}:{port}/{stream}" if what == "http" else f"{host}:{port}"
            self._session.note(f"listening on {where} ({what}); Ctrl-C ends")

    def _build_generator(self, o: Options) -> None:
        from holdfast.inputs.generator import GeneratorInput

        source = GeneratorInput(self._producer, rate=o.rate or 0, seed=o.seed, count=o.rows_max, id=o.id or "generator")
        show = self._cleanup.enter_context(self._session.progress("generate"))
        self._running.append((source, lambda: source.run(show)))

    def _build_file(self, o: Options, file: str) -> None:
        from holdfast.inputs.file import FileInput

        format = o.format or ("csv" if file.lower().endswith(".csv") else "json")
        # A new id has no position yet, so it begins at the beginning.
        id = f"again-{os.urandom(4).hex()}" if o.again else o.id or "file"
        feed = self._feed(format)
        source = self._file = FileInput(file, feed, follow=o.follow, id=id)
        show = self._cleanup.enter_context(self._session.progress(f"send {file}", bytes=True))
        self._running.append((source, lambda: source.run(show)))

    def _feed(self, format: str) -> Feed:
        from holdfast.inputs.decode import Decoder

        dead = None
        if self._options.dead_letters is not None:
            dead = self._cleanup.enter_context(DeadLetters(self._options.dead_letters))
        decoder = Decoder(self._producer.row_schema, self._producer.definition.name, format)  # type: ignore[arg-type]
        self._counted = Feed(self._producer, decoder, dead)
        return self._counted

    def run(self) -> Sent:
        """Until every input is done, one fails, or Ctrl-C, which is how inputs without an end are ended."""
        threads = [threading.Thread(target=self._guarded, args=(run,), daemon=True) for _, run in self._running]
        for thread in threads:
            thread.start()
        try:
            while any(t.is_alive() for t in threads) and self._error is None:
                next(t for t in threads if t.is_alive()).join(_LOOK_S)
        except (KeyboardInterrupt, StopIteration):
            pass
        finally:
            for source, _ in self._running:
                source.stop()
            for thread, (source, _) in zip(threads, self._running, strict=True):
                # A read of standard input cannot be interrupted; its thread ends with the process.
                thread.join(None if type(source).__name__ != "StdinInput" else 0.1)
        if self._error is not None:
            raise self._error
        counted = self._counted.total if self._counted is not None else Sent()
        return counted._replace(rows=self._producer.next_tuple_id - self._before)

    def _guarded(self, run: Callable[[], Any]) -> None:
        try:
            run()
        except BaseException as error:
            self._error = self._error or error
