"""Makes the tokens of a deployment, unless they are there: /data is the volume that hosts see as /run/holdfast."""

import sys
from pathlib import Path

from holdfast.host.deployment import load_deployment
from holdfast.inputs.token_file import make_token

deployment = load_deployment(sys.argv[1])
for file in (deployment.token_file, deployment.view_token_file, deployment.peer_token_file):
    if file is not None:
        make_token(Path("/data") / file.name)
