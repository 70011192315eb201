"""Make a release of the demo framework."""

import zipfile
from pathlib import Path

_INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: demo-dist\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


def wheel(folder: Path, tree: Path) -> Path:
    """Make the wheel of version 1.0 from a tree's code."""
    path = folder / "demo_dist-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(tree.rglob("*.py")):
            archive.write(file, file.relative_to(tree))
        for name, text in _INFO.items():
            archive.writestr(f"demo_dist-1.0.dist-info/{name}", text)
    return path
