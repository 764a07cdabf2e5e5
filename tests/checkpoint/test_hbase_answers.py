"""What stands between us and HBase may answer anything: that is the peer's fault, and passes."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from holdfast.checkpoint.stores.hbase import HBaseStore
from holdfast.model.errors import PeerError, UsageError


@pytest.mark.parametrize("body", [b"<html>proxy</html>", b"[]", b'{"Row": [{"key": "zz"}]}', b'{"Row": 7}'])
def test_an_answer_that_is_no_table_is_the_peers_error_and_not_a_fault_of_ours(body: bytes) -> None:
    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with HBaseStore(f"http://127.0.0.1:{server.server_port}") as store:
            with pytest.raises(PeerError, match="no table"):
                store.get(b"k")
            with pytest.raises(PeerError, match="no table"):
                store.put(b"k", 1, b"x")
        server.shutdown()


@pytest.mark.parametrize(("status", "kind"), [(401, UsageError), (403, UsageError), (503, PeerError)])
def test_a_gateway_that_refuses_us_is_not_waited_for_and_one_that_is_busy_is(
    status: int, kind: type[Exception]
) -> None:
    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with HBaseStore(f"http://127.0.0.1:{server.server_port}") as store, pytest.raises(kind, match=str(status)):
            store.get(b"k")
        server.shutdown()
