"""The engines that scripts/bench-peers measures beside ours. Each peer is a class with the same four members:

`name`; `prepare()`, which fetches and builds what is missing; `refusal(form, batch)`, why it cannot run that, if so; and
`measure(model, form, load)`, one run. `checkpoint(model, form)` is what it reads, and what ours reads beside it.
"""
