"""The in-process engine. Other rooms import :mod:`fimlsp.engine.api` only."""
