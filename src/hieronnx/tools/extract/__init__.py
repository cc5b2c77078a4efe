"""Parts of a model, one file per stage: source → region → boundary → find → model → hierarchy → weights → write.

| file | what is in it |
|---|---|
| `source.py` | the whole model, with what its parts ask of it |
| `region.py` | the nodes of a call |
| `boundary.py` | its inputs and outputs, and what comes along instead of an input |
| `find.py` | these together: a part; what it shares with other calls; why a call has no nodes |
| `model.py` | a part as a model, without its weights |
| `hierarchy.py` | the hierarchy of a part, rooted at its module |
| `weights.py` | where the weights of a part are, and copying them |
| `write.py` | putting these together, in memory or in files |
| `extracting.py` | the public verbs |
"""
