"""A part in the place of a module call, one file per step: opsets → interface → graph → hierarchy.

| file | what is in it |
|---|---|
| `opsets.py` | the part in the operator sets of the model |
| `interface.py` | which input and output of the part is which tensor of the model, and whether they fit |
| `graph.py` | the graph with parts in it: names, what goes, what is kept for others, the order |
| `work.py` | the same while it is done: which weights, which nodes |
| `hierarchy.py` | the part's modules and calls below the call that it replaces |
| `attributions.py` | whose its nodes and weights are |
| `result.py` | the record |
| `replacing.py` | the public verb |
"""
