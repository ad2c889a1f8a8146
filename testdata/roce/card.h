/* What a program needs to be a peer of farmem by verbs: an RDMA device, queue pairs set to connections, and the control plane's
 * requests over HTTP. docs/roce-peers.md goes through it; PROTOCOL section 14 rules it. Any failure ends the program and says what failed. */
#ifndef FARMEM_CARD_H
#define FARMEM_CARD_H

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *form, ...) {
    va_list args;
    va_start(args, form);
    fputs("card: ", stderr);
    vfprintf(stderr, form, args);
    fputc('\n', stderr);
    exit(2);
}

/* --- The control plane: POST /v1/NAME, JSON in and out ------------------------------------------------------------------------------ */

struct rack {
    char host[108], port[8], token[128]; /* no port: the host is the path of a Unix socket */
    char address[40];                    /* the header Farmem-Address, while a member joins */
};

/* Takes the path of a Unix socket, `[address]:port` or `address:port`; and the file that the operator's token is kept in. */
static inline void rack_open(struct rack *rack, const char *api, const char *token_file) {
    rack->address[0] = 0;
    const char *colon = strrchr(api, ':');
    if (!colon && strlen(api) < sizeof rack->host) {
        rack->port[0] = 0; /* a Unix socket */
        strcpy(rack->host, api);
    } else if (!colon || colon - api >= (long)sizeof rack->host)
        die("%s is no socket and no ADDRESS:PORT of the control plane", api);
    else {
        bool bracketed = *api == '[';
        snprintf(rack->host, sizeof rack->host, "%.*s", (int)(colon - api) - 2 * bracketed, api + bracketed);
        snprintf(rack->port, sizeof rack->port, "%s", colon + 1);
    }
    FILE *file = fopen(token_file, "r");
    if (!file || !fgets(rack->token, sizeof rack->token, file))
        die("cannot read the rack's token %s: %s", token_file, strerror(errno));
    rack->token[strcspn(rack->token, "\r\n")] = 0;
    fclose(file);
}

/* One request; the body of the answer goes to `answer`. Answers the HTTP status. */
static inline int rack_try(const struct rack *rack, char *answer, size_t room, const char *name, const char *body) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    struct sockaddr_un near = {.sun_family = AF_UNIX};
    snprintf(near.sun_path, sizeof near.sun_path, "%s", rack->host);
    if (*rack->port && getaddrinfo(rack->host, rack->port, &hints, &found))
        die("%s is no address", rack->host);
    int fd = socket(found ? found->ai_family : AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, found ? found->ai_addr : (struct sockaddr *)&near, found ? found->ai_addrlen : sizeof near))
        die("the control plane at %s %s: %s", rack->host, rack->port, strerror(errno));
    if (found)
        freeaddrinfo(found);
    char request[4096], *all = calloc(1, 1 << 20), *start;
    int len = snprintf(request, sizeof request,
        "POST /v1/%s HTTP/1.1\r\nHost: rack\r\nConnection: close\r\nAuthorization: Bearer %s\r\n%s%s%sContent-Length: %zu\r\n\r\n%s",
        name, rack->token, *rack->address ? "Farmem-Address: " : "", rack->address, *rack->address ? "\r\n" : "", strlen(body), body);
    if (len >= (int)sizeof request || write(fd, request, len) != len)
        die("%s could not be sent", name);
    for (ssize_t got, have = 0; (got = read(fd, all + have, (1 << 20) - 1 - have)) > 0; have += got)
        ;
    close(fd);
    int status = 0;
    if (sscanf(all, "HTTP/1.1 %d", &status) != 1 || !(start = strstr(all, "\r\n\r\n")))
        die("%s has no answer that can be read", name);
    snprintf(answer, room, "%s", start + 4);
    free(all);
    return status;
}

/* One request that must succeed. */
__attribute__((format(printf, 5, 6))) static inline void rack_ask(
    const struct rack *rack, char *answer, size_t room, const char *name, const char *form, ...) {
    char body[2048];
    va_list args;
    va_start(args, form);
    vsnprintf(body, sizeof body, form, args);
    va_end(args);
    int status = rack_try(rack, answer, room, name, body);
    if (status != 200)
        die("%s %s is refused (%d): %s", name, body, status, answer);
}

