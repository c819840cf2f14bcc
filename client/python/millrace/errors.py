# SPDX-License-Identifier: Apache-2.0
"""What Millrace raises. Each error has a `code` (docs/errors.md) and names the thing, the place and the cause.

Three classes: RetryableError (the same call may succeed later), PermanentError (it will fail again), BadSampleError
(decided by an item's bytes). Each is also the built-in exception that fits, so `except TimeoutError` works.
"""


class Error(Exception):
    """All of them."""

    code: str = "internal"


class RetryableError(Error):
    """The same call may succeed later."""


class PermanentError(Error):
    """The same call will fail again."""


class BadSampleError(Error, ValueError):
    """A sample that cannot be decoded, and on_error is "raise". Names dataset, item and cause; the Loader is over."""

    code = "bad_sample"


class InvalidError(PermanentError, ValueError):
    """An argument is none of its values."""

    code = "invalid"


class NotFoundError(PermanentError, FileNotFoundError):
    """No such dataset, item or file."""

    code = "not_found"


class ExistsError(PermanentError, FileExistsError):
    """It is there already, and different."""

    code = "exists"


class RefusedError(PermanentError, PermissionError):
    """Not allowed: a wrong secret, for instance."""

    code = "refused"


class CorruptError(PermanentError, ValueError):
    """Bytes that are not what their checksum or format says: a cursor that was cut, for instance."""

    code = "corrupt"


class UnsupportedError(PermanentError, NotImplementedError):
    """Not in this build."""

    code = "unsupported"


class TooLargeError(PermanentError, ValueError):
    """Over a limit."""

    code = "too_large"


class ConflictError(PermanentError, RuntimeError):
    """Two sides mean different things: a cursor of another dataset version, ranks that ask for different things."""

    code = "conflict"


class InternalError(PermanentError, RuntimeError):
    """A defect of Millrace."""

    code = "internal"


class UnavailableError(RetryableError, ConnectionError):
    """A file or a worker that cannot be reached. Names the item and the cause; next() may be called again."""

    code = "unavailable"


class DeadlineError(RetryableError, TimeoutError):
    """Nothing came within `timeout`. Says what is waited for; next() may be called again."""

    code = "timeout"


class BusyError(RetryableError):
    """A limit is reached for now."""

    code = "busy"


class NoMemoryError(RetryableError, MemoryError):
    """Names the bytes that are needed."""

    code = "no_memory"


class InputOutputError(RetryableError, OSError):
    """A ledger that cannot be written: a full disk, for instance. next() tries again."""

    code = "io"


class ClosedError(RetryableError, RuntimeError):
    """The Loader is closed, or was opened by the parent of this process."""

    code = "closed"


class CancelledError(RetryableError):
    """Somebody ended it."""

    code = "cancelled"


def _codes(base: type[Error]) -> dict[str, type[Error]]:
    found: dict[str, type[Error]] = {}
    for kind in base.__subclasses__():
        found.update(_codes(kind))
        if "code" in kind.__dict__:
            found[kind.code] = kind
    return found


_BY_CODE = _codes(Error)


def make(code: str, text: str) -> Error:
    """The exception of a code of the C library."""
    return _BY_CODE.get(code, InternalError)(text)
