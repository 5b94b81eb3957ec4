"""Attach vector forms to instructions."""


def in_lanes(*instructions):
    """Attach a form to instructions."""

    def attach(form):
        for one in instructions:
            one.emulation.in_lanes = form
        return form

    return attach
