"""Links that are cut on purpose, to see what happens (`holdfast fail`, `holdfast heal`)."""

from __future__ import annotations


class Cuts:
    """What this host cannot reach at the moment: other hosts by name, streams by name."""

    def __init__(self) -> None:
        self._cut: dict[str, None] = {}

    def cut(self, name: str) -> None:
        """Nothing from or to this host, or of this stream, gets through from now on."""
        self._cut[name] = None

    def heal(self, name: str | None = None) -> None:
        """This link works again; all of them, if none is named."""
        if name is None:
            self._cut.clear()
        else:
            self._cut.pop(name, None)

    def severed(self, replica: str) -> bool:
        """Whether the replica `node@host`, or the source `stream@host`, is out of reach."""
        name, _, host = replica.partition("@")
        return name in self._cut or host in self._cut

    def names(self) -> list[str]:
        return list(self._cut)
