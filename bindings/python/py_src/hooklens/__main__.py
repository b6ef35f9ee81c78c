"""`python -m hooklens`: runs the `hooklens` binary installed with the package."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def main() -> int:
    name = "hooklens.exe" if os.name == "nt" else "hooklens"
    for scheme in (None, *(scheme for scheme in sysconfig.get_scheme_names() if scheme.endswith("_user"))):
        folder = sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts")
        program = Path(folder, name)
        if program.is_file():
            return subprocess.call([program, *sys.argv[1:]])
    print(f"{name} is not in the scripts folder of this Python", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
