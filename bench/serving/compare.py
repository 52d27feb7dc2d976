"""Results of engines in words: figures, and how far log-probabilities are from those of another."""


def distance(ours, theirs):
    """(mean, largest) difference of log-probabilities at the same places."""
    apart = [abs(a - b) for mine, other in zip(ours, theirs) for a, b in zip(mine, other)]
    return sum(apart) / len(apart), max(apart)


def agreement(ours, theirs):
    """How many tokens of greedy answers are the same up to the first that is not, and of how many.
    Answers part at near-ties, which a rounding decides."""
    same = total = 0
    for mine, other in zip(ours, theirs):
        for a, b in zip(mine, other):
            total += len(a)
            same += next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))
    return same, total


def lines_of(name, result, first):
    """What there is to say of an engine's @result, beside the @first one's."""
    facts = result.get("facts", {})
    yield f"{name}: " + ", ".join(f"{k} {v}" for k, v in facts.items())
    for part, why in result["errors"].items():
        yield f"{name}: {part} failed: {why}"
    figures = result.get("speed")
    if figures:
        of_first = first.get("speed", figures)
        said = []
        for key in ("prompt_tokens_s", "answered_tokens_s"):
            said.append(f"{key} {figures[key]:,.0f} ({figures[key] / of_first[key]:.3f})")
        said += [f"{k} {figures[k]:.3f}" for k in ("tpot_ms", "ttft_alone_ms", "tpot_alone_ms")]
        yield f"{name}: " + ", ".join(said)
    if "forced" in result and "forced" in first and result is not first:
        mean, most = distance(result["forced"], first["forced"])
        count = sum(map(len, result["forced"]))
        yield f"{name}: log-probabilities of {count} places: mean {mean:.5f}, largest {most:.4f}"
    if "answers" in result and "answers" in first and result is not first:
        same, total = agreement(result["answers"], first["answers"])
        yield f"{name}: {same} of {total} answered tokens before answers part"
