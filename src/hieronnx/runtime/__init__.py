"""Running files in ONNX Runtime, with their inner tensors handed out."""
