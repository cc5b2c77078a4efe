"""`validate`: the checks, a file for each group, and the repair of what they find."""
