"""The libraries that `make bench` compares: a module for each, with an agent as in the library's own documentation.

A module has `make(model, tool, turns)`, which returns an `Agent`, and `describe(function)`, which
makes a tool and returns its JSON schema. `model` is a `Script`, whose answers take no time, or the
address of an OpenAI-compatible server. Some have `direct(function)`, a checked call of a tool, and
`saver(name, place)`, a store of runs.
"""
