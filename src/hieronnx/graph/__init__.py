"""One ONNX graph in memory: the light view that everything works on, operators, values, shapes."""
