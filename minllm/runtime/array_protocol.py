"""What NumPy's arrays, arrays on a device (DeviceArray), and a kernel's arrays in registers and shared memory have in common."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class Array(Protocol):
    """An array of any machine."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """The type of the elements."""
        ...

    @property
    def ndim(self) -> int:
        """Number of axes."""
        ...

    @property
    def size(self) -> int:
        """Number of elements."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...

    @property
    def reshape(self) -> Callable[..., Any]:
        """reshape(*shape): a view with another shape of the same size."""
        ...

    @property
    def view(self) -> Callable[..., Any]:
        """view(dtype): a view of the same bytes as another dtype."""
        ...
