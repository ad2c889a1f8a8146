/* Memory of this machine as a memory node of a rack, by its RDMA card: registers it, joins, and does what the control plane's updates say
 * (PROTOCOL 14.12 to 14.19). READ, WRITE and atomics of the rack's hosts are then the card's work, not this program's.
 *
 *     card_node API TOKEN-FILE ADDRESS NAME DOMAIN MEBIBYTES [BASE]
 *
 * DOMAIN is a domain's name; all of the memory is that domain's. BASE is its first address, 0x400000000000 if left out. Runs until it is
 * killed; its memory goes with it. */
#include "card.h"

enum { QKEY = 0x2345678, QUEUE_PAIRS = 16, SLOTS = 16, DATAGRAM = 2048, GRH = 40, HEADER = 24, PEERS_MAX = 256 };

static struct rack rack;
static struct card card;
static char answer[1 << 16];

static uint8_t *memory;
static uint64_t base, size;

/* The queue pairs that connections get, and who has them. */
static struct {
    struct ibv_qp *qp;
    bool taken;
} pairs[QUEUE_PAIRS];
static struct ibv_cq *pairs_cq;

/* Ports of the rack whose address is known. */
static struct {
    uint32_t port;
    union ibv_gid gid;
} peers[PEERS_MAX];
static int peers_known;

/* --- Updates (PROTOCOL 3.5, 3.10) ------------------------------------------------------------------------------------------------- */

enum status { OK = 0, OUT_OF_BOUNDS = 7, MALFORMED = 9, TABLE_FULL = 12, VERSION = 13, UNSUPPORTED = 14 };

/* Bytes of each update behind its tag; 0: one that is not for a card. */
static const uint8_t lengths[] = {[1] = 28, [2] = 4, [10] = 16, [11] = 26, [12] = 4, [16] = 16};

static enum status peer(uint32_t port, const uint8_t *gid) {
    int at = 0;
    while (at < peers_known && peers[at].port != port)
        at++;
    if (!gid) {
        if (at < peers_known)
            peers[at] = peers[--peers_known];
        return OK;
    }
    if (at == PEERS_MAX)
        return TABLE_FULL;
    peers_known += at == peers_known;
    peers[at].port = port;
    memcpy(&peers[at].gid, gid, 16);
    return OK;
}

static int pair_of(uint32_t qpn) {
    for (int n = 0; n < QUEUE_PAIRS; n++)
        if (pairs[n].qp->qp_num == qpn)
            return n;
    return -1;
}

static const int ACCESS = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/* Ready for a connection again, under the same number. */
static enum status renew(int n) {
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RESET};
    if (ibv_modify_qp(pairs[n].qp, &to, IBV_QP_STATE))
        return MALFORMED;
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
    pairs[n].taken = false;
    return ibv_modify_qp(pairs[n].qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ? MALFORMED : OK;
}

static enum status connect_pair(const uint8_t *at) {
    int n = pair_of(get(at, 4));
    uint32_t port = get(at + 8, 4), mtu = get(at + 24, 2);
    struct way way = {.qpn = get(at + 4, 4), .expect_psn = get(at + 12, 4), .pmtu = mtu, .depth = 16, .timeout = 14, .retries = 6, .rnr_retries = 6};
    int known = 0;
    while (known < peers_known && peers[known].port != port)
        known++;
    if (n < 0 || known == peers_known || mtu < 256 || mtu > 4096 || mtu & (mtu - 1))
        return MALFORMED;
    way.gid = peers[known].gid;
    if (pairs[n].taken && renew(n))
        return MALFORMED;
    int error = card_rc_ready(&card, pairs[n].qp, &way);
    pairs[n].taken = true;
    if (error)
        fprintf(stderr, "card_node: queue pair %u cannot be set to port %u: %s\n", pairs[n].qp->qp_num, port, strerror(error));
    return error ? MALFORMED : OK;
}

