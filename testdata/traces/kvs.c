/* A key-value store whose table all threads share, as Memcached is (MIND 7.1): buckets with locks, items in one heap, and with each
 * item the time it was used last, which reads write too, but at most once a tick, as Memcached does. YCSB: workload A reads and
 * writes by halves, C only reads; keys by a Zipf distribution.
 *
 *     kvs THREADS ITEMS OPERATIONS a|c
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE = 200, TICK = 4096 };

struct item {
    struct item *next;
    uint64_t key, version;
    uint32_t used;
    unsigned char value[VALUE];
};

struct bucket {
    uint32_t lock;
    struct item *items;
};

static uint32_t threads, items, operations, buckets;
static int writes;
static struct bucket *table;
static uint32_t *keys; /* the keys that are asked for, drawn before */
static uint32_t clock_now;
static uint64_t found;
static pthread_barrier_t barrier;

static uint64_t state = 7;
static uint32_t draw(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* YCSB's: theta 0.99; the popular keys are scattered by a hash. */
static void draw_keys(uint32_t count) {
    double theta = 0.99, zeta = 0;
    for (uint32_t i = 1; i <= items; i++) zeta += 1 / pow(i, theta);
    double alpha = 1 / (1 - theta), two = 1 + pow(0.5, theta);
    double eta = (1 - pow(2.0 / items, 1 - theta)) / (1 - two / zeta);
    for (uint32_t i = 0; i < count; i++) {
        double u = draw() / 4294967296.0, uz = u * zeta;
        uint32_t key = uz < 1 ? 0 : uz < two ? 1 : (uint32_t)(items * pow(eta * u - eta + 1, alpha));
        keys[i] = (key * 2654435761u) % items;
    }
}

static struct bucket *bucket_of(uint64_t key) { return &table[(key * 0x9e3779b97f4a7c15u >> 20) % buckets]; }

static void lock(struct bucket *b) {
    while (__atomic_exchange_n(&b->lock, 1, __ATOMIC_ACQUIRE)) sched_yield();
}
static void unlock(struct bucket *b) { __atomic_store_n(&b->lock, 0, __ATOMIC_RELEASE); }

static void *work(void *number) {
    uint32_t me = (uint32_t)(uintptr_t)number;
    unsigned char buffer[VALUE];
    uint64_t mine = 0;
    pthread_barrier_wait(&barrier);
    for (uint32_t op = me; op < operations; op += threads) {
        if (op % 256 == 0) __atomic_fetch_add(&clock_now, 256, __ATOMIC_RELAXED);
        uint64_t key = keys[op];
        struct bucket *b = bucket_of(key);
        lock(b);
        struct item *i = b->items;
        while (i && i->key != key) i = i->next;
        if (i) {
            uint32_t now = clock_now;
            mine++;
            if (writes && (op * 2654435761u >> 16 & 1)) {
                memset(i->value, (int)op, VALUE);
                i->version++;
            } else {
                memcpy(buffer, i->value, VALUE);
            }
            if (now - i->used >= TICK) i->used = now;
        }
        unlock(b);
    }
    __atomic_fetch_add(&found, mine, __ATOMIC_RELAXED);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    threads = atoi(argv[1]), items = atoi(argv[2]), operations = atoi(argv[3]), writes = argv[4][0] == 'a';
    buckets = items;
    table = calloc(buckets, sizeof *table);
    keys = malloc(operations * sizeof *keys);
    struct item *heap = calloc(items, sizeof *heap);
    pthread_t *ids = malloc(threads * sizeof *ids);
    if (!table || !keys || !heap || !ids) return 1;
    for (uint32_t n = 0; n < items; n++) {
        struct bucket *b = bucket_of(n);
        heap[n].key = n, heap[n].next = b->items, b->items = &heap[n];
    }
    draw_keys(operations);
    pthread_barrier_init(&barrier, NULL, threads);
    for (uint32_t n = 0; n < threads; n++)
        if (pthread_create(&ids[n], NULL, work, (void *)(uintptr_t)n)) return 1;
    for (uint32_t n = 0; n < threads; n++) pthread_join(ids[n], NULL);
    printf("%llu of %u found\n", (unsigned long long)found, operations);
    return found != operations;
}
