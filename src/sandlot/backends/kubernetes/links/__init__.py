"""Links between a provider and the daemons in its pods, sealed and authenticated on both sides (`wire/contract.md`, section 9).

`registrar` knows the secrets, `reception` opens a link on any stream; `listener` (dial-out), `dial_in` and `bridge` are the
three ways to come by one. What a link is used for is `sandlot.connection`'s.
"""
