"""What crosses from Python to the library, converted once: one function for each type.

ctypes takes 2**32 + 5 for 5 and says nothing, and numpy takes 5.9 for 5. So no number reaches a
struct but through integer() or real(), no truth value but through flag(), no name but through
choice(), and no array of numbers but through int32s() or keys(). Each refuses what does not fit, by
the field's name: TypeError for what is no such thing, ValueError for a value outside its limits.

Scalars of numpy, and arrays and tensors without dimensions, are numbers like Python's own: what
they hold at the time of the call is what counts.
"""

import array
import ctypes as c
import operator
import os

import numpy

U16, U32, U64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
I32 = (1 << 31) - 1
FLOAT_MAX = 3.4028234663852886e38  # of float32
FLOAT_MIN = 1.1754943508222875e-38  # its smallest that no processor takes for 0
# What Python's own conversions raise, and those of others' types; not what a signal's handler does.
_UNFIT = TypeError, ValueError, ArithmeticError, RuntimeError
_INT32, _UINT64 = numpy.dtype(numpy.int32), numpy.dtype(numpy.uint64)


def _is_bool(x):
    return isinstance(x, (bool, numpy.bool_)) or str(getattr(x, "dtype", "")).endswith("bool")


def _is_scalar(x):
    return getattr(x, "shape", ()) == () and not isinstance(x, (str, bytes, bytearray))


def _is_real(x):
    """Whether x is a scalar that float() turns into a number without leaving anything out. It takes
    a complex number of numpy for its real part, and the text in an array for what it says."""
    kind = getattr(getattr(x, "dtype", None), "kind", None)  # of numpy
    complex_tensor = getattr(getattr(x, "dtype", None), "is_complex", False)  # of torch
    number = kind in (None, "i", "u", "f") and not complex_tensor
    return number and _is_scalar(x) and not _is_bool(x) and hasattr(x, "__float__")


def _beyond(name, x, low, high):
    return ValueError(f"{name} is {x}; it is from {low} to {high}")


def integer(name, x, low, high):
    """A whole number from @low to @high."""
    if type(x) is int and low <= x <= high:
        return x
    try:
        if _is_bool(x) or not _is_scalar(x):
            raise TypeError
        value = operator.index(x)
    except _UNFIT:
        raise TypeError(f"{name} is {x!r}; it is a whole number") from None
    if not low <= value <= high:
        raise _beyond(name, value, low, high)
    return value


def real(name, x, low=-FLOAT_MAX, high=FLOAT_MAX):
    """A finite number from @low to @high."""
    if type(x) in (float, int) and low <= x <= high:
        return float(x)
    try:
        if not _is_real(x):
            raise TypeError
        value = float(x)
    except OverflowError:
        raise ValueError(f"{name} is beyond any float") from None
    except _UNFIT:
        raise TypeError(f"{name} is {x!r}; it is a number") from None
    if not low <= value <= high:
        raise _beyond(name, value, low, high)
    return value


def scale(name, x, low=0.0):
    """A number that the library knows as 0 only where there is none: 0 is the smallest float."""
    return max(real(name, x, low), FLOAT_MIN)


def flag(name, x):
    """True or False, or 1 or 0 for them."""
    if x is True or x is False:
        return x
    if isinstance(x, numpy.bool_) or (_is_scalar(x) and _is_bool(x)):
        return bool(x)
    try:
        return bool(integer(name, x, 0, 1))
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {x!r}; it is True or False") from None


def choice(name, x, options):
    """One of the strings @options."""
    if not isinstance(x, str):
        raise TypeError(f"{name} is {x!r}; it is one of {', '.join(options)}")
    if x not in options:
        raise ValueError(f"{name} is {x}, not one of {', '.join(options)}")
    return x


def text(name, x):
    """A string as bytes that C sees to their end."""
    if not isinstance(x, str):
        raise TypeError(f"{name} is {x!r}; it is a string")
    try:
        return _terminated(name, x.encode())
    except UnicodeEncodeError as why:
        raise ValueError(f"{name} is no text: {why}") from None


def path(name, x):
    """Of a file, as bytes that C sees to their end."""
    try:
        return _terminated(name, os.fsencode(x))
    except TypeError:
        raise TypeError(f"{name} is {x!r}; it is a path") from None


def _terminated(name, value):
    if b"\0" in value:
        raise ValueError(f"{name} has a NUL in it")
    return value


def blob(name, x, length=None):
    """Bytes, @length of them."""
    if not isinstance(x, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} is {type(x).__name__}; it is bytes")
    x = bytes(x)
    if length is not None and len(x) != length:
        raise ValueError(f"{name} has {length} bytes, not {len(x)}")
    return x


def seconds(name, x):
    """A time to wait; None: for ever."""
    return None if x is None else real(name, x, 0.0)


def integers(name, x, count, low, high):
    """A tuple of @count whole numbers, of any number of them where @count is None."""
    try:
        if isinstance(x, (str, bytes, bytearray, dict, set, frozenset)):
            raise TypeError
        values = tuple(x)
    except TypeError:
        raise TypeError(f"{name} is {x!r}; it is {count or 'some'} whole numbers") from None
    if count is not None and len(values) != count:
        raise ValueError(f"{name} has {len(values)} numbers; it has {count}")
    return tuple(integer(f"{name}[{i}]", value, low, high) for i, value in enumerate(values))


