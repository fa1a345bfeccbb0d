"""The command line: the composition root. Only here are engines, services and servers built.

stdout carries data (and, under ``serve``, the protocol); everything else goes to stderr.
"""

from __future__ import annotations

import sys

import click

from fimlsp import __version__
from fimlsp.cli.bench import bench
from fimlsp.cli.complete import complete, demo
from fimlsp.cli.doctor import doctor
from fimlsp.cli.models import models
from fimlsp.cli.serve import serve
from fimlsp.errors import FimlspError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="fimlsp")
def cli() -> None:
    """Grey inline completions from a model on your own machine, over LSP."""


for command in (serve, complete, demo, models, doctor, bench):
    cli.add_command(command)


def main() -> None:
    """Run the command line; a named error becomes one line and exit code 1."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except FimlspError as error:
        click.echo(f"fimlsp: {error}", err=True)
        sys.exit(1)
