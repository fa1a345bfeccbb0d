"""What is said of a native library's package that isn't the one fimlsp was written for."""

from __future__ import annotations

from fimlsp.errors import BackendUnavailableError


def not_loadable(package: str, pinned: str, error: Exception) -> BackendUnavailableError:
    """Return the error for a package that is missing, or whose shared objects are."""
    return BackendUnavailableError(
        f"{package} can't be loaded: {error}. Install it with: pip install {package}=={pinned}"
    )


def require_version(package: str, pinned: str, found: str) -> None:
    """Refuse every version but the pinned one.

    Raises:
        BackendUnavailableError: ``found`` is another one.
    """
    if found != pinned:
        raise BackendUnavailableError(
            f"{package} {found} is installed, {pinned} is needed: struct layouts change "
            f"between versions. Install it with: pip install {package}=={pinned}"
        )


def require_layout(
    package: str, pinned: str, found: tuple[object, ...], expected: tuple[object, ...]
) -> None:
    """Refuse a library whose default parameters do not read as they are written in its source.

    Raises:
        BackendUnavailableError: Python's structs and the library's are not the same.
    """
    if found != expected:
        raise BackendUnavailableError(
            f"{package}: default parameters read as {found}, expected {expected}: the library "
            f"does not match its Python layer. Reinstall {package}=={pinned}"
        )
