/* A host whose endpoint is an RDMA card: joins a rack with the card's own queue pair numbers, then tries what verbs have against its
 * memory nodes, and traversals through its switch. Prints a line for each thing tried; ends with 1 when something was not as it must be.
 *
 *     card_host API TOKEN-FILE ADDRESS [loss]
 *
 * `loss`: packets are lost on the way; what must come out is the same, and the card must have counted repetitions. */
#include "card_verbs.h"
#include "list_sum.h"

static bool lossy;

static void sizes(struct connection *on, struct vma vma) {
    uint32_t lens[] = {0, 1, 2, 3, 4, 5, 7, 8, 255, 256, 257, 1021, on->pmtu - 1, on->pmtu, on->pmtu + 1, 2 * on->pmtu, 3 * on->pmtu + 5,
        4095, 4096, 60000, 65535, 65536, 65537, MIB - 3, MIB};
    int wrong = 0, count = 0;
    for (size_t n = 0; n < sizeof lens / sizeof *lens; n++) {
        if (lossy && lens[n] > 65537)
            continue;
        bool good = there_and_back(on, vma.base + n * 3, lens[n], n + 1);
        count++;
        if (!good)
            wrong++, printf("        %u bytes at %+ld did not come back\n", lens[n], (long)n * 3);
    }
    result(!wrong, "WRITE and READ of 0 bytes to 1 MiB, %d lengths, path MTU %lu", count, on->pmtu);
}

static void atomics(struct connection *on, struct vma vma) {
    uint64_t old[3], at = vma.base + 64;
    int wrong = 0, times = lossy ? 200 : 50;
    memset(memory + NEAR, 0, 8);
    wrong += verb(on, IBV_WR_RDMA_WRITE, at, NEAR, 8) != IBV_WC_SUCCESS;
    for (int n = 0; n < times; n++) {
        post(on, IBV_WR_ATOMIC_FETCH_AND_ADD, at, BACK, 8, 3, 0);
        wrong += ended(on) != IBV_WC_SUCCESS || word(BACK) != (uint64_t)n * 3;
    }
    result(!wrong, "%d FETCH_ADDs, each executed once", times);
    post(on, IBV_WR_ATOMIC_CMP_AND_SWP, at, BACK, 8, 1, 99);
    wrong = ended(on) != IBV_WC_SUCCESS;
    old[0] = word(BACK);
    post(on, IBV_WR_ATOMIC_CMP_AND_SWP, at, BACK, 8, times * 3, UINT64_MAX);
    wrong += ended(on) != IBV_WC_SUCCESS;
    old[1] = word(BACK);
    wrong += verb(on, IBV_WR_RDMA_READ, at, BACK, 8) != IBV_WC_SUCCESS;
    old[2] = word(BACK);
    result(!wrong && old[0] == times * 3ull && old[1] == old[0] && old[2] == UINT64_MAX, "CMP_SWAP that misses, and one that hits");
}

/* Many requests posted before the first is answered, more READs and atomics than may be unanswered at once. */
static void depth(struct connection *on, struct vma vma) {
    enum { EACH = 512, ROUNDS = 16 };
    memset(memory + NEAR, 0, 8);
    int wrong = verb(on, IBV_WR_RDMA_WRITE, vma.base + 128, NEAR, 8) != IBV_WC_SUCCESS;
    fill(NEAR, EACH * ROUNDS, 77);
    memset(memory + BACK, 0, EACH * ROUNDS);
    for (int n = 0; n < ROUNDS; n++) {
        post(on, IBV_WR_RDMA_WRITE, vma.base + 8192 + n * EACH, NEAR + n * EACH, EACH, 0, 0);
        post(on, IBV_WR_RDMA_READ, vma.base + 8192 + n * EACH, BACK + n * EACH, EACH, 0, 0);
        post(on, IBV_WR_ATOMIC_FETCH_AND_ADD, vma.base + 128, BACK + MIB + n * 8, 8, 1, 0);
    }
    for (int n = 0; n < 3 * ROUNDS; n++) {
        enum ibv_wc_status status = ended(on);
        if (status != IBV_WC_SUCCESS)
            wrong++, printf("        request %d ended with: %s\n", n, ibv_wc_status_str(status));
    }
    for (int n = 0; n < ROUNDS; n++)
        if (word(BACK + MIB + n * 8) != (uint64_t)n)
            wrong++, printf("        atomic %d found %lu\n", n, word(BACK + MIB + n * 8));
    for (int n = 0; n < EACH * ROUNDS; n++)
        if (memory[NEAR + n] != memory[BACK + n]) {
            wrong++, printf("        byte %d of what was read is %d, and was written as %d\n", n, memory[BACK + n], memory[NEAR + n]);
            break;
        }
    result(!wrong, "48 requests at once, %lu of READ and atomic unanswered", on->depth);
}

