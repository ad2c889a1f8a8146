/* PageRank over a shared graph in the manner of GraphChi (MIND 7.1): workers own ranges of vertices. A vertex reads the values of the
 * edges that come in, which lie together, and writes those of the edges that go out, which lie with the vertices they lead to: most
 * near, some far away, at the popular ones.
 *
 *     pagerank WORKERS VERTICES EDGES ROUNDS
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { NEAR = 512 };

static uint32_t workers, vertices, edges, rounds;
static uint32_t *in, *out;    /* the first edge of each vertex, among those that come in and that go out */
static uint32_t *place;       /* of each edge that goes out: where its value is */
static float *rank, *value;
static pthread_barrier_t barrier;

static uint64_t state = 1;
static uint32_t draw(uint32_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)((state >> 32) * n >> 32);
}

static uint32_t target_of(uint32_t v) {
    if (draw(16) > 0) return (v + vertices - NEAR / 2 + draw(NEAR)) % vertices;
    uint32_t a = draw(vertices), b = draw(vertices), c = draw(vertices);
    a = a < b ? a : b;
    return a < c ? a : c;
}

static void *work(void *number) {
    uint32_t me = (uint32_t)(uintptr_t)number;
    uint32_t from = (uint64_t)vertices * me / workers, to = (uint64_t)vertices * (me + 1) / workers;
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t v = from; v < to; v++) {
            float sum = 0;
            for (uint32_t e = in[v]; e < in[v + 1]; e++) sum += value[e];
            rank[v] = 0.15f + 0.85f * sum;
            float share = rank[v] / (float)(out[v + 1] - out[v] + 1);
            for (uint32_t e = out[v]; e < out[v + 1]; e++) value[place[e]] = share;
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    workers = atoi(argv[1]), vertices = atoi(argv[2]), edges = atoi(argv[3]), rounds = atoi(argv[4]);
    in = calloc(vertices + 1, sizeof *in);
    out = calloc(vertices + 1, sizeof *out);
    place = malloc(edges * sizeof *place);
    rank = calloc(vertices, sizeof *rank);
    value = calloc(edges, sizeof *value);
    uint32_t *next = malloc(vertices * sizeof *next);
    pthread_t *threads = malloc(workers * sizeof *threads);
    if (!in || !out || !place || !rank || !value || !next || !threads) return 1;
    for (uint32_t v = 0; v <= vertices; v++) out[v] = (uint64_t)edges * v / vertices;
    for (uint32_t v = 0; v < vertices; v++)
        for (uint32_t e = out[v]; e < out[v + 1]; e++) in[(place[e] = target_of(v)) + 1]++;
    for (uint32_t v = 0; v < vertices; v++) in[v + 1] += in[v], next[v] = in[v];
    for (uint32_t e = 0; e < edges; e++) value[place[e] = next[place[e]]++] = 0.1f;
    pthread_barrier_init(&barrier, NULL, workers);
    for (uint32_t n = 0; n < workers; n++)
        if (pthread_create(&threads[n], NULL, work, (void *)(uintptr_t)n)) return 1;
    for (uint32_t n = 0; n < workers; n++) pthread_join(threads[n], NULL);
    double sum = 0;
    for (uint32_t v = 0; v < vertices; v++) sum += rank[v];
    printf("the mean rank of %u vertices is %.3f\n", vertices, sum / vertices);
    return 0;
}
