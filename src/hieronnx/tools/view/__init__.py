"""View: a model by its modules, as one HTML page."""
