"""The only place that opens or writes a file: framing, staging, sidecar, metadata, weights."""
