"""The page over a store, `ferrule ui`: runs, one run, and an inbox of questions.

Needs the extra `ferrule[ui]`.
"""
