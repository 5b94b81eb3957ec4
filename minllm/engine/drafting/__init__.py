"""Where drafts come from, one source a file: they implement running/speculator.DraftSource."""
