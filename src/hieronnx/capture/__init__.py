"""The PyTorch side: models, inputs, and what the exporters saw. Everything here may need torch."""
