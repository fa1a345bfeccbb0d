"""The one loader of settings.

::

    defaults < preset < config file < initializationOptions < didChangeConfiguration < --set

Each room declares its own params class; :mod:`.tree` composes them, :mod:`.schema` knows what each
setting may be, :mod:`.sources` reads files, presets and ``--set``, :mod:`.settings` lays the layers
over each other. Only ``cli`` imports this package: rooms get their params object and nothing else.
"""

from fimlsp.config.schema import Problem
from fimlsp.config.settings import Settings, Source
from fimlsp.config.sources import preset_names, user_config_file
from fimlsp.config.tree import Config, LogParams

__all__ = [
    "Config",
    "LogParams",
    "Problem",
    "Settings",
    "Source",
    "preset_names",
    "user_config_file",
]
