"""Parts of a model, one file per stage: source → boundary → find → model → hierarchy.

| file | what is in it |
|---|---|
| `source.py` | the whole model, with what its parts ask of it |
| `boundary.py` | the inputs and outputs of a call, and what comes along instead of an input |
| `find.py` | a part: these and the nodes of the call; what it shares with other calls; why a call has no nodes |
| `model.py` | a part as a model, without its weights |
| `hierarchy.py` | the hierarchy of a part, rooted at its module |
| `extracting.py` | the public verbs: these stages put together, in memory or in files |
"""
