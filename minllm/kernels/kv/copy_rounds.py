"""Splits block copies into launches: the pairs of one launch are copied at the same time."""


def in_rounds(copies: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Split pairs (source, destination), which take effect in order, into lists of pairs that may be copied at the same time.

    In such a list no copy writes a block that another copy reads or writes.
    """
    rounds, read, written = [[]], set(), set()
    for source, destination in copies:
        if source in written or destination in written or destination in read:
            rounds.append([])
            read, written = set(), set()
        rounds[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return rounds if copies else []
