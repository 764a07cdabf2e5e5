"""Is the host of this container alive? Exit code 0 if it says so at /healthz, or if there is no host to ask.

HOLDFAST_DEPLOYMENT names the deployment file, HOLDFAST_HOST the host. The address, and whether it speaks TLS, stand in
the file; whose certificate it is does not matter to somebody in the same container.
"""

import os
import ssl
import sys
import urllib.error
import urllib.request

from holdfast.host.deployment import load_deployment


def main() -> int:
    file, name = os.environ.get("HOLDFAST_DEPLOYMENT"), os.environ.get("HOLDFAST_HOST")
    if not file or not name:
        return 0
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        urllib.request.urlopen(f"{load_deployment(file).host(name).url}/healthz", timeout=4, context=unchecked).close()
    except (urllib.error.URLError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
