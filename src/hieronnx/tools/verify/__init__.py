"""Verify: which module call of a file gives something else than it should."""
