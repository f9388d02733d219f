"""Bring Swagger UI's files into the package, from npm's registry: `/docs` works without internet.

    python scripts/swagger_ui.py 5.35.0

Needs npm. The version also stands in src/foredraft/server/page/docs.py, whose addresses have it in them.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

PAGE = Path(__file__).parents[1] / "src" / "foredraft" / "server" / "page"
FILES = ("swagger-ui-bundle.js", "swagger-ui.css")
NOTICES = ("NOTICE", "LICENSE", "swagger-ui-bundle.js.LICENSE.txt")


def main(version: str) -> None:
    """Write the files of this version, compressed, and their notices."""
    with TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", f"swagger-ui-dist@{version}"], cwd=folder, check=True)  # noqa: S603, S607
        (packed,) = Path(folder).glob("*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        source = Path(folder) / "package"
        for name in FILES:
            content = gzip.compress((source / name).read_bytes(), 9, mtime=0)
            (PAGE / f"{name}.gz").write_bytes(content)
        notices = [
            f"--- {name} of swagger-ui-dist {version} ---\n\n{(source / name).read_text()}"
            for name in NOTICES
        ]
        (PAGE / "swagger-ui.NOTICE.txt").write_text("\n\n".join(notices), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
