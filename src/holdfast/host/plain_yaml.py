"""YAML without its traps: mappings, lists and text, nothing else.

Rules:
1. Every scalar is text: a host named `on` is not True, and `7401:30` is not a number of seconds.
2. Aliases, anchors, tags and keys that come twice are refused; so are files, depths and values beyond any honest use.
   A few lines of aliases can stand for gigabytes, and a tag can ask for a Python object.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from holdfast.model.errors import UsageError

#: A deployment of a hundred hosts has about 20 KiB.
BYTES_MAX = 256 << 10
#: The composer calls itself for each level: Python's own limit would end it with a traceback.
DEPTH_MAX = 16
#: The longest honest value is a path or an address; whoever refuses one repeats it.
CHARS_MAX = 1024


def read_yaml(path: Path) -> Any:
    """The content of the file as dicts, lists and text."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"the file {path} cannot be read: {error.strerror}; check the path") from None
    if len(data) > BYTES_MAX:
        raise UsageError(f"the file {path} must have {BYTES_MAX} bytes at most; it has more")
    try:
        loader = _Loader(data)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" line {mark.line + 1}"
        raise UsageError(f"{path}{where}: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.BaseLoader):
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _refused(event, "anchors and aliases are not allowed here; write the value out")
        if event.tag is not None:
            raise _refused(event, f"tags such as {event.tag!r} are not allowed here; write the plain value")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > CHARS_MAX:
            raise _refused(event, f"a value must have {CHARS_MAX} characters at most; it has {len(event.value)}")
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise _refused(event, f"values may be nested {DEPTH_MAX} deep at most")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused(key, "a key must be plain text")
            if key.value in seen:
                raise _refused(key, f"the key {key.value!r} comes twice; keep one of the two")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refused(place: Any, why: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=why, problem_mark=place.start_mark)
