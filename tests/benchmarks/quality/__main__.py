"""Does the score mean something? Labelled runs, by source, before and after learning from them.

    python -m tests.benchmarks.quality [runs.jsonl[.gz] ...] [--out FOLDER]
"""

from __future__ import annotations
import sys, logging
from pathlib import Path
from kp_langchain.config import Settings
from kp_langchain.scoring.embedders import resolve_embedder
from tests.benchmarks.quality import runs, scores
logging.disable(logging.WARNING)
found = runs.read([Path("../shared/trajectories/runs.jsonl.gz")], print)
print(len(found.labelled), found.unlabelled, found.skipped)
import collections, time
by = collections.defaultdict(list)
for r in found.labelled: by[r.source].append(r)
emb = resolve_embedder("auto")
for name, rs in by.items():
    t=time.time()
    src = scores.scored(name, rs, Settings(), emb)
    t1=time.time()
    f = scores.figures(src)
    print(name, f["runs"], f["tasks"], round(f["base_rate"],2), {k:(round(v["value"],2),round(v["low"],2),round(v["high"],2)) if v else None for k,v in f["auc"].items()})
    print("   within", f["pairs_within_task"], {k: round(v,2) if v is not None else None for k,v in f["within_task"].items()}, f["passed"], f["good_of_passed"], round(f["top_rate"],2), t1-t, time.time()-t1)
