"""Agents that are killed, interrupted, stopped and raced, again and again: `make kill-test`.

`agents.py` has the scenarios, `world.py` what they act on, `processes.py` the processes of one run,
`judging.py` what is wrong with what they left behind. `stores.py` has what they are kept in:
SQLite, or Postgres (`--postgres`). `kills.py`, `races.py` and `interrupts.py` are the three ways to
disturb a run; `mutants.py` shows that each is caught. `workers.py` kills whole workers on Postgres,
while `people.py` goes on; `troubles.py` has what befalls them all.
"""
