"""What NetworKit finds in a graph: a line for each algorithm, its name and a value for each vertex ("-" for none).

by_networkit.py VERTICES SOURCE SAMPLE... < EDGES, each a line of source, target and weight. Exit code 3: NetworKit is absent.
"""

import sys

try:
    import networkit as nk
except ImportError:
    sys.exit(3)

FAR = 1e300


def graph(edges, vertices, *, directed, weighted):
    made = nk.Graph(vertices, weighted=weighted, directed=directed)
    for source, target, weight in edges:
        if directed or source < target:
            made.addEdge(source, target, weight)
    return made


def say(name, values):
    print(name, *("-" if value is None else repr(value) for value in values))


def reached(distances):
    return [None if distance > FAR else int(distance) for distance in distances]


def main():
    vertices, source, sample = int(sys.argv[1]), int(sys.argv[2]), [int(one) for one in sys.argv[3:]]
    edges = [tuple(int(word) for word in line.split()) for line in sys.stdin]
    known = set(edges)
    plain = graph(edges, vertices, directed=True, weighted=False)
    weighted = graph(edges, vertices, directed=True, weighted=True)

    say("bfs", reached(nk.distance.BFS(plain, source).run().getDistances()))
    say("sssp", reached(nk.distance.Dijkstra(weighted, source).run().getDistances()))
    searches = [reached(nk.distance.BFS(plain, one).run().getDistances()) for one in sample]
    farthest = [[far for far in column if far is not None] for column in zip(*searches)]
    say("radii", [max(column) if column else None for column in farthest])
    sinks = nk.centrality.SinkHandling.DistributeSinks
    ranks = nk.centrality.PageRank(plain, damp=0.85, tol=1e-13, distributeSinks=sinks)
    say("pagerank", ranks.run().scores())
    say("bc", nk.centrality.Betweenness(plain).run().scores())
    label = [None] * vertices
    for component in nk.components.WeaklyConnectedComponents(plain).run().getComponents():
        for vertex in component:
            label[vertex] = min(component)
    say("components", label)
    if all((target, source, weight) in known for source, target, weight in edges):
        both = graph(edges, vertices, directed=False, weighted=False)
        both.indexEdges()
        triangles = nk.sparsification.TriangleEdgeScore(both).run().scores()
        say("triangles", [int(sum(triangles)) // 3])


main()