/* Each thing that is refused, on a connection of its own: a refusal ends it. */
static void refusals(uint64_t other) {
    struct vma vma = allocated(1, domain, 2 * MIB), small = allocated(1, domain, 4096), foreign = allocated(1, other, 4096);
    struct {
        const char *what;
        enum ibv_wr_opcode verb;
        uint64_t far;
        uint32_t len, rkey_change;
        enum ibv_wc_status status;
    } cases[] = {
        {"a READ with another rkey", IBV_WR_RDMA_READ, vma.base, 8, 1, IBV_WC_REM_ACCESS_ERR},
        {"a WRITE with another rkey", IBV_WR_RDMA_WRITE, vma.base, 60000, 1, IBV_WC_REM_ACCESS_ERR},
        {"an atomic with another rkey", IBV_WR_ATOMIC_FETCH_AND_ADD, vma.base, 8, 1, IBV_WC_REM_ACCESS_ERR},
        {"a READ over the end of an allocation", IBV_WR_RDMA_READ, small.base + 4090, 8, 0, IBV_WC_REM_ACCESS_ERR},
        {"a WRITE over the end of an allocation", IBV_WR_RDMA_WRITE, small.base + 4090, 8, 0, IBV_WC_REM_ACCESS_ERR},
        {"a READ of what is no memory", IBV_WR_RDMA_READ, 0, 8, 0, IBV_WC_REM_ACCESS_ERR},
        {"a READ of another domain's bytes", IBV_WR_RDMA_READ, foreign.base, 8, 0, IBV_WC_REM_ACCESS_ERR},
        {"a WRITE to another domain's bytes", IBV_WR_RDMA_WRITE, foreign.base, 8, 0, IBV_WC_REM_ACCESS_ERR},
        {"a READ longer than read_len_max", IBV_WR_RDMA_READ, vma.base, MIB + 1, 0, IBV_WC_REM_INV_REQ_ERR},
        {"an atomic at an address that is no multiple of 8", IBV_WR_ATOMIC_FETCH_AND_ADD, vma.base + 4, 8, 0, IBV_WC_REM_INV_REQ_ERR},
        {"a SEND, which nothing receives", IBV_WR_SEND, 0, 8, 0, IBV_WC_REM_INV_REQ_ERR},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct connection on = connected(1, domain, -1);
        if (!there_and_back(&on, vma.base, 100, n))
            die("the connection for %s does not work", cases[n].what);
        on.rkey ^= cases[n].rkey_change;
        enum ibv_wc_status status = verb(&on, cases[n].verb, cases[n].far, NEAR, cases[n].len);
        /* Soft-RoCE does not even send an atomic that is not aligned. */
        bool unsent = status == IBV_WC_LOC_QP_OP_ERR && cases[n].far % 8 && cases[n].verb == IBV_WR_ATOMIC_FETCH_AND_ADD;
        result(status == cases[n].status || unsent, "%s: %s", cases[n].what, unsent ? "not sent by the card" : ibv_wc_status_str(status));
        disconnected(&on);
    }
    struct connection on = connected(1, domain, -1);
    rack_ask(&rack, answer, sizeof answer, "disconnect", "{\"host\":%lu,\"qpn\":%u}", host, on.qp->qp_num);
    enum ibv_wc_status status = verb(&on, IBV_WR_RDMA_READ, vma.base, NEAR, 8);
    result(status == IBV_WC_RETRY_EXC_ERR, "a READ on a connection that was taken down: %s", ibv_wc_status_str(status));
    char body[128];
    struct connection twice = connected(1, domain, -1);
    snprintf(body, sizeof body, "{\"host\":%lu,\"node\":1,\"domain\":%lu,\"qpn\":%u}", host, domain, twice.qp->qp_num);
    int http = rack_try(&rack, answer, sizeof answer, "connect", body);
    result(http == 409 && strstr(answer, "disconnect"), "a second connection of one queue pair: %d, %s", http, answer);
    disconnected(&twice);
}

