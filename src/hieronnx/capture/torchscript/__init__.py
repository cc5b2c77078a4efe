"""The TorchScript route: torch.jit.trace, lowered to ONNX by torch's own passes, each of them observed."""
