"""Ben runs nothing of his own; his host is there for guests."""

import holdfast

app = holdfast.App("ben")
