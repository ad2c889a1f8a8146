/* What the verbs programs of `make interop` share: this card as a host of the rack, its connections, and verbs over them. */
#ifndef FARMEM_CARD_VERBS_H
#define FARMEM_CARD_VERBS_H

#include "card.h"

enum { ROOM = 4 << 20, MIB = 1 << 20, QKEY = 0x1234567, NEAR = 0, BACK = ROOM / 2 };

static struct rack rack;
static struct card card;
static struct ibv_mr *mr;
static uint8_t *memory; /* ROOM bytes: what is sent from the first half, what is received in the second */
static uint64_t host, generation, domain;
static char answer[1 << 16];
static int passed, failed;

__attribute__((format(printf, 2, 3))) static inline void result(bool good, const char *form, ...) {
    va_list args;
    va_start(args, form);
    printf(good ? "ok      " : "FAILED  ");
    vprintf(form, args);
    putchar('\n');
    fflush(stdout);
    *(good ? &passed : &failed) += 1;
}

/* --- Connections ------------------------------------------------------------------------------------------------------------------ */

struct connection {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    uint64_t rkey, pmtu, first_psn, read_len_max, depth;
};

/* A connection of the card's own queue pair to a node. `first_psn` below 0 has the control plane draw one; `more` are further fields. */
static inline struct connection connected_with(uint64_t node, uint64_t of, int64_t first_psn, const char *more) {
    struct connection to = {.cq = card_cq(&card, 256)};
    to.qp = card_qp(&card, IBV_QPT_RC, to.cq, 0, 0);
    char psn[40] = "";
    if (first_psn >= 0)
        snprintf(psn, sizeof psn, ",\"first_psn\":%ld", (long)first_psn);
    rack_ask(&rack, answer, sizeof answer, "connect", "{\"host\":%lu,\"node\":%lu,\"domain\":%lu,\"qpn\":%u%s%s}", host, node, of,
        to.qp->qp_num, psn, more);
    to.rkey = json_number(answer, NULL, "rkey");
    to.pmtu = json_number(answer, NULL, "pmtu");
    to.first_psn = json_number(answer, NULL, "first_psn");
    to.read_len_max = json_number(answer, "limits", "read_len_max");
    to.depth = json_number(answer, "limits", "depth");
    if (json_number(answer, NULL, "qpn") != to.qp->qp_num)
        die("the connection is not the card's queue pair: %s", answer);
    /* Of one through the switch, the switch is the card's peer. */
    const char *peer = strstr(answer, "\"through\":") ? "through" : "node";
    struct way way = {.gid = json_gid(answer, peer), .qpn = json_number(answer, NULL, "peer_qpn"), .send_psn = to.first_psn,
        .pmtu = to.pmtu, .depth = to.depth, .timeout = json_number(answer, "limits", "timeout"),
        .retries = json_number(answer, "limits", "retries"), .rnr_retries = json_number(answer, "limits", "rnr_retries")};
    /* An emulated machine on a busy one stands still for longer than a network ever does. */
    way.timeout += 3;
    int error = card_rc_ready(&card, to.qp, &way);
    if (error)
        die("the card does not take the connection: %s", strerror(error));
    return to;
}

static inline struct connection connected(uint64_t node, uint64_t of, int64_t first_psn) {
    return connected_with(node, of, first_psn, "");
}

static inline void disconnected(struct connection *from) {
    rack_ask(&rack, answer, sizeof answer, "disconnect", "{\"host\":%lu,\"qpn\":%u}", host, from->qp->qp_num);
    ibv_destroy_qp(from->qp);
    ibv_destroy_cq(from->cq);
}

struct vma {
    uint64_t base, size, id;
};

static inline struct vma allocated(uint64_t node, uint64_t of, uint64_t size) {
    rack_ask(&rack, answer, sizeof answer, "allocate", "{\"domain\":%lu,\"size\":%lu,\"node\":%lu}", of, size, node);
    return (struct vma){json_number(answer, NULL, "base"), json_number(answer, NULL, "size"), json_number(answer, NULL, "id")};
}

/* --- Verbs ------------------------------------------------------------------------------------------------------------------------ */