/* --- Datagrams -------------------------------------------------------------------------------------------------------------------- */

enum { GRH = 40, DETAILS = 24 + 40, DATAGRAM = 2048 };

struct session {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_ah *to;
    uint32_t qpn, qkey;
};

static void room_for_one(struct session *at) {
    struct ibv_sge part = {.addr = (uintptr_t)memory + BACK, .length = DATAGRAM, .lkey = mr->lkey};
    struct ibv_recv_wr room = {.sg_list = &part, .num_sge = 1}, *bad;
    if (ibv_post_recv(at->qp, &room, &bad))
        die("no room for datagrams");
}

/* A list over two nodes is added up by a traversal: the switch routes it, each node follows the pointers that are its own, and the last
 * one answers the card directly (PROTOCOL 3.8, 6.10, 7.18). Repeated until it is answered, as any request is. */
static void traversal(struct session *at, uint32_t counter, uint64_t first, uint64_t sum, uint64_t count) {
    uint8_t *out = memory + NEAR, *in = memory + BACK;
    uint32_t len = DETAILS + 16 + sizeof list_sum;
    memset(out, 0, len);
    put(out, 1, 1), put(out + 1, 1, 0x10), put(out + 8, 8, host << 48 | generation << 32 | counter), put(out + 18, 1, 64);
    memcpy(out + 24, list_sum_hash, 16);
    put(out + 40, 8, first), put(out + 52, 4, 1000), put(out + 56, 2, 16), put(out + 58, 2, sizeof list_sum);
    memcpy(out + DETAILS + 16, list_sum, sizeof list_sum);
    for (int tries = 0; tries < 50; tries++) {
        struct ibv_sge all = {.addr = (uintptr_t)out, .length = len, .lkey = mr->lkey};
        struct ibv_send_wr request = {.sg_list = &all, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
            .wr.ud = {.ah = at->to, .remote_qpn = at->qpn, .remote_qkey = at->qkey}}, *bad;
        if (ibv_post_send(at->qp, &request, &bad))
            die("the card takes no datagram");
        struct ibv_wc done = {0};
        const uint8_t *message = in + GRH, *pad = message + DETAILS;
        bool mine = false;
        while (!mine && card_wait(at->cq, &done, 0.5)) {
            if (done.opcode == IBV_WC_SEND)
                continue;
            /* One that was repeated may be answered twice: an answer to an earlier one is not this one's. */
            mine = done.byte_len >= GRH + DETAILS + 16 && get(message + 8, 8) == get(out + 8, 8) && message[3] == 1;
            if (!mine)
                room_for_one(at);
        }
        if (!mine)
            continue;
        room_for_one(at);
        uint64_t got_sum = le64toh(*(const uint64_t *)pad), got_count = le64toh(*(const uint64_t *)(pad + 8));
        result(done.status == 0 && message[2] == 0 && got_sum == sum && got_count == count,
            "a traversal by UD over two nodes: status %u, %lu nodes add up to %lu", message[2], got_count, got_sum);
        return;
    }
    result(false, "a traversal by UD is not answered");
}

