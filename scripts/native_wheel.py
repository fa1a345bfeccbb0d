"""Prints the path of a llama-cpp-python wheel built as pyproject.toml says; builds it if need be.

Run with a Python that has pip, and with the cache folder as the argument. Wheels are kept there by
version, build flags and machine. That is not left to the caches of pip and uv: pip's doesn't know
the flags, and uv builds anew behind a package mirror that sends no caching headers.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def main(cache: Path) -> int:
    """Find or build the wheel; everything but its path goes to stderr."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    (requirement,) = project["project"]["optional-dependencies"]["llama-cpp"]
    flags = project["tool"]["uv"]["extra-build-variables"]["llama-cpp-python"]["CMAKE_ARGS"]
    machine = f"{platform.system()} {platform.machine()} {platform.libc_ver()[0]}"
    key = hashlib.sha256(f"{flags}\n{machine}".encode()).hexdigest()[:12]
    folder = cache / "wheels" / f"{requirement.replace('==', '-')}-{key}"
    if not any(folder.glob("*.whl")):
        print(f"Compiling {requirement}: about 6 minutes on 2 cores", file=sys.stderr)
        if not build(requirement, flags, folder):
            return 1
    print(next(folder.glob("*.whl")))
    return 0


def build(requirement: str, flags: str, folder: Path) -> bool:
    """Compile into a folder aside, then move the finished wheel: ``folder`` never holds a half."""
    folder.mkdir(parents=True, exist_ok=True)
    cores = str(os.cpu_count() or 1)
    environment = {"CMAKE_BUILD_PARALLEL_LEVEL": cores, **os.environ, "CMAKE_ARGS": flags}
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        package = requirement.partition("==")[0]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check"),
                *("--no-cache-dir", "--no-deps", "--no-binary", package),
                *("--wheel-dir", aside, requirement),
            ],
            env=environment,
            stdout=sys.stderr,
            check=False,
        )
        if done.returncode != 0:
            return False
        for wheel in Path(aside).glob("*.whl"):
            wheel.replace(folder / wheel.name)
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