/* The text behind `"field":`, first behind `after` when that is given. Field names are quoted whole, so `qpn` does not find `peer_qpn`. */
static inline const char *json_at(const char *json, const char *after, const char *field) {
    char quoted[64];
    if (after) {
        snprintf(quoted, sizeof quoted, "\"%s\":", after);
        if (!(json = strstr(json, quoted)))
            die("the answer has no %s", after);
    }
    snprintf(quoted, sizeof quoted, "\"%s\":", field);
    const char *at = strstr(json, quoted);
    if (!at)
        die("the answer has no %s: %s", field, json);
    return at + strlen(quoted);
}

static inline uint64_t json_number(const char *json, const char *after, const char *field) {
    return strtoull(json_at(json, after, field), NULL, 10);
}

/* The GID behind a `"gid":"address"`. An IPv4 address a.b.c.d is ::ffff:a.b.c.d. */
static inline union ibv_gid gid_of(const char *text) {
    union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
    char address[64];
    snprintf(address, sizeof address, "%.*s", (int)strcspn(text + (*text == '"'), "\""), text + (*text == '"'));
    if (inet_pton(AF_INET6, address, &gid) != 1 && inet_pton(AF_INET, address, &gid.raw[12]) != 1)
        die("%s is no address", address);
    return gid;
}

static inline union ibv_gid json_gid(const char *json, const char *after) { return gid_of(json_at(json, after, "gid")); }

/* --- The device ------------------------------------------------------------------------------------------------------------------- */

struct card {
    struct ibv_context *device;
    struct ibv_pd *pd;
    int gid_index;
};

/* The first RDMA device that has the address. */
static inline void card_open(struct card *card, const char *address) {
    union ibv_gid wanted = gid_of(address), has;
    struct ibv_device **list = ibv_get_device_list(NULL);
    for (int n = 0; list && list[n]; n++) {
        struct ibv_port_attr port;
        if (!(card->device = ibv_open_device(list[n])) || ibv_query_port(card->device, 1, &port))
            continue;
        for (card->gid_index = 0; card->gid_index < port.gid_tbl_len; card->gid_index++)
            if (!ibv_query_gid(card->device, 1, card->gid_index, &has) && !memcmp(&has, &wanted, 16)) {
                if (!(card->pd = ibv_alloc_pd(card->device)))
                    die("no protection domain: %s", strerror(errno));
                return;
            }
        ibv_close_device(card->device);
    }
    die("no RDMA device has the address %s", address);
}

static inline struct ibv_cq *card_cq(const struct card *card, int depth) {
    struct ibv_cq *cq = ibv_create_cq(card->device, depth, NULL, NULL, 0);
    if (!cq)
        die("no completion queue: %s", strerror(errno));
    return cq;
}

/* A queue pair in the state INIT: from here on it has its number. `access` is what its peer may do, `qkey` that of a UD queue pair. */
static inline struct ibv_qp *card_qp(const struct card *card, enum ibv_qp_type type, struct ibv_cq *cq, int access, uint32_t qkey) {
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = type,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(card->pd, &init);
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access, .qkey = qkey};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    if (!qp || ibv_modify_qp(qp, &to, mask))
        die("no queue pair: %s", strerror(errno));
    return qp;
}

static inline struct ibv_ah_attr card_way(const struct card *card, union ibv_gid to) {
    return (struct ibv_ah_attr){
        .is_global = 1, .port_num = 1, .grh = {.dgid = to, .sgid_index = card->gid_index, .hop_limit = 64}};
}

/* Makes a UD queue pair ready. */
static inline void card_ud_ready(struct ibv_qp *qp) {
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTR};
    if (ibv_modify_qp(qp, &to, IBV_QP_STATE))
        die("a datagram queue pair does not become ready: %s", strerror(errno));
    to.qp_state = IBV_QPS_RTS;
    if (ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN))
        die("a datagram queue pair does not send: %s", strerror(errno));
}

