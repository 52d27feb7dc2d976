"""What the service and the library refuse, as exceptions.

Every failure is an `Error` with the numbers of `struct attnd_fault`: `field`, `index`, `value` and
`limit`. Its class says which code it is, so that an engine catches `attnd.NoSpace` and not a
number. The sentence is the library's own.
"""

import ctypes as c

from ._abi import Fault
from ._library import lib


# What this package calls by FlashInfer's names, or its own.
_NAMES = {
    "heads_q": "num_qo_heads", "heads_kv": "num_kv_heads", "dim_qk": "head_dim",
    "dim_vo": "head_dim_vo", "o": "out", "position_encoding": "pos_encoding_mode",
    "chunk": "attention_chunk_size", "fixed_split": "fixed_split_size", "mask": "custom_mask",
    "o_a": "v_a", "lse_a": "s_a", "o_b": "v_b", "lse_b": "s_b",
}  # fmt: skip
# The library calls what it refuses of an advance by the names of a plan.
_OF_ADVANCE = {"kv_indptr": "page_indptr", "kv_indices": "page_indices"}


class Error(Exception):
    """A call or an operation failed. `name` is the symbol of the code, `field` the field's name."""

    def __init__(self, fault, operation=None, sentence=None):
        sentence, field = sentence or _sentence(fault), lib.attnd_field_name(fault.field).decode()
        self._sentence = sentence
        names = _OF_ADVANCE if operation == "advance" else _NAMES
        if field in names:
            sentence = sentence.replace(f": {field}", f": {names[field]}", 1)
            field = names[field]
        super().__init__(f"{operation}: {sentence}" if operation else sentence)
        self.code = fault.code
        self.name = lib.attnd_error_name(fault.code).decode()
        self.field = field
        self.index, self.value, self.limit = fault.index, fault.value, fault.limit
        self.operation = operation
        self._numbers = fault.code, fault.field, fault.index, fault.value, fault.limit

    def __reduce__(self):  # multiprocessing sends the exceptions of its workers pickled
        return _again, (self._numbers, self.operation, self._sentence)


def _sentence(fault):
    text = c.create_string_buffer(256)
    lib.attnd_fault_string(c.byref(fault), text, len(text))
    return text.value.decode()


def _again(numbers, operation, sentence):
    return error(Fault(*numbers), operation, sentence)


class Invalid(Error, ValueError):
    """A value is not allowed here."""


class Range(Error, ValueError):
    """A value is outside its limits."""


class Overlap(Error, ValueError):
    """An output overlaps an input, another output or a pool."""


class Unknown(Error, LookupError):
    """The object does not exist in this session."""


class Busy(Error):
    """The object is in use by operations in flight."""


class Full(Error):
    """The queue is full; wait for completions and repeat."""


class NoMemory(Error, MemoryError):
    """A memory budget is used up."""


class NoSpace(Error):
    """A capacity is too small, or a pool has too few free pages."""


class Permission(Error, PermissionError):
    """The session has no right to do this."""


class Unsupported(Error, NotImplementedError):
    """The backend or this build does not have this."""


class Version(Error):
    """The library and the service speak different versions of the protocol."""


class Protocol(Error):
    """The peer broke the protocol."""


class Disconnected(Error, ConnectionError):
    """The service is gone, or has ended the session."""


class WorkerRestarted(Error):
    """The worker was restarted; run the operation again."""


class Cancelled(Error):
    """The operation was cancelled."""


class Timeout(Error, TimeoutError):
    """The deadline passed."""


class SharedPage(Error):
    """The page is shared and may not be written."""


class NotLeased(Error):
    """The session holds no lease of the page."""


class Expired(Error):
    """The ticket expired or was already claimed."""


class Forked(Error):
    """The session belongs to the parent process."""


class System(Error, OSError):
    """A system call failed; value is errno."""


class Device(Error):
    """The GPU or its driver refused."""


class PeerLost(Error, ConnectionError):
    """The service that has the pages is gone, or does not answer."""


_KINDS = {kind.__name__.lower(): kind for kind in Error.__subclasses__()}


def error(fault, operation=None, sentence=None):
    """The exception of a fault."""
    name = lib.attnd_error_name(fault.code).decode().removeprefix("ATTND_E_")
    return _KINDS.get(name.replace("_", "").lower(), Error)(fault, operation, sentence)


def last_error(operation=None):
    """The exception of this thread's last call that failed. The library's sentence says more than
    the numbers do: it names the path of a service that cannot be reached."""
    fault = Fault()
    text = c.create_string_buffer(512)
    lib.attnd_last_fault(c.byref(fault))
    lib.attnd_last_fault_string(text, len(text))
    return error(fault, operation, text.value.decode())


def checked(code):
    """A return value of the library: itself, or the exception."""
    if code < 0:
        raise last_error()
    return code
