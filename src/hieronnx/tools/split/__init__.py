"""A model as stages, one file per step: timeline → cuts → stages → files.

| file | what is in it |
|---|---|
| `timeline.py` | when each node runs, in the order of the calls |
| `costs.py` | what stages cost, and what crosses each place to cut |
| `balance.py` | the cuts that make the slowest stage fastest |
| `stages.py` | the nodes, inputs, outputs and weights of each stage |
| `result.py` | the records |
| `splitting.py` | the public verb |
| `pipeline.py` | stages run one after the other |
| `triton.py` | stages as a model repository for NVIDIA Triton |
"""
