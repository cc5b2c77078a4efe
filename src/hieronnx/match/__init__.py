"""Two graphs: which node and which tensor of the one is which of the other."""
