"""Where the time of a step is: the kernels of one layer in order, and the gaps in front of them.

A step's kernels come from CUPTI, through PyTorch's profiler. Layers are all alike, so the figures
are means over them. A gap is time in which no kernel of this engine runs: what a stream waits for
without a kernel is in it.
"""

import re
import statistics

HEAD_MAX = 3  # kernels in front of the first layer
NAME_CHARACTERS = 60


def record(torch, step, count):
    """Kernels of the last of @count calls of step(): [[name, start us, duration us]]."""
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
        for _ in range(count):
            step()
    events = [
        [event.name(), event.start_ns() / 1e3, event.duration_ns() / 1e3]
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    events.sort(key=lambda event: event[1])
    return events[len(events) - len(events) // count :]


def layer_of(kernels, layers):
    """One layer: [(name, gap in front, duration)] in us, means; [] if layers are not alike."""
    for head in range(HEAD_MAX + 1):
        count, rest = divmod(len(kernels) - head, layers)
        names = [kernel[0] for kernel in kernels[head:]]
        if rest or count < 1 or names != names[:count] * layers:
            continue
        found = []
        for i in range(count):
            places = range(head + i, len(kernels), count)
            gaps = [
                kernels[at][1] - max(start + length for _, start, length in kernels[:at])
                for at in places
                if at > 0
            ]
            durations = [kernels[at][2] for at in places]
            found.append((names[i], statistics.mean(gaps or [0]), statistics.mean(durations)))
        return found
    return []


def short(name):
    """A kernel's name without what fills lines: return types, namespaces, template arguments."""
    name = re.sub(r"\(anonymous namespace\)::|^void ", "", name)
    name = re.sub(r"[<(].*", "", name).split("::")[-1] or name
    return name[:NAME_CHARACTERS]


def table(title, kernels, layers):
    """The layer as text."""
    span = max((start + length for _, start, length in kernels), default=0) - (
        kernels[0][1] if kernels else 0
    )
    busy = sum(length for _, _, length in kernels)
    lines = [f"{title}: {len(kernels)} kernels in {span:.0f} us, {busy:.0f} us of them busy"]
    layer = layer_of(kernels, layers)
    if layer:
        lines.append(f"  {'kernel of a layer':<{NAME_CHARACTERS}} {'gap us':>8} {'us':>8}")
    for name, gap, duration in layer:
        gap = round(gap, 1) + 0.0  # below 0 where it begins before the last one ends; never -0
        lines.append(f"  {short(name):<{NAME_CHARACTERS}} {gap:>8.1f} {duration:>8.1f}")
    if layer:
        gaps, busy = (sum(column) for column in list(zip(*layer))[1:])
        lines.append(f"  {'sum':<{NAME_CHARACTERS}} {gaps:>8.1f} {busy:>8.1f}")
    return "\n".join(lines) + "\n"