static void datagrams(struct session *at) {
    struct connection to[2] = {connected(1, domain, -1), connected(2, domain, -1)};
    struct vma vmas[2] = {allocated(1, domain, 4096), allocated(2, domain, 4096)};
    enum { NODES = 24 };
    uint64_t sum = 0, first = vmas[0].base;
    for (uint64_t n = 0; n < NODES; n++) {
        uint64_t value = n * n + 1, next = n + 1 == NODES ? 0 : vmas[(n + 1) % 2].base + (n + 1) / 2 * 16;
        uint64_t node[2] = {htole64(value), htole64(next)};
        memcpy(memory + NEAR, node, 16);
        enum ibv_wc_status status = verb(&to[n % 2], IBV_WR_RDMA_WRITE, vmas[n % 2].base + n / 2 * 16, NEAR, 16);
        if (status)
            die("node %lu of the list could not be written: %s", n, ibv_wc_status_str(status));
        sum += value;
    }
    room_for_one(at);
    for (uint32_t n = 0; n < 5; n++)
        traversal(at, n + 1, first, sum, NODES);
    disconnected(&to[0]), disconnected(&to[1]);
}

/* --- All of it -------------------------------------------------------------------------------------------------------------------- */

static void join(const char *address, struct session *at) {
    at->cq = card_cq(&card, 64);
    at->qp = card_qp(&card, IBV_QPT_UD, at->cq, 0, QKEY);
    card_ud_ready(at->qp);
    join_as("card", address, at->cq, at->qp, "cards");
    rack_ask(&rack, answer, sizeof answer, "open_session", "{\"host\":%lu,\"domain\":%lu}", host, domain);
    at->qpn = json_number(answer, "switch", "qpn");
    at->qkey = json_number(answer, "switch", "qkey");
    struct ibv_ah_attr way = card_way(&card, json_gid(answer, "switch"));
    if (!(at->to = ibv_create_ah(card.pd, &way)))
        die("no way to the switch: %s", strerror(errno));
}

int main(int argc, char **argv) {
    if (argc < 4)
        die("usage: card_host API TOKEN-FILE ADDRESS [loss]");
    lossy = argc > 4 && !strcmp(argv[4], "loss");
    begin(argv[1], argv[2], argv[3]);
    struct session at;
    join(argv[3], &at);
    rack_ask(&rack, answer, sizeof answer, "create_domain", "{\"name\":\"others\"}");
    uint64_t others = json_number(answer, NULL, "domain"), before = repetitions();
    struct vma vma = allocated(1, domain, 2 * MIB);
    struct connection on = connected(1, domain, -1);
    memset(memory + BACK, 1, MIB);
    bool zero = verb(&on, IBV_WR_RDMA_READ, vma.base, BACK, lossy ? 4096 : MIB) == IBV_WC_SUCCESS;
    for (uint32_t n = 0; n < (lossy ? 4096 : MIB); n++)
        zero = zero && !memory[BACK + n];
    result(zero, "memory that was just allocated is zero");
    sizes(&on, vma), atomics(&on, vma), depth(&on, vma);
    disconnected(&on);
    on = connected(1, domain, 0xffffe0);
    bool wraps = on.first_psn == 0xffffe0 && there_and_back(&on, vma.base, 100000, 5);
    for (uint32_t n = 0; n < 60; n++)
        wraps = wraps && there_and_back(&on, vma.base + n, 200 + n, n);
    result(wraps, "PSNs that wrap, in WRITEs and READs, from 0xffffe0");
    atomics(&on, vma);
    disconnected(&on);
    if (!lossy)
        refusals(others);
    datagrams(&at);
    if (lossy)
        result(repetitions() > before, "%lu repetitions that the card counted", repetitions() - before);
    rack_ask(&rack, answer, sizeof answer, "leave", "{\"port\":%lu}", 0x10000 + host);
    printf("card_host: %d passed, %d failed\n", passed, failed);
    return failed > 0;
}