def shape_of(name, x):
    """The shape of a tensor: a tuple of lengths, or one length."""
    if isinstance(x, (list, tuple)) or getattr(x, "shape", ()) != ():
        return integers(name, x, None, 0, 1 << 48)
    return (integer(name, x, 0, 1 << 48),)


# ---- arrays ----


def int32s(name, x):
    """(address, length, what keeps it) of int32 values, wherever they are now: one dimension, or
    one that is longer than 1. Other types are converted, floats too where they are whole numbers
    that their type tells apart."""
    if type(x) is numpy.ndarray and x.dtype is _INT32 and x.ndim == 1 and x.size and x.flags.carray:
        return c.addressof(c.c_int32.from_buffer(x)), x.size, x
    if isinstance(x, (list, tuple, range)):
        x = _of_list(name, x, "i")
        return x.buffer_info()[0], len(x), x
    if _of_torch(x) and not x.is_cuda and str(x.dtype) == "torch.int32" and x.ndim == 1:
        if x.is_contiguous():
            return x.data_ptr(), x.numel(), x
    x = as_array(name, x, _INT32)
    return x.__array_interface__["data"][0], x.size, x


def as_array(name, x, dtype=_INT32):
    """numpy's array of one dimension of @dtype, int32 or uint64, with the values of x."""
    if isinstance(x, (list, tuple, range)):
        return numpy.frombuffer(_of_list(name, x, "i" if dtype is _INT32 else "Q"), dtype)
    return _line(name, _fitting(name, _on_host(name, x), dtype))


def keys(name, x):
    """uint64 [blocks, 2] of a list of pairs or an array; one key may be without its brackets."""
    if isinstance(x, (list, tuple)):
        if all(map(_is_number, x)):
            found = as_array(name, x, _UINT64)
        else:
            pairs = [as_array(f"{name}[{i}]", pair, _UINT64) for i, pair in enumerate(x)]
            if any(len(pair) != 2 for pair in pairs):
                raise ValueError(f"{name} has keys that are not pairs of numbers")
            found = numpy.array(pairs)
    else:
        found = _fitting(name, _on_host(name, x), _UINT64)
    if found.shape in ((0,), (2,)):
        found = found.reshape(-1, 2)
    if found.ndim != 2 or found.shape[1] != 2:
        raise ValueError(f"{name} is of shape {found.shape}; keys are [blocks, 2]")
    return found


def _is_number(x):
    return _is_scalar(x) and not isinstance(x, (list, tuple))


def _of_torch(x):
    return hasattr(x, "data_ptr") and hasattr(x, "is_cuda")


def _of_list(name, x, code):
    """array.array refuses what does not fit and what is no whole number."""
    if not {int}.issuperset(map(type, x)):
        low, high = (-I32 - 1, I32) if code == "i" else (0, U64)
        x = [integer(f"{name}[{i}]", value, low, high) for i, value in enumerate(x)]
    try:
        return array.array(code, x)
    except OverflowError:
        low, high = (-I32 - 1, I32) if code == "i" else (0, U64)
        for i, value in enumerate(x):
            integer(f"{name}[{i}]", value, low, high)
        raise


def _on_host(name, x):
    """An array of numbers of numpy."""
    try:
        if isinstance(x, numpy.ma.MaskedArray):
            raise TypeError("a masked array says that some of its values are none")
        if _of_torch(x):
            x = x.detach().cpu().numpy()
        x = numpy.asarray(x)
    except (TypeError, ValueError, RuntimeError, AttributeError) as why:
        raise TypeError(f"{name} cannot be read as numbers: {why}") from None
    if x.dtype.kind not in "iuf" or x.ndim == 0:
        raise TypeError(f"{name} is {x.dtype} of shape {x.shape}; it is an array of whole numbers")
    return x


def _fitting(name, x, dtype):
    """@x as @dtype, dense; each value fits, or the first that does not is named."""
    if x.dtype == dtype:
        return numpy.ascontiguousarray(x)
    low, high = (int(x) for x in (numpy.iinfo(dtype).min, numpy.iinfo(dtype).max))
    if x.dtype.kind == "f":
        if dtype is _UINT64:
            raise TypeError(f"{name} is of {x.dtype}; it is of uint64, which that does not hold")
        exact = 1 << (numpy.finfo(x.dtype).nmant + 1)  # beyond it, it was rounded already
        x = x.astype(numpy.promote_types(x.dtype, numpy.float64))  # which holds each limit
        low, high = max(low, -exact), min(high, exact)
        fits = (x == numpy.floor(x)) & (x >= low) & (x <= high)  # NaN is equal to nothing
    else:
        own = numpy.iinfo(x.dtype)
        fits = (x >= max(low, int(own.min))) & (x <= min(high, int(own.max)))
    if not fits.all():
        at = tuple(int(i) for i in numpy.argwhere(~fits)[0])
        where = ", ".join(map(str, at))
        raise ValueError(f"{name}[{where}] is {x[at]}; it is a whole number from {low} to {high}")
    return numpy.ascontiguousarray(x, dtype=dtype)


def _line(name, x):
    if x.ndim != 1 and sum(n != 1 for n in x.shape) > 1:
        raise ValueError(f"{name} is of shape {x.shape}; it has one dimension")
    return x.reshape(-1)