/* What an RC queue pair is set to. */
struct way {
    union ibv_gid gid;
    uint32_t qpn, send_psn, expect_psn, pmtu, depth, timeout, retries, rnr_retries;
};

/* Answers an errno. */
static inline int card_rc_ready(const struct card *card, struct ibv_qp *qp, const struct way *way) {
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTR, .path_mtu = (enum ibv_mtu)(__builtin_ctz(way->pmtu) - 7), .dest_qp_num = way->qpn,
        .rq_psn = way->expect_psn, .max_dest_rd_atomic = way->depth, .min_rnr_timer = 12, .ah_attr = card_way(card, way->gid)};
    int error = ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error)
        return error;
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = way->timeout, .retry_cnt = way->retries, .rnr_retry = way->rnr_retries,
        .sq_psn = way->send_psn, .max_rd_atomic = way->depth};
    return ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                      IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Big-endian numbers, as messages have them (PROTOCOL 3.1). */
static inline uint64_t get(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    while (bytes-- > 0)
        value = value << 8 | *at++;
    return value;
}

static inline void put(uint8_t *at, int bytes, uint64_t value) {
    for (int n = bytes; n-- > 0; value >>= 8)
        at[n] = value;
}

static inline double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* The next completion, for `most` seconds at the longest; false when none came. */
static inline bool card_wait(struct ibv_cq *cq, struct ibv_wc *done, double most) {
    for (double until = seconds() + most; seconds() < until;) {
        int got = ibv_poll_cq(cq, 1, done);
        if (got < 0)
            die("a completion queue failed");
        if (got)
            return true;
        sched_yield();
    }
    return false;
}

/* --- Joining ---------------------------------------------------------------------------------------------------------------------- */

/* Joins, and proves the address: the control plane sends a cookie to the UD queue pair `qp`, and the next request shows it (PROTOCOL 8.74).
 * The queue pair is ready, and has no buffer posted. A lost cookie is asked for again. */
__attribute__((format(printf, 8, 9))) static inline void rack_join(struct rack *rack, const struct card *card, struct ibv_cq *cq,
    struct ibv_qp *qp, char *answer, size_t room, const char *name, const char *form, ...) {
    enum { GRH_LEN = 40, HEADER_LEN = 24, COOKIE_KIND = 0x64, COOKIE_LEN = 16, BUFFER = 4096, TRIES = 10 };
    static uint8_t bytes[BUFFER];
    char body[2048];
    va_list args;
    va_start(args, form);
    vsnprintf(body, sizeof body, form, args);
    va_end(args);
    struct ibv_mr *mr = ibv_reg_mr(card->pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    if (!mr)
        die("no memory for a cookie: %s", strerror(errno));
    struct ibv_sge part = {.addr = (uintptr_t)bytes, .length = sizeof bytes, .lkey = mr->lkey};
    struct ibv_recv_wr request = {.sg_list = &part, .num_sge = 1}, *bad;
    strcpy(rack->address, "pending");
    int status = rack_try(rack, answer, room, name, body);
    bool posted = false;
    for (int tries = 0; status == 428 && tries < TRIES; tries++) {
        struct ibv_wc done;
        if (!posted && ibv_post_recv(qp, &request, &bad))
            die("no room for a cookie");
        posted = true;
        strcpy(rack->address, "pending");
        if ((status = rack_try(rack, answer, room, name, body)) != 428 || !card_wait(cq, &done, 1))
            continue;
        posted = false;
        const uint8_t *message = bytes + GRH_LEN;
        if (done.status != IBV_WC_SUCCESS || done.byte_len < GRH_LEN + HEADER_LEN + COOKIE_LEN || message[1] != COOKIE_KIND)
            continue;
        for (int n = 0; n < COOKIE_LEN; n++)
            sprintf(rack->address + 2 * n, "%02x", message[HEADER_LEN + n]);
        status = rack_try(rack, answer, room, name, body);
    }
    rack->address[0] = 0;
    if (status != 200)
        die("%s %s is refused (%d): %s", name, body, status, answer);
    ibv_dereg_mr(mr);
}

#endif
