"""Which prefixes are where: blocks of engines' own caches, least recently used first.

A request's blocks are ids from its beginning on; equal ids are the same tokens behind the same
tokens. A cache has room for so many blocks.
"""

import collections
import sys
import pathlib

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "goodput"))
from arrivals import BLOCK_TOKENS  # noqa: E402


class PrefixCache:
    def __init__(self, blocks):
        self.room, self.held = blocks, collections.OrderedDict()

    def matched(self, blocks):
        """How many of them are here, from the first on. Nothing changes."""
        count = 0
        for block in blocks:
            if block not in self.held:
                break
            count += 1
        return count

    def use(self, blocks):
        """They were used, or computed, just now. Return: blocks that had to go."""
        gone = []
        for block in reversed(blocks):  # so that the end of a prefix goes first
            self.held.pop(block, None)
            self.held[block] = None
        while len(self.held) > self.room:
            gone.append(self.held.popitem(last=False)[0])
        return gone


class Tree:
    """One tree across services: which engines have a block."""

    def __init__(self):
        self.at = {}

    def add(self, engine, blocks, gone):
        for block in blocks:
            self.at.setdefault(block, set()).add(engine)
        for block in gone:
            holders = self.at.get(block)
            if holders:
                holders.discard(engine)

    def longest(self, blocks, own):
        """(how many blocks from the first on some engine has all of, that engine), beside @own."""
        holders, best = None, (0, None)
        for count, block in enumerate(blocks, 1):
            here = self.at.get(block, set()) - {own}
            holders = here if holders is None else holders & here
            if not holders:
                break
            best = (count, min(holders, key=lambda engine: engine.number))
        return best


def tokens_of(blocks, prompt):
    """Tokens of so many blocks of a prompt."""
    return min(blocks * BLOCK_TOKENS, prompt)
