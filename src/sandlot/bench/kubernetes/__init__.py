"""What Sandlot costs on a cluster, measured against plain pods of the same cluster in the same minute.

`burst` asks from several client processes at once (`clients`, `client`), for sandboxes (`ours`) and for plain pods (`plain`) in
turn. `metrics` and `outside` are the API server's own word on what was written and on what is left; `figures` is pure
arithmetic. On nodes that run nothing, `fleet` plays the daemons of the pods.
"""
