"""The sources of drafts, one per file: they implement running/speculator.DraftSource."""
