"""An element of a structured array in a simulated kernel: `r[i].mass`, `r[i]["mass"] = 1`."""


class Record:
    """One record; reads and writes of its fields access the array that holds it."""

    __slots__ = ("simulated_array", "simulated_index")  # no field has such a name

    def __init__(self, array, index):
        object.__setattr__(self, "simulated_array", array)
        object.__setattr__(self, "simulated_index", index)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name, value):
        self[name] = value

    def __getitem__(self, name):
        return self.simulated_array.field(name_of(self.simulated_array, name))[self.simulated_index]

    def __setitem__(self, name, value):
        field = self.simulated_array.field(name_of(self.simulated_array, name))
        field[self.simulated_index] = value


def name_of(array, name):
    """The name of a field given by its name or number."""
    return array.dtype.names[name] if isinstance(name, int) else name
