"""Parts of a model, one file per concern.

| file | what is in it |
|---|---|
| `targets.py` | which calls a name means |
| `source.py` | a model made ready to have parts taken out of it |
| `ends.py` | what a call received and returned |
| `find.py` | the nodes of a call, and its outputs |
| `inputs.py` | what a call reads from outside, and what comes along instead |
| `shared.py` | what a part shares with other calls |
| `fates.py` | what became of a call without nodes |
| `model.py` | a part as a model, without its weights |
| `hierarchy.py` | the hierarchy of a part, rooted at its module |
| `weights.py` | where the weights of a part are, and copying them |
| `write.py` | putting these together, in memory or in files |
"""
