"""Everything that can go wrong, as one tree of named errors.

::

    FimlspError
    ├── ConfigError                 a setting has a wrong value or an unknown name
    ├── UnknownDocumentError        the client speaks of a document that it has not opened
    ├── ModelError
    │   ├── UnknownModelError       neither a catalogue name nor a file
    │   ├── PullError
    │   │   ├── HubUnreachableError     the route to the model's source is closed
    │   │   ├── PullInterruptedError    the download stopped in the middle; it resumes
    │   │   ├── DiskFullError
    │   │   └── HashMismatchError       the bytes are not the published ones
    │   ├── GgufError
    │   │   ├── NotGgufError
    │   │   └── TruncatedGgufError
    │   ├── NoFimTokensError        the vocabulary has no fill-in-the-middle tokens
    │   ├── DraftMismatchError      the draft model's vocabulary is not the target's
    │   └── ModelLoadError          the library refused the file; its own words are kept
    ├── EngineError
    │   ├── BackendUnavailableError the native library is missing, or another version
    │   ├── PromptTooLongError
    │   ├── DecodeError             the library failed inside a decode
    │   └── EngineClosedError
    └── BenchError                  a benchmark can't go on
        ├── TraceError              a trace file holds something that is not a trace
        └── PeerError               the peer did not start, or answered with an error

A message says what was found, what was expected and what to do. "No suggestion" is not an error:
see :class:`fimlsp.document.NoCompletion`.
"""


class FimlspError(Exception):
    """The root: catching it catches every error that fimlsp raises on purpose."""


class ConfigError(FimlspError):
    """A setting has a wrong value or an unknown name; the message holds its full path."""


class UnknownDocumentError(FimlspError):
    """The client speaks of a document that it has not opened, or has closed."""


class ModelError(FimlspError):
    """A model can't be had, read or used."""


class UnknownModelError(ModelError):
    """The name is neither in the catalogue nor a file."""


class PullError(ModelError):
    """Fetching a model failed; nothing was left under its final name."""


class HubUnreachableError(PullError):
    """No route to the model's source is open."""


class PullInterruptedError(PullError):
    """The download stopped in the middle; the next pull resumes it."""


class DiskFullError(PullError):
    """There is not enough room for the file."""


class HashMismatchError(PullError):
    """The bytes that arrived are not the published ones."""


class GgufError(ModelError):
    """The file can't be a usable GGUF."""


class NotGgufError(GgufError):
    """The file has no GGUF magic, an unknown version, or a header that makes no sense."""


class TruncatedGgufError(GgufError):
    """The file ends before the tensors that its header promises."""


class NoFimTokensError(ModelError):
    """The vocabulary has no fill-in-the-middle tokens of any known family."""


class DraftMismatchError(ModelError):
    """The draft model's vocabulary is not the target's; the engine runs on without it."""


class ModelLoadError(ModelError):
    """The native library refused the model; its own words are part of the message."""


class EngineError(FimlspError):
    """The engine can't answer."""


class BackendUnavailableError(EngineError):
    """A native library is missing, does not start, or is not the version it must be."""


class PromptTooLongError(EngineError):
    """A prompt with its answer does not fit the context."""


class DecodeError(EngineError):
    """The native library failed inside a decode."""


class EngineClosedError(EngineError):
    """The engine was closed before or while the request ran."""


class BenchError(FimlspError):
    """A benchmark can't start or can't go on."""


class TraceError(BenchError):
    """A trace file can't be read or holds something that is not a trace."""


class PeerError(BenchError):
    """The server that fimlsp is compared with did not start, or answered with an error."""
