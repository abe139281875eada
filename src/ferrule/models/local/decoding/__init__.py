"""Decoding within a budget of tokens: how to complete an unfinished answer in time."""
