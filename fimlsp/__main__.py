"""Lets editors start the server as ``python -m fimlsp``."""

from fimlsp.cli import main

if __name__ == "__main__":
    main()
