"""The layers of settings over each other, and the configuration that they make.

Content of files and editors never raises: what is wrong is a :class:`Problem`, and the layer below
decides that setting. What a person types on the command line raises, since they are there to see
it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Self

from fimlsp.config import sources
from fimlsp.config.schema import (
    LEAVES,
    Layer,
    Problem,
    Value,
    build_config,
    read_layer,
    show,
)
from fimlsp.config.tree import Config
from fimlsp.errors import ConfigError


class Source(Enum):
    """Where a layer comes from; a later member lies over an earlier one."""

    PRESET = "--preset"
    FILE = "config file"
    INITIALIZATION_OPTIONS = "initializationOptions"
    CHANGE_CONFIGURATION = "didChangeConfiguration"
    COMMAND_LINE = "--set"


class Settings:
    """All layers. One thread at a time; :attr:`config` is frozen and may go anywhere."""

    def __init__(self) -> None:
        self._layers: dict[Source, Layer] = {}
        self._config = Config()

    @classmethod
    def from_command_line(
        cls,
        *,
        config: str | os.PathLike[str] | None = None,
        preset: str | None = None,
        sets: Iterable[str] = (),
        environ: Mapping[str, str] = os.environ,
        user_file: Path | None = None,
    ) -> Self:
        """Load everything that is known before an editor speaks.

        Args:
            config: Value of ``--config``; without it ``FIMLSP_CONFIG``, then ``user_file``.
            preset: Value of ``--preset``.
            sets: Every ``KEY=VALUE`` of ``--set``.
            environ: The environment.
            user_file: The person's own config file; may be absent. Found by platformdirs when None.

        Raises:
            ConfigError: a mistake in ``preset`` or ``sets``, or ``config`` can't be read. Mistakes
                inside a config file are :attr:`problems`.
        """
        settings = cls()
        if preset is not None:
            settings._update_strictly(Source.PRESET, sources.load_preset(preset))
        wanted = sources.config_path(config, environ)
        path = wanted or user_file or sources.user_config_file()
        if wanted or os.path.exists(path):
            settings._load(path, strictly=bool(config))
        settings._update_strictly(Source.COMMAND_LINE, sources.parse_sets(sets))
        return settings

    @property
    def config(self) -> Config:
        """The configuration that the layers make now."""
        return self._config

    @property
    def problems(self) -> list[Problem]:
        """Everything that is wrong now, lowest layer first."""
        found = [problem for layer in self._ordered() for problem in layer.problems]
        return [self._with_remedy(problem) for problem in found]

    def update(self, source: Source, options: object, *, trusted: bool = True) -> list[Problem]:
        """Put ``options`` in place of what ``source`` said before; never raises.

        Args:
            source: The layer to replace. Other layers stay.
            options: Decoded JSON or TOML of any shape. None says nothing and changes nothing: it is
                what an editor sends that wants to be asked instead.
            trusted: False for options that a repository brought along; these can't name files of
                this machine.

        Returns:
            What is wrong with them and was not wrong before, so that each is reported once.
        """
        if options is None:
            return []
        return self._replace(source, read_layer(options, source=source.value, trusted=trusted))

    def _replace(self, source: Source, layer: Layer) -> list[Problem]:
        known = self.problems
        self._layers[source] = layer
        values: dict[str, Value] = {}
        for below in self._ordered():
            values.update(below.values)
        self._config = build_config(values)
        fresh = [problem for problem in layer.problems if problem not in known]
        return [self._with_remedy(problem) for problem in fresh]

    def _update_strictly(self, source: Source, options: Mapping[str, object]) -> None:
        self.update(source, options)
        problems = self._layers[source].problems
        if problems:
            lines = (f"{source.value} {problem}" for problem in problems)
            raise ConfigError("\n".join(lines))

    def _load(self, path: Path, *, strictly: bool) -> None:
        try:
            layer = read_layer(sources.load_file(path), source=str(path), trusted=True)
        except ConfigError as error:
            if strictly:
                raise ConfigError(f"--config {path}: {error}") from error
            remedy = "none of its settings are used"
            problem = Problem(
                path=str(path), complaint=str(error), remedy=remedy, source=Source.FILE.value
            )
            layer = Layer(problems=[problem])
        self._replace(Source.FILE, layer)

    def _ordered(self) -> list[Layer]:
        return [self._layers[source] for source in Source if source in self._layers]

    def _with_remedy(self, problem: Problem) -> Problem:
        if problem.remedy or problem.path not in LEAVES:
            return problem
        leaf = LEAVES[problem.path]
        section = getattr(self._config, leaf.path.partition(".")[0])
        return replace(problem, remedy=f"using {show(getattr(section, leaf.name))}")