static enum status apply(uint8_t tag, const uint8_t *at) {
    uint64_t first = get(at, 8), len = lengths[tag] == 16 ? get(at + 8, 8) : 0;
    int n;
    switch (tag) {
    case 1:
        return peer(get(at, 4), at + 4);
    case 2:
        return peer(get(at, 4), NULL);
    case 10: /* Clear: what it was is seen by no one who gets it next. */
        if (first < base || len > size || first - base > size - len)
            return OUT_OF_BOUNDS;
        memset(memory + (first - base), 0, len);
        return OK;
    case 11:
        return connect_pair(at);
    case 12:
        n = pair_of(get(at, 4));
        return n < 0 || !pairs[n].taken ? OK : renew(n);
    case 16: /* AcceptLost: it is zero already, since this program began with zeros. */
        return OK;
    }
    return UNSUPPORTED;
}

/* Reads the updates of a batch, or applies them. Answers how it ended; `refused` is which update did not go. */
static enum status batch(const uint8_t *body, uint32_t len, bool doing, uint16_t *refused) {
    uint32_t at = 12, count = get(body + 10, 2);
    for (*refused = 0; *refused < count; *refused += 1) {
        if (at >= len || body[at] >= sizeof lengths || at + 1 + lengths[body[at]] > len)
            return MALFORMED;
        if (!lengths[body[at]])
            return UNSUPPORTED;
        enum status status = doing ? apply(body[at], body + at + 1) : OK;
        if (status)
            return status;
        at += 1 + lengths[body[at]];
    }
    *refused = 0;
    return at == len ? OK : MALFORMED;
}

/* --- The control plane's datagrams ------------------------------------------------------------------------------------------------- */

static struct {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_ah *control;
    union ibv_gid control_gid;
    uint32_t control_qpn, control_qkey;
    uint8_t bytes[SLOTS + 1][DATAGRAM]; /* the last one is what is sent */
} at;

static void room(int slot) {
    struct ibv_sge part = {.addr = (uintptr_t)at.bytes[slot], .length = DATAGRAM, .lkey = at.mr->lkey};
    struct ibv_recv_wr request = {.wr_id = slot, .sg_list = &part, .num_sge = 1}, *bad;
    if (ibv_post_recv(at.qp, &request, &bad))
        die("no room for datagrams");
}

/* Whether a datagram came from the control plane's address, which stands before it: an IPv6 header, or an IPv4 header in the last 20 of its 40
 * bytes. */
static bool is_of_control(const uint8_t *grh) {
    static const uint8_t v4[12] = {[10] = 0xff, [11] = 0xff};
    if (memcmp(at.control_gid.raw, v4, 12))
        return !memcmp(grh + 8, at.control_gid.raw, 16);
    return !memcmp(grh + 20 + 12, at.control_gid.raw + 12, 4);
}

/* Answers one datagram of `len` bytes, if it is the control plane's and in turn (PROTOCOL 5.9, 5.10). */
static void datagram(const uint8_t *message, uint32_t len, uint32_t from) {
    static uint64_t last;
    static uint8_t last_status;
    static uint16_t last_refused;
    if (from != at.control_qpn || len < HEADER + 12 || message[1] != 0x20 || message[3])
        return;
    uint64_t seq = get(message + HEADER, 8);
    uint8_t status = last_status;
    uint16_t refused = last_refused;
    if (seq == last + 1) {
        /* Nothing is applied of a batch that cannot be read as a whole. */
        status = message[0] == 1 ? batch(message + HEADER, len - HEADER, false, &refused) : VERSION;
        if (!status)
            status = batch(message + HEADER, len - HEADER, true, &refused);
        if (status)
            fprintf(stderr, "card_node: batch %lu is refused at update %u with status %u\n", seq, refused, status);
        last = seq, last_status = status, last_refused = refused;
    } else if (seq != last)
        return;
    uint8_t *out = at.bytes[SLOTS];
    memset(out, 0, HEADER + 12);
    memcpy(out, message, 16);
    put(out, 1, 1), put(out + 2, 1, status), put(out + 3, 1, 1);
    put(out + HEADER, 8, seq), put(out + HEADER + 8, 2, status ? refused : 0);
    struct ibv_sge all = {.addr = (uintptr_t)out, .length = HEADER + 12, .lkey = at.mr->lkey};
    struct ibv_send_wr request = {.wr_id = SLOTS, .sg_list = &all, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
        .wr.ud = {.ah = at.control, .remote_qpn = at.control_qpn, .remote_qkey = at.control_qkey}}, *bad;
    if (ibv_post_send(at.qp, &request, &bad))
        die("the card takes no datagram");
}

