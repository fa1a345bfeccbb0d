"""fimlsp: grey inline completions from a model on your own machine, over LSP."""

__version__ = "0.1.0"
