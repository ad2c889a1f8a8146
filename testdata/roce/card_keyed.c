/* Keyed READs by verbs (PROTOCOL 15; Fat-B+Tree III-D): an ordinary reliable connection, set up through the rack's switch; a READ with rkey 0 and the key in the place of the
 * address brings the deepest node on the way to the key that the switch knows. From there ordinary READs of the same connection go on. What is looked up is the tree
 * that the example `card_tree` makes: the keys 0, 3, 6 and so on, each with a third of it, and the last key with 7.
 *
 *     card_keyed API TOKEN-FILE ADDRESS ROOT KEYS READS [all|loss]
 *
 * READS is how many READs a look-up must take: one for each level from where the switch leads on. `all`: ordinary verbs of the connection and everything that is refused, too;
 * `loss`: packets are lost on the way, and the card must have counted repetitions. */
#include "card_verbs.h"

enum { NODE = 256, RIGHT = 8, LAST = 24, KEYS = 32, VALUES = 144, READS_MAX = 16 };

static uint64_t root, keys;
static bool lossy;

static struct connection through(uint64_t of, uint64_t tree, int64_t first_psn) {
    char more[64] = ",\"through\":true";
    if (tree)
        snprintf(more, sizeof more, ",\"through\":true,\"root\":%lu", tree);
    return connected_with(1, of, first_psn, more);
}

/* A READ whose key is in the place of the address: its rkey is 0. */
static bool post_keyed(struct connection *on, uint64_t key, uint64_t near, uint32_t len) {
    struct connection keyed = *on;
    keyed.rkey = 0;
    return post(&keyed, IBV_WR_RDMA_READ, key, near, len, 0, 0);
}

static enum ibv_wc_status keyed(struct connection *on, uint64_t key, uint64_t near, uint32_t len) {
    return post_keyed(on, key, near, len) ? ended(on) : IBV_WC_LOC_QP_OP_ERR;
}

/* A word of a node, little-endian. */
static uint64_t at(uint64_t near, uint32_t offset) { return le64toh(word(near + offset)); }

/* Where a node leads for a key: 1 to the right or down, to `next`; 0 when it is the key's leaf, with what it has; -1 when it is no node that is read. */
static int step(uint64_t near, uint64_t key, uint64_t *next, bool *found) {
    uint64_t head = at(near, 0), entries = head >> 57 & 15, level = head >> 52 & 31;
    if (head >> 61 > 3 || entries > 14)
        return -1;
    if (key > at(near, LAST)) {
        *next = at(near, RIGHT);
        return 1;
    }
    *found = false;
    for (uint64_t n = 0; n < entries; n++) {
        uint64_t here = at(near, KEYS + 8 * n), value = at(near, VALUES + 8 * n);
        if (level ? here <= key : here == key)
            *next = value, *found = true;
    }
    return level > 0;
}

/* Looks a key up; answers how many READs it took, 0 when it did not end well. */
static int look_up(struct connection *on, uint64_t key, bool *found, uint64_t *value) {
    enum ibv_wc_status status = keyed(on, key, BACK, NODE);
    for (int reads = 1; reads <= READS_MAX; reads++) {
        if (status) {
            printf("        READ %d of key %lu: %s\n", reads, key, ibv_wc_status_str(status));
            return 0;
        }
        int goes_on = step(BACK, key, value, found);
        if (goes_on <= 0)
            return goes_on ? 0 : reads;
        status = verb(on, IBV_WR_RDMA_READ, *value, BACK, NODE);
    }
    return 0;
}

/* What the tree has of a key. */
static bool has(uint64_t key, uint64_t *value) {
    *value = key == UINT64_MAX ? 7 : key / 3;
    return key == UINT64_MAX || (key % 3 == 0 && key / 3 < keys);
}

static void look_ups(struct connection *on, int reads) {
    uint64_t ends[] = {0, 1, 3 * keys - 3, 3 * keys, UINT64_MAX - 1, UINT64_MAX};
    int wrong = 0, count = 0, other = 0;
    for (uint64_t n = 0; n < 306; n++) {
        uint64_t key = n < 6 ? ends[n] : n * 7919 % (3 * keys), value = 0, expected;
        bool found = false, is_there = has(key, &expected);
        int took = look_up(on, key, &found, &value);
        count++;
        if (!took || found != is_there || (found && value != expected))
            wrong++, printf("        key %lu: %d READs, %s %lu\n", key, took, found ? "value" : "none", value);
        other += took && took != reads;
    }
    result(!wrong && !other, "%d keys by keyed READs, %d READs each, path MTU %lu: %d wrong, %d by other READs", count, reads, on->pmtu, wrong,
        other);
}

/* Many at once, with READs of the root in between: each brings its own node. */
static void side_by_side(struct connection *on) {
    enum { EACH = 16 };
    int wrong = 0;
    memset(memory + BACK, 0, 2 * EACH * NODE);
    for (uint64_t n = 0; n < EACH; n++) {
        wrong += !post_keyed(on, 3 * n * (keys / EACH), BACK + 2 * n * NODE, NODE);
        wrong += !post(on, IBV_WR_RDMA_READ, root, BACK + (2 * n + 1) * NODE, NODE, 0, 0);
    }
    for (int n = 0; n < 2 * EACH; n++)
        wrong += ended(on) != IBV_WC_SUCCESS;
    for (uint64_t n = 0; n < EACH; n++) {
        uint64_t next = 0;
        bool found;
        wrong += step(BACK + 2 * n * NODE, 3 * n * (keys / EACH), &next, &found) != 0 || !found || next != n * (keys / EACH);
        wrong += memcmp(memory + BACK + (2 * n + 1) * NODE, memory + BACK + NODE, NODE) != 0;
    }
    result(!wrong, "%d keyed READs and %d READs of the same connection at once", EACH, EACH);
}

