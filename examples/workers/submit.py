"""Submit refunds: `python submit.py A1 A2`."""

import os
import sys

from shop import agent

from ferrule import DBOSEngine, PostgresStore

store = PostgresStore(os.environ["FERRULE_STORE"], engine=DBOSEngine())
for order in sys.argv[1:]:
    print(agent.submit(store=store, task=f"Refund order {order}."))
