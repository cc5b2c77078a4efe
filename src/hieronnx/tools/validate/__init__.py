"""The checks behind `validate`: each a function from what was read to findings, a file for each group."""
