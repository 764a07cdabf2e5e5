"""Every figure and table of the texts that shows a result, in their order; `benches.evaluation` draws and judges them.

Each entry names text and number, says how it is drawn (which bench and which of its values give ours, and what the text
states of theirs) and what the text states about it. Left out are pictures of mechanisms, set-ups and definitions.
"""

from __future__ import annotations

from benches.evaluation import text_000, text_002, text_003, text_003_load, text_004

FIGURES = [*text_000.FIGURES, *text_002.FIGURES, *text_003.FIGURES, *text_003_load.FIGURES, *text_004.FIGURES]