/* Every length that a packet has room for; a part of a node is its beginning. */
static void lengths(struct connection *on) {
    uint32_t lens[] = {1, 2, 3, 7, 8, 32, 255, 256, on->pmtu - 1, on->pmtu};
    int wrong = keyed(on, 300, NEAR, NODE) != IBV_WC_SUCCESS, count = 0;
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++, count++) {
        memset(memory + BACK, 0xee, on->pmtu + 2);
        wrong += keyed(on, 300, BACK + 1, lens[n]) != IBV_WC_SUCCESS;
        wrong += memcmp(memory + NEAR, memory + BACK + 1, lens[n] < NODE ? lens[n] : NODE) != 0;
        wrong += memory[BACK] != 0xee || memory[BACK + 1 + lens[n]] != 0xee;
    }
    result(!wrong, "keyed READs of %d lengths, 1 byte to the path MTU", count);
}

/* Ordinary verbs over the same connection, which the switch leaves as they are. */
static void ordinary(struct connection *on) {
    struct vma vma = allocated(1, domain, 2 * MIB);
    uint32_t lens[] = {0, 1, 8, 255, on->pmtu, on->pmtu + 1, 65537, lossy ? 4096 : MIB};
    int wrong = 0;
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++)
        wrong += !there_and_back(on, vma.base + n, lens[n], n + 1);
    memset(memory + NEAR, 0, 8);
    wrong += verb(on, IBV_WR_RDMA_WRITE, vma.base, NEAR, 8) != IBV_WC_SUCCESS;
    for (uint64_t n = 0; n < 20; n++) {
        post(on, IBV_WR_ATOMIC_FETCH_AND_ADD, vma.base, BACK, 8, 5, 0);
        wrong += ended(on) != IBV_WC_SUCCESS || word(BACK) != 5 * n;
    }
    post(on, IBV_WR_ATOMIC_CMP_AND_SWP, vma.base, BACK, 8, 100, 1);
    wrong += ended(on) != IBV_WC_SUCCESS || word(BACK) != 100;
    result(!wrong, "WRITEs, READs and atomics of the same connection");
}

/* Each thing that is refused, on a connection of its own. */
static void refusals(void) {
    rack_ask(&rack, answer, sizeof answer, "create_domain", "{\"name\":\"strangers\"}");
    uint64_t strangers = json_number(answer, NULL, "domain");
    struct {
        const char *what;
        uint64_t of, tree;
        uint32_t more;
        enum ibv_wc_status status;
    } cases[] = {
        {"a keyed READ longer than the path MTU", domain, root, 1, IBV_WC_REM_INV_REQ_ERR},
        {"a keyed READ of 1 MiB", domain, root, MIB, IBV_WC_REM_INV_REQ_ERR},
        {"a keyed READ over a connection without a tree", domain, 0, 0, IBV_WC_REM_ACCESS_ERR},
        {"a keyed READ of a tree of another domain", strangers, root, 0, IBV_WC_REM_ACCESS_ERR},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct connection on = through(cases[n].of, cases[n].tree, -1);
        enum ibv_wc_status status = keyed(&on, 300, BACK, cases[n].more ? on.pmtu + cases[n].more : NODE);
        result(status == cases[n].status, "%s: %s", cases[n].what, ibv_wc_status_str(status));
        disconnected(&on);
    }
    struct connection straight = connected(1, domain, -1);
    enum ibv_wc_status status = keyed(&straight, 300, BACK, NODE);
    result(status == IBV_WC_REM_ACCESS_ERR, "a keyed READ over a connection past the switch: %s", ibv_wc_status_str(status));
    disconnected(&straight);
    char body[160];
    struct ibv_qp *qp = card_qp(&card, IBV_QPT_RC, card_cq(&card, 4), 0, 0);
    snprintf(body, sizeof body, "{\"host\":%lu,\"node\":1,\"domain\":%lu,\"qpn\":%u,\"root\":%lu}", host, domain, qp->qp_num, root);
    int http = rack_try(&rack, answer, sizeof answer, "connect", body);
    result(http == 400, "a root without `through`: %d, %s", http, answer);
}

int main(int argc, char **argv) {
    if (argc < 7)
        die("usage: card_keyed API TOKEN-FILE ADDRESS ROOT KEYS READS [all|loss]");
    root = strtoull(argv[4], NULL, 0), keys = strtoull(argv[5], NULL, 0);
    int reads = atoi(argv[6]);
    bool all = argc > 7 && !strcmp(argv[7], "all");
    lossy = argc > 7 && !strcmp(argv[7], "loss");
    begin(argv[1], argv[2], argv[3]);
    struct ibv_cq *cq = card_cq(&card, 4);
    struct ibv_qp *ud = card_qp(&card, IBV_QPT_UD, cq, 0, QKEY);
    card_ud_ready(ud);
    join_as("card", argv[3], cq, ud, "cards");
    uint64_t before = repetitions();
    struct connection on = through(domain, root, -1);
    look_ups(&on, reads);
    if (all || lossy) {
        side_by_side(&on);
        lengths(&on);
        ordinary(&on);
        disconnected(&on);
        on = through(domain, root, 0xffffe0);
        look_ups(&on, reads);
        result(on.first_psn == 0xffffe0, "and with PSNs that wrap, from 0xffffe0");
    }
    disconnected(&on);
    if (all)
        refusals();
    if (lossy)
        result(repetitions() > before, "%lu repetitions that the card counted", repetitions() - before);
    rack_ask(&rack, answer, sizeof answer, "leave", "{\"port\":%lu}", 0x10000 + host);
    printf("card_keyed: %d passed, %d failed\n", passed, failed);
    return failed > 0;
}
