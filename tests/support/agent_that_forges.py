"""An agent that sends something else than its jobs made while a file says so; the hub must find out. Test only."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

from computepool.node.attempts import HeldAttempt
from computepool.node.completion import Ending
from computepool.node.main import main
from computepool.wire.jobs import OutputFile

really_upload = HeldAttempt._upload


async def forge(self: HeldAttempt, ending: Ending) -> Ending:
    """Something of the right size that was not computed."""
    if not Path(os.environ["FORGES_WHILE"]).exists():
        return await really_upload(self, ending)
    forged = []
    for output in ending.outputs:
        path = self._folder.get_output_path(output.path)
        path.chmod(0o600)
        content = b"0" * output.size_bytes
        path.write_bytes(content)
        forged.append(
            OutputFile(path=output.path, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        )
    return await really_upload(self, replace(ending, outputs=tuple(forged)))


HeldAttempt._upload = forge  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
