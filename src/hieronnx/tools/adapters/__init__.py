"""The tools of others that hieronnx runs, each as a function from a file to a file; imported when they run."""
