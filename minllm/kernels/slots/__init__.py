"""State of the running sequences on the device, by slot: what a decode step reads, and what it leaves for the next one."""
