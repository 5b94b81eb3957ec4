"""State of the running sequences on the device, by slot: read by a decode step, and updated for the next one."""
