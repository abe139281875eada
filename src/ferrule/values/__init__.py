"""What flows between the rooms: plain values, no behaviour that acts on the world."""