static void serve(void) {
    for (struct ibv_wc done;;) {
        if (!card_wait(at.cq, &done, 0.05)) {
            usleep(1000);
            continue;
        }
        if (done.wr_id == SLOTS)
            continue;
        if (done.status == IBV_WC_SUCCESS && done.byte_len > GRH && is_of_control(at.bytes[done.wr_id]))
            datagram(at.bytes[done.wr_id] + GRH, done.byte_len - GRH, done.src_qp);
        room(done.wr_id);
    }
}

int main(int argc, char **argv) {
    if (argc < 7)
        die("usage: card_node API TOKEN-FILE ADDRESS NAME DOMAIN MEBIBYTES [BASE]");
    rack_open(&rack, argv[1], argv[2]);
    card_open(&card, argv[3]);
    size = strtoull(argv[6], NULL, 0) << 20;
    base = argc > 7 ? strtoull(argv[7], NULL, 0) : 0x400000000000;
    /* At the rack's own addresses, so that the card takes them as they come; fresh, so zero. */
    memory = mmap((void *)base, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory != (void *)base)
        die("no %lu bytes of memory at %#lx: %s", size, base, strerror(errno));
    struct ibv_mr *mr = ibv_reg_mr(card.pd, memory, size, IBV_ACCESS_LOCAL_WRITE | ACCESS);
    if (!mr || !(at.mr = ibv_reg_mr(card.pd, at.bytes, sizeof at.bytes, IBV_ACCESS_LOCAL_WRITE)))
        die("memory cannot be registered: %s (see `ulimit -l`)", strerror(errno));
    pairs_cq = card_cq(&card, 64);
    char numbers[QUEUE_PAIRS * 10] = "";
    for (int n = 0; n < QUEUE_PAIRS; n++) {
        pairs[n].qp = card_qp(&card, IBV_QPT_RC, pairs_cq, ACCESS, 0);
        sprintf(numbers + strlen(numbers), "%s%u", n ? "," : "", pairs[n].qp->qp_num);
    }
    at.cq = card_cq(&card, 64);
    at.qp = card_qp(&card, IBV_QPT_UD, at.cq, 0, QKEY);
    card_ud_ready(at.qp);
    rack_ask(&rack, answer, sizeof answer, "create_domain", "{\"name\":\"%s\"}", argv[5]);
    uint64_t domain = json_number(answer, NULL, "domain");
    rack_join(&rack, &card, at.cq, at.qp, answer, sizeof answer, "join_node",
        "{\"name\":\"%s\",\"gid\":\"%s\",\"capacity\":%lu,\"qpn\":%u,\"qkey\":%u,"
        "\"card\":{\"domain\":%lu,\"base\":%lu,\"rkey\":%u,\"queue_pairs\":[%s]}}",
        argv[4], argv[3], size, at.qp->qp_num, QKEY, domain, base, mr->rkey, numbers);
    /* Updates that come before are sent again. */
    for (int n = 0; n < SLOTS; n++)
        room(n);
    at.control_qpn = json_number(answer, "control", "qpn");
    at.control_qkey = json_number(answer, "control", "qkey");
    at.control_gid = json_gid(answer, "control");
    struct ibv_ah_attr way = card_way(&card, at.control_gid);
    if (!(at.control = ibv_create_ah(card.pd, &way)))
        die("no way to the control plane: %s", strerror(errno));
    printf("card_node: node %lu, %lu bytes at %#lx of domain %s\n", json_number(answer, NULL, "node"), size, base, argv[5]);
    fflush(stdout);
    serve();
}
