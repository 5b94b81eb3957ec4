"""Attach vector forms to instructions."""


def in_lanes(*instructions, threads=False):
    """Attach a form to instructions. threads: whether it calls emulations by the simulator's threads, for which a kernel needs fibres."""

    def attach(form):
        for one in instructions:
            one.emulation.in_lanes = form
        form.by_threads = threads
        return form

    return attach
