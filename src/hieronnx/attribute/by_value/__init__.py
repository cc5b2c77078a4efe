"""The steps of the strategy `htp`: run both, compare values, project the calls onto the nodes."""
