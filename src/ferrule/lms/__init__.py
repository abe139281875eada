"""Language models: one protocol, the wires, and the scripted ones."""
