"""Sessions through ONNX Runtime's C interface, for guests that have the library but no Python package.

The interface is one table of functions that only ever grows at its end, so a function's place in it holds
for every later version.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Library", "Session", "Value"]

_API_VERSION = 21
"""Of the interface whose places :data:`_PLACES` gives: ONNX Runtime 1.21."""

_PLACES = {
    "GetErrorMessage": 2,
    "CreateEnv": 3,
    "CreateSession": 7,
    "Run": 9,
    "CreateSessionOptions": 10,
    "SetIntraOpNumThreads": 24,
    "SessionGetInputCount": 30,
    "SessionGetOutputCount": 31,
    "SessionGetInputName": 36,
    "SessionGetOutputName": 37,
    "CreateTensorWithDataAsOrtValue": 49,
    "GetTensorMutableData": 51,
    "GetTensorElementType": 60,
    "GetDimensionsCount": 61,
    "GetDimensions": 62,
    "GetTensorTypeAndShape": 65,
    "CreateCpuMemoryInfo": 69,
    "GetAllocatorWithDefaultOptions": 78,
    "ReleaseStatus": 93,
    "ReleaseSession": 95,
    "ReleaseValue": 96,
    "ReleaseTensorTypeAndShapeInfo": 99,
    "AddSessionConfigEntry": 130,
}
_TEXT, _NOTHING = frozenset({"GetErrorMessage"}), frozenset({"ReleaseStatus", "ReleaseSession"})
_RELEASING = _NOTHING | {"ReleaseValue", "ReleaseTensorTypeAndShapeInfo"}

_TYPES = {1: np.float32, 7: np.int64}
_NUMBERS = {np.dtype(kind): number for number, kind in _TYPES.items()}
_WARNING, _DEVICE_ALLOCATOR, _DEFAULT_MEMORY = 3, 0, 0


class Value(NamedTuple):
    """An input or output of a graph."""

    name: str


class _Base(ctypes.Structure):
    """What OrtGetApiBase gives."""

    _fields_ = (
        ("GetApi", ctypes.CFUNCTYPE(c_void_p, c_uint32)),
        ("GetVersionString", ctypes.CFUNCTYPE(c_char_p)),
    )


class Library:
    """A libonnxruntime, loaded."""

    def __init__(self, path: Path) -> None:
        """Load it.

        Raises:
            OSError: it cannot be loaded, or is older than the interface used here.
        """
        library = ctypes.CDLL(str(path))
        library.OrtGetApiBase.restype = POINTER(_Base)
        base = library.OrtGetApiBase().contents
        self.version: str = base.GetVersionString().decode()
        table = base.GetApi(_API_VERSION)
        if not table:
            message = f"{path}: is version {self.version}, and has no C interface {_API_VERSION}"
            raise OSError(message)
        self._table = ctypes.cast(table, POINTER(c_void_p))
        self._environment = c_void_p()
        self.call("CreateEnv", c_int(_WARNING), c_char_p(b"guest"), byref(self._environment))

    def call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 - as C has it
        """Call a function of the interface.

        Raises:
            RuntimeError: it returned a status that is no success.
        """
        result = None if name in _RELEASING else c_char_p if name in _TEXT else c_void_p
        function = ctypes.CFUNCTYPE(result, *map(type_of, arguments))(self._table[_PLACES[name]])
        given = function(*arguments)
        if result is not c_void_p or not given:
            return given
        message = self.call("GetErrorMessage", c_void_p(given)).decode(errors="replace")
        self.call("ReleaseStatus", c_void_p(given))
        raise RuntimeError(message)

    def open(self, path: Path, entries: Mapping[str, str]) -> Session:
        """Load a graph on the CPU, one thread."""
        options, session = c_void_p(), c_void_p()
        self.call("CreateSessionOptions", byref(options))
        self.call("SetIntraOpNumThreads", options, c_int(1))
        for name, value in entries.items():
            self.call("AddSessionConfigEntry", options, c_char_p(name.encode()), c_char_p(value.encode()))
        self.call("CreateSession", self._environment, c_char_p(bytes(path)), options, byref(session))
        return Session(self, session)


def type_of(argument: object) -> type[Any]:
    """The C type that an argument is passed as; a reference or array is an address."""
    simple = (c_void_p, c_char_p, c_int, c_size_t, c_uint32)
    return type(argument) if isinstance(argument, simple) else c_void_p


class Session:
    """A graph, with the few methods of the Python package's session that the guest uses."""

    def __init__(self, library: Library, handle: c_void_p) -> None:
        """Take what the library opened."""
        self._library, self._handle = library, handle
        self._memory, self._allocator = c_void_p(), c_void_p()
        kind = (c_int(_DEVICE_ALLOCATOR), c_int(_DEFAULT_MEMORY))
        library.call("CreateCpuMemoryInfo", *kind, byref(self._memory))
        library.call("GetAllocatorWithDefaultOptions", byref(self._allocator))
        self._inputs, self._outputs = self._names("Input"), self._names("Output")

    def __del__(self) -> None:
        """Free the graph's memory."""
        self._library.call("ReleaseSession", self._handle)

    def get_inputs(self) -> list[Value]:
        """The graph's inputs."""
        return self._inputs

    def get_outputs(self) -> list[Value]:
        """The graph's outputs."""
        return self._outputs

    def _names(self, side: str) -> list[Value]:
        count = c_size_t()
        self._library.call(f"SessionGet{side}Count", self._handle, byref(count))
        names = []
        for index in range(count.value):
            name = c_char_p()
            arguments = (self._handle, c_size_t(index), self._allocator, byref(name))
            self._library.call(f"SessionGet{side}Name", *arguments)
            # A few names stay allocated until the process ends.
            names.append(Value((name.value or b"").decode()))
        return names

    def run(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the graph; arrays of float32 and int64 go in and come out."""
        kept = [np.ascontiguousarray(array) for array in feeds.values()]
        values = (c_void_p * len(kept))(*(self._value(array).value for array in kept))
        results = (c_void_p * len(outputs))()
        wanted, given = _texts(outputs), _texts(list(feeds))
        counts = (c_size_t(len(kept)), c_size_t(len(outputs)))
        try:
            self._library.call(
                "Run", self._handle, c_void_p(), given, values, counts[0], wanted, counts[1], results
            )
            return [self._array(c_void_p(result)) for result in results]
        finally:
            for value in [*values, *results]:
                if value:
                    self._library.call("ReleaseValue", c_void_p(value))

    def _value(self, array: NDArray[Any]) -> c_void_p:
        """A tensor over the array's own memory."""
        shape, value = (c_int64 * array.ndim)(*array.shape), c_void_p()
        data = c_void_p(array.ctypes.data)
        extents = (c_size_t(array.nbytes), shape, c_size_t(array.ndim))
        kind = c_int(_NUMBERS[array.dtype])
        arguments = (self._memory, data, *extents, kind, byref(value))
        self._library.call("CreateTensorWithDataAsOrtValue", *arguments)
        return value

    def _array(self, value: c_void_p) -> NDArray[Any]:
        """A copy of a tensor."""
        call, info = self._library.call, c_void_p()
        kind, rank, data = c_int(), c_size_t(), c_void_p()
        call("GetTensorTypeAndShape", value, byref(info))
        call("GetTensorElementType", info, byref(kind))
        call("GetDimensionsCount", info, byref(rank))
        shape = (c_int64 * rank.value)()
        call("GetDimensions", info, shape, rank)
        call("ReleaseTensorTypeAndShapeInfo", info)
        call("GetTensorMutableData", value, byref(data))
        array = np.empty(tuple(shape), _TYPES[kind.value])
        if array.nbytes:
            ctypes.memmove(array.ctypes.data, data, array.nbytes)
        return array


def _texts(names: Sequence[str]) -> ctypes.Array[c_char_p]:
    return (c_char_p * len(names))(*(name.encode() for name in names))
