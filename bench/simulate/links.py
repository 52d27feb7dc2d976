"""The ways between engines: none on one GPU, a fast one within a host, a network card of each host.

A transfer has its way for itself, and the next one waits: what goes out of a host through its card,
and what comes in through the other one's. Within a host each GPU has a way of its own.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class LinkRates:
    """Bytes a second, and seconds until the first byte."""

    host: float = 300e9
    network: float = 50e9
    host_latency_s: float = 20e-6
    network_latency_s: float = 100e-6


class Way:
    """One direction of one port."""

    def __init__(self):
        self.free_at, self.busy_s, self.bytes = 0.0, 0.0, 0


class Links:
    def __init__(self, rates):
        self.rates, self.ways = rates, {}
        self.waited_s, self.transfers = 0.0, 0

    def way(self, *name):
        return self.ways.setdefault(name, Way())

    def send(self, now, source, target, nbytes):
        """@source, @target: (host, gpu). Return: when the last byte is there."""
        if source == target:
            return now
        if source[0] == target[0]:
            ways = self.way("gpu out", *source), self.way("gpu in", *target)
            rate, latency = self.rates.host, self.rates.host_latency_s
        else:
            ways = self.way("host out", source[0]), self.way("host in", target[0])
            rate, latency = self.rates.network, self.rates.network_latency_s
        begin = max(now, *(way.free_at for way in ways))
        took = nbytes / rate
        self.waited_s += begin - now
        self.transfers += 1
        for way in ways:
            way.free_at, way.busy_s = begin + took, way.busy_s + took
            way.bytes += nbytes
        return begin + took + latency

    def busiest(self, seconds):
        """(name, part of the time) of the way that is busy most; None without transfers."""
        found = max(self.ways.items(), key=lambda item: item[1].busy_s, default=None)
        return found and (" ".join(map(str, found[0])), found[1].busy_s / seconds)
