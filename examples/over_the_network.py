"""A program that reads a stream from its host over the network, knowing no more than the deployment file."""

import pathlib
import socket
import subprocess
import sys
import tempfile

import holdfast

root = pathlib.Path(tempfile.mkdtemp())
with socket.create_server(("127.0.0.1", 0)) as free:
    address = f"127.0.0.1:{free.getsockname()[1]}"
app = 'import holdfast\n\napp = holdfast.App("shop")\napp.node(inputs=["orders"], name="all")(lambda orders: orders)\n'
(root / "shop.py").write_text(app)
hosts = f"{{src: {{address: '{address}', root: src}}, a: {{address: '127.0.0.1:7402', root: a}}}}"
(root / "shop.yaml").write_text(f"app: shop.py\nhosts: {hosts}\nsources: {{orders: src}}\nnodes: {{all: [a]}}\n")
with holdfast.open(root / "src").create("orders", "customer string, amount bigint").producer() as producer:
    producer.send_many([{"customer": f"c{n}", "amount": n} for n in range(3)])

command = [sys.executable, "-m", "holdfast.cli.main"]
subprocess.run([*command, "up", root / "shop.yaml", "--host", "src"], check=True)  # Another machine, where it matters.
try:
    with holdfast.connect(root / "shop.yaml") as hosts, hosts.subscribe("orders") as subscriber:
        for row in subscriber.rows():
            print(row.id, row.values)
finally:
    subprocess.run([*command, "down", root / "shop.yaml"], check=True)
