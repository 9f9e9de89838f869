"""Keys: the names under which a job's state is kept in the store."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class Keys:
    """Names below `<prefix>/<job_id>/`. Member and candidate keys are leased; the others stay."""

    root: str

    @classmethod
    def of(cls, *, prefix: str, job_id: str) -> Keys:
        """The keys of one job. A slash in its id is escaped, so that no job's keys lie below another's."""
        return cls(f"{prefix.rstrip('/')}/{quote(job_id, safe='')}")

    @property
    def world(self) -> str:
        """The agreed membership: what everyone watches."""
        return f"{self.root}/world"

    @property
    def seats(self) -> str:
        """Prefix of the keys that hold the seats of a large world, in parts."""
        return f"{self.root}/seats/"

    def part(self, number: int) -> str:
        """One part of the seats of a large world."""
        return f"{self.seats}{number}"

    @property
    def generation(self) -> str:
        """The token of the last generation formed, `number.digest`: what a commit is compared with."""
        return f"{self.root}/generation"

    @property
    def commit(self) -> str:
        """The last commit, opaque here."""
        return f"{self.root}/commit"

    @property
    def wish(self) -> str:
        """What a person wants of the whole job, see wish.py."""
        return f"{self.root}/wish"

    @property
    def members(self) -> str:
        """Prefix of the member keys."""
        return f"{self.root}/members/"

    @property
    def challenge(self) -> str:
        """Written by who doubts that the leader lives: any new value."""
        return f"{self.root}/challenge"

    @property
    def answer(self) -> str:
        """Written by the leader when it sees a challenge."""
        return f"{self.root}/answer"

    @property
    def candidates(self) -> str:
        """Prefix of the keys whose oldest holder leads."""
        return f"{self.root}/election/"

    @property
    def last_candidate(self) -> str:
        """The agent that wrote a candidate key last: the next one follows it in the election."""
        return f"{self.root}/last_candidate"

    def member(self, agent: str) -> str:
        """The member key of an agent."""
        return self.members + agent

    def drain(self, agent: str) -> str:
        """Written by a person who wants this agent to leave: the reason. Lives by the agent's own lease."""
        return f"{self.root}/drain/{agent}"

    def name(self, node: str) -> str:
        """Held by the agent that bears this node name."""
        return f"{self.root}/names/{quote(node, safe='')}"

    def candidate(self, agent: str) -> str:
        """The candidate key of an agent."""
        return self.candidates + agent
