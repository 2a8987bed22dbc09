"""Fuzzing: batches and lifecycles that nobody designed, judged by exact and metamorphic oracles.

A batch is drawn as a `Sketch`, a few words and a seed, and written out by plain integer choices: what
Hypothesis has to draw stays small, so that it is not the bottleneck.  `loop` asks and judges, `found`
keeps what was found, `law` accumulates evidence that stays valid however long the run.
"""

__all__: list[str] = []
