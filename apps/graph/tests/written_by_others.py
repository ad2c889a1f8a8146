"""Writes a graph for written_by_others.rs into the folder that is the argument. Exit code 3: a library is absent."""

import sys
from pathlib import Path

try:
    import networkx
    import polars
    import pyarrow
    import pyarrow.parquet
    import scipy.io
    import scipy.sparse
except ImportError:
    sys.exit(3)

VERTICES = 40
folder = Path(sys.argv[1])
edges = sorted({(n, to % VERTICES) for n in range(VERTICES) for to in (n * n + 3 * n + 1, 7 * n + 5)})
weights = [(source + target) % 7 + 1 for source, target in edges]

graph = networkx.DiGraph()
graph.add_weighted_edges_from((s, t, w) for (s, t), w in zip(edges, weights))
networkx.write_edgelist(graph, folder / "networkx.txt", data=False)
networkx.write_weighted_edgelist(graph, folder / "networkx-weighted.txt")
text = (folder / "networkx.txt").read_text()
(folder / "bom.txt").write_text(text, encoding="utf-8-sig")
(folder / "utf-16.txt").write_text(text, encoding="utf-16")

matrix = networkx.to_scipy_sparse_array(graph, nodelist=range(VERTICES), dtype="int64").tocoo()
scipy.io.mmwrite(folder / "scipy-integer.mtx", matrix)
scipy.io.mmwrite(folder / "scipy-real.mtx", matrix.astype("float64"))
scipy.io.mmwrite(folder / "scipy-pattern.mtx", matrix, field="pattern")
halves = networkx.to_scipy_sparse_array(graph.to_undirected(), nodelist=range(VERTICES), dtype="int64").tocoo()
scipy.io.mmwrite(folder / "scipy-symmetric.mtx", halves, field="pattern", symmetry="symmetric")

sources, targets = zip(*edges)
table = pyarrow.table({"source": sources, "target": targets, "weight": weights})
for codec in ["brotli", "lz4"]:
    pyarrow.parquet.write_table(table, folder / f"pyarrow-{codec}.parquet", compression=codec)
    polars.from_arrow(table).write_parquet(folder / f"polars-{codec}.parquet", compression=codec)
