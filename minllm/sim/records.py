"""An element of a structured array in a simulated kernel: `r[i].mass`, `r[i]["mass"] = 1`."""


class Record:
    """One record; reads and writes of its fields access the array that holds it."""

    __slots__ = ("_array", "_index")

    def __init__(self, array, index):
        object.__setattr__(self, "_array", array)
        object.__setattr__(self, "_index", index)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name, value):
        self[name] = value

    def __getitem__(self, name):
        return self._array.field(self._name(name))[self._index]

    def __setitem__(self, name, value):
        field = self._array.field(self._name(name))
        field[self._index] = value

    def _name(self, name):
        """The name of a field given by its name or number."""
        return self._array.dtype.names[name] if isinstance(name, int) else name
