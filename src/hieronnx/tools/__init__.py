"""One file or folder for each public verb, its result record beside it."""