/* Posts one request; `a` and `b` are the operands of an atomic. False when the card refuses it itself. */
static inline bool post(struct connection *on, enum ibv_wr_opcode verb, uint64_t far, uint64_t near, uint32_t len, uint64_t a, uint64_t b) {
    struct ibv_sge part = {.addr = (uintptr_t)memory + near, .length = len, .lkey = mr->lkey};
    struct ibv_send_wr request = {.sg_list = &part, .num_sge = len > 0, .opcode = verb, .send_flags = IBV_SEND_SIGNALED}, *bad;
    bool atomic = verb == IBV_WR_ATOMIC_FETCH_AND_ADD || verb == IBV_WR_ATOMIC_CMP_AND_SWP;
    if (atomic) {
        request.wr.atomic.remote_addr = far, request.wr.atomic.rkey = on->rkey;
        request.wr.atomic.compare_add = a, request.wr.atomic.swap = b;
    } else
        request.wr.rdma.remote_addr = far, request.wr.rdma.rkey = on->rkey;
    return !ibv_post_send(on->qp, &request, &bad);
}

/* How the oldest request that was posted ended. */
static inline enum ibv_wc_status ended(struct connection *on) {
    struct ibv_wc done;
    if (!card_wait(on->cq, &done, 60))
        die("a request did not end in a minute");
    return done.status;
}

static inline enum ibv_wc_status verb(struct connection *on, enum ibv_wr_opcode what, uint64_t far, uint64_t near, uint32_t len) {
    return post(on, what, far, near, len, 0, 0) ? ended(on) : IBV_WC_LOC_QP_OP_ERR;
}

static inline uint64_t word(uint64_t near) {
    uint64_t value;
    memcpy(&value, memory + near, 8);
    return value;
}

static inline void fill(uint64_t near, uint32_t len, uint32_t seed) {
    for (uint32_t i = 0; i < len; i++)
        memory[near + i] = (seed = seed * 1664525 + 1013904223) >> 24;
}

/* WRITE, READ back, compare, and look at the byte before and behind. */
static inline bool there_and_back(struct connection *on, uint64_t far, uint32_t len, uint32_t seed) {
    fill(NEAR, len, seed);
    memset(memory + BACK, 0xee, len + 2);
    enum ibv_wc_status wrote = verb(on, IBV_WR_RDMA_WRITE, far, NEAR, len);
    enum ibv_wc_status read = wrote ? wrote : verb(on, IBV_WR_RDMA_READ, far, BACK + 1, len);
    if (read) {
        printf("        %s of %u bytes: %s\n", wrote ? "WRITE" : "READ", len, ibv_wc_status_str(read));
        return false;
    }
    return !memcmp(memory + NEAR, memory + BACK + 1, len) && memory[BACK] == 0xee && memory[BACK + 1 + len] == 0xee;
}

/* Opens the rack and the card, and registers memory. */
static inline void begin(const char *api, const char *token_file, const char *address) {
    rack_open(&rack, api, token_file);
    card_open(&card, address);
    memory = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!(mr = ibv_reg_mr(card.pd, memory, ROOM, IBV_ACCESS_LOCAL_WRITE)))
        die("memory cannot be registered: %s", strerror(errno));
}

/* Adds up the card's counters of repetitions (rxe; other drivers name theirs otherwise). */
static inline uint64_t repetitions(void) {
    const char *names[] = {"completer_retry_err", "rcvd_seq_err", "retry_rnr_exceeded_err", "retry_exceeded_err", "duplicate_request"};
    uint64_t sum = 0;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        char path[256], text[32];
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/hw_counters/%s", ibv_get_device_name(card.device->device), names[n]);
        FILE *file = fopen(path, "r");
        if (file && fgets(text, sizeof text, file))
            sum += strtoull(text, NULL, 10);
        if (file)
            fclose(file);
    }
    return sum;
}

/* Joins as a host, with the UD queue pair of this card, which is ready, and as a member of a domain. */
static inline void join_as(const char *name, const char *address, struct ibv_cq *cq, struct ibv_qp *qp, const char *of) {
    rack_join(&rack, &card, cq, qp, answer, sizeof answer, "join_host", "{\"name\":\"%s\",\"gid\":\"%s\",\"qpn\":%u,\"qkey\":%u}", name,
        address, qp->qp_num, QKEY);
    host = json_number(answer, NULL, "host");
    generation = json_number(answer, NULL, "generation");
    rack_ask(&rack, answer, sizeof answer, "create_domain", "{\"name\":\"%s\"}", of);
    domain = json_number(answer, NULL, "domain");
}

#endif
