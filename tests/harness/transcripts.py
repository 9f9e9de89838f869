"""Transcripts: what happens to a job, and what its leader decides, as text that a person reviews.

A file holds blocks: command lines, `----`, the verdicts that follow, a blank line. After a change of the protocol run
`python -m tests.harness.transcripts --rewrite` and read the difference.

Commands: limits min=1 max=4 [first= late= planned= holders= no_progress= bucket=] · come NODE ·
join NODE [as=AGENT slots= root= ended=] · back AGENT · lose AGENT · leave AGENT · done AGENT ·
fail AGENT [cause= step= signature= exit= committed= generation= local= lacks=] · scale MIN:MAX · pause · resume ·
tick SECONDS · probe AGENT alive|refused|silent · cut AGENT[,AGENT] [OTHER …] · leader-change [AGENT] · wipe
"""

from __future__ import annotations

import sys
from pathlib import Path

from elastic.rendezvous.model import ProbeResult
from elastic.rendezvous.verdict import Close, Evict, Form, Open, Probe, Verdict
from elastic.rendezvous.view import Limits
from elastic.rendezvous.wish import paused, resumed, scaled
from tests.harness.simulation import Simulation, report_of

DIRECTORY = Path(__file__).parents[1] / "testdata" / "rendezvous"
_NAMES = {"min": "min_nodes", "max": "max_nodes", "no_progress": "no_progress_limit", "bucket": "bucket_limit"}
_NAMES |= {name: f"{name}_wait_s" for name in ("first", "late", "planned", "holders")}


def rewrite(text: str) -> str:
    """The transcript with the verdicts that the present code gives."""
    simulation: Simulation | None = None
    blocks = []
    for block in text.strip().split("\n\n"):
        commands = block.split("\n----")[0].split("\n")
        lines: list[str] = []
        for command in commands:
            if command.startswith("#"):
                continue
            words = command.split()
            if words[0] == "limits":
                simulation = Simulation(_limits(_options(words)))
                continue
            assert simulation is not None, "a transcript begins with limits"
            _run(simulation, words)
        if simulation is not None and any(not line.startswith(("#", "limits")) for line in commands):
            lines = [_line(verdict) for verdict in simulation.settle()] or ["(nothing new)"]
        blocks.append("\n".join(commands + (["----", *lines] if lines else [])))
    return "\n\n".join(blocks) + "\n"


def _limits(options: dict[str, str]) -> Limits:
    values = {_NAMES[name]: float(value) for name, value in options.items()}
    whole = {name: int(values.pop(name)) for name in list(values) if not name.endswith("_s")}
    return Limits(**whole, **values)


def _run(simulation: Simulation, words: list[str]) -> None:
    verb, options = words[0], _options(words)
    name = words[1] if len(words) > 1 else ""
    if verb == "join":
        agent, node = options.get("as", name), name
        numbers = {key: int(options[key]) for key in ("slots", "root", "ended") if key in options}
        simulation.join(agent, node=node, **numbers)
    elif verb == "fail":
        simulation.back(name, report=report_of(options))
    elif verb == "tick":
        simulation.tick(float(name))
    elif verb == "probe":
        simulation.probe(name, ProbeResult(words[2]))
    elif verb == "leader-change":
        simulation.change_leader(name)
    elif verb == "cut":
        for agent in name.split(","):
            simulation.cut(agent, *words[2:])
    elif verb == "scale":
        low, high = name.split(":")
        simulation.wish = scaled(simulation.wish, min_nodes=int(low), max_nodes=int(high), reason="asked by ann")
    elif verb in ("pause", "resume"):
        simulation.wish = {"pause": paused, "resume": resumed}[verb](simulation.wish, reason="asked by ann")
    elif verb == "wipe":
        simulation.wipe()
    else:
        {
            "back": simulation.back,
            "come": simulation.come,
            "lose": simulation.lose,
            "leave": simulation.leave,
            "done": simulation.done,
        }[verb](name)


def _options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _line(verdict: Verdict) -> str:
    kind = type(verdict).__name__.lower()
    match verdict:
        case Form(world=world):
            seats = " ".join(f"{seat.base_rank}:{seat.agent}" for seat in world.seats)
            kind = f"form {world.generation} {seats} ({world.cause})"
            kind += " [goes back]" if world.goes_back else ""
            kind += "".join(f" [cut {cut.agent} {cut.tries}]" for cut in world.cut)
            kind += "".join(f" [barred {barred.agent} exit {barred.exit_code}]" for barred in world.barred)
        case Open(world=world):
            kind = f"open {world.generation} {'planned' if world.planned else 'at once'} ({world.cause})"
        case Close(world=world):
            kind = f"close {world.generation} {world.outcome} exit {world.exit_code}"
            kind += f" [{world.text}]" if world.text else ""
        case Probe(agents=agents) | Evict(agents=agents):
            kind = f"{kind} {' '.join(agents)}"
        case _ if verdict.until_s is not None:
            kind = f"wait until {verdict.until_s:g}"
    return f"{kind}: {verdict.reason}"


def main() -> None:
    """Write every transcript anew, or name those that differ."""
    for path in sorted(DIRECTORY.glob("*.txt")):
        old, new = path.read_text(), rewrite(path.read_text())
        if old != new:
            print(f"{path.name} {'rewritten' if '--rewrite' in sys.argv else 'differs'}")
            if "--rewrite" in sys.argv:
                path.write_text(new)


if __name__ == "__main__":
    main()
